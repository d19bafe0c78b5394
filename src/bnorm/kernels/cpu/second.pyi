from ..activation import Activation
from ..reference import Array

def channels(
    ddx: Array,
    dy: Array,
    x: Array,
    stats: Array,
    count: float,
    weight: Array | None,
    act: Activation,
    frozen: bool,
    ddgamma: Array | None,
    ddbeta: Array | None,
    bent: Array | None = None,
) -> tuple[Array, Array, Array]: ...
def rows(
    ddx: Array,
    dy: Array,
    x: Array,
    mean: Array,
    rstd: Array,
    gamma: Array | None,
    beta: Array | None,
    rule: int,
    act: Activation,
    ddgamma: Array | None,
    ddbeta: Array | None,
    bent: Array | None = None,
    weight: Array | None = None,
) -> tuple[Array, Array, Array]: ...
