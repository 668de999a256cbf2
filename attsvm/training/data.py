"""Problems as tensors: one leading batch axis, K queries always, any device and dtype."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from attsvm.heads import ConcaveHead, LinearHead, ReluHead
from attsvm.problem import AttentionProblem

__all__ = ["TensorProblem", "tensor_problem"]

# Maps composed tokens x (B, n, K, dx) to h(x) (B, n, K) and to the slopes grad h(x) . x_t (B, n, K, T).
ValueAndSlopes = Callable[[Tensor], tuple[Tensor, Tensor]]


@dataclass(frozen=True, eq=False)
class TensorProblem:
    """An attention problem on a device.

    Attributes
    ----------
    X : Tensor, shape (B, n, T, dx)
    Z : Tensor, shape (B, n, K, dz)
    Y : Tensor, shape (B, n, K)
    allowed : Tensor of bool, shape (B, n, K, T)
    head : callable
        Composed tokens ``(B, n, K, dx)`` to ``h`` and to the slopes ``grad h . x_t``.
    scores : Tensor or None, shape (B, n, K, T)
        ``Y h(x_t)``, constant slopes of a linear head; None for other heads.
    masked : Tensor of bool or None, shape (B, n, K, T)
        The complement of ``allowed``; None when everything is allowed.
    lonely : Tensor of bool or None, shape (B, n, K, 1)
        Queries that see one token only, whose gradient is zero; None when there are none.
    """

    X: Tensor
    Z: Tensor
    Y: Tensor
    allowed: Tensor
    head: ValueAndSlopes
    scores: Tensor | None
    masked: Tensor | None = None
    lonely: Tensor | None = None

    @property
    def batch(self) -> int:
        """Number of problems."""
        return int(self.X.shape[0])


def tensor_problem(
    problem: AttentionProblem, device: torch.device | str | None = None, dtype: torch.dtype = torch.float64
) -> TensorProblem:
    """Move a problem (or a batch of them) to a device.

    Examples
    --------
    >>> import attsvm
    >>> from attsvm.training.data import tensor_problem
    >>> tensor_problem(attsvm.random_problem(n=2, T=3, d=4, batch=5)).Z.shape
    torch.Size([5, 2, 1, 4])
    """
    if problem.head is None:
        raise ValueError("training needs a prediction head: pass head=attsvm.LinearHead(v) or any torch callable")

    def move(array: object) -> Tensor:
        return torch.tensor(array, dtype=dtype, device=device)

    lead = 0 if problem.batch is None else 1
    X, Z, Y = move(problem.X), move(problem.Z), move(problem.Y)
    allowed = torch.tensor(problem.allowed.copy(), device=device)
    if not lead:
        X, Z, Y, allowed = X[None], Z[None], Y[None], allowed[None]
    if not problem.multi_query:
        Z, Y, allowed = Z[:, :, None], Y[:, :, None], allowed[:, :, None]
    head, scores = _value_and_slopes(problem, X, Y, move)
    masked = lonely = None
    if problem.mask is not None:
        masked = ~allowed
        single = problem.allowed.sum(axis=-1) == 1
        if single.any():
            lonely = (allowed.sum(-1, keepdim=True) == 1).contiguous()
    return TensorProblem(X, Z, Y, allowed, head, scores, masked, lonely)


def _value_and_slopes(
    problem: AttentionProblem, X: Tensor, Y: Tensor, move: Callable[[object], Tensor]
) -> tuple[ValueAndSlopes, Tensor | None]:
    head = problem.head
    if isinstance(head, LinearHead | ConcaveHead):
        v = move(head.v)
        v = v[:, None, None, :] if v.ndim == 2 else v
        linear = (X * v).sum(-1)  # v . x_t, shape (B, n, T)
        if isinstance(head, LinearHead):
            return (lambda x: ((x * v).sum(-1), linear[:, :, None])), Y[..., None] * linear[:, :, None]
        lam = head.lam

        def concave(x: Tensor) -> tuple[Tensor, Tensor]:
            value = (x * v).sum(-1) - lam * x.square().sum(-1)
            return value, linear[:, :, None] - 2 * lam * torch.einsum("bnkd,bntd->bnkt", x, X)

        return concave, None
    if isinstance(head, ReluHead):
        V = move(head.V)
        V = V[:, None] if V.ndim == 3 else V  # (B, 1, d, w) or (d, w)
        hidden_tokens = X @ V  # (B, n, T, w)

        def relu(x: Tensor) -> tuple[Tensor, Tensor]:
            hidden = x @ V
            active = (hidden > 0).to(x.dtype)
            return (hidden * active).sum(-1), torch.einsum("bnkw,bntw->bnkt", active, hidden_tokens)

        return relu, None
    return _autograd_head(problem, X), None


def _autograd_head(problem: AttentionProblem, X: Tensor) -> ValueAndSlopes:
    """Any callable on torch tensors ``(..., dx) -> (...)``, differentiated by autograd."""
    head = problem.head
    assert head is not None

    def evaluate(x: Tensor) -> tuple[Tensor, Tensor]:
        with torch.enable_grad():
            point = x.detach().requires_grad_()
            value = head(point)
            if not isinstance(value, Tensor) or value.shape != x.shape[:-1]:
                raise ValueError(
                    "head must map torch tensors (..., dx) to tensors (...) to be trained through; "
                    f"got {type(value).__name__} of shape {getattr(value, 'shape', None)} for {tuple(x.shape)}"
                )
            (slope,) = torch.autograd.grad(value.sum(), point)
        return value.detach(), torch.einsum("bnkd,bntd->bnkt", slope, X)

    return evaluate
