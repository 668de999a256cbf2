"""Peers: what one would use without this library.

A peer prepares what it may have for free, solves (this is timed), and returns one W per task.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

import numpy as np
import numpy.typing as npt

from attsvm.validation.bench.batch_peers import (
    daqp_from_tokens,
    moreau_prepare,
    moreau_psd_prepare,
    moreau_psd_read,
    moreau_solve,
    proxsuite_solve,
)
from attsvm.validation.bench.tasks import Task

__all__ = ["PEERS", "Peer", "missing_modules", "run_peer"]

FloatArray = npt.NDArray[np.float64]


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
    >>> from attsvm.validation.bench.peers import missing_modules
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
    >>> import attsvm
    >>> from attsvm.validation.bench.peers import run_peer
    >>> from attsvm.validation.bench.tasks import tasks_of
    >>> problem = attsvm.random_problem(n=2, T=3, d=4, seed=0)
    >>> W = run_peer("scipy NNLS", tasks_of(problem))[0]
    >>> abs(W - attsvm.att_svm(problem).W).max() < 1e-10
    np.True_
    """
    peer = PEERS[name]
    return peer.read(tasks, peer.solve(peer.prepare(tasks)))
