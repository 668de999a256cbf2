"""What watching costs: processor time inside a monitor beside that of a training step.

At ``every = N`` one step in N is measured and the others only pass the hooks, so that the share of a step is
``(measured + (N - 1) waiting) / (N plain)``, with the time that a monitor's own methods take in each kind of step. They
are timed one by one, and medians compared: differences of whole steps drown in what else the machine does.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

__all__ = ["monitor_overhead"]


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
    >>> from attsvm.validation.bench.monitor import monitor_overhead
    >>> sorted(monitor_overhead(d=8, layers=1, heads=2, batch=2, length=4, repeats=2))
    ['measured', 'overhead', 'plain', 'waiting']
    """
    import torch
    from torch import nn

    from attsvm.probing.monitor import Monitor

    torch.manual_seed(seed)
    layer = nn.TransformerEncoderLayer(d, heads, 4 * d, batch_first=True)
    model = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)

    def step(monitor: Any) -> float:
        states = torch.randn(batch, length, d)
        start = time.process_time()
        loss: Any = model(states).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
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
