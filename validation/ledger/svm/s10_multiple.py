"""Sections 6 and 7: several selected tokens, sequences and causal masks."""

from __future__ import annotations

from typing import Any

import numpy as np

import attsvm
from attsvm import AttentionProblem, attention
from attsvm.paths.decomposition import best_combination
from attsvm.validation.ledger.record import Check, Measurement, count, each, each_case, implication
from attsvm.validation.ledger.svm._common import Array, Rng, cosine, rotation, seed_of

__all__ = ["CHECKS", "simplex_projection"]


def simplex_projection(g: Array) -> Array:
    """Nearest point of the probability simplex.

    Examples
    --------
    >>> import numpy as np
    >>> from attsvm.validation.ledger.svm.s10_multiple import simplex_projection
    >>> simplex_projection(np.array([1.0, 0.5, -3.0]))
    array([0.75, 0.25, 0.  ])
    """
    u = np.sort(g)[::-1]
    steps = np.arange(1, len(g) + 1)
    shift = (np.cumsum(u) - 1) / steps
    k = int((u > shift).sum())
    return np.asarray(np.maximum(g - shift[k - 1], 0.0))


def _optimal_attention(rng: Rng, T: int, v: Array, lam: float) -> tuple[Array, Array]:
    """Orthonormal tokens (T, T) in descending order of score, and the minimizer of (10)."""
    X = rotation(rng, T)
    X = X[np.argsort(-(X @ v))]
    return X, simplex_projection(X @ v / (2 * lam))  # |X^T s| = |s|: (10) is a projection


def _head_value(X: Array, s: Array, v: Array, lam: float) -> float:
    mixed = X.T @ s
    return float(v @ mixed - lam * mixed @ mixed)


def _lemma6(formula: Any, rng: Rng, trials: int) -> Measurement:
    """A rule on (score gaps, tau, lam); conclusion: 2 <= number of selected tokens <= tau. Optimality is checked."""
    cases = []
    for _ in range(trials):
        T = int(rng.integers(4, 11))
        v = rng.normal(size=T)
        v /= np.linalg.norm(v)
        lam = float(10 ** rng.uniform(-1.5, 0.3))
        X, s = _optimal_attention(rng, T, v, lam)
        others = rng.dirichlet(np.ones(T), size=20)
        if any(_head_value(X, s + 0.01 * (o - s), v, lam) > _head_value(X, s, v, lam) + 1e-12 for o in others):
            raise ValueError("the projection is not optimal")
        gaps = -np.diff(X @ v)
        selected = int((s > 0).sum())
        cases += [(formula(gaps, tau, lam), 2 <= selected <= tau) for tau in range(2, T)]
    return implication(cases, "number of selected tokens, orthonormal tokens, T = 4..10")


@each(1e-12, "difference from the mixture of tokens, T = d")
def _composed(formula: Any, rng: Rng, k: int) -> Any:
    X, s = rng.normal(size=(5, 5)), rng.dirichlet(np.ones(5))
    return np.linalg.norm(formula(X, s) - sum(w * x for w, x in zip(s, X, strict=True)))


@each(0.5, "some token is not selected although the rule says so, lam in [1, 5]")
def _all_selected(formula: Any, rng: Rng, k: int) -> Any:
    """A rule on (scores, lam) for 'all tokens are selected', against the optimum, T = d = 10, |v| = 1."""
    v = rng.normal(size=10)
    v /= np.linalg.norm(v)
    lam = float(rng.uniform(1, 5))
    X, s = _optimal_attention(rng, 10, v, lam)
    if formula(X @ v, lam):
        yield float((s > 0).sum() < 10)


@each_case("numbers of selected tokens over 25 values of lam")
def _monotone(formula: Any, rng: Rng, k: int) -> Any:
    v = rng.normal(size=10)
    scores = v / np.linalg.norm(v)
    counts = [int((simplex_projection(scores / (2 * lam)) > 0).sum()) for lam in np.geomspace(0.02, 5, 25)]
    return (True, formula(np.array(counts)))


@each(1e-6, "largest difference from the wanted probabilities")
def _decomposition(formula: Any, rng: Rng, k: int) -> Any:
    """W from (W_fin, W_mm, R): probabilities s* on the selected sets, none on the others."""
    p = attsvm.random_problem(2, 4, 8, seed=seed_of(rng))
    sets = [sorted(rng.choice(4, size=int(rng.integers(1, 4)), replace=False).tolist()) for _ in range(2)]
    target = np.zeros((2, 4))
    for i, chosen in enumerate(sets):
        target[i, chosen] = rng.dirichlet(np.full(len(chosen), 3.0))
    finite = attsvm.finite_part(p, target, sets).W if max(map(len, sets)) > 1 else np.zeros((8, 8))
    mm = attsvm.gen_svm(p, sets)
    W = formula(finite, mm.W, 60.0)
    return float(np.abs(attention.probabilities(p, W) - target).max())


@each(1e-7, "best correlation on a grid minus that at the formula's gamma")
def _best_gamma(formula: Any, rng: Rng, k: int) -> Any:
    """Correlation at a formula's gamma against the best on a fine grid."""
    F, D, noise = rng.normal(size=(3, 4, 4))
    D /= np.linalg.norm(D)
    W = F + rng.uniform(2, 40) * D + rng.uniform(0, 1) * noise
    grid = [float(cosine(W, F + g * D)) for g in np.geomspace(0.5, 200, 400)]
    return max(grid) - float(cosine(W, F + formula(W, F, D) * D))


def _relu_runs(formula: Any, rng: Rng, trials: int) -> Measurement:
    """Mean correlation of a prediction with trained weights over the runs that pass the published filter.

    Published arithmetic, as in Figure 9: its normalizer fades out near the minimum. Exact steps of fixed length
    keep jumping about the finite mixture, and end at four times the distance.
    """
    from attsvm.paths.decomposition import decompose

    d = 6
    base = attsvm.random_problem(3, 4, d, batch=trials, seed=seed_of(rng))
    V = rng.normal(size=(trials, d, d))
    V /= np.linalg.norm(V, axis=(1, 2), keepdims=True)
    p = AttentionProblem(base.X, base.Y, base.Z, attsvm.ReluHead(V))
    run = attsvm.train(p, steps=2000, seed=seed_of(rng), snapshots=2, arithmetic="naive")
    values = []
    for b in np.flatnonzero((base.Y < 0).any(axis=1)):
        parts = decompose(base[int(b)], run.W[b])
        if parts.is_clean and parts.sizes.max() > 1 and parts.status == "complete":
            values.append(1 - formula(parts))
    if not values:
        raise ValueError("no run passed the filter; more trials are needed")
    return count([np.mean(values)], 0.08, f"mean 1 - corr over {len(values)} runs that pass the filter, d = {d}")


def _sequence(causal: bool) -> Any:
    def measure(formula: Any, rng: Rng, trials: int) -> Measurement:
        """Directions of descent on sequences against a predicted SVM."""
        d = 12
        p = attsvm.random_problem(2, 4, d, batch=trials, seed=seed_of(rng), kind="sequence", causal=causal)
        run = attsvm.train(p, steps=1500, lr=0.5, seed=seed_of(rng), snapshots=2)
        errors = []
        for b in range(trials):
            s = formula(p[b], run.selection.indices[b])
            errors.append(1 - float(cosine(run.W[b], s.W)) if s.status.has_solution else 1.0)
        # A selection may be reached late: the mean over problems, not each of them.
        return count(
            [np.mean(errors)], 0.02, "mean 1 - corr with the SVM of the tokens selected, 1500 normalized steps"
        )

    return measure


def _unmasked(p: AttentionProblem, selection: Any) -> Any:
    return attsvm.satt_svm(AttentionProblem(p.X, p.Y, p.Z, p.head), selection)


def _masks(formula: Any, rng: Rng, trials: int) -> Measurement:
    """Random masks: descent against the SVM with a formula's rows."""
    problems = attsvm.random_problem(2, 6, 10, batch=trials, seed=seed_of(rng), min_score_gap=0.05)
    mask = rng.random((trials, 2, 6)) < 0.6
    mask[..., :2] = True
    p = AttentionProblem(problems.X, problems.Y, problems.Z, problems.head, mask)
    run = attsvm.train(p, steps=1000, lr=0.5, seed=seed_of(rng), snapshots=2)
    errors = []
    for b in range(trials):
        s = formula(p[b], run.selection.indices[b])
        errors.append(1 - float(cosine(run.W[b], s.W)) if s.status.has_solution else 1.0)
    return count(errors, 0.01, "1 - corr with the SVM of the tokens selected, 1000 normalized steps")


def _smallest_number(formula: Any, rng: Rng, trials: int) -> Measurement:
    """No smaller power of two may have the property that 2.22e-16 is said to be the smallest with."""
    epsilon = float(np.finfo(np.float64).eps)
    smaller = epsilon * 0.5 ** rng.integers(1, 900, size=trials)
    return count([float(formula(x)) for x in smaller], 0.5, "smaller numbers with the property, 2^-53 and below")


CHECKS = {
    "gen-svm": Check(_decomposition, lambda finite, mm, R: finite + R * mm, trials=60),
    "eq7": Check(_relu_runs, lambda parts: parts.correlation_svmeq, trials=150),
    "svmeq": Check(_best_gamma, lambda W, F, D: best_combination(W, F, D)[0], trials=60),
    "lemma6": Check(_lemma6, lambda gaps, tau, lam: tau * gaps[tau - 1] / 2 > lam > gaps[0], trials=800),
    "eq10": Check(_composed, lambda X, s: X @ s, lambda X, s: X.T @ s, trials=50),
    "fig10-all": Check(
        _all_selected,
        lambda scores, lam: lam > 2.0,
        lambda scores, lam: (scores - scores.min()).sum() < 2 * lam,
        trials=400,
    ),
    "fig10-grows": Check(
        _monotone, lambda counts: bool((np.diff(counts) >= 0).all() and counts[-1] > counts[0]), trials=200
    ),
    "eq12": Check(_sequence(False), attsvm.satt_svm, trials=6),
    "causal": Check(_sequence(True), attsvm.satt_svm, trials=6),
    "masks": Check(_masks, attsvm.att_svm, trials=8),
    "appF-epsilon": Check(_smallest_number, lambda x: x > 0.0, lambda x: 1.0 + x != 1.0, trials=200),
}
