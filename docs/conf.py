"""How Sphinx builds this documentation: `python -m sphinx -W --keep-going docs build/docs`."""

import os
import re
import sys
from pathlib import Path

import bnorm

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))
from gallery import RUN, plain_examples, plain_words  # noqa: E402
from pictures import draw  # noqa: E402

os.environ["TQDM_DISABLE"] = "1"  # examples show their results here, not their progress
draw(HERE / "_static")

project = "bnorm"
author = copyright = "The bnorm developers"
version = release = bnorm.__version__

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx_design",
    "sphinx_gallery.gen_gallery",
]
exclude_patterns = ["examples"]  # what the gallery is made from
suppress_warnings = [
    "config.cache",  # of functions among the settings below
    "ref.python",  # words of types in docstrings, such as shape, that several classes have as a name
]

myst_enable_extensions = ["colon_fence"]
myst_heading_anchors = 3

default_role = "literal"
autodoc_typehints = "none"  # docstrings have the types, in words
autodoc_member_order = "bysource"
autodoc_mock_imports = ["stable_baselines3", "dask", "pyarrow", "pyspark", "ray"]  # which would bring much
toc_object_entries_show_parents = "hide"  # the names of classes would not fit beside the page
napoleon_google_docstring = False
napoleon_use_ivar = True
napoleon_use_rtype = False

sphinx_gallery_conf = {
    "examples_dirs": plain_examples(HERE.parent / "examples", HERE / "examples"),
    "gallery_dirs": "gallery",
    "filename_pattern": rf"({'|'.join(RUN)})\.py",
    "reset_argv": "gallery.quick",
    "image_scrapers": ["gallery"],
    "show_memory": False,
    "show_signature": False,
    "download_all_examples": False,
    "abort_on_example_error": True,
    "min_reported_time": 3600,
    "write_computation_times": False,
}

html_theme = "pydata_sphinx_theme"
html_title = "bnorm"
html_static_path = ["_static"]
html_css_files = ["narrow.css"]
html_sidebars = {"*": []}  # pages without pages below them
html_show_sourcelink = False
html_theme_options = {
    "show_prev_next": False,
    "navbar_align": "left",
    "header_links_before_dropdown": 5,
    "secondary_sidebar_items": ["page-toc"],
    "footer_start": ["copyright"],
    "footer_end": [],
}


def as_text(app, what, name, obj, options, lines):
    """Docstrings are plain text: an underscore ends a word and is no link. A module's stays as it is set."""
    if what == "module":
        lines[:] = [lines[0], "", ".. code-block:: text", "", *(f"    {line}" for line in lines[1:])]
    else:
        lines[:] = [line if line.lstrip().startswith((">>>", "...")) else plain_words(line) for line in lines]


def to_the_gallery(app, page, source):
    """Links to examples, which are right in the repository, lead to their pages in the gallery."""
    source[0] = re.sub(r"\]\(\.\./examples/(\w+)\.py\)", r"](gallery/\1.rst)", source[0])


def setup(app):
    app.connect("source-read", to_the_gallery)
    app.connect("autodoc-process-docstring", as_text, priority=1000)  # after napoleon
