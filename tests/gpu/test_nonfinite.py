"""Batches that are not finite, on the GPU: counted there, told when somebody asks; on the stand-in."""

import warnings

import numpy as np
import pytest

import bnorm
from bnorm.checks import NonFiniteError
from bnorm.running import CHANNELS
from emulated import fake_cupy
from emulated.device import needs_emulator
from emulated.fake_cupy import fake_cupy as fixture  # noqa: F401
from emulated.pairs import (
    BROKEN,
    DY,
    MAKERS,
    RNG,
    C,
    X,
    assert_alike,
    assert_layers_agree,
    pair,
    step,
    there,
)
from layer_oracle import held


@needs_emulator
def test_skipped_batches_are_counted_when_somebody_asks(cupy):
    on_gpu, on_cpu = pair(MAKERS["batch"][0])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for x in (X, BROKEN, X, X, BROKEN, BROKEN, X, BROKEN):
            step(on_gpu, on_cpu, x, DY)
    with pytest.raises(AssertionError, match="1 waits"), cupy.nothing_waits():
        with pytest.warns(RuntimeWarning, match=r"^BatchNorm1d\(4\): 2 of 4 channels") as caught:
            assert on_gpu.num_batches_skipped == 4
    assert caught[0].filename == __file__
    assert on_gpu.num_batches_skipped == 4  # and there is no warning any more
    assert type(on_gpu.num_batches_skipped) is int
    step(on_gpu, on_cpu, BROKEN, DY)
    assert_layers_agree(on_gpu, on_cpu)
    assert on_gpu.num_batches_skipped == 5
    on_gpu(there(BROKEN)), on_gpu.reset_running_stats()
    assert on_gpu.num_batches_skipped == 0


@needs_emulator
@pytest.mark.parametrize("channels", [3, 600])
def test_a_batch_counts_once_whatever_blocks_its_channels_are_in(cupy, channels):
    bn, x = bnorm.BatchNorm1d(channels, device="cuda"), RNG.standard_normal((4, channels))
    before = fake_cupy.launched.count("move_statistics")
    for places in ([0, channels - 1], [], [channels // 2], list(range(channels))):
        broken = x.copy()
        broken[1, places] = np.inf
        bn(there(broken))
    assert fake_cupy.launched.count("move_statistics") == before  # the forward moves them
    numbers = bn._running.left.host[CHANNELS + channels :]
    assert (numbers == 4).all()  # of batches
    with pytest.warns(RuntimeWarning, match=f"{channels} of {channels}"):
        assert bn.num_batches_skipped == 3


@needs_emulator
def test_what_a_graph_captures_counts_when_it_runs(cupy):
    bn = bnorm.BatchNorm1d(C, device="cuda")
    stream, pool = cupy.cuda.Stream(5), cupy.cuda.MemoryPool()
    with stream, cupy.cuda.using_allocator(pool.malloc):
        stream.begin_capture()
        bn(there(BROKEN))
        graph = stream.end_capture()
    assert (bn.num_batches_skipped, bn.num_batches_tracked) == (0, 1)
    graph.launch(), graph.launch()
    with pytest.warns(RuntimeWarning, match="2 of 4 channels"):
        assert (bn.num_batches_skipped, bn.num_batches_tracked) == (2, 1)


@needs_emulator
@pytest.mark.parametrize("parts", [(X, BROKEN), (BROKEN, X), (X, X)])
def test_a_pool_with_gaps_counts_once(cupy, parts):
    on_gpu, on_cpu = pair(lambda device: bnorm.BatchNorm1d(C, momentum=None, device=device))
    with warnings.catch_warnings(), on_gpu.pooled_stats(), on_cpu.pooled_stats():
        warnings.simplefilter("ignore")
        for x in (*parts, X, X):
            on_gpu(there(x)), on_cpu(x)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert on_gpu.num_batches_skipped == on_cpu.num_batches_skipped == int(any(x is BROKEN for x in parts))
    assert_layers_agree(on_gpu, on_cpu)


@needs_emulator
def test_a_pool_that_the_buffers_cannot_hold(cupy):
    """Each batch of it is finite, and so is the pool, in float64; the buffers are float32."""
    on_gpu, on_cpu = pair(MAKERS["float32"][0])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with on_gpu.pooled_stats(), on_cpu.pooled_stats():
            on_gpu(there(X * [1e30, 1, 1, 1])), on_cpu(X * [1e30, 1, 1, 1])
        assert on_gpu.num_batches_skipped == on_cpu.num_batches_skipped == 1
    assert_layers_agree(on_gpu, on_cpu)


@needs_emulator
def test_a_warning_comes_before_a_move(cupy):
    for leave in (lambda bn: bn.to("cpu"), lambda bn: bn.__getstate__()):
        bn = bnorm.BatchNorm1d(C, device="cuda")
        bn(there(BROKEN))
        with pytest.warns(RuntimeWarning, match="2 of 4 channels"):
            leave(bn)
        assert bn.num_batches_skipped == 1 and bn.to("cpu").num_batches_skipped == 1


@needs_emulator
def test_what_is_not_finite_raises_or_propagates(cupy):
    on_gpu, on_cpu = pair(lambda device: bnorm.BatchNorm1d(C, nonfinite="raise", device=device))
    step(on_gpu, on_cpu, X, DY, waits=1)
    on_gpu(there(X))
    before = held(on_gpu)
    with pytest.raises(NonFiniteError, match=r"^BatchNorm1d\(4\): x: the batch mean or variance of 2 of 4 channels"):
        on_gpu(there(BROKEN))
    assert held(on_gpu) == before
    on_cpu(X)
    assert_alike(on_gpu.backward(there(DY)), on_cpu.backward(DY))
    with pytest.raises(NonFiniteError), on_gpu.pooled_stats():
        on_gpu(there(BROKEN))
    assert_layers_agree(on_gpu, on_cpu)
    on_gpu, on_cpu = pair(lambda device: bnorm.BatchNorm1d(C, nonfinite="propagate", device=device))
    step(on_gpu, on_cpu, BROKEN, DY)
    assert np.isnan(on_gpu.running_mean.host[1]) and on_gpu.num_batches_skipped == 0


@needs_emulator
def test_a_rule_that_changes_inside_of_a_pool(cupy):
    for rule in ("propagate", "skip"):
        bn = bnorm.BatchNorm1d(C, device="cuda")
        with bn.pooled_stats():
            bn(there(BROKEN))
            bn.nonfinite = rule
        with pytest.warns(RuntimeWarning, match="2 of 4"):
            assert bn.num_batches_skipped == 1
