"""The checks of the first contact with a GPU, on the emulator; and the order in which it compiles."""

import numpy as np
import pytest
from benchmarks import gpu_check, gpu_compile
from benchmarks.gpu_check import Case

from bnorm.kernels import gpu
from bnorm.kernels.gpu import launching, plans
from emulated.device import PlanningDevice, needs_emulator
from emulated.fake_cupy import fake_cupy as fixture  # noqa: F401

pytestmark = pytest.mark.bench


def test_what_most_calls_need_is_compiled_first():
    found = gpu_compile.items(True)
    assert set(found) == {(family, name) for family in launching.FAMILIES for name in gpu_compile.instances(family)}
    assert len(set(found)) == len(found)
    plain = {name for family in launching.FAMILIES for name in gpu_compile.instances(family, kinds=(0,))}
    assert {name for _, name in found[: len(plain)]} == plain
    assert {family for family, _ in gpu_compile.items(False)} == launching.FAMILIES.keys() - {"clusters"}


SMALL = [
    Case("channels", "batch norm", (70, 6)),
    Case("channels", "weighted batch norm", (6, 3, 30)),
    Case("rows", "layer norm", (30, 1, 64, 1)),
    Case("rows", "rms norm", (30, 1, 64, 1)),
    Case("rows_weighted", "weighted group norm", (6, 3, 4, 25)),
    Case("statistics", "layer in training", (70, 6)),
    Case("exact", "exact sums", (300, 5)),
    Case("planes", "batch norm", (8, 64, 49)),
]


@needs_emulator
def test_checks_on_the_emulator(cupy):
    assert {case.family for case in gpu_check.CASES} == launching.FAMILIES.keys()
    for found in gpu_check.rows(cupy, SMALL, ["float32"]):
        assert "failed" not in found and 0 <= found.get("forward", {"of bound": 0})["of bound"] <= 1, found
    kernels = {name.split("<")[0] for name in cupy.launched}
    assert kernels >= {"exact_sums", "rows_weighted_backward", "row_channels"}
    assert kernels >= set(gpu_compile.instances("statistics"))


@pytest.mark.parametrize("dtype", gpu_check.DTYPES)
def test_a_check_launches_the_family_that_it_names(monkeypatch, dtype):
    """On a device of full size: only planned, so that its results are of no use."""
    if dtype == "bfloat16":
        pytest.importorskip("ml_dtypes")
    device = PlanningDevice(plans.Limits())
    monkeypatch.setattr(launching, "device_of", lambda x: device)
    for case in gpu_check.CASES:
        if case.family == "statistics" or (case.family, dtype) == ("exact", "float64"):
            continue  # of a layer on a device; what the processor sums
        (found,) = gpu_check.rows(np, [case], [dtype])
        assert "failed" in found
        assert case.family in {launch.family for launch in device.log}, (case, dtype)
        device.log.clear()


@needs_emulator
@pytest.mark.parametrize("name", ["forward", "backward", "rows_forward", "rows_backward", "exact_sums"])
def test_a_check_finds_a_fault(cupy, monkeypatch, name):
    kernel = getattr(gpu, name)

    def faulty(*args, **options):
        results = kernel(*args, **options)
        if name == "exact_sums":
            results[2].flat[0] += 1
        else:
            results[0].host.flat[7] *= np.float32(1.001)
        return results

    monkeypatch.setattr(gpu, name, faulty)
    what = {"forward": 0, "backward": 0, "rows_forward": 2, "rows_backward": 2, "exact_sums": 6}
    (found,) = gpu_check.rows(cupy, [SMALL[what[name]]], ["float32"])
    assert found["failed"].startswith("ArithmeticError: ")
