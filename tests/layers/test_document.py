"""docs/layers.md: its examples run, and its table of differences is true, line by line."""

import re
from pathlib import Path

import numpy as np
import pytest

import bnorm
from compare import assert_close

TEXT = (Path(__file__).parents[2] / "docs" / "layers.md").read_text(encoding="utf-8")
X = np.random.default_rng(0).standard_normal((6, 4)) + np.arange(4)


def test_examples_run():
    blocks = re.findall(r"^```python\n(.*?)^```", TEXT, re.MULTILINE | re.DOTALL)
    names = {}
    exec("\n".join(blocks), names)
    assert names["dh"].shape == names["h"].shape
    assert names["bn"].training is True and names["bn"].ddof == 1


def test_the_table_has_no_other_lines():
    """Each of these has a test below."""
    rows = [line.split("|")[1].strip() for line in TEXT.splitlines() if line.startswith("| ")]
    assert rows == [
        "",
        "---",
        "running variance",
        "`momentum=None`",
        "gradients",
        "a batch with NaN or infinity in a channel",
        "type of parameters and statistics",
        "`RMSNorm` without `eps`",
        "`num_batches_tracked` of instance norm",
        "`momentum=None` of instance norm",
        "instance norm of one sample without a batch axis",
        "`layer.weight = array`",
        "`a.weight = b.weight`",
        "`named_parameters()`",
    ]


@pytest.fixture
def nn():
    return pytest.importorskip("torch", reason="the other side of the comparison").nn


def tensor(x):
    import torch

    return torch.from_numpy(np.array(x))


def test_running_variance(nn):
    ours, twin, theirs = bnorm.BatchNorm1d(4), bnorm.BatchNorm1d(4, ddof=1), nn.BatchNorm1d(4).double()
    for layer in (ours, twin):
        layer(X)
    theirs(tensor(X))
    assert_close(twin.running_var, theirs.running_var.numpy(), 1e-14)
    assert_close(ours.running_var - 0.9, (theirs.running_var.numpy() - 0.9) * 5 / 6, 1e-14)


def test_momentum_none(nn):
    ours, theirs = bnorm.BatchNorm1d(4, momentum=None, ddof=1), nn.BatchNorm1d(4, momentum=None).double()
    for x in (X, X[:3] + 10):
        ours(x)
        theirs(tensor(x))
    assert_close(ours.running_var, np.concatenate([X, X[:3] + 10]).var(0, ddof=1), 1e-13)
    assert_close(theirs.running_var.numpy(), (X.var(0, ddof=1) + X[:3].var(0, ddof=1)) / 2, 1e-14)


def test_gradients(nn):
    ours, theirs, dy = bnorm.LayerNorm(4), nn.LayerNorm(4).double(), np.cos(X)
    x = tensor(X).requires_grad_()
    theirs(x).backward(tensor(dy))
    ours(X)
    assert_close(ours.backward(dy), x.grad.numpy(), 1e-13)
    _, pull = ours.vjp(X)
    assert_close(pull(dy), x.grad.numpy(), 1e-13)


def test_nan(nn):
    bad = X.copy()
    bad[0, 1] = np.nan
    ours, theirs = bnorm.BatchNorm1d(4), nn.BatchNorm1d(4).double()
    like = bnorm.BatchNorm1d(4, nonfinite="propagate")
    with pytest.warns(RuntimeWarning, match="1 of 4 channels"):
        ours(bad)
    like(bad)
    theirs(tensor(bad))
    assert np.isnan(theirs.running_mean.numpy()).tolist() == [False, True, False, False]
    assert np.isnan(like.running_mean).tolist() == [False, True, False, False]
    assert np.isfinite(ours.running_mean).all() and ours.num_batches_skipped == 1


def test_types(nn):
    assert str(nn.BatchNorm1d(4).weight.dtype) == "torch.float32"
    assert bnorm.BatchNorm1d(4).weight.dtype == bnorm.BatchNorm1d(4).running_var.dtype == np.float64
    assert bnorm.BatchNorm1d(4, dtype="float32").running_var.dtype == np.float32


def test_eps_of_rms_norm(nn):
    x = X * 1e-6
    want = nn.RMSNorm(4).double()(tensor(x)).detach().numpy()
    assert_close(bnorm.RMSNorm(4, eps=None)(x), want, 1e-12)
    assert np.abs(bnorm.RMSNorm(4)(x) - want).max() > 0.1
    assert bnorm.RMSNorm(4).eps == bnorm.LayerNorm(4).eps == 1e-5


def test_instance_norm(nn):
    x = np.stack([X, X + 1])
    for momentum in (0.1, None):
        ours = bnorm.InstanceNorm1d(6, momentum=momentum, track_running_stats=True)
        theirs = nn.InstanceNorm1d(6, momentum=momentum, track_running_stats=True).double()
        ours(x)
        theirs(tensor(x))
        assert (ours.num_batches_tracked, int(theirs.num_batches_tracked)) == (1, 0)
    assert not theirs.running_mean.numpy().any()  # with None
    assert_close(ours.running_mean, x.mean((0, 2)), 1e-14)


def test_one_sample(nn):
    x = np.random.default_rng(0).normal(size=(4, 5))
    ours, theirs = bnorm.InstanceNorm1d(4), nn.InstanceNorm1d(4)
    assert_close(ours(x[None])[0], theirs(tensor(x)).numpy(), 1e-12)
    with pytest.raises(ValueError, match=r"expected 3 dimensions \(N, C, L\), got shape \(4, 5\)"):
        ours(x)


def test_assignment_and_names(nn):
    ours, theirs = bnorm.LayerNorm(4), nn.LayerNorm(4)
    with pytest.raises(TypeError):
        theirs.weight = np.ones(4)
    p = ours.weight
    ours.weight = np.arange(4.0)
    assert ours.weight is p and p[3] == 3
    assert [name for name, _ in theirs.named_parameters()] == list(ours.state_dict()) == ["weight", "bias"]
    assert [name for name, _ in ours.named_parameters()] == ["gamma", "beta"]


def test_a_parameter_of_another_layer(nn):
    (a, b), (c, d) = ([kind(4) for _ in range(2)] for kind in (bnorm.LayerNorm, nn.LayerNorm))
    b.weight = np.arange(4.0)
    own, a.weight, c.weight = a.weight, b.weight, d.weight
    assert c.weight is d.weight
    assert a.weight is own
    assert a.weight is not b.weight
    np.testing.assert_array_equal(a.weight, b.weight)
