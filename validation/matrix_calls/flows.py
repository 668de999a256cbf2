"""Cases of polarization and specialization: plain Runge-Kutta on equations written out, autograd, simulation."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import product
from typing import Any

import numpy as np
import torch
from scipy.integrate import solve_ivp

from attsvm.dynamics import polarization as pol
from attsvm.dynamics import specialization as spe
from attsvm.dynamics.polarization.normalizations import NORMALIZATIONS
from attsvm.validation.matrix_calls.axes import GIVEN
from attsvm.validation.matrix_calls.case import FORMS, Call, case, close
from attsvm.validation.matrix_reference import FloatArray

Tensor = torch.Tensor

# -- polarization --------------------------------------------------------------------------------------

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


def _times(call: Call) -> dict[str, Any]:
    times = np.linspace(0.0, _T_END, 5) if call.given("times") else None
    return {"times": times, "t_end": _T_END, "points": 6}


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
        end = _integrated(rates, np.concatenate([u0[k], a0[k]]))
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
        end = _integrated(rates, np.concatenate([V0[k].ravel(), a0[k]]))
        V, a = (flow.V[k], flow.a[k]) if call.batch else (flow.V, flow.a)
        yield from close("V", V[-1].ravel(), end[: d * p], 1e-5)
        yield from close("a", a[-1], end[d * p :], 1e-5)


def _vector_loss(name: str, target: FloatArray) -> tuple[Any, Callable[[Tensor], Tensor]]:
    goal = torch.tensor(target)
    return {
        "logistic": (pol.LogisticLoss(target), lambda beta: torch.nn.functional.softplus(-(beta @ goal))),
        "square": (pol.SquareLoss(target), lambda beta: ((goal - beta) ** 2).sum() / 2),
        "kl": (pol.KLLoss(target), lambda beta: -(goal * torch.log_softmax(beta, dim=0)).sum()),
    }[name]  # type: ignore[return-value]


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
    flow = call.run(
        pol.row_flow, u0, b=b, **call.options("causal", "method", A0=A0, mask=mask), **_times(call)
    )
    allowed = torch.tensor((mask if call.given("mask") else np.ones_like(mask)) & (np.tri(T) > 0 if call["causal"] else True))

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


@case("attsvm.dynamics.polarization.descend", forms=FORMS, words={"loss": ("logistic", "square", "kl"), "device": (None, GIVEN)})
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


def _flow(call: Call, p: int | None = None) -> Any:
    size = p or call.pick(2, 3, 5)
    u0 = np.sort(call.rng.standard_normal((call.batch or 1, size)), axis=1)[:, ::-1].copy()
    return pol.aligned_flow(u0 if call.batch else u0[0], b=1.5, t_end=1e6, points=20)


_DRIFTS = ("identity_drift", "invariant_drift", "two_token_drift", "elementwise_drift")


@case(*(f"attsvm.dynamics.polarization.{name}" for name in _DRIFTS), forms=FORMS)
def _drifts(call: Call) -> Iterator[str]:
    """Conserved along flows, and not along what is no flow."""
    if call.name == "elementwise_drift":
        u0 = 0.3 * call.rng.standard_normal((call.batch or 1, call.pick(2, 3, 5)))
        ones = np.ones_like(u0)
        flow = pol.aligned_flow(
            u0 if call.batch else u0[0], ones if call.batch else ones[0], normalization="linear", t_end=1e3, points=20
        )
    else:
        flow = _flow(call, 2 if call.name == "two_token_drift" else None)
    drift = np.atleast_1d(call.run(getattr(pol, call.name), flow))
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
    options = {name: call[name] for name in ("form", "of", "gap") if name in call.row}
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
    flow = pol.aligned_flow(u0, b=b, t_end=call["end"], points=20)
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


@case("attsvm.dynamics.polarization.regression_limit", refused=lambda row: row["normalization"] in ("relu_norm", "l1"), work=100_000)
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
      words={"normalization": tuple(NORMALIZATIONS)},
      refused=lambda row: False)  # fmt: skip
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
        t = torch.tensor(x).double().requires_grad_()
        return 1.0 / float(torch.autograd.grad(_MAPS[name](t), t)[0])

    G = np.array([quad(inverse_slope, a[0], x)[0] for x in a])
    return np.asarray((G[:, None] - G[None]) * (u[:, None] - u[None]))


@case("attsvm.dynamics.polarization.attention_entropy", "attsvm.dynamics.polarization.sparsity_score",
      "attsvm.dynamics.polarization.sink_score", words={"kind": ("array", "tensor")})  # fmt: skip
def _metrics(call: Call) -> Iterator[str]:
    T, n = call.pick((4, 1), (6, 2), (9, 3))
    A = call.rng.dirichlet(np.ones(T), size=(2, 3, n, T))
    given: Any = torch.tensor(A) if call["kind"] == "tensor" else A
    if call.name == "attention_entropy":
        yield from close("entropy", call.run(pol.attention_entropy, given), -(A * np.log(A)).sum(axis=-1).mean(axis=(-2, -1)))
    elif call.name == "sparsity_score":
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


# -- specialization ------------------------------------------------------------------------------------


def _generator(call: Call) -> torch.Generator:
    return torch.Generator().manual_seed(call.seed)


def _prior(call: Call) -> Any:
    return spe.flipping_spike(2.0, 1.5)


def _point(call: Call, H: int, F: int, batch: int | None) -> Any:
    lead = () if batch is None else (batch,)
    parts = [0.7 * call.rng.standard_normal((*lead, *shape)) for shape in ((H, F), (H, H), (H,))]
    v = 1.0 + 0.1 * call.rng.standard_normal(lead)
    return spe.OrderParameters(*(torch.tensor(part) for part in parts), torch.tensor(v))


def _reduced(m: Tensor, r: Tensor | None, b: Tensor, v: Tensor, samples: Any, activation: str) -> Tensor:
    """Mean of ``sum_l (delta_l - A_l)^2`` over sequences, the relevant token first."""
    plain = samples.relevant_first()
    total, weight = torch.zeros(()).double(), 0.0
    for k, block in enumerate(plain.blocks):
        F = m.shape[1]
        scores = torch.einsum("hf,fln->nhl", m, block[1 : 1 + F])
        if r is not None:
            scores = scores + torch.einsum("hg,gln->nhl", r, block[1 + F : 1 + F + r.shape[1]])
        if activation == "softmax":
            A = torch.softmax(scores, dim=-1).mean(dim=1)
        elif activation == "softmax1":
            e = torch.exp(scores)
            A = (v * e / (e.sum(dim=-1, keepdim=True) + torch.exp(b)[:, None])).mean(dim=1)
        else:
            e = torch.exp(scores + b[:, None])
            A = (e / e.sum(dim=(-2, -1), keepdim=True)).sum(dim=1)
        aim = torch.zeros_like(A)
        aim[:, 0] = 1.0
        each = ((aim - A) ** 2).sum(dim=1)
        w = torch.ones_like(each) if plain.weights is None else plain.weights[k]
        total, weight = total + (w * each).sum(), weight + float(w.sum())
    return total / weight


def _few(call: Call, L: int = 3, H: int = 2, n: int = 60) -> Any:
    return spe.draw_samples(_prior(call), L=L, H=H, n=n, generator=_generator(call))


@case("attsvm.dynamics.specialization.reduced_loss", "attsvm.dynamics.specialization.reduced_gradient", forms=FORMS,
      words={"rest": (False, True)})  # fmt: skip
def _reduced_values(call: Call) -> Iterator[str]:
    H = call.pick(1, 2, 4)
    samples = _few(call, call.pick(2, 3, 5), H)
    point = _point(call, H, 2, call.batch)
    if not call["rest"]:
        point = spe.OrderParameters(point.m, None, point.b, point.v)
    found = call.run(getattr(spe, call.name), point, samples, call["activation"])
    for k in range(call.batch or 1):
        one = point[k] if call.batch else point
        parts = {name: tensor.clone().requires_grad_() for name, tensor in one.tensors().items()}
        loss = _reduced(parts["m"], parts.get("r"), parts["b"], parts["v"], samples, call["activation"])
        if call.name == "reduced_loss":
            yield from close("loss", found.value[k] if call.batch else found.value, loss.detach(), 1e-9)
            continue
        slopes = torch.autograd.grad(loss, list(parts.values()), allow_unused=True)
        for name, slope in zip(parts, slopes, strict=True):
            value = getattr(found, name)[k] if call.batch else getattr(found, name)
            wanted = torch.zeros_like(parts[name]) if slope is None else slope
            yield from close(f"gradient in {name}", value.detach(), wanted.detach(), 1e-9)


@case("attsvm.dynamics.specialization.gradient_flow", work=200_000)
def _gradient_flow(call: Call) -> Iterator[str]:
    """Two steps of the named method on gradients by autograd."""
    H = call.pick(1, 2, 3)
    samples, start = _few(call, 3, H), _point(call, H, 2, None)
    path = call.run(
        spe.gradient_flow, start, samples, call["activation"], [0.0, 0.2], step=0.1, **call.options("method", "form")
    )
    names = list(start.tensors())

    def rates(parts: dict[str, Tensor]) -> dict[str, Tensor]:
        own = {name: t.clone().requires_grad_() for name, t in parts.items()}
        loss = _reduced(own["m"], own["r"], own["b"], own["v"], samples, call["activation"])
        slopes = torch.autograd.grad(loss, list(own.values()), allow_unused=True)
        found = {n: torch.zeros_like(own[n]) if s is None else -s for n, s in zip(names, slopes, strict=True)}
        if call["form"] == "printed":
            found["r"] = (found["r"] + found["r"].T) / 2
        return found

    y = dict(start.tensors())
    for _ in range(2):
        y = _stepped(rates, y, 0.1, call["method"])
    yield from close("m", path.m[-1], y["m"].detach(), 1e-9)


def _stepped(rates: Any, y: dict[str, Tensor], h: float, method: str) -> dict[str, Tensor]:
    def moved(k: dict[str, Tensor], step: float) -> dict[str, Tensor]:
        return {n: y[n] + step * k[n] for n in y}

    one = rates(y)
    if method == "euler":
        return moved(one, h)
    two = rates(moved(one, h / 2))
    three = rates(moved(two, h / 2))
    four = rates(moved(three, h))
    return {n: y[n] + h / 6 * (one[n] + 2 * two[n] + 2 * three[n] + four[n]) for n in y}


@case("attsvm.dynamics.specialization.descend", forms=FORMS, work=200_000)
def _heads_descend(call: Call) -> Iterator[str]:
    H = call.pick(1, 2, 3)
    samples, start = _few(call, 3, H), _point(call, H, 2, call.batch)
    path = call.run(spe.descend, start, samples, call["activation"], steps=3, lr=0.3, momentum=0.5)
    for k in range(call.batch or 1):
        one = start[k] if call.batch else start
        y, speed = dict(one.tensors()), {n: torch.zeros_like(t) for n, t in one.tensors().items()}
        for _ in range(3):
            own = {n: t.clone().requires_grad_() for n, t in y.items()}
            loss = _reduced(own["m"], own["r"], own["b"], own["v"], samples, call["activation"])
            slopes = torch.autograd.grad(loss, list(own.values()), allow_unused=True)
            for n, slope in zip(y, slopes, strict=True):
                speed[n] = 0.5 * speed[n] - 0.3 * (torch.zeros_like(y[n]) if slope is None else slope)
                y[n] = y[n] + speed[n]
        yield from close("m", path.m[-1, k] if call.batch else path.m[-1], y["m"], 1e-8)


@case("attsvm.dynamics.specialization.measured_escape", work=100_000)
def _escape(call: Call) -> Iterator[str]:
    H = call.pick(1, 2, 3)
    samples = _few(call, 3, 0, 300)
    point = spe.OrderParameters(0.2 * torch.tensor(call.rng.standard_normal((H, 2))))
    found = call.run(spe.measured_escape, point, samples, call["activation"])

    def loss(m: Tensor) -> Tensor:
        return _reduced(m, None, point.b, point.v, samples, call["activation"])

    hessian = torch.autograd.functional.hessian(loss, point.m).reshape(2 * H, 2 * H)
    yield from close("rate", found, -torch.linalg.eigvalsh(hessian)[0].item(), 1e-4)


@case("attsvm.dynamics.specialization.unspecialized_point", work=3_000_000)
def _waiting(call: Call) -> Iterator[str]:
    H = call.pick(1, 2, 3)
    samples = _few(call, 3, 0, 600)
    point = call.run(spe.unspecialized_point, _prior(call), samples, call["activation"], H)
    if float((point.m - point.m[:1]).abs().max()) > 1e-9:
        yield "the heads differ"
    parts = {name: t.clone().requires_grad_() for name, t in point.tensors().items()}
    loss = _reduced(parts["m"], None, parts["b"], parts["v"], samples, call["activation"])
    slope = torch.autograd.grad(loss, parts["m"])[0]
    if float(slope.norm()) > 1e-4:
        yield f"the gradient in m has norm {float(slope.norm()):.1e}"


@case("attsvm.dynamics.specialization.greedy_pruning", work=200_000)
def _pruning(call: Call) -> Iterator[str]:
    H = call.pick(2, 3, 4)
    samples, other = _few(call, 3, 0, 120), _few(call, 3, 0, 60)
    point = spe.OrderParameters(torch.tensor(call.rng.standard_normal((H, 2))))
    test = other if call.given("test") else None
    found = call.run(spe.greedy_pruning, point, samples, call["activation"], test=test, rescale=call["rescale"])
    if sorted({*found.removed}) != sorted(found.removed) or len(found.removed) != H - 1 or len(found.losses) != H:
        yield f"removed {found.removed}"
    if call["rescale"] == "mass" and call["activation"] == "softmax1":
        return
    kept, on = list(range(H)), samples if test is None else other
    for gone, loss in zip((None, *found.removed), found.losses, strict=True):
        if gone is not None:
            trials = {h: _kept_loss(point, [k for k in kept if k != h], samples, call["activation"]) for h in kept}
            if trials[gone] > min(trials.values()) + 1e-9:
                yield f"removing {min(trials, key=lambda h: trials[h])} hurts less than {gone}"
            kept.remove(gone)
        yield from close("loss", loss, _kept_loss(point, kept, on, call["activation"]), 1e-9)


def _kept_loss(point: Any, kept: list[int], samples: Any, activation: str) -> float:
    return float(_reduced(point.m[kept], None, point.b[kept], point.v, samples, activation))


@case("attsvm.dynamics.specialization.quadrature", words={"prior": ("flipping", "gaussian")}, work=100_000)
def _quadrature(call: Call) -> Iterator[str]:
    """The loss against 40,000 random sequences: within five standard errors."""
    L = call.pick(2, 2, 3)
    prior = spe.flipping_spike(1.0, 0.5) if call["prior"] == "flipping" else spe.gaussian_spikes(1, 1.0)
    point = spe.OrderParameters(torch.tensor(call.rng.standard_normal((1, prior.features))))
    nodes = call.run(spe.quadrature, prior, L, point, nodes=20)
    exact = spe.reduced_loss(point, nodes, "softmax").value.item()
    sampled = spe.reduced_loss(point, spe.draw_samples(prior, L=L, H=0, n=40_000, generator=_generator(call)), "softmax")
    if abs(exact - sampled.value.item()) > 5 * sampled.error.item() + 1e-6:
        yield f"quadrature {exact}, samples {sampled.value.item()} +- {sampled.error.item()}"


@case("attsvm.dynamics.specialization.draw_samples", words={"prior": ("flipping", "discrete")},
      refused=lambda row: row["mirrored"] is True and row["prior"] == "discrete")  # fmt: skip
def _draws(call: Call) -> Iterator[str]:
    prior = spe.flipping_spike(2.0, 1.5) if call["prior"] == "flipping" else spe.DiscretePrior([[1.0, 0.5], [0.3, 2.0]], [0.3, 0.7])
    L, H, n = call.pick((2, 0, 10), (3, 2, 50), (5, 3, 4000))
    samples = call.run(spe.draw_samples, prior, L, H, n, generator=_generator(call), mirrored=call["mirrored"])
    copies = 2 if samples.paired else 1
    if samples.size != L * copies * -(-n // (L * copies)) or samples.blocks[0].shape[:2] != (3 + H, L):
        yield f"{samples.size} sequences, blocks {tuple(samples.blocks[0].shape)}"
    plain = torch.cat(samples.relevant_first().blocks, dim=-1)
    mean = plain[1:3, 0].mean(dim=-1).numpy()
    error = 6 * np.sqrt((1 + np.diag(prior.covariance)) * L / samples.size)
    if n == 4000 and (np.abs(mean - prior.mean) > error).any():
        yield f"the relevant token has mean {mean}"


@case("attsvm.dynamics.specialization.bayes_estimate")
def _bayes_estimate(call: Call) -> Iterator[str]:
    """The posterior over positions by the densities themselves."""
    N, L, D = call.pick((1, 2, 3), (3, 3, 5), (5, 4, 8))
    prior = spe.DiscretePrior([[1.0, 0.5], [0.3, 2.0]], [0.3, 0.7])
    spikes, X = call.rng.standard_normal((2, D)), call.rng.standard_normal((N, L, D))
    found = call.run(spe.bayes_estimate, prior, X, spikes, form=call["form"])
    for i in range(N):
        logs = np.array([
            np.logaddexp.reduce([
                np.log(w) + X[i, ell] @ (atom @ spikes) - 0.5 * _square(atom, spikes, call["form"])
                for atom, w in zip(prior.atoms, prior.weights, strict=True)
            ])
            for ell in range(L)
        ])  # fmt: skip
        weights = np.exp(logs - np.logaddexp.reduce(logs))
        yield from close("estimate", found[i], weights @ X[i], 1e-8)


def _square(atom: FloatArray, spikes: FloatArray, form: str) -> float:
    return float(np.square(atom @ spikes).sum() if form == "corrected" else np.square(atom).sum())


@case("attsvm.dynamics.specialization.bayes_risk")
def _bayes_risk(call: Call) -> Iterator[str]:
    """Against the reduced loss of the heads that are the Bayes estimator."""
    L = call.pick(2, 3, 5)
    prior = _prior(call)
    found = call.run(spe.bayes_risk, prior, L, 20_000, call.seed)
    samples = spe.draw_samples(prior, L=L, H=0, n=20_000, generator=_generator(call))
    other = spe.reduced_loss(spe.bayes_softmax_parameters(prior), samples, "bayes")
    if abs(found.value - other.value.item()) > 5 * np.hypot(found.error, other.error.item()):
        yield f"risk {found.value}, heads {other.value.item()}"


@case("attsvm.dynamics.specialization.bayes_softmax_parameters")
def _bayes_parameters(call: Call) -> Iterator[str]:
    K = call.pick(1, 2, 4)
    atoms, weights = call.rng.standard_normal((K, 3)), call.rng.dirichlet(np.ones(K))
    found = call.run(spe.bayes_softmax_parameters, spe.DiscretePrior(atoms, weights), form=call["form"])
    half = np.square(atoms).sum(axis=1) / 2
    yield from close("m", found.m, atoms)
    yield from close("b", found.b, -half + np.log(weights) if call["form"] == "corrected" else -half * np.log(weights))


@case(*(f"attsvm.dynamics.specialization.{name}" for name in ("quadratic_constants", "unspecialized_hessian", "escape_modes",
                                                              "initial_gradient")), work=100_000)  # fmt: skip
def _expansion(call: Call) -> Iterator[str]:
    """Gradient and Hessian at m = r = 0 against those of the loss on 60,000 sequences, up to their noise."""
    L, H = call.pick((2, 1), (3, 2), (5, 3))
    activation, form = call["activation"], call.row.get("form", "corrected")
    prior = spe.gaussian_spikes(2, 2.0, 1.0) if call.name != "initial_gradient" else spe.DiscretePrior([[1.0, 0.5]], [1.0])
    if call.name == "quadratic_constants":
        found = call.run(spe.quadratic_constants, activation, L, H, form=form)
        hessian = spe.unspecialized_hessian(activation, L, H, np.eye(1), form=form)
        wanted = 2 * (found.c1 + (found.c2 + found.c4)) * np.ones((H, H)) - 2 * (found.c3 + found.c4) * np.eye(H)
        yield from close("Hessian", hessian, wanted, 1e-12)
        return
    samples = spe.draw_samples(prior, L=L, H=0, n=60_000, generator=_generator(call))
    amplitude = 1 + 1 / L if activation == "softmax1" and call.name != "initial_gradient" else 1.0
    b, v = torch.zeros(H).double(), torch.tensor(amplitude).double()
    zero = torch.zeros(H, 2).double()

    def loss(m: Tensor) -> Tensor:
        return _reduced(m, None, b, v, samples, activation)

    if call.name == "initial_gradient":
        given = 1.3 if call.given("v") else None
        v = torch.tensor(given or 1.0).double()
        found = call.run(spe.initial_gradient, activation, L, H, v=given, form=form)
        m = zero.clone().requires_grad_()
        slope = torch.autograd.grad(loss(m), m)[0][0].numpy()
        if form == "corrected":
            yield from close("gradient", found * prior.mean, slope, 0.02)
        return
    hessian = torch.autograd.functional.hessian(loss, zero).reshape(2 * H, 2 * H).numpy()
    if call.name == "unspecialized_hessian":
        found = call.run(spe.unspecialized_hessian, activation, L, H, prior.covariance, form=form)
        if form == "corrected":
            yield from close("Hessian", found, hessian, 0.03)
    else:
        modes = call.run(spe.escape_modes, prior, activation, L, H)
        yield from close("variances", [mode.variance for mode in modes], [2.0, 1.0])
        if H > 1:
            difference = np.zeros((H, 2))
            difference[0, 0], difference[1, 0] = 1.0, -1.0
            rate = -difference.ravel() @ hessian @ difference.ravel() / 2
            yield from close("rate", modes[0].rate, rate, 0.03)


@case("attsvm.dynamics.specialization.hessian_near", "attsvm.dynamics.specialization.hierarchy_constants")
def _hierarchy(call: Call) -> Iterator[str]:
    """Second differences of the Hessian in the learnt column against the constants; nothing learnt: the known Hessian."""
    L, H = call.pick((3, 2), (4, 3), (5, 4))
    mbar = call.rng.standard_normal(H)
    mbar -= mbar.mean()
    form = call.row.get("form", "corrected")
    projector = np.eye(H) - 1.0 / H
    if call.name == "hessian_near":
        found = call.run(spe.hessian_near, L, H, 2.0, [(3.0, np.zeros(H))], form=form)
        if form == "corrected":
            known = spe.unspecialized_hessian("softmax", L, H, [[2.0]])
            yield from close("Hessian", found, projector @ known @ projector, 1e-10)
        return
    k = call.run(spe.hierarchy_constants, L, H, 2.0, 3.0)
    one, two = (spe.hessian_near(L, H, 2.0, [(3.0, s * mbar)]) for s in (0.0, 1.0))
    wanted = k.c1 * (mbar @ mbar) * np.eye(H) + k.c2 * np.diag(mbar**2) + k.c3 * np.outer(mbar, mbar)
    yield from close("fourth order", two - one, projector @ wanted @ projector, 1e-10)
    yield from close("c1", k.c1, (L - 1) * (L - 2) ** 2 * 6.0 / (H**2 * L**5), 1e-12)


@case("attsvm.dynamics.specialization.train_heads", work=3_000_000)
def _train_heads(call: Call) -> Iterator[str]:
    H = call.pick(1, 2, 3)
    prior = spe.one_hot_spikes(2, 8.0)
    heads = call.run(
        spe.train_heads, prior, call["activation"], L=3, H=H, runs=2, samples=900, test_samples=3000, steps=60,
        orthogonal=call["orthogonal"], generator=_generator(call),
    )  # fmt: skip
    if len(heads.losses) != 2 or heads.point.m.shape != (2, H, 2):
        yield f"{len(heads.losses)} losses, heads of shape {tuple(heads.point.m.shape)}"
    floor = spe.bayes_risk(prior, 3, 20_000)
    for run, loss in enumerate(heads.losses):
        if loss.value < floor.value - 5 * (floor.error + loss.error):
            yield f"run {run} beats the Bayes risk"
        if loss.value > 1 - 1 / 3 + 5 * loss.error:
            yield f"run {run} is worse than knowing nothing: {loss.value}"


@case("attsvm.dynamics.specialization.train_sgd", words={"activation": ("softmax", "softmax1", "bayes")})
def _train_sgd(call: Call) -> Iterator[str]:
    """One step in place against autograd on the same batch."""
    D, L, H = call.pick((10, 2, 1), (20, 3, 2), (40, 4, 3))
    model = spe.SingleLocation(_prior(call), spe.draw_spikes(2, D, generator=_generator(call)), L=L)
    k0 = spe.initial_heads(H, D, generator=_generator(call))
    layer = spe.MultiHeadAttention(k0, call["activation"])
    path = call.run(spe.train_sgd, layer, model, steps=1, lr=0.2, batch=30, generator=_generator(call))
    batch = model.sample(30, _generator(call))
    k = k0.clone().requires_grad_()
    scores = torch.einsum("nld,hd->nhl", batch.X, k)
    e = torch.exp(scores)
    A = {
        "softmax": (e / e.sum(-1, keepdim=True)).mean(1), "softmax1": (e / (1 + e.sum(-1, keepdim=True))).mean(1),
        "bayes": (e / e.sum((-2, -1), keepdim=True)).sum(1),
    }[call["activation"]]  # fmt: skip
    loss = (batch.y - torch.einsum("nl,nld->nd", A, batch.X)).square().sum(-1).mean() / D
    yield from close("loss", path.loss[0], loss.detach(), 1e-10)
    yield from close("heads", layer.k.detach(), (k - 0.2 * torch.autograd.grad(loss, k)[0]).detach(), 1e-10)


@case("attsvm.dynamics.specialization.projected_sgd", words={"steps": (1, 5)})
def _projected(call: Call) -> Iterator[str]:
    """The mean step of the overlaps is that of SGD in dimension D: one step against the reduced gradient."""
    H, D = call.pick((1, 200), (2, 400), (3, 800))
    g = _generator(call)
    start = spe.random_overlaps(H, 2, D, generator=g)
    path = call.run(
        spe.projected_sgd, start, _prior(call), call["activation"], L=3, D=D, steps=call["steps"], lr=1e-3, batch=4000,
        generator=g, reduced=call["reduced"],
    )  # fmt: skip
    if path.m.shape != (2, H, 2) or not torch.isfinite(path.m).all():
        yield f"m of shape {tuple(path.m.shape)}"
    samples = spe.draw_samples(_prior(call), L=3, H=H, n=4000, generator=g)
    point = spe.OrderParameters(path.m[0], path.r[0], path.b[0], path.v[0])
    known = spe.reduced_loss(point, samples, call["activation"])
    # Both are means over 4000 sequences of losses of order 1; norms of tokens add a bias of the order of |spike|^2 / D.
    if abs(float(path.loss[0]) - known.value.item()) > 6 / np.sqrt(4000) + 20.0 / D:
        yield f"loss {float(path.loss[0]):.4f}, reduced {known.value.item():.4f}"


@case(*(f"attsvm.dynamics.specialization.{name}" for name in ("draw_spikes", "initial_heads", "initial_order_parameters")))
def _starts(call: Call) -> Iterator[str]:
    H, D = call.pick((1, 3), (3, 50), (6, 4000))
    if call.name == "initial_order_parameters":
        runs = 4 if call.given("runs") else None
        point = call.run(spe.initial_order_parameters, H, 2, eta=2.0, noise=0.01, runs=runs, generator=_generator(call))
        if point.m.shape != ((4, H, 2) if runs else (H, 2)):
            yield f"m of shape {tuple(point.m.shape)}"
        yield from close("r", point.r, np.broadcast_to(2.0 * np.eye(H), point.r.shape), 0.1)
        return
    options = {} if call.name == "draw_spikes" else {"eta": 2.0}
    found = call.run(getattr(spe, call.name), H, D, generator=_generator(call), **options)
    if found.shape != (H, D):
        yield f"shape {tuple(found.shape)}"
    if D == 4000:
        yield from close("norms", found.square().sum(dim=1), np.full(H, 1.0 if call.name == "draw_spikes" else 4.0), 0.2)


@case(*(f"attsvm.dynamics.specialization.{name}" for name in ("flipping_spike", "one_hot_spikes", "gaussian_spikes", "discretized")))
def _priors(call: Call) -> Iterator[str]:
    F = call.pick(1, 2, 5)
    if call.name == "flipping_spike":
        prior: Any = call.run(spe.flipping_spike, 2.0, 3.0)
        mean, covariance = [np.sqrt(2.0), 0.0], np.diag([0.0, 3.0])
    elif call.name == "one_hot_spikes":
        prior = call.run(spe.one_hot_spikes, F, 4.0)
        mean, covariance = np.full(F, 2.0 / F), 4.0 * (np.eye(F) / F - np.ones((F, F)) / F**2)  # type: ignore[assignment]
    elif call.name == "gaussian_spikes":
        prior = call.run(spe.gaussian_spikes, F, 4.0, 1.0 if call.given("nu2") else None)
        mean, covariance = np.zeros(F), np.diag(np.linspace(4.0, 1.0 if call.given("nu2") else 4.0, F))  # type: ignore[assignment]
    else:
        base = spe.gaussian_spikes(F, 4.0)
        prior = call.run(spe.discretized, base, 50, call.seed)
        draws = prior.atoms
        mean, covariance = draws.mean(axis=0), np.cov(draws.T, bias=True).reshape(F, F)
    yield from close("mean", prior.mean, mean, 1e-10)
    yield from close("covariance", prior.covariance, covariance, 1e-10)


@case(*(f"attsvm.dynamics.specialization.{name}" for name in ("crossing_time", "log_fit", "specialization_time", "softmax_floor")))
def _times_and_fits(call: Call) -> Iterator[str]:
    n = call.pick(3, 8, 60)
    if call.name == "crossing_time":
        times = np.cumsum(call.rng.random(n))
        values = call.rng.standard_normal(n)
        found = call.run(spe.crossing_time, times, values, 0.5)
        grid = np.linspace(times[0], times[-1], 200_001)
        above = grid[np.interp(grid, times, values) > 0.5]
        if len(above) and not abs(found - above[0]) < 1e-3 * times[-1]:
            yield f"crosses at {found}, wanted {above[0]}"
        if not len(above) and not np.isnan(found):
            yield f"crosses at {found}, wanted never"
    elif call.name == "log_fit":
        D = np.geomspace(10, 1e5, n)
        fit = call.run(spe.log_fit, D, 3.0 + 2.0 * np.log(D))
        yield from close("line", [fit.slope, fit.intercept, fit.error], [2.0, 3.0, 0.0], 1e-9)
    elif call.name == "specialization_time":
        yield from close("time", call.run(spe.specialization_time, 10.0**n, 0.3), n * np.log(10.0) / 0.6)
    else:
        L = call.pick(2, 3, 7)
        floor = call.run(spe.softmax_floor, L, 0.5)
        yield from close("floor", floor, 0.5 * (L - 1) / (4 * L))
