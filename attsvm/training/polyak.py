"""How far the loss is above its infimum, in logarithms: what Polyak's step needs.

With the scores of a linear head the infimum of the loss is ``L* = (1/n) sum l(gamma_opt)``, every query on its best
token (Lemma 2). With ``gap_t = gamma_opt - gamma_t >= 0`` and ``mean = sum_t s_t gap_t`` a query is above it by mean
times the slope of the chord of l: a sum of positive numbers, exact in logarithms at any saturation.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from attsvm.attention import log_attention
from attsvm.losses import Loss, get_loss
from attsvm.training.tensors import TensorProblem

__all__ = ["log_excess"]


def log_excess(data: TensorProblem, W: Tensor, loss: str | Loss) -> Tensor:
    """``log(L(W) - L*)`` of every problem, shape (B,).

    Parameters
    ----------
    data : TensorProblem
        With a linear head.
    W : Tensor, shape (B, dx, dz)
    loss : str or Loss

    Examples
    --------
    >>> import torch
    >>> import attsvm
    >>> from attsvm.training.polyak import log_excess
    >>> from attsvm.training.tensors import tensor_problem
    >>> problem = attsvm.AttentionProblem([[[1.0], [0.0]]], [1], [[1.0]], attsvm.LinearHead([1.0]))
    >>> log_excess(tensor_problem(problem), torch.full((1, 1, 1), 5000.0).double(), "correlation").item()
    -5000.0
    """
    if data.scores is None:
        raise ValueError("the infimum of the loss is known for linear heads only")
    scores = data.scores.expand(data.allowed.shape)
    if data.masked is not None:
        scores = scores.masked_fill(data.masked, -torch.inf)
    top = scores.amax(dim=-1)
    gap = top.unsqueeze(-1) - scores
    if data.masked is not None:
        gap = gap.masked_fill(data.masked, 0.0)
    log_mean = (log_attention(data, W) + gap.log()).logsumexp(dim=-1)  # (B, n, K)
    each = log_mean + get_loss(loss).log_chord(top, log_mean.exp())
    return each.flatten(1).logsumexp(dim=1) - math.log(data.X.shape[1])
