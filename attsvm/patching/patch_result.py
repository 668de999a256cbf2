"""A patch as data: the changed map, what it promises, its certificate, what else it changes, and patches after it."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np

from attsvm.export import balanced_factors
from attsvm.patching.embedding_index import VectorIndex
from attsvm.records import Table, html_table, render
from attsvm.solvers import InfeasibleError, NoSolutionError, Status
from attsvm.solvers.arrays import FloatArray, IntArray
from attsvm.solvers.certify.ranks import count_above

if TYPE_CHECKING:
    from attsvm.patching.answers import AnswerChange, HeldOut

Side = Literal["query", "document", "both"]
Start = Literal["origin", "previous"]
# Lines of a listing in a sentence and in tables for notebooks and terminals.
_SHOWN = 6
# Share of the map from which on a change is said to be large.
_LARGE = 0.5


class Outcome(NamedTuple):
    """What became of one promise.

    Attributes
    ----------
    kind : {"repair", "keep"}
    query, document : str or int
        Ids.
    rival : str, int or None
        The strongest other document after the patch.
    lead, lead_before : float
        Lead of the document over the strongest other one, after the patch and before.
    weight : float
        Sum of the multipliers of its rows: how much it drives the change.
    served : bool
        The promise holds, proved over all documents.
    round : int
        Which patch of a sequence made it.
    reason : str
        Why it is not served.
    """

    kind: str
    query: Hashable
    document: Hashable
    rival: Hashable | None
    lead: float
    lead_before: float
    weight: float
    served: bool
    round: int
    reason: str


class Demand(NamedTuple):
    """One row: a document above another one for a query.

    Attributes
    ----------
    kind : {"repair", "keep"}
    query, document, rival : str or int
    multiplier : float
        How much it drives the change, or its weight in a contradiction.
    lead : float
        After the patch.
    round : int
    same : bool
        Both documents have exactly the same embedding.
    """

    kind: str
    query: Hashable
    document: Hashable
    rival: Hashable
    multiplier: float
    lead: float
    round: int
    same: bool

    def __str__(self) -> str:
        copy = ", which has exactly the same embedding" if self.same else ""
        return f"{self.kind} {self.document!r} above {self.rival!r} for query {self.query!r}{copy}"


class PatchRound(NamedTuple):
    """One patch of a sequence: its name, the map that was in force before it, and its promises as records."""

    name: str
    map: FloatArray
    promises: tuple[Mapping[str, Any], ...]


@dataclass(frozen=True)
class PatchCertificate:
    """What is proved about a patch.

    Attributes
    ----------
    gap : float
        Relative gap between the size of the change and the proved lower bound.
    lower_bound, norm : float
        No change that keeps every promise is smaller than the first; the size of this one.
    violation : float
        Largest amount by which a promise is missed over all documents, rounding included.
    tolerance : float
        Share of ``|difference of the documents| |W z|`` by which a promise may be missed.
    promises, documents : int
        Every promise was compared with every document (or with the rivals it lists).
    rows, scans, compared : int
        Rows of the last problem, scans of the index, pairs that float32 left open in the last scan.
    unproved : int
        Pairs that are violated, or whose order is not proved.
    solver : str
    infeasible_by : str
        How a contradiction is proved; empty without one.
    seconds : float
    """

    gap: float
    lower_bound: float
    norm: float
    violation: float
    tolerance: float
    promises: int
    documents: int
    rows: int
    scans: int
    compared: int
    unproved: int
    solver: str
    infeasible_by: str
    seconds: float

    def __str__(self) -> str:
        if self.infeasible_by:
            return f"no map keeps every promise, proved by {self.infeasible_by}"
        scope = f"{self.promises:,} promises against {self.documents:,} documents"
        if self.unproved:
            return (
                f"{self.unproved} pairs of {scope} are violated or not proved (largest violation {self.violation:.1e})"
            )
        return f"{scope}: all hold, missed by at most {self.violation:.1e}; smallest change to within {self.gap:.1e}"


@dataclass(frozen=True, eq=False)
class PatchData:
    """Embeddings that a patch was computed from, as long as they are in memory or mapped."""

    queries: VectorIndex
    documents: VectorIndex
    held_out: tuple[tuple[int, int], ...]
    memory_limit: float | None


@dataclass(frozen=True, eq=False, repr=False)
class Patch:
    """The smallest change of an embedding map that keeps every promise, with its certificate.

    Scores are ``document^T W query``. Use `query_map` or `document_map` on embeddings: ``queries @ patch.query_map.T``.

    Attributes
    ----------
    status : Status
        "optimal" when every promise is proved over all documents and the change is the smallest to the tolerance,
        "infeasible" when promises contradict each other, "inaccurate" when something is not proved.
    side : {"query", "document", "both"}
    norm_kind : str
        The norm that was minimized.
    margin : float
        By how much right documents lead.
    C : float or None
    prior : ndarray, shape (d_documents, d_queries)
        W0, the map before the first patch.
    base : ndarray, shape (d_documents, d_queries)
        The map from which the change is the smallest: ``prior``, or that of the previous patch.
    map : ndarray or None
        The same as `W`, or None without a patch.
    rounds : tuple of PatchRound
        The patches of a sequence, this one last.
    outcomes : tuple of Outcome
        One per promise.
    left_out : tuple of Outcome
        Golden answers that were not first before, if they are to be left out.
    driving : tuple of Demand
        The rows of the largest multipliers, largest first; 200 at most.
    conflict : tuple of Demand
        The rows that contradict each other, of an infeasible patch.
    certificate : PatchCertificate
    data : PatchData or None
        The embeddings; None of a patch from a file.
    """

    status: Status
    side: Side
    norm_kind: str
    margin: float
    C: float | None
    prior: FloatArray
    base: FloatArray
    map: FloatArray | None
    rounds: tuple[PatchRound, ...]
    outcomes: tuple[Outcome, ...]
    left_out: tuple[Outcome, ...]
    driving: tuple[Demand, ...]
    conflict: tuple[Demand, ...]
    certificate: PatchCertificate
    data: PatchData | None = field(default=None)

    # -- the map ---------------------------------------------------------------------------------------

    @property
    def W(self) -> FloatArray:
        """The patched map, shape (d_documents, d_queries)."""
        if self.map is None:
            if self.status is Status.INFEASIBLE:
                raise InfeasibleError(f"no map keeps every promise: {self.conflict_text()}")
            raise NoSolutionError(f"the search ended {self.status}: {self.status.advice}")
        return self.map

    @cached_property
    def change(self) -> FloatArray:
        """``W - prior``, shape (d_documents, d_queries)."""
        return self.W - self.prior

    @cached_property
    def factors(self) -> tuple[FloatArray, FloatArray]:
        """``(B, A)`` with ``change = B A``, balanced, of the numerical rank of the change."""
        return balanced_factors(self.change)

    @cached_property
    def query_map(self) -> FloatArray:
        """M of ``queries @ M.T``; the identity when the documents are mapped."""
        if self.side == "query":
            return self.W
        return np.eye(self.W.shape[1]) if self.side == "document" else self._shared[1]

    @cached_property
    def document_map(self) -> FloatArray:
        """M of ``documents @ M.T``; the identity when the queries are mapped."""
        if self.side == "document":
            return np.ascontiguousarray(self.W.T)
        return np.eye(self.W.shape[0]) if self.side == "query" else self._shared[0]

    @cached_property
    def _shared(self) -> tuple[FloatArray, FloatArray]:
        """Maps of documents and queries whose product is W, both near the identity where W is."""
        U, s, Vt = np.linalg.svd(self.W, full_matrices=False)
        turn = np.eye(len(s))
        if self.W.shape[0] == self.W.shape[1]:  # the rotation nearest to both bases
            left, _, right = np.linalg.svd(U + Vt.T)
            turn = left @ right
        root = np.sqrt(s)[:, None]
        return turn @ (root * U.T), turn @ (root * Vt)

    # -- sizes -----------------------------------------------------------------------------------------

    @property
    def norm(self) -> float:
        """Norm of the change from the map that it starts at, in the norm that was minimized."""
        return self.certificate.norm

    @cached_property
    def relative_size(self) -> float:
        """``||change||_F / ||prior||_F``."""
        whole = float(np.linalg.norm(self.prior))
        size = float(np.linalg.norm(self.change))
        return size / whole if whole > 0 else (0.0 if size == 0 else float("inf"))

    @cached_property
    def singular_values(self) -> FloatArray:
        """Of the change, largest first."""
        return np.asarray(np.linalg.svd(self.change, compute_uv=False), dtype=np.float64)

    @cached_property
    def rank(self) -> int:
        """Numerical rank of the change."""
        return int(count_above(self.singular_values, 1e-8)) if self.singular_values[0] > 0 else 0

    # -- promises --------------------------------------------------------------------------------------

    @property
    def repaired(self) -> tuple[Outcome, ...]:
        """Failures that are repaired, earlier patches included."""
        return tuple(one for one in self.outcomes if one.kind == "repair" and one.served)

    @property
    def kept(self) -> tuple[Outcome, ...]:
        """Golden answers that stay."""
        return tuple(one for one in self.outcomes if one.kind == "keep" and one.served)

    @property
    def unserved(self) -> tuple[Outcome, ...]:
        """Promises that do not hold, or that are not proved, with the reason."""
        return tuple(one for one in self.outcomes if not one.served)

    def conflict_text(self) -> str:
        """The contradiction in words."""
        told = "; ".join(str(one) for one in self.conflict[:_SHOWN])
        more = f" and {len(self.conflict) - _SHOWN} more" if len(self.conflict) > _SHOWN else ""
        failures = list(dict.fromkeys(repr(one.query) for one in self.conflict if one.kind == "repair"))
        advice = f"leave out one of the failures of {', '.join(failures[:_SHOWN])}" if failures else "leave out one"
        return f"these demands contradict each other: {told}{more}; {advice}, or pass C to give some up"

    # -- what else changes -----------------------------------------------------------------------------

    def _embeddings(self, what: str) -> PatchData:
        if self.data is None:
            raise ValueError(
                f"{what} needs the embeddings, which a file of a patch does not hold: use attsvm.patch(..., after=)"
            )
        return self.data

    @cached_property
    def answer_changes(self) -> tuple[AnswerChange, ...]:
        """Queries without a promise whose first answer changes, those with the largest new lead first."""
        from attsvm.patching.answers import answer_changes

        data = self._embeddings("answer_changes")
        named = {one.query for one in self.outcomes}
        others = [k for k in range(len(data.queries)) if data.queries.label(k) not in named]
        index: IntArray = np.array(others, dtype=np.int64)
        return answer_changes(index, self.prior, self.W, data.queries, data.documents, data.memory_limit)

    @cached_property
    def held_out(self) -> HeldOut | None:
        """Recall and reciprocal rank of held-out queries before and after, with intervals; None without queries."""
        from attsvm.patching.answers import held_out

        data = self._embeddings("held_out")
        return held_out(data.held_out, self.prior, self.W, data.queries, data.documents, data.memory_limit)

    def then(self, failures: Any = None, golden: Any = None, **options: Any) -> Patch:
        """The next patch of a sequence on the same embeddings: what this one and earlier ones promised is kept.

        Parameters
        ----------
        failures, golden
            As of `attsvm.patch`.
        **options
            As of `attsvm.patch`; side, norm, margin and C are those of this patch by default.

        Examples
        --------
        >>> import numpy as np
        >>> import attsvm
        >>> documents = np.eye(3)
        >>> queries = np.array([[0.9, 1.0, 0.0], [0.0, 0.9, 1.0], [1.0, 0.0, 0.5]])
        >>> one = attsvm.patch(queries, documents, [(0, 0)], [(2, 0)])
        >>> two = one.then([(1, 1)], name="second report")
        >>> (documents @ two.W @ queries.T).argmax(axis=0), [part.name for part in two.rounds]
        (array([0, 1, 0]), ['patch 1', 'second report'])
        """
        from attsvm.patching.smallest_patch import patch

        data = self._embeddings("then")
        asked = {
            "side": self.side, "norm": self.norm_kind, "margin": self.margin, "C": self.C,
            "memory_limit": data.memory_limit, **options,
        }  # fmt: skip
        asked.setdefault("held_out", [(data.queries.label(q), data.documents.label(d)) for q, d in data.held_out])
        return patch(data.queries.vectors, data.documents.vectors, failures, golden,
                     query_ids=data.queries.ids, document_ids=data.documents.ids, after=self, **asked)  # fmt: skip

    def undo(self, which: int | str = -1) -> Patch:
        """The smallest change from the prior that keeps the promises of all patches but one.

        Parameters
        ----------
        which : int or str
            Number of the patch in `rounds`, or its name; the last one by default.
        """
        return without_round(self, which)

    @property
    def drift(self) -> Table:
        """Size of the whole change after each patch of the sequence, of its step, and the angle that it turned by."""
        return drift_table(self)

    # -- text, page, file ------------------------------------------------------------------------------

    def facts(self) -> dict[str, str]:
        """The findings, one line each."""
        failures = [one for one in self.outcomes if one.kind == "repair"]
        golden = [one for one in self.outcomes if one.kind == "keep"]
        found = {"status": f"{self.status}: {self._verdict}"}
        if self.map is None:
            return found | {"contradiction": self.conflict_text()} if self.conflict else found
        found["repaired"] = f"{len(self.repaired):,} of {len(failures):,} failures"
        found["kept"] = f"{len(self.kept):,} of {len(golden):,} golden promises"
        if self.left_out:
            found["left out"] = f"{len(self.left_out):,} golden answers that were not first before"
        found["size of the change"] = f"{self.relative_size:.3%} of the map ({self.norm_kind} norm {self.norm:.4g})"
        found["rank of the change"] = f"{self.rank}"
        found["certificate"] = str(self.certificate)
        if self.relative_size > _LARGE and self.driving:
            found["note"] = (
                f"the change is large; most of it is for this demand, whose documents may be near duplicates: "
                f"{self.driving[0]}"
            )
        shown = self.driving[:_SHOWN]
        found |= {f"driving {k + 1}": f"{one} ({one.multiplier:.3g})" for k, one in enumerate(shown)}
        found |= {
            f"not served {k + 1}": f"query {one.query!r}, document {one.document!r}: {one.reason}"
            for k, one in enumerate(self.unserved[:_SHOWN])
        }
        return found

    def record(self) -> dict[str, Any]:
        """Plain values for JSON: findings, outcomes, driving demands, contradiction and certificate."""
        size = None if self.map is None else self.relative_size
        return {
            "status": str(self.status),
            "side": self.side,
            "norm_kind": self.norm_kind,
            "margin": self.margin,
            "C": self.C,
            "relative_size": size,
            "rank": None if self.map is None else self.rank,
            "outcomes": [one._asdict() for one in self.outcomes],
            "left_out": [one._asdict() for one in self.left_out],
            "driving": [one._asdict() for one in self.driving],
            "conflict": [one._asdict() for one in self.conflict],
            "rounds": [one.name for one in self.rounds],
            "certificate": dict(self.certificate.__dict__),
        }

    @property
    def _verdict(self) -> str:
        if self.status is Status.INFEASIBLE:
            return "no map repairs all failures and keeps all golden answers"
        if self.map is None:
            return self.status.advice
        if self.status is Status.OPTIMAL:
            given = f", {len(self.unserved)} given up" if self.unserved else ""
            return f"every promise is proved over all {self.certificate.documents:,} documents{given}"
        return "not everything is proved; see the certificate"

    def __repr__(self) -> str:
        if self.map is None:
            return f"Patch({self.side}, {self.norm_kind}, {self.status})"
        failures = sum(one.kind == "repair" for one in self.outcomes)
        golden = len(self.outcomes) - failures
        return (
            f"Patch({self.side}, {self.norm_kind}, {self.status}, {len(self.repaired)}/{failures} repaired, "
            f"{len(self.kept)}/{golden} kept, {self.relative_size:.3%} of the map, rank {self.rank})"
        )

    def __str__(self) -> str:
        rows = [(name, value) for name, value in self.facts().items()]
        return render(Table("Patch", ("", ""), rows, align="ll"))

    def _repr_html_(self) -> str:
        return html_table("Patch", self.facts())

    def report(self, path: str | Path) -> Path:
        """Write the page about the patch; unreported queries of the embeddings are compared before and after."""
        from attsvm.patching.patch_page import write_patch_page

        return write_patch_page(self, path)

    def save(self, path: str | Path) -> Path:
        """Write the patch to a ``.npz`` file that `attsvm.load_patch` reads; embeddings are not stored."""
        from attsvm.patching.patch_files import save_patch

        return save_patch(self, path)


def without_round(patch: Patch, which: int | str) -> Patch:
    """The patch without the promises of one round, solved again from the prior (see `Patch.undo`)."""
    from attsvm.patching.smallest_patch import repatched

    names = [one.name for one in patch.rounds]
    if isinstance(which, str):
        if which not in names:
            raise ValueError(f"which must be one of the patches {', '.join(map(repr, names))}, got {which!r}")
        place = names.index(which)
    elif isinstance(which, int) and not isinstance(which, bool) and -len(names) <= which < len(names):
        place = which % len(names)
    else:
        raise ValueError(f"which must be a name, or a number from 0 to {len(names) - 1}, got {which!r}")
    rounds = tuple(one for k, one in enumerate(patch.rounds) if k != place)
    if not any(one.promises for one in rounds):
        raise ValueError(f"{names[place]!r} is the only patch that promises something: go back to patch.prior instead")
    return repatched(replace(patch, rounds=rounds))


def drift_table(patch: Patch) -> Table:
    """One line per patch: failures and golden promises, size of the whole change and of the step, angle turned by."""
    maps = [one.map for one in patch.rounds[1:]] + [patch.W]
    size = float(np.linalg.norm(patch.prior)) or 1.0
    rows, before, last = [], np.zeros_like(patch.prior), patch.rounds[0].map
    for one, after in zip(patch.rounds, maps, strict=True):
        change = after - patch.prior
        repaired = sum(record["kind"] == "repair" for record in one.promises)
        rows.append(
            (one.name, repaired, len(one.promises) - repaired, f"{np.linalg.norm(change) / size:.3%}",
             f"{np.linalg.norm(after - last) / size:.3%}", _angle(before, change))
        )  # fmt: skip
        before, last = change, after
    columns = ("patch", "failures", "golden", "whole change", "step", "turned by, degrees")
    return Table("Sizes as shares of the prior map", columns, rows)


def _angle(x: FloatArray, y: FloatArray) -> float:
    sizes = float(np.linalg.norm(x) * np.linalg.norm(y))
    if not sizes > 0:
        return float("nan")
    return float(np.degrees(np.arccos(np.clip(np.vdot(x, y) / sizes, -1.0, 1.0))))
