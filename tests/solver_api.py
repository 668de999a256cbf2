"""The only place where the tests of all solvers touch what may change: calls, fields, and what each solver reaches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pytest

from attsvm.solvers import SOLVERS, MarginProblem, MarginSolution, get_norm, solve

# Norms that a batch can be solved in.
BATCH_NORMS = ("frobenius", "nuclear")


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
    "frobenius": _OWN_FROBENIUS,
    "active_set": _OWN_FROBENIUS,
    "projected": _OWN_FROBENIUS,
    "nuclear": _OWN_NUCLEAR,
    "nuclear_interior": _OWN_NUCLEAR,
    "nuclear_factored": _OWN_NUCLEAR,
    "nuclear_conic": _OWN_NUCLEAR,
    "cvxpy": Accuracy(1e-7, None),
}


def accuracy_of(solver: str, norm: str) -> Accuracy:
    """Of a solver by name; a batch is solved by the norm's own solver, as "auto" does."""
    return ACCURACY[norm if solver == "auto" else solver]


def solvers_for(norm: str) -> list[str]:
    """Names of all solvers that take this norm."""
    return [name for name, spec in SOLVERS.items() if spec.norms is None or norm in spec.norms]


def solve_single(problem: MarginProblem, norm: str, solver: str) -> MarginSolution:
    return solve(problem, norm=norm, solver=solver)


def solve_as_batch(problems: Sequence[MarginProblem], norm: str) -> list[MarginSolution]:
    """Problems of one shape of W, solved together; numbers of rows and queries may differ."""
    pytest.importorskip("torch")
    from attsvm.solvers.batch import MarginBatch
    from attsvm.solvers.batch_solve import solve_batch

    solved = solve_batch(MarginBatch.from_problems(problems), norm)
    return [solved.solution(i) for i in range(len(problems))]


def rows_of(problem: MarginProblem) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """``(a, queries, owner, rhs, equality)`` as float64, int and bool arrays."""
    a, queries = problem.a.astype(np.float64), problem.queries.astype(np.float64)
    return a, queries, problem.owner, problem.rhs, problem.equality


def proof_of(solution: MarginSolution) -> np.ndarray:
    """Multipliers of the proof of infeasibility."""
    farkas = solution.certificate.farkas
    assert farkas is not None
    return np.asarray(farkas.multipliers)


def certify_as_batch(
    problems: Sequence[MarginProblem], W: np.ndarray, multipliers: np.ndarray, norm: str
) -> list[dict[str, float]]:
    """Fields of the certificates of all problems (of equal numbers of rows), computed together."""
    torch = pytest.importorskip("torch")
    from attsvm.solvers.batch import MarginBatch
    from attsvm.solvers.batch_certificate import certify_rows

    rows = MarginBatch.from_problems(problems).rows(slice(None), torch.device("cpu"), torch.float64)
    found = certify_rows(rows, torch.as_tensor(W), torch.as_tensor(multipliers), get_norm(norm))
    columns = {name: value.tolist() for name, value in found._asdict().items() if value is not None}
    columns["worst"] = found.worst.tolist()
    return [{name: values[i] for name, values in columns.items()} for i in range(len(problems))]


def farkas_as_batch(problems: Sequence[MarginProblem], multipliers: np.ndarray) -> list[tuple[np.ndarray, float]]:
    """Scaled multipliers and residual of each candidate proof; the residual is infinite when it proves nothing."""
    torch = pytest.importorskip("torch")
    from attsvm.solvers.batch import MarginBatch
    from attsvm.solvers.batch_certificate import farkas_residual

    rows = MarginBatch.from_problems(problems).rows(slice(None), torch.device("cpu"), torch.float64)
    scaled, residual = farkas_residual(rows, torch.as_tensor(multipliers))
    return [(y.numpy(), float(r)) for y, r in zip(scaled, residual, strict=True)]
