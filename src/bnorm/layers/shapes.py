"""The shapes that a layer with channels accepts: the names of their axes, and the error for other shapes."""

from collections.abc import Mapping

from bnorm import checks

Names = dict[int, tuple[str, ...]]  # the names of the axes, by number of dimensions


def axis_and_names(who: str, axis: object, positions: tuple[str, ...]) -> tuple[int, Names]:
    """Return the axis of the channels, and the names of all axes for each number of dimensions that has this axis.

    positions: the letters of the axes besides batch and channels, for each number of dimensions.
    """
    place = checks.integer(who, "axis", axis)
    names: Names = {}
    for letters in positions:
        rank = 2 + len(letters)
        if -rank <= place < rank:
            axes = ["N", *letters]
            axes.insert(place % rank, "C")
            names[rank] = tuple(axes)
    if not names:
        ranks = " or ".join(str(2 + len(letters)) for letters in positions)
        raise ValueError(f"{who}: axis: expected one of {ranks} axes, got {place}")
    return place, names


def wrong_shape(who: str, shape: tuple[int, ...], channels: int, names: Mapping[int, tuple[str, ...]]) -> ValueError:
    """Return the error for an x with a wrong number of dimensions or channels."""
    if len(shape) not in names:
        ranks, axes = " or ".join(map(str, names)), " or ".join(f"({', '.join(n)})" for n in names.values())
        return ValueError(f"{who}: expected {ranks} dimensions {axes}, got shape {shape}")
    places = [i for i in range(1, len(shape)) if shape[i] == channels]
    axis = -1 if places == [len(shape) - 1] else places[0] if places else 0
    way = f"; axis={axis} takes the axis of {channels} for the channels" if len(places) == 1 else ""
    axes = ", ".join(names[len(shape)])
    return ValueError(f"{who}: expected {channels} channels, C of ({axes}), got shape {shape}{way}")
