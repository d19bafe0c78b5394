"""The state of a net: one dictionary for all its layers, with dotted names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bnorm.layers.base import Layer
from bnorm.layers.parameters import Parameter
from bnorm.layers.state import Incompatible, StateDict, load


def state_dict(layers: Mapping[str, Layer | Parameter]) -> StateDict:
    """Return copies of all arrays of several layers, under names such as "bn1.weight".

    A name is the name of the layer, a dot, and PyTorch's name of the array.

    Parameters
    ----------
    layers : mapping of str to layer or Parameter
        A `Parameter` that belongs to no layer, such as the weight of a convolution, keeps its own name.

    Returns
    -------
    StateDict
        A dictionary. With momentum=None the counts of values are an attribute of it.

    Examples
    --------
    >>> import bnorm
    >>> net = {"bn1": bnorm.BatchNorm1d(3), "norm": bnorm.RMSNorm(4), "out.weight": bnorm.Parameter([0.5])}
    >>> list(bnorm.state_dict(net))[-3:]
    ['bn1.num_batches_tracked', 'norm.weight', 'out.weight']
    """
    arrays = StateDict()
    seen = {}
    for first, holder in _holders("state_dict", layers).items():
        arrays |= {first + key: a.copy() for key, a in holder._state().items()}
        if (counts := getattr(holder, "_counts", None)) is not None:
            seen[first.removesuffix(".")] = counts.copy()
    arrays.seen = seen or None
    return arrays


def load_state_dict(
    layers: Mapping[str, Layer | Parameter], state: Mapping[str, Any], strict: bool = True
) -> Incompatible:
    """Load a `state_dict(layers)`. After an error nothing is loaded.

    Parameters
    ----------
    layers : mapping of str to layer or Parameter
        The layers to load into.
    state : mapping of str to array or tensor
        Arrays or PyTorch's tensors, under the names of `state_dict(layers)`, with PyTorch's names or gamma and beta.
    strict : bool, default True
        Whether missing and unexpected names are an error. A wrong shape always is.

    Returns
    -------
    Incompatible
        A named tuple of the `missing_keys` and `unexpected_keys`.

    Examples
    --------
    >>> import bnorm
    >>> old, new = ({"bn1": bnorm.BatchNorm1d(3), "ln": bnorm.LayerNorm(4)} for _ in range(2))
    >>> bnorm.load_state_dict(new, bnorm.state_dict(old))
    Incompatible(missing_keys=[], unexpected_keys=[])
    """
    who = "load_state_dict"
    return load(who, "state", _holders(who, layers), state, strict, "the names and shapes of state_dict(layers)")


def _holders(who: str, layers: Any) -> dict[str, Any]:
    """Return layers and parameters by the prefix of their arrays' names."""
    if not isinstance(layers, Mapping):
        raise TypeError(f"{who}: layers: expected a mapping of names to layers, got {type(layers).__name__}")
    holders: dict[str, Any] = {}
    arrays: dict[str, Any] = {}
    for name, layer in layers.items():
        if not isinstance(name, str):
            raise TypeError(f"{who}: layers: expected names that are strings, got {name!r}")
        if not isinstance(layer, Layer | Parameter):
            raise TypeError(f"{who}: layers: expected a layer or a parameter as {name!r}, got {type(layer).__name__}")
        first = f"{name}." if isinstance(layer, Layer) else name
        holders[first] = layer
        for key, a in layer._state().items():
            if arrays.setdefault(first + key, a) is not a:
                raise ValueError(f"{who}: layers: expected a name for each array, got {first + key!r} for two of them")
    return holders
