"""Pieces of work and the ratios they are held to."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

import attsvm
from attsvm.rows import selection_rows
from attsvm.solvers import MarginProblem, get_norm
from attsvm.validation.bench.measure import Measurement, measure, measure_with_timeout
from attsvm.validation.bench.peers import PEERS, call_peer, feasible_gap

__all__ = ["CASES", "Case", "Result", "run_case"]


@dataclass(frozen=True)
class Case:
    """One piece of work.

    Attributes
    ----------
    name : str
    size : tuple of int
        (n, T, d)
    norm : str
    peers : dict
        Peer name to the ratio it is held to (None: shown only).
    gap : float
        Largest relative gap that our answer may have.
    batch : int
        Problems solved at once by us (peers solve a few of them one by one).
    repeats : int
    slow : bool
        Left out of quick runs.
    timeout : float
        Seconds after which a peer is stopped; 0 runs it in this process.
    dtype : str
    qp_goal : float or None
        Ratio against the best dense QP solver, if those are to be run.
    """

    name: str
    size: tuple[int, int, int]
    norm: str = "frobenius"
    peers: dict[str, float | None] = field(default_factory=dict)
    gap: float = 1e-8
    batch: int = 1
    repeats: int = 1
    slow: bool = False
    timeout: float = 0.0
    dtype: str = "float64"
    qp_goal: float | None = None


CASES = (
    Case("fro-tiny", (6, 8, 10), repeats=50, peers={"cvxpy per constraint": 60.0, "cvxpy CLARABEL": None}),
    Case(
        "fro-small",
        (20, 20, 50),
        repeats=5,
        peers={
            "cvxpy CLARABEL": 500.0,
            "cvxpy SCS": None,
            "cvxpy OSQP": None,
            "sklearn LinearSVC": None,
            "scipy NNLS": None,
        },
        qp_goal=5.0,
        timeout=240.0,
    ),
    Case("fro-medium", (100, 50, 100), gap=1e-9, repeats=3, peers={"scipy NNLS": 100.0}, slow=True, timeout=300.0),
    Case("fro-large", (1000, 64, 512), slow=True),
    Case("fro-gpt2", (4000, 64, 768), gap=1e-5, slow=True, dtype="float32"),
    Case("fro-batch", (5, 5, 10), batch=2000, repeats=3, peers={"cvxpy per constraint": 500.0}),
    Case(
        "nuc-tiny",
        (6, 8, 10),
        "nuclear",
        repeats=20,
        peers={"nuclear: cvxpy per constraint": 10.0, "nuclear: cvxpy CLARABEL": None, "nuclear: cvxpy SCS": None},
    ),
    Case("nuc-small", (20, 10, 30), "nuclear", repeats=3, peers={"nuclear: cvxpy CLARABEL": 40.0}, timeout=240.0),
    Case(
        "nuc-large",
        (100, 50, 100),
        "nuclear",
        gap=1e-4,
        peers={"nuclear: cvxpy CLARABEL": None},
        slow=True,
        timeout=120.0,
    ),
    Case("nuc-batch", (5, 5, 10), "nuclear", batch=500, repeats=2, peers={"nuclear: cvxpy per constraint": 30.0}),
)

_WARM = MarginProblem(np.eye(2), np.eye(1, 2), np.zeros(2, dtype=np.int64))


@dataclass(frozen=True)
class Result:
    """Our measurement, each peer's, and whether the goals are met."""

    case: Case
    ours: Measurement
    solver: str
    data_bytes: float
    peers: dict[str, Measurement]
    ratios: dict[str, float]
    rank_note: str = ""

    def goals(self) -> dict[str, bool]:
        """Each goal of the case and whether this run met it."""
        met = {f"gap <= {self.case.gap:.0e}": self.ours.gap <= self.case.gap}
        for name, goal in self.case.peers.items():
            if goal is not None and name in self.ratios:
                met[f">= {goal:g}x {name}"] = self.ratios[name] >= goal
        qp = [r for name, r in self.ratios.items() if name.startswith("qpsolvers")]
        if self.case.qp_goal is not None and qp:
            met[f">= {self.case.qp_goal:g}x best dense QP solver"] = min(qp) >= self.case.qp_goal
        if self.case.slow and self.case.norm == "frobenius" and self.case.size[0] >= 1000:
            met["memory <= 3x data"] = self.ours.memory <= 3 * self.data_bytes
        return met


def _problem(case: Case, seed: int) -> attsvm.AttentionProblem:
    n, T, d = case.size
    problem = attsvm.random_problem(n=n, T=T, d=d, seed=seed, batch=None if case.batch == 1 else case.batch)
    if case.dtype == "float32":
        problem = attsvm.AttentionProblem(problem.X.astype("f4"), problem.Y, problem.Z.astype("f4"), problem.head)
    return problem


def _ours(case: Case, problem: attsvm.AttentionProblem) -> tuple[Any, Measurement, str, str]:
    """Through the public API: reading the arrays, building rows, solving, certifying."""
    X, Y, Z, head = problem.X, problem.Y, problem.Z, problem.head

    def work() -> Any:
        fresh = attsvm.AttentionProblem(X, Y, Z, head)
        return attsvm.att_svm(fresh, norm=case.norm)

    if not case.slow:
        work()  # imports and caches are not what is measured
    solution, seconds, memory = measure(work, case.repeats)
    if case.batch > 1:
        solved = np.isfinite(solution.gap)
        rank = ""
        if case.norm == "nuclear":
            equal = sum(s.certificate.rank == s.rank for s in solution if s.status.has_solution)
            rank = f"certified rank = numerical rank in {equal} of {int(solved.sum())}"
        worst = float(solution.gap[solved].max())
        return solution, Measurement(seconds / case.batch, worst, memory), solution[0].solver, rank
    certificate = solution.certificate
    rank = ""
    if certificate.rank_certificate is not None:
        rank = f"certified rank {certificate.rank}, numerical rank {solution.rank}"
    return solution, Measurement(seconds, certificate.worst, memory), solution.solver, rank


def _peer(case: Case, name: str, problem: attsvm.AttentionProblem, solution: Any) -> Measurement:
    """A peer on the same rows; for a batch, the mean over the first few problems."""
    norm = get_norm(case.norm)
    count = 1 if case.batch == 1 else 5
    problems = [problem] if case.batch == 1 else [problem[b] for b in range(count)]
    solutions = [solution] if case.batch == 1 else [solution[b] for b in range(count)]
    seconds, gaps, memory = 0.0, [], 0.0
    for single, solved in zip(problems, solutions, strict=True):
        rows = selection_rows(single).margin_problem

        work = partial(call_peer, name)
        if case.timeout:
            W, took, memory, note = measure_with_timeout(work, _WARM, rows, case.timeout)
        else:
            note = ""
            try:
                W, took, memory = measure(partial(work, rows), repeats=3 if case.repeats > 1 else 1)
            except Exception as error:
                W, took, note = None, float("nan"), f"failed: {type(error).__name__}"
        if W is None:
            return Measurement(float("nan"), float("nan"), memory, note or "failed")
        seconds += took / count
        gaps.append(feasible_gap(rows, W, solved.certificate.lower_bound, norm))
    return Measurement(seconds, max(gaps), memory)


def run_case(case: Case, seed: int = 0, report: Callable[[str], None] = lambda line: None) -> Result:
    """Run a case: ours first, then every peer."""
    problem = _problem(case, seed)
    solution, ours, solver, rank_note = _ours(case, problem)
    names = list(case.peers)
    if case.qp_goal is not None:
        names += [name for name in PEERS if name.startswith("qpsolvers")]
    peers, ratios = {}, {}
    for name in names:
        report(f"{case.name}: {name}")
        peers[name] = _peer(case, name, problem, solution)
        # A peer whose answer is useless (gap above 1e-2) is shown, but no ratio is claimed against it.
        if np.isfinite(peers[name].seconds) and peers[name].gap <= 1e-2:
            ratios[name] = peers[name].seconds / ours.seconds
    data_bytes = float(problem.X.nbytes + problem.Z.nbytes)
    return Result(case, ours, solver, data_bytes, peers, ratios, rank_note)
