"""Short representations, in the shell and in notebooks."""

import re
from dataclasses import replace
from html.parser import HTMLParser

import numpy as np
import pytest
import torch

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
    run, runs = attsvm.train(problem, steps=50), attsvm.train(batch, steps=5)
    solution = attsvm.att_svm(problem, norm="nuclear")
    infeasible = attsvm.att_svm(attsvm.AttentionProblem([[[1.0], [1.0]]], Z=[[1.0]]), [0])
    return {
        "problem": (problem, r"AttentionProblem\(n=3, T=4, dx=6, dz=6, LinearHead\)"),
        "batch": (batch, r"AttentionProblem\(batch=5, n=3, T=4, dx=6, dz=6, LinearHead\)"),
        "masked": (masked, r"AttentionProblem\(n=3, T=4, dx=6, dz=6, function, masked\)"),
        "bare": (replace(problem, head=None), r"AttentionProblem\(n=3, T=4, dx=6, dz=6, no head\)"),
        "run": (run, r"Run\(W, normalized_gd, finished after 50 steps, \|W\|=[\d.]+, loss=[\d.]+\)"),
        "runs": (runs, r"Run\(batch of 5, W, normalized_gd, 5 finished, \|W\|=.*\(median\)\)"),
        "diagnosis": (attsvm.diagnose(problem), r"Diagnosis\(frobenius, assumptions: \d+ holds.*; applies: .*\)"),
        "path": (attsvm.regularization_path(problem, [1, 5]), r"RegularizationPath\(W, radii 1\.\.5, .*\)"),
        "parts": (attsvm.decompose(problem, 10 * run.W), r"Decomposition\(.*\)"),
        "solution": (solution, r"Solution\(Att-SVM, nuclear, optimal, margin=[\d.]+, rank=\d, gap=\S+\)"),
        "solutions": (attsvm.att_svm(batch), r"SolutionBatch\(Att-SVM, frobenius, 5 problems: 5 optimal\)"),
        "infeasible": (infeasible, r"Solution\(Att-SVM, frobenius, infeasible\)"),
        "certificate": (solution.certificate, r"Certificate\(gap=\S+, primal_violation=.*, rank=\d\)"),
        "certificates": (attsvm.att_svm(batch).certificate, r"Certificate\(5 problems, gap <= .*\)"),
        "refuted": (infeasible.certificate, r"Certificate\(proof=infeasible, by [\w ]+, rows=\d\)"),
        "listing": (attsvm.locally_optimal_selections(problem), r"LocalOptima\(.*\)"),
        "selection": (problem.optimal_tokens(), r"Selection\(indices=array\(\[\d, \d, \d\]\)\)"),
        "many": (attsvm.Selection(np.zeros((30, 20), dtype=int)), r"Selection\(indices=<30 x 20 int64>\)"),
        "sets": (attsvm.SelectedSets(np.eye(3, 4) > 0), r"SelectedSets\(3 x 4, 1 tokens each\)"),
        "edit": (attsvm.edit(run.W, problem, [0, 1, 2]), r"Edit\(of W, frobenius, optimal, .*\)"),
        "patch": (
            attsvm.patch(np.array([[0.9, 1.0]]), np.eye(2), [(0, 0)]),
            r"Patch\(query, frobenius, optimal, 1/1 repaired, 0/0 kept, .*\)",
        ),
        "no edit": (attsvm.edit([[0.0]], infeasible.problem, [0]), r"Edit\(of W, frobenius, infeasible\)"),
        "soft": (attsvm.soft_path(problem, np.logspace(-2, 2, 30)), r"SoftPath\(30 penalties, .*\)"),
        "attraction": (attsvm.attraction(problem, starts=5, steps=50), r"Attraction\(5 starts, frobenius, .*\)"),
        "report": (attsvm.compare(run, solution), r"Report\(W, 50 steps, .*\)"),
        "reports": (attsvm.compare(runs, attsvm.att_svm(batch)), r"BatchReport\(5 runs of W, .*\)"),
    }  # fmt: skip


@pytest.fixture(scope="module")
def shown():
    return objects()


NAMES = [
    "problem",
    "batch",
    "masked",
    "bare",
    "run",
    "runs",
    "diagnosis",
    "path",
    "parts",
    "solution",
    "solutions",
    "infeasible",
    "certificate",
    "certificates",
    "refuted",
    "listing",
    "selection",
    "many",
    "sets",
    "edit",
    "patch",
    "no edit",
    "soft",
    "attraction",
    "report",
    "reports",
]


@pytest.mark.parametrize("name", NAMES)
def test_short_in_the_shell_and_a_table_in_notebooks(shown, name):
    thing, pattern = shown[name]
    text = repr(thing)
    assert re.fullmatch(pattern, text)
    assert len(text) <= 240
    assert "\n" not in text
    page = Balanced(thing._repr_html_())
    assert page.rows >= (2 if name in ("refuted", "listing", "attraction") else 3)
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


def others(shown):
    """Instances of what has no table, at sizes whose arrays would fill pages."""
    problem, solution = shown["batch"][0], shown["solution"][0]
    wide = np.ones((40, 300))
    return [
        problem.optimal_tokens(), problem.head, attsvm.SelectedSets(wide > 0), attsvm.LinearHead(wide[0]),
        attsvm.ReluHead(wide), attsvm.ConcaveHead(wide[0], 1.0), attsvm.TrainedHead.from_weights(wide, wide),
        attsvm.logistic, attsvm.exponential, attsvm.TrainOptions(), solution.status, solution.rows, solution.result,
        shown["solutions"][0].result, solution.rows.margin_problem, solution.rows.margin_problem.rows,
        solution.certificate.rank_certificate, shown["infeasible"][0].certificate.farkas, solution.certificate.exact(),
        attsvm.Monitor(torch.nn.MultiheadAttention(4, 2)),
        attsvm.separating_cone(solution.problem), attsvm.locally_optimal_selections(solution.problem),
        attsvm.soft_path(solution.problem, np.geomspace(0.1, 10.0, 12)), *shown["diagnosis"][0].checks,
    ]  # fmt: skip


def test_nothing_fills_a_screen(shown):
    for thing in others(shown):
        assert len(repr(thing)) <= 240, repr(thing)
        assert "\n" not in repr(thing)
        assert repr(thing).startswith((type(thing).__name__, "<Status", "Loss", "MarginSolution"))


def test_every_public_class_is_shown(shown):
    seen = {type(thing) for thing in [*others(shown), *(thing for thing, _ in shown.values())]}
    classes = [thing for name in attsvm.__all__ if isinstance(thing := getattr(attsvm, name), type)]
    missing = [kind.__name__ for kind in classes if kind not in seen and not issubclass(kind, Exception)]
    assert missing == []


def test_a_head_of_ones_own_is_short_too():
    from dataclasses import dataclass

    from attsvm.heads import Head

    @dataclass(frozen=True, eq=False)
    class Own(Head):
        parameters = {"v": ("d",)}  # noqa: RUF012
        v: object

        def value(self, x):
            return self.project("v", x)

    assert repr(Own([1.0, 2.0])) == "Own(v=array([1., 2.]))"
    assert repr(Own(np.ones(500))) == "Own(v=<500 float64>)"
