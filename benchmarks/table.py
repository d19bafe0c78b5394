"""Write the README's table and the plot from the saved results: `python -m benchmarks.table`.

It is the only author of those numbers. With --full it prints every number of the saved results instead.
"""

import argparse
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from . import growth, targets
from .machine import Others
from .text import aligned, geometric_mean, markdown

ROOT = Path(__file__).parents[1]
RESULTS = Path(__file__).parent / "results"
BEGIN, END = "<!-- benchmark:begin -->", "<!-- benchmark:end -->"
PEERS = {"batch": "PyTorch", "rows": "PyTorch", "scaler": "scikit-learn"}  # those of the README's tables
OPERATIONS = {
    "batch": ["forward", "inference", "backward"],
    "rows": ["forward", "backward"],
    "scaler": ["fit", "partial_fit", "transform", "inverse"],
}
Row = dict[str, Any]
Results = dict[str, Any]


def save(results: Results, path: Path) -> None:
    """One line per row, so that a change of the file can be read."""
    head = {key: value for key, value in results.items() if key != "rows"}
    head["growth"] = None
    rows = ",\n".join(f"  {json.dumps(row)}" for row in results["rows"])
    text = json.dumps(head, indent=1, ensure_ascii=False)
    text = text.replace('"growth": null', f'"growth": {json.dumps(results["growth"])}')
    path.parent.mkdir(exist_ok=True)
    path.write_text(f'{text[:-2]},\n "rows": [\n{rows}\n ]\n}}\n', encoding="utf-8")


def saved() -> dict[str, Results]:
    """By the name of the file."""
    return {path.stem: json.loads(path.read_text(encoding="utf-8")) for path in sorted(RESULTS.glob("*.json"))}


def write_readme(path: Path = ROOT / "README.md") -> None:
    text = path.read_text(encoding="utf-8")
    path.write_text(replaced(text, saved()), encoding="utf-8")


def replaced(text: str, all_results: dict[str, Results]) -> str:
    """The text with what stands between the markers replaced."""
    if text.count(BEGIN) != 1 or text.count(END) != 1:
        raise ValueError(f"expected {BEGIN} and {END} once each")
    before, rest = text.split(BEGIN)
    after = rest.split(END)[1]
    middle = "\n\n".join(section(results, name) + "\n" for name, results in all_results.items())
    return f"{before}{BEGIN}\n{middle}{END}{after}"


def section(results: Results, name: str) -> str:
    """What the README shows of one machine: float32, all threads, fresh results; of the rest the means."""
    threads = max(results["threads"])
    low, middle, high = results["copy"][str(threads)]["memory"]
    lines = [
        f"{heading(results)} float32, {_count(threads, 'thread')}, fresh results: milliseconds, GB/s of the least "
        "bytes, and how many times as long the peer took, in bold where it was faster. Copying large arrays ran at "
        f"{middle:.3g} GB/s (quartiles {low:.3g} and {high:.3g}); more than that is the cache.{_disturbed(results)}",
        "",
    ]
    for group in PEERS:
        rows = [row for row in results["rows"] if _group(row) == group and row["dtype"] == "float32"]
        if table := _shapes([row for row in rows if row["threads"] == threads], group):
            lines += [*markdown(table), ""]
    lines += [f"Geometric means of all that was measured (the least in brackets): {_means(results)}.", ""]
    if (RESULTS / f"{name}.png").exists():
        lines += [f"![times as long as bnorm, by shape](benchmarks/results/{name}.png)", ""]
    return "\n".join([*lines, "[What was measured, and how](benchmarks/README.md)."])


def _group(row: Row) -> str:
    return row["kind"] if row["kind"] in PEERS else "rows"


def _shapes(rows: Sequence[Row], group: str) -> list[list[str]]:
    """A line for every shape, a column for every operation."""
    by_shape: dict[str, dict[str, Row]] = {}
    for row in rows:
        by_shape.setdefault(row["shape"], {})[row["operation"]] = row
    if not by_shape:
        return []
    operations, peer = OPERATIONS[group], PEERS[group]
    table = [["", *operations]]
    for name, those in by_shape.items():
        table.append([name, *(_cell(those[operation], peer) for operation in operations)])
    ratios = {o: [ratio(row, peer) for row in rows if row["operation"] == o and peer in row["ms"]] for o in operations}
    if all(ratios.values()):
        table.append([f"geometric mean, {peer}", *(f"{geometric_mean(ratios[o]):.2f}×" for o in operations)])
    return table


def _cell(row: Row, peer: str) -> str:
    median = row["ms"]["bnorm"][1]
    text = f"{median:.3g} ms, {row['bytes'] / median * 1e-6:.3g} GB/s"
    if peer not in row["ms"]:
        return text
    times = f"{ratio(row, peer):.2f}×"
    return f"{text}, {times if ratio(row, peer) >= 1 else f'**{times}**'}"


def _means(results: Results) -> str:
    """Of every peer, type and number of threads."""
    found = []
    for peer in results["machine"]["versions"]:
        parts = []
        for dtype in results["dtypes"]:
            for threads in results["threads"]:
                those = [row for row in results["rows"] if (row["dtype"], row["threads"]) == (dtype, threads)]
                if ratios := [ratio(row, peer) for row in those if peer in row["ms"]]:
                    mean, least = geometric_mean(ratios), min(ratios)
                    parts.append(f"{mean:.3g}× ({least:.2f}×) in {dtype} on {_count(threads, 'thread')}")
        if peer != "bnorm" and parts:
            found.append(f"{peer} {', '.join(parts)}")
    return "; ".join(found) or "no peer was there"


def heading(results: Results) -> str:
    machine = results["machine"]
    versions = ", ".join(f"{name} {version}" for name, version in machine["versions"].items())
    missing = "".join(f" {name}: {reason}." for name, reason in machine["missing"].items())
    return (
        f"{machine['processor']}, {_count(machine['cores'], 'core')}, {machine['simd']}; {versions}, "
        f"Python {machine['python']}; {machine['date']}.{missing}"
    )


def full(results: Results) -> str:
    """Every number, as plain text."""
    peers = [name for name in results["machine"]["versions"] if name != "bnorm"]
    head = ["shape", "operation", "dtype", "threads", "result", "ms", "quartiles", "GB/s", "of copy"]
    table = [[*head, *(f"× {peer}" for peer in peers), "new pages", "error"]]
    for row in results["rows"]:
        for label in ("bnorm", "bnorm out="):
            if label in row["ms"]:
                table.append(_line(row, label, peers))
    copied = [
        f"copy on {_count(int(threads), 'thread')}: {speeds['memory'][1]:.3g} GB/s in memory, quartiles "
        f"{speeds['memory'][0]:.3g} to {speeds['memory'][2]:.3g}; reading alone {speeds['read'][1]:.3g} GB/s; "
        f"copy in cache {speeds['cache'][1]:.3g} GB/s"
        for threads, speeds in results["copy"].items()
    ]
    if results["others"] is not None:
        copied.append(f"other processes used {results['others']:.2f} cores meanwhile")
    left_out = [f"left out, for want of memory: {', '.join(results['left_out'])}"] if results["left_out"] else []
    parts = [heading(results), "\n".join(copied + left_out), "\n".join(aligned(table, 5))]
    if results["growth"]:
        parts.append(growth.report(results["growth"]))
    return "\n\n".join([*parts, targets.report(results)])


def _line(row: Row, label: str, peers: Iterable[str]) -> list[str]:
    """bnorm's numbers, fresh or out=, and what the peers took over that."""
    variant = label.removeprefix("bnorm")
    low, median, high = row["ms"][label]
    speed = row["bytes"] / median * 1e-6
    return [
        row["shape"],
        row["operation"],
        row["dtype"],
        str(row["threads"]),
        variant.strip() or "fresh",
        f"{median:.4g}",
        f"{low:.4g} to {high:.4g}",
        f"{speed:.3g}",
        f"{speed / row['copy']['memory']:.2f}",
        *(f"{ratio(row, peer + variant):.2f}" if peer + variant in row["ms"] else "" for peer in peers),
        str(row["new_pages"].get(label, 0)),
        f"{row['error']['bnorm']:.1e}",
    ]


def ratio(row: Row, name: str) -> float:
    """How many times as long as bnorm, fresh against fresh, out= against out=."""
    ours = "bnorm out=" if name.endswith(" out=") else "bnorm"
    return row["ms"][name][1] / row["ms"][ours][1]


def _count(n: int, what: str) -> str:
    return f"{n} {what}{'s' * (n != 1)}"


def _disturbed(results: Results) -> str:
    busy = results["others"] or 0.0
    return f" Other processes used {busy:.2g} cores meanwhile." if busy > Others.QUIET else ""


if __name__ == "__main__":
    from . import plot

    parser = argparse.ArgumentParser(prog="python -m benchmarks.table", description=__doc__)
    parser.add_argument("--full", action="store_true", help="print every number, and write nothing")
    if parser.parse_args().full:
        print("\n\n".join(map(full, saved().values())))
    else:
        plot.draw_all(saved(), RESULTS)
        write_readme()
