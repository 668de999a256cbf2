"""Assumptions, remarks and the steps of the proof of Theorem 2 that have equations of their own."""

from __future__ import annotations

from typing import Any

import numpy as np

from attsvm.dynamics.conditioning import curved_loss, leakage, structured_teacher, value_margins
from attsvm.softmax import condition_number, softmax
from attsvm.validation.ledger.conditioning._common import (
    Array,
    Rng,
    autograd_jacobian,
    jacobian,
    realizable,
    torch_loss,
)
from attsvm.validation.ledger.conditioning.s04_theorem2 import instance
from attsvm.validation.ledger.record import Check, each

__all__ = ["CHECKS"]


@each(1e-12, "gradient and loss at p*, by automatic differentiation, relative to those beside it")
def _realizable(formula: Any, rng: Rng, k: int) -> Any:
    """Labels (attention, values) -> y under which p* must be a global minimum with loss 0."""
    import torch

    problem, p_star = realizable(rng, 4, 5, 3, loss=curved_loss(float(k % 2)))
    problem = problem.with_labels(formula(problem.weights(p_star), problem.values))
    loss = torch_loss(problem)
    slopes = [autograd_jacobian(loss, torch.tensor(p)) for p in (p_star, p_star + 0.1)]
    values = [float(loss(torch.tensor(p))) for p in (p_star, p_star + 0.1)]
    return max(np.abs(slopes[0]).max() / np.abs(slopes[1]).max(), values[0] / values[1])


@each(1e-9, "leakage of important keys that lie in I, or leakage 1 and more, or a margin of zero")
def _structure(formula: Any, rng: Rng, k: int) -> Any:
    """The size of the part in U for which (B1) holds with rho_U = 0; otherwise rho_U is positive."""
    share = formula if k % 2 else 0.0
    teacher, members, basis = structured_teacher(20, 8, 6, 2, gap=3.0, leakage=share, seed=rng)
    rho = float(leakage(teacher.problem, members, basis).max())
    return rho if value_margins(teacher.problem, teacher.p_star, members).min() > 0 else 1.0


@each(1e-10, "relative error of d a_i / d eta at eta = 0, three coupled examples")
def _coupled(formula: Any, rng: Rng, k: int) -> Any:
    import torch

    problem, p_star = realizable(rng, 3, 4, 5, scale=0.3)  # no example saturates
    p = p_star + rng.normal(size=5)
    a = problem.weights(p)
    slopes = [(a[j] @ problem.values[j] - problem.y[j]) * problem.values[j] for j in range(3)]
    step = sum(problem.keys[j].T @ jacobian(a[j]) @ slopes[j] for j in range(3)) / 3
    K, at = torch.tensor(problem.keys[0]), torch.tensor(p)
    exact = autograd_jacobian(
        lambda eta: torch.softmax(K @ (at - eta * torch.tensor(step)), -1), torch.tensor(0.0, dtype=torch.float64)
    )
    return np.abs(-formula(problem.keys, a, slopes) / 3 - exact).max() / np.abs(exact).max()


def _first_order(K: Array, a: Array, slopes: list[Array]) -> Array:
    """Equation (37), the sum over j."""
    return np.asarray(jacobian(a[0]) @ sum(K[0] @ K[j].T @ jacobian(a[j]) @ slopes[j] for j in range(len(K))))


@each(1e-10, "relative error of d V_i / d a_k, i != k, by automatic differentiation, away from minima")
def _mixed_block(formula: Any, rng: Rng, k: int) -> Any:
    import torch

    K = rng.normal(size=(2, 4, 3))
    a, u, y = softmax(rng.normal(size=(2, 4))), rng.normal(size=(2, 4)), rng.normal(size=2)
    tensors = [torch.tensor(x) for x in (K, a, u, y)]

    def field(other: Any) -> Any:
        keys, weights, values, labels = tensors
        slope = (other @ values[1] - labels[1]) * values[1]
        pulled = keys[1].T @ (other * (slope - other @ slope))
        w = keys[0] @ pulled
        return weights[0] * (w - weights[0] @ w)

    exact = autograd_jacobian(field, tensors[1][1])
    slope = (a[1] @ u[1] - y[1]) * u[1]
    own = jacobian(a[0]) @ K[0] @ K[1].T @ formula(a[1], slope, np.outer(u[1], u[1]))
    return np.abs(own - exact).max() / np.abs(exact).max()


def _product(a: Array, slope: Array, H: Array) -> Array:
    """The bracket of (42)."""
    return np.asarray(jacobian(a) @ H - np.outer(a, slope) + np.diag(slope) - (a @ slope) * np.eye(len(a)))


@each(1e-10, "relative error of x^T M x, and violation of m M~ <= M <= L M~")
def _sandwich(formula: Any, rng: Rng, k: int) -> Any:
    """(quadratic form, (m, L)): losses of curvature 1 to 2, half of the residuals away from 0."""
    form, (m, L) = formula
    problem, p = realizable(rng, 6, 5, 3, loss=curved_loss(1.0))
    at_zero = k % 2 == 0
    residual = np.zeros(6) if at_zero else rng.normal(size=6) * 3
    curve = problem.loss.curvature(residual)
    a, x = problem.weights(p), rng.normal(size=3)
    rows = np.stack([K.T @ jacobian(w) @ u for K, w, u in zip(problem.keys, a, problem.values, strict=True)])
    M, plain = (rows.T * curve) @ rows, rows.T @ rows
    size = np.linalg.norm(plain, 2)
    gaps = [np.linalg.eigvalsh(M - m * plain)[0], np.linalg.eigvalsh(L * plain - M)[0]]
    exact = x @ M @ x
    return abs(form(curve, rows, x) - exact) / exact, -gaps[0] / size, -gaps[1] / size


@each(1e-9, "relative excess over lambda_max; W random, and a case where the bound is attained")
def _singular_form(formula: Any, rng: Rng, k: int) -> Any:
    """Lemma 6, second bound: (N a_I^2 s^2 delta^4, sigma_min(W), |v|) -> number."""
    from attsvm.dynamics.conditioning import curvature, separation

    problem, p, members, _ = instance(rng, 2 if k % 2 else 3)
    found, delta = separation(problem, p, members), float(value_margins(problem, p, members).min())
    W = np.eye(problem.shape[2]) if problem.W is None else problem.W
    head = len(problem.X) * found.a_I**2 * float(found.sizes.min()) ** 2 * delta**4
    bound = formula(head, float(np.linalg.svd(W, compute_uv=False)[-1]), float(np.linalg.norm(problem.v)))
    return bound / float(curvature(problem, p).eigenvalues[0]) - 1


@each(0.02, "exponent of kappa(J^2) in the smallest attention, 1e-6 to 1e-9")
def _exponent(formula: float, rng: Rng, k: int) -> Any:
    """One attention weight tends to 0, the others (two at least) keep their ratios."""
    rest = softmax(rng.normal(size=int(rng.integers(2, 9))))
    logs, sizes = [], np.array([1e-6, 1e-9])
    for eps in sizes:
        logs.append(2 * float(condition_number(np.append((1 - eps) * rest, eps), log=True)))
    return abs((logs[1] - logs[0]) / np.log(sizes[1] / sizes[0]) - formula)


@each(1e-9, "K_i x beside u_i for every example, relative; and another solution")
def _canonical(formula: Any, rng: Rng, k: int) -> Any:
    problem, _ = realizable(rng, 4, 5, 3)
    assert problem.W is not None
    x = formula(problem.W, problem.v)
    stacked = problem.keys.reshape(-1, 3)
    unique = np.linalg.lstsq(stacked, problem.values.ravel(), rcond=None)[0]
    error = np.abs(stacked @ x - problem.values.ravel()).max() / np.abs(problem.values).max()
    return max(error, np.linalg.norm(unique - x) / np.linalg.norm(unique))


CHECKS = {
    "asmA": Check(_realizable, lambda a, u: (a * u).sum(axis=1), trials=20),
    "asmB": Check(_structure, 0.0, trials=10),
    "E37": Check(_coupled, _first_order, trials=20),
    "E42": Check(_mixed_block, _product, trials=20),
    "E46": Check(_sandwich, (lambda curve, rows, x: float(curve @ (rows @ x) ** 2), (1.0, 2.0)), trials=30),
    "L6-sing": Check(_singular_form, lambda head, smallest, v: head * smallest**2 / v**2, trials=30),
    "Rk3": Check(_exponent, -2.0, trials=20),
    "Rk8": Check(_canonical, lambda W, v: np.linalg.solve(W, v), trials=20),
}
