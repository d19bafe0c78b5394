"""Files of layers: all that was learned and every setting comes back, PyTorch reads the arrays."""

import numpy as np
import pytest

import bnorm
from compare import assert_same

rng = np.random.default_rng(0)
x = rng.normal(size=(6, 4, 3, 3)) * 5 + 100
SUFFIXES = [".npz", ".safetensors"]


def seen(layer, *batches):
    for batch in batches:
        layer(batch)
        layer.backward(batch)
    return layer


def switched():
    """Every setting away from its default, and learned parameters."""
    layer = bnorm.BatchNorm2d(3, eps=1e-3, momentum=None, ddof=1, axis=-1, activation="relu", nonfinite="propagate",
                              on_single="running", dtype="float32")  # fmt: skip
    seen(layer, np.moveaxis(x[:, :3], 1, -1), np.moveaxis(x[:2, 1:], 1, -1))
    layer.gamma, layer.beta = [1.5, -2.0, 1 / 3], [0.1, 0.0, -0.0]
    layer.gamma.requires_grad = False
    return layer.eval()


LAYERS = {
    "switched": switched,
    "average": lambda: seen(bnorm.BatchNorm2d(4), x, 2 * x),
    "pooled": lambda: seen(bnorm.BatchNorm2d(4, momentum=None), x, x[:3]),
    "skipped": lambda: skipped(),
    "without tracking": lambda: bnorm.BatchNorm3d(4, track_running_stats=False),
    "without anything": lambda: bnorm.BatchNorm1d(4, affine=False, track_running_stats=False),
    "layer": lambda: bnorm.LayerNorm((3, 3), eps=1e-3, activation="relu"),
    "layer of a tuple": lambda: bnorm.LayerNorm((3,)),
    "rms": lambda: bnorm.RMSNorm(3, dtype="float32"),
    "rms of a list": lambda: bnorm.RMSNorm([3]),
    "group": lambda: bnorm.GroupNorm(2, 4, axis=-1),
    "instance": lambda: bnorm.InstanceNorm2d(4, affine=True),
    "instance with statistics": lambda: seen(bnorm.InstanceNorm2d(4, track_running_stats=True, momentum=None), x),
    "no bias": lambda: bnorm.BatchNorm2d(4, bias=False),
    "eps of the type": lambda: bnorm.RMSNorm((3, 3), eps=None),
    "leaky": lambda: bnorm.LayerNorm(3, activation="leaky_relu", negative_slope=0.2),
    "gelu": lambda: bnorm.LayerNorm(3, activation="gelu"),
}


def skipped():
    bad = x.copy()
    bad[0, 1] = np.nan
    layer = bnorm.BatchNorm2d(4)
    with pytest.warns(RuntimeWarning, match="not finite"):
        layer(bad)
    return layer


every_layer = pytest.mark.parametrize("make", LAYERS.values(), ids=LAYERS)
every_suffix = pytest.mark.parametrize("suffix", SUFFIXES)


@every_suffix
@every_layer
def test_all_comes_back(tmp_path, make, suffix):
    layer, path = make(), tmp_path / f"layer{suffix}"
    layer.save(path)
    back = bnorm.load(path)
    assert repr(back) == repr(layer)
    a, b = layer.state_dict(), back.state_dict()
    assert list(a) == list(b)
    for name in a:
        assert a[name].dtype == b[name].dtype
        assert a[name].tobytes() == b[name].tobytes(), name
    if getattr(layer, "track_running_stats", False):
        assert back.num_batches_skipped == layer.num_batches_skipped
    again = tmp_path / f"again{suffix}"
    back.save(again)
    assert again.read_bytes() == path.read_bytes()


@every_suffix
@pytest.mark.parametrize("momentum", [0.1, None])
def test_training_goes_on(tmp_path, suffix, momentum):
    """The next batches move the statistics to the same bits, whatever was counted before."""
    layer = seen(bnorm.BatchNorm2d(4, momentum=momentum), x, x[:1])
    layer.save(tmp_path / f"a{suffix}")
    back = bnorm.load(tmp_path / f"a{suffix}")
    for each in (layer, back):
        each(3 * x[:4] + 1)
    assert_same(back.running_mean, layer.running_mean)
    assert_same(back.running_var, layer.running_var)
    assert back.num_batches_tracked == 3


def test_a_subclass_comes_back_as_the_layer_that_it_is_one_of(tmp_path):
    class Mine(bnorm.BatchNorm1d):
        def __init__(self, size):
            super().__init__(size, momentum=0.2)

    layer = Mine(3)
    layer(np.eye(4, 3))
    layer.save(tmp_path / "mine.npz")
    back = bnorm.load(tmp_path / "mine.npz", bnorm.BatchNorm1d)
    assert type(back) is bnorm.BatchNorm1d and back.momentum == 0.2
    np.testing.assert_array_equal(back.running_mean, layer.running_mean)


def test_the_layer_of_a_transformer(tmp_path):
    """It shares statistics that know more than a layer's own."""
    t = bnorm.BatchNormTransformer(halflife=10.0).fit(x[:, :, 0, 0])
    t.layer_.save(tmp_path / "a.npz")
    back = bnorm.load(tmp_path / "a.npz")
    for each in (t.layer_, back):
        each.train()(x[:, :, 1, 1])
    assert_same(back.running_mean, t.layer_.running_mean)
    assert_same(back.running_var, t.layer_.running_var)


@pytest.mark.parametrize("make", [LAYERS["average"], LAYERS["layer"], LAYERS["group"], LAYERS["instance"]])
def test_pytorch_reads_it(tmp_path, make):
    torch = pytest.importorskip("torch", reason="it is PyTorch that reads the file")
    read = pytest.importorskip("safetensors.torch", reason="by this package")
    layer = make()
    kind = type(layer).__name__
    arguments = {"LayerNorm": ((3, 3),), "GroupNorm": (2, 4)}.get(kind, (4,))
    more = {"affine": True} if kind.startswith("Instance") else {}
    peer = getattr(torch.nn, kind)(*arguments, **more)
    layer.save(tmp_path / "a.safetensors")
    peer.load_state_dict(read.load_file(tmp_path / "a.safetensors"), strict=True)
    for name, value in layer.state_dict().items():
        assert_same(peer.state_dict()[name].numpy(), value.astype(peer.state_dict()[name].numpy().dtype))


def test_safetensors_reads_what_is_written(tmp_path):
    """The format is written here without the package, which reads it: names, types, shapes, metadata."""
    numpy = pytest.importorskip("safetensors.numpy", reason="the package is what the file is compared with")
    safetensors = pytest.importorskip("safetensors")
    layer = seen(bnorm.BatchNorm2d(4, dtype="float32"), x)
    layer.save(tmp_path / "a.safetensors")
    for name, a in numpy.load_file(tmp_path / "a.safetensors").items():
        assert a.dtype == layer.state_dict()[name].dtype
        assert_same(a, layer.state_dict()[name])
    with safetensors.safe_open(tmp_path / "a.safetensors", "np") as file:
        assert list(file.metadata()) == ["bnorm"]


def test_numpy_reads_npz(tmp_path):
    layer = seen(bnorm.BatchNorm2d(4), x)
    layer.save(tmp_path / "a.npz")
    with np.load(tmp_path / "a.npz", allow_pickle=False) as file:
        assert sorted(file) == sorted([*layer.state_dict(), "bnorm"])
        assert_same(file["running_mean"], layer.running_mean)


def test_nothing_but_numpy_is_needed(tmp_path):
    import child

    code = (
        "import sys, bnorm; sys.modules['safetensors'] = None\n"
        f"bnorm.BatchNorm1d(3).save({str(tmp_path / 'a.safetensors')!r})\n"
        f"print(bnorm.load({str(tmp_path / 'a.safetensors')!r}), 'sklearn' in sys.modules)"
    )
    done = child.run("-c", code)
    assert (done.stdout, done.stderr) == ("BatchNorm1d(3) False\n", "")


@pytest.mark.parametrize("name", ["a.pt", "a", "a.npy"])
def test_other_names(tmp_path, name):
    want = r"path: expected a name that ends in \.safetensors or \.npz, got '.*" + name
    with pytest.raises(ValueError, match=want):
        bnorm.BatchNorm1d(3).save(tmp_path / name)
    with pytest.raises(ValueError, match=want):
        bnorm.load(tmp_path / name)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("path", [None, 3, b"a.npz"], ids=str)
def test_what_is_no_path(path):
    for who, call in (("save", bnorm.BatchNorm1d(3).save), ("bnorm.load", bnorm.load)):
        with pytest.raises(TypeError, match=f"{who}: path: expected a str or a path-like, got {type(path).__name__}"):
            call(path)


def test_saving_replaces_all_or_nothing(tmp_path, monkeypatch):
    from pathlib import Path

    path = tmp_path / "a.npz"
    bnorm.BatchNorm1d(3).save(path)
    before = path.read_bytes()
    monkeypatch.setattr(Path, "replace", lambda *a: (_ for _ in ()).throw(OSError("no space left")))
    with pytest.raises(OSError, match="no space left"):
        bnorm.BatchNorm1d(5).save(path)
    assert path.read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == ["a.npz"]


def test_a_file_that_is_not_there(tmp_path):
    with pytest.raises(FileNotFoundError):
        bnorm.load(tmp_path / "a.npz")


def test_the_kind_that_is_expected(tmp_path):
    """An object of another class is an error; a class that it inherits from is right."""
    path = tmp_path / "a.npz"
    bnorm.BatchNorm1d(3).save(path)
    for kind in (bnorm.BatchNorm1d, bnorm.layers.Layer, None):
        assert type(bnorm.load(path, kind)) is bnorm.BatchNorm1d
    with pytest.raises(ValueError, match=r"a\.npz: expected a LayerNorm, got a BatchNorm1d"):
        bnorm.load(path, bnorm.LayerNorm)
    with pytest.raises(TypeError, match="kind: expected a class, such as BatchNorm1d, or None, got 'BatchNorm1d'"):
        bnorm.load(path, "BatchNorm1d")
