"""Soft margins as a user first calls them: default loss and slack, few rows, batches, the estimator, its warnings."""

from __future__ import annotations

import warnings
from functools import partial

import numpy as np
import pytest

import attsvm
from attsvm.validation.matrix import Instance, Margin, objective, reference

DEFAULT = Margin("hinge", "query")
# Seconds: many times what each takes with a method that converges.
pytestmark = pytest.mark.timeout(60)


def instance_of(problem: attsvm.AttentionProblem, selection: np.ndarray, C: float) -> Instance:
    """The same arrays for the separate arithmetic."""
    return Instance("att", problem.X, problem.Z, None, np.arange(problem.T) == selection[:, None], C)


def mislabelled(n: int, T: int, d: int, seed: int, share: float = 0.1) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Unit vectors, and labels of a hidden W of which some are wrong."""
    rng = np.random.default_rng(seed)
    X, Z = rng.standard_normal((n, T, d)), rng.standard_normal((n, d))
    X /= np.linalg.norm(X, axis=-1, keepdims=True)
    Z /= np.linalg.norm(Z, axis=-1, keepdims=True)
    y = np.einsum("ntd,nd->nt", X, Z @ rng.standard_normal((d, d))).argmax(axis=1)
    wrong = rng.choice(n, size=round(share * n), replace=False)
    y[wrong] = (y[wrong] + rng.integers(1, T, len(wrong))) % T
    return X, Z, y


@pytest.mark.parametrize("C", [0.01, 0.1, 1.0])
def test_fewer_rows_than_entries(C):
    problem = attsvm.random_problem(n=6, T=8, d=10, seed=3)
    solved = attsvm.att_svm(problem, C=C)
    assert solved.status == "optimal"
    assert solved.certificate.gap <= 1e-8
    instance = instance_of(problem, problem.optimal_tokens().indices, C)
    known = reference(instance, "frobenius", DEFAULT)
    # CLARABEL is told 1e-10.
    assert objective(instance, "frobenius", DEFAULT, solved.W) == pytest.approx(known.value, rel=1e-8)


def test_a_batch():
    problem = attsvm.random_problem(n=6, T=8, d=10, batch=50, seed=0)
    solved = attsvm.att_svm(problem, C=1.0)
    assert (solved.status == "optimal").all()
    assert np.max(solved.certificate.gap) <= 1e-8
    for k in (0, 24, 49):
        instance = instance_of(problem[k], problem[k].optimal_tokens().indices, 1.0)
        known = reference(instance, "frobenius", DEFAULT)
        assert objective(instance, "frobenius", DEFAULT, solved.W[k]) == pytest.approx(known.value, rel=1e-8)


def test_many_queries():
    problem = attsvm.random_problem(n=200, T=10, d=16, seed=0)
    solved = attsvm.att_svm(problem, C=0.1)
    assert solved.status == "optimal"
    assert solved.certificate.gap <= 1e-8
    instance = instance_of(problem, problem.optimal_tokens().indices, 0.1)
    value = objective(instance, "frobenius", DEFAULT, solved.W)
    assert value == pytest.approx(19.9978259342, rel=1e-8)  # by cvxpy, which takes seconds here
    assert solved.certificate.lower_bound <= value * (1 + 1e-12)
    assert value == pytest.approx(solved.certificate.lower_bound, rel=1e-8)


def ragged_tasks(count: int, d: int, seed: int) -> tuple[list[tuple[np.ndarray, np.ndarray]], np.ndarray]:
    X, Z, y = mislabelled(count, 12, d, seed)
    lengths = np.random.default_rng(seed + 1).integers(4, 13, count)
    return [(x[: max(k, right + 1)], z) for x, z, k, right in zip(X, Z, lengths, y, strict=True)], y


def test_the_estimator_with_its_defaults():
    selectors = pytest.importorskip("attsvm.sklearn")
    tasks, y = ragged_tasks(100, 64, seed=0)
    assert len({len(candidates) for candidates, _ in tasks}) > 3
    fitted = selectors.AttentionSelector().fit(tasks, y)
    assert fitted.edit_.status == "optimal"
    assert fitted.edit_.certificate.gap <= 1e-8
    assert fitted.score(tasks, y) > 0.9  # far more entries than rows: the wrong labels are fitted, too


def caught_by(work) -> list[warnings.WarningMessage]:
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        work()
    return [message for message in found if issubclass(message.category, UserWarning)]


BATCH = attsvm.random_problem(n=3, T=4, d=5, batch=4, seed=0)
UNREACHABLE = 1e-300  # no certificate in floating-point numbers closes to this


# Hard margins that do not close go through every method that there is: seconds each, so one of them is enough.
@pytest.mark.parametrize(
    ("norm", "C"), [("frobenius", None), ("frobenius", 1.0), ("nuclear", 10.0), ("spectral", 1.0), ("l1", 1.0)]
)
@pytest.mark.parametrize("problem", [BATCH[0], BATCH], ids=["one", "batch"])
def test_an_inaccurate_result_warns_once(problem, norm, C):
    found = caught_by(lambda: attsvm.att_svm(problem, norm=norm, C=C, tolerance=UNREACHABLE))
    assert [message.category for message in found] == [attsvm.ConvergenceWarning]
    assert "inaccurate" in str(found[0].message)


@pytest.mark.parametrize("C", [None, 0.1])
def test_a_result_that_is_proved_does_not_warn(C):
    assert caught_by(lambda: attsvm.att_svm(BATCH, C=C)) == []


def test_an_infeasible_problem_does_not_warn():
    same = attsvm.AttentionProblem(np.ones((1, 2, 3)), Z=np.ones((1, 3)))
    assert caught_by(lambda: attsvm.att_svm(same, [0])) == []


def test_the_warning_is_a_user_warning_of_the_solvers():
    from attsvm.solvers.status import ConvergenceWarning

    assert attsvm.ConvergenceWarning is ConvergenceWarning
    assert issubclass(ConvergenceWarning, UserWarning)


def test_the_estimator_warns_as_scikit_learn_does(monkeypatch):
    selectors = pytest.importorskip("attsvm.sklearn")
    from sklearn.exceptions import ConvergenceWarning

    monkeypatch.setattr(selectors, "edit", partial(selectors.edit, tolerance=UNREACHABLE))
    tasks, y = ragged_tasks(10, 6, seed=0)
    found = caught_by(lambda: selectors.AttentionSelector().fit(tasks, y))
    assert len(found) == 1
    assert issubclass(found[0].category, ConvergenceWarning)
