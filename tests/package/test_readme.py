"""The numbers of the README: those of the saved results, and nothing written by hand."""

import re
from pathlib import Path

import pytest
from benchmarks import readme

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "README.md").read_text(encoding="utf-8")


def test_the_blocks_are_those_of_the_saved_results():
    assert readme.written(PAGE) == PAGE, "python -m benchmarks.readme"


def test_it_is_short():
    assert len(PAGE.splitlines()) <= 160


def test_its_versions_are_those_of_the_results():
    """And no other number of an error, or a version, stands outside of the blocks."""
    rest = re.sub(r"<!-- (\w+):begin -->.*?<!-- \1:end -->", "", PAGE, flags=re.DOTALL)
    assert not re.search(r"(scikit-learn|PyTorch|Keras|Flax|bnorm) \d", rest)
    errors = re.search(r"<!-- errors:begin -->(.*?)<!-- errors:end -->", PAGE, re.DOTALL)[1]
    assert [line.startswith("| bnorm ") for line in errors.splitlines()[3:6]] == [True, True, False]


ANSWERS = [
    {"library": "bnorm 1", "asked": "`BatchNorm1d(1)`, largest error", "right": 0.0, "got": 3.6e-07},
    {"library": "bnorm 1", "asked": "`partial_fit`, variance", "right": 1.0, "got": 1.0},
    {"library": "Flax 2", "asked": "`nnx.BatchNorm(1)`, largest error", "right": 0.0, "got": 1532.0},
    {"library": "Ray 2", "asked": "`S`, largest error, in float64", "right": 0.0, "got": 4e-11},
    {"library": "sklearn 3", "asked": "`S().fit_transform`, largest error", "right": 0.0, "got": 0.031},
]


def test_the_table_of_errors():
    assert readme.table_of_errors(ANSWERS).splitlines()[2:] == [
        "| bnorm 1, `BatchNorm1d` | 0.0000004 |",
        "| Ray 2, `S`, in float64 | 0.00000000004 |",
        "| sklearn 3, `S` | 0.03 |",
        "| Flax 2, `nnx.BatchNorm` | 1500 |",
    ]


@pytest.mark.parametrize(("others", "said"), [(0.0, ""), (0.7, " Other programs took 0.7 of the cores meanwhile.")])
def test_the_demo(others, said):
    printed = ["10 rows", "of batches", "", "feature  std", *(f"f{i}       1" for i in range(8)), "", "fit 1 s"]
    saved = {"printed": printed, "processor": "A processor", "cores": 2, "others": others}
    assert readme.demo_block(saved).splitlines() == [
        "```text",
        *(
            "10 rows",
            "of batches",
            "",
            "feature  std",
            "f0       1",
            "  ... and six more ...",
            "f7       1",
            "",
            "fit 1 s",
        ),
        "```",
        "",
        f"This was on A processor, 2 cores.{said}",
    ]
