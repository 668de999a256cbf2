"""Section 3.1 and Appendix E: gradient, PL inequality, smoothness, Theorem 1."""

from __future__ import annotations

from typing import Any

import numpy as np

from attsvm.dynamics.conditioning import (
    PromptProblem,
    check_guarantee,
    convergence_constants,
    curved_loss,
)
from attsvm.softmax import log_softmax, peakedness, softmax
from attsvm.validation.ledger.conditioning._common import Array, Rng, autograd_hessian, jacobian, realizable, torch_loss
from attsvm.validation.ledger.record import Check, Measurement, count, each

__all__ = ["CHECKS"]


@each(1e-10, "relative difference from autograd")
def _gradient(formula: Any, rng: Rng, k: int) -> Any:
    import torch

    problem, _ = realizable(rng, 4, 5, 3, loss=curved_loss(float(k % 2)))
    p = torch.tensor(rng.normal(size=3), requires_grad=True)
    torch_loss(problem)(p).backward()
    assert p.grad is not None
    exact = p.grad.numpy()
    return np.abs(formula(problem, p.detach().numpy()) - exact).max() / np.abs(exact).max()


def _gradient_printed(problem: PromptProblem, p: Array) -> Array:
    N = len(problem.X)
    total = np.zeros(len(p))
    for K, x, y in zip(problem.keys, problem.X, problem.y, strict=True):
        a = softmax(K @ p)
        residual = np.array(a @ x @ problem.v - y)
        total += K.T @ jacobian(a) @ x @ problem.v * float(problem.loss.slope(residual))
    return total / N


@each(0.0, "rise of the loss after a short step")
def _descent(formula: Any, rng: Rng, k: int) -> Any:
    problem, p_star = realizable(rng, 4, 5, 3)
    p = p_star + rng.normal(size=3)
    g = problem.loss.slope(problem.predict(p) - problem.y)
    new = formula(p, 1e-3, problem.feature_matrix(p), g)
    return problem.loss_at(new) - problem.loss_at(p)


@each(1e-9, "relative excess of the lower bound; one to five examples")
def _pl(formula: Any, rng: Rng, k: int) -> Any:
    N = (1, 2, 3, 5)[k % 4]
    problem, p_star = realizable(rng, N, 5, 6, key_map=False)
    p = p_star + rng.normal(size=6)
    bound = formula(1.0, N, problem.smallest_singular_value(p), problem.loss_at(p))
    return bound / (0.5 * float(np.sum(problem.gradient(p) ** 2))) - 1


@each(1e-7, "smallest singular value with d < N")
def _sigma(formula: Any, rng: Rng, k: int) -> Any:
    """With d < N some residuals have no gradient: the singular value that bounds it must vanish."""
    problem, p_star = realizable(rng, 8, 5, 3)
    return formula(problem.feature_matrix(p_star + 0.3))


@each(1e-9, "relative excess of the gradient")
def _gradient_bound(formula: Any, rng: Rng, k: int) -> Any:
    if k % 3 == 0:  # N copies of x = +-e_1 at the point of the largest gradient
        N = int(rng.choice([1, 16, 256]))
        X = np.repeat(np.array([[[1.0], [-1.0]]]), N, axis=0)
        problem, p = PromptProblem(X=X, y=np.full(N, float(np.tanh(1.0))), v=np.ones(1)), np.zeros(1)
    else:
        N = int(rng.integers(1, 30))
        problem, p_star = realizable(rng, N, 5, 3)
        p = p_star + rng.normal(size=3)
    C = np.linalg.norm(problem.X, 2, axis=(1, 2)).max()
    sW = 1.0 if problem.W is None else np.linalg.norm(problem.W, 2)
    bound = formula(1.0, 1.0, N, C, sW, np.linalg.norm(problem.v), problem.loss_at(p))
    return np.linalg.norm(problem.gradient(p)) / bound - 1


@each(1e-4, "change of J over change of the logits, less the constant")
def _jacobian_lipschitz(formula: Any, rng: Rng, k: int) -> Any:
    n = (2, 3, 6)[k % 3]
    w = np.zeros(n) if k % 2 else rng.normal(size=n)
    if k % 2:  # the direction of largest change: two tokens near odds of 3.7
        w[2:] = -30.0
        w[0] = rng.uniform(1.2, 1.45)
    step = 1e-4 * (np.eye(n)[0] - np.eye(n)[1] if k % 2 else rng.normal(size=n))
    change = np.linalg.norm(jacobian(softmax(w + step)) - jacobian(softmax(w)), 2)
    return change / np.linalg.norm(step) - formula


@each(1e-9, "change of softmax over change of the logits, less the constant")
def _softmax_lipschitz(formula: Any, rng: Rng, k: int) -> Any:
    w = rng.normal(size=2) * 0.1 if k % 2 else rng.normal(size=5)
    step = 1e-3 * (np.array([1.0, -1.0]) if k % 2 else rng.normal(size=5))
    return np.linalg.norm(softmax(w + step) - softmax(w)) / np.linalg.norm(step) - formula


def _residual_slope(formula: Any, rng: Rng, trials: int) -> Measurement:
    """The slope at p_t against the losses at p_t and after a step."""
    loss = curved_loss(1.0)
    now, then = rng.normal(size=(2, trials))
    bound = formula(loss.value(now), loss.value(then), loss.m, loss.L)
    return count(np.abs(loss.slope(now)) - bound, 1e-12, "slope above its bound")


@each(0.0, "relative excess of the Hessian; tokens of size 1 and 1e-4")
def _smoothness(formula: Any, rng: Rng, k: int) -> Any:
    import torch

    problem, p_star = realizable(rng, 4, 5, 3, scale=(1.0, 1e-4)[k % 2])
    p = p_star + rng.normal(size=3) / (1.0, 1e-4)[k % 2]
    if k % 4 == 2:  # two opposite tokens at the minimum: an eighth of the constant is reached
        problem = PromptProblem(X=np.array([[[1.0], [-1.0]]]), y=np.zeros(1), v=np.ones(1), W=np.eye(1))
        p = np.zeros(1)
    C = np.linalg.norm(problem.X, 2, axis=(1, 2)).max()
    assert problem.W is not None
    bound = formula(C, np.linalg.norm(problem.W, 2), 1.0, np.linalg.norm(problem.v), problem.loss_at(p), 1.0)
    hessian = autograd_hessian(torch_loss(problem), torch.tensor(p))
    return np.linalg.norm(hessian, 2) / bound - 1


def _rate_constant(formula: Any, rng: Rng, trials: int) -> Measurement:
    c1, c2, smoothness = rng.uniform(0.1, 0.9, trials), rng.uniform(0.1, 1.0, trials), np.exp(rng.normal(size=trials))
    return count(np.abs(c2 / smoothness * formula(c1, smoothness) - c1 * c2), 1e-12, "eta mu less c1 c2, as C_p has it")


def _orthogonal(N: int) -> tuple[PromptProblem, Array]:
    X = np.stack([np.eye(N)[[i, i]] * np.array([[1.0], [-1.0]]) for i in range(N)])
    problem = PromptProblem(X=X, y=np.zeros(N), v=np.full(N, 200 / np.sqrt(N)))
    return problem.with_labels(problem.predict(np.full(N, 0.02 / np.sqrt(N)))), np.zeros(N)


def _guarantee(part: str) -> Any:
    """Runs that meet the margin condition: the orthogonal examples, and starts near a solution."""

    def measure(formula: Any, rng: Rng, trials: int) -> Measurement:
        excess = []
        for k in range(trials):
            if k < 3:
                problem, p0 = _orthogonal((1, 2, 4)[k])
                grid: tuple[float, ...] = (0.9,)
            else:
                problem, p_star = realizable(rng, 3, 3, 6, key_map=False)
                p0, grid = p_star + 1e-9 * rng.normal(size=6), (1e-2, 1e-4, 1e-6)
            for c1, c2 in ((c1, c2) for c1 in grid for c2 in (1.0, 0.3)):  # any step of (0, 1/L']
                constants = convergence_constants(problem, p0, c1=c1, c2=c2, form=formula)
                if constants.margin > 0:
                    run = check_guarantee(problem, p0, constants, steps=400 if k < 3 else 100)
                    both = {"travel": run.travel_ratio, "loss": run.loss_ratio}
                    excess.append(max(both.values()) if part == "both" else both[part])
        return count(np.array(excess) - 1, 1e-5, f"{part} over its bound, runs that meet the margin condition")

    return measure


@each(0.0, "relative excess of |F(p) - F(p_0)|")
def _drift(formula: Any, rng: Rng, k: int) -> Any:
    N = int(rng.integers(1, 6))
    problem, p_star = realizable(rng, N, 5, 3)
    p = p_star + rng.normal(size=3) * 10 ** rng.uniform(-4, 0)
    assert problem.W is not None
    C, sW = np.linalg.norm(problem.X, 2, axis=(1, 2)).max(), np.linalg.norm(problem.W, 2)
    bound = formula(C, sW, np.linalg.norm(problem.v), N, np.linalg.norm(p - p_star))
    return np.linalg.norm(problem.feature_matrix(p) - problem.feature_matrix(p_star)) / bound - 1


@each(1e-9, "loss above L_t - (eta/2)|grad|^2, relative to the latter's fall; steps up to the allowed one")
def _step_size(formula: Any, rng: Rng, k: int) -> Any:
    """One step on the attention loss itself, with its own L'; every other instance is the one of largest curvature."""
    if k % 2:  # N copies of +-e_1 at p* = 0: curvature |v|^2/4, the largest share of L' that we know
        problem = PromptProblem(X=np.array([[[1.0], [-1.0]]]), y=np.zeros(1), v=np.full(1, rng.uniform(0.5, 3)))
        p = np.full(1, 10 ** rng.uniform(-4, 0))
    else:
        problem, p_star = realizable(rng, 4, 5, 3)
        p = p_star + rng.normal(size=3) * 10 ** rng.uniform(-3, 0)
    C = np.linalg.norm(problem.X, 2, axis=(1, 2)).max()
    sW = 1.0 if problem.W is None else np.linalg.norm(problem.W, 2)
    now, slope = problem.loss_at(p), problem.gradient(p)
    eta = formula(_l_prime(3)(C, sW, 1.0, np.linalg.norm(problem.v), now, 1.0)) * (1.0 if k % 4 < 2 else rng.random())
    fall = 0.5 * eta * float(slope @ slope)
    return (problem.loss_at(p - eta * slope) - now) / fall + 1


@each(0.5, "1 where the margin condition fails, best of many c1")
def _margin(formula: Any, rng: Rng, k: int) -> Any:
    """Whether the margin condition holds (for some c1) where the rule says so, with the constants of a form.

    Rows of X_i independent (n <= d) and Gaussian; realizable labels (A2), so that they grow with alpha.
    """
    alpha, distance = (1.0, 1e3, 1e6)[k % 3], (1.0, 0.0)[k % 2]
    problem, p_star = realizable(rng, 3, 3, 6, key_map=False)
    problem = problem.with_values(alpha * problem.v / np.linalg.norm(problem.v))
    problem = problem.with_labels(problem.predict(p_star))
    p0 = p_star + distance * rng.normal(size=6)
    rule, form = formula
    if rule(alpha, distance):
        grid = [convergence_constants(problem, p0, c1=c1, form=form) for c1 in 10.0 ** -np.arange(0.3, 30)]
        yield float(max(constants.margin for constants in grid) <= 0)


def _almost_surely(formula: Any, rng: Rng, trials: int) -> Measurement:
    values = []
    for _ in range(trials):
        N, n = int(rng.integers(1, 5)), int(rng.integers(1, 4))
        d = int(rng.integers(1, 6))
        if formula(N, n, d):
            problem, p_star = realizable(rng, N, n, d)
            F = problem.feature_matrix(p_star)
            # Saturated examples have tiny rows; rank is a matter of their directions.
            sizes = np.linalg.norm(F, axis=1, keepdims=True)
            values.append(-float(np.linalg.svd(F / np.maximum(sizes, 1e-300), compute_uv=False)[:N].min()))
            values[-1] *= float(d >= N)
    return count(values, -1e-10, "minus the smallest singular value of F with unit rows; error probability 1e-7")


@each(1e-9, "log R over its bound, less 1")
def _norm(formula: Any, rng: Rng, k: int) -> Any:
    K, p = rng.normal(size=(6, 4)), rng.normal(size=4) * rng.uniform(0.1, 20)
    return float(peakedness(log_attention=log_softmax(K @ p), log=True)) / formula(K, p) - 1


def _l_prime(power: int) -> Any:
    return lambda C, sW, L, v, excess, m: sW**2 * C**power * L * v * (2 * C * v + 3 * np.sqrt(2 * excess / m))


CHECKS = {
    "E8-9": Check(_gradient, _gradient_printed, trials=30),
    "E10": Check(_descent, lambda p, eta, F, g: p + eta * F.T @ g, lambda p, eta, F, g: p - eta * F.T @ g),
    "L2": Check(_pl, lambda m, N, s, excess: 2 * m * s**2 * excess, lambda m, N, s, excess: m * N * s**2 * excess),
    "Rk1": Check(_sigma, lambda F: np.sqrt(max(np.linalg.eigvalsh(F @ F.T)[0], 0.0)), trials=50),
    "E22": Check(
        _gradient_bound,
        lambda m, L, N, C, sW, v, e: np.sqrt(2 * e / (m * N)) * L * C**2 * sW * v,
        lambda m, L, N, C, sW, v, e: 0.5 * np.sqrt(2 * L * e) * C**2 * sW * v,
    ),
    "E25": Check(_jacobian_lipschitz, 3.0),
    "E26": Check(
        _residual_slope, lambda now, then, m, L: L * np.sqrt(2 * then / m), lambda now, then, m, L: np.sqrt(2 * L * now)
    ),
    "E28": Check(_softmax_lipschitz, 2.0),
    "L4-L'": Check(_smoothness, _l_prime(4), _l_prime(3), trials=40),
    "L4-mu": Check(_rate_constant, lambda c, L: c / L, lambda c, L: c * L),
    "L4-Cp": Check(_guarantee("travel"), "printed", "corrected", trials=8),
    "L4-gam": Check(_drift, lambda C, sW, v, N, r: min(2.0, 3 * C * sW * r) * C**2 * sW * v / np.sqrt(N)),
    "E32": Check(_step_size, lambda L: 2 / L),
    "T1i": Check(_guarantee("both"), "printed", "corrected", trials=8),
    "T1ii": Check(
        _margin,
        (lambda alpha, distance: alpha >= 1e3, "printed"),
        (lambda alpha, distance: distance == 0, "corrected"),
        trials=24,
    ),
    "L5a": Check(_almost_surely, lambda N, n, d: d >= N and n >= 2, trials=200),
    "Lim": Check(_norm, lambda K, p: np.sqrt(2) * np.linalg.norm(K, 2) * np.linalg.norm(p)),
}
