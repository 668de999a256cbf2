"""Solves of many selections: which of them are locally optimal, and bounds for selections that are not complete.

**Definition 2** reads the support of the full SVM (`full_verdicts`). `lower_verdicts` solves only the rows against
tokens of lower score and tests whether every other token stays strictly outside the margin; docs/local_optima.md proves
that they agree. Both are proved: error bounds first, rationals where they do not reach (`attsvm.optimality`).

**Bounds**: `partial_norms` is the least norm that satisfies the rows of the queries decided so far. `CompletionBound`
is a larger lower bound, on the norm of every *locally optimal* completion.

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

What the coordinates of g cost in rounding is bounded and subtracted. With C the computed Cholesky factor, ``w = C^T g``
and r a row, the computed ``C^-1 r`` misses the true one by at most ``|D^-1 (C fl(C^-1 r) - r)| / sqrt(lam)``, where D
holds the roots of the diagonal of the Gram matrix and lam is the least eigenvalue of the matrix scaled by it. So a
w that meets the true rows meets row k of the computed ones up to ``e_k |w|``, and for any multipliers y

    |w - c| >= (rhs . y - E |c|) / (|sum y_k row_k| + E)   with   E = sum |y_k| e_k,

whether y come from a solution or from a proof of infeasibility of the computed rows.
"""

from __future__ import annotations

from copy import copy
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from attsvm.enumeration.selection_space import SelectionSpace
from attsvm.optimality import LocalProof, prove_local
from attsvm.records import counting_bar
from attsvm.selection_rows import AttentionRows
from attsvm.solution import SUPPORT_TOLERANCE
from attsvm.solvers import MarginProblem, MarginSolutionBatch, solve, solve_batch
from attsvm.solvers.arrays import BoolArray, FloatArray, IntArray
from attsvm.solvers.certify.rounding import gamma
from attsvm.solvers.certify.singular_values import least_eigenvalue
from attsvm.solvers.deadline import late
from attsvm.solvers.exact import ExactFarkas, ExactLeastNorm
from attsvm.solvers.exact.measures import root_bounds
from attsvm.support_proof import margin_bounds, on_margin, solve_exactly

# -- verdicts on selections --------------------------------------------------------------------------------------------

# Rows from which on other norms are solved one by one, and a proof of infeasibility in the Frobenius norm saves time.
_MANY_ROWS = 120


@dataclass(frozen=True, eq=False)
class Support:
    """Support tokens of each of B selections; none where there is no solution.

    Attributes
    ----------
    tokens : ndarray of bool, shape (B, q, T)
        Frobenius norm: proved to lie exactly on the margin. Other norms: margin within `SUPPORT_TOLERANCE` of 1 at the
        solution returned.
    doubtful : ndarray of bool, shape (B, q, T)
        Neither proved to lie on the margin nor beyond it.
    """

    tokens: BoolArray
    doubtful: BoolArray


@dataclass(frozen=True, eq=False)
class Verdicts:
    """What is known about each of B selections.

    Attributes
    ----------
    norm : ndarray, shape (B,)
        Of the SVM solved; infinite where infeasible, NaN where there is no certified solution.
    gap : ndarray, shape (B,)
        Largest of gap and violations of the certificate, rounding included; 0 where solved over the rationals,
        infinite without a solution.
    feasible : ndarray of bool, shape (B,)
        Proved to have a solution. The lower-row test speaks of its own rows only.
    locally_optimal : ndarray of bool, shape (B,)
        Proved.
    undecided : ndarray of bool, shape (B,)
        Neither that nor the contrary is proved.
    reasons : dict from int to str
        Why, for the undecided ones.
    near : ndarray of bool, shape (B, q, T)
        Margin within `SUPPORT_TOLERANCE` of 1, computed: good enough to look around, no proof.
    conflict : ndarray of bool, shape (B, q)
        Queries in the proof of infeasibility.
    support : Support or None
        If requested.
    """

    norm: FloatArray
    gap: FloatArray
    feasible: BoolArray
    locally_optimal: BoolArray
    undecided: BoolArray
    reasons: dict[int, str]
    near: BoolArray
    conflict: BoolArray
    support: Support | None = None

    @property
    def infeasible(self) -> BoolArray:
        """Proved to have no solution, shape (B,)."""
        return np.isinf(self.norm)


def full_verdicts(
    space: SelectionSpace, selections: IntArray, norm: str, *, support: bool = False, progress: bool = False
) -> Verdicts:
    """Solve the full SVM of each selection and decide Definition 2.

    Parameters
    ----------
    space : SelectionSpace
    selections : ndarray of int, shape (B, q)
    norm : str
    support : bool
        Say of every token whether it is in the support, too.
    progress : bool
        Show a progress bar.

    Examples
    --------
    >>> import attsvm
    >>> from attsvm.enumeration.selection_space import SelectionSpace
    >>> space = SelectionSpace(attsvm.random_problem(n=3, T=4, d=4, seed=5))
    >>> int(full_verdicts(space, space.selections(0, 64), "frobenius").locally_optimal.sum())
    4
    """
    draft = _Draft.of(space, len(selections))
    hopeless = np.take_along_axis(space.hopeless[None], selections[..., None], axis=2)[..., 0]
    draft.conflict[:] = hopeless  # infeasible by the zero row of two tokens: nothing to solve
    parts = _parts(space, np.asarray(~hopeless.any(axis=1)))
    with counting_bar(progress, "solving selections", sum(map(len, parts))) as advance:
        for part in parts:
            if late():
                draft.leave(part)
            else:
                _judge_part(space, selections, part, norm, draft, support)
            advance(len(part))
    return draft.finish(support)


def _judge_part(
    space: SelectionSpace, selections: IntArray, part: npt.NDArray[np.intp], norm: str, draft: _Draft, support: bool
) -> None:
    """Solve the selections of a part at once and write what is found into the draft."""
    if norm != "frobenius" and len(part) and space.steps > _MANY_ROWS:
        part = _feasible(space, selections, part, draft)
        if not len(part):
            return
    rows = space.rows(selections[part])
    found = solve_batch(rows.margin_problem, norm)
    higher = space.higher(selections[part])
    proof = prove_local(rows, found, higher)
    if norm != "frobenius" and proof.undecided.any():
        proof = _proved_alone(rows, found, higher, proof, norm)
    draft.read(part, found, proof)
    with np.errstate(invalid="ignore"):
        margins = rows.margin_problem.margins(found.W)
        close = np.abs(margins - 1.0) <= SUPPORT_TOLERANCE
    draft.near[part] = _grid(rows, close)
    if support and norm == "frobenius":
        draft.tokens[part], draft.doubtful[part] = _support(rows, found, proof)
    elif support:
        draft.tokens[part] = draft.near[part]


def lower_verdicts(space: SelectionSpace, selections: IntArray) -> Verdicts:
    """Solve the Frobenius SVM over lower-score rows only and test the other tokens.

    ``norm`` is the norm of the lower-row SVM: of the full SVM where locally optimal, a lower bound on it elsewhere.

    Examples
    --------
    >>> import attsvm
    >>> from attsvm.enumeration.selection_space import SelectionSpace
    >>> space = SelectionSpace(attsvm.random_problem(n=3, T=4, d=4, seed=5))
    >>> int(lower_verdicts(space, space.selections(0, 64)).locally_optimal.sum())
    4
    """
    draft = _Draft.of(space, len(selections))
    hopeless = np.take_along_axis(space.hopeless[None], selections[..., None], axis=2)[..., 0]
    draft.conflict[:] = hopeless
    keep = space.lower(selections)
    some = keep.reshape(len(selections), -1).any(axis=1)
    # Without a lower-score row W = 0, and the higher-score tokens have margin 0: not locally optimal.
    draft.norm[~some & ~hopeless.any(axis=1)] = 0.0
    for part in _parts(space, np.asarray(some & ~hopeless.any(axis=1))):
        if late():
            draft.leave(part)
        else:
            _lower_part(space, selections[part], keep[part], part, draft)
    return draft.finish(False)


def _lower_part(
    space: SelectionSpace, selections: IntArray, keep: BoolArray, index: npt.NDArray[np.intp], draft: _Draft
) -> None:
    lower, full = space.rows(selections, keep), space.rows(selections)
    found = solve_batch(lower.margin_problem, "frobenius")
    problem = full.margin_problem
    bounds = margin_bounds(problem, found.W, found.certificate)
    above = full.pick(space.higher(selections)) & (problem.rhs != 0)
    optimal, infeasible = np.asarray(found.status == "optimal"), np.asarray(found.status == "infeasible")
    local = optimal & ~(above & ~bounds.beyond).any(axis=1)
    refuted = infeasible | (optimal & (above & bounds.inside).any(axis=1))
    undecided = ~local & ~refuted
    rest = np.flatnonzero(undecided)
    again = full_verdicts(space, selections[rest], "frobenius")  # Definition 2 itself, over the rationals if need be
    local[rest], undecided[rest] = again.locally_optimal, again.undecided
    reasons = {int(rest[i]): why for i, why in again.reasons.items()}
    draft.read(index, found, LocalProof(local, undecided, reasons))
    late = again.locally_optimal
    draft.norm[index[rest[late]]], draft.gap[index[rest[late]]] = again.norm[late], again.gap[late]
    with np.errstate(invalid="ignore"):
        draft.near[index] = _grid(full, np.abs(bounds.margins - 1.0) <= SUPPORT_TOLERANCE)


@dataclass(eq=False)
class _Draft:
    """Verdicts that are filled in part by part."""

    norm: FloatArray
    gap: FloatArray
    local: BoolArray
    undecided: BoolArray
    near: BoolArray
    conflict: BoolArray
    tokens: BoolArray
    doubtful: BoolArray
    reasons: dict[int, str] = field(default_factory=dict)

    @staticmethod
    def of(space: SelectionSpace, size: int) -> _Draft:
        grid = (size, space.q, space.T)
        return _Draft(
            np.full(size, np.inf), np.full(size, np.inf), np.zeros(size, bool), np.zeros(size, bool),
            np.zeros(grid, bool), np.zeros((size, space.q), bool), np.zeros(grid, bool), np.zeros(grid, bool),
        )  # fmt: skip

    def finish(self, support: bool) -> Verdicts:
        feasible = np.isfinite(self.norm)
        proved = Support(self.tokens, self.doubtful) if support else None
        return Verdicts(
            self.norm, self.gap, feasible, self.local, self.undecided, self.reasons, self.near, self.conflict, proved
        )

    def leave(self, index: npt.NDArray[np.intp]) -> None:
        """No time for some selections."""
        self.norm[index], self.undecided[index] = np.nan, True
        self.reasons |= dict.fromkeys(index.tolist(), "the time limit was reached")

    def read(self, index: npt.NDArray[np.intp], found: MarginSolutionBatch, proof: LocalProof) -> None:
        """Norms, gaps, conflicts and verdicts of some selections; exact answers count more than computed ones."""
        optimal, infeasible = np.asarray(found.status == "optimal"), np.asarray(found.status == "infeasible")
        self.norm[index] = np.where(optimal, found.norm, np.where(infeasible, np.inf, np.nan))
        self.gap[index] = np.where(optimal, found.certificate.proved, np.inf)
        self.local[index], self.undecided[index] = proof.local, proof.undecided
        for i in np.flatnonzero(infeasible).tolist():
            farkas = found[i].certificate.farkas
            if farkas is not None:
                self.conflict[index[i], farkas.owners] = True
        for k, answer in proof.exact.items():
            row = int(index[k])
            if isinstance(answer, ExactFarkas):
                self.norm[row], self.gap[row] = np.inf, np.inf
                self.conflict[row, np.unique(found.problem[k].owner[answer.rows])] = True
            elif not optimal[k]:
                self.norm[row], self.gap[row] = root_bounds(answer.norm_squared)[1], 0.0  # its square may underflow
        for k, reason in proof.reasons.items():
            self.reasons[int(index[k])] = reason


def _grid(rows: AttentionRows, values: BoolArray) -> BoolArray:
    """From one number per row to (B, q, T)."""
    out = rows.scatter(values, fill=0.0) > 0
    return np.asarray(out.reshape(len(out), -1, rows.T))


def _feasible(
    space: SelectionSpace, selections: IntArray, part: npt.NDArray[np.intp], draft: _Draft
) -> npt.NDArray[np.intp]:
    """The selections of a part that are not infeasible, which the least Frobenius norm tells sooner than others."""
    found = solve_batch(space.rows(selections[part]).margin_problem, "frobenius")
    nothing = np.zeros(len(part), dtype=bool)
    draft.read(part, found, LocalProof(nothing, nothing))  # what is feasible is read again
    return np.asarray(part[found.status != "infeasible"])


def _proved_alone(
    rows: AttentionRows, found: MarginSolutionBatch, higher: BoolArray, proof: LocalProof, norm: str
) -> LocalProof:
    """The proof with what a batch left undecided solved one by one, which is more accurate."""
    local, undecided, reasons = proof.local.copy(), proof.undecided.copy(), dict(proof.reasons)
    for i in np.flatnonzero(proof.undecided):
        if late():
            break
        again = prove_local(rows[int(i)], solve(found.problem[int(i)], norm), higher[i])
        local[i], undecided[i] = again.local[0], again.undecided[0]
        if not undecided[i]:
            reasons.pop(int(i), None)
    return LocalProof(local, undecided, reasons, proof.exact)


def _parts(space: SelectionSpace, wanted: BoolArray) -> list[npt.NDArray[np.intp]]:
    index = np.flatnonzero(wanted)
    return [index[start : start + space.at_once] for start in range(0, len(index), space.at_once)]


def _support(rows: AttentionRows, found: MarginSolutionBatch, proof: LocalProof) -> tuple[BoolArray, BoolArray]:
    """Rows proved to lie on the margin of the Frobenius solution, and rows of which that stays open; (B, q, T) each."""
    problem = rows.margin_problem
    bounds = margin_bounds(problem, found.W, found.certificate)
    exists = problem.rhs != 0
    on = on_margin(problem, bounds) & exists
    doubtful = exists & ~on & ~bounds.beyond & (np.asarray(found.status) != "infeasible")[:, None]
    for i in np.flatnonzero(doubtful.any(axis=1)):
        one = found[int(i)]
        answer = proof.exact.get(int(i)) or solve_exactly(one.problem, one.multipliers)
        if answer is None:
            continue
        own = slice(None) if problem.valid is None else problem.valid[i]
        on[i], doubtful[i] = False, False
        if isinstance(answer, ExactLeastNorm):
            on[i, own] = answer.support
    return _grid(rows, on), _grid(rows, doubtful)


# -- bounds for partial selections -------------------------------------------------------------------------------------

# Least eigenvalue of the scaled Gram matrix of the steps e_il z_i^T: below it they count as dependent.
_INDEPENDENT = 1e-7
# Largest weight of complementary slackness: beyond it bounds lose to rounding what they gain.
_LARGEST_WEIGHT = 50.0
# Steps beyond which a bound costs more than it rules out: its systems have that order.
_MOST_STEPS = 400
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
        Proved lower bounds; infinite where the rows are proved infeasible, 0 where the deadline came first.

    Examples
    --------
    >>> import numpy as np
    >>> import attsvm
    >>> from attsvm.enumeration.selection_space import SelectionSpace
    >>> space = SelectionSpace(attsvm.random_problem(n=3, T=4, d=4, seed=5))
    >>> one = partial_norms(space, np.array([[1]]), np.array([0]), "frobenius")
    >>> two = partial_norms(space, np.array([[1, 2]]), np.array([0, 1]), "frobenius")
    >>> bool(one <= two)
    True
    """
    if not len(partial) or not (space.allowed[queries].sum(axis=1) > 1).any():
        return np.zeros(len(partial))
    out = np.full(len(partial), np.inf)
    # Two equal tokens, or a zero query, make a zero row: infeasible without a solve.
    open_ones = np.flatnonzero(~space.hopeless[queries, partial].any(axis=1))
    for start in range(0, len(open_ones), space.at_once):
        part = open_ones[start : start + space.at_once]
        if late():
            out[part] = 0.0
            continue
        problem = space.partial_rows(partial[part], queries).margin_problem
        found = solve_batch(problem, norm, rescue=False) if norm == "frobenius" else solve_batch(problem, norm)
        # Infinite where infeasible; what is proved of the norm otherwise.
        out[part] = np.where(found.status == "failed", 0.0, found.certificate.lower_bound)
    return out


@dataclass(frozen=True, eq=False)
class _Level:
    """Rows of all (query, position) pairs in the coordinates of one set of assigned queries."""

    margin: FloatArray  # (q, T, T - 1, p): row of the selected position against each other position
    cone: FloatArray  # (q, T + 1, T - 1, p): the last position stands for "unassigned"
    last: FloatArray  # (q, T, p): g(last) as a linear function
    weight: float
    margin_error: FloatArray  # (q, T, T - 1): bounds on what rounding did to the rows
    cone_error: FloatArray  # (q, T + 1, T - 1)
    last_error: float  # the largest over positions
    stretch: float  # |w|^2 is the weighted square up to this share of it


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
        dimensions, duplicate tokens) or more than 400: then use `partial_norms`.
    largest : float
        No selection has an SVM of larger norm: a W that gives every step the value 1 or -1 separates it, and
        ``c^T G^-1 c <= |D^-1 c|^2 / lam`` for the Gram matrix G of the steps. Infinite when not usable.

    Examples
    --------
    >>> import numpy as np
    >>> import attsvm
    >>> from attsvm.enumeration.selection_space import SelectionSpace
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
        last = space.order.max() + 1
        rank = np.argsort(np.where(space.allowed, space.order, last), axis=1, kind="stable")
        self._position = np.argsort(rank, axis=1)  # position of token t
        tokens = np.repeat(space.problem.X.astype(np.float64), space.problem.K, axis=0)
        queries = space.problem.Z.reshape(q, -1).astype(np.float64)
        count = space.allowed.sum(axis=1)
        self._count = count
        step = np.diff(np.take_along_axis(tokens, rank[..., None], axis=1), axis=1)
        exists = np.arange(T - 1) < (count - 1)[:, None]
        self._owner, self._place = np.nonzero(exists)
        E = step[exists]
        with np.errstate(over="ignore", invalid="ignore"):  # products that leave the range prove nothing
            self._gram = (E @ E.T) * (queries @ queries.T)[np.ix_(self._owner, self._owner)]
        # Relative error of an entry: the products, and the rounded differences of tokens.
        self._entry = gamma(space.problem.dx + space.problem.dz + 8)
        self._levels: dict[int, _Level] = {}
        least = self._least(self._gram) if len(E) <= _MOST_STEPS else 0.0
        self.usable = least > _INDEPENDENT
        self.largest = 1.01 * float(np.sqrt((1.0 / np.diag(self._gram)).sum() / least)) if self.usable else np.inf

    def reordered(self, order: IntArray) -> CompletionBound:
        """The same steps with queries assigned in another order."""
        other = copy(self)
        other.order, other._levels = order, {}
        return other

    def _least(self, gram: FloatArray) -> float:
        """Proved lower bound on the least eigenvalue of the Gram matrix scaled to unit diagonal; 0 for a zero step."""
        with np.errstate(invalid="ignore"):
            size, p = np.sqrt(np.diag(gram)), len(gram)
        if not ((size > 1e-140) & (size < 1e140)).all():
            return 0.0
        blur = p * (self._entry + gamma(2 * p + 8))  # entries, and the factorization that may follow
        return float(least_eigenvalue(gram / size / size[:, None])) - blur

    def _weighted(self, depth: int) -> tuple[FloatArray, float, float]:
        """Gram matrix with the largest weight up to the schedule that keeps it definite, weight, least eigenvalue."""
        share = depth / self.space.q
        weight = min(_LARGEST_WEIGHT, 2.0 * share**2 / max(1.0 - share, 1e-9))
        assigned = np.isin(self._owner, self.order[:depth]).astype(np.float64)
        pairs = (assigned[:, None] + assigned) / 2
        while weight > 1e-3:
            gram = self._gram * (1.0 + weight * pairs)
            least = self._least(gram)
            if least > _INDEPENDENT:
                return gram, weight, least
            weight *= 0.7
        return self._gram, 0.0, self._least(self._gram)

    def _level(self, depth: int) -> _Level:
        cached = self._levels.get(depth)
        if cached is not None:
            return cached
        q, T, p = self.space.q, self.space.T, len(self._owner)
        gram, weight, least = self._weighted(depth)
        factor = np.linalg.cholesky(gram)
        inverse = np.linalg.inv(factor)  # w = C^T g, so a row r of g becomes C^-1 r
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
        size = np.sqrt(np.diag(gram))
        sums = self._entry * T * float(size.max()) * (T - 1) * float(np.sqrt(p))  # of the entries of a margin row

        def moved(rows: FloatArray, data_error: float) -> tuple[FloatArray, FloatArray]:
            out = rows @ inverse.T
            missed = np.linalg.norm((out @ factor.T - rows) / size, axis=-1)
            lengths = np.linalg.norm(out, axis=-1)
            rounding = gamma(p + 4) * (np.sqrt(p) * lengths + np.linalg.norm(rows / size, axis=-1))
            # The last term: right-hand sides are computed from these rows, too.
            return out, 1.01 * (missed + rounding + data_error) / np.sqrt(least) + gamma(p + 8) * lengths

        (margin, margin_error), (cone, cone_error) = moved(margin, sums), moved(cone, 0.0)
        last, last_error = moved(last, 0.0)
        stretch = 1.01 * p * (self._entry + gamma(2 * p + 8)) / least
        level = _Level(margin, cone, last, weight, margin_error, cone_error, float(last_error.max()), stretch)
        self._levels[depth] = level
        return level

    def __call__(self, partial: IntArray) -> FloatArray:
        """Proved lower bounds on the norm of every locally optimal completion; above ``largest`` there is none.

        Parameters
        ----------
        partial : ndarray of int, shape (B, k)
            Tokens of the queries ``order[:k]``.
        """
        if not self.usable:
            raise ValueError("the steps between tokens are linearly dependent or too many; use partial_norms")
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
        error = np.concatenate(
            [
                level.margin_error[assigned, inside].reshape(size, -1),
                level.cone_error[which, position].reshape(size, -1),
            ],
            axis=1,
        )
        return _least_norms(batch, found, error[:, used], np.linalg.norm(center, axis=1), level, depth)


def _least_norms(
    batch: MarginProblem, found: MarginSolutionBatch, error: FloatArray, center: FloatArray, level: _Level, depth: int
) -> FloatArray:
    """Lower bounds on the norm from the multipliers, whatever they are worth, with all roundings; shape (B,)."""
    y = batch.clipped(np.nan_to_num(found.multipliers))
    for i in np.flatnonzero(found.status == "infeasible"):
        farkas = found[int(i)].certificate.farkas
        if farkas is not None:
            y[i] = 0.0
            y[i, slice(None) if batch.valid is None else batch.valid[i]] = farkas.multipliers
    y = np.where(batch.row_norms > 0, y, 0.0)
    weights = np.abs(y)
    sure = (batch.rhs * y).sum(axis=1) - gamma(batch.m + 4) * (np.abs(batch.rhs) * weights).sum(axis=1)
    dual = np.linalg.norm(batch.adjoint(y), axis=(1, 2))
    dual = dual * (1.0 + gamma(batch.shape[0] + 8)) + gamma(batch.m + 8) * (weights * batch.row_norms).sum(axis=1)
    spread = 1.01 * (weights * error).sum(axis=1)
    with np.errstate(divide="ignore", invalid="ignore"):
        distance = np.where(sure > 0, (sure - spread * center) / (dual + spread), 0.0)
    distance = np.maximum(np.nan_to_num(distance, posinf=0.0), 0.0)
    # |W|^2 = (weighted square) - 2 c w, in the computed coordinates.
    reach = distance + center
    off_center = 0.5 * level.weight * depth * level.last_error
    square = (
        distance**2 * (1.0 - 1e-14) - center**2 * (1.0 + 1e-14) - level.stretch * reach**2 - 2.0 * off_center * reach
    )
    return np.asarray(np.sqrt(np.maximum(square, 0.0)))
