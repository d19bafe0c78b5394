"""The kernels that launch plans name: their structs, which are compiled, and that no plan asks for another."""

import contextlib
import re
import struct
from functools import cache

import numpy as np
import pytest
from benchmarks import gpu_compile
from hypothesis import given
from hypothesis import strategies as st

import gpu_small
import gpu_sweep
from bnorm.kernels import activation
from bnorm.kernels.gpu import jobs, launching, plans, row_plans
from bnorm.kernels.gpu.jobs import GAMMA_AND_BETA
from cuda_on_cpu.emulator import clusters
from emulated import usual
from emulated.device import PlanningDevice
from emulated.launches import fields
from plan_checks import DTYPES, LIMITS, SIZES, many

# The text of the kernels --------------------------------------------------------------------------------------------


STRUCTS = {"Job": jobs.JOB, "RowJob": jobs.ROW_JOB, "StatisticsJob": jobs.STATISTICS_JOB}
OF_FAMILY = {
    "channels": "Job",
    "clusters": "Job",
    "planes": "Job",
    "rows": "RowJob",
    "row_channels": "Job",
    "statistics": "StatisticsJob",
    "exact": "Job",
}


@pytest.mark.parametrize(("family", "name"), OF_FAMILY.items())
def test_the_struct_is_that_of_the_jobs(family, name):
    expected = STRUCTS[name]
    body = re.search(rf"struct {name} \{{(.*?)\n\}};", launching.source(family), re.DOTALL)[1]
    found = []
    for line in re.sub(r"//[^\n]*", "", body).split(";"):
        if line := line.strip():
            kind, names = re.fullmatch(r"((?:const )?\w+(?: ?\*)?)\s*(.*)", line, re.DOTALL).groups()
            found += [("pointer" if "*" in line else kind, name.strip(" *")) for name in names.split(",")]
    kinds = ("pointer", "i64", "double", "i64")
    assert found == [(kind, name) for kind, names in zip(kinds, expected, strict=True) for name in names]


def test_a_call_packs_its_fields_and_zeros_between():
    fields = jobs.Fields(("a", "b"), ("c",), ("d",), ("e", "f"))
    assert fields.packer("b", "d")(7, 0.5) + fields.place(f=3) == struct.pack("=QQqdqq", 0, 7, 0, 0.5, 0, 3)
    assert fields.size == 48 and fields.placed(fields.place(e=1)) == {"e": 1, "f": 0}
    with pytest.raises(ValueError, match="in the order of the struct"):
        fields.packer("d", "b")
    with pytest.raises(ValueError, match="in the order of the struct"):
        fields.packer("a", "z")


def test_modes_are_spelled_once():
    for names in jobs.ENUMERATIONS:
        assert [getattr(jobs, name) for name in names] == list(range(len(names)))
        for family in launching.FAMILIES:
            assert f"enum {{ {', '.join(names)} }};" in launching.source(family)
    kinds = re.search(r"enum \{ BN_IDENTITY, (.*) \};", launching.source("channels"))[1].split(", ")
    assert [(None, *kinds)[kind] for kind in activation.KINDS] == [
        name and f"BN_{name.removesuffix('_relu').upper()}" for name in activation.NAMES
    ]


def test_kernels_are_those_that_plans_launch():
    text = {family: re.sub(r"//[^\n]*", "", launching.source(family)) for family in launching.FAMILIES}
    pattern = r"__global__ void[^;{]*?(\w+)\((?:Row|Statistics)?Job job\)"
    assert clusters(text["clusters"]) == {name: (1, plans.CLUSTER, 1) for name in ("cluster_moments", "cluster_sums")}
    assert f"constexpr int CLUSTER = {plans.CLUSTER};" in text["clusters"]
    written = {family: set(re.findall(pattern, t)) for family, t in text.items()}
    assert written == {family: {name.split("<")[0] for name in every(family)} for family in launching.FAMILIES}


@cache
def every(family, dtypes=tuple(plans.ITEMSIZE)):
    """The names that are compiled ahead, and for other devices."""
    return set(gpu_compile.instances(family, dtypes))


def test_what_is_compiled_at_once_can_be_launched():
    """usual.txt is that of these kernels: else `python tests/support/emulated/usual.py`."""
    assert usual.listed().keys() == launching.FAMILIES.keys()
    for family, names in usual.listed().items():
        assert set(names) <= every(family), family
    assert usual.text({family: set(names) for family, names in usual.listed().items()}) == usual.LIST.read_text()


@many
@given(SIZES, SIZES, SIZES, DTYPES, st.booleans(), st.booleans(), LIMITS)
def test_no_plan_asks_for_another_kernel(outer, channels, inner, dtype, vectors, careful, limits):
    size = outer, channels, inner, dtype, vectors
    found = [plans.exact_sums(*size, careful, limits)] if dtype != "float64" else []
    for kind in range(3):
        options = kind, limits
        found += [
            plans.reduction("moments", *size, careful, "", *options),
            plans.reduction("moments", *size, careful, "normalize", *options),
            plans.reduction("sums", *size, careful, "", *options),
            plans.reduction("sums", *size, careful, "gradient", *options),
            plans.reduction("sums", *size, False, "frozen", *options),
            *(plans.map_only(name, *size, False, *options) for name in ("normalize", "finite", "frozen")),
            plans.map_only("gradient", *size, careful, *options),
            row_plans.row_sums((outer, channels, inner, 3), dtype, vectors, *options),
        ]
        for shape in ((outer, channels, inner, 3), (outer * inner, 1, channels, 1)):
            args = shape, dtype, GAMMA_AND_BETA
            found += [row_plans.rows("rows_forward", *args, False, *options)]
            found += [row_plans.rows("rows_backward", *args, params, *options) for params in (0, 1)]
    for plan in found:
        for launch in plan.launches:
            assert launch.kernel in every(launch.family, (dtype,))


@pytest.mark.parametrize("dtype", sorted(plans.ITEMSIZE))
def test_the_sweep_forgets_no_instance(dtype, monkeypatch):
    """What test_device.py launches on a device; here the launches are only counted."""
    device = PlanningDevice(plans.Limits())
    monkeypatch.setattr(launching, "device_of", lambda x: device)
    numpy_type = pytest.importorskip("ml_dtypes").bfloat16 if dtype == "bfloat16" else dtype
    for case in gpu_sweep.cases(dtype):
        x = np.empty(case.shape, numpy_type)
        vectors = np.ones((2, case.shape[1] * (case.shape[2] if case.what == "rows" else 1)))
        weight = np.ones((case.shape[0], case.shape[2] if len(case.shape) == 3 else 1))
        for act in gpu_sweep.ACTIVATIONS:
            with contextlib.suppress(FloatingPointError):
                list(gpu_sweep.results(case, act, x, x, vectors, weight))
    launched = set(device.kernels())
    names = {name for family in gpu_sweep.FAMILIES for name in every(family, (dtype,))}
    small = re.compile(rf"rows_backward<\w+, \d, \d, {row_plans.OF_WARPS}, \d, {jobs.PER_COLUMN}>")
    assert launched == {name for name in names if not small.fullmatch(name)}  # where broad blocks have no memory


def test_what_a_sanitizer_watches(monkeypatch):
    """On an H100 the small calls reach every family of kernels, and blocks that go on to other channels and rows."""
    device = PlanningDevice(plans.Limits())
    monkeypatch.setattr(launching, "device_of", lambda x: device)
    gpu_small.calls(lambda shape: np.zeros(shape, "f4"), np.ones, device)
    assert {launch.family for launch in device.log} == launching.FAMILIES.keys() - {"statistics"}
    assert {launch.kernel.partition("<")[0] for launch in device.log if launch.meeting} == {"moments", "sums"}
    going_on = set()
    for launch in device.log:
        name = launch.kernel.partition("<")[0]
        if launch.family == "clusters":
            many, at_a_time = fields(launch)["columns"], launch.grid[0]
        elif launch.persistent:
            most = 2048 // plans.THREADS  # blocks of a processor; fewer where each has much memory, or many registers
            most = 1 if launch.shared > 112 << 10 else 2 if launch.shared > 75 << 10 else most
            most = 3 if launch.kernel.startswith("rows_forward<float, 4, 3, 1,") else most
            many, at_a_time = launch.grid[0], most * device.limits.processors
        else:
            continue
        if many > at_a_time:
            going_on.add(name)
    rows = [(launch.kernel.partition("<")[0], fields(launch)) for launch in device.log if launch.family == "rows"]
    assert {name for name, of in rows if of["late"] < of["rows"]} >= {"rows_forward", "rows_backward"}
    weighted = {"rows_weighted_forward", "rows_weighted_backward"}
    assert going_on == {"cluster_moments", "cluster_sums", "moments", "sums", "rows_forward"} | weighted
