"""Theorem 2 and Corollary 1: a lower bound on the condition number of H_p with explicit constants, and local rates."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from attsvm._checks import require_choice
from attsvm.dynamics.conditioning.curvature import curvature
from attsvm.dynamics.conditioning.model import Array, PromptProblem
from attsvm.dynamics.conditioning.separation import (
    leakage,
    separation,
    unimportant_covariance,
    value_margins,
)

__all__ = ["ConditionBound", "LocalRate", "condition_lower_bound", "local_rate"]


@dataclass(frozen=True)
class ConditionBound:
    """Bounds on the extreme eigenvalues of ``M = sum_i r_i r_i^T`` and what they say about H_p.

    Attributes
    ----------
    largest_at_least : float
        Lemma 6.
    smallest_at_most : float
        Lemma 7.
    condition_at_least : float
        Theorem 2: ``(m / L) largest_at_least / smallest_at_most``.
    a_I, a_U, rho, delta : float
        Attention extremes, leakage and the smallest value margin.
    """

    largest_at_least: float
    smallest_at_most: float
    condition_at_least: float
    a_I: float
    a_U: float
    rho: float
    delta: float


def condition_lower_bound(
    problem: PromptProblem,
    p_star: npt.ArrayLike,
    members: npt.ArrayLike,
    basis: npt.ArrayLike,
    *,
    form: str = "corrected",
) -> ConditionBound:
    """Lower bound on the condition number of H_p at a global minimum, Theorem 2.

    Parameters
    ----------
    problem : PromptProblem
    p_star : array_like, shape (d,)
    members : array_like of bool, shape (N, n)
        Important tokens.
    basis : array_like, shape (d, k)
        Orthonormal basis of U.
    form : {"corrected", "tight", "printed"}
        ``printed`` loses a factor N in Lemma 7 (Sigma_U is a mean, M a sum). ``corrected`` restores it:
        ``lam_max >= N a_I^2 s_min^2 delta_min^4 / |W^-1 v|^2``, ``lam_min <= 7 N C_v (rho^2 + (n - s_min) a_U^2)
        lam_max(Sigma_U)``, ``C_v = max |u_i|^2``. ``tight`` keeps the variances
        ``sum_i Var_{a_i}(u_i)^2 / |W^-1 v|^2``, centres u_i, and takes the smallest eigenvalue of Sigma_U.

    Returns
    -------
    ConditionBound

    Examples
    --------
    >>> from attsvm.dynamics.conditioning import curvature, structured_teacher
    >>> teacher, members, basis = structured_teacher(60, 8, 6, 3, gap=6.0)
    >>> bound = condition_lower_bound(teacher.problem, teacher.p_star, members, basis, form="tight")
    >>> 10 < bound.condition_at_least < curvature(teacher.problem, teacher.p_star).condition_number
    True
    """
    require_choice("form", form, "corrected", "tight", "printed")
    N, n, _ = problem.shape
    found = separation(problem, p_star, members)
    rho = float(leakage(problem, members, basis).max())
    deltas = value_margins(problem, p_star, members)
    u, s = problem.values, found.sizes
    direction = problem.v if problem.W is None else np.linalg.solve(problem.W, problem.v)
    aligned = float(direction @ direction)  # |W^-1 v|^2
    sigma = np.linalg.eigvalsh(unimportant_covariance(problem, members, basis))
    others = n - s.min()
    if form == "tight":
        a = problem.weights(p_star)
        variance = (a * (u - (a * u).sum(axis=1, keepdims=True)) ** 2).sum(axis=1)
        largest = float((variance**2).sum()) / aligned
        centred = float(((u - u.mean(axis=1, keepdims=True)) ** 2).sum(axis=1).max())
        smallest = N * centred * (rho / 2 + (1 + np.sqrt(others)) * found.a_U) ** 2 * float(sigma[0])
    else:
        largest = N * found.a_I**2 * float(s.min()) ** 2 * float(deltas.min()) ** 4 / aligned
        spread = 7.0 * (rho**2 + others * found.a_U**2)
        smallest = float((u**2).sum(axis=1).max()) * spread * float(sigma[-1]) * (1 if form == "printed" else N)
    ratio = problem.loss.m / problem.loss.L * largest / smallest if smallest > 0 else np.inf
    return ConditionBound(largest, float(smallest), float(ratio), found.a_I, found.a_U, rho, float(deltas.min()))


@dataclass(frozen=True, eq=False)
class LocalRate:
    """The slowest mode of gradient descent at a global minimum, predicted and measured.

    Attributes
    ----------
    step : float
    predicted : float
        ``1 - step lam_min(H_p) / N``, the factor per step of the error along the slowest eigenvector.
    printed : float
        ``1 - step lam_min(H_p)``, without the 1/N that the update carries.
    measured : float
        Mean factor per step of a run from p* + size v_min.
    largest_stable_step : float
        ``2 N / lam_max(H_p)``; printed as 2 / lam_max.
    """

    step: float
    predicted: float
    printed: float
    measured: float
    largest_stable_step: float


def local_rate(
    problem: PromptProblem,
    p_star: npt.ArrayLike,
    *,
    step: float | None = None,
    steps: int = 200,
    size: float = 1e-6,
) -> LocalRate:
    """Corollary 1 with its 1/N, against gradient descent from a small error along the slowest eigenvector.

    Parameters
    ----------
    problem : PromptProblem
    p_star : array_like, shape (d,)
        A global minimum.
    step : float, optional
        ``N / lam_max(H_p)`` by default.
    steps : int
        Of the measured run at most; it ends when a thousandth of the error is left.
    size : float
        Initial error; the linearization errs by as much, relatively.

    Returns
    -------
    LocalRate

    Examples
    --------
    >>> from attsvm.dynamics.conditioning import student_teacher
    >>> teacher = student_teacher(N=40, n=6, d=4, sigma_p=0.5, seed=0)
    >>> found = local_rate(teacher.problem, teacher.p_star)
    >>> abs(found.measured - found.predicted) < 1e-5, abs(found.measured - found.printed) > 0.1
    (True, True)
    """
    N = problem.shape[0]
    centre = np.array(p_star, dtype=np.float64)
    spectrum = curvature(problem, centre)
    if len(spectrum.vectors) < problem.shape[2]:
        raise ValueError("H_p is singular with fewer examples than dimensions: there is no slowest decaying mode")
    top, bottom = float(spectrum.eigenvalues[0]), float(spectrum.eigenvalues[-1])
    eta = N / top if step is None else step
    slow: Array = spectrum.vectors[-1]
    p = centre + size * slow
    left, taken = 1.0, 0
    while taken < steps and left > 1e-3:  # below, rounding of p* takes over
        p = p - eta * problem.gradient(p)
        left, taken = abs(float((p - centre) @ slow)) / size, taken + 1
    measured = left ** (1 / taken) if taken else float("nan")
    return LocalRate(eta, 1 - eta * bottom / N, 1 - eta * bottom, measured, 2 * N / top)
