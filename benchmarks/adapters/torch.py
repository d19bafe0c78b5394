"""PyTorch: its functional calls, and the operations that its autograd calls backward.

Tensors are on the memory of the same arrays, in inference mode, so without autograd.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch
from torch.nn import functional

from ..shapes import EPS, Data
from .base import Adapter, Library

ATEN = torch.ops.aten
EVERY = [True, True, True]  # gradients
MANY = 1 << 22  # values of a channel: so many, summed without care in single precision, are off by a few thousandths


def _tensor(a: np.ndarray) -> torch.Tensor:
    """Return a tensor on the memory of an array. torch.from_numpy knows no bfloat16."""
    return (
        torch.from_numpy(a.view(np.int16)).view(torch.bfloat16) if a.dtype.name == "bfloat16" else torch.from_numpy(a)
    )


def _array(t: torch.Tensor) -> np.ndarray:
    return t.view(torch.int16).numpy().view("bfloat16") if t.dtype == torch.bfloat16 else t.numpy()


class Layer(Adapter):
    # In half precision, its gradients of the parameters of layer norm are off by 4% of the largest (float16) and 32%
    # (bfloat16) for 65,536 rows, though the parameters are float32.
    tolerance = {"float32": 3e-4, "float64": 1e-12, "float16": 0.1, "bfloat16": 0.5}  # noqa: RUF012

    def __init__(self, data: Data) -> None:
        chains = data.x.size / data.sizes[1] / MANY
        if chains > 1:
            self.tolerance = {**self.tolerance, "float32": 5e-3 * chains}
        self.sizes, self.groups = data.sizes, data.groups
        self.x, self.dy = _tensor(data.x), _tensor(data.dy)
        self.gamma, self.beta = (self._vector(v) for v in (data.gamma, data.beta))

    def _vector(self, v: np.ndarray | None) -> torch.Tensor | None:
        """Return parameters in the type of x, but in float32 for half precision."""
        wider = torch.promote_types(self.x.dtype, torch.float32)
        return v if v is None else torch.from_numpy(v).to(wider)

    def target(self, out: np.ndarray) -> object:
        return _tensor(out)

    def arrays(self, operation: str, result: object) -> tuple[np.ndarray, ...]:
        return tuple(_array(part) for part in (result if isinstance(result, tuple) else (result,)) if part is not None)


class Batch(Layer):
    with_out = ("forward", "inference")  # its backward with out= computes a fresh array and copies it

    def __init__(self, data: Data) -> None:
        super().__init__(data)
        self.mean, self.var = self._vector(data.mean), self._vector(data.var)
        self.running = self.mean.clone(), self.var.clone()
        saved = torch.native_batch_norm(self.x, self.gamma, self.beta, None, None, True, 0.1, EPS)
        self.saved = saved[1:]
        self.vectors = tuple(torch.empty_like(v) for v in self.saved)
        self.empty = torch.empty_like(self.mean[:0]), torch.empty_like(self.mean[:0])

    def forward(self, out=None):
        if out is None:
            return functional.batch_norm(self.x, *self.running, self.gamma, self.beta, True, 0.1, EPS)
        outs = (out, *self.vectors)
        return torch.native_batch_norm(self.x, self.gamma, self.beta, *self.running, True, 0.1, EPS, out=outs)[0]

    def inference(self, out=None):
        if out is None:
            return functional.batch_norm(self.x, self.mean, self.var, self.gamma, self.beta, False, 0.1, EPS)
        outs = (out, *self.empty)
        return torch.native_batch_norm(self.x, self.gamma, self.beta, self.mean, self.var, False, 0.1, EPS, out=outs)[0]

    def backward(self, out=None):
        return ATEN.native_batch_norm_backward.default(
            self.dy, self.x, self.gamma, None, None, *self.saved, True, EPS, EVERY
        )


class LayerNorm(Layer):
    def __init__(self, data: Data) -> None:
        super().__init__(data)
        self.shape = list(self.sizes[1:])
        self.saved = torch.native_layer_norm(self.x, self.shape, self.gamma, self.beta, EPS)[1:]

    def forward(self):
        return functional.layer_norm(self.x, self.shape, self.gamma, self.beta, EPS)

    def backward(self):
        return ATEN.native_layer_norm_backward.default(
            self.dy, self.x, self.shape, *self.saved, self.gamma, self.beta, EVERY
        )


class RMSNorm(Layer):
    """It has no operation for the backward: what autograd has is several."""

    def __init__(self, data: Data) -> None:
        super().__init__(data)
        self.shape = list(self.sizes[1:])
        with torch.inference_mode(False):
            self.inputs = self.x.clone().requires_grad_(), self.gamma.clone().requires_grad_()
            self.y = functional.rms_norm(self.inputs[0], self.shape, self.inputs[1], EPS)

    def forward(self):
        return functional.rms_norm(self.x, self.shape, self.gamma, EPS)

    def backward(self):
        with torch.inference_mode(False):
            return torch.autograd.grad(self.y, self.inputs, self.dy, retain_graph=True)


class GroupNorm(Layer):
    def __init__(self, data: Data) -> None:
        super().__init__(data)
        n, channels, *_ = self.sizes
        self.numbers = n, channels, self.x.numel() // (n * channels), self.groups
        self.saved = torch.native_group_norm(self.x, self.gamma, self.beta, *self.numbers, EPS)[1:]

    def forward(self):
        return functional.group_norm(self.x, self.groups, self.gamma, self.beta, EPS)

    def backward(self):
        return ATEN.native_group_norm_backward.default(self.dy, self.x, *self.saved, self.gamma, *self.numbers, EVERY)


class InstanceNorm(Layer):
    """Without parameters, as by default. To PyTorch it is batch norm of one sample of N times C channels."""

    def __init__(self, data: Data) -> None:
        super().__init__(data)
        n, channels, *space = self.sizes
        self.flat = 1, n * channels, *space
        self.saved = torch.native_batch_norm(self.x.view(self.flat), None, None, None, None, True, 0.1, EPS)[1:]

    def forward(self):
        return functional.instance_norm(self.x, eps=EPS)

    def backward(self):
        dy, x = self.dy.view(self.flat), self.x.view(self.flat)
        dx = ATEN.native_batch_norm_backward.default(
            dy, x, None, None, None, *self.saved, True, EPS, [True, False, False]
        )
        return dx[0].view(self.sizes)


@contextmanager
def session(threads: int, dtype: str) -> Iterator[None]:
    before = torch.get_num_threads()
    if threads != before:
        torch.set_num_threads(threads)
    try:
        with torch.inference_mode():
            yield
    finally:
        if threads != before:
            torch.set_num_threads(before)


LIBRARY = Library(
    "PyTorch",
    "torch",
    {"batch": Batch, "layer": LayerNorm, "rms": RMSNorm, "group": GroupNorm, "instance": InstanceNorm},
    session,
    target=True,
)
