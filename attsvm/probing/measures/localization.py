"""Where a head lets a signal through: eigenspectrum of W_QK, rho(theta), the entropy bound and the largest logit."""

from __future__ import annotations

from typing import Any

import numpy as np

from attsvm.dynamics.localization.entropy import entropy_lower_bound, spectral_norm
from attsvm.dynamics.localization.propagation import signal_propagation
from attsvm.dynamics.localization.spectrum import qk_spectrum
from attsvm.dynamics.localization.summary import summarize
from attsvm.probing.data import HeadData
from attsvm.probing.measures.context import Context

__all__ = ["localization_curve", "localization_measures"]


def localization_curve(head: HeadData, context: Context) -> dict[str, Any]:
    """Eigenspectrum of ``W_QK Sigma`` (Sigma: the covariance of steps between tokens), rho and its site.

    In head space W_QK is that of a token with itself: a rotation apart, tokens meet another one. Without any W
    (normalized queries and keys) and for cross-attention the theory has nothing to say, and the dict is empty.
    """
    if head.weights is None or head.attends == "cross" or context.steps is None:
        return {}
    known = head.weights
    pair = tuple(m[:, : head.tokens.shape[-1]] for m in (known.query_map, known.key_map))  # without the biases
    if not (np.any(pair[0]) and np.any(pair[1])):
        return {}
    spectrum = qk_spectrum(pair, context.steps)
    temperature = 1.0 / abs(known.scale)
    T = max(2, int(np.median(context.lengths)))
    passed = signal_propagation(spectrum, T, temperature=temperature, method="gaussian")
    site = summarize(passed.rho, passed.theta)
    return {
        "trace": spectrum.trace / temperature,
        "scale": float(np.sqrt(abs(spectrum.trace_squared))) / temperature,
        "site": site.site,
        "rho_peak": site.peak,
        "rho_theta": site.peak_theta,
        "rho": passed.rho,
        "eigenvalues": np.sort(np.abs(spectrum.eigenvalues))[::-1] / temperature,
    }


def localization_measures(head: HeadData, context: Context) -> dict[str, Any]:
    """Largest logit, and how far the entropy could fall, one number per sequence."""
    seen = head.allowed & head.counts[..., None]
    found: dict[str, Any] = {
        "max_logit": np.where(seen, head.logits, -np.inf).max(axis=(1, 2)),
        "entropy_bound": np.full(head.n, np.nan),
    }
    found["max_logit"][~np.isfinite(found["max_logit"])] = np.nan
    if head.offset is not None:  # an offset lifts logits that no norm of W bounds
        return found
    for i in range(head.n):
        counts = head.seen[i][head.counts[i] & (head.seen[i] > 1)]
        if len(counts):
            nu = _radius(head, context, i)
            sizes, times = np.unique(counts, return_counts=True)
            bounds = [float(entropy_lower_bound(nu, int(size))) for size in sizes]
            found["entropy_bound"][i] = float(np.dot(bounds, times) / times.sum())
    return found


def _radius(head: HeadData, context: Context, i: int) -> float:
    """nu: the norm of every query's logits is at most this."""
    real = context.keys[i]
    if head.space == "tokens" and head.attends == "self" and head.weights is not None:
        known = head.weights
        size = context.token_norms(known.biased, head.tokens)[i]
        return float(size) ** 2 * spectral_norm((known.query_map, known.key_map)) * abs(known.scale)
    keys, queries = head.k[i][real].astype(np.float64), head.q[i][head.counts[i]].astype(np.float64)
    return abs(head.scale) * float(np.linalg.norm(keys, 2)) * float(np.linalg.norm(queries, axis=-1).max())
