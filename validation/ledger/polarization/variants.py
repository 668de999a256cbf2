"""Mistakes that a careful reader could make with the formulas of this paper: each must be rejected by its check.

A list holds several for one claim. `attsvm.validation.ledger.mutate` adds constants off by ten per cent.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from attsvm.dynamics import polarization as pol

__all__ = ["SLIPS"]

SLIPS: dict[str, Any] = {
    "C01": lambda V, a, r: pol.full_rates(V, a, 0.9 * np.asarray(r)),
    "C02": lambda u, s, b, gamma: (gamma * s, gamma * s * (u - s @ u)),  # b forgotten
    "C03": lambda u, s, b, gamma: (gamma * b * s, gamma * s * u),  # not centred
    "C04": lambda u, s, gamma: gamma * (u - s @ u),  # without s_i
    "C05": lambda u, s: s * (u - s @ u),  # J for J^2
    "C06": lambda beta, target: float(np.abs(beta - target).sum()),
    "C07": [lambda u, s: float(u.mean()), lambda u, s: float(np.median(u))],  # the plain average
    "C08": lambda flow: pol.order_margin(flow) - 0.5,
    "C09": lambda flow: pol.repulsion_margin(flow) - 2 * flow.b,  # faster than b s can be
    "C10": lambda flow: -pol.logit_gap_margin(flow),
    "C11": lambda u, a, b: pol.potential_rate(u, a, b + 1),
    "C12": lambda b, t: 1e-3,
    "C13": lambda flow: pol.mean_margin(flow) - np.abs(flow.u).max(),
    "C14": lambda flow: pol.ratio_margin(flow) - 20,  # a bound e^20 times smaller
    "C15": lambda flow: pol.projection_margin(flow) - 3,
    "C16": lambda flow: pol.polarization_margin(flow, form="printed") - 5,
    "C17": lambda b: 2 / b,
    "C18": lambda u: int(np.argmin(u)),
    "C19": lambda p, tau: 1 / (p * tau),  # half of the true remainder
    "C20": lambda p, b, log_t: 1 * b / (p * log_t**2),
    "C21": lambda rng: float(rng.uniform(0.5, 1.5)),
    "C22": lambda: 1.1,
    "C23": lambda u: np.ones(u.size) / np.sqrt(u.size),
    "C24": lambda: True,
    "C25": {"both": True, "a only": True, "V only": True},
    "C26": lambda u, beta: np.outer(beta, u),
    "C27": lambda rng: np.array([6.0, 3.0, 1.0, 0.5, 0.0]),  # starts beyond the target
    "C28": lambda p: (1.0, 2.0),
    "C29": lambda: 0.999999,
    "C30": [lambda norm, tau: tau, lambda norm, tau: norm**-0.1 * tau],  # the integral of gamma
    "C31": lambda p: 3.0,
    "C32": lambda plain, bad: bad > plain,
    "C33": lambda steps: bool(steps[-1] == steps.min()),
    "C34": "printed",
    "C35": lambda a: (a**2).sum(axis=-1),
    "C36": lambda p, d: 2.0 / np.sqrt(p),
    "C37": lambda V, a: pol.tangent_kernel(V, a) + 0.1 * np.eye(len(V)),
    "C38": lambda u, a, b, gamma, name: tuple(-gamma * x for x in pol.orbit_rates(u, a, b, name)),
    "C39": lambda kind, a: bool(kind.value(a).sum() < 0),
    "C40": "square",
    "C41": lambda b, a0: -b / float(a0 @ a0),
    "C42": "relu_norm",
    "C43": "relu_norm",
    "C44": 0.2,
    "C45": "sigmoid",
    "C46": lambda u: int(np.argmin(u)),
    "C47": 1.0,  # A(0) of order one
    "C48": lambda V, beta: beta @ V.T + 1.0,
    "C49": lambda a, s: int(np.argmin(s)),
    "C50": ("sigmoid_unnorm", "softmax"),
    "C51": (4, 1),
    "C52": lambda task, samples: samples / 2,
    "C56": True,
    "C58": lambda a, c: a * (1 + c),
}
