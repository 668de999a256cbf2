"""Mistakes that a careful reader could make with the formulas of this paper: each must be rejected by its check.

A list holds several for one claim. `attsvm.validation.ledger.mutate` adds constants off by ten per cent.
"""

from __future__ import annotations

from typing import Any

import numpy as np

import attsvm
from attsvm.paths.decomposition import best_combination
from attsvm.rows import selection_rows
from attsvm.theory.support_assumptions import interpolating_multipliers
from attsvm.validation.ledger.svm._common import risk

__all__ = ["SLIPS"]


def _erm_without_mean(X: Any, Y: Any, Z: Any, v: Any, K: Any, Q: Any, loss: Any) -> float:
    s = np.exp(np.einsum("itd,de,ie->it", X, Q @ K.T, Z))
    s /= s.sum(axis=1, keepdims=True)
    return float(loss(Y * np.einsum("it,itd,d->i", s, X, v)).mean())


def _half_cubic(name: str, low: float, high: float) -> tuple[float, float]:
    return {"logistic": (0.125, 1.0), "exponential": (np.exp(-high), np.exp(-low)), "correlation": (0.0, 1.0)}[name]


def _smoothness_without_queries(p: Any, loss: str) -> float:
    M0, M1 = p.loss_constants(loss)
    v, X = np.linalg.norm(p.head.v), np.linalg.norm(p.X, 2, axis=(1, 2))
    return float((v * X**3 * (M0 * v * X + 3 * M1)).mean())


def _mean_multiplier(p: Any) -> bool:
    return bool(interpolating_multipliers(selection_rows(p))[0].mean() >= 0)


def _nearest_row(p: Any) -> Any:
    rows = selection_rows(p).margin_problem
    return rows.adjoint(np.ones(rows.m))


def _nuclear(p: Any, alpha: Any = None) -> Any:
    return attsvm.att_svm(p, alpha, norm="nuclear").W


def _some_support(table: Any, best: Any) -> bool:
    missed = table.indices != best.indices
    other = missed.any(axis=1) & table.feasible
    return bool((missed & table.support.any(axis=-1)).any(axis=1)[other].all())


def _unmasked(p: Any, selection: Any) -> Any:
    return attsvm.att_svm(attsvm.AttentionProblem(p.X, p.Y, p.Z, p.head), selection)


SLIPS: dict[str, Any] = {
    "erm": _erm_without_mean,  # Q K^T for K Q^T
    "def4": lambda support, own: len(support) == 0 or (support < own).any(),
    "lemma9-sum": lambda eta, fall: 1 / (2 * eta) * fall,  # the factor of (23) inverted
    "lemma3-set": lambda value: 1.01 * value,
    "thm8-L3": lambda mu, eta, norm: -2 * eta * mu / norm**2,
    "def1": lambda X, Y, v: (X @ v).argmax(axis=1),  # without the label
    "thm1": lambda n, T, d: d >= n - 1,
    "thm6": lambda n, T, d: d >= n,  # enough for optimal tokens only
    "lemma7": lambda A, B, P: np.linalg.matrix_rank(B) == len(B),  # of B instead of its projection
    "lemma1-rank": lambda n, d: max(n - 1, 1),
    "lemma1-span": lambda p: p.X[:, 0],  # tokens instead of queries
    "fig4-bound": lambda n, d: n,
    "star-set": lambda b: np.array([[1.0, b], [-b, 1.0]]),
    "lemma2": lambda scores, loss: float(loss(scores.mean(axis=1)).mean()),
    "assA": _half_cubic,
    "assA-slope": lambda loss, low, high: bool((loss.derivative(np.array([low, high])) < 0).all()),  # at the ends
    "thm2-W": lambda p: attsvm.att_svm(p).W,  # not divided by its norm
    "cor1": 0.1,
    "thm2-KQ": (lambda K, Q: K @ Q.T, lambda p: attsvm.att_svm(p).direction),  # Frobenius norm
    "cor2-order": (lambda K, Q: K.T @ Q, lambda p: attsvm.att_svm(p, norm="nuclear").direction),
    "thm2-rank": lambda p, m: m >= min(p.n, p.dx) - 1,
    "lemma3": lambda rank, m: rank - 1 <= m,
    "kq-svm": lambda p: attsvm.att_svm(p).norm,
    "star-generic": lambda degenerate: True,  # always unique
    "eq15": lambda left, right, slope: np.einsum("i,id,ie->de", slope, left, right),  # without 1/n
    "eq19": lambda left, right, slope: np.einsum("id,ie->de", left, right) / len(slope),  # without l'
    "eq20a": lambda left, right, slope, K, Q: np.einsum("i,id,ie->de", slope, left, right) @ K / len(slope),
    "eq20b": lambda left, right, slope, K, Q: np.einsum("i,id,ie->de", slope, right, left) @ Q / len(slope),
    "eq17": 0.4,
    "eq18a": 0.4,
    "eq18b": 0.2,
    "eq3-LW": _smoothness_without_queries,
    "eq3-LK": lambda other, L: np.sqrt(other) * L,
    "eq3-LQ": lambda other, L: L,
    "lemma8": lambda Gamma, A, s1: Gamma * A * (1 - s1) ** 2,
    "lemma9": [lambda eta, g2: -eta * g2, lambda eta, g2: -1.2 * eta * g2],
    "assB1": _mean_multiplier,
    "sec41-wording": _nearest_row,
    "sec41-posit": lambda n, T: 2 * T * np.log(n * T),
    "fig5-proxy": lambda p: attsvm.att_svm(p).rows.margin_problem.margins(attsvm.att_svm(p).W).mean() < 1.01,
    "lemma10": lambda p: True,  # without B
    "eq28": lambda g, h, s: g * h * (1 - s),
    "thm3": lambda p: p.optimal_tokens().is_unique,
    "eq33": lambda mu, norm: mu / norm,
    "assC": lambda p, loss: float(risk(p, np.zeros((p.dx, p.dx)), loss)) < 0.7,
    "thm4-limit": lambda p: attsvm.att_svm(p, norm="nuclear").W,
    "thm4-unique": lambda p: True,
    "eq50": lambda others: others.mean(axis=1).min(),
    "eq34a": lambda c, C, mu: (c * mu, c),
    "eq34b": lambda c, C, mu, theta, longest: c / C,
    "eq34c": lambda longest, C: 0.02 * C,
    "lemma11-interval": lambda p, A: (-A, 0.0),
    "lemma11-rate": lambda mu: 1 / np.sqrt(mu),
    "lemma12": _nuclear,
    "eq43": lambda norm: norm,
    "def2": lambda support, own: len(support) == 0 or (support < own).any(),
    "def2-opt": lambda p: p.T >= 2,
    "lemma13-a": lambda c, C: (16 * c, C),  # 2 for 1/8
    "lemma13-b": lambda longest, C: C / 8,
    "lemma13-c": lambda c, C, theta, longest: 16 * c / C * longest / theta,
    "thm5-width": lambda delta, A: min(0.5, delta) / A / 8,  # without the square
    "thm5-limit": lambda p, alpha: attsvm.att_svm(p).W,  # optimal tokens instead of alpha
    "eq66b": lambda T, R, delta, supports, own: (  # twice the slack
        T * np.exp(-2 * R * delta) * (supports.sum() if len(supports) else np.exp(-R) * own)
    ),
    "lemma14": _nuclear,
    "sec51-start": lambda reached: reached.all(),
    "sec9-start": lambda a, b: a[0] == b[0],  # the same token of one sequence only
    "assD": _some_support,
    "conjecture": lambda p: p.optimal_tokens().is_unique,  # without B.1 and D
    "sec52-norm": lambda history: history.loss,
    "sec52-often": lambda p: attsvm.att_svm(p).status.has_solution,  # feasible
    "sec52-captures": lambda n, T, d: d >= 2,
    "fig7-list": lambda table: table.margin >= table.margin.max(),
    "sec53-margin": lambda own, best: own < best,
    "fig6-d": lambda shares: bool((np.diff(shares) <= 0).all()),
    "eq93": lambda best: best.max(axis=1).min(),
    "lemma5-inside": lambda p, s: s.status.has_solution,
    "lemma5-outside": lambda p, s: bool((s.selection.indices != p.optimal_tokens().indices).any()),
    "lemma5-whole": lambda p: p.T >= 2,
    "thm7": lambda p, s: s.status.has_solution,
    "thm9": lambda p, s: s.status.has_solution,
    "assE": lambda own, low: own - low.min(),
    "lemma15": lambda K, Q: np.square(K).sum() + np.square(Q).sum(),
    "lemma15-budget": lambda used, R: used >= R * (1 - 1e-6),
    "cor2-unique": lambda m, n, d: m >= 1,
    "appE-denominator": lambda a: 1 / np.exp(a).max(),
    "serm-KQ": lambda losses: losses.mean(),
    "gen-svm": lambda finite, mm, R: R * (finite + mm),
    "eq7": lambda parts: parts.correlation_1token,
    "svmeq": lambda W, F, D: best_combination(W, F, D)[1],  # nearest instead of best aligned
    "lemma6": lambda gaps, tau, lam: tau * gaps[tau - 1] > lam > gaps[0],  # without the half
    "eq10": lambda X, s: X.T @ np.sqrt(s),
    "fig10-all": lambda scores, lam: (scores - scores.min()).sum() < 4 * lam,
    "fig10-grows": lambda counts: bool((np.diff(counts) > 0).all()),
    "eq12": lambda p, selection: attsvm.satt_svm(p, selection, norm="nuclear"),
    "causal": lambda p, selection: _unmasked(p, selection),
    "masks": _unmasked,
    "appF-epsilon": lambda x: x >= np.finfo(np.float64).tiny,
    "fig4-ranks": lambda p: min(p.n, p.dx),
    "fig7-W": 5e-4,
    "fig7-KQ": 5e-4,
    "fig7-softmax": 0.5,
    "fig11-m": lambda m, n: m >= 1,
}
