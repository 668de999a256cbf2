"""Mistakes that a careful reader could make with the formulas of this paper: each must be rejected by its check.

A list holds several for one claim. `attsvm.validation.ledger.mutate` adds constants off by ten per cent.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from attsvm.dynamics.localization import entropy_lower_bound, rho, rho_slope, signal_moments, signal_propagation
from attsvm.softmax import softmax

__all__ = ["SLIPS"]


def scaled(correct: Any, factor: float = 1.05) -> Any:
    return lambda *arguments: factor * correct(*arguments)


def off_by_one(i: int, j: int, T: int, trace: float, square: float) -> float:
    return i * j * (3 * square + trace**2)


def mean_lemma3(W: Any, S: Any, a: Any, m: Any) -> Any:
    t, form = np.trace(W @ S), m @ W @ m
    return t + form, S[0, 1] + m[0] * m[1], (a @ W @ m) * (t + form), t**2 + 2 * t * form + form**2


SLIPS: dict[str, Any] = {
    "1": lambda T: (np.eye(T) / T, 1 / T),  # without the centering
    "2": lambda omega: (omega - np.median(omega)) / len(omega),
    "3": lambda L: softmax(L.ravel()).reshape(L.shape),  # over all entries
    "4": lambda signal: 1.0,
    "5": mean_lemma3,  # without the cumulant terms
    "6": lambda i, j, T, trace, square: j * trace + 1,
    "7": off_by_one,
    "8": off_by_one,
    "9": off_by_one,
    "10": off_by_one,
    "11": lambda T, r: (np.arange(1, T + 1) / T) * r,  # not centered
    "12": lambda theta: 2 * (theta - 0.5) ** 2 + 1 / 10,
    "13": lambda i, T: (3 * T * T * i - 2 * T * i * i, T * T * i - i**3),
    "14": lambda A, S, T: signal_moments(A, T, S, temperature=1.0).variance,  # of the matrix itself
    "15": lambda d, square: np.sqrt(0.9 * d * square),
    "16": lambda theta, xi, eta: rho(theta, xi, 2 * eta),
    "17": lambda square, temperature: square / temperature,
    "18": lambda T, eta: 0.5 * (1 + 1 / eta) / T,
    "19": lambda theta, r: (np.abs(theta - 0.5) < 1 / abs(r)).astype(float),  # a window on both sides
    "20": lambda theta, eta: (theta - 0.5) / eta,
    "21": (rho, scaled(rho_slope, 0.9)),
    "22": lambda theta, xi: np.full_like(theta, 0.5),
    "23": lambda eta: 0.5 * np.tanh(1 / eta),
    "24": lambda xi, eta: eta <= 0.3,
    "25": 0.04,
    "26": lambda d, r: r / d,
    "27": lambda spectrum, T, temperature: signal_propagation(spectrum, T, None, temperature, "printed").rho,
    "28": lambda W, S: (abs(np.trace(W @ S)) / np.linalg.norm(S, 2), np.linalg.norm(W, 2)),
    "29": lambda W, S: (np.linalg.norm(W), np.abs(W).sum(axis=0).max()),  # the induced norm
    "30": lambda d, trace, square: square - trace**2 / d,
    "31": lambda nu, T: entropy_lower_bound(nu, T, form="asymptotic"),  # above the minimum at finite T
    "32": lambda T: np.log(T),
    "33": lambda W, S: (abs(np.trace(W)), np.sqrt(np.trace(W @ S @ W @ S))),
    "34": lambda W, S: (np.linalg.norm(W), np.sqrt(np.trace(W @ S @ W @ S))),
    "35": lambda Q, K: (K @ K.T @ Q, Q @ Q.T @ K),
    "36": lambda Q, K: (2 * K, 2 * Q),
    "37": lambda k1, k2: {"mean": k1 * k2, "scale": k1},
    "38": lambda d: 1.9 * np.sqrt(d),  # just below the threshold
    "39": lambda X, y, W, W_v, W_f, temperature: np.zeros_like(W),
    "39b": lambda X, y, W, W_v, W_f, temperature: np.ones_like(W),
    "40": (True, False),
    "41": {"mean": 1, "scale": 1},
    "42": {"query": "last", "sign": -1},
    "43": {"entropy": -1, "spread": -1},
    "44": 0,
    "46": "diagonal",
    "47": "diagonal",
}
