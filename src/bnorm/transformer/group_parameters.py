"""The parameters of a transformer of groups: which are valid, and which states of groups may be united."""

from typing import Any

from bnorm.kernels.rule import AVERAGE
from bnorm.transformer import durations
from bnorm.transformer.durations import compared
from bnorm.transformer.group_saving import CLASS, Stored
from bnorm.transformer.parameters import refuse_bools
from bnorm.transformer.times import differing


def check(t: Any) -> None:
    """Raise an error, scikit-learn's or one of this function, if a parameter of a transformer is invalid."""
    t._validate_params()
    refuse_bools(CLASS, t)
    durations.check(CLASS, "halflife", t.halflife)
    if t.halflife is not None and t.momentum is not None:
        raise ValueError(
            f"{CLASS}: momentum: expected None with halflife={t.halflife}, as each is a way to forget, got {t.momentum}"
        )


def check_same_stream(t: Any) -> None:
    """Raise ValueError if a parameter has changed that must stay the same during a stream."""
    began = t._groups.way
    if (t.momentum, compared(t.halflife)) != (began[0], compared(began[1])):
        raise ValueError(
            f"{CLASS}: expected momentum={began[0]}, halflife={began[1]}, as this stream began, got "
            f"momentum={t.momentum}, halflife={t.halflife}; fit begins anew"
        )


def apart(mine: Stored, its: Stored, here: str) -> str | None:
    """Why two states of groups cannot be united, except for the kinds of their keys; None if they can.

    here: where the first state is, in words, such as "here" or "in a.npz"
    """
    given = mine.parameters, its.parameters
    if AVERAGE in (mine.groups.whole.mode, its.groups.whole.mode):
        return (
            f"expected momentum=None, got momentum={given[0]['momentum']} and {given[1]['momentum']}: a moving average "
            "depends on the order of its batches"
        )
    named = mine.names is not None and its.names is not None
    halflives = [p["halflife"] for p in given]
    if compared(halflives[0]) != compared(halflives[1]):
        return f"halflife: expected {halflives[0]}, as {here}, got {halflives[1]}"
    for name, here_, there in (
        ("n_features_in_", mine.columns, its.columns),
        ("by", *((mine.by, its.by) if named else (mine.places, its.places))),
        ("features", *((mine.features, its.features) if named else (None, None))),
    ):
        if here_ != there:
            return f"{name}: expected {here_}, as {here}, got {there}"
    return differing(mine.groups.zero, its.groups.zero, here)
