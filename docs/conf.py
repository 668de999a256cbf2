"""Configuration of the documentation: ``make docs`` builds it with warnings as errors and without network."""

from __future__ import annotations

import os
import re
import sys
from importlib.metadata import version as installed_version
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))
os.environ.setdefault("OMP_NUM_THREADS", "1")
from inventories import write_inventories  # noqa: E402 - found beside this file
from suite_counts import counts  # noqa: E402

project = "attsvm"
author = "The attsvm developers"
copyright = author
version = release = installed_version("attsvm")

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.napoleon",
    "reference_pages",
    "sphinx.ext.viewcode",
    "sphinx.ext.intersphinx",
    "sphinx.ext.mathjax",
    "sphinx-mathjax-offline",  # MathJax beside the pages: no network
    "sphinx_gallery.gen_gallery",
]

exclude_patterns = [
    "_build",
    "gallery/*.ipynb",
    "gallery/*.py",
    "gallery/*.md5",
    "gallery/*.zip",
    "examples",
    "studies",
]
myst_heading_anchors = 3
myst_enable_extensions = ["dollarmath", "substitution"]
myst_substitutions = counts()  # of the page "How attsvm is tested"
suppress_warnings = [
    "config.cache",  # the gallery's sorting function cannot be pickled
    "ref.python",  # words of shapes, "(batch, d)", are looked up as names and may be several
]

html_theme = "furo"
html_title = "attsvm"
html_static_path = ["_static"]
html_css_files = ["column.css"]  # a text column as wide as the code
html_js_files = ["tables.js"]  # a filter of pages with long tables

default_role = "py:obj"  # `name` is a link if the reference has that name, and code if not
autodoc_typehints = "none"  # types stand in the docstrings, with shapes
autodoc_member_order = "bysource"
autosummary_generate = False
napoleon_use_param = (
    False  # "array_like, shape (n, T)" is text: as a type its words become links to anything of that name
)
napoleon_use_rtype = False
napoleon_use_ivar = True


MARKUP = re.compile(r"(?<!\\)\||(?<=\()\*(?=\w)|(?<=, )\*(?=\w+[,)])")


def _escape_signs(_app: object, _what: str, _name: str, _thing: object, _options: object, lines: list[str]) -> None:
    """Norms ``|x|`` and shapes ``(*batch, m)`` in plain text are no markup; a dot product in code ends no sentence."""
    for i, line in enumerate(lines):
        if not line.lstrip().startswith((">>>", "...")):
            typed = re.match(r"(.*\(\*.*\*\)(?= |$))?", line)[0]  # "**name** (*type*)" is markup that is meant
            parts = line[len(typed) :].split("``")
            parts[::2] = [MARKUP.sub(r"\\\g<0>", part) for part in parts[::2]]
            parts[1::2] = [part.replace(" . ", " · ") for part in parts[1::2]]
            lines[i] = typed.replace("|", r"\|") + "``".join(parts)


def setup(app: Any) -> None:
    """Called by Sphinx; the escapes come after the sections of numpydoc are read."""
    app.connect("autodoc-process-docstring", _escape_signs, priority=900)


sphinx_gallery_conf = {
    "examples_dirs": "examples",
    "gallery_dirs": "gallery",
    "filename_pattern": r"plot_",
    "within_subsection_order": "FileNameSortKey",
    "abort_on_example_error": True,
    "download_all_examples": False,
    "capture_repr": (),  # what a cell ends with is not printed: it is a legend more often than an answer
    "show_memory": False,
    "show_signature": False,
    "remove_config_comments": True,
    "min_reported_time": 1,
}

# Names of other projects, in inventories that are written here: the guide is built without network.
intersphinx_mapping = write_inventories(HERE / "_build" / "inventories")
