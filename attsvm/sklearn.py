"""A scikit-learn estimator: the bilinear score ``x^T W z`` that selects the right candidate, by a convex fit.

A *task* is a set of candidates with a query; its label is the index of the right candidate. `AttentionSelector` finds
the W of least norm (or least distance to a prior) that gives the right candidate of every task a margin of 1, hard or
soft. Candidates may also be the rows of a table with group ids, as in learning to rank; their label is then how
relevant each of them is.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from attsvm._lazy import needs
from attsvm.attention import logits
from attsvm.editing.smallest_edit import Edit, edit
from attsvm.problem import AttentionProblem
from attsvm.softmax import softmax
from attsvm.solvers import ConvergenceWarning as Inaccurate
from attsvm.solvers import Status
from attsvm.solvers.arrays import FloatArray, IntArray
from attsvm.solvers.penalty import LossKind, SlackKind
from attsvm.tasks import FlatRows, RankingProblem, TasksLike, is_flat, ranking_problem, read_rows, read_tasks
from attsvm.trained_head import TrainedHead
from attsvm.user_input import finite_array, require_count

with needs("attsvm.sklearn"):
    from sklearn.base import BaseEstimator
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.utils.metadata_routing import MetadataRequest
    from sklearn.utils.validation import check_is_fitted, validate_data

__all__ = ["AttentionSelector", "TasksLike", "mean_reciprocal_rank", "ndcg_at", "read_tasks", "recall_at"]

Scorer: TypeAlias = Callable[..., float]


class AttentionSelector(BaseEstimator):  # type: ignore[misc]  # scikit-learn ships no types
    """Select the right candidate by ``x^T W z``: a max-margin pointer, aligner or re-ranker.

    Parameters
    ----------
    norm : str
        "frobenius", or "nuclear" for a W of low rank.
    C : float, optional
        Penalty of a task whose margin is violated; None requires every margin (hard margin).
    slack, loss : str
        How violations are penalized: one slack per "query" or "row", "hinge" or "squared_hinge". Ignored without C,
        where nothing may be violated.
    rank : int, optional
        Largest rank of the change from the prior (nuclear norm).
    prior : array_like, shape (dx, dz), float, "cosine" or TrainedHead, optional
        Stay close to this W. "cosine" is the identity, that is cosine similarity on unit vectors, and needs dx = dz; a
        number c stands for c times the identity.
    margin : float
        What the right candidate must lead by.
    temperature_split : float
        Share of the tasks that `fit` holds out to set the temperature of `predict_proba`; 0 takes temperature 1.
    solver : str
    random_state : int or None
        Of that split.
    query_columns : int or sequence of int or str, optional
        Of flat rows: which columns describe the query, as their number at the end, or by place or name. None: the
        score is linear in the features of the candidate.
    max_iter : int, optional
        Of the solver; a fit that it cuts short issues scikit-learn's ``ConvergenceWarning``.

    Attributes
    ----------
    W_ : ndarray, shape (dx, dz)
    edit_ : Edit
        The solved problem: certificate, change, rank, driving tasks.
    temperature_ : float
    n_features_in_ : int
        dx of tasks, columns of flat rows.
    n_iter_ : int
        Iterations of the solver.

    Notes
    -----
    X has one of three formats.

    - A sequence of pairs (candidates (T_i, dx), query (dz,)): a list, an array of objects or a pandas Series. Tasks may
      differ in their number of candidates. ``y[i]`` is the index of the right candidate of task i.
    - An `AttentionProblem` with one query per sequence; y as above. ``AttentionProblem(X, Z=Z)`` reads arrays.
    - Flat rows (array or DataFrame, rows times features), one per candidate, with ``qid``: rows of equal ``qid``
      compete, in any order; without ``qid`` all rows do. ``y`` says how relevant each row is: 0 or 1, or grades. Every
      candidate must lead each less relevant one of its group by the margin; with ``slack="query"`` a candidate has one
      slack for all of them. A selector that was fitted with ``qid`` needs it in `predict`, `predict_proba`
      and `score`.

    ``sample_weight`` multiplies C: of each task, or of each row as if it stood there so many times. It is exact for
    every norm, slack and loss: rows and their right-hand sides are multiplied by the weight (squared hinge: by its
    root).

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

    The same tasks as rows of candidate and query, with the right candidate marked:

    >>> rows = np.array([[*x, *z] for X, z in tasks for x in X])
    >>> relevant, qid = (np.arange(120) % 4 == np.repeat(y, 4)).astype(int), np.repeat(np.arange(30), 4)
    >>> flat = AttentionSelector(norm="nuclear", C=10.0, query_columns=6).fit(rows[:80], relevant[:80], qid=qid[:80])
    >>> bool(np.allclose(flat.W_, selector.W_, atol=1e-6))
    True
    """

    def __init__(
        self,
        norm: str = "frobenius",
        C: float | None = 1.0,
        slack: SlackKind = "query",
        loss: LossKind = "hinge",
        rank: int | None = None,
        prior: npt.ArrayLike | float | str | TrainedHead | None = None,
        margin: float = 1.0,
        temperature_split: float = 0.0,
        solver: str = "auto",
        random_state: int | None = 0,
        query_columns: int | Sequence[int] | Sequence[str] | None = None,
        max_iter: int | None = None,
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
        self.query_columns = query_columns
        self.max_iter = max_iter

    def fit(
        self,
        X: TasksLike,
        y: npt.ArrayLike,
        qid: npt.ArrayLike | None = None,
        sample_weight: npt.ArrayLike | None = None,
    ) -> AttentionSelector:
        """Fit W to tasks and the indices of their right candidates, or to flat rows and their relevance.

        Parameters
        ----------
        X, y
            See the notes of the class.
        qid : array_like, shape (rows,), optional
            Groups of flat rows.
        sample_weight : array_like, shape (n,), optional
            One weight per task or row; 0 leaves it out.
        """
        given = self._demands(X, y, qid, sample_weight)
        self._seen, self._with_qid = given, qid is not None
        share = self.temperature_split
        if not 0 <= share < 1:
            raise ValueError(f"temperature_split must lie in [0, 1), got {share}")
        self.temperature_ = 1.0
        held = round(share * given.problem.n)
        if held:
            order = np.random.default_rng(self.random_state).permutation(given.problem.n)
            self._solve(_taken(given, order[held:]))
            self.temperature_ = _temperature(self.W_, _taken(given, order[:held]))
        self._solve(given)
        return self

    def partial_fit(
        self,
        X: TasksLike,
        y: npt.ArrayLike,
        qid: npt.ArrayLike | None = None,
        sample_weight: npt.ArrayLike | None = None,
    ) -> AttentionSelector:
        """Fit to all tasks seen so far and these; the solver starts from the multipliers of the last fit.

        The result is that of `fit` on all of them (to the solver's tolerance); only the time differs. Groups of flat
        rows are those of one call: the same ``qid`` in two calls names two groups.
        """
        if not hasattr(self, "W_"):
            return self.fit(X, y, qid, sample_weight)
        new, old = self._demands(X, y, qid, sample_weight, first=False), self._seen
        sizes = [(given.problem.dx, given.problem.dz) for given in (old, new)]
        if sizes[0] != sizes[1] or new.problem.multi_query != old.problem.multi_query:
            raise ValueError(
                f"tasks must have the format and dimensions {sizes[0]} as those seen before, got {sizes[1]}"
            )
        self._seen = _joined(old, new)
        self._solve(self._seen, warm=self.edit_ if not old.problem.multi_query else None)
        return self

    def _demands(self, X: TasksLike, y: Any, qid: Any, sample_weight: Any, *, first: bool = True) -> RankingProblem:
        """What must lead what, with weights, from any of the formats."""
        if y is None:
            raise ValueError("requires y to be passed, but the target y is None: the index of the right candidate of "
                             "each task, or the relevance of each row")  # fmt: skip
        if is_flat(X):
            rows, relevance = self._flat(X, y, qid, first)
            weights = _weights(sample_weight, len(rows.group), "row of X")
            return ranking_problem(rows, relevance, weights, self.slack == "row")
        if qid is not None:
            raise ValueError("qid groups flat rows; tasks are groups already: leave it out")
        problem = read_tasks(X)
        labels = _labels(problem, y)
        weights = _weights(sample_weight, problem.n, "task")
        if first:
            self.n_features_in_ = problem.dx
        single = problem.allowed.sum(axis=-1) < 2  # such a task has nothing to separate
        return RankingProblem(problem, np.where(single | (weights == 0), -1, labels), weights)

    def _flat(self, X: Any, y: Any, qid: Any, reset: bool) -> tuple[FlatRows, FloatArray]:
        """Rows by their groups, and their relevance (zeros without y)."""
        if y is None:
            table, relevance = validate_data(self, X, reset=reset, dtype=np.float64), np.zeros(0)
        else:
            table, relevance = validate_data(self, X, y, reset=reset, dtype=np.float64, y_numeric=True)
        return read_rows(table, qid, self._query_columns(table.shape[1])), np.asarray(relevance, dtype=np.float64)

    def _query_columns(self, count: int) -> npt.NDArray[np.bool_]:
        """Which columns describe the query, shape (count,)."""
        chosen: Any = self.query_columns
        out = np.zeros(count, dtype=bool)
        if chosen is None:
            return out
        if isinstance(chosen, bool):
            raise ValueError(f"query_columns must be a number of columns, or their places or names, got {chosen}")
        if isinstance(chosen, (int, np.integer)):
            if not 0 <= chosen < count:
                raise ValueError(f"query_columns must leave a column of the candidate: 0 to {count - 1}, got {chosen}")
            out[count - chosen :] = True
            return out
        names = list(getattr(self, "feature_names_in_", ()))
        for column in [chosen] if isinstance(chosen, str) else chosen:
            place = names.index(column) if column in names else column
            if not isinstance(place, (int, np.integer)) or not 0 <= place < count:
                raise ValueError(f"query_columns names {column!r}, which is no column of X (of {count})")
            out[place] = True
        if out.all():
            raise ValueError(f"query_columns must leave a column of the candidate, got all {count}")
        return out

    def _prior(self, problem: AttentionProblem) -> FloatArray:
        shape = (problem.dx, problem.dz)
        if self.prior is None:
            return np.zeros(shape)
        if isinstance(self.prior, str):
            if self.prior != "cosine":
                raise ValueError(f'prior must be an array, a number, a TrainedHead or "cosine", got {self.prior!r}')
            if shape[0] != shape[1]:
                raise ValueError(f'prior="cosine" compares candidates and queries of one dimension, got {shape}')
            return np.eye(shape[0])
        if isinstance(self.prior, TrainedHead):
            W0 = self.prior.W
        elif np.ndim(self.prior) == 0:
            W0 = np.eye(*shape) * float(np.asarray(self.prior))
        else:
            W0 = np.asarray(self.prior, dtype=np.float64)
        if W0.shape != shape:
            raise ValueError(f"prior must have shape {shape}, got {W0.shape}")
        return W0

    def _solve(self, given: RankingProblem, warm: Edit | None = None) -> None:
        problem, wanted = given.problem, given.wanted
        options: dict[str, Any] = {} if self.max_iter is None else {"max_iterations": self.max_iter}
        if self.C is not None:
            options |= {"slack": self.slack, "loss": self.loss}
        weighted = self.C is not None and bool((given.weights[wanted >= 0] != 1.0).any())
        if weighted:
            options["weights"] = given.weights
        elif warm is not None and self.norm == "frobenius":
            options["warm_start"] = _padded(warm, problem, wanted)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", Inaccurate)  # told below, in the class that scikit-learn's users filter
            found = edit(
                self._prior(problem), problem, wanted, norm=self.norm, rank=self.rank, margin=self.margin, C=self.C,
                solver=self.solver, **options,
            )  # fmt: skip
        if found.status is Status.INACCURATE:
            text = f"the fit ended inaccurate: {found.reason}. {Status.INACCURATE.advice}"
            warnings.warn(text, ConvergenceWarning, stacklevel=3)
        self.edit_, self.W_ = found, found.W
        self.n_iter_ = max(1, found.result.iterations)

    def _read(self, X: TasksLike, qid: Any, grouped: bool = True) -> tuple[AttentionProblem, FlatRows | None]:
        """Candidates and queries, and where flat rows are among them; ``grouped``: whether it matters who competes."""
        check_is_fitted(self, "W_")
        rows = None
        if is_flat(X):
            if not self._seen.problem.multi_query:
                raise ValueError("X holds flat rows, but the selector was fitted to tasks (candidates, query)")
            if grouped and qid is None and self._with_qid:
                raise ValueError(
                    "qid must be given for flat rows, as in fit: it says which rows compete. In cross-validation: "
                    "sklearn.set_config(enable_metadata_routing=True), .set_fit_request(qid=True), "
                    '.set_score_request(qid=True) and params={"qid": qid}'
                )
            rows, _ = self._flat(X, None, qid, reset=False)
            problem = rows.problem
        else:
            problem = read_tasks(X)
        if (problem.dx, problem.dz) != self.W_.shape:
            raise ValueError(
                f"tasks must have dimensions {self.W_.shape} as those of fit, got {(problem.dx, problem.dz)}"
            )
        return problem, rows

    def decision_function(self, X: TasksLike) -> FloatArray:
        """Scores ``x^T W z`` of every candidate, shape (n, T) with -inf for padding; of flat rows shape (rows,)."""
        if is_flat(X):
            check_is_fitted(self, "W_")
            table = validate_data(self, X, reset=False, dtype=np.float64)
            query = self._query_columns(table.shape[1])
            if (int((~query).sum()), max(1, int(query.sum()))) != self.W_.shape:
                raise ValueError("X holds flat rows, but the selector was fitted to tasks (candidates, query)")
            scores = table[:, ~query] @ self.W_
            return np.asarray(scores[:, 0] if not query.any() else np.vecdot(scores, table[:, query]))
        problem, _ = self._read(X, None)
        return logits(problem, self.W_)

    def predict(self, X: TasksLike, qid: npt.ArrayLike | None = None) -> IntArray:
        """What y holds: the index of the best candidate (n,); of flat rows 1 for the best of its group, else 0."""
        problem, rows = self._read(X, qid)
        best = np.asarray(logits(problem, self.W_).argmax(axis=-1))
        return best if rows is None else np.asarray((rows.place == best[rows.group]).astype(np.int64))

    def predict_proba(self, X: TasksLike, qid: npt.ArrayLike | None = None) -> FloatArray:
        """Softmax of the scores over the temperature, shape (n, T), 0 for padding; of flat rows (rows,) by group."""
        problem, rows = self._read(X, qid)
        shares = softmax(logits(problem, self.W_) / self.temperature_)
        return shares if rows is None else rows.collect(shares)

    def score(
        self,
        X: TasksLike,
        y: npt.ArrayLike,
        qid: npt.ArrayLike | None = None,
        sample_weight: npt.ArrayLike | None = None,
    ) -> float:
        """Share of tasks whose right candidate is selected; of groups whose best candidate is among the most relevant.

        Groups without a relevant candidate, or with nothing but equally relevant ones, are left out. Weights are per
        task; of flat rows a group has the mean of those of its rows.
        """
        problem, rows = self._read(X, qid)
        best = np.asarray(logits(problem, self.W_).argmax(axis=-1))
        if rows is None:
            weights = _weights(sample_weight, problem.n, "task")
            return _mean(best == np.asarray(y), weights)
        relevance = rows.spread(finite_array("y", y, (len(rows.group),)), -np.inf)
        there = np.isfinite(relevance)
        least = np.where(there, relevance, np.inf).min(axis=1)
        weights = rows.spread(_weights(sample_weight, len(rows.group), "row of X")).sum(axis=1) / there.sum(axis=1)
        most = relevance.max(axis=1)
        hit = np.take_along_axis(relevance, best[:, None], axis=1)[:, 0] == most
        return _mean(hit, weights * (most > least))

    def to_torch(self) -> Any:
        """A `torch.nn.Module` with the factors of W; see `attsvm.export.to_torch`."""
        from attsvm.export import to_torch

        check_is_fitted(self, "W_")
        return to_torch(self.W_)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.required = True
        return tags


def _labels(problem: AttentionProblem, y: npt.ArrayLike) -> IntArray:
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


def _weights(sample_weight: Any, n: int, what: str) -> FloatArray:
    if sample_weight is None:
        return np.ones(n)
    given = np.asarray(sample_weight)
    if given.shape != (n,):
        raise ValueError(f"sample_weight must hold one weight per {what}, shape ({n},), got {given.shape}")
    found = finite_array("sample_weight", given)
    if (found < 0).any():
        raise ValueError(f"sample_weight must be nonnegative, but sample_weight[{int((found < 0).argmax())}] is not")
    if not found.any():
        raise ValueError("sample_weight must hold a positive weight, got zeros only")
    return found


def _mean(values: npt.NDArray[Any], weights: FloatArray) -> float:
    if not weights.any():
        raise ValueError("y must hold a group with a candidate that is more relevant than another one")
    return float(np.average(values, weights=weights))


def _taken(given: RankingProblem, index: npt.NDArray[Any]) -> RankingProblem:
    problem = given.problem
    mask = None if problem.mask is None else problem.mask[index]
    part = AttentionProblem(problem.X[index], Z=problem.Z[index], mask=mask)
    return RankingProblem(part, given.wanted[index], given.weights[index])


def _joined(one: RankingProblem, two: RankingProblem) -> RankingProblem:
    """Both one after the other, padded to the most tokens and queries."""
    T = max(one.problem.T, two.problem.T)
    K = max(one.wanted.shape[-1], two.wanted.shape[-1])

    def wide(given: RankingProblem) -> list[npt.NDArray[Any]]:
        problem, tokens = given.problem, (0, T - given.problem.T)
        queries = [(0, K - given.wanted.shape[1])] if problem.multi_query else []
        allowed = np.pad(problem.allowed, [(0, 0), *queries, tokens])
        allowed[..., 0] |= ~allowed.any(axis=-1)  # padded queries see something
        per_token = [tokens] if given.weights.ndim > given.wanted.ndim else []
        return [
            np.pad(problem.X, [(0, 0), tokens, (0, 0)]),
            np.pad(problem.Z, [(0, 0), *queries, (0, 0)]),
            allowed,
            np.pad(given.wanted, [(0, 0), *queries], constant_values=-1),
            np.pad(given.weights, [(0, 0), *queries, *per_token], constant_values=1.0),
        ]

    X, Z, allowed, wanted, weights = (np.concatenate(pair) for pair in zip(wide(one), wide(two), strict=True))
    return RankingProblem(AttentionProblem(X, Z=Z, mask=None if allowed.all() else allowed), wanted, weights)


def _padded(known: Edit, problem: AttentionProblem, wanted: npt.NDArray[np.int64]) -> FloatArray:
    """Multipliers of the last fit on the rows of the same tasks, 0 on new ones: old tasks come first, as they were."""
    count = int((problem.allowed.sum(axis=-1) - 1)[wanted >= 0].sum())
    start = np.zeros(count)
    old = np.nan_to_num(known.result.multipliers)
    start[: len(old)] = old
    return start


def _temperature(W: FloatArray, given: RankingProblem) -> float:
    """The temperature with the least log-loss, by golden section in its logarithm."""
    from scipy.optimize import minimize_scalar

    counts = given.wanted >= 0
    if not counts.any():
        return 1.0
    scores, labels = logits(given.problem, W)[counts], given.wanted[counts]

    def loss(log_t: float) -> float:
        z = scores / np.exp(log_t)
        top = z.max(axis=-1)
        total = top + np.log(np.exp(z - top[:, None]).sum(axis=-1))
        return float(np.mean(total - z[np.arange(len(labels)), labels]))

    return float(np.exp(minimize_scalar(loss, bounds=(-12.0, 12.0), method="bounded").x))


def _routed(scorer: Scorer) -> Scorer:
    """A scorer that asks scikit-learn's metadata routing for ``qid``."""
    request = MetadataRequest(owner="scorer")
    request.score.add_request(param="qid", alias=True)
    scorer.get_metadata_routing = lambda: request  # type: ignore[attr-defined]
    return scorer


def _ranked(estimator: Any, X: Any, y: Any, qid: Any) -> list[tuple[FloatArray, FloatArray]]:
    """Scores and relevance of the candidates of every task or group that has a relevant candidate."""
    scores = np.asarray(estimator.decision_function(X), dtype=np.float64)
    if scores.ndim == 2:
        labels = np.asarray(y, dtype=np.int64)
        there = np.isfinite(scores)
        gains = np.arange(scores.shape[1]) == labels[:, None]
        return [(scores[i][there[i]], gains[i][there[i]].astype(np.float64)) for i in range(len(scores))]
    if qid is None:
        raise ValueError("qid must be given for flat rows: it says which rows compete with each other")
    relevance, groups = finite_array("y", y, (len(scores),)), np.asarray(qid)
    if (relevance < 0).any():
        raise ValueError("y must be nonnegative to score a ranking: 0 means not relevant")
    if groups.shape != scores.shape:
        raise ValueError(f"qid must hold one group id per row of X, shape {scores.shape}, got {groups.shape}")
    _, number = np.unique(groups, return_inverse=True)
    order = np.argsort(number, kind="stable")
    parts = np.split(order, np.flatnonzero(np.diff(number[order])) + 1)
    found = [(scores[part], relevance[part]) for part in parts if relevance[part].any()]
    if not found:
        raise ValueError("y must mark at least one candidate as relevant")
    return found


def _places(scores: FloatArray, relevant: npt.NDArray[np.bool_], others: npt.NDArray[np.bool_]) -> FloatArray:
    """Place of each relevant candidate among the others, 1 for the best; ties count half of those they tie with."""
    own = scores[relevant][:, None]
    ahead = (scores[others] > own).sum(axis=1) + 0.5 * (scores[others] == own).sum(axis=1)
    return np.asarray(1.0 + ahead)


@_routed
def mean_reciprocal_rank(estimator: Any, X: TasksLike, y: npt.ArrayLike, qid: npt.ArrayLike | None = None) -> float:
    """Scorer: mean over the queries of 1 / place of the first relevant candidate; pass it as ``scoring=``.

    Flat rows need ``qid``, which the scorer requests of scikit-learn's metadata routing; groups without a relevant
    candidate (y > 0) are left out. Ties count half of the candidates that they tie with.

    Examples
    --------
    >>> import numpy as np
    >>> from attsvm.sklearn import AttentionSelector, mean_reciprocal_rank
    >>> tasks = [(np.eye(3), np.eye(3)[i]) for i in range(3)]
    >>> fitted = AttentionSelector(C=None).fit(tasks, [0, 1, 2])
    >>> mean_reciprocal_rank(fitted, tasks, [0, 1, 2])
    1.0
    """
    found = _ranked(estimator, X, y, qid)
    return float(np.mean([1.0 / _places(scores, gains > 0, gains == 0).min() for scores, gains in found]))


def recall_at(k: int) -> Scorer:
    """Scorer: share of the relevant candidates of a query that are among its best k, averaged over queries.

    Examples
    --------
    >>> import numpy as np
    >>> from attsvm.sklearn import AttentionSelector, recall_at
    >>> tasks = [(np.eye(3), np.eye(3)[i]) for i in range(3)]
    >>> recall_at(2)(AttentionSelector(C=None).fit(tasks, [0, 1, 2]), tasks, [0, 1, 2])
    1.0
    """
    require_count("k", k)

    def recall(estimator: Any, X: TasksLike, y: npt.ArrayLike, qid: npt.ArrayLike | None = None) -> float:
        shares = []
        for scores, gains in _ranked(estimator, X, y, qid):
            whole = np.ones(len(scores), dtype=bool)
            places = _places(scores, gains > 0, whole) - 0.5  # each ties with itself
            shares.append(np.mean(places <= k))
        return float(np.mean(shares))

    return _routed(recall)


def ndcg_at(k: int | None = None) -> Scorer:
    """Scorer: normalized discounted cumulative gain of the best k (all by default), averaged over queries.

    The gain of a candidate is its relevance, the discount of place p is ``1 / log2(p + 1)``; tied candidates share
    their discounts equally, as in ``sklearn.metrics.ndcg_score``.

    Examples
    --------
    >>> import numpy as np
    >>> from attsvm.sklearn import AttentionSelector, ndcg_at
    >>> X, y, qid = np.array([[2.0], [1.0], [0.0], [1.0]]), [2, 1, 0, 1], [7, 7, 8, 8]
    >>> ndcg_at(2)(AttentionSelector(C=None).fit(X, y, qid=qid), X, y, qid)
    1.0
    """
    require_count("k", k, optional=True)

    def ndcg(estimator: Any, X: TasksLike, y: npt.ArrayLike, qid: npt.ArrayLike | None = None) -> float:
        return float(np.mean([_ndcg(scores, gains, k) for scores, gains in _ranked(estimator, X, y, qid)]))

    return _routed(ndcg)


def _ndcg(scores: FloatArray, gains: FloatArray, k: int | None) -> float:
    discounts = 1.0 / np.log2(np.arange(2, len(scores) + 2))
    if k is not None:
        discounts[k:] = 0.0
    _, level = np.unique(-scores, return_inverse=True)  # 0 for the best score
    sizes = np.bincount(level)
    ends = np.cumsum(sizes)
    sums = np.add.reduceat(discounts, ends - sizes)
    found = np.bincount(level, weights=gains) / sizes @ sums
    return float(found / (np.sort(gains)[::-1] @ discounts))
