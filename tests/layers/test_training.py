"""Training a batch norm layer, step by step, against an independent implementation in float64."""

import json
from pathlib import Path

import numpy as np
import pytest

import bnorm
import cases
from bnorm.kernels import cpu
from compare import assert_close, assert_gradient, assert_gradients_of, assert_same
from drawing import every_pair, together
from layer_oracle import CHANNELS, LAYOUTS, PlainBatchNorm, check_running, check_step

EXAMPLES = json.loads((Path(__file__).parent / "data" / "worked_examples.json").read_text(encoding="utf-8"))

every_layout = pytest.mark.parametrize("layout", LAYOUTS, ids=str)
every_dtype = pytest.mark.parametrize("dtype", ["float32", "float64"])


def make(layout, **options):
    return getattr(bnorm, layout.layer)(CHANNELS, axis=layout.axis, **options)


# A hundred steps -----------------------------------------------------------------------------------------------------


@every_pair("layout", LAYOUTS, dtype=["float32", "float64"], momentum=[0.1, 1.0, None], ddof=[0, 1])
def test_a_hundred_steps(layout, dtype, momentum, ddof):
    rng = np.random.default_rng([ddof, *map(ord, str(layout))])
    options = {"axis": layout.axis, "momentum": momentum, "ddof": ddof, "activation": [None, "relu"][ddof]}
    bn = getattr(bnorm, layout.layer)(CHANNELS, **options)
    plain = PlainBatchNorm(**options)
    case = {"layout": layout, "dtype": dtype, **options}
    for step in range(1, 101):
        x, dy = layout.batch(rng, rng.integers(2, 9), dtype)
        check_step(bn, plain, x, dy, step=step, **case)
        if step in (1, 2, 100):
            check_running(bn, plain, step=step, **case)
        for p in bn.parameters():
            p.data -= 0.01 * p.grad
    assert (bn.num_batches_tracked, bn.num_batches_skipped) == (100, 0)

    plain.seen.clear()
    plain.mean, plain.var = bn.running_mean, bn.running_var
    bn.eval()
    for n in (1, 5):
        check_step(bn, plain, *layout.batch(rng, n, dtype), mode="eval", **case)
    assert bn.num_batches_tracked == 100


@together(per_sample=[False, True], momentum=[0.3, None])
@every_layout
@every_dtype
def test_steps_with_weights(layout, dtype, per_sample, momentum):
    rng = np.random.default_rng([3, *map(ord, str(layout))])
    options = {"axis": layout.axis, "momentum": momentum, "ddof": 1}
    bn, plain = getattr(bnorm, layout.layer)(CHANNELS, **options), PlainBatchNorm(**options)
    for step in range(10):
        x, dy = layout.batch(rng, rng.integers(4, 9), dtype)
        shape = np.delete(x.shape, layout.axis)
        weight = rng.uniform(0.5, 3, shape[:1] if per_sample else shape)
        weight[rng.integers(4)] = 0
        case = {"layout": layout, "dtype": dtype, "step": step, "momentum": momentum, "per_sample": per_sample}
        check_step(bn, plain, x, dy, weight, **case)
        check_running(bn, plain, **case)


@pytest.mark.parametrize("momentum", [0.1, 0.7])
def test_parameters_and_statistics_in_float32(momentum):
    layout, rng = LAYOUTS[4], np.random.default_rng(0)
    bn, plain = make(layout, momentum=momentum, dtype="float32"), PlainBatchNorm(momentum=momentum)
    for step in range(100):
        check_step(bn, plain, *layout.batch(rng, 5), step=step)
        check_running(bn, plain, dtype="float64", step=step, momentum=momentum)
        for p in bn.parameters():
            p.data -= 0.01 * p.grad
    arrays = [bn.gamma.data, bn.gamma.grad, bn.beta.data, bn.beta.grad, bn.running_mean, bn.running_var]
    assert {a.dtype for a in arrays} == {np.dtype("float32")}


@pytest.mark.parametrize("memory", [cases.fortran, cases.channels_last, cases.strided, cases.backwards])
def test_memory_order_makes_no_difference(memory):
    layout, rng = LAYOUTS[4], np.random.default_rng(0)
    bn, plain = make(layout), PlainBatchNorm()
    for step in range(3):
        x, dy = layout.batch(rng, 6)
        check_step(bn, plain, memory(x), memory(dy), memory=memory.__name__, step=step)
        check_running(bn, plain, dtype="float64", memory=memory.__name__, step=step)


@every_layout
@pytest.mark.parametrize("training", [True, False])
def test_gradients_are_derivatives(layout, training):
    rng = np.random.default_rng(4)
    bn = make(layout, eps=1e-3)
    bn.gamma, bn.beta = rng.uniform(0.5, 2, CHANNELS), rng.standard_normal(CHANNELS)
    bn.running_mean, bn.running_var = rng.standard_normal(CHANNELS), rng.uniform(0.5, 2, CHANNELS)
    bn.training = training
    x, dy = layout.batch(rng, 4)

    def loss(x):
        with bn.frozen_stats():
            return float((dy * bn(x)).sum())

    loss(x)
    assert_gradient(bn.backward(dy), loss, x, layout=layout)
    assert_gradients_of(bn.parameters(), lambda: loss(x), layout=layout)


# Published examples --------------------------------------------------------------------------------------------------


def test_worked_example_of_eight_rows():
    """To the eight digits given: half a unit of the last one in a result, and what as much in every x makes of it.

    The published running variances are those of a weight 1 - 0.1 in float32, 2.4e-8 less than 0.9, and the outputs in
    inference follow from them.
    """
    given = {name: np.array(v) for name, v in EXAMPLES["batch_norm_8x3"].items() if name != "what"}
    half, std, weight = 0.5e-8, given["x"].std(0), 0.9 - float(np.float32(0.9))
    bn = bnorm.BatchNorm1d(3)
    assert_close(bn(given["x"]), given["y_training"], half * (1 + (2 + np.abs(given["y_training"])) / std))
    assert_close(bn.running_mean, given["running_mean"], half * 1.1)
    of_var = half * (1 + 0.2 * std) + weight
    assert_close(bn.running_var, given["running_var"], of_var)
    bn.eval()
    assert_close(bn(given["x"]), given["y_inference"], half * 2.2 + np.abs(given["y_inference"]) * of_var)


@pytest.mark.parametrize("name", ["batch_norm_4x2_float32", "layer_norm_2x4_float32"])
def test_worked_examples_in_float32(name):
    layer = bnorm.BatchNorm1d(2) if name.startswith("batch") else bnorm.LayerNorm(4)
    y = layer(np.array(EXAMPLES[name]["x"], "float32"))
    assert y.dtype == np.float32
    assert_close(y, EXAMPLES[name]["y_eps_1e-5"], 0.51e-4)


# What a step costs ---------------------------------------------------------------------------------------------------

KERNELS = ("moments", "normalize", "grad_moments", "grad_input", "forward", "backward", "rows_forward", "rows_backward")


@pytest.fixture
def calls(monkeypatch):
    """The names and options of the kernels that were called."""
    made = []

    def spy(name):
        kernel = getattr(cpu, name)

        def called(*args, **options):
            made.append((name, args, options))
            return kernel(*args, **options)

        monkeypatch.setattr(cpu, name, called)

    for name in KERNELS:
        spy(name)
    return made


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("training", [True, False])
@every_layout
def test_a_batch_norm_step_is_two_kernel_calls(calls, layout, training, weighted):
    bn = make(layout, activation="relu", momentum=None)
    bn.training = training
    x, dy = layout.batch(np.random.default_rng(0), 4)
    bn(x, np.ones(np.delete(x.shape, layout.axis)) if weighted else None)
    assert [name for name, _, _ in calls] == ["forward"]
    bn.backward(dy)
    assert [name for name, _, _ in calls] == ["forward", "backward"]


@pytest.mark.parametrize(
    "layer",
    [
        lambda: bnorm.LayerNorm((3, 2)),
        lambda: bnorm.RMSNorm((3, 2)),
        lambda: bnorm.GroupNorm(2, 4),
        lambda: bnorm.InstanceNorm2d(4, affine=True),
    ],
)
def test_a_row_step_is_two_kernel_calls(calls, layer):
    layer = layer()
    x, dy = LAYOUTS[4].batch(np.random.default_rng(0), 4)
    layer(x)
    layer.backward(dy)
    assert [name for name, _, _ in calls] == ["rows_forward", "rows_backward"]


PARAMS = {"backward": 7, "rows_backward": 8}  # the place of `params` among a kernel's arguments


def asked_for_gradients(call):
    name, args, options = call
    place = PARAMS[name]
    return options["params"] if "params" in options else len(args) <= place or args[place]


@pytest.mark.parametrize("layer", [lambda: bnorm.BatchNorm2d(4), lambda: bnorm.GroupNorm(2, 4)])
@pytest.mark.parametrize("gamma", [True, False])
@pytest.mark.parametrize("beta", [True, False])
def test_parameters_that_need_no_gradient(calls, layer, gamma, beta):
    """It is not accumulated, and where none is needed not computed; dx and the other one are as ever."""
    x, dy = LAYOUTS[4].batch(np.random.default_rng(0), 4)
    free, layer = layer(), layer()
    layer.gamma.requires_grad, layer.beta.requires_grad = gamma, beta
    for each in (free, layer):
        each(x)
        each.gamma.grad, each.beta.grad = np.ones(4), np.ones(4)
    assert_same(layer.backward(dy), free.backward(dy))
    assert_same(layer.gamma.grad, free.gamma.grad if gamma else np.ones(4), gamma=gamma, beta=beta)
    assert_same(layer.beta.grad, free.beta.grad if beta else np.ones(4), gamma=gamma, beta=beta)
    last, of_free = [call for call in calls if "backward" in call[0]]
    assert bool(asked_for_gradients(last)) == (gamma or beta)
    assert asked_for_gradients(of_free)


def test_no_parameters_no_gradients(calls):
    bn = bnorm.BatchNorm1d(4, affine=False)
    x, dy = np.random.default_rng(0).standard_normal((2, 6, 4))
    bn(x)
    dx = bn.backward(dy)
    other = bnorm.BatchNorm1d(4)
    other(x)
    assert_same(dx, other.backward(dy))
    assert bn.gamma is None and bn.beta is None and list(bn.parameters()) == []
