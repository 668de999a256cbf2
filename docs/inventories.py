"""Small inventories of other projects: links to their names without a download while the guide is built."""

from __future__ import annotations

import zlib
from pathlib import Path

# Address of each project, and for its names: kind, page and anchor. "$" stands for the name.
PROJECTS: dict[str, tuple[str, dict[str, tuple[str, str]]]] = {
    "python": (
        "https://docs.python.org/3",
        {
            "callable": ("std:term", "glossary.html#term-$"),
            "concurrent.futures.Executor": ("py:class", "library/concurrent.futures.html#$"),
            "pathlib.Path": ("py:class", "library/pathlib.html#$"),
        },
    ),
    "numpy": (
        "https://numpy.org/doc/stable",
        {
            "array_like": ("std:term", "glossary.html#term-$"),
            "numpy.ndarray": ("py:class", "reference/generated/$.html#$"),
            "numpy.random.Generator": ("py:class", "reference/random/generator.html#$"),
        },
    ),
    "scipy": (
        "https://docs.scipy.org/doc/scipy",
        {"scipy.integrate.solve_ivp": ("py:function", "reference/generated/$.html#$")},
    ),
    "torch": (
        "https://docs.pytorch.org/docs/stable",
        {
            "torch.Generator": ("py:class", "generated/$.html#$"),
            "torch.Tensor": ("py:class", "tensors.html#$"),
            "torch.nn.Linear": ("py:class", "generated/$.html#$"),
            "torch.nn.Module": ("py:class", "generated/$.html#$"),
            "torch.nn.MultiheadAttention": ("py:class", "generated/$.html#$"),
        },
    ),
    "sklearn": (
        "https://scikit-learn.org/stable",
        {
            "sklearn.base.BaseEstimator": ("py:class", "modules/generated/$.html#$"),
            "sklearn.metrics.ndcg_score": ("py:function", "modules/generated/$.html#$"),
        },
    ),
    "networkx": (
        "https://networkx.org/documentation/stable",
        {"networkx.DiGraph": ("py:class", "reference/classes/digraph.html#$")},
    ),
}


def write_inventories(folder: Path) -> dict[str, tuple[str, str]]:
    """Write one ``objects.inv`` per project (Sphinx, version 2) and return the mapping for intersphinx."""
    folder.mkdir(parents=True, exist_ok=True)
    mapping = {}
    for project, (address, names) in PROJECTS.items():
        header = f"# Sphinx inventory version 2\n# Project: {project}\n# Version: \n"
        header += "# The remainder of this file is compressed using zlib.\n"
        body = "".join(f"{name} {kind} 1 {page.replace('$', name)} -\n" for name, (kind, page) in names.items())
        path = folder / f"{project}.inv"
        path.write_bytes(header.encode() + zlib.compress(body.encode()))
        mapping[project] = (address, str(path))
    return mapping
