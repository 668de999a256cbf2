"""Every claim of the paper: its check confirms the stored verdict, and rejects a plausible slip of the pen."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import attsvm
from attsvm.paths.decomposition import best_combination
from attsvm.rows import selection_rows
from attsvm.theory.support_assumptions import interpolating_multipliers
from attsvm.validation.ledger.record import Verdict
from attsvm.validation.ledger.run import all_claims, audit
from attsvm.validation.ledger.svm._common import risk
from attsvm.validation.ledger.svm.s10_multiple import simplex_projection

CLAIMS = {claim.id: claim for claim in all_claims(["svm"])}
CHECKED = {name: claim for name, claim in CLAIMS.items() if claim.measure is not None}

# Instances per check here, where fewer than the claim's own number do: chosen so that the refuted forms and the slips
# still meet a counterexample.
TRIALS = {
    "svm:erm": 6, "svm:def1": 20, "svm:thm1": 120, "svm:thm6": 60, "svm:lemma7": 60, "svm:lemma1-rank": 30,
    "svm:lemma1-span": 30, "svm:fig4-bound": 20, "svm:star-set": 5, "svm:lemma2": 20, "svm:assA": 60,
    "svm:assA-slope": 20, "svm:thm2-W": 2, "svm:cor1": 1, "svm:thm2-KQ": 2, "svm:cor2-order": 1, "svm:thm2-rank": 16,
    "svm:lemma3": 2, "svm:kq-svm": 2, "svm:star-generic": 8, "svm:eq15": 6, "svm:eq19": 4, "svm:eq20a": 4,
    "svm:eq20b": 4, "svm:eq17": 200, "svm:eq18a": 200, "svm:eq18b": 300, "svm:eq3-LW": 60, "svm:eq3-LK": 60,
    "svm:eq3-LQ": 60, "svm:lemma8": 100, "svm:lemma9": 9, "svm:assB1": 24, "svm:sec41-wording": 12,
    "svm:sec41-posit": 5, "svm:fig5-proxy": 24, "svm:lemma10": 15, "svm:eq28": 200, "svm:thm3": 6, "svm:eq33": 30,
    "svm:assC": 24, "svm:thm4-limit": 2, "svm:thm4-unique": 6, "svm:eq50": 20, "svm:eq34a": 12, "svm:eq34b": 40,
    "svm:eq34c": 12, "svm:lemma11-interval": 24, "svm:lemma11-rate": 4, "svm:lemma12": 6, "svm:eq43": 6,
    "svm:def2": 60, "svm:def2-opt": 12, "svm:lemma13-a": 6, "svm:lemma13-b": 6, "svm:lemma13-c": 6,
    "svm:thm5-width": 5, "svm:thm5-limit": 2, "svm:eq66b": 8, "svm:lemma14": 5, "svm:sec51-start": 4,
    "svm:sec9-start": 8, "svm:assD": 24, "svm:conjecture": 10, "svm:sec52-norm": 4, "svm:sec52-often": 10,
    "svm:sec52-captures": 12, "svm:fig7-list": 6, "svm:sec53-margin": 20, "svm:fig6-d": 20, "svm:eq93": 8,
    "svm:lemma5-inside": 24, "svm:lemma5-outside": 30, "svm:lemma5-whole": 8, "svm:thm7": 4, "svm:thm9": 4,
    "svm:assE": 30, "svm:lemma15": 30, "svm:lemma15-budget": 4, "svm:cor2-unique": 4, "svm:appE-denominator": 5,
    "svm:serm-KQ": 4, "svm:gen-svm": 8, "svm:eq7": 80, "svm:svmeq": 10, "svm:lemma6": 200, "svm:eq10": 5,
    "svm:fig10-all": 60, "svm:fig10-grows": 20, "svm:eq12": 2, "svm:causal": 2, "svm:masks": 4, "svm:appF-epsilon": 20,
    "svm:fig4-ranks": 2, "svm:fig7-W": 6, "svm:fig7-KQ": 6, "svm:fig7-softmax": 3, "svm:fig11-m": 4,
}  # fmt: skip


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


# One plausible slip per claim: a wrong constant, exponent, index, transpose or a missing condition.
WRONG: dict[str, Any] = {
    "svm:erm": _erm_without_mean,  # Q K^T for K Q^T
    "svm:def1": lambda X, Y, v: (X @ v).argmax(axis=1),  # without the label
    "svm:thm1": lambda n, T, d: d >= n - 1,
    "svm:thm6": lambda n, T, d: d >= n,  # enough for optimal tokens only
    "svm:lemma7": lambda A, B, P: np.linalg.matrix_rank(B) == len(B),  # of B instead of its projection
    "svm:lemma1-rank": lambda n, d: max(n - 1, 1),
    "svm:lemma1-span": lambda p: p.X[:, 0],  # tokens instead of queries
    "svm:fig4-bound": lambda n, d: n,
    "svm:star-set": lambda b: np.array([[1.0, b], [-b, 1.0]]),
    "svm:lemma2": lambda scores, loss: float(loss(scores.mean(axis=1)).mean()),
    "svm:assA": _half_cubic,
    "svm:assA-slope": lambda loss, low, high: bool((loss.derivative(np.array([low, high])) < 0).all()),  # at the ends
    "svm:thm2-W": lambda p: attsvm.att_svm(p).W,  # not divided by its norm
    "svm:cor1": lambda: 1.0,
    "svm:thm2-KQ": (lambda K, Q: K @ Q.T, lambda p: attsvm.att_svm(p).direction),  # Frobenius norm
    "svm:cor2-order": (lambda K, Q: K.T @ Q, lambda p: attsvm.att_svm(p, norm="nuclear").direction),
    "svm:thm2-rank": lambda p, m: m >= min(p.n, p.dx) - 1,
    "svm:lemma3": lambda rank, m: rank - 1 <= m,
    "svm:kq-svm": lambda p: attsvm.att_svm(p).norm,
    "svm:star-generic": lambda degenerate: True,  # always unique
    "svm:eq15": lambda left, right, slope: np.einsum("i,id,ie->de", slope, left, right),  # without 1/n
    "svm:eq19": lambda left, right, slope: np.einsum("id,ie->de", left, right) / len(slope),  # without l'
    "svm:eq20a": lambda left, right, slope, K, Q: np.einsum("i,id,ie->de", slope, left, right) @ K / len(slope),
    "svm:eq20b": lambda left, right, slope, K, Q: np.einsum("i,id,ie->de", slope, right, left) @ Q / len(slope),
    "svm:eq17": 0.4,
    "svm:eq18a": 0.4,
    "svm:eq18b": 0.2,
    "svm:eq3-LW": _smoothness_without_queries,
    "svm:eq3-LK": lambda other, L: np.sqrt(other) * L,
    "svm:eq3-LQ": lambda other, L: L,
    "svm:lemma8": lambda Gamma, A, s1: Gamma * A * (1 - s1) ** 2,
    "svm:lemma9": lambda eta, g2: -eta * g2,
    "svm:assB1": _mean_multiplier,
    "svm:sec41-wording": _nearest_row,
    "svm:sec41-posit": lambda n, T: 2 * T * np.log(n * T),
    "svm:fig5-proxy": lambda p: attsvm.att_svm(p).rows.margin_problem.margins(attsvm.att_svm(p).W).mean() < 1.01,
    "svm:lemma10": lambda p: True,  # without B
    "svm:eq28": lambda g, h, s: g * h * (1 - s),
    "svm:thm3": lambda p: p.optimal_tokens().is_unique,
    "svm:eq33": lambda mu, norm: mu / norm,
    "svm:assC": lambda p, loss: float(risk(p, np.zeros((p.dx, p.dx)), loss)) < 0.7,
    "svm:thm4-limit": lambda p: attsvm.att_svm(p, norm="nuclear").W,
    "svm:thm4-unique": lambda p: True,
    "svm:eq50": lambda others: others.mean(axis=1).min(),
    "svm:eq34a": lambda c, C, mu: (c * mu, c),
    "svm:eq34b": lambda c, C, mu, theta, longest: c / C,
    "svm:eq34c": lambda longest, C: 0.02 * C,
    "svm:lemma11-interval": lambda p, A: (-A, 0.0),
    "svm:lemma11-rate": lambda mu: 1 / np.sqrt(mu),
    "svm:lemma12": _nuclear,
    "svm:eq43": lambda norm: norm,
    "svm:def2": lambda support, own: len(support) == 0 or (support < own).any(),
    "svm:def2-opt": lambda p: p.T >= 2,
    "svm:lemma13-a": lambda c, C: (16 * c, C),  # 2 for 1/8
    "svm:lemma13-b": lambda longest, C: C / 8,
    "svm:lemma13-c": lambda c, C, theta, longest: 16 * c / C * longest / theta,
    "svm:thm5-width": lambda delta, A: min(0.5, delta) / A / 8,  # without the square
    "svm:thm5-limit": lambda p, alpha: attsvm.att_svm(p).W,  # optimal tokens instead of alpha
    "svm:eq66b": lambda T, R, delta, supports, own: T * np.exp(-2 * R * delta) * supports.sum(),
    "svm:lemma14": _nuclear,
    "svm:sec51-start": lambda reached: reached.all(),
    "svm:sec9-start": lambda a, b: a[0] == b[0],  # the same token of one sequence only
    "svm:assD": _some_support,
    "svm:conjecture": lambda p: p.optimal_tokens().is_unique,  # without B.1 and D
    "svm:sec52-norm": lambda history: history.loss,
    "svm:sec52-often": lambda p: attsvm.att_svm(p).rows.margin_problem.margins(attsvm.att_svm(p).W).mean() < 1.3,
    "svm:sec52-captures": lambda n, T, d: d >= 2,
    "svm:fig7-list": lambda table: table.margin >= table.margin.max(),
    "svm:sec53-margin": lambda own, best: own < best,
    "svm:fig6-d": lambda shares: bool((np.diff(shares) <= 0).all()),
    "svm:eq93": lambda best: best.max(axis=1).min(),
    "svm:lemma5-inside": lambda p, s: s.status.has_solution,
    "svm:lemma5-outside": lambda p, s: bool((s.selection.indices != p.optimal_tokens().indices).any()),
    "svm:lemma5-whole": lambda p: p.T >= 2,
    "svm:thm7": lambda p, s: s.status.has_solution,
    "svm:thm9": lambda p, s: s.status.has_solution,
    "svm:assE": lambda own, low: own - low.min(),
    "svm:lemma15": lambda K, Q: np.square(K).sum() + np.square(Q).sum(),
    "svm:lemma15-budget": lambda used, R: used >= R * (1 - 1e-6),
    "svm:cor2-unique": lambda m, n, d: m >= 1,
    "svm:appE-denominator": lambda a: 1 / np.exp(a).max(),
    "svm:serm-KQ": lambda losses: losses.mean(),
    "svm:gen-svm": lambda finite, mm, R: R * (finite + mm),
    "svm:eq7": lambda parts: parts.correlation_1token,
    "svm:svmeq": lambda W, F, D: best_combination(W, F, D)[1],  # nearest instead of best aligned
    "svm:lemma6": lambda gaps, tau, lam: tau * gaps[tau - 1] > lam > gaps[0],  # without the half
    "svm:eq10": lambda X, s: X.T @ np.sqrt(s),
    "svm:fig10-all": lambda scores, lam: (scores - scores.min()).sum() < 4 * lam,
    "svm:fig10-grows": lambda counts: bool((np.diff(counts) > 0).all()),
    "svm:eq12": lambda p, selection: attsvm.satt_svm(p, selection, norm="nuclear"),
    "svm:causal": lambda p, selection: _unmasked(p, selection),
    "svm:masks": _unmasked,
    "svm:appF-epsilon": lambda x: x >= np.finfo(np.float64).tiny,
    "svm:fig4-ranks": lambda p: min(p.n, p.dx),
    "svm:fig7-W": {"arithmetic": "naive", "loss": "exponential"},
    "svm:fig7-KQ": {"normalization": "factor"},
    "svm:fig7-softmax": 0.5,
    "svm:fig11-m": lambda m, n: m >= 1,
}


def test_every_check_has_a_slip_and_a_size() -> None:
    assert set(WRONG) == set(CHECKED)
    assert set(TRIALS) == set(CHECKED)


@pytest.mark.parametrize("name", sorted(CHECKED))
def test_the_stored_verdict_is_confirmed(name: str) -> None:
    result = audit(CHECKED[name], trials=TRIALS[name])
    assert result.agrees, f"printed {result.printed}; corrected {result.corrected}"


@pytest.mark.parametrize("name", sorted(CHECKED))
def test_the_check_rejects_a_slip(name: str) -> None:
    measurement = CHECKED[name].measure(WRONG[name], np.random.default_rng(7), TRIALS[name])  # type: ignore[misc]
    assert measurement.violations > 0, str(measurement)


def test_every_claim_says_what_was_found() -> None:
    for claim in CLAIMS.values():
        assert claim.evidence or claim.reason, claim.id
        assert claim.verdict is not Verdict.OPEN or claim.corrected is None


def test_the_ledger_follows_the_paper() -> None:
    """Modules sort by section, so that tables read like the paper."""
    order = list(CLAIMS)
    places = [
        order.index(name)
        for name in ("svm:thm1", "svm:thm2-W", "svm:lemma9", "svm:thm3", "svm:thm5-limit", "svm:lemma6")
    ]
    assert places == sorted(places)


def test_optimal_tokens_of_a_linear_head_need_only_independent_queries() -> None:
    """Sharper than Theorem 1: v z^T with z . z_i = Y_i separates them, whatever T."""
    found = CLAIMS["svm:thm1"].measure(lambda n, T, d: d >= n, np.random.default_rng(1), 200)  # type: ignore[misc]
    assert found.holds and found.trials > 50
    problem = attsvm.random_problem(n=3, T=9, d=4, seed=0)
    z = np.linalg.lstsq(problem.Z, problem.Y, rcond=None)[0]
    logits = problem.X @ np.outer(problem.head.v, z) @ problem.Z[:, :, None]  # type: ignore[union-attr]
    assert (logits[..., 0].argmax(axis=1) == problem.optimal_tokens().indices).all()


def test_projection_on_the_simplex_is_optimal() -> None:
    rng = np.random.default_rng(0)
    for _ in range(50):
        g = rng.normal(size=6)
        s = simplex_projection(g)
        assert s.min() >= 0 and abs(s.sum() - 1) < 1e-12
        # Optimality: (g - s) . (y - s) <= 0 at every vertex y.
        assert ((g - s) - (g - s) @ s).max() < 1e-12
