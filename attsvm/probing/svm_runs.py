"""SVM measures of many heads: on processes or a cluster, each head stored as it finishes."""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from attsvm.probing.data import HeadData, LayerData
from attsvm.probing.measures.baselines import random_spectrum
from attsvm.probing.measures.svm import Sample, SvmBudget, draw_sample, sample_measures, svm_measures
from attsvm.records import atomic_write
from attsvm.sweeps import sweep

__all__ = ["estimate", "svm_columns", "svm_task"]

_DETAILS = ("support", "curve")
_PARTS = ("fitted", "tested", "random_fitted", "random_tested")


def svm_task(trials: int, seed: int, *, data: str, budget: str) -> dict[str, list[Any]]:
    """The measures of one head from the file of its sample; what a worker runs."""
    with np.load(data, allow_pickle=False) as file:
        samples = {part: _unpack(file, part) for part in _PARTS}
    asked = SvmBudget(**{**json.loads(budget), "shares": tuple(json.loads(budget)["shares"])})
    fitted = samples["fitted"]
    assert fitted is not None
    found = sample_measures(fitted, samples["tested"], asked)
    drawn = samples["random_fitted"]
    if drawn is not None:
        for name, value in sample_measures(drawn, samples["random_tested"], asked, baseline=True).items():
            found[f"{name}_random"] = value
    return {"found": [json.dumps(_plain(found))] * trials}


def estimate(layers: Sequence[LayerData], budget: SvmBudget, *, workers: int | None = 0, seed: int = 0) -> str:
    """About how long `svm_columns` will take, in words, from the solve of one head on a small sample.

    The sizes of rows decide: with twice the queries a solve takes about three times as long, so this is right within a
    factor of about three, not more.
    """
    heads = sum(layer.heads for layer in layers)
    small = replace(budget, sequences=min(2, budget.sequences), held_out=min(1, budget.held_out), queries=2, shares=())
    start = time.perf_counter()
    svm_measures(layers[-1][0], small, seed)
    seconds = time.perf_counter() - start
    n = len(layers[0].q)
    ratio = min(budget.sequences, n) * budget.queries / (min(small.sequences, n) * small.queries)
    cores = min(heads, (os.cpu_count() or 1) if workers is None else max(1, workers))
    total = seconds * max(1.0, ratio) ** 1.5 * heads / cores
    about = f"{total:.0f} s" if total < 100 else f"{total / 60:.0f} minutes"
    return f"about {about} for {heads} heads in {cores} process{'es' if cores > 1 else ''}"


def _plain(value: Any) -> Any:
    from attsvm.records import plain

    return plain(value)


def _pack(sample: Sample | None, part: str) -> dict[str, Any]:
    if sample is None:
        return {}
    names = ("X", "Z", "mask", "selection", "offset", "W", "places")
    return {f"{part}.{name}": getattr(sample, name) for name in names if getattr(sample, name) is not None}


def _unpack(file: Any, part: str) -> Sample | None:
    if f"{part}.X" not in file:
        return None
    names = ("X", "Z", "mask", "selection", "W", "places")
    return Sample(offset=file.get(f"{part}.offset"), **{name: file[f"{part}.{name}"] for name in names})


def _write(head: HeadData, budget: SvmBudget, seed: int, folder: Path) -> Path:
    """The sample of a head in a file that is named by its content."""
    arrays = dict(zip(_PARTS, (*draw_sample(head, budget, seed), None, None), strict=True))
    if budget.baseline:
        drawn = draw_sample(random_spectrum(head, seed), budget, seed)
        arrays |= dict(zip(_PARTS[2:], drawn, strict=True))
    packed: dict[str, Any] = {}
    for part, sample in arrays.items():
        packed |= _pack(sample, part)
    digest = hashlib.sha256()
    for name in sorted(packed):
        digest.update(name.encode() + np.ascontiguousarray(packed[name]).tobytes())
    path = folder / f"{head.layer:03d}.{head.head:03d}.{digest.hexdigest()[:16]}.npz"
    if not path.exists():
        with atomic_write(path) as file:
            np.savez(file, **packed)
    return path


def svm_columns(
    layers: Sequence[LayerData],
    budget: SvmBudget,
    *,
    seed: int = 0,
    store: str | Path = ":memory:",
    workers: int | None = 0,
    executor: object = None,
    progress: Callable[[int, int], object] | None = None,
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Columns and details of every head, in order; heads that the store has are not solved again.

    Samples are kept in a folder beside the store, ``STORE.samples``.
    """
    heads = [head for layer in layers for head in layer]
    with ExitStack() as stack:
        if str(store) == ":memory:":
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        else:
            folder = Path(f"{store}.samples")
            folder.mkdir(parents=True, exist_ok=True)
        cells = [{"data": str(_write(h, budget, seed, folder)), "budget": json.dumps(budget.record())} for h in heads]
        done = sweep(
            svm_task, cells, 1, executor, store, chunk=1, seed=seed, workers=workers, name="probe", extend=True,
            progress=None if progress is None else lambda k, total: (progress(k, total), None)[1],
        )  # fmt: skip
    found = [json.loads(str(columns["found"][0])) for columns in done.columns]
    columns = [{name: value for name, value in one.items() if name not in _DETAILS} for one in found]
    return columns, [{name: one[name] for name in _DETAILS if name in one} for one in found]
