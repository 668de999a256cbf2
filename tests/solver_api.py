"""The only place where the tests of all solvers touch what may change: calls, fields, and what each solver reaches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from attsvm.solvers import SOLVERS, MarginProblem, MarginSolution, get_norm, solve

# Norms that a batch can be solved in.
BATCH_NORMS = ("frobenius", "nuclear", "spectral", "l1", "linf")


@dataclass(frozen=True)
class Accuracy:
    """What a solver's answers reach, by `kkt.residuals` on the library: about ten times the worst that was measured.

    ``hard`` is for problems with a tag in `HARD`; None: the solver may end "inaccurate" there, and nothing is asked of
    its answer except that it claims no infeasibility.
    """

    ordinary: float
    hard: float | None


# Multipliers as large as the norm cost that many digits; next to W = 0 nothing is relative.
HARD = frozenset({"near-infeasible", "zero"})
_OWN_FROBENIUS, _OWN_NUCLEAR = Accuracy(1e-8, 1e-7), Accuracy(1e-8, 5e-5)
ACCURACY = {
    "active_set": _OWN_FROBENIUS,
    "entries": Accuracy(1e-8, None),
    "nuclear_batch": _OWN_NUCLEAR,
    "interior": _OWN_NUCLEAR,
    "factored": _OWN_NUCLEAR,
    "working_set": Accuracy(1e-8, None),
    "reweighted": Accuracy(1e-7, None),
    "primal_dual": Accuracy(1e-7, None),
    "growing_rows": Accuracy(1e-7, None),
    "cvxpy": Accuracy(1e-7, None),
}


def accuracy_of(solver: str, norm: str) -> Accuracy:
    """Of a solver by name; a batch is solved by the norm's own solver, as "auto" does."""
    own = {"frobenius": "active_set", "nuclear": "nuclear_batch"}
    return ACCURACY[own.get(norm, "primal_dual") if solver == "auto" else solver]


def norms_of(solver: str, otherwise: Sequence[str]) -> list[str]:
    """Norms to try a solver in: those it names, l3 for the family of l_p norms, or others where it takes any."""
    norms = SOLVERS[solver].norms
    return sorted("l3" if norm == "lp" else norm for norm in (otherwise if norms is None else norms))


def solvers_for(norm: str) -> list[str]:
    """Names of all solvers that take this norm."""
    return [name for name, spec in SOLVERS.items() if spec.can(get_norm(norm))]


def solve_single(problem: MarginProblem, norm: str, solver: str) -> MarginSolution:
    return solve(problem, norm=norm, solver=solver)


def solve_as_batch(problems: Sequence[MarginProblem], norm: str) -> list[MarginSolution]:
    """Problems of one shape of W, solved together; numbers of rows and queries may differ."""
    solved = solve(MarginProblem.stack(problems), norm)
    return [solved[i] for i in range(len(problems))]


def rows_of(problem: MarginProblem) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """``(a, queries, owner, rhs, equality)`` as float64, int and bool arrays."""
    rows = problem.rows.gather(np.arange(problem.m))
    return rows.a.astype(np.float64), rows.queries.astype(np.float64), rows.owner, problem.rhs, problem.equality


def replaced(problem: MarginProblem, **changes: object) -> MarginProblem:
    """The problem with some of ``a, queries, owner, rhs, equality`` changed; float32 rows stay float32."""
    rows = problem.rows.gather(np.arange(problem.m))
    parts = {"a": rows.a, "queries": rows.queries, "owner": rows.owner}
    return MarginProblem(**(parts | {"rhs": problem.rhs, "equality": problem.equality} | changes))


def with_rows(
    problem: MarginProblem, a: np.ndarray, owner: Sequence[int], rhs: Sequence[float] | None = None
) -> MarginProblem:
    """The problem with more inequality rows."""
    old_a, _, old_owner, old_rhs, equality = rows_of(problem)
    return replaced(
        problem,
        a=np.vstack([old_a, a]),
        owner=np.append(old_owner, owner),
        rhs=np.append(old_rhs, np.ones(len(owner)) if rhs is None else rhs),
        equality=np.append(equality, np.zeros(len(owner), dtype=bool)),
    )


def proof_of(solution: MarginSolution) -> np.ndarray:
    """Multipliers of the proof of infeasibility."""
    farkas = solution.certificate.farkas
    assert farkas is not None
    return np.asarray(farkas.multipliers)
