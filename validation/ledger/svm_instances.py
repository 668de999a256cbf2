"""What the checks on attention as an SVM share: instances, gradients by automatic differentiation, implications.

Matrices that separate the optimal tokens with a given margin are drawn from the cones (4) and (33).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

import attsvm
from attsvm import AttentionProblem, LinearHead, ProblemBatch, attention

Array = npt.NDArray[Any]

Rng = np.random.Generator

LOSS_NAMES = ("logistic", "exponential", "correlation")


def seed_of(rng: Rng) -> int:
    """A seed for a library call.

    Examples
    --------
    >>> 0 <= seed_of(np.random.default_rng(0)) < 2**32
    True
    """
    return int(rng.integers(2**32))


def rotation(rng: Rng, d: int) -> Array:
    """A random orthogonal matrix.

    Examples
    --------
    >>> U = rotation(np.random.default_rng(0), 3)
    >>> bool(np.allclose(U @ U.T, np.eye(3)))
    True
    """
    q, r = np.linalg.qr(rng.standard_normal((d, d)))
    return np.asarray(q * np.sign(np.diag(r)))


def batch_of(problems: list[AttentionProblem]) -> ProblemBatch:
    """One batch from problems of one shape with linear heads.

    Examples
    --------
    >>> batch_of([attsvm.random_problem(2, 3, 4, seed=s) for s in (0, 1)]).batch
    2
    """
    heads = [p.head.v for p in problems if isinstance(p.head, LinearHead)]
    return ProblemBatch(
        np.stack([p.X for p in problems]),
        np.stack([p.Y for p in problems]),
        np.stack([p.Z for p in problems]),
        LinearHead(np.stack(heads)),
    )


def make(X: Any, Y: Any, Z: Any, v: Any) -> AttentionProblem:
    """A problem with a linear head from anything array-like.

    Examples
    --------
    >>> make([[[1.0], [0.0]]], [1], [[1.0]], [1.0]).scores()
    array([[1., 0.]])
    """
    return AttentionProblem(X, Y, Z, LinearHead(v))


def cosine(A: Array, B: Array) -> Array:
    """Cosines between matrices, over the last two axes.

    Examples
    --------
    >>> round(float(cosine(np.eye(2), np.ones((2, 2)))), 6)
    0.707107
    """
    axes = (-2, -1)
    sizes = np.linalg.norm(A, axis=axes) * np.linalg.norm(B, axis=axes)
    return np.asarray((A * B).sum(axis=axes) / np.where(sizes > 0, sizes, np.nan))


def _loss(name: str, u: Any) -> Any:
    import torch

    if name == "logistic":
        return torch.log1p(torch.exp(-u))
    return torch.exp(-u) if name == "exponential" else -u


def risk(problem: AttentionProblem, W: Any, loss: str) -> Any:
    """``(1/n) sum_i l(Y_i v^T X_i^T softmax(X_i W z_i))`` as a torch scalar, written out from its definition.

    Examples
    --------
    >>> problem = attsvm.AttentionProblem([[[1.0], [0.0]]], [1], [[1.0]], attsvm.LinearHead([1.0]))
    >>> float(risk(problem, np.zeros((1, 1)), "correlation"))
    -0.5
    """
    import torch

    assert isinstance(problem.head, LinearHead)
    X, Y, Z, v = (torch.tensor(a) for a in (problem.X, problem.Y, problem.Z, problem.head.v))
    logits = (X @ (torch.as_tensor(W) @ Z.T).T[..., None])[..., 0]
    return _loss(loss, Y * (torch.softmax(logits, dim=-1) * (X @ v)).sum(dim=-1)).mean()


def autograd(problem: AttentionProblem, parameters: tuple[Array, ...], loss: str) -> list[Array]:
    """Gradient of the risk by automatic differentiation, in W or, for two parameters, in (K, Q).

    Examples
    --------
    >>> problem = attsvm.AttentionProblem([[[1.0], [0.0]]], [1], [[1.0]], attsvm.LinearHead([1.0]))
    >>> autograd(problem, (np.zeros((1, 1)),), "correlation")[0]
    array([[-0.25]])
    """
    import torch

    leaves = [torch.tensor(p, requires_grad=True) for p in parameters]
    W = leaves[0] if len(leaves) == 1 else leaves[0] @ leaves[1].T
    risk(problem, W, loss).backward()
    return [np.asarray(leaf.grad) for leaf in leaves]


def scaled(problem: AttentionProblem, W: Array, loss: str, selection: Any) -> tuple[Array, Array]:
    """Gradients and ``1 - s_alpha`` of a batch, both divided by one factor per problem, exact when saturated.

    Parameters
    ----------
    problem : AttentionProblem
        A batch.
    W : ndarray, shape (batch, dx, dz)
    loss : str
    selection : ndarray of int, shape (batch, n)

    Returns
    -------
    gradient : ndarray, shape (batch, dx, dz)
    rest : ndarray, shape (batch, n)

    Examples
    --------
    >>> problem = attsvm.AttentionProblem([[[1.0], [0.0]]], [1], [[1.0]], attsvm.LinearHead([1.0])).repeat(1)
    >>> gradient, rest = scaled(problem, np.full((1, 1, 1), 900.0), "correlation", np.array([[0]]))
    >>> (gradient / rest[..., None]).tolist()
    [[[-1.0]]]
    """
    import torch

    from attsvm.training.log_gradient import scaled_gradient
    from attsvm.training.tensors import tensor_problem

    data, matrix = tensor_problem(problem), torch.tensor(W)
    found = scaled_gradient(data, matrix, loss)
    logits = attention.logits(data, matrix)[:, :, 0]
    chosen = torch.tensor(selection)[..., None]
    total = torch.logsumexp(logits, dim=-1)
    others = torch.logsumexp(logits.scatter(-1, chosen, -torch.inf), dim=-1)
    rest = torch.exp(others - total - found.log_scale[:, None])
    return found.direction.numpy(), rest.numpy()


def margins(p: AttentionProblem, W: Array) -> Array:
    """``(x_opt - x_t)^T W z``, infinite at the optimal token, shape (n, T).

    Examples
    --------
    >>> p = attsvm.random_problem(3, 4, 5, seed=0)
    >>> round(float(margins(p, attsvm.att_svm(p).W).min()), 6)
    1.0
    """
    logits = attention.logits(p, W)
    best = p.optimal_tokens().indices[:, None]
    gaps = np.take_along_axis(logits, best, axis=1) - logits
    np.put_along_axis(gaps, best, np.inf, axis=1)
    return np.asarray(gaps)


def feasible_problem(rng: Rng, d: int = 5) -> tuple[AttentionProblem, Any]:
    """A random problem (n = 3, T = 4) whose optimal tokens are separable, and its solution.

    Examples
    --------
    >>> print(feasible_problem(np.random.default_rng(0))[1].status)
    optimal
    """
    while True:
        p = attsvm.random_problem(3, 4, d, seed=seed_of(rng), min_score_gap=0.05)
        s = attsvm.att_svm(p)
        if s.status.has_solution:
            return p, s


def in_cone(rng: Rng, p: AttentionProblem, W: Array, mu: float) -> Array:
    """A unit matrix of (33a) near its boundary: margins over |W| at least mu / |W_mm|.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> p, s = feasible_problem(rng)
    >>> bool(margins(p, in_cone(rng, p, s.W, 0.5)).min() * s.norm >= 0.5)
    True
    """
    from scipy.optimize import brentq

    size, noise = np.linalg.norm(W), rng.normal(size=W.shape)
    noise /= np.linalg.norm(noise)

    def mixed(share: float) -> Array:
        return np.asarray((1 - share) * W / size + share * noise)

    def slack(share: float) -> float:
        V = mixed(share)
        return float(margins(p, V).min() / np.linalg.norm(V) - mu / size)

    # The cone is convex: along the segment it is left once, if at all. A step of 1e-8 back is inside.
    share = 1.0 if slack(1.0) >= 0 else max(0.0, brentq(slack, 0.0, 1.0, xtol=1e-9) - 1e-8)
    V = mixed(share)
    return np.asarray(V / np.linalg.norm(V))
