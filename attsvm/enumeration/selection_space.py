"""The selections of a problem as one indexed set (`SelectionSpace`), and what an enumeration of them returns."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import overload

import numpy as np

from attsvm.exact_tokens import ExactListing, exact_listing, score_order
from attsvm.problem import AttentionProblem, require_single
from attsvm.records import digest, html_listing
from attsvm.selection import Selection
from attsvm.selection_rows import AttentionRows, rows_of_selections
from attsvm.solution import Solution
from attsvm.solvers.arrays import BoolArray, FloatArray, IntArray
from attsvm.svm import att_svm

# -- the set of selections ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class SelectionSpace:
    """The selections of a single problem: one allowed token per query, queries flattened to one axis.

    Parameters
    ----------
    problem : AttentionProblem
        Not a batch, and with a head: local optimality needs scores.

    Examples
    --------
    >>> import attsvm
    >>> space = SelectionSpace(attsvm.random_problem(n=3, T=4, d=4, seed=5))
    >>> space.size, space.selections(0, 3).tolist()
    (64, [[0, 0, 0], [0, 0, 1], [0, 0, 2]])
    """

    problem: AttentionProblem

    def __post_init__(self) -> None:
        require_single(self.problem, "selections are listed for one problem at a time")
        if not (self.allowed.sum(axis=1) > 1).any():
            raise ValueError("mask leaves no query with two tokens to choose from: there is nothing to select")

    # -- data per query ---------------------------------------------------------------------------

    @property
    def q(self) -> int:
        """Number of queries, n K."""
        return self.problem.n * self.problem.K

    @property
    def T(self) -> int:
        """Tokens per sequence."""
        return self.problem.T

    @cached_property
    def allowed(self) -> BoolArray:
        """True where a query may select a token, shape (q, T)."""
        return np.asarray(self.problem.allowed.reshape(-1, self.T))

    @cached_property
    def scores(self) -> FloatArray:
        """Scores, -inf where masked, shape (q, T)."""
        return np.asarray(self.problem.scores().reshape(-1, self.T))

    @cached_property
    def order(self) -> IntArray:
        """Exact ranks of the scores within each query, shape (q, T)."""
        return np.asarray(score_order(self.problem).reshape(-1, self.T))

    @cached_property
    def best(self) -> IntArray:
        """The first token of highest score of each query, shape (q,)."""
        return np.asarray(np.where(self.allowed, self.order, self.order.min() - 1).argmax(axis=1))

    @cached_property
    def hopeless(self) -> BoolArray:
        """Tokens that no W can select: equal to another allowed one, or of a zero query; shape (q, T).

        Two equal tokens, or any two under a zero query, have the same logit under every W: the row is zero.
        """
        zero = ~self.problem.Z.reshape(self.q, -1).any(axis=1) & (self.allowed.sum(axis=1) > 1)
        doubled = duplicated_tokens(self.problem).reshape(self.q, self.T)
        return np.asarray(doubled | (zero[:, None] & self.allowed))

    @property
    def steps(self) -> int:
        """Rows of a selection: one for every token beside the selected ones."""
        return int((self.allowed.sum(axis=1) - 1).sum())

    @property
    def at_once(self) -> int:
        """Selections to solve as one batch: 64 MiB of rows, Gram matrices and W, at least 4 and at most 4096."""
        rows, (dx, dz) = self.steps, (self.problem.dx, self.problem.dz)
        return int(np.clip((1 << 23) // (rows * (rows + dx) + dx * dz), 4, 4096))

    @cached_property
    def choices(self) -> tuple[IntArray, ...]:
        """Allowed tokens of each query, in increasing order."""
        return tuple(np.flatnonzero(row) for row in self.allowed)

    @property
    def size(self) -> int:
        """Number of selections (a Python integer: it may exceed 64 bits)."""
        return math.prod(len(tokens) for tokens in self.choices)

    @cached_property
    def fingerprint(self) -> str:
        """Digest of everything that decides which selections are locally optimal."""
        return digest(self.problem.X, self.problem.Z, self.order, self.allowed)

    # -- selections -------------------------------------------------------------------------------

    def selections(self, start: int, stop: int, queries: IntArray | None = None) -> IntArray:
        """Selections number ``start`` to ``stop`` of the given queries (all by default), the last varying fastest.

        Returns
        -------
        ndarray of int, shape (stop - start, number of queries)
        """
        columns = range(self.q) if queries is None else [int(j) for j in queries]
        counter = np.arange(start, stop, dtype=np.int64)
        out = np.empty((len(counter), len(columns)), dtype=np.int64)
        for place in range(len(columns) - 1, -1, -1):
            tokens = self.choices[columns[place]]
            counter, digit = np.divmod(counter, len(tokens))
            out[:, place] = tokens[digit]
        return out

    def random(self, rng: np.random.Generator, count: int) -> IntArray:
        """Uniform random selections, shape (count, q)."""
        return np.stack([rng.choice(tokens, size=count) for tokens in self.choices], axis=1)

    def higher(self, selections: IntArray, *, ties: bool = True) -> BoolArray:
        """Allowed other tokens that score at least as much (or, without ties, more), shape (B, q, T)."""
        own = np.take_along_axis(self.order[None], selections[..., None], axis=2)
        better = self.order >= own if ties else self.order > own
        return np.asarray(better & self.allowed & (np.arange(self.T) != selections[..., None]))

    def lower(self, selections: IntArray) -> BoolArray:
        """Allowed tokens that score strictly less than the selected one, shape (B, q, T)."""
        own = np.take_along_axis(self.order[None], selections[..., None], axis=2)
        return np.asarray(self.allowed & (self.order < own))

    def mean_scores(self, selections: IntArray) -> FloatArray:
        """Mean score of the selected tokens, shape (B,)."""
        return np.asarray(np.take_along_axis(self.scores[None], selections[..., None], axis=2)[..., 0].mean(axis=1))

    def rows(self, selections: IntArray, keep: BoolArray | None = None) -> AttentionRows:
        """Rows of each selection wherever ``keep``, shape (B, q, T), which must leave at least one; all by default."""
        return rows_of_selections(self.problem, selections, keep)

    def partial_rows(self, partial: IntArray, queries: IntArray) -> AttentionRows:
        """All rows of the queries given, whose tokens ``partial`` (B, k) are; those of the others are left out."""
        selections = np.zeros((len(partial), self.q), dtype=np.int64)
        selections[:, queries] = partial
        keep = np.zeros((len(partial), self.q, self.T), dtype=bool)
        keep[:, queries] = self.allowed[queries]
        return self.rows(selections, keep)


def duplicated_tokens(problem: AttentionProblem) -> BoolArray:
    """True where another allowed token of the query is the same vector: selecting it is infeasible.

    Returns
    -------
    ndarray of bool, shape ``query_shape + (T,)``

    Examples
    --------
    >>> import attsvm
    >>> duplicated_tokens(attsvm.AttentionProblem([[[1.0], [0.0], [1.0]]], [1], [[1.0]]))
    array([[ True, False,  True]])
    """
    X = problem.X
    same = np.stack([(x[:, None] == x[None]).all(axis=-1) & ~np.eye(problem.T, dtype=bool) for x in X])
    allowed = problem.allowed.reshape(problem.n, problem.K, problem.T)
    found = (same[:, None] & allowed[:, :, None, :]).any(axis=-1) & allowed
    return np.asarray(found.reshape(*problem.query_shape, problem.T))


# -- results -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class LocalOptimum:
    """One locally optimal selection.

    Attributes
    ----------
    selection : Selection
    norm : float
        Norm of its SVM solution.
    gap : float
        Largest of gap and violations of the certificate, rounding included.
    """

    selection: Selection
    norm: float
    gap: float

    @property
    def margin(self) -> float:
        """1 / norm."""
        return 1.0 / self.norm

    @property
    def tokens(self) -> tuple[int, ...]:
        """Selected tokens in C order of the queries: the name of the node in `selection_graph`."""
        return tuple(int(t) for t in self.selection.indices.ravel())


@dataclass(frozen=True)
class Undecided:
    """A selection of which neither local optimality nor the contrary could be proved.

    Attributes
    ----------
    selection : Selection
    reason : str
        Why, with the resolution reached.
    """

    selection: Selection
    reason: str


@dataclass
class Counts:
    """How much work was done, and what it met.

    Attributes
    ----------
    selections : int
        Size of the space: the product of the numbers of allowed tokens.
    nodes : int
        Complete and partial selections that were tested.
    solves : int
        SVMs and bounds solved, incumbents included.
    feasible, infeasible : int
        Complete selections proved so. The best-first search proves neither for selections that it rules out.
    locally_optimal : int
        Locally optimal selections met, listed or not.
    """

    selections: int
    nodes: int = 0
    solves: int = 0
    feasible: int = 0
    infeasible: int = 0
    locally_optimal: int = 0

    def as_dict(self) -> dict[str, int]:
        """The counts by name."""
        return asdict(self)


@dataclass(frozen=True, eq=False)
class LocalOptima:
    """Locally optimal selections, largest margin first.

    Attributes
    ----------
    problem : AttentionProblem
    norm_name : str
    mode : str
        "exhaustive", "search" or "heuristic".
    items : tuple of LocalOptimum
    proved_best : bool
        Proved: the list holds the locally optimal selections of largest margin; with ``top=k`` others may exist.
    bound : float
        Proved: no locally optimal selection outside the list has a larger margin. 0 when there is no other at all,
        infinite when nothing is proved.
    counts : Counts
    undecided : tuple of Undecided
        Selections whose local optimality is neither proved nor refuted, and why; nothing is proved of the list then.
    seconds : float

    Examples
    --------
    >>> import attsvm
    >>> from attsvm.enumeration import locally_optimal_selections
    >>> found = locally_optimal_selections(attsvm.random_problem(n=3, T=4, d=4, seed=5))
    >>> len(found), found.complete, found[0].tokens
    (4, True, (2, 3, 3))
    >>> found.margins.round(3)
    array([0.475, 0.474, 0.283, 0.281])
    """

    problem: AttentionProblem
    norm_name: str
    mode: str
    items: tuple[LocalOptimum, ...]
    proved_best: bool
    bound: float
    counts: Counts
    undecided: tuple[Undecided, ...] = field(default=())
    seconds: float = 0.0

    @property
    def complete(self) -> bool:
        """Proved: there is no other locally optimal selection."""
        return self.proved_best and self.bound == 0

    def __len__(self) -> int:
        return len(self.items)

    def __iter__(self) -> Iterator[LocalOptimum]:
        return iter(self.items)

    @overload
    def __getitem__(self, index: int) -> LocalOptimum: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[LocalOptimum, ...]: ...
    def __getitem__(self, index: int | slice) -> LocalOptimum | tuple[LocalOptimum, ...]:
        return self.items[index]

    def __contains__(self, selection: object) -> bool:
        """Whether a selection (a `LocalOptimum`, `Selection` or anything that reads as indices) is listed."""
        if isinstance(selection, LocalOptimum):
            selection = selection.selection
        tokens = tuple(int(t) for t in np.asarray(selection).ravel())
        return any(tokens == item.tokens for item in self.items)

    def _repr_html_(self) -> str:
        proof = (
            "complete"
            if self.complete
            else f"the first {self.proved} proved best, others have margin <= {self.bound:.4g}"
        )
        title = (
            f"{len(self)} locally optimal selections of {self.counts.selections:.6g}, {self.norm_name} norm; {proof}"
        )
        title += f"; {len(self.undecided)} undecided" if self.undecided else ""
        rows = [
            (k + 1, _few(item.tokens), f"{item.margin:.5g}", f"{item.norm:.5g}", f"{item.gap:.1e}")
            for k, item in enumerate(self.items)
        ]
        return html_listing(title, ("", "tokens", "margin", "norm", "gap"), rows)

    @property
    def selections(self) -> IntArray:
        """Selected tokens, shape ``(len(self),) + query_shape``."""
        shape = (len(self), *self.problem.query_shape)
        return np.array([item.selection.indices for item in self.items], dtype=np.int64).reshape(shape)

    @property
    def margins(self) -> FloatArray:
        """Margins, largest first."""
        return np.array([item.margin for item in self.items])

    @property
    def norms(self) -> FloatArray:
        """Norms, smallest first."""
        return np.array([item.norm for item in self.items])

    @property
    def gaps(self) -> FloatArray:
        """Certificates: largest of gap and violations of each."""
        return np.array([item.gap for item in self.items])

    @property
    def proved(self) -> int:
        """How many of the first items are proved to be those of largest margin; also after a stopped search."""
        return int(np.count_nonzero(self.margins >= self.bound))

    def solution(self, index: int) -> Solution:
        """The SVM of a listed selection, solved anew: W, support and the whole certificate."""
        return att_svm(self.problem, self.items[index].selection, norm=self.norm_name)

    def W(self, index: int) -> FloatArray:
        """Solution of a listed selection, shape (dx, dz)."""
        return self.solution(index).W

    def exact(self) -> ExactListing:
        """The list proved again: every selection decided over the rationals (Frobenius norm, small problems).

        Raises
        ------
        ValueError
            For another norm, whose solutions need not be unique, and for problems that are too large.

        Examples
        --------
        >>> import attsvm
        >>> found = attsvm.locally_optimal_selections(attsvm.random_problem(n=2, T=3, d=3, seed=0))
        >>> print(found.exact())
        2 of 9 selections locally optimal in exact arithmetic; the list: complete
        """
        if self.norm_name != "frobenius":
            raise ValueError(
                f"exact listings are for the Frobenius norm, got {self.norm_name!r}, whose solutions need not be "
                "unique; prove single ones again by solution(i).certificate.exact()"
            )
        shortened = len(self) if self.proved_best and not self.complete else None  # the best k of more
        return exact_listing(self.problem, [item.tokens for item in self.items], shortened)

    def save_certificate(self, path: str | Path) -> tuple[str, ...]:
        """Write the listing and a proof of every selection to a file for ``tools/check_certificate.py``.

        Parameters
        ----------
        path : str or Path
            JSON, compressed if the name ends in ``.gz``.

        Returns
        -------
        tuple of str
            The claim, "complete listing".

        Raises
        ------
        ValueError
            For a listing that is not complete, for the nuclear norm, and for more than 5,000 selections.

        Examples
        --------
        >>> import tempfile
        >>> import attsvm
        >>> found = attsvm.locally_optimal_selections(attsvm.random_problem(n=2, T=3, d=3, seed=0))
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     found.save_certificate(f"{folder}/listing.json")
        ('complete listing',)
        """
        from attsvm.enumeration.listing import save_listing

        return save_listing(self, path)

    def __repr__(self) -> str:
        proof = "complete" if self.complete else "the best proved" if self.proved_best else "incomplete"
        best = f", best margin {self.items[0].margin:.4g}" if self.items else ""
        return f"LocalOptima({self.norm_name}, {self.mode}: {len(self)} found, {proof}{best}, bound {self.bound:.4g})"

    def __str__(self) -> str:
        counts = self.counts
        lines = [
            repr(self),
            f"{counts.nodes:,} nodes and {counts.solves:,} solves for {counts.selections:,} selections "
            f"in {self.seconds:.1f} s; {len(self.undecided)} undecided",
        ]
        lines += [f"  {item.margin:.6f}  {item.tokens}" for item in self.items]
        lines += [
            f"  undecided {item.selection.indices.ravel().tolist()}: {item.reason}" for item in self.undecided[:5]
        ]
        return "\n".join(lines)


def _few(tokens: tuple[int, ...], most: int = 20) -> str:
    """Tokens for a cell of a table."""
    return ", ".join(map(str, tokens[:most])) + (", ..." if len(tokens) > most else "")
