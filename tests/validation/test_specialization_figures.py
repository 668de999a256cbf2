"""The figures of the paper on specialization at tiny sizes, and what their shared pieces compute."""

import numpy as np
import pytest
from figure_outcomes import check_picture, outcome_of

from attsvm.validation.bench.model_cases import reduced_gradient_ratio
from attsvm.validation.figures.figure import Context, all_figures
from attsvm.validation.figures.specialization import feature_figures
from attsvm.validation.figures.specialization.feature_figures import directions, sign_patterns
from attsvm.validation.figures.specialization.time_scale_figures import make_prior, sgd_beside_flow

FIGURES = {figure.name: figure for figure in all_figures("specialization")}
TIMES = (0.0, 2.0, 4.0)
TRAINING = {"samples": 100, "steps": 10, "test_samples": 200}
TINY = {
    "fig1": {"trials": 2, "D": 40, "times": (0.0, 0.5), "lr": 0.25, "samples": 100, "long_times": (0.0, 1.0, 2.0),
             "long_lr": 0.5, "long_trials": 2, "dimensions": (10.0, 100.0), "growth_times": tuple(range(0, 61, 20)),
             "growth_samples": 200, "growth_trials": 2},
    "fig2": {"trials": 1, "heads": (2,), "times": TIMES, "samples": 100},
    "fig3": {"trials": 2, "heads": (2,), "times": TIMES, "samples": 100},
    "fig4": {"trials": 1, "times": TIMES, "samples": 100, "step": 1.0},
    "fig5": {"trials": 1, "heads": (4,), "flip_nu": (4.0,), "gaussian_nu": (2.0,), "bayes_samples": 500, **TRAINING},
    "fig6": {"trials": 1, "sequences": 20, **TRAINING},
    "fig7": {"trials": 1, "H": 3, **TRAINING},
    "fig12": {"trials": 1, "strengths": (0.5, 8.0), "activations": ("softmax",), "samples": 100, "times": TIMES,
              "step": 1.0},
}  # fmt: skip


@pytest.fixture(autouse=True)
def no_windows(monkeypatch):
    monkeypatch.setenv("MPLBACKEND", "Agg")


def test_all_figures_are_there():
    assert set(FIGURES) == set(TINY)
    assert set(FIGURES["fig1"].aliases) == {"fig9", "fig10"}


@pytest.mark.parametrize("name", list(TINY))
def test_figures_run_and_draw(name, tmp_path):
    import matplotlib.pyplot as plt

    figure = FIGURES[name]
    assert set(TINY[name]) == set(figure.full) == set(figure.quick)
    outcome = figure.run(Context(settings=TINY[name], store=tmp_path / "store.sqlite"))
    assert outcome.tables
    assert all(len(table.rows) > 0 for table in outcome.tables)
    assert outcome.notes
    picture = figure.draw(outcome)
    picture.savefig(tmp_path / "picture.png")
    plt.close(picture)
    assert (tmp_path / "picture.png").stat().st_size > 5000


def test_sgd_and_flow_share_their_start():
    found = sgd_beside_flow(
        2, 0, prior=("flip", 2, 2.0, 2.0), activation="bayes", L=3, H=2, D=30, times=(0.0, 0.5), lr=0.25, samples=100,
        start_seed=3,
    )  # fmt: skip
    starts = [np.array(found[f"{who}_m"])[:, 0] for who in ("sgd", "flow")]
    np.testing.assert_allclose(starts[0], starts[1])
    np.testing.assert_allclose(starts[0][0], starts[0][1])


def test_patterns_and_directions():
    heads = [[1.0, 1.0], [-1.0, 1.0], [1.0, -1.0], [1.0, 0.05]]
    assert sign_patterns(heads, 2) == 3
    assert sign_patterns(heads, 1) == 2
    assert directions(heads) == 4
    assert directions([[1.0, 0.0], [0.99, 0.1]]) == 1


def test_priors_by_name():
    assert make_prior("flip", 2, 3.0).covariance[1, 1] == pytest.approx(3.0)
    with pytest.raises(ValueError, match="kind must be 'flip', 'one-hot' or 'gaussian', got 'cauchy'"):
        make_prior("cauchy", 2, 1.0)


@pytest.mark.parametrize("activation", ["softmax", "softmax1", "bayes"])
def test_the_benchmark_compares_equal_numbers(activation):
    found = reduced_gradient_ratio(activation, H=3, n=500, repeats=1)
    assert found["difference"] < 1e-13
    assert found["times as fast as term by term"] > 0


def test_two_heads_split_when_the_flipping_direction_is_strong():
    outcome = outcome_of(feature_figures.FIGURE_12, activations=("softmax",), samples=400)
    cosines = {row[1:3]: row[3].value for row in outcome.tables[0].rows}
    assert cosines[0.5, 8.0] < 0 < cosines[8.0, 0.5]
    assert len(outcome.notes) == 1 and "rises with nu1" in outcome.notes[0]
    check_picture(feature_figures.FIGURE_12, outcome)
