"""`python -m benchmarks.gpu_page`: write what was measured on GPUs, the files in results/gpu/, into docs/gpu.md.

docs/gpu.md gets a summary of each device; a page beside each file has all its cases.
"""

import json
from collections.abc import Iterator
from math import prod
from pathlib import Path
from typing import Any

from bnorm.kernels.gpu.shapes import ITEMSIZE

from .gpu_summary import measured
from .options import parser
from .page import DOCS
from .store import RESULTS
from .text import between, geometric_mean, markdown

FOLDER = RESULTS / "gpu"
PAGE = DOCS / "gpu.md"
LARGE = 1 << 26  # bytes of an array that is in no cache
NAMES = {"batch_norm": "batch norm", "layer_norm": "layer and RMS norm", "rms_norm": "layer and RMS norm"}
Case = dict[str, Any]


def cases(results: Case) -> Iterator[tuple[str, str, Case]]:
    """Yield for every case and operation its line of the summary, its own name, and what was measured."""
    for row in results["rows"]:
        large = prod(row["shape"]) * ITEMSIZE[row["dtype"]] >= LARGE
        name = NAMES.get(row["kind"], row["kind"].replace("_", " "))
        for operation, cells in row.get("operations", {}).items():
            group = f"{name}, {operation}{'' if large else ', less than 64 MB'}"
            yield group, f"{'x'.join(map(str, row['shape']))} {row['dtype']} {operation}", cells


def over_graphs(cells: Case) -> float | None:
    """Return how many times as long the faster of PyTorch's graphs takes, if one was timed."""
    graphs = [cells[key] for key in ("torch as a graph", "torch with cuDNN as a graph") if key in cells]
    times = [took for took in graphs if not isinstance(took, str)]
    return min(times) / cells["bnorm"] if times else None


def mean_and_least(values: list[float]) -> str:
    return f"{geometric_mean(values):.2f} ({min(values):.2f})" if values else ""


def summary(results: Case, name: str) -> list[str]:
    """Return a line for each kind of call: geometric means, with the least in brackets; and where PyTorch is faster."""
    groups: dict[str, list[Case]] = {}
    losses = []
    for group, case, cells in cases(results):
        groups.setdefault(group, []).append(cells)
        over = over_graphs(cells)
        losses += [f"{case} {over:.2f}"] if over and over < 1 else []
    table = [["", "cases", "of a copy", "PyTorch's graph, times as long"]]
    for group, found in sorted(groups.items()):
        over_torch = [over for cells in found if (over := over_graphs(cells))]
        copies = [cells["of copy"] for cells in found]
        table.append([group, str(len(found)), mean_and_least(copies), mean_and_least(over_torch)])
    versions = ", ".join(f"{library} {text}" for library, text in results["versions"].items())
    return [
        f"**{results['device']}** ({versions}): geometric means, with the least in brackets.",
        "",
        *markdown(table),
        "",
        f"PyTorch's graph is faster in {len(losses)} of {sum(map(len, groups.values()))}: {'; '.join(losses)}.",
        f"`benchmarks/results/gpu/{name}.md` has every case.",
        "",
    ]


def every_case(results: Case) -> str:
    """Return the page of a device."""
    rows = [row for row in results["rows"] if "operations" in row]
    return "\n".join([f"# {results['device']}", "", "Written by `python -m benchmarks.gpu_page`.", "", *measured(rows)])


def written(folder: Path = FOLDER, page: Path = PAGE) -> dict[Path, str]:
    """Return pages and their texts: docs/gpu.md with a summary of each file in the folder, and a page of each file."""
    found = {path: json.loads(path.read_text(encoding="utf-8")) for path in sorted(folder.glob("*.json"))}
    lines = [line for path, results in found.items() for line in summary(results, path.stem)]
    text = between(page.read_text(encoding="utf-8"), "measured", "\n".join(["", *lines]))
    return {page: text} | {path.with_suffix(".md"): every_case(results) for path, results in found.items()}


if __name__ == "__main__":
    parser("gpu_page", __doc__).parse_args()
    for path, text in written().items():
        path.write_text(text, encoding="utf-8")
