"""Variants of a problem with a known answer: duplicate, dependent and zero rows, and rows of very different sizes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import numpy.typing as npt

from attsvm.solvers.arrays import BoolArray, FloatArray, IntArray
from attsvm.solvers.margin_problem import MarginProblem
from planted_optima import LibraryProblem

__all__ = ["rescaled", "with_dependent_rows", "with_duplicates", "with_zero_rows"]


def _parts(entry: LibraryProblem) -> tuple[FloatArray, FloatArray, IntArray, FloatArray, BoolArray]:
    """``(a, queries, owner, rhs, equality)``."""
    old = entry.problem
    rows = old.pairs()
    return rows.a.astype(np.float64), rows.queries.astype(np.float64), rows.owner, old.rhs, old.equality


def _extended(
    entry: LibraryProblem, how: str, a: FloatArray, owner: npt.ArrayLike, rhs: npt.ArrayLike,
    equality: npt.ArrayLike, tag: str, why: str,
) -> LibraryProblem:  # fmt: skip
    """The entry with rows that change nothing about its answer; their multipliers are 0."""
    old_a, b, *old = _parts(entry)
    rows = (np.append(before, new) for before, new in zip(old, (owner, rhs, equality), strict=True))
    problem = MarginProblem(np.vstack([old_a, a]), b, *rows)
    lam = None if entry.multipliers is None else np.append(entry.multipliers, np.zeros(len(a)))
    name = f"{entry.name}, {how}"
    return replace(entry, name=name, problem=problem, multipliers=lam, tags=entry.tags | {tag}, why=why)


def with_duplicates(entry: LibraryProblem) -> LibraryProblem:
    """Every row twice: the multipliers are no longer unique.

    Examples
    --------
    >>> from planted_optima import planted_frobenius
    >>> from row_variants import with_duplicates
    >>> with_duplicates(planted_frobenius()).problem.m
    40
    """
    a, _, owner, rhs, equality = _parts(entry)
    return _extended(entry, "every row twice", a, owner, rhs, equality, "degenerate", "singular Gram matrix")


def with_dependent_rows(entry: LibraryProblem) -> LibraryProblem:
    """Add the sum of any two neighbouring rows of one query: implied, and active when both are.

    Examples
    --------
    >>> from planted_optima import planted_nuclear
    >>> from row_variants import with_dependent_rows
    >>> with_dependent_rows(planted_nuclear()).problem.m
    36
    """
    a, _, owner, rhs, equality = _parts(entry)
    order = np.argsort(owner, kind="stable")
    i, j = order[:-1], order[1:]
    same = (owner[i] == owner[j]) & (equality[i] == equality[j])
    i, j = i[same], j[same]
    why = "active rows without multiplier"
    return _extended(
        entry, "dependent rows", a[i] + a[j], owner[i], rhs[i] + rhs[j], equality[i], "degenerate", why
    )  # fmt: skip


def with_zero_rows(entry: LibraryProblem) -> LibraryProblem:
    """Add rows with ``a = 0`` that hold for every W: ``0 >= -1``, ``0 >= 0`` and ``0 = 0``.

    Examples
    --------
    >>> from planted_optima import planted_frobenius
    >>> from row_variants import with_zero_rows
    >>> with_zero_rows(planted_frobenius()).problem.row_norms[-3:]
    array([0., 0., 0.])
    """
    a = np.zeros((3, entry.problem.shape[0]))
    return _extended(entry, "zero rows", a, [0, 0, 0], [-1.0, 0.0, 0.0], [False, False, True], "zero-rows", "norm 0")


def rescaled(entry: LibraryProblem, decades: float = 6.0, seed: int = 0) -> LibraryProblem:
    """Each row and its right-hand side times its own factor, spread over so many decades: the same W.

    Examples
    --------
    >>> from planted_optima import planted_frobenius
    >>> from row_variants import rescaled
    >>> norms = rescaled(planted_frobenius(), decades=10).problem.row_norms
    >>> bool(norms.max() / norms.min() > 1e7)
    True
    """
    a, b, owner, rhs, equality = _parts(entry)
    spread = np.linspace(-decades / 2, decades / 2, len(a)) / np.log10(2.0)
    factor = np.ldexp(1.0, np.random.default_rng(seed).permutation(np.rint(spread).astype(int)))  # rounds nothing
    problem = MarginProblem(a * factor[:, None], b, owner, rhs * factor, equality)
    lam = None if entry.multipliers is None else entry.multipliers / factor
    name, why = f"{entry.name}, {decades:g} decades of scale", "every row must be judged by its own size"
    return replace(entry, name=name, problem=problem, multipliers=lam, tags=entry.tags | {"scales"}, why=why)
