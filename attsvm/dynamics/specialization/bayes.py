"""The Bayes estimator of the relevant token and its risk, Proposition IV.1."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from attsvm._checks import require_count
from attsvm.dynamics.specialization.priors import (
    DiscretePrior,
    GaussianPrior,
    Prior,
    random_generator,
    transformed,
)

__all__ = ["Estimate", "bayes_estimate", "bayes_risk", "discretized", "position_posterior"]

Array = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Estimate:
    """A Monte-Carlo mean and its standard error."""

    value: float
    error: float


def _log_evidence(prior: Prior, chi: Array) -> Array:
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
                     "see discretized")  # fmt: skip


def discretized(prior: Prior, n: int, seed: int | np.random.Generator) -> DiscretePrior:
    """Equal atoms at n draws: a stand-in for a prior without closed posterior.

    Examples
    --------
    >>> from attsvm.dynamics.specialization import discretized, gaussian_spikes
    >>> discretized(gaussian_spikes(2, 1.0), 100, seed=0).atoms.shape
    (100, 2)
    """
    require_count("n", n)
    return DiscretePrior(prior.sample(n, seed), np.full(n, 1.0 / n))


def position_posterior(prior: Prior, chi: npt.ArrayLike) -> Array:
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


def bayes_estimate(prior: Prior, X: npt.ArrayLike, spikes: npt.ArrayLike, *, form: str = "corrected") -> Array:
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
    rng = random_generator(seed)
    values = []
    for start in range(0, n, 20_000):
        size = min(20_000, n - start)
        chi = rng.standard_normal((size, L, prior.features))
        chi[:, 0] += prior.sample(size, rng)
        values.append(1.0 - (position_posterior(prior, chi) ** 2).sum(axis=-1))
    losses = np.concatenate(values)
    return Estimate(float(losses.mean()), float(losses.std(ddof=1) / np.sqrt(n)))
