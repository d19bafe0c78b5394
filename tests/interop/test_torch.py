"""Layers from and to PyTorch, with PyTorch on the other side: state, predictions, and training that goes on."""

import numpy as np
import pytest

import bnorm

torch = pytest.importorskip("torch", reason="PyTorch is the other side")

from bnorm.interop.torch import from_torch, to_torch  # noqa: E402  after the skip

nn = torch.nn

MODULES = {  # a module, and the shape of a batch
    "batch 1d": (lambda **k: nn.BatchNorm1d(4, **k), (8, 4)),
    "batch 1d of runs": (lambda **k: nn.BatchNorm1d(4, **k), (8, 4, 5)),
    "batch 2d": (lambda **k: nn.BatchNorm2d(4, eps=1e-3, momentum=0.25, **k), (8, 4, 3, 5)),
    "batch 3d": (lambda **k: nn.BatchNorm3d(4, **k), (4, 4, 3, 2, 5)),
    "batch without affine": (lambda **k: nn.BatchNorm1d(4, affine=False, **k), (8, 4)),
    "batch without bias": (lambda **k: nn.BatchNorm1d(4, bias=False, **k), (8, 4)),
    "batch without statistics": (lambda **k: nn.BatchNorm1d(4, track_running_stats=False, **k), (8, 4)),
    "batch that keeps its statistics": (lambda **k: nn.BatchNorm1d(4, momentum=0.0, **k), (8, 4)),
    "layer": (lambda **k: nn.LayerNorm(4, **k), (8, 4)),
    "layer of two axes": (lambda **k: nn.LayerNorm((3, 4), eps=1e-3, **k), (8, 3, 4)),
    "layer without bias": (lambda **k: nn.LayerNorm(4, bias=False, **k), (8, 3, 4)),
    "layer without affine": (lambda **k: nn.LayerNorm(4, elementwise_affine=False, **k), (8, 4)),
    "group": (lambda **k: nn.GroupNorm(2, 4, **k), (8, 4, 5)),
    "group without affine": (lambda **k: nn.GroupNorm(2, 4, affine=False, **k), (8, 4, 5)),
    "instance 1d": (lambda **k: nn.InstanceNorm1d(4, **k), (8, 4, 5)),
    "instance 2d": (lambda **k: nn.InstanceNorm2d(4, affine=True, **k), (8, 4, 3, 5)),
    "instance 3d with statistics": (
        lambda **k: nn.InstanceNorm3d(4, affine=True, track_running_stats=True, **k),
        (3, 4, 3, 2, 5),
    ),
    "rms": (lambda **k: nn.RMSNorm(4, **k), (8, 4)),
    "rms with eps": (lambda **k: nn.RMSNorm((3, 4), eps=1e-3, **k), (8, 3, 4)),
    "rms without affine": (lambda **k: nn.RMSNorm(4, elementwise_affine=False, **k), (8, 4)),
}
TOLERANCE = {"float32": 1e-6, "float64": 1e-12}


def made(name, dtype):
    """A module that has learned something, and a generator of batches."""
    rng = np.random.default_rng(len(name))
    build, shape = MODULES[name]
    module = build(dtype=getattr(torch, dtype))
    with torch.no_grad():
        for p in module.parameters():
            p.copy_(torch.from_numpy(rng.normal(size=p.shape)))

    def batch():
        return (2 * rng.normal(size=shape) + 1).astype(dtype)

    for _ in range(3):
        module(torch.from_numpy(batch()))
    return module, batch


def same_state(a, b):
    mine, others = a.state_dict(), b.state_dict()
    assert list(mine) == list(others)
    for key, value in mine.items():
        assert value.dtype == others[key].dtype
        assert np.asarray(value).tobytes() == np.asarray(others[key]).tobytes(), key


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("name", MODULES)
def test_round_trip_changes_no_bit(name, dtype):
    module, _ = made(name, dtype)
    layer = from_torch(module)
    assert not module.state_dict() or layer.dtype == dtype  # without arrays it has none to go by
    back = to_torch(layer, layer.dtype)
    assert type(back) is type(module)
    assert repr(back) == repr(module)
    same_state(back, module)
    again = from_torch(back)
    assert repr(again) == repr(layer)
    for key, value in layer.state_dict().items():
        assert value.tobytes() == again.state_dict()[key].tobytes()


@pytest.mark.parametrize("mode", [True, False])
@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("name", MODULES)
def test_predictions_and_gradients_are_the_same(name, dtype, mode):
    module, batch = made(name, dtype)
    layer = from_torch(module.train(mode))
    assert layer.training is mode
    x, dy = batch(), batch()
    tensor = torch.from_numpy(x).requires_grad_()
    y = module(tensor)
    y.backward(torch.from_numpy(dy))
    tolerance = TOLERANCE[dtype] * 8  # values up to 8
    np.testing.assert_allclose(layer(x), y.detach().numpy(), rtol=0, atol=tolerance)
    np.testing.assert_allclose(layer.backward(dy), tensor.grad.numpy(), rtol=0, atol=tolerance)
    for p, theirs in zip(layer.parameters(), module.parameters(), strict=True):
        np.testing.assert_allclose(p.grad, theirs.grad.numpy(), rtol=TOLERANCE[dtype] * 10, atol=tolerance * 4)


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("name", MODULES)
def test_training_goes_on_with_the_same_statistics(name, dtype):
    module, batch = made(name, dtype)
    layer = from_torch(module)
    for _ in range(5):
        x, dy = batch(), batch()
        module.zero_grad()
        module(torch.from_numpy(x)).backward(torch.from_numpy(dy)) if list(module.parameters()) else module(
            torch.from_numpy(x)
        )
        layer.zero_grad()
        layer(x)
        layer.backward(dy)
        for p, theirs in zip(layer.parameters(), module.parameters(), strict=True):
            p.data -= 0.01 * p.grad
            with torch.no_grad():
                theirs -= 0.01 * theirs.grad
    for key, value in module.state_dict().items():
        if key == "num_batches_tracked" and isinstance(module, nn.modules.instancenorm._InstanceNorm):
            continue  # PyTorch never counts there
        bound = 20 * TOLERANCE[dtype] * max(1.0, float(value.abs().max()))
        np.testing.assert_allclose(layer.state_dict()[key], value.numpy(), rtol=0, atol=bound, err_msg=key)


def test_a_trained_net_predicts_the_same_here():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(5, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 8), nn.LayerNorm(8)).double()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    x = torch.randn(64, 5, dtype=torch.float64)
    for _ in range(20):
        optimizer.zero_grad()
        (net(x) ** 3 - x.sum(1, keepdim=True)).square().mean().backward()
        optimizer.step()
    net.eval()
    first, last = from_torch(net[1]), from_torch(net[4])
    weights = [p.detach().numpy() for p in (net[0].weight, net[0].bias, net[3].weight, net[3].bias)]
    hidden = np.maximum(first(x.numpy() @ weights[0].T + weights[1]), 0)
    y = last(hidden @ weights[2].T + weights[3])
    np.testing.assert_allclose(y, net(x).detach().numpy(), rtol=0, atol=1e-12)


@pytest.mark.parametrize("tracks", [True, False])
def test_statistics_that_were_removed(tracks):
    """Then PyTorch normalizes every batch by its own statistics, in eval mode too, but keeps the counter."""
    module = nn.BatchNorm1d(3, dtype=torch.float64).eval()
    module.running_mean = module.running_var = None
    module.track_running_stats = tracks
    layer, x = from_torch(module), np.array([[1.0, 2.0, 4.0], [3.0, 3.0, 3.0]])
    assert not layer.track_running_stats and not layer.training
    np.testing.assert_allclose(layer(x), module(torch.from_numpy(x)).detach().numpy(), rtol=0, atol=1e-12)


def test_none_as_momentum_is_said_to_mean_something_else():
    module = nn.BatchNorm1d(3, momentum=None)
    with pytest.warns(UserWarning, match="momentum=None weighs every value alike here"):
        layer = from_torch(module)
    assert layer.momentum is None
    with pytest.warns(UserWarning, match="in PyTorch it averages the variances of batches"):
        back = to_torch(layer, layer.dtype)
    assert back.momentum is None


def test_the_running_variance_is_said_to_follow_pytorch():
    """From the next training batch on; so not where there is none, and not where both agree."""
    for layer in (bnorm.BatchNorm1d(3), bnorm.InstanceNorm1d(3, track_running_stats=True)):
        with pytest.warns(UserWarning, match=r"divides by the count here \(ddof=0\), and by the count - 1 in PyTorch"):
            module = to_torch(layer)
        assert from_torch(module).ddof == 1
        to_torch(layer.eval())
    to_torch(bnorm.BatchNorm1d(3, ddof=1))
    to_torch(bnorm.BatchNorm1d(3, momentum=0.0))
    to_torch(bnorm.BatchNorm1d(3, track_running_stats=False))


def test_a_layer_without_parameters_is_a_plain_one():
    made = [from_torch(nn.LayerNorm(4, elementwise_affine=False)), from_torch(nn.GroupNorm(2, 4, affine=False))]
    shown = "[LayerNorm(4, affine=False, dtype='float32'), GroupNorm(2, 4, affine=False, dtype='float32')]"
    assert repr(made) == shown


def test_frozen_parameters_stay_frozen():
    module = nn.BatchNorm2d(3)
    module.bias.requires_grad_(False)
    layer = from_torch(module)
    assert (layer.gamma.requires_grad, layer.beta.requires_grad) == (True, False)
    back = to_torch(layer, layer.dtype)
    assert (back.weight.requires_grad, back.bias.requires_grad) == (True, False)


def test_memory_is_not_shared():
    module = nn.BatchNorm1d(3)
    layer = from_torch(module)
    layer.gamma.data[...] = 7
    layer.running_mean[...] = 7
    back = to_torch(layer, layer.dtype)
    layer.running_mean[...] = 8
    assert module.weight.eq(1).all()
    assert module.running_mean.eq(0).all()
    assert back.running_mean.eq(7).all()


def test_half_precision_becomes_single():
    module = nn.LayerNorm(4, dtype=torch.bfloat16)
    with torch.no_grad():
        module.weight.copy_(torch.tensor([1.0, 0.5, -3.0, 0.125]))
    layer = from_torch(module)
    assert layer.dtype == "float32"
    np.testing.assert_array_equal(layer.gamma.data, [1, 0.5, -3, 0.125])


def test_what_pytorch_has_no_module_for_is_refused():
    with pytest.raises(ValueError, match=r"expected activation=None.*torch\.nn\.ReLU"):
        to_torch(bnorm.BatchNorm1d(3, activation="relu"))
    with pytest.raises(ValueError, match="expected axis=1, where PyTorch has its channels, got -1"):
        to_torch(bnorm.BatchNorm2d(3, axis=-1))
    with pytest.raises(ValueError, match="expected axis=1"):
        to_torch(bnorm.GroupNorm(1, 3, axis=-1))
    assert to_torch(bnorm.BatchNorm2d(3, axis=-3).eval()).num_features == 3
    with pytest.raises(
        TypeError, match=r"from_torch: module: expected one of BatchNorm1d.*got torch.nn.modules.linear"
    ):
        from_torch(nn.Linear(2, 3))
    net = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3))
    with pytest.raises(TypeError, match=r"expected a norm, got a Sequential with norms in it: .* for name in \['1'\]}"):
        from_torch(net)
    with pytest.raises(TypeError, match="to_torch: layer: expected one of"):
        to_torch(nn.BatchNorm1d(3))
    module = nn.BatchNorm1d(3)
    module.track_running_stats = False
    with pytest.raises(ValueError, match="from_torch: module: expected track_running_stats to say"):
        from_torch(module)


def test_a_module_fits_into_a_net_of_the_default_dtype():
    """Layers here have float64 by default, nets of PyTorch float32."""
    layer = bnorm.BatchNorm1d(4, ddof=1)
    layer(np.random.default_rng(0).normal(size=(50, 4)) + 3)
    layer.eval()
    net = nn.Sequential(nn.Linear(6, 4), to_torch(layer), nn.ReLU())
    x = torch.randn(5, 6)
    with torch.no_grad():
        y, wanted = net[:2](x), layer(net[0](x).numpy().astype(np.float64))
    assert y.dtype == torch.float32
    np.testing.assert_allclose(y.numpy(), wanted, rtol=0, atol=1e-5)
    torch.set_default_dtype(torch.float64)
    try:
        assert to_torch(layer).weight.dtype == torch.float64
    finally:
        torch.set_default_dtype(torch.float32)
    for dtype in (torch.bfloat16, "bfloat16"):
        assert to_torch(layer, dtype).running_mean.dtype == torch.bfloat16
    assert to_torch(layer, np.dtype(np.float64)).running_mean.numpy().tolist() == layer.running_mean.tolist()
    for dtype in (torch.int64, "nothing", 3):
        with pytest.raises(ValueError, match="to_torch: dtype: expected a floating-point dtype of PyTorch, got"):
            to_torch(layer, dtype)


def test_whole_nets():
    net = {"bn1": bnorm.BatchNorm2d(3).eval(), "block.norm": bnorm.LayerNorm(4)}
    modules = to_torch(net)
    assert {name: type(module) for name, module in modules.items()} == {
        "bn1": nn.BatchNorm2d,
        "block.norm": nn.LayerNorm,
    }
    assert (modules["bn1"].training, modules["block.norm"].training) == (False, True)
    with pytest.raises(ValueError, match="to_torch: 'act': layer: expected activation=None"):
        to_torch({"act": bnorm.BatchNorm1d(3, activation="relu")})
    with pytest.raises(TypeError, match="to_torch: 'x': layer: expected one of"):
        to_torch({"x": 3})


def test_warnings_name_the_line_of_the_user():
    for convert in (to_torch, lambda layer: to_torch({"bn1": layer})):
        with pytest.warns(UserWarning, match="divides by the count") as found:
            convert(bnorm.BatchNorm1d(3))
        assert found[0].filename == __file__
