"""One adapter per library, all with the same names: forward, inference, backward.

An adapter is made from the data and holds what its library would hold: parameters in the library's own type, and what
its forward leaves for its backward. Each method takes `out`, None for a fresh array or what `target` made of one, and
returns what the library returns, which `arrays` turns into NumPy's. Nothing else happens in a method: it is timed.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module, metadata, util

import numpy as np

import bnorm
from bnorm import functional

from .shapes import EPS, OPERATIONS, Data


class Provider:
    """What the adapters have in common. tolerance: the largest error, relative to the largest value of a result."""

    name: str
    package: str
    note: str
    tolerance: dict[str, float]
    with_out: tuple[str, ...] = OPERATIONS  # operations that can write to an array of the caller's

    @classmethod
    def version(cls) -> str | None:
        """None: not installed."""
        return metadata.version(cls.package) if util.find_spec(cls.package) else None

    @classmethod
    @contextmanager
    def session(cls, threads: int) -> Iterator[None]:
        """The library's settings while it is measured."""
        yield

    def target(self, out: np.ndarray) -> object:
        return out

    def arrays(self, result: object) -> tuple[np.ndarray, ...]:
        return result if isinstance(result, tuple) else (result,)


class Bnorm(Provider):
    name = package = "bnorm"
    note = "`bnorm.functional`: `batch_norm`, and `backward` of what it saved"
    tolerance = {"float32": 2e-6, "float64": 1e-14}  # noqa: RUF012

    def __init__(self, data: Data) -> None:
        self.x, self.dy, self.gamma, self.beta = data.x, data.dy, data.gamma, data.beta
        self.mean, self.var = data.mean, data.var
        _, self.saved = functional.batch_norm(self.x, self.gamma, self.beta, eps=EPS)

    @classmethod
    @contextmanager
    def session(cls, threads: int) -> Iterator[None]:
        before = bnorm.get_num_threads()
        if threads == before:
            yield
            return
        bnorm.set_num_threads(threads)
        try:
            yield
        finally:
            bnorm.set_num_threads(before)

    def forward(self, out=None):
        return functional.batch_norm(self.x, self.gamma, self.beta, eps=EPS, out=out)

    def inference(self, out=None):
        return functional.batch_norm(self.x, self.gamma, self.beta, mean=self.mean, var=self.var, eps=EPS, out=out)

    def backward(self, out=None):
        return functional.backward(self.dy, self.saved, out)

    def arrays(self, result: object) -> tuple[np.ndarray, ...]:
        return tuple(part for part in result if isinstance(part, np.ndarray))


class NumPy(Provider):
    name, package = "NumPy", "numpy"
    note = "the formulas, as one writes them; its backward finds (x − mean) / std saved"
    # Along the first axis NumPy adds a million float32 one after the other, and a million roundings with them.
    tolerance = {"float32": 1e-3, "float64": 1e-11}  # noqa: RUF012

    def __init__(self, data: Data) -> None:
        self.x, self.dy, self.axes, self.count = data.x, data.dy, data.axes, data.count
        vectors = (data.gamma, data.beta, data.mean, data.var)
        self.gamma, self.beta, self.mean, self.var = (data.channel(v).astype(data.x.dtype) for v in vectors)
        self.rstd = 1 / np.sqrt(self.x.var(axis=self.axes, keepdims=True) + EPS)
        self.xhat = (self.x - self.x.mean(axis=self.axes, keepdims=True)) * self.rstd

    def forward(self, out=None):
        mean, var = self.x.mean(axis=self.axes, keepdims=True), self.x.var(axis=self.axes, keepdims=True)
        return self._map(mean, var, out)

    def inference(self, out=None):
        return self._map(self.mean, self.var, out)

    def _map(self, mean, var, out):
        if out is None:
            return (self.x - mean) / np.sqrt(var + EPS) * self.gamma + self.beta
        np.subtract(self.x, mean, out=out)
        out /= np.sqrt(var + EPS)
        out *= self.gamma
        out += self.beta
        return out

    def backward(self, out=None):
        dgamma = (self.dy * self.xhat).sum(axis=self.axes, keepdims=True)
        dbeta = self.dy.sum(axis=self.axes, keepdims=True)
        if out is None:
            dx = self.gamma * self.rstd * (self.dy - dbeta / self.count - self.xhat * (dgamma / self.count))
        else:
            dx = np.multiply(self.xhat, -dgamma / self.count, out=out)
            dx += self.dy
            dx -= dbeta / self.count
            dx *= self.gamma * self.rstd
        return dx, dgamma.ravel(), dbeta.ravel()


class PyTorch(Provider):
    name, package = "PyTorch", "torch"
    note = (
        "`torch.nn.functional.batch_norm` and the operation `native_batch_norm_backward`; with `out=`, "
        "`torch.native_batch_norm`. Tensors on the memory of the same arrays, in inference mode, so without autograd"
    )
    tolerance = {"float32": 3e-4, "float64": 1e-12}  # noqa: RUF012
    with_out = ("forward", "inference")  # its backward with out= computes a fresh array and copies it

    def __init__(self, data: Data) -> None:
        torch = self.torch = import_module("torch")
        self.functional = torch.nn.functional.batch_norm
        self.native = torch.native_batch_norm
        self.native_backward = torch.ops.aten.native_batch_norm_backward.default
        self.x, self.dy = torch.from_numpy(data.x), torch.from_numpy(data.dy)
        vectors = (data.gamma, data.beta, data.mean, data.var)
        self.gamma, self.beta, self.mean, self.var = (torch.from_numpy(v).to(self.x.dtype) for v in vectors)
        y, self.save_mean, self.save_rstd = self.native(
            self.x, self.gamma, self.beta, None, None, training=True, momentum=0.1, eps=EPS
        )
        del y
        self.vectors = torch.empty_like(self.save_mean), torch.empty_like(self.save_rstd)
        self.empty = torch.empty(0, dtype=self.x.dtype), torch.empty(0, dtype=self.x.dtype)

    @classmethod
    @contextmanager
    def session(cls, threads: int) -> Iterator[None]:
        torch = import_module("torch")
        before = torch.get_num_threads()
        if threads != before:
            torch.set_num_threads(threads)
        try:
            with torch.inference_mode():
                yield
        finally:
            if threads != before:
                torch.set_num_threads(before)

    def target(self, out: np.ndarray) -> object:
        return self.torch.from_numpy(out)

    def forward(self, out=None):
        if out is None:
            return self.functional(self.x, None, None, self.gamma, self.beta, training=True, eps=EPS)
        outs = (out, *self.vectors)
        return self.native(self.x, self.gamma, self.beta, None, None, True, 0.1, EPS, out=outs)[0]

    def inference(self, out=None):
        if out is None:
            return self.functional(self.x, self.mean, self.var, self.gamma, self.beta, training=False, eps=EPS)
        outs = (out, *self.empty)
        return self.native(self.x, self.gamma, self.beta, self.mean, self.var, False, 0.1, EPS, out=outs)[0]

    def backward(self, out=None):
        gradients = (True, True, True)
        return self.native_backward(
            self.dy, self.x, self.gamma, None, None, self.save_mean, self.save_rstd, True, EPS, gradients
        )

    def arrays(self, result: object) -> tuple[np.ndarray, ...]:
        return tuple(part.numpy() for part in (result if isinstance(result, tuple) else (result,)))


ALL: list[type[Provider]] = [Bnorm, NumPy, PyTorch]
