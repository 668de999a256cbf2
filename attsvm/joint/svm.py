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

``ratio = 0`` is Att-SVM, a head that stands still; ``ratio = inf`` asks for 1 where v has its margin and for 0
elsewhere: W then feels the support vectors of v alone (compare *Max-Margin Token Selection in Attention Mechanism*,
arXiv 2306.13596). ``docs/joint.md`` derives it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from attsvm._arrays import BoolArray, FloatArray
from attsvm.heads import LinearHead
from attsvm.problem import AttentionProblem, require_problem
from attsvm.records import html_table
from attsvm.selection import Selection, SelectionLike, read_selection
from attsvm.solution import SUPPORT_TOLERANCE, Solution
from attsvm.solvers import MarginProblem, Status, solve
from attsvm.solvers.solution import MarginSolution
from attsvm.svm import att_svm

__all__ = ["JointSolution", "consistent_selection", "joint_svm", "label_svm"]

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
    >>> attsvm.joint_svm(attsvm.random_problem(n=4, T=5, d=8, seed=0), ratio=1.0)
    JointSolution(optimal, label margin 0.694, attention margin 0.4537, ratio 1, 3 of 4 queries support)
    """

    problem: AttentionProblem
    selection: Selection
    ratio: float
    weight: float
    head: MarginSolution
    attention: Solution | None
    demanded: FloatArray

    @property
    def status(self) -> Status:
        """That of the label SVM where it has no solution, else that of attention."""
        return self.head.status if self.attention is None else self.attention.status

    @property
    def v(self) -> FloatArray:
        """The label SVM, shape (dx,): every selected token has signed score 1 at least."""
        return np.asarray(self.head.W[:, 0])

    @property
    def W(self) -> FloatArray:
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
    def excess(self) -> FloatArray:
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


def _selected(problem: AttentionProblem, selection: Selection) -> FloatArray:
    """The selected tokens, shape (*query_shape, dx)."""
    flat = selection.indices.reshape(problem.n, -1)
    return np.asarray(np.take_along_axis(problem.X, flat[..., None], axis=1).reshape(*selection.indices.shape, -1))


def _excess(problem: AttentionProblem, selection: Selection, head: MarginSolution) -> FloatArray:
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


def joint_svm(
    problem: AttentionProblem,
    selection: SelectionLike = None,
    *,
    ratio: float = 0.0,
    norm: str = "frobenius",
    solver: str = "auto",
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
    norm : str
        Of attention: "frobenius" for W, "nuclear" for (K, Q), or any other.
    solver : str
        Of attention, as for `attsvm.att_svm`.

    Returns
    -------
    JointSolution

    Examples
    --------
    >>> import attsvm
    >>> problem = attsvm.random_problem(n=6, T=5, d=4, seed=1)
    >>> plain, relaxed = (attsvm.joint_svm(problem, ratio=ratio) for ratio in (0.0, float("inf")))
    >>> bool(relaxed.attention.norm <= plain.attention.norm), sorted(set(relaxed.demanded.tolist())) <= [0.0, 1.0]
    (True, True)
    """
    if require_problem(problem).batch is not None:
        raise ValueError("joint_svm takes one problem; index the batch first, e.g. problem[0]")
    if isinstance(ratio, bool) or not isinstance(ratio, int | float | np.number) or not ratio >= 0:
        raise ValueError(f"ratio must be a number in [0, inf], |v| / ||W||, got {ratio!r}")
    chosen = consistent_selection(problem) if selection is None else read_selection(problem, selection)
    head = label_svm(problem, chosen)
    nothing = np.full(problem.query_shape, np.nan)
    if not head.status.has_solution:
        return JointSolution(problem, chosen, float(ratio), float("nan"), head, None, nothing)
    excess = _excess(problem, chosen, head)
    excess[excess <= SUPPORT_TOLERANCE / head.norm] = 0.0

    def solved(weight: float) -> tuple[Solution, FloatArray]:
        demanded = np.where(excess > 0, np.maximum(0.0, 1.0 - _product(weight, excess)), 1.0)
        offset = np.zeros((*problem.query_shape, problem.T))
        np.put_along_axis(offset, chosen.indices[..., None], (1.0 - demanded)[..., None], axis=-1)
        found: Solution = att_svm(problem, chosen, norm=norm, offset=offset, solver=solver)
        return found, demanded

    weight = _weight(lambda w: solved(w)[0].norm, float(ratio), bool(excess.any()))
    attention, demanded = solved(weight)
    return JointSolution(problem, chosen, float(ratio), weight, head, attention, demanded)


def _product(weight: float, excess: FloatArray) -> FloatArray:
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
