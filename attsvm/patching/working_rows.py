"""The smallest change that satisfies a growing set of rows, until no document of the index violates a promise.

Each round solves the rows of the set, scans the whole index under the changed map, and adds the worst rivals of every
violated promise. Rows of the set bound the size of the change from below, whatever else is promised; the last scan
proves that every promise holds: together they certify the smallest change over all documents.

Failures that contradict each other or golden answers may be given up (C): a soft margin, in which only failures have
slack, chooses which, and the smallest change for the rest is then computed with hard margins. The rows of golden
answers are multiplied by a power of two in the soft problem: a slack costs as many times more there, so that none is
left at the optimum; the factor grows until that is so.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np

from attsvm.patching.embedding_index import Found, Leads, VectorIndex, Wanted, decided, leads, scan
from attsvm.solvers import MarginProblem, MarginSolution, Norm, certify, get_norm, solve
from attsvm.solvers.arrays import BoolArray, FloatArray, IntArray
from attsvm.solvers.correction import with_rows_met

# Rivals of each promise that join after a round.
_JOIN = 4
# Share of |difference| |W z| by which a promise may be missed at the end.
MISSED = 1e-9
# By how much slacks of golden answers cost more at first, and by how much more where that leaves some; tries.
_DEARER, _TRIES = 2.0**4, 4
# Promises of a contradiction up to which fewer ones are looked for.
_MOST_FILTERED = 80
# Promises that a failure is said to contradict by name.
_NAMED = 2
# Promises that are tried again after they were given up.
_MOST_RESTORED = 20
# Share of its margin by which a failure is missed that the soft margin gives up.
_GIVEN_UP = 0.5


@dataclass(frozen=True)
class Effort:
    """Limits of a search.

    Attributes
    ----------
    rounds : int
        Scans of the index, at most.
    deadline : float
        Of `time.perf_counter`, infinite without one.
    memory : float or None
        Bytes that blocks of scores may take.
    tolerance : float or None
        Relative gap of the certificate; the solver's own by default.
    tell : callable or None
        Called as ``tell(what, done, total)``.
    """

    rounds: int = 60
    deadline: float = np.inf
    memory: float | None = None
    tolerance: float | None = None
    tell: Callable[[str, int, int], object] | None = None


@dataclass(frozen=True, eq=False)
class SearchResult:
    """The change that was found, and what is known about it.

    Attributes
    ----------
    solution : MarginSolution or None
        Of the rows of the set; None when nothing was violated to begin with.
    W : ndarray or None
        The changed map; None without one.
    found : Found
        The last scan.
    proved : bool
        The last scan covers every document and no promise is violated.
    wrong : Leads
        Pairs whose order exact arithmetic contradicts, or could not settle.
    promise, rival : ndarray of int
        The rows of the set.
    rounds : int
        Scans.
    given_up : dict
        Promises that C gave up, each with the reason.
    """

    solution: MarginSolution | None
    W: FloatArray | None
    found: Found
    proved: bool
    wrong: Leads
    promise: IntArray
    rival: IntArray
    rounds: int
    given_up: dict[int, str] = field(default_factory=dict)


class Search:
    """The set of rows and the map so far; one instance per patch."""

    def __init__(
        self,
        wanted: Wanted,
        base: FloatArray,
        index: tuple[VectorIndex, VectorIndex],
        norm: Norm,
        effort: Effort,
    ) -> None:
        self.wanted, self.base, self.norm, self.effort = wanted, base, norm, effort
        self.queries, self.documents = index
        self.promise, self.rival = _first_rows(wanted)
        self.multipliers = np.zeros(len(self.promise))
        self.scans = 0
        lengths = np.sqrt(np.vecdot(wanted.queries, wanted.queries))
        # Slacks are counted in scores of vectors of length 1: C means the same at every scale of the embeddings.
        self.unit = 2.0 ** float(np.round(np.log2(self.documents.longest * lengths.max(initial=0.0))))
        self.active = np.ones(len(wanted.promises), dtype=bool)
        self.first = self.look(base)

    # -- pieces ----------------------------------------------------------------------------------------

    def look(self, W: FloatArray, whole: bool = False) -> Found:
        """Scan the index under W for the promises that are not given up."""
        self.scans += 1
        if self.effort.tell is not None:
            self.effort.tell("scan of the index", self.scans, self.effort.rounds)
        part = self.wanted.without(~self.active)
        found = scan(part, W, self.documents, tolerance=MISSED, whole=whole, memory=self.effort.memory)
        return _renumbered(found, np.flatnonzero(self.active), len(self.active))

    @property
    def spent(self) -> bool:
        """Whether rounds or time are used up."""
        return self.scans >= self.effort.rounds or time.perf_counter() > self.effort.deadline

    def admit(self, violated: Leads, beyond: FloatArray) -> int:
        """Add the worst rivals of every violated promise; how many are new."""
        order = np.lexsort((-beyond, violated.promise))
        promise, rival = violated.promise[order], violated.rival[order]
        place = np.arange(len(order)) - np.searchsorted(promise, promise)
        few = place < _JOIN
        n = len(self.documents)
        fresh = ~np.isin(promise * n + rival, self.promise * n + self.rival) & few
        promise, rival = promise[fresh], rival[fresh]
        everything = np.concatenate([self.promise, promise]), np.concatenate([self.rival, rival])
        lam = np.concatenate([self.multipliers, np.zeros(len(promise))])
        by_promise = np.lexsort((everything[1], everything[0]))
        self.promise, self.rival, self.multipliers = (
            everything[0][by_promise], everything[1][by_promise], lam[by_promise],
        )  # fmt: skip
        return len(promise)

    def rows(self, W: FloatArray) -> tuple[IntArray, Leads]:
        """The rows of the set with a finite right-hand side that are not given up, and their leads under W."""
        pairs = leads(self.wanted, self.wanted.queries @ W.T, W, self.documents, self.promise, self.rival)
        index = np.flatnonzero(self.active[self.promise] & np.isfinite(pairs.asked))
        return index, pairs.where(index)

    def problem(self, pairs: Leads, weight: FloatArray | None = None) -> MarginProblem:
        """The margin problem of these rows around the map as it is, each row times its weight."""
        used, owner = np.unique(pairs.promise, return_inverse=True)
        a = self.wanted.anchors[pairs.promise] - self.documents.rows(pairs.rival)
        sides = pairs.asked
        if weight is not None:
            a, sides = a * weight[:, None], sides * weight
        return MarginProblem(a, self.wanted.queries[used], owner, sides).around(self.base)

    def solved(self, problem: MarginProblem, known: FloatArray | None, norm: Norm | None = None) -> MarginSolution:
        """Solve within the limits, in the norm of the search or in another one."""
        left = self.effort.deadline - time.perf_counter()
        limit = None if left == np.inf else max(left, 0.1)
        warm = known if known is not None and known.any() and self.norm.name == "frobenius" else None
        return solve(problem, norm or self.norm, tolerance=self.effort.tolerance, warm_start=warm, time_limit=limit)

    # -- hard margins ----------------------------------------------------------------------------------

    def hard(self, found: Found, droppable: BoolArray | None = None) -> SearchResult:
        """Rounds of hard margins from a first scan; with ``droppable`` contradictions give up promises of these."""
        W, solution, given_up = self.base, None, dict[int, str]()
        due = len(found.violated.promise) > 0  # listed rivals are in the set already
        while True:
            violated = found.violated.where(self.active[found.violated.promise])
            if len(violated.promise) and not self.spent and self.admit(violated, violated.violation):
                due = True
            if not due:
                if found.complete or self.spent:
                    return self._result(*self._met(solution, violated, W, found), given_up)
                found = self.look(W, whole=True)
                continue
            due = False
            index, pairs = self.rows(W)
            solution = self.solved(self.problem(pairs), self.multipliers[index]) if len(index) else None
            if solution is None:
                W = self.base
            elif solution.certificate.farkas is not None:
                gone = None if droppable is None else self._weakest(solution, pairs, droppable)
                if gone is None:
                    solution, pairs = self._fewer(solution, pairs)
                    return self._result(solution, None, found, given_up, pairs)
                given_up[gone] = self._contradiction(solution, pairs, gone)
                self.active[gone], due = False, True
                self.multipliers[:] = 0.0
                continue
            elif not solution.status.has_solution:
                return self._result(solution, None, found, given_up, pairs)
            else:
                solution = with_rows_met(solution)
                self.multipliers[:] = 0.0
                self.multipliers[index] = solution.multipliers
                W = self.base + solution.W
            found = self.look(W)

    def _met(
        self, solution: MarginSolution | None, violated: Leads, W: FloatArray, found: Found
    ) -> tuple[MarginSolution | None, FloatArray, Found]:
        """The end of the rounds; where rows of the set are still violated, the least change that meets them is added.

        Where W z is short, a scan allows less than the solver does.
        """
        if solution is None or not len(violated.promise) or time.perf_counter() > self.effort.deadline:
            return solution, W, found
        problem = solution.problem
        short = problem.rhs - problem.margins(solution.W)
        size = float(short.max(initial=0.0))
        if not size > 0.0:
            return solution, W, found
        change = self.solved(MarginProblem.from_rows(problem.rows, short / size), None, get_norm("frobenius"))
        if not change.status.has_solution:
            return solution, W, found
        moved = solution.W + size * change.W
        certificate = certify(problem, moved, solution.multipliers, self.norm)
        if certificate.proved > solution.tolerance:
            return solution, W, found
        W = self.base + moved
        return replace(solution, certificate=certificate, _W=moved), W, self.look(W, whole=True)

    def _weakest(self, solution: MarginSolution, pairs: Leads, droppable: BoolArray) -> int | None:
        """The promise to give up: the one of the largest weight in the contradiction."""
        farkas = solution.certificate.farkas
        assert farkas is not None
        weight = np.bincount(
            pairs.promise[farkas.rows], np.abs(farkas.multipliers[farkas.rows]), minlength=len(droppable)
        )
        weight[~droppable] = 0.0
        return int(weight.argmax()) if weight.any() else None

    def _contradiction(self, solution: MarginSolution, pairs: Leads, gone: int) -> str:
        """Which other promises the rows of the proof are about, those of the largest weights by name."""
        farkas = solution.certificate.farkas
        assert farkas is not None
        weight = np.bincount(pairs.promise[farkas.rows], np.abs(farkas.multipliers[farkas.rows]))
        others = [int(k) for k in np.argsort(-weight, kind="stable") if weight[k] > 0 and k != gone]
        if not others:
            return f"cannot hold whatever else is promised, proved by {farkas.proof}"
        named = [
            f"{self.documents.label(one.document)!r} first for query {self.queries.label(one.query)!r}"
            for one in (self.wanted.promises[k] for k in others[:_NAMED])
        ]
        more = f" and {len(others) - _NAMED} more" if len(others) > _NAMED else ""
        return f"contradicts {', '.join(named)}{more}, proved by {farkas.proof}"

    def _fewer(self, solution: MarginSolution, pairs: Leads) -> tuple[MarginSolution, Leads]:
        """A contradiction of fewer promises: each is left out in turn, if the others contradict each other as well."""
        farkas = solution.certificate.farkas
        assert farkas is not None
        rows, weights = farkas.rows, np.abs(farkas.multipliers[farkas.rows])
        weight = np.bincount(pairs.promise[rows], weights)
        order = [int(k) for k in np.argsort(weight, kind="stable") if weight[k] > 0]
        if len(order) > _MOST_FILTERED:
            return solution, pairs
        pairs = pairs.where(rows)
        solution = self.solved(self.problem(pairs), None)
        for promise in order:
            rest = pairs.where(pairs.promise != promise)
            if not 0 < len(rest.promise) < len(pairs.promise) or time.perf_counter() > self.effort.deadline:
                continue
            without = self.solved(self.problem(rest), None)
            proof = without.certificate.farkas
            if proof is not None:
                pairs = rest.where(proof.rows)
                solution = self.solved(self.problem(pairs), None)
        return solution, pairs

    def _result(
        self,
        solution: MarginSolution | None,
        W: FloatArray | None,
        found: Found,
        given_up: dict[int, str],
        pairs: Leads | None = None,
    ) -> SearchResult:
        nothing = found.undecided.where(np.zeros(len(found.undecided.promise), dtype=bool))
        wrong = nothing if W is None else decided(found.undecided, self.wanted, W, self.documents)
        proved = W is not None and found.complete and not len(found.violated.promise) and not len(wrong.promise)
        if pairs is None:
            _, pairs = self.rows(self.base)
        return SearchResult(solution, W, found, proved, wrong, pairs.promise, pairs.rival, self.scans, given_up)

    # -- soft margins for failures ---------------------------------------------------------------------

    def give_up(self, found: Found, C: float, droppable: BoolArray) -> dict[int, str]:
        """Which promises a soft margin gives up: those that it leaves missed by more than half of their margin."""
        given_up = self._copies(found, droppable)
        W, dearer = self.base, _DEARER
        found = self.look(W) if given_up else found
        for _ in range(self.effort.rounds):
            beyond = self._beyond_slack(found.violated, W, droppable)
            joins = beyond > MISSED * found.violated.scale
            if not joins.any() or self.spent or not self.admit(found.violated.where(joins), beyond[joins]):
                break
            W, dearer = self._soft_solve(C, dearer, droppable)
            found = self.look(W)
        _, pairs = self.rows(W)
        missed = np.zeros(len(self.active))
        np.maximum.at(missed, pairs.promise, pairs.violation)
        for k in np.flatnonzero(self.active & droppable & (missed > _GIVEN_UP * self.wanted.margin)):
            given_up[int(k)] = f"needs more weight than C = {C:g}: a soft margin leaves it {missed[k]:.3g} short"
            self.active[k] = False
        self.multipliers = np.zeros(len(self.promise))
        return given_up

    def restore(self, C: float, given_up: dict[int, str], droppable: BoolArray) -> list[int]:
        """Promises that were given up but can be kept beside the others with no weight above C, nearest ones first.

        A soft margin splits what two contradicting failures lack between them; one of the two can be served. What the
        others contradict is written to their reasons.
        """
        _, pairs = self.rows(self.base)
        apart = np.zeros(len(self.active))
        np.maximum.at(apart, pairs.promise, pairs.violation)
        copies = {k for k, reason in given_up.items() if "embedding" in reason}
        kept = []
        for k in sorted(set(given_up) - copies, key=lambda k: float(apart[k]))[:_MOST_RESTORED]:
            if time.perf_counter() > self.effort.deadline:
                break
            self.active[k] = True
            _, pairs = self.rows(self.base)
            solution = self.solved(self.problem(pairs), None)
            if solution.status.has_solution and self._heaviest(solution, pairs, droppable) <= C:
                kept.append(k)
                continue
            self.active[k] = False
            if solution.certificate.farkas is not None:
                given_up[k] = self._contradiction(solution, pairs, k)
        return kept

    def _heaviest(self, solution: MarginSolution, pairs: Leads, droppable: BoolArray) -> float:
        """The largest sum of the multipliers of a failure, in the scale in which C bounds it."""
        scale = self.unit * (solution.norm if self.norm.name == "frobenius" else 1.0)
        loads = np.bincount(pairs.promise, np.maximum(solution.multipliers, 0.0), minlength=len(droppable))
        return float(scale * loads[droppable].max(initial=0.0))

    def _copies(self, found: Found, droppable: BoolArray) -> dict[int, str]:
        """Failures that want a document above its exact copy, whatever the map."""
        given_up = {}
        pairs = found.violated.where((found.violated.scale == 0.0) & droppable[found.violated.promise])
        for promise, rival in zip(pairs.promise.tolist(), pairs.rival.tolist(), strict=True):
            given_up[promise] = f"document {self.documents.label(rival)!r} has exactly the same embedding"
            self.active[promise] = False
        return given_up

    def _beyond_slack(self, violated: Leads, W: FloatArray, droppable: BoolArray) -> FloatArray:
        """Violations beyond the slack that the promise has already in the set."""
        _, pairs = self.rows(W)
        slack = np.zeros(len(self.active))
        soft = droppable[pairs.promise]
        np.maximum.at(slack, pairs.promise[soft], pairs.violation[soft])
        return np.asarray(violated.violation - slack[violated.promise])

    def _soft_solve(self, C: float, dearer: float, droppable: BoolArray) -> tuple[FloatArray, float]:
        """The map of the soft margin of the set, and the factor at which golden answers have no slack."""
        for _ in range(_TRIES):
            _, pairs = self.rows(self.base)
            weight = np.where(droppable[pairs.promise], 1.0, dearer) / self.unit
            solution = self.solved(self.problem(pairs, weight).soft(C), None)
            if not solution.status.has_solution:
                return self.base, dearer
            W = self.base + solution.W
            _, after = self.rows(W)
            hard = ~droppable[after.promise]
            if not (after.violation > 1e-6 * after.scale)[hard].any():
                break
            dearer *= _DEARER
        return W, dearer


def _first_rows(wanted: Wanted) -> tuple[IntArray, IntArray]:
    """Rows to begin with: listed rivals, and the right documents of failures whose queries have the same embedding."""
    promise, rival = wanted.listed()
    same: dict[bytes, list[int]] = {}
    for k in np.flatnonzero(wanted.open):
        same.setdefault(wanted.queries[k].tobytes(), []).append(int(k))
    pairs = [
        (k, int(wanted.document[other]))
        for group in same.values()
        if wanted.repair[group].any()
        for k in group
        for other in group
        if wanted.document[other] != wanted.document[k] and wanted.document[other] not in wanted.promises[k].besides
    ]
    more = np.array(sorted(set(pairs)), dtype=np.int64).reshape(-1, 2)
    return np.concatenate([promise, more[:, 0]]), np.concatenate([rival, more[:, 1]])


def _renumbered(found: Found, places: IntArray, count: int) -> Found:
    """A scan of some promises in the numbers of all."""
    if len(places) == count:
        return found

    def moved(pairs: Leads) -> Leads:
        return Leads(places[pairs.promise], *(getattr(pairs, name) for name in _REST))

    best, lead = np.full(count, -1), np.full(count, np.nan)
    best[places], lead[places] = found.best, found.lead
    return Found(
        moved(found.violated), moved(found.undecided), found.violation, best, lead, found.complete, found.compared
    )


_REST = ("rival", "lead", "error", "asked", "scale", "strict")
