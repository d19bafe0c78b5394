"""`bnorm.load`, which restores the object of a state file."""

import os
from collections.abc import Callable
from functools import partial
from math import prod
from typing import Any, TypeVar, overload

import numpy as np

from bnorm import layers
from bnorm.exact import ExactMoments
from bnorm.files import container
from bnorm.layers import saving
from bnorm.moments import Moments
from bnorm.streams import RevIN, RunningNorm, RunningNormTree
from bnorm.streams import saving as stream_saving
from bnorm.transformer import group_saving
from bnorm.transformer.saving import CLASS as TRANSFORMER
from bnorm.transformer.saving import Stored, unpacked

WHO = "bnorm.load"
Kind = TypeVar("Kind")


def transformer(stored: Stored) -> Any:
    """Return the transformer with this state."""
    from bnorm.transformer.estimator import BatchNormTransformer

    return BatchNormTransformer._from_stored(stored)


def grouped_transformer(stored: group_saving.Stored) -> Any:
    """Return the grouped transformer with this state."""
    from bnorm.transformer.grouped import GroupedTransformer

    return GroupedTransformer._from_stored(stored)


def _moments(config: container.Config, entries: Any) -> Moments:
    arrays = {name: entry.array() for name, entry in entries.items()}
    shape, extremes = tuple(config["shape"]), arrays.pop("extremes", None)
    if config["exact"]:
        found: Moments = ExactMoments._from_stored(arrays)._shaped(shape)
    else:
        count, mean, m2, low = arrays.pop("parts")
        if arrays:
            raise ValueError(f"arrays without a place: {sorted(arrays)}")
        Moments(count, mean, m2)  # refuses numbers that no values can have
        found = Moments._from_parts(np.stack([count, mean, m2, low]), shape)
    if found.count.shape != shape or (extremes is not None and extremes.shape != (2, prod(shape))):
        raise ValueError(f"shape {shape} beside {found.count.shape}")
    return found if extremes is None else found._of(found.shape, extremes)


LAYERS = [
    kind
    for kind in vars(layers).values()
    if isinstance(kind, type) and issubclass(kind, layers.Layer) and kind is not layers.Layer
]
RESTORED: dict[str, Callable[..., Any]] = {  # by the name of the class: from the configuration and the arrays of a file
    **{kind.__name__: partial(saving.restored, kind) for kind in (*LAYERS, RevIN)},
    RunningNorm.__name__: partial(stream_saving.restored, RunningNorm),
    RunningNormTree.__name__: partial(stream_saving.restored_tree, (RunningNorm, RunningNormTree)),
    group_saving.CLASS: lambda config, entries: grouped_transformer(group_saving.restored(config, entries)),
    "Moments": _moments,
    TRANSFORMER: lambda config, entries: transformer(unpacked(config, entries)),
}


@overload
def load(path: str | os.PathLike[str], kind: None = None) -> Any: ...
@overload
def load(path: str | os.PathLike[str], kind: type[Kind]) -> Kind: ...
def load(path: str | os.PathLike[str], kind: type | None = None) -> Any:
    """Load a layer, a transformer, a normalizer of a stream or Moments from a file that its `save` wrote.

    Files of all older versions can be loaded. No code in a file is ever run.

    Parameters
    ----------
    path : str or path-like
        A name that ends in .safetensors or .npz.
    kind : type, default=None
        The expected class, such as BatchNorm1d: an object of another class is an error, and type checkers know the
        type of the result. None means any.

    Returns
    -------
    layer, BatchNormTransformer, GroupedTransformer, RunningNorm, RunningNormTree, RevIN or Moments
        The object with its fitted state and all settings, on the CPU.

    Raises
    ------
    ValueError
        If the file is damaged, was written by another program or by a newer version of bnorm, or has another kind.

    Examples
    --------
    >>> import tempfile, bnorm
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     bnorm.BatchNorm1d(3, momentum=None).save(f"{folder}/layer.safetensors")
    ...     layer = bnorm.load(f"{folder}/layer.safetensors")
    ...     same = bnorm.load(f"{folder}/layer.safetensors", bnorm.BatchNorm1d)  # or ValueError
    >>> layer
    BatchNorm1d(3, momentum=None)
    """
    if kind is not None and not isinstance(kind, type):
        raise TypeError(f"{WHO}: kind: expected a class, such as BatchNorm1d, or None, got {kind!r}")
    found = _found(path)
    if kind is not None and not isinstance(found, kind):
        raise ValueError(f"{WHO}: {os.fspath(path)}: expected a {kind.__name__}, got a {type(found).__name__}")
    return found


def _found(path: str | os.PathLike[str]) -> Any:
    config, entries = container.read(WHO, path)
    name = config.get("class")
    if not isinstance(name, str) or name not in RESTORED:
        raise ValueError(f"{WHO}: {os.fspath(path)}: expected one of {', '.join(RESTORED)}, got {name!r}")
    try:
        return RESTORED[name](config, entries)
    except ModuleNotFoundError:
        raise
    except Exception as error:  # a damaged file may lead to any error
        raise ValueError(f"{WHO}: {os.fspath(path)}: expected a {name}, got a damaged file: {error}") from None
