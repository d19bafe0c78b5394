"""Versions and settings of this installation, for a bug report.

Some modules are imported inside functions, because `import bnorm` imports this module.
"""

import os
import sys
from importlib import import_module, util

from bnorm.kernels import cpu
from bnorm.kernels.cpu import container, threads, tuned


def show_config() -> None:
    """Print versions, SIMD level, threads, OpenMP runtime and GPU support, as `sklearn.show_versions` does.

    Versions come from the metadata of the packages, which are not imported.
    """
    sections = {
        "System": _system(),
        "Packages": _packages(),
        "Processor": _processor(),
        "Threads": _threading(),
        "Memory": _memory(),
    }
    for title, facts in sections.items():
        width = max(map(len, facts))
        print(f"\n{title}:")
        for name, fact in facts.items():
            print(f"{name:>{width}}: {fact}")


def _system() -> dict[str, str]:
    import platform

    return {
        "python": sys.version.replace("\n", " "),
        "executable": sys.executable,
        "machine": platform.platform(),
    }


def _packages() -> dict[str, str]:
    from importlib import metadata

    # The name of CuPy's package tells its CUDA version, so it is looked up by the module's.
    cupy = metadata.packages_distributions().get("cupy", ["cupy"])[0]
    versions = {}
    for name in ["bnorm", "numpy", "scikit-learn", "threadpoolctl", cupy]:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            versions[name] = "not installed"
    return versions


def _processor() -> dict[str, str]:
    return {
        "SIMD level in use": cpu.simd_level(),
        "SIMD levels here": ", ".join(cpu.simd_levels()),
        "sizes for its caches": f"tuned, {tuned.in_use()}" if tuned.in_use() else "built in",
        "GPU": f"CuPy is {'' if util.find_spec('cupy') else 'not '}installed",
    }


def _memory() -> dict[str, str]:
    return {"kept for large results": f"up to {cpu.get_buffer_limit() >> 20} MiB"}


def _threading() -> dict[str, str]:
    openmp = threads.openmp_version()
    facts = {
        "threads": str(threads.get_num_threads()),
        "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "not set"),
        "CPU quota": "none" if (n := container.cores()) is None else f"{n} cores",
        "Built with OpenMP": f"True ({openmp})" if openmp else "False",
    }
    if util.find_spec("threadpoolctl"):
        for pool in import_module("threadpoolctl").threadpool_info():  # all libraries that are loaded now
            if pool["user_api"] == "openmp":
                facts[f"runtime {pool['prefix']}"] = f"{pool['num_threads']} threads, {pool['filepath']}"
    return facts
