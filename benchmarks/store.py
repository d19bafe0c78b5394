"""The saved results: their files, the groups of their rows, and how many times as long a peer took."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bnorm.kernels import cpu

from .machine import facts

RESULTS = Path(__file__).parent / "results"
PEERS = {"batch": "PyTorch", "rows": "PyTorch", "scaler": "scikit-learn"}  # the peer of each group in the tables
SUMMARY = {  # the lines of the table of a machine: their group and operation
    "batch norm, training": ("batch", "forward"),
    "batch norm, inference": ("batch", "inference"),
    "batch norm, backward": ("batch", "backward"),
    "layer, group and instance norm, forward": ("rows", "forward"),
    "layer, group and instance norm, backward": ("rows", "backward"),
    "`fit`": ("scaler", "fit"),
    "`partial_fit`": ("scaler", "partial_fit"),
    "`transform`": ("scaler", "transform"),
    "`inverse_transform`": ("scaler", "inverse"),
}
Row = dict[str, Any]
Results = dict[str, Any]


def save(results: Results, path: Path) -> None:
    """Write a file with one line per row, so that its changes are easy to read."""
    head = {key: value for key, value in results.items() if key != "rows"}
    head["growth"] = None
    rows = ",\n".join(f"  {json.dumps(row)}" for row in results["rows"])
    text = json.dumps(head, indent=1, ensure_ascii=False)
    text = text.replace('"growth": null', f'"growth": {json.dumps(results["growth"])}')
    path.parent.mkdir(exist_ok=True)
    path.write_text(f'{text[:-2]},\n "rows": [\n{rows}\n ]\n}}\n', encoding="utf-8")


def save_page(path: Path, title: str, module: str, words: Sequence[str], tables: Sequence[str]) -> None:
    """Write a page with the tables of the benchmark `module`, and the machine on which it ran."""
    here = facts(cpu.simd_level())
    where = f"{here['processor']}, {here['cores']} cores, {here['simd']}; {here['date']}"
    head = [f"# {title}", "", f"{where}. Written by `python -m benchmarks.{module} --save`.", *words, ""]
    path.write_text("\n".join([*head, *tables]).rstrip() + "\n", encoding="utf-8")
    print(f"saved in {path}")


def saved() -> dict[str, Results]:
    """Return all saved results, by the name of the file."""
    return {path.stem: json.loads(path.read_text(encoding="utf-8")) for path in sorted(RESULTS.glob("*.json"))}


def group_of(row: Row) -> str:
    """Return the group to which a row belongs in the tables."""
    return row["kind"] if row["kind"] in PEERS else "rows"


def ratio(row: Row, name: str) -> float:
    """Return the peer's time over bnorm's: fresh results against fresh ones, out= against out=."""
    ours = "bnorm out=" if name.endswith(" out=") else "bnorm"
    return row["ms"][name][1] / row["ms"][ours][1]


def short(results: Results) -> str:
    """Describe a machine in a few words."""
    machine = results["machine"]
    return f"{machine['processor'].replace('(R)', '')}, {count(machine['cores'], 'core')}"


def count(n: int, what: str) -> str:
    return f"{n} {what}{'s' * (n != 1)}"
