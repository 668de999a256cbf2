"""The secular-equation spectrum of softmax Jacobians against dense eigenvalues."""

from __future__ import annotations

import time
from typing import Any

import numpy as np

from attsvm.softmax import jacobian_spectrum, log_softmax
from attsvm.validation.bench.measure import one_thread

__all__ = ["spectrum_speed"]


def spectrum_speed(
    vectors: int = 10_000, n: int = 1024, *, scale: float = 1.0, sample: int = 20, seed: int = 0
) -> dict[str, Any]:
    """Time of all spectra beside `numpy.linalg.eigvalsh`, and the largest difference between the two.

    Parameters
    ----------
    vectors, n : int
        Attention vectors and their length.
    scale : float
        Standard deviation of the logits.
    sample : int
        Dense matrices solved, spread over the run; their mean time is multiplied by ``vectors``.
    seed : int

    Returns
    -------
    dict
        ``ours`` and ``dense`` in processor seconds (dense extrapolated from the sample), ``ratio``, and ``difference``:
        the largest difference relative to the largest eigenvalue, for eigvalsh is not more accurate than that.

    Examples
    --------
    >>> found = spectrum_speed(8, 128, sample=2)
    >>> sorted(found), found["difference"] < 1e-10
    (['dense', 'difference', 'n', 'ours', 'ratio', 'sample', 'scale', 'vectors'], True)
    """
    if not 1 <= sample <= vectors:
        raise ValueError(f"sample must be between 1 and vectors = {vectors}, got {sample}")
    with one_thread():  # both on one thread: processor time adds up over threads
        return _measured(vectors, n, scale, sample, np.random.default_rng(seed))


def _measured(vectors: int, n: int, scale: float, sample: int, rng: np.random.Generator) -> dict[str, Any]:
    parts = np.array_split(np.arange(vectors), sample)
    ours = dense = difference = 0.0
    for part in parts:  # alternately, so that both meet the same load of the machine
        logs = log_softmax(scale * rng.normal(size=(len(part), n)))
        begun = time.process_time()
        spectra = jacobian_spectrum(log_attention=logs)
        ours += time.process_time() - begun
        a = np.exp(logs[0])
        begun = time.process_time()
        reference = np.linalg.eigvalsh(np.diag(a) - np.outer(a, a))
        dense += time.process_time() - begun
        difference = max(difference, float(np.abs(spectra[0] - reference).max() / reference[-1]))
    dense *= vectors / sample
    return {
        "vectors": vectors,
        "n": n,
        "scale": scale,
        "sample": sample,
        "ours": ours,
        "dense": dense,
        "ratio": dense / ours,
        "difference": difference,
    }
