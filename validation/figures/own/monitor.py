"""What watching costs: training steps with and without a monitor, in turn, in one process."""

from __future__ import annotations

from typing import Any

import numpy as np

from attsvm.records import mean_of
from attsvm.validation.bench.monitor import monitor_overhead
from attsvm.validation.figures.framework import Context, Figure, Outcome, Table

__all__ = ["FIGURE", "run"]


def run(context: Context) -> Outcome:
    """Overhead as a share of a step, run by run."""
    s = context.settings
    names = ("d", "layers", "heads", "batch", "length", "repeats", "every")
    runs = [monitor_overhead(context.seed + k, **{name: s[name] for name in names}) for k in range(s["trials"])]
    shares = np.array([found["overhead"] for found in runs])
    labels = {"plain": "CPU seconds of a step", "measured": "monitor, measuring", "waiting": "monitor, waiting"}
    rows: list[tuple[str, Any]] = [(label, mean_of([found[kind] for found in runs])) for kind, label in labels.items()]
    rows += [("overhead, mean", mean_of(shares)), ("overhead, median", float(np.median(shares)))]
    sizes = f"{s['layers']} layers, d = {s['d']}, batches of {s['batch']} x {s['length']}"
    title = f"Monitor at every = {s['every']}: {sizes}, {s['trials']} runs"
    refuted = [] if np.median(shares) < 0.05 else [f"overhead {np.median(shares):.1%} is not below 5 % of a step"]
    return Outcome([Table(title, ("", ""), rows)], {"overhead": shares}, [], refuted if s["judge"] else [])


FIGURE = Figure(
    paper="own",
    name="monitor",
    title="What a monitor costs: less than 5 % of a training step at every = 100",
    protocol="""Training steps of a transformer of MiniLM's size without a monitor, with one that measures and with one
        that waits, in turn, in one process; medians of the processor time of a step, and of that inside the monitor's
        methods. The share at every = N is that of one measured and N - 1 waiting steps.""",
    full={"trials": 5, "d": 384, "layers": 6, "heads": 12, "batch": 8, "length": 64, "repeats": 5, "every": 100,
          "judge": True},
    quick={"trials": 1, "d": 16, "layers": 1, "heads": 2, "batch": 2, "length": 8, "repeats": 3, "every": 100,
           "judge": False},
    run=run,
)  # fmt: skip
