"""The table of solvers: one line each, and "auto" is a look-up in it."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import numpy as np

from attsvm.solvers.norms import Norm
from attsvm.solvers.problem import MarginProblem
from attsvm.solvers.request import Request
from attsvm.solvers.rows.pairs import PairRows
from attsvm.solvers.rows.shared import SharedRows
from attsvm.solvers.solution import Found
from attsvm.solvers.unit import UnitProblem

__all__ = ["SOLVERS", "Method", "SolverSpec", "choose"]

Method = Callable[[UnitProblem, Norm, Request], Found]


@dataclass(frozen=True)
class SolverSpec:
    """A solver's name, what it can do, and where it lives. "auto" takes the first entry of `SOLVERS` that can.

    Attributes
    ----------
    name : str
        What ``solver=`` takes; a backend with variants is called as ``"name:VARIANT"``.
    target : str
        ``"module:function"`` of a `Method`, imported at first use.
    norms : frozenset of str or None
        Families of norms it solves; None means all.
    achievable : float
        Accuracy that its certificate can be expected to reach: the default tolerance.
    most_rows : float
        Rows per problem up to which "auto" chooses it.
    rows_per_entry : float
        Rows per entry of W from which on "auto" chooses it.
    batched : bool
        Works on a whole batch; others are called problem by problem.
    devices : bool
        Runs on a torch ``device=``.
    ranks : bool
        Takes ``rank=``.
    written_out : bool
        Works on rows that are written out: "auto" chooses it for `PairRows` only.
    products : bool
        Leaves products with shared rows to a torch ``device=``; everything else stays on the CPU.
    soft : bool
        Takes rows that may be missed at a price.
    foreign : bool
        Somebody else's code: keeps its own threads, takes variants.
    options : frozenset of str or None
        Further keywords it takes; None passes everything on.
    summary : str
        One line for tables.
    """

    name: str
    target: str
    norms: frozenset[str] | None
    achievable: float
    summary: str
    most_rows: float = np.inf
    rows_per_entry: float = 0.0
    batched: bool = False
    devices: bool = False
    ranks: bool = False
    foreign: bool = False
    soft: bool = False
    written_out: bool = False
    products: bool = False
    options: frozenset[str] | None = frozenset()

    def load(self) -> Method:
        """Import the method."""
        return _loaded(self.target)

    def can(
        self, norm: Norm, rank: int | None = None, device: object = None, problem: MarginProblem | None = None
    ) -> bool:
        """Whether it solves this kind of problem at all: a hard margin of rows written out unless one is given."""
        soft = problem is not None and problem.penalty is not None
        shared = problem is not None and isinstance(problem.rows, SharedRows)
        known = (self.norms is None or norm.family in self.norms) and (self.soft or not soft)
        moves = self.devices or (self.products and shared)
        return known and self.ranks == (rank is not None) and (device is None or moves)


@cache
def _loaded(target: str) -> Method:
    module, function = target.split(":")
    method: Method = getattr(importlib.import_module(module), function)
    return method


_FROBENIUS, _NUCLEAR = frozenset({"frobenius"}), frozenset({"nuclear"})
_OTHERS = frozenset({"spectral", "l1", "linf", "lp"})
_HOME = "attsvm.solvers"

# In the order in which "auto" looks.
SOLVERS = {
    spec.name: spec
    for spec in (
        SolverSpec(
            "active_set", f"{_HOME}.frobenius.active_set:solve_active_set", _FROBENIUS, 1e-8,
            "own: block pivoting on the Gram matrix, one problem or a batch", most_rows=1500, batched=True,
            options=frozenset({"rescue"}),
        ),
        SolverSpec(
            "few_entries", f"{_HOME}.frobenius.few_entries:solve_few_entries", _FROBENIUS, 1e-8,
            "own: interior point on the entries of W, for many more rows than entries", rows_per_entry=4.0,
        ),
        SolverSpec(
            "working_set", f"{_HOME}.frobenius.working_set:solve_working_set", _FROBENIUS, 1e-8,
            "own: pivoting with conjugate gradients, or proximal Newton steps, on a growing set of rows; hard and soft",
            soft=True, products=True,
            options=frozenset({"progress", "time_limit", "memory_limit"}),
        ),
        SolverSpec(
            "lockstep", f"{_HOME}.nuclear.lockstep:solve_lockstep", _NUCLEAR, 1e-7,
            "own: interior point for batches, in C or on any torch device", most_rows=120, batched=True, devices=True,
            options=frozenset({"dtype", "chunk", "rescue"}),
        ),
        SolverSpec(
            "interior", f"{_HOME}.nuclear.interior:solve_interior", _NUCLEAR, 1e-7,
            "own: interior point in C on the multipliers, then Newton", most_rows=700,
        ),
        SolverSpec(
            "factored", f"{_HOME}.nuclear.factored:solve_factored", _NUCLEAR, 1e-7,
            "own: low-rank factors, then Newton", written_out=True, options=frozenset({"columns", "seed"}),
        ),
        SolverSpec(
            "reweighted", f"{_HOME}.nuclear.reweighted:solve_reweighted", _NUCLEAR, 1e-7,
            "own: weighted Frobenius problems on a working set, then Newton, hard and soft margins",
            soft=True, products=True, options=frozenset({"progress", "time_limit", "memory_limit"}),
        ),
        SolverSpec(
            "rank_limited", f"{_HOME}.nuclear.rank_limited:solve_rank_limited", _NUCLEAR, 1e-7,
            "own: W = K Q^T with few columns, from many starts", ranks=True,
            options=frozenset({"starts", "seed", "time_limit"}),
        ),
        SolverSpec(
            "primal_dual", f"{_HOME}.other_norms:solve_primal_dual", _OTHERS, 1e-7,
            "own: interior point in C for spectral, l1, linf and l<p> norms, one problem or a batch", most_rows=1500,
            batched=True,
        ),
        SolverSpec(
            "cvxpy", f"{_HOME}.reference:solve_cvxpy", None, 1e-7,
            "reference: any norm, vectorised, CLARABEL or any installed cvxpy solver", foreign=True, soft=True,
            options=None,
        ),
    )
}  # fmt: skip


def choose(
    problem: MarginProblem, norm: Norm, solver: str = "auto", rank: int | None = None, device: object = None
) -> tuple[SolverSpec, str]:
    """The entry of the table that is asked for, or the first that fits, and the variant that was asked for."""
    if solver != "auto":
        return _named(problem, solver, norm, rank, device)
    for spec in SOLVERS.values():
        if not spec.can(norm, rank, device, problem):
            continue
        if spec.devices and device is None and not problem.batch:
            continue
        if spec.written_out and not isinstance(problem.rows, PairRows):
            continue
        if problem.m < spec.rows_per_entry * problem.shape[0] * problem.shape[1]:
            continue
        if problem.m <= spec.most_rows or device is not None:
            return spec, ""
    raise ValueError(_why_none(norm, rank, device, problem.penalty is not None))


def _why_none(norm: Norm, rank: int | None, device: object, soft: bool) -> str:
    """Why no entry of the table fits."""
    if soft and (device is not None or rank is not None):
        return "a soft margin (C=) goes with neither rank= nor, unless rows share tokens, device="
    if device is not None and rank is not None:
        return f"rank={rank} and device={device!r} do not go together: no solver takes both"
    if device is None:
        return f"rank={rank} limits the nuclear-norm problem; use norm='nuclear', got norm={norm.name!r}"
    able = sorted({name for s in SOLVERS.values() if s.devices and s.norms for name in s.norms})
    return f"device={device!r} runs the norms {able} only, got norm {norm.name!r}"


def _named(problem: MarginProblem, solver: str, norm: Norm, rank: int | None, device: object) -> tuple[SolverSpec, str]:
    """What was asked for by name, and its variant, if it can do what is asked of it."""
    name, _, variant = solver.partition(":")
    spec = SOLVERS.get(name)
    if spec is None or (variant and not spec.foreign):
        raise ValueError(
            f"solver must be 'auto' or one of {sorted(SOLVERS)} ('cvxpy:NAME' picks a solver), got {solver!r}"
        )
    if not spec.can(norm, rank, device, problem):
        able = sorted(s.name for s in SOLVERS.values() if s.can(norm, rank, device, problem))
        asked = f"norm {norm.name!r}" + (f" with rank={rank}" if rank else "") + (" on a device" if device else "")
        asked += " with a soft margin" if problem.penalty is not None else ""
        if device is not None and spec.products:
            asked += ", whose products run there for shared rows only"
        raise ValueError(f"solver {solver!r} does not support {asked}; use one of {able}")
    return spec, variant
