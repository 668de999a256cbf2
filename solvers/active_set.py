"""Least Frobenius norm of small problems: block principal pivoting on the Gram matrix.

With unit rows, Gram matrix G and right-hand side c, the multipliers solve the complementarity problem
``x >= 0, G x - c >= 0, x . (G x - c) = 0`` (x free and ``G x = c`` on equality rows). A set of rows is
guessed to be active, the equations are solved on it, and every row on the wrong side changes sides at
once; a handful of rounds end at the exact active set. What pivoting cannot do (dependent or
contradictory rows, conditioning beyond float64's Gram matrices) is handed to
`attsvm.solvers.dual_steps.dual_active_set`.

J. J. Júdice and F. M. Pires, "A block principal pivoting algorithm for large-scale strictly monotone
linear complementarity problems", Computers & Operations Research 21 (1994).
"""

from __future__ import annotations

import time

import numpy as np
import numpy.typing as npt

from attsvm.solvers.certificate import Certificate, certify_infeasible
from attsvm.solvers.dual_steps import dual_active_set
from attsvm.solvers.margin import BoolArray, FloatArray, IntArray, MarginProblem
from attsvm.solvers.norms import Norm
from attsvm.solvers.reduction import Reduction, reduce_dimensions
from attsvm.solvers.solution import MarginSolution, conclude, without_solution
from attsvm.solvers.status import Status

__all__ = ["ACHIEVABLE", "Scaling", "conclude_multipliers", "solve_active_set", "start_multipliers", "trivial_solution"]

# Accuracy that the certificate can be expected to reach.
ACHIEVABLE = 1e-8
# Certificates of well-posed problems are as good as rounding allows; anything above is worth refining.
_ROUNDING = 1e-13
_REFINEMENTS = 3
# Rounds without a new smallest number of misplaced rows before pivoting is called stuck.
_PATIENCE = 10
# Below this many rows pivoting starts from "all rows active": cheaper than guessing.
_GUESS_ROWS = 100
_GUESS_STEPS = 16


def start_multipliers(problem: MarginProblem, warm_start: npt.ArrayLike | MarginSolution | None) -> FloatArray | None:
    """Multipliers to start from, negative inequality multipliers cut to 0; None when there are none to use.

    Examples
    --------
    >>> from attsvm.solvers import MarginProblem
    >>> from attsvm.solvers.active_set import start_multipliers
    >>> start_multipliers(MarginProblem([[1.0], [2.0]], [[1.0]], [0, 0]), [-1.0, 1.0])
    array([0., 1.])
    """
    if warm_start is None:
        return None
    lam = np.array(warm_start.multipliers if isinstance(warm_start, MarginSolution) else warm_start, dtype=np.float64)
    if lam.shape != (problem.m,):
        raise ValueError(f"warm_start must hold {problem.m} multipliers, one per row, got shape {lam.shape}")
    if not np.isfinite(lam).all():
        if isinstance(warm_start, MarginSolution):  # an infeasible neighbour knows nothing of use here
            return None
        raise ValueError("warm_start must be finite")
    lam[(lam < 0) & ~problem.equality] = 0.0
    return lam if lam.any() else None


def trivial_solution(
    problem: MarginProblem, norm: Norm, solver: str, tolerance: float, start: float
) -> MarginSolution | None:
    """Settle what needs no solver: W = 0 is feasible, or a zero row asks for something; else None.

    Examples
    --------
    >>> from attsvm.solvers import MarginProblem, Norm
    >>> from attsvm.solvers.active_set import trivial_solution
    >>> slack = MarginProblem([[1.0]], [[1.0]], [0], rhs=[-1.0])
    >>> trivial_solution(slack, Norm("frobenius"), "active-set", 1e-8, 0.0).norm
    0.0
    """
    rhs, equality, norms = problem.rhs, problem.equality, problem.row_norms
    if norms.min() == 0.0:
        dead = np.flatnonzero((norms == 0) & np.where(equality, rhs != 0, rhs > 0))
        if len(dead):
            unit = np.zeros(problem.m)
            unit[dead[0]] = np.sign(rhs[dead[0]])
            proof = certify_infeasible(problem, unit)
            return without_solution(
                problem, norm, Status.INFEASIBLE, proof,
                solver=solver, iterations=0, seconds=time.perf_counter() - start,
            )  # fmt: skip
    if rhs.max() > 0 or (rhs.min() < 0 and bool((equality & (rhs != 0)).any())):
        return None
    return conclude(
        problem, norm, np.zeros(problem.shape), np.zeros(problem.m),
        solver=solver, iterations=0, seconds=time.perf_counter() - start, tolerance=tolerance,
    )  # fmt: skip


def conclude_multipliers(
    problem: MarginProblem,
    norm: Norm,
    lam: FloatArray,
    W: FloatArray | None = None,
    *,
    solver: str,
    iterations: int,
    start: float,
    tolerance: float,
) -> MarginSolution:
    """Certify multipliers of the dual ``max rhs . lam - |W(lam)|^2 / 2`` (not in norm form).

    ``W`` is ``W(lam)`` unless a more accurate matrix is given.

    Examples
    --------
    >>> import numpy as np
    >>> from attsvm.solvers import MarginProblem, Norm
    >>> from attsvm.solvers.active_set import conclude_multipliers
    >>> rows = MarginProblem([[2.0]], [[1.0]], [0])
    >>> fro = Norm("frobenius")
    >>> conclude_multipliers(rows, fro, np.array([0.25]), solver="", iterations=1, start=0.0, tolerance=1e-8).norm
    0.5
    """
    lam = np.where((lam < 0) & ~problem.equality, 0.0, lam)
    if W is None:
        W = problem.adjoint(lam)
    size = float(np.sqrt(np.vdot(W, W)))
    if size > 0:
        lam /= size
    else:
        lam = np.zeros(problem.m)
    return conclude(
        problem, norm, W, lam,
        solver=solver, iterations=iterations, seconds=time.perf_counter() - start, tolerance=tolerance,
    )  # fmt: skip


class Scaling:
    """Rows divided by their norms and right-hand sides by the largest that results."""

    def __init__(self, problem: MarginProblem) -> None:
        norms = problem.row_norms
        self.problem = problem
        self.zero_rows = bool(norms.min() == 0.0)
        self.inverse = 1.0 / np.where(norms > 0, norms, np.inf) if self.zero_rows else 1.0 / norms
        self.c = problem.rhs * self.inverse
        self.scale = float(np.abs(self.c).max())
        self.c /= self.scale
        self.back = self.inverse * self.scale  # multipliers of unit rows -> multipliers of the problem's rows

    def unit_rows(self) -> tuple[Reduction, IntArray]:
        """The nonzero rows at norm 1 in coordinates of their spans, and their indices."""
        problem = self.problem
        index = np.flatnonzero(self.inverse > 0)
        lengths = np.linalg.norm(problem.queries.astype(np.float64, copy=False), axis=1)
        weights = self.inverse * lengths[problem.owner]
        queries = problem.queries / np.where(lengths > 0, lengths, 1.0)[:, None]
        unit = MarginProblem(
            problem.a[index] * weights[index, None],
            queries,
            problem.owner[index],
            self.c[index],
            problem.equality[index],
        )
        return reduce_dimensions(unit), index


def _unit_gram(problem: MarginProblem, scaling: Scaling) -> FloatArray:
    """Gram matrix of the unit rows; a zero row gets a diagonal entry 1, so that its multiplier comes out as 0."""
    left = problem.a * scaling.inverse[:, None]
    gram = left @ left.T
    queries = problem.queries.astype(np.float64, copy=False)
    if problem.q == 1:
        gram *= float(queries[0] @ queries[0])
    elif problem.block:
        right = queries @ queries.T
        blocks = gram.reshape(problem.q, problem.block, problem.q, problem.block)
        blocks *= right[:, None, :, None]
    else:
        right = queries @ queries.T
        gram *= right[problem.owner[:, None], problem.owner]
    if scaling.zero_rows:
        np.fill_diagonal(gram, np.where(scaling.inverse > 0, gram.diagonal(), 1.0))
    return np.asarray(gram)


def _refined(
    problem: MarginProblem, scaling: Scaling, x: FloatArray, factored: tuple[IntArray, FloatArray]
) -> tuple[FloatArray, FloatArray]:
    """Multipliers and W after iterative refinement.

    The residual comes from W, not from the Gram matrix, and W is corrected instead of being summed up again:
    multipliers of nearly cancelling rows are as large as the square of the norm.
    """
    from scipy.linalg.lapack import dpotrs

    rows, factor = factored
    W = problem.adjoint(x * scaling.back)
    x = x.copy()
    for _ in range(_REFINEMENTS):
        residual = scaling.c - problem.margins(W) * scaling.inverse / scaling.scale
        change = np.zeros(problem.m)
        change[rows], _ = dpotrs(factor, residual[rows])
        x += change
        W = W + problem.adjoint(change * scaling.back)
    return x, W


def _guess(gram: FloatArray, c: FloatArray, equality: BoolArray) -> BoolArray:
    """Support after a few accelerated projected gradient steps."""
    direction = gram @ c
    curved = gram @ direction
    step = 0.8 * float(np.sqrt((direction @ direction) / max(float(curved @ curved), 1e-300)))
    x = point = np.zeros_like(c)
    for k in range(_GUESS_STEPS):
        moved = point - step * (gram @ point - c)
        np.maximum(moved, 0.0, out=moved, where=~equality)
        point = moved + (k / (k + 3.0)) * (moved - x)
        x = moved
    return np.asarray((x > 0) | equality)


def _pivot(
    gram: FloatArray, c: FloatArray, active: BoolArray, equality: BoolArray | None, max_rounds: int
) -> tuple[FloatArray, tuple[IntArray, FloatArray], int, bool]:
    """Multipliers, active rows with their Cholesky factor, rounds, and whether pivoting ended."""
    from scipy.linalg.lapack import dposv

    m = len(c)
    fewest, stalled, rounds = m + 1, 0, 0
    factor = last = np.zeros(m)
    while True:
        rounds += 1
        rows = active.nonzero()[0]
        x = np.zeros(m)
        if len(rows):
            factor, inner, fault = dposv(gram.take(rows, 0).take(rows, 1).T, c[rows], overwrite_a=1)
            if fault:
                return last, (rows, factor), rounds, False
            x[rows] = inner
        # Multipliers of active rows minus slacks of inactive ones (whichever is not 0 decides the side), down
        # to rounding, which grows with the multipliers and these with the square of the norm.
        balance = x - gram.dot(x)
        balance += c
        wanted = balance > 1e-15 * max(10.0, float(x.max()))
        if equality is not None:
            wanted |= equality
        misplaced = int(np.count_nonzero(wanted != active))
        if misplaced == 0:
            return x, (rows, factor), rounds, True
        if misplaced < fewest:
            fewest, stalled = misplaced, 0
        else:
            stalled += 1
        if stalled > _PATIENCE or rounds >= max_rounds:
            return x, (rows, factor), rounds, False
        active, last = wanted, x


def exact_by_steps(
    problem: MarginProblem, scaling: Scaling, x: FloatArray, max_steps: int
) -> tuple[FloatArray, FloatArray, Certificate | None, int]:
    """Unit-row multipliers, W, proof of infeasibility or None, and steps of the dual method, started from x > 0.

    Examples
    --------
    >>> import numpy as np
    >>> from attsvm.solvers import MarginProblem
    >>> from attsvm.solvers.active_set import Scaling, exact_by_steps
    >>> rows = MarginProblem([[1.0], [4.0]], [[1.0]], [0, 0])
    >>> exact_by_steps(rows, Scaling(rows), np.zeros(2), 10)[1]
    array([[1.]])
    """
    reduction, index = scaling.unit_rows()
    outcome = dual_active_set(reduction.problem, np.flatnonzero(x[index] > 0), max_steps)
    y = np.zeros(problem.m)
    y[index] = outcome.multipliers
    proof = certify_infeasible(problem, y * scaling.back) if outcome.conflict else None
    return y, scaling.scale * reduction.lift(outcome.W), proof, outcome.steps


def solve_active_set(
    problem: MarginProblem,
    norm: Norm,
    *,
    tolerance: float | None = None,
    max_iterations: int | None = None,
    warm_start: npt.ArrayLike | MarginSolution | None = None,
) -> MarginSolution:
    """Least Frobenius norm by an active-set method on the Gram matrix: exact, for up to a few thousand rows.

    Parameters
    ----------
    problem : MarginProblem
    norm : Norm
        ``Norm("frobenius")``.
    tolerance : float, optional
        What the certificate must reach to be called optimal; 1e-8 by default. Usually 1e-14 is reached.
    max_iterations : int, optional
        Limit on pivoting rounds plus single-row steps; ``100 + 10 m`` by default.
    warm_start : array_like of shape (m,) or MarginSolution, optional
        Multipliers of a similar problem with as many rows.

    Returns
    -------
    MarginSolution

    Examples
    --------
    >>> from attsvm.solvers import MarginProblem, Norm
    >>> from attsvm.solvers.active_set import solve_active_set
    >>> rows = MarginProblem([[2.0, 0.0], [0.0, 1.0]], [[1.0]], [0, 0])
    >>> result = solve_active_set(rows, Norm("frobenius"))
    >>> result.W
    array([[0.5],
           [1. ]])
    """
    begin = time.perf_counter()
    label = "active-set"
    goal = ACHIEVABLE if tolerance is None else tolerance
    limit = 100 + 10 * problem.m if max_iterations is None else max_iterations
    known = start_multipliers(problem, warm_start)
    settled = trivial_solution(problem, norm, label, goal, begin)
    if settled is not None:
        return settled

    scaling = Scaling(problem)
    equality = problem.equality if problem.equality.any() else None
    gram = _unit_gram(problem, scaling)
    if known is not None:
        active = (known != 0) | problem.equality
    elif problem.m < _GUESS_ROWS:
        active = np.ones(problem.m, dtype=bool)
    else:
        active = _guess(gram, scaling.c, problem.equality)
    x, factored, rounds, ended = _pivot(gram, scaling.c, active, equality, limit)

    def finish(unit_multipliers: FloatArray, W: FloatArray | None, iterations: int) -> MarginSolution:
        lam = unit_multipliers * scaling.back
        return conclude_multipliers(
            problem, norm, lam, W, solver=label, iterations=iterations, start=begin, tolerance=goal
        )

    result = None
    if ended:
        result = finish(x, None, rounds)
        if result.certificate.worst > _ROUNDING:
            refined = finish(*_refined(problem, scaling, x, factored), rounds)
            result = refined if refined.certificate.worst < result.certificate.worst else result
        if result.certificate.worst <= min(goal, ACHIEVABLE):
            return result
    if rounds >= limit:
        return finish(x, None, rounds) if result is None else result

    y, W, proof, steps = exact_by_steps(problem, scaling, x, limit - rounds)
    if proof is not None:
        return without_solution(
            problem, norm, Status.INFEASIBLE, proof,
            solver=label, iterations=rounds + steps, seconds=time.perf_counter() - begin,
        )  # fmt: skip
    exact = finish(y, W, rounds + steps)
    return exact if result is None or exact.certificate.worst <= result.certificate.worst else result
