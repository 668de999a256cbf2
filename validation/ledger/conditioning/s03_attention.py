"""Section 3.2 and Appendix F: dynamics of the attention vectors, separation, and the factorization of the Jacobian."""

from __future__ import annotations

from typing import Any

import numpy as np

from attsvm.dynamics.conditioning import (
    PromptProblem,
    block_factors,
    block_jacobian,
    curvature,
    curved_loss,
    separation,
)
from attsvm.softmax import softmax
from attsvm.validation.ledger.conditioning._common import (
    Array,
    Rng,
    attention,
    autograd_hessian,
    autograd_jacobian,
    jacobian,
    realizable,
    torch_loss,
)
from attsvm.validation.ledger.record import Check, Measurement, count, each

__all__ = ["CHECKS"]


@each(1e-10, "relative error of d a / d eta at eta = 0, by automatic differentiation")
def _first_order(formula: Any, rng: Rng, k: int) -> Any:
    """One example, so decoupled: the first-order term of the attention after a step."""
    import torch

    K, u, p = rng.normal(size=(5, 4)), rng.normal(size=5), rng.normal(size=4)
    a = softmax(K @ p)
    gradient = (a @ u - 0.3) * u
    step, at = torch.tensor(K @ (K.T @ jacobian(a) @ gradient)), torch.tensor(K @ p)
    exact = autograd_jacobian(lambda eta: torch.softmax(at - eta * step, -1), torch.tensor(0.0, dtype=torch.float64))
    return np.abs(formula(jacobian(a), K) @ gradient + exact).max() / np.abs(exact).max()


@each(1e-3, "relative error of the linearized step at distance 1e-5")
def _linearization(formula: Any, rng: Rng, k: int) -> Any:
    a = attention(rng, 5, 1.0)
    root = rng.normal(size=(5, 5))
    H = root @ root.T + np.eye(5)
    direction = jacobian(a) @ rng.normal(size=5)
    h, eta = 1e-5, 0.3
    start = a + h * direction / np.linalg.norm(direction)
    gradient = H @ (start - a)
    new = softmax(np.log(start) - eta * jacobian(start) @ gradient)  # K K^T = I
    predicted = formula(jacobian(a), H, eta) @ (start - a)
    return np.linalg.norm(new - a - predicted) / np.linalg.norm(start - a)


def _bounds(formula: Any, rng: Rng, trials: int, which: str = "upper") -> Measurement:
    errors = []
    for k in range(trials):
        s = rng.integers(1, 5, size=3)  # a number of important tokens for every example
        members = np.arange(6) < s[:, None]
        scores = np.sort(rng.normal(size=(3, 6)) * 3, axis=1)[:, ::-1].copy()
        if k % 3 == 1:  # tied important scores, as the sharper bound asks
            scores = np.where(members, scores[:, :1], scores)
        elif (
            k % 3 == 2
        ):  # the bound is attained: one weakest important token, all others at the ends of Gamma and Delta
            s[:] = s[0]
            members = np.arange(6) < s[:, None]
            gap, spread = rng.uniform(0, 4), rng.uniform(0, 2)
            scores = np.where(members, spread if which == "lower" else 0.0, -gap) * np.ones((3, 1))
            scores[:, 0] = 0.0
            if which == "upper":  # one other token at the gap, the rest far below
                scores = np.where(np.arange(6) > s[:, None], -60.0, scores)
        problem, p = PromptProblem(X=scores[:, :, None], y=np.zeros(3), v=np.ones(1)), np.ones(1)
        found = separation(problem, p, members)
        if which == "lower":
            errors.append(formula(found) / found.a_I - 1)
        elif which == "upper" or k % 3:
            errors.append(found.a_U / formula(found) - 1)
    return count(errors, 1e-9, "relative excess over the bound; numbers of important tokens differ between examples")


def _lower(found: Any) -> float:
    s, n = found.sizes, found.members.shape[1]
    return 1.0 / float(1 + (s.max() - 1) * np.exp(found.spread.max()) + (n - s.min()) * np.exp(-found.gap.min()))


def _sharp_printed(found: Any) -> float:
    s, n, tail = found.sizes, found.members.shape[1], np.exp(-found.gap.min())
    return float(tail / (s.min() + (n - s.max()) * tail))


def _sharp_corrected(found: Any) -> float:
    s, n, tail = found.sizes, found.members.shape[1], np.exp(-found.gap)
    return float((tail / (s + tail * (1 + (n - s - 1) * np.exp(-found.other_spread)))).max())


@each(
    1e-7, "distance of important attention from 1/s over the bound, less 1; Gamma from 1e-6 to 0.3, Delta from 8 to 40"
)
def _limit(formula: Any, rng: Rng, k: int) -> Any:
    """Nearly equal important scores (the premise of the sentence), Delta large."""
    s, gap, spread = int(rng.integers(2, 5)), float(rng.uniform(8, 40)), float(10 ** rng.uniform(-6, -0.5))
    inside = spread * rng.random(s)
    inside[:2] = 0.0, spread
    if k % 2:  # the largest deviation: one token ahead of all others
        inside[:] = 0.0
        inside[1] = spread
    scores = np.concatenate([inside, -gap - rng.random(4)])
    return np.abs(softmax(scores)[:s] - 1 / s).max() / formula(s, spread, gap) - 1


def _even_share(s: int, spread: float, gap: float) -> float:
    """Largest distance from 1/s: of the leading token, or by what the other tokens take."""
    lead = np.exp(spread) / (np.exp(spread) + s - 1) - 1 / s
    return float(lead + 4 * np.exp(-gap) / s)


def _simplex_terms(rng: Rng) -> tuple[PromptProblem, Array]:
    return realizable(rng, 3, 4, 3, loss=curved_loss(1.0))


@each(1e-13, "error of the next attention")
def _bracket(formula: Any, rng: Rng, k: int) -> Any:
    problem, p_star = _simplex_terms(rng)
    p, eta = p_star + 0.5 * rng.normal(size=3), 0.1
    step = eta * problem.gradient(p)
    exact = softmax(problem.keys @ (p - step))
    return np.abs(formula(problem.keys @ p, problem.keys @ step) - exact).max()


@each(1e-12, "vector field at a global minimum")
def _field(formula: Any, rng: Rng, k: int) -> Any:
    """The vector field of the attention dynamics must vanish at a global minimum."""
    problem, p = _simplex_terms(rng)
    a, u, K, y = problem.weights(p), problem.values, problem.keys, problem.y
    total = np.zeros(4)
    for j in range(3):
        i = formula(0, j)  # whose loss is differentiated at a_j
        slope = float(problem.loss.slope(np.array(a[j] @ u[i] - y[i])))
        total += jacobian(a[0]) @ K[0] @ K[j].T @ jacobian(a[j]) @ (slope * u[i])
    return np.linalg.norm(total)


@each(1e-12, "difference from autograd")
def _product_rule(formula: Any, rng: Rng, k: int) -> Any:
    import torch

    A = torch.tensor(rng.normal(size=(5, 5)))
    x = torch.tensor(attention(rng, 5, 1.0))
    exact = autograd_jacobian(lambda z, A=A: (torch.diag(z) - torch.outer(z, z)) @ (A @ z**2), x)
    f, Df = (A @ x**2).numpy(), (A @ torch.diag(2 * x)).numpy()
    return np.abs(formula(x.numpy(), f, Df) - exact).max()


@each(1e-10, "relative difference from autograd")
def _block(formula: Any, rng: Rng, k: int) -> Any:
    import torch

    problem, p = realizable(rng, 3, 4, 3)
    K, u, y = (torch.tensor(np.array(part)) for part in (problem.keys, problem.values, problem.y))

    def field(a: Any, K: Any = K, u: Any = u, y: Any = y) -> Any:
        a = a.reshape(3, 4)

        def apply(i: int, w: Any) -> Any:
            return a[i] * (w - a[i] @ w)

        pulled = sum(K[j].T @ apply(j, u[j] * (a[j] @ u[j] - y[j])) for j in range(3))
        return torch.cat([apply(i, K[i] @ pulled) for i in range(3)])

    exact = autograd_jacobian(field, torch.tensor(problem.weights(p).reshape(-1)))
    return np.abs(formula(problem, p) - exact).max() / np.abs(exact).max()


@each(1e-10, "BC, symmetry of CB, and its spectrum, relative")
def _factors(formula: Any, rng: Rng, k: int) -> Any:
    problem, p = _simplex_terms(rng)
    B, C = formula(problem, p)
    whole = block_jacobian(problem, p)
    small = C @ B
    spectrum = curvature(problem, p).eigenvalues[::-1]
    return max(
        np.abs(B @ C - whole).max() / np.abs(whole).max(),
        np.abs(small - small.T).max() / np.abs(small).max(),
        np.abs(np.linalg.eigvalsh((small + small.T) / 2) - spectrum).max() / spectrum[-1],
    )


@each(1e-9, "relative difference from autograd")
def _hessian(formula: Any, rng: Rng, k: int) -> Any:
    import torch

    problem, p = _simplex_terms(rng)
    exact = autograd_hessian(torch_loss(problem), torch.tensor(p))
    return np.abs(formula(problem, p) - exact).max() / np.abs(exact).max()


def _h_p_over_n(problem: PromptProblem, p: Array) -> Array:
    total = np.zeros((problem.shape[2],) * 2)
    for K, u, a in zip(problem.keys, problem.values, problem.weights(p), strict=True):
        H = problem.loss.L * np.outer(u, u)  # curvature at residual zero
        total += K.T @ jacobian(a) @ H @ jacobian(a) @ K
    return total / len(problem.X)


CHECKS = {
    "E12": Check(_first_order, lambda J, K: J @ J, lambda J, K: J @ K @ K.T @ J, trials=30),
    "P1-lin": Check(_linearization, lambda J, H, eta: np.eye(len(J)) - eta * J @ J @ H, trials=50),
    "L3-13": Check(lambda formula, rng, trials: _bounds(formula, rng, trials, "lower"), _lower),
    "L3-14": Check(_bounds, lambda f: 1 / (1 + f.sizes.min() * np.exp(f.gap.min()))),
    "L3-sharp": Check(
        lambda formula, rng, trials: _bounds(formula, rng, trials, "sharp"), _sharp_printed, _sharp_corrected
    ),
    "Rk5": Check(_limit, _even_share),
    "E36": Check(
        _bracket, lambda scores, step: softmax(scores) - step, lambda scores, step: softmax(scores - step), trials=30
    ),
    "E38": Check(_field, lambda i, j: i, lambda i, j: j, trials=30),
    "E40": Check(
        _product_rule,
        lambda x, f, Df: jacobian(x) @ Df - np.outer(x, f) + np.diag(f) - (x @ f) * np.eye(len(x)),
        trials=30,
    ),
    "E43": Check(_block, block_jacobian, trials=10),
    "E44": Check(_factors, block_factors, trials=20),
    "E-Hp": Check(_hessian, _h_p_over_n, trials=20),
}
