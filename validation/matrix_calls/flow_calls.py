"""Cases of polarization: plain Runge-Kutta steps on equations written out, and autograd."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import product
from typing import Any

import numpy as np
import torch
from scipy.integrate import solve_ivp

from attsvm.dynamics import polarization as pol
from attsvm.dynamics.polarization.value_losses import NORMALIZATIONS
from attsvm.solvers.arrays import FloatArray
from attsvm.validation.matrix_calls.call_cases import FORMS, GIVEN, Call, case, close

Tensor = torch.Tensor

_T_END = 3.0

_MAPS: dict[str, Callable[[Tensor], Tensor]] = {
    "softmax": torch.exp, "sum": lambda x: x, "square": lambda x: x * x, "sigmoid_norm": torch.sigmoid,
    "elu_norm": lambda x: torch.where(x > 0, x + 1, torch.exp(x.clamp(max=0))), "relu_norm": torch.relu,
    "l1": torch.abs, "sigmoid": torch.sigmoid, "relu": torch.relu, "linear": lambda x: x,
}  # fmt: skip


def _scores(a: Tensor, name: str) -> Tensor:
    f = _MAPS[name](a)
    return f if name in ("sigmoid", "relu", "linear") else f / f.sum()


def _logits(call: Call, p: int, name: str) -> FloatArray:
    """Positive logits, small enough that no map is out of its domain."""
    return np.asarray(0.5 + 0.4 * call.rng.random(p)) if name != "softmax" else 0.4 * call.rng.standard_normal(p)


def _integrated(rates: Callable[[Tensor], Tensor], start: FloatArray, end: float = _T_END) -> FloatArray:
    """State at the end of ``dy/dt = rates(y)``, by an explicit Runge-Kutta method in plain time."""

    def right(_: float, y: FloatArray) -> FloatArray:
        return rates(torch.tensor(y)).detach().numpy()

    found = solve_ivp(right, (0.0, end), start, method="DOP853", rtol=1e-9, atol=1e-11)
    return np.asarray(found.y[:, -1])


def _minus_gradient(loss: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    def rates(y: Tensor) -> Tensor:
        x = y.clone().requires_grad_()
        return -torch.autograd.grad(loss(x), x)[0]

    return rates


def _end(call: Call) -> float:
    """End of the comparison: before an entry of a map with a kink at zero gets there, where plain steps chatter."""
    return 0.2 if call.row.get("normalization") in ("relu_norm", "l1", "relu") else _T_END


def _times(call: Call) -> dict[str, Any]:
    times = np.linspace(0.0, _end(call), 5) if call.given("times") else None
    return {"times": times, "t_end": _end(call), "points": 6}


@case(
    "attsvm.dynamics.polarization.aligned_flow", forms=FORMS, work=400_000,
    words={"method": (None, GIVEN)},
)  # fmt: skip
def _aligned(call: Call) -> Iterator[str]:
    """``V = beta_* u^T / b`` follows the gradient flow of the loss itself."""
    p, b, name = call.pick(2, 3, 5), 1.5, call["normalization"]
    count = call.batch or 1
    u0 = 0.3 * call.rng.standard_normal((count, p))
    zero = not call.given("a0") and name in ("softmax", "sigmoid_norm", "elu_norm", "sigmoid")
    a0 = np.zeros((count, p)) if zero else np.stack([_logits(call, p, name) for _ in range(count)])
    given = None if zero else (a0 if call.batch else a0[0])
    flow = call.run(
        pol.aligned_flow, u0 if call.batch else u0[0], given, b=b,
        **call.options("loss", "normalization", "frozen", method="LSODA"), **_times(call),
    )  # fmt: skip

    def rates(y: Tensor) -> Tensor:
        u, a = y[:p], y[p:].clone().requires_grad_()
        s = _scores(a, name)
        m = (u * s).sum()
        pulled = torch.autograd.grad(m, a)[0]
        gamma = torch.sigmoid(-m) if call["loss"] == "logistic" else 1 - m / b
        du = torch.zeros(p).double() if call["frozen"] == "u" else gamma * b * s
        return torch.cat([du, torch.zeros(p).double() if call["frozen"] == "a" else gamma * pulled]).detach()

    for k in range(count):
        end = _integrated(rates, np.concatenate([u0[k], a0[k]]), _end(call))
        one = flow[k] if call.batch else flow
        yield from close("u", one.u[-1], end[:p], 1e-6)
        yield from close("a", one.a[-1], end[p:], 1e-6)


@case("attsvm.dynamics.polarization.full_flow", forms=FORMS, work=400_000,
      words={"method": ("LSODA", "DOP853"), "loss": ("logistic", "square", "kl")})  # fmt: skip
def _full(call: Call) -> Iterator[str]:
    d, p = call.pick((2, 2), (2, 3), (3, 4))
    name, count = call["normalization"], call.batch or 1
    V0, a0 = 0.3 * call.rng.standard_normal((count, d, p)), np.stack([_logits(call, p, name) for _ in range(count)])
    target = np.abs(call.rng.standard_normal(d)) + 0.1
    target /= target.sum()
    loss, plain = _vector_loss(call["loss"], target)
    flow = call.run(
        pol.full_flow, V0 if call.batch else V0[0], a0 if call.batch else a0[0], loss,
        **call.options("normalization", "frozen", "method"), **_times(call),
    )  # fmt: skip

    def rates(y: Tensor) -> Tensor:
        found = _minus_gradient(lambda x: plain(x[: d * p].reshape(d, p) @ _scores(x[d * p :], name)))(y)
        found[: d * p] *= call["frozen"] != "V"
        found[d * p :] *= call["frozen"] != "a"
        return found

    for k in range(count):
        end = _integrated(rates, np.concatenate([V0[k].ravel(), a0[k]]), _end(call))
        V, a = (flow.V[k], flow.a[k]) if call.batch else (flow.V, flow.a)
        yield from close("V", V[-1].ravel(), end[: d * p], 1e-5)
        yield from close("a", a[-1], end[d * p :], 1e-5)


def _vector_loss(name: str, target: FloatArray) -> tuple[Any, Callable[[Tensor], Tensor]]:
    goal = torch.tensor(target)
    return {
        "logistic": (pol.LogisticLoss(target), lambda beta: torch.nn.functional.softplus(-(beta @ goal))),
        "square": (pol.SquareLoss(target), lambda beta: ((goal - beta) ** 2).sum() / 2),
        "kl": (pol.KLLoss(target), lambda beta: -(goal * torch.log_softmax(beta, dim=0)).sum()),
    }[name]


@case("attsvm.dynamics.polarization.gap_flow", words={"method": ("LSODA", "DOP853")}, work=200_000)
def _gap(call: Call) -> Iterator[str]:
    p, b = call.pick(2, 3, 5), 1.5
    u0 = np.sort(call.rng.standard_normal(p))[::-1].copy()
    a0 = 0.1 * u0 if call.given("a0") else None
    end = _T_END if call.given("end") or call.given("times") else None
    grid = np.linspace(0, _T_END, 4) if call.given("times") else None
    flow = call.run(
        pol.gap_flow, u0, a0, b=b, times=grid, end=end, points=5, **call.options("clock", "method", reference=0)
    )
    if end is None:  # to the end of the clock: the losing scores tend to one constant
        if call["clock"] == "tau":
            constants = np.exp(flow.log_scores[-1, 1:]) * flow.tau[-1] ** 2 * p * b / 2
            yield from close("constants", constants, np.ones(p - 1), 1e-2)
        return

    def rates(y: Tensor) -> Tensor:
        s = torch.softmax(y[p:], dim=0)
        m = (y[:p] * s).sum()
        speed = torch.sigmoid(-m) if call["clock"] == "time" else torch.ones(()).double()
        return speed * torch.cat([b * s, s * (y[:p] - m)])

    last = _integrated(rates, np.concatenate([u0, np.zeros(p) if a0 is None else a0]))
    yield from close("u", flow.u[-1], last[:p], 1e-6)
    s = np.exp(last[p:] - last[p:].max())
    yield from close("scores", np.exp(flow.log_scores[-1]), s / s.sum(), 1e-6)


@case("attsvm.dynamics.polarization.row_flow", words={"method": ("LSODA", "DOP853")}, work=200_000)
def _rows(call: Call) -> Iterator[str]:
    T, b = call.pick(2, 3, 4), 1.5
    u0, A0 = 0.5 * call.rng.standard_normal(T), 0.3 * call.rng.standard_normal((T, T))
    mask = np.ones((T, T), dtype=bool)
    mask[-1, 0] = False
    flow = call.run(pol.row_flow, u0, b=b, **call.options("causal", "method", A0=A0, mask=mask), **_times(call))
    allowed = torch.tensor(
        (mask if call.given("mask") else np.ones_like(mask)) & (np.tri(T) > 0 if call["causal"] else True)
    )

    def rates(y: Tensor) -> Tensor:
        def loss(x: Tensor) -> Tensor:
            s = torch.softmax(x[T:].reshape(T, T).masked_fill(~allowed, -torch.inf), dim=1)
            return torch.nn.functional.softplus(-(s @ x[:T])).mean()

        found = _minus_gradient(loss)(y)
        found[:T] *= b  # u = V beta_* moves b times as fast as V along beta_*
        return found

    start = np.concatenate([u0, (A0 if call.given("A0") else np.zeros((T, T))).ravel()])
    yield from close("u", flow.u[-1], _integrated(rates, start)[:T], 1e-6)


@case("attsvm.dynamics.polarization.tied_flow", words={"method": ("LSODA", "DOP853")}, work=200_000)
def _tied(call: Call) -> Iterator[str]:
    D = call.pick(2, 3, 4)
    R0, a0, target = np.eye(D) + 0.2 * call.rng.standard_normal((D, D)), call.rng.random(D), np.eye(D)[0]
    flow = call.run(pol.tied_flow, R0, a0, target, **call.options("transposed", "method"), **_times(call))
    end = _integrated(_minus_gradient(_tied_loss(D, target, call["transposed"])), np.concatenate([R0.ravel(), a0]))
    yield from close("R", flow.R[-1].ravel(), end[: D * D], 1e-6)
    yield from close("a", flow.a[-1], end[D * D :], 1e-6)


def _tied_loss(D: int, target: FloatArray, transposed: bool) -> Callable[[Tensor], Tensor]:
    def loss(x: Tensor) -> Tensor:
        R, a = x[: D * D].reshape(D, D), x[D * D :]
        beta = (R.T if transposed else R) @ torch.softmax(R @ a, dim=0)
        return torch.nn.functional.softplus(-(beta @ torch.tensor(target)))

    return loss


@case(
    "attsvm.dynamics.polarization.descend",
    forms=FORMS,
    words={"loss": ("logistic", "square", "kl"), "device": (None, GIVEN)},
)
def _pol_descend(call: Call) -> Iterator[str]:
    d, p = call.pick((2, 2), (2, 3), (3, 4))
    name, count = call["normalization"], call.batch or 1
    V0, a0 = 0.3 * call.rng.standard_normal((count, d, p)), np.stack([_logits(call, p, name) for _ in range(count)])
    target = np.full(d, 1.0 / d)
    loss, plain = _vector_loss(call["loss"], target)
    run = call.run(
        pol.descend, V0 if call.batch else V0[0], a0 if call.batch else a0[0], loss, steps=5, lr=0.1, snapshots=[5],
        **call.options("normalization", device="cpu"),
    )  # fmt: skip
    rates = _minus_gradient(lambda x: plain(x[: d * p].reshape(d, p) @ _scores(x[d * p :], name)))
    for k in range(count):
        y = torch.tensor(np.concatenate([V0[k].ravel(), a0[k]]))
        for _ in range(5):
            y = y + 0.1 * rates(y)
        yield from close("V", run.V[-1, k].flatten(), y[: d * p], 1e-10)
        yield from close("a", run.a[-1, k], y[d * p :], 1e-10)


@case("attsvm.dynamics.polarization.descend_tied", forms=FORMS, words={"device": (None, GIVEN)})
def _descend_tied(call: Call) -> Iterator[str]:
    D, count = call.pick(2, 3, 4), call.batch or 1
    R0, a0 = np.eye(D) + 0.2 * call.rng.standard_normal((count, D, D)), call.rng.random((count, D))
    target = np.eye(D)[0]
    run = call.run(
        pol.descend_tied, R0 if call.batch else R0[0], a0 if call.batch else a0[0], target, steps=5, lr=0.1,
        snapshots=[5], **call.options("transposed", device="cpu"),
    )  # fmt: skip
    rates = _minus_gradient(_tied_loss(D, target, call["transposed"]))
    for k in range(count):
        y = torch.tensor(np.concatenate([R0[k].ravel(), a0[k]]))
        for _ in range(5):
            y = y + 0.1 * rates(y)
        yield from close("R", run.V[-1, k].flatten(), y[: D * D], 1e-10)


def _flow(call: Call) -> Any:
    size = call.pick(2, 3, 5)
    u0 = np.sort(call.rng.standard_normal((call.batch or 1, size)), axis=1)[:, ::-1].copy()
    return pol.aligned_flow(u0 if call.batch else u0[0], b=1.5, t_end=1e6, points=20)


@case("attsvm.dynamics.polarization.identity_drift", "attsvm.dynamics.polarization.invariant_drift", forms=FORMS)
def _drifts(call: Call) -> Iterator[str]:
    """Conserved along flows, and not along what is no flow."""
    drift = np.atleast_1d(call.run(getattr(pol, call.name), _flow(call)))
    if (drift > 1e-6).any():
        yield f"drift {drift.max():.1e}"


_MARGINS = (
    "order_margin", "repulsion_margin", "logit_gap_margin", "entropy_margin", "ratio_margin", "explicit_ratio_margin",
    "projection_margin", "polarization_margin", "mean_margin", "loss_decay_margin",
)  # fmt: skip


@case(*(f"attsvm.dynamics.polarization.{name}" for name in _MARGINS), forms=FORMS)
def _margins(call: Call) -> Iterator[str]:
    """Positive in their corrected form; a batch gives what each flow gives; the simple ones by their definition."""
    flow = _flow(call)
    options: dict[str, str] = {name: call[name] for name in ("form", "of", "gap") if name in call.row}
    function = getattr(pol, call.name)
    found = np.atleast_1d(call.run(function, flow, **options))
    corrected = options.get("form", "corrected") == "corrected"
    if corrected and not (found > -1e-9).all():
        yield f"margin {found.min():.2e}"
    if call.batch:
        yield from close("batch", found, [function(flow[k], **options) for k in range(call.batch)], 1e-9)
    for k in range(call.batch or 1):
        one = flow[k] if call.batch else flow
        wanted = _margin(call.name, one, options)
        if wanted is not None:
            yield from close(call.name, found[k], wanted, 1e-7)


def _margin(name: str, flow: Any, options: dict[str, str]) -> float | None:
    """The margins that are a line of arithmetic, token by token; u0 falls with the token."""
    u, s, tau, p, b = flow.u[1:], flow.scores[1:], flow.tau[1:], flow.u.shape[1], flow.b
    printed = options.get("form") == "printed"
    pairs = [(i, j) for i, j in product(range(p), range(p)) if i < j]
    if name == "order_margin":
        values = u if options["of"] == "u" else np.log(s)
        return float(min((values[:, i] - values[:, i + 1]).min() for i in range(p - 1)))
    if name == "repulsion_margin":
        both = pairs + [(j, i) for i, j in pairs] if printed else pairs
        return float(min((b * (s[:, i] - s[:, j])).min() for i, j in both))
    if name == "polarization_margin" and not printed:
        growth = u[:, 0] - flow.u[0, 0]
        return float(min((b * tau - growth).min(), (p * growth - b * tau).min()))
    if name == "ratio_margin":
        gaps = -np.diff(flow.u[0])
        delta = gaps.min() if options["gap"] == "min" else gaps[0]
        return float(min((-np.log1p(delta * tau / p) - np.log(s[:, j] / s[:, 0])).min() for j in range(1, p)))
    if name == "loss_decay_margin":
        m, t = (flow.u * flow.scores).sum(axis=1), np.expm1(flow.x[1:])
        return float(((m[1:] + np.exp(m[1:]) - m[0] - np.exp(m[0]) - b * t / p) / (1 + b * t / p)).min())
    return None


@case("attsvm.dynamics.polarization.measure_asymptotics", "attsvm.dynamics.polarization.score_constants",
      words={"end": (1e6, 1e200)})  # fmt: skip
def _asymptotics(call: Call) -> Iterator[str]:
    p, b = call.pick(2, 3, 5), 1.5
    u0 = np.sort(call.rng.standard_normal(p))[::-1].copy()
    flow: Any = pol.aligned_flow(u0, b=b, t_end=call["end"], points=20)
    constants = np.exp(flow.log_scores[:, 1:]) * p * b / 2 * flow.tau[:, None] ** 2
    if call.name == "score_constants":
        found = call.run(pol.score_constants, flow)
        yield from close("constants", found[:, 1:], constants, 1e-9)
        if not np.isnan(found[:, 0]).all():
            yield "the winner has a constant"
        return
    found = call.run(pol.measure_asymptotics, flow)
    yield from close("constants", found.score_constants[:, 1:], constants, 1e-9)
    loss = np.logaddexp(0, -(flow.u * flow.scores).sum(axis=1))
    yield from close("loss constant", found.loss_constant[1:], loss[1:] * b * np.expm1(flow.x[1:]), 1e-6)


@case(
    "attsvm.dynamics.polarization.regression_limit",
    refused=lambda row: row["normalization"] in ("relu_norm", "l1"),
    work=100_000,
)
def _limit(call: Call) -> Iterator[str]:
    """The orbit ends where the square loss is fitted, and keeps its invariants."""
    p, b, name = call.pick(2, 3, 4), 1.5, call["normalization"]
    a0 = _logits(call, p, name)
    u0 = 0.1 * call.rng.standard_normal(p) if call.given("u0") else None
    found = call.run(pol.regression_limit, a0, u0, b=b, normalization=name)
    yield from close("fit", found.u @ found.scores, b, 1e-7)
    yield from close("scores", found.scores, _scores(torch.tensor(found.a), name), 1e-9)

    def rates(y: Tensor) -> Tensor:
        a = y[p:].clone().requires_grad_()
        s = _scores(a, name)
        pulled = torch.autograd.grad((y[:p] * s).sum(), a)[0]
        return torch.cat([b * s.detach(), pulled])

    end = _integrated(rates, np.concatenate([np.zeros(p) if u0 is None else u0, a0]), found.tau)
    yield from close("state", np.concatenate([found.u, found.a]), end, 1e-6)


@case("attsvm.dynamics.polarization.potential", "attsvm.dynamics.polarization.potential_rate", forms=FORMS,
      words={"normalization": tuple(NORMALIZATIONS)})  # fmt: skip
def _potential(call: Call) -> Iterator[str]:
    """``(G(a_i) - G(a_j)) (u_i - u_j)`` with G by quadrature; its rate by differences along the orbit."""
    p, b, name = call.pick(2, 3, 4), 1.5, call["normalization"]
    lead = (call.batch,) if call.batch else ()
    u = call.rng.standard_normal((*lead, p))
    a = np.stack([_logits(call, p, name) for _ in range(call.batch or 1)]).reshape(*lead, p)
    if call.name == "potential":
        found = call.run(pol.potential, u, a, name)
        for index in np.ndindex(lead):
            yield from close("potential", found[index], _phi(u[index], a[index], name), 1e-6)
        return
    form = call["form"]
    found = call.run(pol.potential_rate, u, a, b, name, form=form)
    if form == "printed" or name in ("sigmoid", "relu", "linear"):
        return  # about normalized maps
    for index in np.ndindex(lead):
        x, y = torch.tensor(u[index]), torch.tensor(a[index]).requires_grad_()
        s = _scores(y, name)
        da = torch.autograd.grad((x * s).sum(), y)[0].numpy()
        du, h = b * s.detach().numpy(), 1e-5
        ahead, behind = (_phi(u[index] + k * du, a[index] + k * da, name) for k in (h, -h))
        yield from close("rate", found[index], (ahead - behind) / (2 * h), 1e-5)


def _phi(u: FloatArray, a: FloatArray, name: str) -> FloatArray:
    from scipy.integrate import quad

    def inverse_slope(x: float) -> float:
        t = torch.tensor(x, dtype=torch.float64).requires_grad_()
        return 1.0 / float(torch.autograd.grad(_MAPS[name](t), t)[0])

    G = np.array([quad(inverse_slope, a[0], x, epsabs=1e-13, epsrel=1e-12)[0] for x in a])
    return np.asarray((G[:, None] - G[None]) * (u[:, None] - u[None]))


@case("attsvm.dynamics.polarization.sparsity_score", "attsvm.dynamics.polarization.sink_score",
      words={"kind": ("array", "tensor")})  # fmt: skip
def _metrics(call: Call) -> Iterator[str]:
    T, n = call.pick((4, 1), (6, 2), (9, 3))
    A = call.rng.dirichlet(np.ones(T), size=(2, 3, n, T))
    given: Any = torch.tensor(A) if call["kind"] == "tensor" else A
    if call.name == "sparsity_score":
        keep = call.rng.random((n, T)) < 0.7
        keep[0, 0] = True
        valid: Any = None if not call.given("valid") else torch.tensor(keep) if call["kind"] == "tensor" else keep
        ratio = A.max(axis=-1) / A.sum(axis=-1)
        mean = ratio.mean(axis=(-2, -1)) if valid is None else (ratio * keep).sum(axis=(-2, -1)) / keep.sum()
        yield from close("sparsity", call.run(pol.sparsity_score, given, valid=valid), mean)
    else:
        part = A[..., 1:-2, :]
        found = call.run(pol.sink_score, given, **call.options("how", "clip"))
        each = part[..., 0] / part.sum(axis=-1)
        sums = part[..., 0].sum(axis=-1) / part.sum(axis=(-2, -1))
        wanted = each.mean(axis=(-2, -1)) if call["how"] == "mean_of_ratios" else sums.mean(axis=-1)
        yield from close("sink", found, wanted)
