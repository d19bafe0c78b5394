"""`bnorm.load`: the object that a file holds."""

import os
from typing import Any

from bnorm import layers
from bnorm.files import container
from bnorm.layers import saving
from bnorm.transformer.saving import CLASS as TRANSFORMER
from bnorm.transformer.saving import Stored, unpacked

WHO = "bnorm.load"
LAYERS = {
    kind.__name__: kind
    for kind in vars(layers).values()
    if isinstance(kind, type) and issubclass(kind, layers.Layer) and kind is not layers.Layer
}


def load(path: Any) -> Any:
    """The layer or transformer that its `save` wrote to a file, with everything learned and every setting, on the CPU.

    Files of all older versions load. A file that is damaged, made by another program or by a newer version of the
    format is a ValueError that says so. Nothing in a file is ever run.
    """
    config, entries = container.read(WHO, path)
    name = config.get("class")
    if not isinstance(name, str) or name not in (*LAYERS, TRANSFORMER):
        known = ", ".join([*LAYERS, TRANSFORMER])
        raise ValueError(f"{WHO}: {os.fspath(path)}: expected one of {known}, got {name!r}")
    try:
        if name == TRANSFORMER:
            return transformer(unpacked(config, entries))
        return saving.restored(LAYERS[name], config, entries)
    except Exception as error:  # as values may be of any kind and size, so may the error that they lead to
        raise ValueError(f"{WHO}: {os.fspath(path)}: expected a {name}, got a damaged file: {error}") from None


def transformer(stored: Stored) -> Any:
    """The estimator with that state."""
    from bnorm.transformer.estimator import BatchNormTransformer

    return BatchNormTransformer._from_stored(stored)
