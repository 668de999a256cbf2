"""Mistakes that a careful reader could make with the formulas of the papers: each must be rejected by its check.

A list holds several for one claim. `attsvm.validation.ledger.mutate` adds constants off by ten per cent.
"""

from __future__ import annotations

from typing import Any

import numpy as np

import attsvm
from attsvm.dynamics import polarization as pol
from attsvm.dynamics.conditioning import block_factors, block_jacobian
from attsvm.dynamics.localization import entropy_lower_bound, rho, signal_propagation
from attsvm.joint import joint_svm
from attsvm.next_token import graph_svm, linear_svm, soft_composition
from attsvm.paths.weight_decomposition import best_combination
from attsvm.selection_rows import selection_rows
from attsvm.softmax import softmax
from attsvm.theory.support_assumptions import interpolating_multipliers
from attsvm.validation.ledger import localization_checks, specialization_loss, specialization_risk
from attsvm.validation.ledger.conditioning_descent import jacobian
from attsvm.validation.ledger.specialization_loss import sp, torch
from attsvm.validation.ledger.svm_instances import risk


def _erm_without_mean(X: Any, Y: Any, Z: Any, v: Any, K: Any, Q: Any, loss: Any) -> float:
    s = np.exp(np.einsum("itd,de,ie->it", X, Q @ K.T, Z))
    s /= s.sum(axis=1, keepdims=True)
    return float(loss(Y * np.einsum("it,itd,d->i", s, X, v)).mean())


def _half_cubic(name: str, low: float, high: float) -> tuple[float, float]:
    return {"logistic": (0.125, 1.0), "exponential": (np.exp(-high), np.exp(-low)), "correlation": (0.0, 1.0)}[name]


def _smoothness_without_queries(p: Any, loss: str) -> float:
    M0, M1 = p.loss_constants(loss)
    v, X = np.linalg.norm(p.head.v), np.linalg.norm(p.X, 2, axis=(1, 2))
    return float((v * X**3 * (M0 * v * X + 3 * M1)).mean())


def _mean_multiplier(p: Any) -> bool:
    return bool(interpolating_multipliers(selection_rows(p))[0].mean() >= 0)


def _nearest_row(p: Any) -> Any:
    rows = selection_rows(p).margin_problem
    return rows.adjoint(np.ones(rows.m))


def _nuclear(p: Any, alpha: Any = None) -> Any:
    return attsvm.att_svm(p, alpha, norm="nuclear").W


def _some_support(table: Any, best: Any) -> bool:
    missed = table.indices != best.indices
    other = missed.any(axis=1) & table.feasible
    return bool((missed & table.support.any(axis=-1)).any(axis=1)[other].all())


def _unmasked(p: Any, selection: Any) -> Any:
    return attsvm.att_svm(attsvm.AttentionProblem(p.X, p.Y, p.Z, p.head), selection)


_SVM: dict[str, Any] = {
    "erm": _erm_without_mean,  # Q K^T for K Q^T
    "def4": lambda support, own: len(support) == 0 or (support < own).any(),
    "lemma9-sum": lambda eta, fall: 1 / (2 * eta) * fall,  # the factor of (23) inverted
    "lemma3-set": lambda value: 1.01 * value,
    "thm8-L3": lambda mu, eta, norm: -2 * eta * mu / norm**2,
    "def1": lambda X, Y, v: (X @ v).argmax(axis=1),  # without the label
    "thm1": lambda n, T, d: d >= n - 1,
    "thm6": lambda n, T, d: d >= n,  # enough for optimal tokens only
    "lemma7": lambda A, B, P: np.linalg.matrix_rank(B) == len(B),  # of B instead of its projection
    "lemma1-rank": lambda n, d: max(n - 1, 1),
    "lemma1-span": lambda p: p.X[:, 0],  # tokens instead of queries
    "fig4-bound": lambda n, d: n,
    "star-set": lambda b: np.array([[1.0, b], [-b, 1.0]]),
    "lemma2": lambda scores, loss: float(loss(scores.mean(axis=1)).mean()),
    "assA": _half_cubic,
    "assA-slope": lambda loss, low, high: bool((loss.derivative(np.array([low, high])) < 0).all()),  # at the ends
    "thm2-W": lambda p: attsvm.att_svm(p).W,  # not divided by its norm
    "cor1": lambda p: attsvm.att_svm(p).W,  # not divided by its norm
    "thm2-KQ": (lambda K, Q: K @ Q.T, lambda p: attsvm.att_svm(p).direction),  # Frobenius norm
    "cor2-order": (lambda K, Q: K.T @ Q, lambda p: attsvm.att_svm(p, norm="nuclear").direction),
    "thm2-rank": lambda p, m: m >= min(p.n, p.dx) - 1,
    "lemma3": lambda rank, m: rank - 1 <= m,
    "kq-svm": lambda p: attsvm.att_svm(p).norm,
    "eq15": lambda left, right, slope: np.einsum("i,id,ie->de", slope, left, right),  # without 1/n
    "eq20a": lambda left, right, slope, K, Q: np.einsum("i,id,ie->de", slope, left, right) @ K / len(slope),
    "eq20b": lambda left, right, slope, K, Q: np.einsum("i,id,ie->de", slope, right, left) @ Q / len(slope),
    "eq17": 0.4,
    "eq18a": 0.4,
    "eq18b": 0.2,
    "eq3-LW": _smoothness_without_queries,
    "eq3-LK": lambda other, L: np.sqrt(other) * L,
    "eq3-LQ": lambda other, L: L,
    "lemma8": lambda Gamma, A, s1: Gamma * A * (1 - s1) ** 2,
    "lemma9": [lambda eta, g2: -eta * g2, lambda eta, g2: -1.2 * eta * g2],
    "assB1": _mean_multiplier,
    "sec41-wording": _nearest_row,
    "sec41-posit": [lambda n, T: 2 * T * np.log(n * T), lambda n, T: 20 + T * np.sqrt(n)],
    "lemma10": lambda p: True,  # without B
    "eq28": lambda g, h, s: g * h * (1 - s),
    "thm3": lambda p: p.optimal_tokens().is_unique,
    "eq33": lambda mu, norm: mu / norm,
    "assC": lambda p, loss: float(risk(p, np.zeros((p.dx, p.dx)), loss)) < 0.7,
    "thm4-limit": lambda p: attsvm.att_svm(p, norm="nuclear").W,
    "thm4-unique": lambda p: True,
    "eq50": lambda others: others.mean(axis=1).min(),
    "eq34a": lambda c, C, mu: (c * mu, c),
    "eq34b": lambda c, C, mu, theta, longest: c / C,
    "eq34c": lambda longest, C: 0.02 * C,
    "lemma11-interval": lambda p, A: (-A, 0.0),
    "lemma11-rate": lambda mu: 1 / np.sqrt(mu),
    "lemma12": _nuclear,
    "eq43": lambda norm: norm,
    "def2": lambda support, own: len(support) == 0 or (support < own).any(),
    "def2-opt": lambda p: p.T >= 2,
    "lemma13-a": lambda c, C: (16 * c, C),  # 2 for 1/8
    "lemma13-b": lambda longest, C: C / 8,
    "lemma13-c": lambda c, C, theta, longest: 16 * c / C * longest / theta,
    "thm5-width": lambda delta, A: min(0.5, delta) / A / 8,  # without the square
    "thm5-limit": lambda p, alpha: attsvm.att_svm(p).W,  # optimal tokens instead of alpha
    "eq66b": lambda T, R, delta, supports, own: (  # twice the slack
        T * np.exp(-2 * R * delta) * (supports.sum() if len(supports) else np.exp(-R) * own)
    ),
    "lemma14": _nuclear,
    "assD": _some_support,
    "conjecture": lambda p: p.optimal_tokens().is_unique,  # without B.1 and D
    "sec52-norm": lambda history: history.loss,
    "sec52-often": lambda p: attsvm.att_svm(p).status.has_solution,  # feasible
    "fig7-list": lambda table: table.margin >= table.margin.max(),
    "sec53-margin": lambda own, best: own < best,
    "fig6-d": lambda shares: bool((np.diff(shares) <= 0).all()),
    "eq93": lambda best: best.max(axis=1).min(),
    "lemma5-inside": lambda p, s: s.status.has_solution,
    "lemma5-outside": lambda p, s: bool((s.selection.indices != p.optimal_tokens().indices).any()),
    "lemma5-whole": lambda p: p.T >= 2,
    "thm7": lambda p, s: s.status.has_solution,
    "thm9": lambda p, s: s.status.has_solution,
    "assE": lambda own, low: own - low.min(),
    "lemma15": lambda K, Q: np.square(K).sum() + np.square(Q).sum(),
    "cor2-unique": [lambda m, n, K, d: m >= min(n, d), lambda m, n, K, d: m >= 1],  # one query
    "serm-KQ": lambda losses: losses.mean(),
    "gen-svm": lambda finite, mm, R: R * (finite + mm),
    "eq7": lambda parts: parts.correlation_1token,
    "svmeq": lambda W, F, D: best_combination(W, F, D)[1],  # nearest instead of best aligned
    "lemma6": lambda gaps, tau, lam: tau * gaps[tau - 1] > lam > gaps[0],  # without the half
    "eq10": lambda X, s: X.T @ np.sqrt(s),
    "fig10-grows": lambda counts: bool((np.diff(counts) > 0).all()),
    "eq12": lambda p, selection: attsvm.satt_svm(p, selection, norm="nuclear"),
    "causal": lambda p, selection: _unmasked(p, selection),
    "masks": _unmasked,
    "fig7-softmax": 0.5,
    "fig11-m": lambda m, n: m >= 1,
}

_CONDITIONING: dict[str, Any] = {
    "E5-6": lambda z: np.diag(z) - np.outer(z, z) / 2,
    "L1.1-2": lambda z: np.diag(z) - 1.01 * np.outer(z, z),
    "L1.3": lambda z: (z[1:], np.full(len(z) - 1, z[-1])),
    "P1-kap": lambda a, mu, L: (L / mu * (a.max() / a.min()), np.inf),
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
    "T2": [1.0, 3.0, 4.0],  # powers of delta_min
    "Rk7": lambda s: s <= 2,
    "T1i": lambda c1, L: c1 / L,
    "C1-step": lambda eta, low, N: 1 - 2 * eta * low / N,
    "C1-16": lambda kappa, t: (1 - 1 / kappa) ** t,
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

_POLARIZATION: dict[str, Any] = {
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
    "C23": lambda u: np.ones(u.size) / np.sqrt(u.size),
    "C24": lambda: True,
    "C26": lambda u, beta: np.outer(beta, u),
    "C27": lambda rng: np.array([6.0, 3.0, 1.0, 0.5, 0.0]),  # starts beyond the target
    "C28": lambda p: (1.0, 2.0),
    "C29": lambda: 0.999999,
    "C30": [lambda norm, tau: tau, lambda norm, tau: norm**-0.1 * tau],  # the integral of gamma
    "C31": lambda p: 3.0,
    "C32": lambda plain, bad: bad > plain,
    "C35": lambda a: (a**2).sum(axis=-1),
    "C36": lambda p, d: 2.0 / np.sqrt(p),
    "C37": lambda V, a: pol.tangent_kernel(V, a) + 0.1 * np.eye(len(V)),
    "C38": lambda u, a, b, gamma, name: tuple(-gamma * x for x in pol.orbit_rates(u, a, b, name)),
    "C39": lambda f, slope: bool(slope.sum() > 3),
    "C40": "square",
    "C41": lambda b, a0: -b / float(a0 @ a0),
    "C42": "relu_norm",
    "C43": "relu_norm",
    "C44": 0.2,
    "C46": lambda u: int(np.argmin(u)),
    "C48": lambda V, beta: beta @ V.T + 1.0,
    "C49": lambda a, s: int(np.argmin(s)),
    "C50": (("sigmoid_unnorm", 1), ("softmax", 1)),
    "C51": (("softmax", 4), ("softmax", 1)),
    "C58": lambda a, c: a * (1 + c),
}


def _one_cumulant(i: int, j: int, T: int, trace: float, square: float) -> Any:
    """Corrected, but for 3 q in place of 2 q in the fourth."""
    found = list(localization_checks.CHECKS_MOMENTS["6"].corrected(i, j, T, trace, square))
    found[3] = i * j * (3 * square + trace**2)
    return tuple(found)


def _from_zero(i: int, j: int, T: int, trace: float, square: float) -> Any:
    """As if the walk started at x_1 = 0."""
    i, j, T, both = i - 1, j - 1, T - 1, 2 * square + trace**2
    crossed = (i * i + i * j) * square + i * i * trace**2
    return i * trace, i * i * both, crossed, i * j * both, (T * i + i * j) * square + i * j * trace**2


def _mean_lemma3(W: Any, S: Any, a: Any, m: Any) -> Any:
    t, form = np.trace(W @ S), m @ W @ m
    return t + form, S[0, 1] + m[0] * m[1], (a @ W @ m) * (t + form), t**2 + 2 * t * form + form**2


_LOCALIZATION: dict[str, Any] = {
    "1": lambda T: (np.eye(T) / T, 1 / T),  # without the centering
    "2": lambda omega: (omega - np.median(omega)) / len(omega),
    "3": lambda L: softmax(L.ravel()).reshape(L.shape),  # over all entries
    "4": lambda signal: 1.0,
    "5": _mean_lemma3,  # without the cumulant terms
    "6": [_one_cumulant, _from_zero],
    "11": lambda T, r: (np.arange(1, T + 1) / T) * r,  # not centered
    "12": lambda theta: 2 * (theta - 0.5) ** 2 + 1 / 10,
    "15": lambda d, square: np.sqrt(0.9 * d * square),
    "16": lambda theta, xi, eta: rho(theta, xi, 2 * eta),
    "17": lambda square, temperature: square / temperature,
    "18": lambda T, eta: 0.5 * (1 + 1 / eta) / T,
    "19": lambda theta, r: (np.abs(theta - 0.5) < 1 / abs(r)).astype(float),  # a window on both sides
    "20": lambda doubled, change, eta: -change / (eta * doubled**1.5),
    "22": lambda theta, xi: np.full_like(theta, 0.5),
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
    "39": lambda X, y, W, W_v, W_f, temperature: np.zeros_like(W),
    "39b": lambda X, y, W, W_v, W_f, temperature: np.ones_like(W),
    "40": (True, False),
    "41": {"mean": 1, "scale": 1},
    "42": {"query": "last", "sign": -1},
    "44": 0,
    "46": "diagonal",
    "47": "diagonal",
}


def _printed(place: str) -> Any:
    return (
        specialization_loss.CHECKS_REDUCTION
        | specialization_loss.CHECKS_UNSPECIALIZED
        | specialization_risk.CHECKS_DYNAMICS
    )[place].printed


def _from_q(overlaps: Any) -> Any:
    values, vectors = torch.linalg.eigh(overlaps.q)
    return overlaps.m, (vectors * values.clamp_min(0).sqrt()) @ vectors.T


def _doubled(activation: Any, L: Any, H: Any, b: Any) -> Any:
    c = sp.quadratic_constants(activation, L, H, b=b)
    return 2 * c.c3, c.c4


def _no_threshold(B: Any, F: Any) -> Any:
    point = sp.opposite_heads(B, F)
    return sp.OrderParameters(point.m, None, 0 * point.b, point.v)


def _lopsided(m: Any, r1: Any, r2: Any, b: Any, v: Any) -> Any:
    point = _printed("8")(m, r1, r2, b, v)
    return sp.OrderParameters(point.m * torch.tensor([[1.0], [2.0], [1.0]]), point.r, point.b, point.v)


def _slow(start: Any, samples: Any, activation: Any, times: Any) -> Any:
    return sp.gradient_flow(start, samples, activation, [t / 2 + 1e-9 * k for k, t in enumerate(times)], step=0.5)


_SPECIALIZATION: dict[str, Any] = {
    "1": _from_q,
    "2": lambda rng, n, H, L: np.zeros((n, H, L)),
    "3": lambda start, samples, times: _slow(start, samples, "softmax", times),
    "4": _slow,
    "5": lambda lr, batch, D: True,
    "6": lambda scores, b, v: _printed("6")(scores, -b, v),
    "7": lambda scores, b: np.exp(scores) / np.exp(scores).sum(axis=1, keepdims=True),
    "8": _lopsided,
    "9": lambda prior: prior.covariance[0, 1] == 0 or prior.weights[0] == 0.8,
    "10": lambda activation, L, H: 0.5 * sp.initial_gradient(activation, L, H),
    "11": (-1.0, 1.0, 1.0, 1.0),
    "12": lambda prior: prior.weights[0] == 0.8,
    "13": lambda r: 2 * r,
    "14": lambda H: 1,
    "15": lambda L, H, b, v: (0.0, 0.0),
    "16": [lambda m, cov: _printed("16")(m, cov)[::2], lambda m, cov: (1.0, *_printed("16")(m, cov)[1:])],
    "17": lambda activation, L, H, variance, b: np.zeros((H, H)),
    "18": _doubled,
    "19": lambda prior: 3.0,
    "20": lambda activation, L, H, b, v: 2 * _printed("20")(activation, L, H, b, v),
    "21": lambda c1, r: c1 * float((r.sum(axis=1) ** 2).sum()),
    "22": lambda L, H, variance, other: (1e-9, 0.0, 1e-9),
    "23": lambda L, H, variance: -sp.unspecialized_hessian("softmax", L, H, [[variance]]),
    "24": lambda activation, L, H, variance: _printed("24")(activation, L, H, variance)[::-1],
    "25": lambda D: D**0.1,
    "26": lambda rate: rate > 0.2,
    "27": [(10.0, 12.0), (0.3, 10.0)],
    "28": lambda prior, chi: sp.position_posterior(sp.DiscretePrior(prior.atoms, np.full(3, 1 / 3)), chi),
    "29": lambda squares, D: float(squares.mean()) / D**0.5,
    "30": lambda prior: sp.OrderParameters(torch.tensor(prior.atoms)),
    "31": lambda prior, L: 0.25,
    "32": _no_threshold,
    "33": lambda spikes: (spikes - 1,),
    "34": (8, 4, 2),
    "36": (40.0, 2.0),
    "37": [(2, 0), (4, 1)],
    "40": (1.0, 1.0),
    "41": lambda H, F, most: most > H - F + 1,
    "42": lambda H, F, most: most >= H - F,
    "43": [("bayes", "softmax"), ("softmax1", "softmax")],
    "44": lambda n: 0.01 * n**0,
    "47": lambda L, b: sp.balanced_amplitude(L + 1, b),
}

_NEWER: dict[str, Any] = {
    "graph-direction": lambda sequences, table: graph_svm(sequences, table).W.T,  # queries and tokens exchanged
    "graph-shares": lambda sequences, table: np.ones_like(soft_composition(sequences, table).probabilities) / 2,
    "linear-infimum": lambda p: float(np.log((p > 0).sum(axis=1)).mean()),  # as if followers were equally frequent
    "bigrams": lambda contexts, counts: linear_svm(contexts, counts).W.T,  # next and last token exchanged
    "joint-head": lambda problem, selection: np.asarray(problem.head.v),  # the head it started from
    "joint-attention": [
        lambda problem, selection, ratio: joint_svm(problem, selection).W,  # Att-SVM
        lambda problem, selection, ratio: joint_svm(problem, selection, ratio=np.inf).W,  # support vectors of v alone
    ],
    "step-direction": lambda problem: attsvm.att_svm(problem, norm="nuclear").W,
    "mirror": lambda problem: attsvm.att_svm(problem).W,
    "softmax-1": lambda h: np.exp(h) / np.exp(h).sum(),
}

# By paper, then by the place of the claim.
SLIPS: dict[str, dict[str, Any]] = {
    "svm": _SVM,
    "conditioning": _CONDITIONING,
    "polarization": _POLARIZATION,
    "localization": _LOCALIZATION,
    "specialization": _SPECIALIZATION,
    "newer": _NEWER,
}
