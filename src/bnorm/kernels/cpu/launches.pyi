from collections.abc import Mapping
from typing import Any

from typing_extensions import disjoint_base

_Prepared = tuple[list[tuple[Any, ...]], bytes]  # of a launch: kernel, grid, block, shared, geometry, dtype, refused

def places(index: int, *arrays: Any) -> list[int]: ...
def launch(prepared: list[_Prepared], holder: object = None) -> None: ...
def ready(out: Any, x: Any, layout: tuple[object, ...], given: tuple[Mapping[str, object], ...]) -> Any | None: ...
def separate(totals: tuple[Any, ...], size: int, dtype: object, others: tuple[Any, ...]) -> bool: ...
def dtype_name(dtype: Any) -> str: ...

@disjoint_base
class Call:
    device: Any
    stream: int
    captured: bool
    outer: int
    channels: int
    inner: int
    dtype: str
    result: Any
    at: int
    dy_at: int
    result_at: int
    places: int
    vectors: bool
    def __init__(self, device: Any, x: Any, out: Any, dy: Any, writes: bool, vector_bytes: int) -> None: ...
    @property
    def size(self) -> tuple[int, int, int, str, bool]: ...
    @property
    def count(self) -> float: ...
    def workspace(self, plan: Any, more: int = 0) -> tuple[int, int]: ...
    def run(self, plan: Any, job: bytes, holder: object = None) -> None: ...
    def run_all(self, plans: list[tuple[Any, bytes]], holder: object = None) -> None: ...
    def later(self, plan: Any, job: bytes) -> tuple[Any, tuple[list[_Prepared]], dict[str, Any]]: ...
    def launch_prepared(self, prepared: list[_Prepared], holder: object = None) -> None: ...

@disjoint_base
class Part:
    whole: Any
    ptr: int
    device_id: int
    size: int
    @property
    def data(self) -> Part: ...

def small(
    device: Any, many: int, gamma: Any, beta: Any, dtype: object
) -> tuple[Part, Part, Part | None, Part | None]: ...
