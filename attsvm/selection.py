"""Selections: one token per query, or a set of tokens per query."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeAlias, Union

import numpy as np
import numpy.typing as npt

from attsvm.records import html_listing
from attsvm.solvers.arrays import BoolArray, IntArray
from attsvm.user_input import bool_array, integer_array, own, short

if TYPE_CHECKING:
    from attsvm.problem import AttentionProblem

SelectionLike: TypeAlias = Union["Selection", npt.ArrayLike, None]
"""One token per query: a `Selection`, anything array-like of integers, or None for the optimal tokens."""

SelectedSetsLike: TypeAlias = Union["SelectedSets", "Selection", npt.ArrayLike, Sequence[Sequence[int]]]
"""A set of tokens per query: `SelectedSets`, a boolean array, or lists of indices."""


def _number(query: tuple[int, ...]) -> str:
    return ", ".join(map(str, query))


@dataclass(frozen=True, eq=False, init=False)
class Selection:
    """One token index per query.

    Parameters
    ----------
    indices : array_like of int, shape (n,) or (n, K), optionally with a leading batch axis
    tied : ndarray of bool, shape indices.shape + (T,), optional
        Set by `AttentionProblem.optimal_tokens`: all tokens that reach the highest score.

    Examples
    --------
    >>> from attsvm import Selection
    >>> Selection([2, 0]).indices
    array([2, 0])
    """

    indices: IntArray

    def __init__(self, indices: npt.ArrayLike, tied: BoolArray | None = None) -> None:
        self.__dict__.update(indices=own(integer_array("indices", indices)), tied=tied)

    @classmethod
    def of_scores(cls, scores: npt.NDArray[np.float64], tolerance: float) -> Selection:
        """The tokens of highest score, the first of those within the tolerance of it; scores nobody writes to."""
        selection, indices = cls.__new__(cls), scores.argmax(axis=-1)
        indices.setflags(write=False)
        selection.__dict__.update(indices=indices, _scores=scores, _tolerance=tolerance)
        return selection

    @cached_property
    def tied(self) -> BoolArray | None:
        """All tokens that reach the highest score, shape indices.shape + (T,); None unless scores chose."""
        scores, tolerance = self.__dict__["_scores"], self.__dict__["_tolerance"]
        best = np.maximum.reduce(scores, axis=-1, keepdims=True)
        return np.asarray(scores >= (best - tolerance if tolerance else best))

    def __repr__(self) -> str:
        return f"Selection(indices={short(self.indices)})"

    def _repr_html_(self) -> str:
        ties = self.ties
        rows = [
            (_number(query), int(self.indices[query]), ", ".join(map(str, ties.get(query, ()))) or None)
            for query in np.ndindex(self.indices.shape)
        ]
        return html_listing(f"Selection of {len(rows)} queries", ("query", "token", "tied"), rows)

    @property
    def is_unique(self) -> bool:
        """False when some query has several tokens of highest score."""
        return self.tied is None or bool((self.tied.sum(axis=-1) == 1).all())

    @property
    def ties(self) -> dict[tuple[int, ...], tuple[int, ...]]:
        """Queries with several tokens of highest score, and those tokens."""
        if self.tied is None:
            return {}
        places = np.argwhere(self.tied.sum(axis=-1) > 1)
        return {
            tuple(int(j) for j in place): tuple(int(t) for t in np.flatnonzero(self.tied[tuple(place)]))
            for place in places
        }

    def __getitem__(self, index: int) -> Selection:
        return Selection(self.indices[index], None if self.tied is None else self.tied[index])

    def __len__(self) -> int:
        return len(self.indices)

    def __array__(self, dtype: npt.DTypeLike | None = None, copy: bool | None = None) -> npt.NDArray[Any]:
        return np.array(self.indices, dtype=dtype)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Selection) and np.array_equal(self.indices, other.indices)

    def __hash__(self) -> int:
        return hash((self.indices.shape, self.indices.tobytes()))


@dataclass(frozen=True, eq=False, init=False)
class SelectedSets:
    """A non-empty set of selected tokens O per query.

    Parameters
    ----------
    members : array_like of bool, shape (n, T) or (n, K, T)
        True where a token is selected.

    Examples
    --------
    >>> from attsvm import SelectedSets
    >>> SelectedSets.from_indices([[0, 2], [1]], T=3).members.astype(int)
    array([[1, 0, 1],
           [0, 1, 0]])
    """

    members: BoolArray

    def __init__(self, members: npt.ArrayLike) -> None:
        array = bool_array("members", members)
        if array.ndim < 1:
            raise ValueError(f"members must have shape (n, T) or (n, K, T), got {array.shape}")
        object.__setattr__(self, "members", own(array))

    def __repr__(self) -> str:
        sizes = np.unique(self.members.sum(axis=-1)).tolist()
        size = f"{sizes[0]}" if len(sizes) == 1 else f"{sizes[0]} to {sizes[-1]}"
        return f"SelectedSets({' x '.join(map(str, self.members.shape))}, {size} tokens each)"

    def _repr_html_(self) -> str:
        sets = ((query, np.flatnonzero(self.members[query])) for query in np.ndindex(self.members.shape[:-1]))
        rows = [(_number(query), len(tokens), ", ".join(map(str, tokens[:20]))) for query, tokens in sets]
        return html_listing(f"Selected sets of {len(rows)} queries", ("query", "tokens", "which"), rows)

    @classmethod
    def from_indices(cls, sets: Iterable[Iterable[int]], T: int) -> SelectedSets:
        """From one iterable of token indices per sequence (single-query problems)."""
        rows = [list(chosen) for chosen in sets]
        members = np.zeros((len(rows), T), dtype=bool)
        for i, chosen in enumerate(rows):
            for t in chosen:
                if isinstance(t, bool) or not isinstance(t, (int, np.integer)):
                    raise ValueError(f"selected_sets[{i}] must hold token indices, got {t!r}; pass masks as arrays")
                if not 0 <= t < T:
                    raise ValueError(f"selected_sets[{i}] holds {t}, but tokens are 0..{T - 1}")
                members[i, t] = True
        return cls(members)

    def __getitem__(self, index: int) -> SelectedSets:
        return SelectedSets(self.members[index])


def _place(name: str, index: npt.NDArray[Any]) -> str:
    return f"{name}[{', '.join(str(int(i)) for i in index)}]"


def read_selection(problem: AttentionProblem, selection: SelectionLike) -> Selection:
    """Check a selection against a problem; None means the optimal tokens.

    Examples
    --------
    >>> import attsvm
    >>> problem = attsvm.random_problem(n=2, T=3, d=4, seed=0)
    >>> read_selection(problem, [2, 0]).indices
    array([2, 0])
    """
    if selection is None:
        return problem.optimal_tokens()
    chosen = selection if isinstance(selection, Selection) else Selection(integer_array("selection", selection))
    indices = chosen.indices
    if indices.shape != problem.query_shape:
        raise ValueError(f"selection must have shape {problem.query_shape}, one token per query, got {indices.shape}")
    if indices.min() < 0 or indices.max() >= problem.T:
        outside = np.argwhere((indices < 0) | (indices >= problem.T))[0]
        raise ValueError(f"{_place('selection', outside)} = {indices[tuple(outside)]} is out of range: tokens are "
                         f"0..{problem.T - 1}")  # fmt: skip
    if problem.mask is not None:
        hidden = np.argwhere(~np.take_along_axis(problem.allowed, indices[..., None], axis=-1)[..., 0])
        if len(hidden):
            place = _place("selection", hidden[0])
            raise ValueError(f"{place} = {indices[tuple(hidden[0])]} is masked out for that query")
    return chosen


def _lists(value: Any) -> Iterable[Iterable[int]]:
    try:
        rows: Iterable[Iterable[int]] = [list(chosen) for chosen in value]
    except TypeError as error:
        raise ValueError(
            f"selected_sets must be boolean arrays or one list of token indices per sequence, got {value!r:.60}"
        ) from error
    return rows


def read_selected_sets(problem: AttentionProblem, selected_sets: SelectedSetsLike) -> SelectedSets:
    """Check selected sets against a problem; boolean arrays and (for one query) lists of indices work too.

    Examples
    --------
    >>> import attsvm
    >>> problem = attsvm.random_problem(n=2, T=3, d=4, seed=0)
    >>> read_selected_sets(problem, [[0, 1], [2]]).members.sum()
    np.int64(3)
    """
    if isinstance(selected_sets, Selection):
        chosen = read_selection(problem, selected_sets)
        sets = SelectedSets(np.arange(problem.T) == chosen.indices[..., None])
    elif isinstance(selected_sets, SelectedSets):
        sets = selected_sets
    elif getattr(selected_sets, "dtype", None) is not None:
        sets = SelectedSets(bool_array("selected_sets", selected_sets))
    elif problem.multi_query or problem.batch is not None:
        sets = SelectedSets(bool_array("selected_sets", np.asarray(selected_sets)))
    else:
        sets = SelectedSets.from_indices(_lists(selected_sets), problem.T)
    expected = (*problem.query_shape, problem.T)
    if sets.members.shape != expected:
        raise ValueError(f"selected_sets must have shape {expected}, got {sets.members.shape}")
    empty = np.argwhere(~sets.members.any(axis=-1))
    if len(empty):
        raise ValueError(f"{_place('selected_sets', empty[0])} is empty: select at least one token per query")
    hidden = np.argwhere(sets.members & ~problem.allowed)
    if len(hidden):
        raise ValueError(
            f"{_place('selected_sets', hidden[0][:-1])} holds token {int(hidden[0][-1])}, "
            "which is masked out for that query"
        )
    return sets
