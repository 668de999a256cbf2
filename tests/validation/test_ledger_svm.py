"""Every claim of the paper: its check confirms the stored verdict, and rejects a plausible slip of the pen."""

from __future__ import annotations

import numpy as np
import pytest

import attsvm
from attsvm.validation.ledger.audit import all_claims, audit
from attsvm.validation.ledger.claim_record import Verdict
from attsvm.validation.ledger.slips import SLIPS
from attsvm.validation.ledger.svm_cones import simplex_projection

CLAIMS = {claim.id: claim for claim in all_claims(["svm"])}
CHECKED = {name: claim for name, claim in CLAIMS.items() if claim.measure is not None}

# Instances per check here, where fewer than the claim's own number do: chosen so that the refuted forms and the slips
# still meet a counterexample.
TRIALS = {
    "svm:erm": 6, "svm:def1": 20, "svm:thm1": 120, "svm:thm6": 60, "svm:lemma7": 60, "svm:lemma1-rank": 30,
    "svm:lemma1-span": 30, "svm:fig4-bound": 20, "svm:star-set": 5, "svm:lemma2": 20, "svm:assA": 60,
    "svm:assA-slope": 20, "svm:thm2-W": 2, "svm:cor1": 1, "svm:thm2-KQ": 2, "svm:cor2-order": 2, "svm:thm2-rank": 16,
    "svm:lemma3": 2, "svm:kq-svm": 2, "svm:star-generic": 8, "svm:eq15": 6, "svm:eq19": 4, "svm:eq20a": 4,
    "svm:eq20b": 4, "svm:eq17": 200, "svm:eq18a": 200, "svm:eq18b": 300, "svm:eq3-LW": 60, "svm:eq3-LK": 60,
    "svm:eq3-LQ": 60, "svm:lemma8": 100, "svm:lemma9": 9, "svm:assB1": 24, "svm:sec41-wording": 12,
    "svm:sec41-posit": 5, "svm:fig5-proxy": 24, "svm:lemma10": 15, "svm:eq28": 200, "svm:thm3": 6, "svm:eq33": 30,
    "svm:assC": 24, "svm:thm4-limit": 2, "svm:thm4-unique": 6, "svm:eq50": 20, "svm:eq34a": 12, "svm:eq34b": 40,
    "svm:eq34c": 12, "svm:lemma11-interval": 24, "svm:lemma11-rate": 4, "svm:lemma12": 6, "svm:eq43": 6,
    "svm:def2": 60, "svm:def2-opt": 12, "svm:lemma13-a": 6, "svm:lemma13-b": 6, "svm:lemma13-c": 6,
    "svm:thm5-width": 5, "svm:thm5-limit": 2, "svm:eq66b": 8, "svm:lemma14": 5, "svm:sec51-start": 4,
    "svm:sec9-start": 3, "svm:assD": 24, "svm:conjecture": 10, "svm:sec52-norm": 4, "svm:sec52-often": 24,
    "svm:sec52-captures": 12, "svm:fig7-list": 6, "svm:sec53-margin": 20, "svm:fig6-d": 20, "svm:eq93": 8,
    "svm:lemma5-inside": 24, "svm:lemma5-outside": 30, "svm:lemma5-whole": 8, "svm:thm7": 4, "svm:thm9": 4,
    "svm:assE": 30, "svm:lemma15": 30, "svm:lemma15-budget": 4, "svm:cor2-unique": 4, "svm:appE-denominator": 5,
    "svm:serm-KQ": 4, "svm:gen-svm": 8, "svm:eq7": 80, "svm:svmeq": 10, "svm:lemma6": 200, "svm:eq10": 5,
    "svm:fig10-all": 60, "svm:fig10-grows": 20, "svm:eq12": 2, "svm:causal": 2, "svm:masks": 4, "svm:appF-epsilon": 20,
    "svm:fig4-ranks": 2, "svm:fig7-W": 3, "svm:fig7-KQ": 3, "svm:fig7-softmax": 3, "svm:fig11-m": 4,
    "svm:def4": 30, "svm:lemma9-sum": 6, "svm:lemma3-set": 2, "svm:thm8-L3": 40,
}  # fmt: skip


def test_every_check_has_a_slip_and_a_size() -> None:
    assert {f"svm:{place}" for place in SLIPS["svm"]} == set(CHECKED)
    assert set(TRIALS) == set(CHECKED)


@pytest.mark.parametrize("name", sorted(CHECKED))
def test_the_stored_verdict_is_confirmed(name: str) -> None:
    result = audit(CHECKED[name], trials=TRIALS[name])
    assert result.agrees, f"printed {result.printed}; corrected {result.corrected}"


# Their slips train for five seconds and more each: `attsvm claims --paper svm --mutate` tries them.
HEAVY = {"svm:conjecture", "svm:fig7-KQ", "svm:fig7-W", "svm:fig11-m"}


@pytest.mark.parametrize("name", sorted(CHECKED.keys() - HEAVY))
def test_the_check_rejects_a_slip(name: str) -> None:
    slips = SLIPS["svm"][name.split(":", 1)[1]]
    for slip in slips if isinstance(slips, list) else [slips]:
        measurement = CHECKED[name].measure(slip, np.random.default_rng(7), TRIALS[name])  # type: ignore[misc]
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
