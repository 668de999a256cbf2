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
    vanishing_rate,
)
from attsvm.validation.ledger.localization._common import Array, Rng, symmetric
from attsvm.validation.ledger.record import Claim, Measurement, Verdict, count, each

__all__ = ["CLAIMS"]

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


def _curve(formula: Any, rng: Rng, trials: int) -> Measurement:
    errors, T = [], 1000
    places = np.array([1, 100, 250, 400, 500, 550, 600, 750, 900, 1000])
    for _ in range(trials):
        xi, eta = rng.uniform(-6, 6), np.exp(rng.uniform(np.log(0.3), np.log(3)))
        exact = _law(_spectrum(rng, 60, xi), T, places, 1 / eta)
        errors.append(np.abs(formula(places / T, xi, eta) - exact).max())
    return count(errors, 0.06, "error of rho against the exact law, d = 60, T = 1000")


@each(1e-9, "change of rho with this eta")
def _eta(formula: Any, rng: Rng, k: int) -> Any:
    spectrum, temperature = qk_spectrum(symmetric(rng, 6)), float(rng.uniform(1.5, 6))
    exact = signal_propagation(spectrum, 40, temperature=temperature, method="asymptotic")
    own = rho(exact.theta, spectrum.xi, formula(spectrum.trace_squared, temperature))
    return np.abs(own - exact.rho).max()


def _offset(formula: Any, rng: Rng, trials: int) -> Measurement:
    """What gamma_0 = 1/T and the finite-T moments change in rho at fixed xi and eta, T = 100, 1000, 10000."""
    errors = []
    for _ in range(trials):
        xi, eta = float(rng.uniform(-6, 6)), float(np.exp(rng.uniform(np.log(0.3), np.log(3))))
        spectrum = _spectrum(rng, 60, xi)
        for T in (100, 1000, 10000):
            both = [signal_propagation(spectrum, T, None, 1 / eta, name).rho for name in ("asymptotic", "gaussian")]
            errors.append(np.abs(both[0] - both[1]).max() / formula(T, eta) - 1)
    return count(errors, 0.0, "relative excess of the change of rho over the bound; variance as corrected")


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


def _traceless(formula: Any, rng: Rng, trials: int) -> Measurement:
    errors, step = [], 1e-5
    for _ in range(trials):
        theta, eta = rng.uniform(0.01, 0.99), np.exp(rng.uniform(np.log(0.3), np.log(10)))
        numeric = (rho(theta + step, 1e-9, eta) - rho(theta - step, 1e-9, eta)) / (2 * step)
        errors.append(abs(formula(theta, eta) - float(numeric)))
    return count(errors, 1e-6, "error of the slope as xi -> 0")


def _slope(formula: Any, rng: Rng, trials: int) -> Measurement:
    """The formula is a curve and its slope: they must belong together."""
    curve, slope = formula
    errors, step = [], 1e-5
    for _ in range(trials):
        theta, xi, eta = rng.uniform(0.01, 0.99), rng.uniform(-8, 8), np.exp(rng.uniform(np.log(0.3), np.log(10)))
        numeric = (curve(theta + step, xi, eta) - curve(theta - step, xi, eta)) / (2 * step)
        errors.append(abs(float(slope(theta, xi, eta)) - float(numeric)))
    return count(errors, 1e-5, "slope against differences of its curve")


@each(2e-6, "rho minus its limit at eta = 1e6")
def _vanishing(formula: Any, rng: Rng, k: int) -> Any:
    xi = rng.uniform(-10, 10)
    return np.abs(rho(_THETA, xi, 1e6) - formula(_THETA, xi)).max()


def _middle(formula: Any, rng: Rng, trials: int) -> Measurement:
    errors, T = [], 1001
    for _ in range(trials):
        xi, eta = rng.uniform(-6, 6), np.exp(rng.uniform(np.log(0.3), np.log(3)))
        exact = _law(_spectrum(rng, 60, xi), T, np.array([501]), 1 / eta)[0]
        errors.append(abs(formula(eta) - exact))
    return count(errors, 0.03, "error at the middle for any xi, d = 60, T = 1001")


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


def _dimension(formula: Any, rng: Rng, trials: int) -> Measurement:
    """The bound lies below eta for every spectrum with trace r, and is attained by W = (r/d) I."""
    errors = []
    for _ in range(trials):
        d, r = int(rng.integers(1, 200)), rng.uniform(0.1, 10)
        w = rng.normal(1, rng.uniform(0, 2), d)
        if abs(w.sum()) < 1e-3:
            continue
        w *= r / w.sum()
        errors += [formula(d, r) - np.linalg.norm(w), abs(formula(d, r) - np.linalg.norm(np.full(d, r / d)))]
    return count(errors, 1e-9, "bound minus eta, and its distance from the identity's eta")


def _gaussian(formula: Any, rng: Rng, trials: int) -> Measurement:
    errors, T, places = [], 30, np.arange(3, 31, 3)
    for _ in range(trials):
        spectrum = _spectrum(rng, 120, float(rng.uniform(-8, 8)))
        if spectrum.effective_rank <= 30:  # the hypothesis
            continue
        temperature = float(np.exp(rng.uniform(np.log(0.3), np.log(5))))
        exact = _law(spectrum, T, places, temperature)
        errors.append(np.abs(formula(spectrum, T, temperature)[places - 1] - exact).max())
    return count(errors, 0.04, "error of rho_i against the exact law, effective rank > 30")


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


CLAIMS = (
    Claim(
        "localization:16",
        "(6)",
        "rho = Phi(u xi) - Phi(u xi - 1/eta) with Phi of variance 2 theta^2 + 7/12.",
        Verdict.FAILS,
        _curve,
        _printed_rho,
        rho,
        correction="the same with variance 2 u^2 + 1/12, u = theta - 1/2",
        evidence="printed off by up to 0.55, corrected by 0.04 (d = 60, T = 1000)",
        trials=6,
    ),
    Claim(
        "localization:17",
        "Figure 2, caption",
        "eta = sqrt(tr W^2)/lambda^2.",
        Verdict.TYPO,
        _eta,
        lambda square, temperature: np.sqrt(square) / temperature**2,
        lambda square, temperature: np.sqrt(square) / temperature,
        correction="sqrt(tr W^2)/lambda, as in (6)",
        evidence="(6) gives another curve",
        trials=20,
    ),
    Claim(
        "localization:18",
        "(6)",
        "The offset gamma_0 = 1/T is dropped as o(1) in T.",
        Verdict.HOLDS,
        _offset,
        lambda T, eta: 4 * (1 + 1 / eta) / T,
        correction="of order 1/(T eta): (6) needs T eta >> 1, and as W -> 0 at fixed T every token propagates",
        evidence="change of rho below 4 (1 + 1/eta)/T; eta = 0.01, T = 40: (6) says 1/2 where rho is 1",
        trials=20,
    ),
    Claim(
        "localization:19",
        "Lemma 2, parts 1 and 2",
        "rho tends to the indicator of the closed window [1/2, 1/2 + 1/r].",
        Verdict.FAILS,
        _limit,
        lambda theta, r: rho_limit(theta, r, form="printed"),
        rho_limit,
        correction="1/2 at the ends; at |r| = 2 the value at the edge depends on the rate of xi eta -> r",
        evidence="interior right, ends 1/2",
        trials=50,
    ),
    Claim(
        "localization:20",
        "Lemma 2, part 3",
        "At fixed eta, the slope of rho tends to 0 as xi -> 0: rho is uniform.",
        Verdict.FAILS,
        _traceless,
        lambda theta, eta: 0.0,
        _slope_traceless,
        correction="rho tends to erf(1/(eta sqrt D))/2, D = 4u^2 + 1/6; uniform only if eta -> 0 as well",
        evidence="slopes up to 0.59 at xi = 0 (eta = 2.46)",
        trials=100,
    ),
    Claim(
        "localization:21",
        "Appendix C, rho'",
        "The printed derivative of rho.",
        Verdict.FAILS,
        _slope,
        (_printed_rho, lambda theta, xi, eta: rho_slope(theta, xi, eta, form="printed")),
        (rho, rho_slope),
        correction="pi^-1/2 D^-3/2 [e^{-(u xi)^2/D} xi/6 - e^{-(u xi - 1/eta)^2/D} (xi/6 + 4u/eta)]",
        evidence="xi = 5, eta = 0.5, theta = 0.8: -0.891 by differences, +0.212 as printed",
        trials=100,
    ),
    Claim(
        "localization:22",
        "Lemma 2, part 4",
        "At fixed xi, rho -> 0 as eta -> infinity.",
        Verdict.HOLDS,
        _vanishing,
        lambda theta, xi: np.zeros_like(theta),
        correction="eta rho -> exp(-u^2 xi^2/D)/sqrt(pi D), at most sqrt(6/pi)",
        evidence=f"largest rate {float(vanishing_rate(0.5, 0.0)):.3f}",
        trials=50,
    ),
    Claim(
        "localization:23",
        "not printed: (6) at theta = 1/2",
        "At the middle rho = erf(1/(eta sqrt(13/6)))/2 whatever xi is.",
        Verdict.FAILS,
        _middle,
        lambda eta: _erf(1 / (eta * np.sqrt(13 / 6))) / 2,
        lambda eta: _erf(np.sqrt(6) / eta) / 2,
        correction="erf(sqrt(6)/eta)/2; and rho(theta; xi) = rho(1 - theta; -xi), which the printed variance breaks",
        evidence="exact law, d = 60",
        trials=10,
    ),
    Claim(
        "localization:24",
        "Figure 2, text",
        "For small |xi| <= 1, rho behaves relatively uniformly regardless of eta.",
        Verdict.IMPRECISE,
        _uniform,
        lambda xi, eta: abs(xi) <= 1,
        lambda xi, eta: abs(xi) <= 0.05 and eta <= 0.3,
        correction="within ten per cent only for |xi| << 1 and eta below about 0.3",
        evidence="xi = 1, eta = 0.001: from 0.26 to 0.74; xi = 0, eta = 5: 0.10 at the ends, 0.26 in the middle",
        trials=200,
    ),
    Claim(
        "localization:25",
        "Section 4, Figure 3",
        "rho localizes at eta = 0.02, that is xi eta = 5.12.",
        Verdict.TYPO,
        _figure3,
        0.02,
        0.01,
        correction="eta = 0.01",
        evidence="512 * 0.02 = 10.24",
        trials=1,
    ),
    Claim(
        "localization:26",
        "Section 4",
        "A larger d makes localization easier: eta can be as small as |r|/sqrt(d).",
        Verdict.HOLDS,
        _dimension,
        lambda d, r: r / np.sqrt(d),
        correction="d = 128, r = 5: eta >= 0.44",
        evidence="bound attained by W proportional to the identity",
        trials=200,
    ),
    Claim(
        "localization:27",
        "Section 4",
        "rho_i may be computed as if the signal were Gaussian.",
        Verdict.HOLDS,
        _gaussian,
        _method("gaussian"),
        correction="needs a large effective rank (sum m^2)^2 / sum m^4, say 30; else use the exact law",
        evidence="error about (0.2 - 1)/effective rank at eta = 1: 0.17 for d = 1, 0.008 for d = 128",
        trials=4,
    ),
)
