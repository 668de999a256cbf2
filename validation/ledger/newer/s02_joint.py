"""Head and attention trained together, steps, mirror descent, and softmax-1."""

from __future__ import annotations

from typing import Any

import numpy as np

import attsvm
from attsvm.comparison.metrics import misalignment
from attsvm.joint import consistent_selection, joint_svm
from attsvm.validation.ledger.record import Check, each

__all__ = ["CHECKS"]


def _trained(rng: np.random.Generator) -> tuple[attsvm.AttentionProblem, attsvm.Run, float]:
    """A run whose selection is consistent and in which some sequence does not support v, and its ratio of norms.

    It starts near a consistent selection, in the directions that the SVMs of it give.
    """
    while True:
        problem = attsvm.random_problem(n=5, T=4, d=6, seed=rng)
        chosen = consistent_selection(problem)
        start = joint_svm(problem, chosen, ratio=1.0)
        if not (start.status is attsvm.Status.OPTIMAL and (start.demanded < 0.95).any()):
            continue
        W = attsvm.cone_init(start.W, radius=5.0, correlation=0.8, seed=rng)
        run = attsvm.train(problem, steps=800, lr=0.5, train_head=True, init=W, head_init=5.0 * start.v, snapshots=2)
        if run.selection == chosen:
            return problem, run, float(np.linalg.norm(run.v) / np.linalg.norm(run.W))


@each(1e-3, "1 - correlation of v after 800 normalized steps")
def _head(formula: Any, rng: np.random.Generator, k: int) -> float:
    problem, run, _ = _trained(rng)
    return float(misalignment(run.v[None], formula(problem, run.selection)[None]))


@each(2e-3, "1 - correlation of W after 800 normalized steps")
def _attention(formula: Any, rng: np.random.Generator, k: int) -> float:
    problem, run, ratio = _trained(rng)
    return float(misalignment(run.W, formula(problem, run.selection, ratio)))


def _optimal_run(rng: np.random.Generator, **settings: Any) -> tuple[attsvm.AttentionProblem, attsvm.Run]:
    while True:
        problem = attsvm.random_problem(n=4, T=4, d=8, seed=rng)
        run = attsvm.train(problem, init="zero", snapshots=2, **settings)
        if run.selection == problem.optimal_tokens():
            return problem, run


@each(2e-3, "1 - correlation with Att-SVM, normalized and Polyak steps in turn")
def _steps(formula: Any, rng: np.random.Generator, k: int) -> float:
    settings = (
        {"steps": 500, "optimizer": "normalized_gd", "lr": 1.0} if k % 2 else {"steps": 500, "optimizer": "polyak"}
    )
    problem, run = _optimal_run(rng, **settings)
    return float(misalignment(run.W, formula(problem)))


@each(1e-2, "1 - correlation with the SVM of the l1.5 norm")
def _mirror(formula: Any, rng: np.random.Generator, k: int) -> float:
    problem, run = _optimal_run(rng, steps=2000, optimizer="mirror:l1.5", lr=0.1)
    return float(misalignment(run.W, formula(problem)))


@each(1e-12, "largest error of a probability")
def _null_token(formula: Any, rng: np.random.Generator, k: int) -> float:
    h = 3.0 * rng.standard_normal(5)
    return float(np.abs(np.exp(h) / (1 + np.exp(h).sum()) - formula(h)).max())


def _softmax_with_null(h: np.ndarray) -> np.ndarray:
    e = np.exp(np.append(h, 0.0))
    return np.asarray((e / e.sum())[:-1])


CHECKS = {
    "joint-head": Check(_head, lambda problem, selection: joint_svm(problem, selection).v, trials=6),
    "joint-attention": Check(
        _attention, lambda problem, selection, ratio: joint_svm(problem, selection, ratio=ratio).W, trials=6
    ),
    "step-direction": Check(_steps, lambda problem: attsvm.att_svm(problem).W, trials=10),
    "mirror": Check(_mirror, lambda problem: attsvm.att_svm(problem, norm="l1.5").W, trials=4),
    "softmax-1": Check(_null_token, _softmax_with_null, trials=100),
}
