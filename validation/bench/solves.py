"""Cases that solve Att-SVM: ten draws, ours and every peer on each, judged by medians."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

import attsvm
from attsvm.validation.bench.judge import Line, Result, Spread, Verdict, at_least, at_most
from attsvm.validation.bench.measure import Timed, measure, measure_with_timeout
from attsvm.validation.bench.peers import PEERS, missing_modules, run_peer
from attsvm.validation.bench.tasks import Task, feasible_gap, tasks_of

__all__ = ["SolveCase"]

Report = Callable[[str], None]
_BUDGET = 0.5  # seconds of repeats per draw: a call of microseconds is repeated, one of seconds is not
_USEFUL = 1e-2  # a peer whose gap is larger is shown, but no ratio is claimed against it
_WARM = Task(np.eye(3)[None], np.ones((1, 3)), np.zeros(1, dtype=np.int64))


@dataclass(frozen=True)
class SolveCase:
    """One piece of work.

    Attributes
    ----------
    name : str
    size : tuple of int
        (n, T, d)
    norm : str
    peers : dict
        Peer name to the ratio it is held to (None: shown only); 0.2 means at most 5 times as slow.
    gap : float
        Largest relative gap that our answer may have, in any draw.
    batch : int
        Problems solved at once.
    repeats : int
        Calls per draw, of which the median counts.
    slow : bool
        Left out of quick runs.
    opt_in : bool
        Run only when it is named.
    timeout : float
        Seconds for all draws after which a peer is stopped; 0 runs it in this process, right after ours.
    peer_draws : int
        Draws that peers are given.
    dtype : str
    read : bool
        Whether making the problem from its arrays is timed.
    qp_goal : float or None
        Ratio against the best dense QP solver.
    memory : float or None
        Largest peak memory, in sizes of the data.
    """

    name: str
    size: tuple[int, int, int]
    norm: str = "frobenius"
    peers: dict[str, float | None] = field(default_factory=dict)
    gap: float = 1e-8
    batch: int = 1
    repeats: int = 1
    slow: bool = False
    opt_in: bool = False
    timeout: float = 0.0
    peer_draws: int = 10
    dtype: str = "float64"
    read: bool = True
    qp_goal: float | None = None
    memory: float | None = None

    def run(self, seed: int, draws: int, report: Report) -> Result:
        """Measure ``draws`` problems, of seeds ``seed``, ``seed + 1``, ..."""
        ours: list[_Ours] = []
        found: dict[str, list[_Found]] = {name: [] for name in self.peers}
        notes = {name: _absent(name) for name in self.peers}
        work: list[list[Task]] = []
        for k in range(draws):
            report(f"{self.name}: draw {k + 1} of {draws}")
            problem = self._problem(seed + k)
            ours.append(self._ours(problem))
            if k >= self.peer_draws or not self.peers:
                continue
            tasks = tasks_of(problem, self.batch)
            work.append(tasks)
            for name in self.peers:
                if not notes[name] and not self.timeout:
                    notes[name] = self._here(name, tasks, ours[k], found[name])
        for name in self.peers:
            if not notes[name] and self.timeout:
                report(f"{self.name}: {name}")
                notes[name] = self._apart(name, work, ours, found[name])
        return self._result(ours, found, notes)

    def _problem(self, seed: int) -> attsvm.AttentionProblem:
        n, T, d = self.size
        problem = attsvm.random_problem(n=n, T=T, d=d, seed=seed, batch=None if self.batch == 1 else self.batch)
        if self.dtype == "float32":
            problem = attsvm.AttentionProblem(problem.X.astype("f4"), problem.Y, problem.Z.astype("f4"), problem.head)
        return problem

    def _ours(self, problem: attsvm.AttentionProblem) -> _Ours:
        """Through the public API: reading the arrays, building rows, solving, certifying."""

        def fresh() -> attsvm.AttentionProblem:
            return attsvm.AttentionProblem(problem.X, problem.Y, problem.Z, problem.head)

        def solve(given: attsvm.AttentionProblem | None) -> Any:
            return attsvm.att_svm(fresh() if given is None else given, norm=self.norm)

        if not self.slow:
            solve(None)  # imports and caches are not what is measured
        timed = measure(solve, (lambda: None) if self.read else fresh, self.repeats, _BUDGET)
        solutions = [timed.answer] if self.batch == 1 else list(timed.answer)
        solved = [s for s in solutions if s.status.has_solution]
        return _Ours(
            seconds=timed.seconds / self.batch,
            gap=max(s.certificate.worst for s in solved),
            memory=timed.memory,
            data=float(problem.X.nbytes + problem.Z.nbytes),
            bounds=tuple(s.certificate.lower_bound for s in solutions),
            solver=str(solutions[0].solver),
            ranks=sum(s.certificate.rank == s.rank for s in solved) / len(solved) if self.norm == "nuclear" else 1.0,
        )

    def _here(self, name: str, tasks: list[Task], ours: _Ours, found: list[_Found]) -> str:
        """A peer in this process; returns a note when it failed."""
        peer = PEERS[name]
        some = tasks[: peer.most]
        try:
            if not found:
                peer.solve(peer.prepare(some[:1]))
            timed = measure(peer.solve, partial(peer.prepare, some), max(3, self.repeats), _BUDGET)
            found.append(self._judged(timed, peer.read(some, timed.answer), some, ours))
        except Exception as error:
            return f"failed: {type(error).__name__}"
        return ""

    def _apart(self, name: str, work: list[list[Task]], ours: list[_Ours], found: list[_Found]) -> str:
        """A peer in a process of its own, which is stopped at the limit."""
        some = [tasks[: PEERS[name].most] for tasks in work]
        done, note = measure_with_timeout(partial(run_peer, name), [_WARM], some, self.timeout)
        for timed, tasks, mine in zip(done, some, ours, strict=False):
            found.append(self._judged(timed, timed.answer, tasks, mine))
        return note

    def _judged(self, timed: Timed, answers: list[Any], tasks: list[Task], ours: _Ours) -> _Found:
        gaps = [feasible_gap(t, W, bound, self.norm) for t, W, bound in zip(tasks, answers, ours.bounds, strict=False)]
        return _Found(timed.seconds / len(tasks), max(gaps), timed.memory)

    def _result(self, ours: list[_Ours], found: dict[str, list[_Found]], notes: dict[str, str]) -> Result:
        times = [o.seconds for o in ours]
        numbers = {
            "seconds": Spread(tuple(times)),
            "gap": Spread(tuple(o.gap for o in ours)),
            "memory": Spread(tuple(o.memory for o in ours)),
        }
        if self.norm == "nuclear":
            numbers["certified rank is the numerical one"] = Spread(tuple(o.ranks for o in ours))
        if self.memory is not None:
            numbers["memory over data"] = Spread(tuple(o.memory / o.data for o in ours))
        lines = [Line(f"attsvm ({ours[0].solver})", numbers)]
        ratios: dict[str, Spread] = {}
        for name, draws in found.items():
            shown: dict[str, Spread] = {}
            if draws:
                shown["seconds"] = Spread(tuple(f.seconds for f in draws))
                shown["gap"] = Spread(tuple(f.gap for f in draws))
                shown["memory"] = Spread(tuple(f.memory for f in draws))
                if shown["gap"].high <= _USEFUL:
                    ratios[name] = shown["ratio"] = Spread(
                        tuple(f.seconds / t for f, t in zip(draws, times, strict=False))
                    )
            lines.append(Line(name.removeprefix("nuclear: "), shown, notes[name]))
        batch = f", batch {self.batch}" if self.batch > 1 else ""
        return Result(self.name, f"{self.norm} {self.size}{batch}", tuple(lines), self._verdicts(numbers, ratios))

    def _verdicts(self, ours: dict[str, Spread], ratios: dict[str, Spread]) -> tuple[Verdict, ...]:
        found = [at_most(f"gap <= {self.gap:.0e} in every draw", self.gap, ours["gap"], every_draw=True)]
        for name, goal in self.peers.items():
            if goal is not None:
                text = f">= {goal:g}x {name}" if goal >= 1 else f"at most {1 / goal:g}x the time of {name}"
                found.append(at_least(text, goal, ratios.get(name)))
        if self.qp_goal is not None:
            dense = [ratio for name, ratio in ratios.items() if name.startswith("qpsolvers")]
            best = min(dense, key=lambda ratio: ratio.median, default=None)
            found.append(at_least(f">= {self.qp_goal:g}x the best dense QP solver", self.qp_goal, best))
        if self.memory is not None:
            used = ours["memory over data"]
            known = None if math.isnan(used.median) else used
            found.append(at_most(f"memory <= {self.memory:g}x data", self.memory, known))
        return tuple(found)


@dataclass(frozen=True)
class _Ours:
    """One draw."""

    seconds: float
    gap: float
    memory: float
    data: float
    bounds: tuple[float, ...]
    solver: str
    ranks: float


@dataclass(frozen=True)
class _Found:
    """A peer on one draw."""

    seconds: float
    gap: float
    memory: float


def _absent(name: str) -> str:
    """Why a peer cannot run here, or nothing."""
    modules = missing_modules(name)
    return f"not installed: {', '.join(modules)} (pip install 'attsvm[bench]')" if modules else ""
