"""The norms of `functional` as a torch.autograd.Function. It imports PyTorch; `interop.torch` imports it when used."""

from typing import Any

import numpy as np
import torch

from bnorm import checks
from bnorm import functional as F
from bnorm.interop.neighbors import differentiable

WHO = "function"
NORMS = ("batch_norm", "layer_norm", "rms_norm", "group_norm", "instance_norm")
Given = dict[str, Any]


class Norm(torch.autograd.Function):  # type: ignore[misc]
    """y = function.apply(x, gamma, beta, norm, options), for tensors on the CPU.

    gamma and beta may be None or omitted. norm: the name of a function of `functional`, by default "batch_norm".
    options: its keywords. x, gamma and beta have first and second derivatives; lists and NumPy arrays are constants.
    """

    @staticmethod
    def forward(
        ctx: Any,
        x: Any,
        gamma: Any = None,
        beta: Any = None,
        norm: str = "batch_norm",
        options: Given | None = None,
    ) -> Any:
        checks.choice(WHO, "norm", norm, NORMS)
        differentiable("bnorm.interop.torch", norm, options or {})
        keywords = {name: _array(name, value) for name, value in (options or {}).items()}
        arrays = {"x": x, "gamma": gamma, "beta": beta}
        given = {name: _array(name, value) for name, value in arrays.items() if value is not None}
        y, ctx.norm = getattr(F, norm)(**given, **keywords)
        result = torch.from_numpy(y)
        if isinstance((out := (options or {}).get("out")), torch.Tensor):
            torch.autograd.graph.increment_version(out)  # PyTorch does not see that NumPy has written to it
            result = out.detach()  # has the version of out, so a backward that needs y notices if out has changed
        ctx.save_for_backward(*(value if isinstance(value, torch.Tensor) else None for value in (x, gamma, beta)))
        return result

    @staticmethod
    def backward(ctx: Any, dy: Any) -> Any:
        x, gamma, beta = ctx.saved_tensors  # here PyTorch checks that they have not changed
        return (*_Backward.apply(dy, x, gamma, beta, ctx.norm), None, None)


class _Backward(torch.autograd.Function):  # type: ignore[misc]
    """dx, dgamma and dbeta; None if the forward had no such parameter."""

    @staticmethod
    def forward(ctx: Any, dy: Any, x: Any, gamma: Any, beta: Any, saved: F.Saved) -> Any:
        ctx.norm = saved
        ctx.save_for_backward(dy, x, gamma, beta)
        gradients = F.backward(_array("dy", dy), saved)
        return tuple(_like(p, grad) for p, grad in zip((x, gamma, beta), gradients, strict=True))

    @staticmethod
    def backward(ctx: Any, ddx: Any, ddgamma: Any, ddbeta: Any) -> Any:
        return (*_DoubleBackward.apply(ddx, ddgamma, ddbeta, *ctx.saved_tensors, ctx.norm), None)


class _DoubleBackward(torch.autograd.Function):  # type: ignore[misc]
    """The gradients of dy, x, gamma and beta.

    It is a function of all tensors whose backward is an error: `once_differentiable` notices a third derivative only
    in `backward()`, and `torch.autograd.grad` would silently leave out what goes through here.
    """

    @staticmethod
    def forward(
        ctx: Any, ddx: Any, ddgamma: Any, ddbeta: Any, dy: Any, x: Any, gamma: Any, beta: Any, saved: F.Saved
    ) -> Any:
        results = F.double_backward(
            _array("ddx", ddx),
            saved,
            _array("dy", dy),
            None if gamma is None else _array("ddgamma", ddgamma),
            None if beta is None else _array("ddbeta", ddbeta),
            dbeta=True,
        )
        return tuple(_like(p, grad) for p, grad in zip((dy, x, gamma, beta), results, strict=True))

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        raise RuntimeError(f"{WHO}: expected derivatives of first and second order, got one of third order")


def _array(name: str, value: Any) -> Any:
    """Return a tensor as an array in the same memory, and any other value as it is."""
    if not isinstance(value, torch.Tensor):
        return value
    if value.device.type != "cpu":
        raise TypeError(f"{WHO}: {name}: expected a tensor on the CPU, got one on {value.device}")
    if value.dtype == torch.bfloat16:
        raise TypeError(f"{WHO}: {name}: expected float16, float32 or float64, got bfloat16, which NumPy does not have")
    return value.detach().resolve_conj().resolve_neg().numpy()


def _like(p: Any, gradient: Any) -> Any:
    """A gradient of p as a tensor of the dtype of p."""
    return None if p is None else torch.from_numpy(np.asarray(gradient)).to(p.dtype)
