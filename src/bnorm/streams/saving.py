"""The files of RunningNorm and its trees: settings as the configuration, the statistics as arrays."""

from collections.abc import Mapping
from typing import Any

from numpy import ndarray

from bnorm.files import container
from bnorm.kernels import moved
from bnorm.layers.saving import flag

Kinds = tuple[Any, Any]  # RunningNorm and RunningNormTree, which import this module

KNOWN = {"format", "class", "arguments", "training", "tree"}
TREE = "RunningNormTree"
SETTINGS = ("clip", "eps", "momentum", "halflife", "nonfinite", "dtype")


def save(norm: Any, path: Any) -> None:
    """Write the file of a RunningNorm; or that of a tree, with its structure, and the arrays of each place."""
    if hasattr(norm, "_parts"):
        who, found = TREE, dict[str, ndarray]()
        for place, part in norm._norms().items():
            found |= arrays(part, f"{place}.")
        config = {"class": TREE, "training": norm.training, "tree": _structure(norm, norm.training)}
    else:
        who, found = norm._who, arrays(norm)
        config = {"class": "RunningNorm", "arguments": arguments(norm), "training": norm.training}
    container.write(f"{who}: save", path, config, found)


def arguments(norm: Any) -> dict[str, Any]:
    """The arguments that make a RunningNorm like this one, in JSON's types."""
    given = {name: getattr(norm, name) for name in SETTINGS}
    return {"shape": list(norm.shape)} | given | {"dtype": norm.dtype.name}


def arrays(norm: Any, prefix: str = "") -> dict[str, ndarray]:
    """The arrays of a RunningNorm, on the CPU."""
    return {prefix + name: moved(a, ndarray) for name, a in norm._state().items()}


def restored(kind: Any, config: Mapping[str, Any], entries: Mapping[str, container.Entry]) -> Any:
    """The RunningNorm of a file. An error of any kind means that the file does not hold one."""
    container.check_entries(config, KNOWN)
    return filled(kind, config["arguments"], entries).train(flag(config["training"]))


def filled(kind: Any, given: Mapping[str, Any], entries: Mapping[str, container.Entry]) -> Any:
    """A RunningNorm with these arguments and arrays."""
    if sorted(given) != sorted(("shape", *SETTINGS)):
        raise ValueError(f"arguments {sorted(given)}")
    shape = tuple(given["shape"])
    if "mean" not in entries or entries["mean"].shape != shape:  # first, as a false number could fill the memory
        raise ValueError(f"shape {shape} without an array of that shape")
    norm = kind(**{**given, "shape": shape})
    container.check_arrays(entries, norm._state())
    norm.load_state_dict({name: entry.array() for name, entry in entries.items()})
    return norm


def restored_tree(kinds: Kinds, config: Mapping[str, Any], entries: Mapping[str, container.Entry]) -> Any:
    """The tree of a file. An error of any kind means that the file does not hold one."""
    container.check_entries(config, KNOWN)
    left = dict(entries)
    tree = _regrown(kinds, config["tree"], flag(config["training"]), "", left)
    if left:
        raise ValueError(f"arrays without a place: {sorted(left)}")
    return tree


def _structure(part: Any, mode: bool) -> Any:
    """Describe a part in JSON's types, with its mode if that differs from the mode of the tree around it."""
    if part is None:
        return None
    own = {} if part.training == mode else {"training": part.training}
    if not hasattr(part, "_parts"):
        return own | {"norm": arguments(part)}
    if isinstance(part._parts, dict):
        if not all(isinstance(name, str) for name in part._parts):
            raise TypeError(f"{TREE}: save: expected keys that are strings, got {list(part._parts)!r:.80}")
        return own | {"dict": [[name, _structure(p, part.training)] for name, p in part._parts.items()]}
    return own | {"tuple": [_structure(p, part.training) for p in part._parts]}


def _regrown(kinds: Kinds, given: Any, mode: bool, prefix: str, left: dict[str, container.Entry]) -> Any:
    if given is None:
        return None
    given = {"training": mode} | given
    mode = flag(given.pop("training"))
    ((kind, content),) = given.items()
    if kind == "norm":
        names = [name for name in left if name.rpartition(".")[0] == prefix.removesuffix(".")]
        own = {name.rpartition(".")[2]: left.pop(name) for name in names}
        return filled(kinds[0], content, own).train(mode)
    if kind == "dict":
        tree = kinds[1]({name: _regrown(kinds, part, mode, f"{prefix}{name}.", left) for name, part in content})
    elif kind == "tuple":
        tree = kinds[1](tuple(_regrown(kinds, part, mode, f"{prefix}{i}.", left) for i, part in enumerate(content)))
    else:
        raise ValueError(f"a part of kind {kind!r:.80}")
    tree._training = mode  # not by `train`: its parts have modes of their own
    return tree
