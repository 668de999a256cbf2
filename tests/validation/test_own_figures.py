import json
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from figure_outcomes import check_picture, outcome_of

import attsvm
from attsvm.records import median_of
from attsvm.validation.figures.figure import Options, all_figures, choose_figures, run_figure
from attsvm.validation.figures.own import (
    descent_studies,
    multiclass_study,
    patch_studies,
    sequence_studies,
    solver_studies,
    training_studies,
)
from attsvm.validation.fuzz_families import FAMILIES, draw_group
from attsvm.validation.fuzz_judge import KINDS, against_listings
from attsvm.validation.models.attention_layers import FINITE_MAPS, SUMMED, descend_finite, summed_gradient
from attsvm.validation.pictures import picture_faults


def test_they_are_listed_and_chosen_by_name():
    names = [figure.name for figure in all_figures("own")]
    folder = Path(solver_studies.__file__).parent
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
    record = run_figure(solver_studies.FIGURE_RANKS, tmp_path, options)
    assert json.loads((tmp_path / "own_ranks.json").read_text()) == record
    assert not (tmp_path / "own_ranks.png").exists()
    assert run_figure(solver_studies.FIGURE_RANKS, tmp_path, options)["resumed_chunks"] == 2


@pytest.mark.parametrize("corners", [True, False])
def test_backends_agree_and_certificates_say_so(corners):
    found = solver_studies.compare_backends(8, 5, corners=corners)
    assert {status for row in found["status"] for status in row} <= {"optimal", "infeasible"}
    for k, (norm, backend) in enumerate(solver_studies.PAIRS):
        worst = {name: max(row[k] for row in found[name]) for name in found if name != "status"}
        assert worst["difference"] <= (1e-4 if "SCS" in backend else 1e-6), (norm, backend)
        assert worst["excess"] <= 0 and worst["outside"] <= 1e-9, (norm, backend)
        if "CLARABEL" in backend:
            assert worst["gap"] <= 1e-7, norm


@pytest.mark.parametrize("kind", ["cross", "self"])
def test_theorem_1_on_random_sizes(kind):
    assert all(solver_studies.feasible_draws(15, 3, kind=kind)["feasible"])


def test_agreement_has_a_row_per_backend_and_refutes_an_infeasible_draw(monkeypatch):
    outcome = outcome_of(solver_studies.FIGURE_AGREEMENT, trials=1)
    assert [row[:2] for row in outcome.tables[0].rows] == solver_studies.PAIRS
    assert all(sum(row[2:5]) == 6 for row in outcome.tables[0].rows) and not outcome.refuted
    monkeypatch.setattr(
        solver_studies, "feasible_draws", lambda trials, seed, kind: {"feasible": [kind == "self"] * trials}
    )
    assert outcome_of(solver_studies.FIGURE_AGREEMENT, trials=1).refuted == [
        "Theorem 1, cross-attention: every draw is feasible"
    ]


def test_published_ranks_exceed_certified_ones():
    found = solver_studies.rank_trials(3, 0, draw=0, n=8, T=4, d=10)
    rows = zip(found["certified"], found["numerical"], found["published_scs"], strict=True)
    assert all(certified == numerical < scs <= 8 for certified, numerical, scs in rows)
    outcome = outcome_of(solver_studies.FIGURE_RANKS, trials=2)
    assert outcome.tables[0].rows[-1][0] == "certified rank (dual singular values equal to 1)"
    with pytest.raises(ValueError, match="every draw was infeasible"):
        outcome_of(solver_studies.FIGURE_RANKS, trials=1, n=6, T=6, d=2)


def test_fuzz_counts_every_problem_and_finds_nothing():
    outcome = outcome_of(solver_studies.FIGURE_FUZZ, trials=2)
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

    real = solver_studies._solve_group

    def told(change, norm="frobenius", family="gaussian"):
        def solve(group, which):
            alone, together = real(group, which)
            if which != norm:
                return alone, together
            lies = [replace(s, result=change(s.result)) if s.status == "optimal" else s for s in alone]
            return lies, together

        monkeypatch.setattr(solver_studies, "_solve_group", solve)
        rows = solver_studies.judge_group(draw_group(family, 0, 3))
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
    outcome = outcome_of(descent_studies.FIGURE_FLOOR, trials=2, steps=1000, factor_trials=1, factor_steps=50)
    weights, factors = outcome.tables
    assert [row[0] for row in weights.rows] == [500, 1000]
    assert [row[0] for row in factors.rows] == list(descent_studies.FACTOR_VARIANTS)
    assert np.asarray(outcome.curves["log"]).shape == (2, 2)
    assert weights.rows[0][2] == pytest.approx(np.median(outcome.curves["log"][:, 0]))


def test_geometry_prefers_the_own_norm(monkeypatch):
    found = {
        name: np.median(descent_studies.margins_reached(3, 0, draw=3, optimizer=name, steps=800)["margin"], axis=0)
        for name in ("normalized_gd", "spectral", "muon", "sign")
    }
    for optimizer, rule in ((name, descent_studies.OPTIMIZERS[name]) for name in found):
        if rule.norm in ("spectral", "linf"):
            k = descent_studies.NORMS.index(rule.norm)
            assert found[optimizer][k] > found["normalized_gd"][k]
        assert (found[optimizer] <= 1 + 1e-6).all()
    monkeypatch.setattr(
        descent_studies, "OPTIMIZERS", {name: descent_studies.OPTIMIZERS[name] for name in ("muon", "adam")}
    )
    margin, angle, own = outcome_of(descent_studies.FIGURE_GEOMETRY, trials=1, steps=20).tables
    assert margin.columns == angle.columns == ("optimizer", *descent_studies.NORMS)
    assert len(margin.rows) == len(own.rows) == len(descent_studies.OPTIMIZERS)


def test_multiclass_has_a_table_per_data_set_and_the_experiments(monkeypatch):
    rules = {name: multiclass_study.RULES[name] for name in ("gradient descent", "normalized GD", "sign descent")}
    batches = {"Adam": multiclass_study.BATCHES["Adam, 0.9, 0.99"]}
    for name, value in (
        ("RULES", rules),
        ("BATCHES", batches),
        ("MEMORY", multiclass_study.MEMORY[:1]),
        ("PACES", multiclass_study.PACES[:1]),
    ):
        monkeypatch.setattr(multiclass_study, name, value)
    figure = multiclass_study.FIGURE_MULTICLASS
    outcome = outcome_of(figure, trials=1, subsets=1, few=1, steps=40, sets=("attention", "wine"))
    attention, wine, loss, memory, sizes, paces = outcome.tables
    assert not outcome.refuted and [row[0] for row in attention.rows] == list(rules)
    assert [row[0] for row in loss.rows] == ["wine"] and memory.rows[0][:4] == ("muon:0.95", "0.02", "0.0513", "yes")
    assert [row[0] for row in sizes.rows] == ["Adam: all", "Adam: 1"]
    marked = [[k for k, cell in enumerate(row) if str(cell).endswith(" *")] for row in wine.rows]
    assert marked == [[1 + multiclass_study.NORMS.index(rule.norm)] for rule in rules.values()]
    assert paces.rows[0][0] == "pace 0.08, 40 steps"
    check_picture(figure, outcome, axes=1)


def test_search_lists_with_proof_and_checks_the_list(monkeypatch):
    outcome = outcome_of(solver_studies.FIGURE_SEARCH)
    assert not outcome.refuted and "the same list" in outcome.notes[0]
    assert [row[7] for row in outcome.tables[0].rows] == ["complete"] * 4
    real = solver_studies.listing

    def wrong(trials, seed, **cell):
        found = real(trials, seed, **cell)
        return found if cell["mode"] == "exhaustive" else {**found, "tokens": [[]]}

    monkeypatch.setattr(solver_studies, "listing", wrong)
    assert outcome_of(solver_studies.FIGURE_SEARCH).refuted == [
        "search and exhaustive list agree at n=5, T=4, d=5, seed 0"
    ]


def test_paths_have_a_row_per_theorem_and_loss():
    outcome = outcome_of(descent_studies.FIGURE_PATHS)
    labels = [row[0] for row in outcome.tables[0].rows]
    assert len(labels) == 8 and "Theorem 2: W, logistic" in labels and "Theorem 7: KQ, local nuclear" in labels
    for label, found in outcome.curves.items():
        assert len(found) == 1 or label.startswith("Theorem 7")
        assert (found[:, -1] < found[:, 0]).all()


def test_D_implies_one_local_optimum_and_not_conversely():
    converse = held = 0
    for d in (4, 12):
        found = {k: np.array(v) for k, v in descent_studies.assumption_flags(12, 0, draw=1, n=3, T=3, d=d).items()}
        assert not found["violation"].any() and not found["undecided"].any() and len(found["D"]) == 12
        single = found["local"] == 1
        assert (found["D"] & ~single).sum() == 0
        np.testing.assert_array_equal(found["listed"], found["feasible"])
        assert found["exact"].sum() <= found["proxy"].sum()
        converse, held = converse + (single & ~found["D"]).sum(), held + found["D"].sum()
    assert converse > 0 < held


def test_ends_outside_the_list_are_counted_with_examples():
    # Stopped at once: most starts are nowhere yet.
    row = {name: value[0] for name, value in descent_studies.ends_of_starts(
        1, 0, draw=0, n=4, T=4, d=5, starts=20, steps=1).items()}  # fmt: skip
    assert row["outside"] == row["unsaturated"] == row["counts"]["Not local"] > 0
    assert row["examples"][0][1]


def test_assumptions_have_both_tables_and_a_violation_refutes(monkeypatch):
    small = {"trials": 2, "starts": 8, "steps": 200}
    outcome = outcome_of(descent_studies.FIGURE_ASSUMPTIONS, **small)
    assert "D implies one local optimum: 0 violations" in outcome.notes[0]
    assert "Ends outside the list: 0 of 8" in outcome.notes[1] and not outcome.refuted
    assert [row[0] for row in outcome.tables[0].rows] == [4, 12] and len(outcome.tables[1].rows) == 1
    real = descent_studies.assumption_flags

    def wrong(trials, seed, **cell):
        return real(trials, seed, **cell) | {"violation": [True] * trials}

    monkeypatch.setattr(descent_studies, "assumption_flags", wrong)
    assert (
        outcome_of(descent_studies.FIGURE_ASSUMPTIONS, **small)
        .refuted[0]
        .startswith("4 problems satisfy D but have another number")
    )


def test_listings_of_numbers_that_leave_the_range():
    """Found by the full run: squares of W overflow on the way to a proof of local optimality."""
    (case,) = draw_group("extreme scales", 8939239939111179512, 10)[:1]
    assert list(against_listings(case)) == []


@pytest.fixture(autouse=True)
def closed():
    yield
    from matplotlib import pyplot

    pyplot.close("all")


def test_joint_has_a_row_per_model_and_prints_its_exceptions(monkeypatch):
    monkeypatch.setattr(
        sequence_studies, "MODELS", {"(v, p), equal steps": sequence_studies.MODELS["(v, p), equal steps"]}
    )
    monkeypatch.setattr(sequence_studies, "_AWAY", 0.0)
    outcome = outcome_of(sequence_studies.FIGURE_JOINT, trials=2, steps=200, radii=(80.0,))
    assert [row[0] for row in outcome.tables[0].rows] == ["(v, p), equal steps"]
    assert sum("exception" in note for note in outcome.notes) == 2
    assert not picture_faults(sequence_studies.draw_joint(_two(outcome)))


def _two(outcome):
    """The picture wants at least two panels."""
    curves = dict(outcome.curves)
    curves["models"] = curves["models"] * 2
    curves |= {name: list(curves[name]) * 2 for name in ("head", "attention", "plain", "relaxed")}
    return type(outcome)(outcome.tables, curves)


def test_steps_measure_normalized_faster_than_constant():
    outcome = outcome_of(descent_studies.FIGURE_STEPS, trials=3, steps=300)
    ends = {rule: np.nanmedian(outcome.curves["distance"][k][:, -1]) for k, rule in enumerate(descent_studies.STEPS)}
    assert ends["normalized, 1"] < ends["normalized, 0.1"] < ends["constant, 1 / L_W"]
    assert len(outcome.tables[0].rows) == len(descent_studies.STEPS)
    assert not picture_faults(descent_studies.draw(outcome))


def test_variants_have_rows_of_their_own():
    outcome = outcome_of(training_studies.FIGURE_VARIANTS, trials=2, steps=200, finite_steps=300)
    assert [row[0] for row in outcome.tables[0].rows] == list(SUMMED)
    own = np.asarray(outcome.curves["own"]["sigmoid"])
    assert (own[:, -1] < own[:, 0]).all()
    assert not picture_faults(training_studies.draw_variants(outcome))


def plain_prediction(name, batch, W, v):
    """Variants written from their definitions, by one-line formulas."""
    h = torch.einsum("bntd,bde,bne->bnt", X := torch.tensor(batch.X), W, torch.tensor(batch.Z))
    if name == "softmax-1":
        s = h.exp() / (1 + h.exp().sum(-1, keepdim=True))
    else:
        s = {"softmax": lambda x: x.softmax(-1), "sigmoid": torch.sigmoid}[name](h)
    return torch.einsum("bnt,bntd,bd->bn", s, X, torch.tensor(v))


@pytest.mark.parametrize("name", ["softmax", "softmax-1", "sigmoid"])
def test_gradients_of_the_sums_equal_autograd(name):
    batch = attsvm.random_problem(n=3, T=4, d=5, batch=2, seed=1)
    W = torch.randn(2, 5, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0)).requires_grad_()
    value = torch.tensor(batch.Y) * plain_prediction(name, batch, W, batch.head.v.copy())
    (reference,) = torch.autograd.grad(torch.nn.functional.softplus(-value).sum() / 3, W)
    found = summed_gradient(SUMMED[name](batch, np.random.default_rng(0)).data, W.detach())
    torch.testing.assert_close(
        found.direction * found.log_scale.exp()[:, None, None], reference, rtol=1e-10, atol=1e-12
    )


@pytest.mark.parametrize("own_weights", [True, False])
def test_two_heads_are_the_sum_of_two_layers(own_weights):
    batch = attsvm.random_problem(n=3, T=4, d=5, batch=2, seed=1)
    layer = SUMMED["2 heads, own W" if own_weights else "2 heads, one W"](batch, np.random.default_rng(3))
    rng = np.random.default_rng(3)  # what the layer drew
    v = rng.standard_normal((2, 2, 5))
    v /= np.linalg.norm(v, axis=-1, keepdims=True)
    turns = np.linalg.qr(rng.standard_normal((2, 2, 5, 5)))[0]
    W = torch.randn(2, 5, 10 if own_weights else 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    W.requires_grad_()
    total = 0
    for h in range(2):
        part = W[..., 5 * h : 5 * h + 5] if own_weights else W @ torch.tensor(turns[:, h])
        total = total + plain_prediction("softmax", batch, part, v[:, h])
    (reference,) = torch.autograd.grad(torch.nn.functional.softplus(-torch.tensor(batch.Y) * total).sum() / 3, W)
    found = summed_gradient(layer.data, W.detach())
    torch.testing.assert_close(
        found.direction * found.log_scale.exp()[:, None, None], reference, rtol=1e-10, atol=1e-12
    )


@pytest.mark.parametrize("name", FINITE_MAPS)
def test_finite_maps_are_projections_and_their_derivatives_are_right(name):
    mapped, lead = FINITE_MAPS[name]
    h = torch.randn(50, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    p, weights = mapped(h)
    torch.testing.assert_close(p.sum(-1), torch.ones(50, dtype=torch.float64))
    direction = torch.randn(50, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    slope = weights * (direction - (weights * direction).sum(-1, keepdim=True) / weights.sum(-1, keepdim=True))
    step = 1e-6
    differences = (mapped(h + step * direction)[0] - mapped(h - step * direction)[0]) / (2 * step)
    same = ((mapped(h + step * direction)[0] > 0) == (mapped(h - step * direction)[0] > 0)).all(-1)  # no kink between
    torch.testing.assert_close(slope[same], differences[same], rtol=1e-4, atol=1e-5)
    assert (
        mapped(torch.tensor([lead, 0.0]))[0].tolist()
        == [1.0, 0.0]
        != mapped(torch.tensor([0.99 * lead, 0.0]))[0].tolist()
    )


def test_finite_maps_stop_where_every_token_leads():
    batch = attsvm.random_problem(n=3, T=4, d=8, batch=5, seed=0)
    W, last, stopped = descend_finite(batch, "sparsemax", 2000, 0.02, seed=0)
    ranked = np.sort(attsvm.attention.logits(batch, W), axis=-1)
    assert stopped.all() and (last < 2000).all()
    assert (ranked[..., -1] - ranked[..., -2]).min() >= 1.0


def test_the_interval_of_a_median_covers_it():
    rng = np.random.default_rng(0)
    covered = [(i := median_of(rng.exponential(size=25))).low <= np.log(2) <= i.high for _ in range(400)]
    assert 0.95 <= np.mean(covered) <= 0.995  # order statistics 8 and 18 of 25: 95.7 % by the binomial law
    assert str(median_of([])) == "-"


@pytest.mark.parametrize("norm", ["frobenius", "nuclear"])
def test_patches_of_an_index_by_brute_force(norm):
    sizes = {"data": "", "documents": 600, "d": 24, "failures": 5, "golden": 30, "norm": norm}
    found = json.loads(patch_studies.large_case(1, 0, **sizes)["found"][0])
    assert (found["status"], found["broken"], found["failures"]) == ("optimal", 0, 5)
