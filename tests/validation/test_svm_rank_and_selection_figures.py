"""Figures 4, 6, 8 and 11 on small settings: shapes, and properties that a wrong computation would break."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from figure_outcomes import check_picture, column, outcome_of

import attsvm
from attsvm.validation.figures.figure import Figure
from attsvm.validation.figures.svm import rank_figures, selection_figures
from attsvm.validation.figures.svm.rank_figures import optimal_differences, published_rank, published_ranks
from attsvm.validation.figures.svm.selection_figures import PUBLISHED_KQ, in_query_span, train_in_span


@pytest.mark.parametrize(
    "figure", [rank_figures.FIGURE_4, selection_figures.FIGURE_6, selection_figures.FIGURE_8, rank_figures.FIGURE_11]
)
def test_full_settings_are_the_papers(figure: Figure) -> None:
    stated = {
        "fig4": {"trials": 100, "many_n": (5, 10, 15), "many_T": (5, 10, 15), "n": 5, "T": 5,
                 "dimensions": (1, 2, 3, 4, 5, 10, 15, 20)},
        "fig6": {"trials": 500, "many_n": (5, 10, 20), "many_T": (5, 10, 20), "n": 5, "T": 5},
        "fig8": {"many_n": (1, 5, 10, 15), "many_d": (2, 5, 10, 15), "n": 5, "T": 5, "d": 5},
        "fig11": {"d": 20, "widths": tuple(range(1, 11)), "many_n": (5, 10, 15), "many_T": (5, 10, 15), "n": 5, "T": 5},
    }[figure.name]  # fmt: skip
    assert {key: figure.full[key] for key in stated} == stated


# --- Figure 4 -----------------------------------------------------------------------------------------------------


def test_published_ranks_equal_those_of_models_built_one_by_one() -> None:
    problems = attsvm.random_problem(n=6, T=4, d=7, batch=6, seed=3)
    together = published_ranks(problems, "nuclear")
    assert together["feasible"].all()
    assert together["rank"].tolist() == [published_rank(problems[b], "SCS") for b in range(6)]


def test_infeasible_draws_count_as_rank_one_when_published_and_not_at_all_when_certified() -> None:
    problems = attsvm.random_problem(n=15, T=5, d=2, batch=4, seed=0)
    for norm in ("frobenius", "nuclear"):
        certified, published = rank_figures.certified_ranks(problems, norm), published_ranks(problems, norm)
        assert not certified["feasible"].any() and np.isnan(certified["rank"]).all()
        assert not published["feasible"].any() and (published["rank"] == 1).all()


def test_repeated_tokens_at_d_1_are_infeasible() -> None:
    problems = attsvm.random_problem(n=1, T=2, d=1, batch=40, seed=0)  # both tokens are +-1: equal in half of the draws
    repeated = (optimal_differences(problems) == 0).all(axis=-1).any(axis=(-2, -1))
    assert 0 < repeated.sum() < 40
    for norm in ("frobenius", "nuclear"):
        certified = rank_figures.certified_ranks(problems, norm)
        np.testing.assert_array_equal(certified["feasible"], ~repeated)
        assert (certified["rank"][~repeated] == 1).all()
        np.testing.assert_array_equal(published_ranks(problems, norm)["feasible"], ~repeated)


def test_differences_are_those_of_the_rows_of_the_solver() -> None:
    from attsvm.selection_rows import selection_rows

    problems = attsvm.random_problem(n=3, T=4, d=5, batch=2, seed=1)
    for b in range(2):
        rows = selection_rows(problems[b]).margin_problem.rows.gather(np.arange(9))
        np.testing.assert_array_equal(optimal_differences(problems)[b].reshape(-1, 5), rows.a)


def test_published_ranks_refuse_other_norms() -> None:
    with pytest.raises(ValueError, match="norm must be one of nuclear, frobenius, got 'l1'"):
        published_ranks(attsvm.random_problem(n=2, T=3, d=4, batch=1), "l1")


def test_figure_4_certified_ranks_stay_below_the_published_ones_and_the_bound() -> None:
    outcome = outcome_of(
        rank_figures.FIGURE_4, trials=6, many_n=(3, 6), many_T=(4,), n=3, T=4, dimensions=(2, 4, 8), chunk=6
    )
    assert len(outcome.tables[0].rows) == 2 * 3  # n = 3 is in both panels and computed once
    certified, published = column(outcome, 0, "W* certified"), column(outcome, 0, "W* published, feasible draws")
    bounds, largest = column(outcome, 0, "min(n, d)"), column(outcome, 0, "largest W* certified")
    seen = 0
    for c, p, bound, top in zip(certified, published, bounds, largest, strict=True):
        if np.isfinite(c.value):
            assert 1 <= c.value <= top <= bound
            assert c.value <= p.value
            seen += 1
    assert seen >= 4
    # The published protocol inflates the rank where there is room: n = 6, d = 8.
    assert certified[-1].value + 0.5 < published[-1].value
    check_picture(rank_figures.FIGURE_4, outcome, axes=4)


# --- Figure 6 -----------------------------------------------------------------------------------------------------


def trained_whole(problems: attsvm.AttentionProblem, parameterization: str, steps: int, seed: int) -> attsvm.Run:
    """The descent that train_in_span shortens, from the same start."""
    rng = np.random.default_rng(seed)
    shape = (len(problems.X), problems.dx, problems.dx)
    draws = [rng.uniform(-1, 1, size=shape) / np.sqrt(problems.dx) for _ in parameterization]
    start: Any = draws[0] if parameterization == "W" else tuple(draws)
    options = PUBLISHED_KQ if parameterization == "KQ" else {}
    return attsvm.train(problems, parameterization, steps=steps, lr=0.1, init=start, **options)


# Descent on (K, Q) is followed until the ridge of 2e-16 is felt: |W| grows as (0.1 k)^2, here to about 16.
@pytest.mark.parametrize(("parameterization", "steps"), [("W", 200), ("KQ", 40)])
def test_training_in_the_span_takes_the_same_steps(parameterization: str, steps: int) -> None:
    problems = attsvm.random_problem(n=3, T=4, d=8, batch=5, seed=2, min_score_gap=0.1)
    short = train_in_span(problems, parameterization, steps=steps, seed=7)
    whole = trained_whole(problems, parameterization, steps, seed=7)
    # The paths round differently at every step, by 1e-15 or so; a wrong start or norm would differ in the first digits.
    np.testing.assert_allclose(short.W, whole.W @ in_query_span(problems)[1], atol=1e-10)


def test_training_in_the_span_selects_the_same_tokens_with_the_ridge() -> None:
    problems = attsvm.random_problem(n=3, T=5, d=6, batch=40, seed=2, min_score_gap=0.1)
    short, whole = train_in_span(problems, "KQ", steps=600, seed=3), trained_whole(problems, "KQ", 600, seed=3)
    np.testing.assert_array_equal(short.selection.indices, whole.selection.indices)
    assert (short.selection.indices != problems.optimal_tokens().indices).any()  # some runs end elsewhere, and agree


def test_span_of_many_queries_is_the_whole_space() -> None:
    problems = attsvm.random_problem(n=6, T=3, d=4, batch=2)
    reduced, basis = in_query_span(problems)
    assert reduced is problems
    np.testing.assert_array_equal(basis[1], np.eye(4))


def test_global_needs_no_margin_problem() -> None:
    """The class without solves is that of Definition 2 with certified solves, in the norm of each parameterization."""
    for p, norm in (("W", "frobenius"), ("KQ", "nuclear")):
        cell = {"n": 5, "T": 4, "d": 4}
        found = selection_figures.global_trials(24, 5, parameterization=p, steps=300, **cell)
        problems = attsvm.random_problem(batch=24, seed=5, min_score_gap=0.1, **cell)
        ended = train_in_span(problems, p, steps=300, seed=np.random.default_rng((5, 1)))
        local = attsvm.is_locally_optimal(problems, ended.selection, norm=norm)
        optimal = (ended.selection.indices == problems.optimal_tokens().indices).all(axis=-1)
        np.testing.assert_array_equal(found["is_global"], local & optimal)
        assert 0 < found["is_global"].sum() < 24


def test_span_training_refuses_other_parameterizations() -> None:
    with pytest.raises(ValueError, match="parameterization must be 'W' or 'KQ', got 'prompt'"):
        train_in_span(attsvm.random_problem(n=2, T=3, d=4, batch=1), "prompt", steps=1, seed=0)


def test_figure_6_global_convergence_grows_with_d() -> None:
    outcome = outcome_of(
        selection_figures.FIGURE_6,
        trials=24,
        n=4,
        T=4,
        many_n=(4, 8),
        many_T=(4,),
        dimensions=(3, 16),
        steps=300,
        chunk=24,
    )
    assert len(outcome.tables[0].rows) == 2 * 2
    for name in ("Global, W", "Global, (K, Q)"):
        low, high = (column(outcome, 0, name)[k::2] for k in (0, 1))
        assert all(b.value > a.value for a, b in zip(low, high, strict=True))
        assert low[1].value < low[0].value  # more sequences, fewer global runs
    check_picture(selection_figures.FIGURE_6, outcome, axes=2)


# --- Figure 8 -----------------------------------------------------------------------------------------------------


def test_figure_8_local_runs_have_the_larger_margins() -> None:
    outcome = outcome_of(selection_figures.FIGURE_8, trials=30, many_n=(1, 8), many_d=(5,), steps=500, chunk=30)
    assert [len(table.rows) for table in outcome.tables] == [3, 3]
    ends = zip(
        *(column(outcome, 0, name) for name in ("Global", "Local (not Global)", "Not local", "undecided")), strict=True
    )
    for reached, local, neither, undecided in ends:
        assert reached.value + local.value + neither.value + undecided / 30 == pytest.approx(1)
    shares = dict(zip(column(outcome, 0, "size"), column(outcome, 0, "Global"), strict=True))
    assert shares["n=1, T=5, d=5"].value > 0.8 > shares["n=8, T=5, d=5"].value
    selected, optimal = column(outcome, 1, "selected, Local runs"), column(outcome, 1, "optimal, Local runs")
    many = column(outcome, 1, "size").index("n=8, T=5, d=5")
    assert selected[many].value > optimal[many].value > 0
    check_picture(selection_figures.FIGURE_8, outcome, axes=4)


def test_optimal_margin_is_that_of_the_same_problem() -> None:
    found = selection_figures.margin_trials(12, 4, n=3, T=4, d=5, steps=400)
    same = np.flatnonzero(found["is_global"])
    assert len(same) > 3
    np.testing.assert_array_equal(found["margin"][same], found["optimal_margin"][same])


# --- Figure 11 ----------------------------------------------------------------------------------------------------


def test_padded_factors_train_as_narrow_ones() -> None:
    problems = attsvm.random_problem(n=3, T=4, d=6, batch=3, seed=1)
    together = rank_figures.train_widths(problems, [1, 2, 4], steps=100, seed=9)
    rng = np.random.default_rng(9)
    K, Q = (rng.uniform(-1, 1, size=(3, 6, 4)) / np.sqrt(6) for _ in "KQ")
    alone = attsvm.train(problems, "KQ", steps=100, lr=0.1, init=(K[..., :2], Q[..., :2]), m=2, **PUBLISHED_KQ)
    # Sums with added zeros round alike or in the last digit; 100 steps do not amplify that beyond 1e-9.
    np.testing.assert_allclose(together.W[1::3], alone.W, atol=1e-9)
    np.testing.assert_array_equal(np.linalg.matrix_rank(together.W.reshape(3, 3, 6, 6)), [[1, 2, 4]] * 3)


def test_figure_11_has_its_knee_at_the_certified_rank() -> None:
    outcome = outcome_of(
        rank_figures.FIGURE_11,
        trials=6,
        n=4,
        T=4,
        d=8,
        many_n=(4, 7),
        many_T=(4,),
        widths=(1, 2, 3, 4, 5),
        steps=800,
        chunk=6,
    )
    assert [row[1] for row in outcome.tables[0].rows] == [1, 2, 3, 4, 5] * 2
    assert sum(column(outcome, 1, "runs")) == 6 * 5 * 2
    for size, curve in outcome.curves["sizes"].items():
        n = int(size.split(",")[0])
        assert 1 < curve["rank"] < n  # so that a knee at the rank is not a knee at n
        mean = dict(zip(curve["excess"], curve["excess_mean"], strict=True))
        assert mean[-1] > 3 * mean[0]  # from one below the rank to the rank the distance collapses
        assert mean[0] < 0.05
        assert curve["mean"][0] > 3 * curve["mean"][-1]
    check_picture(rank_figures.FIGURE_11, outcome, axes=4)
