"""`python -m benchmarks.gpu_page`: write what was measured on GPUs, the files in results/gpu/, into docs/gpu.md."""

import json
from pathlib import Path
from typing import Any

from .gpu_summary import measured
from .page import DOCS
from .store import RESULTS
from .text import between

PAGE = DOCS / "gpu.md"


def of_device(results: dict[str, Any]) -> list[str]:
    """A device, its software, and a line for every case and operation."""
    versions = ", ".join(f"{name} {text}" for name, text in results["versions"].items())
    rows = [row for row in results["rows"] if "operations" in row]
    return [f"**{results['device']}**: {versions}.", "", *measured(rows)]


def written(text: str, folder: Path = RESULTS / "gpu") -> str:
    """The text of the page with a table for each file of the folder."""
    devices = [json.loads(path.read_text(encoding="utf-8")) for path in sorted(folder.glob("*.json"))]
    return between(text, "measured", "\n".join(["", *(line for results in devices for line in of_device(results))]))


if __name__ == "__main__":
    PAGE.write_text(written(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
