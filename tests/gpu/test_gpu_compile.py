"""Every instance of the CUDA kernels compiles for real devices, and stays within its registers; no device is needed."""

import re

import pytest

from bnorm.kernels.gpu import launching, plans
from cuda_on_cpu import nvrtc

needs_nvrtc = pytest.mark.skipif(bool(nvrtc.missing()), reason=f"NVRTC: {nvrtc.missing()}")
INSTANCES = [("channels", name) for dtype in plans.ITEMSIZE for name in plans.channel_kernels(dtype)]
INSTANCES += [("channels", "move")]
INSTANCES += [("rows", name) for dtype in plans.ITEMSIZE for name in plans.row_kernels(dtype)]
# One of so many instances for each architecture, each time others; a prime, so that no kernel or type is left out.
# Compiling all takes minutes per architecture: python -m pytest -m slow tests/gpu/test_gpu_compile.py
SAMPLE = 23
FTZ = ("-ftz=true",)  # what CuPy adds to the options


def registers(name: str) -> int:
    """A thread's budget. Two blocks of 256 threads share the 65,536 registers of a processor, with few exceptions."""
    kernel, *numbers = re.findall(r"\w+", name)
    if kernel in ("moments", "sums") and numbers[2] == "8" and numbers[-1] == str(plans.WITH_MAP):
        return 176  # eight channels of a thread, and the map too
    return 48 if kernel == "move" else 128


def check(family: str, names: list[str], arch: str) -> None:
    usage = nvrtc.compile(launching.source(family), names, arch, (*launching.OPTIONS, *FTZ))
    assert list(usage) == names
    for name, used in usage.items():
        what = f"{name} on {arch}: {used}"
        assert used.registers <= registers(name), what
        assert used.spills == 0, what
        assert used.stack <= 256, what  # arrays of the rare path in float64
        assert used.shared <= plans.STATIC_SHARED, what


def architectures() -> list[str]:
    return [] if nvrtc.missing() else nvrtc.architectures()


@needs_nvrtc
@pytest.mark.parametrize("family", launching.FAMILIES)
@pytest.mark.parametrize("number", range(4))
def test_a_sample_compiles(number, family):
    arch = architectures()[number]
    check(family, [name for f, name in INSTANCES[number::SAMPLE] if f == family], arch)


@pytest.mark.slow
@needs_nvrtc
@pytest.mark.parametrize("family", launching.FAMILIES)
@pytest.mark.parametrize("arch", architectures())
def test_all_compile(arch, family):
    check(family, [name for f, name in INSTANCES if f == family], arch)


def test_the_options_are_those_of_the_promise():
    """Contraction stays off, so that formulas.h computes what it computes on the CPU."""
    assert "-fmad=false" in launching.OPTIONS
