"""Families of small attention problems made to break certificates, each a function of one seed.

Sizes are at most n = T = 5, d = 6, so that exact judges answer in milliseconds. The selected token never equals another
allowed token of its sequence (that is an infeasible problem by definition, tested on its own); all other coincidences
are welcome.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from attsvm._arrays import FloatArray
from attsvm.heads import LinearHead
from attsvm.problem import AttentionProblem
from attsvm.selection import Selection

__all__ = ["FAMILIES", "FuzzCase", "draw_case", "draw_cases"]

_MAX_REDRAWS = 100


@dataclass(frozen=True, eq=False)
class FuzzCase:
    """A problem, a selection of it and how to draw it again.

    Attributes
    ----------
    family : str
    seed : int
    problem : AttentionProblem
    selection : Selection
    """

    family: str
    seed: int
    problem: AttentionProblem
    selection: Selection


def _sizes(rng: np.random.Generator) -> tuple[int, int, int]:
    return int(rng.integers(1, 6)), int(rng.integers(2, 6)), int(rng.integers(1, 7))


def _labels(rng: np.random.Generator, n: int) -> npt.NDArray[np.float64]:
    return rng.choice([-1.0, 1.0], size=n)


def _unit(rng: np.random.Generator, shape: tuple[int, ...]) -> FloatArray:
    points = rng.standard_normal(shape)
    return np.asarray(points / np.linalg.norm(points, axis=-1, keepdims=True), dtype=np.float64)


def _cross(rng: np.random.Generator, X: FloatArray, Z: FloatArray) -> AttentionProblem:
    """Tokens and queries with random labels and a random linear head."""
    return AttentionProblem(X, _labels(rng, len(X)), Z, LinearHead(rng.standard_normal(X.shape[-1:])))


def _sphere(rng: np.random.Generator) -> AttentionProblem:
    n, T, d = _sizes(rng)
    return _cross(rng, _unit(rng, (n, T, d)), _unit(rng, (n, d)))


def _gaussian(rng: np.random.Generator) -> AttentionProblem:
    n, T, d = _sizes(rng)
    return _cross(rng, rng.standard_normal((n, T, d)), rng.standard_normal((n, int(rng.integers(1, 7)))))


def _integer(rng: np.random.Generator) -> AttentionProblem:
    n, T, d = _sizes(rng)
    return _cross(rng, rng.integers(-3, 4, (n, T, d)).astype(float), rng.integers(-2, 3, (n, d)).astype(float))


def _sparse(rng: np.random.Generator) -> AttentionProblem:
    n, T, d = _sizes(rng)
    X = rng.standard_normal((n, T, d)) * (rng.random((n, T, d)) < 0.4)
    return _cross(rng, X, rng.standard_normal((n, d)) * (rng.random((n, d)) < 0.6))


def _low_rank(rng: np.random.Generator) -> AttentionProblem:
    """Tokens (and sometimes queries) in an exact subspace: small integers times multiples of 1/256."""
    n, T, d = _sizes(rng)
    r = int(rng.integers(1, d + 1))
    frame = rng.integers(-256, 257, (r, d)) / 256.0
    Z = rng.integers(-4, 5, (n, r)) @ frame if rng.random() < 0.5 else rng.standard_normal((n, d))
    return _cross(rng, rng.integers(-4, 5, (n, T, r)) @ frame, Z)


def _near_duplicates(rng: np.random.Generator) -> AttentionProblem:
    """Tokens, and sometimes queries, at distance 1e-6 to 1e-12 of one another."""
    n, T, d = _sizes(rng)
    X, Z = _unit(rng, (n, T, d)), _unit(rng, (n, d))
    copies = rng.random((n, T)) < 0.5
    distance = 10.0 ** rng.uniform(-12, -6, (n, T, 1))
    X = np.where(copies[..., None], X[:, :1] + distance * _unit(rng, (n, T, d)), X)
    if rng.random() < 0.4:
        Z = Z[:1] + 10.0 ** rng.uniform(-12, -6, (n, 1)) * Z
    return _cross(rng, X, Z)


def _mixed_scales(rng: np.random.Generator) -> AttentionProblem:
    """Tokens and queries times powers of ten between 1e-8 and 1e8."""
    n, T, d = _sizes(rng)
    X = rng.standard_normal((n, T, d)) * 10.0 ** rng.uniform(-8, 8, (n, T, 1))
    return _cross(rng, X, rng.standard_normal((n, d)) * 10.0 ** rng.uniform(-8, 8, (n, 1)))


def _float32(rng: np.random.Generator) -> AttentionProblem:
    n, T, d = _sizes(rng)
    X, Z = rng.standard_normal((n, T, d)), rng.standard_normal((n, d))
    if rng.random() < 0.3:  # tokens that agree in most of their digits
        X = 1.0 + 1e-5 * X
    return _cross(rng, X.astype(np.float32), Z.astype(np.float32))


def _ties(rng: np.random.Generator) -> AttentionProblem:
    """Tokens +-e_j and their sums, queries unit vectors, a head of small integers: tied margins and tied scores."""
    n, T, d = _sizes(rng)
    X = np.zeros((n, T, d))
    for _ in range(int(rng.integers(1, 3))):
        place = rng.integers(0, d, (n, T))
        X[np.arange(n)[:, None], np.arange(T), place] += rng.choice([-1.0, 1.0], (n, T))
    Z = np.eye(d)[rng.integers(0, d, n)]
    return AttentionProblem(X, _labels(rng, n), Z, LinearHead(rng.integers(-1, 2, d).astype(float)))


def _zero_queries(rng: np.random.Generator) -> AttentionProblem:
    """Some queries are zero: infeasible unless their sequence has one token only."""
    n, T, d = _sizes(rng)
    Z = rng.standard_normal((n, d))
    Z[rng.integers(0, n)] = 0.0
    mask = np.ones((n, T), dtype=bool)
    if rng.random() < 0.7:
        mask[~Z.any(axis=1), 1:] = False
    if mask.sum(axis=1).max() < 2:
        mask[:] = True
    head = LinearHead(rng.standard_normal(d))
    return AttentionProblem(rng.standard_normal((n, T, d)), _labels(rng, n), Z, head, mask)


def _random_mask(rng: np.random.Generator, shape: tuple[int, ...]) -> npt.NDArray[np.bool_]:
    """At least one token for every query, at least two for one of them."""
    mask = rng.random(shape) < 0.6
    np.put_along_axis(mask, rng.integers(0, shape[-1], (*shape[:-1], 1)), True, axis=-1)
    mask.reshape(-1, shape[-1])[0, :2] = True
    return mask


def _masks(rng: np.random.Generator) -> AttentionProblem:
    n, T, d = _sizes(rng)
    K = int(rng.integers(1, 4))
    several = rng.random() < 0.5
    shape = (n, K) if several else (n,)
    head = LinearHead(rng.standard_normal(d))
    X, Z = _unit(rng, (n, T, d)), _unit(rng, (*shape, d))
    return AttentionProblem(X, _labels(rng, n), Z, head, _random_mask(rng, (*shape, T)))


def _ragged(rng: np.random.Generator) -> AttentionProblem:
    n, T, d = _sizes(rng)
    lengths = rng.integers(1, T + 1, n)
    lengths[0] = T
    tokens = [rng.standard_normal((int(length), d)) for length in lengths]
    head = LinearHead(rng.standard_normal(d))
    return AttentionProblem.from_ragged(tokens, rng.standard_normal((n, d)), _labels(rng, n), head)


def _several_queries(rng: np.random.Generator) -> AttentionProblem:
    n, T, d = int(rng.integers(1, 4)), int(rng.integers(2, 5)), int(rng.integers(2, 7))
    return _cross(rng, _unit(rng, (n, T, d)), _unit(rng, (n, int(rng.integers(1, 4)), d)))


def _causal(rng: np.random.Generator) -> AttentionProblem:
    n, T, d = int(rng.integers(1, 4)), int(rng.integers(2, 5)), int(rng.integers(2, 7))
    X = _unit(rng, (n, T, d))
    return AttentionProblem.sequences(X, _labels(rng, n), LinearHead(rng.standard_normal(d)), causal=True)


FAMILIES: dict[str, Callable[[np.random.Generator], AttentionProblem]] = {
    "sphere": _sphere,
    "gaussian": _gaussian,
    "integer": _integer,
    "sparse": _sparse,
    "low rank": _low_rank,
    "near duplicates": _near_duplicates,
    "mixed scales": _mixed_scales,
    "float32": _float32,
    "ties": _ties,
    "zero queries": _zero_queries,
    "masks": _masks,
    "ragged": _ragged,
    "several queries": _several_queries,
    "causal": _causal,
}


def _random_selection(rng: np.random.Generator, problem: AttentionProblem) -> Selection:
    """The optimal tokens half of the time, otherwise any allowed token of every query."""
    if rng.random() < 0.5:
        return Selection(problem.optimal_tokens().indices)
    luck = np.where(problem.allowed, rng.random(problem.allowed.shape), -1.0)
    return Selection(luck.argmax(axis=-1))


def _is_separate(problem: AttentionProblem, selection: Selection) -> bool:
    """Whether no selected token equals another allowed one and some query has two tokens."""
    chosen = selection.indices.reshape(-1)
    allowed = problem.allowed.reshape(-1, problem.T) & (np.arange(problem.T) != chosen[:, None])
    tokens = np.repeat(problem.X, problem.K, axis=0)
    same = (tokens == tokens[np.arange(len(chosen)), chosen][:, None]).all(axis=-1)
    return bool(allowed.any()) and not bool((same & allowed).any())


def draw_case(family: str, seed: int) -> FuzzCase:
    """One problem of a family.

    Parameters
    ----------
    family : str
        A key of `FAMILIES`.
    seed : int

    Examples
    --------
    >>> from attsvm.validation.fuzz_families import draw_case
    >>> case = draw_case("ties", 3)
    >>> bool((case.problem.X == case.problem.X.round()).all())
    True
    """
    if family not in FAMILIES:
        raise ValueError(f"family must be one of {sorted(FAMILIES)}, got {family!r}")
    rng = np.random.default_rng([seed, *family.encode()])
    for _ in range(_MAX_REDRAWS):
        problem = FAMILIES[family](rng)
        selection = _random_selection(rng, problem)
        if _is_separate(problem, selection):
            return FuzzCase(family, seed, problem, selection)
    raise RuntimeError(f"family {family!r} drew equal tokens {_MAX_REDRAWS} times in a row")


def draw_cases(count: int, families: Sequence[str] | None = None, seed: int = 0) -> Iterator[FuzzCase]:
    """``count`` problems, the families in turn.

    Examples
    --------
    >>> from attsvm.validation.fuzz_families import FAMILIES, draw_cases
    >>> len({case.family for case in draw_cases(14)}) == len(FAMILIES)
    True
    """
    names = list(FAMILIES) if families is None else list(families)
    for i in range(count):
        yield draw_case(names[i % len(names)], seed + i // len(names))
