"""What gradients cost beside the solve: forward and backward of this library, cvxpylayers (diffcp) and moreau.

All get the same tensors and the same sum of W as what is differentiated; peers build their rows by torch operations, so
that their gradients reach the tokens, too. Times are per problem; one draw is one batch.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import numpy as np

import attsvm
from attsvm.validation.bench.measurement import Numbers, Stopwatch, one_thread

__all__ = ["PEERS_WITH_GRADIENTS", "gradient_speed", "rows_of_tensors"]


def rows_of_tensors(X: Any, Z: Any, selected: Any) -> Any:
    """Rows ``vec((x_selected - x_t) z^T)`` of a batch as a tensor (batch, n (T - 1), dx dz).

    Examples
    --------
    >>> import torch
    >>> from attsvm.validation.bench.gradient_cases import rows_of_tensors
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


def _timed(call: Callable[[], Any], repeats: int) -> tuple[Any, float]:
    """The answer and the least time of some calls."""
    call()
    seconds, answer = [], None
    for _ in range(repeats):
        watch = Stopwatch()
        answer = call()
        seconds.append(watch.seconds())
    return answer, min(seconds)


def _measured(solve: Callable[..., Any], data: tuple[Any, Any, Any], repeats: int) -> tuple[dict[str, float], Any]:
    """Milliseconds per problem of forward and backward, and the gradient in the tokens."""
    import torch

    X, Z, selected = data
    value, forward = _timed(lambda: solve(X, Z, selected), repeats)
    ones = torch.ones_like(value)

    def back() -> Any:
        return torch.autograd.grad(solve(X, Z, selected), (X, Z), ones)

    grads, both = _timed(back, repeats)
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
    >>> from attsvm.validation.bench.gradient_cases import gradient_speed
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
