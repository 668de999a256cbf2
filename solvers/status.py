"""How a solve ended."""

from __future__ import annotations

from enum import StrEnum
from typing import Self

__all__ = ["Advised", "ConvergenceWarning", "DegenerateError", "InfeasibleError", "NoSolutionError", "Status"]


class Advised(StrEnum):
    """A status with one line on what it means and what to do next: ``NAME = "value", "advice"``.

    Examples
    --------
    >>> from attsvm.solvers.status import Advised
    >>> class Light(Advised):
    ...     RED = "red", "Wait."
    >>> Light.RED == "red", Light("red").advice
    (True, 'Wait.')
    """

    advice: str

    def __new__(cls, value: str, advice: str) -> Self:
        """A string that carries its advice."""
        member = str.__new__(cls, value)
        member._value_ = value
        member.advice = advice
        return member


class Status(Advised):
    """String enum of outcomes; ``status.advice`` says in one line what to do.

    Examples
    --------
    >>> from attsvm.solvers import Status
    >>> Status.OPTIMAL == "optimal", Status.INFEASIBLE.has_solution
    (True, False)
    """

    OPTIMAL = "optimal", "The certificate closes: the solution is optimal to the stated tolerance."
    INFEASIBLE = "infeasible", "No W satisfies all rows; read certificate.farkas for the proof and the rows involved."
    LOCAL = (
        "local",
        "A KKT point of the rank-limited problem, not proved global; try more starts or read extras.rank_limit.",
    )
    INACCURATE = (
        "inaccurate",
        "Not proved to the tolerance; read solution.reason, then raise max_iterations or try another solver.",
    )
    FAILED = "failed", "The solver returned neither a solution nor a proof; try another solver or rescale the data."

    @property
    def has_solution(self) -> bool:
        """True when W can be read."""
        return self in (Status.OPTIMAL, Status.LOCAL, Status.INACCURATE)

    @property
    def is_certified(self) -> bool:
        """True when the outcome comes with a proof: optimality, or infeasibility."""
        return self in (Status.OPTIMAL, Status.INFEASIBLE)


class ConvergenceWarning(UserWarning):
    """A solve ended without the proof that its tolerance asks for; the message has the reason and what to try."""


class NoSolutionError(ValueError):
    """Raised on reading W of a solve that ended without one."""


class InfeasibleError(NoSolutionError):
    """Raised on reading W of a problem that was proved infeasible."""


class DegenerateError(ValueError):
    """Raised where a derivative is asked for that does not exist: at a kink of W or of the optimal value."""
