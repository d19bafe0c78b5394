"""Prints, as JSON, the options with which CuPy would compile a RawModule: `cupy_options.py sm_90 OPTION...`.

CuPy asks the device for its architecture and loads what it has compiled; here its compiler stops before both, so that
no device is needed. These are inner parts of CuPy: where they have other names, this fails and says so.
"""

import json
import os
import sys


class Asked(Exception):
    """Carries the options out of CuPy."""


class Program:
    def __init__(self, *args, **kwargs):
        pass

    def compile(self, options=(), log_stream=None):
        raise Asked(options)


def main(arch: str, *options: str) -> None:
    os.environ["CUPY_CACHE_IN_MEMORY"] = "1"
    from cupy._core import core
    from cupy.cuda import compiler

    replaced = {
        "_get_arch": lambda: arch.removeprefix("sm_"),
        "_get_arch_for_options_for_nvrtc": lambda arch=None: (f"-arch=sm_{arch}", "cubin"),
        "_preprocess": lambda *args: "",
        "_NVRTCProgram": Program,
    }
    for name, value in replaced.items():
        getattr(compiler, name)  # an AttributeError says which is no longer there
        setattr(compiler, name, value)
    try:
        core.compile_with_cache('extern "C" __global__ void f() {}', options, name_expressions=["f"])
    except Asked as asked:
        print(json.dumps(asked.args[0]))
    else:
        raise SystemExit("CuPy compiled without asking")


if __name__ == "__main__":
    main(*sys.argv[1:])
