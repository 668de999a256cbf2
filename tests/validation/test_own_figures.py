import json
import re
from pathlib import Path

import numpy as np
import pytest
from figure_outcomes import outcome_of

from attsvm.validation.figures.framework import Options
from attsvm.validation.figures.own import agreement, assumptions, floor, fuzz, geometry, paths, ranks, search
from attsvm.validation.figures.registry import all_figures, choose_figures
from attsvm.validation.figures.run import run_figure
from attsvm.validation.fuzz_families import FAMILIES, draw_group
from attsvm.validation.fuzz_judge import KINDS
from attsvm.validation.fuzz_listing import against_listings


def test_they_are_listed_and_chosen_by_name():
    names = [figure.name for figure in all_figures("own")]
    folder = Path(agreement.__file__).parent
    stated = [
        re.findall(r"^FIGURE\w* = Figure\(", path.read_text(encoding="utf-8"), re.M) for path in folder.glob("*.py")
    ]
    assert (
        sorted(names) == names
        and len(names) == sum(map(len, stated))
        and {"agreement", "edits", "fuzz", "graphs"} <= set(names)
    )
    assert [(f.paper, f.name) for f in choose_figures(["own", "floor"])] == [("own", "floor")]


def test_a_figure_without_picture_writes_its_record_and_resumes(tmp_path):
    options = Options(quick=True, trials=2)
    record = run_figure(ranks.FIGURE, tmp_path, options)
    assert json.loads((tmp_path / "own_ranks.json").read_text()) == record
    assert not (tmp_path / "own_ranks.png").exists()
    assert run_figure(ranks.FIGURE, tmp_path, options)["resumed_chunks"] == 2


@pytest.mark.parametrize("corners", [True, False])
def test_backends_agree_and_certificates_say_so(corners):
    found = agreement.compare_backends(8, 5, corners=corners)
    assert {status for row in found["status"] for status in row} <= {"optimal", "infeasible"}
    for k, (norm, backend) in enumerate(agreement.PAIRS):
        worst = {name: max(row[k] for row in found[name]) for name in found if name != "status"}
        assert worst["difference"] <= (1e-4 if "SCS" in backend else 1e-6), (norm, backend)
        assert worst["excess"] <= 0 and worst["outside"] <= 1e-9, (norm, backend)
        if "CLARABEL" in backend:
            assert worst["gap"] <= 1e-7, norm


@pytest.mark.parametrize("kind", ["cross", "self"])
def test_theorem_1_on_random_sizes(kind):
    assert all(agreement.feasible_draws(15, 3, kind=kind)["feasible"])


def test_agreement_has_a_row_per_backend_and_refutes_an_infeasible_draw(monkeypatch):
    outcome = outcome_of(agreement.FIGURE, trials=1)
    assert [row[:2] for row in outcome.tables[0].rows] == agreement.PAIRS
    assert all(sum(row[2:5]) == 6 for row in outcome.tables[0].rows) and not outcome.refuted
    monkeypatch.setattr(agreement, "feasible_draws", lambda trials, seed, kind: {"feasible": [kind == "self"] * trials})
    assert outcome_of(agreement.FIGURE, trials=1).refuted == ["Theorem 1, cross-attention: every draw is feasible"]


def test_published_ranks_exceed_certified_ones():
    found = ranks.rank_trials(3, 0, draw=0, n=8, T=4, d=10)
    rows = zip(found["certified"], found["numerical"], found["published_scs"], strict=True)
    assert all(certified == numerical < scs <= 8 for certified, numerical, scs in rows)
    outcome = outcome_of(ranks.FIGURE, trials=2)
    assert outcome.tables[0].rows[-1][0] == "certified rank (dual singular values equal to 1)"
    with pytest.raises(ValueError, match="every draw was infeasible"):
        outcome_of(ranks.FIGURE, trials=1, n=6, T=6, d=2)


def test_fuzz_counts_every_problem_and_finds_nothing():
    outcome = outcome_of(fuzz.FIGURE, trials=2)
    statuses, kinds = outcome.tables
    assert [row[0] for row in statuses.rows] == [*FAMILIES, "all"] and not outcome.refuted
    for row in statuses.rows:
        assert sum(row[2:6]) == sum(row[6:10]) == row[1] and sum(row[10:13]) == row[6] and row[13] >= 0 and row[14] == 0
    assert statuses.rows[-1][1] == 2 * len(FAMILIES)
    assert [row[0] for row in kinds.rows] == list(KINDS) and not any(row[2] for row in kinds.rows)


def test_fuzz_finds_what_is_wrong(monkeypatch):
    """Lies of every kind that a solution can be made to tell."""
    from dataclasses import replace

    from attsvm.solvers import Status

    real = fuzz._solve_group

    def told(change, norm="frobenius", family="gaussian"):
        def solve(group, which):
            alone, together = real(group, which)
            if which != norm:
                return alone, together
            lies = [replace(s, result=change(s.result)) if s.status == "optimal" else s for s in alone]
            return lies, together

        monkeypatch.setattr(fuzz, "_solve_group", solve)
        rows = fuzz.judge_group(draw_group(family, 0, 3))
        return {line.split(":")[0] for row in rows for line in row["against"].split("\n") if line}

    def shifted(result, **parts):
        return replace(result, certificate=replace(result.certificate, **parts))

    assert told(lambda r: r) == set()
    assert told(lambda r: replace(r, status=Status.INFEASIBLE)) == {"infeasible", "proof", "batch"}
    assert "violation" in told(lambda r: replace(r, _W=0.999 * r.W))
    assert told(lambda r: shifted(r, norm=1.001 * r.norm)) == {"norm"}
    assert told(lambda r: shifted(r, lower_bound=(1 + 1e-12) * r.norm)) == {"lower bound"}
    assert told(lambda r: replace(r, status=Status.INACCURATE)) == {"batch"}

    def higher(r):
        claim = r.certificate.rank_certificate
        return shifted(r, rank_certificate=replace(claim, rank=claim.rank - 1, resolution=1e-6))

    assert told(higher, "nuclear") == {"rank"}
    assert "crash" in told(lambda r: 1 / 0)


def test_floor_has_both_tables():
    outcome = outcome_of(floor.FIGURE, trials=2, steps=1000, factor_trials=1, factor_steps=50)
    weights, factors = outcome.tables
    assert [row[0] for row in weights.rows] == [500, 1000]
    assert [row[0] for row in factors.rows] == list(floor.FACTOR_VARIANTS)
    assert np.asarray(outcome.curves["log"]).shape == (2, 2)
    assert weights.rows[0][2] == pytest.approx(np.median(outcome.curves["log"][:, 0]))


def test_geometry_prefers_the_own_norm(monkeypatch):
    found = {
        name: np.median(geometry.margins_reached(3, 0, draw=3, optimizer=name, steps=800)["margin"], axis=0)
        for name in ("normalized_gd", "spectral", "muon", "sign")
    }
    for optimizer, rule in ((name, geometry.OPTIMIZERS[name]) for name in found):
        if rule.norm in ("spectral", "linf"):
            k = geometry.NORMS.index(rule.norm)
            assert found[optimizer][k] > found["normalized_gd"][k]
        assert (found[optimizer] <= 1 + 1e-6).all()
    monkeypatch.setattr(geometry, "OPTIMIZERS", {name: geometry.OPTIMIZERS[name] for name in ("muon", "adam")})
    margin, angle, own = outcome_of(geometry.FIGURE, trials=1, steps=20).tables
    assert margin.columns == angle.columns == ("optimizer", *geometry.NORMS)
    assert len(margin.rows) == len(own.rows) == len(geometry.OPTIMIZERS)


def test_search_lists_with_proof_and_checks_the_list(monkeypatch):
    outcome = outcome_of(search.FIGURE)
    assert not outcome.refuted and "the same list" in outcome.notes[0]
    assert [row[7] for row in outcome.tables[0].rows] == ["complete"] * 4
    real = search.listing

    def wrong(trials, seed, **cell):
        found = real(trials, seed, **cell)
        return found if cell["mode"] == "exhaustive" else {**found, "tokens": [[]]}

    monkeypatch.setattr(search, "listing", wrong)
    assert outcome_of(search.FIGURE).refuted == ["search and exhaustive list agree at n=5, T=4, d=5, seed 0"]


def test_paths_have_a_row_per_theorem_and_loss():
    outcome = outcome_of(paths.FIGURE)
    labels = [row[0] for row in outcome.tables[0].rows]
    assert len(labels) == 8 and "Theorem 2: W, logistic" in labels and "Theorem 7: KQ, local nuclear" in labels
    for label, found in outcome.curves.items():
        assert len(found) == 1 or label.startswith("Theorem 7")
        assert (found[:, -1] < found[:, 0]).all()


def test_D_implies_one_local_optimum_and_not_conversely():
    converse = held = 0
    for d in (4, 12):
        found = {k: np.array(v) for k, v in assumptions.assumption_flags(12, 0, draw=1, n=3, T=3, d=d).items()}
        assert not found["violation"].any() and not found["undecided"].any() and len(found["D"]) == 12
        single = found["local"] == 1
        assert (found["D"] & ~single).sum() == 0
        np.testing.assert_array_equal(found["listed"], found["feasible"])
        assert found["exact"].sum() <= found["proxy"].sum()
        converse, held = converse + (single & ~found["D"]).sum(), held + found["D"].sum()
    assert converse > 0 < held


def test_ends_outside_the_list_are_counted_with_examples():
    # Stopped at once: most starts are nowhere yet.
    row = {name: value[0] for name, value in assumptions.ends_of_starts(
        1, 0, draw=0, n=4, T=4, d=5, starts=20, steps=1).items()}  # fmt: skip
    assert row["outside"] == row["unsaturated"] == row["counts"]["Not local"] > 0
    assert row["examples"][0][1]


def test_assumptions_have_both_tables_and_a_violation_refutes(monkeypatch):
    small = {"trials": 2, "starts": 8, "steps": 200}
    outcome = outcome_of(assumptions.FIGURE, **small)
    assert "D implies one local optimum: 0 violations" in outcome.notes[0]
    assert "Ends outside the list: 0 of 8" in outcome.notes[1] and not outcome.refuted
    assert [row[0] for row in outcome.tables[0].rows] == [4, 12] and len(outcome.tables[1].rows) == 1
    real = assumptions.assumption_flags

    def wrong(trials, seed, **cell):
        return real(trials, seed, **cell) | {"violation": [True] * trials}

    monkeypatch.setattr(assumptions, "assumption_flags", wrong)
    assert outcome_of(assumptions.FIGURE, **small).refuted[0].startswith("4 problems satisfy D but have another number")


def test_listings_of_numbers_that_leave_the_range():
    """Found by the full run: squares of W overflow on the way to a proof of local optimality."""
    (case,) = draw_group("extreme scales", 8939239939111179512, 10)[:1]
    assert list(against_listings(case)) == []
