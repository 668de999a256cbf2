"""Attention whose heads share one query, equations (3) and (4), and the Bayes estimator it competes with.

Heads are softmax, softmax-1 or Bayes-softmax. The estimator of the relevant token and its risk are those of
Proposition IV.1.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from attsvm.dynamics.specialization.spiked_data import (
    DiscretePrior,
    GaussianPrior,
    Prior,
    transformed,
)
from attsvm.solvers.arrays import FloatArray
from attsvm.user_input import generator as seeded
from attsvm.user_input import require_choice, require_count

ACTIVATIONS = ("softmax", "softmax1", "bayes")


def check_activation(activation: str) -> None:
    """Raise unless the name is known."""
    require_choice("activation", activation, *ACTIVATIONS)


def head_weights(scores: Tensor, b: Tensor, v: Tensor, activation: str) -> Tensor:
    """Attention ``sigma(chi, b, v; h)_l`` of every head; the model averages it over heads.

    Parameters
    ----------
    scores : Tensor, shape (..., H, L)
        chi.
    b : Tensor, shape (..., H)
        Thresholds of softmax-1, biases of Bayes-softmax; softmax does not use them.
    v : Tensor, shape (...)
        Amplitude of softmax-1.
    activation : {"softmax", "softmax1", "bayes"}

    Returns
    -------
    Tensor, shape (..., H, L)
        Each head of softmax sums to one; the mean over heads of Bayes-softmax does; softmax-1 sums to at most v.

    Examples
    --------
    >>> import torch
    >>> from attsvm.dynamics.specialization import head_weights
    >>> zero = torch.zeros(2, 3, dtype=torch.float64)
    >>> head_weights(zero, zero[:, 0], torch.tensor(1.0), "softmax1")
    tensor([[0.2500, 0.2500, 0.2500],
            [0.2500, 0.2500, 0.2500]], dtype=torch.float64)
    """
    check_activation(activation)
    if activation == "softmax":
        return torch.softmax(scores, dim=-1)
    if activation == "softmax1":
        with_sink = torch.cat([scores, b.unsqueeze(-1).expand(*scores.shape[:-1], 1)], dim=-1)
        return v[..., None, None] * torch.softmax(with_sink, dim=-1)[..., :-1]
    shifted = scores + b.unsqueeze(-1)  # (4): one normalizer for all heads
    return scores.shape[-2] * torch.softmax(shifted.flatten(-2), dim=-1).reshape(scores.shape)


def initial_heads(H: int, D: int, eta: float = 1.0, *, generator: torch.Generator, **factory: Any) -> Tensor:
    """Random heads ``k_h ~ N(0, eta^2 I / D)``, shape (H, D).

    Examples
    --------
    >>> import torch
    >>> from attsvm.dynamics.specialization import initial_heads
    >>> initial_heads(2, 5, generator=torch.Generator().manual_seed(0)).shape
    torch.Size([2, 5])
    """
    require_count("H", H)
    require_count("D", D)
    options: dict[str, Any] = {"dtype": torch.float64, "device": generator.device} | factory
    heads: Tensor = eta / D**0.5 * torch.randn(H, D, generator=generator, **options)
    return heads


class MultiHeadAttention(nn.Module):
    """The estimator of equation (3): the mean over heads of attention-weighted tokens.

    Parameters
    ----------
    k : Tensor, shape (..., H, D)
        One key per head; leading axes hold independent models.
    activation : {"softmax", "softmax1", "bayes"}
    b : Tensor, shape (..., H), optional
        Zero by default.
    v : Tensor, shape (...), optional
        One by default.

    Examples
    --------
    >>> import torch
    >>> from attsvm.dynamics.specialization import MultiHeadAttention
    >>> layer = MultiHeadAttention(torch.zeros(4, 6, dtype=torch.float64), "bayes")
    >>> X = torch.ones(10, 3, 6, dtype=torch.float64)
    >>> torch.allclose(layer(X), X[:, 0])
    True
    """

    def __init__(self, k: Tensor, activation: str = "softmax", b: Tensor | None = None, v: Tensor | None = None):
        super().__init__()
        check_activation(activation)
        if k.ndim < 2 or k.shape[-2] == 0 or k.shape[-1] == 0:
            raise ValueError(f"k must have shape (..., H, D) with H, D >= 1, got {tuple(k.shape)}")
        if not torch.isfinite(k).all():
            raise ValueError("k must be finite")
        self.activation = activation
        self.k = nn.Parameter(k.detach().clone())
        self.b = nn.Parameter(k.new_zeros(k.shape[:-1]) if b is None else b.detach().clone())
        self.v = nn.Parameter(k.new_ones(k.shape[:-2]) if v is None else v.detach().clone())
        if self.b.shape != k.shape[:-1] or self.v.shape != k.shape[:-2]:
            raise ValueError(
                f"b must have shape {tuple(k.shape[:-1])} and v {tuple(k.shape[:-2])}, "
                f"got {tuple(self.b.shape)} and {tuple(self.v.shape)}"
            )

    def scores(self, X: Tensor) -> Tensor:
        """Scores ``chi_h = X k_h``, shape (..., N, H, L), of tokens of shape (..., N, L, D)."""
        if X.shape[-1] != self.k.shape[-1]:
            raise ValueError(f"tokens have dimension {X.shape[-1]}, the heads {self.k.shape[-1]}")
        return (X @ self.k.unsqueeze(-3).transpose(-1, -2)).transpose(-1, -2)

    def attention(self, X: Tensor) -> Tensor:
        """Weights of every head on every token, shape (..., N, H, L)."""
        return head_weights(self.scores(X), self.b.unsqueeze(-2), self.v.unsqueeze(-1), self.activation)

    def forward(self, X: Tensor) -> Tensor:
        """Estimate of the relevant token, shape (..., N, D)."""
        combined = self.attention(X).mean(dim=-2)
        return (combined.unsqueeze(-2) @ X).squeeze(-2)


@dataclass(frozen=True)
class Estimate:
    """A Monte-Carlo mean and its standard error."""

    value: float
    error: float


def _log_evidence(prior: Prior, chi: FloatArray) -> FloatArray:
    """``log E_theta exp(theta . chi - |theta|^2 / 2)`` up to a constant, over the last axis of chi."""
    if isinstance(prior, DiscretePrior):
        exponents = chi @ prior.atoms.T - 0.5 * (prior.atoms**2).sum(axis=1) + np.log(prior.weights)
        top = exponents.max(axis=-1, keepdims=True)
        return np.asarray(np.log(np.exp(exponents - top).sum(axis=-1)) + top[..., 0])
    if isinstance(prior, GaussianPrior):
        # N(mean, V): exponent 1/2 chi^T V (I + V)^-1 chi + chi^T (I + V)^-1 mean; V may be singular.
        inverse = np.linalg.inv(np.eye(prior.features) + prior.covariance)
        shrunk = prior.covariance @ inverse
        return np.asarray(0.5 * np.einsum("...f,fg,...g->...", chi, shrunk, chi) + chi @ (inverse @ prior.mean))
    raise ValueError(f"the posterior needs a DiscretePrior or a GaussianPrior, got {type(prior).__name__}; "
                     "take a DiscretePrior of draws")  # fmt: skip


def position_posterior(prior: Prior, chi: npt.ArrayLike) -> FloatArray:
    """Probability of each position of the relevant token given the projections on the spikes.

    Parameters
    ----------
    prior : DiscretePrior or GaussianPrior
    chi : array_like, shape (..., L, F)
        Projections on orthonormal spikes.

    Returns
    -------
    ndarray, shape (..., L)

    Examples
    --------
    >>> from attsvm.dynamics.specialization import flipping_spike, position_posterior
    >>> position_posterior(flipping_spike(1.0, 4.0), [[1.0, 2.0], [0.0, 0.0], [0.0, 0.0]]).round(3)
    array([0.974, 0.013, 0.013])
    """
    projections = np.asarray(chi, dtype=np.float64)
    if projections.ndim < 2 or projections.shape[-1] != prior.features:
        raise ValueError(f"chi must have shape (..., L, {prior.features}), got {projections.shape}")
    evidence = _log_evidence(prior, projections)
    weights = np.exp(evidence - evidence.max(axis=-1, keepdims=True))
    return np.asarray(weights / weights.sum(axis=-1, keepdims=True))


def bayes_estimate(prior: Prior, X: npt.ArrayLike, spikes: npt.ArrayLike, *, form: str = "corrected") -> FloatArray:
    """Posterior mean of the relevant token, shape (N, D).

    Parameters
    ----------
    prior : Prior
    X : array_like, shape (N, L, D)
    spikes : array_like, shape (F, D)
    form : {"corrected", "printed"}
        "printed" takes ``|sum_f theta_f k*_f|^2`` for ``|theta|^2``, its limit at large D.

    Examples
    --------
    >>> import numpy as np
    >>> from attsvm.dynamics.specialization import DiscretePrior, bayes_estimate
    >>> X = np.array([[[9.0, 1.0], [0.0, 2.0]]])
    >>> bayes_estimate(DiscretePrior([[5.0]], [1.0]), X, [[1.0, 0.0]]).round(6)
    array([[9., 1.]])
    """
    tokens, directions = np.asarray(X, dtype=np.float64), np.asarray(spikes, dtype=np.float64)
    if form == "printed":
        weights = position_posterior(prior, tokens @ directions.T)
    elif form == "corrected":
        p = directions @ directions.T
        values, vectors = np.linalg.eigh(p)
        if values[0] <= 1e-12 * values[-1]:
            raise ValueError("spikes must be linearly independent: p = spikes spikes^T is singular")
        root, inverse_root = (vectors * np.sqrt(values)) @ vectors.T, (vectors / np.sqrt(values)) @ vectors.T
        weights = position_posterior(transformed(prior, root), tokens @ directions.T @ inverse_root)
    else:
        raise ValueError(f"form must be 'corrected' or 'printed', got {form!r}")
    return np.asarray(np.einsum("nl,nld->nd", weights, tokens))


def bayes_risk(prior: Prior, L: int, n: int = 200_000, seed: int | np.random.Generator = 0) -> Estimate:
    """Bayes risk ``E |y - E[y|X]|^2 / D`` at large D, as the mean of ``1 - sum_l P_l^2``.

    (The printed risk lacks the 1/D.)

    Examples
    --------
    >>> from attsvm.dynamics.specialization import bayes_risk, flipping_spike
    >>> risk = bayes_risk(flipping_spike(2.0, 2.0), L=5, n=20_000)
    >>> abs(risk.value - 0.3975) < 4 * risk.error
    True
    """
    if L < 2 or n < 2:
        raise ValueError(f"L >= 2 and n >= 2 are needed, got L={L}, n={n}")
    rng = seeded(seed)
    values = []
    for start in range(0, n, 20_000):
        size = min(20_000, n - start)
        chi = rng.standard_normal((size, L, prior.features))
        chi[:, 0] += prior.sample(size, rng)
        values.append(1.0 - (position_posterior(prior, chi) ** 2).sum(axis=-1))
    losses = np.concatenate(values)
    return Estimate(float(losses.mean()), float(losses.std(ddof=1) / np.sqrt(n)))
