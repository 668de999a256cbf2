"""Margin problems as cvxpy programs: rows that hold, or hold up to a slack, the objective, and the multipliers."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np

from attsvm.solvers.arrays import FloatArray, IntArray
from attsvm.solvers.certify.certify_pair import certify
from attsvm.solvers.deadline import seconds_left, watched
from attsvm.solvers.frobenius.conflicts import find_farkas
from attsvm.solvers.margin_problem import MarginProblem
from attsvm.solvers.margin_solution import MethodResult, Request
from attsvm.solvers.norms import Norm
from attsvm.solvers.penalty import Penalty
from attsvm.solvers.unit import UnitProblem, span

if TYPE_CHECKING:
    import cvxpy

    Expression: TypeAlias = cvxpy.Expression | FloatArray
    import clarabel
    import cvxpy

__all__ = [
    "ACHIEVABLE",
    "TIGHT",
    "Stated",
    "at_least",
    "equal_to",
    "in_norm_form",
    "multipliers_of",
    "objective",
    "solve_cvxpy",
]


class Stated(NamedTuple):
    """A constraint of a program and the rows that it holds.

    Attributes
    ----------
    constraint : cvxpy.Constraint
    rows : ndarray of int
        Where the multipliers of its rows go.
    sign : float
        Of its dual value in these multipliers. cvxpy's Lagrangian adds ``nu (left - right)`` for an equality and
        ``nu (smaller - larger)`` with ``nu >= 0`` for an inequality.
    """

    constraint: cvxpy.Constraint
    rows: IntArray
    sign: float


def at_least(values: Expression, sides: FloatArray, rows: IntArray, slacks: Expression | None = None) -> list[Stated]:
    """``values >= sides``, or with slacks ``values >= sides - slacks``; nothing for no rows.

    Examples
    --------
    >>> import cvxpy as cp
    >>> import numpy as np
    >>> from attsvm.solvers.reference import at_least
    >>> W = cp.Variable((1, 1))
    >>> [held] = at_least(2.0 * cp.vec(W, order="C"), np.ones(1), np.array([0]))
    >>> round(float(cp.Problem(cp.Minimize(cp.norm1(W)), [held.constraint]).solve(solver="CLARABEL")), 6)
    0.5
    """
    if not len(rows):
        return []
    return [Stated(values >= (sides if slacks is None else sides - slacks), rows, 1.0)]


def equal_to(values: Expression, sides: FloatArray, rows: IntArray, slacks: Expression | None = None) -> list[Stated]:
    """``values = sides``, or with slacks ``|values - sides| <= slacks``; nothing for no rows.

    Examples
    --------
    >>> import cvxpy as cp
    >>> import numpy as np
    >>> from attsvm.solvers.reference import equal_to
    >>> x = cp.Variable(2)
    >>> len(equal_to(x, np.ones(2), np.arange(2))), len(equal_to(x, np.ones(2), np.arange(2), cp.Variable(2)))
    (1, 2)
    """
    if not len(rows):
        return []
    if slacks is None:
        return [Stated(values == sides, rows, -1.0)]
    return [Stated(values >= sides - slacks, rows, 1.0), Stated(values <= sides + slacks, rows, -1.0)]


def objective(
    W: Expression, norm: Norm, penalty: Penalty | None = None, slacks: Expression | None = None
) -> cvxpy.Expression:
    """The norm of W, or half its square for the Frobenius norm, plus the penalty of the slacks.

    Examples
    --------
    >>> import cvxpy as cp
    >>> from attsvm.solvers import get_norm
    >>> from attsvm.solvers.reference import objective
    >>> W = cp.Variable((2, 2), value=[[3.0, 0.0], [0.0, 4.0]])
    >>> [round(float(objective(W, get_norm(name)).value), 6) for name in ("frobenius", "nuclear")]
    [12.5, 7.0]
    """
    import cvxpy as cp

    if penalty is None:
        return norm.expression(W)
    cost = cp.sum(slacks) if penalty.loss == "hinge" else cp.sum_squares(slacks)
    return norm.expression(W) + penalty.C * cost


def multipliers_of(stated: Iterable[Stated], duals: Mapping[int, FloatArray], m: int) -> FloatArray:
    """Dual values of the constraints as one multiplier per row, shape (m,).

    Parameters
    ----------
    stated : iterable of Stated
    duals : mapping
        ``problem.solution.dual_vars`` of the program; a constraint that it lacks has multipliers 0.
    m : int
    """
    lam = np.zeros(m)
    for part in stated:
        if part.constraint.id in duals:
            lam[part.rows] += part.sign * np.ravel(duals[part.constraint.id])
    return lam


def in_norm_form(norm: Norm, problem: MarginProblem, lam: FloatArray) -> FloatArray:
    """Multipliers of a hard margin divided by the dual norm of ``W(lam)``, or 0 where that is 0 or not finite.

    Whatever increasing function of the norm was minimized, ``N*(W(lam)) = 1`` then.
    """
    size = norm.dual(problem.adjoint(lam)) if np.isfinite(lam).all() else np.inf
    return lam / size if 0 < size < np.inf else np.zeros(problem.m)


# Accuracy that a solver's certificate can be expected to reach with the settings below.
ACHIEVABLE = {"CLARABEL": 1e-7, "SCS": 1e-4, "OSQP": 1e-5}

# Settings far tighter than the packages' defaults: an optimization geometry is read off the solution.
TIGHT: dict[str, dict[str, object]] = {
    "CLARABEL": {"tol_gap_abs": 1e-11, "tol_gap_rel": 1e-11, "tol_feas": 1e-11, "max_iter": 200},
    "SCS": {"eps_abs": 1e-8, "eps_rel": 1e-8, "max_iters": 100_000},
    "OSQP": {
        "eps_abs": 1e-9,
        "eps_rel": 1e-9,
        "eps_prim_inf": 1e-12,  # the default calls feasible problems of large norm infeasible
        "max_iter": 100_000,
        "polishing": True,
    },
}

# What they call a limit on their time.
_TIME = {"CLARABEL": "time_limit", "SCS": "time_limit_secs", "OSQP": "time_limit"}

_SOLVED = {"optimal", "optimal_inaccurate", "user_limit"}
# What a solver leaves in W when it diverges on an infeasible problem is larger; rows have norm about 1.
_LARGEST = 1e100


def _installed(name: str | None) -> str:
    import cvxpy as cp

    wanted = "CLARABEL" if name is None else name.upper()
    if wanted not in cp.installed_solvers():
        found = ", ".join(f"'cvxpy:{s}'" for s in cp.installed_solvers())
        raise ValueError(f"solver 'cvxpy:{name}' is not installed; found {found}")
    return wanted


def _settings(name: str, request: Request) -> dict[str, object]:
    options = dict(request.options)
    settings: dict[str, object] = {} if options.pop("defaults", False) else dict(TIGHT.get(name, {}))
    if request.max_iterations is not None:
        settings["max_iters" if name == "SCS" else "max_iter"] = request.max_iterations
    if name in _TIME:
        options.pop("time_limit", None)  # the deadline holds it
    return {**settings, **options}


def _reduced(problem: MarginProblem, norm: Norm) -> tuple[FloatArray, tuple[int, int], FloatArray, FloatArray]:
    """Dense rows, shape of W, and the bases of the spans in which both are written."""
    pair = problem.pairs()
    a, queries = pair.a.astype(np.float64), pair.queries.astype(np.float64)
    left = span(a) if norm.unitarily_invariant else None
    right = span(queries[np.unique(pair.owner)]) if norm.unitarily_invariant else None
    left = np.eye(a.shape[1]) if left is None else left
    right = np.eye(queries.shape[1]) if right is None else right
    a, b = a @ left, (queries @ right)[pair.owner]
    return (a[:, :, None] * b[:, None, :]).reshape(len(a), -1), (left.shape[1], right.shape[1]), left, right


def solve_cvxpy(unit: UnitProblem, norm: Norm, request: Request) -> MethodResult:
    """Solve with cvxpy: ``solver="cvxpy"`` takes CLARABEL, ``"cvxpy:NAME"`` any installed solver.

    Options are solver settings, passed to ``cvxpy.Problem.solve``, and ``defaults=True`` for the solver package's own
    accuracy instead of our tight settings (for comparisons).

    Examples
    --------
    >>> from attsvm.solvers import MarginProblem, solve
    >>> solve(MarginProblem([[2.0]], [[1.0]], [0]), "linf", "cvxpy").W.round(6)
    array([[0.5]])
    """
    problem = unit.problem
    name = _installed(request.variant or None)
    settings = _settings(name, request)
    reduced = _reduced(problem, norm)
    features = reduced[0]
    penalty = problem.single_penalty
    if penalty is not None:
        return _solve_soft(problem, penalty, norm, reduced, name, settings)
    # Rows of size 1, so that tolerances mean the same at any scale.
    plain = np.full(features.shape[1], 1.0 / (float(problem.row_norms.max()) or 1.0))
    found = MethodResult()
    for columns, rows in ((plain, np.ones(problem.m)), _equilibrated(features)):
        found = _attempt(problem, norm, reduced, columns, rows, name, settings, found)
        if found.certificate is not None and found.certificate.proved <= request.tolerance:
            return found
        if request.options or norm.name in ("frobenius", "nuclear"):  # asked for a particular run of the solver
            break
    proof = find_farkas(problem)
    return found if proof is None else MethodResult(farkas=proof, iterations=found.iterations)


def _solve_soft(
    problem: MarginProblem,
    penalty: Penalty,
    norm: Norm,
    reduced: tuple[FloatArray, tuple[int, int], FloatArray, FloatArray],
    name: str,
    settings: dict[str, object],
) -> MethodResult:
    """Solve the soft margin of dense rows, in coordinates of their spans, with an installed cvxpy solver."""
    import cvxpy as cp

    features, shape, left, right = reduced
    scale = float(problem.row_norms.max()) or 1.0  # rows of size 1, so that tolerances mean the same at any scale
    V = cp.Variable(shape)
    by_query = penalty.slack == "query"
    slacks = cp.Variable(problem.q if by_query else problem.m, nonneg=True)
    allowed = slacks[problem.owner] if by_query else slacks
    stated = _stated_rows(problem, (features / scale) @ cp.vec(V, order="C"), problem.rhs, allowed)
    unit = max(1.0, penalty.C)  # the objective in units in which C is 1: tolerances are absolute
    program = cp.Problem(
        cp.Minimize(objective(V / scale, norm, penalty, slacks) / unit), [part.constraint for part in stated]
    )
    outcome = _run(program, name, norm, settings)
    if outcome == "solver_error" and name == "CLARABEL":  # squares of slacks next to cones: these as cones, too
        outcome = _run(program, name, norm, settings | {"use_quad_obj": False})
    if outcome == "solver_error":
        return MethodResult()
    iterations = int((program.solver_stats and program.solver_stats.num_iters) or 0)
    if V.value is None or not program.solution.dual_vars:
        return MethodResult(iterations=iterations)
    lam = multipliers_of(stated, program.solution.dual_vars, problem.m) * unit
    lifted = left @ (np.asarray(V.value, dtype=np.float64) / scale) @ right.T
    return MethodResult(lifted, lam, iterations, certificate=certify(problem, lifted, lam, norm))


def _stated_rows(
    problem: MarginProblem, values: cvxpy.Expression, sides: FloatArray, slacks: cvxpy.Expression | None = None
) -> list[Stated]:
    """All rows of a problem: two constraints, whatever their number."""
    bounded, fixed = np.flatnonzero(~problem.equality), np.flatnonzero(problem.equality)
    if not len(fixed):
        return at_least(values, sides, bounded, slacks)
    of_bounded, of_fixed = (None if slacks is None else slacks[index] for index in (bounded, fixed))
    return [
        *at_least(values[bounded], sides[bounded], bounded, of_bounded),
        *equal_to(values[fixed], sides[fixed], fixed, of_fixed),
    ]


def _equilibrated(features: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Powers of two for columns and rows that bring all of them to size about 1: (columns, rows)."""
    columns, rows = np.ones(features.shape[1]), np.ones(len(features))
    for _ in range(4):
        scaled = np.abs(features) * rows[:, None] * columns
        for axis, target in ((0, columns), (1, rows)):
            largest = scaled.max(axis=axis)
            power = np.where(largest > 0, np.exp2(-np.round(np.log2(np.where(largest > 0, largest, 1.0)) / 2)), 1.0)
            target *= power
    return columns, rows


def _attempt(
    problem: MarginProblem,
    norm: Norm,
    reduced: tuple[FloatArray, tuple[int, int], FloatArray, FloatArray],
    columns: FloatArray,
    rows: FloatArray,
    name: str,
    settings: dict[str, object],
    known: MethodResult,
) -> MethodResult:
    """One run of the solver on scaled rows and columns: what it found, or what was known if that is better."""
    import cvxpy as cp

    features, shape, left, right = reduced
    # The unknown is W divided entry by entry by the scales of the columns, up to one common factor.
    common = float(columns.max())
    V = cp.Variable(shape)
    W = V if np.all(columns == common) else cp.multiply((columns / common).reshape(shape), V)
    values = (features * rows[:, None] * columns) @ cp.vec(V, order="C")
    sides = problem.rhs * rows
    size = float(np.abs(sides).max()) or 1.0
    stated = _stated_rows(problem, values, sides / size)
    program = cp.Problem(cp.Minimize(objective(W, norm)), [part.constraint for part in stated])
    outcome = _run(program, name, norm, settings)
    iterations = known.iterations + int((program.solver_stats and program.solver_stats.num_iters) or 0)
    if outcome not in _SOLVED or V.value is None or not program.solution.dual_vars:
        return replace(known, iterations=iterations)
    matrix = np.asarray(V.value, dtype=np.float64) * columns.reshape(shape) * size
    if not float(np.abs(matrix).max(initial=0.0)) < _LARGEST:  # no answer, and its norm would overflow
        return replace(known, iterations=iterations)
    lam = multipliers_of(stated, program.solution.dual_vars, problem.m) * rows
    multipliers = in_norm_form(norm, problem, lam)
    lifted = left @ matrix @ right.T
    found = MethodResult(lifted, multipliers, iterations, certificate=certify(problem, lifted, multipliers, norm))
    assert found.certificate is not None
    if known.certificate is not None and known.certificate.proved <= found.certificate.proved:
        return replace(known, iterations=iterations)
    return found


def is_panic(error: BaseException) -> bool:
    """Whether an error is a panic of Clarabel, which no ``except Exception`` catches.

    Examples
    --------
    >>> is_panic(KeyboardInterrupt())
    False
    """
    return type(error).__name__ == "PanicException"


def _run(program: cvxpy.Problem, name: str, norm: Norm, settings: dict[str, object]) -> str:
    """Let cvxpy solve; its status, or "solver_error"."""
    import cvxpy as cp

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # "may be inaccurate": the certificate decides
        try:
            _solve_program(program, name, settings)
        except cp.SolverError as error:
            if "cannot solve this problem" in str(error):  # a cone that the solver does not have
                raise ValueError(f"solver 'cvxpy:{name}' does not support norm {norm.name!r}; use 'cvxpy'") from error
            return "solver_error"
        except BaseException as error:
            if not is_panic(error):
                raise
            return "solver_error"
    return str(program.status)


def _solve_program(program: cvxpy.Problem, name: str, settings: dict[str, object]) -> None:
    """Let cvxpy solve in a thread of its own, so that an interrupt is answered: Clarabel ends a step later."""
    flag = threading.Event()
    solver = _stoppable_clarabel(flag) if name == "CLARABEL" else name
    if name in _TIME and seconds_left() < np.inf:
        settings = settings | {_TIME[name]: max(seconds_left(), 0.0) + 1e-3}
    watched(lambda: program.solve(solver=solver, **settings), flag.set)


def _stoppable_clarabel(flag: threading.Event) -> cvxpy.Solver | str:
    """Clarabel as a solver of cvxpy that looks at a flag after every step; its name where it is too old for that."""
    import clarabel

    if not hasattr(clarabel.DefaultSolver, "set_termination_callback"):
        return "CLARABEL"
    from cvxpy.reductions.solvers.conic_solvers.clarabel_conif import CLARABEL, dims_to_solver_cones
    from scipy.sparse import csc_array, triu

    stoppable = CLARABEL()

    def solve_via_data(
        data: Mapping[str, Any], warm_start: bool, verbose: bool, solver_opts: object, solver_cache: object = None
    ) -> clarabel.DefaultSolution:
        size = len(data["c"])
        quadratic = triu(data["P"]).tocsc() if "P" in data else csc_array((size, size))
        cones, options = dims_to_solver_cones(data[stoppable.DIMS]), stoppable.parse_solver_opts(verbose, solver_opts)
        solver = clarabel.DefaultSolver(quadratic, data["c"], data["A"], data["b"], cones, options)
        solver.set_termination_callback(lambda _: flag.is_set())
        return solver.solve()

    stoppable.name = lambda: "STOPPABLE_CLARABEL"  # cvxpy refuses a name of its own
    stoppable.solve_via_data = solve_via_data
    return stoppable
