"""Families of small adversarial attention problems, each a function of one seed.

Sizes are at most n = T = 5, d = 6, so that exact judges answer in milliseconds. The selected token never equals another
allowed token of its sequence (that is an infeasible problem by definition), except in the family "equal tokens"; all
other coincidences are welcome. Sizes have a generator of their own, so that a group of problems can share them and be
solved as one batch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
from numpy.random import Generator

from attsvm.generate import random_points
from attsvm.heads import LinearHead
from attsvm.problem import AttentionProblem
from attsvm.selection import SelectedSets, Selection
from attsvm.user_input import AnyFloatArray

_MAX_REDRAWS = 100


@dataclass(frozen=True, eq=False)
class FuzzCase:
    """A problem, a selection of it and how to draw it again.

    Attributes
    ----------
    family : str
    seed : int
    member : int
        Its number in the group of this seed.
    problem : AttentionProblem
    selection : Selection
    sets : SelectedSets or None
        Selected sets, each with the selected token in it: Gen-SVM instead of Att-SVM.
    """

    family: str
    seed: int
    member: int
    problem: AttentionProblem
    selection: Selection
    sets: SelectedSets | None = None


def _sizes(sizes: Generator) -> tuple[int, int, int]:
    return int(sizes.integers(1, 6)), int(sizes.integers(2, 6)), int(sizes.integers(1, 7))


def _labels(rng: Generator, n: int) -> npt.NDArray[np.float64]:
    return rng.choice([-1.0, 1.0], size=n)


def _cross(rng: Generator, X: AnyFloatArray, Z: AnyFloatArray) -> AttentionProblem:
    """Tokens and queries with random labels and a random linear head."""
    return AttentionProblem(X, _labels(rng, len(X)), Z, LinearHead(rng.standard_normal(X.shape[-1:])))


def _sphere(rng: Generator, sizes: Generator) -> AttentionProblem:
    n, T, d = _sizes(sizes)
    return _cross(rng, random_points(rng, (n, T, d)), random_points(rng, (n, d)))


def _gaussian(rng: Generator, sizes: Generator) -> AttentionProblem:
    n, T, d = _sizes(sizes)
    return _cross(rng, rng.standard_normal((n, T, d)), rng.standard_normal((n, int(sizes.integers(1, 7)))))


def _integer(rng: Generator, sizes: Generator) -> AttentionProblem:
    n, T, d = _sizes(sizes)
    return _cross(rng, rng.integers(-3, 4, (n, T, d)).astype(float), rng.integers(-2, 3, (n, d)).astype(float))


def _sparse(rng: Generator, sizes: Generator) -> AttentionProblem:
    n, T, d = _sizes(sizes)
    X = rng.standard_normal((n, T, d)) * (rng.random((n, T, d)) < 0.4)
    return _cross(rng, X, rng.standard_normal((n, d)) * (rng.random((n, d)) < 0.6))


def _low_rank(rng: Generator, sizes: Generator) -> AttentionProblem:
    """Tokens (and sometimes queries) in an exact subspace: small integers times multiples of 1/256."""
    n, T, d = _sizes(sizes)
    r = int(rng.integers(1, d + 1))
    frame = rng.integers(-256, 257, (r, d)) / 256.0
    Z = rng.integers(-4, 5, (n, r)) @ frame if rng.random() < 0.5 else rng.standard_normal((n, d))
    return _cross(rng, rng.integers(-4, 5, (n, T, r)) @ frame, Z)


def _near_duplicates(rng: Generator, sizes: Generator) -> AttentionProblem:
    """Tokens, and sometimes queries, at distance 1e-6 to 1e-12 of one another."""
    n, T, d = _sizes(sizes)
    X, Z = random_points(rng, (n, T, d)), random_points(rng, (n, d))
    copies = rng.random((n, T)) < 0.5
    distance = 10.0 ** rng.uniform(-12, -6, (n, T, 1))
    X = np.where(copies[..., None], X[:, :1] + distance * random_points(rng, (n, T, d)), X)
    if rng.random() < 0.4:
        Z = Z[:1] + 10.0 ** rng.uniform(-12, -6, (n, 1)) * Z
    return _cross(rng, X, Z)


def _mixed_scales(rng: Generator, sizes: Generator) -> AttentionProblem:
    """Tokens and queries times powers of ten between 1e-8 and 1e8."""
    n, T, d = _sizes(sizes)
    X = rng.standard_normal((n, T, d)) * 10.0 ** rng.uniform(-8, 8, (n, T, 1))
    return _cross(rng, X, rng.standard_normal((n, d)) * 10.0 ** rng.uniform(-8, 8, (n, 1)))


def _float32(rng: Generator, sizes: Generator) -> AttentionProblem:
    n, T, d = _sizes(sizes)
    X, Z = rng.standard_normal((n, T, d)), rng.standard_normal((n, d))
    if rng.random() < 0.3:  # tokens that agree in most of their digits
        X = 1.0 + 1e-5 * X
    return _cross(rng, X.astype(np.float32), Z.astype(np.float32))


def _ties(rng: Generator, sizes: Generator) -> AttentionProblem:
    """Tokens +-e_j and their sums, queries unit vectors, a head of small integers: tied margins and tied scores."""
    n, T, d = _sizes(sizes)
    X = np.zeros((n, T, d))
    for _ in range(int(rng.integers(1, 3))):
        place = rng.integers(0, d, (n, T))
        X[np.arange(n)[:, None], np.arange(T), place] += rng.choice([-1.0, 1.0], (n, T))
    Z = np.eye(d)[rng.integers(0, d, n)]
    return AttentionProblem(X, _labels(rng, n), Z, LinearHead(rng.integers(-1, 2, d).astype(float)))


def _zero_queries(rng: Generator, sizes: Generator) -> AttentionProblem:
    """Some queries are zero: infeasible unless their sequence has one token only."""
    n, T, d = _sizes(sizes)
    Z = rng.standard_normal((n, d))
    Z[rng.integers(0, n)] = 0.0
    mask = np.ones((n, T), dtype=bool)
    if rng.random() < 0.7:
        mask[~Z.any(axis=1), 1:] = False
    if mask.sum(axis=1).max() < 2:
        mask[:] = True
    head = LinearHead(rng.standard_normal(d))
    return AttentionProblem(rng.standard_normal((n, T, d)), _labels(rng, n), Z, head, mask)


def _random_mask(rng: Generator, shape: tuple[int, ...]) -> npt.NDArray[np.bool_]:
    """At least one token for every query, at least two for one of them."""
    mask = rng.random(shape) < 0.6
    np.put_along_axis(mask, rng.integers(0, shape[-1], (*shape[:-1], 1)), True, axis=-1)
    mask.reshape(-1, shape[-1])[0, :2] = True
    return mask


def _masks(rng: Generator, sizes: Generator) -> AttentionProblem:
    n, T, d = _sizes(sizes)
    K = int(sizes.integers(1, 4))
    several = sizes.random() < 0.5
    shape = (n, K) if several else (n,)
    head = LinearHead(rng.standard_normal(d))
    X, Z = random_points(rng, (n, T, d)), random_points(rng, (*shape, d))
    return AttentionProblem(X, _labels(rng, n), Z, head, _random_mask(rng, (*shape, T)))


def _ragged(rng: Generator, sizes: Generator) -> AttentionProblem:
    n, T, d = _sizes(sizes)
    lengths = rng.integers(1, T + 1, n)
    lengths[0] = T
    tokens = [rng.standard_normal((int(length), d)) for length in lengths]
    head = LinearHead(rng.standard_normal(d))
    return AttentionProblem.from_ragged(tokens, rng.standard_normal((n, d)), _labels(rng, n), head)


def _several_queries(rng: Generator, sizes: Generator) -> AttentionProblem:
    n, T, d = int(sizes.integers(1, 4)), int(sizes.integers(2, 5)), int(sizes.integers(2, 7))
    return _cross(rng, random_points(rng, (n, T, d)), random_points(rng, (n, int(sizes.integers(1, 4)), d)))


def _causal(rng: Generator, sizes: Generator) -> AttentionProblem:
    n, T, d = int(sizes.integers(1, 4)), int(sizes.integers(2, 5)), int(sizes.integers(2, 7))
    X = random_points(rng, (n, T, d))
    return AttentionProblem.sequences(X, _labels(rng, n), LinearHead(rng.standard_normal(d)), causal=True)


def _equal_tokens(rng: Generator, sizes: Generator) -> AttentionProblem:
    """Some tokens are copies of others of their sequence: selecting one over the other is impossible."""
    n, T, d = _sizes(sizes)
    X = rng.standard_normal((n, T, d))
    for i in range(n):
        if rng.random() < 0.4:
            X[i, rng.integers(0, T)] = X[i, rng.integers(0, T)]
    return _cross(rng, X, rng.standard_normal((n, d)))


def _extreme_scales(rng: Generator, sizes: Generator) -> AttentionProblem:
    """Tokens or queries times 1e-165 or 1e160: squares leave the range of float64, the answer mostly does not."""
    n, T, d = _sizes(sizes)
    left, right = [(1e-165, 1.0), (1e160, 1.0), (1.0, 1e-165), (1.0, 1e160), (1e160, 1e-165), (1e160, 1e160)][
        int(rng.integers(0, 6))
    ]
    return _cross(rng, left * rng.standard_normal((n, T, d)), right * rng.standard_normal((n, d)))


def _selected_sets(rng: Generator, sizes: Generator) -> AttentionProblem:
    """For Gen-SVM: equality rows between tokens that are random, small integers or nearly equal."""
    return (_sphere, _integer, _near_duplicates)[int(rng.integers(0, 3))](rng, sizes)


FAMILIES: dict[str, Callable[[Generator, Generator], AttentionProblem]] = {
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
    "equal tokens": _equal_tokens,
    "extreme scales": _extreme_scales,
    "selected sets": _selected_sets,
}
_WITH_EQUAL_TOKENS = frozenset({"equal tokens"})


def _random_selection(rng: Generator, problem: AttentionProblem) -> Selection:
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


def _draw(family: str, rng: Generator, sizes: tuple[int, ...]) -> tuple[AttentionProblem, Selection] | None:
    """A problem of these sizes and a selection of it; None when equal tokens came up every time."""
    for _ in range(_MAX_REDRAWS):
        problem = FAMILIES[family](rng, np.random.default_rng(sizes))
        selection = _random_selection(rng, problem)
        if family in _WITH_EQUAL_TOKENS or _is_separate(problem, selection):
            return problem, selection
    return None


def _random_sets(rng: Generator, problem: AttentionProblem, selection: Selection) -> SelectedSets:
    """Every query's token and, with a chance of 0.4 each, other allowed ones; never all of a query with two or more."""
    others = problem.allowed & (rng.random(problem.allowed.shape) < 0.4)
    members = others.copy()
    np.put_along_axis(members, selection.indices[..., None], True, axis=-1)
    whole = (members == problem.allowed).all(axis=-1, keepdims=True)
    single = np.zeros_like(members)
    np.put_along_axis(single, selection.indices[..., None], True, axis=-1)
    return SelectedSets(np.where(whole, single, members))


def draw_group(family: str, seed: int, size: int) -> list[FuzzCase]:
    """Problems of a family with equal sizes: a batch.

    Parameters
    ----------
    family : str
        A key of `FAMILIES`.
    seed : int
    size : int
        How many; the first k are the same for every size of at least k.

    Examples
    --------
    >>> len({case.problem.X.shape for case in draw_group("sphere", 0, 5)})
    1
    """
    if family not in FAMILIES:
        raise ValueError(f"family must be one of {sorted(FAMILIES)}, got {family!r}")
    name = tuple(family.encode())
    # Some sizes leave too few different tokens to choose from (one dimension, small integers): the first that do not.
    for attempt in range(_MAX_REDRAWS):
        sizes = (seed, attempt, *name)
        first = _draw(family, np.random.default_rng([*sizes, 0]), sizes)
        if first is None:
            continue
        drawn = [first, *(_draw(family, np.random.default_rng([*sizes, k]), sizes) for k in range(1, size))]
        cases = [FuzzCase(family, seed, k, *(pair or first)) for k, pair in enumerate(drawn)]
        if family != "selected sets":
            return cases
        generators = [np.random.default_rng([*sizes, k, 1]) for k in range(size)]
        return [
            replace(case, sets=_random_sets(rng, case.problem, case.selection))
            for case, rng in zip(cases, generators, strict=True)
        ]
    raise RuntimeError(f"family {family!r} drew equal tokens {_MAX_REDRAWS} times in a row")


def stack_cases(cases: Sequence[FuzzCase]) -> tuple[AttentionProblem, npt.NDArray[np.int64]]:
    """The problems of a group as one batch (without heads), and their selections (or sets) with a leading axis.

    Examples
    --------
    >>> batch, selections = stack_cases(draw_group("masks", 1, 3))
    >>> batch.batch, len(selections)
    (3, 3)
    """
    problems = [case.problem for case in cases]
    X, Z = (np.stack([getattr(problem, name) for problem in problems]) for name in ("X", "Z"))
    masked = any(problem.mask is not None for problem in problems)
    mask = np.stack([problem.allowed for problem in problems]) if masked else None
    chosen = [case.selection.indices if case.sets is None else case.sets.members for case in cases]
    return AttentionProblem(X, None, Z, None, mask), np.stack(chosen)
