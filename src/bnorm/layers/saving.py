"""Files of layers: arrays under PyTorch's names, with the arguments and settings as the configuration."""

import inspect
from collections.abc import Mapping
from math import inf, prod
from typing import Any

import numpy as np
from numpy import ndarray

from bnorm.files import container
from bnorm.kernels import moved
from bnorm.layers import state
from bnorm.running import Statistics

KNOWN = {"format", "class", "arguments", "training", "requires_grad", "counters"}
NOT_SAVED = ("comm", "device", "elementwise_affine")  # two arguments that belong to a process, and a synonym
MOST_WITHOUT_ARRAYS = 1 << 20  # channels without an array of that size: a number in a file must not fill the memory


def save(layer: Any, path: Any) -> None:
    """Write a layer to a file."""
    config = {
        "class": _kind(layer).__name__,
        "arguments": arguments(layer),
        "training": layer.training,
        "requires_grad": {name: bool(p.requires_grad) for name, p in layer.named_parameters()},
        "counters": counters(_statistics(layer)),
    }
    arrays = {name: moved(a, ndarray) for name, a in layer._state().items()}
    container.write(f"{layer._who}: save", path, config, arrays)


def arguments(layer: Any) -> dict[str, Any]:
    """Return the arguments that make a layer like this one, in JSON's types."""
    names = [name for name in inspect.signature(_kind(layer)).parameters if name not in NOT_SAVED]
    attributes = {name: "_bias" if name == "bias" else name for name in names}  # `bias` is PyTorch's name of beta
    return {name: _plain(getattr(layer, attribute)) for name, attribute in attributes.items()}


def _kind(layer: Any) -> type:
    """Return the class of a layer; for a user's subclass its base class in this package, which a file can restore."""
    return next(kind for kind in type(layer).__mro__ if kind.__module__.startswith("bnorm."))


def restored(kind: Any, config: Mapping[str, Any], entries: Mapping[str, container.Entry]) -> Any:
    """Return the layer of a file. An error of any type means that the file does not contain one."""
    given = config["arguments"]
    container.check_entries(config, KNOWN)
    largest = max([MOST_WITHOUT_ARRAYS, *(prod(entry.shape) for entry in entries.values())])
    for name, option in inspect.signature(kind).parameters.items():
        sizes = given[name] if isinstance(given.get(name), list) else [given.get(name)]
        if option.default is option.empty and not (all(type(n) is int for n in sizes) and prod(sizes) <= largest):
            raise ValueError(f"{name} is {given.get(name)!r}, and no array has that size")
    layer = kind(**given)
    container.check_arrays(entries, layer._state())
    arrays, like = state.StateDict((name, entry.array()) for name, entry in entries.items()), _statistics(layer)
    if like is not None:
        arrays.seen = _vector("seen", config["counters"]["seen"], like.seen)
    layer.load_state_dict(arrays)
    if like is not None:
        layer._adopt(statistics(like, config["counters"]))
    frozen = config["requires_grad"]
    for name, p in layer.named_parameters():
        p.requires_grad = flag(frozen[name])
    return layer.train(flag(config["training"]))


def counters(statistics: Statistics | None) -> dict[str, Any]:
    """Return counts and weights of running statistics, in JSON's types."""
    if statistics is None:
        return {}
    statistics.look()
    arrays = {name: moved(a, ndarray) for name, a in statistics.arrays().items() if name not in ("mean", "var")}
    return {
        "counted": statistics.counters.tolist(),
        "from_data": statistics.from_data,
        "halflife": statistics.halflife,
        **{name: _numbers(a) for name, a in arrays.items()},
    }


def statistics(like: Statistics, given: Mapping[str, Any]) -> Statistics:
    """Return statistics with the mean, variance and settings of `like`, and the counts and weights that are given."""
    from_data, halflife = given["from_data"], given["halflife"]
    if type(from_data) is not bool or not (halflife is None or (type(halflife) is float and 0 < halflife < inf)):
        raise ValueError(f"from_data, halflife: {from_data!r}, {halflife!r}")
    new = Statistics(
        like.mean, like.var, like.momentum, like.ddof, like.nonfinite, from_data=from_data, halflife=halflife
    )
    for name, a in new.arrays().items():
        if name not in ("mean", "var"):
            a[...] = _vector(name, given[name], a)
    new.counters[...] = counted(given["counted"])
    return new


def counted(given: Any) -> list[int]:
    """Return the counters of statistics, batches first; ValueError if they are invalid."""
    if not (isinstance(given, list) and len(given) == 4 and all(type(n) is int and 0 <= n < 2**62 for n in given)):
        raise ValueError(f"counts: {given!r:.80}")
    return given


def _statistics(layer: Any) -> Statistics | None:
    """Return the running statistics of a layer, or None."""
    found: Statistics | None = layer._running if getattr(layer, "track_running_stats", False) else None
    return found


def _numbers(a: ndarray) -> Any:
    """Return a list of numbers, or one number if all are equal."""
    listed = a.tolist()
    return listed[0] if listed.count(listed[0]) == len(listed) else listed


def _vector(name: str, given: Any, like: ndarray) -> ndarray:
    a = np.array(given, np.float64)
    if a.shape not in ((), like.shape) or np.isnan(a).any() or (name == "seen" and not (0 <= a).all()):
        raise ValueError(f"{name}: {given!r:.80}")
    return np.broadcast_to(a, like.shape)


def _plain(value: Any) -> Any:
    if isinstance(value, np.dtype):
        return value.name
    if isinstance(value, tuple):
        return value[0] if len(value) == 1 else list(value)
    return value


def flag(given: Any) -> bool:
    """Return True or False from a file; ValueError for any other value."""
    if type(given) is not bool:
        raise ValueError(f"{given!r} instead of true or false")
    return given
