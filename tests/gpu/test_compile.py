"""Instances of the CUDA kernels compile for real devices, and stay within their registers and instructions.

No device is needed. A hot loop is counted without what is rare: that is replaced by nothing before it is compiled.
"""

import re

import pytest
from benchmarks import gpu_compile

from bnorm.kernels.activation import IDENTITY
from bnorm.kernels.gpu import jobs, launching, plans, row_plans
from cuda_on_cpu import nvrtc, sass
from cuda_on_cpu.nvrtc import needs_nvrtc

pytestmark = pytest.mark.cuda

needs_sass = pytest.mark.skipif(bool(sass.missing()), reason=f"machine code: {sass.missing()}")
INSTANCES = {family: gpu_compile.instances(family) for family in launching.FAMILIES}
# Those that the compiler has a text of their own for, and the first of the consumer's. Others that it knows (103, 107,
# 110, 121) get the PTX of sm_100; a sample of instances is assembled for them.
COMPILED = ("sm_75", "sm_80", "sm_90", "sm_100", "sm_120")
# One of so many instances for each architecture, each time others; a prime, so that no kernel or type is left out.
# All take half an hour of a core per architecture, most of it for rows: python -m pytest -m "slow and cuda"
SAMPLE = {"channels": 53, "clusters": 13, "planes": 11, "rows": 71, "rows_weighted": 11, "row_channels": 29}
SAMPLE |= {"statistics": 1, "exact": 7}
FTZ = ("-ftz=true",)  # what CuPy adds to the options
OPTIONS = (*launching.OPTIONS, *FTZ)


def registers(name: str) -> int:
    """A thread's budget. Two blocks of 256 threads share the 65,536 registers of a processor, with few exceptions."""
    kernel, *numbers = re.findall(r"\w+", name)
    if kernel == "gradient" and numbers[0] == "float" and numbers[4] != "512" and numbers[5] != str(jobs.CAREFUL):
        return 64  # four blocks
    if kernel in ("moments", "sums") and numbers[2] == "8" and numbers[-2] in (str(jobs.WITH_MAP), str(jobs.EXACT)):
        return 200  # eight channels of a thread, and the map too, or all in float64
    if kernel in ("moments", "sums") and numbers[-2] == str(jobs.MEETING):
        return 200  # a block to a processor
    if kernel == "planes_moments":
        return 84
    if kernel.startswith("rows_") and len(numbers) > 3 and numbers[3] == str(row_plans.BROAD):
        return 128  # one block of twice as many threads
    if kernel == "rows_forward" and numbers[3] == str(row_plans.BROADER):
        return 80  # of three times as many
    if kernel == "rows_forward" and numbers[2] in ("3", "4", "5"):
        wide, five = numbers[3] == str(row_plans.OF_WARPS), numbers[2] == "5"
        return 128 if wide and five else 80 if numbers[0] == "double" or wide or five else 64  # of four blocks
    light = kernel == "rows_backward" and numbers[2] in ("3", "4") and numbers[5] == str(jobs.NO_PARAMS)
    if light and numbers[0] != "double":
        alone = numbers[:2] in (["f16", "8"], ["bf16", "8"]) and numbers[3:5] != ["0", str(IDENTITY.kind)]
        return 128 if alone else 80  # of three blocks, as a thread gets whole eights
    return 80 if kernel in (*plans.PER_CHANNEL, "rows_params") else 128  # a thread for a channel or more: few blocks


def without_rare(source: str) -> str:
    text = "(bool so) { return so; }"
    assert text in source
    return source.replace(text, text.replace("return so", "return false"))


def most_shared(family: str, name: str) -> int:
    """Of what it declares; what gets no dynamic memory may declare as much as there is without asking the driver."""
    alone = family not in plans.STATIC_SHARED or name == "rows_params"
    return launching.SHARED_AT_FIRST if alone else plans.STATIC_SHARED[family]


def check(family: str, names: list[str], arch: str) -> None:
    source = launching.source(family)
    usage = nvrtc.compile(source, names, arch, OPTIONS)
    assert list(usage) == names
    if family == "rows":  # these spill where squares leave the range of float, and nowhere else
        spilled = [name for name, used in usage.items() if used.spills]
        for name, used in nvrtc.compile(without_rare(source), spilled, arch, OPTIONS).items():
            assert not used.spills, f"{name} on {arch}: {used}"
    for name, used in usage.items():
        what = f"{name} on {arch}: {used}"
        assert used.registers <= registers(name), what
        assert family == "rows" or used.spills <= (24 if family == "rows_weighted" else 0), what
        assert used.stack <= 320, what  # arrays of the rare path in float64
        assert used.shared <= most_shared(family, name), what


KNOWN = [] if nvrtc.missing() else nvrtc.architectures()


def pairs(known: list[str]) -> list[tuple[str, str]]:
    """Families of kernels, and architectures that have what they need."""
    most = {"clusters": launching.WITH_CLUSTERS}
    return [(family, arch) for family in INSTANCES for arch in known if int(arch[3:]) >= most.get(family, 0)]


@needs_nvrtc
@pytest.mark.parametrize(
    ("family", "arch"),
    [pytest.param(*pair, marks=() if pair[1] in COMPILED else pytest.mark.slow) for pair in pairs(KNOWN)],
)
def test_a_sample_compiles(family, arch):
    step = SAMPLE[family]
    check(family, INSTANCES[family][KNOWN.index(arch) % step :: step], arch)


# What a sample seldom meets. Newer compilers hold pairs of floats, which took more registers than four blocks have, and
# spill in what has room for four blocks but does not ask for them.
CROWDED = {
    "channels": [f"gradient<float, 4, 4, 8, 32, 0, {kind}>" for kind in (1, 2, 3, 4)],
    "rows_weighted": [f"rows_weighted_backward<double, {kind}>" for kind in (1, 2, 3, 4)],
}


@needs_nvrtc
@pytest.mark.parametrize("arch", ["sm_90", "sm_100", "sm_120"])
@pytest.mark.parametrize("family", CROWDED)
def test_what_is_crowded_does_not_spill(family, arch):
    if arch not in KNOWN:
        pytest.skip(f"this NVRTC does not know {arch}")
    for name, used in nvrtc.compile(launching.source(family), CROWDED[family], arch, OPTIONS).items():
        assert used.registers <= 64 and not used.spills, f"{name} on {arch}: {used}"


@pytest.mark.slow
@needs_nvrtc
@pytest.mark.parametrize(("family", "arch"), pairs([arch for arch in KNOWN if arch in COMPILED]))
def test_all_compile(family, arch):
    check(family, INSTANCES[family], arch)


# The hot loop of an instance, which loads so many values of each array: how many instructions it may have. What there
# are now, and a tenth.
BUDGETS = {
    "channels": {
        "normalize<float, 4, 4, 8, 32, 0, 0>": (112, 16),
        "normalize<bf16, 8, 8, 8, 32, 1, 0>": (201, 32),
        "moments<bf16, 8, 8, 8, 32, 0, 0>": (317, 64),
        "sums<float, 4, 4, 8, 32, 0, 1>": (83, 8),
        "sums<bf16, 8, 8, 8, 32, 0, 1>": (172, 16),
        "gradient<float, 4, 4, 8, 32, 0, 0>": (74, 8),
        "gradient<bf16, 8, 8, 8, 32, 0, 1>": (250, 16),
        "normalize<bf16, 8, 1, 1, 256, 0, 0>": (253, 32),
        "gradient<bf16, 8, 1, 1, 256, 0, 1>": (255, 16),
    },
    "clusters": {  # of the loop over what is kept
        "cluster_moments<float, 4, 1, 1, 512, 0>": (64, 16),
        "cluster_sums<bf16, 8, 1, 1, 512, 0>": (100, 16),
    },
    "rows": {  # of a thread and row
        "rows_forward<float, 4, 4, 0, 0>": (410, 16),
        "rows_forward<bf16, 8, 4, 0, 0>": (640, 32),
        "rows_forward<bf16, 8, 4, 1, 0>": (688, 32),
        "rows_backward<float, 4, 4, 1, 0, 0>": (416, 16),
        "rows_backward<bf16, 8, 4, 0, 0, 0>": (717, 32),
        "rows_backward<bf16, 8, 4, 0, 0, 1>": (1170, 32),
    },
}


@needs_sass
@pytest.mark.parametrize("family", BUDGETS)
def test_hot_loops(family):
    source = without_rare(launching.source(family))
    if family == "rows":  # whose blocks keep gamma and beta
        assert "if (kept) {" in source
        source = source.replace("if (kept) {", "if (true) {")
    found = sass.loops(source, list(BUDGETS[family]), "sm_90", OPTIONS)
    for name, (most, values) in BUDGETS[family].items():
        itemsize = 2 if "bf16" in name else 4
        arrays = 2 if name.startswith(("sums", "gradient", "rows_backward", "cluster_sums")) else 1
        kept = family == "clusters"
        hot = [loop for loop in found[name] if (loop.shared if kept else loop.loads) * 16 == values * itemsize * arrays]
        if kept:  # all it loads is shared memory; so does a smaller loop, which looks for the first mean
            hot = sorted(loop for loop in hot if not loop.inner and not loop.stores)[-1:]
        assert hot, (name, found[name])
        assert min(loop.instructions for loop in hot) <= most, (name, hot)


def test_the_options_are_those_of_the_promise():
    """Contraction stays off, so that formulas.h computes what it computes on the CPU."""
    assert "-fmad=false" in launching.OPTIONS
