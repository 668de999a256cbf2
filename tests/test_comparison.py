import json
import re

import matplotlib as mpl
import numpy as np
import pytest

import attsvm
from attsvm.comparison import (
    angle,
    correlation,
    effective_rank,
    fitted_rate,
    misalignment,
    numerical_rank,
    reached_margin,
)

mpl.use("Agg")


@pytest.fixture(scope="module")
def problem():
    return attsvm.random_problem(n=3, T=4, d=6, seed=0)


@pytest.fixture(scope="module")
def report(problem):
    run = attsvm.train(problem, steps=3000)
    return attsvm.compare(run, attsvm.att_svm(problem), attsvm.att_svm(problem, norm="nuclear"))


@pytest.fixture(scope="module")
def batch_report():
    batch = attsvm.random_problem(n=3, T=4, d=4, batch=8, seed=1)
    return attsvm.compare(attsvm.train(batch, steps=500), attsvm.att_svm(batch))


def test_metrics_by_hand(rng):
    A = rng.standard_normal((5, 3, 4))
    assert correlation(A[0], 2 * A[0]) == pytest.approx(1.0)
    assert correlation(A[0], -A[0]) == pytest.approx(-1.0)
    assert correlation(A, A[0]).shape == (5,)
    assert np.isnan(correlation(np.zeros((3, 4)), A[0]))
    # 1 - corr keeps digits that a subtraction would lose: a tilt of angle 1e-9 has 1 - cos = 5e-19.
    tilted = np.array([[1.0, 1e-9]])
    assert misalignment(tilted, [[1.0, 0.0]]) == pytest.approx(5e-19, rel=1e-6)
    np.testing.assert_allclose(misalignment(A, A[0]), 1 - correlation(A, A[0]), atol=1e-14)
    assert numerical_rank(np.diag([1.0, 1e-2, 1e-5])) == 2
    assert effective_rank(np.zeros((2, 2))) == 0.0
    assert effective_rank(np.diag([1.0, 1.0, 0.0])) == pytest.approx(2.0)
    assert np.isnan(fitted_rate([0, 10, 20], [0.0, 0.0, 0.0]))


def test_reached_margin_is_at_most_the_optimal_one(problem, rng):
    for norm in ("frobenius", "nuclear"):
        solution = attsvm.att_svm(problem, norm=norm)
        assert reached_margin(problem, solution.W, None, norm) == pytest.approx(solution.margin, rel=1e-7)
        for W in rng.standard_normal((20, 6, 6)):
            assert reached_margin(problem, solution.W + 0.1 * W, None, norm) <= solution.margin * (1 + 1e-9)


def test_a_run_is_compared_with_every_solution(problem, report):
    assert report.convergence == "Global"
    own, frobenius, nuclear = report.comparisons
    assert own.label == "Att-SVM, own tokens"
    assert (frobenius.label, nuclear.label) == ("Att-SVM", "Att-SVM*")
    assert frobenius.misalignment[-1] < 2e-3 < nuclear.misalignment[-1]
    np.testing.assert_allclose(own.correlation, frobenius.correlation, atol=1e-9)
    assert 0.9 < frobenius.margin[-1] <= 1.0
    assert frobenius.margin[-1] > nuclear.margin[-1]
    assert frobenius.selection_match[-1]
    assert frobenius.rate > 1.0  # 1 - corr falls about as 1/k^2 in the log domain
    assert 2 < report.effective_rank <= report.rank <= 6  # Lemma 1: the solution has rank 3


def test_reports_print_and_export(report):
    text = str(report)
    for word in ("Training against theory", "Att-SVM*", "Global", "1 - corr"):
        assert word in text
    records = report.records()
    assert len(records) == 3 * len(report.steps)
    assert {"solution", "step", "correlation", "margin", "loss"} <= set(records[0])
    final = report.to_dict()
    json.dumps(final)
    assert final["convergence"] == "Global"
    assert final["solutions"][1]["correlation"] == pytest.approx(1 - final["solutions"][1]["misalignment"], abs=1e-12)


def test_kq_runs_are_judged_by_the_nuclear_norm(problem):
    run = attsvm.train(problem, "KQ", steps=3000, optimizer="ridge_decay")
    report = attsvm.compare(run)
    assert report.comparisons[0].solution.norm_name == "nuclear"
    assert report.comparisons[0].label == "Att-SVM*, own tokens"


def test_convergence_classes():
    from attsvm.optimality import convergence_of

    problem = attsvm.random_problem(n=2, T=4, d=4, seed=1)
    classes = {}
    for a in range(4):
        for b in range(4):
            own = attsvm.att_svm(problem, [a, b])
            classes[a, b] = convergence_of(own)
    best = tuple(problem.optimal_tokens().indices.tolist())
    assert classes[best] == "Global"
    assert list(classes.values()).count("Global") == 1
    for selection, name in classes.items():
        assert (name != "Not local") == attsvm.is_locally_optimal(problem, list(selection))
    hopeless = attsvm.random_problem(n=6, T=6, d=2, seed=0)
    assert convergence_of(attsvm.att_svm(hopeless)) == "Not local"
    with pytest.warns(attsvm.ConvergenceWarning):
        vague = attsvm.att_svm(problem, norm="nuclear", solver="cvxpy:SCS", max_iterations=3, tolerance=1e-14)
    assert convergence_of(vague) == "Undecided"
    with pytest.warns(attsvm.ConvergenceWarning):
        rough = attsvm.att_svm(problem, solver="cvxpy:SCS", max_iterations=3, tolerance=1e-14)
    assert rough.status == "inaccurate"
    assert convergence_of(rough) == "Global"  # by rationals


def test_infeasible_solutions_are_shown_not_hidden():
    problem = attsvm.random_problem(n=6, T=6, d=2, seed=0)
    run = attsvm.train(problem, steps=200)
    report = attsvm.compare(run, attsvm.att_svm(problem))
    assert np.isnan(report.comparisons[1].correlation).all()
    assert "infeasible" in str(report)


def test_gen_svm_solutions_can_be_compared(problem):
    run = attsvm.train(problem, steps=100)
    report = attsvm.compare(run, attsvm.gen_svm(problem, [[0, 1], [2], [3]]))
    assert report.comparisons[1].label == "Gen-SVM"
    assert np.isfinite(report.comparisons[1].correlation).all()
    assert np.isnan(report.comparisons[1].margin).all()


def test_batches_have_summaries(batch_report):
    assert len(batch_report) == 8
    assert batch_report.labels == ("Att-SVM, own tokens", "Att-SVM")
    summary = batch_report.summary()
    errors = batch_report.misalignment("Att-SVM, own tokens")[-1]
    assert summary["median"] == pytest.approx(np.median(errors))
    assert summary["mean"] == pytest.approx(np.mean(errors))
    assert summary["q10"] <= summary["median"] <= summary["q90"]
    assert sum(batch_report.convergence_counts().values()) == 8
    assert len(batch_report.records()) == 8 * 2 * len(batch_report.run.history)
    json.dumps(batch_report.to_dict())
    assert "8 runs of W" in str(batch_report)
    assert batch_report[3].run.batch is None
    with pytest.raises(ValueError, match="label must be one of"):
        batch_report.summary("SVM")


def test_pictures_show_what_they_say(report, batch_report):
    import matplotlib.pyplot as plt

    figure = report.plot()
    assert [a.get_ylabel() for a in figure.axes[:1]] == ["1 - correlation"]
    assert len(figure.axes[0].lines) == 3
    figure = batch_report.plot()
    assert len(figure.axes[0].lines) == 2
    from attsvm.comparison import attention_map

    np.testing.assert_allclose(attention_map(report.run).sum(axis=1), 1.0)
    np.testing.assert_array_equal(attention_map(report.run).argmax(axis=1), report.run.selection.indices)
    plt.close("all")


def test_bad_arguments_are_named(report, problem):
    with pytest.raises(TypeError, match="compare takes a Run first, as train returns it, got AttentionProblem"):
        attsvm.compare(problem, report.run)
    with pytest.raises(TypeError, match="compare takes a Run first, as train returns it, got NoneType"):
        attsvm.compare(None)
    with pytest.raises(TypeError, match="compare takes Solution objects after the run, got ndarray"):
        attsvm.compare(report.run, np.eye(6))
    other = attsvm.att_svm(attsvm.random_problem(n=3, T=4, d=5, seed=0))
    with pytest.raises(
        ValueError, match=re.escape("a solution has W of shape (5, 5), but the run's W has shape (6, 6)")
    ):
        attsvm.compare(report.run, other)
    batch = attsvm.train(attsvm.random_problem(n=3, T=4, d=6, batch=2, seed=0), steps=5)
    with pytest.raises(ValueError, match="a batch of 2 runs needs batches of 2 solutions, got 3"):
        attsvm.compare(batch, attsvm.att_svm(attsvm.random_problem(n=3, T=4, d=6, batch=3, seed=0)))
    with pytest.raises(TypeError, match="compare takes batches of solutions after a batch of runs, got Solution"):
        attsvm.compare(batch, other)


def test_reprs_are_short_and_notebooks_see_a_table(report, batch_report):
    assert repr(report).startswith("Report(W, 3000 steps, Global, rank 5, Comparison('Att-SVM', 1.4 degrees)")
    assert repr(batch_report).startswith("BatchReport(8 runs of W, ")
    for thing in (report, batch_report, report.comparisons[0]):
        assert "\n" not in repr(thing) and len(repr(thing)) < 300
    page = report._repr_html_()
    assert page.count("<tr>") == 1 + len(report.shown) and "Training against theory" in page
    assert "Att-SVM, own tokens" in batch_report._repr_html_()


def relu_problem(batch=None):
    base = attsvm.random_problem(n=4, T=5, d=4, seed=0, batch=batch)
    head = attsvm.ReluHead(np.random.default_rng(0).standard_normal((4, 4)))
    return attsvm.AttentionProblem(base.X, base.Y, base.Z, head)


def test_a_head_that_no_theorem_covers_gets_no_advice_to_train_longer():
    from attsvm.reports.verdicts import batch_verdict, runs_verdict

    report = attsvm.compare(attsvm.train(relu_problem(), steps=200))
    why = "ReluHead is not linear, and Assumption E fails for these tokens"
    assert report.uncovered == why == report.to_dict()["uncovered"]
    assert report.convergence == "Not local" and "(no theorem)" in repr(report)
    assert str(report).endswith(f"No theorem applies: {why}.")
    for said in (str(report), runs_verdict([report])):
        assert "train longer" not in said and why in said
    batch = attsvm.compare(attsvm.train(relu_problem(batch=2), steps=50))
    said = batch_verdict([batch])
    assert "train longer" not in said and "no theorem applies: ReluHead" in said and "of 2 problems)" in said


def test_a_head_that_a_theorem_covers_is_told_to_train_longer(report):
    from attsvm.reports.verdicts import run_verdict, runs_verdict

    assert report.uncovered == "" and "theorem" not in str(report)
    assert "it is 1.4 degrees from the max-margin direction" in runs_verdict([report])
    assert "train longer" in run_verdict("W", "Not local", "finished", "frobenius", 0.1)
    assert "undecided" in run_verdict("W", "Undecided", "finished", "frobenius", 0.1)
    # E holds for a concave head that bends little: Theorems 2 and 7 are about its paths.
    base = attsvm.random_problem(n=3, T=4, d=6, seed=0)
    slight = attsvm.AttentionProblem(base.X, base.Y, base.Z, attsvm.ConcaveHead(base.head.v, lam=1e-3))
    assert attsvm.compare(attsvm.train(slight, steps=1000)).uncovered == ""


def test_angles_are_those_of_the_cosines(report):
    """arccos of the correlation, which loses digits where the angle is small, and so is no better than 1e-7 there."""
    for c in report.comparisons:
        np.testing.assert_allclose(np.cos(np.radians(c.angle)), c.correlation, atol=1e-12)
    assert angle(5e-19) == pytest.approx(np.degrees(1e-9), rel=1e-6)  # where arccos(1 - 5e-19) is 0
    assert np.isnan(angle(np.nan)) and angle(2.0) == pytest.approx(180.0)
    assert report.records()[-1]["angle"] == report.comparisons[-1].angle[-1]
