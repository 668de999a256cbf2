"""Lower bounds on the norm of every locally optimal completion of a partial selection.

A locally optimal selection has ``W = sum_i v_i z_i^T`` with ``v_i = sum_t lam_it (x_alpha - x_t)`` over tokens t of
lower score, ``lam >= 0``. With the tokens of query i sorted by score and ``e_il = x_(l+1) - x_(l)``, this reads
``v_i = sum_l g_il e_il`` where g_i grows by ``lam`` at each lower token and is 0 from the selected token on. So for
*any* locally optimal completion of a partial selection there is a vector g with

- ``g_i`` nonnegative, nondecreasing up to the selected token and 0 after it, for each assigned query;
- ``g_j >= 0`` for each unassigned query;
- every row of the assigned queries satisfied, against tokens of lower *and* higher score;
- ``v_i^T W z_i = sum_t lam_it = g_i(last)`` for each assigned query (complementary slackness).

With weights ``rho >= 0`` on the last condition the squared norm equals ``|W|^2 + rho sum_i (v_i^T W z_i - g_i(last))``
over the assigned queries; minimizing this over the other three is convex for small enough rho, and bounds the
norm from below. A least-distance problem in g, certified like any other; see docs/local_optima.md.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from attsvm._arrays import BoolArray, IntArray
from attsvm.enumeration.space import SelectionSpace
from attsvm.solvers import MarginProblem, solve_batch

__all__ = ["CompletionBound", "partial_norms"]

FloatArray = npt.NDArray[np.float64]

# Least eigenvalue of the scaled Gram matrix of the steps e_il z_i^T: below it they count as dependent.
_INDEPENDENT = 1e-7
# Largest weight of complementary slackness: beyond it bounds lose to rounding what they gain.
_LARGEST_WEIGHT = 50.0

# Linear systems per bound: more are rarely needed, and a solve cut short still proves what it reached.
_ITERATIONS = 60


def partial_norms(space: SelectionSpace, partial: IntArray, queries: IntArray, norm: str) -> FloatArray:
    """Norm of the SVM over all rows of the assigned queries: a bound that holds for any norm.

    Parameters
    ----------
    space : SelectionSpace
    partial : ndarray of int, shape (B, k)
    queries : ndarray of int, shape (k,)
        The queries that are assigned.
    norm : str

    Returns
    -------
    ndarray, shape (B,)
        Proved lower bounds; infinite where the rows are proved infeasible.

    Examples
    --------
    >>> import numpy as np
    >>> import attsvm
    >>> from attsvm.enumeration.relaxation import partial_norms
    >>> from attsvm.enumeration.space import SelectionSpace
    >>> space = SelectionSpace(attsvm.random_problem(n=3, T=4, d=4, seed=5))
    >>> one = partial_norms(space, np.array([[1]]), np.array([0]), "frobenius")
    >>> two = partial_norms(space, np.array([[1, 2]]), np.array([0, 1]), "frobenius")
    >>> bool(one <= two)
    True
    """
    keep = space.allowed[queries] & (np.arange(space.T) != partial[..., None])
    out = np.zeros(len(partial))
    some = keep.reshape(len(partial), -1).any(axis=1)
    if some.any():
        found = solve_batch(space.rows(partial[some], keep[some], queries), norm, rescue=False)
        # Infinite where infeasible; what is proved of the norm otherwise.
        out[some] = np.where(found.status == "failed", 0.0, found.certificate.lower_bound)
    return out


@dataclass(frozen=True, eq=False)
class _Level:
    """Rows of all (query, position) pairs in the coordinates of one set of assigned queries."""

    margin: FloatArray  # (q, T, T - 1, p): row of the selected position against each other position
    cone: FloatArray  # (q, T + 1, T - 1, p): the last position stands for "unassigned"
    last: FloatArray  # (q, T, p): g(last) as a linear function
    weight: float


class CompletionBound:
    """Bounds for partial selections whose queries are assigned in a fixed order (Frobenius norm).

    Parameters
    ----------
    space : SelectionSpace
    order : ndarray of int, shape (q,)
        A partial selection of depth k assigns ``order[:k]``.

    Attributes
    ----------
    usable : bool
        False when the steps between tokens of neighbouring scores are linearly dependent (more queries than
        dimensions, duplicate tokens): then use `partial_norms`.

    Examples
    --------
    >>> import numpy as np
    >>> import attsvm
    >>> from attsvm.enumeration.relaxation import CompletionBound
    >>> from attsvm.enumeration.space import SelectionSpace
    >>> space = SelectionSpace(attsvm.random_problem(n=3, T=4, d=4, seed=5))
    >>> bound = CompletionBound(space, np.arange(3))
    >>> value = bound(np.array([[2, 3]])).item()  # (2, 3, 3) is locally optimal
    >>> bound.usable, 1.0 < value <= attsvm.att_svm(space.problem, [2, 3, 3]).norm
    (True, True)
    """

    def __init__(self, space: SelectionSpace, order: IntArray) -> None:
        self.space, self.order = space, order
        q, T = space.q, space.T
        # Positions: allowed tokens by increasing score, masked ones after them (and never used).
        rank = np.argsort(np.where(space.allowed, space.scores, np.inf), axis=1, kind="stable")
        self._position = np.argsort(rank, axis=1)  # position of token t
        sorted_tokens = np.take_along_axis(space.tokens, rank[..., None], axis=1)
        count = space.allowed.sum(axis=1)
        self._count = count
        step = np.diff(sorted_tokens, axis=1)
        exists = np.arange(T - 1) < (count - 1)[:, None]
        self._owner, self._place = np.nonzero(exists)
        E = step[exists]
        self._number = np.full((q, T - 1), -1)
        self._number[exists] = np.arange(len(E))
        self._gram = (E @ E.T) * (space.queries @ space.queries.T)[np.ix_(self._owner, self._owner)]
        self._levels: dict[int, _Level | None] = {}
        self.usable = self._independent(self._gram)

    @staticmethod
    def _independent(gram: FloatArray) -> bool:
        size = np.sqrt(np.diag(gram))
        if not (size > 0).all():
            return False
        return bool(np.linalg.eigvalsh(gram / size / size[:, None])[0] > _INDEPENDENT)

    def _weighted(self, depth: int) -> tuple[FloatArray, float]:
        """Gram matrix with the largest weight up to the schedule that keeps it positive definite."""
        share = depth / self.space.q
        weight = min(_LARGEST_WEIGHT, 2.0 * share**2 / max(1.0 - share, 1e-9))
        assigned = np.isin(self._owner, self.order[:depth]).astype(np.float64)
        pairs = (assigned[:, None] + assigned) / 2
        while weight > 1e-3:
            gram = self._gram * (1.0 + weight * pairs)
            if self._independent(gram):
                return gram, weight
            weight *= 0.7
        return self._gram, 0.0

    def _level(self, depth: int) -> _Level:
        cached = self._levels.get(depth)
        if cached is not None:
            return cached
        q, T, p = self.space.q, self.space.T, len(self._owner)
        gram, weight = self._weighted(depth)
        inverse = np.linalg.inv(np.linalg.cholesky(gram))  # w = C^T g, so a row r of g becomes C^-1 r
        unit = np.zeros((q, T - 1, p))
        unit[self._owner, self._place] = np.eye(p)
        # Row of x_(k) - x_(0) in g: the sum of the first k steps, each a row of the plain Gram matrix.
        steps = np.zeros((q, T - 1, p))
        steps[self._owner, self._place] = self._gram
        reach = np.concatenate([np.zeros((q, 1, p)), np.cumsum(steps, axis=1)], axis=1)
        other = np.arange(T - 1)[None] + (np.arange(T - 1)[None] >= np.arange(T)[:, None])
        margin = reach[:, :, None] - reach[:, other]
        cone = np.empty((q, T + 1, T - 1, p))
        growth = np.concatenate([unit[:, :1], np.diff(unit, axis=1)], axis=1)
        for position in range(T):
            before = np.arange(T - 1) < position
            cone[:, position] = np.where(before[:, None], growth, unit)
        cone[:, T] = unit
        last = np.concatenate([np.zeros((q, 1, p)), unit], axis=1)
        level = _Level(margin @ inverse.T, cone @ inverse.T, last @ inverse.T, weight)
        self._levels[depth] = level
        return level

    def __call__(self, partial: IntArray) -> FloatArray:
        """Proved lower bounds on the norm of every locally optimal completion, infinite where there is none.

        Parameters
        ----------
        partial : ndarray of int, shape (B, k)
            Tokens of the queries ``order[:k]``.
        """
        if not self.usable:
            raise ValueError("the steps between tokens are linearly dependent; use partial_norms")
        size, depth = partial.shape
        q, T = self.space.q, self.space.T
        level, assigned = self._level(depth), self.order[:depth]
        position = np.full((size, q), T)
        position[:, assigned] = self._position[assigned, partial]
        which = np.arange(q)
        inside = position[:, assigned]
        margin = level.margin[assigned, inside]  # (B, k, T - 1, p)
        cone = level.cone[which, position]  # (B, q, T - 1, p)
        p = margin.shape[-1]
        a = np.concatenate([margin.reshape(size, -1, p), cone.reshape(size, -1, p)], axis=1)

        places = np.arange(T - 1)
        exists = places < (self._count - 1)[:, None]
        valid = np.broadcast_to(np.concatenate([exists[assigned].ravel(), exists.ravel()]), a.shape[:2])
        beyond = (places >= position[..., None]) & (position < T)[..., None]  # g is 0 from the selected token on
        equality: BoolArray = np.zeros(a.shape[:2], dtype=bool)
        equality[:, depth * (T - 1) :] = beyond.reshape(size, -1)
        center = 0.5 * level.weight * level.last[assigned, inside].sum(axis=1)
        rhs = np.concatenate([np.ones((size, depth * (T - 1))), np.zeros((size, q * (T - 1)))], axis=1)
        rhs = rhs - np.matmul(a, center[..., None])[..., 0]
        used = valid.any(axis=0)
        batch = MarginProblem(
            a[:, used], np.ones((size, 1, 1)), np.zeros(int(used.sum()), dtype=np.int64),
            rhs[:, used], equality[:, used], valid[:, used],
        )  # fmt: skip
        guess = np.broadcast_to((np.arange(a.shape[1]) < depth * (T - 1))[used], batch.rhs.shape).astype(np.float64)
        found = solve_batch(batch, "frobenius", rescue=False, max_iterations=_ITERATIONS, warm_start=guess)
        # The lower bound is proved for any multipliers, so an inaccurate solve only weakens it.
        lower = np.where(found.status == "failed", 0.0, found.certificate.lower_bound)
        return np.asarray(np.sqrt(np.maximum(lower**2 - (center**2).sum(axis=1), 0.0)))
