"""The compiled methods, called through ctypes, with the BLAS and LAPACK that SciPy ships.

A method whose steps are a hundred operations on arrays of forty numbers spends its time in calls from Python, not in
arithmetic: in C the same steps take a tenth. The library is built when the package is installed. It knows nothing of
Python and holds no lock, so that the problems of a batch share the cores.
"""

from __future__ import annotations

import ctypes
import os
import re
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, partial
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from attsvm.solvers.arrays import FloatArray, IntArray
from attsvm.solvers.deadline import watched
from attsvm.solvers.norms import Entrywise, Norm

__all__ = ["GroupPenalty", "Measures", "NuclearSteps", "Sense", "minimize", "why_missing"]

Sense = npt.NDArray[np.int8]
"""Of a row: 1 for an inequality, 0 for an equality, -1 where there is no row."""

# In the order of `Routines` in steps.h, each with what its arguments point to: c for char, i for int, d for double.
ROUTINES = {
    "scipy.linalg.cython_blas": {
        "dgemm": "cciiiddididdi", "dgemv": "ciiddididdi", "dsyrk": "cciiddiddi", "dsymv": "ciddididdi",
        "dtrsm": "cccciiddidi",
    },
    "scipy.linalg.cython_lapack": {
        "dpotrf": "cidii", "dpotrs": "ciididii", "dsyevd": "ccididdiiii", "dgesdd": "ciididdididiii",
        "dgesv": "iidiidii", "dgeqrf": "iididdii", "dorgqr": "iiididdii",
    },
}  # fmt: skip
_POINTED_TO = {"c": "char", "i": "int", "d": "double"}
# In the order of the kinds in minimize.c.
_KINDS = ("spectral", "l1", "linf", "lp", "frobenius")
# In the order of the losses in steps.h.
LOSSES = ("hard", "hinge", "squared_hinge")
# Numbers in the rows of a batch, written out, from which on its problems are shared between threads.
_SHARED = 1 << 15
# Of rows, of entries of W and of problems: C counts them in int, and bytes of a matrix of that order in 63 bits.
_LARGEST = 1 << 27
# Of p + q where singular values are involved: LAPACK counts the 4 (p + q)^2 numbers that it works with in int.
_WIDEST = 20_000
# Operations of one step of all problems from which on a call is watched: some twenty steps are a twentieth of a second.
_LONG = 2_500_000


class _MissingError(ImportError):
    """The compiled library, or what it calls, is not there."""

    def __init__(self, reason: str) -> None:
        super().__init__(f"the compiled solvers of attsvm are missing: {reason}; solver='cvxpy' does without")
        self.reason = reason


# Not through the import system: the library is no module, and one file serves every Python.
_PATH = Path(__file__).with_name("_kernels.dll" if os.name == "nt" else "_kernels.so")


@cache
def _opened() -> ctypes.CDLL:
    """The library as the linker loads it: what calls no BLAS may be called."""
    if not _PATH.exists():
        raise _MissingError("they were not built ('pip install' builds them, also from a checkout)")
    try:
        return ctypes.CDLL(str(_PATH))
    except OSError as error:  # of another machine or system
        raise _MissingError(f"{_PATH.name} cannot be loaded: {error}") from error


def _signature(name: bytes) -> str:
    """Of a capsule: Cython writes the C type of the function there, with a typedef of its own for double."""
    return re.sub(r"\b__pyx_t_\w+_d \*", "double *", name.decode())


def _address(module: str, name: str, arguments: str) -> int:
    """Where a routine of SciPy's BLAS or LAPACK begins; SciPy exports them for use from C.

    A SciPy that was built for 64-bit integers (ILP64) would read and write beyond our 32-bit ones.
    """
    capsule = import_module(module).__pyx_capi__.get(name)
    if capsule is None:
        raise _MissingError(f"{module} exports no {name}")
    of_name, pointer = ctypes.pythonapi.PyCapsule_GetName, ctypes.pythonapi.PyCapsule_GetPointer
    of_name.restype, of_name.argtypes = ctypes.c_char_p, [ctypes.py_object]
    pointer.restype, pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    found, expected = of_name(capsule), f"void ({', '.join(f'{_POINTED_TO[kind]} *' for kind in arguments)})"
    if _signature(found) != expected:
        raise _MissingError(
            f"they call a SciPy of 32-bit integers (LP64), as its wheels are, but {module}.{name} is "
            f"{_signature(found)!r} here, not {expected!r}"
        )
    return int(pointer(capsule, found))


@cache
def why_missing() -> str:
    """Why the compiled methods cannot be called here; empty where they can.

    Examples
    --------
    >>> from attsvm.solvers.compiled.kernels import why_missing
    >>> why_missing()
    ''
    """
    try:
        _library()
    except _MissingError as error:
        return error.reason
    return ""


@cache
def _library() -> ctypes.CDLL:
    """The library, bound to its routines."""
    library = _opened()
    addresses = [_address(module, *each) for module, routines in ROUTINES.items() for each in routines.items()]
    library.attsvm_bind((ctypes.c_void_p * len(addresses))(*addresses))
    whole, real, array = ctypes.c_int, ctypes.c_double, ctypes.c_void_p
    library.attsvm_minimize.argtypes = [whole, real, *7 * [whole], *10 * [array], whole, real, array]
    library.attsvm_nuclear.argtypes = [*6 * [whole], *11 * [array], whole, real, array]
    library.attsvm_nuclear_step.argtypes = [*3 * [whole], *8 * [array]]
    return library


def _check_sizes(*sizes: int, width: int = 0) -> None:
    """Refuse what int does not hold: ctypes would cut it off."""
    if max(sizes) > _LARGEST:
        raise MemoryError(f"the compiled solvers take at most {_LARGEST} rows or entries of W, got {max(sizes)}")
    if width > _WIDEST:
        raise MemoryError(f"the compiled solvers take dx + dz of at most {_WIDEST} in this norm, got {width}")


def _begin(array: npt.NDArray[Any]) -> int:
    """Where the numbers of an array begin."""
    return int(array.__array_interface__["data"][0])


@dataclass(frozen=True, eq=False)
class GroupPenalty:
    """What violated rows cost in the coordinates of unit rows: ``C sum eta`` or ``C sum eta^2`` over groups of rows.

    Row k may be violated by ``weight_k`` times the slack ``eta`` of its group.

    Attributes
    ----------
    loss : {"hinge", "squared_hinge"}
    groups : int
    group : ndarray of intc, shape (*batch, m)
    weight : ndarray, shape (*batch, m)
        Positive; 0 where there is no row.
    C : ndarray, shape (B,)
        One number per problem.
    """

    loss: str
    groups: int
    group: npt.NDArray[np.intc]
    weight: FloatArray
    C: FloatArray


def _by_entries(m: int, N: int, quadratic: bool, soft: bool, sense: Sense) -> int:
    """Whether a system of the order of the entries of W is the cheaper one; equality rows have none."""
    # Hard margins end at vertices, which systems of the order of the rows tell sooner.
    smaller = m > (2 * N if quadratic else N if soft else 4 * N)  # the Gram matrix of a quadratic norm is formed once
    return int(smaller and bool(np.all(sense)))


def minimize(
    norm: Norm,
    left: FloatArray,
    right: FloatArray,
    c: FloatArray,
    sense: Sense,
    first: FloatArray,
    steps: int,
    goal: float,
    room: FloatArray | None = None,
    penalty: GroupPenalty | None = None,
) -> tuple[FloatArray, FloatArray, IntArray]:
    """Least norms, of one problem or of a batch: W, multipliers whose dual matrix is in the dual ball, and steps taken.

    A deadline (`attsvm.solvers.deadline`) ends every problem with the step that it is in; W is NaN for those of a batch
    that were not begun.

    Parameters
    ----------
    norm : Norm
        "frobenius" (``|W|^2 / 2`` is minimized), "nuclear", "spectral", "l1", "linf" or "l<p>".
    left, right : ndarray, shape (*batch, m, p) and (*batch, m, q)
        Factors of unit rows; zero where there is no row.
    c : ndarray, shape (*batch, m)
    sense : ndarray of int8, shape (*batch, m)
        All 1 or -1 for a soft margin.
    first : ndarray, shape (*batch, m)
        Multipliers to start from, of any scale: best those of the least Frobenius norm.
    steps : int
        At most so many for each.
    goal : float
        Relative gap that ends the method.
    room : ndarray, shape (*batch, m), optional
        Nuclear norm: what a violation of 1 in the sense of certificates amounts to, 1 by default. There a row that
        does not exist is an inequality that asks for less than 0, and W is NaN where ``first`` has no meaning.
    penalty : GroupPenalty, optional
        Of a soft margin; None for a hard one.

    Examples
    --------
    ``W_1 + 2 W_2 >= 3``: all of W in the second entry, or both entries alike.

    >>> import numpy as np
    >>> from attsvm.solvers import get_norm
    >>> from attsvm.solvers.compiled.kernels import minimize
    >>> rows = np.array([[1.0, 2.0]]), np.ones((1, 1)), np.array([3.0]), np.ones(1, dtype=np.int8)
    >>> for name in ("l1", "linf"):
    ...     minimize(get_norm(name), *rows, np.ones(1), 50, 1e-10)[0].ravel().round(6)
    array([0. , 1.5])
    array([1., 1.])
    """
    library, nuclear = _library(), norm.name == "nuclear"
    *batch, m, p = left.shape
    q, B = right.shape[-1], batch[0] if batch else 1
    groups = 0 if penalty is None else penalty.groups
    _check_sizes(B, m, p * q, groups, width=p + q if norm.name in ("nuclear", "spectral") else 0)
    left, right, c = (np.ascontiguousarray(x, dtype=np.float64) for x in (left, right, c))
    W, lam, taken = np.empty((B, p, q)), np.array(first, dtype=np.float64, order="C"), np.zeros(batch, np.intc)
    senses, loss = np.ascontiguousarray(sense), 0
    soft: tuple[npt.NDArray[Any], ...] = (np.zeros(B, dtype=np.intc), np.zeros(B), np.zeros(B))  # nothing is read
    if penalty is not None:
        loss = LOSSES.index(penalty.loss)
        soft = tuple(np.ascontiguousarray(x) for x in (penalty.group, penalty.weight, penalty.C))
    wide = np.ones_like(c) if room is None else np.ascontiguousarray(room, dtype=np.float64)
    small = _by_entries(m, p * q, norm.name == "frobenius", penalty is not None, senses)
    arrays: tuple[npt.NDArray[Any], ...] = (left, right, c, senses, *soft, W, lam, taken)
    entry: Callable[..., int]
    if nuclear:
        arrays, entry = (left, right, c, wide, senses, *soft, W, lam, taken), partial(library.attsvm_nuclear, loss)
    else:
        kind, power = _KINDS.index(norm.family), norm.p if isinstance(norm, Entrywise) else 0.0
        entry = partial(library.attsvm_minimize, kind, power, loss, small)

    stop = np.zeros(1, dtype=np.intc)

    def run(begin: int, end: int) -> int:
        return int(entry(end - begin, m, p, q, groups, *_from(begin, arrays, B), steps, goal, _begin(stop)))

    W[_for_all(run, B, m * p * q, m * p * q * min(m, p * q), stop)] = np.nan
    return W.reshape(*batch, p, q), lam, taken.astype(np.int64)


def _from(begin: int, arrays: tuple[npt.NDArray[Any], ...], B: int) -> list[int]:
    """Where the numbers of a problem of a batch begin, in every array."""
    return [_begin(x) + begin * (x.nbytes // B) for x in arrays]


def _for_all(
    run: Callable[[int, int], int], B: int, numbers: int, operations: int, stop: npt.NDArray[np.intc] | None = None
) -> IntArray:
    """All problems of a batch, shared between the cores where they are many; the problems that the deadline left out.

    ``run`` tells how many it has done; ``operations`` are those of one step of one problem. Setting ``stop`` makes the
    problems that are running end; without it they are short.
    """

    def checked(begin: int, end: int) -> None:
        if run(begin, end) < end - begin:
            raise MemoryError(f"no memory for a problem whose rows have {numbers} entries")

    workers = min(os.cpu_count() or 1, B) if B * numbers >= _SHARED else 1
    if workers == 1 and B * operations < _LONG:
        checked(0, B)
        return np.empty(0, dtype=np.int64)
    # Several parts for each thread: problems take different numbers of steps, and a deadline may come.
    size = max(1, min(-(-B // (4 * workers)), _LONG // operations))
    parts = deque(range(0, B, size))
    left: list[int] = []

    def work() -> None:
        while parts:
            try:
                begin = parts.popleft()
            except IndexError:  # another thread took the last one
                return
            checked(begin, min(begin + size, B))

    def end() -> None:
        if stop is not None:
            stop[0] = 1
        while parts:
            with suppress(IndexError):
                left.append(parts.popleft())

    watched(work, end, workers)
    return np.array([k for begin in left for k in range(begin, min(begin + size, B))], dtype=np.int64)


class Measures(ctypes.Structure):
    """Where a nuclear interior point stands.

    Attributes
    ----------
    mu : float
        Complementarity per dimension before the last step.
    gap, objective, missed : float
        Relative distance of the objectives, the dual one, and the largest residual of the rows, after it.
    """

    _fields_ = [(name, ctypes.c_double) for name in ("mu", "gap", "objective", "missed")]
    mu: float
    gap: float
    objective: float
    missed: float


class NuclearSteps:
    """Steps of the nuclear norm's interior point method, which move X, lam and slack in place.

    Parameters
    ----------
    a, b : ndarray, shape (m, p) and (m, q)
        Factors of unit rows.
    rhs : ndarray, shape (m,)
    sense : ndarray of int8, shape (m,)
    X : ndarray, shape (p+q, p+q)
    lam, slack : ndarray, shape (m,)

    Attributes
    ----------
    measures : Measures

    Examples
    --------
    ``W >= 1`` for one number: X tends to a matrix of ones.

    >>> import numpy as np
    >>> from attsvm.solvers.compiled.kernels import NuclearSteps
    >>> rows = np.ones((1, 1)), np.ones((1, 1)), np.ones(1), np.ones(1, dtype=np.int8)
    >>> X, lam, slack = 2.0 * np.eye(2), np.array([0.5]), np.ones(1)
    >>> steps = NuclearSteps(*rows, X, lam, slack)
    >>> all(steps.advance() for _ in range(9)), X.round(6).tolist(), steps.measures.gap < 1e-6
    (True, [[1.0, 1.0], [1.0, 1.0]], True)
    """

    def __init__(
        self,
        a: FloatArray,
        b: FloatArray,
        rhs: FloatArray,
        sense: Sense,
        X: FloatArray,
        lam: FloatArray,
        slack: FloatArray,
    ) -> None:
        self.measures = Measures(np.inf, np.inf, np.nan, np.inf)
        if not (X.flags.c_contiguous and lam.flags.c_contiguous and slack.flags.c_contiguous):
            raise ValueError("X, lam and slack are moved in place: they must be in C order")
        _check_sizes(len(rhs), a.shape[1] * b.shape[1], width=len(X))
        fixed = (np.ascontiguousarray(x) for x in (a, b, rhs, sense))
        self._arrays = (*fixed, X, lam, slack)  # their addresses are held: they must live as long
        self._step = _library().attsvm_nuclear_step
        places = (_begin(x) for x in self._arrays)
        self._arguments = (len(rhs), a.shape[1], b.shape[1], *places, ctypes.byref(self.measures))

    def advance(self) -> bool:
        """Take a step; False, and nothing moved, where rounding stops the method."""
        told = self._step(*self._arguments)
        if told > 1:
            raise MemoryError(f"no memory for a step with (rows, p, q) = {self._arguments[:3]}")
        return not told
