"""The parameters of a transformer: which values are valid, and which a stream that has begun allows."""

from collections.abc import Mapping
from contextlib import suppress
from operator import attrgetter, is_
from typing import Any

from bnorm.kernels.rule import AVERAGE, FADE
from bnorm.running import mode_of
from bnorm.transformer import durations
from bnorm.transformer.durations import compared, is_duration
from bnorm.transformer.fitted import Fitted
from bnorm.transformer.state import manner
from bnorm.transformer.tables import WHO
from bnorm.transformer.times import differing

MOMENTUM = 0.1
IN_STATE = ("momentum", "halflife", "window", "eps", "ddof", "affine", "history", "exact")  # what a State needs
NUMBERS = ("momentum", "halflife", "window", "eps", "ddof", "history", "prior")
OF_STREAM = ("momentum", "halflife", "window", "ddof", "exact")  # equal in streams that are merged
VALID: set[Any] = set()  # combinations found valid: scikit-learn's check takes as long as a small fit
MOST_VALID = 1000


_given = attrgetter(*IN_STATE, "copy")  # all parameters of a transformer


def check(t: Any) -> None:
    """Raise an error, scikit-learn's or one of this function, if a parameter of a transformer is invalid."""
    given = _given(t)
    key = (type(t), given, *map(type, given))  # the types too, as True equals 1, but is not valid where 1 is
    with suppress(TypeError, ValueError):  # a value without a hash is refused below
        if key in VALID:
            return
    t._validate_params()
    refuse_bools(WHO, t)
    durations.check(WHO, "halflife", t.halflife)
    durations.check(WHO, "window", t.window)
    if t.halflife is not None and t.momentum not in (MOMENTUM, None):
        raise ValueError(
            f"{WHO}: momentum: expected its default, {MOMENTUM}, or None with halflife={t.halflife}, as each is a "
            f"way to forget, got {t.momentum}"
        )
    if t.window is not None and (t.momentum not in (MOMENTUM, None) or t.halflife is not None or t.exact):
        raise ValueError(
            f"{WHO}: window: expected None with another way to weigh rows, got window={t.window!r} with "
            f"momentum={t.momentum}, halflife={t.halflife!r}, exact={t.exact}"
        )
    if t.exact and (t.momentum is not None or t.halflife is not None):
        raise ValueError(
            f"{WHO}: exact: expected momentum=None with exact=True, as only sums of rows that weigh the same are "
            f"exact, got momentum={t.momentum}, halflife={t.halflife}"
        )
    if len(VALID) == MOST_VALID:
        VALID.clear()
    VALID.add(key)


def refuse_bools(who: str, estimator: Any) -> None:
    """Raise TypeError for a bool where a number is expected. Scikit-learn takes it for 0 or 1: a window of one row."""
    for name in NUMBERS:
        if isinstance(given := getattr(estimator, name, None), bool):
            raise TypeError(f"{who}: {name}: expected a number, got {given}")


def apart(mine: Mapping[str, Any], its: Mapping[str, Any], own: Fitted, other: Fitted, here: str) -> str | None:
    """Why two streams cannot be merged, by their parameters and by what they have learned; None if they can.

    here: where the first stream is, in words, such as "here" or "in a.npz"
    """
    if compared(mine["halflife"]) != compared(its["halflife"]):
        return f"halflife: expected {mine['halflife']}, as {here}, got {its['halflife']}"
    if AVERAGE in (own.statistics.mode, other.statistics.mode):
        return (
            f"expected momentum=None or a halflife, got momentum={mine['momentum']} and {its['momentum']}: a moving "
            "average depends on the order of its batches"
        )
    if mine["window"] is not None and not is_duration(mine["window"]) and mine["window"] == its["window"]:
        return (
            f"expected no window of rows, got window={mine['window']}: which of the rows of two streams came last is "
            "not known; windows of time, such as window='1h', can be merged"
        )
    fading = own.statistics.mode == other.statistics.mode == FADE
    without = fading or None not in (mine["window"], its["window"])  # then momentum has no meaning
    for name in (*(() if without else ("momentum",)), "window", "ddof", "exact"):
        if compared(mine[name]) != compared(its[name]):
            return f"{name}: expected {mine[name]}, as {here}, got {its[name]}"
    return differing(own.zero, other.zero, here)


def settings(estimator: Any) -> tuple[Any, ...]:
    """Return the parameters of a transformer, and the settings of its state that follow from them."""
    state = estimator._state
    return *_given(estimator), state.eps, state.statistics.rule  # a new setting makes a new rule


def changed(estimator: Any) -> bool:
    """Whether parameters have changed since `State.follow` was called with them. Raise an error if they are invalid."""
    before = estimator._state.followed
    if before is not None and all(map(is_, settings(estimator), before)):
        return False
    check(estimator)
    check_same_stream(estimator)
    return True


def shown(estimator: Any, text: str) -> str:
    """Add the momentum of a moving average to scikit-learn's text of an estimator, which hides default parameters."""
    averaged = mode_of(estimator.momentum, estimator.halflife) == AVERAGE and estimator.window is None
    if "momentum=" in text or not averaged:
        return text
    name, parenthesis, rest = text.partition("(")
    return f"{name}{parenthesis}momentum={estimator.momentum!r}{'' if rest.startswith(')') else ', '}{rest}"


def check_same_stream(estimator: Any) -> None:
    """Raise ValueError if a parameter has changed that must stay the same during a stream."""
    state, before = estimator._state, estimator._state.manner
    if (now := manner(estimator.momentum, estimator.halflife, estimator.window)) != before:
        raise ValueError(
            f"{WHO}: momentum, halflife, window: expected {before}, as this stream began, got {now}; fit begins anew"
        )
    same = {"ddof": state.statistics.ddof, "affine": state.affine, "exact": state.sums is not None}
    for name, value in same.items():
        if (given := getattr(estimator, name)) != value:
            raise ValueError(f"{WHO}: {name}: expected {value}, as this stream began, got {given}; fit begins anew")
