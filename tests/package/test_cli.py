"""The command `bnorm`, run as a person runs it."""

import os
import re
import subprocess
import sys
from importlib import metadata

import pytest

import bnorm
from bnorm.kernels import cpu


@pytest.fixture
def command(tmp_path):
    """Runs `python -m bnorm` with arguments, and environment variables by name."""

    def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "bnorm", *arguments],
            capture_output=True,
            text=True,
            timeout=120,
            cwd=tmp_path,
            env=os.environ | environment,
        )

    return run


@pytest.mark.parametrize("rows", [1, 64, 1000], ids=lambda rows: f"batches of {rows}")
def test_demo(command, rows):
    done = command("demo", "--batch-size", str(rows))
    assert (done.returncode, done.stderr) == (0, "")
    # 569 rows; mean and (population) standard deviation of the first column by NumPy.
    assert f"Statistics of {-(-569 // rows)} batches" in done.stdout
    assert re.search(r"^mean radius +14\.1273 +3\.5210 +0\.0000 +1\.0000$", done.stdout, re.MULTILINE)
    difference = re.search(r"Largest difference .*: (\S+)$", done.stdout, re.MULTILINE)
    assert float(difference[1]) < 1e-12


def test_info(command):
    done = command("info", BNORM_SIMD="baseline", OMP_NUM_THREADS="1")
    assert (done.returncode, done.stderr) == (0, "")
    facts = dict(re.findall(r"^ *([^:\n]+): (.+)$", done.stdout, re.MULTILINE))
    assert facts["bnorm"] == bnorm.__version__
    assert facts["numpy"] == metadata.version("numpy")
    assert facts["scikit-learn"] == metadata.version("scikit-learn")
    assert facts["SIMD level in use"] == "baseline"
    assert facts["SIMD levels here"].split(", ") == cpu.simd_levels()
    assert facts["threads"] == "1"
    assert facts["Built with OpenMP"].startswith(("True", "False"))


def test_show_config_prints(capsys):
    assert bnorm.show_config() is None
    assert "SIMD level in use" in capsys.readouterr().out


@pytest.mark.parametrize("arguments", [[], ["nothing"], ["demo", "--batch-size", "0"], ["demo", "--batch-size", "few"]])
def test_wrong_arguments(command, arguments):
    done = command(*arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert "usage: bnorm" in done.stderr
    assert "Traceback" not in done.stderr


def test_version_and_entry_point(command):
    assert command("--version").stdout == f"bnorm {bnorm.__version__}\n"
    (script,) = metadata.entry_points(group="console_scripts", name="bnorm")
    assert script.value == "bnorm.app.cli:main"
