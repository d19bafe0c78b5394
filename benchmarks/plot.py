"""The README's picture, ratios.png, and one PNG per machine: the ratios by shape, the growth of cost. matplotlib's."""

from collections.abc import Mapping, Sequence
from io import BytesIO
from pathlib import Path
from typing import Any

from . import table
from .text import geometric_mean

Row = dict[str, Any]
Results = dict[str, Any]
MARKS = dict(forward="o", inference="s", backward="v", fit="o", partial_fit="D", transform="s", inverse="v")
COLOURS = {
    "NumPy": "gray",
    "PyTorch": "tab:red",
    "torch.compile": "tab:pink",
    "scikit-learn": "tab:blue",
    "sklearnex": "tab:cyan",
    "River": "tab:green",
    "JAX": "tab:orange",
}


def draw_all(all_results: Mapping[str, Results], folder: Path) -> None:
    try:
        import matplotlib
    except ImportError:
        print("no plot: matplotlib is not installed")
        return
    with matplotlib.rc_context({"backend": "agg", "font.size": 8}):
        for name, results in all_results.items():
            draw(results, folder / f"{name}.png")
        if all_results:
            draw_summary(list(all_results.values()), folder / "ratios.png")


def draw_summary(machines: Sequence[Results], path: Path) -> None:
    """A bar for every line of the README's table and every machine: the mean, and from the worst to the best shape."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 1.1 + 0.27 * len(table.SUMMARY) * len(machines)), layout="constrained")
    axes = figure.subplots()
    high, ticks = 0.8 / len(machines), []
    for i, (what, (group, operation)) in enumerate(table.SUMMARY.items()):
        peer = table.PEERS[group]
        ticks.append(f"{what.replace('`', '')}\n{peer}")
        for k, results in enumerate(machines):
            most = max(results["threads"])
            ratios = [
                table.ratio(row, peer)
                for row in results["rows"]
                if table.in_group(row, group) and row["operation"] == operation and peer in row["ms"]
                if (row["dtype"], row["threads"]) == ("float32", most)
            ]
            if not ratios:
                continue
            mean, y = geometric_mean(ratios), i + (k - (len(machines) - 1) / 2) * high
            axes.barh(y, mean - 1, high * 0.9, left=1, color=f"C{k}", label=_once(axes, table.short(results)))
            axes.plot([min(ratios), max(ratios)], [y, y], color="black", lw=1, marker="|", ms=5)
            edge = ("axes fraction", "data")
            axes.annotate(f"{mean:.1f}×", (0, y), (4, 0), xycoords=edge, textcoords="offset points", va="center")
    axes.set(xscale="log", xlabel="times as long as bnorm: bar the mean over all shapes, line from worst to best")
    axes.set_yticks(range(len(ticks)), ticks)
    axes.invert_yaxis()
    axes.set_xlim(left=min(0.3, 0.6 * axes.get_xlim()[0]))
    axes.xaxis.set_major_formatter("{x:g}×")
    axes.axvline(1, color="black", lw=1)
    axes.grid(axis="x", alpha=0.3)
    axes.set_axisbelow(True)
    axes.legend(loc="lower right")
    axes.set_title("How long PyTorch and scikit-learn take, float32, all threads. Left of 1: they are faster")
    _write(figure, path)


def _once(axes: Any, label: str) -> str | None:
    """The label, if the legend has none like it yet."""
    return None if label in axes.get_legend_handles_labels()[1] else label


def draw(results: Results, path: Path) -> None:
    from matplotlib.figure import Figure

    most = max(results["threads"])
    rows = [row for row in results["rows"] if row["threads"] == most and row["dtype"] == "float32"]
    names = list(dict.fromkeys(row["shape"] for row in rows))
    curves = (results["growth"] or {}).get("curves", {})
    size = 6 + 3 * len(curves), 2 + 0.2 * len(names)
    figure = Figure(figsize=size, layout="constrained")
    panels = figure.subplots(1, 1 + len(curves), width_ratios=[2] + [1] * len(curves), squeeze=False)[0]
    panels[0].set_title(f"float32, {most} threads, fresh results")
    _ratios(panels[0], rows, names)
    for axes, (axis, curve) in zip(panels[1:], curves.items(), strict=True):
        for operation in curve[0][1]:
            points = [n for n, _ in curve], [ms[operation] for _, ms in curve]
            axes.loglog(*points, marker=MARKS[operation], ms=3, lw=1, label=operation)
        axes.set(xlabel=axis, ylabel="ms", title=f"{'C = 32' if axis == 'N' else 'N = 1024'}, out=")
        axes.grid(alpha=0.3)
        axes.legend()
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper left", ncols=6)
    _write(figure, path)


def _write(figure: Any, path: Path) -> None:
    from PIL import Image

    drawn = BytesIO()
    figure.savefig(drawn, dpi=100)
    Image.open(drawn).convert("RGB").quantize(64).save(path, optimize=True)  # a fifth of the size


def _ratios(axes: Any, rows: Sequence[Row], names: Sequence[str]) -> None:
    """A line for every shape, a colour for every peer, a mark for every operation. Right of 1 the peer took longer."""
    place = {name: -i for i, name in enumerate(names)}
    for peer, colour in COLOURS.items():
        found = [(row["ms"][peer][1] / row["ms"]["bnorm"][1], row) for row in rows if peer in row["ms"]]
        for value, row in found:
            axes.plot(value, place[row["shape"]], MARKS[row["operation"]], color=colour, ms=4, alpha=0.8)
        if found:
            mean = geometric_mean(value for value, _ in found)
            axes.plot([], [], "o", color=colour, label=f"{peer}, mean {mean:.2g}×")
    for names_of, mark in (("forward, fit", "o"), ("inference, transform", "s"), ("backward, inverse", "v")):
        axes.plot([], [], mark, color="white", markeredgecolor="black", ms=4, label=names_of)
    axes.plot([], [], "D", color="white", markeredgecolor="black", ms=4, label="partial_fit")
    axes.axvline(1, color="black", lw=1)
    axes.set_xscale("log")
    axes.set_yticks([place[name] for name in names], names)
    axes.set_xlabel("times as long as bnorm")
    axes.grid(alpha=0.3)
