"""Verdicts stand at other seeds, wrong constants do not, and both commands say so."""

import json
from dataclasses import replace

import pytest
from typer.testing import CliRunner

from attsvm.cli import app
from attsvm.validation.ledger import Claim, Verdict
from attsvm.validation.ledger.audit import all_claims, audit_seeds, code_digest, find_claims
from attsvm.validation.ledger.claim_record import count
from attsvm.validation.ledger.mutate import Mutation, is_tight, mutations, reference, shares, survivors

RUNNER = CliRunner()
# Checks that take less than a tenth of a second; `attsvm claims --run --seeds 30` runs all of them.
CHEAP = [
    "conditioning:E-Hp", "conditioning:E12", "conditioning:E25", "conditioning:E36", "conditioning:E37",
    "conditioning:E38", "conditioning:E40", "conditioning:E42", "conditioning:E43", "conditioning:E44",
    "conditioning:E46", "conditioning:E5-6", "conditioning:E8-9", "conditioning:L1.1-2", "conditioning:L1.3",
    "conditioning:L2", "conditioning:L3-13", "conditioning:L3-14", "conditioning:L4-gam", "conditioning:L5a",
    "conditioning:L6-sing", "conditioning:Lim", "conditioning:Rk1", "conditioning:Rk3", "conditioning:Rk8",
    "conditioning:asmA", "localization:1", "localization:11", "localization:12", "localization:17",
    "localization:19", "localization:2", "localization:20", "localization:22", "localization:26", "localization:3",
    "localization:30", "localization:35", "localization:36", "localization:39", "localization:46",
    "localization:47", "localization:5", "polarization:C01", "polarization:C02", "polarization:C03",
    "polarization:C04", "polarization:C05", "polarization:C06", "polarization:C11", "polarization:C31",
    "polarization:C37", "polarization:C38", "polarization:C58", "specialization:10", "specialization:11",
    "specialization:13", "specialization:15", "specialization:17", "specialization:18", "specialization:19",
    "specialization:20", "specialization:22", "specialization:23", "specialization:24", "specialization:30",
    "specialization:31", "specialization:32", "specialization:33", "specialization:7", "specialization:8",
    "specialization:9", "svm:assA", "svm:def1", "svm:eq10", "svm:erm", "svm:lemma15", "svm:serm-KQ",
]  # fmt: skip


def _square(formula, rng, trials):
    x = rng.normal(size=trials)
    return count(abs(formula(x) - x * x), 1e-12)


def _boom(formula, rng, trials):
    raise RuntimeError("no instance")


def test_cheap_verdicts_stand_at_another_seed():  # than 0, which test_claims_of_the_papers takes
    runs = audit_seeds([claim for claim in find_claims([]) if claim.id in CHEAP], [1])
    assert len(runs) == len(CHEAP)
    assert [(run.claim, run.seed, run.found) for run in runs if not run.agrees] == []


def test_a_check_that_crashes_contradicts_and_the_others_go_on(monkeypatch):
    from attsvm.validation.ledger import audit as seeds

    claims = {"svm:good": Claim("svm:good", "p. 1", "x", Verdict.HOLDS, _square, lambda x: x * x),
              "svm:bad": Claim("svm:bad", "p. 1", "x", Verdict.HOLDS, _boom, lambda x: x)}  # fmt: skip
    monkeypatch.setattr(seeds, "_claim", claims.__getitem__)
    runs = audit_seeds(list(claims.values()), [0, 1], trials=4)
    assert [(run.claim, run.agrees) for run in runs] == 2 * [("svm:good", True), ("svm:bad", False)]
    assert runs[1].found == "RuntimeError: no instance"


def test_a_store_keeps_what_is_finished(tmp_path):
    chosen, seen = find_claims(["svm:eq10", "svm:eq17"]), []
    first = audit_seeds(chosen, [0, 1], trials=5, store=tmp_path / "claims.sqlite")
    again = audit_seeds(
        chosen, [0, 1], trials=5, store=tmp_path / "claims.sqlite", progress=lambda done, total: seen.append(done)
    )
    assert [(r.claim, r.seed, r.found) for r in first] == [(r.claim, r.seed, r.found) for r in again]
    assert [r.seconds for r in first] == [r.seconds for r in again]  # not computed again


def test_a_changed_check_of_one_paper_leaves_the_results_of_the_others():
    assert len({code_digest(paper) for paper in ("svm", "newer", "polarization")}) == 3


def test_the_command_runs_several_seeds():
    result = RUNNER.invoke(app, ["claims", "svm:eq10", "svm:eq17", "--run", "--seeds", "3", "--trials", "5"])
    assert result.exit_code == 0, result.output
    assert "2 claims at seeds 0 to 2: 0 contradictions in 6 checks" in result.output
    records = json.loads(
        RUNNER.invoke(app, ["claims", "svm:eq10", "--run", "--seeds", "2", "--trials", "5", "--json"]).stdout
    )
    assert [record["seed"] for record in records] == [0, 1]


# -- mutations --------------------------------------------------------------------------------------------------------


def _example(formula, **more):
    return Claim("conditioning:none", "p. 1", "a square", Verdict.HOLDS, _square, formula, **more)


def test_scaled_forms_are_tried_up_and_down():
    found = [m for m in mutations(_example(lambda x: x * x)) if m.scaled]
    assert [m.name for m in found] == ["x 1.1", "x 0.909"]
    assert all(m.caught for m in found)


def test_one_kind_of_variants_can_be_asked_for():
    claim = find_claims(["conditioning:E22"])[0]
    both = mutations(claim)
    kinds = [mutations(claim, scaled=kind) for kind in (True, False)]
    assert all(kinds) and kinds[0] + kinds[1] == both
    assert all(m.scaled for m in kinds[0]) and not any(m.scaled for m in kinds[1])


def test_a_bound_has_teeth_by_its_recorded_tightness():
    def below(formula, rng, trials):
        x = rng.uniform(0, 1, size=trials)
        return count(x - formula, 0.0, "excess")

    loose = Claim("conditioning:none", "p. 1", "x below 3", Verdict.HOLDS, below, 3.0)
    assert not any(m.caught for m in mutations(loose) if m.scaled)
    worst, mean = reference(loose)
    assert -2.2 < worst < -2.0 and -2.7 < mean < -2.3  # below 1 of 3, on average half of it
    recorded = replace(loose, tight=(worst, mean))
    assert is_tight(recorded)[0] and not is_tight(recorded, 2.7)[0]
    assert all(m.caught for m in mutations(recorded) if m.scaled)
    with pytest.raises(ValueError, match="tight must be that of the form that holds, got tightness -2"):
        mutations(replace(loose, tight=(-1.0, -1.5)))


def test_shares_leave_invariant_variants_out():
    kept = Mutation("svm:a", "x 1.1", True, False, "", "invariant: a sign")
    assert shares([kept, Mutation("svm:a", "slip 1", False, True, "")]) == (1, 1)


def test_recorded_tightness_and_survivors_name_claims_with_checks():
    checked = {claim.id for claim in all_claims() if claim.measure is not None}
    assert set(survivors()) <= checked
    assert {claim.id for claim in all_claims() if claim.tight} <= checked


@pytest.mark.parametrize("paper", ["conditioning", "localization"])
def test_wrong_constants_of_cheap_checks_are_caught(paper):
    claims = find_claims([name for name in CHEAP if name.startswith(paper)])
    found = [m for claim in claims for m in mutations(claim, scaled=True)]
    caught, total = shares(found)
    assert total > 20 and caught >= 0.95 * total, [(m.claim, m.name) for m in found if not m.caught and not m.invariant]
    assert all(m.caught or m.reason for m in found), [(m.claim, m.name) for m in found if not m.caught and not m.reason]


def test_the_command_prints_the_share_caught():
    result = RUNNER.invoke(app, ["claims", "conditioning:P1-kap", "conditioning:E10", "--mutate"])
    assert result.exit_code == 0, result.output
    assert "Variants caught" in result.output and "conditioning" in result.output
