"""A scikit-learn estimator: the bilinear score ``x^T W z`` that selects the right candidate, by a convex fit.

A *task* is a set of candidates with a query; its label is the index of the right candidate. `AttentionSelector` finds
the W of least norm (or least distance to a prior) that gives the right candidate of every task a margin of 1, hard or
soft.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from attsvm._lazy import needs
from attsvm.editing.smallest_edit import Edit, edit
from attsvm.problem import AttentionProblem
from attsvm.solvers import ConvergenceWarning as Inaccurate
from attsvm.solvers import Status
from attsvm.solvers.arrays import FloatArray
from attsvm.solvers.penalty import LossKind, SlackKind
from attsvm.tasks import TasksLike, read_tasks
from attsvm.trained_head import TrainedHead
from attsvm.user_input import require_count

with needs("attsvm.sklearn"):
    from sklearn.base import BaseEstimator
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.utils.validation import check_is_fitted

__all__ = ["AttentionSelector", "TasksLike", "mean_reciprocal_rank", "read_tasks", "recall_at"]


class AttentionSelector(BaseEstimator):  # type: ignore[misc]  # scikit-learn ships no types
    """Select the right candidate by ``x^T W z``: a max-margin pointer, aligner or re-ranker.

    Parameters
    ----------
    norm : str
        "frobenius", or "nuclear" for a W of low rank.
    C : float, optional
        Penalty of a task whose margin is violated; None requires every margin (hard margin).
    slack, loss : str
        How violations are penalized: one slack per "query" or "row", "hinge" or "squared_hinge".
    rank : int, optional
        Largest rank of the change from the prior (nuclear norm).
    prior : array_like, shape (dx, dz), float or TrainedHead, optional
        Stay close to this W; a number c stands for c times the identity (cosine similarity on unit vectors, times c).
    margin : float
        What the right candidate must lead by.
    temperature_split : float
        Share of the tasks that `fit` holds out to set the temperature of `predict_proba`; 0 takes temperature 1.
    solver : str
    random_state : int or None
        Of that split.

    Attributes
    ----------
    W_ : ndarray, shape (dx, dz)
    edit_ : Edit
        The solved problem: certificate, change, rank, driving tasks.
    temperature_ : float
    n_features_in_ : int
        dx.

    Examples
    --------
    >>> import numpy as np
    >>> from attsvm.sklearn import AttentionSelector
    >>> rng = np.random.default_rng(0)
    >>> tasks = [(rng.normal(size=(4, 6)), rng.normal(size=6)) for _ in range(30)]
    >>> y = [int(np.argmax(x @ np.arange(6) * z[0])) for x, z in tasks]
    >>> selector = AttentionSelector(norm="nuclear", C=10.0).fit(tasks[:20], y[:20])
    >>> selector.W_.shape, selector.predict(tasks[20:22]).shape
    ((6, 6), (2,))
    """

    def __init__(
        self,
        norm: str = "frobenius",
        C: float | None = 1.0,
        slack: SlackKind = "query",
        loss: LossKind = "hinge",
        rank: int | None = None,
        prior: npt.ArrayLike | float | TrainedHead | None = None,
        margin: float = 1.0,
        temperature_split: float = 0.0,
        solver: str = "auto",
        random_state: int | None = 0,
    ) -> None:
        self.norm = norm
        self.C = C
        self.slack = slack
        self.loss = loss
        self.rank = rank
        self.prior = prior
        self.margin = margin
        self.temperature_split = temperature_split
        self.solver = solver
        self.random_state = random_state

    def fit(self, tasks: TasksLike, y: npt.ArrayLike) -> AttentionSelector:
        """Fit W to tasks and the indices of their right candidates (shape (n,))."""
        problem = read_tasks(tasks)
        labels = self._labels(problem, y)
        self._seen = (problem, labels)
        share = self.temperature_split
        if not 0 <= share < 1:
            raise ValueError(f"temperature_split must lie in [0, 1), got {share}")
        self.temperature_ = 1.0
        held = round(share * problem.n)
        if held:
            order = np.random.default_rng(self.random_state).permutation(problem.n)
            self._solve(_taken(problem, order[held:]), labels[order[held:]])
            scores = self._scores(_taken(problem, order[:held]))
            self.temperature_ = _temperature(scores, labels[order[:held]])
        self._solve(problem, labels)
        return self

    def partial_fit(self, tasks: TasksLike, y: npt.ArrayLike) -> AttentionSelector:
        """Fit to all tasks seen so far and these; the solver starts from the multipliers of the last fit.

        The result is that of `fit` on all of them (to the solver's tolerance); only the time differs.
        """
        if not hasattr(self, "W_"):
            return self.fit(tasks, y)
        problem = read_tasks(tasks)
        labels = self._labels(problem, y)
        old, before = self._seen
        if (problem.dx, problem.dz) != (old.dx, old.dz):
            raise ValueError(
                f"tasks must have dimensions {(old.dx, old.dz)} as those seen before, got {(problem.dx, problem.dz)}"
            )
        both = _joined(old, problem)
        self._seen = (both, np.concatenate([before, labels]))
        self._solve(*self._seen, warm=self.edit_)
        return self

    def _labels(self, problem: AttentionProblem, y: npt.ArrayLike) -> npt.NDArray[np.int64]:
        labels = np.asarray(y)
        if labels.shape != (problem.n,):
            raise ValueError(f"y must hold one index per task, shape ({problem.n},), got {labels.shape}")
        if not np.issubdtype(labels.dtype, np.integer):
            if not (np.issubdtype(labels.dtype, np.floating) and (labels == np.floor(labels)).all()):
                raise ValueError(f"y must hold indices of candidates, got dtype {labels.dtype}")
            labels = labels.astype(np.int64)
        bad = np.flatnonzero((labels < 0) | (labels >= problem.T))
        if not len(bad):
            bad = np.flatnonzero(~problem.allowed[np.arange(problem.n), labels])
        if len(bad):
            raise ValueError(f"y[{bad[0]}] = {labels[bad[0]]} is not a candidate of its task")
        return labels.astype(np.int64)

    def _prior(self, problem: AttentionProblem) -> FloatArray:
        shape = (problem.dx, problem.dz)
        if self.prior is None:
            return np.zeros(shape)
        if isinstance(self.prior, TrainedHead):
            W0 = self.prior.W
        elif np.ndim(self.prior) == 0:
            W0 = np.eye(*shape) * float(np.asarray(self.prior))
        else:
            W0 = np.asarray(self.prior, dtype=np.float64)
        if W0.shape != shape:
            raise ValueError(f"prior must have shape {shape}, got {W0.shape}")
        return W0

    def _solve(self, problem: AttentionProblem, labels: npt.NDArray[np.int64], warm: Edit | None = None) -> None:
        single = problem.allowed.sum(axis=-1) < 2
        wanted = np.where(single, -1, labels)  # a task with one candidate asks for nothing
        options: dict[str, Any] = {}
        if warm is not None and self.norm == "frobenius":
            options["warm_start"] = _padded(warm, problem, wanted)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", Inaccurate)  # told below, in the class that scikit-learn's users filter
            found = edit(
                self._prior(problem), problem, wanted, norm=self.norm, rank=self.rank, margin=self.margin, C=self.C,
                slack=self.slack, loss=self.loss, solver=self.solver, **options,
            )  # fmt: skip
        if found.status is Status.INACCURATE:
            text = f"the fit ended inaccurate: {found.reason}. {Status.INACCURATE.advice}"
            warnings.warn(text, ConvergenceWarning, stacklevel=3)
        self.edit_, self.W_ = found, found.W
        self.n_features_in_ = problem.dx

    def _scores(self, problem: AttentionProblem) -> FloatArray:
        from attsvm.attention import logits

        return logits(problem, self.W_)

    def _read(self, tasks: TasksLike) -> AttentionProblem:
        check_is_fitted(self, "W_")
        problem = read_tasks(tasks)
        if (problem.dx, problem.dz) != self.W_.shape:
            raise ValueError(
                f"tasks must have dimensions {self.W_.shape} as those of fit, got {(problem.dx, problem.dz)}"
            )
        return problem

    def decision_function(self, tasks: TasksLike) -> FloatArray:
        """Scores ``x^T W z`` of every candidate, shape (n, T); -inf for padding."""
        return self._scores(self._read(tasks))

    def predict(self, tasks: TasksLike) -> npt.NDArray[np.int64]:
        """Index of the candidate of highest score, shape (n,)."""
        return np.asarray(self.decision_function(tasks).argmax(axis=-1))

    def predict_proba(self, tasks: TasksLike) -> FloatArray:
        """Softmax of the scores over the temperature, shape (n, T); 0 for padding."""
        scores = self.decision_function(tasks) / self.temperature_
        scores = np.exp(scores - scores.max(axis=-1, keepdims=True))
        return np.asarray(scores / scores.sum(axis=-1, keepdims=True))

    def score(self, tasks: TasksLike, y: npt.ArrayLike) -> float:
        """Share of tasks whose right candidate is selected (top-1)."""
        return float(np.mean(self.predict(tasks) == np.asarray(y)))

    def to_torch(self) -> Any:
        """A `torch.nn.Module` with the factors of W; see `attsvm.export.to_torch`."""
        from attsvm.export import to_torch

        check_is_fitted(self, "W_")
        return to_torch(self.W_)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.required = True
        tags.input_tags.two_d_array = False
        tags.input_tags.three_d_array = True
        tags.input_tags.allow_nan = True
        return tags


def _taken(problem: AttentionProblem, index: npt.NDArray[Any]) -> AttentionProblem:
    mask = None if problem.mask is None else problem.mask[index]
    return AttentionProblem(problem.X[index], Z=problem.Z[index], mask=mask)


def _joined(one: AttentionProblem, two: AttentionProblem) -> AttentionProblem:
    T = max(one.T, two.T)

    def wide(p: AttentionProblem) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
        gap = T - p.T
        return np.pad(p.X, ((0, 0), (0, gap), (0, 0))), np.pad(p.allowed, ((0, 0), (0, gap)))

    (X1, m1), (X2, m2) = wide(one), wide(two)
    mask = np.concatenate([m1, m2])
    return AttentionProblem(
        np.concatenate([X1, X2]), Z=np.concatenate([one.Z, two.Z]), mask=None if mask.all() else mask
    )


def _padded(known: Edit, problem: AttentionProblem, wanted: npt.NDArray[np.int64]) -> FloatArray:
    """Multipliers of the last fit on the rows of the same tasks, 0 on new ones: old tasks come first, as they were."""
    count = int((problem.allowed.sum(axis=-1) - 1)[wanted >= 0].sum())
    start = np.zeros(count)
    old = np.nan_to_num(known.result.multipliers)
    start[: len(old)] = old
    return start


def _temperature(scores: FloatArray, labels: npt.NDArray[np.int64]) -> float:
    """The temperature with the least log-loss, by golden section in its logarithm."""
    from scipy.optimize import minimize_scalar

    def loss(log_t: float) -> float:
        z = scores / np.exp(log_t)
        top = z.max(axis=-1)
        total = top + np.log(np.exp(z - top[:, None]).sum(axis=-1))
        return float(np.mean(total - z[np.arange(len(labels)), labels]))

    return float(np.exp(minimize_scalar(loss, bounds=(-12.0, 12.0), method="bounded").x))


def _places(scores: FloatArray, y: npt.ArrayLike) -> FloatArray:
    """Place of the right candidate, 1 for the best; ties count half of those they tie with."""
    labels = np.asarray(y, dtype=np.int64)
    own = np.take_along_axis(scores, labels[:, None], axis=1)
    finite = np.isfinite(scores)
    return np.asarray(((scores > own) & finite).sum(axis=1) + 0.5 * (((scores == own) & finite).sum(axis=1) - 1) + 1.0)


def mean_reciprocal_rank(estimator: Any, tasks: TasksLike, y: npt.ArrayLike) -> float:
    """Scorer: mean of 1 / place of the right candidate; pass it as ``scoring=``.

    Examples
    --------
    >>> import numpy as np
    >>> from attsvm.sklearn import AttentionSelector, mean_reciprocal_rank
    >>> tasks = [(np.eye(3), np.eye(3)[i]) for i in range(3)]
    >>> fitted = AttentionSelector(C=None).fit(tasks, [0, 1, 2])
    >>> mean_reciprocal_rank(fitted, tasks, [0, 1, 2])
    1.0
    """
    return float(np.mean(1.0 / _places(np.asarray(estimator.decision_function(tasks)), y)))


def recall_at(k: int) -> Callable[[Any, TasksLike, npt.ArrayLike], float]:
    """Scorer: share of tasks whose right candidate is among the best k.

    Examples
    --------
    >>> import numpy as np
    >>> from attsvm.sklearn import AttentionSelector, recall_at
    >>> tasks = [(np.eye(3), np.eye(3)[i]) for i in range(3)]
    >>> recall_at(2)(AttentionSelector(C=None).fit(tasks, [0, 1, 2]), tasks, [0, 1, 2])
    1.0
    """
    require_count("k", k)

    def scorer(estimator: Any, tasks: TasksLike, y: npt.ArrayLike) -> float:
        return float(np.mean(_places(np.asarray(estimator.decision_function(tasks)), y) <= k))

    return scorer
