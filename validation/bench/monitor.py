"""What watching costs: training steps without a monitor, with one that measures, and with one that waits.

At ``every = N`` one step in N is measured and the others only pass the hooks, so that the share is
``((measured - plain) + (N - 1) (waiting - plain)) / (N plain)``. The three kinds of steps are taken in turn in one
process, in processor time, and medians are compared: differences of long blocks of steps drown in what else runs.
"""

from __future__ import annotations

import time
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
    """Medians of the three kinds of steps and the share of a step that a monitor takes; sizes of MiniLM by default.

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

    def step(monitor: Monitor | None) -> float:
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
        with Monitor(model, every=every) as monitor:
            found["measured"].append(step(monitor))
            found["waiting"].append(step(monitor))
            assert len(monitor.history) == 1
    plain, measured, waiting = (float(np.median(found[kind])) for kind in ("plain", "measured", "waiting"))
    extra = (measured - plain) + (every - 1) * (waiting - plain)
    return {"plain": plain, "measured": measured, "waiting": waiting, "overhead": extra / (every * plain)}
