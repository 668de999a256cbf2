"""How a solve ended."""

from __future__ import annotations

from enum import StrEnum

__all__ = ["InfeasibleError", "NoSolutionError", "Status"]

_ADVICE = {
    "optimal": "The certificate closes: the solution is optimal to the stated tolerance.",
    "infeasible": "No W satisfies all rows; read certificate.farkas for the proof and the rows involved.",
    "local": "A KKT point of the rank-limited problem, not proved global; try more starts or read extras.rank_limit.",
    "inaccurate": "Not proved to the tolerance; read solution.reason, then raise max_iterations or try another solver.",
    "failed": "The solver returned neither a solution nor a proof; try another solver or rescale the data.",
}


class Status(StrEnum):
    """String enum of outcomes; ``status.advice`` says in one line what to do.

    Examples
    --------
    >>> from attsvm.solvers import Status
    >>> Status.OPTIMAL == "optimal", Status.INFEASIBLE.has_solution
    (True, False)
    """

    OPTIMAL = "optimal"
    INFEASIBLE = "infeasible"
    LOCAL = "local"
    INACCURATE = "inaccurate"
    FAILED = "failed"

    @property
    def advice(self) -> str:
        """One line on what the status means and what to do next."""
        return _ADVICE[self.value]

    @property
    def has_solution(self) -> bool:
        """True when W can be read."""
        return self in (Status.OPTIMAL, Status.LOCAL, Status.INACCURATE)

    @property
    def is_certified(self) -> bool:
        """True when the outcome comes with a proof: optimality, or infeasibility."""
        return self in (Status.OPTIMAL, Status.INFEASIBLE)


class NoSolutionError(ValueError):
    """Raised on reading W of a solve that ended without one."""


class InfeasibleError(NoSolutionError):
    """Raised on reading W of a problem that was proved infeasible."""
