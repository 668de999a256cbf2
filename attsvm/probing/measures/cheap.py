"""All measures of a head that need no solve and no further run of the model, with intervals and baselines."""

from __future__ import annotations

from typing import Any

import numpy as np

from attsvm.probing.data import HeadData
from attsvm.probing.measures.baselines import random_spectrum, shuffled_tokens
from attsvm.probing.measures.catalog import MEASURES
from attsvm.probing.measures.conditioning import conditioning_measures
from attsvm.probing.measures.context import Context, per_sequence
from attsvm.probing.measures.localization import localization_curve, localization_measures
from attsvm.probing.measures.polarization import polarization_measures
from attsvm.probing.measures.selection import head_gaps, selection_measures
from attsvm.records import mean_of, mean_share_of

__all__ = ["HISTOGRAM_BINS", "add_interval", "cheap_measures", "softmax_one_factors"]

HISTOGRAM_BINS = 24


def softmax_one_factors(head: HeadData) -> Any:
    """What softmax-1 multiplies a head's output by: ``Z / (1 + Z)`` with ``Z = sum_t e^{l_t}``, shape (n, Tq)."""
    logits = np.where(head.counts[..., None], head.logits, 0.0)
    top = np.maximum(logits.max(axis=-1), 0.0)
    log_z = top + np.log(np.exp(logits - top[..., None]).sum(axis=-1))
    return np.asarray(1.0 / (1.0 + np.exp(-log_z)))


def _measured(head: HeadData, context: Context, seed: int) -> dict[str, Any]:
    return {
        **selection_measures(head, context),
        **conditioning_measures(head, seed=seed),
        **polarization_measures(head, context, seed=seed),
        **localization_measures(head, context),
        "softmax_one_mass": per_sequence(softmax_one_factors(head), head),
    }


def add_interval(record: dict[str, Any], name: str, values: Any) -> None:
    """Mean over sequences with its 95 % interval, as three columns; that of a share stays in [0, 1]."""
    found = (mean_share_of if name in MEASURES and MEASURES[name].share else mean_of)(values)
    record[name], record[f"{name}_low"], record[f"{name}_high"] = found.value, found.low, found.high


def cheap_measures(
    head: HeadData, context: Context, *, baselines: int = 8, seed: int = 0
) -> tuple[dict[str, Any], dict[str, Any]]:
    """One row of the table, and curves for the page.

    Parameters
    ----------
    head : HeadData
    context : Context
        Of its layer.
    baselines : int
        Sequences on which the baselines are measured, 0 for none.
    seed : int

    Returns
    -------
    record, details : dict
    """
    values = head.singular_values
    record: dict[str, Any] = {
        "layer": head.layer, "head": head.head, "name": head.name, "attends": head.attends, "space": head.space,
    }  # fmt: skip
    measured = _measured(head, context, seed)
    record["kind"] = measured.pop("kind")
    curve = localization_curve(head, context)
    record["site"] = curve.pop("site", None)
    details: dict[str, Any] = {"singular_values": values, "histogram": _histogram(head)}
    details |= {name: curve.pop(name) for name in ("rho", "eigenvalues") if name in curve}
    for name, found in measured.items():
        add_interval(record, name, found)
    squares = values**2
    total = float((squares**2).sum())
    record["effective_rank"] = float(squares.sum()) ** 2 / total if total > 0 else 0.0
    record |= curve
    if baselines:
        some = np.arange(min(baselines, head.n))
        part = head.take(some)
        inner = Context(_layer_part(context, some), None if context.ids is None else context.ids[some])
        for label, other in (("random", random_spectrum(part, seed)), ("shuffled", shuffled_tokens(part, seed))):
            for name, found in _measured(other, inner, seed).items():
                if name in MEASURES and MEASURES[name].baseline:
                    record[f"{name}_{label}"] = mean_of(found).value
    return record, details


def _layer_part(context: Context, some: Any) -> Any:
    from dataclasses import replace

    layer = context.layer
    return replace(
        layer, allowed=layer.allowed[some], valid=layer.valid[some], tokens=layer.tokens[some],
        queries=layer.queries[some],
    )  # fmt: skip


def _histogram(head: HeadData) -> dict[str, Any]:
    """Margins over the Frobenius norm of W, in bins."""
    gaps = head_gaps(head)
    size = float(np.linalg.norm(head.singular_values))
    inside = gaps[np.isfinite(gaps)] / size if size > 0 else np.zeros(0)
    if not len(inside):
        return {"edges": [], "counts": []}
    counts, edges = np.histogram(inside, bins=HISTOGRAM_BINS)
    return {"edges": edges, "counts": counts}
