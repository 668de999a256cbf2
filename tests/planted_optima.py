"""Margin problems of any size whose answer is chosen first and whose rows follow from it.

Optimality conditions read backwards: W and multipliers (or a proof that there is no W) are drawn, then rows and
right-hand sides are derived so that the conditions hold up to rounding. `margin_problems` has fixed draws.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from attsvm.solvers.arrays import FloatArray
from attsvm.solvers.margin_problem import MarginProblem

__all__ = [
    "BOTH",
    "LibraryProblem",
    "narrow",
    "planted_frobenius",
    "planted_nuclear",
]

BOTH = ("frobenius", "nuclear")


@dataclass(frozen=True, eq=False)
class LibraryProblem:
    """A margin problem and what is known about it.

    Attributes
    ----------
    name : str
    problem : MarginProblem
    norms : tuple of str
        Norms for which the rest holds. A proof of infeasibility holds for every norm.
    W : ndarray, shape (dx, dz), or None
        A solution (the only one for the Frobenius norm); None when unknown or when there is none.
    multipliers : ndarray, shape (m,), or None
        In norm form, ``N*(W(lam)) = 1`` and ``rhs . lam = N(W)``; of an infeasible problem the proof, scaled to
        ``rhs . lam = 1``; None when unknown.
    value : float or None
        Smallest norm; infinite when infeasible, None when unknown.
    tags : frozenset of str
    why : str
        What the problem is there to catch.
    """

    name: str
    problem: MarginProblem
    norms: tuple[str, ...]
    W: FloatArray | None
    multipliers: FloatArray | None
    value: float | None
    tags: frozenset[str]
    why: str

    @property
    def feasible(self) -> bool:
        """Whether some W satisfies the rows."""
        return self.value is None or bool(np.isfinite(self.value))


def _combined(a: FloatArray, b: FloatArray, lam: FloatArray) -> FloatArray:
    """``sum_k lam_k a_k b_k^T`` of rows with one b each."""
    return np.asarray((a * lam[:, None]).T @ b)


def _margins(a: FloatArray, b: FloatArray, W: FloatArray) -> FloatArray:
    return np.asarray(np.einsum("kd,kd->k", a @ W, b))


def orthonormal(rng: np.random.Generator, rows: int, columns: int) -> FloatArray:
    """Random orthonormal columns, shape (rows, columns)."""
    return np.asarray(np.linalg.qr(rng.standard_normal((rows, columns)))[0])


def planted_frobenius(
    dx: int = 6, dz: int = 5, queries: int = 4, active: int = 8, inactive: int = 12, *,
    equalities: int = 0, weak: int = 0, value: float = 2.0, unit_rhs: bool = False, seed: int = 0,
) -> LibraryProblem:  # fmt: skip
    """A Frobenius problem whose solution is chosen first.

    Draw rows and multipliers (positive on the ``active`` rows, of either sign on the ``equalities``, zero on the
    ``weak`` and ``inactive`` ones) with ``|W(lam)|_F = 1`` and take ``W = value W(lam)``. Right-hand sides are the
    margins of W, less a positive slack on inactive rows: all optimality conditions hold by construction. More active
    rows than entries of W make the multipliers ambiguous.

    Parameters
    ----------
    dx, dz : int
        Shape of W.
    queries, active, inactive, equalities, weak : int
        Numbers of queries and of rows of each kind; weak rows are met with equality but have no multiplier.
    value : float
        Norm of the solution.
    unit_rhs : bool
        Make every right-hand side 1: factors are drawn nonnegative, which makes every margin positive, then rotated,
        and each row is divided by its right-hand side.
    seed : int

    Examples
    --------
    >>> from attsvm.solvers import certify
    >>> from planted_optima import planted_frobenius
    >>> entry = planted_frobenius(20, 30, queries=10, active=50, inactive=200, seed=3)
    >>> certify(entry.problem, entry.W, entry.multipliers).worst < 1e-12
    True
    """
    rng = np.random.default_rng(seed)
    m = equalities + active + weak + inactive
    a, b = rng.standard_normal((m, dx)), rng.standard_normal((queries, dz))
    lam = np.concatenate([rng.standard_normal(equalities), rng.uniform(0.5, 1.5, active), np.zeros(weak + inactive)])
    if unit_rhs:
        a, b, lam = np.abs(a) @ orthonormal(rng, dx, dx), np.abs(b) @ orthonormal(rng, dz, dz), np.abs(lam)
    slack = np.append(np.zeros(m - inactive), rng.uniform(0.1, 1.0, inactive))
    owner = rng.permutation(np.arange(m) % queries)
    lam /= np.linalg.norm(_combined(a, b[owner], lam))
    W = value * _combined(a, b[owner], lam)
    margins = _margins(a, b[owner], W)
    rhs = margins / (1.0 + slack) if unit_rhs else margins - slack
    if unit_rhs:
        a, lam, rhs = a / rhs[:, None], lam * rhs, np.ones(m)
    tags = "planted" + " equality" * bool(equalities) + " degenerate" * bool(weak) + " mixed-rhs" * (not unit_rhs)
    return LibraryProblem(
        f"planted frobenius {dx}x{dz}, {active} active, {inactive} inactive, {weak} weak, {equalities} equal"
        + ", rhs 1" * unit_rhs,
        MarginProblem(a, b, owner, rhs, np.arange(m) < equalities),
        ("frobenius",), W, lam, value, frozenset(tags.split()), "the solution was chosen before the rows",
    )  # fmt: skip


def planted_nuclear(
    dx: int = 6, dz: int = 5, queries: int = 4, active: int = 3, inactive: int = 2, *,
    rank: int = 2, equalities: int = 0, value: float = 2.0, unit_rhs: bool = False, seed: int = 0,
) -> LibraryProblem:  # fmt: skip
    """A nuclear problem whose solution, its rank and the dual matrix are chosen first.

    Take ``D = U diag(1, .., 1, s) V^T`` with ``rank`` ones and s in (0.2, 0.8), V in the span of the queries B, and
    ``W = U_1 S V_1^T``: then ``|D|_op = 1`` and ``<D, W> = |W|_*``. It remains to write ``D = M B`` and to split
    column i of M among the active rows of query i.

    Parameters
    ----------
    dx, dz : int
        Shape of W.
    queries, active, inactive : int
        Number of queries and rows of each kind per query.
    rank : int
        Of W, and the certified one; at most ``min(queries, dx, dz)``.
    equalities : int
        The first so many rows are equalities, every second one with a negative multiplier (not with ``unit_rhs``).
    value : float
        Nuclear norm of the solution.
    unit_rhs : bool
        Make every right-hand side 1; takes orthonormal queries, at most dz of them.
    seed : int

    Examples
    --------
    >>> from attsvm.solvers import certify
    >>> from planted_optima import planted_nuclear
    >>> entry = planted_nuclear(20, 30, queries=10, rank=4, seed=3)
    >>> certificate = certify(entry.problem, entry.W, entry.multipliers, "nuclear")
    >>> certificate.worst < 1e-12, certificate.rank
    (True, 4)
    """
    if not 1 <= rank <= min(queries, dx, dz) or (unit_rhs and queries > dz):
        raise ValueError(f"rank must lie in 1..min(queries, dx, dz), and unit_rhs needs queries <= dz, got rank={rank}")
    rng = np.random.default_rng(seed)
    b = orthonormal(rng, dz, queries).T if unit_rhs else rng.standard_normal((queries, dz)) / np.sqrt(dz)
    span = np.linalg.svd(b, full_matrices=False)[2]  # orthonormal rows that span the queries
    size = min(len(span), dx)
    U, V = orthonormal(rng, dx, size), span.T @ orthonormal(rng, len(span), size)
    D = (U * np.append(np.ones(rank), rng.uniform(0.2, 0.8, size - rank))) @ V.T
    weights = rng.uniform(0.5, 1.5, rank)
    W = (U[:, :rank] * (value * weights / weights.sum())) @ V[:, :rank].T
    shares = (D @ np.linalg.pinv(b)).T  # (queries, dx): M with D = M B, one row per query

    is_active = np.arange(active + inactive) < active
    lam = rng.uniform(0.5, 1.5, (queries, active + inactive)) * is_active
    slack = rng.uniform(0.1, 1.0, lam.shape) * ~is_active
    noise = rng.standard_normal((*lam.shape, dx)) / np.sqrt(dx)
    if unit_rhs:
        a, lam = _rows_of_equal_margin(shares, b @ W.T, lam, slack, noise)
    else:
        lam.flat[:equalities:2] *= -1.0
        a = _rows_closed_by_the_last(shares, lam, noise, active - 1)
    equality = np.arange(lam.size) < (0 if unit_rhs else equalities)
    owner = np.repeat(np.arange(queries), active + inactive)
    margins = _margins(a.reshape(-1, dx), b[owner], W)
    rhs = np.ones(lam.size) if unit_rhs else margins - slack.ravel() * ~equality
    tags = "planted" + " equality" * bool(equality.any()) + " mixed-rhs" * (not unit_rhs)
    return LibraryProblem(
        f"planted nuclear {dx}x{dz} rank {rank}, {queries} x ({active} active, {inactive} inactive), "
        f"{equality.sum()} equal" + ", rhs 1" * unit_rhs,
        MarginProblem(a.reshape(-1, dx), b, owner, rhs, equality),
        ("nuclear",), W, lam.ravel(), value, frozenset(tags.split()), "solution and rank were chosen before the rows",
    )  # fmt: skip


def _rows_closed_by_the_last(shares: FloatArray, lam: FloatArray, noise: FloatArray, last: int) -> FloatArray:
    """Random rows, but the last active one of each query makes ``sum_k lam_k a_k`` its share."""
    a = noise.copy()
    a[:, last] = 0.0
    a[:, last] = (shares - np.einsum("qk,qkd->qd", lam, a)) / lam[:, last, None]
    return a


def _rows_of_equal_margin(
    shares: FloatArray, keys: FloatArray, lam: FloatArray, slack: FloatArray, noise: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """Rows ``share + noise`` with the noise orthogonal to ``W b`` and cancelling, scaled to margin 1 (+ slack).

    For orthonormal queries the share is ``D b``, and ``(D b)^T W b = (V_1^T b)^T S (V_1^T b)`` is positive.
    """
    lam = lam / lam.sum(axis=1, keepdims=True)
    direction = keys / np.linalg.norm(keys, axis=1, keepdims=True)
    noise = noise - np.einsum("qkd,qd->qk", noise, direction)[..., None] * direction[:, None]
    noise = noise - np.einsum("qk,qkd->qd", lam, noise)[:, None]
    margin = np.einsum("qd,qd->q", shares, keys)[:, None]
    return ((1.0 + slack)[..., None] * shares[:, None] + noise) / margin[..., None], lam * margin


def narrow(
    value: float = 1e3, *, d: int = 6, dz: int = 4, queries: int = 3, rows: int = 3, seed: int = 0
) -> LibraryProblem:
    """All but infeasible: rows that nearly cancel force a W of the given norm.

    Take unit vectors u, v and orthonormal queries b_i with ``c_i = v . b_i`` and v in their span, and rows
    ``g_ik + (eps / c_i) u`` with g orthogonal to u and ``sum_k t_ik g_ik = 0``, t_ik > 0, ``sum_k t_ik = 1``. The
    multipliers ``t_ik c_i^2 / eps`` combine them to ``u v^T``, of norm 1 in both norms, and ``W = u v^T / eps`` has
    margin 1 on every row: value 1 / eps.

    Examples
    --------
    >>> from attsvm.solvers import certify
    >>> from planted_optima import narrow
    >>> entry = narrow(1e4)
    >>> certify(entry.problem, entry.W, entry.multipliers).lower_bound.__round__(6)
    10000.0
    """
    rng = np.random.default_rng(seed)
    eps = 1.0 / value
    b = orthonormal(rng, dz, queries).T
    c = rng.uniform(0.5, 1.5, queries) * rng.choice([-1.0, 1.0], queries)
    c /= np.linalg.norm(c)
    u, v = orthonormal(rng, d, 1)[:, 0], c @ b
    t = rng.uniform(0.5, 1.5, (queries, rows))
    t /= t.sum(axis=1, keepdims=True)
    g = rng.standard_normal((queries, rows, d))
    g -= (g @ u)[..., None] * u
    g -= np.einsum("qk,qkd->qd", t, g)[:, None]
    g += (eps / c)[:, None, None] * u
    problem = MarginProblem(g.reshape(-1, d), b, np.repeat(np.arange(queries), rows))
    lam = (t * c[:, None] ** 2).ravel()
    tags = frozenset({"near-infeasible", "planted"})
    why = "a large norm must not be taken for infeasibility"
    name = f"narrow {d}x{dz}, {queries} x {rows} rows, norm {value:g}"
    return LibraryProblem(name, problem, BOTH, np.outer(u, v) / eps, lam / eps, value, tags, why)


def on_grid(rng: np.random.Generator, shape: tuple[int, ...]) -> FloatArray:
    """Multiples of 1/8 between -4 and 4: sums and small multiples of them are exact in float64."""
    return np.asarray(rng.integers(-32, 33, shape) / 8.0)


def cancelling(d: int = 6, dz: int = 4, queries: int = 3, rows: int = 3, seed: int = 0) -> LibraryProblem:
    """Infeasible: the rows of each query cancel exactly with positive weights, no two of them do.

    Examples
    --------
    >>> from planted_optima import cancelling
    >>> entry = cancelling()
    >>> bool(abs(entry.problem.adjoint(entry.multipliers)).max() < 1e-15)
    True
    """
    rng = np.random.default_rng(seed)
    b, a = on_grid(rng, (queries, dz)), on_grid(rng, (queries, rows, d))
    weight = np.append(rng.integers(1, 4, rows - 1), 1).astype(np.float64)
    a[:, -1] = -np.einsum("k,qkd->qd", weight[:-1], a[:, :-1])
    problem = MarginProblem(a.reshape(-1, d), b, np.repeat(np.arange(queries), rows))
    lam, why = np.tile(weight, queries), "the rows of each query cancel, no two of them do"
    lam = lam / lam.sum()
    return LibraryProblem("cancelling rows", problem, BOTH, None, lam, np.inf, frozenset({"infeasible"}), why)
