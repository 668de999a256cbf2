"""Mistakes that a careful reader could make with the formulas of this paper: each must be rejected by its check.

A list holds several for one claim. `attsvm.validation.ledger.mutate` adds constants off by ten per cent.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from attsvm.dynamics.conditioning import block_factors, block_jacobian, sampled_leakage
from attsvm.softmax import softmax
from attsvm.validation.ledger.conditioning._common import jacobian

__all__ = ["SLIPS"]

SLIPS: dict[str, Any] = {
    "E5-6": lambda z: np.diag(z) - np.outer(z, z) / 2,
    "L1.1-2": lambda z: np.diag(z) - 1.01 * np.outer(z, z),
    "L1.3": lambda z: (z[1:], np.full(len(z) - 1, z[-1])),
    "L1+": lambda z: (z[0], z[0] * 1.0001, z[-1] / 4, z[-1]),
    "P1-hyp": lambda n: n - 1,
    "P1-kap": lambda a, mu, L: (L / mu * (a.max() / a.min()), np.inf),
    "P1-ord": lambda a, mu, L: (mu / L * (np.sort(a)[-1] / np.sort(a)[0]) ** 2, np.inf),
    "P1-fix": lambda a, mu, L: (0.0, (a.max() / a.min()) ** 0.5),
    "P1-rate": lambda kappa: np.sqrt(1 - 1 / kappa),
    "J3-k": lambda a: np.log(a.max() / a.min()),
    "E8-9": lambda problem, p: problem.gradient(p) * 1.001,
    "E10": lambda p, eta, F, g: p + 0.5 * eta * F.T @ g,
    "L2": lambda m, N, s, excess: m * N**2 * s**2 * excess * 2,
    "Rk1": lambda F: np.linalg.svd(F, compute_uv=False)[-1],
    "E22": lambda m, L, N, C, sW, v, e: 0.45 * np.sqrt(2 * L * e) * C**2 * sW * v,
    "E25": 0.26,
    "E26": lambda now, then, m, L: np.sqrt(2 * m * now) * 0.9,
    "E28": 0.49,
    "L4-L'": lambda C, sW, L, v, excess, m: sW * C**3 * L * v * (2 * C * v + 3 * np.sqrt(2 * excess / m)) / 50,
    "L4-mu": lambda c, L: c * L**2,
    "L4-gam": lambda C, sW, v, N, r: min(2.0, 3 * C * sW * r) * C**2 * sW * v / N**2 / 50,
    "E32": lambda L: 20 / L,  # beyond the true curvature
    "T1ii": (lambda alpha, distance: distance >= 1e-3, "corrected"),
    "L5a": lambda N, n, d: d >= N,
    "Lim": lambda K, p: 0.5 * np.linalg.norm(K, 2) * np.linalg.norm(p),
    "E12": lambda J, K: J @ K @ K.T,
    "P1-lin": lambda J, H, eta: np.eye(len(J)) - eta * J @ H,
    "L3-13": [
        lambda f: 1 / (1 + (f.sizes.max() - 1) * np.exp(f.spread.max())),  # without the other tokens
        lambda f: 1 / (1 + (f.sizes.min() - 1) * np.exp(f.spread.max()) + (6 - f.sizes.min()) * np.exp(-f.gap.min())),
        lambda f: 1 / (1 + f.sizes.max() * np.exp(f.spread.max()) / 2 + (6 - f.sizes.min()) * np.exp(-f.gap.min())),
    ],
    "L3-14": [
        lambda f: 1 / (1 + f.sizes.max() * np.exp(f.gap.min())),  # max for min
        lambda f: 1 / (1 + f.sizes.min() * np.exp(f.gap.max())),
        lambda f: 1 / (2 + f.sizes.min() * np.exp(f.gap.min())),
    ],
    "L3-sharp": lambda f: float(  # without the e^-Omega
        (np.exp(-f.gap) / (f.sizes + (6 - f.sizes) * np.exp(-f.gap))).max()
    ),
    "Rk5": [
        lambda s, spread, gap: np.exp(spread) / (np.exp(spread) + s - 1) - 1 / s,  # without the other tokens
        lambda s, spread, gap: (np.exp(spread) - 1) / s**2 + 4 * np.exp(-gap) / s,
    ],
    "E36": lambda scores, step: softmax(scores + step),
    "E38": lambda i, j: (j + 1) % 3,
    "E40": lambda x, f, Df: jacobian(x) @ Df - np.outer(x, f) + np.diag(f),
    "E43": lambda problem, p: block_jacobian(problem, p).T,
    "E44": lambda problem, p: (block_factors(problem, p)[0], 2 * block_factors(problem, p)[1]),
    "E-Hp": lambda problem, p: problem.rows(p).T @ problem.rows(p) / len(problem.X),
    "L6": [("printed", 1.25), ("printed", 5.0)],
    "L7": ("corrected", 1e-2),
    "T2-tight": ("tight", 100.0),
    "T2": [1.0, 3.0, 4.0],  # powers of delta_min
    "Rk7": lambda s: s <= 2,
    "L4-Cp": "printed",
    "T1i": "printed",
    "T2-ex": "printed",
    "C1-step": lambda eta, low, N: 1 - 2 * eta * low / N,
    "C1-16": lambda kappa, t: (1 - 1 / kappa) ** t,
    "J3-rho": lambda p, m, b: sampled_leakage(p, m, b, directions=2000, seed=0),
    "Abs": lambda s: s <= 2,
    "X1": [(150, 150), (400, 400), (150, 20)],
    "X7": 7.0,
    "asmA": lambda a, u: 1.01 * (a * u).sum(axis=1),
    "asmB": 0.05,
    "E37": lambda K, a, slopes: jacobian(a[0]) @ sum(K[0] @ K[j].T @ slopes[j] for j in range(3)),  # a J lost
    "E42": lambda a, slope, H: jacobian(a) @ H - np.outer(slope, a) + np.diag(slope) - (a @ slope) * np.eye(len(a)),
    "E46": (lambda curve, rows, x: float(curve**2 @ (rows @ x) ** 2), (1.0, 2.0)),
    "L6-sing": [
        lambda head, smallest, v: head * smallest / v,
        lambda head, smallest, v: 1.2 * head * smallest**2 / v**2,
    ],
    "Rk3": -1.0,
    "Rk8": lambda W, v: W.T @ v,
}
