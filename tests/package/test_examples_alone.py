"""Examples run as a person runs them, in processes of their own: what they need they import themselves."""

from importlib.util import find_spec
from pathlib import Path

import pytest

import child

EXAMPLES = Path(__file__).parents[2] / "examples"
NEEDED = {
    "cartpole_statistics.py": ("matplotlib", "gymnasium"),
    "climate_statistics.py": ("xarray",),
    "conv_net.py": ("matplotlib", "tqdm"),
    "forecast_revin.py": ("matplotlib",),
    "learned_scale.py": ("matplotlib", "tqdm"),
    "numpy_net.py": ("matplotlib", "tqdm"),
    "per_store.py": ("matplotlib", "pandas"),
    "sensors_with_nights.py": ("matplotlib",),
    "streaming_drift.py": ("matplotlib", "tqdm"),
}
ELSEWHERE = {"dask_table.py", "image_statistics.py", "mpi_sync.py", "spark_table.py"}  # run so by their own tests


@pytest.mark.slow
@pytest.mark.parametrize("name", NEEDED)
def test_it_comes_to_its_end(name, tmp_path):
    if missing := [module for module in NEEDED[name] if find_spec(module) is None]:
        pytest.skip(f"not installed: {', '.join(missing)}")
    quick = () if name == "climate_statistics.py" else ("--quick", "--plot", tmp_path / "picture.png")
    done = child.run("-W", "error::RuntimeWarning", EXAMPLES / name, *quick)
    assert done.returncode == 0, done.stderr


def test_all_are_known():
    assert {path.name for path in EXAMPLES.glob("*.py")} == NEEDED.keys() | ELSEWHERE
