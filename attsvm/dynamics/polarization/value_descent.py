"""Plain gradient descent of the value-softmax model and of its tied relative, and the attentions of Table 1, in torch.

One step of size lr advances the time of the flow by lr. Gradients are in closed form, so that a million steps are
possible; a batch of B initialisations costs little more than one. The reduced system is the case d = 1: ``V0 = u0 /
sqrt(b)`` with target ``[sqrt(b)]``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import elu

from attsvm.dynamics.polarization.value_losses import KLLoss, LogisticLoss, SquareLoss, TargetLoss, get_normalization
from attsvm.training.options import snapshot_steps
from attsvm.user_input import positive, require_choice, require_count


@dataclass(frozen=True)
class AttentionKind:
    """One row of Table 1.

    Attributes
    ----------
    name : str
        "softmax", "sigmoid", "elu", "elu_elu", "mlp" or "linear".
    normalized : bool
        Whether each row is divided by its sum (softmax always is).
    """

    name: str
    normalized: bool = True

    def __post_init__(self) -> None:
        require_choice("kind", self.name, *_NAMES)
        if self.name == "softmax" and not self.normalized:
            raise ValueError("softmax is normalized by definition")

    @property
    def positive(self) -> bool:
        """Whether weights cannot be negative."""
        return self.name not in ("mlp", "linear")

    def __str__(self) -> str:
        if self.name == "softmax":
            return "softmax"
        return f"{self.name}_{'norm' if self.normalized else 'unnorm'}"


_NAMES = ("softmax", "sigmoid", "elu", "elu_elu", "mlp", "linear")

ATTENTION_KINDS: tuple[AttentionKind, ...] = (
    AttentionKind("softmax"),
    *(AttentionKind(name, flag) for name in _NAMES[1:] for flag in (True, False)),
)

_EPSILON = 1e-9  # added to sums of positive weights, as published


def attention_weights(
    kind: AttentionKind,
    q: Tensor,
    k: Tensor,
    *,
    mask: Tensor | None = None,
    features: Callable[[Tensor], Tensor] | None = None,
) -> Tensor:
    """Attention weights of Table 1.

    Parameters
    ----------
    kind : AttentionKind
    q, k : Tensor, shape (..., T, d_h)
    mask : Tensor of bool, shape (T, T), optional
        True where attention is allowed; hidden keys get weight 0 and leave the sums.
    features : callable, optional
        The map of "mlp", from (..., T, d_h) to (..., T, d_h).

    Returns
    -------
    Tensor, shape (..., T, T)

    Examples
    --------
    >>> import torch
    >>> from attsvm.dynamics.polarization import AttentionKind
    >>> from attsvm.dynamics.polarization.value_descent import attention_weights
    >>> q = torch.zeros(1, 4, 2)
    >>> attention_weights(AttentionKind("sigmoid", normalized=False), q, q)[0, 0].tolist()
    [0.5, 0.5, 0.5, 0.5]
    """
    if kind.name == "elu_elu":
        q, k = elu(q) + 1, elu(k) + 1
    elif kind.name == "mlp":
        if features is None:
            raise ValueError('kind "mlp" needs features=, the map applied to queries and keys')
        q, k = features(q), features(k)
    logits = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])
    if kind.name == "softmax":
        if mask is not None:
            logits = logits.masked_fill(~mask, -torch.inf)
        return torch.softmax(logits, -1)
    if kind.name == "sigmoid":
        logits = torch.sigmoid(logits)
    elif kind.name == "elu":
        logits = elu(logits) + 1
    weights = logits if mask is None else logits.masked_fill(~mask, 0.0)
    if not kind.normalized:
        return weights
    total = weights.sum(-1, keepdim=True)
    # Signed weights may sum to nothing: Table 1 divides them by max(|sum|, 1).
    return weights / (total + _EPSILON if kind.positive else total.abs().clamp_min(1.0))


Parts = Callable[[Tensor], tuple[Tensor, Tensor]]

Gradient = Callable[[Tensor], Tensor]


@dataclass(frozen=True, eq=False)
class Descent:
    """Snapshots of a gradient descent.

    Attributes
    ----------
    steps : list of int, length k
    times : Tensor, shape (k,)
        ``lr * steps``.
    V : Tensor, shape (k, B, d, p)
        Value matrices (R, for the tied model).
    a, scores : Tensor, shape (k, B, p)
    loss : Tensor, shape (k, B)
    """

    steps: list[int]
    times: Tensor
    V: Tensor
    a: Tensor
    scores: Tensor
    loss: Tensor

    @property
    def entropy(self) -> Tensor:
        """Entropy of the scores, shape (k, B); NaN where they are not a distribution."""
        s = self.scores
        values = -torch.special.xlogy(s, s.clamp_min(torch.finfo(s.dtype).tiny)).sum(-1)
        valid = (s >= 0).all(-1) & ((s.sum(-1) - 1).abs() < 1e-6)
        return torch.where(valid, values, torch.nan)


def torch_parts(name: str) -> Parts:
    """Scores and Jacobian weights of a named map for tensors (..., p), as `Normalization.parts`.

    Examples
    --------
    >>> import torch
    >>> from attsvm.dynamics.polarization.value_descent import torch_parts
    >>> torch_parts("relu_norm")(torch.tensor([1.0, 3.0]))[0].tolist()
    [0.25, 0.75]
    """
    kind = get_normalization(name)
    if kind.name == "softmax":

        def softmax_parts(a: Tensor) -> tuple[Tensor, Tensor]:
            s = torch.softmax(a, -1)
            return s, s

        return softmax_parts
    value, slope = _MAPS[kind.name.removesuffix("_norm")]
    if not kind.normalized:
        return lambda a: (value(a), slope(a))

    def parts(a: Tensor) -> tuple[Tensor, Tensor]:
        f = value(a)
        total = f.sum(-1, keepdim=True)
        return f / total, slope(a) / total

    return parts


_MAPS: dict[str, tuple[Gradient, Gradient]] = {
    "sum": (lambda x: x, torch.ones_like),
    "linear": (lambda x: x, torch.ones_like),
    "square": (lambda x: x * x, lambda x: 2 * x),
    "l1": (torch.abs, torch.sign),
    "relu": (lambda x: x.clamp_min(0), lambda x: (x > 0).to(x.dtype)),
    "sigmoid": (torch.sigmoid, lambda x: torch.sigmoid(x) * torch.sigmoid(-x)),
    "elu": (lambda x: torch.where(x > 0, x + 1, x.clamp_max(0).exp()), lambda x: x.clamp_max(0).exp()),
}


def _tensor(name: str, value: Any, axes: int, dtype: torch.dtype, device: str | torch.device | None) -> Tensor:
    tensor = torch.as_tensor(value, dtype=dtype, device=device).clone()
    if tensor.ndim == axes:
        tensor = tensor[None]
    if tensor.ndim != axes + 1:
        raise ValueError(f"{name} must have {axes} axes, or one more for a batch, got shape {tuple(tensor.shape)}")
    if not bool(torch.isfinite(tensor).all()):
        raise ValueError(f"{name} must be finite")
    return tensor


def descend(
    V0: Any,
    a0: Any,
    loss: LogisticLoss | SquareLoss | KLLoss,
    *,
    normalization: str = "softmax",
    lr: float = 0.1,
    steps: int = 10_000,
    snapshots: int | Sequence[int] = 100,
    dtype: torch.dtype = torch.float64,
    device: str | torch.device | None = None,
) -> Descent:
    """Gradient descent on ``l(V s(a))``.

    Parameters
    ----------
    V0 : array_like, shape (d, p) or (B, d, p)
    a0 : array_like, shape (p,) or (B, p)
    loss : LogisticLoss, SquareLoss or KLLoss
        Shared by the batch.
    normalization : str
        See `get_normalization`.
    lr : float
    steps : int
    snapshots : int or sequence of int
        How many steps to keep (log-spaced), or which.
    dtype, device
        Of the tensors.

    Examples
    --------
    >>> import numpy as np
    >>> from attsvm.dynamics.polarization import LogisticLoss, descend
    >>> run = descend(0.1 * np.eye(3), np.zeros(3), LogisticLoss([1.0, 0.5, 0.0]), lr=0.5, steps=2000)
    >>> run.scores[-1, 0].argmax().item(), bool(run.loss[-1, 0] < 0.01)
    (0, True)
    """
    positive("lr", lr)
    require_count("steps", steps)
    V, a = _tensor("V0", V0, 2, dtype, device), _tensor("a0", a0, 1, dtype, device)
    if a.shape != (V.shape[0], V.shape[2]):
        raise ValueError(f"a0 must have shape {(V.shape[0], V.shape[2])}, got {tuple(a.shape)}")
    kind = get_normalization(normalization)
    parts = torch_parts(kind.name)
    if not isinstance(loss, TargetLoss):
        raise ValueError(f"loss must be a LogisticLoss, SquareLoss or KLLoss, got {type(loss).__name__}")
    moved = loss.on(V)

    def forward() -> tuple[Tensor, ...]:
        s, w = parts(a)
        return s, w, torch.bmm(V, s[..., None])[..., 0]

    def step(s: Tensor, w: Tensor, beta: Tensor) -> None:
        r = moved.descent(beta)
        pulled = torch.bmm(r[:, None], V)[:, 0]
        if kind.normalized:
            pulled -= (s * pulled).sum(-1, keepdim=True)
        V.baddbmm_(r[..., None], s[:, None], alpha=lr)
        a.addcmul_(w, pulled, value=lr)

    return _descent((V, a), forward, step, moved.value, snapshot_steps(steps, snapshots), lr)


def descend_tied(
    R0: Any,
    a0: Any,
    target: Any,
    *,
    transposed: bool = False,
    lr: float = 0.05,
    steps: int = 10_000,
    snapshots: int | Sequence[int] = 100,
    dtype: torch.dtype = torch.float64,
    device: str | torch.device | None = None,
) -> Descent:
    """Gradient descent on the logistic loss of ``R softmax(R a)`` (``R^T softmax(R a)`` when transposed).

    Parameters
    ----------
    R0 : array_like, shape (D, D) or (B, D, D); (T, d) or (B, T, d) when transposed
    a0 : array_like, shape (D,) or (B, D)
    target : array_like, shape (D,)
    transposed, lr, steps, snapshots, dtype, device
        As for `tied_flow` and `descend`.

    Examples
    --------
    >>> import numpy as np
    >>> from attsvm.dynamics.polarization import descend_tied
    >>> run = descend_tied(np.eye(3), [1.1, 1.0, 0.9], [1.0, 0.0, 0.0], lr=0.1, steps=2000)
    >>> bool(run.scores[-1, 0, 0] > 0.9)
    True
    """
    positive("lr", lr)
    require_count("steps", steps)
    R, a = _tensor("R0", R0, 2, dtype, device), _tensor("a0", a0, 1, dtype, device)
    goal = torch.as_tensor(target, dtype=dtype, device=device)
    if not transposed and R.shape[1] != R.shape[2]:
        raise ValueError(f"R0 must be square, got shape {tuple(R.shape)}")
    if a.shape != (R.shape[0], R.shape[2]) or goal.shape != (R.shape[2],):
        raise ValueError(
            f"a0 and target must end in {R.shape[2]} entries, got shapes {tuple(a.shape)}, {tuple(goal.shape)}"
        )
    values = R.transpose(1, 2) if transposed else R  # a view: it moves with R

    def forward() -> tuple[Tensor, ...]:
        s = torch.softmax(torch.bmm(R, a[..., None])[..., 0], -1)
        return s, torch.bmm(values, s[..., None])[..., 0] @ goal

    def step(s: Tensor, m: Tensor) -> None:
        r = torch.sigmoid(-m)[:, None] * goal
        pulled = torch.bmm(r[:, None], values)[:, 0]
        h = s * (pulled - (s * pulled).sum(-1, keepdim=True))
        da = torch.bmm(h[:, None], R)[:, 0]
        R.baddbmm_(h[..., None], a[:, None], alpha=lr)
        values_step = (s[..., None], r[:, None]) if transposed else (r[..., None], s[:, None])
        R.baddbmm_(*values_step, alpha=lr)
        a.add_(da, alpha=lr)

    def loss_of(m: Tensor) -> Tensor:
        return torch.nn.functional.softplus(-m, threshold=1e9)

    return _descent((R, a), forward, step, loss_of, snapshot_steps(steps, snapshots), lr)


def _descent(
    parameters: tuple[Tensor, Tensor],
    forward: Callable[[], tuple[Tensor, ...]],
    step: Callable[..., None],
    loss_of: Callable[[Tensor], Tensor],
    keep: list[int],
    lr: float,
) -> Descent:
    """Steps in place, and snapshots of the parameters, the scores (first of ``forward``) and the loss (of its last)."""
    kept: list[tuple[Tensor, ...]] = []
    with torch.no_grad():
        for k in range(keep[-1] + 1):
            found = forward()
            if k == keep[len(kept)]:
                kept.append((*(p.clone() for p in parameters), found[0].clone(), loss_of(found[-1])))
            if k < keep[-1]:
                step(*found)
    V, a, s, loss = (torch.stack(column) for column in zip(*kept, strict=True))
    return Descent(keep, lr * torch.tensor(keep, dtype=a.dtype, device=a.device), V, a, s, loss)
