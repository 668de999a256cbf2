"""Cases of conditioning and localization, against autograd, dense linear algebra, integrals and simulation."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

from attsvm.dynamics import conditioning as c
from attsvm.dynamics import localization as loc
from attsvm.solvers.arrays import FloatArray
from attsvm.validation.matrix_calls.call_cases import FORMS, GIVEN, Call, case, close

_hessian: Any = torch.autograd.functional.hessian  # without types


# -- conditioning --------------------------------------------------------------------------------------
def _teacher(call: Call, extra: float | None = None) -> Any:
    N, n, d = call.pick((6, 3, 2), (12, 5, 4), (20, 6, 5))
    loss = None if extra is None else c.curved_loss(extra)
    return c.student_teacher(N=N, n=n, d=d, sigma_p=0.5, loss=loss, seed=call.seed)


def _structured(call: Call) -> tuple[Any, Any, Any]:
    N, n, d = call.pick((3, 4, 4), (6, 6, 6), (12, 9, 6))
    return c.structured_teacher(N, n, d, 2, gap=2.0, leakage=0.1, spread=0.3, seed=call.seed)


def _risk(problem: Any, p: torch.Tensor, v: torch.Tensor, extra: float = 0.0) -> torch.Tensor:
    X = torch.tensor(np.array(problem.X))
    a = torch.softmax(X @ p, dim=1)
    r = torch.einsum("in,ind,d->i", a, X, v) - torch.tensor(np.array(problem.y))
    return (r**2 / 2 + extra * torch.log(torch.cosh(r))).mean()


@case("attsvm.dynamics.conditioning.curvature", "attsvm.dynamics.conditioning.joint_curvature")
def _curvature(call: Call) -> Iterator[str]:
    """At the teacher residuals vanish, and N times the Hessian of the loss is H_p."""
    teacher = _teacher(call)
    joint = call.name == "joint_curvature"
    found = call.run(getattr(c, call.name), teacher.problem, teacher.p_star)
    p, v = torch.tensor(np.array(teacher.p_star)), torch.tensor(np.array(teacher.problem.v))
    both = torch.cat([p, v]) if joint else p

    def risk(x: torch.Tensor) -> torch.Tensor:
        return _risk(teacher.problem, x[: len(p)], x[len(p) :] if joint else v)

    H = _hessian(risk, both) * len(teacher.problem.y)
    wanted = np.sort(np.linalg.eigvalsh(H.numpy()))[::-1]
    yield from close("eigenvalues", found.eigenvalues, np.maximum(wanted, 0.0), 1e-9)


@case("attsvm.dynamics.conditioning.squared_loss", "attsvm.dynamics.conditioning.curved_loss")
def _scalar_loss(call: Call) -> Iterator[str]:
    extra = 0.0 if call.name == "squared_loss" else 1.7
    loss = call.run(c.squared_loss) if not extra else call.run(c.curved_loss, extra)
    r = torch.linspace(-3, 3, call.pick(3, 9, 51)).double().requires_grad_()
    value = r**2 / 2 + extra * torch.log(torch.cosh(r))
    (slope,) = torch.autograd.grad(value.sum(), r, create_graph=True)
    (second,) = torch.autograd.grad(slope.sum(), r)
    at = r.detach().numpy()
    yield from close("value", loss.value(at), value.detach(), 1e-12)
    yield from close("slope", loss.slope(at), slope.detach(), 1e-12)
    yield from close("curvature", loss.curvature(at), second, 1e-12)
    if not (loss.m <= loss.curvature(at) + 1e-12).all() or not (loss.curvature(at) <= loss.L + 1e-12).all():
        yield "the curvature leaves [m, L]"


@case("attsvm.dynamics.conditioning.descend", work=150_000)
def _prompt_descent(call: Call) -> Iterator[str]:
    """Every rule step by step, Jacobians by autograd; Levenberg-Marquardt never raises the loss."""
    teacher = _teacher(call)
    p0, v0 = teacher.student(seed=1)
    steps, lr = 5, 0.05
    options = call.options("optimizer", lr=lr)
    found = call.run(c.descend, teacher.problem, p0, v0 if call.given("v0") else None, steps=steps, every=1, **options)
    v = torch.tensor(v0 if call.given("v0") else np.array(teacher.problem.v))
    first = _risk(teacher.problem, torch.tensor(p0), v).item()
    yield from close("first loss", found.losses[0], first, 1e-10)
    if call["optimizer"] != "gauss_newton":
        rate = (
            lr
            if call.given("lr")
            else {"gd": 0.05, "adam": 0.01, "preconditioned": 0.1, "natural": 0.5}[call["optimizer"]]
        )
        rule = _descended if call["optimizer"] in ("gd", "adam") else _newtonian
        p, v = rule(teacher.problem, torch.tensor(p0), v, call.given("v0"), call["optimizer"], rate, steps)
        yield from close("p", found.p, p, 1e-7)
        yield from close("v", found.v, v, 1e-7)
    elif found.losses[-1] > found.losses[0] * (1 + 1e-9):
        yield f"the loss rose from {found.losses[0]:.3g} to {found.losses[-1]:.3g}"


def _descended(problem: Any, p: Any, v: Any, joint: bool, rule: str, lr: float, steps: int) -> tuple[Any, Any]:
    p, v = p.clone().requires_grad_(), v.clone().requires_grad_(joint)
    parts = [p, v] if joint else [p]
    make: Any = torch.optim.SGD if rule == "gd" else torch.optim.Adam
    optimizer = make(parts, lr=lr)
    for _ in range(steps):
        optimizer.zero_grad()
        for part, slope in zip(parts, torch.autograd.grad(_risk(problem, p, v), parts), strict=True):
            part.grad = slope
        optimizer.step()
    return p.detach(), v.detach()


def _newtonian(problem: Any, p: Any, v: Any, joint: bool, rule: str, lr: float, steps: int) -> tuple[Any, Any]:
    """Steps with the diagonal of the Gauss-Newton matrix, or with the whole of it, damped by a thousandth."""
    X, y, d = torch.tensor(np.array(problem.X)), torch.tensor(np.array(problem.y)), len(p)
    theta = torch.cat([p, v]) if joint else p

    def residuals(x: torch.Tensor) -> torch.Tensor:
        u = X @ (x[d:] if joint else v)
        return (torch.softmax(X @ x[:d], dim=1) * u).sum(1) - y

    jacobian: Any = torch.autograd.functional.jacobian
    for _ in range(steps):
        J = jacobian(residuals, theta)
        G, g = J.T @ J / len(y), J.T @ residuals(theta) / len(y)
        if rule == "natural":
            theta = theta - lr * torch.linalg.solve(G + 1e-3 * G.trace() / len(G) * torch.eye(len(G)).double(), g)
        else:
            theta = theta - lr * g / (G.diagonal() + 1e-3 * G.diagonal().max())
    return theta[:d], theta[d:] if joint else v


@case("attsvm.dynamics.conditioning.student_teacher")
def _student_teacher(call: Call) -> Iterator[str]:
    N, n, d = call.pick((2, 2, 2), (5, 4, 3), (20, 6, 5))
    options = call.options(log_ratio=1.5, loss=c.curved_loss(1.0))
    teacher = call.run(c.student_teacher, N, n, d, seed=call.seed, **options)
    scores = teacher.problem.X @ teacher.p_star
    if call.given("log_ratio"):
        yield from close("median spread", np.median(np.ptp(scores, axis=1)), 1.5)
    a = np.exp(scores - scores.max(axis=1, keepdims=True))
    a /= a.sum(axis=1, keepdims=True)
    yield from close("labels", teacher.problem.y, np.einsum("in,ind,d->i", a, teacher.problem.X, teacher.problem.v))


@case("attsvm.dynamics.conditioning.structured_teacher")
def _structured_teacher(call: Call) -> Iterator[str]:
    N, n, d = call.pick((2, 3, 4), (5, 5, 6), (9, 8, 8))
    signal = 3 if call.given("signal") else None
    teacher, members, basis = call.run(c.structured_teacher, N, n, d, 2, gap=3.0, signal=signal, seed=call.seed)
    scores = teacher.problem.X @ teacher.p_star
    gaps = np.where(members, scores, np.inf).min(axis=1) - np.where(members, -np.inf, scores).max(axis=1)
    yield from close("gaps", gaps, np.full(N, 3.0))
    yield from close("basis", basis.T @ basis, np.eye(d - (signal or d // 2)))


@case("attsvm.dynamics.conditioning.separation")
def _separation(call: Call) -> Iterator[str]:
    teacher, members, _ = _structured(call)
    p = teacher.p_star
    found = call.run(c.separation, teacher.problem, p, members if call.given("members") else None)
    scores = teacher.problem.X @ p
    a = np.exp(scores - scores.max(axis=1, keepdims=True))
    a /= a.sum(axis=1, keepdims=True)
    if not call.given("members"):
        members = a >= 0.5 * a.max(axis=1, keepdims=True)
        yield from close("members", found.members, members)
    for i in range(len(a)):
        inside, outside = scores[i][members[i]], scores[i][~members[i]]
        yield from close("gap", found.gap[i], inside.min() - outside.max())
        yield from close("spread", found.spread[i], np.ptp(inside))
        yield from close("other spread", found.other_spread[i], np.ptp(outside))
    yield from close("a_I", found.a_I, a[members].min())
    yield from close("a_U", found.a_U, a[~members].max())


@case("attsvm.dynamics.conditioning.leakage")
def _leakage(call: Call) -> Iterator[str]:
    """The largest ratio over directions of U, by generalized eigenvalues."""
    from scipy.linalg import eigh

    teacher, members, basis = _structured(call)
    found = call.run(c.leakage, teacher.problem, members, basis)
    for i, chosen in enumerate(members):
        inside, outside = (teacher.problem.X[i][part] @ basis for part in (chosen, ~chosen))
        if np.linalg.matrix_rank(outside) < basis.shape[1]:
            continue
        top = eigh(inside.T @ inside, outside.T @ outside, eigvals_only=True)[-1]
        yield from close("leakage", found[i], np.sqrt(max(top, 0.0)), 1e-7)


@case("attsvm.dynamics.conditioning.value_margins")
def _value_margins(call: Call) -> Iterator[str]:
    teacher, members, _ = _structured(call)
    found = call.run(c.value_margins, teacher.problem, teacher.p_star, members)
    u, f = teacher.problem.X @ teacher.problem.v, teacher.problem.predict(teacher.p_star)
    yield from close("margins", found, [np.abs(u[i][members[i]] - f[i]).min() for i in range(len(u))])


@case("attsvm.dynamics.conditioning.condition_lower_bound")
def _condition_bound(call: Call) -> Iterator[str]:
    teacher, members, basis = c.structured_teacher(call.pick(20, 40, 60), 8, 6, 3, gap=6.0, seed=call.seed)
    found = call.run(c.condition_lower_bound, teacher.problem, teacher.p_star, members, basis, form=call["form"])
    spectrum = c.curvature(teacher.problem, teacher.p_star)
    if call["form"] != "printed":
        if found.largest_at_least > spectrum.eigenvalues[0] * (1 + 1e-9):
            yield "the largest eigenvalue lies below its bound"
        if found.smallest_at_most < spectrum.eigenvalues[-1] * (1 - 1e-9):
            yield "the smallest eigenvalue lies above its bound"
    if call["form"] != "printed" and found.condition_at_least > spectrum.condition_number * (1 + 1e-9):
        yield "the condition number lies below its bound"


@case("attsvm.dynamics.conditioning.convergence_constants", "attsvm.dynamics.conditioning.check_guarantee")
def _guarantee(call: Call) -> Iterator[str]:
    N, n, d = call.pick((2, 3, 6), (3, 4, 8), (4, 5, 12))
    teacher = c.student_teacher(N=N, n=n, d=d, sigma_p=0.1, seed=call.seed)
    p0 = teacher.p_star + 1e-10
    form = call.row.get("form", "corrected")
    if call.name == "convergence_constants":
        found = call.run(c.convergence_constants, teacher.problem, p0, c1=1e-6, form=form)
        sigma = np.linalg.svd(teacher.problem.rows(p0) / N, compute_uv=False)[N - 1]
        yield from close("sigma_min", found.sigma_min, sigma, 1e-10)
        return
    constants = c.convergence_constants(teacher.problem, p0, c1=1e-6)
    checked = call.run(c.check_guarantee, teacher.problem, p0, constants, steps=20)
    p, losses = torch.tensor(p0), []
    v = torch.tensor(np.array(teacher.problem.v))
    for _ in range(21):
        q = p.clone().requires_grad_()
        value = _risk(teacher.problem, q, v)
        losses.append(value.item())
        p = p - constants.step * torch.autograd.grad(value, q)[0]
    scale = losses[0]
    # Residuals of 1e-10 beside values of order 1 are known to 1e-6.
    yield from close("losses", checked.losses / scale, np.array(losses) / scale, 1e-4)
    if constants.margin > 0 and (checked.loss_ratio > 1 + 1e-9 or checked.travel_ratio > 1):
        yield "the theorem applies and its bounds do not hold"


@case("attsvm.dynamics.conditioning.local_rate")
def _local_rate(call: Call) -> Iterator[str]:
    N, n, d = call.pick((20, 4, 2), (40, 6, 4), (60, 6, 5))
    teacher = c.student_teacher(N=N, n=n, d=d, sigma_p=0.5, seed=call.seed)
    spectrum = c.curvature(teacher.problem, teacher.p_star).eigenvalues
    step = 0.3 * N / spectrum[0] if call.given("step") else None
    found = call.run(c.local_rate, teacher.problem, teacher.p_star, step=step)
    yield from close("predicted", found.predicted, 1 - (step or N / spectrum[0]) * spectrum[-1] / N)
    yield from close("measured", found.measured, found.predicted, 1e-4)


@case("attsvm.dynamics.conditioning.dominant_token", forms=FORMS)
def _dominant(call: Call) -> Iterator[str]:
    n = call.pick(2, 3, 9)
    eps = np.array([0.1, 0.4, 1e-9]) if call.batch else np.array(0.3)
    found = np.exp(call.run(c.dominant_token, n, eps))
    wanted = np.concatenate([1 - eps[..., None], np.repeat(eps[..., None] / (n - 1), n - 1, axis=-1)], axis=-1)
    yield from close("attention", found, wanted, 1e-12)


@case(
    "attsvm.dynamics.conditioning.kappa_report", forms=FORMS,
    refused=lambda row: (row["attention"] is None) == (row["log_attention"] is None),
)  # fmt: skip
def _kappa(call: Call) -> Iterator[str]:
    a = call.rng.dirichlet(np.ones(call.pick(2, 4, 12)), size=call.batch)
    found = call.run(c.kappa_report, **call.options(attention=a, log_attention=np.log(a)))
    J = np.einsum("...i,ij->...ij", a, np.eye(a.shape[-1])) - a[..., :, None] * a[..., None, :]
    values = np.linalg.eigvalsh(J)
    exact = 2 * np.log(values[..., -1] / values[..., 1])
    yield from close("kappa", found.exact, exact, 1e-6)
    if not ((found.lower <= exact + 1e-6) & (exact <= found.upper + 1e-6) & (exact <= found.proxy + 1e-6)).all():
        yield "a bound does not hold"


# -- localization --------------------------------------------------------------------------------------
def _symmetric(call: Call) -> FloatArray:
    d = call.pick(2, 4, 8)
    G = call.rng.standard_normal((d, d))
    return np.asarray((G + G.T) / np.sqrt(d))


def _covariance(call: Call, d: int) -> Any:
    return np.diag(call.rng.uniform(0.5, 2.0, d)) if call.given("covariance") else None


def _entropies(X: FloatArray, W: FloatArray, scale: float, causal: bool) -> FloatArray:
    """Entropies of the attention of every query, shape (..., T)."""
    logits = np.einsum("...qe,de,...kd->...qk", X, W, X) / scale
    if causal:
        logits = np.where(np.tri(X.shape[-2], dtype=bool), logits, -np.inf)
    s = np.exp(logits - logits.max(axis=-1, keepdims=True))
    s /= s.sum(axis=-1, keepdims=True)
    return np.asarray(-(s * np.log(np.where(s > 0, s, 1.0))).sum(axis=-1))


@case("attsvm.dynamics.localization.attention_entropy", forms=FORMS)
def _loc_entropy(call: Call) -> Iterator[str]:
    T, d = call.pick((2, 2), (4, 3), (7, 6))
    X = call.rng.standard_normal((T, d) if call.batch is None else (call.batch, T, d))
    W = call.rng.standard_normal((d, d))
    found = call.run(loc.attention_entropy, X, W, **call.options("causal", "query", temperature=0.7))
    each = _entropies(X, W, 0.7 if call.given("temperature") else np.sqrt(d), call["causal"])
    yield from close("entropy", found, each[..., -1] if call["query"] == "last" else each.mean(axis=-1), 1e-10)


@case("attsvm.dynamics.localization.entropy_bound")
def _entropy_bound(call: Call) -> Iterator[str]:
    T, d = call.pick((3, 2), (6, 3), (10, 5))
    X, W = call.rng.standard_normal((T, d)) / 3, call.rng.standard_normal((d, d))
    found = call.run(loc.entropy_bound, X, W, **call.options("form", "query", temperature=1.3))
    each = _entropies(X, W, 1.3 if call.given("temperature") else np.sqrt(d), False)
    yield from close("right side", found.right, each[-1] if call["query"] == "last" else each.mean(), 1e-9)
    if call["form"] == "tight" and not found.holds:
        yield f"{found}"


@case("attsvm.dynamics.localization.entropy_lower_bound", forms=FORMS)
def _entropy_lower(call: Call) -> Iterator[str]:
    """No logits on the sphere of radius nu have less entropy; one token against all others attains the tight form."""
    T = call.pick(2, 5, 20)
    nu = np.array([0.5, 1.0, 3.0]) if call.batch else np.array(2.0)
    found = call.run(loc.entropy_lower_bound, nu, T, call["form"])
    if call["form"] != "tight":
        return
    for radius, bound in zip(np.atleast_1d(nu), np.atleast_1d(found), strict=True):
        direction = np.eye(T)[0] - 1.0 / T
        logits = np.vstack([call.rng.standard_normal((50, T)), direction])
        logits *= radius / np.linalg.norm(logits, axis=1, keepdims=True)
        s = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
        entropy = -(s * np.log(s)).sum(axis=1)
        if (entropy < bound - 1e-9).any():
            yield f"entropy {entropy.min()} lies below the bound {bound}"
        yield from close("least entropy", bound, entropy[-1], 1e-9)


@case(
    *(f"attsvm.dynamics.localization.{name}" for name in ("norm_below_scale", "trace_above_norm", "trace_below_norm"))
)
def _inequalities(call: Call) -> Iterator[str]:
    W = _symmetric(call)
    d = len(W)
    if call.name == "trace_above_norm":
        W = W @ W  # semidefinite, as it needs
        found = call.run(loc.trace_above_norm, W)
        sides = np.linalg.norm(W, 2), abs(np.trace(W))
    else:
        sigma = _covariance(call, d)
        S = np.eye(d) if sigma is None else sigma
        if call.name == "norm_below_scale":
            found = call.run(loc.norm_below_scale, W, sigma)
            sides = np.linalg.norm(W), np.linalg.norm(np.linalg.inv(S), 2) * np.sqrt(np.trace(W @ S @ W.T @ S))
        else:
            found = call.run(loc.trace_below_norm, W, sigma, call["norm"], call["form"])
            power = 1.0 if call["form"] == "corrected" and call["norm"] == "spectral" else 0.5
            left = abs(np.trace(W @ S)) / (d**power * np.linalg.norm(S, 2))
            sides = left, np.linalg.norm(W, 2 if call["norm"] == "spectral" else "fro")
    yield from close("sides", [found.left, found.right], sides, 1e-9)
    if call.row.get("form", "corrected") == "corrected" and not found.holds:
        yield f"{found}"


@case("attsvm.dynamics.localization.piecewise_softmax", forms=FORMS)
def _piecewise(call: Call) -> Iterator[str]:
    T = call.pick(2, 5, 20)
    omega = 5.0 * call.rng.standard_normal((T,) if call.batch is None else (call.batch, T))
    signal = (omega - omega.mean(axis=-1, keepdims=True)) / T + 1 / T
    yield from close("weights", call.run(loc.piecewise_softmax, omega), np.clip(signal, 0, 1), 1e-12)


@case("attsvm.dynamics.localization.qk_spectrum", words={"kind": ("matrix", "pair")})
def _spectrum(call: Call) -> Iterator[str]:
    d, r = call.pick((2, 1), (5, 2), (9, 3))
    sigma = _covariance(call, d)
    S = np.eye(d) if sigma is None else sigma
    if call["kind"] == "pair":
        W_q, W_k = call.rng.standard_normal((2, r, d))
        given: Any = (W_q, W_k)
        W = W_k.T @ W_q
    else:
        given = W = call.rng.standard_normal((d, d))
    found = call.run(loc.qk_spectrum, given, sigma)
    M = W @ S
    yield from close("traces", [found.trace, found.trace_squared], [np.trace(M), np.trace(M @ M)], 1e-9)
    yield from close("gram", found.gram, np.trace(W @ S @ W.T @ S), 1e-9)
    sizes = np.sort(np.abs(np.linalg.eigvals(M)))[::-1][: len(found.eigenvalues)]
    yield from close(
        "eigenvalues", np.abs(found.eigenvalues), np.pad(sizes, (0, len(found.eigenvalues) - len(sizes))), 1e-6
    )


@case("attsvm.dynamics.localization.qk_trace", forms=FORMS)
def _qk_trace(call: Call) -> Iterator[str]:
    shape = call.pick((1, 2), (2, 4), (3, 8))
    W_q, W_k = call.rng.standard_normal((2, *((call.batch,) if call.batch else ()), *shape))
    found = call.run(loc.qk_trace, torch.tensor(W_q), torch.tensor(W_k))
    yield from close("trace", found, np.trace(np.swapaxes(W_q, -1, -2) @ W_k, axis1=-2, axis2=-1), 1e-10)


@case("attsvm.dynamics.localization.locater", forms=FORMS)
def _locater(call: Call) -> Iterator[str]:
    shape = call.pick((1, 2), (2, 4), (3, 8))
    W_q, W_k = call.rng.standard_normal((2, *((call.batch,) if call.batch else ()), *shape))
    found = call.run(loc.locater, torch.tensor(W_q), torch.tensor(W_k), 3.0, 0.5, target=2.0, roles=call["roles"])
    W = np.swapaxes(W_k, -1, -2) @ W_q
    mean, scale = (3.0, 0.5) if call["roles"] == "corrected" else (0.5, 3.0)
    trace = np.trace(W, axis1=-2, axis2=-1)
    yield from close("penalty", found, (mean * (trace - 2) ** 2 + scale * np.square(W).sum(axis=(-2, -1))).sum(), 1e-10)


@case("attsvm.dynamics.localization.locater_penalty", "attsvm.dynamics.localization.qk_weights")
def _modules(call: Call) -> Iterator[str]:
    d, heads, depth = call.pick((4, 1, 1), (8, 2, 1), (12, 3, 2))
    layer = torch.nn.TransformerEncoderLayer(d, heads, 2 * d, batch_first=True, dtype=torch.float64)
    model = torch.nn.TransformerEncoder(layer, depth, enable_nested_tensor=False)
    wanted = 0.0
    blocks = []
    for part in model.layers:
        W_q, W_k, _ = part.self_attn.in_proj_weight.detach().numpy().reshape(3, heads, d // heads, d)
        blocks.append((W_q, W_k))
        for q, k in zip(W_q, W_k, strict=True):
            wanted += 3.0 * (np.trace(k.T @ q) - 1) ** 2 + 0.5 * np.square(k.T @ q).sum()
    if call.name == "locater_penalty":
        yield from close("penalty", call.run(loc.locater_penalty, model, 3.0, 0.5).detach(), wanted, 1e-10)
        return
    found = call.run(lambda: list(loc.qk_weights(model)))
    for one, (W_q, W_k) in zip(found, blocks, strict=True):
        yield from close("queries", one.W_q.detach(), W_q)
        yield from close("keys", one.W_k.detach(), W_k)


def _interval(mean: Any, variance: Any) -> FloatArray:
    from scipy.stats import norm

    sd = np.sqrt(variance)
    return np.asarray(norm.cdf((1 - mean) / sd) - norm.cdf(-mean / sd))


@case(
    *(f"attsvm.dynamics.localization.{name}" for name in ("rho", "rho_slope", "rho_limit")), words={"sign": (-1.0, 1.0)}
)
def _profile(call: Call) -> Iterator[str]:
    """The curve as a normal probability; its slope by differences, its limits by extreme parameters."""
    theta = np.linspace(0.03, 0.97, call.pick(2, 5, 40))
    xi, eta, form = call["sign"] * 3.0, 0.4, call.row.get("form", "corrected")

    def curve(t: FloatArray, x: float, e: float) -> FloatArray:
        variance = 2 * (t - 0.5) ** 2 + 1 / 12 if form == "corrected" else 2 * t**2 + 7 / 12
        return _interval((t - 0.5) * x * e, variance * e**2)

    if call.name == "rho":
        yield from close("rho", call.run(loc.rho, theta, xi, eta, form), curve(theta, xi, eta), 1e-9)
    elif call.name == "rho_slope":
        found = call.run(loc.rho_slope, theta, xi, eta, form)
        if form == "corrected":
            wanted = (curve(theta + 1e-5, xi, eta) - curve(theta - 1e-5, xi, eta)) / 2e-5
            yield from close("slope", found, wanted, 1e-6)
    else:
        r = call["sign"] * 5.0
        found = call.run(loc.rho_limit, theta, r, form)
        away = (np.abs(theta - 0.5) > 0.01) & (np.abs(theta - 0.5 - 1 / r) > 0.01)
        if form == "corrected":
            yield from close("limit", found[away], curve(theta, r * 1e4, 1e-4)[away], 1e-6)


def _signals(call: Call, W: FloatArray, T: int, sigma: Any, scale: float, count: int) -> FloatArray:
    """Signals of simulated walks, shape (count, T)."""
    d = len(W)
    S = np.eye(d) if sigma is None else sigma
    steps = call.rng.standard_normal((count, T, d)) @ np.linalg.cholesky(S).T
    X = np.cumsum(steps, axis=1)
    omega = np.einsum("nkd,de,ne->nk", X, W, X[:, -1]) / scale
    return np.asarray((omega - omega.mean(axis=1, keepdims=True)) / T + 1 / T)


@case("attsvm.dynamics.localization.signal_moments")
def _moments(call: Call) -> Iterator[str]:
    """Exact moments against 20,000 walks: within five standard errors."""
    W, T = _symmetric(call), call.pick(2, 5, 9)
    sigma = _covariance(call, len(W))
    found = call.run(loc.signal_moments, W, T, sigma, **call.options("form", temperature=1.5))
    if call["form"] != "exact":
        return
    signals = _signals(call, W, T, sigma, 1.5 if call.given("temperature") else np.sqrt(len(W)), 20_000)
    error = 5 * signals.std(axis=0) / np.sqrt(len(signals)) + 1e-12
    if (np.abs(signals.mean(axis=0) - found.mean) > error).any():
        yield "the mean differs from that of simulated walks"
    centred = (signals - signals.mean(axis=0)) ** 2
    if (np.abs(centred.mean(axis=0) - found.variance) > 5 * centred.std(axis=0) / np.sqrt(len(signals)) + 1e-12).any():
        yield "the variance differs from that of simulated walks"


@case("attsvm.dynamics.localization.simulate_signals")
def _simulated(call: Call) -> Iterator[str]:
    W, T = _symmetric(call), call.pick(2, 5, 9)
    sigma = _covariance(call, len(W))
    options = call.options(temperature=1.5, seed=call.seed)
    signals = call.run(loc.simulate_signals, W, T, 5000, sigma, **options)
    yield from close("sum", signals.sum(axis=1), np.ones(5000), 1e-9)
    known = loc.signal_moments(W, T, sigma, options["temperature"])
    if (np.abs(signals.mean(axis=0) - known.mean) > 5 * np.sqrt(known.variance / 5000) + 1e-12).any():
        yield "the mean differs from the exact one"


@case("attsvm.dynamics.localization.signal_propagation", work=200_000)
def _propagation(call: Call) -> Iterator[str]:
    """Exact and sampled probabilities against walks simulated here."""
    W, T = _symmetric(call), call.pick(2, 5, 9)
    sigma = _covariance(call, len(W))
    options = call.options("method", temperature=1.5, seed=call.seed)
    found = call.run(loc.signal_propagation, W, T, sigma, walks=4000, **options)
    if ((found.rho < -1e-9) | (found.rho > 1 + 1e-9)).any():
        yield "a probability lies outside [0, 1]"
    if call["method"] in ("exact", "monte_carlo"):
        signals = _signals(call, W, T, sigma, 1.5 if call.given("temperature") else np.sqrt(len(W)), 20_000)
        share = ((signals >= 0) & (signals <= 1)).mean(axis=0)
        error = 5 * np.sqrt((share * (1 - share) + 1e-3) / 20_000) + 5 * found.error * (call["method"] == "monte_carlo")
        if (np.abs(share - found.rho) > error).any():
            yield f"probabilities differ from simulated walks by {np.abs(share - found.rho).max():.3f}"


@case(
    "attsvm.dynamics.localization.summarize",
    words={"theta": (None, GIVEN), "shape": ("early", "late", "middle", "uniform")},
)
def _summary(call: Call) -> Iterator[str]:
    T = call.pick(4, 10, 50)
    theta = np.linspace(0, 1, T) if call.given("theta") else None
    at = np.arange(1, T + 1) / T if theta is None else theta
    rho = {
        "early": np.where(at <= 0.3, 0.9, 0.1), "late": np.where(at >= 0.8, 0.9, 0.1),
        "middle": np.where(np.abs(at - 0.5) <= 0.26, 0.9, 0.1) * (at > at[0]) * (at < at[-1]) + 0.01,
        "uniform": np.full(T, 0.5),
    }[call["shape"]]  # fmt: skip
    found = call.run(loc.summarize, rho, theta)
    if found.site != call["shape"]:
        yield f"site {found.site}"
    yield from close("peak", found.peak, rho.max())
    yield from close("center", found.center, (rho * at).sum() / rho.sum())
    yield from close("participation", found.participation, rho.sum() ** 2 / (T * np.square(rho).sum()))
