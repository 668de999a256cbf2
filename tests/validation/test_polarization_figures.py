"""The figures on polarization at small settings: shapes, and numbers that a wrong computation would break."""

import numpy as np
import pytest
from figure_outcomes import check_picture, column, outcome_of

from attsvm.dynamics import polarization as pol
from attsvm.validation.figures.figure import all_figures, choose_figures
from attsvm.validation.figures.polarization import flip_figures, flow_figures, sink_figures
from attsvm.validation.figures.polarization.flow_figures import KINDS, figure_12


def test_the_figures_are_found():
    assert [f.name for f in all_figures("polarization")] == [
        "fig2", "fig3", "fig4", "fig5", "fig6", "fig10", "fig11", "fig13", "fig14", "fig20"
    ]  # fmt: skip
    assert choose_figures(["polarization", "fig12"])[0] is flow_figures.FIGURE_3
    assert KINDS == tuple(str(kind) for kind in pol.ATTENTION_KINDS)


def test_figure_2():
    outcome = outcome_of(flow_figures.FIGURE_2, trials=3, steps=1000, tokens=(5,), scales=(1.0,))
    # Measured independently: s_0 at t = 1e2, 1e3 and 1e12, and tau there.
    s_0, tau = column(outcome, 0, "s_0"), column(outcome, 0, "tau")
    np.testing.assert_allclose([s_0[0], s_0[1], s_0[6]], [0.2327, 0.8752, 0.99710], atol=6e-5)
    np.testing.assert_allclose([tau[0], tau[1], tau[6]], [19.7, 28.0, 49.0], atol=0.06)
    np.testing.assert_allclose(column(outcome, 1, "s_0 descent"), column(outcome, 1, "s_0 flow"), atol=2e-3)  # step 0.1
    shares = outcome.tables[2].rows[0]
    assert [cell.value for cell in shares[2:9]] == [1.0, 1.0, 0.0, 1.0, 1.0, shares[7].value, 1.0]
    assert shares[7].value < 1.0
    check_picture(flow_figures.FIGURE_2, outcome, 2)


def test_figure_3_and_12():
    outcome = outcome_of(flow_figures.FIGURE_3, kappas=(1.0, 2.0, 3.0), matched=(7.0,))
    np.testing.assert_allclose(column(outcome, 0, "entropy / log p"), [0.9998, 0.985, 0.575], atol=6e-4)
    # 69k, 217k, 131k steps: kappa = 2 is slower than 3.
    np.testing.assert_allclose(column(outcome, 0, "steps to 1e-6"), [69e3, 217e3, 131e3], rtol=0.02)
    assert figure_12(3.0, difficulty=9.0)[2].difficulty == pytest.approx(9.0)
    check_picture(flow_figures.FIGURE_3, outcome, 4)


def test_figure_10():
    outcome = outcome_of(flow_figures.FIGURE_10, trials=1, t_end=1e3, steps=300)
    assert column(outcome, 0, "KL divergence")[-1] < 0.01
    descent, flow = outcome.tables[1].rows
    assert descent[1] == pytest.approx(flow[1], abs=5e-3)  # step 0.1
    printed = column(outcome, 3, "loss")
    assert printed[-1] < printed[0] < 0
    check_picture(flow_figures.FIGURE_10, outcome, 2)


def test_figure_11():
    outcome = outcome_of(flow_figures.FIGURE_11, dimensions=(5, 10), steps=800)
    assert min(column(outcome, 0, "smallest")) > 0.9
    winner, median = column(outcome, 0, "norm of its vector"), column(outcome, 0, "median norm")
    assert min(np.array(winner) / np.array(median)) > 2
    check_picture(flow_figures.FIGURE_11, outcome, 2)


def test_figure_13():
    outcome = outcome_of(flow_figures.FIGURE_13, steps=50)
    found = {(row[0], row[1]): row for row in outcome.tables[0].rows}
    # The published protocol by gradient descent: 0.134, 0.283, 0.144 (square); 0.976 (logistic softmax).
    assert found["square", "Sum"][2] == pytest.approx(0.134, abs=1e-3)
    assert found["square", "L2"][2] == pytest.approx(0.283, abs=4e-3)  # step 0.1 against the flow
    assert found["square", "Softmax"][2] == pytest.approx(0.144, abs=1e-3)
    assert found["logistic", "Softmax"][2] == pytest.approx(0.976, abs=1e-3)
    assert found["logistic", "Relu (normalized)"][2] == 1.0
    assert all(row[5] == 6 for row in outcome.tables[0].rows)  # argmax a(0)
    check_picture(flow_figures.FIGURE_13, outcome, 12)


def test_figure_4_runs_and_says_what_is_reduced():
    outcome = outcome_of(sink_figures.FIGURE_4, steps=2, dim=8, batch=4, symbols=6, length=3)
    assert column(outcome, 0, "attention") == ["softmax", "sigmoid_unnorm", "softmax"]
    assert column(outcome, 0, "lambda") == [0.2, 0.2, 0.0]
    assert "REDUCED" in outcome.notes[0]
    check_picture(sink_figures.FIGURE_4, outcome, 4)


def test_figure_6_runs_and_says_what_is_reduced():
    outcome = outcome_of(flip_figures.FIGURE_6, dim=16, steps=5, steps_81=2)
    assert column(outcome, 0, "attention") == ["softmax", "sigmoid_unnorm"]
    assert all(0 <= cell.value <= 1 for cell in column(outcome, 0, "flip rate"))
    assert "REDUCED" in outcome.notes[0]
    check_picture(flip_figures.FIGURE_6, outcome, 2)


def test_attention_of_the_class_token_is_followed_over_training():
    outcome = outcome_of(sink_figures.FIGURE_5, dim=8, records=(1, 4))
    scores = np.asarray(outcome.curves["softmax"])
    assert scores.shape == (2, 2, 10) and (scores.sum(axis=-1) <= 1 + 1e-6).all()
    check_picture(sink_figures.FIGURE_5, outcome)


@pytest.mark.parametrize("figure", [sink_figures.FIGURE_14, flip_figures.FIGURE_20])
def test_grids_name_their_reduction_and_count_their_runs(figure):
    outcome = outcome_of(figure, steps=2, dim=8)
    assert any(note.startswith("REDUCED") for note in outcome.notes)
    if figure is sink_figures.FIGURE_14:
        assert "nothing to compare" in outcome.notes[0]
        assert column(outcome, 0, "learned") == ["0 of 1"] * 4
    check_picture(figure, outcome)
