"""Figures 1, 7, 9/12 and 10/13 of the SVM paper at small settings."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

import attsvm
from attsvm import AttentionProblem, ConcaveHead, ReluHead
from attsvm.paths.weight_decomposition import decompose
from attsvm.training.log_gradient import scaled_gradient
from attsvm.training.tensors import tensor_problem
from attsvm.validation.figures.figure import Context, Options, choose_figures, run_figure
from attsvm.validation.figures.svm import composition_figures, plane_figure, selection_figures
from attsvm.validation.figures.svm.compositions import (
    attention,
    concave_runs,
    dead_queries,
    draw_until_kept,
    filter_reason,
    lemma_instances,
    lemma_runs,
    orthonormal_sequences,
    relu_compositions,
    relu_problems,
    simplex_projection,
)

# -- the exact optimum of a concave head ----------------------------------------------------------------


@given(arrays(np.float64, (4, 6), elements=st.floats(-3, 3)))
def test_projection_satisfies_its_optimality_condition(y):
    s = simplex_projection(y)
    assert (s >= 0).all()
    np.testing.assert_allclose(s.sum(axis=-1), 1.0, atol=1e-12)
    # s is nearest iff <y - s, q - s> <= 0 for every q of the simplex, that is for every corner.
    residual = y - s
    corners = residual - (residual * s).sum(axis=-1, keepdims=True)
    assert corners.max() <= 1e-10  # rounding of numbers up to 3


def test_support_is_the_smallest_k_of_lemma_6(rng):
    for _ in range(200):
        g, lam = np.sort(rng.standard_normal(8))[::-1] / 3, rng.uniform(0.01, 2.0)
        k = next(k for k in range(1, 9) if k == 8 or (g[:k] - g[k]).sum() >= 2 * lam)
        assert (simplex_projection(g / (2 * lam)) > 0).sum() == k


def test_instances_satisfy_the_hypothesis_of_lemma_6(rng):
    X, v, Z, lam, drawn = lemma_instances(40, rng, tau=5)
    assert X.shape == (40, 1, 10, 10) and Z.shape == (40, 1, 10) and drawn > 40
    gaps = -np.diff(np.sort(np.einsum("bitd,bd->bt", X, v), axis=-1)[:, ::-1], axis=-1)
    assert (5 * gaps[:, 4] / 2 > lam).all() and (lam > gaps[:, 0]).all()
    counts = (simplex_projection(np.einsum("bitd,bd->bt", X, v) / (2 * lam[:, None])) > 0).sum(axis=-1)
    assert counts.min() >= 2 and counts.max() <= 5  # the lemma
    with pytest.raises(ValueError, match=r"tau must be in \[2, T - 1\] = \[2, 9\], got 10"):
        lemma_instances(1, rng, tau=10)


def test_orthonormal_tokens_have_no_preferred_sign(rng):
    X, v, Z = orthonormal_sequences(400, rng, 3)
    np.testing.assert_allclose(
        X[:, 0] @ X[:, 0].transpose(0, 2, 1), np.broadcast_to(np.eye(3), (400, 3, 3)), atol=1e-12
    )
    # Haar: entries have mean 0 and variance 1/3. QR without fixing signs has means near -1/2 in places; here 0 +- 0.12.
    assert np.abs(X.mean(axis=0)).max() < 4 * np.sqrt(1 / 3 / 400)
    np.testing.assert_allclose(np.linalg.norm(v, axis=-1), 1.0)
    np.testing.assert_allclose(np.linalg.norm(Z, axis=-1), 1.0)


def test_descent_finds_the_optimal_tokens_and_nothing_survives_the_filter():
    found = concave_runs(12, 0, lam=0.5, T=6, steps=1500)
    assert found["same"].mean() >= 0.75  # the others have a token within a factor of the threshold
    several = (found["selected"] > 1) & (found["selected"] < 6)
    assert several.any() and set(found["reason"][several]) == {"between"}
    before, after = (np.array(found[k], dtype=float)[several] for k in ("log10_rest_before", "log10_rest"))
    # 1/steps over a fourfold of them is -0.60 in log10; an exponential decay would be far below -1.
    assert -1.0 < np.median(after - before) < -0.3
    fits = np.array([(a, b) for a, b in zip(found["svmeq"], found["mm"], strict=True) if a is not None])
    assert (fits[:, 0] <= fits[:, 1] + 1e-12).all() and fits[:, 0].mean() < 0.1


def test_linear_head_selects_one_token():
    found = concave_runs(5, 1, lam=0.0, T=5, steps=700)
    assert found["optimal"].tolist() == found["selected"].tolist() == [1] * 5
    assert all(found["same"])


def test_the_scaled_head_has_the_same_path(rng):
    X, v, Z = orthonormal_sequences(3, rng, 5)
    lam = 0.4
    start = rng.standard_normal((3, 5, 5))
    own = AttentionProblem(X, np.ones((3, 1)), Z, ConcaveHead(v, lam))
    scaled = AttentionProblem(X, np.ones((3, 1)), Z, ConcaveHead(v / lam, 1.0))
    runs = [attsvm.train(own, steps=60, init=start, loss=loss).W for loss in ("logistic", "correlation")]
    runs.append(attsvm.train(scaled, steps=60, init=start, loss="correlation").W)
    np.testing.assert_allclose(
        runs[0], runs[1], atol=1e-9
    )  # one sequence: the loss is a factor that is normalized away
    np.testing.assert_allclose(runs[2], runs[1], atol=1e-9)


def test_lemma_runs_obey_the_bound():
    found = lemma_runs(15, 0, tau=3, T=6, steps=800)
    assert found["optimal"].min() >= 2 and found["optimal"].max() <= 3
    assert (found["selected"] == found["optimal"]).mean() > 0.7
    assert (found["draws_per_kept"] >= 1).all()


# -- the ReLU head --------------------------------------------------------------------------------------


def test_filter_has_the_published_thresholds():
    rows = [[1 - 1e-3, 1e-3], [1 - 2e-3, 2e-3], [1.0, 1e-6], [1.0, 2e-6]]
    # 1e-3 itself is not selected, 1e-6 itself is masked.
    assert filter_reason(np.array(rows)[:, None], 1e-3, 1e-6).tolist() == [
        "between",
        "all selected",
        "clean",
        "between",
    ]


def test_problems_have_a_negative_label_and_the_asked_head(rng):
    problems = relu_problems(4000, rng, d=3)
    negative = (problems.Y == -1).sum(axis=1)
    # Uniform over the 7 label vectors with a -1, and not made so by setting one label; 4 standard errors.
    np.testing.assert_allclose(np.bincount(negative, minlength=4) / 4000, [0, 3 / 7, 3 / 7, 1 / 7], atol=0.032)
    np.testing.assert_allclose(np.linalg.norm(problems.head.V, axis=(1, 2)), 1.0)
    np.testing.assert_array_equal(relu_problems(2, rng, d=3, head="text").head.V, np.eye(3))
    with pytest.raises(ValueError, match="head must be 'code' or 'text', got 'mlp'"):
        relu_problems(2, rng, d=3, head="mlp")


@pytest.fixture(scope="module")
def trained():
    return relu_compositions(120, 7, d=4, steps=1001, every=250)


def test_kept_runs_are_those_that_the_filter_leaves(trained):
    kept = np.array(trained["kept"])
    assert 5 < kept.sum() < 100
    assert set(trained["reason"]) >= {"kept", "between", "all selected"}
    for name in ("svmeq", "mm", "single", "svmeq_curve", "log10_masked", "dead"):
        assert [value is not None for value in trained[name]] == kept.tolist()
    assert all(value <= -6 for value in trained["log10_masked"] if value is not None)


def test_predictions_of_kept_runs_are_ordered(trained):
    rows = [b for b, kept in enumerate(trained["kept"]) if kept]
    for b in rows:
        # W_svmeq is the best of a family that contains W_mm, and without composition all three are the same.
        assert trained["svmeq"][b] <= trained["mm"][b] + 1e-12
        if trained["composed"][b] == 0:
            assert trained["svmeq"][b] == pytest.approx(trained["single"][b], abs=1e-9)
        if trained["dead"][b] == 0:
            assert trained["svmeq_alive"][b] == pytest.approx(trained["svmeq"][b], abs=1e-12)
        assert len(trained["svmeq_curve"][b]) == 6  # steps 0, 1, 251, 501, 751, 1001
        assert trained["svmeq_curve"][b][-1] == pytest.approx(trained["svmeq"][b], abs=1e-12)
    assert any(trained["dead"][b] for b in rows) and any(trained["composed"][b] for b in rows)
    means = [np.mean([trained[name][b] for b in rows]) for name in ("svmeq", "mm", "single")]
    assert means[0] < means[1] < means[2]


def test_dead_queries_have_no_gradient():
    # Two sequences in the plane, V = I: tokens of the first are all negative, so that no unit ever switches on.
    X = -np.ones((2, 3, 2)) - np.arange(6).reshape(3, 2) / 10
    X[1] *= -1
    problem = AttentionProblem(X, np.array([-1.0, 1.0]), np.eye(2), ReluHead(np.eye(2)))
    W = np.array([[1.0, -2.0], [0.5, 1.0]])
    assert dead_queries(decompose(problem, W)).tolist() == [True, False]
    import torch

    gradient = scaled_gradient(tensor_problem(problem), torch.tensor(W)[None], "logistic").direction[0]
    assert gradient[:, 0].abs().max() == 0 and gradient[:, 1].abs().max() > 0  # queries are the axes


def test_attention_of_a_batch_is_that_of_its_problems(rng):
    problems = relu_problems(3, rng, d=4)
    W = rng.standard_normal((3, 4, 4))
    for b in range(3):
        expected = np.exp(decompose(problems[b], W[b]).log_probabilities)
        np.testing.assert_allclose(attention(problems, W)[b], expected, atol=1e-12)


# -- drawing until enough are kept ----------------------------------------------------------------------


def every_fifth(trials, seed, start):
    """Keeps trials 4, 9, 14, ... of every chunk."""
    number = np.arange(trials)
    return {"kept": number % 5 == 4, "number": number + start}


def test_draws_until_enough_are_kept_and_no_further(tmp_path):
    context = Context({"trials": 1}, store=tmp_path / "x.sqlite")
    options = {"chunk": 10, "name": "draws", "limit": 1000}
    columns = draw_until_kept(context, every_fifth, {"start": 0}, 5, share=0.5, **options)
    # 2 per chunk: the fifth is the first kept of the third chunk, its trial 4.
    assert len(columns["kept"]) == 25 and columns["kept"].sum() == 5 and columns["number"][-1] == 4
    assert context.resumed == [0] and len(context.seconds) == 1
    again = Context({"trials": 1}, store=tmp_path / "x.sqlite")
    same = draw_until_kept(again, every_fifth, {"start": 0}, 5, share=0.9, **options)
    np.testing.assert_array_equal(same["number"], columns["number"])
    assert again.resumed == [3]
    fresh = Context({"trials": 1}, Options(fresh=True), tmp_path / "x.sqlite")
    assert len(draw_until_kept(fresh, every_fifth, {"start": 0}, 5, share=0.9, **options)["kept"]) == 25
    assert fresh.resumed == [0]  # discarded once, not between the rounds


def test_draws_stop_at_the_limit():
    context = Context({"trials": 1})
    columns = draw_until_kept(
        context, every_fifth, {"start": 0}, 50, share=0.5, chunk=10, name="draws", limit=30
    )  # fmt: skip
    assert len(columns["kept"]) == 30 and columns["kept"].sum() == 6


# -- figures 1 and 7 ------------------------------------------------------------------------------------


def test_plane_problem_tells_the_norms_apart():
    problem = plane_figure.plane_problem()
    ranks = [attsvm.att_svm(problem, norm=norm).rank for norm in ("frobenius", "nuclear")]
    assert ranks == [2, 1]


def test_each_parameterization_follows_its_own_norm_in_the_plane():
    W = plane_figure.paths(1, 0, method="W", steps=500, marks=[100, 500])
    KQ = plane_figure.paths(3, 0, method="(K, Q), ridge 2.2e-16", steps=500, marks=[100, 500])
    assert W["frobenius"][0, 1] < W["frobenius"][0, 0] and W["frobenius"][0, 1] < 0.1 * W["nuclear"][0, 1]
    assert (KQ["nuclear"][:, 1] < 0.1 * KQ["frobenius"][:, 1]).all()
    assert W["selects_optimal"].all() and KQ["selects_optimal"].all()
    assert not W["path"][0, 0].any() and KQ["path"].shape[0] == 3


def test_figure_7_tells_the_norms_apart():
    found = selection_figures.alignment(8, 3, n=4, T=5, d=6, steps=600, every=100)
    for p, own, other in (("W", "frobenius", "nuclear"), ("KQ", "nuclear", "frobenius")):
        for a in ("naive", "log"):
            assert np.nanmean(found[f"{p} {a} {own}"][:, -1]) > np.nanmean(found[f"{p} {a} {other}"][:, -1]) + 0.02
            assert found[f"{p} {a} max_probability"][:, -1].mean() > 0.99
    # The same problems from the same start: both kinds of arithmetic agree until probabilities round to 1.
    np.testing.assert_array_equal(found["W naive frobenius"][:, 0], found["W log frobenius"][:, 0])
    np.testing.assert_allclose(found["W naive max_probability"][:, 1], found["W log max_probability"][:, 1], rtol=1e-9)


# -- whole figures --------------------------------------------------------------------------------------

TINY = {
    "fig1": {"trials": 2, "steps": 100, "marks": (50, 100)},
    "fig7": {
        "trials": 4,
        "n": 2,
        "T": 3,
        "d": 4,
        "steps": 100,
        "shown": 100,
        "every": 50,
        "marks": (50, 100),
        "chunk": 2,
    },
    "fig9": {"trials": 4, "exact_trials": 3, "dimensions": (4,), "steps": 601, "every": 200, "chunk": 60},
    "fig10": {
        "trials": 4,
        "T": 5,
        "lams": (0.0, 0.3, 4.0),
        "variant_lams": (0.3,),
        "taus": (3,),
        "steps": 100,
        "chunk": 4,
    },
}


@pytest.mark.parametrize("name", TINY)
def test_figures_run_draw_and_resume(name, tmp_path):
    figure = replace(choose_figures([name])[0], quick=TINY[name])
    record = run_figure(figure, tmp_path, Options(quick=True))
    assert record["resumed_chunks"] == 0
    assert (tmp_path / f"svm_{figure.name}.png").stat().st_size > 5000
    assert all(table["rows"] for table in record["tables"]) and record["notes"]
    if name == "fig9":
        check_figure_9(record)
    context = Context(figure.quick, store=tmp_path / f"svm_{figure.name}.sqlite")
    again = figure.run(context)
    assert sum(context.resumed) > 0
    assert [t.texts() for t in again.tables] == [t["rows"] for t in record["tables"]]
    assert list(again.notes) == record["notes"]


def check_figure_9(record):
    final, dropped, by_threshold, exact, text = record["tables"]
    assert final["values"][0][:2] == [4, 4]
    drawn, shares = dropped["values"][0][2], [cell["value"] for cell in dropped["values"][0][3:]]
    assert shares[0] == pytest.approx(4 / drawn) and sum(shares) == pytest.approx(1.0)
    assert by_threshold["values"][-1][1]["value"] == pytest.approx(final["values"][0][2]["value"])
    assert [row[:3] for row in exact["values"]] == [["published", 4, 4], ["exact", 4, 3]]
    assert text["values"][0][0] == "1 . relu(x)"


def test_full_settings_are_the_papers():
    assert composition_figures.FIGURE_9.full["trials"] == 500 and composition_figures.FIGURE_9.full["dimensions"] == (
        4,
        6,
        8,
        10,
    )
    assert composition_figures.FIGURE_10.full["trials"] == 100 and composition_figures.FIGURE_10.full["taus"] == (
        3,
        5,
        7,
        9,
    )
    assert {name: selection_figures.FIGURE_7.full[name] for name in ("n", "T", "d", "trials", "steps")} == {
        "n": 6, "T": 8, "d": 10, "trials": 100, "steps": 2000,
    }  # fmt: skip
    assert composition_figures.FIGURE_9.aliases == ("fig12",) and composition_figures.FIGURE_10.aliases == ("fig13",)
