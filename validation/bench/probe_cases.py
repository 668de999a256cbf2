"""What watching costs: a monitor beside training steps, and a probe of MiniLM.

At ``every = N`` one step in N is measured and the others only pass the hooks, so that the share of a step is
``(measured + (N - 1) waiting) / (N plain)``, with the time that a monitor's own methods take in each kind of step. They
are timed one by one, and medians compared: differences of whole steps drown in what else the machine does. The probe
takes the cheap measures of all heads and the SVM measures of a few, carried on to all.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from attsvm.validation.bench.measurement import Numbers, Stopwatch, one_thread

__all__ = [
    "cheap_speed",
    "monitor_overhead",
    "svm_speed",
]


def monitor_overhead(
    seed: int = 0,
    *,
    d: int = 384,
    layers: int = 6,
    heads: int = 12,
    batch: int = 8,
    length: int = 64,
    repeats: int = 9,
    every: int = 100,
) -> dict[str, float]:
    """Medians of a plain step and of a monitor that measures or waits, and its share; by default at MiniLM's size.

    Parameters
    ----------
    seed : int
    d, layers, heads : int
        Of the transformer.
    batch, length : int
        Sequences of a step and tokens of a sequence.
    repeats : int
        Steps of each kind.
    every : int
        For which the share is said.

    Examples
    --------
    >>> from attsvm.validation.bench.probe_cases import monitor_overhead
    >>> sorted(monitor_overhead(d=8, layers=1, heads=2, batch=2, length=4, repeats=2))
    ['measured', 'overhead', 'plain', 'waiting']
    """
    import torch
    from torch import nn

    from attsvm.probing.monitor import Monitor
    from attsvm.training.optimizers import gradient_step

    torch.manual_seed(seed)
    layer = nn.TransformerEncoderLayer(d, heads, 4 * d, batch_first=True)
    model = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)

    def step(monitor: Any) -> float:
        states = torch.randn(batch, length, d)
        start = time.process_time()
        gradient_step(optimizer, model(states).square().mean())
        if monitor is not None:
            monitor.step()
        return time.process_time() - start

    step(None)
    found: dict[str, list[float]] = {"plain": [], "measured": [], "waiting": []}
    for _ in range(repeats):
        found["plain"].append(step(None))
        with _timed(Monitor, model, every) as (monitor, spent):
            for kind in ("measured", "waiting"):
                spent[0] = 0.0
                step(monitor)
                found[kind].append(spent[0])
            assert len(monitor.history) == 1
    plain, measured, waiting = (float(np.median(found[kind])) for kind in ("plain", "measured", "waiting"))
    overhead = (measured + (every - 1) * waiting) / (every * plain)
    return {"plain": plain, "measured": measured, "waiting": waiting, "overhead": overhead}


@contextmanager
def _timed(kind: Any, model: Any, every: int) -> Iterator[tuple[Any, list[float]]]:
    """A monitor whose methods add their processor time to a list of one number."""
    spent = [0.0]

    def timed(name: str) -> Callable[..., Any]:
        def call(self: Any, *args: Any) -> Any:
            start = time.process_time()
            try:
                return getattr(kind, name)(self, *args)
            finally:
                spent[0] += time.process_time() - start

        return call

    methods = {name: timed(name) for name in ("_begin", "_look", "_end", "step")}
    with type("TimedMonitor", (kind,), methods)(model, every=every) as monitor:
        yield monitor, spent


def cheap_speed(seed: int, *, model: str = "minilm", sequences: int = 32, length: int = 128) -> Numbers:
    """Processor seconds of everything but the SVM solves, for every head of the model."""
    from attsvm.probing import probe
    from attsvm.validation.pretrained.installed_models import english_paragraphs, installed_model

    loaded, texts = installed_model(model), english_paragraphs(sequences)
    with one_thread():
        watch = Stopwatch()
        table = probe(loaded.model, texts, tokenizer=loaded.tokenizer, svm=None, max_length=length, seed=seed)
        seconds = watch.seconds()
    return {"attsvm": {"seconds": seconds, "heads": float(len(table)), "tokens": float(table.about["tokens"])}}


def svm_speed(
    seed: int, *, model: str = "minilm", heads: int = 3, sequences: int = 32, length: int = 128, cores: int = 2
) -> Numbers:
    """Processor seconds per head of the SVM measures at the default budget, from some heads at random.

    ``minutes`` is what all heads would take on so many cores: an extrapolation, heads are independent.
    """
    from attsvm.probing import SvmBudget, capture_layers
    from attsvm.probing.head_data import read_inputs
    from attsvm.probing.svm_measures import svm_measures
    from attsvm.validation.pretrained.installed_models import english_paragraphs, installed_model

    loaded, budget = installed_model(model), SvmBudget()
    with one_thread():
        read = read_inputs(english_paragraphs(sequences), loaded.tokenizer, max_length=length)
        every = [head for layer in capture_layers(loaded.model, read.batches) for head in layer]
        chosen = np.random.default_rng(seed).choice(len(every), min(heads, len(every)), replace=False)
        seconds, gaps = [], []
        for k in chosen:
            watch = Stopwatch()
            found = svm_measures(every[k], budget, seed)
            seconds.append(watch.seconds())
            gaps.append({name: float(value) for name, value in found.items() if name.startswith("gap_")})
    numbers = {
        "seconds": float(np.mean(seconds)),
        "slowest head": float(np.max(seconds)),
        "minutes for all heads on 2 cores": float(np.mean(seconds)) * len(every) / cores / 60.0,
        "gap": max(value for one in gaps for name, value in one.items() if name != "gap_soft_nuclear"),
        "gap of the soft nuclear solve": max(one["gap_soft_nuclear"] for one in gaps),
    }
    return {"attsvm": numbers}
