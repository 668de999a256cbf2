"""Margin problems whose answer is known before any solver runs.

Closed forms (the docstrings derive the values), problems without solution, rows as attention makes them, and fixed
draws of the planted optima of `planted_optima`. `library` returns them all.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from attsvm.solvers.arrays import FloatArray
from attsvm.solvers.margin_problem import MarginProblem
from planted_optima import BOTH, LibraryProblem, cancelling, narrow, on_grid, planted_frobenius, planted_nuclear
from row_variants import rescaled, with_dependent_rows, with_duplicates, with_zero_rows

__all__ = [
    "LibraryProblem",
    "attention_rows",
    "conflict",
    "diagonal",
    "hidden_conflict",
    "library",
    "one_row",
    "simplex",
    "zero_solution",
]


def one_row(norm: str = "frobenius", dx: int = 3, dz: int = 4, rhs: float = 1.0, seed: int = 0) -> LibraryProblem:
    """One row, any norm: ``<a b^T, W> >= rhs`` has value ``rhs / N*(a b^T)``.

    The dual norm of ``a b^T`` is ``|a| |b|`` for the Frobenius, nuclear and spectral norms, ``max |a_i b_j|`` for l1
    and ``sum |a_i b_j|`` for linf; the multiplier is its inverse, and W is where the norm attains it.

    Examples
    --------
    >>> from margin_problems import one_row
    >>> entry = one_row("linf", seed=1)
    >>> bool(abs(entry.problem.margins(entry.W)[0] - 1) < 1e-14)
    True
    """
    rng = np.random.default_rng(seed)
    a, b = rng.standard_normal(dx), rng.standard_normal(dz)
    row = np.outer(a, b)
    size = np.abs(row)
    W = {"l1": np.sign(row) * (size == size.max()), "linf": np.sign(row)}.get(norm, row)
    W = W * (rhs / float((W * row).sum()))
    dual = {"l1": float(size.max()), "linf": float(size.sum())}.get(norm, float(np.linalg.norm(row)))
    problem = MarginProblem(a[None], b[None], np.zeros(1, dtype=np.int64), np.array([rhs]))
    return LibraryProblem(
        f"one row {dx}x{dz}, {norm}", problem, (norm,), W, np.array([1.0 / dual]), rhs / dual,
        frozenset({"closed-form", "shape"}), "the smallest problem there is",
    )  # fmt: skip


def diagonal(norm: str, c: npt.ArrayLike = (3.0, 1.0, 2.0), equality: npt.ArrayLike | None = None) -> LibraryProblem:
    """``W_ii >= c_i`` (or ``= c_i``): ``W = diag(c)`` for every norm.

    With ``c >= 0`` on inequality rows the dual matrix is ``diag(lam)``, so ``N*(diag(lam)) = 1`` and
    ``c . lam = N(diag(c))`` give lam: ``c / |c|`` (Frobenius), signs (nuclear, l1), the largest entry (spectral, linf).
    For the nuclear norm ``[[1, t], [t, 1]]`` inside W shows that it has many solutions.

    Examples
    --------
    >>> from margin_problems import diagonal
    >>> diagonal("nuclear").value, diagonal("spectral").value
    (6.0, 3.0)
    """
    rhs = np.array(c, dtype=np.float64)
    size = len(rhs)
    largest = np.sign(rhs) * (np.arange(size) == np.abs(rhs).argmax())
    lam = {"frobenius": rhs / np.linalg.norm(rhs), "nuclear": np.sign(rhs), "l1": np.sign(rhs)}.get(norm, largest)
    equal = np.zeros(size, dtype=bool) if equality is None else np.array(equality)
    kinds = {"closed-form", "mixed-rhs"} | ({"equality"} if equal.any() else set())
    return LibraryProblem(
        f"diagonal{', equalities' * bool(equal.any())}, {norm}",
        MarginProblem(np.eye(size), np.eye(size), np.arange(size), rhs, equal),
        (norm,), np.diag(rhs), lam, float(rhs @ lam), frozenset(kinds), "one value, many nuclear solutions",
    )  # fmt: skip


def simplex(n: int = 3, T: int = 4, *, shared: bool = True, norm: str = "frobenius") -> LibraryProblem:
    """Tokens at the corners of a simplex, n orthonormal queries: ``(e_1 - e_t)^T W b_i >= 1`` for every t > 1.

    One query alone asks for the w of least norm with ``w_1 - w_t >= 1``: by symmetry ``w = e_1 - (1/T) sum_t e_t``
    ``= (1/T) sum_{t>1} (e_1 - e_t)``, ``|w|^2 = (T-1)/T``. With tokens ``shared`` by all queries
    ``W = w (sum_i b_i)^T`` has rank one and solves both norms with value ``|w| sqrt(n)``; with own tokens in orthogonal
    subspaces ``W = sum_i w_i b_i^T`` has n equal singular values: ``|w| sqrt(n)`` (Frobenius), ``|w| n`` (nuclear).

    Examples
    --------
    >>> from margin_problems import simplex
    >>> round(simplex(4, 4).value, 6), round(simplex(4, 4, shared=False, norm="nuclear").value, 6)
    (1.732051, 3.464102)
    """
    corners = np.eye(T)
    differences, w = corners[0] - corners[1:], corners[0] - corners.mean(axis=0)
    places = np.ones((n, 1)) if shared else np.eye(n)  # which copy of the corners each query looks at
    a = np.concatenate([np.kron(place, differences) for place in places])
    W = np.kron(places.T, w[:, None])
    singular = np.linalg.norm(w) * (np.array([np.sqrt(n)]) if shared else np.ones(n))
    value = float(singular.sum() if norm == "nuclear" else np.linalg.norm(singular))
    # W is the sum of all rows over T; the dual matrix is W / |W|_F, or W / sigma when the singular values are equal.
    lam = np.full(len(a), 1.0 / T / (singular[0] if norm == "nuclear" else value))
    return LibraryProblem(
        f"simplex n={n} T={T}, {'shared tokens' if shared else f'own tokens, {norm}'}",
        MarginProblem(a, np.eye(n), np.repeat(np.arange(n), T - 1)),
        BOTH if shared else (norm,), W, lam, value, frozenset({"closed-form"}), "every row is active",
    )  # fmt: skip


def zero_solution(seed: int = 0) -> LibraryProblem:
    """Right-hand sides that W = 0 meets, some with equality: value 0, every multiplier 0.

    Examples
    --------
    >>> from margin_problems import zero_solution
    >>> zero_solution().value
    0.0
    """
    rng = np.random.default_rng(seed)
    a, b = rng.standard_normal((5, 3)), rng.standard_normal((2, 2))
    rhs, equality = np.array([0.0, 0.0, -1.0, -3.0, 0.0]), np.arange(5) < 1
    problem = MarginProblem(a, b, np.array([0, 1, 0, 1, 0]), rhs, equality)
    tags = frozenset({"closed-form", "zero", "equality", "mixed-rhs"})
    return LibraryProblem("zero solution", problem, BOTH, np.zeros((3, 2)), np.zeros(5), 0.0, tags, "W = 0 is optimal")


def conflict(kind: str, dx: int = 4, dz: int = 3, seed: int = 0) -> LibraryProblem:
    """A small problem without solution among rows that have one; the proof needs the last one to three rows only.

    Parameters
    ----------
    kind : str
        "opposite rows": ``a`` and ``-2a`` for one query, proof (2, 1); "dependent equalities": ``a``, ``a'`` and
        ``a + a'`` with right-hand sides c, c' and ``c + c' + 1``, proof (-1, -1, 1); "zero row": ``0 >= 1``, proof 1;
        "zero equality": ``0 = -2``, proof -1/2; "zero query": the right factor is 0, proof 1.
    dx, dz : int
    seed : int

    Examples
    --------
    >>> from margin_problems import conflict
    >>> conflict("opposite rows").multipliers.round(3)
    array([0.   , 0.   , 0.   , 0.667, 0.333])
    """
    rng = np.random.default_rng(seed)
    easy = rng.standard_normal((3, dx))
    x, y = on_grid(rng, (2, dx))  # the conflict is exact, not up to rounding
    queries = rng.standard_normal((4, dz))
    rows: dict[str, tuple[list[FloatArray], list[float], bool, list[float]]] = {
        "opposite rows": ([x, -2 * x], [1.0, 1.0], False, [2 / 3, 1 / 3]),
        "dependent equalities": ([x, y, x + y], [0.5, -1.5, 0.0], True, [-1.0, -1.0, 1.0]),
        "zero row": ([0 * x], [1.0], False, [1.0]),
        "zero equality": ([0 * x], [-2.0], True, [-0.5]),
        "zero query": ([x], [1.0], False, [1.0]),
    }
    if kind not in rows:
        raise ValueError(f"kind must be one of {sorted(rows)}, got {kind!r}")
    a, rhs, equal, proof = rows[kind]
    if kind == "zero query":
        queries[3] = 0.0
    problem = MarginProblem(
        np.vstack([easy, *a]), queries, np.append(np.arange(3), [3] * len(a)), np.append(np.ones(3), rhs),
        np.append(np.zeros(3, dtype=bool), [equal] * len(a)),
    )  # fmt: skip
    tags = frozenset({"infeasible", *(["equality"] if equal else []), *(["zero-rows"] if "zero" in kind else [])})
    return LibraryProblem(kind, problem, BOTH, None, np.append(np.zeros(3), proof), np.inf, tags, "no W exists")


def hidden_conflict(*, dx: int = 5, dz: int = 3, rows: int = 2, seed: int = 0) -> LibraryProblem:
    """Infeasible through all its queries at once: without any one of the ``dz + 1`` queries it is feasible.

    Queries in general position have one linear dependence ``sum_i s_i b_i = 0``. Rows of query i that combine to
    ``s_i p`` with positive weights combine to ``p (sum_i s_i b_i)^T = 0`` over all queries.

    Examples
    --------
    >>> from attsvm.solvers import certify_infeasible
    >>> from margin_problems import hidden_conflict
    >>> entry = hidden_conflict()
    >>> certify_infeasible(entry.problem, entry.multipliers).farkas.owners
    array([0, 1, 2, 3])
    """
    rng = np.random.default_rng(seed)
    b = on_grid(rng, (dz + 1, dz))
    dependence = np.append(rng.choice([-2.0, -1.0, 1.0, 2.0], dz), 1.0)
    b[-1] = -dependence[:-1] @ b[:-1]  # exact, like everything below: the numbers lie on a grid
    lam = np.hstack([rng.integers(1, 4, (dz + 1, rows - 1)), np.ones((dz + 1, 1))])
    a = on_grid(rng, (dz + 1, rows, dx))
    wanted = np.outer(dependence, on_grid(rng, (dx,)))  # what the rows of each query combine to
    a[:, -1] = wanted - np.einsum("qk,qkd->qd", lam[:, :-1], a[:, :-1])
    problem = MarginProblem(a.reshape(-1, dx), b, np.repeat(np.arange(dz + 1), rows))
    why = "every query is needed for the conflict"
    proof = lam.ravel() / lam.sum()
    return LibraryProblem(
        f"hidden conflict {dx}x{dz}, {rows} rows each",
        problem,
        BOTH,
        None,
        proof,
        np.inf,
        frozenset({"infeasible"}),
        why,
    )


def attention_rows(
    n: int = 4, T: int = 5, d: int = 6, dz: int | None = None, *, float32: bool = False, seed: int = 0
) -> LibraryProblem:
    """Rows as a selection of attention makes them: n queries with T - 1 differences of unit vectors each.

    The answer is not known, but feasibility is: with ``n <= dz`` the queries are independent, so ``W b_i`` may be
    the selected token itself, which exceeds every other unit vector.

    Examples
    --------
    >>> from margin_problems import attention_rows
    >>> entry = attention_rows(n=2, T=3, d=4, seed=0)
    >>> entry.problem.m, entry.feasible, entry.value is None
    (4, True, True)
    """
    if n > (dz or d):
        raise ValueError(f"n must be at most dz, or the rows may conflict: got n={n}, dz={dz or d}")
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((n, T, d))
    Z: npt.NDArray[np.floating] = rng.standard_normal((n, dz or d))
    X /= np.linalg.norm(X, axis=-1, keepdims=True)
    Z /= np.linalg.norm(Z, axis=-1, keepdims=True)
    a: npt.NDArray[np.floating] = (X[:, :1] - X[:, 1:]).reshape(-1, d)
    if float32:
        a, Z = a.astype(np.float32), Z.astype(np.float32)
    problem = MarginProblem(a, Z, np.repeat(np.arange(n), T - 1))
    name = f"attention n={n} T={T} {d}x{dz or d}{', float32' * float32}"
    return LibraryProblem(name, problem, BOTH, None, None, None, frozenset({"attention"}), "what attention asks for")


def _closed_forms(seed: int) -> list[LibraryProblem]:
    norms = (*BOTH, "spectral", "l1", "linf")
    return [
        *(one_row(norm, seed=seed) for norm in norms),
        *(one_row(norm, 1, 1, rhs=3.0, seed=seed) for norm in BOTH),
        *(diagonal(norm) for norm in norms),
        *(diagonal(norm, (2.0, -1.0, 1.0), [False, True, True]) for norm in BOTH),
        simplex(),
        simplex(1, 6),
        *(simplex(shared=False, norm=norm) for norm in BOTH),
        zero_solution(seed),
    ]


def _planted(seed: int) -> list[LibraryProblem]:
    shapes = [(1, 7), (7, 1), (2, 20), (20, 2)]
    frobenius, nuclear = planted_frobenius(seed=seed), planted_nuclear(seed=seed)
    changes: list[Callable[[LibraryProblem], LibraryProblem]] = [
        with_duplicates, with_dependent_rows, with_zero_rows, rescaled,
    ]  # fmt: skip
    return [
        frobenius,
        nuclear,
        *(change(entry) for change in changes for entry in (frobenius, nuclear)),
        *(planted_frobenius(dx, dz, queries=3, active=4, inactive=5, seed=seed) for dx, dz in shapes),
        *(planted_nuclear(dx, dz, queries=3, active=2, inactive=2, rank=1, seed=seed) for dx, dz in shapes),
        planted_frobenius(queries=1, active=3, inactive=9, seed=seed),
        planted_nuclear(queries=1, active=3, inactive=9, rank=1, seed=seed),
        planted_frobenius(unit_rhs=True, seed=seed),
        planted_nuclear(unit_rhs=True, rank=3, seed=seed),
        planted_frobenius(active=0, inactive=0, equalities=10, seed=seed),
        planted_nuclear(active=2, inactive=0, equalities=8, seed=seed),
        planted_frobenius(equalities=6, weak=3, seed=seed),
        planted_nuclear(equalities=5, seed=seed),
        planted_frobenius(4, 3, queries=5, active=30, inactive=10, weak=5, seed=seed),
        planted_nuclear(4, 3, queries=6, active=4, inactive=1, seed=seed),
        planted_frobenius(12, 10, queries=8, active=30, inactive=90, seed=seed),
        planted_nuclear(12, 10, queries=8, active=4, inactive=6, rank=4, seed=seed),
        *(narrow(value, seed=seed) for value in (1e3, 1e4, 1e5, 1e6)),
        narrow(1e3, queries=1, rows=5, seed=seed),
    ]


def _without_solution(seed: int) -> list[LibraryProblem]:
    kinds = ("opposite rows", "dependent equalities", "zero row", "zero equality", "zero query")
    opposed = cancelling(seed=seed)
    return [
        *(conflict(kind, seed=seed) for kind in kinds),
        opposed,
        rescaled(opposed, seed=seed),
        with_duplicates(opposed),
        hidden_conflict(seed=seed),
        hidden_conflict(dx=3, dz=6, rows=4, seed=seed),
    ]


def library(seed: int = 0, tag: str | None = None) -> tuple[LibraryProblem, ...]:
    """All entries, or those with a tag, in a fixed order and with distinct names.

    Parameters
    ----------
    seed : int
        Of every random part.
    tag : str, optional
        "closed-form", "planted", "infeasible", "near-infeasible", "degenerate", "equality", "mixed-rhs", "zero-rows",
        "zero", "scales", "shape" or "attention".

    Examples
    --------
    >>> from margin_problems import library
    >>> [entry.name for entry in library(tag="infeasible")][:2]
    ['opposite rows', 'dependent equalities']
    """
    attention = [(1, 2, 3, None), (4, 5, 6, None), (6, 8, 10, None), (3, 12, 4, 7), (5, 3, 9, 5)]
    entries = [
        *_closed_forms(seed),
        *_planted(seed),
        *_without_solution(seed),
        *(attention_rows(n, T, d, dz, seed=seed) for n, T, d, dz in attention),
        attention_rows(float32=True, seed=seed),
    ]
    return tuple(entry for entry in entries if tag is None or tag in entry.tags)
