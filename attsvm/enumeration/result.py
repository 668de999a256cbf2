"""What an enumeration returns."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from typing import overload

import numpy as np
import numpy.typing as npt

from attsvm._arrays import IntArray
from attsvm.exact_local import ExactListing, exact_listing
from attsvm.problem import AttentionProblem
from attsvm.selection import Selection
from attsvm.solution import Solution
from attsvm.svm import att_svm

__all__ = ["Counts", "LocalOptima", "LocalOptimum", "Undecided"]

FloatArray = npt.NDArray[np.float64]


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
