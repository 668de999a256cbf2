"""A case says how one public function is called with a combination of its options, and judges what it returns.

A case is a function of a `Call`: it makes the arguments for the size and form of the call, calls through `Call.run`,
which counts elementary work, and yields a sentence for everything that separate arithmetic contradicts.
"""

from __future__ import annotations

import io
import os
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar
from zlib import crc32

import numpy as np

from attsvm.solvers import ConvergenceWarning
from attsvm.validation.matrix_calls.axes import GIVEN, Row, axes_of, covering, public_functions

__all__ = ["CASES", "FORMS", "SIZES", "Call", "Case", "Judged", "case", "close", "judge", "never", "rows_of"]

SIZES = ("small", "medium", "large")
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

        A warning of NumPy is an error here; those about unproved answers are left to the status.
        """
        bars = io.StringIO()
        with warnings.catch_warnings(), redirect_stderr(bars), redirect_stdout(bars), _counted(self):
            warnings.simplefilter("error", RuntimeWarning)
            warnings.simplefilter("ignore", ConvergenceWarning)
            return function(*arguments, **options)


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
    >>> from attsvm.validation.matrix_calls import judge, rows_of
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
