"""The smallest change of an embedding map that repairs failures and keeps golden answers, proved over an index.

The score of a document x for a query z is ``x^T W z``; W is the identity, or what a retriever uses now, until it is
patched. The change is the least in norm over all W that keep every promise (`attsvm.patching.promises`).
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple, TypeAlias, get_args

import numpy as np
import numpy.typing as npt

from attsvm.patching.embedding_index import (
    EmbeddingsLike,
    Encoder,
    Found,
    VectorIndex,
    Wanted,
    float32_error,
    read_index,
    scan,
)
from attsvm.patching.patch_result import Demand, Outcome, Patch, PatchCertificate, PatchData, PatchRound, Side, Start
from attsvm.patching.promises import (
    Promise,
    as_record,
    from_record,
    read_failures,
    read_golden,
    read_held_out,
    without_contradictions,
)
from attsvm.patching.working_rows import MISSED, Effort, Search, SearchResult
from attsvm.solvers import ConvergenceWarning, MemoryLimitError, Norm, Status, get_norm
from attsvm.solvers.arrays import BoolArray, FloatArray
from attsvm.solvers.deadline import read_time_limit
from attsvm.solvers.memory import allowed_memory
from attsvm.user_input import finite_array, is_number, require_choice, require_count, require_number

Margin: TypeAlias = float | Literal["just above", "calibrated"]
Stale = Literal["refuse", "leave_out", "repair"]
Pairs: TypeAlias = Sequence[Sequence[Any]] | Iterable[tuple[Any, ...]] | dict[Any, Any]
"""(query, document), (query, document, rivals) or (query, [documents]) entries, or a mapping from query to document."""

# Of the leads that golden answers have now: "calibrated" takes this quantile of them.
_QUANTILE = 0.1
# Demands that the result names one by one: those of the largest multipliers.
_NAMED = 200
# Multipliers below this share of the largest drive nothing.
_DRIVES = 1e-9


def patch(
    queries: EmbeddingsLike,
    documents: EmbeddingsLike,
    failures: Pairs | None = None,
    golden: Pairs | None = None,
    *,
    side: Side = "query",
    norm: str = "frobenius",
    margin: Margin = "just above",
    C: float | None = None,
    prior: npt.ArrayLike | None = None,
    held_out: Pairs | None = None,
    query_ids: Iterable[Hashable] | None = None,
    document_ids: Iterable[Hashable] | None = None,
    encoder: Encoder | None = None,
    stale: Stale = "refuse",
    after: Patch | None = None,
    start: Start = "origin",
    name: str | None = None,
    tolerance: float | None = None,
    max_rounds: int = 60,
    time_limit: float | None = None,
    memory_limit: float | None = None,
    progress: Callable[[str, int, int], object] | None = None,
) -> Patch:
    """The smallest change of an embedding map that repairs failures and keeps golden answers, with proof.

    Minimize ``||W - W0||`` over the maps W whose scores ``x^T W z`` put the right document of every failure above each
    document of the index by the margin, and keep every golden answer first. Rivals are found in rounds over the whole
    index; the last scan proves that no document violates a promise.

    Parameters
    ----------
    queries, documents : array_like, path of a ``.npy`` file, or sequence of str
        Embeddings, shapes (n, d_queries) and (m, d_documents), as they are compared by inner products: of length 1 for
        the cosine. Files are memory-mapped. Texts are embedded by ``encoder``.
    failures : sequence of (query, right document) or (query, right document, rivals), or mapping, optional
        What is answered wrongly now. With rivals the right document must lead these alone, else the whole index.
    golden : sequence of (query, right document) or (query, [first, second, ...]), or mapping, optional
        What must not change: the first answer, or the order of several; documents that score lower now stay below.
    side : {"query", "document", "both"}
        Where the change is applied: `Patch.query_map`, `Patch.document_map` (then the index is embedded again and
        compared by inner products, not normalized), or one map each. W is the same.
    norm : str
        "frobenius", "nuclear" (a change of low rank), "spectral", "l1", "linf", "l<p>".
    margin : float, "just above" or "calibrated"
        By how much a right document must lead, in scores. "just above": twice the error bound of a float32 inner
        product, so that an index in float32 ranks as promised. "calibrated": the lead that nine in ten golden answers
        have now. A golden answer keeps the margin, or the lead that it has now where that is less.
    C : float, optional
        Give up failures that would need more weight than C, and those that contradict each other, instead of returning
        no patch: minimize ``||W - W0||_F^2 / 2 + C sum xi`` (other norms: ``||W - W0|| + C sum xi``) with slacks xi of
        failures only, in scores of vectors of length 1 (to a factor of 1.5), then find the smallest change for those
        that are left. Golden answers are never given up.
    prior : array_like, shape (d_documents, d_queries), optional
        W0; the identity by default. With ``after`` it is that of the first patch.
    held_out : sequence of (query, right document), optional
        Queries that the patch does not see: the report compares recall and reciprocal rank with and without it.
    query_ids, document_ids : iterable of str or int, optional
        Names of the embeddings; without them rows are their names.
    encoder : callable or model with ``encode``, optional
        Embeds texts: a function from texts to an array, or a model of sentence-transformers.
    stale : {"refuse", "leave_out", "repair"}
        What to do with golden answers that are not first now.
    after : Patch, optional
        An earlier patch: what it promised is kept, too.
    start : {"origin", "previous"}
        With ``after``: the smallest change from W0 for all promises together, or from the previous patch.
    name : str, optional
        Of this patch in a sequence.
    tolerance : float, optional
        Of the certificate's relative gap.
    max_rounds : int
        Scans of the index, at most.
    time_limit : float, optional
        Seconds; the best patch so far is returned, and says what is not proved.
    memory_limit : float, optional
        Bytes for blocks of scores and rows beside the embeddings, which are read in blocks where they are mapped.
    progress : callable, optional
        Called as ``progress(what, done, total)``.

    Returns
    -------
    Patch

    Examples
    --------
    >>> import numpy as np
    >>> import attsvm
    >>> rng = np.random.default_rng(0)
    >>> documents = rng.normal(size=(300, 16))
    >>> documents /= np.linalg.norm(documents, axis=1, keepdims=True)
    >>> queries = documents[:40] + 0.25 * rng.normal(size=(40, 16))
    >>> first = (queries @ documents.T).argmax(axis=1)
    >>> wrong, right = np.flatnonzero(first != np.arange(40)), np.flatnonzero(first == np.arange(40))
    >>> found = attsvm.patch(queries, documents, [(q, q) for q in wrong], [(q, q) for q in right])
    >>> print(found.status, len(wrong), "failures,", len(found.unserved), "left")
    optimal 10 failures, 0 left
    >>> bool(((queries @ found.query_map.T) @ documents.T).argmax(axis=1).tolist() == list(range(40)))
    True
    """
    begin = time.perf_counter()
    require_choice("side", side, *get_args(Side))
    require_choice("stale", stale, *get_args(Stale))
    require_choice("start", start, *get_args(Start))
    require_count("max_rounds", max_rounds)
    kind = get_norm(norm)
    if C is not None:
        require_number("C", C, "None or a positive number", low=0.0)
    index = (read_index("query", queries, query_ids, encoder), read_index("document", documents, document_ids, encoder))
    W0, now, earlier = _start_of(index, prior, after)
    effort = Effort(
        max_rounds, begin + read_time_limit(time_limit), None if memory_limit is None else allowed_memory(memory_limit),
        tolerance, progress,
    )  # fmt: skip
    reading = _Reading(*index, W0, now, earlier, effort)
    promises, left_out, lead_asked = reading.promises(failures, golden, margin, stale)
    if not promises:
        raise ValueError("failures and golden name nothing: a patch needs at least one failure or golden answer")
    given = _Task(
        *index, tuple(promises), (*(one.map for one in earlier), now), W0, W0 if start == "origin" else now, side,
        kind, lead_asked, C, effort, begin,
    )  # fmt: skip
    wanted, search, result = _searched(given, np.array([one.round == len(earlier) for one in promises]))
    made = PatchRound(
        f"patch {len(earlier) + 1}" if name is None else str(name), now,
        tuple(
            as_record(one, *index)
            for k, one in enumerate(promises)
            if one.round == len(earlier) and k not in result.given_up
        ),
    )  # fmt: skip
    data = PatchData(*index, tuple(read_held_out(*index, held_out)), memory_limit)
    return _told(_assembled(given, _Parts(wanted, search, result), (*earlier, made), left_out, data))


def repatched(patch: Patch) -> Patch:
    """The smallest change from the prior that keeps the promises of the rounds of a patch, whatever map it has now."""
    begin = time.perf_counter()
    if patch.data is None:
        raise ValueError("this needs the embeddings, which a file of a patch does not hold")
    data = patch.data
    index = data.queries, data.documents
    promises = [from_record(record, *index, k) for k, one in enumerate(patch.rounds) for record in one.promises]
    memory = None if data.memory_limit is None else allowed_memory(data.memory_limit)
    given = _Task(
        *index, tuple(without_contradictions(*index, promises)), tuple(one.map for one in patch.rounds), patch.prior,
        patch.prior, patch.side, get_norm(patch.norm_kind), patch.margin, patch.C, Effort(memory=memory), begin,
    )  # fmt: skip
    parts = _Parts(*_searched(given, np.zeros(len(given.promises), dtype=bool)))
    return _told(_assembled(given, parts, patch.rounds, (), data))


def _told(found: Patch) -> Patch:
    """The patch, with a warning where something is not proved."""
    if found.status is Status.INACCURATE:
        warnings.warn(f"the patch is not proved: {found.certificate}", ConvergenceWarning, stacklevel=3)
    return found


@dataclass(frozen=True, eq=False)
class _Task:
    """Promises under the maps of their rounds, and where the change starts."""

    queries: VectorIndex
    documents: VectorIndex
    promises: tuple[Promise, ...]
    maps: tuple[FloatArray, ...]
    prior: FloatArray
    base: FloatArray
    side: Side
    norm: Norm
    margin: float
    C: float | None
    effort: Effort
    begin: float


def _start_of(
    index: tuple[VectorIndex, VectorIndex], prior: npt.ArrayLike | None, after: Patch | None
) -> tuple[FloatArray, FloatArray, tuple[PatchRound, ...]]:
    """W0, the map that is in force, and the rounds of earlier patches."""
    shape = (index[1].d, index[0].d)
    if after is not None:
        if not isinstance(after, Patch):
            raise TypeError(f"after must be a Patch, got {type(after).__name__}")
        if prior is not None:
            raise ValueError("prior is that of the first patch: leave it out with after=")
        if after.prior.shape != shape:
            raise ValueError(f"after patches maps of shape {after.prior.shape}, but these embeddings need {shape}")
        return after.prior, after.W, after.rounds
    if prior is None:
        if shape[0] != shape[1]:
            raise ValueError(
                f"queries and documents must have the same dimension, got {shape[1]} and {shape[0]}; pass prior=, "
                f"the map of shape {shape} whose scores are used now"
            )
        identity = np.eye(shape[0])
        return identity, identity, ()
    given = finite_array("prior", prior, shape)
    return given, given, ()


def _within_memory(effort: Effort, wanted: Wanted, shape: tuple[int, int]) -> Effort:
    """The limits with what the promises leave of the memory."""
    if effort.memory is None:
        return effort
    d, dz = shape
    taken = 8.0 * (len(wanted.promises) * (3 * d + 2 * dz) + 8 * d * dz + 16 * d)
    if effort.memory < taken:
        raise MemoryLimitError(
            f"memory_limit must be at least {taken / 1e6:.3g} MB for {len(wanted.promises)} promises and maps of "
            f"{d} x {dz}, beside the embeddings; got {effort.memory / 1e6:.3g} MB"
        )
    return replace(effort, memory=effort.memory - taken)


class _Reading:
    """Promises of earlier patches and of this one, under the map that is in force."""

    def __init__(
        self,
        queries: VectorIndex,
        documents: VectorIndex,
        prior: FloatArray,
        now: FloatArray,
        earlier: Sequence[PatchRound],
        effort: Effort,
    ) -> None:
        self.queries, self.documents, self.prior, self.now = queries, documents, prior, now
        self.earlier, self.effort = earlier, effort
        self.round = len(earlier)

    def just_above(self) -> float:
        """Twice the bound on the difference of two float32 inner products of the longest vectors."""
        size = float(np.linalg.norm(self.prior, 2))
        return 4.0 * float32_error(self.documents.d) * self.documents.longest * self.queries.longest * size

    def promises(
        self, failures: Any, golden: Any, margin: Margin, stale: Stale
    ) -> tuple[list[Promise], tuple[Outcome, ...], float]:
        """All promises, golden answers that were left out, and the margin as a number."""
        before = [
            from_record(record, self.queries, self.documents, k)
            for k, one in enumerate(self.earlier)
            for record in one.promises
        ]
        kept = read_golden(self.queries, self.documents, golden, 0.0, self.round)
        asked = self._margin(margin, kept)
        wrong = read_failures(self.queries, self.documents, failures, asked, self.round)
        without_contradictions(self.queries, self.documents, [*before, *wrong, *kept])
        reported = {one.query for one in wrong}
        kept = [replace(one, margin=asked) for one in kept]
        kept, repaired, left_out = self._stale(kept, stale, reported)
        everything = [*before, *wrong, *repaired, *kept]
        return without_contradictions(self.queries, self.documents, everything), left_out, asked

    def _looked(self, promises: Sequence[Promise]) -> Found:
        wanted = Wanted.of(promises, self.queries, self.documents, [self.now] * (self.round + 1))
        return scan(wanted, self.now, self.documents, whole=False, memory=self.effort.memory)

    def _margin(self, margin: Margin, kept: Sequence[Promise]) -> float:
        if isinstance(margin, str):
            require_choice("margin", margin, "just above", "calibrated")
            if margin == "just above":
                return self.just_above()
            first = [one for one in kept if one.rivals is None and not one.besides]
            if not first:
                raise ValueError("margin='calibrated' needs golden answers (query, right document) to measure")
            lead = self._looked(first).lead
            if not (lead > 0).any():
                raise ValueError("margin='calibrated' needs golden answers that are first now; none is")
            return float(np.quantile(lead[lead > 0], _QUANTILE))
        if not is_number(margin, 0.0):
            raise ValueError(f"margin must be a positive number, 'just above' or 'calibrated', got {margin!r}")
        return float(margin)

    def _stale(
        self, kept: list[Promise], stale: Stale, reported: set[int]
    ) -> tuple[list[Promise], list[Promise], tuple[Outcome, ...]]:
        """Golden promises that hold now, failures made of the others, and the others as they are left out."""
        if not kept:
            return kept, [], ()
        lead = self._looked(kept)
        tie = 0.5 * self.just_above()
        old = np.array([
            (one.rivals is not None or not one.besides) and lead.lead[k] < -tie and one.query not in reported
            for k, one in enumerate(kept)
        ])  # fmt: skip
        if not old.any():
            return kept, [], ()
        told = [self._behind(kept[k], int(lead.best[k]), float(lead.lead[k])) for k in np.flatnonzero(old)]
        if stale == "refuse":
            first = told[0]
            raise ValueError(
                f"golden: {len(told)} answers are not first now, the first is query {first.query!r}, which answers "
                f"{first.rival!r} instead of {first.document!r} (by {-first.lead:.3g}); report them as failures, or "
                "pass stale='repair' or stale='leave_out'"
            )
        queries = {kept[k].query for k in np.flatnonzero(old)}
        stay = [one for one in kept if one.query not in queries]
        if stale == "leave_out":
            return stay, [], tuple(told)
        firsts = {one.query: one for one in reversed(kept) if one.query in queries}
        repaired = [
            Promise("repair", one.query, one.document, None, (), one.margin, self.round) for one in firsts.values()
        ]
        return stay, repaired, ()

    def _behind(self, one: Promise, rival: int, lead: float) -> Outcome:
        return Outcome(
            "keep", self.queries.label(one.query), self.documents.label(one.document), self.documents.label(rival),
            lead, lead, 0.0, False, self.round, "not first before the patch",
        )  # fmt: skip


def _searched(given: _Task, new: BoolArray) -> tuple[Wanted, Search, SearchResult]:
    """Hard margins, after a soft margin that chooses what is given up where C is set."""
    wanted = Wanted.of(given.promises, given.queries, given.documents, given.maps)
    effort = _within_memory(given.effort, wanted, given.prior.shape)
    search = Search(wanted, given.base, (given.queries, given.documents), given.norm, effort)
    if given.C is None:
        return wanted, search, search.hard(search.first)
    droppable = wanted.repair & new
    given_up = search.give_up(search.first, given.C, droppable)
    result = search.hard(search.first, droppable)
    given_up |= result.given_up
    restored = search.restore(given.C, given_up, droppable)
    if restored:
        result = search.hard(search.first, droppable)
        given_up = {k: reason for k, reason in given_up.items() if k not in restored} | result.given_up
    return wanted, search, replace(result, given_up=given_up)


class _Parts(NamedTuple):
    """What a search leaves."""

    wanted: Wanted
    search: Search
    result: SearchResult


def _assembled(
    given: _Task, parts: _Parts, rounds: tuple[PatchRound, ...], left_out: tuple[Outcome, ...], data: PatchData
) -> Patch:
    """The result in ids."""
    result, solution = parts.result, parts.result.solution
    lam = np.zeros(len(result.promise))
    if solution is not None and solution.certificate.farkas is None and len(solution.multipliers) == len(lam):
        lam = np.maximum(solution.multipliers, 0.0)
    outcomes = _outcomes(parts, data, lam)
    status, certificate = _certificate(parts, data, time.perf_counter() - given.begin)
    return Patch(
        status=status, side=given.side, norm_kind=given.norm.name, margin=given.margin, C=given.C, prior=given.prior,
        base=given.base, map=None if result.W is None else np.array(result.W), rounds=rounds,
        outcomes=outcomes, left_out=left_out, driving=_driving(parts, data, lam), conflict=_conflict(parts, data),
        certificate=certificate, data=data,
    )  # fmt: skip


def _outcomes(parts: _Parts, data: PatchData, lam: FloatArray) -> tuple[Outcome, ...]:
    wanted, result = parts.wanted, parts.result
    weight = np.bincount(result.promise, lam, minlength=len(wanted.promises))
    lead, rival = result.found.lead, result.found.best
    if result.given_up and result.W is not None:  # they are not in the last scan
        everything = scan(wanted, result.W, data.documents, whole=False, memory=parts.search.effort.memory)
        lead, rival = everything.lead, everything.best
    wrong = set(result.found.violated.promise.tolist()) | set(result.wrong.promise.tolist())
    found = []
    for k, one in enumerate(wanted.promises):
        reason = result.given_up.get(k, "")
        served = result.W is not None and not reason and k not in wrong
        found.append(
            Outcome(
                one.kind, data.queries.label(one.query), data.documents.label(one.document),
                None if rival[k] < 0 else data.documents.label(int(rival[k])),
                float("nan") if result.W is None else float(lead[k]), float(parts.search.first.lead[k]),
                float(weight[k]), served, one.round, reason or ("" if served or result.W is None else "not proved"),
            )
        )  # fmt: skip
    return tuple(found)


def _named(parts: _Parts, data: PatchData, row: int, multiplier: float, lead: float) -> Demand:
    one = parts.wanted.promises[int(parts.result.promise[row])]
    rival = int(parts.result.rival[row])
    same = bool((data.documents.rows([one.document]) == data.documents.rows([rival])).all())
    return Demand(
        one.kind, data.queries.label(one.query), data.documents.label(one.document), data.documents.label(rival),
        multiplier, lead, one.round, same,
    )  # fmt: skip


def _driving(parts: _Parts, data: PatchData, lam: FloatArray) -> tuple[Demand, ...]:
    """The demands of the largest multipliers, with the leads that they end with."""
    result = parts.result
    if result.W is None or not lam.any():
        return ()
    top = [int(k) for k in np.argsort(-lam, kind="stable")[:_NAMED] if lam[k] > _DRIVES * lam.max()]
    index = np.array(top, dtype=np.int64)
    p, r = result.promise[index], result.rival[index]
    a = parts.wanted.anchors[p] - data.documents.rows(r)
    lead = np.vecdot(a, parts.wanted.queries[p] @ result.W.T)
    return tuple(_named(parts, data, k, float(lam[k]), float(value)) for k, value in zip(top, lead, strict=True))


def _conflict(parts: _Parts, data: PatchData) -> tuple[Demand, ...]:
    solution = parts.result.solution
    farkas = None if solution is None else solution.certificate.farkas
    if farkas is None:
        return ()
    order = sorted((int(k) for k in farkas.rows), key=lambda k: -abs(float(farkas.multipliers[k])))
    return tuple(_named(parts, data, k, float(farkas.multipliers[k]), float("nan")) for k in order)


def _certificate(parts: _Parts, data: PatchData, seconds: float) -> tuple[Status, PatchCertificate]:
    result, solution = parts.result, parts.result.solution
    certificate = None if solution is None else solution.certificate
    farkas = None if certificate is None else certificate.farkas
    proof = "" if farkas is None else farkas.proof
    unproved = len(result.wrong.promise) + len(result.found.violated.promise)
    if farkas is not None:
        status = Status.INFEASIBLE
    elif result.W is None:
        status = Status.FAILED
    else:
        optimal = solution is None or solution.status is Status.OPTIMAL
        status = Status.OPTIMAL if optimal and result.proved else Status.INACCURATE
    return status, PatchCertificate(
        gap=0.0 if certificate is None else float(certificate.gap),
        lower_bound=0.0 if certificate is None else float(certificate.lower_bound),
        norm=0.0 if certificate is None else float(certificate.norm),
        violation=float(result.found.violation), tolerance=MISSED,
        promises=len(parts.wanted.promises) - len(result.given_up), documents=len(data.documents),
        rows=len(result.promise), scans=result.rounds, compared=result.found.compared, unproved=unproved,
        solver="" if solution is None else solution.solver, infeasible_by=proof, seconds=seconds,
    )  # fmt: skip
