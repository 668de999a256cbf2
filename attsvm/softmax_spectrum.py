"""Roots of the secular equation of diag(a) - a a^T, one by one.

The nonzero eigenvalues are the roots t of ``g(t) = sum_j a_j / (a_j - t)``, one between each two neighbours of the
sorted attention. g does not change when a and t are scaled together, so only log a and log t matter, whatever
underflows. With ``w_j = a_j / (a_j - t)`` it is ``g = sum w``, ``dg / dlog t = sum w^2 - sum w``. A step takes the
root of ``c + q (w_l + w_r)``, the poles at both ends of the interval with the value and the slope of g: a quadratic
whose root never leaves the interval, and convergence is quadratic. Here g is summed pole by pole in logarithms: O(n)
per root, any spread. `attsvm.softmax_spectrum` finds all roots of a vector faster.

All eigenvalues of diag(a) - a a^T: neighbouring roots of the secular equation together.

`attsvm.softmax_spectrum` has the equation and the step. Poles near a block of roots are summed one by one; the sum over
the others is smooth in log t and is replaced by its Chebyshev interpolant. The error of the interpolant is bounded from
the distances of the poles left out; roots for which the bound is too large are solved again one by one.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from attsvm.solvers.arrays import FloatArray, IntArray

TIE = 1e-13  # neighbours this close in the logarithm enclose their root tightly enough

ITERATIONS = 60  # a guard; 4 to 8 are used

ENTRIES = 100_000  # size of the temporaries

_REMAINDER = 1e-13  # of a quadratically convergent step: its square over the distance to the nearer end


def model_root(
    total: FloatArray, slope: FloatArray, w_left: FloatArray, w_right: FloatArray, shrink: FloatArray
) -> FloatArray:
    """Position in the interval, 0 to 1, of the root of c + q (w_l + w_r) that agrees with g and its slope.

    ``shrink`` is l / r. Both ends are given zero values of opposite sign by the quadratic, so that one root is inside.
    """
    width = 1.0 - shrink
    q = slope / (w_left * (w_left - 1.0) + w_right * (w_right - 1.0))
    c = (total - q * (w_left + w_right)) * width
    b = c + q * (1.0 + shrink)
    root = np.sqrt(np.maximum(b * b - 4.0 * c * q * shrink, 0.0))
    return np.asarray(np.where(b > 0, 2.0 * q * shrink / (b + root), (b - root) / (2.0 * c)))


def log_roots_at(x: FloatArray, rank: IntArray) -> FloatArray:
    """Log-roots between the sorted log-attentions ``rank - 1`` and ``rank``, evaluated directly.

    Parameters
    ----------
    x : ndarray, shape (k, n)
        Logarithms, ascending and finite.
    rank : ndarray of int, shape (k,)
        From 1 to n - 1: one root of each row.

    Returns
    -------
    ndarray, shape (k,)

    Examples
    --------
    >>> x = np.log([[0.2, 0.2, 0.6]])
    >>> np.exp(log_roots_at(x, np.array([1]))), np.exp(log_roots_at(x, np.array([2])))  # 0.2 is a tie
    (array([0.2]), array([0.36]))
    """
    rows = max(1, ENTRIES // x.shape[1])
    parts = [_direct(x[k : k + rows], rank[k : k + rows]) for k in range(0, len(x), rows)]
    return np.concatenate(parts) if parts else np.empty(0)


def _direct(x: FloatArray, rank: IntArray) -> FloatArray:
    left = np.take_along_axis(x, rank[:, None] - 1, axis=1)
    gap = (np.take_along_axis(x, rank[:, None], axis=1) - left)[:, 0]
    # In units of the left pole. A root lies below n of them: there the left poles add up to -1 at most while the
    # right ones add up to 1 at least. So poles beyond e^700 count one, and those below e^-700 nothing.
    poles = np.exp(np.clip(x - left, -700.0, 700.0))
    ratio = np.expm1(np.minimum(gap, 700.0))  # r / l - 1
    y = np.minimum(0.5 * ratio, float(x.shape[1]))  # t / l - 1
    active = np.flatnonzero(gap > TIE)
    for _ in range(ITERATIONS):
        if not active.size:
            break
        now, width = y[active], ratio[active]
        w = poles[active]
        w /= w - (1.0 + now)[:, None]
        total = w.sum(axis=1)
        slope = np.einsum("kj,kj->k", w, w) - total
        with np.errstate(divide="ignore", invalid="ignore"):
            position = model_root(total, slope, -1.0 / now, (1.0 + width) / (width - now), 1.0 / (1.0 + width))
        new = width * position
        y[active] = new
        active = active[(new - now) ** 2 > _REMAINDER * np.minimum(new, width - new) * (1.0 + new)]
    solved = gap > TIE
    return left[:, 0] + np.where(solved, np.log1p(np.where(solved, y, 0.0)), 0.5 * gap)


_INNER = 3  # poles on either side of a root that are never expanded

_SPREAD = 1200.0  # log-spread up to which a fits into doubles

_ERROR = 3e-11  # bound on the error in log t that expansion and interpolant may cause

_SMALLEST = 96  # shorter vectors have nothing far

_BATCH = 256  # vectors at a time; they stand on the last axis, so that inner loops are long

# (roots, near poles on either side, Chebyshev nodes) of groups and of the blocks they are cut into, from each end
# inwards. The spacing of the extreme tokens varies strongly, so blocks there are short. The last entries repeat.
_END_GROUP = (30, 90, 26)

_END_BLOCKS = ((2, 16, 22), (4, 20, 22), (8, 24, 22), (16, 24, 18))

_GROUP = (120, 100, 20)

_BLOCK = (24, 24, 16)


def log_roots(x: FloatArray) -> FloatArray:
    """Log-roots between all neighbours.

    Parameters
    ----------
    x : ndarray, shape (k, n)
        Logarithms, ascending and finite.

    Returns
    -------
    ndarray, shape (k, n - 1), ascending

    Examples
    --------
    >>> np.exp(log_roots(np.log([[0.2, 0.2, 0.6]])))
    array([[0.2 , 0.36]])
    """
    rows, n = x.shape
    out = np.empty((rows, n - 1))
    narrow = x[:, -1] - x[:, 0] <= _SPREAD
    if n < _SMALLEST:
        narrow[:] = False
    todo = np.zeros((rows, n - 1), dtype=bool)
    todo[~narrow] = True
    fast = np.flatnonzero(narrow)
    for k in range(0, fast.size, _BATCH):
        some = fast[k : k + _BATCH]
        roots, doubtful = _blocked(np.ascontiguousarray(x[some].T))
        out[some], todo[some] = roots.T, doubtful.T
    row, column = np.nonzero(todo)
    step = max(1, 8 * ENTRIES // n)
    for k in range(0, row.size, step):
        r, c = row[k : k + step], column[k : k + step]
        out[r, c] = log_roots_at(x[r], c + 1)
    return np.asarray(np.clip(out, x[:, :-1], x[:, 1:]))  # rounding must not break the interlacing


@dataclass(frozen=True)
class _Part:
    """Roots first..last - 1 with the poles begin..end - 1 near them, and the parts these are cut into."""

    first: int
    last: int
    begin: int
    end: int
    nodes: int
    parts: tuple[_Part, ...] = ()


def _part(n: int, first: int, shape: tuple[int, int, int], parts: tuple[_Part, ...] = ()) -> _Part:
    length, near, nodes = shape
    return _Part(first, first + length, max(0, first - 1 - near), min(n, first + length + near), nodes, parts)


def _even(first: int, roots: int, shape: tuple[int, int, int]) -> list[tuple[int, tuple[int, int, int]]]:
    """Cut ``roots`` roots evenly into pieces of about the given size: (first root, shape)."""
    count = max(1, round(roots / shape[0]))
    cuts = [first + roots * k // count for k in range(count + 1)]
    return [(low, (high - low, *shape[1:])) for low, high in pairwise(cuts)]


@lru_cache(maxsize=32)
def _partition(n: int) -> tuple[_Part, ...]:
    """Groups of blocks of the n - 1 roots, short at both ends."""
    size = _END_GROUP[0]
    cuts = np.cumsum([1] + [shape[0] for shape in _END_BLOCKS])
    low = tuple(_part(n, int(first), shape) for first, shape in zip(cuts, _END_BLOCKS, strict=False))
    high = tuple(_part(n, n + 1 - int(last), shape) for last, shape in zip(cuts[1:], _END_BLOCKS, strict=True))
    groups = [_part(n, 1, _END_GROUP, low)]
    for first, shape in _even(1 + size, n - 1 - 2 * size, _GROUP):
        groups.append(_part(n, first, shape, tuple(_part(n, *piece) for piece in _even(first, shape[0], _BLOCK))))
    return (*groups, _part(n, n - size, _END_GROUP, high))


@lru_cache(maxsize=32)
def _chebyshev(nodes: int) -> tuple[FloatArray, FloatArray]:
    """Nodes in [-1, 1], and matrices (2, nodes, nodes) from values there to the series of interpolant and slope."""
    angles = (np.arange(nodes) + 0.5) * (np.pi / nodes)
    values = np.cos(np.outer(np.arange(nodes), angles)) * (2.0 / nodes)
    values[0] *= 0.5
    derivative = np.zeros((nodes, nodes))
    derivative[:-1] = np.polynomial.chebyshev.chebder(np.eye(nodes))
    return np.cos(angles), np.stack([values, derivative @ values])


def _blocked(x: FloatArray) -> tuple[FloatArray, npt.NDArray[np.bool_]]:
    """Log-roots of some vectors, shape (n, vectors), and which of them are not to be trusted."""
    n, many = x.shape
    middle = 0.5 * (x[0] + x[-1])
    x = x - middle
    a = np.exp(x)
    t = np.empty((n - 1, many))
    error = np.empty((n - 1, many))
    with np.errstate(all="ignore"):  # ties divide by zero; they are overwritten
        whole = _Far(0, n, np.zeros(many), np.ones(many), np.zeros((2, 1, 1, many)), np.zeros(many))
        for group in _partition(n):
            around = _far(a, x, group, whole)
            for block in group.parts:
                here = slice(block.first - 1, block.last - 1)
                t[here], error[here] = _solve_block(a, block, _far(a, x, block, around))
        out = np.log(t)
    tie = np.diff(x, axis=0) <= TIE
    out[tie] = (0.5 * (x[1:] + x[:-1]))[tie]
    return out + middle, ~(error <= _ERROR) & ~tie


@dataclass(frozen=True)
class _Far:
    """Sum over the poles outside begin..end - 1 as a Chebyshev series in u = (log t - centre) / half.

    Attributes
    ----------
    centre, half : ndarray, shape (vectors,)
    series : ndarray, shape (2, nodes, 1, vectors)
        Of the sum and of its derivative with respect to u.
    bound : ndarray, shape (vectors,)
        On its error.
    """

    begin: int
    end: int
    centre: FloatArray
    half: FloatArray
    series: FloatArray
    bound: FloatArray

    def __call__(self, log_t: FloatArray, orders: int = 2) -> FloatArray:
        """Sum, and its derivative with respect to log t, shape (orders, roots, vectors)."""
        u = (log_t - self.centre) / self.half
        series = self.series[:orders]
        out = np.repeat(series[:, 0], len(u), axis=1)
        work = np.empty_like(out)
        previous, power = np.ones_like(u), u
        twice = 2.0 * u
        for k in range(1, series.shape[1]):
            out += np.multiply(series[:, k], power, out=work)
            following = twice * power
            following -= previous
            previous, power = power, following
        out[1:] /= self.half
        return out

    def select(self, vectors: IntArray) -> _Far:
        """The same for some of the vectors."""
        parts = (self.centre, self.half, self.series, self.bound)
        return _Far(self.begin, self.end, *(part[..., vectors] for part in parts))


def _far(a: FloatArray, x: FloatArray, part: _Part, around: _Far) -> _Far:
    """Interpolate, over the roots of a part, what lies outside its near poles: `around` and the poles in between."""
    low, high = x[part.first - 1], x[part.last - 1]
    centre, half = 0.5 * (low + high), 0.5 * (high - low)
    at, to_series = _chebyshev(part.nodes)
    log_t = centre + half * at[:, None]
    t = np.exp(log_t)
    values = around(log_t, 1)[0]
    for poles in (a[around.begin : part.begin], a[part.end : around.end]):
        values += _pole_sums(poles, t, 1)[0]
    series = (to_series @ values)[:, :, None, :]
    bound = around.bound + _interpolation_error(x, part, around, centre, half)
    return _Far(part.begin, part.end, centre, half, series, bound)


def _interpolation_error(x: FloatArray, part: _Part, around: _Far, centre: FloatArray, half: FloatArray) -> FloatArray:
    """Bound on the error of interpolating the sum over the poles in between, shape (vectors,).

    At Chebyshev nodes 1 / (u - z) is interpolated with error at most 1 / ((|z| - 1) |T_q(z)|). The poles of the kernel
    1 / (1 - exp(log t - x_j)) are x_j + 2 pi i k with residue -1. Those on the line are taken in groups that grow with
    their distance, each as if all stood at its nearest member. Off the line each factor of T_q grows by
    sqrt(1 + (k h / (z + 1))^2) at least, h = 2 pi / half; their sum is below its integral over k (``aside``).
    """
    nearest, counts = [], []
    left, right = part.begin - around.begin, around.end - part.end
    for many, start, direction in ((left, part.begin - 1, -1), (right, part.end, 1)):
        offset, size = 0, 4
        while offset < many:
            nearest.append(start + direction * offset)
            counts.append([min(size, many - offset)])
            offset, size = offset + size, 2 * size
    if not counts:
        return np.zeros_like(half)
    z = np.abs(x[nearest] - centre) / half
    aside = 1.0 + (z + 1.0) * half / (2.5 * np.sqrt(part.nodes - 1.0))
    error = np.array(counts) / half * aside / ((z - 1.0) * np.cosh(part.nodes * np.arccosh(z)))
    return np.asarray(error.sum(axis=0))


def _solve_block(a: FloatArray, part: _Part, far: _Far) -> tuple[FloatArray, FloatArray]:
    """Roots t of one block and bounds on their relative errors, each of shape (roots, vectors).

    All but a few poles next to each root are expanded to first order about the current t; the equation with the few
    kept exact is solved; the expansion is repeated at its root, a third time only where that is needed.
    """
    poles, inner = a[part.begin : part.end], _inner_poles(a, part)
    t, _, _ = _expand_and_solve(poles, inner, far, 0.5 * (inner[_INNER - 1] + inner[_INNER]), 2)
    t, error, slope = _expand_and_solve(poles, inner, far, t, 2)
    for _ in range(ITERATIONS):
        root, vector = np.nonzero(error > _ERROR)
        if not root.size:
            break
        own = inner[:, root, vector][:, None]
        again = _expand_and_solve(poles[:, vector], own, far.select(vector), t[root, vector][None], 3)
        t[root, vector], error[root, vector], slope[root, vector] = (found[0] for found in again)
    return t, error + far.bound / slope


def _expand_and_solve(
    poles: FloatArray, inner: FloatArray, far: _Far, origin: FloatArray, steps: int
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """One expansion about ``origin``: the roots t, estimates of their relative errors, and dg / dlog t."""
    left, right = inner[_INNER - 1], inner[_INNER]
    width, shrink = right - left, left / right
    smooth = far(np.log(origin))
    total, squares = _pole_sums(poles, origin, 2)
    t = origin
    for step in range(steps):
        w = inner / (inner - t)
        near, slope = w.sum(axis=0), np.einsum("kiv,kiv->iv", w, w)
        if not step:  # what is left of the near poles: value sum w, derivative sum w (w - 1)
            total -= near
            squares -= slope
            smooth[0] += total
            smooth[1] += squares - total
        slope += smooth[1] - near
        near += smooth[0] + np.log(t / origin) * smooth[1]
        new = left + width * model_root(near, slope, w[_INNER - 1], w[_INNER], shrink)
        step_taken, t = new - t, new
    # The step is quadratically convergent. The second derivative of what was expanded is its slope times 2 w at most.
    error = step_taken**2 / (np.minimum(t - left, right - t) * t)
    reach = np.minimum(np.abs(inner[0] - t), np.abs(inner[-1] - t))
    error += (t - origin) ** 2 / (reach * t) * np.abs(smooth[1] / slope)
    return t, error, slope


def _inner_poles(a: FloatArray, part: _Part) -> FloatArray:
    """The poles next to each root, shape (2 * _INNER, roots, vectors); 0, which adds nothing, beyond the ends."""
    inner = np.zeros((2 * _INNER, part.last - part.first, a.shape[1]))
    for k, offset in enumerate(range(-_INNER, _INNER)):
        low, high = part.first + offset, part.last + offset
        inside = a[max(low, 0) : max(high, 0)]
        start = min(max(-low, 0), high - low)
        inner[k, start : start + len(inside)] = inside
    return inner


def _pole_sums(poles: FloatArray, t: FloatArray, orders: int) -> FloatArray:
    """Sums over the poles of w = pole / (pole - t), and of w^2 if ``orders`` is 2; shape (orders, *t.shape)."""
    out = np.zeros((orders, *t.shape))
    step = max(1, ENTRIES // t.size)
    buffer = np.empty((step, *t.shape))
    for k in range(0, len(poles), step):
        some = poles[k : k + step, None]
        w = buffer[: len(some)]
        np.subtract(some, t, out=w)
        np.divide(some, w, out=w)
        out[0] += _sum(w)
        if orders == 2:
            out[1] += _sum(np.multiply(w, w, out=w))
    return out


def _sum(terms: FloatArray) -> FloatArray:
    """Sum over the first axis as a product with ones, three times as fast as a reduction."""
    return np.asarray(np.ones(len(terms)) @ terms.reshape(len(terms), -1)).reshape(terms.shape[1:])
