"""The README's picture, ratios.png, and one PNG per machine with the ratios by shape and the growth of cost."""

from collections.abc import Mapping, Sequence
from io import BytesIO
from pathlib import Path
from typing import Any

from .store import PEERS, SUMMARY, Results, Row, group_of, ratio, short
from .text import geometric_mean

MARKS = dict(forward="o", inference="s", backward="v", fit="o", partial_fit="D", transform="s", inverse="v")
COLORS = {
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


BARS = {  # of the README's picture: the label, and the lines of the tables that the bar unites
    "batch norm, training": ["batch norm, training"],
    "batch norm, inference": ["batch norm, inference"],
    "batch norm, backward": ["batch norm, backward"],
    "layer, group, instance norm": [
        "layer, group and instance norm, forward",
        "layer, group and instance norm, backward",
    ],
    "StandardScaler": ["`fit`", "`partial_fit`", "`transform`", "`inverse_transform`"],
}


def draw_summary(machines: Sequence[Results], path: Path) -> None:
    """Draw a bar for each of BARS: the geometric mean over all shapes and machines, float32 on all threads."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 2.6), layout="constrained")
    axes = figure.subplots()
    means: dict[str, list[float]] = {}
    for i, (what, lines) in enumerate(BARS.items()):
        groups = {SUMMARY[line] for line in lines}
        peer = PEERS[next(iter(groups))[0]]
        ratios = [
            ratio(row, peer)
            for results in machines
            for row in results["rows"]
            if any(group_of(row) == group and row["operation"] == operation for group, operation in groups)
            if (row["dtype"], row["threads"]) == ("float32", max(results["threads"])) and peer in row["ms"]
        ]
        if not ratios:
            continue
        mean = geometric_mean(ratios)
        means.setdefault(peer, []).append(mean)
        axes.barh(i, mean, 0.62, color=COLORS[peer], label=what)
        words = f"{peer} {mean:.1f}, at least {min(ratios):.1f}"
        axes.annotate(words, (mean, i), (4, 0), textcoords="offset points", va="center")
    axes.axvline(1, color="black", lw=1)
    axes.set_yticks(range(len(BARS)), BARS)
    axes.invert_yaxis()
    axes.set_xlim(0, 1.4 * axes.get_xlim()[1])
    axes.set_xticks([1, *range(5, 1 + int(max(map(max, means.values()), default=1)), 5)])
    axes.set_xlabel("time taken, in times of bnorm's: geometric mean and least over all shapes; float32, all threads")
    axes.spines[["top", "right"]].set_visible(False)
    longer = ", ".join(f"{peer} takes {_span(found)} times as long" for peer, found in means.items())
    names = "; ".join(short(results) for results in machines)
    axes.set_title(f"{longer}\n{names}", fontsize=9)
    _write(figure, path)


def _span(values: Sequence[float]) -> str:
    """Return the least and the greatest value as a short text."""
    low, high = f"{min(values):.1f}", f"{max(values):.1f}"
    return low if low == high else f"{low} to {high}"


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
    """Draw a line for every shape, a color for every peer, a mark for every operation. Right of 1 bnorm was faster."""
    place = {name: -i for i, name in enumerate(names)}
    for peer, color in COLORS.items():
        found = [(ratio(row, peer), row) for row in rows if peer in row["ms"]]
        for value, row in found:
            axes.plot(value, place[row["shape"]], MARKS[row["operation"]], color=color, ms=4, alpha=0.8)
        if found:
            mean = geometric_mean(value for value, _ in found)
            axes.plot([], [], "o", color=color, label=f"{peer}, mean {mean:.2g}×")
    for names_of, mark in (("forward, fit", "o"), ("inference, transform", "s"), ("backward, inverse", "v")):
        axes.plot([], [], mark, color="white", markeredgecolor="black", ms=4, label=names_of)
    axes.plot([], [], "D", color="white", markeredgecolor="black", ms=4, label="partial_fit")
    axes.axvline(1, color="black", lw=1)
    axes.set_xscale("log")
    axes.set_yticks([place[name] for name in names], names)
    axes.set_xlabel("times as long as bnorm")
    axes.grid(alpha=0.3)
