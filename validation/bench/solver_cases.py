"""Cases that solve Att-SVM: ten draws, ours and every peer on each, judged by medians.

Spectral, l1, linf and l_p norms meet cvxpy with the quickest of its installed solvers; the growth of the Frobenius
solve with the number of sequences is measured too.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import numpy as np

import attsvm
from attsvm.generate import random_points
from attsvm.solvers import MarginProblem, get_norm, solve
from attsvm.validation.bench.measurement import (
    Line,
    Numbers,
    Result,
    Spread,
    Timed,
    Verdict,
    at_least,
    at_most,
    measure,
    measure_with_timeout,
    one_thread,
    timed,
)
from attsvm.validation.bench.peers import PEERS, Task, feasible_gap, missing_modules, run_peer, tasks_of

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
        found = measure(solve, (lambda: None) if self.read else fresh, self.repeats, _BUDGET)
        solutions = [found.answer] if self.batch == 1 else list(found.answer)
        solved = [s for s in solutions if s.status.has_solution]
        return _Ours(
            seconds=found.seconds / self.batch,
            gap=max(s.certificate.worst for s in solved),
            memory=found.memory,
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
            taken = measure(peer.solve, partial(peer.prepare, some), max(3, self.repeats), _BUDGET)
            found.append(self._judged(taken, peer.read(some, taken.answer), some, ours))
        except Exception as error:
            return f"failed: {type(error).__name__}"
        return ""

    def _apart(self, name: str, work: list[list[Task]], ours: list[_Ours], found: list[_Found]) -> str:
        """A peer in a process of its own, which is stopped at the limit."""
        some = [tasks[: PEERS[name].most] for tasks in work]
        done, note = measure_with_timeout(partial(run_peer, name), [_WARM], some, self.timeout)
        for taken, tasks, mine in zip(done, some, ours, strict=False):
            found.append(self._judged(taken, taken.answer, tasks, mine))
        return note

    def _judged(self, taken: Timed, answers: list[Any], tasks: list[Task], ours: _Ours) -> _Found:
        gaps = [feasible_gap(t, W, bound, self.norm) for t, W, bound in zip(tasks, answers, ours.bounds, strict=False)]
        return _Found(taken.seconds / len(tasks), max(gaps), taken.memory)

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


# What cvxpy may take at its own default accuracy; the quickest whose norm is right to _RIGHT counts.
_RIGHT = 1e-6

_BACKENDS = {
    "l1": ("CLARABEL", "HIGHS"),
    "linf": ("CLARABEL", "HIGHS"),
    "spectral": ("CLARABEL", "SCS"),
    "l3": ("CLARABEL",),
    "l1.5": ("CLARABEL",),
}

NORMS = tuple(_BACKENDS)


def sphere_problems(count: int, seed: int, size: tuple[int, int, int] = (6, 8, 10)) -> list[MarginProblem]:
    """Problems of n queries with T tokens each on the unit sphere in d dimensions, the first one selected.

    Examples
    --------
    >>> sphere_problems(2, 0)[1].m
    42
    """
    n, T, d = size
    rng = np.random.default_rng(seed)
    tokens, queries = random_points(rng, (count, n, T, d)), random_points(rng, (count, n, d))
    a = (tokens[:, :, :1] - tokens[:, :, 1:]).reshape(count, -1, d)
    return [MarginProblem(a[k], queries[k], np.repeat(np.arange(n), T - 1)) for k in range(count)]


def _by_cvxpy(problem: MarginProblem, norm: str, backend: str) -> float:
    """The least norm as a user would ask cvxpy for it: rows in one expression, the solver's own accuracy."""
    import cvxpy as cp

    pair = problem.pairs()
    W = cp.Variable(problem.shape)
    values = cp.sum(cp.multiply(pair.a @ W, pair.right), axis=1)
    program = cp.Problem(cp.Minimize(get_norm(norm).expression(W)), [values >= 1])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        program.solve(solver=backend)
    return float(program.value)


def norm_speed(seed: int, norm: str, batch: int = 200, repeats: int = 9) -> Numbers:
    """One problem of (6, 8, 10), and a batch; cvxpy gets the one problem, and its time counts for each of a batch.

    Examples
    --------
    >>> found = norm_speed(0, "l1", batch=4, repeats=1)
    >>> found["attsvm"]["gap"] <= 1e-7, found["attsvm"]["difference"] < 1e-6
    (True, True)
    """
    problems = sphere_problems(batch, seed)
    first, whole = problems[0], MarginProblem.stack(problems)
    alone, together = solve(first, norm), solve(whole, norm)
    peers, apart = {}, {}
    for name in _BACKENDS[norm]:
        if find_spec(name.lower() if name != "HIGHS" else "highspy") is not None:
            apart[name] = abs(_by_cvxpy(first, norm, name) / alone.norm - 1.0)
            _, peers[name] = timed(partial(_by_cvxpy, first, norm, name), max(1, repeats // 3))
    _, single = timed(partial(solve, first, norm), repeats)
    _, many = timed(partial(solve, whole, norm), max(1, repeats // 3))
    quickest = min(seconds for name, seconds in peers.items() if apart[name] <= _RIGHT)
    gap = max(alone.certificate.proved, float(np.max(together.certificate.proved)))
    ours = {
        "seconds": single,
        "seconds in a batch": many / batch,
        "times as fast": quickest / single,
        "times as fast in a batch": quickest / (many / batch),
        "gap": gap,
        "difference": apart["CLARABEL"],
    }
    lines = {f"cvxpy {name}": {"seconds": peers[name], "difference": apart[name]} for name in peers}
    return {"attsvm": ours, **lines}


def agreement(seed: int, count: int = 100) -> Numbers:
    """Problems of many sizes, also with equality rows, in all five norms: gaps, and distance from certified cvxpy.

    Examples
    --------
    >>> agreement(0, count=1)["all norms"]["worst gap"] <= 1e-7
    True
    """
    rng = np.random.default_rng(seed)
    worst, apart, unsettled = 0.0, 0.0, 0
    for k in range(count):
        norm = NORMS[k % len(NORMS)]
        n, T, d = int(rng.integers(2, 8)), int(rng.integers(3, 9)), int(rng.integers(4, 12))
        (plain,) = sphere_problems(1, int(rng.integers(2**31)), (n, T, d))
        equality = np.arange(plain.m) < int(rng.integers(0, 3))
        pair = plain.pairs()
        problem = MarginProblem(pair.a, pair.queries, pair.owner, np.where(equality, 0.0, 1.0), equality)
        own, known = solve(problem, norm), solve(problem, norm, "cvxpy")
        if own.status == known.status == "infeasible":
            continue
        if not (own.status == "optimal" and known.status == "optimal"):
            unsettled += 1
            continue
        worst = max(worst, own.certificate.proved)
        apart = max(apart, abs(own.norm / known.norm - 1.0))
    numbers = {"problems": float(count), "worst gap": worst, "worst difference": apart, "unsettled": float(unsettled)}
    return {"all norms": numbers}


GROWTH_SIZES = (63, 125, 250, 500, 1000)


def growth(
    seed: int, *, sizes: tuple[int, ...] = GROWTH_SIZES, T: int = 64, d: int = 512
) -> dict[str, dict[str, float]]:
    """Seconds for each number of sequences and the fitted exponent, for one draw.

    Examples
    --------
    >>> list(growth(0, sizes=(2, 4), T=3, d=8)["attsvm"])
    ['exponent', '4 rows', '8 rows']
    """
    rows, seconds = [], []
    for n in sizes:
        problem = attsvm.random_problem(n=n, T=T, d=d, seed=seed)
        rows.append(n * (T - 1))
        seconds.append(measure(attsvm.att_svm, lambda p=problem: p, repeats=2).seconds)  # type: ignore[misc]
    points = {f"{count} rows": took for count, took in zip(rows, seconds, strict=True)}
    return {"attsvm": {"exponent": fitted_exponent(rows, seconds), **points}}


def fitted_exponent(rows: list[int], seconds: list[float]) -> float:
    """Slope of log time against log rows.

    Examples
    --------
    >>> round(fitted_exponent([10, 100, 1000], [1.0, 10.0, 100.0]), 6)
    1.0
    """
    return float(np.polyfit(np.log(rows), np.log(seconds), 1)[0])


def rows_of_tensors(X: Any, Z: Any, selected: Any) -> Any:
    """Rows ``vec((x_selected - x_t) z^T)`` of a batch as a tensor (batch, n (T - 1), dx dz).

    Examples
    --------
    >>> import torch
    >>> rows_of_tensors(torch.randn(2, 3, 4, 5), torch.randn(2, 3, 6), torch.zeros(2, 3, dtype=torch.int64)).shape
    torch.Size([2, 9, 30])
    """
    import torch

    B, n, T, dx = X.shape
    chosen = torch.take_along_dim(X, selected[..., None, None], dim=2)
    keep = torch.arange(T) != selected[..., None]
    a = (chosen - X)[keep].reshape(B, n, T - 1, dx)
    return torch.einsum("bntd,bne->bntde", a, Z).reshape(B, n * (T - 1), -1)


def _ours(norm: str, function: str) -> Callable[[Any, Any, Any], Any]:
    def W(X: Any, Z: Any, selected: Any) -> Any:
        return getattr(attsvm.torch, function)(X, Z, selected, norm=norm)

    return W


def _cvxpylayers(norm: str, size: tuple[int, int, int]) -> Callable[[Any, Any, Any], Any]:
    """A layer of the primal problem whose parameter are the rows; building it is not timed."""
    import cvxpy as cp

    layers: Any = import_module("cvxpylayers.torch")  # which exports its layer without saying so

    n, T, d = size
    W, rows = cp.Variable((d, d)), cp.Parameter((n * (T - 1), d * d))
    value = cp.sum_squares(W) / 2 if norm == "frobenius" else cp.normNuc(W)
    layer = layers.CvxpyLayer(
        cp.Problem(cp.Minimize(value), [rows @ cp.vec(W, order="C") >= 1]), parameters=[rows], variables=[W]
    )

    def solve(X: Any, Z: Any, selected: Any) -> Any:
        (found,) = layer(rows_of_tensors(X, Z, selected))
        return found

    return solve


def _moreau(norm: str, size: tuple[int, int, int]) -> Callable[[Any, Any, Any], Any]:
    """The dual QP ``min x'Gx / 2 - 1 . x, x >= 0`` with its Gram matrix, and W = sum x a z'; Frobenius norm."""
    import moreau
    import torch
    from moreau.torch import Solver

    m = size[0] * (size[1] - 1)
    solvers: dict[int, Any] = {}

    def solve(X: Any, Z: Any, selected: Any) -> Any:
        rows = rows_of_tensors(X, Z, selected)
        B = len(rows)
        if B not in solvers:
            solvers[B] = Solver(
                n=m, m=m,
                P_row_offsets=torch.arange(m + 1) * m, P_col_indices=torch.arange(m).repeat(m),
                A_row_offsets=torch.arange(m + 1), A_col_indices=torch.arange(m),
                cones=moreau.Cones(num_nonneg_cones=m), settings=moreau.Settings(device="cpu", batch_size=B),
            )  # fmt: skip
        minus = torch.full((B, m), -1.0, dtype=torch.float64)
        gram = (rows @ rows.mT).reshape(B, -1)
        x = solvers[B].solve(gram, minus, minus, torch.zeros(B, m, dtype=torch.float64)).x
        return (x[:, None, :] @ rows).reshape(B, X.shape[-1], -1)

    return solve


PEERS_WITH_GRADIENTS: dict[str, tuple[str, Callable[[str, tuple[int, int, int]], Any], tuple[str, ...]]] = {
    "cvxpylayers": ("cvxpylayers", _cvxpylayers, ("frobenius", "nuclear")),
    "moreau": ("moreau", _moreau, ("frobenius",)),
}
"""Peers: the package, how a function of tensors is made for a norm and a size, and the norms that it is given."""


def _measured(solve: Callable[..., Any], data: tuple[Any, Any, Any], repeats: int) -> tuple[dict[str, float], Any]:
    """Milliseconds per problem of forward and backward, and the gradient in the tokens."""
    import torch

    X, Z, selected = data
    value, forward = timed(lambda: solve(X, Z, selected), repeats, min)
    ones = torch.ones_like(value)

    def back() -> Any:
        return torch.autograd.grad(solve(X, Z, selected), (X, Z), ones)

    grads, both = timed(back, repeats, min)
    size = 1e3 / len(X)
    backward = max(both - forward, 0.0)
    return {
        "forward, ms": forward * size,
        "backward, ms": backward * size,
        "backward over forward": backward / forward,
        "both, ms": both * size,
    }, grads


def gradient_speed(
    seed: int, *, norm: str = "frobenius", size: tuple[int, int, int] = (6, 8, 10), batch: int = 200, few: int = 20
) -> Numbers:
    """Forward and backward of the sum of W on a batch, ours and the peers on its first problems, by line.

    Parameters
    ----------
    seed : int
    norm : {"frobenius", "nuclear"}
    size : tuple of int
        (n, T, d)
    batch : int
    few : int
        Problems that peers are given.

    Returns
    -------
    dict of str to dict
        ``difference``: of the gradient in the tokens from ours, relative to the largest entry.

    Examples
    --------
    >>> sorted(gradient_speed(0, size=(2, 3, 4), batch=3, few=0)["attsvm, W"])[:4]
    ['backward over forward', 'backward, ms', 'both, ms', 'difference']
    """
    import torch

    problem = attsvm.random_problem(n=size[0], T=size[1], d=size[2], batch=batch, seed=seed)
    X, Z = (torch.tensor(value, requires_grad=True) for value in (problem.X, problem.Z))
    selected = torch.tensor(problem.optimal_tokens().indices)
    repeats = 5 if norm == "frobenius" else 2
    lines: Numbers = {}
    with one_thread(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name, function in (("attsvm, W", "att_svm"), ("attsvm, margin", "margin")):
            numbers, grads = _measured(_ours(norm, function), (X, Z, selected), repeats)
            lines[name] = numbers | {"times as slow as ours": 1.0, "difference": 0.0}
            if function == "att_svm":
                ours, both = grads[0][: max(few, 1)], numbers["both, ms"]
        for name, (package, make, norms) in PEERS_WITH_GRADIENTS.items():
            if norm not in norms or not few or find_spec(package) is None:
                continue
            first, second = (value.detach()[:few].clone().requires_grad_() for value in (X, Z))
            some = (first, second, selected[:few])
            numbers, grads = _measured(make(norm, size), some, 2)
            off = float(np.abs((grads[0] - ours).numpy()).max() / np.abs(ours.numpy()).max())
            lines[name] = numbers | {"times as slow as ours": numbers["both, ms"] / both, "difference": off}
    return lines
