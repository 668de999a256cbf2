"""Cases of patches: every document by brute force, cvxpy in the same norm, and files read again."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import cvxpy as cp
import numpy as np

import attsvm
from attsvm.solvers import get_norm
from attsvm.solvers.arrays import FloatArray
from attsvm.validation.matrix import EXPRESSIONS
from attsvm.validation.matrix_calls.call_cases import GIVEN, Call, Row, case, close

Pairs = list[tuple[int, int]]


def _retriever(call: Call) -> tuple[FloatArray, FloatArray, FloatArray, Pairs, Pairs]:
    """Queries, documents, the map of now, failures and golden answers, in rows."""
    documents, d, queries = call.pick((12, 3, 6), (20, 4, 10), (40, 5, 16))
    X = call.rng.standard_normal((documents, d))
    X /= np.linalg.norm(X, axis=1, keepdims=True)
    Z = X[:queries] + 0.3 * call.rng.standard_normal((queries, d))
    prior = np.eye(d)
    if call.row.get("prior") is not None:
        prior = prior + 0.1 * call.rng.standard_normal((d, d))
    first = (Z @ prior.T @ X.T).argmax(axis=1)
    failures = [(q, int((first[q] + 1) % documents)) for q in (0, 1)]
    return Z, X, prior, failures, [(q, int(first[q])) for q in range(2, queries)]


def _refused(row: Row) -> bool:
    nothing = row["failures"] is None and row["golden"] is None and row["after"] is None
    uncalibrated = row["margin"] == "calibrated" and row["golden"] is None
    return nothing or uncalibrated or (row["after"] is not None and row["prior"] is not None)


def _rows(Z: FloatArray, X: FloatArray, W: FloatArray, wanted: Pairs, kept: Pairs, margin: float) -> Any:
    """Differences, queries and right-hand sides of all promises against all documents."""
    for repair, pairs in ((True, wanted), (False, kept)):
        for q, doc in pairs:
            apart = X[doc] - np.delete(X, doc, axis=0)
            before = apart @ W @ Z[q]
            yield apart, Z[q], np.full(len(apart), margin) if repair else np.minimum(margin, before), before


@case(
    "attsvm.patch",
    words={"margin": ("just above", "calibrated", 0.01), "encoder": (None, GIVEN)},
    skip={"name": "a title", "progress": "a function that is told", "query_ids": "with document_ids",
          "max_rounds": "a limit", "stale": "golden answers are first here", "tolerance": "a limit"},
    refused=_refused, work=400_000,
)  # fmt: skip
def _patch(call: Call) -> Iterator[str]:
    """The promises against all documents, and the size of the change against cvxpy."""
    Z, X, prior, wrong, right = _retriever(call)
    earlier = right[:2] if call.given("after") else []
    wanted = wrong if call.given("failures") else []
    kept = right[len(earlier) :] if call.given("golden") else []
    found = _called(call, Z, X, prior, earlier, wanted, kept)
    old = list(_rows(Z, X, prior, [], earlier, 1e-3))
    smallest = _smallest([*_rows(Z, X, prior, wanted, kept, found.margin), *old], prior, call["norm"])
    if found.status == "infeasible":
        yield from [] if smallest is None else [f"is called infeasible, but cvxpy finds a change of size {smallest}"]
        return
    if found.status != "optimal":
        yield f"ended {found.status}: {found.certificate}"
        return
    gone = {str(one.query).lstrip("q") for one in found.unserved}
    served = [(q, doc) for q, doc in wanted if str(q) not in gone]
    yield from _broken(found, [*_rows(Z, X, prior, served, kept, found.margin), *old])
    scores = (X @ found.document_map.T) @ (Z @ found.query_map.T).T
    yield from close("scores of the maps", scores, X @ found.W @ Z.T, 1e-10)
    if call["C"] is None and smallest is None:
        yield "is called optimal, but cvxpy finds no change"
    elif call["C"] is None:
        yield from close("size of the change", found.norm, smallest, 1e-5)


def _called(
    call: Call, Z: FloatArray, X: FloatArray, prior: FloatArray, earlier: Pairs, wanted: Pairs, kept: Pairs
) -> Any:
    """The call with the arguments of its row: ids or rows, vectors or texts."""
    texts, vectors = ([f"q{k}" for k in range(len(Z))], [f"d{k}" for k in range(len(X))]), {"q": Z, "d": X}
    named = call.given("document_ids")
    ids: dict[str, Any] = {"query_ids": texts[0], "document_ids": texts[1]} if named else {}

    def told(pairs: Pairs) -> list[tuple[Any, Any]] | None:
        return ([(f"q{q}", f"d{doc}") for q, doc in pairs] if named else list(pairs)) or None

    given: tuple[Any, Any] = (texts[0], texts[1]) if call.given("encoder") else (Z, X)
    before = attsvm.patch(Z, X, None, told(earlier), margin=1e-3, **ids) if earlier else None
    return call.run(
        attsvm.patch, *given, told(wanted), told(kept), after=before, prior=prior if call["prior"] else None,
        encoder=(lambda names: vectors[names[0][0]]) if call.given("encoder") else None,
        held_out=told([(2, 0), (3, 1)]) if call.given("held_out") else None, **ids,
        **call.options("side", "norm", "margin", "start", C=50.0, time_limit=60.0, memory_limit=1e8),
    )  # fmt: skip


def _broken(found: Any, rows: list[Any]) -> Iterator[str]:
    for apart, z, asked, before in rows:
        lead = apart @ found.W @ z
        if (asked - lead).max() > 1e-7:
            yield f"a promise is missed by {(asked - lead).max():.1e}"
        if (lead[(before > 0) | (asked > before)] <= 0).any():
            yield "a promised document is not first"


def _smallest(rows: list[Any], prior: FloatArray, norm: str) -> float | None:
    """The size of the smallest change over all rows by cvxpy; None if no change satisfies them."""
    W = cp.Variable(prior.shape)
    limits = [apart @ W @ z >= asked for apart, z, asked, _ in rows]
    program = cp.Problem(cp.Minimize(EXPRESSIONS[norm](cp, W - prior)), limits)
    program.solve(solver="CLARABEL")
    if program.status not in ("optimal", "optimal_inaccurate"):
        return None
    return float(get_norm(norm)(np.asarray(W.value) - prior))


@case("attsvm.load_patch", words={"found": (True, False)}, work=40_000)
def _load_patch(call: Call) -> Iterator[str]:
    Z, X, _, wrong, right = _retriever(call)
    if not call["found"]:  # the same query with two answers
        Z = np.vstack([Z, Z[:1]])
        wrong = [(0, 0), (len(Z) - 1, 1)]
        right = []
    made = attsvm.patch(Z, X, wrong[: None if not call["found"] else 1], right[:3])
    read = call.run(attsvm.load_patch, made.save(call.folder / "patch.npz"))
    if read.record() != made.record() and call["found"]:
        yield "the record differs"
    if str(read.status) != str(made.status) or [str(one) for one in read.conflict] != [
        str(one) for one in made.conflict
    ]:
        yield "status or contradiction differ"
    if made.map is not None:
        yield from close("W", read.W, made.W, 0.0)
