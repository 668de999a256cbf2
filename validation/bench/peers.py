"""Peers: what one would use without this library, the work that they are given, and how their answers are judged.

A peer prepares what it may have for free, solves (this is timed), and returns one W per task; DAQP, moreau and
proxsuite take many problems at once. The work is plain arrays, and no solver of this library judges the answers.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib.util import find_spec
from typing import Any

import numpy as np
import numpy.typing as npt

import attsvm
from attsvm.solvers.arrays import FloatArray


@dataclass(frozen=True)
class Task:
    """Select one token per sequence with margin 1 and the least norm.

    Attributes
    ----------
    X : ndarray, shape (n, T, d)
    Z : ndarray, shape (n, d)
    selected : ndarray of int, shape (n,)
    """

    X: FloatArray
    Z: FloatArray
    selected: npt.NDArray[np.int64]

    @property
    def shape(self) -> tuple[int, int]:
        """Of W."""
        return self.X.shape[-1], self.Z.shape[-1]

    @cached_property
    def differences(self) -> FloatArray:
        """Selected minus other tokens, shape (n (T - 1), d)."""
        n, T, d = self.X.shape
        others = self.X[np.arange(T) != self.selected[:, None]].reshape(n, T - 1, d)
        return np.asarray((self.X[np.arange(n), self.selected][:, None] - others).reshape(-1, d))

    @cached_property
    def queries(self) -> FloatArray:
        """The query of each row, shape (n (T - 1), d)."""
        return np.repeat(self.Z, self.X.shape[1] - 1, axis=0)

    def gram(self) -> FloatArray:
        """Gram matrix of the rows ``a z^T``."""
        return np.asarray((self.differences @ self.differences.T) * (self.queries @ self.queries.T))

    def features(self) -> FloatArray:
        """The rows ``a z^T``, one flat vector each."""
        return np.asarray((self.differences[:, :, None] * self.queries[:, None, :]).reshape(len(self.queries), -1))

    def combine(self, multipliers: npt.ArrayLike) -> FloatArray:
        """The matrix ``sum_k multipliers_k a_k z_k^T``."""
        return np.asarray((self.differences * np.asarray(multipliers)[:, None]).T @ self.queries)

    def margins(self, W: npt.ArrayLike) -> FloatArray:
        """The margin of each row."""
        return np.asarray(np.sum((self.differences @ np.asarray(W)) * self.queries, axis=1))


def tasks_of(problem: attsvm.AttentionProblem, count: int | None = None) -> list[Task]:
    """The optimal selections of a problem without mask, or of the first ones of a batch.

    Examples
    --------
    >>> [task.differences.shape for task in tasks_of(attsvm.random_problem(n=2, T=3, d=4, batch=5, seed=0), 2)]
    [(4, 4), (4, 4)]
    """
    if problem.batch is None:
        tokens = np.asarray(problem.optimal_tokens().indices).reshape(-1)
        X, Z = (np.asarray(array, dtype=np.float64) for array in (problem.X, problem.Z))
        return [Task(X, Z.reshape(-1, problem.dz), tokens)]
    return [tasks_of(problem[b])[0] for b in range(problem.batch if count is None else min(count, problem.batch))]


def norm_of(W: npt.ArrayLike, norm: str) -> float:
    """Frobenius or nuclear norm."""
    return float(np.linalg.norm(np.asarray(W, dtype=np.float64), "nuc" if norm == "nuclear" else "fro"))


def feasible_gap(task: Task, W: npt.ArrayLike, lower_bound: float, norm: str = "frobenius") -> float:
    """Relative excess of ``||W||`` over a certified bound after scaling W to satisfy every row; inf if it cannot.

    Examples
    --------
    >>> problem = attsvm.random_problem(n=2, T=3, d=4, seed=0)
    >>> best = attsvm.att_svm(problem)
    >>> abs(feasible_gap(tasks_of(problem)[0], 5.0 * best.W, best.certificate.lower_bound)) < 1e-12
    True
    """
    smallest = float(task.margins(W).min())
    return norm_of(W, norm) / smallest / lower_bound - 1.0 if smallest > 0 else float("inf")


def daqp_from_tokens(tasks: list[Task]) -> list[FloatArray]:
    """Multipliers by a loop that forms rows and Gram matrix in NumPy and calls DAQP."""
    import daqp

    found = []
    for task in tasks:
        X, Z, selected = task.X, task.Z, task.selected
        n, T, d = X.shape
        others = X[np.arange(T) != selected[:, None]].reshape(n, T - 1, d)
        a = (X[np.arange(n), selected][:, None] - others).reshape(-1, d)
        z = np.repeat(Z, T - 1, axis=0)
        gram = (a @ a.T) * (z @ z.T)
        m = len(a)
        found.append(
            daqp.solve(
                gram, -np.ones(m), np.zeros((0, m)), np.full(m, 1e30), np.zeros(m), np.zeros(m, dtype=np.intc)
            )[0]
        )  # fmt: skip
    return found


def moreau_prepare(method: str) -> Callable[[list[Task]], tuple[Any, ...]]:
    """Solver of the structure and data of ``min x'Gx / 2 - 1 . x, x >= 0``; setting the numbers up is timed."""

    def prepare(tasks: list[Task]) -> tuple[Any, ...]:
        import moreau

        size, m = len(tasks), len(tasks[0].queries)
        solver = moreau.CompiledSolver(
            n=m, m=m,
            P_row_offsets=np.arange(m + 1) * m, P_col_indices=np.tile(np.arange(m), m),
            A_row_offsets=np.arange(m + 1), A_col_indices=np.arange(m),
            cones=moreau.Cones(num_nonneg_cones=m),
            settings=moreau.Settings(device="cpu", batch_size=size, solver=method),
        )  # fmt: skip
        gram = np.array([task.gram().ravel() for task in tasks])
        return solver, gram, np.full((size, m), -1.0), np.full((size, m), -1.0), np.zeros((size, m))

    return prepare


def moreau_solve(prepared: tuple[Any, ...]) -> Sequence[Any]:
    """Solutions x, or (x, z) pairs of the conic form with PSD cones."""
    solver, P, A, q, b = prepared
    solver.setup(P, A)
    found = solver.solve(q, b)
    x, z = np.asarray(found.x), np.asarray(found.z)
    return list(x) if P.shape[1] else list(zip(x, z, strict=True))


def _triangle(k: int) -> list[tuple[int, int]]:
    """Entries of the upper triangle, column by column."""
    return [(i, j) for j in range(k) for i in range(j + 1)]


def moreau_psd_prepare(tasks: list[Task]) -> tuple[Any, ...]:
    """The dual of the nuclear norm: ``max 1 . x, x >= 0, [[I, D(x)], [D(x)', I]] >= 0``."""
    import moreau

    size, m = len(tasks), len(tasks[0].queries)
    dx, dz = tasks[0].shape
    entries = _triangle(dx + dz)
    corner = [i < dx <= j for i, j in entries]  # where D stands
    width = np.concatenate([np.ones(m, dtype=np.int64), np.where(corner, m, 0)])
    solver = moreau.CompiledSolver(
        n=m, m=m + len(entries),
        P_row_offsets=np.zeros(m + 1, dtype=np.int64), P_col_indices=np.zeros(0, dtype=np.int64),
        A_row_offsets=np.concatenate([[0], np.cumsum(width)]),
        A_col_indices=np.concatenate([np.arange(m), np.tile(np.arange(m), sum(corner))]),
        cones=moreau.Cones(num_nonneg_cones=m, psd_dims=[dx + dz]),
        settings=moreau.Settings(device="cpu", batch_size=size),
    )  # fmt: skip
    flat = [i * dz + j - dx for (i, j), inside in zip(entries, corner, strict=True) if inside]
    values = [np.concatenate([-np.ones(m), -np.sqrt(2) * task.features().T[flat].ravel()]) for task in tasks]
    right = np.concatenate([np.zeros(m), [float(i == j) for i, j in entries]])
    return solver, np.zeros((size, 0)), np.array(values), np.full((size, m), -1.0), np.tile(right, (size, 1))


def moreau_psd_read(tasks: list[Task], answers: Sequence[Any]) -> list[FloatArray]:
    """W stands in the corner of the multiplier of the PSD cone."""
    dx, dz = tasks[0].shape
    m = len(tasks[0].queries)
    found = []
    for _, z in answers:
        W = np.zeros((dx, dz))
        for value, (i, j) in zip(z[m:], _triangle(dx + dz), strict=True):
            if i < dx <= j:
                W[i, j - dx] = -np.sqrt(2) * value
        found.append(W)
    return found


def proxsuite_solve(grams: list[FloatArray]) -> list[FloatArray]:
    """Multipliers by ProxQP on all cores, to 1e-9.

    ProxQP sets the number of threads of the process's OpenMP, which is torch's, and leaves it so: it is set back here,
    or all that is measured afterwards would train on that many threads.
    """
    import torch
    from proxsuite import proxqp

    m = len(grams[0])
    batch = proxqp.dense.BatchQP()
    identity, zero, top = np.eye(m), np.zeros(m), np.full(m, 1e20)
    for gram in grams:
        qp = batch.init_qp_in_place(m, 0, m)
        qp.settings.eps_abs, qp.settings.eps_rel = 1e-9, 0.0
        qp.init(gram, -np.ones(m), None, None, identity, zero, top)
    before = torch.get_num_threads()
    try:
        proxqp.dense.solve_in_parallel(batch, os.cpu_count() or 1)
    finally:
        torch.set_num_threads(before)
    return [np.array(batch.get(i).results.x) for i in range(len(grams))]  # copies: the batch owns the originals


@dataclass(frozen=True)
class Peer:
    """A solver to be compared with.

    Attributes
    ----------
    solve : callable
        From what ``prepare`` made to an answer per task; timed.
    needs : tuple of str
        Modules that must be installed.
    prepare : callable
        From the list of tasks; not timed. Row building is free unless a peer is about it.
    read : callable
        From the tasks and the answers to one W per task; not timed.
    most : int
        Problems of a batch that it is given: all, or a few where each takes long.
    """

    solve: Callable[[Any], Sequence[Any]]
    needs: tuple[str, ...]
    prepare: Callable[[list[Task]], Any] = lambda tasks: tasks
    read: Callable[[list[Task], Sequence[Any]], list[FloatArray]] = lambda tasks, answers: list(answers)
    most: int = 5


def missing_modules(name: str) -> tuple[str, ...]:
    """Modules of a peer that are not installed.

    Examples
    --------
    >>> missing_modules("scipy NNLS")
    ()
    """
    return tuple(module for module in PEERS[name].needs if find_spec(module) is None)


def _loop(task: Task, nuclear: bool) -> FloatArray:
    """One cvxpy constraint object per row and the default solver: the formulation of the literature's code."""
    import cvxpy as cp

    W = cp.Variable(task.shape)
    constraints = [a @ W @ z >= 1 for a, z in zip(task.differences, task.queries, strict=True)]
    objective = cp.normNuc(W) if nuclear else cp.norm(W, "fro")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        cp.Problem(cp.Minimize(objective), constraints).solve()
    return np.asarray(W.value)


def _vectorised(task: Task, solver: str, nuclear: bool) -> FloatArray:
    import cvxpy as cp

    W = cp.Variable(task.shape)
    values = cp.sum(cp.multiply(task.differences @ W, task.queries), axis=1)
    objective = cp.normNuc(W) if nuclear else cp.sum_squares(W)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        cp.Problem(cp.Minimize(objective), [values >= 1]).solve(solver=solver)
    return np.asarray(W.value)


def _linear_svc(task: Task) -> FloatArray:
    """scikit-learn's LinearSVC on mirrored features, no intercept, a large C."""
    from sklearn.svm import LinearSVC

    F = task.features()
    svc = LinearSVC(C=1e6, loss="hinge", fit_intercept=False, tol=1e-8, max_iter=200_000, random_state=0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        svc.fit(np.vstack([F, -F]), np.repeat([1, -1], len(F)))
    return np.asarray(svc.coef_.reshape(task.shape))


def _nnls(task: Task) -> FloatArray:
    """Lawson and Hanson's least-distance form with SciPy's NNLS."""
    from scipy.optimize import nnls

    F = task.features()
    E = np.vstack([F.T, np.ones(len(F))])
    target = np.zeros(len(E))
    target[-1] = 1.0
    y, _ = nnls(E, target, maxiter=30 * len(F))
    residual = target - E @ y
    return np.asarray((-residual[:-1] / residual[-1]).reshape(task.shape))


def _dense_qp(task: Task, solver: str) -> FloatArray:
    """The dual, ``min lam G lam / 2 - 1 . lam`` over ``lam >= 0``, by a dense QP solver."""
    import qpsolvers

    G = task.gram()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        lam = qpsolvers.solve_qp(G, -np.ones(len(G)), lb=np.zeros(len(G)), solver=solver)
    if lam is None:
        raise RuntimeError("no solution")
    return task.combine(lam)


def _each(function: Callable[..., FloatArray], *arguments: Any) -> Callable[[list[Task]], list[FloatArray]]:
    return lambda tasks: [function(task, *arguments) for task in tasks]


def _combined(tasks: list[Task], multipliers: Sequence[Any]) -> list[FloatArray]:
    return [task.combine(lam) for task, lam in zip(tasks, multipliers, strict=True)]


def _daqp_arguments(tasks: list[Task]) -> list[tuple[npt.NDArray[Any], ...]]:
    """Everything that DAQP wants, made before the clock starts."""
    m = len(tasks[0].queries)
    rest = np.zeros((0, m)), np.full(m, 1e30), np.zeros(m), np.zeros(m, dtype=np.intc)
    return [(task.gram(), -np.ones(m), *rest) for task in tasks]


def _daqp_given(arguments: list[tuple[npt.NDArray[Any], ...]]) -> list[FloatArray]:
    import daqp

    return [daqp.solve(*given)[0] for given in arguments]


_ALL = 1 << 30

PEERS: dict[str, Peer] = {
    "cvxpy per constraint": Peer(_each(_loop, False), ("cvxpy",)),
    "cvxpy CLARABEL": Peer(_each(_vectorised, "CLARABEL", False), ("cvxpy", "clarabel")),
    "cvxpy SCS": Peer(_each(_vectorised, "SCS", False), ("cvxpy", "scs")),
    "cvxpy OSQP": Peer(_each(_vectorised, "OSQP", False), ("cvxpy", "osqp")),
    "sklearn LinearSVC": Peer(_each(_linear_svc), ("sklearn",)),
    "scipy NNLS": Peer(_each(_nnls), ("scipy",)),
    "qpsolvers daqp": Peer(_each(_dense_qp, "daqp"), ("qpsolvers", "daqp")),
    "qpsolvers piqp": Peer(_each(_dense_qp, "piqp"), ("qpsolvers", "piqp")),
    "qpsolvers proxqp": Peer(_each(_dense_qp, "proxqp"), ("qpsolvers", "proxsuite")),
    "qpsolvers quadprog": Peer(_each(_dense_qp, "quadprog"), ("qpsolvers", "quadprog")),
    "daqp, Gram matrix given": Peer(_daqp_given, ("daqp",), _daqp_arguments, _combined, _ALL),
    "daqp loop, rows built": Peer(daqp_from_tokens, ("daqp",), read=_combined, most=_ALL),
    "moreau active set": Peer(moreau_solve, ("moreau",), moreau_prepare("active_set"), _combined, _ALL),
    "moreau interior point": Peer(moreau_solve, ("moreau",), moreau_prepare("ipm"), _combined, 50),
    "proxsuite batch": Peer(proxsuite_solve, ("proxsuite",), lambda tasks: [t.gram() for t in tasks], _combined, 50),
    "nuclear: cvxpy per constraint": Peer(_each(_loop, True), ("cvxpy",)),
    "nuclear: cvxpy CLARABEL": Peer(_each(_vectorised, "CLARABEL", True), ("cvxpy", "clarabel")),
    "nuclear: cvxpy SCS": Peer(_each(_vectorised, "SCS", True), ("cvxpy", "scs")),
    "nuclear: moreau PSD cones": Peer(moreau_solve, ("moreau",), moreau_psd_prepare, moreau_psd_read),
}


def run_peer(name: str, tasks: list[Task]) -> list[FloatArray]:
    """Prepare, solve and read in one call.

    Examples
    --------
    >>> problem = attsvm.random_problem(n=2, T=3, d=4, seed=0)
    >>> W = run_peer("scipy NNLS", tasks_of(problem))[0]
    >>> abs(W - attsvm.att_svm(problem).W).max() < 1e-10
    np.True_
    """
    peer = PEERS[name]
    return peer.read(tasks, peer.solve(peer.prepare(tasks)))
