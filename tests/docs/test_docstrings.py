"""Docstrings of public names: their examples run, and they describe every parameter."""

import doctest
import inspect
import re
from importlib import import_module
from pathlib import Path

import pytest

import bnorm
from bnorm.exact import ExactMoments

ROOT = Path(__file__).parents[2]
SRC = Path(bnorm.__file__).parent
MODULES = sorted(
    ".".join(("bnorm", *path.relative_to(SRC).with_suffix("").parts)).removesuffix(".__init__")
    for path in SRC.rglob("*.py")
    if re.search(r"^ *>>> ", path.read_text(encoding="utf-8"), re.MULTILINE)
)
FAMILIES = ("bnorm", "bnorm.functional", "bnorm.distributed", "bnorm.plot", "bnorm.interop.folding")
FAMILIES += ("bnorm.interop.sklearn", "bnorm.xarray", "bnorm.sklearn")
PUBLIC = [(family, name) for family in FAMILIES for name in import_module(family).__all__]
PUBLIC += [(f"bnorm.distributed.{name}", f) for name in ("dask", "spark", "ray") for f in ("fit", "transform")]
PUBLIC += [(f"bnorm.distributed.{name}", "moments") for name in ("spark", "ray")]
PUBLIC += [(f"bnorm.interop.{name}", f"{way}_{name}") for name in ("torch", "keras", "flax") for way in ("from", "to")]
PUBLIC += [("bnorm.interop.onnx", "to_onnx"), *((f"bnorm.interop.{name}", "batch_norm") for name in ("torch", "jax"))]
LAYERS = [name for name in bnorm.__all__ if hasattr(getattr(bnorm, name), "vjp")]
NO_CALLS = ("functional", "__version__", "NonFiniteError", "SingleValueError", "Communicator")
CALLED = [one for one in PUBLIC if one[1] not in NO_CALLS]


def imported(module):
    """A module, or skip the test if what it is for is not installed."""
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("bnorm"):
            raise
        pytest.skip(f"not installed: {error.name}")


def described(text):
    """The parameters that a docstring describes, in its order."""
    section = re.search(r"^Parameters\n-+\n(.*?)(?=^\w+\n-+\n|\Z)", text, re.MULTILINE | re.DOTALL)
    heads = re.findall(r"^(\S.*?)(?: :.*)?$", section[1], re.MULTILINE) if section else []
    return [name.lstrip("*") for head in heads for name in head.split(", ")]


@pytest.mark.parametrize("name", MODULES)
def test_examples(name):
    module = imported(name)
    sources = [example.source for found in doctest.DocTestFinder().find(module) for example in found.examples]
    for library in set(re.findall(r"^(?:import|from) (\w+)", "".join(sources), re.MULTILINE)):
        pytest.importorskip(library, reason=f"not installed: {library}")
    result = doctest.testmod(module)
    assert result.attempted and not result.failed


@pytest.mark.parametrize(("module", "name"), CALLED, ids=lambda one: one)
def test_every_parameter_is_described(module, name):
    thing = getattr(imported(module), name)
    text = inspect.getdoc(thing)
    assert text.partition("\n")[0].endswith(".")
    assert described(text) == list(inspect.signature(thing).parameters)
    assert "_typing" not in str(inspect.signature(thing)), "help would print what NumPy means by ArrayLike"


@pytest.mark.parametrize(("module", "name"), [one for one in CALLED if one[1][0].isupper()], ids=lambda one: one)
def test_methods_describe_the_parameters_that_they_have(module, name):
    cls = getattr(imported(module), name)
    for of, method in inspect.getmembers(cls, callable):
        text = inspect.getdoc(method) or ""
        if (not of.startswith("_") or of == "__call__") and method.__module__.startswith("bnorm") and "\nParam" in text:
            parameters = [each for each in inspect.signature(method).parameters if each != "self"]
            assert described(text) == parameters, f"{name}.{of}"


OF_LAYERS = [(name, method) for name in LAYERS for method in ("__call__", "backward", "to")]
OF_STREAMS = ("__call__", "update", "normalize", "denormalize", "load_state_dict")
OF_TREES = [(name, method) for name in ("RunningNorm", "RunningNormTree") for method in OF_STREAMS]


@pytest.mark.parametrize(("name", "method"), OF_LAYERS + OF_TREES)
def test_help_is_complete_without_that_of_another_layer_or_of_the_parts(name, method):
    own = getattr(getattr(bnorm, name), method)
    assert described(inspect.getdoc(own)) == [each for each in inspect.signature(own).parameters if each != "self"]


@pytest.mark.parametrize("cls", [bnorm.Moments, ExactMoments], ids=lambda cls: cls.__name__)
def test_help_lists_the_methods_of_moments_that_the_documentation_has(cls):
    page = (ROOT / "docs" / "api" / "functional.rst").read_text(encoding="utf-8")
    listed = {name for names in re.findall(r"Moments\n +:members: (.*)", page) for name in names.split(", ")}
    own = {name for name in vars(cls) if not name.startswith("_")}
    assert own and own <= listed
