"""Lemma 1, Proposition 1 and the proxy: the softmax Jacobian and its condition number."""

from __future__ import annotations

from typing import Any

import numpy as np

from attsvm.softmax import condition_bounds, condition_number, jacobian_spectrum
from attsvm.validation.ledger.conditioning._common import (
    Array,
    Rng,
    attention,
    autograd_hessian,
    autograd_jacobian,
    jacobian,
    realizable,
)
from attsvm.validation.ledger.record import Check, Measurement, count, each

__all__ = ["CHECKS"]


@each(1e-14, "difference from autograd")
def _derivative(formula: Any, rng: Rng, k: int) -> Any:
    import torch

    w = torch.tensor(rng.normal(size=6) * 3)
    exact = autograd_jacobian(lambda x: torch.softmax(x, -1), w)
    return np.abs(formula(torch.softmax(w, -1).numpy()) - exact).max()


@each(1e-14, "asymmetry, negative eigenvalue or J 1")
def _semidefinite(formula: Any, rng: Rng, k: int) -> Any:
    J = formula(attention(rng))
    lowest = -np.linalg.eigvalsh((J + J.T) / 2)[0]
    return max(lowest, np.abs(J - J.T).max(), np.abs(J.sum(axis=1)).max())


@each(1e-9, "relative excess over the bounds")
def _interlacing(formula: Any, rng: Rng, k: int) -> Any:
    z = np.sort(attention(rng))
    values = jacobian_spectrum(z)[1:]
    low, high = formula(z)
    return (low / values).max() - 1, (values / high).max() - 1


@each(1e-9, "relative excess over the bounds on lam_2 and lam_n")
def _extremes(formula: Any, rng: Rng, k: int) -> Any:
    z = np.sort(attention(rng))
    values = jacobian_spectrum(z)
    low_2, high_2, low_n, high_n = formula(z)
    return np.array([low_2 / values[1], values[1] / high_2, low_n / values[-1], values[-1] / high_n]) - 1


def _extremes_printed(z: Array) -> tuple[float, float, float, float]:
    # 1 - z as the sum of the others: a difference would lose the digits of a small one.
    n, q = len(z), z * np.array([z[:i].sum() + z[i + 1 :].sum() for i in range(len(z))])
    return (
        z[0],
        min(z[1], n / (n - 1) * q[0]),
        max(z[-2], n / (n - 1) * q.max()),
        min(z[-1], 0.5, 2 * q.max()),
    )


def _tangent_kappa(J: Array, H: Array) -> float:
    """Condition number of J^2 H on the tangent space, by the symmetric J_T H_T J_T."""
    n = len(J)
    Q = np.linalg.qr(np.column_stack([np.ones(n), np.eye(n)[:, : n - 1]]))[0][:, 1:]
    J_T, H_T = Q.T @ J @ Q, Q.T @ H @ Q
    values = np.linalg.eigvalsh(J_T @ H_T @ J_T)
    return float(values[-1] / values[0])


@each(1e-6, "relative excess over the bounds on kappa(J^2 H)")
def _with_hessian(formula: Any, rng: Rng, k: int) -> Any:
    a = attention(rng, scale=1.5)
    n = len(a)
    if k % 4 == 0 and n > 2:  # one dominant token
        eps = 10 ** -rng.uniform(1, 5)
        a = np.array([1 - eps] + (n - 1) * [eps / (n - 1)])
    root = np.eye(n) + 0.2 * rng.normal(size=(n, n))
    H = root @ root.T
    Q = np.linalg.qr(np.column_stack([np.ones(n), np.eye(n)[:, : n - 1]]))[0][:, 1:]
    sizes = np.linalg.eigvalsh(Q.T @ H @ Q)
    low, high = formula(a, sizes[0], sizes[-1])
    kappa = _tangent_kappa(jacobian(a), H)
    return low / kappa - 1, kappa / high - 1


def _khat(a: Array) -> float:
    return float(condition_bounds(a)[0])


def _fixed_bounds(a: Array, mu: float, L: float) -> tuple[float, float]:
    return mu / L * _khat(a) ** 2, L / mu * 4 * (1 - a.min()) ** 2 * _khat(a) ** 2


def _best_rate(formula: Any, rng: Rng, trials: int) -> Measurement:
    kappa = np.exp(rng.uniform(0.1, 6, size=trials))
    steps = np.linspace(0.01, 2, 4000)[:, None] / kappa
    best = np.maximum(np.abs(1 - steps), np.abs(1 - steps * kappa)).min(axis=0)
    return count(np.abs(formula(kappa) - best), 2e-3, "difference from the best step on a grid")


@each(0.5, "difference from the rank of the Hessian of the model's loss in attention")
def _rank(formula: Any, rng: Rng, k: int) -> Any:
    import torch

    problem, _p = realizable(rng, 1, int(rng.integers(3, 7)), 4)
    u, y = torch.tensor(problem.values[0]), float(problem.y[0])
    x = torch.tensor(attention(rng, len(u)))
    H = autograd_hessian(lambda z, u=u, y=y: 0.5 * (z @ u - y) ** 2, x)
    return abs(np.linalg.matrix_rank(H, tol=1e-9) - formula(len(u)))


@each(np.log(4) + 1e-6, "log of estimate over kappa(J^2)")
def _estimate(formula: Any, rng: Rng, k: int) -> Any:
    a = attention(rng, 50, rng.uniform(1, 8))
    return abs(formula(a) - 2 * float(condition_number(a, log=True)))


def _order(a: Array, mu: float, L: float) -> tuple[float, float]:
    z = np.sort(a)
    return (mu / L * (z[-2] / z[1]) ** 2 if len(z) > 2 else mu / L), np.inf


CHECKS = {
    "E5-6": Check(_derivative, lambda z: np.diag(z) @ (np.eye(len(z)) - np.outer(np.ones(len(z)), z))),
    "L1.1-2": Check(_semidefinite, jacobian),
    "L1.3": Check(_interlacing, lambda z: (np.full(len(z) - 1, z[0]), np.full(len(z) - 1, z[-1]))),
    "L1+": Check(_extremes, _extremes_printed),
    "P1-hyp": Check(_rank, lambda n: n, lambda n: 1, trials=30),
    "P1-kap": Check(
        _with_hessian,
        lambda a, mu, L: (mu / L * (a.max() / a.min()) ** 2, np.inf),
        lambda a, mu, L: (_fixed_bounds(a, mu, L)[0], np.inf),
    ),
    "P1-ord": Check(_with_hessian, _order),
    "P1-fix": Check(_with_hessian, _fixed_bounds),
    "P1-rate": Check(_best_rate, lambda kappa: 1 - 1 / kappa, lambda kappa: (kappa - 1) / (kappa + 1)),
    "J3-k": Check(_estimate, lambda a: 2 * np.log(a.max() / a.min()), lambda a: 2 * np.log(_khat(a))),
}
