"""Peers that take many problems at once: a loop over DAQP, moreau and proxsuite."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from attsvm.validation.bench.tasks import Task

__all__ = [
    "daqp_from_tokens",
    "moreau_prepare",
    "moreau_psd_prepare",
    "moreau_psd_read",
    "moreau_solve",
    "proxsuite_solve",
]

FloatArray = npt.NDArray[np.float64]


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
