"""Cases of training, paths and attention under given weights, against autograd and SciPy."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import torch

import attsvm
from attsvm.attention import token_logits
from attsvm.joint import compare_joint
from attsvm.losses import LOSSES
from attsvm.solvers.arrays import FloatArray
from attsvm.validation.matrix import Instance, Margin, reference
from attsvm.validation.matrix_calls.call_cases import FORMS, GIVEN, Call, Row, case, close

Tensor = torch.Tensor

Block = dict[str, Tensor]

# Written out, or a new loss by its own values: then its derivatives and everything made of them are judged.
_LOSSES: dict[str, Callable[[Tensor], Tensor]] = {
    **{name: loss.value for name, loss in LOSSES.items()},
    "logistic": lambda u: torch.nn.functional.softplus(-u),
    "exponential": lambda u: torch.exp(-u),
    "correlation": lambda u: -u,
}

_OPTIMIZERS = (
    "normalized_gd", "gd", "polyak", "adam", "muon", "signum", "spectral", "sign", "steepest:l1", "steepest:l3",
    "mirror:l3", "ridge_decay", "flow", "compositional_muon",
)  # fmt: skip

_BY_SIGN = ("adam", "sign", "signum", "spectral", "muon", "steepest:l1", "compositional_muon")

_STEPS = 3


def _attended(X: Tensor, Z: Tensor, W: Tensor) -> Tensor:
    """``X^T softmax(X W z)`` of every query, shape (n, K, d)."""
    return torch.softmax(torch.einsum("ntd,de,nke->nkt", X, W, Z), dim=-1) @ X


def _risk(problem: Any, W: Tensor, v: Tensor, loss: str) -> Tensor:
    """The mean over sequences of the losses of their queries."""
    X, Z, Y = (torch.as_tensor(np.array(part)) for part in (problem.X, problem.Z, problem.Y))
    Z, Y = (Z, Y) if Z.ndim == 3 else (Z[:, None], Y[:, None])
    return _LOSSES[loss](Y * (_attended(X, Z, W) @ v)).sum() / len(X)


# -- training ------------------------------------------------------------------------------------------
def _train_refused(row: Row) -> bool:
    form, plain_gd = row["parameterization"] or "W", row["optimizer"] == "gd" and row["lr"] is None
    head = row["head_lr"] is not None or row["head_init"] != "given"
    return any((
        row["m"] is not None and form != "KQ",
        plain_gd and (form != "W" or row["train_head"]),
        row["resume"] and row["checkpoint"] is None,
        not row["train_head"] and head,
        row["train_head"] and (row["arithmetic"] == "naive" or row["optimizer"] == "polyak"),
        row["init"] == "zero" and form == "KQ",
        row["init"] == "separating" and form != "W",
        row["key_matrix"] is not None and form != "prompt",
        row["optimizer"] == "compositional_muon" and (form != "KQ" or row["train_head"]),
        row["optimizer"] == "mirror:l3" and row["weight_decay"] > 0,
    ))  # fmt: skip


@case(
    "attsvm.train", forms=FORMS, refused=_train_refused, skip={"steps": "a number; 2000 of them say no more than 3"},
    words={
        "optimizer": _OPTIMIZERS, "init": ("uniform", "zero", "separating", GIVEN), "key_matrix": (None, GIVEN),
        "head_init": ("given", "zero", "array"), "weight_decay": (0.0, 0.3),
        "decay_power": (1.0, 0.5), "dtype": ("float64", "float32"), "device": (None, "cpu"),
    },
)  # fmt: skip
def _train(call: Call) -> Iterator[str]:
    """Three steps against the same rule on gradients by autograd."""
    n, T, d = call.pick((2, 3, 4), (3, 4, 5), (4, 5, 6))
    form = call["parameterization"] or "W"
    problem = _trained_problem(call, form, n, T, d)
    M = call.rng.standard_normal((d, 3)) if call.given("key_matrix") else None
    shapes = _shapes(form, d, problem.dz, 2 if call.given("m") else None, M)
    lead = () if call.batch is None else (call.batch,)
    given = {name: 0.5 * call.rng.standard_normal((*lead, *shape)) for name, shape in shapes.items()}
    start: Any = tuple(given.values())
    settings = call.options(
        "optimizer", "loss", "arithmetic", "normalization", "progress", "train_head", "device", "resume",
        "weight_decay", "decay_power", lr=0.2, m=2,
        log_ridge=-4.0, decay_after=1, stop_norm=1.6, stop_direction=1e-12, head_lr=0.05,
        init=start if form == "KQ" else start[0], key_matrix=M,
    )  # fmt: skip
    settings |= {"seed": 5, "snapshots": [1, 2, _STEPS], "dtype": getattr(torch, call["dtype"])}
    v0 = call.rng.standard_normal(d)
    settings |= {"checkpoint": {None: None, GIVEN: call.folder / "run.pt"}[call["checkpoint"]]}
    settings |= {"head_init": {"array": v0}.get(call["head_init"], call["head_init"])}
    run = _run(call, problem, form, settings)
    ends = set(map(str, run.status if call.batch else (run.status,)))
    if len(run.history) < _STEPS + 1 and not ends <= {"norm reached", "converged"}:
        yield f"ended early, {run.status}"
    history = {name: getattr(run.history, name) for name in ("W", "loss", "log_gradient")}
    for b in range(call.batch or 1):
        one = problem[b] if call.batch else problem
        own = {name: values[:, b] if call.batch else values for name, values in history.items()}
        yield from _judge_run(call, one, own, _begin(call, one, form, shapes, given, b), v0, M)


def _run(call: Call, problem: Any, form: str, settings: dict[str, Any]) -> Any:
    if call.given("options"):
        return call.run(lambda: attsvm.train(problem, options=attsvm.TrainOptions(form, _STEPS, **settings)))
    return call.run(attsvm.train, problem, call["parameterization"], _STEPS, **settings)


def _trained_problem(call: Call, form: str, n: int, T: int, d: int) -> Any:
    problem: Any = attsvm.random_problem(n, T, d, batch=call.batch, seed=call.seed)
    if form != "prompt":
        return problem
    return attsvm.AttentionProblem(problem.X, problem.Y, np.ones((*problem.Y.shape, 1)), problem.head)


def _shapes(form: str, d: int, dz: int, m: int | None, M: Any) -> dict[str, tuple[int, ...]]:
    inner = m or min(d, dz)
    if form == "W":
        return {"W": (d, dz)}
    return {"K": (d, inner), "Q": (dz, inner)} if form == "KQ" else {"p": (d if M is None else M.shape[1],)}


def _begin(
    call: Call, problem: Any, form: str, shapes: dict[str, tuple[int, ...]], given: dict[str, FloatArray], b: int
) -> Block | None:
    """Parameters at step 0; None for a first step that is computed from the gradient at 0."""
    if call["init"] == GIVEN:
        return {name: torch.tensor(value[b] if call.batch else value) for name, value in given.items()}
    if call["init"] == "zero":
        return {name: torch.zeros(shape).double() for name, shape in shapes.items()}
    if call["init"] == "separating":
        return None
    rng, found = np.random.default_rng(5), {}
    for name, shape in shapes.items():
        bound = (shape[-1] if name == "W" else shape[0]) ** -0.5
        found[name] = torch.tensor(rng.uniform(-bound, bound, (call.batch or 1, *shape))[b])
    return found


def _judge_run(
    call: Call, problem: Any, history: dict[str, FloatArray], begin: Block | None, v0: FloatArray, M: Any
) -> Iterator[str]:
    v = torch.tensor(np.array(problem.head.v))
    if begin is None:
        zero = torch.zeros(problem.dx, problem.dz).double().requires_grad_()
        (slope,) = torch.autograd.grad(_risk(problem, zero, v, call["loss"]), zero)
        begin = {"W": -slope / slope.norm()}
    if call["train_head"] and call["head_init"] != "given":
        v = torch.zeros_like(v) if call["head_init"] == "zero" else torch.tensor(v0)
    known = _Descent(call, problem, begin, v, M)
    tolerance = 1e-7 if call["dtype"] == "float64" else 1e-3
    if call["dtype"] == "float32" and call["optimizer"] in _BY_SIGN:
        return  # the sign of a gradient that rounding decides
    for k in range(len(history["W"])):  # all problems of a batch may have reached their norm
        yield from close(f"W after {k} steps", history["W"][k], known.W().detach(), tolerance)
        yield from close(f"loss after {k} steps", history["loss"][k], known.loss().item(), tolerance)
        with np.errstate(divide="ignore"):
            size = float(np.log(known.gradient_norm()))
        if size > -20:
            yield from close(f"log gradient after {k} steps", history["log_gradient"][k], size, 100 * tolerance)
        if size < -14:  # a start at a stationary point: rounding decides where it goes
            return
        known.step(k + 1)


class _Descent:
    """The documented rules, one problem, gradients by autograd."""

    def __init__(self, call: Call, problem: Any, begin: Block, v: Tensor, M: Any) -> None:
        self.call, self.problem, self.parameters, self.v = call, problem, dict(begin), v
        self.M = None if M is None else torch.tensor(M)
        self.state: dict[str, Block] = {"": {}, "head": {}}
        self.stopped = False
        name = call["optimizer"]
        self.rule = "normalized_gd" if name in ("ridge_decay", "polyak") else name
        self.ridge = -4.0 if call.given("log_ridge") else (-200.0 if name == "ridge_decay" else None)
        self.after = 1 if call.given("decay_after") or name == "ridge_decay" else None

    def W(self, parameters: Block | None = None) -> Tensor:
        p = parameters or self.parameters
        if "W" in p:
            return p["W"]
        if "K" in p:
            return p["K"] @ p["Q"].T
        return (p["p"] if self.M is None else self.M @ p["p"])[:, None]

    def loss(self) -> Tensor:
        return self._risk(self.W(), self.v)

    def _risk(self, W: Tensor, v: Tensor) -> Tensor:
        return _risk(self.problem, W, v, self.call["loss"])

    def _gradients(self) -> tuple[Block, Tensor]:
        own = {name: t.detach().clone().requires_grad_() for name, t in self.parameters.items()}
        v = self.v.detach().clone().requires_grad_()
        found = torch.autograd.grad(self._risk(self.W(own), v), [*own.values(), v], allow_unused=True)
        slopes = dict(zip(own, found, strict=False))
        if self.ridge is not None:
            slopes = {name: g + np.exp(self.ridge) * self.parameters[name] for name, g in slopes.items()}
        return slopes, found[-1]

    def gradient_norm(self) -> float:
        slopes, head = self._gradients()
        parts = [*slopes.values(), *([head] if self.call["train_head"] else [])]
        return float(sum(g.square().sum() for g in parts).sqrt())  # type: ignore[union-attr]

    def step(self, k: int) -> None:
        if self.stopped:
            return
        slopes, head = self._gradients()
        lr = self._rate(slopes) * self._decay(k)
        before = self.parameters
        self.parameters = self._moved(before, slopes, lr, "", k)
        shrink = lr * (self.call.row.get("weight_decay") or 0.0)
        self.parameters = {n: t - shrink * before[n] for n, t in self.parameters.items()}
        if self.call.row.get("train_head"):
            base = 0.05 if self.call.given("head_lr") else (0.2 if self.call.given("lr") else 0.1)
            self.v = self._moved({"v": self.v}, {"v": head}, base * self._decay(k), "head", k)["v"]
        self.stopped = self.call.row.get("stop_norm") is not None and float(self.W().norm()) >= 1.6

    def _decay(self, k: int) -> float:
        power = self.call.row.get("decay_power") or 1.0
        return 1.0 if self.after is None or k <= self.after else float((self.after / k) ** power)

    def _rate(self, slopes: Block) -> float:
        given = self.call.given("lr")
        if self.call["optimizer"] == "polyak":
            scores = self.problem.Y[:, None] * (self.problem.X @ np.array(self.problem.head.v))
            best = _LOSSES[self.call["loss"]](torch.tensor(scores.max(axis=1))).mean()
            size = sum(g.square().sum() for g in slopes.values()).sqrt()  # type: ignore[union-attr]
            return float((0.2 if given else 0.5) * (self.loss() - best) / size)
        if self.call["optimizer"] == "gd" and not given:
            return float(1.0 / attsvm.smoothness_constant(self.problem, self.call["loss"]))  # has a case of its own
        return 0.2 if given else 0.1

    def _moved(self, block: Block, slopes: Block, lr: float, of: str, k: int) -> Block:
        name, state = self.rule, self.state[of]
        if name == "gd":
            return {n: t - lr * slopes[n] for n, t in block.items()}
        if name == "normalized_gd":
            joint = _length(slopes)
            each = self.call.row.get("normalization") == "factor" and self.call["optimizer"] != "polyak"
            return {n: t - lr * _over(slopes[n], slopes[n].norm() if each else joint) for n, t in block.items()}
        if name == "mirror:l3":
            return {n: _mirrored(n, t, slopes[n], lr, state) for n, t in block.items()}
        if name == "flow":
            return {n: t - lr * _length(block) * _over(slopes[n], _length(slopes)) for n, t in block.items()}
        if name == "compositional_muon":
            return {n: t - lr / 2 * _whitened(slopes[n], block["Q" if n == "K" else "K"], lr) for n, t in block.items()}
        return {n: t - lr * self._direction(n, slopes[n], state, k) for n, t in block.items()}

    def _direction(self, n: str, g: Tensor, state: Block, k: int) -> Tensor:
        name = self.rule
        if name == "adam":
            state["m" + n] = 0.9 * state.get("m" + n, torch.zeros_like(g)) + 0.1 * g
            state["v" + n] = 0.999 * state.get("v" + n, torch.zeros_like(g)) + 0.001 * g**2
            moved: Tensor = state["m" + n] / (1 - 0.9**k) / (state["v" + n] / (1 - 0.999**k)).sqrt()
            return moved.nan_to_num(0.0)  # a zero gradient moves nothing
        if name in ("muon", "signum"):
            state["m" + n] = g = 0.95 * state.get("m" + n, torch.zeros_like(g)) + g
        if name in ("muon", "spectral"):
            if g.ndim == 1:
                return _over(g, g.norm())
            return _polar(g)
        if name in ("sign", "signum"):
            return g.sign()
        if name == "steepest:l1":
            top = g.abs().argmax()
            return torch.zeros_like(g).flatten().scatter(0, top, g.flatten()[top].sign()).reshape(g.shape)
        return _over(g.sign() * g.abs().sqrt(), g.abs().pow(1.5).sum().pow(1 / 3))


def _length(block: Block) -> Tensor:
    """The norm of all parameters together."""
    return torch.stack([t.square().sum() for t in block.values()]).sum().sqrt()


def _mirrored(n: str, t: Tensor, slope: Tensor, lr: float, state: Block) -> Tensor:
    """A step of mirror descent with the potential ``|W|_3^3 / 3``."""
    dual = state.get(n, t.sign() * t.abs() ** 2) - lr * _over(slope, slope.abs().pow(1.5).sum().pow(1 / 1.5))
    state[n] = dual
    return dual.sign() * dual.abs().sqrt()


def _polar(g: Tensor) -> Tensor:
    U, S, Vh = torch.linalg.svd(g, full_matrices=False)
    found: Tensor = (U * (S[0] * g.shape[-1] * 2.3e-16 < S)) @ Vh
    return found


def _whitened(g: Tensor, partner: Tensor, lr: float) -> Tensor:
    _, S, Vh = torch.linalg.svd(partner, full_matrices=True)
    S = torch.nn.functional.pad(S, (0, Vh.shape[0] - len(S)))
    C = Vh.T @ torch.diag((S**2 + lr) ** -0.5) @ Vh
    found: Tensor = _polar(g @ C) @ C
    return found


def _over(g: Tensor, size: Tensor) -> Tensor:
    """A gradient over its size; a zero one moves nothing."""
    return g / size if size > 0 else torch.zeros_like(g)


def _lipschitz(problem: Any, loss: str) -> float:
    """Lemma 4: the mean over sequences of ``|v| |z|^2 |X|^3 (M0 |v| |X| + 3 M1)``."""
    v = float(np.linalg.norm(np.array(problem.head.v)))
    scores = np.abs(problem.X @ np.array(problem.head.v)).max()
    known = {
        "logistic": (0.25, 1 / (1 + np.exp(-scores))), "exponential": (np.exp(scores), np.exp(scores)),
        "correlation": (0.0, 1.0),
    }  # fmt: skip
    M0, M1 = known[loss] if loss in known else LOSSES[loss].constants(-scores, scores)
    X = np.linalg.norm(problem.X, ord=2, axis=(1, 2))
    z = np.square(problem.Z).reshape(len(X), -1).sum(axis=1)
    return float((v * z * X**3 * (M0 * v * X + 3 * M1)).mean())


# -- classes -------------------------------------------------------------------------------------------
class _ClassDescent(_Descent):
    """The documented rules on the mean cross-entropy of a batch of samples."""

    def batch(self, H: Tensor, label: Tensor) -> None:
        self.H, self.label = H, label

    def _risk(self, W: Tensor, v: Tensor) -> Tensor:
        return torch.nn.functional.cross_entropy(self.H @ W.T, self.label) + 0.0 * v.sum()

    def _rate(self, slopes: Block) -> float:
        if self.call["optimizer"] == "gd" and not self.call.given("lr"):
            return float(2 * len(self.problem) / np.linalg.norm(self.problem, 2) ** 2)
        return 0.2 if self.call.given("lr") else 0.1


def _class_train_refused(row: Row) -> bool:
    if row["parameterization"] == "W":
        return row["optimizer"] in ("polyak", "compositional_muon") or row["m"] is not None
    return row["optimizer"] == "polyak" or (row["optimizer"] == "gd" and row["lr"] is None)


@case(
    "attsvm.multiclass.train", forms=FORMS, refused=_class_train_refused,
    words={"optimizer": (None, *_OPTIMIZERS), "init": ("uniform", "zero", GIVEN), "device": (None, GIVEN)},
)  # fmt: skip
def _class_train(call: Call) -> Iterator[str]:
    """Three steps against the same rule on gradients by autograd, the batches drawn again."""
    n, k, d = call.pick((5, 3, 4), (6, 3, 5), (9, 4, 5))
    lead, form = call.batch or 1, call["parameterization"]
    H = call.rng.standard_normal((lead, n, d))
    y = np.stack([call.rng.permutation(np.arange(n) % k) for _ in range(lead)])
    m = 2 if call.given("m") else min(k, d)
    shapes = {"W": (k, d)} if form == "W" else {"K": (k, m), "Q": (d, m)}
    given = {name: 0.5 * call.rng.standard_normal((lead, *shape)) for name, shape in shapes.items()}
    start: Any = tuple(x if call.batch else x[0] for x in given.values())
    settings = call.options("optimizer", device="cpu", lr=0.2, m=2, log_ridge=-4.0, decay_after=1, batch_size=2)
    settings |= {"init": call["init"] if call["init"] != GIVEN else (start if form == "KQ" else start[0])}
    one = (H, y) if call.batch else (H[0], y[0])
    run = call.run(attsvm.multiclass.train, *one, form, steps=_STEPS, snapshots=[1, 2, _STEPS], seed=5, **settings)
    rng = np.random.default_rng(5)
    begin = _class_begin(call, given, rng)
    chosen = [np.arange(n)] * _STEPS
    if call.given("batch_size"):  # three batches of an epoch, the last one with what is left
        epoch = rng.permutation(n)
        chosen = [epoch[2 * j : 2 * j + 2] for j in range(_STEPS)]
    history, losses = (x if call.batch else x[:, None] for x in (run.history, run.log_loss))
    for b in range(lead):
        own = {name: torch.tensor(x[b]) for name, x in begin.items()}
        yield from _judge_class_run(call, H[b], y[b], own, chosen, history[:, b], losses[:, b])


def _class_begin(call: Call, given: dict[str, FloatArray], rng: np.random.Generator) -> dict[str, FloatArray]:
    """Parameters at step 0; factors start from "uniform" where W starts from 0."""
    if call["init"] == GIVEN:
        return given
    if call["init"] == "zero" and "W" in given:
        return {"W": np.zeros_like(given["W"])}
    bounds = {name: x.shape[2 if name == "W" else 1] ** -0.5 for name, x in given.items()}
    return {name: rng.uniform(-bounds[name], bounds[name], x.shape) for name, x in given.items()}


def _judge_class_run(
    call: Call, H: FloatArray, y: Any, own: Block, chosen: list[Any], history: FloatArray, losses: FloatArray
) -> Iterator[str]:
    standard = "normalized_gd" if "W" in own else "ridge_decay"
    ruled = replace(call, row=call.row | {"optimizer": call["optimizer"] or standard})
    known = _ClassDescent(ruled, H, own, torch.zeros(1), None)
    for j in range(_STEPS + 1):
        yield from close(f"W after {j} steps", history[j], known.W().detach(), 1e-7)
        known.batch(torch.tensor(H), torch.tensor(y))
        yield from close(f"log loss after {j} steps", losses[j], float(known.loss().log()), 1e-7)
        if j < _STEPS:
            known.batch(torch.tensor(H[chosen[j]]), torch.tensor(y[chosen[j]]))
            known.step(j + 1)


@case("attsvm.smoothness_constant", forms=FORMS)
def _smoothness(call: Call) -> Iterator[str]:
    """No two gradients differ by more than the constant says; within a factor of the printed formula."""
    n, T, d = call.pick((2, 3, 4), (3, 4, 5), (4, 5, 6))
    problem: Any = attsvm.random_problem(n, T, d, batch=call.batch, seed=call.seed)
    found = np.atleast_1d(call.run(attsvm.smoothness_constant, problem, call["loss"]))
    for b, constant in enumerate(found):
        one = problem[b] if call.batch else problem
        slopes = []
        for scale in (0.0, 0.1, 1.0, 10.0):
            W = torch.tensor(scale * call.rng.standard_normal((d, d))).requires_grad_()
            risk = _risk(one, W, torch.tensor(np.array(one.head.v)), call["loss"])
            slopes.append((W.detach(), torch.autograd.grad(risk, W)[0]))
        for W1, g1 in slopes:
            for W2, g2 in slopes:
                if (g1 - g2).norm() > constant * (W1 - W2).norm() * (1 + 1e-9):
                    yield "two gradients differ by more than the constant allows"
        bound = _lipschitz(one, call["loss"])
        if not 0.2 * bound <= constant <= bound * (1 + 1e-9):  # the range of predictions is not symmetric
            yield f"constant {constant:.4g}, formula {bound:.4g}"


@case("attsvm.cone_init", forms=FORMS)
def _cone_init(call: Call) -> Iterator[str]:
    shape = call.pick((2, 2), (3, 4), (6, 5))
    D = call.rng.standard_normal(shape if call.batch is None else (call.batch, *shape))
    W = call.run(attsvm.cone_init, D, 7.0, 0.8, call.seed)
    size = np.linalg.norm(W, axis=(-2, -1))
    cosine = (W * D).sum(axis=(-2, -1)) / size / np.linalg.norm(D, axis=(-2, -1))
    yield from close("radius", size, np.full_like(size, 7.0))
    yield from close("correlation", cosine, np.full_like(size, 0.8))


@case("attsvm.get_loss", words={"as_object": (False, True)})
def _get_loss(call: Call) -> Iterator[str]:
    name = call["loss"]
    found = call.run(attsvm.get_loss, attsvm.get_loss(name) if call["as_object"] else name)
    u = torch.linspace(-3, 3, call.pick(3, 11, 101)).double().requires_grad_()
    value = _LOSSES[name](u)
    (slope,) = torch.autograd.grad(value.sum(), u, create_graph=True)
    second = torch.autograd.grad(slope.sum(), u)[0] if slope.requires_grad else torch.zeros_like(u)
    at = u.detach().numpy()
    yield from close("value", found.value(at), value.detach())
    yield from close("derivative", found.derivative(at), slope.detach())
    yield from close("second", found.second(at), second)


# -- paths ---------------------------------------------------------------------------------------------
@case(
    "attsvm.regularization_path", work=6_000_000,
    refused=lambda row: row["m"] is not None and row["parameterization"] == "W",
)  # fmt: skip
def _regularization(call: Call) -> Iterator[str]:
    """Losses by their formula, points inside their balls, and SLSQP from each point finds nothing better."""
    n, T, d = call.pick((2, 3, 3), (3, 3, 4), (3, 4, 5))
    problem: Any = attsvm.random_problem(n, T, d, seed=call.seed)
    scores = problem.Y[:, None] * (problem.X @ np.array(problem.head.v))
    best = scores.argmax(axis=1)
    chosen = best.copy()
    if call.given("selection"):
        chosen[0] = np.argsort(scores[0])[-2]
    KQ = call["parameterization"] == "KQ"
    selection = chosen if call.given("selection") else None
    norm = "nuclear" if KQ else "frobenius"
    options: dict[str, Any] = call.options("loss", m=d)
    if call.given("solution"):
        options["solution"] = attsvm.att_svm(problem, chosen, norm=norm)
    radii = [2.0, 10.0, 30.0]
    path = call.run(
        attsvm.regularization_path, problem, radii, call["parameterization"], selection=selection, **options
    )
    v = torch.tensor(np.array(problem.head.v))
    for k, R in enumerate(radii):
        if str(path.status[k]) == "no start":
            continue
        W = torch.tensor(path.W[k])
        yield from close(f"loss at {R}", path.loss[k], _risk(problem, W, v, call["loss"]).item())
        size = (np.square(path.K[k]).sum() + np.square(path.Q[k]).sum()) / 2 if KQ else np.linalg.norm(path.W[k])
        if size > R * (1 + 1e-9):
            yield f"the point at {R} has size {size}"
        if not path.is_local and not KQ:
            better = _slsqp(problem, path.W[k], R, call["loss"])
            floor = _LOSSES[call["loss"]](torch.tensor(scores.max(axis=1))).mean().item()
            if better - floor < (path.loss[k] - floor) * (1 - 1e-3) - 1e-9:
                yield f"SLSQP improves the point at {R} from {path.loss[k]:.9g} to {better:.9g}"


def _slsqp(problem: Any, W: FloatArray, R: float, loss: str) -> float:
    from scipy.optimize import minimize

    v = torch.tensor(np.array(problem.head.v))

    def both(w: FloatArray) -> tuple[float, FloatArray]:
        t = torch.tensor(w.reshape(W.shape)).requires_grad_()
        value = _risk(problem, t, v, loss)
        return value.item(), torch.autograd.grad(value, t)[0].numpy().ravel()

    ball = {"type": "ineq", "fun": lambda w: R**2 - w @ w, "jac": lambda w: -2 * w}
    found = minimize(both, W.ravel(), jac=True, method="SLSQP", constraints=[ball], options={"maxiter": 100})
    inside = found.x * min(1.0, R / np.linalg.norm(found.x))
    return float(both(inside)[0])


@case("attsvm.joint.joint_path", work=8_000_000)
def _joint_path(call: Call) -> Iterator[str]:
    n, T, d = call.pick((2, 3, 3), (3, 3, 4), (3, 4, 5))
    problem = attsvm.random_problem(n, T, d, seed=call.seed)
    path = call.run(attsvm.joint.joint_path, problem, [3.0, 12.0], ratio=0.5, loss=call["loss"], starts=2)
    for k, R in enumerate((3.0, 12.0)):
        if np.linalg.norm(path.W[k]) > R * (1 + 1e-9) or np.linalg.norm(path.v[k]) > 0.5 * R * (1 + 1e-9):
            yield f"the pair at {R} is too long"
        W, v = (torch.tensor(part[k]).requires_grad_() for part in (path.W, path.v))
        risk = _risk(problem, W, v, call["loss"])
        yield from close("log loss", path.log_loss[k], risk.log().item(), 1e-6)
        if path.settled[k]:
            for part, slope in zip((W, v), torch.autograd.grad(risk, [W, v]), strict=True):
                inner = float((part.detach() * -slope).sum() / part.detach().norm() / slope.norm())
                if inner < 1 - 1e-4:
                    yield f"the pair at {R} is called settled, but its gradient is at cosine {inner:.6f}"


@case("attsvm.joint.compare_joint", work=3_000_000, words={"parameterization": ("W", "KQ")})
def _compare_joint(call: Call) -> Iterator[str]:
    n, T, d = call.pick((2, 3, 4), (3, 3, 5), (3, 4, 6))
    problem = attsvm.random_problem(n, T, d, seed=call.seed)
    run = attsvm.train(problem, call["parameterization"], 200, lr=0.3, train_head=True, snapshots=3)
    snapshots = [-1] if call.given("snapshots") else None
    found = call.run(compare_joint, run, snapshots)
    W, v = run.history.W[-1], run.history.v
    assert v is not None
    size = np.linalg.norm(W, "nuc" if call["parameterization"] == "KQ" else "fro")
    yield from close("ratio", found.ratio[-1], np.linalg.norm(v[-1]) / size)
    solution = found.solutions[-1]
    if solution.status.has_solution:
        cosine = (W * solution.W).sum() / np.linalg.norm(W) / np.linalg.norm(solution.W)
        yield from close("misalignment", found.attention[-1], 1 - cosine, 1e-9)


@case("attsvm.decompose", work=400_000)
def _decompose(call: Call) -> Iterator[str]:
    """Sets by their threshold, the direction against cvxpy, gamma as the best multiple."""
    n, T, d = call.pick((2, 3, 6), (2, 4, 8), (3, 4, 12))
    X, Z = call.rng.standard_normal((n, T, d)), call.rng.standard_normal((n, d))
    problem = attsvm.AttentionProblem(X, Z=Z)
    W = 2.0 * call.rng.standard_normal((d, d))
    parts = call.run(attsvm.decompose, problem, W, **call.options("norm", "solver"))
    logits = np.einsum("ntd,de,ne->nt", X, W, Z)
    s = np.exp(logits - logits.max(axis=1, keepdims=True))
    s /= s.sum(axis=1, keepdims=True)
    members = s > 1e-3
    if (parts.selected_sets.members != members).any():
        yield "the sets are not those above the threshold"
    if parts.direction is None:
        if str(parts.status) == "complete":
            yield "complete without a direction"
        return
    one = Instance("gen", X, Z, None, members, 1.0)
    known = reference(one, call["norm"], Margin())
    if known.feasible:
        assert parts.directional is not None
        yield from close("norm of the direction", parts.directional.norm, known.value, 1e-5)
    if np.isfinite(parts.gamma):
        cosines = [_cosine(W, parts.W_fin + f * parts.gamma * parts.direction) for f in (0.9, 1.0, 1.1)]
        if max(cosines) > cosines[1] + 1e-12:
            yield "another gamma is closer to W"


def _cosine(A: FloatArray, B: FloatArray) -> float:
    return float((A * B).sum() / np.linalg.norm(A) / np.linalg.norm(B))


# -- attention -----------------------------------------------------------------------------------------
_ATTENTION = ("logits", "log_attention", "probabilities", "likeliest", "predictions", "risk")


@case(
    *(f"attsvm.attention.{name}" for name in _ATTENTION), forms=FORMS,
    words={"queries": (None, GIVEN), "weights": ("array", "tensor", "stack"), "mask": (None, GIVEN)},
)  # fmt: skip
def _attention(call: Call) -> Iterator[str]:
    name = call.name
    n, T, d = call.pick((1, 2, 2), (3, 4, 5), (5, 7, 6))
    K = 3 if call.given("queries") else None
    problem: Any = attsvm.random_problem(n, T, d, batch=call.batch, seed=call.seed, queries=K, dz=d + 1)
    mask = None
    if call.given("mask"):
        mask = call.rng.random((*problem.Y.shape, T)) < 0.7
        mask[..., 0] = True
        problem = attsvm.AttentionProblem(problem.X, problem.Y, problem.Z, problem.head, mask)
    lead = () if call.batch is None else (call.batch,)
    shape = (2, *lead, d, d + 1) if call["weights"] == "stack" else (*lead, d, d + 1)
    W = call.rng.standard_normal(shape)
    given: Any = torch.tensor(W) if call["weights"] == "tensor" else W
    arguments = (problem, given, call["loss"]) if name == "risk" else (problem, given)
    found = call.run(getattr(attsvm.attention, name), *arguments)
    X, Z, v = (np.array(part) for part in (problem.X, problem.Z, problem.head.v))
    many = Z if K else Z[..., None, :]
    values = np.einsum("...td,...kd->...kt", X, np.einsum("...de,...nke->...nkd", W[..., :, :], many))
    if mask is not None:
        values = np.where(mask if K else mask[..., None, :], values, -np.inf)
    top = values - values.max(axis=-1, keepdims=True)
    log_s = top - np.log(np.exp(top).sum(axis=-1, keepdims=True))
    Y = problem.Y if K else problem.Y[..., None]
    heads = v[..., None, None, :] if call.batch else v
    signed = Y * ((np.exp(log_s) @ X) * heads).sum(axis=-1)
    wanted = {
        "logits": values, "log_attention": log_s, "probabilities": np.exp(log_s), "likeliest": values.argmax(axis=-1),
        "predictions": signed,
    }  # fmt: skip
    if name == "risk":
        rule = _LOSSES[call["loss"]]
        yield from close(name, found, rule(torch.tensor(signed)).sum(dim=(-2, -1)).numpy() / n, 1e-10)
        return
    result = wanted[name]
    axis = -1 if name in ("likeliest", "predictions") else -2
    yield from close(name, found, result if K else result.squeeze(axis), 1e-10)


@case("attsvm.attention.token_logits", forms=FORMS, words={"kind": ("array", "tensor")})
def _token_logits(call: Call) -> Iterator[str]:
    n, T, K, d, e = call.pick((1, 2, 1, 2, 3), (2, 3, 4, 3, 2), (5, 6, 3, 7, 8))
    lead = () if call.batch is None else (call.batch,)
    X, W, Z = (call.rng.standard_normal((*lead, *shape)) for shape in ((n, T, d), (d, e), (n, K, e)))
    arrays: Any = [torch.tensor(part) if call["kind"] == "tensor" else part for part in (X, W, Z)]
    yield from close("logits", call.run(token_logits, *arrays), np.einsum("...ntd,...de,...nke->...nkt", X, W, Z))
