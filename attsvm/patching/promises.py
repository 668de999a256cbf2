"""What a patch promises: failures to repair and golden answers to keep, read from ids and kept as rows.

A promise is about one query and one document: it leads every other document of the index (but some), or the rivals
that are listed. A ranking to keep becomes one promise per neighbouring pair and one for its last document.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from attsvm.patching.embedding_index import VectorIndex

Kind = Literal["repair", "keep"]


@dataclass(frozen=True)
class Promise:
    """One document leads others for one query.

    Attributes
    ----------
    kind : {"repair", "keep"}
        A failure, whose right document must lead by the margin, or an answer that must stay.
    query, document : int
        Rows of the query and of the document that leads.
    rivals : tuple of int or None
        The documents that it leads; None for all of the index but ``besides``.
    besides : tuple of int
        Documents that are not its rivals: those above it in a ranking.
    margin : float
        By how much it must lead, at most; less where a golden answer leads by less now.
    round : int
        Which patch of a sequence made the promise.
    """

    kind: Kind
    query: int
    document: int
    rivals: tuple[int, ...] | None = None
    besides: tuple[int, ...] = ()
    margin: float = 0.0
    round: int = 0


def _entries(argument: str, given: Any) -> list[tuple[Any, ...]]:
    """The entries as tuples; a mapping from queries to documents is read as pairs."""
    if given is None:
        return []
    if isinstance(given, dict):
        return [(query, document) for query, document in given.items()]
    if isinstance(given, str) or not isinstance(given, Iterable):
        raise TypeError(f"{argument} must be a sequence of (query, document) pairs, got {type(given).__name__}")
    found = []
    for k, entry in enumerate(given):
        if isinstance(entry, str) or not isinstance(entry, Iterable):
            raise ValueError(f"{argument}[{k}] must be a pair (query, document), got {entry!r}")
        found.append(tuple(entry))
    return found


def _several(value: Any) -> list[Any] | None:
    """The members of a list of documents; None for one document."""
    if isinstance(value, str) or not (isinstance(value, Sequence) or hasattr(value, "tolist")):
        return None
    found = value.tolist() if hasattr(value, "tolist") else list(value)
    return found if isinstance(found, list) else None


def read_failures(queries: VectorIndex, documents: VectorIndex, given: Any, margin: float, round: int) -> list[Promise]:
    """Failures (query, right document) or (query, right document, rivals); the same one given twice counts once."""
    found: dict[int, tuple[Promise, int]] = {}
    for k, entry in enumerate(_entries("failures", given)):
        where = f"failures[{k}]"
        if len(entry) not in (2, 3):
            raise ValueError(
                f"{where} must be (query, right document) or (query, right document, rivals), got {entry!r}"
            )
        query, right = queries.place(entry[0], where), documents.place(entry[1], where)
        rivals = None
        if len(entry) == 3 and entry[2] is not None and len(listed := _several(entry[2]) or [entry[2]]):
            rivals = tuple(dict.fromkeys(documents.place(one, where) for one in listed))
            if right in rivals:
                raise ValueError(f"{where}: the right document {entry[1]!r} is among its own rivals")
        promise = Promise("repair", query, right, rivals, (), margin, round)
        before, place = found.setdefault(query, (promise, k))
        if before.document != right:
            raise ValueError(
                f"failures[{place}] and {where} want different first answers of query {entry[0]!r}: "
                f"{documents.label(before.document)!r} and {entry[1]!r}"
            )
        if before.rivals is not None and promise != before:  # all rivals, or those of both
            both = None if rivals is None else tuple(dict.fromkeys((*before.rivals, *rivals)))
            found[query] = Promise("repair", query, right, both, (), margin, round), place
    return [promise for promise, _ in found.values()]


def read_golden(queries: VectorIndex, documents: VectorIndex, given: Any, margin: float, round: int) -> list[Promise]:
    """Golden answers (query, right document) or rankings (query, [first, second, ...])."""
    found: dict[int, tuple[tuple[int, ...], int]] = {}
    for k, entry in enumerate(_entries("golden", given)):
        where = f"golden[{k}]"
        if len(entry) != 2:
            raise ValueError(f"{where} must be (query, right document) or (query, [first, second, ...]), got {entry!r}")
        query, listed = queries.place(entry[0], where), _several(entry[1])
        ranking = tuple(documents.place(one, where) for one in ([entry[1]] if listed is None else listed))
        if not ranking or len(set(ranking)) < len(ranking):
            raise ValueError(f"{where} must list different documents, at least one, got {entry[1]!r}")
        before, place = found.setdefault(query, (ranking, k))
        shorter, longer = sorted((before, ranking), key=len)
        if longer[: len(shorter)] != shorter:
            raise ValueError(
                f"golden[{place}] and {where} keep different answers of query {entry[0]!r}: "
                f"{_told(documents, before)} and {_told(documents, ranking)}"
            )
        found[query] = longer, place
    return [one for query, (ranking, _) in found.items() for one in _of_ranking(query, ranking, margin, round)]


def _of_ranking(query: int, ranking: tuple[int, ...], margin: float, round: int) -> Iterable[Promise]:
    for k, below in enumerate(ranking[1:]):
        yield Promise("keep", query, ranking[k], (below,), ranking[:k], margin, round)
    yield Promise("keep", query, ranking[-1], None, ranking[:-1], margin, round)


def _told(documents: VectorIndex, ranking: tuple[int, ...]) -> str:
    return ", ".join(repr(documents.label(one)) for one in ranking)


def read_held_out(queries: VectorIndex, documents: VectorIndex, given: Any) -> list[tuple[int, int]]:
    """Pairs (query, right document) that the patch does not see."""
    pairs = []
    for k, entry in enumerate(_entries("held_out", given)):
        if len(entry) != 2:
            raise ValueError(f"held_out[{k}] must be (query, right document), got {entry!r}")
        where = f"held_out[{k}]"
        pairs.append((queries.place(entry[0], where), documents.place(entry[1], where)))
    return pairs


def without_contradictions(queries: VectorIndex, documents: VectorIndex, promises: Sequence[Promise]) -> list[Promise]:
    """The promises without golden ones that a failure repeats; a failure with another golden answer is refused.

    A failure of a later round replaces nothing: an earlier promise about the same query and another document stays in
    force, so it is refused as well.
    """
    first: dict[int, Promise] = {}
    for one in promises:
        if one.kind == "repair":
            before = first.setdefault(one.query, one)
            if before.document != one.document:
                raise ValueError(
                    f"query {queries.label(one.query)!r} was promised the answer {documents.label(before.document)!r} "
                    f"by an earlier patch, but is reported with {documents.label(one.document)!r}; undo that first"
                )
    kept, seen = [], set()
    for one in promises:
        if one.kind == "keep" and one.query in first and not one.besides:
            wanted = first[one.query].document
            if one.document != wanted:
                raise ValueError(
                    f"query {queries.label(one.query)!r} is both a failure, with the right document "
                    f"{documents.label(wanted)!r}, and golden, with {documents.label(one.document)!r}; remove one"
                )
            if one.rivals is None:  # the failure promises the same
                continue
        key = (one.query, one.document, one.rivals, one.besides)
        if key in seen:
            continue
        seen.add(key)
        kept.append(one)
    return kept


def as_record(promise: Promise, queries: VectorIndex, documents: VectorIndex) -> dict[str, Any]:
    """A promise with ids instead of rows, for a file and for the next patch of a sequence."""
    rivals = promise.rivals
    return {
        "kind": promise.kind,
        "query": queries.label(promise.query),
        "document": documents.label(promise.document),
        "rivals": None if rivals is None else [documents.label(one) for one in rivals],
        "besides": [documents.label(one) for one in promise.besides],
        "margin": promise.margin,
    }


def from_record(record: Any, queries: VectorIndex, documents: VectorIndex, round: int) -> Promise:
    """The promise of an earlier patch among the queries and documents of now."""
    where = f"promise of patch {round} (after=)"
    rivals = record["rivals"]
    return Promise(
        record["kind"], queries.place(record["query"], where), documents.place(record["document"], where),
        None if rivals is None else tuple(documents.place(one, where) for one in rivals),
        tuple(documents.place(one, where) for one in record["besides"]), float(record["margin"]), round,
    )  # fmt: skip
