"""A primal-dual interior point method for the nuclear norm: where it starts, which rows it works on; batches of it.

The steps are compiled (``solvers/compiled/nuclear.h`` has the derivation). The dual is strictly feasible at any small
positive lam, so the dual iterates stay exactly feasible; the primal ones become feasible with full steps. Rows outside
the working set join as soon as an iterate misses them. Small problems, one or many at once, are left to compiled code
from the first step to the last, which shares a batch between the cores.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from attsvm.solvers.arrays import BoolArray, FloatArray, IntArray
from attsvm.solvers.certify.certificate import Certificate
from attsvm.solvers.certify.certify_pair import certify
from attsvm.solvers.compiled.kernels import Measures, NuclearSteps, minimize
from attsvm.solvers.deadline import Driver
from attsvm.solvers.frobenius.active_set import proved, solve_active_sets
from attsvm.solvers.frobenius.conflicts import find_farkas, purify_farkas
from attsvm.solvers.frobenius.pivoting import solve_small
from attsvm.solvers.margin_problem import MarginProblem, MarginProblemBatch
from attsvm.solvers.margin_solution import BatchResult, Extras, MethodResult, Request
from attsvm.solvers.norms import Norm, get_norm
from attsvm.solvers.nuclear.newton import Polished, polish_guess, polish_pair, report, warm_polish
from attsvm.solvers.nuclear.spectra import pair_gap, singular_triples, singular_values
from attsvm.solvers.unit import UnitProblem, UnitProblemBatch, UnitRows

__all__ = ["InteriorPoint", "run_interior", "solve_interior", "solve_nuclear_alone", "solve_nuclear_batch"]

# The start from the least Frobenius norm, also of batches: the multiple of it that leaves every row some slack, mu
# relative to the largest singular value, share of the dual ball, least slack. Steps hardly depend on them.
START_MULTIPLE, START_MU, START_SHARE, START_SLACK = 1.1, 0.05, 0.5, 1e-2
# The ridge of its approximate solution.
_START_RIDGE = 1e-6
# With more rows, their Gram matrix costs more than the steps that it saves, and pivoting on it seldom settles.
_START_ROWS_PER_ENTRY = 2
# Rows of a feasible problem seldom ask for more; beyond, the plain start is as good.
_START_LARGEST = 1e3
# Of a batch: most steps, and the gap near which the Newton matrix runs out of digits.
_BATCH_STEPS, _BATCH_GOAL = 60, 8e-11


def _least_squares_multipliers(rows: UnitRows) -> FloatArray | None:
    """Multipliers of the least Frobenius norm, roughly; None when pivoting does not settle.

    The ridge keeps the Gram matrix of dependent rows invertible and the multipliers of an infeasible problem finite.
    """
    gram = rows.a @ rows.a.T
    gram *= rows.b @ rows.b.T
    gram.ravel()[:: rows.m + 1] += _START_RIDGE
    found = solve_small(gram, rows.rhs)
    return found.x if found.settled else None


@dataclass(eq=False)
class InteriorPoint:
    """The state of the method; `step` advances it.

    Parameters
    ----------
    rows : UnitRows
        All rows.
    working : ndarray of int
        The rows that the method starts with.
    plain : bool
        Start from multiples of the identity. Otherwise the least Frobenius norm is asked for a start, and ``plain``
        is set when it has none.

    Attributes
    ----------
    lam, slack : ndarray, shape (len(working),)
        Multipliers and primal slacks (0 on equality rows) of the working rows.
    X : ndarray, shape (p+q, p+q)
    """

    rows: UnitRows
    working: npt.NDArray[np.intp]
    plain: bool = False
    lam: FloatArray = field(init=False)
    slack: FloatArray = field(init=False)
    X: FloatArray = field(init=False)
    _steps: NuclearSteps | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        self._select(self.working)
        self.plain = self.plain or not self._start_from_least_squares()
        if self.plain:
            self._start_from_scale()

    def _start_from_scale(self) -> None:
        """Multiples of the identity; always possible."""
        n = sum(self.rows.shape)
        lam = np.where(self._inequality, 1.0, 0.0)
        lam *= 0.5 / max(float(singular_values(self.active.adjoint(lam))[0]), 1e-3)
        self.lam = lam
        # Both sides start on the scale sqrt(n) that the norm of a random instance has.
        size = float(np.sqrt(n))
        self.X = size * np.eye(n)
        self.slack = np.where(self._inequality, size, 0.0)

    def _start_from_least_squares(self) -> bool:
        """A multiple of the least Frobenius norm W, well centred: about three steps ahead; False when not available."""
        rows = self.active
        few = rows.m <= _START_ROWS_PER_ENTRY * rows.shape[0] * rows.shape[1]
        x = _least_squares_multipliers(rows) if few and rows.inequalities_only else None
        triples = None if x is None else singular_triples(rows.adjoint(x))
        if x is None or triples is None or not 0.0 < triples[1][0] < _START_LARGEST:
            return False
        U, sigma, Vt = triples
        p, top = len(U), float(sigma[0])
        lam, sigma = x * (START_SHARE / top), START_MULTIPLE * sigma
        # With P = U h U^T + 2 mu (I - U U^T) and Q alike, mu X^{-1} has the diagonal blocks I/2 of Z.
        mu = START_MU * float(sigma[0])
        both = np.concatenate([U, Vt.T])
        h = np.sqrt(mu * mu + sigma * sigma) - mu
        X = (both * h) @ both.T
        X.ravel()[:: len(X) + 1] += 2.0 * mu
        X[:p, p:] = W = (U * sigma) @ Vt
        X[p:, :p] = W.T
        slack = np.maximum(rows.values(W) - rows.rhs, START_SLACK)
        extra = mu / slack
        # Every row takes part, within most of what is left of the dual ball.
        size = float(singular_values(rows.adjoint(extra))[0])
        extra *= min(1.0, (0.95 - START_SHARE) / max(size, 1e-300))
        self.X, self.slack, self.lam = X, slack, lam + extra
        return True

    def _select(self, working: npt.NDArray[np.intp]) -> None:
        self.working, self._steps = working, None
        self.active = self.rows if len(working) == self.rows.m else self.rows.take(working)
        self._inequality = ~self.active.equality
        self._sense = self._inequality.astype(np.int8)

    @property
    def W(self) -> FloatArray:
        """The primal matrix, shape (p, q): a copy, as steps move X itself."""
        p = self.rows.shape[0]
        return self.X[:p, p:].copy()

    @property
    def multipliers(self) -> FloatArray:
        """Multipliers of all rows, shape (m,)."""
        lam = np.zeros(self.rows.m)
        lam[self.working] = self.lam
        return lam

    @property
    def measures(self) -> Measures:
        """Gap, objective and residual after the last step."""
        assert self._steps is not None
        return self._steps.measures

    def enlarge(self, threshold: float) -> int:
        """Add the rows that the current W misses, or nearly so; return how many."""
        if len(self.working) == self.rows.m:
            return 0
        slack = self.rows.values(self.W) - self.rows.rhs
        slack[self.working] = np.inf
        new = np.flatnonzero(slack < threshold)
        if not len(new):
            return 0
        mu = self.measures.mu
        room = np.maximum(slack[new], max(threshold, float(np.sqrt(mu))))
        lam, adjoint = mu / room, self.active.adjoint(self.lam)
        extra = self.rows.take(new).adjoint(lam)
        # Stay inside the dual ball: the newcomers may use at most half of what is left.
        left = 1.0 - float(np.linalg.norm(adjoint, 2))
        lam *= min(1.0, 0.5 * left / max(float(np.linalg.norm(extra, 2)), 1e-300))
        order = np.concatenate([self.working, new])
        self.lam, self.slack = np.concatenate([self.lam, lam]), np.concatenate([self.slack, room])
        self._select(order)
        return len(new)

    def step(self) -> bool:
        """One predictor-corrector step; False, and nothing moved, when the linear algebra breaks down."""
        if self._steps is None:
            rows = self.active
            self._steps = NuclearSteps(rows.a, rows.b, rows.rhs, self._sense, self.X, self.lam, self.slack)
        return self._steps.advance()


# Gap from which on Newton's method is tried: a step of it takes as long as six of these.
_ATTEMPT = 3e-5
# Objective from which on rows are suspected of contradicting each other.
_DOUBT = 1e3
# Accuracy that either start reaches unless rounding interferes.
_RETRY = 1e-10


def run_interior(
    rows: UnitRows, working: npt.NDArray[np.intp], driver: Driver[Polished], *, goal: float = 1e-11
) -> Certificate | None:
    """Interior point steps with attempts to finish by Newton, until ``goal`` or until rounding stops them.

    Parameters
    ----------
    rows : UnitRows
    working : ndarray of int
        Rows to start with; the others join when they are missed. Must hold all equality rows.
    driver : Driver
        Holds the budget; the best pair met is left in it, measured by `pair_gap`.
    goal : float
        Measure that ends the method.

    Returns
    -------
    Certificate or None
        Proof of infeasibility.
    """
    state = InteriorPoint(rows, working)
    proof = _iterate(state, driver, goal)
    # Nearly infeasible rows have a large W, and where rounding stops the method depends on the path: others may get
    # closer, from the plain start, and from both starts of rows for which W is of size 1.
    for unit_size, plain in ((False, True), (True, True), (True, False)):
        if proof is not None or driver.best is None or driver.measure <= _RETRY or driver.left <= 0:
            break
        size = float(np.linalg.norm(driver.best.W)) if unit_size else 1.0
        if unit_size or not state.plain:
            proof = _retry(rows, working, size, plain, driver, goal)
    return proof


def _retry(
    rows: UnitRows, working: npt.NDArray[np.intp], size: float, plain: bool, driver: Driver[Polished], goal: float
) -> Certificate | None:
    """The method from one of its starts, on right-hand sides divided by ``size``."""
    again: Driver[Polished] = Driver(driver.left)
    proof = _iterate(InteriorPoint(replace(rows, rhs=rows.rhs / size), working, plain), again, goal)
    driver.advance(again.steps)
    if again.best is not None:
        W, lam = again.best.W * size, again.best.lam
        gap = pair_gap(rows, W, lam)
        driver.offer(gap, replace(again.best, W=W, gap=gap))
    return proof


def _iterate(state: InteriorPoint, driver: Driver[Polished], goal: float) -> Certificate | None:
    """Steps and attempts from one start: a proof of infeasibility, or None with the best pair in the driver."""
    rows = state.rows
    attempt_below, doubt_above, offered = _ATTEMPT, _DOUBT, False
    while driver.advance():
        if not state.step():
            break
        gap, missed, objective = state.measures.gap, state.measures.missed, state.measures.objective
        if missed < 0.1:
            state.enlarge(0.0)
        if objective > doubt_above:  # unit rows and right-hand sides up to 1: unusual for a feasible problem
            proof = _contradiction(rows, state.multipliers, first=doubt_above == _DOUBT)
            if proof is not None:
                return proof
            doubt_above = 10.0 * objective
        if max(gap, missed) > attempt_below:
            continue
        W, lam = state.W, state.multipliers
        slack = np.full(rows.m, np.inf)
        slack[state.working] = state.slack
        polished = polish_guess(rows, W, lam, lam > slack)
        if polished is not None:
            driver.offer(polished.gap, polished)
        if driver.measure > goal:  # the iterate itself may be better than what Newton made of it
            _offer_iterate(state, driver)
        offered = True
        if driver.measure <= goal:
            break
        attempt_below = 0.2 * max(gap, missed)
    if not offered:  # out of iterations: what there is, for the certificate to judge
        _offer_iterate(state, driver)
    return None


def _contradiction(rows: UnitRows, lam: FloatArray, first: bool) -> Certificate | None:
    """A proof of infeasibility: by a search of its own where entries are few, which is quick, or from ``lam``."""
    if first and rows.m > rows.shape[0] * rows.shape[1]:
        proof = find_farkas(rows.unit.problem)
        if proof is not None:
            return proof
    return purify_farkas(rows, lam)


def _offer_iterate(state: InteriorPoint, driver: Driver[Polished]) -> None:
    W, lam = state.W, state.multipliers
    gap = pair_gap(state.rows, W, lam)
    driver.offer(gap, Polished(W, lam, min(state.rows.shape), gap, 0))


def solve_interior(unit: UnitProblem, norm: Norm, request: Request) -> MethodResult:
    """Least nuclear norm with the interior point method on all rows; ``max_iterations`` are its steps, 100 by default.

    Examples
    --------
    >>> import numpy as np
    >>> from attsvm.solvers import MarginProblem, solve
    >>> result = solve(MarginProblem(np.eye(2), np.eye(2), [0, 1]), "nuclear", "interior")
    >>> print(result.status, round(result.norm, 6), result.uniqueness.verdict)
    optimal 2.0 not unique
    """
    rows = unit.rows
    best = warm_polish(rows, request)
    if best is not None:
        return report(rows, best, 0, Extras(newton_steps=best.steps, warm_started=True))
    driver: Driver[Polished] = Driver(request.max_iterations or 100)
    proof = run_interior(rows, np.arange(rows.m), driver)
    if proof is None and driver.measure > 1e-6:
        proof = find_farkas(unit.problem)
    if proof is not None or driver.best is None:
        return MethodResult(farkas=proof, iterations=driver.steps)
    found = report(rows, driver.best, driver.steps, Extras(newton_steps=driver.best.steps))
    return found


def _compiled(unit: UnitProblemBatch, x: FloatArray, most: int) -> tuple[FloatArray, FloatArray, IntArray]:
    """W and multipliers of unit rows, and steps, from those of the least Frobenius norm."""
    a, b, left, right = unit.factors(reduced=True)
    live = unit.inverse > 0
    # A zero row constrains nothing (or the problem were infeasible): give it slack.
    c = np.where(live, unit.c, -1.0)
    room = np.where(live, unit.problem.allowance * unit.inverse / unit.scale, 1.0)
    sense = np.where(unit.equality & live, 0, 1).astype(np.int8)
    W, lam, steps = minimize(get_norm("nuclear"), a, b, c, sense, x, most, _BATCH_GOAL, room)
    W = W if left is None else left @ W
    return W if right is None else W @ right.mT, np.where(live, lam, 0.0), steps


def solve_nuclear_batch(unit: UnitProblemBatch, norm: Norm, request: Request) -> BatchResult:
    """Least nuclear norm for a batch of small problems.

    ``max_iterations`` are interior-point steps, 60 by default (typical problems need 10 to 15).

    Examples
    --------
    >>> import numpy as np
    >>> from attsvm.solvers import MarginProblem, solve
    >>> batch = MarginProblem(np.array([[[2.0]], [[4.0]]]), np.ones((2, 1, 1)), [0])
    >>> solve(batch, "nuclear", "nuclear_batch").W.ravel().round(6).tolist()
    [0.5, 0.25]
    """
    if _has_many_rows(unit.problem) and not unit.has_equalities:
        return _solve_many_rows(unit, request)
    first = solve_active_sets(unit, norm, Request(request.tolerance))
    W, lam, iterations = first.W, first.multipliers, first.iterations.copy()
    ready = np.isfinite(lam).all(axis=-1) & (np.abs(W).max(axis=(-2, -1)) > 0)  # W = 0 cannot be improved
    # Rows that even the least Frobenius norm misses may contradict each other: left to one-by-one solves.
    doubtful = ready & _misses_rows(unit, W)
    lam[doubtful], ready = np.nan, ready & ~doubtful
    if ready.any():
        picked = np.flatnonzero(ready)
        some = unit if len(picked) == len(ready) else UnitProblem(unit.problem.take(picked))
        start_W = W[picked] / some.scale[..., None]
        # Multipliers of the unit rows: W(x) = start_W.
        x = lam[picked] * some.problem.row_norms * np.sqrt(np.einsum("bij,bij->b", start_W, start_W))[:, None]
        found, multipliers, steps = _compiled(some, x, request.max_iterations or _BATCH_STEPS)
        W[picked], lam[picked] = found * some.scale[..., None], multipliers * some.inverse
        iterations[picked] += steps
    return BatchResult(W, lam, iterations, candidates=first.candidates)


def _has_many_rows(problem: MarginProblemBatch) -> bool:
    """Whether pivoting for the least Frobenius norm would take longer than the steps that its start saves."""
    return problem.m > _START_ROWS_PER_ENTRY * problem.shape[0] * problem.shape[1]


def _solve_many_rows(unit: UnitProblemBatch, request: Request) -> BatchResult:
    """A batch from the right-hand sides; problems that may be infeasible stay open, for one-by-one solves."""
    W, lam, steps = _compiled(unit, np.maximum(unit.c, 0.0), request.max_iterations or _BATCH_STEPS)
    return BatchResult(W * unit.scale[..., None], lam * unit.inverse, steps)


def solve_nuclear_alone(unit: UnitProblem, norm: Norm, request: Request) -> MethodResult:
    """One problem as a batch of one, and what Newton's method makes of that, whichever proves more.

    Examples
    --------
    >>> from attsvm.solvers import MarginProblem, solve
    >>> round(solve(MarginProblem([[2.0]], [[1.0]], [0]), "nuclear", "nuclear_batch").norm, 9)
    0.5
    """
    stacked = UnitProblem(MarginProblem.stack([unit.problem]))
    many = solve_nuclear_batch(stacked, norm, replace(request, warm_start=None))
    W, lam, steps = many.W[0], many.multipliers[0], int(many.iterations[0])
    if not (np.isfinite(lam).all() and np.isfinite(W).all()):
        return MethodResult(iterations=steps)
    found = MethodResult(W, lam, steps, certificate=certify(unit.problem, W, lam, norm))
    polished = polish_pair(unit.rows, W, lam)
    if polished is None:
        return found
    last = report(unit.rows, polished, steps, Extras(newton_steps=polished.steps))
    return min(found, last, key=proved)


def _misses_rows(unit: UnitProblemBatch, W: FloatArray) -> BoolArray:
    """Where a least-norm solution misses a row by more than rounding, shape (B,)."""
    problem = unit.problem
    missed = problem.missed(problem.margins(W) - problem.rhs) * unit.inverse
    size = np.sqrt(np.einsum("bij,bij->b", W, W))
    return np.asarray(missed.max(axis=-1) > 1e-12 * np.maximum(size, unit.scale[:, 0]))
