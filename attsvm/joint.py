"""The two max-margin problems of a head v and attention weights W that are trained together.

Selected tokens alpha make a classification problem of their own, the *label SVM*

    min |v|   s.t.   Y_i v . x_{i,alpha_i} >= 1,

whose solution leaves sequence i with ``excess_i = Y_i v . x_{i,alpha_i} / |v| - Gamma >= 0`` over the label margin
``Gamma = 1 / |v|``. What attention misses of sequence i costs ``e^{-|v| (Gamma + excess_i)}`` times its probability off
the selected token, so a sequence that is classified better than necessary need not be attended to as sharply. With
``ratio = |v| / |W|`` fixed while both grow, the best W of unit norm maximizes

    min over i, t of   ratio excess_i + (x_{i,alpha_i} - x_it)^T W z_i,

as long as the selected tokens stay selected. In the scale of a margin problem, with ``weight = ratio ||W||``:

    min ||W||   s.t.   (x_{i,alpha_i} - x_it)^T W z_i >= max(0, 1 - weight excess_i).

``ratio = 0`` is Att-SVM, a head that stands still; ``ratio = inf`` requires margin 1 where v has its margin and 0
elsewhere: W then feels the support vectors of v alone (compare *Max-Margin Token Selection in Attention Mechanism*,
arXiv 2306.13596). ``docs/joint.md`` derives it.

The regularization path of the pair: head and attention in balls of growing radius, minimized block by block.

``min L(v, W)`` over ``|v| <= r`` and ``|W|_F <= R`` is not convex, but each block alone is well posed in logarithms: v
is logistic regression on the attended tokens, and W minimizes the excess over the loss of the best tokens under v. The
excess is smaller than the loss itself by e^-R, so that one objective for both would lose it; in blocks neither
underflows.

A run that trained its head against the SVMs of its own tokens, at the ratio of its own norms, by snapshots.

Head and attention trained together: the coupled max-margin problems, and the path of the pair in growing balls.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Unpack

import numpy as np
import numpy.typing as npt

from attsvm.attention import likeliest, probabilities
from attsvm.comparison import misalignment
from attsvm.heads import LinearHead
from attsvm.losses import Loss, get_loss
from attsvm.margin_options import SolverOptions, check_options, takes
from attsvm.paths.ball_search import BallSearch, Form, LogExcess
from attsvm.paths.regularization import read_radii
from attsvm.problem import AttentionProblem, require_problem, require_single
from attsvm.records import Table, html_table
from attsvm.selection import Selection, SelectionLike, read_selection
from attsvm.solution import SUPPORT_TOLERANCE, Solution
from attsvm.solvers import MarginProblem, Status, solve
from attsvm.solvers.arrays import BoolArray, FloatArray
from attsvm.solvers.margin_solution import MarginSolution
from attsvm.svm import att_svm
from attsvm.user_input import AnyFloatArray, generator, require_count, require_number

if TYPE_CHECKING:
    from attsvm.training import Run

__all__ = [
    "JointComparison",
    "JointPath",
    "JointSolution",
    "compare_joint",
    "consistent_selection",
    "joint_path",
    "joint_svm",
    "label_svm",
]

# Selections tried before a fixed point is given up; every step enlarges the label margin, so none repeats.
_MOST_STEPS = 1000

# Relative accuracy of the weight that belongs to a ratio.
_ACCURACY = 1e-12


@dataclass(frozen=True, eq=False, repr=False)
class JointSolution:
    """The label SVM and the attention SVM of one selection.

    Attributes
    ----------
    problem : AttentionProblem
    selection : Selection
    ratio : float
        ``|v| / ||W||`` for which attention is solved, in [0, inf].
    weight : float
        By how much excess lowers what is asked of attention.
    head : MarginSolution
        The label SVM, a problem over matrices (dx, 1), with its certificate.
    attention : Solution or None
        The attention SVM with its certificate; None when the labels cannot be separated.
    demanded : ndarray, shape ``query_shape``
        Right-hand sides of attention, ``max(0, 1 - weight excess)``.

    Examples
    --------
    >>> import attsvm
    >>> attsvm.joint.joint_svm(attsvm.random_problem(n=4, T=5, d=8, seed=0), ratio=1.0)
    JointSolution(optimal, label margin 0.694, attention margin 0.4537, ratio 1, 3 of 4 queries support)
    """

    problem: AttentionProblem
    selection: Selection
    ratio: float
    weight: float
    head: MarginSolution
    attention: Solution | None
    demanded: AnyFloatArray

    @property
    def status(self) -> Status:
        """That of the label SVM where it has no solution, else that of attention."""
        return self.head.status if self.attention is None else self.attention.status

    @property
    def v(self) -> AnyFloatArray:
        """The label SVM, shape (dx,): every selected token has signed score 1 at least."""
        return np.asarray(self.head.W[:, 0])

    @property
    def W(self) -> AnyFloatArray:
        """The attention SVM, shape (dx, dz)."""
        if self.attention is None:
            self.head.W  # raises, and says why  # noqa: B018
            raise AssertionError
        return self.attention.W

    @property
    def label_margin(self) -> float:
        """Gamma, ``1 / |v|``."""
        return 1.0 / self.head.norm

    @cached_property
    def excess(self) -> AnyFloatArray:
        """``Y_i v . x_{i,alpha_i} / |v| - Gamma``, shape ``query_shape``: 0 for the sequences that support v."""
        return _excess(self.problem, self.selection, self.head)

    @property
    def support(self) -> BoolArray:
        """Queries that have the label margin exactly, shape ``query_shape``."""
        return np.asarray(self.excess <= SUPPORT_TOLERANCE * self.label_margin)

    @property
    def is_consistent(self) -> bool:
        """Whether every selected token has the highest score under v, so that attention has reason to select it."""
        scores = replace(self.problem, head=LinearHead(self.v)).scores()
        own = np.take_along_axis(scores, self.selection.indices[..., None], axis=-1)
        return bool((np.where(self.problem.allowed, scores, -np.inf) <= own).all())

    def __repr__(self) -> str:
        if self.attention is None:
            return f"JointSolution({self.status}: the labels of the selected tokens cannot be separated)"
        many = f"{int(self.support.sum())} of {self.support.size} queries support"
        margins = f"label margin {self.label_margin:.4g}, attention margin {self.attention.margin:.4g}"
        return f"JointSolution({self.status}, {margins}, ratio {self.ratio:g}, {many})"

    def _repr_html_(self) -> str:
        rows: dict[str, object] = {"status": str(self.status), "selection": self.selection.indices.tolist()}
        if self.attention is not None:
            rows |= {
                "label margin": f"{self.label_margin:.4g} (gap {self.head.certificate.gap:.1e})",
                "attention": repr(self.attention),
                "ratio |v| / |W|": f"{self.ratio:g}",
                "queries that support v": f"{int(self.support.sum())} of {self.support.size}",
                "selected tokens are the best under v": self.is_consistent,
            }
        return html_table("Head and attention together", rows)


def label_svm(problem: AttentionProblem, selection: SelectionLike) -> MarginSolution:
    """The least v with ``Y v . x_selected >= 1`` for every query, as a certified problem over matrices (dx, 1).

    Examples
    --------
    >>> import attsvm
    >>> from attsvm.joint import label_svm
    >>> problem = attsvm.AttentionProblem([[[2.0, 0.0], [0.0, 1.0]]], [1], [[1.0]])
    >>> label_svm(problem, [0]).W[:, 0]
    array([0.5, 0. ])
    """
    chosen = read_selection(require_problem(problem), selection)
    rows = (_selected(problem, chosen) * problem.Y[..., None]).reshape(-1, problem.dx)
    found: MarginSolution = solve(MarginProblem(rows, [[1.0]], np.zeros(len(rows), dtype=np.int64)))
    return found


def _selected(problem: AttentionProblem, selection: Selection) -> AnyFloatArray:
    """The selected tokens, shape (*query_shape, dx)."""
    flat = selection.indices.reshape(problem.n, -1)
    return np.asarray(np.take_along_axis(problem.X, flat[..., None], axis=1).reshape(*selection.indices.shape, -1))


def _excess(problem: AttentionProblem, selection: Selection, head: MarginSolution) -> AnyFloatArray:
    unit = head.W[:, 0] / head.norm
    margins = problem.Y * (_selected(problem, selection) @ unit)
    return np.asarray(np.maximum(margins - 1.0 / head.norm, 0.0))


def consistent_selection(problem: AttentionProblem, selection: SelectionLike = None) -> Selection:
    """Tokens that are the best under the label SVM that they make: a fixed point, reached from a given selection.

    Given tokens, v is their label SVM; given v, every query takes its token of highest score. No step lowers the label
    margin, and a step that changes tokens raises it or ends, so the fixed point is a local maximum of the margin that
    head and selection can have together.

    Parameters
    ----------
    problem : AttentionProblem
        A single problem with labels.
    selection : Selection or array_like of int, optional
        Where to start; the optimal tokens of the problem's own head by default.

    Examples
    --------
    >>> import attsvm
    >>> from attsvm.joint import consistent_selection, joint_svm
    >>> problem = attsvm.random_problem(n=4, T=5, d=8, seed=0)
    >>> joint_svm(problem, consistent_selection(problem)).is_consistent
    True
    """
    chosen = read_selection(require_problem(problem), selection)
    best = -1.0
    for _ in range(_MOST_STEPS):
        head = label_svm(problem, chosen)
        if not head.status.has_solution or 1.0 / head.norm <= best * (1.0 + 1e-12):
            return chosen
        best = 1.0 / head.norm
        after = replace(problem, head=LinearHead(head.W[:, 0])).optimal_tokens()
        if after == chosen:
            return chosen
        chosen = Selection(after.indices)
    return chosen


@takes(SolverOptions)
def joint_svm(
    problem: AttentionProblem,
    selection: SelectionLike = None,
    *,
    ratio: float = 0.0,
    **options: Unpack[SolverOptions],
) -> JointSolution:
    """The directions that head and attention are predicted to take when they are trained together.

    Parameters
    ----------
    problem : AttentionProblem
        A single problem with labels; its head, if any, only says where the search for a selection starts.
    selection : Selection or array_like of int, optional
        One token per query; by default `consistent_selection`.
    ratio : float
        ``|v| / ||W||``, in [0, inf]: how much faster the head grows. 0 gives Att-SVM, inf the relaxed problem in which
        only the queries that support v need a margin.
    **options
        Of the SVM of attention: ``tolerance``, ``max_iterations``, ``time_limit``, ... go to its solver.
        All keywords: `attsvm.margin_options.SolverOptions`.

    Returns
    -------
    JointSolution

    Examples
    --------
    >>> import attsvm
    >>> problem = attsvm.random_problem(n=6, T=5, d=4, seed=1)
    >>> plain, relaxed = (attsvm.joint.joint_svm(problem, ratio=ratio) for ratio in (0.0, float("inf")))
    >>> bool(relaxed.attention.norm <= plain.attention.norm), sorted(set(relaxed.demanded.tolist())) <= [0.0, 1.0]
    (True, True)
    """
    check_options("joint_svm", SolverOptions, options, "ratio")
    require_single(problem, "joint_svm takes one problem")
    require_number("ratio", ratio, "a number in [0, inf], |v| / ||W||", 0.0, ends="[]")
    chosen = consistent_selection(problem) if selection is None else read_selection(problem, selection)
    head = label_svm(problem, chosen)
    nothing = np.full(problem.query_shape, np.nan)
    if not head.status.has_solution:
        return JointSolution(problem, chosen, float(ratio), float("nan"), head, None, nothing)
    excess = _excess(problem, chosen, head)
    excess[excess <= SUPPORT_TOLERANCE / head.norm] = 0.0

    def solved(weight: float) -> tuple[Solution, AnyFloatArray]:
        demanded = np.where(excess > 0, np.maximum(0.0, 1.0 - _product(weight, excess)), 1.0)
        offset = np.zeros((*problem.query_shape, problem.T))
        np.put_along_axis(offset, chosen.indices[..., None], (1.0 - demanded)[..., None], axis=-1)
        found: Solution = att_svm(problem, chosen, offset=offset, **options)
        return found, demanded

    weight = _weight(lambda w: solved(w)[0].norm, float(ratio), bool(excess.any()))
    attention, demanded = solved(weight)
    return JointSolution(problem, chosen, float(ratio), weight, head, attention, demanded)


def _product(weight: float, excess: AnyFloatArray) -> AnyFloatArray:
    with np.errstate(invalid="ignore"):  # inf times 0, where nothing is lowered
        return np.asarray(weight * excess)


def _weight(norm_of: Callable[[float], float], ratio: float, lowers: bool) -> float:
    """The weight whose solution has ``weight / ||W|| = ratio``: that quotient grows with the weight."""
    from scipy.optimize import brentq

    if ratio in (0.0, float("inf")) or not lowers:
        return ratio if lowers else 0.0

    def above(log_weight: float) -> float:
        size = norm_of(float(np.exp(log_weight)))
        return log_weight - float(np.log(size)) - float(np.log(ratio)) if np.isfinite(size) else -1e3

    least = norm_of(float("inf"))
    if not np.isfinite(least):
        return float("inf")  # infeasible whatever is lowered
    low = float(np.log(ratio * least))
    high = low
    while above(high) < 0:  # ||W|| grows towards smaller weights
        high += 1.0
    return float(np.exp(low if high == low else brentq(above, low, high, xtol=_ACCURACY, rtol=_ACCURACY)))


# The blocks have settled when neither direction turns by more than this (as 1 - correlation) in a round.
_SETTLED = 1e-13


@dataclass(frozen=True, eq=False, repr=False)
class JointPath:
    """Minimizers of the loss over pairs of balls, S of them.

    Attributes
    ----------
    problem : AttentionProblem
    ratio : float
        Radius of the head's ball over that of attention.
    radii : ndarray, shape (S,)
        Of attention; the head's are ``ratio`` times these.
    v : ndarray, shape (S, dx)
    W : ndarray, shape (S, dx, dz)
    log_loss : ndarray, shape (S,)
    selection : ndarray of int, one set of ``query_shape`` per radius
        The likeliest tokens.
    predicted : tuple of JointSolution
        `joint_svm` of those tokens at this ratio.
    head_distance, attention_distance : ndarray, shape (S,)
        1 - correlation of v with the label SVM, and of W with the attention SVM; NaN if it has no solution.
    rounds : ndarray of int, shape (S,)
        Alternations between the blocks.
    settled : ndarray of bool, shape (S,)
        Whether the last round changed nothing.
    """

    problem: AttentionProblem
    ratio: float
    radii: FloatArray
    v: FloatArray
    W: FloatArray
    log_loss: FloatArray
    selection: npt.NDArray[np.int64]
    predicted: tuple[JointSolution, ...]
    head_distance: FloatArray
    attention_distance: FloatArray
    rounds: npt.NDArray[np.int64]
    settled: npt.NDArray[np.bool_]

    def __len__(self) -> int:
        return len(self.radii)

    def __repr__(self) -> str:
        ends = f"radii {self.radii[0]:g}..{self.radii[-1]:g}, ratio {self.ratio:g}"
        if not self.predicted[-1].status.has_solution:
            reached = f"log loss {self.log_loss[-1]:.4g}; SVM of the last tokens: {self.predicted[-1].status}"
            return f"JointPath({ends}, {reached})"
        return f"JointPath({ends}, distance of v {self.head_distance[-1]:.1e}, of W {self.attention_distance[-1]:.1e})"


def joint_path(
    problem: AttentionProblem,
    radii: npt.ArrayLike,
    *,
    ratio: float = 1.0,
    loss: str | Loss = "logistic",
    starts: int = 4,
    seed: int | np.random.Generator = 0,
    max_rounds: int = 40,
    tolerance: float = 1e-5,
    max_iterations: int = 2000,
) -> JointPath:
    """Minimize the loss over ``|v| <= ratio R`` and ``|W|_F <= R`` for growing R.

    The best of several random starts at the first radius is followed outwards: one branch, of a problem that is not
    convex.

    Parameters
    ----------
    problem : AttentionProblem
        A single problem with labels; its head is not used.
    radii : array_like, shape (S,)
        Of attention, positive and increasing.
    ratio : float
    loss : {"logistic", "exponential"} or Loss
        A positive loss whose logarithm is known.
    starts : int
    seed : int or Generator
    max_rounds : int
        Most alternations between the blocks at one radius.
    tolerance, max_iterations
        Of each block, as for `attsvm.regularization_path`.

    Returns
    -------
    JointPath

    Examples
    --------
    >>> import attsvm
    >>> path = attsvm.joint.joint_path(attsvm.random_problem(n=3, T=4, d=5, seed=0), [10, 160], starts=2)
    >>> bool(path.head_distance[-1] < 1e-3 > path.attention_distance[-1])
    True
    """
    require_single(problem, "a path belongs to one problem")
    rule = get_loss(loss)
    if rule.logs is None or rule.logs[0] is None:
        raise ValueError(f"loss must be positive with a known logarithm (logistic, exponential), got {rule.name!r}")
    R = read_radii(radii)
    require_number("ratio", ratio, "a positive number", low=0.0)
    for name, count in (("starts", starts), ("max_rounds", max_rounds), ("max_iterations", max_iterations)):
        require_count(name, count)
    pair = _Pair(problem, rule, tolerance, max_iterations, max_rounds)
    rng = generator(seed)
    first = [
        pair.settle(rng.standard_normal(problem.dx), rng.standard_normal((problem.dx, problem.dz)), ratio * R[0], R[0])
        for _ in range(starts)
    ]
    found = [min(first, key=lambda point: point.log_loss)]
    for radius in R[1:]:
        found.append(pair.settle(found[-1].v, found[-1].W, ratio * radius, float(radius)))
    return _collect(problem, float(ratio), R, found)


@dataclass(frozen=True, eq=False)
class _PairPoint:
    v: FloatArray
    W: FloatArray
    log_loss: float
    rounds: int
    settled: bool


class _Pair:
    """Alternation between the blocks at one pair of radii."""

    def __init__(
        self, problem: AttentionProblem, loss: Loss, tolerance: float, max_iterations: int, max_rounds: int
    ) -> None:
        self.problem, self.loss, self.max_rounds = problem, loss, max_rounds
        self.tolerance, self.max_iterations = tolerance, max_iterations
        self.form = Form(problem.dx, problem.dz, None)

    def settle(self, v: FloatArray, W: FloatArray, head_radius: float, radius: float) -> _PairPoint:
        """From directions of both to a pair that neither block improves."""
        W, settled, rounds = W * (radius / np.linalg.norm(W)), False, 0
        while not settled and rounds < self.max_rounds:
            before = v, W
            v = self._head_block(v, W, head_radius)
            W = self._attention_block(v, W, radius)
            turned = max(float(misalignment(before[0][None], v[None])), float(misalignment(before[1], W)))
            settled = turned <= _SETTLED
            rounds += 1
        return _PairPoint(v, W, self._log_loss(v, self._features(W))[0], rounds, settled)

    def _features(self, W: FloatArray) -> FloatArray:
        """``Y X^T s`` of every query, shape (n K, dx)."""
        attended = probabilities(self.problem, W).reshape(self.problem.n, -1, self.problem.T) @ self.problem.X
        return np.asarray(attended.reshape(-1, self.problem.dx) * self.problem.Y.reshape(-1, 1))

    def _log_loss(self, v: FloatArray, features: FloatArray) -> tuple[float, FloatArray]:
        """``log L`` and its gradient in v."""
        u = features @ v
        each = self.loss.log_value(u)
        top = float(each.max())
        total = float(np.exp(each - top).sum())
        slopes = np.exp(self.loss.log_slope(u) - top) / total
        return top + float(np.log(total / self.problem.n)), -(slopes @ features)

    def _head_block(self, v: FloatArray, W: FloatArray, length: float) -> FloatArray:
        features = self._features(W)
        return _on_sphere(lambda point: self._log_loss(point, features), v, length, self.max_iterations)

    def _attention_block(self, v: FloatArray, W: FloatArray, length: float) -> FloatArray:
        under = replace(self.problem, head=LinearHead(v))
        objective = LogExcess(under, under.optimal_tokens(), self.loss)
        search = BallSearch(objective, self.form, None, self.tolerance, self.max_iterations)
        found = search.explore([W.reshape(-1)], [], length, limit=1)
        return self.form.compose(found[0].theta) if found else W


def _on_sphere(
    function: Callable[[FloatArray], tuple[float, FloatArray]], start: FloatArray, length: float, iterations: int
) -> FloatArray:
    """The minimizer of given length: a head that separates always gains by growing."""
    from scipy.optimize import minimize

    def turned(point: FloatArray) -> tuple[float, FloatArray]:
        size = float(np.linalg.norm(point))
        unit = point / size
        value, slope = function(length * unit)
        return value, (length / size) * (slope - (slope @ unit) * unit)

    options = {"maxiter": iterations, "maxcor": 20, "ftol": 0.0, "gtol": 0.0}
    result = minimize(turned, start / np.linalg.norm(start), jac=True, method="L-BFGS-B", options=options)
    return np.asarray(length / np.linalg.norm(result.x) * result.x)


def _collect(problem: AttentionProblem, ratio: float, radii: FloatArray, found: list[_PairPoint]) -> JointPath:
    chosen = [Selection(likeliest(problem, point.W)) for point in found]
    predicted = tuple(joint_svm(problem, selection, ratio=ratio) for selection in chosen)

    distances = np.full((2, len(found)), np.nan)
    for k, (point, solution) in enumerate(zip(found, predicted, strict=True)):
        if solution.status.has_solution:
            distances[:, k] = misalignment(point.v[None], solution.v[None]), misalignment(point.W, solution.W)
    return JointPath(
        problem,
        ratio,
        radii,
        np.stack([point.v for point in found]),
        np.stack([point.W for point in found]),
        np.array([point.log_loss for point in found]),
        np.stack([selection.indices for selection in chosen]),
        predicted,
        distances[0],
        distances[1],
        np.array([point.rounds for point in found]),
        np.array([point.settled for point in found]),
    )


@dataclass(frozen=True, eq=False, repr=False)
class JointComparison:
    """Distances, as 1 - correlation, at S snapshots; NaN where a problem has no solution.

    Attributes
    ----------
    steps : ndarray of int, shape (S,)
    ratio : ndarray, shape (S,)
        ``|v| / ||W||`` there, in the Frobenius norm (nuclear for factors).
    head : ndarray, shape (S,)
        v against the label SVM of the tokens selected there.
    attention : ndarray, shape (S,)
        W against the attention SVM at that ratio.
    plain, relaxed : ndarray, shape (S,)
        W against those of ratio 0 (Att-SVM) and inf.
    solutions : tuple of JointSolution
        At that ratio.
    """

    steps: npt.NDArray[np.int64]
    ratio: FloatArray
    head: FloatArray
    attention: FloatArray
    plain: FloatArray
    relaxed: FloatArray
    solutions: tuple[JointSolution, ...]

    def __repr__(self) -> str:
        last = f"1 - corr of v {self.head[-1]:.1e}, of W {self.attention[-1]:.1e} (Att-SVM {self.plain[-1]:.1e})"
        return (
            f"JointComparison({len(self.steps)} snapshots, step {self.steps[-1]}: ratio {self.ratio[-1]:.3g}, {last})"
        )

    def __str__(self) -> str:
        columns = (self.ratio, self.head, self.attention, self.plain, self.relaxed)
        rows = [(int(k), *(f"{x:.2g}" for x in row)) for k, *row in zip(self.steps, *columns, strict=True)]
        heads = ("step", "|v| / |W|", "v: label SVM", "W: at this ratio", "W: Att-SVM", "W: relaxed")
        return Table("1 - correlation with the coupled SVMs", heads, rows).markdown()


def compare_joint(run: Run, snapshots: Sequence[int] | None = None) -> JointComparison:
    """Compare head and attention of a run with the directions that they are predicted to take.

    Parameters
    ----------
    run : Run
        Of one problem, from ``train(..., train_head=True)``.
    snapshots : sequence of int, optional
        Indices into the history; all but the start by default.

    Examples
    --------
    >>> import attsvm
    >>> from attsvm.joint import compare_joint
    >>> run = attsvm.train(attsvm.random_problem(n=3, T=4, d=6, seed=0), steps=600, lr=0.5, train_head=True)
    >>> found = compare_joint(run, [-1])
    >>> bool(found.head[-1] < 1e-2 > found.attention[-1])
    True
    """
    h = run.history
    if run.batch is not None:
        raise ValueError("compare_joint takes one run; index the batch first, e.g. run[0]")
    if h.v is None:
        raise ValueError("compare_joint needs a run that trained its head: train(..., train_head=True)")
    chosen = range(1, len(h)) if snapshots is None else snapshots
    norm = "nuclear" if run.parameterization == "KQ" else "frobenius"
    found = np.full((5, len(chosen)), np.nan)
    solutions = []
    for j, k in enumerate(chosen):
        size = float(np.linalg.norm(h.W[k], "nuc" if norm == "nuclear" else "fro"))
        found[0, j] = float(np.linalg.norm(h.v[k])) / size if size > 0 else np.inf
        ratios = (float(found[0, j]), 0.0, float("inf"))
        solved = [joint_svm(run.problem, h.selection[k], ratio=r, norm=norm) for r in ratios]
        solutions.append(solved[0])
        if solved[0].status.has_solution and h.v[k].any() and size > 0:
            found[1, j] = misalignment(h.v[k][None], solved[0].v[None])
        for place, solution in enumerate(solved):
            if solution.status.has_solution and size > 0:
                found[2 + place, j] = misalignment(h.W[k], solution.W)
    ratio, head, attention, plain, relaxed = found
    return JointComparison(h.steps[list(chosen)], ratio, head, attention, plain, relaxed, tuple(solutions))
