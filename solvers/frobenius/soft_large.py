"""Soft margins in the Frobenius norm for many rows: coordinate descent on the dual, then proximal Newton steps.

    minimize |W|_F^2 / 2 + C sum_j xi_j  or  + C sum_j xi_j^2,    <a_k b_k^T, W> >= rhs_k - xi

Four methods share the work. Sweeps over the queries (`attsvm.solvers.compiled.descent`) find the rows that matter and
are all that very large problems need. Where C is large the sweeps converge slowly, but few multipliers still move:
`ProximalNewton` on the rows that are nearly active finishes. Its proximal weight falls in small steps: with a large one
few Newton steps find the face, with a small one the face of the last weight is nearly right. (Far from the solution a
small weight leaves a function with kinks, and an exact line search stops at the next kink: three rows that tie at the
bound of one query are enough for a thousand steps through the same faces.) Where W has few entries and very many
multipliers move, interior-point steps with systems in the entries of W finish (`soft_interior`), and where few
multipliers move on few entries, exchanges of single rows (`attsvm.solvers.compiled.exchanges`). Sweeps go first; their
rate of convergence and the estimated time of the others decide when to change, and to which.

Rows are written out as far as memory allows; beyond that a working set holds those of each query that W misses most,
and grows by rows that W misses by more than the slack of their query. Equality rows enter by both signs.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from attsvm.solvers.arrays import FloatArray, IntArray
from attsvm.solvers.certify.certify_pair import certify
from attsvm.solvers.compiled.descent import DualDescent
from attsvm.solvers.compiled.exchanges import are_few, exchange_rows
from attsvm.solvers.deadline import read_time_limit
from attsvm.solvers.frobenius.entries import soft_interior
from attsvm.solvers.frobenius.proximal_newton import ProximalNewton
from attsvm.solvers.frobenius.working_set import Progress, read_progress
from attsvm.solvers.margin_problem import MarginProblem
from attsvm.solvers.margin_solution import Extras, MarginSolution, MethodResult, Request, is_one
from attsvm.solvers.memory import allowed_memory, too_large
from attsvm.solvers.norms import Norm
from attsvm.solvers.penalty import Penalty, PenaltyBatch
from attsvm.solvers.rows.pairs import PairRows
from attsvm.solvers.rows.products import CHUNK_NUMBERS
from attsvm.solvers.unit import UnitProblem

__all__ = ["BothSigns", "SoftMemory", "largest_of_each", "plan_memory", "solve_soft_large"]

# Sweeps in all; between two looks at all rows: sweeps, those at first after a warm start, the most, and operations.
_SWEEPS, _CHUNK, _WARM_CHUNK, _LONGEST_CHUNK, _OPERATIONS = 20_000, 10, 2, 40, 4e9
# Gap from which on a warm start is one from far away, and share of the sweeps before it up to the first look.
_FAR, _AGAIN = 1e-4, 0.8
# Operations per second of sweeps and of factorizations on a usual machine: they decide between the two.
_SWEEP_RATE, _FACTOR_RATE = 4e9, 1e10
# Newton steps that a run is expected to take, those after which sweeps may be left for them, those of one proximal
# weight, and of all.
_EXPECTED, _AFTER, _OF_A_WEIGHT, _MOST_STEPS = 40, 5, 30, 300
# Seconds of an exchange: at least, and per squared direction of the face; how many beside one for each direction.
_PER_EXCHANGE, _PER_PAIR, _EXCHANGES = 1e-5, 3e-10, 200
# Interior-point steps that are expected, and at most taken.
_INTERIOR_EXPECTED, _INTERIOR_MOST = 25, 100
# Seconds of vectorized Python per step: for each row, for each entry of a left factor, and at least; and per look.
_PER_ROW, _PER_NUMBER, _PER_STEP, _PER_LOOK = 1e-6, 1e-8, 1e-3, 2e-4
# Multipliers of an interior point below this share of the largest are taken for 0.
_TINY = 1e-9
# Proximal weights relative to squared row norms: the first, and the least.
_FIRST_WEIGHT, _LEAST_WEIGHT = 1e-2, 1e-10
# Share of the largest right-hand side by which a row may fall behind the worst of its query and still count as nearly
# active.
_NEARLY = 1.0
# Share of the tolerance that the method aims at, and the least relative gap that float64 can be expected to reach.
_SHARE, _LEAST_GAP = 0.3, 1e-14
# Looks at all rows during which the dual rises by less than this share of it: then rounding is what is left.
_PATIENCE, _RISE = 30, 1e-14
# Rows of each query that join a working set at a time, and rows in all and per query from which on one saves time.
_JOIN, _FEW, _MANY = 4, 5000, 32
# Order of the largest linear system.
_LARGEST_SYSTEM = 8000
# Vectors of one number per row that a solve holds at once.
_VECTORS = 20
# Rows of each query that a working set begins with.
_FIRST_ROWS = 8
# Share of the memory that rows may take where not all of them fit.
_SHARE_OF_ROWS = 0.7


@dataclass(frozen=True)
class SoftMemory:
    """How a solve divides the memory that it may take.

    Attributes
    ----------
    rows : int
        Rows that are written out at a time.
    left : float
        Bytes for linear systems.
    """

    rows: int
    left: float

    def order(self, shape: tuple[int, int]) -> int:
        """Order of the largest system in multipliers: its matrix, and the factors of its rows while it is formed."""
        fits = (self.left / 8.0) ** 0.5 - 2.0 * sum(shape)
        return int(min(_LARGEST_SYSTEM, max(0.0, fits)))

    def holds_entries(self, m: int, shape: tuple[int, int]) -> bool:
        """Whether systems in the entries of W fit, with the working memory of m rows."""
        entries = shape[0] * shape[1]
        need = 8.0 * (4.0 * entries * entries + m * (4.0 * shape[0] + 20.0) + 3.0 * CHUNK_NUMBERS)
        return entries <= _LARGEST_SYSTEM and need <= self.left


def plan_memory(problem: MarginProblem, limit: object) -> SoftMemory:
    """Divide the memory that a solve may take; refuse one for which too little is left.

    Examples
    --------
    >>> from attsvm.solvers import MarginProblem
    >>> from attsvm.solvers.frobenius.soft_large import plan_memory
    >>> plan_memory(MarginProblem([[1.0]], [[1.0]], [0]), 1e6).rows
    1
    """
    allowed = allowed_memory(limit)
    dx, dz = problem.shape
    m = problem.m + int(np.count_nonzero(problem.equality))  # equalities count twice
    if allowed is None:
        return SoftMemory(m, np.inf)
    copies = 1 if isinstance(problem.rows, PairRows) and m == problem.m else 2  # of rows that are gathered
    fixed = 8.0 * (_VECTORS * m + problem.q * (dx + dz + 4) + 10 * dx * dz)
    each = 8.0 * (copies * dx + 8)
    fewest = min(m, _FIRST_ROWS * problem.q)
    if fixed + each * fewest > allowed:
        raise too_large(problem, fixed + each * fewest, allowed, limit is not None)
    share = 1.0 if fixed + each * m <= allowed else _SHARE_OF_ROWS
    rows = int(min(m, max(fewest, share * (allowed - fixed) / each)))
    return SoftMemory(rows, max(0.0, allowed - fixed - each * rows))


class BothSigns:
    """Rows in which an equality counts as two opposite inequalities.

    Attributes
    ----------
    source : ndarray of int, shape (m',)
        The row of the problem that each comes from.
    sign : ndarray, shape (m',)
    """

    def __init__(self, problem: MarginProblem) -> None:
        self.problem = problem
        equal = np.flatnonzero(problem.equality)
        self.source: IntArray = np.concatenate([np.arange(problem.m), equal])
        self.sign = np.ones(len(self.source))
        self.sign[problem.m :] = -1.0
        self.plain = not len(equal)
        self.rhs = problem.rhs if self.plain else problem.rhs[self.source] * self.sign
        self.owner = problem.owner if self.plain else problem.owner[self.source]

    def values(self, W: FloatArray) -> FloatArray:
        """Of all of them at W, shape (m',)."""
        values = self.problem.margins(W)
        return values if self.plain else values[self.source] * self.sign

    def gather(self, index: IntArray) -> PairRows:
        """Some of them, written out."""
        if len(index) == self.problem.m and self.plain and isinstance(self.problem.rows, PairRows):
            return self.problem.rows
        pair = self.problem.rows.gather(self.source[index])
        if self.plain:
            return pair
        a = pair.a.astype(np.float64) * self.sign[index][:, None]
        return PairRows.trusted(a, pair.queries, pair.owner)

    def split(self, lam: FloatArray) -> FloatArray:
        """Multipliers of theirs from multipliers of the problem, which have any sign on equality rows."""
        return np.maximum(lam[self.source] * self.sign, 0.0)

    def join(self, lam: FloatArray) -> FloatArray:
        """Multipliers of the problem from multipliers of theirs."""
        joined = lam[: self.problem.m].copy()
        np.add.at(joined, self.source[self.problem.m :], -lam[self.problem.m :])
        return joined


def largest_of_each(short: FloatArray, owner: IntArray, each: int) -> IntArray:
    """The ``each`` largest entries of every query, sorted."""
    order = np.lexsort((-short, owner))
    group = owner[order]
    first = np.flatnonzero(np.r_[True, group[1:] != group[:-1]])
    place = np.arange(len(order)) - np.repeat(first, np.diff(np.r_[first, len(order)]))
    return np.sort(order[place < each])


class _SoftSolve:
    """One solve: the descent on the working rows, and the best W so far."""

    def __init__(self, problem: MarginProblem, penalty: Penalty, norm: Norm, request: Request) -> None:
        self.problem, self.penalty, self.norm, self.request = problem, penalty, norm, request
        self.plan = plan_memory(problem, request.options.get("memory_limit"))
        self.time_limit = read_time_limit(request.options.get("time_limit"))
        self.tell = read_progress(request.options.get("progress"))
        self.begin, self.limit = time.perf_counter(), request.max_iterations or _SWEEPS
        self.sweeps = self.steps = self.rounds = self.runs = 0
        self.interior_done = self.exchanged = False
        self.rows = BothSigns(problem)
        self.best_W, self.least, self.bound = np.zeros(problem.shape), np.inf, 0.0
        self.gap = self.checked = np.inf  # now, and when all rows were looked at last
        self.goal, self.looks = 0.0, [(0, np.inf), (0, np.inf)]  # sweeps and gap at the last two looks
        # Estimated seconds of sweeps since the last Newton steps, and (these, gap) at every look since then.
        self.since, self.history = 0.0, list[tuple[float, float]]()
        known = request.multipliers(problem)
        self.chunk = _CHUNK if known is None else _WARM_CHUNK
        start = np.zeros(len(self.rows.rhs)) if known is None else self.rows.split(self._for_this_penalty(known))
        self._open(self._first(start), start)

    @property
    def spent(self) -> bool:
        """Whether the budget of sweeps or of time is used up."""
        return self.sweeps >= self.limit or time.perf_counter() - self.begin > self.time_limit

    def _for_this_penalty(self, lam: FloatArray) -> FloatArray:
        """Multipliers of a solution for another C: as they are, in proportion to C, or only those at their bound so.

        The one with the largest dual is taken.
        """
        problem, given = self.problem, self.request.warm_start
        old = given.problem.penalty if isinstance(given, MarginSolution) else None
        new, owner, q = self.penalty, problem.owner, problem.q
        if old is None or (old.slack, old.loss) != (new.slack, new.loss) or old.C == new.C:
            return lam
        ratio = new.C / old.C
        bound = old.loads(lam, owner, q) >= old.C * (1.0 - 1e-6)
        at_bound = bound if old.slack == "row" else bound[owner]
        W = problem.adjoint(lam)
        trials = [(lam, W), (ratio * lam, ratio * W)]
        if new.loss == "hinge" and at_bound.any() and not at_bound.all():
            mixed = np.where(at_bound, ratio, 1.0) * lam
            trials.append((mixed, problem.adjoint(mixed)))
        best, kept = -np.inf, lam
        for trial, matrix in trials:
            if new.loss == "hinge" and float(new.loads(trial, owner, q).max()) > new.C * (1.0 + 1e-9):
                trial = new.admissible(trial, owner, q)
                matrix = problem.adjoint(trial)
            value = float(problem.rhs @ trial) - 0.5 * float(np.vdot(matrix, matrix))
            value -= new.conjugate(new.loads(trial, owner, q))
            if value > best:
                best, kept = value, trial
        return kept

    def _sweeps_before(self, goal: float) -> int:
        """Most of the sweeps that a solution for another C took; fewer where the start is nearer than W = 0 was."""
        given = self.request.warm_start
        if not (isinstance(given, MarginSolution) and is_one(given)):
            return 0
        return int(_AGAIN * given.iterations * np.log(min(self.gap, 1.0) / goal) / np.log(1.0 / goal))

    # -- the working set ------------------------------------------------------------------------------

    def _first(self, start: FloatArray) -> IntArray:
        """All rows where they fit and are few; else those of the start and of each query those that it misses most."""
        rhs = self.rows.rhs
        if len(rhs) <= min(self.plan.rows, max(_FEW, _MANY * self.problem.q)):
            return np.arange(len(rhs))
        norms = self.problem.row_norms[self.rows.source]
        first = start if start.any() else np.maximum(rhs, 0.0) / np.where(norms > 0, norms, np.inf)
        W = self.problem.adjoint(self.rows.join(first))
        room = self.plan.rows - int(np.count_nonzero(start))
        each = max(1, min(_FIRST_ROWS, room // max(self.problem.q, 1)))
        return np.union1d(np.flatnonzero(start), largest_of_each(rhs - self.rows.values(W), self.rows.owner, each))

    def _open(self, index: IntArray, lam: FloatArray) -> None:
        """Go on with these rows from these multipliers of all."""
        self.index, pair = index, self.rows.gather(index)
        lam = self.penalty.admissible(lam, self.rows.owner, self.problem.q)
        self.descent = DualDescent(pair, self.rows.rhs[index], self.penalty, lam[index])
        self.since, self.history = 0.0, []

    def _multipliers(self) -> FloatArray:
        """Of all rows."""
        lam = np.zeros(len(self.rows.rhs))
        lam[self.index[self.descent.order]] = self.descent.lam
        return lam

    def _admit(self, short: FloatArray) -> bool:
        """Let rows join that are missed by more than the slack of their query; whether there are any."""
        owner = self.rows.owner
        covered = np.zeros(self.problem.q)
        if self.penalty.slack == "query":
            np.maximum.at(covered, owner[self.index], short[self.index])
        beyond = short - covered[owner]
        beyond[self.index] = -np.inf
        rows = np.flatnonzero(beyond > 0.0)
        if not len(rows):
            return False
        new = rows[largest_of_each(beyond[rows], owner[rows], _JOIN)]
        lam = self._multipliers()
        index = np.union1d(self.index, new)
        if len(index) > self.plan.rows:  # of rows without a multiplier those leave that are furthest from active
            needed = np.union1d(np.flatnonzero(lam), new)
            others = np.setdiff1d(self.index, needed)
            closest = np.argsort((covered[owner] - short)[others], kind="stable")
            index = np.union1d(needed, others[closest[: max(0, self.plan.rows - len(needed))]])
        self._open(index, lam)
        self.interior_done = self.exchanged = False
        return True

    # -- measures -------------------------------------------------------------------------------------

    def _look(self, goal: float, other: FloatArray | None = None) -> bool:
        """Measure the gap and let missed rows join; whether some did. ``other`` is a second W to try.

        A working set is looked at alone until it has come closer than all rows last were.
        """
        descent, penalty, q = self.descent, self.penalty, self.problem.q
        descent.refresh()
        W = descent.W
        half = 0.5 * float(np.vdot(W, W))
        loads = penalty.loads(descent.lam, descent.rows.owner, q)
        self.bound = float(descent.rhs @ descent.lam) - half - penalty.conjugate(loads)
        short = descent.rhs - descent.rows.margins(W)
        self._tell(short, half)
        value = half + self._cost(short, descent.rows.owner)
        within = (value - self.bound) / value if value > 0.0 else 0.0
        partial = len(self.index) < len(self.rows.rhs)
        if partial and within > max(0.1 * self.checked, goal):
            self.gap = within
            return False
        if partial:
            short = self.rows.rhs - self.rows.values(W)
            value = half + self._cost(short, self.rows.owner)
        if value < self.least:
            self.least, self.best_W = value, W.copy()
        if other is not None:
            value = 0.5 * float(np.vdot(other, other))
            value += self._cost(self.rows.rhs - self.rows.values(other), self.rows.owner)
            if value < self.least:
                self.least, self.best_W = value, other
        self.gap = self.checked = (self.least - self.bound) / self.least if self.least > 0.0 else 0.0
        return partial and self.gap > goal and self._admit(short)  # a gap on all rows that is closed needs no more rows

    def _cost(self, short: FloatArray, owner: IntArray) -> float:
        """Of the slacks of rows that W falls short of by so much."""
        return float(self.penalty.cost(self.penalty.slacks(np.maximum(short, 0.0), owner, self.problem.q)))

    def _tell(self, short: FloatArray, half: float) -> None:
        self.rounds += 1
        if self.tell is None:
            return
        moving, worst = int(np.count_nonzero(self.descent.lam)), max(float(short.max()), 0.0)
        spent = time.perf_counter() - self.begin
        self.tell(Progress(self.rounds, len(self.index), moving, worst, (2.0 * half) ** 0.5, 0.0, spent))

    # -- the method -----------------------------------------------------------------------------------

    def _sweep(self) -> None:
        dx, dz = self.problem.shape
        rows = self.descent.rows
        visit = 4.0 * dx * dz + 2.0 * dx * rows.m / rows.q + 1000.0
        count = min(self.chunk, max(1, int(_OPERATIONS / (visit * rows.q))), self.limit - self.sweeps)
        count = min(count, self._expected())
        visits = self.descent.sweep(count)
        self.sweeps += count
        # Where most queries rest, sweeps are cheaper than looks: more of them fit in between.
        look = 8.0 * (rows.m * dx + rows.q * dx * dz) * count / max(visit * visits, 1.0)
        self.chunk = int(min(2 * self.chunk, max(_CHUNK, min(look, _LONGEST_CHUNK))))
        self.since += visit * visits / _SWEEP_RATE + _PER_LOOK

    def _expected(self) -> int:
        """Sweeps to the goal at the rate between the last two looks, and a few more."""
        (then, before), (now, gap) = self.looks
        if not (before > gap > self.goal > 0.0 and now > then and before < np.inf):
            return _LONGEST_CHUNK
        left = np.log(gap / self.goal) / (np.log(before / gap) / (now - then))
        return int(min(1.1 * left + 2.0, _LONGEST_CHUNK))

    def _free(self) -> float:
        """Multipliers that move: those that are positive, less one for every bound that is reached."""
        descent, penalty = self.descent, self.penalty
        k = float(np.count_nonzero(descent.lam))
        if penalty.loss == "hinge":
            loads = penalty.loads(descent.lam, descent.rows.owner, self.problem.q)
            k -= np.count_nonzero(loads >= penalty.C * (1.0 - 1e-9))
        return k

    def _exchange_cost(self) -> float:
        """Estimated seconds of all exchanges to the end; infinite where faces are large or it was tried."""
        rows = self.descent.rows
        if self.exchanged or not are_few(rows.m, rows.q, rows.shape, self.penalty):
            return np.inf
        k = self._free()
        return (k + _EXCHANGES) * (_PER_EXCHANGE + _PER_PAIR * k * k)

    def _newton_cost(self) -> float:
        """Estimated seconds of one Newton step; infinite where its system is too large."""
        descent, k = self.descent, self._free()
        dx, dz = self.problem.shape
        if k > self.plan.order(self.problem.shape):
            return np.inf
        factoring = (k**3 / 3.0 + k * k * (dx + dz + 20.0)) / _FACTOR_RATE
        return _PER_STEP + _PER_ROW * descent.rows.m + factoring

    def _interior_cost(self) -> float:
        """Estimated seconds of one interior-point step; infinite where its system is too large or was tried."""
        dx, dz = self.problem.shape
        N, rows = float(dx * dz), self.descent.rows
        if self.interior_done or not self.plan.holds_entries(rows.m, (dx, dz)):
            return np.inf
        forming = (N**3 / 3.0 + rows.q * N * N / 2.0 + 10.0 * N * N) / _FACTOR_RATE
        return _PER_STEP + (_PER_ROW + _PER_NUMBER * dx) * rows.m + forming

    def _choose(self, goal: float) -> Callable[[float], None] | None:
        """What to leave the sweeps for, where at their last rate they take longer to the goal; None to go on."""
        self.history.append((self.since, self.gap))
        if len(self.history) < 3 or not self.gap > goal:
            return None
        newton, interior = self._newton_cost() * 2.0**self.runs, self._interior_cost()
        by_newton, by_interior, by_exchanges = _EXPECTED * newton, _INTERIOR_EXPECTED * interior, self._exchange_cost()
        cost = min(by_newton, by_interior, by_exchanges)
        if self.since < _AFTER / _EXPECTED * cost:
            return None
        (then, before), (now, gap) = self.history[max(0, len(self.history) - 4)], self.history[-1]
        rate = np.log(before / gap) / (now - then) if before > gap and now > then else 0.0
        if rate * cost >= np.log(gap / goal):
            return None
        if by_exchanges <= cost:
            return self._exchange
        return self._newton if by_newton <= by_interior else self._interior

    def _exchange(self, goal: float) -> None:
        """Exchanges of single rows from the face of the multipliers; nothing where they do not end."""
        descent, self.exchanged = self.descent, True
        done = exchange_rows(
            descent.rows,
            descent.rhs,
            PenaltyBatch(np.array([self.penalty.C]), self.penalty.slack, self.penalty.loss),
            descent.lam,
        )
        if len(done.W):
            self.steps += int(done.exchanges[0])
            descent.move_to(
                self.penalty.admissible(np.maximum(done.multipliers[0], 0.0), descent.rows.owner, self.problem.q)
            )
            self._look(goal)
        self.since, self.history = 0.0, []

    def _interior(self, goal: float) -> None:
        """Interior-point steps on the working rows; small multipliers become 0 where they do not close the gap."""
        descent = self.descent
        late = self.time_limit < np.inf
        lam, W, steps = soft_interior(
            descent.rows, descent.rhs, self.penalty, 0.3 * goal, _INTERIOR_MOST, (lambda: self.spent) if late else None
        )
        self.steps, self.interior_done = self.steps + steps, True
        before = descent.lam
        lam = self.penalty.admissible(np.maximum(lam, 0.0), descent.rows.owner, self.problem.q)
        if np.isfinite(lam).all() and np.isfinite(W).all():
            descent.move_to(lam)
            known = self.gap
            joined = self._look(goal, W)
            if not joined and self.gap > goal:
                descent.move_to(np.where(lam > _TINY * float(lam.max()), lam, 0.0) if self.gap < known else before)
        self.since, self.history = 0.0, []

    def _newton(self, goal: float) -> None:
        """Proximal Newton steps on the rows that are nearly active, ever smaller weights, until the gap is closed."""
        descent, side = self.descent, float(np.abs(self.rows.rhs).max())
        owner, short = descent.rows.owner, descent.rhs - descent.rows.margins(descent.W)
        worst = np.zeros(self.problem.q)
        np.maximum.at(worst, owner, short)
        near = (worst[owner] if self.penalty.slack == "query" else 0.0) - short < _NEARLY * side
        rows = np.flatnonzero(near | (descent.lam > 0.0))
        part = MarginProblem.from_rows(descent.rows.gather(rows), descent.rhs[rows])._with_penalty(self.penalty)
        method = ProximalNewton(part)
        method.begin_at(descent.lam[rows], descent.W)
        weight, begin = _FIRST_WEIGHT, method.factorizations
        while not (self.spent or method.singular) and method.factorizations - begin < _MOST_STEPS:
            before = method.factorizations
            settled = method.newton(weight, _OF_A_WEIGHT, 0.0, lambda: self.spent)
            method.hold()
            lam = descent.lam.copy()
            lam[rows] = method.admissible(method.x)
            descent.move_to(lam)
            joined = self._look(goal)
            if joined or self.gap <= goal or (settled and weight <= _LEAST_WEIGHT):
                break
            taken = method.factorizations - before
            weight = max(weight * (0.5 if not settled else 0.1 if taken > 3 else 0.02), _LEAST_WEIGHT)
        self.steps += method.factorizations - begin
        self.runs, self.since, self.history = self.runs + 1, 0.0, []

    def approach(self, goal: float) -> None:
        """Sweeps and steps until the gap is at most ``goal``, until rounding stops them or the budget does."""
        best, idle = -np.inf, 0
        self.goal = goal
        while not self.spent and idle < _PATIENCE:
            self._sweep()
            joined = self._look(goal)
            self.looks = [self.looks[1], (self.sweeps, self.gap)]
            if self.gap <= goal and not joined:
                return
            idle = 0 if joined or self.bound > best + _RISE * abs(best) else idle + 1
            best = max(best, self.bound)
            other = None if joined or self.spent else self._choose(goal)
            if other is not None:
                other(goal)
                if self.gap <= goal:
                    return

    def run(self) -> MethodResult:
        """The best pair with its certificate on all rows."""
        tolerance = self.request.tolerance
        goal = max(_SHARE * tolerance, _LEAST_GAP)
        if self.problem.m:
            self._look(goal)
        if self.gap > _FAR:  # a start from far away gains nothing from looks after every second sweep
            self.chunk = max(_CHUNK, min(self._sweeps_before(goal), _LONGEST_CHUNK))
        if self.request.warm_start is not None:  # early sweeps from 0 are too fast to tell the rate
            self.looks = [(0, np.inf), (0, self.gap)]
        while True:
            if self.gap > goal:
                self.approach(goal)
            lam = self.rows.join(self._multipliers())
            certificate = certify(self.problem, self.best_W, lam, self.norm)
            if certificate.proved <= tolerance or self.spent or goal <= _LEAST_GAP:
                break
            goal = max(0.01 * goal, _LEAST_GAP)
        extras = Extras(working_rows=len(self.index), factorizations=self.steps)
        return MethodResult(self.best_W, lam, self.sweeps, certificate=certificate, extras=extras)


def solve_soft_large(unit: UnitProblem, norm: Norm, request: Request) -> MethodResult:
    """Soft margin of the Frobenius norm for many rows, one problem.

    ``max_iterations`` limits the sweeps (20,000 by default). Options are ``time_limit`` in seconds, ``memory_limit`` in
    bytes and ``progress``, a function that is called with a `Progress` after every look at all rows.

    Examples
    --------
    >>> from attsvm.solvers import MarginProblem, solve
    >>> rows = MarginProblem([[2.0, 0.0], [0.0, 1.0]], [[1.0]], [0, 0])
    >>> solve(rows.soft(C=0.5, slack="row"), solver="soft_large").W.round(6)
    array([[0.5],
           [0.5]])
    """
    penalty = unit.problem.single_penalty
    assert penalty is not None
    return _SoftSolve(unit.problem, penalty, norm, request).run()
