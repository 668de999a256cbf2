"""One attention layer with other maps than softmax, and with several heads: batched, for experiments.

Maps that only reach 0 and 1 at infinity are softmaxes in disguise, so their gradients are exact in logarithms:

- softmax-1, ``e^h_t / (1 + sum e^h)``, is softmax with one more token x = 0, whose logit and score are 0;
- sigmoid attention, ``sum_t sigma(h_t) x_t``, is a sum of T softmaxes over the pairs {x_t, 0};
- H heads are a sum of H softmaxes whose queries are ``e_h (x) z`` (a W of its own for each, side by side) or ``P_h z``
  (one W for all, each with its own map of the queries).

All are `Summed`: the prediction of a sequence is the sum over its K queries, inside the loss. Sparsemax and 1.5-entmax
reach 0 and 1 at finite logits, where the gradient is exactly zero: training ends.

Digits read by one attention layer: the smallest transformer with a task.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor, nn

import attsvm
from attsvm._lazy import needs
from attsvm.losses import logistic
from attsvm.training.log_gradient import ScaledGradient, factor_out, logit_gradient, pulled_to_weights
from attsvm.training.tensors import TensorProblem, tensor_problem


@dataclass(frozen=True, eq=False)
class Summed:
    """A layer whose prediction is a sum over K queries.

    Attributes
    ----------
    problem : AttentionProblem
        A batch with K queries per sequence: its rows are those that W should follow.
    data : TensorProblem
        The same on the device, with a score for every query and token.
    """

    problem: attsvm.AttentionProblem
    data: TensorProblem


def _with_scores(problem: attsvm.AttentionProblem, scores: np.ndarray) -> Summed:
    """Scores (B, n, K, T), signed."""
    data = tensor_problem(problem)
    return Summed(problem, replace(data, scores=data.X.new_tensor(scores), irregular=True))


def _softmax(batch: attsvm.AttentionProblem, rng: np.random.Generator) -> Summed:
    return _with_scores(_several(batch, batch.X, batch.Z[:, :, None]), _scores(batch, batch.X)[:, :, None])


def _softmax_one(batch: attsvm.AttentionProblem, rng: np.random.Generator) -> Summed:
    X = _with_null(batch.X)
    return _with_scores(_several(batch, X, batch.Z[:, :, None]), _scores(batch, X)[:, :, None])


def _sigmoid(batch: attsvm.AttentionProblem, rng: np.random.Generator) -> Summed:
    X, T = _with_null(batch.X), batch.T
    pairs = np.hstack([np.eye(T, dtype=bool), np.ones((T, 1), dtype=bool)])  # query t sees token t and the null token
    mask = np.broadcast_to(pairs, (*X.shape[:2], T, T + 1))
    Z = np.broadcast_to(batch.Z[:, :, None], (*X.shape[:2], T, batch.dz))
    scores = np.broadcast_to(_scores(batch, X)[:, :, None], mask.shape)
    return _with_scores(_several(batch, X, Z, mask), scores)


def _heads(own_weights: bool, heads: int = 2) -> Callable[[attsvm.AttentionProblem, np.random.Generator], Summed]:
    def build(batch: attsvm.AttentionProblem, rng: np.random.Generator) -> Summed:
        B, n, _, d = batch.X.shape
        v = rng.standard_normal((B, heads, d))
        v /= np.linalg.norm(v, axis=-1, keepdims=True)
        if own_weights:  # z in block h of a vector with H blocks
            Z = np.einsum("hg,bnd->bnhgd", np.eye(heads), batch.Z).reshape(B, n, heads, heads * batch.dz)
        else:
            turns = np.linalg.qr(rng.standard_normal((B, heads, batch.dz, batch.dz)))[0]
            Z = np.einsum("bhde,bne->bnhd", turns, batch.Z)
        scores = np.einsum("bn,bntd,bhd->bnht", batch.Y, batch.X, v)
        return _with_scores(_several(batch, batch.X, Z), scores)

    return build


def _with_null(X: np.ndarray) -> np.ndarray:
    return np.concatenate([X, np.zeros_like(X[:, :, :1])], axis=2)


def _scores(batch: attsvm.AttentionProblem, X: np.ndarray) -> np.ndarray:
    assert isinstance(batch.head, attsvm.LinearHead)
    return np.asarray(np.einsum("bn,bntd,bd->bnt", batch.Y, X, batch.head.v))


def _several(
    batch: attsvm.AttentionProblem, X: np.ndarray, Z: np.ndarray, mask: np.ndarray | None = None
) -> attsvm.AttentionProblem:
    Y = np.broadcast_to(batch.Y[:, :, None], Z.shape[:3])
    return attsvm.AttentionProblem(X, Y, Z, batch.head, mask=mask)


SUMMED: dict[str, Callable[[attsvm.AttentionProblem, np.random.Generator], Summed]] = {
    "softmax": _softmax,
    "softmax-1": _softmax_one,
    "sigmoid": _sigmoid,
    "2 heads, own W": _heads(own_weights=True),
    "2 heads, one W": _heads(own_weights=False),
}


def summed_gradient(data: TensorProblem, W: Tensor) -> ScaledGradient:
    """Gradient of ``(1/n) sum_i l(sum_k Y_i h(X_i^T s_ik))`` with the logistic loss, in the log domain.

    Examples
    --------
    >>> batch = attsvm.random_problem(n=2, T=3, d=4, batch=2, seed=0)
    >>> layer = SUMMED["sigmoid"](batch, np.random.default_rng(0))
    >>> summed_gradient(layer.data, torch.zeros(2, 4, 4).double()).direction.shape
    torch.Size([2, 4, 4])
    """
    found = logit_gradient(data, W)
    log_slope = logistic.log_slope(found.value.sum(dim=2, keepdim=True))  # one per sequence
    log_scale = factor_out(data, found.in_logits, -torch.ones_like(found.value), found.log_off + log_slope)
    return ScaledGradient(pulled_to_weights(found.in_logits, data), log_scale)


def descend_summed(layer: Summed, steps: int, lr: float, marks: list[int], seed: int) -> np.ndarray:
    """Normalized gradient descent from a small random W; W at the marks, shape (marks, B, dx, dz).

    Examples
    --------
    >>> batch = attsvm.random_problem(n=2, T=3, d=4, batch=2, seed=0)
    >>> layer = SUMMED["softmax"](batch, np.random.default_rng(0))
    >>> descend_summed(layer, 10, 0.1, [5, 10], seed=0).shape
    (2, 2, 4, 4)
    """
    data, rng = layer.data, np.random.default_rng(seed)
    shape = (data.batch, data.X.shape[-1], data.Z.shape[-1])
    W = data.X.new_tensor(rng.uniform(-1, 1, size=shape) / np.sqrt(shape[-1]))
    kept = []
    with torch.no_grad():
        for k in range(1, steps + 1):
            direction = summed_gradient(data, W).direction
            size = direction.flatten(1).norm(dim=1).clamp(min=torch.finfo(W.dtype).tiny)
            W = W - lr * direction / size[:, None, None]
            if k in marks:
                kept.append(W.numpy().copy())
    return np.stack(kept)


def sparsemax(logits: Tensor) -> tuple[Tensor, Tensor]:
    """Projection of the logits (..., T) on the simplex, and what its derivative weighs tokens by (1 on the support).

    Examples
    --------
    >>> sparsemax(torch.tensor([0.5, 0.0, -2.0]))[0]
    tensor([0.7500, 0.2500, 0.0000])
    """
    ranked = logits.sort(dim=-1, descending=True).values
    count = torch.arange(1, logits.shape[-1] + 1, dtype=logits.dtype)
    thresholds = (ranked.cumsum(-1) - 1) / count
    support = (ranked > thresholds).sum(dim=-1, keepdim=True)
    p = (logits - thresholds.gather(-1, support - 1)).clamp(min=0)
    return p, (p > 0).to(logits.dtype)


def entmax(logits: Tensor) -> tuple[Tensor, Tensor]:
    """1.5-entmax of the logits (..., T), and what its derivative weighs tokens by (square roots).

    Examples
    --------
    >>> entmax(torch.tensor([2.0, 0.0]))[0]
    tensor([1., 0.])
    """
    half = logits / 2
    ranked = half.sort(dim=-1, descending=True).values
    count = torch.arange(1, logits.shape[-1] + 1, dtype=logits.dtype)
    mean, square = ranked.cumsum(-1) / count, ranked.square().cumsum(-1) / count
    spread = ((1 - count * (square - mean.square())) / count).clamp(min=0)
    thresholds = mean - spread.sqrt()
    support = (thresholds <= ranked).sum(dim=-1, keepdim=True)
    root = (half - thresholds.gather(-1, support - 1)).clamp(min=0)
    return root.square(), root


# The map with its weights, and the lead in logits at which it is one-hot.
FINITE_MAPS: dict[str, tuple[Callable[[Tensor], tuple[Tensor, Tensor]], float]] = {
    "sparsemax": (sparsemax, 1.0),
    "1.5-entmax": (entmax, 2.0),
}


def descend_finite(
    batch: attsvm.AttentionProblem, name: str, steps: int, lr: float, seed: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Normalized gradient descent with sparsemax or entmax until the gradient is exactly zero.

    Returns
    -------
    W : ndarray, shape (B, dx, dz)
    last : ndarray of int, shape (B,)
        The last step that moved W.
    stopped : ndarray of bool, shape (B,)

    Examples
    --------
    >>> batch = attsvm.random_problem(n=2, T=3, d=6, batch=4, seed=0)
    >>> W, last, stopped = descend_finite(batch, "sparsemax", 2000, 0.02, seed=0)
    >>> bool(stopped.all()), bool((last < 2000).all())
    (True, True)
    """
    data, rng, mapped = tensor_problem(batch), np.random.default_rng(seed), FINITE_MAPS[name][0]
    assert data.scores is not None
    W = data.X.new_tensor(rng.uniform(-1, 1, size=(data.batch, batch.dx, batch.dz)) / np.sqrt(batch.dz))
    last = torch.zeros(data.batch, dtype=torch.int64)
    size = torch.ones(data.batch, dtype=W.dtype)
    for k in range(1, steps + 1):
        p, weights = mapped(attsvm.attention.logits(data, W))
        slope = logistic.derivative((p * data.scores).sum(-1, keepdim=True)) / batch.n
        centre = (weights * data.scores).sum(-1, keepdim=True) / weights.sum(-1, keepdim=True)
        in_logits = torch.where(
            weights.count_nonzero(-1).unsqueeze(-1) > 1, slope * weights * (data.scores - centre), 0.0
        )
        gradient = pulled_to_weights(in_logits, data)
        size = gradient.flatten(1).norm(dim=1)
        last = torch.where(size > 0, k, last)
        if not bool((size > 0).any()):
            break
        W = W - lr * gradient / torch.where(size > 0, size, 1.0)[:, None, None]
    return W.numpy(), last.numpy(), (size == 0).numpy()


class DigitReader(nn.Module):
    """Digits of 8 x 8 pixels as 16 patches behind a token of their own, one attention layer, a linear answer."""

    def __init__(self, d: int = 16, heads: int = 2) -> None:
        super().__init__()
        self.patches, self.answer = nn.Linear(4, d), nn.Linear(d, 10)
        self.places = nn.Parameter(torch.randn(17, d))
        self.attention = nn.MultiheadAttention(d, heads, batch_first=True)

    def forward(self, images: Tensor) -> Tensor:
        """Class logits of images (n, 8, 8) from what the first token collects."""
        cut = images.unfold(1, 2, 2).unfold(2, 2, 2).reshape(len(images), 16, 4)
        tokens = torch.cat([torch.zeros_like(self.patches(cut)[:, :1]), self.patches(cut)], dim=1) + self.places
        out: Tensor = self.answer(self.attention(tokens, tokens, tokens)[0][:, 0])
        return out


def load_digits(count: int) -> tuple[Tensor, Tensor]:
    """Images (n, 8, 8) in [0, 1] and labels of scikit-learn's digits."""
    with needs("this study, which reads the digits of scikit-learn,"):
        from sklearn.datasets import load_digits as read
    data = read()
    return torch.tensor(data.images[:count] / 16.0, dtype=torch.float32), torch.tensor(data.target[:count])
