"""The convex fit of a selector against LinearSVC on explicit pair features, at one objective.

LinearSVC sees every row ``(x_right - x_t) z^T`` as dx dz features: at d = 384 they take 1.2 MB each, 73 GB for 2,000
tasks of 32 candidates. It is therefore run on a few tasks, for which both objectives are compared, and its time is
multiplied by the number of tasks (its passes are linear in the rows, their number does not fall): an extrapolation, and
said to be one.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

import attsvm
from attsvm.validation.bench.measure import Stopwatch, one_thread, peak_memory, reset_peak

__all__ = ["selector_speed"]


def _tasks(n: int, T: int, d: int, rng: np.random.Generator) -> tuple[attsvm.AttentionProblem, npt.NDArray[np.int64]]:
    """Unit vectors whose right candidate is noisily decided by a bilinear score."""

    def unit(*shape: int) -> npt.NDArray[np.float64]:
        x = rng.standard_normal(shape)
        return np.asarray(x / np.linalg.norm(x, axis=-1, keepdims=True))

    X, Z = unit(n, T, d), unit(n, d)
    W = unit(d, d)
    scores = np.einsum("ntd,nd->nt", X, Z @ W.T)
    y = (scores + 0.3 * scores.std() * rng.standard_normal(scores.shape)).argmax(axis=1)
    return attsvm.AttentionProblem(X, Z=Z), y


def _linear_svc(problem: attsvm.AttentionProblem, y: npt.NDArray[np.int64], C: float) -> tuple[float, float]:
    """Seconds of LinearSVC (features made outside of the time) and its objective."""
    from sklearn.svm import LinearSVC

    others = np.arange(problem.T) != y[:, None]
    a = (problem.X[np.arange(problem.n), y][:, None] - problem.X)[others]
    features = (a[:, :, None] * np.repeat(problem.Z, problem.T - 1, axis=0)[:, None]).reshape(len(a), -1)
    sign = np.where(np.arange(len(a)) % 2, 1.0, -1.0)
    features *= sign[:, None]
    watch = Stopwatch()
    model = LinearSVC(C=C, fit_intercept=False, tol=1e-6, max_iter=5000).fit(features, sign)
    seconds = watch.seconds()
    w = model.coef_[0]
    missed = np.maximum(1.0 - sign * (features @ w), 0.0)
    return seconds, float(0.5 * w @ w + C * missed @ missed)


def _ours(problem: attsvm.AttentionProblem, y: npt.NDArray[np.int64], C: float) -> tuple[float, attsvm.Solution]:
    watch = Stopwatch()
    solution = attsvm.att_svm(problem, y, C=C, slack="row", loss="squared_hinge")
    return watch.seconds(), solution


def selector_speed(
    tasks: int = 2000, candidates: int = 32, d: int = 384, *, few: int = 8, C: float = 1.0, seed: int = 0
) -> dict[str, Any]:
    """Times of both, the excess of LinearSVC's objective on the few tasks, and our memory in sizes of the tokens.

    Parameters
    ----------
    tasks, candidates, d : int
    few : int
        Tasks that LinearSVC is given.
    C : float
    seed : int

    Examples
    --------
    >>> from attsvm.validation.bench.selector import selector_speed
    >>> found = selector_speed(20, 4, 10, few=10)
    >>> abs(found["excess"]) < 1e-3, found["gap"] < 1e-6
    (True, True)
    """
    rng = np.random.default_rng(seed)
    with one_thread():
        problem, y = _tasks(tasks, candidates, d, rng)
        part = attsvm.AttentionProblem(problem.X[:few], Z=problem.Z[:few])
        _ours(part, y[:few], C)  # imports are not what is measured
        svc, objective = _linear_svc(part, y[:few], C)
        small, alone = _ours(part, y[:few], C)
        before = reset_peak()
        seconds, solution = _ours(problem, y, C)
        memory = (peak_memory() - before) / problem.X.nbytes
    return {
        "seconds": seconds,
        "few tasks": small,
        "LinearSVC, few tasks": svc,
        "LinearSVC, extrapolated": svc * tasks / few,
        "ratio": svc * tasks / few / seconds,
        "ratio on few": svc / small,
        "excess": objective / alone.objective - 1.0,
        "gap": float(solution.certificate.gap),
        "memory": memory,
    }
