"""Regularization paths: minimizers of the attention loss over balls of growing radius."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from attsvm.attention import likeliest
from attsvm.losses import Loss, get_loss
from attsvm.optimality import SeparatingCone, separating_cone
from attsvm.parameterizations import require_inner_dimension
from attsvm.paths.ball_search import BallSearch, Form, LogExcess, PathStatus, Point
from attsvm.problem import AttentionProblem, require_single
from attsvm.records import html_table
from attsvm.selection import Selection, SelectionLike, read_selection
from attsvm.solution import Solution, unit_matrices
from attsvm.solvers import Status
from attsvm.solvers.arrays import FloatArray
from attsvm.svm import att_svm
from attsvm.user_input import generator, real_array, require_choice, require_count, require_finite, require_number


@dataclass(frozen=True, eq=False)
class RegularizationPath:
    """Minimizers of the loss over balls of S radii.

    Attributes
    ----------
    problem : AttentionProblem
    parameterization : {"W", "KQ"}
    selection : Selection
        The tokens that the path is measured against.
    is_local : bool
        True when the path lives in the separating cone of a selection that is not optimal.
    radii : ndarray, shape (S,)
    W : ndarray, shape (S, dx, dz)
        NaN where there is no start.
    K, Q : ndarray or None, shapes (S, dx, m) and (S, dz, m)
    loss : ndarray, shape (S,)
    log_excess : ndarray, shape (S,)
        ``log(L(W) - L_alpha)``.
    correlation, distance : ndarray, shape (S,)
        Cosine between W and the predicted direction, and 1 minus it; NaN when there is no prediction
        (``why_no_distance`` says why).
    predicted : Solution
        Att-SVM of the selection, Frobenius for W and nuclear for (K, Q).
    cone_value : ndarray, shape (S,)
        Largest eps for which W lies in the separating cone; +inf for optimal tokens.
    on_boundary : ndarray of bool, shape (S,)
        Whether W uses the whole radius.
    stationarity : ndarray, shape (S,)
        On the boundary the sine between the parameters and the negative gradient of the log excess; inside, the
        norm of the gradient times that of the longest parameters. 0 at a stationary point.
    status : tuple of PathStatus, length S
    """

    problem: AttentionProblem
    parameterization: str
    selection: Selection
    is_local: bool
    radii: FloatArray
    W: FloatArray
    K: FloatArray | None
    Q: FloatArray | None
    loss: FloatArray
    log_excess: FloatArray
    correlation: FloatArray
    distance: FloatArray
    predicted: Solution
    cone_value: FloatArray
    on_boundary: npt.NDArray[np.bool_]
    stationarity: FloatArray
    status: tuple[PathStatus, ...]

    def __len__(self) -> int:
        return len(self.radii)

    @property
    def why_no_distance(self) -> str:
        """Why W is compared with no direction; empty where it is."""
        if self.predicted.status is Status.INFEASIBLE:
            return "no direction is predicted: Att-SVM is infeasible, no W selects these tokens"
        if not self.predicted.status.has_solution:
            return f"no direction is predicted: the solve of Att-SVM ended {self.predicted.status}"
        return "" if self.predicted.norm > 0 else "no direction is predicted: the solution of Att-SVM is 0"

    def _reached(self) -> str:
        """How the searches ended: the last one, and those that are not stationary."""
        short = [x for x, status in zip(self.stationarity, self.status, strict=True) if status is PathStatus.INACCURATE]
        if not short:
            return str(self.status[-1])
        worst = f"stationarity up to {max(short):.0e}; raise max_iterations"
        return f"{self.status[-1]}, {len(short)} of {len(self)} radii inaccurate ({worst})"

    def __repr__(self) -> str:
        kind, ends = "local " if self.is_local else "", f"radii {self.radii[0]:g}..{self.radii[-1]:g}"
        known = f"distance {self.distance[0]:.1e}..{self.distance[-1]:.1e}"
        if self.why_no_distance:
            known = f"loss {self.loss[0]:.4g}..{self.loss[-1]:.4g} ({self.why_no_distance})"
        return f"RegularizationPath({kind}{self.parameterization}, {ends}, {known}, {self._reached()})"

    def _repr_html_(self) -> str:
        rows: dict[str, object] = {
            "parameterization": self.parameterization,
            "kind": "local, in its separating cone" if self.is_local else "over the whole ball",
            "predicted": self.why_no_distance or repr(self.predicted),
        }
        for k, status in enumerate(self.status):
            known = f"loss {self.loss[k]:.4g}" if self.why_no_distance else f"1 - correlation {self.distance[k]:.1e}"
            rows[f"R = {self.radii[k]:g}"] = f"{known}, {status}"
        return html_table("Regularization path", rows)


def regularization_path(
    problem: AttentionProblem,
    radii: npt.ArrayLike,
    parameterization: str = "W",
    *,
    selection: SelectionLike = None,
    m: int | None = None,
    loss: str | Loss = "logistic",
    solution: Solution | None = None,
    starts: int = 4,
    seed: int | np.random.Generator = 0,
    tolerance: float = 1e-5,
    max_iterations: int = 5000,
) -> RegularizationPath:
    """Minimize the loss over balls of growing radius (W-RP, KQ-RP and the local path of Theorem 7).

    ``argmin L(W)`` over ``|W|_F <= R``, or ``argmin L(K Q^T)`` over ``|K|_F^2 + |Q|_F^2 <= 2 R``. When the
    selection is not optimal the search stays in its separating cone. Each radius starts from the minimizer of
    the one before.

    Parameters
    ----------
    problem : AttentionProblem
        A single problem with a linear head; K queries and masks are welcome.
    radii : array_like, shape (S,)
        Positive and increasing.
    parameterization : {"W", "KQ"}
    selection : Selection or array_like of int, optional
        The optimal tokens by default. Any other selection gives its local path, which starts from its SVM.
    m : int, optional
        Inner dimension of (K, Q); min(dx, dz) by default.
    loss : str or Loss
    solution : Solution, optional
        The Att-SVM of this selection (Frobenius for W, nuclear for KQ), if already solved.
    starts : int
        Random starts at the first radius, and again wherever the best branch does not select the optimal
        tokens; at most that many branches are followed, outwards and once more inwards. The problem is not convex:
        where Att-SVM is infeasible the best branch found may not be the best there is, and more starts help.
    seed : int or Generator
    tolerance : float
        Largest stationarity of a point that counts as a minimizer.
    max_iterations : int
        Of each descent.

    Returns
    -------
    RegularizationPath

    Examples
    --------
    >>> import attsvm
    >>> from attsvm.paths.regularization import regularization_path
    >>> path = regularization_path(attsvm.random_problem(n=3, T=4, d=4, seed=0), [5, 80, 320])
    >>> print(path.status[-1], bool(path.distance[-1] < 1e-3 < path.distance[0]))
    boundary True
    """
    require_number("tolerance", tolerance, "a positive number", low=0.0)
    require_count("max_iterations", max_iterations)
    require_single(problem, "a path belongs to one problem")
    if problem.head is None or not problem.head.is_linear:
        found = "no head" if problem.head is None else problem.head.name
        raise ValueError(f"regularization paths need a LinearHead, got {found}")
    R = read_radii(radii)
    form = _read_form(problem, parameterization, m)
    require_count("starts", starts)
    chosen = read_selection(problem, selection)
    is_local = _is_beaten(problem, chosen)
    objective = LogExcess(problem, chosen, get_loss(loss))
    if not objective.gap.any():
        raise ValueError("all allowed tokens of a query score the same, for every query: the loss does not depend on W")
    predicted = _predict(problem, chosen, "frobenius" if form.m is None else "nuclear", form.m, solution)
    cone = separating_cone(problem, chosen)
    search = BallSearch(objective, form, cone if is_local else None, tolerance, max_iterations)
    target = predicted.W if is_local or predicted.status.has_solution else None  # infeasible local paths raise here
    lengths = [form.length(float(radius)) for radius in R]
    if is_local:
        points = _follow_local(search, np.asarray(target), lengths)
    else:
        points = _follow(search, problem, target, lengths, starts, generator(seed))
    return _collect(problem, parameterization, chosen, is_local, R, search, points, predicted, cone)


def _is_beaten(problem: AttentionProblem, selection: Selection) -> bool:
    """Whether some token scores more than the selected one of its query."""
    scores = problem.scores()
    own = np.take_along_axis(scores, selection.indices[..., None], axis=-1)[..., 0]
    return bool((own < scores.max(axis=-1)).any())


def _follow_local(search: BallSearch, target: FloatArray, lengths: list[float]) -> list[Point | None]:
    """Outwards in the cone of a selection, from its SVM and from the point before."""
    points: list[Point | None] = []
    branches: list[Point] = []
    for length in lengths:
        tries = [search.form.lift(target), *(point.theta for point in branches)]
        found = search.explore(tries, branches, length, limit=1)
        points.append(found[0] if found else None)
        branches = found or branches
    return points


def _follow(
    search: BallSearch,
    problem: AttentionProblem,
    target: FloatArray | None,
    lengths: list[float],
    starts: int,
    rng: np.random.Generator,
) -> list[Point | None]:
    """Several branches outwards, with fresh starts where the best does not select the optimal tokens; then back."""
    form, best = search.form, problem.optimal_tokens().indices
    points: list[Point | None] = []
    branches: list[Point] = []
    for length in lengths:
        if not branches:
            branches = _first_branches(search, rng, starts, length)
        else:
            branches = search.explore([_shaken(p.theta, form, rng) for p in branches], branches, length, starts)
        if not (branches and np.array_equal(likeliest(problem, form.compose(branches[0].theta)), best)):
            tries = [p.theta for p in branches] + [rng.standard_normal(form.size) for _ in range(starts)]
            tries += [] if target is None else [form.lift(target)]
            branches = search.explore(tries, branches, length, starts)
        points.append(branches[0])
    return _back(search, rng, lengths, points)


def _first_branches(search: BallSearch, rng: np.random.Generator, starts: int, length: float) -> list[Point]:
    """First radius: random starts where the landscape is smooth, followed outwards by doubling."""
    ladder = [length]
    while ladder[0] > 4.0:
        ladder.insert(0, ladder[0] / 2.0)
    tries = [rng.standard_normal(search.form.size) for _ in range(starts)]
    branches: list[Point] = []
    for rung in ladder:
        branches = search.explore(tries, branches, rung, starts)
        tries = [_shaken(point.theta, search.form, rng) for point in branches]
    return branches


def _back(
    search: BallSearch, rng: np.random.Generator, lengths: list[float], points: list[Point | None]
) -> list[Point | None]:
    """Inwards again: a branch that wins at a large radius may win earlier than it was found."""
    better = list(points)
    for k in range(len(points) - 2, -1, -1):
        outer, own = better[k + 1], better[k]
        assert outer is not None and own is not None
        better[k] = min([own, *search.explore([_shaken(outer.theta, search.form, rng)], [], lengths[k], 1)], key=_value)
    return better


def _value(point: Point) -> float:
    return point.value


def _shaken(theta: FloatArray, form: Form, rng: np.random.Generator) -> FloatArray:
    """Factors of low rank are saddles: no gradient leads to a rank that they do not have. Shake them a little."""
    if form.m is None:
        return theta
    noise = rng.standard_normal(theta.size)
    return np.asarray(theta + 1e-2 * np.linalg.norm(theta) / np.sqrt(theta.size) * noise)


def read_radii(radii: npt.ArrayLike) -> FloatArray:
    """Radii of a path, checked: positive and increasing, shape (S,)."""
    R = real_array("radii", radii).astype(np.float64)
    if R.ndim != 1 or len(R) == 0:
        raise ValueError(f"radii must have shape (S,) with S >= 1, got {R.shape}")
    require_finite("radii", R)
    if not (R[0] > 0 and (np.diff(R) > 0).all()):
        raise ValueError(f"radii must be positive and increasing, got {R.tolist()}")
    return R


def _read_form(problem: AttentionProblem, parameterization: str, m: int | None) -> Form:
    require_choice("parameterization", parameterization, "W", "KQ")
    require_inner_dimension(parameterization, m)
    inner = None if parameterization == "W" else int(m or min(problem.dx, problem.dz))
    return Form(problem.dx, problem.dz, inner)


def _predict(
    problem: AttentionProblem, chosen: Selection, norm: str, m: int | None, solution: Solution | None
) -> Solution:
    if solution is None:
        solved: Solution = att_svm(problem, chosen, norm=norm, rank=m)
        return solved
    if not isinstance(solution, Solution):
        raise TypeError(f"solution must be a Solution, got {type(solution).__name__}")
    if solution.norm_name != norm or not (isinstance(solution.selection, Selection) and solution.selection == chosen):
        raise ValueError(f"solution must be the {norm} Att-SVM of the same selection, got {solution!r}")
    return solution


def _collect(
    problem: AttentionProblem,
    parameterization: str,
    chosen: Selection,
    is_local: bool,
    radii: FloatArray,
    search: BallSearch,
    points: list[Point | None],
    predicted: Solution,
    cone: SeparatingCone,
) -> RegularizationPath:
    form, objective = search.form, search.objective
    nothing = Point(np.full(form.size, np.nan), np.nan, np.nan, False, np.nan)
    found = [point or nothing for point in points]
    W = np.stack([form.compose(point.theta) for point in found])
    log_excess = np.array([point.value for point in found])
    correlation = np.full(len(radii), np.nan)
    if predicted.status.has_solution and predicted.norm > 0:
        correlation = (unit_matrices(W) * unit_matrices(predicted.W)).sum(axis=(1, 2))
    parts = [form.parameters(point.theta) for point in found]
    K, Q = (None if form.m is None else np.stack([part[name] for part in parts]) for name in "KQ")
    return RegularizationPath(
        problem,
        parameterization,
        chosen,
        is_local,
        radii,
        W,
        K,
        Q,
        objective.floor + np.exp(log_excess),
        log_excess,
        correlation,
        1.0 - correlation,
        predicted,
        np.array([_cone_value(cone, w) for w in W]),
        np.array([point.on_boundary for point in found]),
        np.array([point.stationarity for point in found]),
        tuple(PathStatus.NO_START if p is None else search.status(p) for p in points),
    )


def _cone_value(cone: SeparatingCone, W: FloatArray) -> float:
    if not cone.high.any():
        return float("inf")
    return cone.value(W) if np.isfinite(W).all() and W.any() else float("nan")
