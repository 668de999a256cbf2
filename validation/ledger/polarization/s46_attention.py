"""Sinks, tied residuals, and small transformers."""

from __future__ import annotations

from collections.abc import Callable
from math import comb
from typing import Any

import numpy as np

from attsvm.dynamics import polarization as pol
from attsvm.validation import models
from attsvm.validation.ledger.polarization._instances import Array
from attsvm.validation.ledger.record import Check, Measurement, count, each

__all__ = ["CHECKS"]


def _rows(scale: float, formula: Callable[[Array], int], rng: np.random.Generator, trials: int) -> Measurement:
    wrong = []
    for _ in range(trials):
        u0 = 0.3 * rng.standard_normal(5)
        flow = pol.row_flow(u0, scale * rng.standard_normal((5, 5)), t_end=1e12, points=3)
        wrong.append(float((flow.selected_tokens != formula(u0)).any()))
    return count(wrong, 0.5, "1: some row sinks elsewhere")


def _sink(formula: Callable[[Array], int], rng: np.random.Generator, trials: int) -> Measurement:
    return _rows(0.0, formula, rng, trials)


def _sink_hypothesis(formula: float, rng: np.random.Generator, trials: int) -> Measurement:
    """Sinks at argmax u(0) when A(0) is drawn with the standard deviation that the hypothesis admits."""
    return _rows(formula, lambda u: int(np.argmax(u)), rng, trials)


@each(0.5, "1: another column, or no polarization")
def _tied(formula: Callable[[Array, Array], int], rng: np.random.Generator, k: int) -> Any:
    """The column of R whose norm grows, against the token that the formula names from (a, s) at the end."""
    target = rng.standard_normal(8)
    flow = pol.tied_flow(
        np.eye(8) + 0.3 * rng.standard_normal((8, 8)), rng.standard_normal(8), target / np.linalg.norm(target),
        t_end=1e5, points=3, rtol=1e-6,
    )  # fmt: skip
    growing = int((flow.norms[-1] - flow.norms[0]).argmax())
    return float(growing != formula(flow.a[-1], flow.scores[-1]) or flow.scores[-1].max() < 0.9)


@each(-0.2, "second rate less the first; it must be lower by 0.2")
def _flip_order(formula: tuple[str, str], rng: np.random.Generator, k: int) -> Any:
    """Flip rates of two kinds of attention (vocabulary 41, no MLP, no LayerNorm, reduced width)."""
    kinds = {str(kind): kind for kind in pol.ATTENTION_KINDS}
    task = models.SetTask(41)
    seed = int(rng.integers(2**31))
    rates = []
    for name in formula:
        model = models.train_classifier(
            kinds[name], task=task, dim=32, layer_norm=False, mlp=False, steps=250, seed=seed
        )
        rates.append(models.flip_rates(model, task, pairs=100).worst)
    return rates[1] - rates[0]


@each(-0.05, "second rate less the first; it must be lower by 0.05")
def _flip_heads(formula: tuple[int, int], rng: np.random.Generator, k: int) -> Any:
    """Flip rates of softmax with the two numbers of heads: the second must be lower."""
    task, kind = models.SetTask(41), pol.AttentionKind("softmax")
    seed = int(rng.integers(2**31))
    rates = [
        models.flip_rates(
            models.train_classifier(
                kind, task=task, heads=heads, dim=32, layer_norm=False, mlp=False, steps=250, seed=seed
            ),
            task,
            pairs=100,
        ).worst
        for heads in formula
    ]
    return rates[1] - rates[0]


@each(0.3, "error of the number of distinct inputs in a sample of 200")
def _distinct(formula: Callable[[models.SetTask, int], float], rng: np.random.Generator, k: int) -> Any:
    import torch

    task, samples = models.SetTask(41), 200
    generator = torch.Generator().manual_seed(int(rng.integers(2**31)))
    found = len({frozenset(row[:-1]) for row in task.sample(samples, generator)[0].tolist()})
    return abs(found - formula(task, samples))


@each(1e-9, "difference of the two scores")
def _scores_agree(formula: bool, rng: np.random.Generator, k: int) -> Any:
    """The two definitions of the sink score on attention that the hypothesis admits (True: rows of any sum)."""
    weights = np.exp(rng.standard_normal((1, 2, 5, 8, 8))) * np.tri(8)
    weights = weights / weights.sum(axis=-1, keepdims=True)
    if formula:
        weights = weights * np.exp(rng.standard_normal((1, 2, 5, 8, 1)))
    return np.abs(pol.sink_score(weights) - pol.sink_score(weights, how="ratio_of_sums")).max()


def _count_sets(task: models.SetTask, samples: int) -> float:
    """Distinct sets: all of them when there are few, nearly one per sample when there are many."""
    return float(min(samples, task.labels * comb(task.group, task.length)))


CHECKS = {
    "C46": Check(_sink, lambda u: int(np.argmax(u)), trials=10),
    "C47": Check(_sink_hypothesis, 0.0, trials=8),
    "C49": Check(_tied, lambda a, s: int(np.argmax(a)), lambda a, s: int(np.argmax(s)), trials=8),
    "C50": Check(_flip_order, ("softmax", "sigmoid_unnorm"), trials=2),
    "C51": Check(_flip_heads, (1, 4), trials=2),
    "C52": Check(_distinct, lambda task, samples: float(samples), _count_sets, trials=5),
    "C56": Check(_scores_agree, True, False, trials=20),
}
