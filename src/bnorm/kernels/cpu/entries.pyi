from collections.abc import Iterable, Mapping
from typing import Any

from ..activation import Activation
from ..reference import Array
from ..rule import Rule

def use(capsule: object) -> None: ...
def processor_level() -> int: ...
def use_sizes(**changed: int) -> dict[str, int]: ...
def use_habit(**changed: int) -> dict[str, int]: ...
def use_watch(**changed: int) -> dict[str, int]: ...
def halved(x: object) -> Array: ...
def mean_weights(halflife: float, rows: float) -> tuple[float, float]: ...
def widened(x: Array) -> Array: ...
def narrowed(y: Array, like: Array) -> Array: ...
def keep_weights(weight: Array, copy: bool) -> tuple[Array, float, int]: ...
def moments(x: Array, weight: Array | None = None, skipna: bool = False) -> Array: ...
def column_moments(columns: list[Array], weight: Array | None = None, minmax: bool = False) -> tuple[Array, Any]: ...
def finish(parts: Array, gamma: Array | None, beta: Array | None, eps: float) -> Array: ...
def normalize(
    x: Array, stats: Array, act: Activation = ..., out: Array | None = None, finite: bool = False
) -> Array: ...
def grad_moments(dy: Array, x: Array, stats: Array, weight: Array | None = None, act: Activation = ...) -> Array: ...
def finish_gradients(sums: Array, stats: Array, count: float | Array) -> Array: ...
def grad_input(
    dy: Array,
    x: Array,
    stats: Array,
    coefficients: Array,
    weight: Array | None = None,
    act: Activation = ...,
    out: Array | None = None,
) -> Array: ...
def in_float64(vectors: tuple[Array | None, ...]) -> tuple[Array | None, ...]: ...
def again(x: object, layout: tuple[object, ...] | None) -> Array | None: ...
def restored(a: Array, layout: tuple[object, ...]) -> Array: ...
def contiguous(a: Array) -> Array: ...
def copy_into(to: Array, a: Array) -> None: ...
def apart(a: Array, others: Iterable[object]) -> bool: ...
def ready(
    out: object, x: object, layout: tuple[object, ...], given: tuple[Mapping[str, object], ...]
) -> Array | None: ...
def add(
    total: Array | None, part: Array | None, other: Array | None = None, other_part: Array | None = None
) -> None: ...
def assign(rule: Rule, source: Rule) -> None: ...
def inverse(stats: Array, single: bool) -> Array: ...
def known(mean: Array, var: Array, gamma: Array | None, beta: Array | None, eps: float) -> Array: ...
def merge(sets: list[Array]) -> Array: ...
def move(
    rule: Rule,
    parts: Array,
    seen: Array | None = None,
    pairs: Array | None = None,
    last: Array | None = None,
    rows: int = 0,
    batches: int = 1,
    typical: float = 0.0,
    skipped: bool = False,
    replace: bool = False,
) -> int: ...
def settle_prepared(rule: Rule, stats: object, count: object, size: int, left: object = 0) -> Any: ...
def move_prepared(
    rule: Rule,
    calls: list[tuple[Any, tuple[Any, ...], dict[str, Any]]],
    batches: int,
    rows: int,
    skipped: bool,
    values: bool,
) -> None: ...
def settle(rule: Rule, stats: Array, count: float, size: int, left: int = 0) -> int: ...
def forward(
    x: Array,
    gamma: Array | None,
    beta: Array | None,
    eps: float,
    mean: Array | None = None,
    var: Array | None = None,
    weight: Array | None = None,
    act: Activation = ...,
    running: Rule | None = None,
    out: Array | None = None,
) -> tuple[Array, Array, float, int]: ...
def backward(
    dy: Array,
    x: Array,
    stats: Array,
    count: float,
    weight: Array | None = None,
    act: Activation = ...,
    frozen: bool = False,
    params: bool = True,
    out: Array | None = None,
) -> tuple[Array, Array | None, Array | None]: ...
def rows_forward(
    x: Array,
    gamma: Array | None,
    beta: Array | None,
    eps: float,
    rule: int = 0,
    act: Activation = ...,
    out: Array | None = None,
    residual: Array | None = None,
    weight: Array | None = None,
    copies: bool = False,
) -> tuple[Any, ...]: ...
def rows_backward(
    dy: Array,
    x: Array,
    mean: Array,
    rstd: Array,
    gamma: Array | None,
    beta: Array | None,
    rule: int = 0,
    act: Activation = ...,
    params: bool = True,
    out: Array | None = None,
    dh: Array | None = None,
    weight: Array | None = None,
) -> tuple[Array, Array | None, Array | None]: ...
def online(
    x: Array,
    rule: Rule,
    skipped: Array,
    eps: float,
    clip: float = ...,
    update: bool = True,
    maps: bool = True,
    weight: Array | None = None,
    whole: bool = False,
) -> Array: ...
