"""Equation (6), Lemma 2 and Figures 2 and 3: the propagation probability as a curve."""

from __future__ import annotations

from typing import Any

import numpy as np

from attsvm.dynamics.localization import (
    QKSpectrum,
    interval_probability,
    qk_spectrum,
    rho,
    rho_limit,
    rho_slope,
    signal_propagation,
    signal_weights,
    summarize,
)
from attsvm.validation.ledger.localization._common import Array, Rng, symmetric
from attsvm.validation.ledger.record import Check, Measurement, count, each

__all__ = ["CHECKS"]

_THETA = np.linspace(0, 1, 41)


def _spectrum(rng: Rng, d: int, xi: float, scale: float = 1.0) -> QKSpectrum:
    """Eigenvalues with the given xi = tr / sqrt(tr W^2), |xi| <= sqrt(d), and tr(W^2) = scale^2."""
    w = rng.standard_normal(d)
    w -= w.mean()
    w *= np.sqrt(1 - xi**2 / d) / np.linalg.norm(w)
    return QKSpectrum(np.diag(scale * (w + xi / d)), d, d)


def _law(spectrum: QKSpectrum, T: int, places: Any, temperature: float) -> Array:
    """Exact probabilities at some positions (from 1)."""
    weights = signal_weights(spectrum, T, temperature)[np.asarray(places, dtype=int) - 1]
    low = np.full(len(weights), -1 / T)
    return interval_probability(weights, low, 1 + low)[0]


@each(0.06, "error of rho against the exact law, d = 60, T = 1000")
def _curve(formula: Any, rng: Rng, k: int) -> Any:
    T = 1000
    places = np.array([1, 100, 250, 400, 500, 550, 600, 750, 900, 1000])
    xi, eta = rng.uniform(-6, 6), np.exp(rng.uniform(np.log(0.3), np.log(3)))
    exact = _law(_spectrum(rng, 60, xi), T, places, 1 / eta)
    return np.abs(formula(places / T, xi, eta) - exact).max()


@each(1e-9, "change of rho with this eta")
def _eta(formula: Any, rng: Rng, k: int) -> Any:
    spectrum, temperature = qk_spectrum(symmetric(rng, 6)), float(rng.uniform(1.5, 6))
    exact = signal_propagation(spectrum, 40, temperature=temperature, method="asymptotic")
    own = rho(exact.theta, spectrum.xi, formula(spectrum.trace_squared, temperature))
    return np.abs(own - exact.rho).max()


@each(0.0, "relative excess of the change of rho over the bound; variance as corrected")
def _offset(formula: Any, rng: Rng, k: int) -> Any:
    """What gamma_0 = 1/T and the finite-T moments change in rho at fixed xi and eta, T = 100, 1000, 10000."""
    xi, eta = float(rng.uniform(-6, 6)), float(np.exp(rng.uniform(np.log(0.3), np.log(3))))
    spectrum = _spectrum(rng, 60, xi)
    for T in (100, 1000, 10000):
        both = [signal_propagation(spectrum, T, None, 1 / eta, name).rho for name in ("asymptotic", "gaussian")]
        yield np.abs(both[0] - both[1]).max() / formula(T, eta) - 1


@each(1e-3, "error of the limit at xi = 1e6, ends included")
def _limit(formula: Any, rng: Rng, k: int) -> Any:
    r = float(rng.choice([-1, 1]) * rng.choice([rng.uniform(0.2, 1.9), rng.uniform(2.1, 20)]))
    theta = np.append(rng.uniform(0, 1, 20), 0.5)
    end = 0.5 + 1 / r
    if 0 <= end <= 1:
        theta = np.append(theta, end)
    near = (np.abs(theta - 0.5) < 1e-3) | (np.abs(theta - end) < 1e-3)
    theta = theta[~near | (theta == 0.5) | (theta == end)]
    return np.abs(formula(theta, r) - rho(theta, np.sign(r) * 1e6, abs(r) * 1e-6)).max()


@each(1e-6, "error of the slope as xi -> 0")
def _traceless(formula: Any, rng: Rng, k: int) -> Any:
    step = 1e-5
    theta, eta = rng.uniform(0.01, 0.99), np.exp(rng.uniform(np.log(0.3), np.log(10)))
    numeric = (rho(theta + step, 1e-9, eta) - rho(theta - step, 1e-9, eta)) / (2 * step)
    return abs(formula(theta, eta) - float(numeric))


@each(1e-5, "slope against differences of its curve")
def _slope(formula: Any, rng: Rng, k: int) -> Any:
    """The formula is a curve and its slope: they must belong together."""
    curve, slope = formula
    step = 1e-5
    theta, xi, eta = rng.uniform(0.01, 0.99), rng.uniform(-8, 8), np.exp(rng.uniform(np.log(0.3), np.log(10)))
    numeric = (curve(theta + step, xi, eta) - curve(theta - step, xi, eta)) / (2 * step)
    return abs(float(slope(theta, xi, eta)) - float(numeric))


@each(2e-6, "rho minus its limit at eta = 1e6")
def _vanishing(formula: Any, rng: Rng, k: int) -> Any:
    xi = rng.uniform(-10, 10)
    return np.abs(rho(_THETA, xi, 1e6) - formula(_THETA, xi)).max()


@each(0.03, "error at the middle for any xi, d = 60, T = 1001")
def _middle(formula: Any, rng: Rng, k: int) -> Any:
    T = 1001
    xi, eta = rng.uniform(-6, 6), np.exp(rng.uniform(np.log(0.3), np.log(3)))
    exact = _law(_spectrum(rng, 60, xi), T, np.array([501]), 1 / eta)[0]
    return abs(formula(eta) - exact)


def _uniform(formula: Any, rng: Rng, trials: int) -> Measurement:
    """Where the rule says uniform, the lowest rho must be within 10 percent of the highest."""
    contrasts: list[float] = []
    while len(contrasts) < trials:
        xi, eta = rng.uniform(-1.5, 1.5) * rng.random(), np.exp(rng.uniform(np.log(1e-3), np.log(30)))
        if formula(xi, eta):
            contrasts.append(summarize(rho(_THETA, xi, eta)).contrast)
    return count(contrasts, 0.1, "contrast of rho where the rule says uniform")


def _figure3(formula: Any, rng: Rng, trials: int) -> Measurement:
    return count([abs(512 * formula - 5.12), abs(128 * formula - 1.28)], 1e-9, "xi eta against 5.12 and 1.28")


@each(1e-9, "bound minus eta, and its distance from the identity's eta")
def _dimension(formula: Any, rng: Rng, k: int) -> Any:
    """The bound lies below eta for every spectrum with trace r, and is attained by W = (r/d) I."""
    d, r = int(rng.integers(1, 200)), rng.uniform(0.1, 10)
    w = rng.normal(1, rng.uniform(0, 2), d)
    if abs(w.sum()) < 1e-3:
        return
    w *= r / w.sum()
    yield from [formula(d, r) - np.linalg.norm(w), abs(formula(d, r) - np.linalg.norm(np.full(d, r / d)))]


@each(0.04, "error of rho_i against the exact law, effective rank > 30")
def _gaussian(formula: Any, rng: Rng, k: int) -> Any:
    T, places = 30, np.arange(3, 31, 3)
    spectrum = _spectrum(rng, 120, float(rng.uniform(-8, 8)))
    if spectrum.effective_rank <= 30:  # the hypothesis
        return None
    temperature = float(np.exp(rng.uniform(np.log(0.3), np.log(5))))
    exact = _law(spectrum, T, places, temperature)
    return np.abs(formula(spectrum, T, temperature)[places - 1] - exact).max()


def _slope_traceless(theta: float, eta: float) -> float:
    u = theta - 0.5
    doubled = 4 * u * u + 1 / 6
    return float(-4 * u / (eta * np.sqrt(np.pi)) * doubled**-1.5 * np.exp(-1 / (eta**2 * doubled)))


def _erf(x: float) -> float:
    from math import erf

    return erf(x)


def _method(name: Any) -> Any:
    return lambda spectrum, T, temperature=1.0: signal_propagation(spectrum, T, None, temperature, name).rho


def _printed_rho(theta: Any, xi: float, eta: float) -> Array:
    return rho(theta, xi, eta, form="printed")


CHECKS = {
    "16": Check(_curve, _printed_rho, rho, trials=6),
    "17": Check(
        _eta,
        lambda square, temperature: np.sqrt(square) / temperature**2,
        lambda square, temperature: np.sqrt(square) / temperature,
        trials=20,
    ),
    "18": Check(_offset, lambda T, eta: 4 * (1 + 1 / eta) / T, trials=20),
    "19": Check(_limit, lambda theta, r: rho_limit(theta, r, form="printed"), rho_limit, trials=50),
    "20": Check(_traceless, lambda theta, eta: 0.0, _slope_traceless, trials=100),
    "21": Check(
        _slope,
        (_printed_rho, lambda theta, xi, eta: rho_slope(theta, xi, eta, form="printed")),
        (rho, rho_slope),
        trials=100,
    ),
    "22": Check(_vanishing, lambda theta, xi: np.zeros_like(theta), trials=50),
    "23": Check(
        _middle, lambda eta: _erf(1 / (eta * np.sqrt(13 / 6))) / 2, lambda eta: _erf(np.sqrt(6) / eta) / 2, trials=10
    ),
    "24": Check(_uniform, lambda xi, eta: abs(xi) <= 1, lambda xi, eta: abs(xi) <= 0.05 and eta <= 0.3, trials=200),
    "25": Check(_figure3, 0.02, 0.01, trials=1),
    "26": Check(_dimension, lambda d, r: r / np.sqrt(d), trials=200),
    "27": Check(_gaussian, _method("gaussian"), trials=4),
}
