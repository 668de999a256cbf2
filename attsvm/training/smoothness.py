"""The Lipschitz constant of the gradient (Lemma 4), from data."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from attsvm.losses import Loss
from attsvm.problem import AttentionProblem, require_problem

__all__ = ["smoothness_constant"]


def smoothness_constant(problem: AttentionProblem, loss: str | Loss = "logistic") -> npt.NDArray[np.float64] | float:
    """``L_W = (1/n) sum |v| |z|^2 |X|^3 (M0 |v| |X| + 3 M1)``, equation (3), with ``|X|`` the spectral norm.

    Plain gradient descent with step at most ``1 / L_W`` never increases the loss (Lemma 9). For factors,
    ``L_K = |Q|^2 L_W`` and ``L_Q = |K|^2 L_W`` (printed without the squares).

    Parameters
    ----------
    problem : AttentionProblem
        With a linear head; queries and (i, k) pairs are summed as in the loss.
    loss : str or Loss

    Returns
    -------
    float, or ndarray of shape (batch,)

    Examples
    --------
    >>> import attsvm
    >>> problem = attsvm.AttentionProblem([[[1.0], [0.0]]], [1], [[1.0]], attsvm.LinearHead([1.0]))
    >>> attsvm.smoothness_constant(problem, "correlation")  # M0 = 0, M1 = 1
    3.0
    """
    head = require_problem(problem).head
    if head is None or not head.is_linear:
        raise ValueError("Lemma 4's constant is for linear heads; give lr for other heads")
    if problem.batch is not None:
        return np.array([smoothness_constant(single, loss) for single in problem])
    M0, M1 = problem.loss_constants(loss)
    v = float(np.linalg.norm(np.asarray(head.gradient(np.zeros(problem.dx)))))  # the same everywhere
    X = np.linalg.norm(problem.X.astype(np.float64), ord=2, axis=(1, 2))  # (n,)
    z2 = np.square(problem.Z.astype(np.float64)).sum(axis=-1).reshape(problem.n, -1).sum(axis=1)
    return float((v * z2 * X**3 * (M0 * v * X + 3 * M1)).mean())
