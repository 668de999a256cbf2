"""Theorem 1: constants, the margin condition, and the linear rate it promises, checked along a run."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from attsvm._checks import require_choice
from attsvm.dynamics.conditioning.model import Array, PromptProblem

__all__ = ["JACOBIAN_LIPSCHITZ", "ConvergenceConstants", "GuaranteeCheck", "check_guarantee", "convergence_constants"]

#: Lipschitz constant of w -> J(softmax(w)) found numerically for 2 to 10 tokens, attained by two; printed as 3.
JACOBIAN_LIPSCHITZ = np.sqrt(2.0) / (3.0 * np.sqrt(3.0))


@dataclass(frozen=True)
class ConvergenceConstants:
    """The quantities of Lemma 4 at an initial prompt.

    Attributes
    ----------
    smoothness, rate, step : float
        L', mu, eta.
    travel : float
        C_p, the bound on ``|p_t - p_0|``.
    drift : float
        gamma, the bound on ``|F(p_t) - F(p_0)|_F``.
    sigma_min : float
        sigma_N(F(p_0)).
    threshold : float
        What sigma_min must exceed.
    """

    smoothness: float
    rate: float
    step: float
    travel: float
    drift: float
    sigma_min: float
    threshold: float

    @property
    def margin(self) -> float:
        """sigma_min minus its threshold: positive where the theorem applies."""
        return self.sigma_min - self.threshold


def convergence_constants(
    problem: PromptProblem, p0: npt.ArrayLike, *, c1: float = 0.5, c2: float = 1.0, form: str = "corrected"
) -> ConvergenceConstants:
    """Constants of Theorem 1 at ``p0``, with L* = 0.

    Parameters
    ----------
    problem : PromptProblem
    p0 : array_like, shape (d,)
    c1, c2 : float
        Free constants, ``0 < c1 < 1`` and ``0 < c2 < min(2, 1/c1)``; the descent step needs c2 <= 1.
    form : {"corrected", "sharp", "printed"}
        ``printed``: mu = c1 / L', C_p with 1/sqrt(N), threshold gamma + sqrt(mu / 2m). ``corrected``: mu = c1 L',
        C_p without N, threshold gamma + sqrt(mu / (m N)), c2 <= 1. ``sharp``: corrected, with |J| <= 1/2, the
        Lipschitz constant of J, and ``|g_i| <= sqrt(2 L l_i)``.

    Returns
    -------
    ConvergenceConstants

    Examples
    --------
    >>> from attsvm.dynamics.conditioning import student_teacher
    >>> teacher = student_teacher(N=2, n=3, d=6, sigma_p=0.1, seed=0)
    >>> near = teacher.p_star + 1e-10
    >>> convergence_constants(teacher.problem, near, c1=1e-6).margin > 0
    True
    >>> convergence_constants(teacher.problem, teacher.p_star + 1.0).margin > 0
    False
    """
    require_choice("form", form, "corrected", "sharp", "printed")
    top = min(2.0, 1.0 / c1) if form == "printed" else min(1.0, 1.0 / c1)
    if not 0 < c1 < 1 or not 0 < c2 <= top:
        raise ValueError(f"c1 must lie in (0, 1) and c2 in (0, {top:g}], got c1={c1}, c2={c2}")
    N = problem.shape[0]
    m, L = problem.loss.m, problem.loss.L
    C = float(np.linalg.norm(problem.X, 2, axis=(1, 2)).max())
    sW = 1.0 if problem.W is None else float(np.linalg.norm(problem.W, 2))
    v = float(np.linalg.norm(problem.v))
    excess = problem.loss_at(p0)
    sharp = form == "sharp"
    if sharp:
        smoothness = sW**2 * C**3 * v * (0.25 * L * C * v + JACOBIAN_LIPSCHITZ * np.sqrt(2 * L * excess))
    else:
        smoothness = sW**2 * C**3 * L * v * (2 * C * v + 3 * np.sqrt(2 * excess / m))
    step = c2 / smoothness
    rate = c1 / smoothness if form == "printed" else c1 * smoothness
    # bound on the first gradient (22), corrected: no 1 / sqrt(N)
    slope = 0.5 * np.sqrt(2 * L * excess) if sharp else L * np.sqrt(2 * excess / m)
    gradient = slope * C**2 * sW * v / (np.sqrt(N) if form == "printed" else 1.0)
    travel = gradient * step * (1 + np.sqrt(1 - c1 * c2)) / (c1 * c2)  # (23), without cancellation for small c1
    change = min(0.5, JACOBIAN_LIPSCHITZ * C * sW * travel) if sharp else min(2.0, 3 * C * sW * travel)
    drift = change * C**2 * sW * v / np.sqrt(N)
    pl = np.sqrt(rate / (2 * m)) if form == "printed" else np.sqrt(rate / (m * N))
    return ConvergenceConstants(
        float(smoothness),
        float(rate),
        float(step),
        float(travel),
        float(drift),
        problem.smallest_singular_value(p0),
        float(drift + pl),
    )


@dataclass(frozen=True)
class GuaranteeCheck:
    """How a run compares with Theorem 1; values above one are violations.

    Attributes
    ----------
    loss_ratio : float
        Largest ``L_t / ((1 - eta mu)^t L_0)``.
    travel_ratio : float
        Largest ``|p_t - p_0| / C_p``.
    losses : ndarray, shape (steps + 1,)
    """

    loss_ratio: float
    travel_ratio: float
    losses: Array


def check_guarantee(
    problem: PromptProblem, p0: npt.ArrayLike, constants: ConvergenceConstants, *, steps: int = 500
) -> GuaranteeCheck:
    """Run gradient descent with the theorem's step and compare every iterate with its bounds.

    Examples
    --------
    >>> from attsvm.dynamics.conditioning import student_teacher
    >>> teacher = student_teacher(N=2, n=3, d=6, sigma_p=0.1, seed=0)
    >>> p0 = teacher.p_star + 1e-10
    >>> constants = convergence_constants(teacher.problem, p0, c1=1e-6)
    >>> checked = check_guarantee(teacher.problem, p0, constants, steps=50)
    >>> checked.loss_ratio <= 1 + 1e-9, checked.travel_ratio <= 1
    (True, True)
    """
    start = np.array(p0, dtype=np.float64)
    p, first = start.copy(), problem.loss_at(start)
    losses, travel = [first], 0.0
    for _ in range(steps):
        p = p - constants.step * problem.gradient(p)
        losses.append(problem.loss_at(p))
        travel = max(travel, float(np.linalg.norm(p - start)))
    history = np.array(losses)
    promised = first * np.exp(np.arange(steps + 1) * np.log1p(-constants.step * constants.rate))
    return GuaranteeCheck(float((history / promised).max()), travel / constants.travel, history)
