"""Names of a package that are loaded at first use, and the extras that bring what an installation may lack."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType
from typing import Any

# Packages that an installation may lack, and the extra of attsvm that brings each.
EXTRAS = {
    "torch": "torch", "matplotlib": "plot", "sklearn": "sklearn", "onnx": "onnx", "pandas": "tables",
    "pyarrow": "tables", "distributed": "sweep", "lightning": "lightning", "pytorch_lightning": "lightning",
    "gguf": "probe", "safetensors": "probe", "tensorboard": "probe", "tokenizers": "probe", "transformers": "probe",
    "sentence_transformers": "retrieval",
    "highspy": "bench", "metric_learn": "bench", "qpsolvers": "bench", "rdkit": "bench",
}  # fmt: skip


def installed(module: str) -> bool:
    """Whether a package can be imported, without importing it.

    Examples
    --------
    >>> installed("numpy"), installed("no_such_package")
    (True, False)
    """
    return find_spec(module) is not None


def _missing(what: str, modules: Sequence[str]) -> ModuleNotFoundError:
    extras = ",".join(dict.fromkeys(EXTRAS[module] for module in modules))
    text = f"{what} needs {' and '.join(modules)}: pip install 'attsvm[{extras}]'"
    return ModuleNotFoundError(text, name=modules[0])


def need(what: str, *modules: str) -> None:
    """Raise a ModuleNotFoundError that names the extra unless all of these packages are installed.

    Parameters
    ----------
    what : str
        What cannot be done without them; the message begins with it.
    *modules : str
        Keys of `EXTRAS`.

    Examples
    --------
    >>> need("to_onnx")
    """
    if missing := [module for module in modules if not installed(module)]:
        raise _missing(what, missing)


@contextmanager
def needs(what: str) -> Iterator[None]:
    """Around imports: a package of `EXTRAS` that is missing raises an error that names the extra.

    Where such blocks are nested, the outermost names what cannot be done: it is what the user called.

    Examples
    --------
    >>> with needs("this"):
    ...     raise ModuleNotFoundError(name="onnx")
    Traceback (most recent call last):
    ...
    ModuleNotFoundError: this needs onnx: pip install 'attsvm[onnx]'
    """
    try:
        yield
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package not in EXTRAS:
            raise
        raise _missing(what, [package]) from error


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
    >>> load("shapes", {"sqrt": "math"}, "sqrt").__name__
    'sqrt'
    """
    if name not in table:
        raise AttributeError(f"module {package!r} has no attribute {name!r}")
    with needs(f"{package}.{name}"):
        module = import_module(table[name])
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
    >>> get, names = attach("xml", {"escape": "sax.saxutils"}, ["escape"])
    >>> get("escape")("<"), names()
    ('&lt;', ['escape'])
    """
    modules = {name: f"{package}.{module}" for name, module in table.items()}
    return lambda name: load(package, modules, name), lambda: sorted(names)


class _Missing:
    """What a module that is not installed would have: it may be named, so that what names it can be listed."""

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
        except ModuleNotFoundError:
            return _Missing()


def lazy_module(name: str) -> ModuleType:
    """A stand-in for a module that may not be installed, so that what only names it can be imported without it.

    Examples
    --------
    >>> lazy_module("math").floor(2.5)
    2
    """
    return _LazyModule(name)
