"""PyTorch's normalizations on the arrays of a case: with cuDNN and without, as a CUDA graph and call by call."""

import statistics
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

REPEATS = 9
LEAST = 2e-3  # seconds of a graph
Cells = dict[str, tuple[Callable[[], float], Callable[[], list[Any]]]]  # how to time an operation; its results


def torch_version() -> str | None:
    """None where there is no PyTorch with CUDA."""
    try:
        import torch
    except ImportError:
        return None
    return f"{torch.__version__}, CUDA {torch.version.cuda}" if torch.cuda.is_available() else None


def torch_calls(problem: Any, eps: float) -> Iterator[tuple[str, Cells]]:
    """By library. The arrays are CuPy's, shared; parameters are float32 but for float64."""
    if torch_version() is None:
        return
    import torch

    problem.cupy.cuda.get_current_stream().synchronize()
    kind = torch.bfloat16 if problem.case.dtype == "bfloat16" else None
    xs, dys = ([as_tensor(torch, a, kind) for a in arrays] for arrays in (problem.x, problem.dy))
    xs = [layout(problem.case, x).requires_grad_() for x in xs]
    dys = [layout(problem.case, dy) for dy in dys]
    real = torch.float64 if problem.case.dtype == "float64" else torch.float32
    vectors = problem.gamma, problem.beta, problem.mean, problem.var
    gamma, beta, mean, var = (torch.from_dlpack(a).to(real).clone() for a in vectors)
    affine = [gamma.requires_grad_(), beta.requires_grad_()]
    if problem.case.kind != "batch_norm" and problem.case.dtype in ("float16", "bfloat16"):
        affine = [a.detach().to(xs[0].dtype).requires_grad_() for a in affine]  # which these ask for
    if problem.case.kind == "rms_norm":
        affine = affine[:1]

    def forward(x: Any, training: bool = True) -> Any:
        f, case = torch.nn.functional, problem.case
        if case.kind == "batch_norm":
            running = (mean, var) if not training else (mean.clone(), var.clone())
            return f.batch_norm(x, *running, *affine, training=training, eps=eps)
        if case.kind == "group_norm":
            return f.group_norm(x, case.shape[1], *affine, eps)
        norm = f.rms_norm if case.kind == "rms_norm" else f.layer_norm
        return norm(x, x.shape[-1:], *affine, eps=eps)

    for enabled in (False, True) if problem.case.kind == "batch_norm" else (False,):
        for graphed in (True, False):
            with cudnn(torch, enabled):
                name = "torch" + " with cuDNN" * enabled + " as a graph" * graphed
                yield name, cells(torch, problem, forward, affine, xs, dys, graphed)


def cells(torch: Any, problem: Any, forward: Any, affine: list[Any], xs: Any, dys: Any, graphed: bool) -> Cells:
    def without_gradient(i: int, training: bool) -> Any:
        with torch.no_grad():
            return forward(xs[i], training)

    ys: list[Any] = []

    def backward(i: int) -> Any:
        if not ys:
            ys.extend(forward(x) for x in xs)
        return torch.autograd.grad(ys[i], [xs[i], *affine], dys[i], retain_graph=True)

    operations: dict[str, Callable[[int], Any]] = {
        "forward": lambda i: [without_gradient(i, True)],
        "inference": lambda i: [without_gradient(i, False)],
        "backward": lambda i: list(backward(i)),
    }

    def results(call: Callable[[int], Any]) -> Callable[[], list[Any]]:
        def found() -> list[Any]:
            tensors = [t.detach().contiguous() for t in call(0)]
            torch.cuda.synchronize()
            return [problem.cupy.from_dlpack(t.float() if t.dtype == torch.bfloat16 else t) for t in tensors]

        return found

    def timed(call: Callable[[int], Any]) -> Callable[[], float]:
        return lambda: seconds(torch, call, len(xs), graphed)

    return {name: (timed(operations[name]), results(operations[name])) for name in problem.passes}


def seconds(torch: Any, call: Callable[[int], Any], sets: int, graphed: bool) -> float:
    """Per call, the median."""
    side = torch.cuda.Stream()
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
    """The block of a case as PyTorch wants it."""
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
