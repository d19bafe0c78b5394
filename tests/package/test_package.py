"""The package as a whole: versions, imports, sources, documents."""

import ast
import doctest
import graphlib
import re
import runpy
import sys
import tomllib
from importlib import import_module, metadata, resources
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace

import pytest

import bnorm
import child
from drawing import together

ROOT = Path(__file__).parents[2]
SRC = ROOT / "src" / "bnorm"
README = (ROOT / "README.md").read_text(encoding="utf-8")
CODE = {".py", ".pyi", ".pyx", ".pxd", ".pxi", ".h", ".c", ".cu"}
SOURCES = sorted(path for path in SRC.rglob("*") if path.suffix in CODE)
CYTHON = {".pyx", ".pxd", ".pxi"}

# Which floor of the house a module stands on; a folder speaks for what is in it. A module imports from the floors below
# and from its own, never in a circle.
FLOORS = {
    "bnorm": 5,  # names only, from everywhere
    "bnorm.kernels": 1,
    "bnorm.arrays": 2,
    "bnorm.checks": 2,
    "bnorm.devices": 2,
    "bnorm.documents": 2,
    "bnorm.exact": 2,
    "bnorm.integers": 2,
    "bnorm.iterating": 2,
    "bnorm.arrow": 2,
    "bnorm.moments": 2,
    "bnorm.files": 2,
    "bnorm.grouping": 2,
    "bnorm.overlap": 2,
    "bnorm.reductions": 2,
    "bnorm.running": 2,
    "bnorm.passes": 3,
    "bnorm.functional": 3,
    "bnorm.second": 3,
    "bnorm.datasets": 3,
    "bnorm.distributed": 3,
    "bnorm.distributed.dask": 4,
    "bnorm.distributed.engine": 4,  # it fits transformers
    "bnorm.distributed.learners": 4,
    "bnorm.distributed.ray": 4,
    "bnorm.distributed.spark": 4,
    "bnorm.layers": 4,
    "bnorm.streams": 4,
    "bnorm.transformer": 4,
    "bnorm.sklearn": 4,
    "bnorm.xarray": 3,
    "bnorm.interop": 5,
    "bnorm.plot": 5,
    "bnorm.loading": 5,
    "bnorm.config": 5,
    "bnorm.app": 5,
    "bnorm.__main__": 5,
}


def module_name(path: Path) -> str:
    parts = ["bnorm", *path.relative_to(SRC).with_suffix("").parts]
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {module_name(path) for path in SOURCES if path.suffix in {".py", *CYTHON}}


def floor(module: str) -> int:
    if module in FLOORS:
        return FLOORS[module]
    folder = module.rpartition(".")[0]
    assert folder != "bnorm", f"{module}: give it a floor in FLOORS"
    return floor(folder)


def python_only(text: str) -> str:
    """The import statements of a Cython source, cimports as imports."""
    statement = re.compile(r"^[ \t]*((?:from[ \t]+\S+[ \t]+)?c?import[ \t]+(?:\([^)]*\)|[^(\n]+))$", re.MULTILINE)
    return "\n".join(re.sub(r"\bcimport\b", "import", line) for line in statement.findall(text))


def imported(path: Path) -> set[str]:
    """The modules of bnorm that a source imports, wherever in the file it does."""
    text = path.read_text(encoding="utf-8")
    name = module_name(path)
    package = name if path.stem == "__init__" else name.rpartition(".")[0]
    found = set()
    for node in ast.walk(ast.parse(python_only(text) if path.suffix in CYTHON else text)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            above = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            source = ".".join([*above, *filter(None, [node.module])])
            for alias in node.names:
                inside = f"{source}.{alias.name}"
                found.add(inside if inside in MODULES else source)
    return {module for module in found if module.split(".")[0] == "bnorm"} - {name}


def test_one_version():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    heading = re.search(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.MULTILINE)
    versions = {project["version"], bnorm.__version__, metadata.version("bnorm"), heading and heading[1]}
    assert versions == {project["version"]}


def test_import_brings_numpy_and_itself():
    _, new = child.beside_numpy("import bnorm")
    foreign = {name.partition(".")[0] for name in new} - set(sys.stdlib_module_names) - {"bnorm", "numpy"}
    assert not {name for name in foreign if "cython" not in name}  # Cython's own bookkeeping is no package
    others = {name for name in new if name.partition(".")[0] not in {"bnorm", "numpy"}}
    assert len(others) < 20, others  # of the standard library, as more of it takes longer than bnorm itself


def test_import_is_quick():
    """It makes less than half of the calls that importing NumPy makes: a fifth. In time it is two fifths."""
    calls, _ = child.beside_numpy("import bnorm")
    assert 0 < calls < 0.5


def test_imports_point_down():
    graph: dict[str, set[str]] = {}
    for path in SOURCES:
        if path.suffix in {".py", *CYTHON}:
            graph.setdefault(module_name(path), set()).update(imported(path))
    upward = {(name, target) for name, targets in graph.items() for target in targets if floor(target) > floor(name)}
    assert not upward
    list(graphlib.TopologicalSorter(graph).static_order())  # CycleError names the circle
    assert "bnorm.kernels.view" in graph["bnorm.functional"]  # the reading of imports itself works,
    assert "bnorm.kernels.cpu.threads" in graph["bnorm.kernels.cpu.entries"]  # in Python and in Cython


def test_private_names_of_scikit_learn_are_in_one_file():
    private = re.compile(r"^\s*(?:from sklearn[\w.]*\._|from sklearn[\w.]* import .*\b_|import sklearn[\w.]*\._)", re.M)
    found = [path.name for path in SOURCES if path.suffix == ".py" and private.search(path.read_text(encoding="utf-8"))]
    assert found == ["sklearn_private.py"]


@together(path=[str(path.relative_to(SRC)) for path in SOURCES])
def test_sources(path):
    text = (SRC / path).read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 400, "two rooms in one"
    if Path(path).suffix in {".py", *CYTHON}:
        assert not re.search(r"^\s*assert\b", text, re.MULTILINE), "an assert is no error message: it vanishes under -O"


def test_python_sources_say_what_they_are_for():
    silent = [path for path in SOURCES if path.suffix == ".py" and not ast.get_docstring(ast.parse(path.read_text()))]
    assert not silent


def test_names_exist():
    listing = [path for path in SOURCES if path.suffix == ".py" and "__all__ =" in path.read_text(encoding="utf-8")]
    assert SRC / "__init__.py" in listing
    of_a_neighbor = {
        "bnorm.xarray": "xarray",
        "bnorm.interop.gymnasium": "gymnasium",
        "bnorm.interop.sb3": "stable_baselines3",
    }
    for path in listing:
        name = module_name(path)
        if name in of_a_neighbor and find_spec(of_a_neighbor[name]) is None:
            continue
        module = import_module(name)
        missing = [name for name in module.__all__ if not hasattr(module, name)]
        assert not missing, module.__name__


def test_modules_come_when_they_are_used():
    code = "import bnorm; bnorm.plot.RunningStatsDisplay, bnorm.sklearn.StandardScaler, bnorm.distributed.merge_all; "
    code += "bnorm.interop.sklearn.to_standard_scaler; print(*dir(bnorm))"
    names = child.printed(code).split()
    assert {*bnorm.__all__, "distributed", "interop", "plot", "sklearn", "xarray"} == set(names)


@pytest.mark.parametrize("name", ["functional", "sklearn", "xarray"])
def test_a_module_lists_what_it_offers(name):
    """And not what it imports, so that completion in a shell shows what is meant for users."""
    if name == "xarray":
        pytest.importorskip("xarray")
    module = import_module(f"bnorm.{name}")
    assert dir(module) == sorted(module.__all__)


def test_type_information_is_installed():
    package = resources.files("bnorm")
    assert (package / "py.typed").is_file()
    compiled = [path.relative_to(SRC).with_suffix(".pyi") for path in SOURCES if path.suffix == ".pyx"]
    levels = [path for path in compiled if path.stem in {"table", "task"}]  # each several modules
    compiled = {*compiled, *(path.with_stem("baseline") for path in levels)}.difference(levels)
    assert compiled
    missing = [path for path in compiled if not (package / path).is_file()]
    assert not missing


@pytest.fixture
def setup_script(monkeypatch):
    """What setup.py defines for some levels."""
    pytest.importorskip("Cython", reason="it builds")
    setuptools = pytest.importorskip("setuptools", reason="it builds")

    def run(levels):
        monkeypatch.setenv("BNORM_LEVELS", levels)
        monkeypatch.setattr(setuptools, "setup", lambda **options: None)
        monkeypatch.chdir(ROOT)
        return SimpleNamespace(**runpy.run_path("setup.py"), distribution=setuptools.Distribution())

    return run


def test_build_leaves_no_other_levels(setup_script, tmp_path):
    """A wheel has the levels of its own build, whatever an earlier one left behind."""
    script = setup_script("baseline")
    build = script.BuildExt(script.distribution)
    build.finalize_options()
    build.build_lib = str(tmp_path)
    for level in ("baseline", *script.OTHERS):
        path = Path(build.get_ext_fullpath(f"bnorm.kernels.cpu.loops.{level}"))
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    build.run()
    assert [path.name.partition(".")[0] for path in path.parent.iterdir()] == ["baseline"]


def test_levels_to_build(setup_script):
    every = list(setup_script("").LEVELS)
    assert every[-1] == "baseline"
    assert list(setup_script(f"{every[0]}, baseline,").LEVELS) == list(dict.fromkeys([every[0], "baseline"]))
    with pytest.raises(SystemExit, match=r"^BNORM_LEVELS: expected some of .*baseline, got 'baseline,mmx'$"):
        setup_script("baseline,mmx")


def test_build_starts_anew_with_another_compiler(setup_script, monkeypatch, tmp_path):
    monkeypatch.setenv("BNORM_NO_OPENMP", "1")
    script = setup_script("")
    forced = []
    for command in (["gcc", "-O2"], ["gcc", "-O2"], ["gcc", "-O0"], ["clang", "-O0"]):
        build = script.BuildExt(script.distribution)
        build.finalize_options()
        build.build_temp = str(tmp_path)
        build.compiler = SimpleNamespace(compiler_type="unix", compiler_so=command, compile=lambda *_, **__: [])
        build.build_extensions()
        forced.append(build.force)
    assert forced == [True, False, True, True]


def test_readme_sets_up_in_two_lines():
    lines = [line for line in README.splitlines() if line.startswith("python3 -m venv")]
    assert len(lines) == 2
    assert lines[0].endswith("bnorm demo")
    assert '".[test]"' in lines[1]
    assert lines[1].split()[-1] == "pytest"


def test_readme_examples():
    blocks = re.findall(r"^```python\n(.*?)^```", README, re.MULTILINE | re.DOTALL)
    test = doctest.DocTestParser().get_doctest("\n".join(blocks), {}, "README.md", "README.md", 0)
    result = doctest.DocTestRunner().run(test)
    assert result.attempted > 5
    assert result.failed == 0
