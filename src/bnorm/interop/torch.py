"""Layers from and to PyTorch, and the norms of `functional` as functions of PyTorch tensors.

    layer = from_torch(module)          a layer with the module's parameters, statistics, counters and mode
    module = to_torch(layer)            the reverse, for a net of PyTorch's default dtype
    modules = to_torch({"bn1": layer})  the same for all layers of a net
    y = batch_norm(x, gamma, beta)      of tensors on the CPU, with first and second derivatives
    y = function.apply(x, gamma, beta)  the torch.autograd.Function behind these

PyTorch's running variance is unbiased: a layer from there has ddof=1. `to_torch` warns of a layer with ddof=0 in
training mode, as the module continues with PyTorch's convention. momentum=None averages the variances of batches in
PyTorch, and pools values here; both conversions warn of it.
"""

import warnings
from collections.abc import Iterator, Mapping
from typing import Any

from bnorm import layers
from bnorm.checks import user_level
from bnorm.interop import neighbors
from bnorm.interop.neighbors import LAYERS, arrays, known, load, only_axis, warn_of_variance, without_activation
from bnorm.layers import Layer, Parameter

__all__ = ["batch_norm", "from_torch", "group_norm", "instance_norm", "layer_norm", "rms_norm", "to_torch"]

ACTIVATIONS = {
    "relu": "torch.nn.ReLU",
    "leaky_relu": "torch.nn.LeakyReLU",
    "silu": "torch.nn.SiLU",
    "gelu": "torch.nn.GELU(approximate='tanh')",
}

OVER_CHANNELS = tuple(LAYERS[kind] for kind in neighbors.OVER_CHANNELS)


def from_torch(module: Any) -> Layer:
    """Convert a normalization module of PyTorch to a layer on the CPU, with copies of its arrays.

    Parameters
    ----------
    module : torch.nn.Module
        BatchNorm1d, 2d or 3d, InstanceNorm1d, 2d or 3d, LayerNorm, GroupNorm or RMSNorm, but no subclass.

    Returns
    -------
    layer : Layer
        With the parameters, statistics, counters and mode of the module. Its dtype is float64 if that of the module is,
        otherwise float32, which represents half precision exactly.

    Raises
    ------
    TypeError
        If there is no layer for the module.

    Warns
    -----
    UserWarning
        If momentum is None, which means something else in PyTorch.

    Examples
    --------
    >>> import torch
    >>> from_torch(torch.nn.BatchNorm1d(4))
    BatchNorm1d(4, ddof=1, dtype='float32')
    """
    who = "from_torch"
    torch = load(who, "torch", "torch")
    kinds = {getattr(torch.nn, name): name for name in LAYERS.values()}
    if type(module) not in kinds and isinstance(module, torch.nn.Module):
        if inside := [place for place, one in module.named_modules() if type(one) in kinds]:
            names = f"[{', '.join(map(repr, inside[:8]))}{', ...' * (len(inside) > 8)}]"
            raise TypeError(
                f"{who}: module: expected a norm, got a {type(module).__name__} with norms in it: {{name: from_torch("
                f"net.get_submodule(name)) for name in {names}}}"
            )
    name = known(who, "module", module, kinds)
    state = {key: value.cpu() for key, value in module.state_dict().items()}
    if "running_mean" not in state:  # removed, so that each batch is normalized by its own statistics
        state.pop("num_batches_tracked", None)
    options: dict[str, Any] = {"eps": module.eps}
    if name in OVER_CHANNELS:
        arguments: tuple[Any, ...] = (module.num_features,)
        options |= {"ddof": 1, "momentum": module.momentum, "track_running_stats": _tracks(who, module, state)}
        _warn_of_pooling(who, module)
    elif name == "GroupNorm":
        arguments = (module.num_groups, module.num_channels)
    else:
        arguments = (module.normalized_shape,)
    if name != "RMSNorm":
        options["bias"] = "bias" in state or "weight" not in state
    wide = any(value.dtype == torch.float64 for value in state.values())
    kind = getattr(layers, name)
    layer: Layer = kind(*arguments, **options, affine="weight" in state, dtype="float64" if wide else "float32")
    layer.load_state_dict(state)
    for theirs, p in _pairs(module, layer):
        p.requires_grad = theirs.requires_grad
    return layer.train(module.training)


def to_torch(layer: Layer | Mapping[str, Layer], dtype: Any = None) -> Any:
    """Convert a layer, or all layers of a net, to modules of PyTorch on the CPU, with copies of their arrays.

    Parameters
    ----------
    layer : Layer or mapping of str to Layer
        Any layer, but no subclass.
    dtype : torch.dtype or str, optional
        The dtype of the module. By default PyTorch's own, `torch.get_default_dtype()`, which the other modules of a net
        have; `dtype=layer.dtype` keeps every bit.

    Returns
    -------
    module : torch.nn.Module or dict of str to torch.nn.Module
        With the parameters, statistics, counters and mode of the layer.

    Raises
    ------
    TypeError, ValueError
        If PyTorch has no such module: with an activation, or channels on another axis than 1.

    Warns
    -----
    UserWarning
        If training continues differently in PyTorch: with momentum=None, or in training mode with ddof=0.

    Examples
    --------
    >>> import bnorm
    >>> to_torch(bnorm.RMSNorm(4))
    RMSNorm((4,), eps=1e-05, elementwise_affine=True)
    """
    who = "to_torch"
    torch = load(who, "torch", "torch")
    dtype = _floating(who, torch, dtype)
    if isinstance(layer, Mapping):
        return {name: _module(f"{who}: {name!r}", torch, one, dtype) for name, one in layer.items()}
    return _module(who, torch, layer, dtype)


def _module(who: str, torch: Any, layer: Layer, dtype: Any) -> Any:
    name = known(who, "layer", layer, LAYERS)
    given: Any = layer
    without_activation(who, layer, ACTIVATIONS)
    affine, biased = given.gamma is not None, given.beta is not None
    options: dict[str, Any] = {"eps": given.eps, "dtype": dtype}
    if name in OVER_CHANNELS:
        only_axis(who, given, 1, "PyTorch")
        arguments: tuple[Any, ...] = (given.num_features,)
        options |= {"momentum": given.momentum, "track_running_stats": given.track_running_stats, "affine": affine}
    elif name == "GroupNorm":
        only_axis(who, given, 1, "PyTorch")
        arguments = (given.num_groups, given.num_channels)
        options["affine"] = affine
    else:
        arguments = (given.normalized_shape,)
        options["elementwise_affine"] = affine
    if affine and not biased and name != "RMSNorm":
        options["bias"] = False
    module = getattr(torch.nn, name)(*arguments, **options)
    module.load_state_dict({key: torch.from_numpy(value.copy()) for key, value in arrays(layer).items()})
    for theirs, p in _pairs(module, layer):
        theirs.requires_grad_(p.requires_grad)
    if name in OVER_CHANNELS:
        warn_of_variance(who, layer, 1, "PyTorch")
        _warn_of_pooling(who, module)
    return module.train(layer.training)


def _pairs(module: Any, layer: Layer) -> Iterator[tuple[Any, Parameter]]:
    """Yield PyTorch's parameters, each with that of the layer."""
    for theirs, p in ((module.weight, layer.gamma), (getattr(module, "bias", None), layer.beta)):
        if theirs is not None and p is not None:
            yield theirs, p


def _floating(who: str, torch: Any, dtype: Any) -> Any:
    """Return a floating-point dtype of PyTorch, given as such, by its name, or as a NumPy dtype."""
    if dtype is None:
        return torch.get_default_dtype()
    found = dtype if isinstance(dtype, torch.dtype) else getattr(torch, getattr(dtype, "name", str(dtype)), None)
    if not isinstance(found, torch.dtype) or not found.is_floating_point:
        raise ValueError(f"{who}: dtype: expected a floating-point dtype of PyTorch, got {dtype!r}")
    return found


def batch_norm(x: Any, gamma: Any = None, beta: Any = None, **options: Any) -> Any:
    """Batch norm of tensors on the CPU, as `functional.batch_norm`, for PyTorch's autograd.

    Parameters
    ----------
    x, gamma, beta : torch.Tensor
        As in `functional.batch_norm`; gamma and beta may be None.
    **options
        The keywords of `functional.batch_norm`. mean, var and weight are constants to the gradient.

    Returns
    -------
    y : torch.Tensor
        With first and second derivatives by x, gamma and beta.

    Examples
    --------
    >>> import torch
    >>> x = torch.tensor([[1.0], [3.0]], requires_grad=True)
    >>> batch_norm(x, eps=0).tolist()
    [[-1.0], [1.0]]
    """
    return _apply(x, gamma, beta, "batch_norm", options)


def layer_norm(x: Any, gamma: Any = None, beta: Any = None, **options: Any) -> Any:
    """`functional.layer_norm` of tensors, as `batch_norm`."""
    return _apply(x, gamma, beta, "layer_norm", options)


def rms_norm(x: Any, gamma: Any = None, **options: Any) -> Any:
    """`functional.rms_norm` of tensors, as `batch_norm`."""
    return _apply(x, gamma, None, "rms_norm", options)


def group_norm(x: Any, num_groups: int, gamma: Any = None, beta: Any = None, **options: Any) -> Any:
    """`functional.group_norm` of tensors, as `batch_norm`."""
    return _apply(x, gamma, beta, "group_norm", {**options, "num_groups": num_groups})


def instance_norm(x: Any, gamma: Any = None, beta: Any = None, **options: Any) -> Any:
    """`functional.instance_norm` of tensors, as `batch_norm`."""
    return _apply(x, gamma, beta, "instance_norm", options)


def __getattr__(name: str) -> Any:
    if name != "function":
        raise AttributeError(f"module 'bnorm.interop.torch' has no attribute {name!r}")
    load("bnorm.interop.torch.function", "torch", "torch")
    from bnorm.interop.torch_function import Norm

    return Norm


def _apply(x: Any, gamma: Any, beta: Any, norm: str, options: dict[str, Any]) -> Any:
    torch = load(f"bnorm.interop.torch.{norm}", "torch", "torch")
    for name, value in options.items() if torch.is_grad_enabled() else ():
        if name != "residual" and getattr(value, "requires_grad", False):  # a residual is refused in any case
            raise TypeError(
                f"bnorm.interop.torch.{norm}: {name}: expected a tensor that needs no gradient, as there would be none "
                f"of it, got one that does: {name}.detach() is a constant"
            )
    return __getattr__("function").apply(x, gamma, beta, norm, options)


def _tracks(who: str, module: Any, state: dict[str, Any]) -> bool:
    has_buffers = "running_mean" in state
    if has_buffers != module.track_running_stats and not (has_buffers is False and module.running_mean is None):
        raise ValueError(
            f"{who}: module: expected track_running_stats to say whether there are running statistics, got "
            f"{module.track_running_stats} with{'' if has_buffers else 'out'} running statistics"
        )
    return has_buffers


def _warn_of_pooling(who: str, module: Any) -> None:
    if module.momentum is None and module.running_mean is not None:
        warnings.warn(
            f"{who}: momentum=None weighs every value alike here, with the spread between batches; in PyTorch it "
            "averages the variances of batches. The statistics will differ from the next training batch on",
            stacklevel=user_level(),
        )
