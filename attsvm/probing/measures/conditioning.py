"""How hard a head is to train further: condition of its softmax, separation of its tokens, gradients that are lost."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from attsvm.dynamics.conditioning.model import PromptProblem
from attsvm.dynamics.conditioning.separation import separation
from attsvm.probing.data import HeadData
from attsvm.probing.measures.context import per_sequence
from attsvm.softmax import condition_number, log_softmax

__all__ = ["FORMATS", "conditioning_measures", "log_rest"]

Float64 = npt.NDArray[np.float64]
# Unit roundoff and smallest positive number of the formats that models are trained in.
FORMATS = {"float32": (2.0**-24, 2.0**-149), "bfloat16": (2.0**-8, 2.0**-133)}


def log_rest(head: HeadData) -> tuple[Float64, Float64]:
    """Logarithm of the attention off the selected token, and of its largest part, shape (n, Tq)."""
    logs = head.log_attention.copy()
    np.put_along_axis(logs, head.selected[..., None], -np.inf, axis=-1)
    top = logs.max(axis=-1)
    safe = np.where(np.isfinite(top), top, 0.0)
    with np.errstate(divide="ignore"):
        return safe + np.log(np.exp(logs - safe[..., None]).sum(axis=-1)), top


def conditioning_measures(head: HeadData, *, queries: int = 8, seed: int = 0) -> dict[str, Any]:
    """Condition number of the softmax Jacobian, Delta and Gamma, and the share of queries whose gradient is lost.

    Parameters
    ----------
    head : HeadData
    queries : int
        Per sequence, for the condition number and the separation; the shares are over all queries.
    seed : int
        Of the choice of queries.

    Returns
    -------
    dict
        One number per sequence. ``noise_*``: the attention off the selected token is below the rounding of 1, so that
        its own gradient ``s (1 - s)`` is rounding; ``underflow_*``: every other weight underflows to zero.
    """
    rest, second = log_rest(head)
    several = head.seen > 1
    found: dict[str, Any] = {}
    for name, (roundoff, least) in FORMATS.items():
        found[f"noise_{name}"] = per_sequence(rest < np.log(roundoff), head, several)
        found[f"underflow_{name}"] = per_sequence(second < np.log(least), head, several)
    kappa, gap, spread = (np.full(several.shape, np.nan) for _ in range(3))
    rng = np.random.default_rng(seed)
    drawn: list[tuple[int, int]] = []
    for i, keep in enumerate(head.counts & several):
        places = np.flatnonzero(keep)
        drawn += [(i, int(q)) for q in rng.permutation(places)[:queries]]
    for count in sorted({int(head.seen[place]) for place in drawn}):  # softmaxes of equal length together
        rows = tuple(np.array([place for place in drawn if head.seen[place] == count]).T)
        logits = np.sort(head.logits[rows], axis=-1)[:, -count:]
        logs = log_softmax(logits)
        kappa[rows] = condition_number(log_attention=logs, log=True) / np.log(10.0)
        gap[rows], spread[rows] = _separations(logits, logs)
    for name, values in (("log10_kappa", kappa), ("delta", gap), ("gamma", spread)):
        found[name] = _means(values)
    return found


def _means(values: Float64) -> Float64:
    known = np.isfinite(values)
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.asarray(np.where(known, values, 0.0).sum(axis=1) / known.sum(axis=1))


def _separations(logits: Float64, logs: Float64) -> tuple[Float64, Float64]:
    """Delta and Gamma of each query: the prompt model with logits for keys, p = 1; nan where all tokens are alike."""
    members = logs >= logs.max(axis=-1, keepdims=True) - np.log(2.0)
    some = ~members.all(axis=-1)
    gap, spread = np.full(len(logits), np.nan), np.full(len(logits), np.nan)
    if some.any():
        problem = PromptProblem(X=logits[some][..., None], y=np.zeros(int(some.sum())), v=np.ones(1))
        apart = separation(problem, np.ones(1), members[some])
        gap[some], spread[some] = apart.gap, apart.spread
    return gap, spread
