"""A small transformer trained from scratch: does W turn towards the SVM of its selections as training goes on."""

from __future__ import annotations

from typing import Any

import numpy as np

from attsvm.probing import SvmBudget
from attsvm.probing.data import LayerData
from attsvm.probing.measures.baselines import random_spectrum
from attsvm.probing.measures.svm import draw_sample, sample_measures
from attsvm.records import mean_of
from attsvm.sweeps import columns_of
from attsvm.validation.figures.framework import Context, Figure, Outcome, Picture, Table, finish, subplots

__all__ = ["FIGURE", "draw", "run", "snapshots"]


def _first_query_only(layer: LayerData) -> LayerData:
    from dataclasses import replace

    valid = np.zeros_like(layer.valid)
    valid[:, 0] = True
    return replace(layer, valid=valid)


def snapshots(
    trials: int, _: int, *, draw: int, steps: list[int], images: int, sample: int, heads: int
) -> dict[str, Any]:
    """Train one model per trial; at each of the steps the cosines of its heads with their SVMs, and of random W.

    Examples
    --------
    >>> from attsvm.validation.figures.own.turning import snapshots
    >>> found = snapshots(1, 0, draw=0, steps=[0, 2], images=40, sample=4, heads=1)
    >>> len(found["correlation_seen_frobenius"][0])
    2
    """
    import torch

    from attsvm.validation.models.digit_reader import DigitReader, load_digits

    budget = SvmBudget(sequences=sample, held_out=0, queries=1, tolerance=1e-6, soft=False, shares=())
    rows = []
    for seed in range(draw, draw + trials):
        torch.manual_seed(seed)
        X, y = load_digits(images)
        model = DigitReader(heads=heads)
        optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
        record: dict[str, list[float]] = {}
        for step in range(max(steps) + 1):
            if step in steps:
                for name, value in _measured(model, X[: 2 * sample], budget, seed).items():
                    record.setdefault(name, []).append(value)
            pick = torch.randint(len(X), (64,))
            loss: Any = torch.nn.functional.cross_entropy(model(X[pick]), y[pick])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if step in steps:
                record.setdefault("loss", []).append(float(loss.detach()))
        rows.append(record)
    return columns_of(rows)


def _measured(model: Any, images: Any, budget: SvmBudget, seed: int) -> dict[str, float]:
    from attsvm.probing.hooks import capture

    layer = _first_query_only(capture(model, [images])[0])
    found: dict[str, list[float]] = {}
    for head in layer:
        for suffix, one in (("", head), ("_random", random_spectrum(head, seed))):
            fitted, _ = draw_sample(one, budget, seed)
            measured = sample_measures(fitted, None, SvmBudget(**{**budget.record(), "baseline": False}), baseline=True)
            for name in ("correlation_seen_frobenius", "correlation_seen_nuclear", "margin_ratio_frobenius"):
                found.setdefault(name + suffix, []).append(float(measured.get(name) or np.nan))
        found.setdefault("norm", []).append(float(np.linalg.norm(head.singular_values)))
        found.setdefault("peak", []).append(float(np.exp(head.log_attention[:, 0].max(axis=-1)).mean()))
    return {name: float(np.mean(values)) for name, values in found.items()}


def run(context: Context) -> Outcome:
    """Cosines over training, mean over seeds."""
    s = context.settings
    cells = [
        {
            "draw": context.seed + k,
            "steps": s["steps"],
            "images": s["images"],
            "sample": s["sample"],
            "heads": s["heads"],
        }
        for k in range(s["trials"])
    ]
    done = context.sweep(snapshots, cells, 1, chunk=1, name="turning").columns
    curves: dict[str, Any] = {"steps": s["steps"]}
    for name in done[0]:
        curves[name] = np.array([column[name][0] for column in done], dtype=float)
    told = ("correlation_seen_frobenius", "correlation_seen_nuclear", "margin_ratio_frobenius")
    names = ("loss", "norm", "peak", *(f"{name}{suffix}" for name in told for suffix in ("", "_random")))
    rows = [(step, *(mean_of(curves[name][:, k]) for name in names)) for k, step in enumerate(s["steps"])]
    table = Table(f"Training a one-layer transformer on digits, {s['trials']} seeds", ("step", *names), rows)
    change = curves["correlation_seen_frobenius"][:, -1] - curves["correlation_seen_frobenius"][:, 0]
    beyond = (curves["correlation_seen_frobenius"] - curves["correlation_seen_frobenius_random"])[:, -1]
    star = curves["correlation_seen_nuclear"][:, -1] - curves["correlation_seen_nuclear"][:, 0]
    notes = [
        f"From the first to the last snapshot the cosine with Att-SVM changes by {mean_of(change)}, with Att-SVM* by "
        f"{mean_of(star)}; at the end it exceeds that of a random W by {mean_of(beyond)}.",
        "Theory turns W towards the solution as the attention saturates, with all else fixed; here values, patches and "
        "places train too.",
        "The first query is the same for every image: solutions have rank one, where both norms agree.",
    ]
    return Outcome([table], curves, notes)


def draw(outcome: Outcome) -> Picture:
    """Cosines against the step, beside random W."""
    picture, axes = subplots(1, 2, (10, 4))
    steps = np.maximum(np.array(outcome.curves["steps"], dtype=float), 0.5)
    for axis, norm, title in ((axes[0], "frobenius", "Att-SVM"), (axes[1], "nuclear", "Att-SVM*")):
        for suffix, label in (("", "trained W"), ("_random", "random W of its spectrum")):
            values = np.array(outcome.curves[f"correlation_seen_{norm}{suffix}"], dtype=float)
            axis.plot(steps, values.mean(axis=0), "o-", label=label)
            if len(values) > 1:
                half = 1.96 * values.std(axis=0, ddof=1) / np.sqrt(len(values))
                axis.fill_between(steps, values.mean(axis=0) - half, values.mean(axis=0) + half, alpha=0.2)
        axis.set(xscale="log", xlabel="step", ylabel=f"cosine with {title} of its own selections")
    return finish(picture, axes)


FIGURE = Figure(
    paper="own",
    name="turning",
    title="Training from scratch: does W turn towards the SVM of its selections?",
    protocol="""Digits of scikit-learn as 16 patches and a first token that answers; one attention layer, Adam. At each
        snapshot the tokens that the first query selects on a sample of images make an SVM; its solutions in both norms
        are compared with the part of W that these images can see, and likewise for a random W of the same spectrum.""",
    full={"trials": 10, "steps": [0, 30, 100, 300, 1000, 3000], "images": 1500, "sample": 24, "heads": 1},
    quick={"trials": 2, "steps": [0, 10], "images": 64, "sample": 6, "heads": 1},
    run=run,
    draw=draw,
)  # fmt: skip
