"""Names of a package that are loaded at first use."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any

__all__ = ["load"]


def load(package: str, table: Mapping[str, str], name: str) -> Any:
    """The object called ``name`` from the module that ``table`` names for it.

    Parameters
    ----------
    package : str
        ``__name__`` of the package whose ``__getattr__`` this serves.
    table : mapping of str to str
        Full module names by object.
    name : str

    Examples
    --------
    >>> from attsvm._lazy import load
    >>> load("shapes", {"sqrt": "math"}, "sqrt")(9.0)
    3.0
    """
    if name not in table:
        raise AttributeError(f"module {package!r} has no attribute {name!r}")
    try:
        module = import_module(table[name])
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        raise ImportError(f"{package}.{name} needs torch: pip install 'attsvm[torch]'") from error
    return module if table[name] == f"{package}.{name}" else getattr(module, name)  # a submodule itself
