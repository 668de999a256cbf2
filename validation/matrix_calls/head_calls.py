"""Cases of specialization (the reduced loss written out, autograd, densities, simulation) and of patches.

Patches: every document by brute force, cvxpy in the same norm, and files read again.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import cvxpy as cp
import numpy as np
import torch

import attsvm
from attsvm.dynamics import specialization as spe
from attsvm.solvers import get_norm
from attsvm.solvers.arrays import FloatArray
from attsvm.validation.matrix import EXPRESSIONS
from attsvm.validation.matrix_calls.call_cases import FORMS, GIVEN, Call, Row, case, close

Tensor = torch.Tensor

_hessian: Any = torch.autograd.functional.hessian  # without types


def _generator(call: Call) -> torch.Generator:
    return torch.Generator().manual_seed(call.seed)


def _prior(call: Call) -> Any:
    return spe.flipping_spike(2.0, 1.5)


def _point(call: Call, H: int, F: int, batch: int | None) -> Any:
    lead = () if batch is None else (batch,)
    parts = [0.7 * call.rng.standard_normal((*lead, *shape)) for shape in ((H, F), (H, H), (H,))]
    v = 1.0 + 0.1 * call.rng.standard_normal(lead)
    m, r, b = (torch.tensor(part) for part in parts)
    return spe.OrderParameters(m, r, b, torch.tensor(v))


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

    hessian = _hessian(loss, point.m).reshape(2 * H, 2 * H)
    yield from close("rate", found, -torch.linalg.eigvalsh(hessian)[0].item(), 1e-4)


@case("attsvm.dynamics.specialization.unspecialized_point", work=3_000_000)
def _waiting(call: Call) -> Iterator[str]:
    H = call.pick(1, 2, 3)
    samples = _few(call, 3, 0, 120)
    point = call.run(spe.unspecialized_point, _prior(call), samples, call["activation"], H, steps=2000)
    if float((point.m - point.m[:1]).abs().max()) > 1e-9:
        yield "the heads differ"
    parts = {name: t.clone().requires_grad_() for name, t in point.tensors().items()}
    loss = _reduced(parts["m"], None, parts["b"], parts["v"], samples, call["activation"])
    slope = torch.autograd.grad(loss, parts["m"])[0]
    if float(slope.norm()) > 1e-3:
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
    sampled = spe.reduced_loss(
        point, spe.draw_samples(prior, L=L, H=0, n=40_000, generator=_generator(call)), "softmax"
    )
    if abs(exact - sampled.value.item()) > 5 * sampled.error.item() + 1e-6:
        yield f"quadrature {exact}, samples {sampled.value.item()} +- {sampled.error.item()}"


@case("attsvm.dynamics.specialization.draw_samples", words={"prior": ("flipping", "discrete")},
      refused=lambda row: row["mirrored"] is True and row["prior"] == "discrete")  # fmt: skip
def _draws(call: Call) -> Iterator[str]:
    prior = (
        spe.flipping_spike(2.0, 1.5)
        if call["prior"] == "flipping"
        else spe.DiscretePrior([[1.0, 0.5], [0.3, 2.0]], [0.3, 0.7])
    )
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


_EXPANSION = ("quadratic_constants", "unspecialized_hessian", "escape_modes", "initial_gradient")


@case(*(f"attsvm.dynamics.specialization.{name}" for name in _EXPANSION), work=100_000)
def _expansion(call: Call) -> Iterator[str]:
    """Gradient and Hessian at m = r = 0 against those of the loss on 60,000 sequences, up to their noise."""
    L, H = call.pick((2, 1), (3, 2), (5, 3))
    activation, form = call["activation"], call.row.get("form", "corrected")
    prior = (
        spe.gaussian_spikes(2, 2.0, 1.0) if call.name != "initial_gradient" else spe.DiscretePrior([[1.0, 0.5]], [1.0])
    )
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
    hessian = _hessian(loss, zero).reshape(2 * H, 2 * H).numpy()
    if call.name == "unspecialized_hessian":
        found = call.run(spe.unspecialized_hessian, activation, L, H, prior.covariance, form=form)
        if form == "corrected":
            yield from close("Hessian", found, hessian, 0.06)  # six standard errors
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
    """What a learnt column adds to the Hessian against the constants; with nothing learnt, the known Hessian."""
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
    m = start.m.numpy()
    rest = start.q.numpy() - m @ np.linalg.inv(start.p.numpy()) @ m.T
    values, vectors = np.linalg.eigh(rest)
    point = spe.OrderParameters(path.m[0], torch.tensor((vectors * np.sqrt(np.maximum(values, 0.0))) @ vectors.T))
    known = spe.reduced_loss(point, samples, call["activation"])
    # Both are means over 4000 sequences of losses of order 1; norms of tokens add a bias of the order of |spike|^2 / D.
    if abs(float(path.loss[0]) - known.value.item()) > 6 / np.sqrt(4000) + 20.0 / D:
        yield f"loss {float(path.loss[0]):.4f}, reduced {known.value.item():.4f}"


@case(
    *(f"attsvm.dynamics.specialization.{name}" for name in ("draw_spikes", "initial_heads", "initial_order_parameters"))
)
def _starts(call: Call) -> Iterator[str]:
    H, D = call.pick((1, 3), (3, 50), (6, 4000))
    if call.name == "initial_order_parameters":
        runs = 4 if call.given("runs") else None
        point: Any = call.run(
            spe.initial_order_parameters, H, 2, eta=2.0, noise=0.01, runs=runs, generator=_generator(call)
        )
        if point.m.shape != ((4, H, 2) if runs else (H, 2)):
            yield f"m of shape {tuple(point.m.shape)}"
        yield from close("r", point.r, np.broadcast_to(2.0 * np.eye(H), point.r.shape), 0.1)
        return
    options = {} if call.name == "draw_spikes" else {"eta": 2.0}
    found = call.run(getattr(spe, call.name), H, D, generator=_generator(call), **options)
    if found.shape != (H, D):
        yield f"shape {tuple(found.shape)}"
    if D == 4000:
        yield from close(
            "norms", found.square().sum(dim=1), np.full(H, 1.0 if call.name == "draw_spikes" else 4.0), 0.2
        )


@case(*(f"attsvm.dynamics.specialization.{name}" for name in ("flipping_spike", "one_hot_spikes", "gaussian_spikes")))
def _priors(call: Call) -> Iterator[str]:
    F = call.pick(1, 2, 5)
    if call.name == "flipping_spike":
        prior: Any = call.run(spe.flipping_spike, 2.0, 3.0)
        mean, covariance = [np.sqrt(2.0), 0.0], np.diag([0.0, 3.0])
    elif call.name == "one_hot_spikes":
        prior = call.run(spe.one_hot_spikes, F, 4.0)
        mean, covariance = np.full(F, 2.0 / F), 4.0 * (np.eye(F) / F - np.ones((F, F)) / F**2)  # type: ignore[assignment]
    else:
        prior = call.run(spe.gaussian_spikes, F, 4.0, 1.0 if call.given("nu2") else None)
        mean, covariance = np.zeros(F), np.diag(np.linspace(4.0, 1.0 if call.given("nu2") else 4.0, F))  # type: ignore[assignment]
    yield from close("mean", prior.mean, mean, 1e-10)
    yield from close("covariance", prior.covariance, covariance, 1e-10)


@case(
    *(
        f"attsvm.dynamics.specialization.{name}"
        for name in ("crossing_time", "log_fit", "specialization_time", "softmax_floor")
    )
)
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


Pairs = list[tuple[int, int]]


def _retriever(call: Call) -> tuple[FloatArray, FloatArray, FloatArray, Pairs, Pairs]:
    """Queries, documents, the map of now, failures and golden answers, in rows."""
    documents, d, queries = call.pick((12, 3, 6), (20, 4, 10), (40, 5, 16))
    X = call.rng.standard_normal((documents, d))
    X /= np.linalg.norm(X, axis=1, keepdims=True)
    Z = X[:queries] + 0.3 * call.rng.standard_normal((queries, d))
    prior = np.eye(d)
    if call.row.get("prior") is not None:
        prior = prior + 0.1 * call.rng.standard_normal((d, d))
    first = (Z @ prior.T @ X.T).argmax(axis=1)
    failures = [(q, int((first[q] + 1) % documents)) for q in (0, 1)]
    return Z, X, prior, failures, [(q, int(first[q])) for q in range(2, queries)]


def _refused(row: Row) -> bool:
    nothing = row["failures"] is None and row["golden"] is None and row["after"] is None
    uncalibrated = row["margin"] == "calibrated" and row["golden"] is None
    return nothing or uncalibrated or (row["after"] is not None and row["prior"] is not None)


def _rows(Z: FloatArray, X: FloatArray, W: FloatArray, wanted: Pairs, kept: Pairs, margin: float) -> Any:
    """Differences, queries and right-hand sides of all promises against all documents."""
    for repair, pairs in ((True, wanted), (False, kept)):
        for q, doc in pairs:
            apart = X[doc] - np.delete(X, doc, axis=0)
            before = apart @ W @ Z[q]
            yield apart, Z[q], np.full(len(apart), margin) if repair else np.minimum(margin, before), before


@case(
    "attsvm.patch",
    words={"margin": ("just above", "calibrated", 0.01), "encoder": (None, GIVEN)},
    skip={"name": "a title", "progress": "a function that is told", "query_ids": "with document_ids",
          "max_rounds": "a limit", "stale": "golden answers are first here", "tolerance": "a limit"},
    refused=_refused, work=400_000,
)  # fmt: skip
def _patch(call: Call) -> Iterator[str]:
    """The promises against all documents, and the size of the change against cvxpy."""
    Z, X, prior, wrong, right = _retriever(call)
    earlier = right[:2] if call.given("after") else []
    wanted = wrong if call.given("failures") else []
    kept = right[len(earlier) :] if call.given("golden") else []
    found = _called(call, Z, X, prior, earlier, wanted, kept)
    old = list(_rows(Z, X, prior, [], earlier, 1e-3))
    smallest = _smallest([*_rows(Z, X, prior, wanted, kept, found.margin), *old], prior, call["norm"])
    if found.status == "infeasible":
        yield from [] if smallest is None else [f"is called infeasible, but cvxpy finds a change of size {smallest}"]
        return
    if found.status != "optimal":
        yield f"ended {found.status}: {found.certificate}"
        return
    gone = {str(one.query).lstrip("q") for one in found.unserved}
    served = [(q, doc) for q, doc in wanted if str(q) not in gone]
    yield from _broken(found, [*_rows(Z, X, prior, served, kept, found.margin), *old])
    scores = (X @ found.document_map.T) @ (Z @ found.query_map.T).T
    yield from close("scores of the maps", scores, X @ found.W @ Z.T, 1e-10)
    if call["C"] is None and smallest is None:
        yield "is called optimal, but cvxpy finds no change"
    elif call["C"] is None and smallest is not None:
        # cvxpy minimizes the square: a change of 0 is known to the root of its accuracy only
        yield from close("squared size of the change", found.norm**2, smallest**2, 2e-5)


def _called(
    call: Call, Z: FloatArray, X: FloatArray, prior: FloatArray, earlier: Pairs, wanted: Pairs, kept: Pairs
) -> Any:
    """The call with the arguments of its row: ids or rows, vectors or texts."""
    texts, vectors = ([f"q{k}" for k in range(len(Z))], [f"d{k}" for k in range(len(X))]), {"q": Z, "d": X}
    named = call.given("document_ids")
    ids: dict[str, Any] = {"query_ids": texts[0], "document_ids": texts[1]} if named else {}

    def told(pairs: Pairs) -> list[tuple[Any, Any]] | None:
        return ([(f"q{q}", f"d{doc}") for q, doc in pairs] if named else list(pairs)) or None

    given: tuple[Any, Any] = (texts[0], texts[1]) if call.given("encoder") else (Z, X)
    before = attsvm.patch(Z, X, None, told(earlier), margin=1e-3, **ids) if earlier else None
    return call.run(
        attsvm.patch, *given, told(wanted), told(kept), after=before, prior=prior if call["prior"] else None,
        encoder=(lambda names: vectors[names[0][0]]) if call.given("encoder") else None,
        held_out=told([(2, 0), (3, 1)]) if call.given("held_out") else None, **ids,
        **call.options("side", "norm", "margin", "start", C=50.0, time_limit=60.0, memory_limit=1e8),
    )  # fmt: skip


def _broken(found: Any, rows: list[Any]) -> Iterator[str]:
    for apart, z, asked, before in rows:
        lead = apart @ found.W @ z
        if (asked - lead).max() > 1e-7:
            yield f"a promise is missed by {(asked - lead).max():.1e}"
        if (lead[(before > 0) | (asked > before)] <= 0).any():
            yield "a promised document is not first"


def _smallest(rows: list[Any], prior: FloatArray, norm: str) -> float | None:
    """The size of the smallest change over all rows by cvxpy; None if no change satisfies them."""
    W = cp.Variable(prior.shape)
    limits = [apart @ W @ z >= asked for apart, z, asked, _ in rows]
    program = cp.Problem(cp.Minimize(EXPRESSIONS[norm](cp, W - prior)), limits)
    program.solve(solver="CLARABEL")
    if program.status not in ("optimal", "optimal_inaccurate"):
        return None
    return float(get_norm(norm)(np.asarray(W.value) - prior))


@case("attsvm.load_patch", words={"found": (True, False)}, work=40_000)
def _load_patch(call: Call) -> Iterator[str]:
    Z, X, _, wrong, right = _retriever(call)
    if not call["found"]:  # the same query with two answers
        Z = np.vstack([Z, Z[:1]])
        wrong = [(0, 0), (len(Z) - 1, 1)]
        right = []
    made = attsvm.patch(Z, X, wrong[: None if not call["found"] else 1], right[:3])
    read = call.run(attsvm.load_patch, made.save(call.folder / "patch.npz"))
    if call["found"] and repr(read.record()) != repr(made.record()):  # nan is not equal to itself
        yield "the record differs"
    if str(read.status) != str(made.status) or [str(one) for one in read.conflict] != [
        str(one) for one in made.conflict
    ]:
        yield "status or contradiction differ"
    if made.map is not None:
        yield from close("W", read.W, made.W, 0.0)
