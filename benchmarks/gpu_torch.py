"""PyTorch's normalizations on the arrays of a case: with cuDNN and without, call by call, as a CUDA graph, compiled.

Everything runs on one stream: a backward runs on the stream on which its outputs were made, and a capture that
meets work of another stream fails (error 906, "capturing stream has unjoined work").
"""

import statistics
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

REPEATS = 9
LEAST = 2e-3  # seconds of a graph
Cells = dict[str, tuple[Callable[[], float], Callable[[], list[Any]]]]  # how to time an operation; its results


def torch_version() -> str | None:
    """Return the version; None if there is no PyTorch with CUDA."""
    try:
        import torch
    except ImportError:
        return None
    return f"{torch.__version__}, CUDA {torch.version.cuda}" if torch.cuda.is_available() else None


def types(kind: str, dtype: str) -> tuple[str, str]:
    """Return the types of x and of parameters: for rows that of x, for channels float32, or float64 if x has it."""
    return dtype, "float64" if dtype == "float64" else dtype if kind != "batch_norm" else "float32"


class Arrays:
    """The arrays of a case as PyTorch's tensors, shared with CuPy."""

    def __init__(self, torch: Any, problem: Any, side: Any) -> None:
        case = self.case = problem.case
        self.torch, self.problem, self.side = torch, problem, side
        kind = torch.bfloat16 if case.dtype == "bfloat16" else None
        xs, dys = ([as_tensor(torch, a, kind) for a in arrays] for arrays in (problem.x, problem.dy))
        self.xs = [layout(case, x).requires_grad_() for x in xs]
        self.dys = [layout(case, dy) for dy in dys]
        real = getattr(torch, types(case.kind, case.dtype)[1])
        vectors = (problem.gamma, problem.beta, problem.mean, problem.var)
        # these are exact in every type: problem.gamma and the others are multiples of 1/64
        gamma, beta, *self.known = (torch.from_dlpack(a).to(real).clone() for a in vectors)
        self.affine = [gamma.requires_grad_(), beta.requires_grad_()][: 1 if case.kind == "rms_norm" else 2]

    def forward(self, eps: float) -> Callable[[Any, bool], Any]:
        f, case, affine = self.torch.nn.functional, self.case, self.affine

        def normalized(x: Any, training: bool = True) -> Any:
            if case.kind == "batch_norm":  # neither library updates running statistics here
                running = (None, None) if training else self.known
                return f.batch_norm(x, *running, *affine, training=training, eps=eps)
            if case.kind == "group_norm":
                return f.group_norm(x, case.shape[1], *affine, eps)
            norm = f.rms_norm if case.kind == "rms_norm" else f.layer_norm
            return norm(x, x.shape[-1:], *affine, eps=eps)

        return normalized


def torch_calls(problem: Any, eps: float, compiled: bool = False) -> Iterator[tuple[str, Cells]]:
    """Yield the calls of each variant of PyTorch. Arrays are shared with CuPy; for types of parameters see `types`."""
    if torch_version() is None:
        return
    import torch

    problem.cupy.cuda.get_current_stream().synchronize()
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        arrays = Arrays(torch, problem, side)
        forward = arrays.forward(eps)
    side.synchronize()
    for enabled in (False, True) if problem.case.kind == "batch_norm" else (False,):
        for graphed in (True, False):
            with cudnn(torch, enabled):
                name = "torch" + " with cuDNN" * enabled + " as a graph" * graphed
                yield name, cells(arrays, forward, graphed)
    if compiled:
        yield "torch.compile as a graph", cells(arrays, compiler(torch)(forward), True)


def compiler(torch: Any) -> Callable[[Any], Any]:
    """torch.compile, with backward passes that can be called again and again."""
    import torch._dynamo
    import torch._functorch.config as settings

    if hasattr(settings, "donated_buffer"):
        settings.donated_buffer = False
    torch._dynamo.reset()  # otherwise it would generalize over the shapes of other cases
    compiled: Callable[[Any], Any] = torch.compile
    return compiled


def cells(arrays: Arrays, forward: Callable[..., Any], graphed: bool) -> Cells:
    torch, side, xs = arrays.torch, arrays.side, arrays.xs

    def without_gradient(i: int, training: bool) -> list[Any]:
        with torch.no_grad():
            return [forward(xs[i], training)]

    ys: list[Any] = []

    def backward(i: int) -> list[Any]:
        if not ys:
            ys.extend(forward(x, True) for x in xs)
        return list(torch.autograd.grad(ys[i], [xs[i], *arrays.affine], arrays.dys[i], retain_graph=True))

    operations: dict[str, Callable[[int], list[Any]]] = {
        "forward": lambda i: without_gradient(i, True),
        "inference": lambda i: without_gradient(i, False),
        "backward": backward,
    }

    def results(call: Callable[[int], list[Any]]) -> Callable[[], list[Any]]:
        def found() -> list[Any]:
            with torch.cuda.stream(side):
                tensors = [t.detach().contiguous() for t in call(0)]
                tensors = [t.float() if t.dtype == torch.bfloat16 else t for t in tensors]
            side.synchronize()
            return [arrays.problem.cupy.from_dlpack(t) for t in tensors]

        return found

    def timed(call: Callable[[int], list[Any]]) -> Callable[[], float]:
        return lambda: seconds(torch, side, call, len(xs), graphed)

    return {name: (timed(operations[name]), results(operations[name])) for name in arrays.problem.passes}


def seconds(torch: Any, side: Any, call: Callable[[int], Any], sets: int, graphed: bool) -> float:
    """Return the median seconds of a call. `side` is the stream on which the outputs of a backward were made."""
    with torch.cuda.stream(side):
        for i in range(sets):
            call(i)
        side.synchronize()
        run: Callable[[], Any] = lambda: [call(i) for i in range(sets)]  # noqa: E731
        calls = sets
        if graphed:
            calls = sets * max(1, round(LEAST / elapsed(torch, side, run)))
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, stream=side):
                kept = [call(i % sets) for i in range(calls)]
            run = graph.replay
            run()
        samples = [elapsed(torch, side, run) / calls for _ in range(REPEATS)]
        if graphed:
            del kept
    return statistics.median(samples)


def elapsed(torch: Any, stream: Any, run: Callable[[], Any]) -> float:
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record(stream)
    run()
    end.record(stream)
    end.synchronize()
    return float(start.elapsed_time(end)) * 1e-3


def layout(case: Any, t: Any) -> Any:
    """Return the block of a case in the shape that PyTorch needs."""
    if case.kind in ("layer_norm", "rms_norm"):
        return t.reshape(case.shape[0], case.shape[2])
    if case.kind == "group_norm":
        return t.reshape(case.shape[0], case.shape[1] * case.shape[2], case.shape[3])
    return t


def as_tensor(torch: Any, array: Any, kind: Any) -> Any:
    return torch.from_dlpack(array) if kind is None else torch.from_dlpack(array.view(np.int16)).view(kind)


@contextmanager
def cudnn(torch: Any, enabled: bool) -> Iterator[None]:
    before = torch.backends.cudnn.enabled
    torch.backends.cudnn.enabled = enabled
    try:
        yield
    finally:
        torch.backends.cudnn.enabled = before
