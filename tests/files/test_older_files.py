"""Files that were written once and stay as they are: what later versions have to read."""

from pathlib import Path

import numpy as np
import pytest

import bnorm
from compare import assert_close, assert_same

DATA = Path(__file__).with_name("data")
every_suffix = pytest.mark.parametrize("suffix", ["npz", "safetensors"])
x = np.arange(24.0).reshape(6, 4) ** 2


@every_suffix
def test_layer_of_format_1(suffix):
    layer = bnorm.load(DATA / f"layer-1.{suffix}")
    assert repr(layer).startswith("BatchNorm1d(4, eps=0.001, momentum=None, ")
    assert (layer.activation, layer.dtype, layer.training, layer.gamma.requires_grad) == (
        "relu",
        "float32",
        False,
        False,
    )
    assert layer.num_batches_tracked == 2
    both = np.vstack([x, x[:2]])
    assert_close(layer.running_mean, both.mean(0), 1e-7 * both.mean(0))
    assert_close(layer.running_var, both.var(0), 1e-6 * both.var(0))
    assert_same(layer.gamma.data, [1, 2, 3, 4])
    layer.train()(x)
    both = np.vstack([both, x])
    assert_close(layer.running_mean, both.mean(0), 1e-6 * both.mean(0))  # values seen have been counted


@every_suffix
def test_group_norm_of_format_1(suffix):
    layer = bnorm.load(DATA / f"group-1.{suffix}")
    assert (layer.num_groups, layer.num_channels, layer.axis, layer.training) == (2, 4, -1, True)


@every_suffix
def test_transformer_of_format_1(suffix):
    t = bnorm.load(DATA / f"transformer-1.{suffix}")
    want = bnorm.BatchNormTransformer(halflife=10.0, ddof=1).fit(x[:, :3]).partial_fit(x[:3, :3])
    assert (t.halflife, t.ddof, t.n_batches_seen_, t.n_samples_seen_) == (10.0, 1, 2, 9)
    assert t.feature_names_in_.tolist() == ["a", "b", "c"]
    assert_close(t.mean_, want.mean_, 1e-14 * want.scale_)
    assert_close(t.var_, want.var_, 1e-13 * want.var_)
    del t.feature_names_in_
    t.partial_fit(x[3:, :3])
    want.partial_fit(x[3:, :3])
    assert_close(t.var_, want.var_, 1e-13 * want.var_)
