"""The nuclear norm to any number of digits, for the few rows that float64 cannot tell apart.

With unit rows ``A_k = a_k b_k^T`` the dual is ``max rhs . lam`` over ``D = sum_k lam_k A_k`` with ``||D||_op < 1`` and
``lam_k > 0`` on inequality rows. For a weight w > 0 the method maximizes

    w rhs . lam + log det(I - D'D) + sum_k log lam_k            (the last sum over inequality rows)

by Newton steps with a line search. At the maximum ``W = 2 D (I - D'D)^{-1} / w`` has the margins
``rhs_k + 1 / (w lam_k)`` (exactly rhs_k on equality rows): it is feasible, and its norm exceeds ``rhs . lam`` by
at most ``(m + 2 min(dx, dz)) / w``. From w = 0, the analytic center, w grows until that is small. Rows that agree to
twelve digits in both factors need multipliers of 1e24 that cancel; numbers of 512 bits carry that. Nothing here is
rigorous or needs to be: W and the multipliers are rationals, and what they prove is computed from them exactly
(`attsvm.solvers.exact.nuclear`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from attsvm.solvers.exact.rows import ExactRows, rational

if TYPE_CHECKING:
    from flint import arb, arb_mat, fmpq, fmpq_mat

__all__ = ["NuclearPair", "nuclear_barrier"]

_BITS = 512
# The norm is wanted to a few digits more than any tolerance: what is left is enlarged when W is made exactly feasible.
_ACCURACY = 2.0**-46
_GROWTH = 30
# Newton's decrement (a square) at which a center on the way and the last one are good enough; beyond _FAR longer steps
# are tried.
_CENTERED, _FINAL, _FAR = 1e-4, 1e-30, 1.0
# Where rows conflict multipliers grow without end: how much a step may be lengthened, and where to give up.
_LONGEST, _RUNAWAY = 2.0**20, 2**200


@dataclass(frozen=True, eq=False)
class NuclearPair:
    """A primal and a dual point of the nuclear-norm problem, to high precision.

    Attributes
    ----------
    matrix : fmpq_mat, shape (dx, dz)
        Satisfies the rows up to the precision.
    multipliers : tuple of fmpq, length m
        Of the rows as given, positive on inequality rows; the combination of rows has spectral norm below 1.
    steps : int
        Newton steps.
    """

    matrix: fmpq_mat
    multipliers: tuple[fmpq, ...]
    steps: int


@dataclass(frozen=True, eq=False)
class _Point:
    """Multipliers strictly inside the dual set, the matrix D and the matrix ``I - D'D`` with its determinant."""

    lam: list[arb]
    D: arb_mat
    G: arb_mat
    det: arb


@dataclass(frozen=True, eq=False)
class _Dual:
    """Unit rows in factors ``A (m, dx)`` and ``B (m, dz)``, right-hand sides of at most 1, and which are equalities."""

    A: arb_mat
    B: arb_mat
    rhs: list[arb]
    equality: list[bool]

    def objective(self, lam: Sequence[arb]) -> arb:
        """``rhs . lam``."""
        from flint import arb

        return sum((r * y for r, y in zip(self.rhs, lam, strict=True)), start=arb(0)).mid()

    def point(self, lam: list[arb]) -> _Point | None:
        """The point of these multipliers; None if it is not strictly inside."""
        from flint import arb_mat

        if any(not y > 0 for y, e in zip(lam, self.equality, strict=True) if not e):
            return None
        weighted = arb_mat([[y * x for x in row] for y, row in zip(lam, self.B.tolist(), strict=True)])
        D = (self.A.transpose() * weighted).mid()
        G = (_identity(D.ncols()) - D.transpose() * D).mid()
        det = _determinant(G)
        return None if det is None else _Point(lam, D, G, det)

    def value(self, at: _Point, w: arb) -> arb:
        """What the method maximizes."""
        inside = [y.log() for y, e in zip(at.lam, self.equality, strict=True) if not e]
        return sum(inside, start=w * self.objective(at.lam) + at.det.log()).mid()

    def newton(self, at: _Point, w: arb) -> tuple[list[arb], float]:
        """The Newton direction and the decrement (gradient times direction)."""
        from flint import arb_mat

        m = len(self.rhs)
        M = at.G.inv().mid()
        DM = (at.D * M).mid()
        S = (_identity(DM.nrows()) + DM * at.D.transpose()).mid()  # (I - D D')^{-1}
        left, right = self.A * S * self.A.transpose(), self.B * M * self.B.transpose()
        cross = (self.A * DM * self.B.transpose()).mid()
        inverse = [0 if e else 1 / y for y, e in zip(at.lam, self.equality, strict=True)]
        gradient = [(w * self.rhs[k] - 2 * cross[k, k] + inverse[k]).mid() for k in range(m)]
        hessian = [
            (2 * (left[k, j] * right[j, k] + cross[k, j] * cross[j, k]) + (inverse[k] ** 2 if j == k else 0)).mid()
            for k in range(m)
            for j in range(m)
        ]
        step = arb_mat(m, m, hessian).solve(arb_mat(m, 1, gradient), algorithm="approx").mid().entries()
        return step, float(sum((g * p for g, p in zip(gradient, step, strict=True)), start=0 * w))

    def advanced(self, at: _Point, step: list[arb], w: arb, decrement: float) -> _Point | None:
        """The best point found along a direction: halved until better, doubled while better; None if none is."""
        from flint import arb

        best, value, length = None, self.value(at, w), arb(1)
        while best is None and float(length) > 1e-12:
            best = self._better(at, step, w, length, value)
            length = length if best is not None else length / 2
        while best is not None and decrement > _FAR and float(length) < _LONGEST:
            length = 2 * length
            farther = self._better(at, step, w, length, self.value(best, w))
            if farther is None:
                break
            best = farther
        return best

    def _better(self, at: _Point, step: list[arb], w: arb, length: arb, value: arb) -> _Point | None:
        moved = self.point([(y + length * p).mid() for y, p in zip(at.lam, step, strict=True)])
        return moved if moved is not None and self.value(moved, w) > value else None


def _identity(size: int) -> arb_mat:
    from flint import arb_mat

    return arb_mat(size, size, [int(i == j) for i in range(size) for j in range(size)])


def _determinant(G: arb_mat) -> arb | None:
    """Of a positive definite matrix, by elimination; None if a pivot is not positive."""
    from flint import arb

    rows, det = G.tolist(), arb(1)
    for k in range(len(rows)):
        pivot = rows[k][k]
        if not pivot > 0:
            return None
        det = (det * pivot).mid()
        for i in range(k + 1, len(rows)):
            factor = (rows[i][k] / pivot).mid()
            rows[i] = [(x - factor * y).mid() for x, y in zip(rows[i], rows[k], strict=True)]
    return det


def _unit(vectors: Sequence[Sequence[Any]]) -> tuple[arb_mat, list[arb]]:
    """Vectors divided by their lengths, and the lengths."""
    from flint import arb, arb_mat

    lengths = [sum((arb(x) ** 2 for x in v), start=arb(0)).sqrt().mid() for v in vectors]
    return arb_mat([[(x / s).mid() for x in v] for v, s in zip(vectors, lengths, strict=True)]), lengths


def _rational(value: arb) -> fmpq:
    mantissa, exponent = value.man_exp()
    scale = rational(2 ** abs(int(exponent)))
    return rational(mantissa) * scale if exponent >= 0 else rational(mantissa) / scale


def _padded(found: NuclearPair | None, used: list[int], m: int) -> NuclearPair | None:
    """A pair of some rows as one of all m rows: the others have no multiplier."""
    if found is None:
        return None
    lam = dict(zip(used, found.multipliers, strict=True))
    return replace(found, multipliers=tuple(lam.get(k, rational(0)) for k in range(m)))


def nuclear_barrier(rows: ExactRows, max_steps: int = 600) -> NuclearPair | None:
    """A nearly optimal pair of the nuclear norm; None if the steps run out, as they do where rows conflict.

    Parameters
    ----------
    rows : ExactRows
        Zero rows are passed over. W = 0 does not satisfy the rows.
    max_steps : int
        Newton steps.

    Examples
    --------
    >>> from attsvm.solvers.exact import exact_rows, nuclear_barrier, nuclear_enclosure
    >>> rows = exact_rows([[1.0, 0.0], [1.0, 1e-12]], [[1.0, 0.0], [1.0, 1e-12]], [0, 1], [1.0, 2.0])
    >>> pair = nuclear_barrier(rows)
    >>> nuclear_enclosure(rows, pair.matrix, pair.multipliers).relative_gap < 1e-12
    True
    """
    from flint import arb, ctx, fmpq_mat

    used = [k for k, j in enumerate(rows.owner.tolist()) if any(rows.left[k]) and any(rows.right[j])]
    if len(used) < rows.m:
        return _padded(nuclear_barrier(rows.take(used), max_steps), used, rows.m)
    with ctx.workprec(_BITS):
        A, left = _unit(rows.left)
        B, right = _unit([rows.right[j] for j in rows.owner.tolist()])
        sizes = [(arb(s) * a * b).mid() for s, a, b in zip(rows.scale, left, right, strict=True)]
        levels = [(arb(r) / s).mid() for r, s in zip(rows.rhs, sizes, strict=True)]
        largest = max((abs(x) for x in levels), key=float)
        dual = _Dual(A, B, [(x / largest).mid() for x in levels], rows.equality.tolist())
        reached = _followed(dual, max_steps)
        if reached is None:
            return None
        at, w, steps = reached
        W = (at.D * at.G.inv() * (2 * largest / w)).mid()
        values = tuple(_rational((y / s).mid()) for y, s in zip(at.lam, sizes, strict=True))
        return NuclearPair(fmpq_mat(*rows.shape, [_rational(x) for x in W.entries()]), values, steps)


def _followed(dual: _Dual, max_steps: int) -> tuple[_Point, arb, int] | None:
    """The center whose gap is small, its weight and the number of steps to it."""
    from flint import arb

    m, dx, dz = len(dual.rhs), dual.A.ncols(), dual.B.ncols()
    at = dual.point([arb(0) if e else arb(1) / (4 * m) for e in dual.equality])
    w, barriers = arb(0), m + 2 * min(dx, dz)
    for step in range(max_steps):
        assert at is not None  # the start has norm at most 1/4
        if any(abs(y) > _RUNAWAY for y in at.lam):
            return None
        value = abs(dual.objective(at.lam))
        last = bool(w > 0) and barriers <= float(w * value) * _ACCURACY
        direction, decrement = dual.newton(at, w)
        moved = dual.advanced(at, direction, w, decrement) if decrement > (_FINAL if last else _CENTERED) else None
        if moved is not None:
            at = moved
        elif last:
            return at, w, step
        else:  # the first center knows no right-hand sides; from there on the gap falls by a constant factor
            w = (_GROWTH * w if w > 0 else 1 / (_GROWTH * value)).mid()
    return None
