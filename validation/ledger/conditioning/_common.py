"""Random instances that the checks of this paper share."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from attsvm.dynamics.conditioning import PromptProblem, ScalarLoss, squared_loss
from attsvm.softmax import softmax

__all__ = ["Array", "Rng", "attention", "autograd_hessian", "autograd_jacobian", "jacobian", "realizable", "torch_loss"]

Array = npt.NDArray[np.float64]
Rng = np.random.Generator


def attention(rng: Rng, n: int | None = None, scale: float | None = None) -> Array:
    """Attention of Gaussian logits; length and scale are drawn when not given.

    Examples
    --------
    >>> float(attention(np.random.default_rng(0), 3).sum().round(12))
    1.0
    """
    size = int(rng.choice([2, 3, 5, 10, 40])) if n is None else n
    return softmax(rng.normal(size=size) * (rng.uniform(0.1, 6) if scale is None else scale))


def jacobian(a: Array) -> Array:
    """diag(a) - a a^T.

    Examples
    --------
    >>> jacobian(np.array([0.5, 0.5]))
    array([[ 0.25, -0.25],
           [-0.25,  0.25]])
    """
    return np.asarray(np.diag(a) - np.outer(a, a))


def realizable(
    rng: Rng, N: int, n: int, d: int, *, scale: float = 1.0, key_map: bool = True, loss: ScalarLoss | None = None
) -> tuple[PromptProblem, Array]:
    """A random problem whose labels a random p* produces, and p*.

    Examples
    --------
    >>> problem, p_star = realizable(np.random.default_rng(0), 3, 4, 2)
    >>> problem.loss_at(p_star)
    0.0
    """
    W = rng.normal(size=(d, d)) if key_map else None
    problem = PromptProblem(
        X=scale * rng.normal(size=(N, n, d)), y=np.zeros(N), v=rng.normal(size=d), W=W, loss=loss or squared_loss()
    )
    p_star = rng.normal(size=d)
    return problem.with_labels(problem.predict(p_star)), p_star


def torch_loss(problem: PromptProblem) -> Any:
    """The loss as a torch function of p, written independently of the library.

    Examples
    --------
    >>> import torch
    >>> from attsvm.dynamics.conditioning import curved_loss
    >>> problem, p_star = realizable(np.random.default_rng(0), 3, 4, 2, loss=curved_loss(1.0))
    >>> float(torch_loss(problem)(torch.tensor(p_star))) < 1e-30
    True
    """
    import torch

    X, y, v = (torch.tensor(np.array(part)) for part in (problem.X, problem.y, problem.v))
    W = torch.eye(X.shape[2], dtype=X.dtype) if problem.W is None else torch.tensor(np.array(problem.W))
    extra = problem.loss.L - 1.0

    def loss(p: Any) -> Any:
        a = torch.softmax(X @ (W @ p), -1)
        r = (a * (X @ v)).sum(-1) - y
        return (0.5 * r**2 + extra * torch.log(torch.cosh(r))).mean()

    return loss


def autograd_jacobian(function: Any, x: Any) -> Array:
    """Jacobian of a torch function by automatic differentiation.

    Examples
    --------
    >>> import torch
    >>> autograd_jacobian(lambda x: x**2, torch.tensor([1.0, 2.0]))
    array([[2., 0.],
           [0., 4.]], dtype=float32)
    """
    import torch

    functional: Any = torch.autograd.functional
    return np.asarray(functional.jacobian(function, torch.as_tensor(x)).numpy())


def autograd_hessian(function: Any, x: Any) -> Array:
    """Hessian of a torch function by automatic differentiation.

    Examples
    --------
    >>> import torch
    >>> autograd_hessian(lambda x: (x**2).sum(), torch.tensor([1.0, 2.0]))
    array([[2., 0.],
           [0., 2.]], dtype=float32)
    """
    import torch

    functional: Any = torch.autograd.functional
    return np.asarray(functional.hessian(function, torch.as_tensor(x)).numpy())
