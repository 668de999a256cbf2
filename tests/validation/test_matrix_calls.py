"""Every public function with its options: a sample; ``attsvm validate own matrix`` takes all pairs of all options."""

from __future__ import annotations

import inspect
import re
from importlib import import_module
from itertools import combinations
from pathlib import Path
from typing import Literal

import numpy as np
import pytest

import attsvm
from attsvm.validation.figures.own import solver_studies
from attsvm.validation.matrix_calls import CASES, case, covering, judge, public_functions, rows_of
from attsvm.validation.matrix_calls.call_cases import GIVEN, axes_of, never, options_of

SEED = 0
DOCS = Path(__file__).parents[2] / "docs"


def sampled(name: str) -> dict[str, object]:
    """One combination of a function, at its smallest size, of those that it takes."""
    taken = [row for row in rows_of(name, SEED) if not CASES[name].refused(row)]
    return taken[np.random.default_rng(SEED).integers(len(taken))] | {"size": "small"}


@pytest.mark.parametrize("name", CASES)
def test_a_call_of_every_public_function(name):
    assert judge(name, sampled(name), SEED).faults == ()


@pytest.mark.parametrize("name", [name for name in CASES if CASES[name].refused is not never])
def test_what_is_documented_as_an_error_is_one(name):
    wrong = next(row for row in rows_of(name, SEED) if CASES[name].refused(row))
    judged = judge(name, wrong, SEED)
    assert judged.refused and judged.faults == ()


def test_every_public_function_has_a_case():
    assert set(CASES) == set(public_functions())


def test_what_the_reference_documents_is_public():
    things = list(public_functions().values())
    for page in (DOCS / "api").glob("*.md"):
        for home, name in re.findall(r"^   (attsvm[\w.]*)\.(\w+)$", page.read_text(encoding="utf-8"), re.MULTILINE):
            thing = getattr(import_module(home), name)
            assert not inspect.isfunction(thing) or thing in things, f"{home}.{name}"


def test_all_pairs_meet_in_few_combinations():
    axes = {"a": range(4), "b": range(3), "c": (0, 1), "d": (0, 1), "e": (0, 1)}
    rows = covering(axes, seed=3)
    for one, two in combinations(axes, 2):
        assert {(row[one], row[two]) for row in rows} == {(x, y) for x in axes[one] for y in axes[two]}
    assert len(rows) <= 20 < 4 * 3 * 2 * 2 * 2
    assert rows == covering(axes, seed=3) != covering(axes, seed=4)


def test_two_values_that_exclude_each_other_are_tried_once():
    rows = covering({"a": (0, 1), "b": (0, 1), "c": (0, 1)}, 0, lambda row: row["a"] == row["b"] == 1)
    refused = [row for row in rows if row["a"] == row["b"] == 1]
    assert len(refused) == 1
    kept = [row for row in rows if row not in refused]
    assert {(row["a"], row["c"]) for row in kept} == {(0, 0), (0, 1), (1, 0), (1, 1)}


def test_a_new_choice_needs_a_case():
    def grown(X: object, *, mode: Literal["old", "new"] = "old", fast: bool = False, base: float | None = None) -> None:
        """Do."""

    assert axes_of(grown, {}, {}) == {"mode": ("old", "new"), "fast": (False, True), "base": (None, GIVEN)}
    with pytest.raises(ValueError, match="no case for mode = 'new'"):
        axes_of(grown, {"mode": ("old",)}, {})
    with pytest.raises(ValueError, match="has no option 'slow'"):
        axes_of(grown, {}, {"slow": "gone"})

    def worded(X: object, kind: str = "a") -> None:
        """Do."""

    with pytest.raises(ValueError, match="the choices of 'kind' are not listed"):
        axes_of(worded, {}, {})
    worded.__doc__ = 'Do.\n\nParameters\n----------\nkind : {"a", "b"}\n'
    assert axes_of(worded, {}, {}) == {"kind": ("a", "b")}


def test_options_of_typed_keywords_are_read():
    names = {option.name: option.choices for option in options_of(attsvm.train)}
    assert names["arithmetic"] == ("log", "naive") and names["parameterization"] == (None, "W", "KQ", "prompt")


@pytest.fixture
def entered():
    """A function under a public name, entered as a case, and gone after the test."""
    before = dict(CASES)
    yield lambda judged, **options: case("attsvm.export.factor", **options)(judged)
    CASES.clear()
    CASES.update(before)


ROW = {"size": "small", "number": "one", "rank": None}


def test_a_wrong_answer_an_exception_and_too_much_work_are_faults(entered):
    entered(lambda call: ["is wrong"])
    assert judge("attsvm.export.factor", ROW, 0).faults == ("is wrong",)

    def raises(call):
        call.run(np.linalg.cholesky, -np.eye(2))
        yield ""

    entered(raises)
    assert "LinAlgError" in judge("attsvm.export.factor", ROW, 0).faults[0]

    def works(call):
        call.run(lambda: [abs(k) for k in range(500)])
        return []

    entered(works, work=100)
    assert "calls of functions, more than 100" in judge("attsvm.export.factor", ROW, 0).faults[0]

    def warns(call):
        call.run(np.log, np.zeros(1))
        return []

    entered(warns)
    assert "RuntimeWarning" in judge("attsvm.export.factor", ROW, 0).faults[0]


def test_an_error_that_is_not_raised_is_a_fault(entered):
    entered(lambda call: [], refused=lambda row: True)
    assert judge("attsvm.export.factor", ROW, 0).faults == ("was taken, but is documented as an error",)


def test_the_figure_counts_and_names_what_fails(entered, monkeypatch):
    entered(lambda call: ["is wrong"])
    found = solver_studies.judge_function(2, 0, function="attsvm.export.factor", most=3)
    assert found["combinations"] == found["failed"] == [3, 3] and found["faults"][0].count("is wrong") == 3


def test_entrywise_norms_do_not_pass_for_low_rank():
    """With two queries a limit of two binds in norms whose solutions may have any rank."""
    problem = attsvm.random_problem(n=2, T=6, d=6, seed=0)
    assert np.linalg.matrix_rank(attsvm.att_svm(problem, norm="linf").W, tol=1e-6) > 2
    with pytest.raises(ValueError, match="rank=2 limits the nuclear-norm problem"):
        attsvm.att_svm(problem, norm="linf", rank=2)
    assert attsvm.att_svm(problem, norm="spectral", rank=2).rank <= 2
