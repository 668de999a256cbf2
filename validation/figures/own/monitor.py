"""What watching costs: training steps with and without a monitor, in turn, in one process."""

from __future__ import annotations

import time
from typing import Any

import numpy as np

from attsvm.records import mean_of
from attsvm.validation.figures.framework import Context, Figure, Outcome, Table

__all__ = ["FIGURE", "costs", "run"]


def costs(blocks: int, steps: int, *, d: int, layers: int, batch: int, length: int, seed: int = 0) -> dict[str, Any]:
    """CPU seconds of blocks of steps without and with a monitor that measures once per block, in turn.

    Examples
    --------
    >>> from attsvm.validation.figures.own.monitor import costs
    >>> sorted(costs(1, 2, d=8, layers=1, batch=2, length=4))
    ['measured', 'plain', 'watched']
    """
    import torch
    from torch import nn

    from attsvm.probing.monitor import Monitor

    torch.manual_seed(seed)
    layer = nn.TransformerEncoderLayer(d, 4, 4 * d, batch_first=True)
    model = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)

    def train(monitor: Monitor | None) -> float:
        start = time.process_time()
        for _ in range(steps):
            loss: Any = model(torch.randn(batch, length, d)).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if monitor is not None:
                monitor.step()
        return time.process_time() - start

    train(None)
    found: dict[str, Any] = {"plain": [], "watched": [], "measured": 0}
    for _ in range(blocks):
        found["plain"].append(train(None))
        with Monitor(model, every=steps) as monitor:
            found["watched"].append(train(monitor))
            found["measured"] += len(monitor.history)
    return found


def run(context: Context) -> Outcome:
    """Overhead as a share of a step, block by block."""
    s = context.settings
    found = costs(
        s["trials"], s["steps"], d=s["d"], layers=s["layers"], batch=s["batch"], length=s["length"], seed=context.seed
    )
    ratio = np.array(found["watched"]) / np.array(found["plain"]) - 1.0
    rows = [
        ("CPU seconds of a block without", mean_of(found["plain"])),
        ("with", mean_of(found["watched"])),
        ("overhead, mean", mean_of(ratio)),
        ("overhead, median", float(np.median(ratio))),
        ("measurements", found["measured"]),
    ]
    sizes = f"{s['layers']} layers, d = {s['d']}, batches of {s['batch']} x {s['length']}"
    title = f"Monitor at every = {s['steps']}: {sizes}"
    refuted = [] if np.median(ratio) < 0.05 else [f"overhead {np.median(ratio):.1%} is not below 5 % of a step"]
    return Outcome([Table(title, ("", ""), rows)], {"overhead": ratio}, [], refuted if s["judge"] else [])


FIGURE = Figure(
    paper="own",
    name="monitor",
    title="What a monitor costs: less than 5 % of a training step at every = 100",
    protocol="""Blocks of training steps of a small transformer without and with a monitor, in turn, in one process; CPU
        time. A monitor measures the first step of its block.""",
    full={"trials": 5, "steps": 100, "d": 128, "layers": 4, "batch": 16, "length": 64, "judge": True},
    quick={"trials": 1, "steps": 4, "d": 16, "layers": 1, "batch": 2, "length": 8, "judge": False},
    run=run,
)
