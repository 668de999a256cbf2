"""Split trained attention weights into a finite part and a max-margin direction (Section 6).

When attention settles on sets of tokens, equation (7) predicts ``W ~ W_fin + gamma W_mm / |W_mm|``: W_fin gives the
tokens of a set their probabilities, and Gen-SVM's W_mm suppresses all others without disturbing these.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Unpack

import numpy as np
import numpy.typing as npt

from attsvm.attention import log_attention
from attsvm.margin_options import SolverOptions, check_options, takes
from attsvm.problem import AttentionProblem, require_problem
from attsvm.records import html_table
from attsvm.selection import SelectedSets, Selection
from attsvm.solution import Solution, unit_matrices
from attsvm.solvers import Status
from attsvm.solvers.arrays import BoolArray, FloatArray
from attsvm.solvers.status import Advised
from attsvm.svm import att_svm, finite_part, gen_svm
from attsvm.user_input import real_array, require_finite


class DecompositionStatus(Advised):
    """How a decomposition ended; ``status.advice`` says more.

    Examples
    --------
    >>> DecompositionStatus.COMPLETE.advice
    'Both parts were found and certified.'
    """

    COMPLETE = "complete", "Both parts were found and certified."
    NOTHING_MASKED = (
        "nothing masked",
        "Every allowed token is selected, so no direction is left to find: W is compared with W_fin.",
    )
    INFEASIBLE = (
        "infeasible",
        "No W ties the selected tokens and suppresses the others (directional.certificate.farkas proves it).",
    )
    INACCURATE = (
        "inaccurate",
        "A solve ended without a closed certificate; read the certificates of finite and directional.",
    )


@dataclass(frozen=True, eq=False)
class Decomposition:
    """``W ~ W_fin + gamma * direction`` and how well it, and simpler predictions, point along W.

    Attributes
    ----------
    problem : AttentionProblem
    W : ndarray, shape (dx, dz)
        The weights that were decomposed.
    status : DecompositionStatus
    log_probabilities : ndarray, shape ``query_shape + (T,)``
        Attention of W; -inf where the problem's mask forbids it.
    selected_sets : SelectedSets
        Tokens above the ``selected`` threshold, and the likeliest one of each query.
    masked : ndarray of bool, shape ``query_shape + (T,)``
        Allowed tokens at or below the ``masked`` threshold.
    ambiguous : ndarray of bool, shape ``query_shape + (T,)``
        Allowed tokens between the thresholds. Gen-SVM suppresses them with the masked ones.
    max_masked : float
        Logarithm of the largest probability of a masked token; -inf when none is masked.
    finite : Solution or None
        The solve for W_fin; None when every set holds one token, for which W_fin = 0.
    directional : Solution or None
        Gen-SVM; None when every allowed token is selected.
    single : Solution
        Att-SVM of the likeliest tokens.
    W_fin : ndarray, shape (dx, dz)
    direction : ndarray, shape (dx, dz), or None
        W_mm divided by its norm; None when it is undefined or infeasible.
    gamma : float
        The gamma >= 0 that makes ``W_fin + gamma * direction`` correlate best with W; infinite when more always
        helps (W_svmeq is then the direction alone), NaN without a direction.
    gamma_least_squares : float
        The gamma >= 0 that brings it nearest to W.
    W_svmeq : ndarray, shape (dx, dz), or None
        W_fin + gamma * direction.
    correlation_mm, correlation_svmeq, correlation_1token : float
        Cosines of W with W_mm, W_svmeq and the solution of ``single``; NaN where one of them is 0 or missing.
    """

    problem: AttentionProblem
    W: FloatArray
    status: DecompositionStatus
    log_probabilities: FloatArray
    selected_sets: SelectedSets
    masked: BoolArray
    ambiguous: BoolArray
    max_masked: float
    finite: Solution | None
    directional: Solution | None
    single: Solution
    W_fin: FloatArray
    direction: FloatArray | None
    gamma: float
    gamma_least_squares: float
    W_svmeq: FloatArray | None
    correlation_mm: float
    correlation_svmeq: float
    correlation_1token: float

    @property
    def is_clean(self) -> bool:
        """True when every allowed token is clearly selected or clearly masked."""
        return not bool(self.ambiguous.any())

    @property
    def W_mm(self) -> FloatArray | None:
        """The Gen-SVM solution, shape (dx, dz); None when it is undefined or infeasible."""
        return None if self.direction is None or self.directional is None else self.directional.W

    @property
    def sizes(self) -> npt.NDArray[np.int64]:
        """Number of selected tokens of each query, shape ``query_shape``."""
        return np.asarray(self.selected_sets.members.sum(axis=-1), dtype=np.int64)

    def __repr__(self) -> str:
        clean = "" if self.is_clean else ", ambiguous"
        return (
            f"Decomposition({self.status}{clean}, {int(self.sizes.min())}..{int(self.sizes.max())} tokens selected, "
            f"correlation svmeq={self.correlation_svmeq:.4f} mm={self.correlation_mm:.4f} "
            f"1token={self.correlation_1token:.4f})"
        )

    def _repr_html_(self) -> str:
        rows = {
            "status": f"{self.status}: {self.status.advice}",
            "tokens selected per query": f"{int(self.sizes.min())} to {int(self.sizes.max())}",
            "ambiguous tokens": int(self.ambiguous.sum()),
            "gamma": f"{self.gamma:.4g}",
            "correlation of W with W_fin + gamma direction": f"{self.correlation_svmeq:.6f}",
            "with the Gen-SVM direction": f"{self.correlation_mm:.6f}",
            "with Att-SVM of the likeliest tokens": f"{self.correlation_1token:.6f}",
        }
        return html_table("Decomposition of attention weights", rows)


def best_combination(W: FloatArray, F: FloatArray, D: FloatArray) -> tuple[float, float]:
    """The g >= 0 for which ``F + g D`` correlates best with W, and the one for which it is nearest to W.

    With ``c(g) = <W, F + g D> / |F + g D|`` the sign of c' is that of the linear function

        (<W,D> <F,F> - <W,F> <F,D>)  +  g (<W,D> <F,D> - <W,F> <D,D>),

    so that c has one stationary point: a maximum when the second bracket is negative; otherwise the supremum is at
    g = 0 or in the limit of large g, returned as infinity. When F = 0 (to rounding) every g > 0 is equal and the
    nearest is taken.

    Parameters
    ----------
    W, F, D : ndarray, shape (dx, dz)
        D must not be zero.

    Examples
    --------
    >>> import numpy as np
    >>> F, D = np.array([[2.0, 0.0]]), np.array([[0.0, 1.0]])
    >>> best_combination(F + 5 * D, F, D)
    (5.0, 5.0)
    >>> best_combination(2 * (F + 5 * D), F, D)
    (5.0, 10.0)
    """
    wf, wd = float((W * F).sum()), float((W * D).sum())
    ff, fd, dd = float((F * F).sum()), float((F * D).sum()), float((D * D).sum())
    nearest = max((wd - fd) / dd, 0.0)
    if np.sqrt(ff) <= 1e-12 * np.linalg.norm(W):
        return nearest, nearest
    rise, bend = wd * ff - wf * fd, wd * fd - wf * dd
    if bend < 0:
        return max(rise / -bend, 0.0), nearest
    at_zero, in_the_limit = wf / np.sqrt(ff), wd / np.sqrt(dd)
    return (0.0 if at_zero >= in_the_limit else float("inf")), nearest


@takes(SolverOptions)
def decompose(
    problem: AttentionProblem,
    W: npt.ArrayLike,
    *,
    selected: float = 1e-3,
    masked: float = 1e-6,
    **options: Unpack[SolverOptions],
) -> Decomposition:
    """Read selected sets off attention weights and decompose the weights with W_fin and Gen-SVM.

    Parameters
    ----------
    problem : AttentionProblem
        A single problem; its head plays no role.
    W : array_like, shape (dx, dz)
        Trained weights, e.g. ``run.W``.
    selected, masked : float
        Tokens with probability above ``selected`` are selected, those at or below ``masked`` are masked; the band
        between is reported as ambiguous.
    **options
        Passed to the solver: ``tolerance``, ``max_iterations``, ``time_limit``, ...
        All keywords: `attsvm.margin_options.SolverOptions`.

    Returns
    -------
    Decomposition

    Examples
    --------
    >>> import attsvm
    >>> from attsvm.paths.weight_decomposition import decompose
    >>> problem = attsvm.random_problem(n=2, T=4, d=6, seed=0)
    >>> W_fin = attsvm.finite_part(problem, [[0.7, 0.0, 0.3, 0.0], [0.0, 1.0, 0.0, 0.0]], [[0, 2], [1]]).W
    >>> W = W_fin + 100 * attsvm.gen_svm(problem, [[0, 2], [1]]).direction
    >>> parts = decompose(problem, W)
    >>> parts.sizes.tolist(), round(parts.gamma, 4), round(parts.correlation_svmeq, 6)
    ([2, 1], 100.0, 1.0)
    """
    check_options("decompose", SolverOptions, options, "selected", "masked")
    if require_problem(problem).batch is not None:
        raise ValueError("decompose takes one problem at a time; index the batch first, e.g. problem[0] and W[0]")
    if not 0 < masked <= selected < 1:
        raise ValueError(
            f"thresholds must satisfy 0 < masked <= selected < 1, got masked={masked}, selected={selected}"
        )
    matrix = real_array("W", W).astype(np.float64)
    if matrix.shape != (problem.dx, problem.dz):
        raise ValueError(f"W must have shape {(problem.dx, problem.dz)}, got {matrix.shape}")
    require_finite("W", matrix)

    log_s = log_attention(problem, matrix)
    likeliest = log_s.argmax(axis=-1)
    members = (log_s > np.log(selected)) | (np.arange(problem.T) == likeliest[..., None])
    sets = SelectedSets(members)
    finite: Solution | None = None
    if (members.sum(axis=-1) > 1).any():
        finite = finite_part(problem, np.exp(log_s), sets, **options)
    directional: Solution | None = None
    if (problem.allowed & ~members).any():
        directional = gen_svm(problem, sets, **options)
    single: Solution = att_svm(problem, Selection(likeliest), **options)
    return _combine(problem, matrix, log_s, sets, masked, finite, directional, single)


def _combine(
    problem: AttentionProblem,
    W: FloatArray,
    log_s: FloatArray,
    sets: SelectedSets,
    masked: float,
    finite: Solution | None,
    directional: Solution | None,
    single: Solution,
) -> Decomposition:
    """Put the solved parts together and compare them with W."""
    others = problem.allowed & ~sets.members
    is_masked = others & (log_s <= np.log(masked))
    W_fin = np.zeros_like(W) if finite is None or not finite.status.has_solution else finite.W
    direction = None if directional is None or not directional.status.has_solution else directional.direction
    gamma = nearest = float("nan")
    svmeq: FloatArray | None = None
    if direction is not None:
        gamma, nearest = best_combination(W, W_fin, direction)
        svmeq = W_fin + gamma * direction if np.isfinite(gamma) else direction
    elif directional is None:
        svmeq = W_fin
    return Decomposition(
        problem,
        W,
        _status(finite, directional),
        log_s,
        sets,
        is_masked,
        others & ~is_masked,
        float(log_s[is_masked].max(initial=-np.inf)),
        finite,
        directional,
        single,
        W_fin,
        direction,
        gamma,
        nearest,
        svmeq,
        _cosine(W, direction),
        _cosine(W, svmeq),
        _cosine(W, single.W if single.status.has_solution else None),
    )


def _status(finite: Solution | None, directional: Solution | None) -> DecompositionStatus:
    solves = [s.status for s in (finite, directional) if s is not None]
    if Status.INFEASIBLE in solves:
        return DecompositionStatus.INFEASIBLE
    if any(status is not Status.OPTIMAL for status in solves):
        return DecompositionStatus.INACCURATE
    return DecompositionStatus.NOTHING_MASKED if directional is None else DecompositionStatus.COMPLETE


def _cosine(A: FloatArray, B: FloatArray | None) -> float:
    return float("nan") if B is None else float((unit_matrices(A) * unit_matrices(B)).sum())
