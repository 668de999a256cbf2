"""Names of a package that are loaded at first use."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from types import ModuleType
from typing import Any

__all__ = ["attach", "lazy_module", "load"]


def load(package: str, table: Mapping[str, str], name: str) -> object:
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
    >>> load("shapes", {"sqrt": "math"}, "sqrt").__name__
    'sqrt'
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


def attach(
    package: str, table: Mapping[str, str], names: Sequence[str]
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """``__getattr__`` and ``__dir__`` of a package: names from its modules at first use, and what it lists.

    Parameters
    ----------
    package : str
    table : mapping of str to str
        Modules of the package by object.
    names : sequence of str
        Its ``__all__``.

    Examples
    --------
    >>> from attsvm._lazy import attach
    >>> get, names = attach("xml", {"escape": "sax.saxutils"}, ["escape"])
    >>> get("escape")("<"), names()
    ('&lt;', ['escape'])
    """
    modules = {name: f"{package}.{module}" for name, module in table.items()}
    return lambda name: load(package, modules, name), lambda: sorted(names)


class _Missing:
    """What a module that is not installed would have: it may be named, so that what names it can be listed."""

    def __init__(self, package: str) -> None:
        self._package = package

    def __getattr__(self, name: str) -> _Missing:
        if name.startswith("__"):
            raise AttributeError(name)
        return self

    def __call__(self, *arguments: object, **options: object) -> _Missing:
        return self


class _LazyModule(ModuleType):
    """A module that is imported when something of it is first asked for."""

    def __getattr__(self, name: str) -> Any:
        try:
            return getattr(import_module(self.__name__), name)
        except ModuleNotFoundError as error:
            return _Missing(str(error.name))


def lazy_module(name: str) -> ModuleType:
    """A stand-in for a module that may not be installed, so that what only names it can be imported without it.

    Examples
    --------
    >>> from attsvm._lazy import lazy_module
    >>> lazy_module("math").floor(2.5)
    2
    """
    return _LazyModule(name)
