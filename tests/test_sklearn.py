"""The estimator in scikit-learn's own habits: clone, search, pipelines, its checks."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
from sklearn.base import BaseEstimator, TransformerMixin, clone
from sklearn.exceptions import NotFittedError, SkipTestWarning
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.utils.estimator_checks import check_estimator

import attsvm
from attsvm.sklearn import AttentionSelector, mean_reciprocal_rank, read_tasks, recall_at


def _tasks(n=60, d=6, seed=0, noise=0.0):
    """Ragged tasks that a bilinear score of rank 2 decides."""
    rng = np.random.default_rng(seed)
    W = rng.normal(size=(d, 2)) @ rng.normal(size=(2, d))
    tasks = [(rng.normal(size=(int(rng.integers(2, 6)), d)), rng.normal(size=d)) for _ in range(n)]
    y = np.array([int(np.argmax(x @ W @ z + noise * rng.normal(size=len(x)))) for x, z in tasks])
    return tasks, y


def test_hard_margin_is_att_svm():
    tasks, y = _tasks(20)
    fitted = AttentionSelector(C=None).fit(tasks, y)
    sol = attsvm.att_svm(read_tasks(tasks), y)
    np.testing.assert_allclose(fitted.W_, sol.W, atol=1e-7)
    assert fitted.score(tasks, y) == 1.0 and fitted.edit_.certificate.gap < 1e-8


def test_it_learns_and_low_rank_is_low():
    tasks, y = _tasks(120)
    for norm, C in (("frobenius", 10.0), ("nuclear", 0.1)):
        fitted = AttentionSelector(norm=norm, C=C).fit(tasks[:80], y[:80])
        assert fitted.score(tasks[80:], y[80:]) > 0.75
    assert fitted.edit_.rank == fitted.edit_.certificate.rank <= 4


def test_padded_arrays_lists_and_problems_are_the_same():
    tasks, y = _tasks(20)
    problem = read_tasks(tasks)
    dense = np.full((20, problem.T + 1, 6), np.nan)
    dense[:, -1] = problem.Z
    for i, (x, _) in enumerate(tasks):
        dense[i, : len(x)] = x
    objects = np.empty(20, dtype=object)
    objects[:] = tasks
    results = [AttentionSelector().fit(given, y).decision_function(given) for given in (tasks, problem, dense, objects)]
    for other in results[1:]:
        np.testing.assert_allclose(other, results[0])
    assert np.isneginf(results[0]).any()  # padding


def test_probabilities_and_temperature():
    tasks, y = _tasks(200, noise=1.0)
    plain = AttentionSelector(C=1.0).fit(tasks[:100], y[:100])
    tempered = AttentionSelector(C=1.0, temperature_split=0.3).fit(tasks[:100], y[:100])
    assert plain.temperature_ == 1.0 != tempered.temperature_
    np.testing.assert_allclose(plain.W_, tempered.W_)

    def log_loss(model):
        p = model.predict_proba(tasks[100:])
        np.testing.assert_allclose(p.sum(axis=1), 1.0)
        return -np.mean(np.log(p[np.arange(100), y[100:]]))

    assert log_loss(tempered) < log_loss(plain)


def test_search_cross_validation_clone_and_pipeline():
    tasks, y = _tasks(45, noise=0.5)

    class Unit(TransformerMixin, BaseEstimator):
        def fit(self, tasks, y=None):
            return self

        def transform(self, tasks):
            return [(x / np.linalg.norm(x, axis=1, keepdims=True), z / np.linalg.norm(z)) for x, z in tasks]

    search = GridSearchCV(AttentionSelector(), {"C": [0.1, 10.0]}, cv=3, scoring=mean_reciprocal_rank).fit(tasks, y)
    assert search.best_params_["C"] in (0.1, 10.0) and 0 < search.best_score_ <= 1
    assert cross_val_score(AttentionSelector(C=1.0), tasks, y, cv=3, scoring=recall_at(2)).shape == (3,)
    piped = make_pipeline(Unit(), AttentionSelector(C=10.0)).fit(tasks, y)
    assert piped.predict(tasks).shape == (45,) and 0 < piped.score(tasks, y) <= 1
    nested = GridSearchCV(piped, {"attentionselector__prior": [None, 1.0]}, cv=2).fit(tasks, y)
    assert set(nested.best_params_) == {"attentionselector__prior"}
    original = AttentionSelector(C=3.0, prior=2.0)
    assert clone(original).get_params() == original.get_params()


def test_priors():
    tasks, y = _tasks(20)
    far = AttentionSelector(prior=20.0, C=1e-9).fit(tasks, y)  # nothing is worth a change
    np.testing.assert_allclose(far.W_, 20.0 * np.eye(6), atol=1e-6)
    W0 = np.random.default_rng(0).normal(size=(6, 6))
    near = AttentionSelector(prior=W0, C=None).fit(tasks, y)
    np.testing.assert_allclose(near.W_, attsvm.att_svm(read_tasks(tasks), y, prior=W0).W, atol=1e-7)
    with pytest.raises(ValueError, match=r"prior must have shape \(6, 6\)"):
        AttentionSelector(prior=np.eye(3)).fit(tasks, y)


def test_partial_fit_is_fit_on_everything():
    tasks, y = _tasks(60, noise=0.5)
    grown = AttentionSelector(C=1.0)
    for part in (slice(0, 20), slice(20, 45), slice(45, 60)):
        grown.partial_fit(tasks[part], y[part])
    whole = AttentionSelector(C=1.0).fit(tasks, y)
    np.testing.assert_allclose(grown.W_, whole.W_, atol=1e-4)
    assert grown.edit_.certificate.gap < 1e-6
    with pytest.raises(ValueError, match="as those seen before"):
        grown.partial_fit(_tasks(5, d=4)[0], [0] * 5)


def test_scorers():
    class Fixed:
        def decision_function(self, tasks):
            return np.array([[3.0, 2.0, 1.0], [3.0, 2.0, -np.inf], [1.0, 1.0, 0.0]])

    assert mean_reciprocal_rank(Fixed(), None, [0, 1, 0]) == pytest.approx((1 + 0.5 + 1 / 1.5) / 3)
    assert recall_at(1)(Fixed(), None, [0, 1, 2]) == pytest.approx(1 / 3)
    with pytest.raises(ValueError, match="k must be an integer"):
        recall_at(0)


def test_bad_input_is_named():
    tasks, y = _tasks(5)
    fitted = AttentionSelector().fit(tasks, y)
    for given, labels, message in [
        (np.zeros((3, 4)), [0] * 3, r"tasks must have shape \(n, T \+ 1, d\)"),
        ([], [], "at least one task"),
        ([np.eye(3)], [0], "task 0 must be a pair"),
        ([(np.eye(3), np.ones(3)), (np.eye(2), np.ones(3))], [0, 0], "candidates of task 1"),
        ([(np.eye(3), np.ones(3)), (np.eye(3), np.ones(2))], [0, 0], "the query of task 1"),
        (tasks, y[:3], "y must hold one index per task"),
        (tasks, [99, *y[1:]], r"y\[0\] = 99 is not a candidate"),
        (tasks, y + 0.5, "y must hold indices"),
    ]:
        with pytest.raises(ValueError, match=message):
            AttentionSelector().fit(given, labels)
    with pytest.raises(ValueError, match="temperature_split"):
        AttentionSelector(temperature_split=1.0).fit(tasks, y)
    with pytest.raises(ValueError, match="as those of fit"):
        fitted.predict([(np.eye(3), np.ones(3))])
    with pytest.raises(NotFittedError):
        AttentionSelector().predict(tasks)
    conflict = [(np.eye(2), np.ones(2)), (np.eye(2), np.ones(2))]
    with pytest.raises(attsvm.InfeasibleError, match=r"query \(0\)"):
        AttentionSelector(C=None).fit(conflict, [0, 1])


def test_it_pickles():
    tasks, y = _tasks(10)
    fitted = AttentionSelector().fit(tasks, y)
    again = pickle.loads(pickle.dumps(fitted))
    np.testing.assert_array_equal(again.predict(tasks), fitted.predict(tasks))


class Folded(AttentionSelector):
    """Tasks made of the rows of a table, so that scikit-learn's checks have something to feed."""

    def _fold(self, X):
        X = np.asarray(X, dtype=np.float64)
        return np.stack([X, X[:, ::-1], X**2, X], axis=1)

    def fit(self, X, y):
        from sklearn.utils.validation import validate_data

        X, y = validate_data(self, X, y)
        super().fit(self._fold(X), np.unique(y, return_inverse=True)[1] % 3)
        self.n_features_in_ = X.shape[1]
        return self

    def _read(self, X):
        from sklearn.utils.validation import check_is_fitted, validate_data

        check_is_fitted(self, "W_")
        return super()._read(self._fold(validate_data(self, X, reset=False)))

    @property
    def partial_fit(self):
        raise AttributeError("tables come at once")

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        tags.input_tags.two_d_array, tags.input_tags.three_d_array, tags.input_tags.allow_nan = True, False, False
        return tags


def test_scikit_learns_own_checks():
    """The estimator as it is, and on tables folded into tasks.

    Checks that feed a table (samples times features) make no sense for tasks, which are candidates with a query:
    scikit-learn leaves them out by the tag ``three_d_array``. Folded, every one of them runs and holds.
    """
    with pytest.warns(SkipTestWarning, match="three_d_array=True"):
        assert all(r["status"] == "passed" for r in check_estimator(AttentionSelector(), on_skip=None))
    # One hinge slack per task lets two candidates tie at the optimum, which rounding then decides: squared, per row.
    folded = Folded(slack="row", loss="squared_hinge")
    found = check_estimator(folded, on_fail=None, on_skip=None)
    failed = {r["check_name"]: str(r["exception"])[:200] for r in found if r["status"] == "failed"}
    assert failed == {}
    assert sum(r["status"] == "passed" for r in found) >= 30
