"""Checks on conditioning: the softmax Jacobian and Theorem 1.

Lemma 1, Proposition 1 and the proxy are about the condition number of the Jacobian; Section 3.1 and Appendix E about
the gradient, the PL inequality and smoothness. Random instances that the other checks of this paper use are here too.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from attsvm.dynamics.conditioning import (
    PromptProblem,
    ScalarLoss,
    check_guarantee,
    convergence_constants,
    curved_loss,
    squared_loss,
)
from attsvm.softmax import condition_bounds, condition_number, jacobian_spectrum, log_softmax, peakedness, softmax
from attsvm.solvers.arrays import FloatArray
from attsvm.validation.ledger.claim_record import Check, Measurement, count, each

Rng = np.random.Generator


def attention(rng: Rng, n: int | None = None, scale: float | None = None) -> FloatArray:
    """Attention of Gaussian logits; length and scale are drawn when not given.

    Examples
    --------
    >>> float(attention(np.random.default_rng(0), 3).sum().round(12))
    1.0
    """
    size = int(rng.choice([2, 3, 5, 10, 40])) if n is None else n
    return softmax(rng.normal(size=size) * (rng.uniform(0.1, 6) if scale is None else scale))


def jacobian(a: FloatArray) -> FloatArray:
    """diag(a) - a a^T.

    Examples
    --------
    >>> jacobian(np.array([0.5, 0.5]))
    array([[ 0.25, -0.25],
           [-0.25,  0.25]])
    """
    return np.asarray(np.diag(a) - np.outer(a, a))


def realizable(
    rng: Rng, N: int, n: int, d: int, *, scale: float = 1.0, key_map: bool = True, loss: ScalarLoss | None = None
) -> tuple[PromptProblem, FloatArray]:
    """A random problem whose labels a random p* produces, and p*.

    Examples
    --------
    >>> problem, p_star = realizable(np.random.default_rng(0), 3, 4, 2)
    >>> problem.loss_at(p_star)
    0.0
    """
    W = rng.normal(size=(d, d)) if key_map else None
    problem = PromptProblem(
        X=scale * rng.normal(size=(N, n, d)), y=np.zeros(N), v=rng.normal(size=d), W=W, loss=loss or squared_loss()
    )
    p_star = rng.normal(size=d)
    return problem.with_labels(problem.predict(p_star)), p_star


def torch_loss(problem: PromptProblem) -> Any:
    """The loss as a torch function of p, written independently of the library.

    Examples
    --------
    >>> import torch
    >>> problem, p_star = realizable(np.random.default_rng(0), 3, 4, 2, loss=curved_loss(1.0))
    >>> float(torch_loss(problem)(torch.tensor(p_star))) < 1e-30
    True
    """
    import torch

    X, y, v = (torch.tensor(np.array(part)) for part in (problem.X, problem.y, problem.v))
    W = torch.eye(X.shape[2], dtype=X.dtype) if problem.W is None else torch.tensor(np.array(problem.W))
    extra = problem.loss.L - 1.0

    def loss(p: Any) -> Any:
        a = torch.softmax(X @ (W @ p), -1)
        r = (a * (X @ v)).sum(-1) - y
        return (0.5 * r**2 + extra * torch.log(torch.cosh(r))).mean()

    return loss


def autograd_jacobian(function: Any, x: Any) -> FloatArray:
    """Jacobian of a torch function by automatic differentiation.

    Examples
    --------
    >>> import torch
    >>> autograd_jacobian(lambda x: x**2, torch.tensor([1.0, 2.0]))
    array([[2., 0.],
           [0., 4.]], dtype=float32)
    """
    import torch

    functional: Any = torch.autograd.functional
    return np.asarray(functional.jacobian(function, torch.as_tensor(x)).numpy())


def autograd_hessian(function: Any, x: Any) -> FloatArray:
    """Hessian of a torch function by automatic differentiation.

    Examples
    --------
    >>> import torch
    >>> autograd_hessian(lambda x: (x**2).sum(), torch.tensor([1.0, 2.0]))
    array([[2., 0.],
           [0., 2.]], dtype=float32)
    """
    import torch

    functional: Any = torch.autograd.functional
    return np.asarray(functional.hessian(function, torch.as_tensor(x)).numpy())


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


def _tangent_kappa(J: FloatArray, H: FloatArray) -> float:
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


def _khat(a: FloatArray) -> float:
    return float(condition_bounds(a)[0])


def _fixed_bounds(a: FloatArray, mu: float, L: float) -> tuple[float, float]:
    return mu / L * _khat(a) ** 2, L / mu * 4 * (1 - a.min()) ** 2 * _khat(a) ** 2


@each(np.log(4) + 1e-6, "log of estimate over kappa(J^2)")
def _estimate(formula: Any, rng: Rng, k: int) -> Any:
    a = attention(rng, 50, rng.uniform(1, 8))
    return abs(formula(a) - 2 * float(condition_number(a, log=True)))


CHECKS_JACOBIAN = {
    "E5-6": Check(_derivative, lambda z: np.diag(z) @ (np.eye(len(z)) - np.outer(np.ones(len(z)), z))),
    "L1.1-2": Check(_semidefinite, jacobian),
    "L1.3": Check(_interlacing, lambda z: (np.full(len(z) - 1, z[0]), np.full(len(z) - 1, z[-1]))),
    "P1-kap": Check(
        _with_hessian,
        lambda a, mu, L: (mu / L * (a.max() / a.min()) ** 2, np.inf),
        lambda a, mu, L: (_fixed_bounds(a, mu, L)[0], np.inf),
    ),
    "J3-k": Check(_estimate, lambda a: 2 * np.log(a.max() / a.min()), lambda a: 2 * np.log(_khat(a))),
}


@each(1e-10, "relative difference from autograd")
def _gradient(formula: Any, rng: Rng, k: int) -> Any:
    import torch

    problem, _ = realizable(rng, 4, 5, 3, loss=curved_loss(float(k % 2)))
    p = torch.tensor(rng.normal(size=3), requires_grad=True)
    torch_loss(problem)(p).backward()
    assert p.grad is not None
    exact = p.grad.numpy()
    return np.abs(formula(problem, p.detach().numpy()) - exact).max() / np.abs(exact).max()


def _gradient_printed(problem: PromptProblem, p: FloatArray) -> FloatArray:
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


@each(1e-9, "relative excess of the lower bound; two to five examples")
def _pl(formula: Any, rng: Rng, k: int) -> Any:
    N = (2, 3, 5)[k % 3]
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


def _orthogonal(N: int) -> tuple[PromptProblem, FloatArray]:
    X = np.stack([np.eye(N)[[i, i]] * np.array([[1.0], [-1.0]]) for i in range(N)])
    problem = PromptProblem(X=X, y=np.zeros(N), v=np.full(N, 200 / np.sqrt(N)))
    return problem.with_labels(problem.predict(np.full(N, 0.02 / np.sqrt(N)))), np.zeros(N)


@each(1e-5, "loss or |p_t - p_0| over its bound, runs that meet the margin condition; N = 2, 3, 4")
def _guarantee(formula: Any, rng: Rng, k: int) -> Any:
    """The constants of Lemma 4 as printed but for mu = formula(c1, L'), on runs that meet the margin condition.

    They are orthogonal examples, and starts near a solution. Nothing is yielded where the condition fails.
    """
    if k < 2:
        problem, p0 = _orthogonal((2, 4)[k])
        grid: tuple[float, ...] = (0.9,)
    else:
        problem, p_star = realizable(rng, 3, 3, 6, key_map=False)
        p0, grid = p_star + 1e-9 * rng.normal(size=6), (1e-2, 1e-4, 1e-6)
    for c1, c2 in ((c1, c2) for c1 in grid for c2 in (1.0, 0.3)):  # any step of (0, 1/L']
        printed = convergence_constants(problem, p0, c1=c1, c2=c2, form="printed")
        mu = float(formula(c1, printed.smoothness))
        threshold = printed.drift + np.sqrt(mu / (2 * problem.loss.m))
        constants = replace(printed, rate=mu, threshold=float(threshold))
        if constants.margin > 0:
            run = check_guarantee(problem, p0, constants, steps=400 if k < 2 else 100)
            yield max(run.travel_ratio, run.loss_ratio) - 1


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


@each(-1e-10, "minus the smallest singular value of F with unit rows; error probability 1e-7")
def _almost_surely(formula: Any, rng: Rng, k: int) -> Any:
    N, n = int(rng.integers(1, 5)), int(rng.integers(1, 4))
    d = int(rng.integers(1, 6))
    if not formula(N, n, d):
        return None
    problem, p_star = realizable(rng, N, n, d)
    F = problem.feature_matrix(p_star)
    # Saturated examples have tiny rows; rank is a matter of their directions.
    sizes = np.linalg.norm(F, axis=1, keepdims=True)
    return -float(np.linalg.svd(F / np.maximum(sizes, 1e-300), compute_uv=False)[:N].min()) * float(d >= N)


@each(1e-9, "log R over its bound, less 1")
def _norm(formula: Any, rng: Rng, k: int) -> Any:
    K, p = rng.normal(size=(6, 4)), rng.normal(size=4) * rng.uniform(0.1, 20)
    return float(peakedness(log_attention=log_softmax(K @ p), log=True)) / formula(K, p) - 1


def _l_prime(power: int) -> Any:
    return lambda C, sW, L, v, excess, m: sW**2 * C**power * L * v * (2 * C * v + 3 * np.sqrt(2 * excess / m))


CHECKS_OVERPARAMETERIZED = {
    "E8-9": Check(_gradient, _gradient_printed, trials=30),
    "E10": Check(_descent, lambda p, eta, F, g: p + eta * F.T @ g, lambda p, eta, F, g: p - eta * F.T @ g),
    "L2": Check(_pl, lambda m, N, s, excess: 2 * m * s**2 * excess),
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
    "L4-gam": Check(_drift, lambda C, sW, v, N, r: min(2.0, 3 * C * sW * r) * C**2 * sW * v / np.sqrt(N)),
    "E32": Check(_step_size, lambda L: 2 / L),
    "T1i": Check(_guarantee, lambda c1, L: c1 * L, trials=20),
    "T1ii": Check(
        _margin,
        (lambda alpha, distance: alpha >= 1e3, "printed"),
        (lambda alpha, distance: distance == 0, "corrected"),
        trials=24,
    ),
    "L5a": Check(_almost_surely, lambda N, n, d: d >= N and n >= 2, trials=200),
    "Lim": Check(_norm, lambda K, p: np.sqrt(2) * np.linalg.norm(K, 2) * np.linalg.norm(p)),
}
