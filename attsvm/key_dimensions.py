"""How many key dimensions the selections of a trained head need, and what each number of dimensions keeps.

A head with r key dimensions scores by a W of rank at most r. On given queries three questions have an answer:

- *Least nuclear norm.* Att-SVM* of the head's own selections. Its certificate bounds the rank of every minimizer: the
  singular values beyond ``certificate.rank`` add up to at most the resolution.
- *Which rank suffices.* Factors ``K (r, dx)`` and ``Q (r, dz)`` whose scores select the same tokens prove that r
  dimensions suffice: every lead is positive by more than all roundings. They are searched by descent on the
  cross-entropy of the selections, from the cut solution and from random starts.
- *Which rank does not.* Rank 0 ties all tokens. In rank 1, ``(k.x)(q.z)``, a query selects the largest or the smallest
  ``k.x`` that it sees, by the sign of ``q.z``. Two queries that select different tokens and see both have opposite
  signs, so an odd cycle of such pairs excludes rank 1. Larger ranks are not excluded: the number is never called least.

Beside them stand the best rank-r scores in closed form (`kq_svd`), the truncated W, and descent on the cross-entropy
with the head's own attention. ``docs/key_dimension.md`` has the derivations.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Literal, get_args

import numpy as np
import numpy.typing as npt

from attsvm._lazy import needs
from attsvm.attention import likeliest, probabilities
from attsvm.problem import AttentionProblem, require_problem
from attsvm.records import Table
from attsvm.softmax import log_softmax
from attsvm.solution import Solution
from attsvm.solvers import Certificate
from attsvm.solvers.arrays import BoolArray, FloatArray, IntArray
from attsvm.solvers.certify.ranks import count_above
from attsvm.solvers.certify.rounding import TINY, gamma, settle
from attsvm.svm import att_svm
from attsvm.trained_head import TrainedHead
from attsvm.user_input import integer_array, is_count, real_array, require_choice, require_count, require_finite

if TYPE_CHECKING:
    import pandas

__all__ = ["METHODS", "KeyDimension", "RankRow", "key_dimension", "kq_svd", "proved_lead", "rank_one_conflict"]

DimensionsOf = Literal["W", "keys"]

METHODS = {
    "margin": "nuclear-norm solution, cut to r",
    "selections": "descent on the selections",
    "attention": "descent on the attention",
    "kq_svd": "KQ-SVD",
    "svd": "truncated W",
}
"""Where the W of a row comes from."""

# Ranks of a table by default, as far as the head has dimensions.
_RANKS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128)
# Lead, in logits of a descent on cross-entropy, at which the descent may end: all tokens are selected.
_LEAD = 0.01
# Relative difference of two singular values up to which the cut between them has no unique answer.
_EQUAL = 1e-9


@dataclass(frozen=True)
class RankRow:
    """What a W of some rank keeps.

    Attributes
    ----------
    rank : int
    method : str
        One of `METHODS`.
    kept, kept_held_out : float
        Share of the queries that select the head's token; nan without held-out queries.
    attention_error, attention_error_held_out : float
        Mean total variation between the attention and the head's. The scale of a W that is only about selections
        ("margin", "selections") is the one of least cross-entropy on the shown queries.
    """

    rank: int
    method: str
    kept: float
    kept_held_out: float
    attention_error: float
    attention_error_held_out: float


@dataclass(frozen=True, eq=False, repr=False)
class KeyDimension:
    """Key dimensions of a head on given queries.

    Attributes
    ----------
    problem : AttentionProblem
        The shown queries, in the space of ``of``.
    selection : ndarray of int, shape ``query_shape``
        The head's own tokens.
    solution : Solution
        Att-SVM* of these selections.
    head : TrainedHead
        `rank` key dimensions that keep every selection: proved by `lead`.
    lead : float
        Proved lower bound of the least lead of a selected token under that head on the tokens as given, in logits.
    least : int
        Proved lower bound of every rank that keeps the selections (at most 2).
    own_norm : float
        Nuclear norm of the head's own W in the scale where its least margin is 1.
    rows : tuple of RankRow
    """

    problem: AttentionProblem
    selection: IntArray
    solution: Solution
    head: TrainedHead
    lead: float
    least: int
    own_norm: float
    rows: tuple[RankRow, ...]

    @property
    def rank(self) -> int:
        """A number of key dimensions that provably suffices, the smallest that was found."""
        return self.head.d_head

    @property
    def W(self) -> FloatArray:
        """The W of `head`."""
        return self.head.W

    @property
    def certificate(self) -> Certificate:
        """Of the nuclear-norm solution: its gap, its rank and the resolution of that rank."""
        return self.solution.certificate

    @property
    def certified_rank(self) -> int:
        """Certified rank of the nuclear-norm solution."""
        rank = self.certificate.rank
        assert rank is not None
        return rank

    @property
    def resolution(self) -> float:
        """What the singular values beyond `certified_rank` add up to at most, as a share of the nuclear norm."""
        found = self.certificate.rank_certificate
        assert found is not None
        return float(found.resolution) / self.solution.norm

    def row(self, rank: int, method: str) -> RankRow:
        """One row of the table.

        Raises
        ------
        ValueError
            When the table has no such row.
        """
        for row in self.rows:
            if (row.rank, row.method) == (rank, method):
                return row
        ranks = sorted({row.rank for row in self.rows})
        raise ValueError(f"the table has no row of rank {rank} and method {method!r}; its ranks are {ranks}")

    @cached_property
    def table(self) -> Table:
        """Rows as a `Table`: shares of selections kept, and mean total variation of the attention."""
        title = f"{self.rank} key dimensions suffice, at least {self.least} needed: both proved"
        columns = ("rank", "W", "selections", "held out", "attention error", "held out")
        rows = [
            (r.rank, METHODS[r.method], r.kept, r.kept_held_out, r.attention_error, r.attention_error_held_out)
            for r in self.rows
        ]
        return Table(title, columns, rows, align="rlrrrr")

    def to_frame(self) -> pandas.DataFrame:
        """Rows as a DataFrame of pandas (the extra ``attsvm[tables]``)."""
        with needs("to_frame"):
            import pandas
        return pandas.DataFrame([vars(row) for row in self.rows])

    def __repr__(self) -> str:
        shown = f"{self.selection.size} queries"
        margin = f"certified rank {self.certified_rank}, gap={self.certificate.gap:.1e}"
        return (
            f"KeyDimension({self.rank} suffice, at least {self.least} needed, {shown}, nuclear-norm solution: {margin})"
        )

    def _repr_html_(self) -> str:
        return self.table.html()


@dataclass(frozen=True, eq=False)
class _Shown:
    """Queries with an axis of K, and what the head does with them."""

    problem: AttentionProblem
    X: FloatArray  # (n, T, dx)
    Z: FloatArray  # (n, K, dz)
    allowed: BoolArray  # (n, K, T)
    choice: BoolArray  # (n, K): sees two tokens at least
    selection: IntArray  # (n, K)
    attention: FloatArray  # (n, K, T)

    @classmethod
    def of(cls, problem: AttentionProblem, W: FloatArray) -> _Shown:
        X, Z, allowed = problem.X.astype(np.float64), problem.Z.astype(np.float64), problem.allowed
        chosen, attention = likeliest(problem, W), probabilities(problem, W)
        if not problem.multi_query:
            Z, allowed, chosen, attention = Z[:, None], allowed[:, None], chosen[:, None], attention[:, None]
        return cls(problem, X, Z, allowed, allowed.sum(axis=-1) > 1, chosen, attention)

    @classmethod
    def selecting(cls, problem: AttentionProblem, selection: npt.ArrayLike) -> _Shown:
        """Tokens that are given, with uniform attention."""
        shown = cls.of(problem, np.zeros((problem.dx, problem.dz)))
        chosen = integer_array("selection", selection)
        if chosen.shape != problem.query_shape:
            raise ValueError(
                f"selection must have shape {problem.query_shape}, one token per query, got {chosen.shape}"
            )
        return replace(shown, selection=chosen.reshape(shown.selection.shape))

    @cached_property
    def count(self) -> int:
        """Queries that choose."""
        return int(self.choice.sum())

    @cached_property
    def one_hot(self) -> FloatArray:
        """The selections as attention, shape (n, K, T)."""
        return np.asarray(np.arange(self.X.shape[1]) == self.selection[..., None], dtype=np.float64)

    def logits(self, K: FloatArray, Q: FloatArray) -> FloatArray:
        """Scores of factors, -inf where masked, shape (n, K, T)."""
        return np.where(self.allowed, (self.Z @ Q.T) @ (self.X @ K.T).swapaxes(-1, -2), -np.inf)

    def leads(self, logits: FloatArray) -> FloatArray:
        """Lead of the selected token of each query that chooses, shape (count,)."""
        own = np.take_along_axis(logits, self.selection[..., None], axis=-1)[..., 0]
        return np.asarray((own - np.where(self.one_hot > 0, -np.inf, logits).max(axis=-1))[self.choice])

    def proved_lead(self, K: FloatArray, Q: FloatArray) -> float:
        """`proved_lead` of factors."""
        scores = (self.Z @ Q.T) @ (self.X @ K.T).swapaxes(-1, -2)
        size = (np.abs(self.Z) @ np.abs(Q).T) @ (np.abs(self.X) @ np.abs(K).T).swapaxes(-1, -2)
        rounds = self.X.shape[-1] + self.Z.shape[-1] + len(K) + 3
        error = settle(gamma(rounds) * size * (1.0 + gamma(rounds)) + 8.0 * TINY * rounds**2 * (1.0 + size))
        own = np.take_along_axis(scores - error, self.selection[..., None], axis=-1)
        others = np.where(self.allowed & (self.one_hot == 0), scores + error, -np.inf)
        return float((own[..., 0] - others.max(axis=-1))[self.choice].min(initial=np.inf))

    def measured(self, logits: FloatArray, scale: float) -> tuple[float, float]:
        """Share of selections kept, and mean total variation of the attention at this scale."""
        attention = np.exp(log_softmax(scale * logits))
        away = 0.5 * np.abs(attention - self.attention).sum(axis=-1)
        kept = np.where(self.allowed, logits, -np.inf).argmax(axis=-1) == self.selection
        return float(kept[self.choice].mean()), float(away[self.choice].mean())

    def fitted_scale(self, logits: FloatArray) -> float:
        """The multiple of the logits whose attention has the least cross-entropy with the head's: convex in it."""
        from scipy.optimize import minimize_scalar

        finite = np.where(self.allowed, logits, 0.0)
        size = float(np.abs(finite).max()) or 1.0

        def entropy(log_scale: float) -> float:
            values = log_softmax(np.exp(log_scale) * logits)
            return -float((np.where(self.allowed, values, 0.0) * self.attention).sum(axis=-1)[self.choice].mean())

        found = minimize_scalar(entropy, bounds=(np.log(1e-3 / size), np.log(1e3 / size)), method="bounded")
        return float(np.exp(found.x))


def proved_lead(problem: AttentionProblem, K: npt.ArrayLike, Q: npt.ArrayLike, selection: npt.ArrayLike) -> float:
    """Lower bound of the least lead ``min (x_selected - x_t)^T K^T Q z``, all roundings subtracted.

    The product ``K^T Q`` is never formed: its rank is at most the number of rows of K. A computed score errs by at most
    ``gamma(dx + dz + r + 3) |z|' |Q|' |K| |x|`` (``attsvm.solvers.certify.rounding``).

    Parameters
    ----------
    problem : AttentionProblem
    K, Q : array_like, shapes (r, dx) and (r, dz)
    selection : array_like of int, shape ``query_shape``

    Returns
    -------
    float
        Positive: these factors provably select these tokens. inf where no query sees two tokens.

    Examples
    --------
    >>> import attsvm
    >>> from attsvm.key_dimensions import proved_lead
    >>> problem = attsvm.AttentionProblem([[[1.0, 0.0], [0.0, 2.0]]], Z=[[1.0]])
    >>> 0.9 < proved_lead(problem, [[0.0, 0.5]], [[1.0]], [1]) < 1.0
    True
    """
    left, right = (real_array(name, given).astype(np.float64) for name, given in (("K", K), ("Q", Q)))
    if left.ndim != 2 or right.ndim != 2 or (left.shape[1], right.shape[1]) != (problem.dx, problem.dz):
        raise ValueError(
            f"K and Q must have shapes (r, {problem.dx}) and (r, {problem.dz}), got {left.shape} and {right.shape}"
        )
    return _Shown.selecting(problem, selection).proved_lead(left, right)


def rank_one_conflict(problem: AttentionProblem, selection: npt.ArrayLike) -> list[tuple[int, int]]:
    """Queries whose selections no W of rank 1 can make: an odd cycle of queries with opposite signs, or none.

    Parameters
    ----------
    problem : AttentionProblem
    selection : array_like of int, shape ``query_shape``

    Returns
    -------
    list of (int, int)
        Sequence and query of each, in the order of the cycle; empty where this argument excludes nothing.

    Examples
    --------
    Three queries of one sequence that select three tokens, of which two at most lie at the ends of a line:

    >>> import numpy as np
    >>> import attsvm
    >>> from attsvm.key_dimensions import rank_one_conflict
    >>> problem = attsvm.AttentionProblem(np.eye(3)[None], Z=np.eye(3)[None])
    >>> rank_one_conflict(problem, [[0, 1, 2]]), rank_one_conflict(problem, [[0, 1, 0]])
    ([(0, 0), (0, 1), (0, 2)], [])
    """
    shown = _Shown.selecting(require_problem(problem), selection)
    for i, (chosen, allowed) in enumerate(zip(shown.selection, shown.allowed, strict=True)):
        sees = allowed[:, chosen]  # (query, query whose token it may see)
        opposite = sees & sees.T & (chosen[:, None] != chosen) & shown.choice[i] & shown.choice[i][:, None]
        cycle = _odd_cycle(opposite)
        if cycle:
            return [(i, k) for k in cycle]
    return []


def _odd_cycle(opposite: BoolArray) -> list[int]:
    """Nodes of an odd cycle of a graph, or nothing where it is bipartite."""
    parent: dict[int, int] = {}
    depth: dict[int, int] = {}
    for root in range(len(opposite)):
        if root in depth:
            continue
        parent[root], depth[root], waiting = root, 0, [root]
        for node in waiting:
            for other in np.flatnonzero(opposite[node]).tolist():
                if other not in depth:
                    parent[other], depth[other] = node, depth[node] + 1
                    waiting.append(other)
                elif depth[other] == depth[node]:  # breadth first: an edge inside a level closes an odd cycle
                    return sorted(_joined_paths(parent, node, other))
    return []


def _joined_paths(parent: dict[int, int], one: int, two: int) -> list[int]:
    """Both paths of equal length up to the first node that they share."""
    left, right = [one], [two]
    while left[-1] != right[-1]:
        left.append(parent[left[-1]])
        right.append(parent[right[-1]])
    return [*left, *right[:-1]]


def kq_svd(problem: AttentionProblem, W: npt.ArrayLike, rank: int) -> tuple[FloatArray, FloatArray]:
    """Factors of the W of this rank whose scores are nearest to those of W, over all tokens and all queries.

    ``X W_r Z^T`` of rank r is nearest to ``X W Z^T`` in the Frobenius norm when it is the truncated singular value
    decomposition; with ``X = Q_x R_x`` and ``Z = Q_z R_z`` that of ``R_x W R_z^T``, and
    ``W_r = R_x^+ (R_x W R_z^T)_r R_z^+T`` (our derivation; compare arXiv 2512.05916).

    Parameters
    ----------
    problem : AttentionProblem
        Its tokens and queries, those that no query sees or that see one token left out.
    W : array_like, shape (dx, dz)
    rank : int

    Returns
    -------
    K, Q : ndarray, shapes (rank, dx) and (rank, dz)

    Examples
    --------
    >>> import attsvm
    >>> from attsvm.key_dimensions import kq_svd
    >>> problem = attsvm.random_problem(n=6, T=8, d=4, seed=0)
    >>> W = attsvm.att_svm(problem).W
    >>> K, Q = kq_svd(problem, W, 4)
    >>> bool(abs(K.T @ Q - W).max() < 1e-12)
    True
    """
    matrix = _read_W(W, require_problem(problem))
    require_count("rank", rank)
    return _cut_scores(_Shown.of(problem, matrix), matrix, rank)


def _cut_scores(shown: _Shown, W: FloatArray, rank: int) -> tuple[FloatArray, FloatArray]:
    seen = (shown.allowed & shown.choice[..., None]).any(axis=1)
    left, right = (np.asarray(np.linalg.qr(p, mode="r")) for p in (shown.X[seen], shown.Z[shown.choice]))
    U, s, Vt = np.linalg.svd(left @ W @ right.T, full_matrices=False)
    root = np.sqrt(s[:rank])
    K, Q = (U[:, :rank] * root).T @ np.linalg.pinv(left).T, (Vt[:rank] * root[:, None]) @ np.linalg.pinv(right).T
    return K, Q


def _cut(W: FloatArray, rank: int) -> tuple[FloatArray, FloatArray]:
    """Balanced factors of the truncated singular value decomposition."""
    U, s, Vt = np.linalg.svd(W, full_matrices=False)
    root = np.sqrt(s[:rank])
    return (U[:, :rank] * root).T, Vt[:rank] * root[:, None]


def _descend(
    shown: _Shown, target: FloatArray, start: tuple[FloatArray, FloatArray], steps: int, lead: float = np.inf
) -> tuple[FloatArray, FloatArray]:
    """L-BFGS on the mean cross-entropy between a target and the attention of factors; ends early at this lead."""
    from scipy.optimize import minimize

    r, dx, dz = len(start[0]), shown.X.shape[-1], shown.Z.shape[-1]
    weight = np.where(shown.choice, 1.0 / shown.count, 0.0)[..., None]
    X, Z = shown.X.reshape(-1, dx), shown.Z.reshape(-1, dz)
    shape = (*shown.X.shape[:2], r), (*shown.Z.shape[:2], r)

    def split(flat: FloatArray) -> tuple[FloatArray, FloatArray]:
        return flat[: r * dx].reshape(r, dx), flat[r * dx :].reshape(r, dz)

    def value(flat: FloatArray) -> tuple[float, FloatArray]:
        K, Q = split(flat)
        left, right = (X @ K.T).reshape(shape[0]), (Z @ Q.T).reshape(shape[1])
        logs = log_softmax(np.where(shown.allowed, right @ left.swapaxes(-1, -2), -np.inf))
        loss = -float((weight * np.where(shown.allowed, logs, 0.0) * target).sum())
        change = weight * (np.exp(logs) - target)
        into_keys = (change.swapaxes(-1, -2) @ right).reshape(-1, r)
        into_queries = (change @ left).reshape(-1, r)
        return loss, np.concatenate([(into_keys.T @ X).ravel(), (into_queries.T @ Z).ravel()])

    def watch(flat: FloatArray) -> None:
        if np.isfinite(lead) and shown.leads(shown.logits(*split(flat))).min() > lead:
            raise StopIteration

    first = np.concatenate([part.ravel() for part in start])
    found = minimize(
        value,
        first,
        jac=True,
        method="L-BFGS-B",
        callback=watch,
        options={"maxiter": steps, "maxcor": 20, "gtol": 1e-9},
    )
    return split(np.asarray(found.x))


def _unit_logits(shown: _Shown, K: FloatArray, Q: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Factors in the scale in which logits have standard deviation 1."""
    spread = float(shown.logits(K, Q)[shown.allowed].std())
    root = 1.0 / np.sqrt(spread) if spread > 0 else 1.0
    return K * root, Q * root


class _Search:
    """Factors of each rank that keep as many selections as were found, computed once."""

    def __init__(self, shown: _Shown, solved: FloatArray, starts: int, steps: int, seed: int) -> None:
        self.shown, self.solved, self.starts, self.steps, self.seed = shown, solved, starts, steps, seed
        self.found: dict[int, tuple[float, FloatArray, FloatArray]] = {}

    def at(self, rank: int) -> tuple[float, FloatArray, FloatArray]:
        """The least proved lead and the factors; the best share of selections where no lead is proved."""
        if rank not in self.found:
            self.found[rank] = self._searched(rank)
        return self.found[rank]

    def _searched(self, rank: int) -> tuple[float, FloatArray, FloatArray]:
        shown, rng = self.shown, np.random.default_rng([self.seed, rank])
        best: tuple[float, float, FloatArray, FloatArray] | None = None
        for k in range(self.starts):
            if k == 0:
                start = _cut(self.solved, rank)
            else:
                sides = (shown.X.shape[-1], shown.Z.shape[-1])
                start = rng.standard_normal((rank, sides[0])), rng.standard_normal((rank, sides[1]))
            K, Q = _descend(shown, shown.one_hot, _unit_logits(shown, *start), self.steps, _LEAD)
            lead = shown.proved_lead(K, Q)
            kept = shown.measured(shown.logits(K, Q), 1.0)[0]
            if best is None or (lead > 0, kept) > best[:2]:
                best = lead > 0, kept, K, Q
            if lead > 0:
                return lead, K, Q
        assert best is not None
        return -np.inf, best[2], best[3]


def _sufficient(
    search: _Search, own: tuple[FloatArray, FloatArray], least: int
) -> tuple[float, FloatArray, FloatArray]:
    """The smallest rank for which factors with a proved lead were found: cuts of the solution, then bisection."""
    high = None
    for rank in range(max(least, 1), min(search.solved.shape) + 1):
        K, Q = _cut(search.solved, rank)
        lead = search.shown.proved_lead(K, Q)
        if lead > 0:
            high = lead, K, Q
            break
    if high is None or len(high[1]) > len(own[0]):
        lead = search.shown.proved_lead(*own)
        high = (lead, *own) if lead > 0 else high
    if high is None:
        raise ValueError("head must lead by more than rounding: two tokens of some query have equal scores")
    low = least - 1
    while len(high[1]) - low > 1:
        middle = (low + len(high[1])) // 2
        found = search.at(middle)
        if found[0] > 0:
            high = found
        else:
            low = middle
    return high


def _read_W(W: npt.ArrayLike, problem: AttentionProblem) -> FloatArray:
    matrix = real_array("head", W).astype(np.float64)
    if matrix.shape != (problem.dx, problem.dz):
        raise ValueError(f"head must have a W of shape {(problem.dx, problem.dz)}, as problem has, got {matrix.shape}")
    require_finite("head", matrix)
    return matrix


def _in_keys(head: TrainedHead, problem: AttentionProblem) -> AttentionProblem:
    """The same queries on keys and mapped queries."""
    return AttentionProblem(
        problem.X.astype(np.float64) @ head.key_map.T, Z=problem.Z.astype(np.float64) @ head.query_map.T,
        mask=problem.mask,
    )  # fmt: skip


def _ranks(given: Sequence[int] | None, most: int) -> list[int]:
    if given is None:
        return [r for r in _RANKS if r <= most]
    if not len(given) or not all(is_count(r) for r in given):
        raise ValueError(f"ranks must hold integers >= 1, got {list(given)!r}")
    return sorted({int(r) for r in given if r <= most})


def key_dimension(
    head: TrainedHead | npt.ArrayLike,
    problem: AttentionProblem,
    *,
    of: DimensionsOf = "W",
    held_out: AttentionProblem | None = None,
    ranks: Sequence[int] | None = None,
    starts: int = 4,
    steps: int = 300,
    seed: int = 0,
    tolerance: float | None = None,
    time_limit: float | None = None,
) -> KeyDimension:
    """How many key dimensions the head's own selections need on these queries, certified.

    `KeyDimension.rank` dimensions suffice (proved by factors with positive leads) and `KeyDimension.least` are needed
    (proved); what lies between is open. The table says what each rank keeps, by five ways to choose W, on the shown
    queries and on held-out ones.

    Parameters
    ----------
    head : TrainedHead or array_like, shape (dx, dz)
        The head, or its W.
    problem : AttentionProblem
        The shown tokens and queries; of a head with biases with the constant 1 (`TrainedHead.extend`).
    of : {"W", "keys"}
        "W": any W on these tokens and queries. "keys": ``W = key_map^T M query_map``, linear maps of the keys and
        queries that the head has, as a compressed cache of keys stores them; needs a TrainedHead. Few tokens tell
        little: where all are linearly independent, and the queries too, two dimensions can keep any selections.
    held_out : AttentionProblem, optional
        Other queries of the same head.
    ranks : sequence of int, optional
        Ranks of the table; 1, 2, 3, 4, 6, 8, 12, ... up to the head's own by default. Certified rank and `rank` are
        always among them.
    starts, steps : int
        Of each search for a smaller rank: starts (the first from the nuclear-norm solution), and L-BFGS steps of each.
    seed : int
        Of the random starts.
    tolerance, time_limit : float, optional
        Of the nuclear-norm solver, as for `att_svm`.

    Returns
    -------
    KeyDimension

    Examples
    --------
    >>> import numpy as np
    >>> import attsvm
    >>> rng = np.random.default_rng(0)
    >>> head = attsvm.TrainedHead.from_weights(rng.normal(size=(4, 8)), rng.normal(size=(4, 8)))
    >>> h = rng.normal(size=(12, 6, 8))
    >>> found = attsvm.key_dimension(head, head.problem(h[:8]), of="keys", held_out=head.problem(h[8:]))
    >>> found.rank, found.least, found.lead > 0, found.head.d_head
    (4, 2, True, 4)
    >>> found.row(4, "kq_svd").kept
    1.0
    """
    given, whole = _read(head, problem, of, held_out)
    for name, count in (("starts", starts), ("steps", steps)):
        require_count(name, count)
    trained = head if isinstance(head, TrainedHead) else None
    projected = trained if of == "keys" else None
    if projected is not None:
        given = _in_keys(projected, given)
        held_out = None if held_out is None else _in_keys(projected, held_out)
        W = projected.scale * np.eye(projected.d_head)
        own = W, np.eye(projected.d_head)
    else:
        W = whole
        own = (
            _cut(W, max(1, int(count_above(np.linalg.svd(W, compute_uv=False)))))
            if trained is None
            else (trained.scale * trained.key_map, np.asarray(trained.query_map))
        )
    asked = _ranks(ranks, len(own[0]))
    shown = _Shown.of(given, W)
    if not shown.count:
        raise ValueError("problem must have a query that sees two tokens")
    chosen = shown.selection.reshape(given.query_shape)
    solution: Solution = att_svm(given, chosen, norm="nuclear", tolerance=tolerance, time_limit=time_limit)
    search = _Search(shown, np.asarray(solution.W), starts, steps, seed)
    least = 2 if rank_one_conflict(given, chosen) else 1
    lead, K, Q = _sufficient(search, own, least)
    margin = float(shown.leads(shown.logits(*own)).min())
    size = float(np.linalg.svd(W, compute_uv=False).sum()) / margin if margin > 0 else float("inf")
    listed = {*asked, len(K)} | ({solution.certificate.rank} if solution.certificate.rank else set())
    rows = _table_rows(search, W, projected, None if held_out is None else _Shown.of(held_out, W), sorted(listed))
    if projected is not None:  # proved anew for the factors that are returned, on the tokens that were given
        K, Q = K @ projected.key_map, Q @ projected.query_map
        lead = proved_lead(problem, K, Q, chosen)
    small = TrainedHead(K, Q, 1.0, trained is not None and trained.biased)
    return KeyDimension(given, chosen, solution, small, lead, least, size, rows)


def _read(
    head: TrainedHead | npt.ArrayLike, problem: AttentionProblem, of: str, held_out: AttentionProblem | None
) -> tuple[AttentionProblem, FloatArray]:
    """The checked problem and the W of the head."""
    given = require_problem(problem)
    require_choice("of", of, *get_args(DimensionsOf))
    if of == "keys" and not isinstance(head, TrainedHead):
        raise ValueError('of="keys" needs a TrainedHead with its key and query maps, got a bare W')
    for name, one in (("problem", given), ("held_out", held_out)):
        if one is not None and require_problem(one, name).batch is not None:
            raise ValueError(f"{name} must be one problem; index the batch first, e.g. problem[0]")
    W = _read_W(head.W if isinstance(head, TrainedHead) else head, given)
    if held_out is not None and (held_out.dx, held_out.dz) != W.shape:
        raise ValueError(
            f"held_out must have tokens and queries of dimension {W.shape}, got {(held_out.dx, held_out.dz)}"
        )
    return given, W


def _table_rows(
    search: _Search, W: FloatArray, head: TrainedHead | None, others: _Shown | None, ranks: list[int]
) -> tuple[RankRow, ...]:
    """What each rank keeps, by each method."""
    shown = search.shown
    rows = []
    for rank in ranks:
        closed = _cut_scores(shown, W, rank)
        found = {
            "margin": _cut(search.solved, rank),
            "selections": search.at(rank)[1:],
            "attention": _descend(shown, shown.attention, closed, search.steps),
            "kq_svd": closed,
        }
        cut = _cut_weights(W, head, rank)
        for method, (K, Q) in (found | ({} if cut is None else {"svd": cut})).items():
            logits = shown.logits(K, Q)
            scale = shown.fitted_scale(logits) if method in ("margin", "selections") else 1.0
            here = shown.measured(logits, scale)
            there = (float("nan"),) * 2 if others is None else others.measured(others.logits(K, Q), scale)
            rows.append(RankRow(rank, method, here[0], there[0], here[1], there[1]))
    return tuple(rows)


def _cut_weights(W: FloatArray, head: TrainedHead | None, rank: int) -> tuple[FloatArray, FloatArray] | None:
    """The truncated W of the head, on its keys and queries where these are the tokens; None where it is not unique."""
    whole = W if head is None else head.W
    values = np.linalg.svd(whole, compute_uv=False)
    if rank < len(values) and values[rank - 1] - values[rank] <= _EQUAL * values[0]:
        return None
    K, Q = _cut(whole, rank)
    if head is None:
        return K, Q
    return K @ np.linalg.pinv(head.key_map), Q @ np.linalg.pinv(head.query_map)
