"""Figures of the paper on localization, on small settings: properties that a wrong computation would break."""

from __future__ import annotations

from typing import Any

import matplotlib
import numpy as np
import pytest
from figure_outcomes import check_picture, column, outcome_of

from attsvm.validation.figures.figure import all_figures
from attsvm.validation.figures.localization import locater_figures, propagation_figures

matplotlib.use("Agg", force=False)


def test_the_figures_are_found() -> None:
    found = {figure.name: figure.aliases for figure in all_figures("localization")}
    deep = ("fig9", "fig10", "fig11", "fig12")
    assert found == {"fig1": (), "fig2": (), "fig3": ("fig4",), "fig5": (), "fig6": ("fig7",), "fig8": deep}


def test_figure_2_refutes_the_printed_variance() -> None:
    outcome = outcome_of(propagation_figures.FIGURE_2, trials=12, walks=500, d=48, simulated=((2.0, 1.0), (0.0, 1.0)))
    assert column(outcome, 0, "theta") == [0.05, 0.25, 0.5, 0.75, 1.0]
    assert max(abs(float(z)) for z in column(outcome, 0, "exact: deviation / SE")) < 4  # one in 16,000 each
    ratios = column(outcome, 0, "printed / Monte Carlo")
    assert 12 < ratios[2] < 14
    assert max(ratios) == ratios[2]
    for name, error in (("printed", 0.15), ("corrected", 0.1), ("Gaussian at this T", 0.1)):
        worst = max(column(outcome, 1, name))
        assert worst > error if name == "printed" else worst < error
    assert column(outcome, 2, "xi=0 corrected")[2] == "middle"
    check_picture(propagation_figures.FIGURE_2, outcome, 9)


def test_figure_2_powers_give_the_variance() -> None:
    found = propagation_figures.walk_signals(2, 5, xi=1.0, eta=0.7, d=6, T=4, walks=300)
    variance, spread = propagation_figures._variance_of(np.asarray(found["powers"][0]))
    rng = np.random.default_rng(5)
    signal = propagation_figures.simulate_signals(
        np.diag(propagation_figures._eigenvalues(6, 1.0)), 4, 300, temperature=1 / 0.7, seed=rng
    )
    np.testing.assert_allclose(variance, signal.var(axis=0))
    np.testing.assert_allclose(spread, ((signal - signal.mean(axis=0)) ** 2).std(axis=0))


def test_figure_3_and_4() -> None:
    outcome = outcome_of(propagation_figures.FIGURE_3, trials=8, steps=400, T=16, nus=(2.0, 4.0))
    assert column(outcome, 0, "site") == ["late", "late", "middle", "middle"]
    assert column(outcome, 0, "window at half height")[3] == "0.500 - 0.695"
    least, tight = column(outcome, 1, "least found"), column(outcome, 1, "tight")
    np.testing.assert_allclose(least, tight, atol=2e-3)  # descent stops short by its step
    assert all(found >= bound - 1e-12 for found, bound in zip(least, tight, strict=True))
    assert all(bound > np.log(16) for bound in column(outcome, 1, "printed (9)"))
    check_picture(propagation_figures.FIGURE_3, outcome, 2)


def test_figure_5_has_the_published_trends() -> None:
    outcome = outcome_of(propagation_figures.FIGURE_5, d=48, walks=40, means=(0.0, 0.5), scales=(0.01, 1.0))
    assert column(outcome, 0, "site")[0] == "uniform"
    assert column(outcome, 0, "site")[2] == "middle"
    true = dict(zip(column(outcome, 1, "statement"), column(outcome, 1, "true in"), strict=True))
    assert true["a larger mean localizes"] == 4
    assert true["a smaller scale raises the entropy (mean > 0)"] == 2
    # 80 walks: a standard error of 0.06 at most
    assert max(column(outcome, 0, "error: Gaussian")) < 0.25
    assert max(column(outcome, 0, "printed")) > 0.4
    check_picture(propagation_figures.FIGURE_5, outcome, 6)


def test_figure_5_is_the_paper_s_protocol() -> None:
    full = {key: propagation_figures.FIGURE_5.full[key] for key in ("trials", "d", "T", "walks")}
    assert full == {"trials": 10, "d": 128, "T": 40, "walks": 300}


def test_figure_6_trains_with_and_without_the_penalty() -> None:
    outcome = outcome_of(
        locater_figures.FIGURE_6,
        trials=2,
        strengths=(0.01, 5.0),
        d=16,
        T=8,
        steps=40,
        tokens=3000,
        vocabulary=60,
        lr=2e-2,
    )
    assert column(outcome, 0, "k2") == ["none", "0.01", "5"]
    traces = [cell.value for cell in column(outcome, 0, "trace")]
    assert max(abs(trace - 1) for trace in traces[1:]) < 0.2
    scales = [cell.value for cell in column(outcome, 0, "scale")]
    assert scales[2] < scales[1] < scales[0]
    found = dict(zip(column(outcome, 1, "quantity"), column(outcome, 1, "found"), strict=True))
    assert found["scale"] == "falls"
    assert set(found.values()) <= {"falls", "rises", "unclear"}
    check_picture(locater_figures.FIGURE_6, outcome, 7)


def test_figure_6_reads_wikitext(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    for part in ("train", "valid"):
        (tmp_path / f"wiki.{part}.tokens").write_text(
            "\n".join(" ".join(rng.choice(list("abcdef"), 30)) for _ in range(9))
        )
    monkeypatch.setenv("ATTSVM_WIKITEXT", str(tmp_path))
    outcome = outcome_of(locater_figures.FIGURE_6, strengths=(1.0,), d=8, T=8, steps=2)
    assert "WikiText-2" in outcome.tables[0].title
    assert all(found.endswith("(one model)") for found in column(outcome, 1, "found"))
    assert all(isinstance(cell, float) for cell in column(outcome, 0, "perplexity"))  # one model: no interval


def test_the_clipped_softmax_is_exact_at_zero_and_worst_where_it_is_clipped() -> None:
    outcome = outcome_of(propagation_figures.FIGURE_1)
    largest = column(outcome, 0, "largest")
    assert largest[0] < 0.002 and 0.119 < max(largest) < 0.12  # 1 - 1/(1 + e^-2) at a difference of 2
    assert "at a difference of 2.00" in outcome.notes[0]
    check_picture(propagation_figures.FIGURE_1, outcome)


def test_deeper_language_models_are_tabulated_with_published_directions() -> None:
    outcome = outcome_of(locater_figures.FIGURE_8, shapes=((8, 1), (8, 2)), steps=2, tokens=500, T=5, trials=2)
    assert column(outcome, 0, "layers") == [1, 1, 1, 2, 2, 2]
    agrees = column(outcome, 1, "agrees")
    assert outcome.notes[0].startswith(f"{agrees.count('yes')} of 6 published directions")
    check_picture(locater_figures.FIGURE_8, outcome)
