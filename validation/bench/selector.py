"""The convex fit of a selector against LinearSVC on explicit pair features, at one objective.

LinearSVC sees every row ``(x_right - x_t) z^T`` as dx dz features: at d = 384 they take 1.2 MB each, 73 GB for 2,000
tasks of 32 candidates. Both are therefore measured on growing numbers of tasks as far as memory allows, with the
objectives compared, and LinearSVC's time is carried on to all tasks twice: by its fitted growth exponent, and by
exponent 1 from the largest size measured. The smaller of the two is judged; it is an extrapolation, and said to be one.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

import attsvm
from attsvm.validation.bench.growth import fitted_exponent
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
    tasks: int = 2000,
    candidates: int = 32,
    d: int = 384,
    *,
    few: tuple[int, ...] = (4, 8, 16, 32),
    C: float = 1.0,
    seed: int = 0,
) -> dict[str, float]:
    """Processor times of both, growth, the excess of LinearSVC's objective, our memory in sizes of the tokens.

    Parameters
    ----------
    tasks, candidates, d : int
    few : tuple of int
        Numbers of tasks that both are measured on.
    C : float
    seed : int

    Examples
    --------
    >>> from attsvm.validation.bench.selector import selector_speed
    >>> found = selector_speed(20, 4, 10, few=(5, 10))
    >>> abs(found["excess"]) < 1e-3, found["gap"] < 1e-6
    (True, True)
    """
    rng = np.random.default_rng(seed)
    svc, ours, excess = [], [], []
    with one_thread():
        problem, y = _tasks(tasks, candidates, d, rng)
        for k, n in enumerate(few):
            part = attsvm.AttentionProblem(problem.X[:n], Z=problem.Z[:n])
            if not k:
                _ours(part, y[:n], C)  # imports are not what is measured
            seconds, objective = _linear_svc(part, y[:n], C)
            small, alone = _ours(part, y[:n], C)
            svc.append(seconds)
            ours.append(small)
            excess.append(objective / alone.objective - 1.0)
        before = reset_peak()
        whole, solution = _ours(problem, y, C)
        memory = (peak_memory() - before) / problem.X.nbytes
    exponent, more = fitted_exponent(list(few), svc), tasks / few[-1]
    by_growth, linear = svc[-1] * more**exponent, svc[-1] * more
    return {
        "seconds": whole,
        "few tasks": ours[-1],
        "LinearSVC, few tasks": svc[-1],
        "ratio on few": svc[-1] / ours[-1],
        "exponent": fitted_exponent([*few, tasks], [*ours, whole]),
        "LinearSVC exponent": exponent,
        "LinearSVC by growth": by_growth,
        "LinearSVC linear": linear,
        "ratio": min(by_growth, linear) / whole,
        "excess": max(excess, key=abs),
        "gap": float(solution.certificate.gap),
        "memory": memory,
    }
