"""Write the README's table from the saved results: `python -m benchmarks.table`.

It is the only author of those numbers. With --full it prints every number of the saved results instead.
"""

import argparse
import json
from collections.abc import Iterable, Mapping, Sequence
from math import exp, log
from pathlib import Path
from typing import Any

from .machine import Others
from .shapes import OPERATIONS

ROOT = Path(__file__).parents[1]
RESULTS = Path(__file__).parent / "results"
BEGIN, END = "<!-- benchmark:begin -->", "<!-- benchmark:end -->"
PEER = "PyTorch"
Row = dict[str, Any]
Results = dict[str, Any]


def save(results: Results, path: Path) -> None:
    """One line per row, so that a change of the file can be read."""
    head = {key: value for key, value in results.items() if key != "rows"}
    rows = ",\n".join(f"  {json.dumps(row)}" for row in results["rows"])
    path.parent.mkdir(exist_ok=True)
    path.write_text(f'{json.dumps(head, indent=1)[:-2]},\n "rows": [\n{rows}\n ]\n}}\n', encoding="utf-8")


def saved() -> list[Results]:
    return [json.loads(path.read_text(encoding="utf-8")) for path in sorted(RESULTS.glob("*.json"))]


def write_readme(path: Path = ROOT / "README.md") -> None:
    text = path.read_text(encoding="utf-8")
    path.write_text(replaced(text, saved()), encoding="utf-8")


def replaced(text: str, all_results: Sequence[Results]) -> str:
    """The text with what stands between the markers replaced."""
    if text.count(BEGIN) != 1 or text.count(END) != 1:
        raise ValueError(f"expected {BEGIN} and {END} once each")
    before, rest = text.split(BEGIN)
    after = rest.split(END)[1]
    middle = "\n\n".join(section(results) + "\n" for results in all_results)
    return f"{before}{BEGIN}\n{middle}{END}{after}"


def section(results: Results) -> str:
    """What the README shows of one machine: fresh results, every shape that was measured."""
    table = [["", *OPERATIONS]]
    by_shape = shapes(results["rows"])
    for name, rows in by_shape.items():
        table.append([name, *(_cell(rows[operation]) for operation in OPERATIONS)])
    if PEER in results["machine"]["versions"]:
        table.append(["geometric mean", *(f"{_mean(results, operation, PEER):.2f}×" for operation in OPERATIONS)])
    low, high = results["copy_gb_s"][0], results["copy_gb_s"][2]
    lines = [
        f"{heading(results)} Milliseconds, GB/s of the least bytes, and how many times as long {PEER} took, in bold "
        f"where it was faster; fresh results. Copying large arrays ran at {results['copy_gb_s'][1]:.3g} GB/s "
        f"(quartiles {low:.3g} and {high:.3g}); more than that is the cache.{_disturbed(results)}",
        "",
        *markdown(table),
        "",
        f"Into memory of the caller's (`out=`), geometric means over {PEER}'s own `out=`: {_means(results, ' out=')}. "
        f"Over the same formulas in NumPy: {_means(results, '', 'NumPy')}. "
        "[What was measured, and how](benchmarks/README.md).",
    ]
    return "\n".join(lines)


def heading(results: Results) -> str:
    machine = results["machine"]
    versions = ", ".join(f"{name} {version}" for name, version in machine["versions"].items())
    missing = f" Not installed: {', '.join(machine['missing'])}." if machine["missing"] else ""
    threads = results["threads"]
    return (
        f"{machine['processor']}, {machine['cores']} cores, {threads} thread{'s' * (threads > 1)}, {machine['simd']}, "
        f"{results['dtype']}; {versions}, Python {machine['python']}; {machine['date']}.{missing}"
    )


def full(results: Results) -> str:
    """Every number, as plain text."""
    copy = results["copy_gb_s"]
    names = list(dict.fromkeys(name for row in results["rows"] for name in row["ms"]))
    table = [
        ["shape", "operation", "library", "ms", "quartiles", "GB/s", "of copy", "× bnorm's time", "new pages", "error"]
    ]
    for row in results["rows"]:
        for name in names:
            if name in row["ms"]:
                low, median, high = row["ms"][name]
                speed = row["bytes"] / median * 1e-6
                table.append(
                    [
                        row["shape"],
                        row["operation"],
                        name,
                        f"{median:.4g}",
                        f"{low:.4g} to {high:.4g}",
                        f"{speed:.3g}",
                        f"{speed / copy[1]:.2f}",
                        f"{ratio(row, name):.2f}",
                        str(row["new_pages"][name]),
                        f"{row['error'][name]:.1e}",
                    ]
                )
    means = [
        f"geometric means, {peer}{variant} over bnorm{variant}: {_means(results, variant, peer)}"
        for peer in results["machine"]["versions"]
        if peer != "bnorm"
        for variant in ("", " out=")
    ]
    copied = f"copy: {copy[1]:.3g} GB/s, quartiles {copy[0]:.3g} to {copy[2]:.3g}"
    if results["others"] is not None:
        copied += f"; other processes used {results['others']:.2f} cores meanwhile"
    return "\n".join([heading(results), copied, "", *aligned(table), "", *means])


def ratio(row: Row, name: str) -> float:
    """How many times as long as bnorm, fresh against fresh, out= against out=."""
    ours = "bnorm out=" if name.endswith(" out=") else "bnorm"
    return row["ms"][name][1] / row["ms"][ours][1]


def shapes(rows: Iterable[Row]) -> dict[str, dict[str, Row]]:
    by_shape: dict[str, dict[str, Row]] = {}
    for row in rows:
        by_shape.setdefault(row["shape"], {})[row["operation"]] = row
    return by_shape


def markdown(table: Sequence[Sequence[str]]) -> list[str]:
    rows = [f"| {' | '.join(row)} |" for row in table]
    return [rows[0], f"| --- {'| ---: ' * (len(table[0]) - 1)}|", *rows[1:]]


def aligned(table: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    left = 3  # columns of words
    return [
        "  ".join(
            cell.ljust(width) if i < left else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in table
    ]


def _disturbed(results: Results) -> str:
    busy = results["others"] or 0.0
    return f" Other processes used {busy:.2g} cores meanwhile." if busy > Others.QUIET else ""


def _cell(row: Mapping[str, Any]) -> str:
    median = row["ms"]["bnorm"][1]
    text = f"{median:.3g} ms, {row['bytes'] / median * 1e-6:.3g} GB/s"
    if PEER not in row["ms"]:
        return text
    times = f"{ratio(row, PEER):.2f}×"
    return f"{text}, {times if ratio(row, PEER) >= 1 else f'**{times}**'}"


def _mean(results: Results, operation: str, name: str) -> float:
    """The geometric mean over all shapes; NaN where the library has no such call."""
    logs = [log(ratio(row, name)) for row in results["rows"] if row["operation"] == operation and name in row["ms"]]
    return exp(sum(logs) / len(logs)) if logs else float("nan")


def _means(results: Results, variant: str = "", peer: str = PEER) -> str:
    means = {operation: _mean(results, operation, peer + variant) for operation in OPERATIONS}
    known = [f"{operation} {mean:.2f}×" for operation, mean in means.items() if mean == mean]
    return ", ".join(known) or "not measured"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m benchmarks.table", description=__doc__)
    parser.add_argument("--full", action="store_true", help="print every number, and write nothing")
    if parser.parse_args().full:
        print("\n\n".join(map(full, saved())))
    else:
        write_readme()
