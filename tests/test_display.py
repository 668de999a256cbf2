"""Short representations, in the shell and in notebooks."""

import re
from dataclasses import replace
from html.parser import HTMLParser

import numpy as np
import pytest

import attsvm


class Balanced(HTMLParser):
    """Counts rows and refuses tags that are not closed."""

    def __init__(self, text):
        super().__init__()
        self.open, self.rows = [], 0
        self.feed(text)
        assert not self.open

    def handle_starttag(self, tag, attrs):
        self.open.append(tag)
        self.rows += tag == "tr"

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def objects():
    problem = attsvm.random_problem(n=3, T=4, d=6, seed=0)
    batch = attsvm.random_problem(n=3, T=4, d=6, batch=5, seed=0)
    masked = replace(problem, mask=np.arange(4) < np.array([[4], [2], [3]]), head=lambda x: x[..., 0])
    run = attsvm.train(problem, steps=50)
    return {
        "problem": (problem, r"AttentionProblem\(n=3, T=4, dx=6, dz=6, LinearHead\)"),
        "batch": (batch, r"AttentionProblem\(batch=5, n=3, T=4, dx=6, dz=6, LinearHead\)"),
        "masked": (masked, r"AttentionProblem\(n=3, T=4, dx=6, dz=6, function, masked\)"),
        "bare": (replace(problem, head=None), r"AttentionProblem\(n=3, T=4, dx=6, dz=6, no head\)"),
        "run": (run, r"Run\(W, normalized_gd, finished after 50 steps, \|W\|=[\d.]+, loss=[\d.]+\)"),
        "runs": (attsvm.train(batch, steps=5), r"Run\(batch of 5, W, normalized_gd, 5 finished, \|W\|=.*\(median\)\)"),
        "diagnosis": (attsvm.diagnose(problem), r"Diagnosis\(frobenius, assumptions: \d+ holds.*; applies: .*\)"),
        "path": (attsvm.regularization_path(problem, [1, 5]), r"RegularizationPath\(W, radii 1\.\.5, .*\)"),
        "parts": (attsvm.decompose(problem, 10 * run.W), r"Decomposition\(.*\)"),
    }  # fmt: skip


@pytest.fixture(scope="module")
def shown():
    return objects()


@pytest.mark.parametrize("name", ["problem", "batch", "masked", "bare", "run", "runs", "diagnosis", "path", "parts"])
def test_short_in_the_shell_and_a_table_in_notebooks(shown, name):
    thing, pattern = shown[name]
    text = repr(thing)
    assert re.fullmatch(pattern, text)
    assert len(text) <= 240
    assert "\n" not in text
    page = Balanced(thing._repr_html_())
    assert page.rows >= 4
    assert len(thing._repr_html_()) < 6000


def test_history_is_short_too(shown):
    assert repr(shown["run"][0].history) == f"History({len(shown['run'][0].history)} snapshots, steps 0..50)"


def test_attraction_is_short():
    found = attsvm.attraction(attsvm.random_problem(n=2, T=3, d=6, seed=0), starts=5, steps=100)
    assert re.fullmatch(r"Attraction\(5 starts, frobenius, \d selections reached: .*\)", repr(found))


def test_options_name_what_is_not_the_default():
    assert repr(attsvm.TrainOptions()) == "TrainOptions()"
    options = attsvm.TrainOptions("KQ", 60, lr=0.2, init=(np.zeros((3, 2)), np.zeros((3, 2))), loss="exponential")
    text = "TrainOptions(parameterization='KQ', steps=60, lr=0.2, init='given', loss=Loss('exponential'))"
    assert repr(options) == text
