"""Configuration of the documentation: ``make docs`` builds it with warnings as errors and without network."""

from __future__ import annotations

import os
import re
from importlib.metadata import version as installed_version
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

project = "attsvm"
author = "The attsvm developers"
copyright = author
version = release = installed_version("attsvm")

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.napoleon",
    "sphinx_gallery.gen_gallery",
]
exclude_patterns = ["_build", "gallery/*.ipynb", "gallery/*.py", "gallery/*.md5", "gallery/*.zip", "examples"]
myst_heading_anchors = 3
suppress_warnings = [
    "config.cache",  # the gallery's sorting function cannot be pickled
    "ref.python",  # words of shapes, "(batch, d)", are looked up as names and may be several
]

html_theme = "furo"
html_title = "attsvm"
html_static_path: list[str] = []

autodoc_typehints = "none"  # types stand in the docstrings, with shapes
autodoc_member_order = "bysource"
autosummary_generate = False
napoleon_use_rtype = False
napoleon_use_ivar = True


def _escape_signs(_app: object, _what: str, _name: str, _thing: object, _options: object, lines: list[str]) -> None:
    """Norms ``|x|`` and shapes ``(*batch, m)`` in plain text are no markup."""
    for i, line in enumerate(lines):
        if not line.lstrip().startswith((">>>", "...")):
            parts = line.split("``")
            parts[::2] = [re.sub(r"(?<!\\)\||(?<=\()\*(?=\w)", r"\\\g<0>", part) for part in parts[::2]]
            lines[i] = "``".join(parts)


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
    "show_memory": False,
    "show_signature": False,
    "remove_config_comments": True,
    "min_reported_time": 1,
}
