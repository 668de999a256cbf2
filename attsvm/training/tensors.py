"""Problems as tensors: one leading batch axis, K queries always, any device and dtype."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy.typing as npt
import torch
from torch import Tensor

from attsvm.problem import AttentionProblem, require_problem
from attsvm.training.devices import torch_device

__all__ = ["TensorProblem", "tensor_problem", "with_linear_head"]

# Maps composed tokens x (B, n, K, dx) to h(x) (B, n, K) and to the slopes grad h(x) . x_t (B, n, K, T).
ValueAndSlopes = Callable[[Tensor], tuple[Tensor, Tensor]]

# Beyond scores of this size the slope of a loss may be too small to square.
_FLAT_LOSS = 300.0


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
    idle : Tensor of bool or None, shape (B, n, K, 1)
        Queries whose gradient is zero whatever W is: they see one token only, or are zero. None when there are none.
    irregular : bool
        Whether the gradient of a query may vanish or underflow for other reasons: tokens of equal scores, a head that
        is not linear, scores at which a loss is flat.
    """

    X: Tensor
    Z: Tensor
    Y: Tensor
    allowed: Tensor
    head: ValueAndSlopes
    scores: Tensor | None
    masked: Tensor | None = None
    idle: Tensor | None = None
    irregular: bool = True

    @property
    def batch(self) -> int:
        """Number of problems."""
        return int(self.X.shape[0])

    @property
    def is_repeated(self) -> bool:
        """Whether all problems have the same tokens and queries, which are stored once: `AttentionProblem.repeat`."""
        return self.batch > 1 and self.X.stride(0) == 0 and self.Z.stride(0) == 0


def tensor_problem(
    problem: AttentionProblem, device: torch.device | str | None = None, dtype: torch.dtype = torch.float64
) -> TensorProblem:
    """Move a problem (or a batch of them) to a device.

    Examples
    --------
    >>> import attsvm
    >>> from attsvm.training.tensors import tensor_problem
    >>> tensor_problem(attsvm.random_problem(n=2, T=3, d=4, batch=5)).Z.shape
    torch.Size([5, 2, 1, 4])
    """
    head = require_problem(problem).head
    if head is None:
        raise ValueError("training needs a prediction head: pass head=attsvm.LinearHead(v) or any torch callable")

    place = torch_device(device)

    def move(array: npt.NDArray[Any]) -> Tensor:
        if problem.batch is not None and problem.batch > 1 and array.strides[0] == 0:  # one for all
            return torch.tensor(array[0], dtype=dtype, device=place).expand(array.shape)
        return torch.tensor(array, dtype=dtype, device=place)

    X, Z, Y = move(problem.X), move(problem.Z), move(problem.Y)
    allowed = torch.tensor(problem.allowed.copy(), device=place)
    if problem.batch is None:
        X, Z, Y, allowed = X[None], Z[None], Y[None], allowed[None]
    if not problem.multi_query:
        Z, Y, allowed = Z[:, :, None], Y[:, :, None], allowed[:, :, None]
    evaluate = head.along(X)
    scores = Y[..., None] * evaluate(X[:, :, :1])[1] if head.is_linear else None
    masked = None if problem.mask is None else ~allowed
    idle = ((allowed.sum(-1) == 1) | (Z == 0).all(-1)).unsqueeze(-1)
    irregular = scores is None or _has_ties(scores, masked) or bool((scores.abs() > _FLAT_LOSS).any())
    return TensorProblem(X, Z, Y, allowed, evaluate, scores, masked, idle if bool(idle.any()) else None, irregular)


def with_linear_head(data: TensorProblem, v: Tensor) -> TensorProblem:
    """The same data under the linear heads v, shape (B, dx): what training of the head sees at a step.

    Examples
    --------
    >>> import torch
    >>> import attsvm
    >>> from attsvm.training.tensors import tensor_problem, with_linear_head
    >>> data = tensor_problem(attsvm.random_problem(n=2, T=3, d=4, batch=5))
    >>> with_linear_head(data, torch.zeros(5, 4, dtype=torch.float64)).scores.shape
    torch.Size([5, 2, 1, 3])
    """
    slopes = (data.X @ v[:, None, :, None])[..., 0].unsqueeze(2)  # (B, n, 1, T)

    def head(points: Tensor) -> tuple[Tensor, Tensor]:
        return (points @ v[:, None, :, None])[..., 0], slopes

    return replace(data, head=head, scores=data.Y.unsqueeze(-1) * slopes, irregular=True)


def _has_ties(scores: Tensor, masked: Tensor | None) -> bool:
    """Whether two allowed tokens of a query have the same score."""
    ranked = (scores if masked is None else scores.masked_fill(masked, torch.nan)).sort(dim=-1).values
    return bool((ranked[..., 1:] == ranked[..., :-1]).any())  # no NaN equals another
