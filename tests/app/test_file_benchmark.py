"""The benchmark of files: every contender runs, and tells seconds, seconds of the processor, and memory."""

import json

import pytest
from benchmarks import files

pytestmark = pytest.mark.bench

pytest.importorskip("pyarrow", exc_type=ImportError, reason="the command reads files by pyarrow")


@pytest.mark.slow
def test_contenders(capsys):
    pytest.importorskip("sklearn")
    files.main(["--megabytes", "1", "--rounds", "1", "--json"])
    found = {}
    for line in capsys.readouterr().out.splitlines():
        found |= json.loads(line)
    for suffix in (".parquet", ".csv"):
        assert {"read", "bnorm fit", "StandardScaler, pyarrow batches"} <= set(found[suffix])
        assert all(wall > 0 and cpu > 0 and peak >= 0 for wall, cpu, peak in found[suffix].values())


def test_report(tmp_path):
    (tmp_path / "x.csv").write_bytes(bytes(2_000_000))
    figures = {"read": [1.0, 2.0, 3e6], "bnorm fit": [2.0, 4.0, 5e6]}
    assert files.report(tmp_path / "x.csv", figures).splitlines() == [
        "csv, 2 MB     s  CPU s  MB of memory  × of fit  × CPU",
        "read       1.00   2.00             3      0.50   0.50",
        "bnorm fit  2.00   4.00             5      1.00   1.00",
    ]
