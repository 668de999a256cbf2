"""Attention separation: Delta, Gamma, s, a_I, a_U, the bounds of Lemma 3, and the constants of Assumption B."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from attsvm._arrays import bool_array
from attsvm.dynamics.conditioning.model import Array, PromptProblem

__all__ = [
    "Separation",
    "attention_bounds",
    "leakage",
    "sampled_leakage",
    "separation",
    "signal_subspace",
    "unimportant_covariance",
    "value_margins",
]

Members = npt.NDArray[np.bool_]


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

    members: Members
    gap: Array
    spread: Array
    other_spread: Array
    a_I: float
    a_U: float

    @property
    def sizes(self) -> npt.NDArray[np.int64]:
        """``s_i``, shape (N,)."""
        return np.asarray(self.members.sum(axis=1), dtype=np.int64)


def _read_members(problem: PromptProblem, members: npt.ArrayLike) -> Members:
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


def attention_bounds(found: Separation, *, form: str = "corrected") -> tuple[float, float]:
    """Lower bound on a_I (equation 13) and upper bound on a_U (equation 14, and its sharper form), Lemma 3.

    Parameters
    ----------
    found : Separation
    form : {"corrected", "printed", "sharp_printed"}
        The upper bound on a_U. ``printed``: ``1 / (1 + s_min exp(Delta_min))``. ``sharp_printed``: the sharper bound
        claimed for Gamma = 0, which fails unless the other scores are tied. ``corrected``: its repair with their
        width Omega, ``e^-D / (s + e^-D (1 + (n - s - 1) e^-Omega))`` for each example, the largest over examples.

    Returns
    -------
    lower, upper : float

    Examples
    --------
    >>> from attsvm.dynamics.conditioning import structured_teacher
    >>> teacher, members, _ = structured_teacher(4, 5, 6, 2, gap=3.0)
    >>> found = separation(teacher.problem, teacher.p_star, members)
    >>> lower, upper = attention_bounds(found)
    >>> lower <= found.a_I, found.a_U <= upper * (1 + 1e-12)
    (True, True)
    """
    n = found.members.shape[1]
    s = found.sizes
    gap = float(found.gap.min())
    tail = np.exp(-gap)
    lower = 1.0 / (1.0 + (s.max() - 1) * np.exp(found.spread.max()) + (n - s.min()) * tail)  # (13)
    if form == "printed":
        upper = tail / (tail + s.min())  # (14)
    elif form == "sharp_printed":
        upper = tail / (s.min() + (n - s.max()) * tail)
    elif form == "corrected":
        each = np.exp(-found.gap)
        upper = (each / (s + each * (1.0 + (n - s - 1) * np.exp(-found.other_spread)))).max()
    else:
        raise ValueError(f"form must be 'corrected', 'printed' or 'sharp_printed', got {form!r}")
    return float(lower), float(upper)


def _restricted(problem: PromptProblem, members: Members, basis: Array) -> list[tuple[Array, Array]]:
    keys = problem.keys @ basis
    return [(key[chosen], key[~chosen]) for key, chosen in zip(keys, members, strict=True)]


def _read_basis(problem: PromptProblem, basis: npt.ArrayLike) -> Array:
    array = np.asarray(basis, dtype=np.float64)
    d = problem.shape[2]
    if array.ndim != 2 or array.shape[0] != d or not 1 <= array.shape[1] <= d:
        raise ValueError(f"basis must have shape ({d}, k) with 1 <= k <= {d}, got {array.shape}")
    if not np.allclose(array.T @ array, np.eye(array.shape[1]), atol=1e-8):
        raise ValueError("basis must have orthonormal columns")
    return array


def leakage(problem: PromptProblem, members: npt.ArrayLike, basis: npt.ArrayLike) -> Array:
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
) -> Array:
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


def value_margins(problem: PromptProblem, p: npt.ArrayLike, members: npt.ArrayLike) -> Array:
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


def unimportant_covariance(problem: PromptProblem, members: npt.ArrayLike, basis: npt.ArrayLike) -> Array:
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


def signal_subspace(problem: PromptProblem, members: npt.ArrayLike, *, variance: float = 0.9) -> tuple[Array, Array]:
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
