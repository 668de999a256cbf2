"""Cases of public functions: the choices that a signature offers, and how one call of them is made and judged.

`public_functions` lists what `attsvm` and its documented modules export, `axes_of` reads the options of one of them:
the values of a ``Literal``, of a ``bool`` and of a string whose docstring lists them (``norm : {"a", "b"}``), and
None against something given for what is optional. Other arguments (numbers, arrays) have no list of choices. `covering`
draws few combinations in which all pairs of choices meet.

A case is a function of a `Call`: it makes the arguments for the size and form of the call, calls through `Call.run`,
which counts elementary work, and yields a sentence for everything that separate arithmetic contradicts.
"""

from __future__ import annotations

import builtins
import inspect
import io
import os
import re
import sys
import tempfile
import time
import traceback
import types
import typing
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass, field, fields, is_dataclass
from importlib import import_module
from itertools import combinations, product
from pathlib import Path
from pkgutil import resolve_name
from typing import Any, Literal, TypeVar
from zlib import crc32

import numpy as np

import attsvm
from attsvm.dynamics.polarization.value_losses import NORMALIZATIONS
from attsvm.losses import LOSSES
from attsvm.solvers import ConvergenceWarning
from attsvm.solvers.deadline import within
from attsvm.validation.matrix import EXPRESSIONS

GIVEN = "given"
"""Stands for a value of an optional argument that the case makes itself."""

Row = dict[str, Any]
"""One combination: a value for each axis."""

# Documented modules whose functions are public besides those of `attsvm` itself; classes that are called for work.
MODULES = (
    "attsvm.attention", "attsvm.softmax", "attsvm.theory", "attsvm.joint", "attsvm.multiclass", "attsvm.next_token",
    "attsvm.editing", "attsvm.key_dimensions", "attsvm.enumeration", "attsvm.sklearn", "attsvm.torch", "attsvm.export",
    "attsvm.dynamics.conditioning", "attsvm.dynamics.localization", "attsvm.dynamics.polarization",
    "attsvm.dynamics.specialization",
)  # fmt: skip

SINGLE = (
    "attsvm.solvers.solve", "attsvm.trained_head.split_heads", "attsvm.probing.heads_from_arrays",
    "attsvm.sklearn.AttentionSelector",
)  # fmt: skip

# Methods that do work of their own.
METHODS = (
    "attsvm.solution:Solution.sensitivity", "attsvm.solution:Solution.derivative", "attsvm.solvers:Certificate.save",
    "attsvm.enumeration:LocalOptima.save_certificate",
)  # fmt: skip

# Strings of the whole library whose choices are registries, not lists in a docstring.
_WORDS: dict[str, tuple[str, ...]] = {
    "norm": tuple(EXPRESSIONS),
    "loss": tuple(LOSSES),
    "solver": ("auto", "cvxpy"),  # own solvers by name: `attsvm.validation.matrix`
    "form": ("corrected", "printed"),
    "activation": ("softmax", "softmax1", "bayes"),
    "normalization": tuple(NORMALIZATIONS),
}


@dataclass(frozen=True)
class Option:
    """An option of a function.

    Attributes
    ----------
    name : str
    choices : tuple
        Values it may take; empty when they cannot be listed.
    listed : bool
        False for a string whose choices are said neither by its type nor by its docstring: a case must say them.
    """

    name: str
    choices: tuple[Any, ...]
    listed: bool = True


def public_functions() -> dict[str, Callable[..., Any]]:
    """Public functions and `METHODS` by their full name, each once, under the first name it has.

    Examples
    --------
    >>> "attsvm.att_svm" in public_functions()
    True
    """
    names = [f"attsvm.{name}" for name in attsvm.__all__]
    names += [f"{module}.{name}" for module in MODULES for name in import_module(module).__all__]
    found: dict[str, Callable[..., Any]] = {}
    for name in (*names, *SINGLE):
        module, _, attribute = name.rpartition(".")
        thing = getattr(import_module(module), attribute)
        known = any(thing is other for other in found.values())
        if (inspect.isfunction(thing) or name in SINGLE) and not known:
            found[name] = thing
    return found | {name.replace(":", "."): resolve_name(name) for name in METHODS}


class _Unknown:
    """Stands for a type that is imported for type checkers only."""

    def __class_getitem__(cls, item: object) -> type[_Unknown]:
        return cls


class _Names(dict[str, Any]):
    """Names of a module; what is missing is some type."""

    def __missing__(self, name: str) -> Any:
        if hasattr(builtins, name):
            return getattr(builtins, name)
        if name in ("torch", "nn", "nx", "cvxpy"):  # modules, whose names stand for types
            names = ("Tensor", "Module", "Generator", "device", "dtype", "DiGraph", "Variable")
            return types.SimpleNamespace(**dict.fromkeys(names, _Unknown))
        return _Unknown


def _type_of(annotation: Any, function: Callable[..., Any]) -> Any:
    if not isinstance(annotation, str):
        return annotation
    home = inspect.unwrap(function.__init__ if inspect.isclass(function) else function)
    return eval(annotation, {}, _Names(home.__globals__))


def _parts(kind: Any) -> Iterator[Any]:
    """Members of a union, or the type itself."""
    if typing.get_origin(kind) in (typing.Union, types.UnionType):
        for part in typing.get_args(kind):
            yield from _parts(part)
    else:
        yield kind


def _documented(name: str, text: str) -> tuple[str, ...]:
    """Choices that a docstring lists: ``name : {"a", "b"}``."""
    found = re.search(rf"^\s*(?:\w+, )*{name}(?:, \w+)* : [^\n]*?\{{([^}}\n]*)\}}", text, re.MULTILINE)
    return tuple(re.findall(r"\"([^\"]+)\"", found[1])) if found else ()


def _listed(part: Any) -> tuple[Any, ...]:
    """Values that a type lists."""
    return typing.get_args(part) if typing.get_origin(part) is Literal else (False, True) if part is bool else ()


def _choices(name: str, kind: Any, default: Any, text: str) -> Option | None:
    """The option of one parameter; None for one without a list of choices."""
    parts = list(_parts(kind))
    optional = type(None) in parts or default is None
    if not {bytes, np.dtype}.isdisjoint((*parts, *map(typing.get_origin, parts))):  # an array or a dtype, not a word
        parts = [part for part in parts if part not in (str, bool)]
    values: list[Any] = [None] if optional else []
    values += dict.fromkeys(value for part in parts for value in _listed(part))
    words = _documented(name, text) or _WORDS.get(name, ())
    if str in parts and Path not in parts and len(values) == optional:
        if not words and default is not None:
            return Option(name, (), listed=False)
        values += words
    if optional and len(values) == 1:
        values.append(GIVEN)
    return Option(name, tuple(values)) if len(values) > 1 else None


def options_of(function: Callable[..., Any]) -> list[Option]:
    """The options of a function in the order of its signature; keywords of a typed ``**options`` are among them.

    Examples
    --------
    >>> [option for option in options_of(attsvm.satt_svm) if option.name == "causal"]
    [Option(name='causal', choices=(False, True), listed=True)]
    """
    text = inspect.getdoc(function) or ""
    found: list[Option] = []
    for parameter in inspect.signature(function).parameters.values():
        kind = _type_of(parameter.annotation, function)
        if parameter.kind is parameter.VAR_KEYWORD and typing.get_origin(kind) is typing.Unpack:
            (keywords,) = typing.get_args(kind)
            about = _dataclass_text(function)
            for name, hint in typing.get_type_hints(keywords).items():
                found += _kept(_choices(name, hint, inspect.Parameter.empty, about + text))
        elif parameter.kind not in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL):
            found += _kept(_choices(parameter.name, kind, parameter.default, text))
    return found


def _kept(option: Option | None) -> list[Option]:
    return [] if option is None else [option]


def _dataclass_text(function: Callable[..., Any]) -> str:
    """Docstrings of the classes of settings that a function names in its signature."""
    kinds = [
        part
        for parameter in inspect.signature(function).parameters.values()
        for part in _parts(_type_of(parameter.annotation, function))
    ]
    return "\n".join(inspect.getdoc(kind) or "" for kind in kinds if is_dataclass(kind) and fields(kind))


def axes_of(
    function: Callable[..., Any], words: Mapping[str, Sequence[Any]], skip: Mapping[str, str]
) -> dict[str, tuple[Any, ...]]:
    """The axes of a function: its options, those of ``words`` with the choices given there, without those of ``skip``.

    Parameters
    ----------
    function : callable
    words : mapping
        Choices that the signature does not list (a string without a list), more of them than it lists, or an axis of
        the case's own.
    skip : mapping
        Options that are not varied, and why.

    Raises
    ------
    ValueError
        For a string without a list of choices, a listed choice that ``words`` leaves out, and an option of ``skip``
        that the function does not have: a new choice is covered or said not to be.

    Examples
    --------
    >>> axes_of(attsvm.separating_cone, {}, {})
    {'selection': (None, 'given')}
    """
    offered = {option.name: option for option in options_of(function)}
    name = getattr(function, "__name__", str(function))
    for stale in set(skip) - set(inspect.signature(function).parameters) - set(offered):
        raise ValueError(f"{name} has no option {stale!r}, which its case leaves out")
    axes: dict[str, tuple[Any, ...]] = {}
    for option in offered.values():
        if option.name in skip:
            continue
        if not option.listed and option.name not in words:
            raise ValueError(f"{name}: the choices of {option.name!r} are not listed, and its case does not say them")
        missing = [value for value in option.choices if value not in words.get(option.name, option.choices)]
        if missing:
            raise ValueError(f"{name}: no case for {option.name} = {missing[0]!r}")
        axes[option.name] = tuple(words.get(option.name, option.choices))
    return axes | {key: tuple(values) for key, values in words.items() if key not in axes}


def _drawn(axes: Mapping[str, Sequence[Any]], rng: np.random.Generator) -> dict[str, int]:
    """The place of a random value on each axis."""
    return {name: int(rng.integers(len(values))) for name, values in axes.items()}


def covering(
    axes: Mapping[str, Sequence[Any]], seed: int, refused: Callable[[Row], bool] = lambda row: False, tries: int = 40
) -> list[Row]:
    """Few combinations in which every two values of different axes meet.

    Combinations that the function refuses are avoided where the two values can meet in another one; where they cannot,
    one such combination is among the rows, and the refusal is what is tried.

    Parameters
    ----------
    axes : mapping of str to sequence
    seed : int
    refused : callable, optional
    tries : int
        Random combinations to choose from for each row.

    Examples
    --------
    >>> rows = covering({"a": (0, 1), "b": (0, 1), "c": (0, 1)}, seed=0)
    >>> len(rows) < 8, {(row["a"], row["c"]) for row in rows} == {(0, 0), (0, 1), (1, 0), (1, 1)}
    (True, True)
    """
    rng = np.random.default_rng(seed)
    names = list(axes)
    if len(names) < 2:
        return [{name: value} for name in names for value in axes[name]]
    values = [[(name, k) for k in range(len(axes[name]))] for name in names]
    # Ordered, so that the rows depend on the seed alone.
    open_pairs = dict.fromkeys(pair for one, two in combinations(values, 2) for pair in product(one, two))
    rows = []
    while open_pairs:
        wanted = next(iter(open_pairs))
        trials = [_drawn(axes, rng) | dict(wanted) for _ in range(tries)]
        valued = [{name: axes[name][k] for name, k in trial.items()} for trial in trials]
        taken = [k for k in range(tries) if not refused(valued[k])]
        if taken:
            best = max(taken, key=lambda k: sum(map(open_pairs.__contains__, combinations(trials[k].items(), 2))))
            for pair in combinations(trials[best].items(), 2):
                open_pairs.pop(pair, None)
        else:  # these two values are never taken together
            best = 0
            del open_pairs[wanted]
        rows.append(valued[best])
    return rows


SIZES = ("small", "medium", "large")

# Seconds of a call that takes as long as it likes: a hundred times those of the slowest on a usual machine.
_LONGEST = 120.0

FORMS = ("one", "batch")

Value = TypeVar("Value")


@dataclass
class Call:
    """One call: the combination, random numbers of its own, and the work done so far.

    Attributes
    ----------
    name : str
        Of the function, without its module.
    row : dict
        Values of the axes; "size" and "number" (one problem or a batch) are among them.
    seed : int
    folder : Path
        An empty folder for files.
    work : int
        Calls of Python and built-in functions made inside `run`, which is the unit of elementary work.
    """

    name: str
    row: Row
    seed: int
    folder: Path
    work: int = 0
    rng: np.random.Generator = field(init=False)

    def __post_init__(self) -> None:
        self.rng = np.random.default_rng(self.seed)

    def __getitem__(self, name: str) -> Any:
        return self.row[name]

    @property
    def batch(self) -> int | None:
        """Problems of a batch, or None for one."""
        return 3 if self.row["number"] == "batch" else None

    def pick(self, small: Value, medium: Value, large: Value) -> Value:
        """The value for the size of this call."""
        return (small, medium, large)[SIZES.index(self.row["size"])]

    def given(self, name: str) -> bool:
        """Whether an optional argument is to be given."""
        return self.row[name] is not None

    def options(self, *names: str, **values: Any) -> dict[str, Any]:
        """Keyword arguments: the row's values of these names, and ``values`` where the row says "given"."""
        chosen = {name: self.row[name] for name in names}
        for name, value in values.items():
            chosen[name] = value if self.row[name] == GIVEN else self.row[name]
        return chosen

    def run(self, function: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        """Call a function and count its work.

        A warning of NumPy is an error here; those about unproved answers are left to the status. A call that would not
        end meets a deadline, and its answer is then judged like any other.
        """
        bars = io.StringIO()
        with warnings.catch_warnings(), redirect_stderr(bars), redirect_stdout(bars), _counted(self):
            warnings.simplefilter("error", RuntimeWarning)
            warnings.simplefilter("ignore", ConvergenceWarning)
            return within(_LONGEST, function, *arguments, **options)


@contextmanager
def _counted(call: Call) -> Iterator[None]:
    def count(frame: object, event: str, argument: object) -> None:
        if event in ("call", "c_call"):
            call.work += 1

    before = sys.getprofile()
    sys.setprofile(count)
    try:
        yield
    finally:
        sys.setprofile(before)


Judge = Callable[[Call], Iterable[str]]


@dataclass(frozen=True)
class Case:
    """How a function is tried.

    Attributes
    ----------
    name : str
        Of the function.
    judge : callable
    axes : dict
        Options and their values, size and number included.
    refused : callable
        Which rows the function documents as an error.
    work : callable
        Calls that one call of the function may take, by its row.
    """

    name: str
    judge: Judge
    axes: Mapping[str, tuple[Any, ...]]
    refused: Callable[[Row], bool]
    work: Callable[[Row], int]


@dataclass(frozen=True)
class Judged:
    """What came of one row.

    Attributes
    ----------
    row : dict
    faults : tuple of str
    refused : bool
        The function raised the error that it documents.
    work : int
    seconds : float
    """

    row: Row
    faults: tuple[str, ...]
    refused: bool
    work: int
    seconds: float


CASES: dict[str, Case] = {}


def never(row: Row) -> bool:
    """Of a function that takes every combination of its options."""
    return False


def case(
    *names: str,
    forms: Sequence[str] = ("one",),
    words: Mapping[str, Sequence[Any]] | None = None,
    skip: Mapping[str, str] | None = None,
    refused: Callable[[Row], bool] = never,
    work: int | Callable[[Row], int] = 100_000,
) -> Callable[[Judge], Judge]:
    """Enter a case for functions of these names; parameters as in `Case` and `axes_of`."""

    def enter(judge: Judge) -> Judge:
        functions = public_functions()
        for name in names:
            axes = {"size": SIZES, "number": tuple(forms)} | axes_of(functions[name], words or {}, skip or {})
            CASES[name] = Case(name, judge, axes, refused, work if callable(work) else lambda row: work)
        return judge

    return enter


def rows_of(name: str, seed: int) -> list[Row]:
    """The combinations of a function: all pairs of values meet."""
    known = CASES[name]
    return covering(known.axes, crc32(name.encode()) + seed, known.refused)


def judge(name: str, row: Row, seed: int) -> Judged:
    """Try a function with one combination of its options.

    Examples
    --------
    >>> judge("attsvm.export.factor", rows_of("attsvm.export.factor", 0)[0], 0).faults
    ()
    """
    known = CASES[name]
    start = time.perf_counter()
    faults, refused, work = _tried(known, row, seed)
    if work > known.work(row):  # a first call loads modules: what counts is the second
        faults, refused, work = _tried(known, row, seed)
    if work > known.work(row):
        faults = (*faults, f"took {work} calls of functions, more than {known.work(row)}")
    return Judged(row, faults, refused, work, time.perf_counter() - start)


def _tried(known: Case, row: Row, seed: int) -> tuple[tuple[str, ...], bool, int]:
    wrong = known.refused(row)
    number = crc32(f"{known.name}{sorted(row.items(), key=str)}".encode()) + seed
    with tempfile.TemporaryDirectory() as folder, _inside(folder):
        call = Call(known.name.rpartition(".")[2], row, number % 2**31, Path(folder))
        try:
            faults = tuple(known.judge(call))
        except (ValueError, TypeError) as error:
            return (() if wrong else (_told(error),)), True, call.work
        except Exception as error:  # whatever it is, it is a finding
            return (_told(error),), False, call.work
    return ((*faults, "was taken, but is documented as an error") if wrong else faults), False, call.work


@contextmanager
def _inside(folder: str) -> Iterator[None]:
    """Functions with a default file write it into the folder of the call."""
    before = os.getcwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)


def _told(error: Exception) -> str:
    where = traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__}: {error} ({Path(where.filename).name}:{where.lineno})"


def close(what: str, found: Any, wanted: Any, tolerance: float = 1e-8) -> Iterator[str]:
    """A sentence unless two arrays agree up to ``tolerance``, relative to the largest entry or 1; NaN equals NaN."""
    a, b = np.asarray(found, dtype=np.float64), np.asarray(wanted, dtype=np.float64)
    if a.shape != b.shape:
        yield f"{what} has shape {a.shape}, wanted {b.shape}"
    elif not (np.isnan(a) == np.isnan(b)).all() or not (a[np.isinf(a)] == b[np.isinf(a)]).all():
        yield f"{what} is not finite where it should be"
    else:
        finite = np.isfinite(a) & np.isfinite(b)
        scale = max(1.0, float(np.abs(b[finite]).max(initial=0.0)))
        off = float(np.abs(a[finite] - b[finite]).max(initial=0.0)) / scale
        if off > tolerance or (np.isfinite(a) != np.isfinite(b)).any():
            yield f"{what} is off by {off:.2e}"
