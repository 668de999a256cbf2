"""What else learns to score (query, document) pairs: a linear SVM on products, a triplet loss, metric learning."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

import attsvm

__all__ = ["linear_svc_diagonal", "metric_learning", "triplet_adapter"]

FloatArray = npt.NDArray[np.float64]


def _rest(problem: attsvm.AttentionProblem, y: npt.NDArray[np.int64]) -> tuple[FloatArray, FloatArray]:
    """Right candidates (n, d) and the others (n, T - 1, d)."""
    rows = np.arange(problem.n)
    others = np.arange(problem.T) != y[:, None]
    X = problem.X.astype(np.float64, copy=False)
    return X[rows, y], X[others].reshape(problem.n, problem.T - 1, -1)


def linear_svc_diagonal(problem: attsvm.AttentionProblem, y: npt.NDArray[np.int64], C: float) -> FloatArray:
    """Diagonal W by scikit-learn's LinearSVC on products ``x * z``, differences as rows of both signs."""
    from sklearn.svm import LinearSVC

    right, others = _rest(problem, y)
    features = ((right[:, None] - others) * problem.Z[:, None]).reshape(-1, problem.dx)
    sign = np.where(np.arange(len(features)) % 2, 1.0, -1.0)
    model = LinearSVC(C=C, fit_intercept=False, dual=False).fit(features * sign[:, None], sign)
    return np.diag(model.coef_[0])


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


def metric_learning(problem: attsvm.AttentionProblem, y: npt.NDArray[np.int64], *, dimensions: int, seed: int) -> Any:
    """Scorer by metric-learn's ITML on (query, document) pairs, after a projection on the leading directions.

    Returns
    -------
    callable
        ``scorer(problem) -> scores (n, T)``: minus the learned distances.
    """
    from metric_learn import ITML

    right, others = _rest(problem, y)
    everything = np.concatenate([problem.Z, right])
    mean = everything.mean(axis=0)
    basis = np.linalg.svd(everything - mean, full_matrices=False)[2][:dimensions].T
    near = np.stack([problem.Z, right], axis=1)
    far = np.stack([problem.Z, others[:, 0]], axis=1)
    pairs = (np.concatenate([near, far]) - mean) @ basis
    model = ITML(random_state=seed, max_iter=200).fit(pairs, np.repeat([1, -1], problem.n))
    M = basis @ model.get_mahalanobis_matrix() @ basis.T

    def scorer(other: attsvm.AttentionProblem) -> FloatArray:
        gaps = other.X - other.Z[:, None]
        return np.asarray(-np.einsum("ntd,de,nte->nt", gaps, M, gaps))

    return scorer
