"""What the studies of real models share: a probe with a small budget, and how its findings are told."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np

from attsvm.probing import MEASURES, ProbeTable, SvmBudget, probe
from attsvm.records import Interval, Table, mean_of, mean_share_of
from attsvm.validation.figures.framework import Context

__all__ = ["kinds_table", "measures_table", "paired_table", "probed"]

_MEASURES = (
    "sink_share_first", "sink_share_any", "entropy_share", "sparsity", "flip_rate", "margin_median_frobenius",
    "log10_kappa", "noise_bfloat16", "max_logit", "redundancy", "importance", "softmax_one",
)  # fmt: skip
_PAIRED = (
    "correlation_frobenius", "correlation_seen_frobenius", "correlation_nuclear", "correlation_seen_nuclear",
    "correlation_soft_frobenius", "margin_ratio_frobenius",
    "soft_ratio_frobenius", "agreement_frobenius", "agreement_soft_frobenius",
)  # fmt: skip


def probed(
    loaded: Any, texts: list[str], context: Context, *, seed: int, svm: bool = True, **options: Any
) -> ProbeTable:
    """The probe of a study: settings of the figure, its store, its progress."""
    s = context.settings
    budget = SvmBudget(
        sequences=s["svm_sequences"], held_out=s["svm_held_out"], queries=s["svm_queries"], tolerance=s["tolerance"],
        nuclear=s.get("nuclear", False), shares=(0.5,),
    )  # fmt: skip
    store: str | Path = context.store
    if str(store) != ":memory:":
        store = f"{store}.{seed}.probe.sqlite"
    return probe(
        loaded.model, texts, tokenizer=loaded.tokenizer, svm=budget if svm else None, max_length=s["length"],
        removal=s.get("removal", 0), pruning=s.get("pruning", 0), seed=seed, name=loaded.name, store=store,
        workers=context.options.workers,
        progress=None if context.progress is None else context.progress, **options,
    )  # fmt: skip


def kinds_table(title: str, table: ProbeTable) -> Table:
    """How many heads of each kind, and of each site."""
    kinds, sites = Counter(table.column("kind")), Counter(str(site) for site in table.column("site"))
    rows = [("kind", word, count) for word, count in kinds.most_common()]
    rows += [("site of rho", word, count) for word, count in sites.most_common()]
    return Table(title, ("", "", "heads"), rows, align="llr")


def _mean(name: str, values: Any) -> Interval:
    known = MEASURES.get(name)
    return (mean_share_of if known is not None and known.share else mean_of)(values)


def measures_table(title: str, table: ProbeTable) -> Table:
    """Means over heads, beside the two baselines."""
    rows = []
    for name in _MEASURES:
        if name in table.columns:
            beside = [
                _mean(name, table.column(f"{name}_{kind}")) if f"{name}_{kind}" in table.columns else None
                for kind in ("random", "shuffled")
            ]
            rows.append((name, _mean(name, table.column(name)), *beside))
    return Table(title, ("mean over heads", "model", "random W", "shuffled tokens"), rows)


def paired_table(title: str, tables: list[ProbeTable]) -> Table:
    """SVM measures of the heads against random W of their spectra; head by head, over seeds."""
    rows = []
    for name in _PAIRED:
        if name not in tables[0].columns or f"{name}_random" not in tables[0].columns:
            continue
        own = np.mean([table.column(name) for table in tables], axis=0)
        drawn = np.mean([table.column(f"{name}_random") for table in tables], axis=0)
        above = np.isfinite(own - drawn)
        rows.append(
            (
                name,
                _mean(name, own),
                _mean(name, drawn),
                mean_of(own - drawn),
                f"{int((own > drawn)[above].sum())} of {int(above.sum())}",
            )
        )
    return Table(title, ("", "head", "random W", "difference", "heads above"), rows)
