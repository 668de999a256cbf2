"""What every solver returns."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from attsvm.solvers.certificate import Certificate, certify
from attsvm.solvers.margin import FloatArray, MarginProblem
from attsvm.solvers.norms import Norm
from attsvm.solvers.status import InfeasibleError, Status

__all__ = ["MarginSolution", "conclude"]


@dataclass(frozen=True, eq=False)
class MarginSolution:
    """A solved margin problem with its certificate.

    Attributes
    ----------
    problem : MarginProblem
    norm_kind : Norm
    status : Status
    certificate : Certificate
    multipliers : ndarray, shape (m,)
        In norm form: ``N*(W(lam)) = 1`` and ``rhs . lam = N(W)``. ``lam_k > 0`` means that row k is
        active; multipliers of equality rows have either sign. NaN when there is no solution.
    solver : str
    iterations : int
    seconds : float
    extras : dict
        What a particular solver adds (documented there).
    """

    problem: MarginProblem
    norm_kind: Norm
    status: Status
    certificate: Certificate
    multipliers: FloatArray
    solver: str
    iterations: int
    seconds: float
    _W: FloatArray | None = field(repr=False, default=None)
    extras: dict[str, object] = field(repr=False, default_factory=dict)

    @property
    def W(self) -> FloatArray:
        """The solution, shape (dx, dz); raises `InfeasibleError` when there is none."""
        if self._W is None:
            farkas = self.certificate.farkas
            if farkas is not None:
                raise InfeasibleError(f"no W satisfies all rows; queries {farkas.owners.tolist()} conflict")
            raise InfeasibleError(f"there is no W to read: status is {self.status}. {self.status.advice}")
        return self._W

    @property
    def norm(self) -> float:
        """N(W); infinite when infeasible."""
        return float("inf") if self._W is None else self.certificate.norm


def conclude(
    problem: MarginProblem,
    norm: Norm,
    W: FloatArray,
    multipliers: FloatArray,
    *,
    solver: str,
    iterations: int,
    seconds: float,
    tolerance: float,
    extras: dict[str, object] | None = None,
) -> MarginSolution:
    """Certify (W, multipliers) and let the certificate, not the solver, decide the status."""
    finite = bool(np.isfinite(W).all() and np.isfinite(multipliers).all())
    if not finite:
        return without_solution(
            problem, norm, Status.FAILED, None, solver=solver, iterations=iterations, seconds=seconds
        )
    certificate = certify(problem, W, multipliers, norm)
    status = Status.OPTIMAL if certificate.worst <= tolerance else Status.INACCURATE
    return MarginSolution(problem, norm, status, certificate, multipliers, solver, iterations, seconds, W, extras or {})


def without_solution(
    problem: MarginProblem,
    norm: Norm,
    status: Status,
    certificate: Certificate | None,
    *,
    solver: str,
    iterations: int,
    seconds: float,
) -> MarginSolution:
    """A result without W: infeasible (with its certificate) or failed."""
    inf = float("inf")
    return MarginSolution(
        problem,
        norm,
        status,
        certificate or Certificate(inf, inf, inf, inf, inf, inf),
        np.full(problem.m, np.nan),
        solver,
        iterations,
        seconds,
    )
