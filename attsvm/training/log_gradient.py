"""Gradients of the attention loss that do not underflow; its excess and its Lipschitz constant.

With logits ``h = X W z``, ``s = softmax(h)`` and slopes ``u_t = Y grad h(X^T s) . x_t`` (the scores, for a linear
head), the gradient in the logits is ``l' s_t (u_t - s . u)``, equation (15). Once ``1 - max s`` is below the
machine epsilon, ``u_a - s . u`` of the selected token a is rounding noise, and so is the direction. Relative to the
selected token nothing cancels: with ``gap_t = u_a - u_t`` and ``mean = sum_{t != a} s_t gap_t``,

    d/dh_t = l' s_t (mean - gap_t)   (t != a),        d/dh_a = l' s_a mean,

and every term is a product of exact factors once the largest off-token log-probability is factored out. The
gradient is returned as ``exp(log_scale) * direction``, so that its direction survives any saturation.

`log_excess` is how far the loss is above its infimum, in logarithms, which Polyak's step needs. With the scores of a
linear head the infimum is ``L* = (1/n) sum l(gamma_opt)``, every query on its best token (Lemma 2). With
``gap_t = gamma_opt - gamma_t >= 0`` and ``mean = sum_t s_t gap_t`` a query is above it by mean times the slope of the
chord of l: a sum of positive numbers, exact in logarithms at any saturation.

`smoothness_constant` is the Lipschitz constant of the gradient (Lemma 4), `naive_gradient` the textbook formula for
comparison.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from attsvm.attention import likeliest, log_attention, probabilities
from attsvm.attention import logits as attention_logits
from attsvm.losses import Loss, get_loss
from attsvm.problem import AttentionProblem, require_problem
from attsvm.training.tensors import TensorProblem

# -- gradients ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class ScaledGradient:
    """The gradient ``exp(log_scale) * direction`` of each problem.

    Attributes
    ----------
    direction : Tensor, shape (B, dx, dz)
        Of moderate size however small the gradient is.
    log_scale : Tensor, shape (B,)
    """

    direction: Tensor
    log_scale: Tensor


@dataclass(frozen=True, eq=False)
class AttentionState:
    """What the forward pass finds.

    Attributes
    ----------
    log_probabilities : Tensor, shape (B, n, K, T)
        -inf where masked.
    selected : Tensor of int, shape (B, n, K)
        The most likely token.
    loss : Tensor, shape (B,)
    """

    log_probabilities: Tensor
    selected: Tensor
    loss: Tensor


@dataclass(frozen=True, eq=False)
class LogitGradient:
    """What a query's signed prediction ``Y h(X^T s)`` feels of its logits: ``exp(log_off) * in_logits``.

    Attributes
    ----------
    in_logits : Tensor, shape (B, n, K, T)
    log_off : Tensor, shape (B, n, K, 1)
        The largest off-token log-probability that counts.
    value : Tensor, shape (B, n, K, 1)
        The signed prediction.
    """

    in_logits: Tensor
    log_off: Tensor
    value: Tensor


def scaled_gradient(data: TensorProblem, W: Tensor, loss: str | Loss) -> ScaledGradient:
    """Gradient of ``(1/n) sum_i sum_k l(Y_ik h(X_i^T s_ik))`` in W, in the log domain.

    Parameters
    ----------
    data : TensorProblem
    W : Tensor, shape (B, dx, dz)
    loss : str or Loss

    Examples
    --------
    The direction at a softmax saturated to ``1 - s = e^-5000`` is as exact as at the start:

    >>> import torch
    >>> import attsvm
    >>> from attsvm.training.tensors import tensor_problem
    >>> problem = attsvm.AttentionProblem([[[1.0], [0.0]]], [1], [[1.0]], attsvm.LinearHead([1.0]))
    >>> gradient = scaled_gradient(tensor_problem(problem), torch.full((1, 1, 1), 5000.0).double(), "correlation")
    >>> gradient.direction.item(), gradient.log_scale.item()
    (-1.0, -5000.0)
    """
    found, rule = logit_gradient(data, W), get_loss(loss)
    if data.irregular and rule.logs is not None:  # scores may be so large that the slope of the loss underflows
        log_query, slope = found.log_off + rule.log_slope(found.value), -torch.ones_like(found.value)
    else:
        log_query, slope = found.log_off, rule.derivative(found.value)
    log_scale = factor_out(data, found.in_logits, slope, log_query)
    return ScaledGradient(pulled_to_weights(found.in_logits, data), log_scale)


def attention_state(data: TensorProblem, W: Tensor, loss: str | Loss) -> AttentionState:
    """Log-probabilities, most likely tokens and loss, for reports.

    Examples
    --------
    >>> import torch
    >>> import attsvm
    >>> from attsvm.training.tensors import tensor_problem
    >>> data = tensor_problem(attsvm.random_problem(n=2, T=4, d=3))
    >>> attention_state(data, torch.zeros(1, 3, 3, dtype=torch.float64), "logistic").log_probabilities.exp()[0, 0, 0]
    tensor([0.2500, 0.2500, 0.2500, 0.2500], dtype=torch.float64)
    """
    log_s = log_attention(data, W)
    value = data.Y * data.head(log_s.exp() @ data.X)[0]
    average = get_loss(loss).value(value).sum(dim=(1, 2)) / data.X.shape[1]
    return AttentionState(log_s, likeliest(data, W), average)


def logit_gradient(data: TensorProblem, W: Tensor) -> LogitGradient:
    """The gradient of every signed prediction in its own logits, relative to the likeliest token.

    Examples
    --------
    >>> import torch
    >>> import attsvm
    >>> from attsvm.training.tensors import tensor_problem
    >>> problem = attsvm.AttentionProblem([[[1.0], [0.0]]], [1], [[1.0]], attsvm.LinearHead([1.0]))
    >>> found = logit_gradient(tensor_problem(problem), torch.full((1, 1, 1), 5000.0).double())
    >>> found.in_logits.flatten(), found.log_off.item()
    (tensor([ 1., -1.], dtype=torch.float64), -5000.0)
    """
    logits = attention_logits(data, W)
    top, selected = logits.max(dim=-1, keepdim=True)
    off = (logits - top).scatter_(-1, selected, -torch.inf)  # relative to the selected token, without it
    odds = off.exp() if data.irregular else None
    slopes, value = _slopes(data, logits, top, odds)
    slope_selected = slopes.gather(-1, selected)
    gap = slope_selected - slopes
    # A token that is worth as much as the selected one has no gradient of its own, however likely it is.
    felt = off if odds is None else off.masked_fill(gap == 0, -torch.inf)
    largest = felt.amax(dim=-1, keepdim=True)
    if data.irregular or data.idle is not None:
        largest = largest.masked_fill(torch.isneginf(largest), 0.0)  # nothing is felt
    weights = (felt - largest).exp_()  # s_t / exp(log_off) for t != a, in [0, 1]
    # (1 - s_a) / s_a; where every token counts, no second exponential is needed
    likeliest_odds = largest.exp()
    rest = weights.sum(-1, keepdim=True) * likeliest_odds if odds is None else odds.sum(-1, keepdim=True)
    log_off = largest - rest.log1p()  # the largest off-token log-probability that counts

    weighted = weights * gap
    scaled_mean = weighted.sum(-1, keepdim=True)  # mean / exp(log_off)
    of_selected = scaled_mean / (1.0 + rest)
    mean = of_selected * likeliest_odds
    in_logits = weights.mul_(mean).sub_(weighted)
    if odds is not None:
        in_logits += torch.where(gap == 0, odds, 0.0) * of_selected
    in_logits.scatter_(-1, selected, of_selected)

    return LogitGradient(in_logits, log_off, slope_selected - mean if value is None else value.unsqueeze(-1))


def _slopes(data: TensorProblem, logits: Tensor, top: Tensor, odds: Tensor | None) -> tuple[Tensor, Tensor | None]:
    """``u_t`` per query and token, and ``Y h(X^T s)`` unless it follows from them (linear heads)."""
    if data.scores is not None:
        return data.scores, None
    assert odds is not None  # other heads are irregular
    s = (logits - top).exp() / (1.0 + odds.sum(-1, keepdim=True))
    value, slopes = data.head(s @ data.X)  # the composed token, shape (B, n, K, dx)
    return data.Y.unsqueeze(-1) * slopes, data.Y * value


def factor_out(data: TensorProblem, in_logits: Tensor, slope: Tensor, log_off: Tensor) -> Tensor:
    """Multiply the gradients of all queries by their scales (in place), with the largest of each problem left out.

    Returns
    -------
    Tensor, shape (B,)
        Logarithm of what was left out. Only queries that contribute decide it: one with a zero gradient (tokens of
        equal value, hidden units all off, a zero query, a loss that is flat there) would hide all that are smaller.
    """
    n = data.X.shape[1]
    log_query = log_off
    if data.irregular:
        size = (in_logits * slope).abs().amax(dim=-1, keepdim=True)
        tiny = torch.finfo(size.dtype).tiny ** 0.25  # what is larger can be squared, and multiplied by tokens
        flat = torch.where((size > 0) & (size < tiny), size, 1.0)  # where the loss is flat, its slope joins the scale
        slope = slope / flat
        log_query = (log_off + flat.log()).masked_fill(size == 0, -torch.inf)
    if data.idle is not None:
        log_query = log_query.masked_fill(data.idle, -torch.inf)
    log_scale = log_query.amax(dim=(1, 2, 3))  # factor the largest query of each problem out
    if data.irregular or data.idle is not None:
        log_scale = log_scale.masked_fill(torch.isneginf(log_scale), 0.0)
    in_logits *= slope * (log_query - log_scale.reshape(-1, 1, 1, 1)).exp_().div_(n)
    return log_scale


def pulled_to_weights(in_logits: Tensor, data: TensorProblem) -> Tensor:
    """A gradient in the logits as one in W: ``sum_{i,k} X_i^T g_ik z_ik^T``, shape (B, dx, dz)."""
    B, n, K, dz = data.Z.shape
    if data.is_repeated:  # one product with all problems per sequence, and one with all sequences
        by_sequence = in_logits.permute(1, 2, 0, 3).reshape(n, K * B, -1) @ data.X[0]  # (n, K B, dx)
        summed = data.Z[0].reshape(n * K, dz).T @ by_sequence.reshape(n * K, -1)  # (dz, B dx)
        return summed.reshape(dz, B, -1).permute(1, 2, 0)
    pulled = in_logits @ data.X  # (B, n, K, dx)
    return torch.bmm(pulled.reshape(B, n * K, -1).transpose(1, 2), data.Z.reshape(B, n * K, dz))


def head_gradient(data: TensorProblem, W: Tensor, loss: str | Loss) -> ScaledGradient:
    """Gradient in the v of a linear head: ``(1/n) sum l' Y X^T s``, with the largest slope of the loss factored out.

    Parameters
    ----------
    data : TensorProblem
        Under the head v, see `attsvm.training.tensors.with_linear_head`.
    W : Tensor, shape (B, dx, dz)
    loss : str or Loss

    Returns
    -------
    ScaledGradient
        ``direction`` has shape (B, dx).

    Examples
    --------
    At a signed prediction of 5,000 the slope of the logistic loss is e^-5000:

    >>> import torch
    >>> import attsvm
    >>> from attsvm.training.tensors import tensor_problem
    >>> problem = attsvm.AttentionProblem([[[1.0], [1.0]]], [1], [[1.0]], attsvm.LinearHead([5000.0]))
    >>> gradient = head_gradient(tensor_problem(problem), torch.zeros(1, 1, 1).double(), "logistic")
    >>> gradient.direction.item(), gradient.log_scale.item()
    (-1.0, -5000.0)
    """
    rule = get_loss(loss)
    composed = probabilities(data, W) @ data.X  # (B, n, K, dx)
    value = data.Y * data.head(composed)[0]
    if rule.logs is None:
        slope, log_scale = rule.derivative(value), torch.zeros_like(value[:, 0, 0])
    else:
        log_slope = rule.log_slope(value)
        log_scale = log_slope.amax(dim=(1, 2))
        slope = -(log_slope - log_scale[:, None, None]).exp()
    weights = slope * data.Y / data.X.shape[1]
    return ScaledGradient((weights.unsqueeze(-1) * composed).sum(dim=(1, 2)), log_scale)


def naive_gradient(data: TensorProblem, W: Tensor, loss: str | Loss) -> ScaledGradient:
    """The same gradient in plain arithmetic, as published code computes it: rounding noise once saturated.

    Kept for comparisons.

    Examples
    --------
    >>> import torch
    >>> import attsvm
    >>> from attsvm.training.tensors import tensor_problem
    >>> data = tensor_problem(attsvm.random_problem(n=2, T=3, d=4))
    >>> W = torch.ones(1, 4, 4, dtype=torch.float64)
    >>> exact = scaled_gradient(data, W, "logistic")
    >>> plain = naive_gradient(data, W, "logistic")
    >>> torch.allclose(plain.direction, exact.direction * exact.log_scale.exp()[:, None, None])
    True
    """
    s = probabilities(data, W)
    value, slopes = data.head(s @ data.X)
    slopes = data.Y.unsqueeze(-1) * slopes
    in_logits = s * (slopes - (s * slopes).sum(-1, keepdim=True))
    in_logits = in_logits * (get_loss(loss).derivative(data.Y * value) / data.X.shape[1]).unsqueeze(-1)
    return ScaledGradient(pulled_to_weights(in_logits, data), torch.zeros(data.batch, dtype=W.dtype, device=W.device))


# -- constants of the loss ---------------------------------------------------------------------------------------------


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
    with np.errstate(over="ignore"):  # infinite where it is too large for a double
        return float((v * z2 * X**3 * (M0 * v * X + 3 * M1)).mean())
