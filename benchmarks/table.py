"""Write the tables of docs/performance.md and benchmarks/README.md, and the plots: `python -m benchmarks.table`.

Nothing else writes those numbers. With --full it prints every number of the saved results instead.
"""

import argparse
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from textwrap import fill

from . import growth, plot, targets, types
from .machine import Others
from .store import PEERS, RESULTS, SUMMARY, Results, Row, count, group_of, ratio, saved
from .text import aligned, between, geometric_mean, markdown

ROOT = Path(__file__).parents[1]
OPERATIONS = {
    "batch": ["forward", "inference", "backward"],
    "rows": ["forward", "backward"],
    "scaler": ["fit", "partial_fit", "transform", "inverse"],
}
Section = Callable[[Results, str], str]


def write_pages() -> None:
    """Write the summary into docs/performance.md, and every shape into benchmarks/README.md."""
    for path, section in PAGES.items():
        path.write_text(replaced(path.read_text(encoding="utf-8"), saved(), section), encoding="utf-8")


def replaced(text: str, all_results: dict[str, Results], section: Section) -> str:
    """Return the text with a section for every machine between the markers."""
    return between(text, "benchmark", "\n\n".join(section(results, name) for name, results in all_results.items()))


def summary(results: Results, name: str = "") -> str:
    """Return the summary of one machine: the means, fresh and `out=`, and every case in which a peer was faster."""
    threads = max(results["threads"])
    kinds = [(dtype, variant) for dtype in results["dtypes"] for variant in ("", " out=")]
    table = [["", *(f"{dtype}, {'`out=`' if variant else 'fresh'}" for dtype, variant in kinds)]]
    losses = []
    for what, (group, operation) in SUMMARY.items():
        rows = [row for row in results["rows"] if (group_of(row), row["operation"]) == (group, operation)]
        line = [f"{what}, × {PEERS[group]}"]
        for dtype, variant in kinds:
            those = [row for row in rows if (row["dtype"], row["threads"]) == (dtype, threads)]
            found = {_case(row, variant): ratio(row, PEERS[group] + variant) for row in those if _has(row, variant)}
            line.append(_mean_and_least(found.values()))
            losses += [f"{case} **{times:.2f}**" for case, times in found.items() if times < 1]
        if any(line[1:]):
            table.append(line)
    lines = [
        f"**{heading(results)}** {count(threads, 'thread')}: how many times as long the peer took, as the geometric "
        f"mean over all shapes, with the least in brackets.{_disturbed(results)}",
        "",
        *markdown(table),
        "",
        f"The peer was faster here: {'; '.join(losses)}." if losses else "The peer was faster nowhere.",
        "",
        f"Of everything that was measured: {_means(results)}.",
        "",
    ]
    if results.get("types"):
        lines += [
            f"What other types and weights cost, {types.SHAPE}, in times of what float32 takes:",
            "",
            *markdown(types.lines(results["types"])),
            "",
        ]
    return "\n".join(lines)


def by_shape(results: Results, name: str) -> str:
    """Return the results of every shape on one machine, in float32 on all threads."""
    threads = max(results["threads"])
    low, middle, high = results["copy"][str(threads)]["memory"]
    lines = [
        f"**{heading(results)}** float32, {count(threads, 'thread')}: milliseconds and GB/s of the least bytes with "
        "fresh results, then how many times as long the peer took, with fresh results and with `out=`, in bold where "
        f"it was faster. Copying large arrays ran at {middle:.3g} GB/s (quartiles {low:.3g} and {high:.3g}); more than "
        f"that is the cache.{_disturbed(results)}",
        "",
    ]
    for group in PEERS:
        rows = [row for row in results["rows"] if group_of(row) == group and row["dtype"] == "float32"]
        if table := _shapes([row for row in rows if row["threads"] == threads], group):
            lines += [*markdown(table), ""]
    if (RESULTS / f"{name}.png").exists():
        lines += [f"![times as long as bnorm, by shape, and the growth of cost](results/{name}.png)", ""]
    return "\n".join(lines)


def _case(row: Row, variant: str) -> str:
    return f"{row['shape']} {row['operation']} {row['dtype']}{' `out=`' if variant else ''}"


def _has(row: Row, variant: str) -> bool:
    """Whether this variant of bnorm and of the peer of the tables were both measured."""
    return f"bnorm{variant}" in row["ms"] and PEERS[group_of(row)] + variant in row["ms"]


def _mean_and_least(ratios: Iterable[float]) -> str:
    found = list(ratios)
    if not found:
        return ""
    least = f"{min(found):.2f}"
    return f"{geometric_mean(found):.2f} ({least if min(found) >= 1 else f'**{least}**'})"


def _shapes(rows: Sequence[Row], group: str) -> list[list[str]]:
    """Return a line for every shape, with a column for every operation."""
    lines: dict[str, dict[str, Row]] = {}
    for row in rows:
        lines.setdefault(row["shape"], {})[row["operation"]] = row
    if not lines:
        return []
    operations, peer = OPERATIONS[group], PEERS[group]
    table = [["", *operations]]
    for name, those in lines.items():
        table.append([name, *(_cell(those[operation], peer) for operation in operations)])
    means = []
    for operation in operations:
        those = [row for row in rows if row["operation"] == operation]
        means.append(
            " / ".join(
                f"{geometric_mean(ratio(row, peer + variant) for row in found):.2f}×"
                for variant in ("", " out=")
                if (found := [row for row in those if _has(row, variant)])
            )
        )
    return [*table, [f"geometric mean, {peer}", *means]] if any(means) else table


def _cell(row: Row, peer: str) -> str:
    median = row["ms"]["bnorm"][1]
    text = f"{median:.3g} ms, {row['bytes'] / median * 1e-6:.3g} GB/s"
    times = [f"{ratio(row, peer + variant):.2f}×" for variant in ("", " out=") if _has(row, variant)]
    bold = [each if float(each[:-1]) >= 1 else f"**{each}**" for each in times]
    return f"{text}, {' / '.join(bold)}" if bold else text


def _means(results: Results) -> str:
    """Return the mean and the least ratio for every peer, type and number of threads."""
    found = []
    for peer in results["machine"]["versions"]:
        parts = []
        for dtype in results["dtypes"]:
            for threads in results["threads"]:
                those = [row for row in results["rows"] if (row["dtype"], row["threads"]) == (dtype, threads)]
                if ratios := [ratio(row, peer) for row in those if peer in row["ms"]]:
                    mean, least = geometric_mean(ratios), min(ratios)
                    parts.append(f"{mean:.3g}× ({least:.2f}×) in {dtype} on {count(threads, 'thread')}")
        if peer != "bnorm" and parts:
            found.append(f"{peer} {', '.join(parts)}")
    return "; ".join(found) or "no peer was there"


def brief(results: Results) -> str:
    """Return what --quick prints: at most 100 columns, fresh results, and how often each library was faster."""
    peers = [name for name in results["machine"]["versions"] if name != "bnorm"]
    parts = [fill(heading(results), 100)]
    for kinds in (("batch", "rows"), ("scaler",)):
        rows = [row for row in results["rows"] if group_of(row) in kinds]
        there = [peer for peer in peers if any(peer in row["ms"] for row in rows)]
        table = [["shape", "operation", "ms", "GB/s", *(f"× {peer}" for peer in there)]]
        for row in rows:
            times = [f"{ratio(row, peer):.2f}" if peer in row["ms"] else "" for peer in there]
            median = row["ms"]["bnorm"][1]
            speed = f"{row['bytes'] / median * 1e-6:.3g}"
            table.append(
                [row["shape"].replace(" channels last", ", last"), row["operation"], f"{median:.3g}", speed, *times]
            )
        if rows:
            parts.append("\n".join(aligned(table, 2)))
    parts.append(
        fill("ms: one call of bnorm. × a library: how many times as long it took; below 1 it was faster.", 100)
    )
    for peer in peers:
        found = {_case(row, ""): ratio(row, peer) for row in results["rows"] if peer in row["ms"]}
        faster, worst = sum(times >= 1 for times in found.values()), min(found, key=found.__getitem__, default="")
        if found:
            parts.append(
                fill(
                    f"{peer}: bnorm was faster in {faster} of {count(len(found), 'case')}, "
                    f"{geometric_mean(found.values()):.3g} times in the mean, at least {found[worst]:.2f} ({worst}).",
                    100,
                )
            )
    return "\n\n".join(parts)


def heading(results: Results) -> str:
    machine = results["machine"]
    versions = ", ".join(f"{name} {version}" for name, version in machine["versions"].items())
    missing = "".join(f" {name}: {reason}." for name, reason in machine["missing"].items())
    return (
        f"{machine['processor']}, {count(machine['cores'], 'core')}, {machine['simd']}; {versions}, "
        f"Python {machine['python']}; {machine['date']}.{missing}"
    )


def full(results: Results) -> str:
    """Return every number as plain text."""
    peers = [name for name in results["machine"]["versions"] if name != "bnorm"]
    head = ["shape", "operation", "dtype", "threads", "result", "ms", "quartiles", "GB/s", "of copy"]
    table = [[*head, *(f"× {peer}" for peer in peers), "new pages", "error"]]
    for row in results["rows"]:
        for label in ("bnorm", "bnorm out="):
            if label in row["ms"]:
                table.append(_line(row, label, peers))
    copied = [
        f"copy on {count(int(threads), 'thread')}: {speeds['memory'][1]:.3g} GB/s in memory, quartiles "
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
    """Return bnorm's numbers, fresh or out=, and the ratios of the peers' times to them."""
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


def _disturbed(results: Results) -> str:
    busy = results["others"] or 0.0
    return f" Other processes used {busy:.2g} cores meanwhile." if busy > Others.QUIET else ""


PAGES: dict[Path, Section] = {ROOT / "docs" / "performance.md": summary, ROOT / "benchmarks" / "README.md": by_shape}

if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m benchmarks.table", description=__doc__)
    parser.add_argument("--full", action="store_true", help="print every number, and write nothing")
    if parser.parse_args().full:
        print("\n\n".join(map(full, saved().values())))
    else:
        plot.draw_all(saved(), RESULTS)
        write_pages()
