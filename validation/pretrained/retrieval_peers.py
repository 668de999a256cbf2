"""What else learns to score (query, document) pairs: linear SVMs on pair features, a triplet loss, metric learning."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import numpy.typing as npt

import attsvm

__all__ = ["Scorer", "linear_svc_diagonal", "linear_svc_pairs", "metric_learning", "triplet_adapter"]

FloatArray = npt.NDArray[np.float64]
Scorer = Callable[[attsvm.AttentionProblem], FloatArray]


def _rest(problem: attsvm.AttentionProblem, y: npt.NDArray[np.int64]) -> tuple[FloatArray, FloatArray]:
    """Right candidates (n, d) and the others (n, T - 1, d)."""
    rows = np.arange(problem.n)
    others = np.arange(problem.T) != y[:, None]
    X = problem.X.astype(np.float64, copy=False)
    return X[rows, y], X[others].reshape(problem.n, problem.T - 1, -1)


def _weights(features: FloatArray, C: float) -> FloatArray:
    """LinearSVC (squared hinge) on differences that should be positive, given with both signs in turn."""
    from sklearn.svm import LinearSVC

    sign = np.where(np.arange(len(features)) % 2, 1.0, -1.0)
    model = LinearSVC(C=C, fit_intercept=False, dual=False).fit(features * sign[:, None], sign)
    return np.asarray(model.coef_[0], dtype=np.float64)


def linear_svc_diagonal(problem: attsvm.AttentionProblem, y: npt.NDArray[np.int64], C: float) -> FloatArray:
    """Diagonal W by scikit-learn's LinearSVC on products ``x * z``."""
    right, others = _rest(problem, y)
    return np.diag(_weights(((right[:, None] - others) * problem.Z[:, None]).reshape(-1, problem.dx), C))


def linear_svc_pairs(
    problem: attsvm.AttentionProblem, y: npt.NDArray[np.int64], C: float, *, dimensions: int, scale: float
) -> FloatArray:
    """W = a I + P M P' by LinearSVC on pair features of the leading directions P, and the cosine times ``scale``.

    All 147,456 pair features of d = 384 do not fit into memory; the cosine is one more feature, so that it can be kept.
    """
    right, others = _rest(problem, y)
    P = _leading(np.concatenate([problem.Z, right]), dimensions)[1]
    apart = (right[:, None] - others).reshape(-1, problem.dx)
    asked = np.repeat(problem.Z, problem.T - 1, axis=0)
    pairs = ((apart @ P)[:, :, None] * (asked @ P)[:, None]).reshape(len(apart), -1)
    cosine = scale * (apart * asked).sum(axis=1, keepdims=True)
    w = _weights(np.concatenate([pairs, cosine], axis=1), C)
    W = w[-1] * scale * np.eye(problem.dx) + P @ w[:-1].reshape(P.shape[1], -1) @ P.T
    return np.asarray(W)


def triplet_adapter(
    problem: attsvm.AttentionProblem, y: npt.NDArray[np.int64], *, steps: int, margin: float, lr: float, seed: int
) -> FloatArray:
    """W of a linear map of the queries, started at the identity, by Adam on a triplet hinge of cosines."""
    import torch

    torch.manual_seed(seed)
    right, others = (torch.tensor(part, dtype=torch.float32) for part in _rest(problem, y))
    queries = torch.tensor(problem.Z, dtype=torch.float32)
    W = torch.eye(problem.dx, problem.dz, requires_grad=True)
    optimizer = torch.optim.Adam([W], lr=lr)
    for _ in range(steps):
        batch = torch.randint(len(queries), (256,))
        asked = torch.nn.functional.normalize(queries[batch] @ W.T, dim=-1)
        lead = ((right[batch][:, None] - others[batch]) * asked[:, None]).sum(-1)
        loss: Any = torch.relu(margin - lead).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return np.asarray(W.detach().double().numpy())


def metric_learning(
    problem: attsvm.AttentionProblem, y: npt.NDArray[np.int64], method: str, *, dimensions: int, seed: int
) -> Scorer:
    """Scorer by metric-learn after a projection on the leading directions: minus the learned distances.

    Parameters
    ----------
    method : {"ITML", "LSML"}
        From (query, document) pairs with the nearest wrong document as the far one, or from comparisons: the right
        document nearer than each wrong one.
    """
    from metric_learn import ITML, LSML

    right, others = _rest(problem, y)
    mean, basis = _leading(np.concatenate([problem.Z, right]), dimensions)
    near = (np.stack([problem.Z, right], axis=1) - mean) @ basis
    far = (np.stack([problem.Z, others[:, 0]], axis=1) - mean) @ basis
    with _translated():
        if method == "ITML":
            model = ITML(random_state=seed, max_iter=200).fit(
                np.concatenate([near, far]), np.repeat([1, -1], problem.n)
            )
        else:
            model = LSML(random_state=seed, max_iter=200).fit(np.concatenate([near, far], axis=1))
    M = basis @ model.get_mahalanobis_matrix() @ basis.T

    def scorer(other: attsvm.AttentionProblem) -> FloatArray:
        gaps = other.X - other.Z[:, None]
        return np.asarray(-((gaps @ M) * gaps).sum(axis=-1))

    return scorer


def _leading(points: FloatArray, dimensions: int) -> tuple[FloatArray, FloatArray]:
    """Mean and leading directions (d, k) of points."""
    mean = points.mean(axis=0)
    return mean, np.linalg.svd(points - mean, full_matrices=False)[2][:dimensions].T


@contextmanager
def _translated() -> Iterator[None]:
    """metric-learn 0.7 asks scikit-learn for ``force_all_finite``, which was renamed and then removed (1.8)."""
    from metric_learn import _util as util

    checks = {name: getattr(util, name) for name in ("check_array", "check_X_y")}

    def translated(check: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, force_all_finite: Any = True, **options: Any) -> Any:
            return check(*args, ensure_all_finite=force_all_finite, **options)

        return call

    for name, check in checks.items():
        setattr(util, name, translated(check))
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FutureWarning)  # of its other calls into scikit-learn
            yield
    finally:
        for name, check in checks.items():
            setattr(util, name, check)
