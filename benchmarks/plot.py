"""The ratio to the peers by shape, on a log axis, and the growth of cost: one PNG per machine. Needs matplotlib."""

from collections.abc import Mapping, Sequence
from io import BytesIO
from pathlib import Path
from typing import Any

from .text import geometric_mean

Row = dict[str, Any]
Results = dict[str, Any]
MARKS = dict(forward="o", inference="s", backward="v", fit="o", partial_fit="D", transform="s", inverse="v")
COLOURS = {"NumPy": "gray", "PyTorch": "tab:red", "scikit-learn": "tab:blue", "River": "tab:green", "JAX": "tab:orange"}


def draw_all(all_results: Mapping[str, Results], folder: Path) -> None:
    try:
        import matplotlib
    except ImportError:
        print("no plot: matplotlib is not installed")
        return
    with matplotlib.rc_context({"backend": "agg", "font.size": 8}):
        for name, results in all_results.items():
            draw(results, folder / f"{name}.png")


def draw(results: Results, path: Path) -> None:
    from matplotlib.figure import Figure
    from PIL import Image

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
