"""Plain fractions: the rows of a selection written out entry by entry, and answers checked against them.

Nothing of the exact solvers is used here. Whatever they say (a feasible matrix, a proof that there is none, a matrix of
least norm) is checked on rows that are made of the tokens by Python's fractions alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from typing import Any

import numpy as np

from attsvm.problem import AttentionProblem
from attsvm.validation.fuzz_families import FuzzCase

__all__ = ["PlainRows", "plain_rows", "plain_scores"]


def _fractions(values: Any) -> list[Fraction]:
    return [Fraction(float(x)) for x in np.asarray(values).ravel()]


@dataclass(frozen=True, eq=False)
class PlainRows:
    """Rows ``a_k b_k^T`` with right-hand sides, as lists of fractions.

    Attributes
    ----------
    left, right : list of list of Fraction
        ``a_k`` and ``b_k``, one of each per row.
    rhs : list of Fraction
    equality : list of bool
    owner, token : list of int
        The query and the token that a row is about.
    """

    left: list[list[Fraction]]
    right: list[list[Fraction]]
    rhs: list[Fraction]
    equality: list[bool]
    owner: list[int]
    token: list[int]

    @property
    def m(self) -> int:
        """Number of rows."""
        return len(self.rhs)

    @cached_property
    def queries(self) -> dict[int, list[Fraction]]:
        """The right factor of every query."""
        return dict(zip(self.owner, self.right, strict=True))

    def slacks(self, W: Sequence[Sequence[Fraction]]) -> list[Fraction]:
        """Margins minus right-hand sides of a matrix given by rows."""
        keys = {j: [_dot(row, b) for row in W] for j, b in self.queries.items()}
        return [_dot(a, keys[j]) - r for a, j, r in zip(self.left, self.owner, self.rhs, strict=True)]

    def violation(self, W: Sequence[Sequence[Fraction]]) -> Fraction:
        """Largest amount by which a row is missed."""
        slacks = self.slacks(W)
        missed = [abs(s) if e else -s for s, e in zip(slacks, self.equality, strict=True)]
        return max([Fraction(0), *missed])

    def combination(self, values: Iterable[Fraction]) -> list[list[Fraction]]:
        """``sum_k y_k a_k b_k^T``."""
        dx, dz = len(self.left[0]), len(self.right[0])
        sums: dict[int, list[Fraction]] = {}
        for y, a, j in zip(values, self.left, self.owner, strict=True):
            if y:
                total = sums.setdefault(j, [Fraction(0)] * dx)
                sums[j] = [t + y * x for t, x in zip(total, a, strict=True)]
        out = [[Fraction(0)] * dz for _ in range(dx)]
        for j, total in sums.items():
            b = self.queries[j]
            out = [[w + t * x for w, x in zip(row, b, strict=True)] for row, t in zip(out, total, strict=True)]
        return out

    def refuted_by(self, values: Sequence[Fraction]) -> bool:
        """Whether multipliers prove that no W satisfies the rows (Farkas)."""
        signs = all(y >= 0 or e for y, e in zip(values, self.equality, strict=True))
        gained = sum((y * r for y, r in zip(values, self.rhs, strict=True)), start=Fraction(0))
        return signs and gained > 0 and not any(x for row in self.combination(values) for x in row)

    def is_least_norm(self, W: Sequence[Sequence[Fraction]], values: Sequence[Fraction]) -> bool:
        """Whether W and multipliers satisfy the optimality conditions, which make W the one solution."""
        signs = all(y >= 0 or e for y, e in zip(values, self.equality, strict=True))
        slacks = self.slacks(W)
        met = all(s == 0 if e else s >= 0 for s, e in zip(slacks, self.equality, strict=True))
        tight = all(s == 0 for s, y in zip(slacks, values, strict=True) if y)
        return signs and met and tight and [list(row) for row in W] == self.combination(values)


def _dot(x: Sequence[Fraction], y: Sequence[Fraction]) -> Fraction:
    return sum((p * q for p, q in zip(x, y, strict=True) if p and q), start=Fraction(0))


def plain_rows(case: FuzzCase) -> PlainRows:
    """The rows of a case: of its selection, or of its sets (Gen-SVM, against the first member of every set).

    Examples
    --------
    >>> from attsvm.validation.fuzz_families import draw_case
    >>> from attsvm.validation.fuzz_fractions import plain_rows
    >>> rows = plain_rows(draw_case("integer", 0))
    >>> rows.m == len(rows.left), all(x.denominator == 1 for a in rows.left for x in a)
    (True, True)
    """
    problem = case.problem
    members = None if case.sets is None else case.sets.members.reshape(-1, problem.T)
    chosen = case.selection.indices.reshape(-1) if members is None else members.argmax(axis=-1)
    allowed = problem.allowed.reshape(-1, problem.T)
    queries = np.asarray(problem.Z, dtype=np.float64).reshape(-1, problem.dz)
    out = PlainRows([], [], [], [], [], [])
    for j in range(len(queries)):
        tokens = [_fractions(x) for x in problem.X[j // problem.K]]
        b = _fractions(queries[j])
        for t in np.flatnonzero(allowed[j]).tolist():
            if t == chosen[j]:
                continue
            inside = members is not None and bool(members[j, t])
            out.left.append([x - y for x, y in zip(tokens[chosen[j]], tokens[t], strict=True)])
            out.right.append(b)
            out.rhs.append(Fraction(0 if inside else 1))
            out.equality.append(inside)
            out.owner.append(j)
            out.token.append(t)
    return out


def plain_scores(problem: AttentionProblem) -> list[list[Fraction]]:
    """Scores ``Y_i v . x_it`` of a linear head, one list per query.

    Examples
    --------
    >>> from attsvm.validation.fuzz_families import draw_case
    >>> from attsvm.validation.fuzz_fractions import plain_scores
    >>> case = draw_case("ties", 0)
    >>> len(plain_scores(case.problem)) == case.problem.n
    True
    """
    v = _fractions(getattr(problem.head, "v"))  # noqa: B009  # linear heads only
    labels = np.asarray(problem.Y, dtype=np.float64)
    out = []
    for i in range(problem.n):
        own = [_dot(_fractions(x), v) for x in problem.X[i]]
        for k in range(problem.K):
            sign = Fraction(float(labels[i] if labels.ndim == 1 else labels[i, k]))
            out.append([sign * value for value in own])
    return out
