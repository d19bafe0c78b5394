"""A KeyboardInterrupt at a chosen moment: it must leave the state before the call or the state after it.

Moments are the calls and returns of functions of bnorm. Generators are left out: Python drops an interrupt that comes
while it closes one.
"""

import copy
import sys
from collections.abc import Callable
from inspect import CO_GENERATOR
from typing import Any


def moments(call: Callable[[], Any], at: int = 0, inside: str = "bnorm") -> int:
    """Make a call, and return the number of moments in modules whose names begin with `inside`. at: interrupt there."""
    seen = 0

    def look(frame: Any, event: str, arg: Any) -> None:
        nonlocal seen
        if frame.f_globals.get("__name__", "").startswith(inside) and not frame.f_code.co_flags & CO_GENERATOR:
            seen += 1
            if seen == at:
                raise KeyboardInterrupt

    sys.setprofile(look)
    try:
        call()
    finally:
        sys.setprofile(None)
    return seen


def interrupted(call: Callable[[], Any], at: int, inside: str = "bnorm") -> bool:
    """Return whether an interrupt at that moment ended the call."""
    try:
        moments(call, at, inside)
    except KeyboardInterrupt:
        return True
    return False


def interrupted_late(t: Any, call: Callable[[Any], Any], left: int) -> None:
    """Call with `t`, and interrupt `left` moments before the end, where states change. A copy tells when that is."""
    trial = copy.deepcopy(t)
    interrupted(lambda: call(t), max(1, moments(lambda: call(trial)) - left))
