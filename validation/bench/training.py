"""Throughput of batched training against the loop that the literature's code runs."""

from __future__ import annotations

import attsvm
from attsvm.validation.bench.measure import Stopwatch, measure, one_thread

__all__ = ["training_throughput"]


def _literature_loop(problem: attsvm.AttentionProblem, steps: int) -> float:
    """Seconds per step of one problem, autograd and normalized descent in plain arithmetic."""
    import torch

    X, Z, Y = (torch.tensor(a.copy()) for a in (problem.X, problem.Z, problem.Y))
    v = torch.tensor(problem.head.v.copy())  # type: ignore[union-attr]
    W = torch.nn.Parameter(torch.zeros(problem.dx, problem.dz, dtype=torch.float64))
    watch = Stopwatch()
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
    return watch.seconds() / steps


def _matmul_seconds(problem: attsvm.AttentionProblem, parameterization: str, repeats: int = 200) -> float:
    """Seconds of the matrix products of one step alone."""
    import torch

    from attsvm.training.tensors import tensor_problem

    data = tensor_problem(problem)
    B, n, K, dz = data.Z.shape
    W = torch.zeros(B, problem.dx, dz, dtype=torch.float64)
    Z, s = data.Z.reshape(B, n * K, dz), torch.zeros(B, n, K, problem.T, dtype=torch.float64)
    watch = Stopwatch()
    for _ in range(repeats):
        keys = torch.bmm(Z, W.transpose(1, 2)).reshape(B, n, K, -1)
        _ = keys @ data.X.transpose(2, 3)
        pulled = s @ data.X
        G = torch.bmm(pulled.reshape(B, n * K, -1).transpose(1, 2), Z)
        if parameterization == "KQ":
            _ = (W @ W.transpose(1, 2), G @ W, G.transpose(1, 2) @ W)
    return watch.seconds() / repeats


def training_throughput(seed: int, *, batch: int = 500, steps: int = 300) -> dict[str, dict[str, float]]:
    """Seconds per problem and step and their ratio to the peer's, both in turn in this process, for one draw.

    Examples
    --------
    >>> from attsvm.validation.bench.training import training_throughput
    >>> list(training_throughput(0, batch=2, steps=3))
    ['attsvm W', 'attsvm KQ']
    """
    problem = attsvm.random_problem(n=5, T=5, d=10, batch=batch, seed=seed)
    with one_thread():  # the peer is faster on one thread, too
        _literature_loop(problem[0], 20)  # warm-up
        return {f"attsvm {name}": _throughput(problem, name, batch, steps) for name in ("W", "KQ")}


def _throughput(problem: attsvm.AttentionProblem, parameterization: str, batch: int, steps: int) -> dict[str, float]:
    def run(p: attsvm.AttentionProblem, steps: int) -> attsvm.Run:
        return attsvm.train(p, parameterization, steps=steps, optimizer="normalized_gd", snapshots=3)

    run(problem, 5)
    ours = measure(lambda p: run(p, steps), lambda: problem).seconds
    peer = _literature_loop(problem[0], steps)
    return {
        "seconds": ours / steps / batch,
        "times as fast as the autograd loop": peer / (ours / steps / batch),
        "peer's seconds": peer,
        "share of matrix products": _matmul_seconds(problem, parameterization) * steps / ours,
    }
