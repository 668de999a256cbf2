"""Optimizers that look at K and Q together, and the norm of W that each optimizer of (K, Q) is predicted to follow.

`docs/key_query.md` derives the predictions.
"""

from __future__ import annotations

import torch
from torch import Tensor

from attsvm.training.tensors import Parameters, like, polar, squared_norms

__all__ = ["compositional_step", "flow_step", "product_norm"]


def product_norm(norm: str | None) -> str | None:
    """The norm of W that ``max(||K||, ||Q||)`` puts on W = K Q^T, for factors with at least min(dx, dz) columns.

    ``|W|_* <= |K|_F |Q|_F`` and ``|W|_op <= |K|_op |Q|_op`` with equality at ``K = U S^1/2``, ``Q = V S^1/2``; other
    norms of the factors lead to none of the library's norms.

    Examples
    --------
    >>> from attsvm.training.factor_optimizers import product_norm
    >>> product_norm("frobenius"), product_norm("spectral"), product_norm("linf")
    ('nuclear', 'spectral', None)
    """
    return {"frobenius": "nuclear", "l2": "nuclear", "spectral": "spectral"}.get(norm or "")


def flow_step(
    parameters: Parameters, gradient: Parameters, log_scale: Tensor, state: Parameters, lr: Tensor, k: int
) -> tuple[Parameters, Parameters]:
    """Move all parameters together by lr times their length: gradient flow in the time ``log |parameters|``.

    Examples
    --------
    >>> import torch
    >>> from attsvm.training.factor_optimizers import flow_step
    >>> W, gradient = torch.tensor([[[3.0, 4.0]]]), torch.tensor([[[0.0, 7.0]]])
    >>> flow_step({"W": W}, {"W": gradient}, torch.zeros(1), {}, torch.tensor([0.1]), 1)[0]["W"]
    tensor([[[3.0000, 3.5000]]])
    """
    length = torch.stack(list(squared_norms(parameters).values())).sum(0).sqrt()
    size = torch.stack(list(squared_norms(gradient).values())).sum(0).sqrt()
    rate = lr * torch.where(size > 0, length / size, 0.0)
    return {n: torch.addcmul(t, like(rate, t), gradient[n], value=-1.0) for n, t in parameters.items()}, state


def compositional_step(
    parameters: Parameters, gradient: Parameters, log_scale: Tensor, state: Parameters, lr: Tensor, k: int
) -> tuple[Parameters, Parameters]:
    """Steepest descent in the spectral norm of the change of ``K Q^T``, half of it from each factor.

    ``K <- K - lr/2 polar(G Q C^-1) C^-1`` with ``C = (Q^T Q + lr I)^1/2``, and likewise for Q. For factors of full row
    rank, far above ``lr^1/2``, K Q^T moves by ``lr polar(G)``; the term lr I keeps the product of both changes below
    ``lr / 4`` where they are small.

    Examples
    --------
    >>> import torch
    >>> from attsvm.training.factor_optimizers import compositional_step
    >>> K, Q, G = 30 * torch.eye(2)[None], torch.eye(2)[None], torch.tensor([[[5.0, 0.0], [0.0, -1.0]]])
    >>> gradient, lr = {"K": G @ Q, "Q": G.mT @ K}, torch.tensor([1e-3])
    >>> moved, _ = compositional_step({"K": K, "Q": Q}, gradient, torch.zeros(1), {}, lr, 1)
    >>> ((moved["K"] @ moved["Q"].mT - K @ Q.mT) * 1e3).round(decimals=2)
    tensor([[[-1.,  0.],
             [ 0.,  1.]]])
    """
    K, Q = parameters["K"], parameters["Q"]
    moved = {
        "K": _half_step(K, gradient["K"], Q, lr),
        "Q": _half_step(Q, gradient["Q"], K, lr),
    }
    return moved, state


def _half_step(factor: Tensor, gradient: Tensor, partner: Tensor, lr: Tensor) -> Tensor:
    values, vectors = torch.linalg.eigh(partner.transpose(-1, -2) @ partner)
    largest, size = values[:, -1:], len(values[0])
    used = (values > largest * (size * torch.finfo(values.dtype).eps)) & (lr[:, None] > 0)  # lr is 0 after the end
    shrunk = torch.where(used, (values + lr[:, None]).rsqrt(), 0.0)
    whiten = (vectors * shrunk.unsqueeze(-2)) @ vectors.transpose(-1, -2)
    # Whitening raises rounding errors in the gradient as much as the directions in which the partner is smallest.
    growth = size * largest[:, 0].sqrt() * shrunk.amax(dim=1)
    return torch.addcmul(factor, like(lr, factor), polar(gradient @ whiten, growth) @ whiten, value=-0.5)
