"""Students of the prompt model: what Figures 1, 2a and 7 train."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from attsvm.dynamics.conditioning import StudentTeacher, curvature, descend, joint_curvature, student_teacher
from attsvm.softmax import condition_bounds
from attsvm.sweeps import columns_of

__all__ = ["SUCCESS", "linear_student", "record_steps", "softmax_student"]

SUCCESS = 1e-7  # a loss below it counts as success
_RECORDS = 120


def record_steps(steps: int) -> int:
    """Steps between two records of a run.

    Examples
    --------
    >>> record_steps(1200)
    10
    """
    return max(1, steps // _RECORDS)


def _teacher(seed: int, trial: int, *, N: int, d: int, sigma_p: float, log_ratio: float | None) -> StudentTeacher:
    rng = np.random.default_rng([seed, trial])
    return student_teacher(N, d, d, sigma_p=sigma_p, log_ratio=log_ratio, seed=rng)


def _padded(values: Any, length: int) -> Any:
    """A curve of full length: a run that reached its target stays there."""
    curve = np.asarray(values, dtype=np.float64)[:length]
    return np.concatenate([curve, np.full(length - len(curve), curve[-1])])


def softmax_student(
    trials: int,
    seed: int,
    *,
    N: int,
    d: int,
    lr: float,
    steps: int,
    sigma_p: float = 1.0,
    log_ratio: float | None = None,
    newton_steps: int = 0,
    target: float = 1e-12,
    spectrum: bool = True,
) -> dict[str, Any]:
    """Train p and v of a softmax student from N(0, 1/d) on the labels of a softmax teacher, W = I, n = d.

    With ``newton_steps`` the same students are trained by Levenberg-Marquardt as well (column ``newton``).

    Examples
    --------
    >>> found = softmax_student(2, 0, N=10, d=4, lr=0.1, steps=240, sigma_p=0.1)
    >>> np.shape(found["loss"]), sorted(found)[:3]
    ((2, 121), ['cosine', 'final', 'kappa'])
    """
    every = record_steps(steps)

    def row(trial: int) -> dict[str, Any]:
        teacher = _teacher(seed, trial, N=N, d=d, sigma_p=sigma_p, log_ratio=log_ratio)
        problem = teacher.problem
        p0, v0 = teacher.student(np.random.default_rng([seed, trial, 1]))
        run = descend(problem, p0, v0, lr=lr, steps=steps, target=target, every=every)
        reached = run.first_below(SUCCESS)
        norms = np.linalg.norm(run.p) * np.linalg.norm(teacher.p_star)
        logs = problem.log_weights(teacher.p_star)
        own, both = (c(problem, teacher.p_star) if spectrum else None for c in (curvature, joint_curvature))
        newton = np.nan
        if newton_steps:
            second = descend(problem, p0, v0, optimizer="gauss_newton", steps=newton_steps, target=target, every=5)
            newton = second.losses[-1]
        return {
            "loss": _padded(run.losses, steps // every + 1),
            "final": run.losses[-1],
            "steps": reached[0] if reached else np.nan,
            "teacher": np.median(teacher.log_ratios()) / np.log(10),
            "student": run.log_ratio / np.log(10),
            "cosine": float(run.p @ teacher.p_star / norms) if np.isfinite(norms) else np.nan,
            "khat": np.median(condition_bounds(log_attention=logs, log=True)[0]) / np.log(10),
            "kappa": np.log10(own.range_condition_number) if own else np.nan,
            "kappa_joint": np.log10(both.range_condition_number) if both else np.nan,
            "label": 0.5 * float(np.mean(problem.y**2)),
            "newton": newton,
        }

    return columns_of(map(row, range(trials)))


def linear_student(
    trials: int, seed: int, *, N: int, d: int, sigma_p: float, lr: float, steps: int, teacher: str
) -> dict[str, Any]:
    """Train a linear-attention student (scores over n) on the labels of a softmax or of a linear teacher.

    Examples
    --------
    >>> found = linear_student(1, 0, N=10, d=4, sigma_p=0.1, lr=0.1, steps=120, teacher="linear")
    >>> np.shape(found["loss"])
    (1, 121)
    """
    if teacher not in ("softmax", "linear"):
        raise ValueError(f"teacher must be 'softmax' or 'linear', got {teacher!r}")
    every = record_steps(steps)

    def row(trial: int) -> dict[str, Any]:
        made = _teacher(seed, trial, N=N, d=d, sigma_p=sigma_p, log_ratio=None)
        problem = replace(made.problem, attention="linear")
        if teacher == "linear":
            problem = problem.with_labels(problem.predict(made.p_star))
        p0, v0 = made.student(np.random.default_rng([seed, trial, 1]))
        run = descend(problem, p0, v0, lr=lr, steps=steps, target=1e-24, every=every)
        good = run.status != "diverged"
        curve = _padded(run.losses, steps // every + 1)
        within = np.flatnonzero(run.losses <= 1.01 * run.losses[-1])
        return {
            "loss": curve if good else np.full_like(curve, np.inf),
            "final": run.losses[-1] if good else np.inf,
            "steps": int(run.steps[within[0]]) if good else np.nan,
            "label": 0.5 * float(np.mean(problem.y**2)),
        }

    return columns_of(map(row, range(trials)))
