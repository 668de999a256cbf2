"""Throughput of batched training against the loop that the literature's code runs."""

from __future__ import annotations

import time
from typing import Any

import attsvm
from attsvm.solvers.threads import torch_threads

__all__ = ["training_throughput"]


def _literature_loop(problem: attsvm.AttentionProblem, steps: int) -> float:
    """Seconds per step of one problem, autograd and normalized descent in plain arithmetic."""
    import torch

    X, Z, Y = (torch.tensor(a.copy()) for a in (problem.X, problem.Z, problem.Y))
    v = torch.tensor(problem.head.v.copy())  # type: ignore[union-attr]
    W = torch.nn.Parameter(torch.zeros(problem.dx, problem.dz, dtype=torch.float64))
    start = time.perf_counter()
    for _ in range(steps):
        attention = torch.softmax(torch.einsum("ntd,de,ne->nt", X, W, Z), dim=1)
        output = torch.einsum("nt,ntd,d->n", attention, X, v)
        loss = torch.log(1 + torch.exp(-Y * output)).mean()
        torch.autograd.backward(loss)
        with torch.no_grad():
            gradient = W.grad
            assert gradient is not None
            W.sub_(0.1 * gradient / (gradient.norm() + 2.2e-16))
            W.grad = None
    return (time.perf_counter() - start) / steps


def _matmul_seconds(problem: attsvm.AttentionProblem, parameterization: str, repeats: int = 200) -> float:
    """Seconds of the matrix products of one step alone."""
    import torch

    from attsvm.training.tensors import tensor_problem

    data = tensor_problem(problem)
    B, n, K, dz = data.Z.shape
    W = torch.zeros(B, problem.dx, dz, dtype=torch.float64)
    Z, s = data.Z.reshape(B, n * K, dz), torch.zeros(B, n, K, problem.T, dtype=torch.float64)
    start = time.perf_counter()
    for _ in range(repeats):
        keys = torch.bmm(Z, W.transpose(1, 2)).reshape(B, n, K, -1)
        _ = keys @ data.X.transpose(2, 3)
        pulled = s @ data.X
        G = torch.bmm(pulled.reshape(B, n * K, -1).transpose(1, 2), Z)
        if parameterization == "KQ":
            _ = (W @ W.transpose(1, 2), G @ W, G.transpose(1, 2) @ W)
    return (time.perf_counter() - start) / repeats


def training_throughput(batch: int = 500, steps: int = 300, seed: int = 0) -> list[dict[str, Any]]:
    """One record per parameterization, measured in turn with the peer in this process.

    Examples
    --------
    >>> from attsvm.validation.bench.training import training_throughput
    >>> [row["parameterization"] for row in training_throughput(batch=2, steps=3)]
    ['W', 'KQ']
    """
    import torch

    problem = attsvm.random_problem(n=5, T=5, d=10, batch=batch, seed=seed)
    with torch_threads(torch.device("cpu")):  # the peer is faster on one thread, too
        return _throughput(problem, steps)


def _throughput(problem: attsvm.AttentionProblem, steps: int) -> list[dict[str, Any]]:
    batch = problem.batch or 1
    _literature_loop(problem[0], 20)  # warm-up
    rows = []
    for parameterization in ("W", "KQ"):
        attsvm.train(problem, parameterization, steps=5, snapshots=2)
        ours, peer, products = float("inf"), float("inf"), float("inf")
        for _ in range(3):
            start = time.perf_counter()
            attsvm.train(problem, parameterization, steps=steps, snapshots=3)
            ours = min(ours, (time.perf_counter() - start) / steps)
            peer = min(peer, _literature_loop(problem[0], steps))
            products = min(products, _matmul_seconds(problem, parameterization))
        rows.append(
            {
                "parameterization": parameterization,
                "batch": batch,
                "per_step": ours / batch,
                "steps_per_second": 1.0 / ours,
                "peer_per_step": peer,
                "ratio": peer / (ours / batch),
                "matmul_share": products / ours,
            }
        )
    return rows
