"""Data sets: dataset_moments beside running sums in PyTorch, bnorm.xarray beside xarray's own weighted statistics, and
moments with extremes beside NumPy.

    python -m benchmarks.datasets [--quick] [--save]

--save writes the table of docs/datasets.md. The results are compared first. Peak memory is that of the largest arrays
at one time, as tracemalloc sees NumPy's.
"""

import argparse
import io
import tracemalloc
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

import numpy as np

import bnorm
from bnorm import functional as F

from . import machine, page
from .text import aligned
from .timing import best

EXTREMES: list[tuple[tuple[int, ...], Any, str]] = [
    ((1_000_000, 32), 1, "float32"),
    ((1_000_000, 32), 1, "float64"),
    ((32, 64, 112, 112), 1, "float32"),
    ((32, 224, 224, 3), 3, "uint8"),
    ((100, 181, 360), (1, 2), "float32"),
    ((64, 50, 37, 16), (1, 3), "float32"),
]


def peak(call: Callable[[], Any]) -> float:
    """Return the peak memory of a call in bytes."""
    tracemalloc.start()
    call()
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return most


def running_sums(images: list[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Mean and standard deviation as they are often computed."""
    import torch

    n, s, q = 0, torch.zeros(3, dtype=torch.float64), torch.zeros(3, dtype=torch.float64)
    for image in images:
        x = torch.from_numpy(image).float() / 255
        n += x[0].numel()
        s += x.sum(dim=(1, 2))
        q += (x**2).sum(dim=(1, 2))
    mean = s / n
    return mean.numpy(), (q / n - mean**2).sqrt().numpy()


def of_images(quick: bool) -> list[list[str]]:
    rng = np.random.default_rng(0)
    images = list(rng.integers(0, 255, (200 if quick else 2000, 3, 224, 224), dtype=np.uint8))
    rows = []

    def ours(workers: int = 1) -> Any:
        return bnorm.dataset_moments(images, axis=0, workers=workers).scaled(1 / 255)

    mine = best(ours, 3)
    rows.append(["decoded images, bnorm", f"{mine * 1e3:.0f} ms", ""])
    if find_spec("torch"):
        mean, std = running_sums(images)
        m = ours()
        if not (np.allclose(m.mean, mean, rtol=1e-5) and np.allclose(m.std(), std, rtol=1e-4)):
            raise SystemExit(f"the results differ: {m.mean}, {mean}, {m.std()}, {std}")
        theirs = best(lambda: running_sums(images), 2)
        rows.append(["decoded images, torch's sums", f"{theirs * 1e3:.0f} ms", f"{theirs / mine:.1f} times"])
    if find_spec("PIL"):
        from PIL import Image

        files = []
        for image in images[:100]:
            smooth = np.asarray(Image.fromarray(image[:, ::16, ::16].transpose(1, 2, 0)).resize((224, 224)))
            Image.fromarray(smooth).save(file := io.BytesIO(), "JPEG", quality=90)
            files.append(file.getvalue())

        def decode(data: bytes) -> np.ndarray:
            return np.asarray(Image.open(io.BytesIO(data)))

        alone = best(lambda: [decode(data) for data in files], 3)
        jobs = [lambda data=data: decode(data) for data in files]
        rows.append(["100 JPEGs, only decoded", f"{alone * 1e3:.0f} ms", ""])
        for workers in (1, 2):
            taken = best(lambda n=workers: bnorm.dataset_moments(jobs, axis=2, workers=n), 3)
            name = f"100 JPEGs, bnorm, {workers} worker{'s' * (workers > 1)}"
            rows.append([name, f"{taken * 1e3:.0f} ms", f"{taken / alone:.2f} of the decoding"])
    return rows


def of_fields(quick: bool) -> list[list[str]]:
    if not find_spec("xarray"):
        return []
    import xarray as xr

    from bnorm.xarray import moments

    shape = (100 if quick else 1000, 181, 360)
    values = np.random.default_rng(0).standard_normal(shape, dtype=np.float32) * 20 + 280
    x = xr.DataArray(values, dims=("time", "lat", "lon"), coords={"lat": np.linspace(-90, 90, 181)})
    weight = np.cos(np.deg2rad(x.lat)).clip(0)
    rows = []
    for dims in (("time", "lat", "lon"), ("lat", "lon"), ("time",)):
        w = weight if "lat" in dims else xr.ones_like(weight)

        def ours(dims: Any = dims, w: Any = w) -> Any:
            return moments(x, dims, w if "lat" in dims else None)

        def theirs(dims: Any = dims, w: Any = w) -> Any:
            weighted = x.weighted(w)
            return weighted.mean(dims), weighted.var(dims)

        stats, (mean, var) = ours(), theirs()
        if not (np.allclose(stats["mean"], mean, rtol=1e-4) and np.allclose(stats["var"], var, rtol=1e-2)):
            raise SystemExit(f"the results differ over {dims}")
        a, b, less, more = best(ours, 3), best(theirs, 1), peak(ours), peak(theirs)
        rows.append(
            [
                f"{shape} over {' '.join(dims)}, bnorm",
                f"{a * 1e3:.0f} ms, {less / x.nbytes:.2f} of the data in memory",
                "",
            ]
        )
        rows.append(["... xarray's", f"{b * 1e3:.0f} ms, {more / x.nbytes:.2f}", f"{b / a:.1f} times"])
    return rows


def of_extremes(quick: bool) -> list[list[str]]:
    """Moments with extremes, beside those without and beside NumPy's minimum, maximum, mean and variance."""
    rng, rows = np.random.default_rng(0), []
    for shape, axis, dtype in EXTREMES:
        shape = (shape[0] // (10 if quick else 1), *shape[1:])
        x = (rng.standard_normal(shape, dtype=np.float32) * 20 + 100).astype(dtype)
        others = tuple(other for other in range(x.ndim) if other not in (axis if isinstance(axis, tuple) else (axis,)))

        def ours(x: Any = x, axis: Any = axis, minmax: bool = True) -> Any:
            return F.moments(x, axis=axis, minmax=minmax)

        def theirs(x: Any = x, others: Any = others) -> Any:
            return x.min(others), x.max(others), x.mean(others), x.var(others)

        found, (low, high, _, _) = ours(), theirs()
        if not ((found.min == low).all() and (found.max == high).all()):
            raise SystemExit(f"the extremes of {shape} {dtype} differ")
        taken, plain, numpy = best(ours, 5), best(lambda call=ours: call(minmax=False), 5), best(theirs, 2)
        name = f"{shape} {dtype} along {axis}, with extremes"
        rows.append([name, f"{x.nbytes / taken / 1e9:.3g} GB/s", f"{taken / plain:.2f} of the time without"])
        rows.append(["... NumPy's", f"{x.nbytes / numpy / 1e9:.3g} GB/s", f"{numpy / taken:.1f} times"])
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.datasets", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a tenth of the data")
    parser.add_argument("--save", action="store_true", help="into docs/datasets.md")
    options = parser.parse_args()
    others = machine.Others()
    rows = [*of_images(options.quick), *of_fields(options.quick), *of_extremes(options.quick)]
    print("\n".join(aligned(rows, 1)))
    if options.save:
        what = f"{'A tenth of the data' if options.quick else 'All of the data'}, {bnorm.get_num_threads()} threads"
        page.save("datasets.md", "datasets", [["what", "found", "compared"], *rows], what, others.cores())


if __name__ == "__main__":
    main()
