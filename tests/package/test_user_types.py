"""What mypy --strict says of a program that uses bnorm."""

import sys
from pathlib import Path

import pytest

import bnorm
import child

pytestmark = pytest.mark.slow  # mypy reads NumPy's types

RIGHT = """
from typing import assert_type
import numpy as np
import bnorm
from bnorm import functional as F
from bnorm.distributed import spark
from bnorm.layers.documents import public

bn = bnorm.BatchNorm1d(3, activation="gelu", dtype=None, device=None)
y = bn(np.ones((4, 3)))
bn.weight.data -= 0.1 * bn.weight.grad
bn.bias.data[...] = 0.0
size: tuple[int, ...] = bn.running_mean.shape
batches: int = bn.num_batches_tracked
if bn.gamma is not None:
    print(bn.gamma.shape)
t = bnorm.BatchNormTransformer(momentum=None).fit(y)
z: np.ndarray = t.transform(y)
print(z.mean(), t.mean_.shape)
print(t.fit_transform(y).shape, bnorm.GroupedTransformer(0).fit(y).transform(y).shape)
m = F.moments(y, exact=True)
print(m.digest(), (m + m - m).digest(), spark.moments(None, exact=True).digest())
print(F.moments(y, axis=(0, 1)).mean, F.moments(y, groups=[0, 0, 1, 1], exact=False).count)
ln, norm = bnorm.LayerNorm([3]), bnorm.RunningNorm([3])
print(F.layer_norm(y, normalized_shape=[3])[0].shape, F.moments(y, axis=[0, 1]).mean, norm(y).shape)
y, h = ln(y, residual=y)
dx = ln.backward((y, None))
anything = bnorm.load("layer.npz")
layer = bnorm.load("layer.npz", bnorm.BatchNorm1d)
y = layer(y)
total: bnorm.Moments = bnorm.load("moments.npz", bnorm.Moments)
print(bnorm.load("scaler.npz", bnorm.BatchNormTransformer).scale_.max(), total.mean)
assert_type(public()(bnorm.LayerNorm), type[bnorm.LayerNorm])  # pyright takes the type of a class from its decorator
"""
WRONG = {
    "F.moments([[1.0]]).digest()": "no attribute",
    'bnorm.BatchNorm1d(3, activation="tanh")': "Literal",
    "bnorm.load(3)": "No overload",
    'bnorm.load("a.npz", bnorm.LayerNorm).running_mean': "no attribute",
    'bnorm.load("a.npz", "BatchNorm1d")': "No overload",
}


def mypy(folder, text):
    """The errors that mypy finds; bnorm is installed, or lies in a folder that mypy must be told."""
    (folder / "user.py").write_text(text, encoding="utf-8")
    command = [sys.executable, "-m", "mypy", "--strict", "--config-file=", folder / "user.py"]
    source = Path(bnorm.__file__).parents[1]
    told = {} if source.name.endswith("-packages") else {"MYPYPATH": source}  # mypy refuses to be told what it knows
    done = child.started(command, MYPY_CACHE_DIR=folder, **told)
    errors = [line for line in done.stdout.splitlines() if ": error:" in line]
    assert done.returncode == bool(errors), done.stdout + done.stderr  # 2 is mypy's own failure
    return errors


def test_a_program_of_a_user(tmp_path):
    pytest.importorskip("mypy", reason="types")
    assert mypy(tmp_path, RIGHT) == []
    errors = mypy(tmp_path, "import bnorm\nfrom bnorm import functional as F\n" + "\n".join(WRONG))
    assert len(errors) == len(WRONG)
    for error, part in zip(errors, WRONG.values(), strict=True):
        assert part in error
