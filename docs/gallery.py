"""The gallery: the scripts in examples/ as pages, run where they are quick, with the pictures that they save.

The scripts are for a terminal: their first docstring is plain text. Here it becomes what Sphinx reads.
"""

import re
import shutil
from pathlib import Path

TITLES = {  # what an example shows; another one is called as its file
    "numpy_net": "A NumPy net that trains better with batch norm",
    "conv_net": "A convolutional net, saved and folded for inference",
    "streaming_drift": "A classifier on a stream that drifts",
    "sensors_with_nights": "Sensors that drift, are silent at night and come late",
    "per_store": "Sales of stores, each on a level of its own",
    "learned_scale": "A scale and shift that a net learns",
    "dask_table": "A table larger than memory, with Dask",
    "spark_table": "A table of sensors, with Spark",
    "cartpole_statistics": "Statistics of an online loop, merged over workers",
    "forecast_revin": "A forecaster of series whose level changes",
    "image_statistics": "Statistics of a folder of images",
    "climate_statistics": "Statistics of a climate data set, by the names of dimensions",
    "mpi_sync": "One batch norm over several processes, with MPI",
}
RUN = ("numpy_net", "conv_net", "streaming_drift", "learned_scale", "per_store", "sensors_with_nights")  # quick ones
THUMBNAILS = {  # of those that draw nothing, or are not run: drawn by pictures.py
    "dask_table": "_static/dask_table.png",
    "spark_table": "_static/spark_table.png",
    "mpi_sync": "_static/mpi_sync.png",
    "image_statistics": "_static/image_statistics.png",
    "climate_statistics": "_static/climate_statistics.png",
    "cartpole_statistics": "_static/cartpole_statistics.png",
    "forecast_revin": "_static/forecast_revin.png",
}
HEADER = """Examples
========

Scripts to start from, in the folder `examples`. Those that are quick have run, in their short form.
"""


def plain_examples(scripts, folder):
    """Copies of the scripts in a folder, with the name as title and what is indented as code; the folder's name."""
    folder.mkdir(exist_ok=True)
    (folder / "GALLERY_HEADER.rst").write_text(HEADER, encoding="utf-8")
    for script in scripts.glob("*.py"):
        text = script.read_text(encoding="utf-8")
        _, docstring, code = text.split('"""', 2)
        title = TITLES.get(script.stem, script.stem.replace("_", " ").capitalize())
        docstring = "\n".join(line if line[:1] == " " else plain_words(line) for line in docstring.splitlines())
        docstring = re.sub(r"(?m)^(\S.*?):?\n\n(?= {4}\S)", r"\1\n\n.. code-block:: text\n\n", docstring)
        if script.stem in THUMBNAILS:
            code = f"\n# sphinx_gallery_thumbnail_path = '{THUMBNAILS[script.stem]}'\n{code}"
        new = f'"""\n{title}\n{"=" * len(title)}\n\n{docstring}\n"""{code}'
        copy = folder / script.name
        if not copy.exists() or copy.read_text(encoding="utf-8") != new:
            copy.write_text(new, encoding="utf-8")
    return str(folder)


def plain_words(line):
    """A line of text in which words that end in an underscore are no links."""
    return re.sub(r"(?<![`\w])(\w*[A-Za-z0-9])_(?![`\w])", r"\1\\_", line)


def quick(gallery_conf, script_vars):
    """Arguments of a script that runs for the gallery."""
    return ["--quick"]


def scrape(block, block_vars, gallery_conf):
    """The pictures that a script has saved beside itself."""
    from sphinx_gallery.scrapers import figure_rst

    names = []
    for picture in sorted(Path(block_vars["src_file"]).parent.glob("*.png")):
        name = next(block_vars["image_path_iterator"])
        shutil.move(picture, name)
        names.append(name)
    return figure_rst(names, gallery_conf["src_dir"])


def _get_sg_image_scraper():
    return scrape
