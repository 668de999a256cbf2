"""Curvature of the prompt model, and what makes it small.

`curvature` and `joint_curvature` give the spectrum of H_p at a point, `block_jacobian` that of the dynamics of the
attention vectors, and `kappa_report` the condition number of the softmax Jacobian beside the proxy (max / min)^2.
`separation`, `leakage` and `value_margins` are the quantities of Lemma 3 and Assumption B: how far attention
separates the important tokens.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from attsvm.dynamics.conditioning.prompt_model import PromptProblem
from attsvm.softmax import condition_bounds, condition_number, log_softmax
from attsvm.solvers.arrays import BoolArray, FloatArray
from attsvm.user_input import bool_array, require_count


@dataclass(frozen=True, eq=False)
class KappaReport:
    """Logarithms for the squared Jacobian J^2 on the tangent space, the operator of the decoupled dynamics (12).

    Attributes
    ----------
    exact : ndarray, shape (...)
        log kappa(J^2), from two roots of the secular equation.
    lower, upper : ndarray, shape (...)
        ``2 log khat`` and ``2 log (2 (1 - a_min) khat)``.
    proxy : ndarray, shape (...)
        ``2 log (max a / min a)``, printed as a lower bound; it is an upper bound.
    """

    exact: FloatArray
    lower: FloatArray
    upper: FloatArray
    proxy: FloatArray


def kappa_report(attention: npt.ArrayLike | None = None, *, log_attention: npt.ArrayLike | None = None) -> KappaReport:
    """Condition numbers of J^2, their bounds and the proxy for attention of shape (..., n).

    Examples
    --------
    >>> report = kappa_report(log_attention=dominant_token(8, 1e-9))
    >>> round(float(np.exp(report.exact)), 3), round(float(report.proxy / np.log(10)), 1)  # n^2 beside 10^19.7
    (64.0, 19.7)
    """
    lower, upper, proxy = condition_bounds(attention, log_attention=log_attention, log=True)
    exact = condition_number(attention, log_attention=log_attention, log=True)
    return KappaReport(2 * exact, 2 * lower, 2 * upper, 2 * proxy)


def dominant_token(n: int, eps: npt.ArrayLike) -> FloatArray:
    """Log-attention ``(1 - eps, eps / (n - 1), ...)``: kappa(J) = n (1 - eps) for n >= 3, while max / min ~ n / eps.

    Parameters
    ----------
    n : int
        Tokens, at least 2.
    eps : array_like, shape (...)
        Attention off the first token, in (0, 1).

    Returns
    -------
    ndarray, shape (..., n)

    Examples
    --------
    >>> np.exp(dominant_token(3, 0.5))
    array([0.5 , 0.25, 0.25])
    """
    small = np.asarray(eps, dtype=np.float64)
    require_count("n", n, least=2)
    if not ((small > 0) & (small < 1)).all():
        raise ValueError("eps must lie strictly between 0 and 1")
    others = np.log(small / (n - 1)) - np.log1p(-small)
    return log_softmax(np.concatenate([np.zeros((*small.shape, 1)), np.repeat(others[..., None], n - 1, axis=-1)], -1))


@dataclass(frozen=True, eq=False)
class Curvature:
    """Spectrum of a matrix sum_i l''_i r_i r_i^T, from the singular values of its N rows.

    Attributes
    ----------
    eigenvalues : ndarray, shape (d,)
        Descending; zeros beyond the number of examples.
    vectors : ndarray, shape (min(N, d), d)
        Their eigenvectors as rows.
    """

    eigenvalues: FloatArray
    vectors: FloatArray

    @property
    def condition_number(self) -> float:
        """Largest over smallest eigenvalue; infinite when there are fewer examples than parameters."""
        smallest = self.eigenvalues[-1]
        return float(self.eigenvalues[0] / smallest) if smallest > 0 else float("inf")

    @property
    def range_condition_number(self) -> float:
        """Largest over smallest eigenvalue among the min(N, d) that can differ from zero."""
        smallest = self.eigenvalues[len(self.vectors) - 1]
        return float(self.eigenvalues[0] / smallest) if smallest > 0 else float("inf")


def _from_rows(rows: FloatArray) -> Curvature:
    _, sizes, vectors = np.linalg.svd(rows, full_matrices=False)
    eigenvalues = np.zeros(rows.shape[1])
    eigenvalues[: len(sizes)] = sizes**2
    return Curvature(eigenvalues, vectors)


def curvature(problem: PromptProblem, p: npt.ArrayLike) -> Curvature:
    """Spectrum of ``H_p = sum_i l''_i r_i r_i^T``, r_i = K_i^T J_i u_i; the Hessian of the loss at p* is H_p / N.

    The d x d matrix is never formed: squaring would halve the digits of the small eigenvalues.

    Examples
    --------
    >>> from attsvm.dynamics.conditioning import student_teacher
    >>> teacher = student_teacher(N=30, n=5, d=4, sigma_p=0.5, seed=0)
    >>> found = curvature(teacher.problem, teacher.p_star)
    >>> found.eigenvalues.shape, found.condition_number > 1
    ((4,), True)
    """
    second = problem.loss.curvature(problem.predict(p) - problem.y)
    return _from_rows(np.sqrt(second)[:, None] * problem.rows(p))


def joint_curvature(problem: PromptProblem, p: npt.ArrayLike) -> Curvature:
    """The same for p and v trained together: rows ``(r_i, X_i^T a_i)`` in R^{2 d}.

    Examples
    --------
    >>> from attsvm.dynamics.conditioning import student_teacher
    >>> teacher = student_teacher(N=30, n=5, d=4, sigma_p=0.5, seed=0)
    >>> joint_curvature(teacher.problem, teacher.p_star).eigenvalues.shape
    (8,)
    """
    second = problem.loss.curvature(problem.predict(p) - problem.y)
    rows = np.concatenate([problem.rows(p), np.einsum("in,ind->id", problem.weights(p), problem.X)], axis=1)
    return _from_rows(np.sqrt(second)[:, None] * rows)


def block_factors(problem: PromptProblem, p: npt.ArrayLike) -> tuple[FloatArray, FloatArray]:
    """``B`` with blocks J_i K_i, shape (N n, d), and ``C`` with blocks K_k^T J_k H_k, shape (d, N n), equation (44).

    ``B C`` is the block Jacobian on the product of simplices; ``C B`` is H_p.

    Examples
    --------
    >>> from attsvm.dynamics.conditioning import student_teacher
    >>> teacher = student_teacher(N=3, n=4, d=2, seed=0)
    >>> B, C = block_factors(teacher.problem, teacher.p_star)
    >>> bool(np.allclose(np.linalg.eigvalsh(C @ B)[::-1], curvature(teacher.problem, teacher.p_star).eigenvalues))
    True
    """
    N, n, d = problem.shape
    a, u = problem.weights(p), problem.values
    B = a[:, :, None] * (problem.keys - np.einsum("in,ind->id", a, problem.keys)[:, None])
    second = problem.loss.curvature(problem.predict(p) - problem.y)
    # H_k = l''_k u_k u_k^T, so that K_k^T J_k H_k = l''_k r_k u_k^T
    C = (second[:, None] * problem.rows(p))[:, :, None] * u[:, None, :]
    return B.reshape(N * n, d), np.moveaxis(C, 0, 1).reshape(d, N * n)


def block_jacobian(problem: PromptProblem, p: npt.ArrayLike) -> FloatArray:
    """``A_ik = J_i K_i K_k^T J_k H_k`` (equation 43) as one matrix, shape (N n, N n); for inspection at small sizes.

    Examples
    --------
    >>> from attsvm.dynamics.conditioning import student_teacher
    >>> teacher = student_teacher(N=3, n=4, d=2, seed=0)
    >>> block_jacobian(teacher.problem, teacher.p_star).shape
    (12, 12)
    """
    B, C = block_factors(problem, p)
    return B @ C


@dataclass(frozen=True, eq=False)
class Separation:
    """How far the important tokens stand apart at p.

    Attributes
    ----------
    members : ndarray of bool, shape (N, n)
        The important tokens S_i.
    gap : ndarray, shape (N,)
        ``Delta_i``: smallest important minus largest other score.
    spread : ndarray, shape (N,)
        ``Gamma_i``: width of the important scores.
    other_spread : ndarray, shape (N,)
        ``Omega_i``: width of the other scores.
    a_I, a_U : float
        Smallest important and largest other attention over all examples.
    """

    members: BoolArray
    gap: FloatArray
    spread: FloatArray
    other_spread: FloatArray
    a_I: float
    a_U: float

    @property
    def sizes(self) -> npt.NDArray[np.int64]:
        """``s_i``, shape (N,)."""
        return np.asarray(self.members.sum(axis=1), dtype=np.int64)


def _read_members(problem: PromptProblem, members: npt.ArrayLike) -> BoolArray:
    chosen = bool_array("members", members)
    N, n, _ = problem.shape
    if chosen.shape != (N, n):
        raise ValueError(f"members must have shape ({N}, {n}), got {chosen.shape}")
    count = chosen.sum(axis=1)
    bad = np.flatnonzero((count == 0) | (count == n))
    if bad.size:
        raise ValueError(f"members[{bad[0]}] must hold some but not all tokens, got {count[bad[0]]} of {n}")
    return chosen


def separation(problem: PromptProblem, p: npt.ArrayLike, members: npt.ArrayLike | None = None) -> Separation:
    """Separation of important from other tokens at p.

    Parameters
    ----------
    problem : PromptProblem
    p : array_like, shape (d,)
    members : array_like of bool, shape (N, n), optional
        The sets S_i. By default the tokens with at least half of the largest attention, as in the paper's experiments.

    Returns
    -------
    Separation

    Examples
    --------
    >>> from attsvm.dynamics.conditioning import structured_teacher
    >>> teacher, members, _ = structured_teacher(4, 5, 6, 2, gap=3.0)
    >>> found = separation(teacher.problem, teacher.p_star, members)
    >>> found.gap.round(9).tolist(), found.sizes.tolist(), found.a_I > 20 * found.a_U
    ([3.0, 3.0, 3.0, 3.0], [2, 2, 2, 2], True)
    """
    logs = problem.log_weights(p)
    if members is None:
        chosen = _read_members(problem, logs >= logs.max(axis=1, keepdims=True) - np.log(2.0))
    else:
        chosen = _read_members(problem, members)
    scores = problem.keys @ np.asarray(p, dtype=np.float64)
    inside = np.where(chosen, scores, np.nan)
    outside = np.where(chosen, np.nan, scores)
    return Separation(
        chosen,
        np.nanmin(inside, axis=1) - np.nanmax(outside, axis=1),
        np.nanmax(inside, axis=1) - np.nanmin(inside, axis=1),
        np.nanmax(outside, axis=1) - np.nanmin(outside, axis=1),
        float(np.exp(np.where(chosen, logs, np.inf).min())),
        float(np.exp(np.where(chosen, -np.inf, logs).max())),
    )


def _restricted(problem: PromptProblem, members: BoolArray, basis: FloatArray) -> list[tuple[FloatArray, FloatArray]]:
    keys = problem.keys @ basis
    return [(key[chosen], key[~chosen]) for key, chosen in zip(keys, members, strict=True)]


def _read_basis(problem: PromptProblem, basis: npt.ArrayLike) -> FloatArray:
    array = np.asarray(basis, dtype=np.float64)
    d = problem.shape[2]
    if array.ndim != 2 or array.shape[0] != d or not 1 <= array.shape[1] <= d:
        raise ValueError(f"basis must have shape ({d}, k) with 1 <= k <= {d}, got {array.shape}")
    if not np.allclose(array.T @ array, np.eye(array.shape[1]), atol=1e-8):
        raise ValueError("basis must have orthonormal columns")
    return array


def leakage(problem: PromptProblem, members: npt.ArrayLike, basis: npt.ArrayLike) -> FloatArray:
    """Smallest rho with ``|K_S x| <= rho |K_Sc x|`` for all x in U, for each example (Assumption B1), exactly.

    The largest generalized singular value of the pair (K_S, K_Sc) on U; infinite where some x in U is seen by an
    important key but by no other. ``rho_U`` is the largest over examples.

    Parameters
    ----------
    problem : PromptProblem
    members : array_like of bool, shape (N, n)
    basis : array_like, shape (d, k)
        Orthonormal basis of U.

    Returns
    -------
    ndarray, shape (N,)

    Examples
    --------
    >>> from attsvm.dynamics.conditioning import structured_teacher
    >>> teacher, members, basis = structured_teacher(4, 9, 6, 2, gap=3.0, leakage=0.1)
    >>> exact, sampled = leakage(teacher.problem, members, basis), sampled_leakage(teacher.problem, members, basis)
    >>> bool((exact >= sampled).all()), bool((exact < 2 * sampled).all())
    (True, True)
    """
    chosen, columns = _read_members(problem, members), _read_basis(problem, basis)
    out = np.empty(len(chosen))
    for i, (inside, outside) in enumerate(_restricted(problem, chosen, columns)):
        _, sizes, vectors = np.linalg.svd(outside, full_matrices=True)
        scale = max(float(sizes.max(initial=0.0)), float(np.abs(inside).max(initial=0.0)))
        rank = int((sizes > 1e-12 * scale).sum())
        unseen = inside @ vectors[rank:].T
        if unseen.size and np.abs(unseen).max() > 1e-12 * scale:
            out[i] = np.inf
        else:
            seen = inside @ (vectors[:rank].T / sizes[:rank])
            out[i] = np.linalg.norm(seen, 2) if seen.size else 0.0
    return out


def sampled_leakage(
    problem: PromptProblem,
    members: npt.ArrayLike,
    basis: npt.ArrayLike,
    *,
    directions: int = 200,
    seed: int | np.random.Generator = 0,
) -> FloatArray:
    """The paper's estimate of `leakage`: the largest ratio over random directions of U. It underestimates.

    Returns
    -------
    ndarray, shape (N,)

    Examples
    --------
    >>> from attsvm.dynamics.conditioning import structured_teacher
    >>> teacher, members, basis = structured_teacher(4, 9, 6, 2, gap=3.0)
    >>> sampled_leakage(teacher.problem, members, basis).tolist()
    [0.0, 0.0, 0.0, 0.0]
    """
    chosen, columns = _read_members(problem, members), _read_basis(problem, basis)
    x = np.random.default_rng(seed).normal(size=(columns.shape[1], directions))
    ratios = [
        (np.linalg.norm(inside @ x, axis=0) / np.linalg.norm(outside @ x, axis=0)).max()
        for inside, outside in _restricted(problem, chosen, columns)
    ]
    return np.array(ratios)


def value_margins(problem: PromptProblem, p: npt.ArrayLike, members: npt.ArrayLike) -> FloatArray:
    """``delta_i``, the distance of the important values from the mean a_i^T u_i (Assumption B2), shape (N,).

    Examples
    --------
    >>> from attsvm.dynamics.conditioning import structured_teacher
    >>> teacher, members, _ = structured_teacher(4, 5, 6, 1, gap=30.0)  # one token takes all: delta vanishes
    >>> bool((value_margins(teacher.problem, teacher.p_star, members) < 1e-10).all())
    True
    """
    chosen = _read_members(problem, members)
    u = problem.values
    mean = problem.predict(p)[:, None]
    return np.asarray(np.where(chosen, np.abs(u - mean), np.inf).min(axis=1))


def unimportant_covariance(problem: PromptProblem, members: npt.ArrayLike, basis: npt.ArrayLike) -> FloatArray:
    """``Sigma_U`` in the coordinates of the basis, shape (k, k).

    Examples
    --------
    >>> from attsvm.dynamics.conditioning import structured_teacher
    >>> teacher, members, basis = structured_teacher(4, 5, 6, 2, gap=3.0)
    >>> unimportant_covariance(teacher.problem, members, basis).shape
    (3, 3)
    """
    chosen, columns = _read_members(problem, members), _read_basis(problem, basis)
    parts = _restricted(problem, chosen, columns)
    return np.asarray(sum(outside.T @ outside for _, outside in parts) / len(parts))


def signal_subspace(
    problem: PromptProblem, members: npt.ArrayLike, *, variance: float = 0.9
) -> tuple[FloatArray, FloatArray]:
    """Orthonormal bases of I, the principal subspace of the important keys, and of U, its complement.

    Parameters
    ----------
    problem : PromptProblem
    members : array_like of bool, shape (N, n)
    variance : float
        Share of the important keys' squared norm that I explains (0.9 in the paper's experiments).

    Returns
    -------
    signal, rest : ndarray, shapes (d, k) and (d, d - k)

    Examples
    --------
    >>> from attsvm.dynamics.conditioning import structured_teacher
    >>> teacher, members, basis = structured_teacher(40, 5, 6, 2, gap=3.0)
    >>> signal, rest = signal_subspace(teacher.problem, members, variance=0.999)
    >>> signal.shape, bool(np.allclose(basis.T @ signal, 0.0))
    ((6, 3), True)
    """
    if not 0 < variance < 1:
        raise ValueError(f"variance must be between 0 and 1, got {variance}")
    chosen = _read_members(problem, members)
    _, sizes, vectors = np.linalg.svd(problem.keys[chosen], full_matrices=True)
    share = np.cumsum(sizes**2) / np.sum(sizes**2)
    k = min(int(np.searchsorted(share, variance)) + 1, problem.shape[2])
    return vectors[:k].T, vectors[k:].T
