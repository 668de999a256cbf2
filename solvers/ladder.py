"""The table of solvers, and one ladder per norm: which methods are tried on a problem, from quick to robust.

``solver="auto"`` climbs the ladder of the norm until a certificate closes or a proof of infeasibility is found. A name
from `SOLVERS` puts that method first; what it leaves open goes up the same ladder, and ``solution.solver`` names the
method that answered. Foreign solvers and limits on the rank are left alone. No method calls another one to finish what
it could not: what is tried when one gives up stands here.
"""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pkgutil import iter_modules

from attsvm.solvers.compiled.batched_pivoting import MOST_ROWS
from attsvm.solvers.compiled.exchanges import are_few
from attsvm.solvers.compiled.kernels import why_missing
from attsvm.solvers.margin_problem import EitherProblem
from attsvm.solvers.margin_solution import BatchResult, MethodResult, Request
from attsvm.solvers.norms import Norm
from attsvm.solvers.rows.pairs import PairRows
from attsvm.solvers.unit import UnitProblem, UnitProblemBatch

__all__ = ["SOLVERS", "BatchMethod", "Method", "SolverSpec", "follows_faces", "rungs"]

Method = Callable[[UnitProblem, Norm, Request], MethodResult]
BatchMethod = Callable[[UnitProblemBatch, Norm, Request], BatchResult]


@dataclass(frozen=True)
class SolverSpec:
    """A solver's name, what it can do, and where it lives.

    Attributes
    ----------
    name : str
        What ``solver=`` takes; a backend with variants is called as ``"name:VARIANT"``.
    target : str
        ``"module:function"`` of a `Method`, imported at first use.
    norms : frozenset of str or None
        Families of norms whose hard margins it solves; None means all.
    achievable : float
        Accuracy that its certificate can be expected to reach: the default tolerance.
    summary : str
        One line for tables.
    soft_norms : frozenset of str or None
        Families of norms whose soft margins it solves; None means all.
    batched : str
        ``"module:function"`` of a `BatchMethod`, where it works on a whole batch; others are called problem by problem.
    batch_budget : bool
        ``max_iterations`` are steps of each problem of a batch; otherwise a batch with a budget is solved one by one.
    ranks : bool
        Takes ``rank=``.
    compiled : bool
        Needs the compiled library; without it the rungs that do are left out, and the reference ends every ladder.
    foreign : bool
        Somebody else's code: keeps its own threads, takes variants.
    options : frozenset of str or None
        Further keywords it takes; None passes everything on.
    """

    name: str
    target: str
    norms: frozenset[str] | None
    achievable: float
    summary: str
    soft_norms: frozenset[str] | None = frozenset()
    batched: str = ""
    batch_budget: bool = False
    ranks: bool = False
    compiled: bool = False
    foreign: bool = False
    options: frozenset[str] | None = frozenset()

    def load(self) -> Method:
        """Import the method."""
        return _loaded(self.target)

    def load_batched(self) -> BatchMethod:
        """Import the method of a whole batch."""
        return _loaded_batched(self.batched)

    def can(self, norm: Norm, rank: int | None = None, problem: EitherProblem | None = None) -> bool:
        """Whether it solves this kind of problem at all: a hard margin unless a problem is given."""
        soft = problem is not None and problem.penalty is not None
        able = self.soft_norms if soft else self.norms
        return (able is None or norm.family in able) and self.ranks == (rank is not None)


@cache
def _loaded(target: str) -> Method:
    module, function = target.split(":")
    method: Method = getattr(importlib.import_module(module), function)
    return method


@cache
def _loaded_batched(target: str) -> BatchMethod:
    module, function = target.split(":")
    method: BatchMethod = getattr(importlib.import_module(module), function)
    return method


_FROBENIUS, _NUCLEAR = frozenset({"frobenius"}), frozenset({"nuclear"})
_OTHERS = frozenset({"spectral", "l1", "linf", "lp"})
_LIMITS = frozenset({"progress", "time_limit", "memory_limit"})
_HOME = "attsvm.solvers"

SOLVERS = {
    spec.name: spec
    for spec in (
        SolverSpec(
            "active_set", f"{_HOME}.frobenius.active_set:solve_active_set", _FROBENIUS, 1e-8,
            "own: block pivoting on the Gram matrix, hard and soft, one problem or a batch", soft_norms=_FROBENIUS,
            batched=f"{_HOME}.frobenius.active_set:solve_active_sets", options=frozenset({"rescue"}),
        ),
        SolverSpec(
            "entries", f"{_HOME}.frobenius.entries:solve_entries", _FROBENIUS, 1e-8,
            "own: interior point on the entries of W, for many more rows than entries",
        ),
        SolverSpec(
            "working_set", f"{_HOME}.frobenius.working_set:solve_working_set", _FROBENIUS, 1e-8,
            "own: pivoting with products alone, or proximal Newton steps on a growing set of rows", options=_LIMITS,
        ),
        SolverSpec(
            "soft_large", f"{_HOME}.frobenius.soft_large:solve_soft_large", frozenset(), 1e-8,
            "own: dual coordinate descent in C, then Newton's method, for soft margins of many rows",
            soft_norms=_FROBENIUS, compiled=True, options=_LIMITS,
        ),
        SolverSpec(
            "primal_dual", f"{_HOME}.primal_dual:solve_primal_dual", _OTHERS, 1e-7,
            "own: interior point in C, hard and soft, one problem or a batch",
            soft_norms=_OTHERS | _FROBENIUS | _NUCLEAR, batched=f"{_HOME}.primal_dual:solve_primal_duals",
            batch_budget=True, compiled=True, options=frozenset({"rescue"}),
        ),
        SolverSpec(
            "growing_rows", f"{_HOME}.growing_rows:solve_growing_rows", _OTHERS | _NUCLEAR, 1e-7,
            "own: a growing set of rows around the compiled methods, for many rows",
            soft_norms=_OTHERS | _NUCLEAR, compiled=True,
        ),
        SolverSpec(
            "nuclear_batch", f"{_HOME}.nuclear.interior:solve_nuclear_alone", _NUCLEAR, 1e-7,
            "own: interior point in C for batches", batched=f"{_HOME}.nuclear.interior:solve_nuclear_batch",
            batch_budget=True, compiled=True, options=frozenset({"rescue"}),
        ),
        SolverSpec(
            "interior", f"{_HOME}.nuclear.interior:solve_interior", _NUCLEAR, 1e-7,
            "own: interior point in C on the multipliers, then Newton", compiled=True,
        ),
        SolverSpec(
            "factored", f"{_HOME}.nuclear.factored:solve_factored", _NUCLEAR, 1e-7,
            "own: low-rank factors, then Newton", compiled=True, options=frozenset({"columns", "seed"}),
        ),
        SolverSpec(
            "reweighted", f"{_HOME}.nuclear.reweighted:solve_reweighted", _NUCLEAR, 1e-7,
            "own: weighted Frobenius problems on a working set, then Newton, hard and soft margins",
            soft_norms=_NUCLEAR, options=_LIMITS,
        ),
        SolverSpec(
            "rank_limited", f"{_HOME}.nuclear.rank_limited:solve_rank_limited", _NUCLEAR, 1e-7,
            "own: W = K Q^T with few columns, from many starts", ranks=True,
            options=frozenset({"starts", "seed", "time_limit"}),
        ),
        SolverSpec(
            "cvxpy", f"{_HOME}.reference:solve_cvxpy", None, 1e-7,
            "reference: any norm, vectorised, CLARABEL or any installed cvxpy solver", soft_norms=None, foreign=True,
            options=None,
        ),
    )
}  # fmt: skip


def _by_name() -> Iterator[SolverSpec]:
    """Solvers in modules ``method_<name>.py``: a function ``solve_<name>``, and in ``ENTRY`` what it can do.

    They are used by name, and by ``"auto"`` on norms without a ladder (`_own_norm`).
    """
    for module in iter_modules(importlib.import_module(_HOME).__path__):
        if module.name.startswith("method_"):
            home, name = f"{_HOME}.{module.name}", module.name.removeprefix("method_")
            yield SolverSpec(name, f"{home}:solve_{name}", **importlib.import_module(home).ENTRY)


SOLVERS |= {spec.name: spec for spec in _by_name()}

# Rows up to which pivoting on the Gram matrix is the quickest way to the least Frobenius norm.
GRAM_ROWS = 1500
# Operations of a step of the interior point method, rows times entries times whichever are fewer, up to which it is
# quicker for soft margins than coordinate descent.
SOFT_OPERATIONS = 6_000_000
# Rows per entry of W from which on systems of the order of W are smaller, and entries up to which they are worth it.
ROWS_PER_ENTRY, MOST_ENTRIES = 4, 4200
# Numbers in the rows of one problem, written out, up to which the compiled interior point methods take all rows; rows
# and entries of their systems, whichever are fewer.
WRITTEN_OUT, COMPILED_ORDER = 40_000_000, 1500
# Rows, and rows per query, from which on a growing set of rows is sooner done than all rows, in other norms.
GROWING_ORDER, GROWING_PER_QUERY = 450, 6
# Rows or entries, whichever are fewer, of a nuclear problem up to which the systems of its interior point method are
# cheap: in a batch, and alone. From so many rows per entry on the systems have the order of the entries.
BATCH_ROWS, NUCLEAR_ORDER, NUCLEAR_ROWS_PER_ENTRY = 120, 700, 2
# Rows times entries up to which such a system is cheaper than low-rank factors, for hard margins.
NUCLEAR_NUMBERS = 1_200_000
# Rows times entries up to which the reference is tried on what own methods left open: a minute or so.
REFERENCE_NUMBERS = 2_000_000


def _entries(problem: EitherProblem) -> int:
    return problem.shape[0] * problem.shape[1]


def _compiled_fits(problem: EitherProblem) -> bool:
    """Whether a compiled interior point method is worth its systems and the memory for rows that are written out."""
    order = min(problem.m, _entries(problem))
    return problem.m * _entries(problem) <= WRITTEN_OUT and order <= COMPILED_ORDER


def _nuclear_fits(problem: EitherProblem, numbers: int) -> bool:
    """Whether the nuclear interior point method is worth its systems, of the order of the rows or of the entries."""
    m, entries = problem.m, _entries(problem)
    by_entries = NUCLEAR_ROWS_PER_ENTRY * entries < m and entries <= NUCLEAR_ORDER and m * entries <= numbers
    return m <= NUCLEAR_ORDER or by_entries


def _last(problem: EitherProblem) -> tuple[str, ...]:
    """The reference, where it ends within a minute or so."""
    return ("cvxpy",) if problem.m * _entries(problem) <= REFERENCE_NUMBERS else ()


def _frobenius(problem: EitherProblem) -> tuple[str, ...]:
    """The ladder of the least Frobenius norm."""
    if problem.penalty is not None:
        m, entries = problem.m, _entries(problem)
        ordered = problem.is_plain or not problem.equality.any()
        few = ("active_set",) if m <= min(MOST_ROWS, entries) and ordered else ()
        if m <= GRAM_ROWS and m * entries * min(m, entries) <= SOFT_OPERATIONS:
            return (*few, "primal_dual", "soft_large", *_last(problem))
        fits = ("primal_dual",) if m <= GRAM_ROWS and _compiled_fits(problem) else ()
        return (*few, "soft_large", *fits, *_last(problem))
    if problem.m <= GRAM_ROWS:  # dependent equality rows and what pivoting leaves open go to the working set
        return ("active_set", "working_set")
    if problem.m >= ROWS_PER_ENTRY * _entries(problem) and _entries(problem) <= MOST_ENTRIES:
        return ("entries", "working_set")
    return ("working_set",)


def follows_faces(problem: EitherProblem, norm: Norm) -> bool:
    """Whether soft margins of many C follow from one another by exchanges of single rows: where faces are small.

    Examples
    --------
    >>> from attsvm.solvers import MarginProblem, get_norm
    >>> from attsvm.solvers.ladder import follows_faces
    >>> follows_faces(MarginProblem([[1.0]], [[1.0]], [0]).soft(C=1.0), get_norm("frobenius"))
    True
    """
    penalty = problem.penalty
    if norm.name != "frobenius" or penalty is None or why_missing():
        return False
    return are_few(problem.m, problem.q, problem.shape, penalty) and (problem.is_plain or not problem.equality.any())


def _nuclear(problem: EitherProblem) -> tuple[str, ...]:
    """The ladder of the least nuclear norm."""
    if problem.penalty is not None:
        small = ("primal_dual",) if _nuclear_fits(problem, WRITTEN_OUT) else ()
        return (*small, "growing_rows", "reweighted", *_last(problem))
    if problem.batch and problem.m <= BATCH_ROWS:
        return ("nuclear_batch",)
    if problem.m <= NUCLEAR_ORDER:
        return ("interior", "nuclear_batch") if problem.m <= BATCH_ROWS else ("interior",)
    large = ("factored", "reweighted") if isinstance(problem.rows, PairRows) else ("reweighted",)
    return ("interior", *large) if _nuclear_fits(problem, NUCLEAR_NUMBERS) else large


def _other(problem: EitherProblem) -> tuple[str, ...]:
    """The ladder of the spectral, l_1, l_inf and l_p norms."""
    if not _compiled_fits(problem):
        return ("growing_rows", *_last(problem))
    # Of more rows than entries the systems have the order of the entries, or nearly so, and take all rows as well.
    if (
        GROWING_ORDER < problem.m <= _entries(problem)
        and problem.m >= GROWING_PER_QUERY * problem.q
        and not problem.batch
    ):
        return ("growing_rows", "primal_dual", *_last(problem))
    return ("primal_dual", *_last(problem))


LADDERS: dict[str, Callable[[EitherProblem], tuple[str, ...]]] = {
    "frobenius": _frobenius,
    "nuclear": _nuclear,
    **dict.fromkeys(_OTHERS, _other),
}


def rungs(
    problem: EitherProblem, norm: Norm, solver: str = "auto", rank: int | None = None, warn: bool = True
) -> tuple[tuple[SolverSpec, ...], str]:
    """The methods to try, in order, and the variant that was asked for; a warning where compiled ones are missing.

    Examples
    --------
    >>> from attsvm.solvers import MarginProblem, get_norm
    >>> from attsvm.solvers.ladder import rungs
    >>> problem = MarginProblem([[1.0]], [[1.0]], [0])
    >>> [[spec.name for spec in rungs(part, get_norm("nuclear"))[0]] for part in (problem, problem.soft(C=1.0))]
    [['interior', 'nuclear_batch'], ['primal_dual', 'growing_rows', 'reweighted', 'cvxpy']]
    """
    if solver != "auto":
        spec, variant = _named(problem, solver, norm, rank)
        if spec.foreign or rank is not None or norm.family not in LADDERS:
            return (spec,), variant
        others = (SOLVERS[name] for name in LADDERS[norm.family](problem) if name != spec.name)
        return (spec, *others), variant
    if rank is not None:
        names = tuple(name for name, spec in SOLVERS.items() if spec.can(norm, rank, problem))
        if not names:
            raise ValueError(_why_none(norm, rank, problem.penalty is not None))
    else:
        names = LADDERS[norm.family](problem) if norm.family in LADDERS else _own_norm(problem, norm)
    specs = tuple([SOLVERS[name] for name in names])
    return specs if not why_missing() else _with_what_is_built(specs, warn), ""


def _own_norm(problem: EitherProblem, norm: Norm) -> tuple[str, ...]:
    """The ladder of a norm that a user defined: the solvers that name it, then the reference."""
    listed = ((s.soft_norms if problem.penalty is not None else s.norms, s.name) for s in SOLVERS.values())
    return (*(name for able, name in listed if able is not None and norm.family in able), "cvxpy")


def _with_what_is_built(specs: tuple[SolverSpec, ...], warn: bool) -> tuple[SolverSpec, ...]:
    """The rungs that can run where the compiled library is missing, with the reference at the end."""
    if not any(spec.compiled for spec in specs):
        return specs
    reason = why_missing()
    text = f"the compiled solvers of attsvm are missing: {reason}; other methods, slower ones, take their place"
    if warn:
        warnings.warn(text, RuntimeWarning, stacklevel=4)
    return (*(spec for spec in specs if not spec.compiled and spec.name != "cvxpy"), SOLVERS["cvxpy"])


def _why_none(norm: Norm, rank: int, soft: bool) -> str:
    """Why no solver takes a limit on the rank."""
    if soft:
        return f"a soft margin (C=) does not go with rank={rank}"
    return f"rank={rank} limits the nuclear-norm problem; use norm='nuclear', got norm={norm.name!r}"


def _named(problem: EitherProblem, solver: str, norm: Norm, rank: int | None) -> tuple[SolverSpec, str]:
    """What was asked for by name, and its variant, if it can do what is asked of it."""
    name, _, variant = solver.partition(":")
    spec = SOLVERS.get(name)
    if spec is None or (variant and not spec.foreign):
        raise ValueError(
            f"solver must be 'auto' or one of {sorted(SOLVERS)} ('cvxpy:NAME' picks a solver), got {solver!r}"
        )
    if not spec.can(norm, rank, problem):
        able = sorted(s.name for s in SOLVERS.values() if s.can(norm, rank, problem))
        asked = f"norm {norm.name!r}" + (f" with rank={rank}" if rank else "")
        asked += " with a soft margin" if problem.penalty is not None else ""
        raise ValueError(f"solver {solver!r} does not support {asked}; use one of {able}")
    return spec, variant
