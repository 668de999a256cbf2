"""Figures of four papers on settings that take seconds: what a wrong computation would break."""

from __future__ import annotations

import matplotlib
import numpy as np
import pytest
from figure_outcomes import check_picture, column, outcome_of

from attsvm.validation.figures.conditioning import fig04 as maps
from attsvm.validation.figures.conditioning import fig06 as joint
from attsvm.validation.figures.conditioning import fig08 as layer
from attsvm.validation.figures.framework import Figure
from attsvm.validation.figures.localization import fig01 as clipped
from attsvm.validation.figures.localization import fig08 as deep
from attsvm.validation.figures.polarization import fig05 as trajectories
from attsvm.validation.figures.polarization import fig14 as induction
from attsvm.validation.figures.polarization import fig20 as flips
from attsvm.validation.figures.specialization import fig12 as strengths

matplotlib.use("Agg", force=False)


def test_the_clipped_softmax_is_exact_at_zero_and_worst_where_it_is_clipped() -> None:
    outcome = outcome_of(clipped.FIGURE)
    largest = column(outcome, 0, "largest")
    assert largest[0] < 0.002 and 0.119 < max(largest) < 0.12  # 1 - 1/(1 + e^-2) at a difference of 2
    assert "at a difference of 2.00" in outcome.notes[0]
    check_picture(clipped.FIGURE, outcome)


def test_deeper_language_models_are_tabulated_with_published_directions() -> None:
    outcome = outcome_of(deep.FIGURE, shapes=((8, 1), (8, 2)), steps=2, tokens=500, T=5, trials=2)
    assert column(outcome, 0, "layers") == [1, 1, 1, 2, 2, 2]
    agrees = column(outcome, 1, "agrees")
    assert outcome.notes[0].startswith(f"{agrees.count('yes')} of 6 published directions")
    check_picture(deep.FIGURE, outcome)


def test_two_heads_split_when_the_flipping_direction_is_strong() -> None:
    outcome = outcome_of(strengths.FIGURE, activations=("softmax",), samples=400)
    cosines = {row[1:3]: row[3].value for row in outcome.tables[0].rows}
    assert cosines[0.5, 8.0] < 0 < cosines[8.0, 0.5]
    assert len(outcome.notes) == 1 and "rises with nu1" in outcome.notes[0]
    check_picture(strengths.FIGURE, outcome)


def test_training_w_moves_it_and_its_first_losses_are_those_of_a_frozen_one() -> None:
    outcome = outcome_of(joint.FIGURE, N=12, widths=(5,), steps=120)
    moved = column(outcome, 0, "|W - I|_F / sqrt(d)")
    assert [x > 0 for x in moved] == [False, True, False, True]
    runs = list(outcome.curves["runs"].values())
    np.testing.assert_allclose(runs[0]["loss"][:, 0], runs[1]["loss"][:, 0])
    check_picture(joint.FIGURE, outcome)


def test_maps_are_attention_over_the_patches() -> None:
    outcome = outcome_of(maps.FIGURE, limit=64, epochs=1, patch=4, dim=8, layers=1)
    assert [abs(row[1].value - float(row[0])) < 0.01 for row in outcome.tables[0].rows] == [True, True]
    for name in ("1.3", "7"):
        attention = np.asarray(outcome.curves[name]["map"])
        assert attention.shape == (1, 4, 2, 2) and (attention >= 0).all() and (attention.sum(axis=(2, 3)) < 1).all()
    check_picture(maps.FIGURE, outcome)


def test_the_final_layer_reports_heads_and_where_sampling_underestimates() -> None:
    outcome = outcome_of(layer.FIGURE, limit=200, epochs=1, dim=16, layers=1, test=30)
    exact, sampled = (
        np.array(column(outcome, 0, f"rho_U {name}, median"), dtype=float) for name in ("exact", "sampled")
    )
    assert len(exact) == 4 and (np.isnan(exact) | (sampled <= exact * (1 + 1e-9))).all()
    check_picture(layer.FIGURE, outcome)


def test_attention_of_the_class_token_is_followed_over_training() -> None:
    outcome = outcome_of(trajectories.FIGURE, dim=8, records=(1, 4))
    scores = np.asarray(outcome.curves["softmax"])
    assert scores.shape == (2, 2, 10) and (scores.sum(axis=-1) <= 1 + 1e-6).all()
    check_picture(trajectories.FIGURE, outcome)


@pytest.mark.parametrize("figure", [induction.FIGURE, flips.FIGURE])
def test_grids_name_their_reduction_and_count_their_runs(figure: Figure) -> None:
    outcome = outcome_of(figure, steps=2, dim=8)
    assert any(note.startswith("REDUCED") for note in outcome.notes)
    if figure is induction.FIGURE:
        assert "nothing to compare" in outcome.notes[0]
        assert column(outcome, 0, "learned") == ["0 of 1"] * 4
    check_picture(figure, outcome)
