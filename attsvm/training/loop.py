"""`train`: where it starts, one step as a pure function of tensors, and the loop with snapshots and checkpoints."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, Unpack

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from attsvm.losses import Loss, get_loss
from attsvm.parameterizations import Parameterization, get_parameterization
from attsvm.problem import AttentionProblem, require_problem
from attsvm.records import counting_bar
from attsvm.solvers.deadline import require_time
from attsvm.solvers.threads import under
from attsvm.training.checkpoint import fingerprint, load_checkpoint, save_checkpoint
from attsvm.training.log_gradient import (
    ScaledGradient,
    attention_state,
    head_gradient,
    log_excess,
    naive_gradient,
    scaled_gradient,
    smoothness_constant,
)
from attsvm.training.optimizers import Optimizer
from attsvm.training.options import TrainOptions, TrainSettings
from attsvm.training.run_result import History, Run, RunStatus, snapshot_names
from attsvm.training.tensors import (
    Parameters,
    TensorProblem,
    like,
    of_block,
    scale_each,
    squared_norms,
    tensor_problem,
    torch_threads,
    where,
    with_linear_head,
)
from attsvm.user_input import check_keywords, generator, real_array

CODES = tuple(RunStatus)
RUNNING = -1


# -- the loop ----------------------------------------------------------------------------------------------------------


def train(
    problem: AttentionProblem,
    parameterization: str | TrainOptions | None = None,
    steps: int | None = None,
    *,
    options: TrainOptions | None = None,
    **settings: Unpack[TrainSettings],
) -> Run:
    """Train attention weights on a problem or on a batch of problems at once.

    Settings are keywords, or one `TrainOptions`, or both: a keyword then replaces what the object says.

    Parameters
    ----------
    problem : AttentionProblem
        One query, K queries (the sequence losses (11), causal by mask), or a batch.
    parameterization : {"W", "KQ", "prompt"} or TrainOptions, optional
        What is trained, "W" by default; an options object may stand here.
    steps : int, optional
        2000 by default.
    options : TrainOptions, optional
    **settings
        ``lr``, ``optimizer``, ``init``, ``m``, ``device``, ``seed``, ``loss``, ``dtype``, ``arithmetic``,
        ``normalization``, ``log_ridge``, ``decay_after``, ``radius``, ``stop_norm``, ``stop_direction``,
        ``snapshots``, ``progress``, ``checkpoint``, ``resume``, ``key_matrix``, ``train_head``, ``head_lr``,
        ``head_init``, ``weight_decay``, ``decay_power``: see `TrainOptions`.

    Returns
    -------
    Run

    Examples
    --------
    >>> import attsvm
    >>> problem = attsvm.random_problem(n=3, T=4, d=6, seed=0)
    >>> run = attsvm.train(problem, steps=300)
    >>> print(run.status, run.W.shape, run.history.steps[-1])
    finished (6, 6) 300
    """
    require_problem(problem)
    chosen = _read_options(parameterization, steps, options, settings)
    if chosen.parameterization == "prompt" and not (problem.dz == 1 and bool((problem.Z == 1).all())):
        raise ValueError("the prompt model has no queries: build the problem with Z = np.ones((n, 1))")
    if chosen.optimizer_name == "polyak" and not (problem.head is not None and problem.head.is_linear):
        raise ValueError("optimizer 'polyak' needs a LinearHead: the infimum of the loss is not known for other heads")
    data = tensor_problem(problem, chosen.device, chosen.dtype)
    method = make_method(problem, data, chosen)
    parameters = initial_parameters(problem, data, method.parameterization, chosen)
    parameters |= initial_head(problem, data, chosen)
    trail = _resumed(chosen, data, method, parameters)
    try:
        with torch.no_grad():
            threads = torch_threads(data.X.device, data.X.numel() * data.Z.shape[2])
            trail = under(threads, _descend, data, method, chosen, trail)
    except Interrupted as stop:
        # Whoever started a long run may still want what it has: the interrupt carries the run up to its last snapshot.
        stop.run = _finish(problem, method, chosen, stop.trail)
        raise
    return _finish(problem, method, chosen, trail)


def _read_options(
    parameterization: str | TrainOptions | None, steps: int | None, base: TrainOptions | None, settings: TrainSettings
) -> TrainOptions:
    """One object from what `train` was given: an options object, keywords, or both (keywords win)."""
    if isinstance(parameterization, TrainOptions):
        if base is not None:
            raise TypeError("train takes one TrainOptions, got two")
        base, parameterization = parameterization, None
    if base is not None and not isinstance(base, TrainOptions):
        raise TypeError(f"options must be a TrainOptions, got {type(base).__name__}")
    given = {"parameterization": parameterization, "steps": steps}
    changes: dict[str, Any] = {**settings, **{name: value for name, value in given.items() if value is not None}}
    check_keywords("train", changes, [field.name for field in fields(TrainOptions)])
    return replace(base or TrainOptions(), **changes)


class Interrupted(KeyboardInterrupt):
    """Ctrl-C during training; ``run`` is the run up to its last snapshot."""

    run: Run

    def __init__(self, trail: _Trail) -> None:
        super().__init__(f"training was interrupted after step {trail.done}")
        self.trail = trail


@dataclass(frozen=True, eq=False)
class _Trail:
    """How far a run has come: its state, the snapshots so far, the steps done, and what makes it this run."""

    state: TrainingState
    kept: list[dict[str, Tensor]]
    done: int
    fingerprint: str


def _resumed(options: TrainOptions, data: TensorProblem, method: Method, parameters: Parameters) -> _Trail:
    """The start of a run, or where its checkpoint left it."""
    code = torch.full((data.batch,), RUNNING, dtype=torch.int64, device=data.X.device)
    memory = method.optimizer.init(of_block(parameters))
    if method.head_lr is not None:
        memory |= {f"head.{name}": t for name, t in method.optimizer.init(of_block(parameters, "head.")).items()}
    state = TrainingState(parameters, memory, code, torch.zeros_like(code))
    if options.checkpoint is None:
        return _Trail(state, [], 0, "")
    print_, path = fingerprint(options, data, parameters, method.parameterization.key_matrix), Path(options.checkpoint)
    if options.resume and path.exists():
        saved = load_checkpoint(path, print_, data.X.device, state, options.snapshot_steps())
        state = TrainingState(saved["parameters"], saved["optimizer"], saved["code"], saved["taken"])
        return _Trail(state, saved["history"], saved["step"], print_)
    return _Trail(state, [], 0, print_)


def _descend(data: TensorProblem, method: Method, options: TrainOptions, trail: _Trail) -> _Trail:
    state, kept, done = trail.state, list(trail.kept), trail.done
    if not kept:
        state = _look(data, state, state, kept, method, 0, None)
    try:
        with counting_bar(options.progress, "training", options.steps) as advance:
            advance(done)
            for target in options.snapshot_steps()[len(kept) :]:
                if not bool((state.code == RUNNING).any()):
                    break
                ahead = state
                for k in range(done + 1, target + 1):
                    require_time()
                    ahead = training_step(data, ahead, method, k)
                    advance(1)
                state, done = _look(data, ahead, state, kept, method, target, options.stop_direction), target
                if options.checkpoint is not None:
                    save_checkpoint(Path(options.checkpoint), trail.fingerprint, state, kept, done)
    except KeyboardInterrupt as error:
        stopped = state.stop(state.code == RUNNING, RunStatus.INTERRUPTED, done)
        seen = kept[: bisect_right(options.snapshot_steps(), done)]  # an interrupt may fall between the two
        raise Interrupted(replace(trail, state=stopped, kept=seen, done=done)) from error
    return replace(trail, state=state.stop(state.code == RUNNING, RunStatus.FINISHED, done), kept=kept, done=done)


def _finish(problem: AttentionProblem, method: Method, options: TrainOptions, trail: _Trail) -> Run:
    state, single = trail.state, problem.batch is None

    def bring(tensor: Tensor) -> Any:
        return tensor.detach().to("cpu").numpy()

    names = snapshot_names(options.train_head)
    stacked = {name: bring(torch.stack([snap[name] for snap in trail.kept])) for name in names}
    if not problem.multi_query:
        stacked["selection"] = stacked["selection"][..., 0]
    # A run that was stopped early repeats nothing: its history simply ends there.
    steps = np.asarray(options.snapshot_steps()[: len(trail.kept)], dtype=np.int64)
    run = Run(
        problem if not single else problem.repeat(1),
        method.parameterization.name,
        options.norm,
        {name.removeprefix("head."): bring(t) for name, t in state.parameters.items()},
        bring(method.parameterization.compose(state.parameters)),
        History(steps, **stacked),
        tuple(CODES[c] for c in bring(state.code)),
        bring(state.taken),
        options,
    )
    return replace(run[0], problem=problem) if single else run


# -- one step ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Method:
    """Everything that a step needs besides tensors."""

    parameterization: Parameterization
    optimizer: Optimizer
    loss: Loss
    arithmetic: str
    lr: Tensor  # (B,)
    log_ridge: float | None
    decay_after: int | None
    stop_norm: float | None
    head_lr: Tensor | None = None  # (B,); None for a head that stays as it is
    weight_decay: float = 0.0
    decay_power: float = 1.0

    def decay(self, k: int) -> float:
        """What step sizes are multiplied by at step k, counted from 1."""
        return 1.0 if self.decay_after is None or k <= self.decay_after else (self.decay_after / k) ** self.decay_power


def make_method(problem: AttentionProblem, data: TensorProblem, options: TrainOptions) -> Method:
    """What the options mean for a problem: one step size per problem, the key matrix on the device."""
    recipe, loss = options.recipe(), get_loss(options.loss)
    if options.lr is None and recipe.optimizer.name == "gd":
        rates = 1.0 / np.atleast_1d(smoothness_constant(problem, loss))
    else:
        standard = 0.5 if recipe.optimizer.name == "polyak" else 0.1
        rates = np.full(data.batch, standard if options.lr is None else options.lr)
    rate = torch.tensor(rates, dtype=data.X.dtype, device=data.X.device)
    head_rate = rate if options.head_lr is None else torch.full_like(rate, options.head_lr)
    M = options.key_matrix
    form = get_parameterization(options.parameterization, None if M is None else data.X.new_tensor(np.asarray(M)))
    return Method(
        form, recipe.optimizer, loss, options.arithmetic, rate, recipe.log_ridge, recipe.decay_after, options.stop_norm,
        head_rate if options.train_head else None, options.weight_decay,
        options.decay_power,
    )  # fmt: skip


@dataclass(frozen=True, eq=False)
class TrainingState:
    """Tensors that a step maps to their successors.

    Attributes
    ----------
    parameters, optimizer : dict of Tensor
    code : Tensor of int, shape (B,)
        Index into RunStatus, -1 while a problem runs.
    taken : Tensor of int, shape (B,)
        Step at which a problem stopped.
    """

    parameters: Parameters
    optimizer: dict[str, Tensor]
    code: Tensor
    taken: Tensor

    def stop(self, where_: Tensor, status: RunStatus, k: int) -> TrainingState:
        """Stop the running problems for which the condition holds."""
        stopping = where_ & (self.code == RUNNING)
        return replace(
            self,
            code=torch.where(stopping, CODES.index(status), self.code),
            taken=torch.where(stopping, k, self.taken),
        )


def training_step(data: TensorProblem, state: TrainingState, method: Method, k: int) -> TrainingState:
    """Step k (from 1) of every problem that still runs; pure tensor operations on the data's device.

    With a trained head both blocks move from the same point, each by the optimizer on its own.
    """
    running = method.decay(k) * (state.code == RUNNING)
    seen = _under_head(data, state.parameters)
    own, memory = of_block(state.parameters), of_block(state.optimizer)
    gradient, log_scale = _gradient(seen, own, method)
    rate = _step_length(seen, own, gradient, log_scale, method) * running
    parameters, optimizer = method.optimizer.step(own, gradient, log_scale, memory, rate, k)
    if method.weight_decay:
        parameters = {n: t - like(rate * method.weight_decay, t) * own[n] for n, t in parameters.items()}
    if method.head_lr is not None:
        slope = _head_slope(seen, own, method)
        moved, kept = method.optimizer.step(
            {"v": state.parameters["head.v"]}, {"v": slope.direction}, slope.log_scale,
            of_block(state.optimizer, "head."), method.head_lr * running, k,
        )  # fmt: skip
        parameters |= {f"head.{name}": t for name, t in moved.items()}
        optimizer = optimizer | {f"head.{name}": t for name, t in kept.items()}
    state = replace(state, parameters=parameters, optimizer=optimizer)
    if method.stop_norm is not None:
        size = torch.linalg.vector_norm(method.parameterization.compose(parameters).flatten(1), dim=1)
        state = state.stop(size >= method.stop_norm, RunStatus.NORM, k)
    return state


def _gradient(data: TensorProblem, parameters: Parameters, method: Method) -> tuple[Parameters, Tensor]:
    W = method.parameterization.compose(parameters)
    rule = scaled_gradient if method.arithmetic == "log" else naive_gradient
    scaled = rule(data, W, method.loss)
    return pulled_back(scaled, parameters, method.parameterization, method.log_ridge)


def pulled_back(
    scaled: ScaledGradient, parameters: Parameters, form: Parameterization, log_ridge: float | None
) -> tuple[Parameters, Tensor]:
    """A gradient in W as one in the parameters, with that of a ridge on them, and its logarithmic scale.

    Parameters
    ----------
    scaled : ScaledGradient
    parameters : dict of Tensor
    form : Parameterization
    log_ridge : float, optional

    Examples
    --------
    >>> import torch
    >>> from attsvm.parameterizations import get_parameterization
    >>> from attsvm.training.log_gradient import ScaledGradient
    >>> scaled, W = ScaledGradient(-torch.ones(1, 1, 1), torch.tensor([-500.0])), {"W": torch.ones(1, 1, 1)}
    >>> gradient, log_scale = pulled_back(scaled, W, get_parameterization("W"), -500.0)
    >>> gradient["W"].item(), log_scale.item()
    (0.0, -500.0)
    """
    pulled = form.pull_back(parameters, scaled.direction)
    if log_ridge is None:
        return pulled, scaled.log_scale
    # grad + e^log_ridge * parameters, with the larger of the two scales factored out.
    # A gradient that is exactly zero has no scale, and beside the one it is given the ridge would underflow in float32.
    own = scaled.log_scale.masked_fill((scaled.direction == 0).flatten(1).all(1), -torch.inf)
    log_scale = own.clamp(min=log_ridge)
    data_part = scale_each(pulled, (own - log_scale).exp())
    ridge = scale_each(parameters, (log_ridge - log_scale).exp())
    return {name: g + ridge[name] for name, g in data_part.items()}, log_scale


def _under_head(data: TensorProblem, parameters: Parameters) -> TensorProblem:
    """The data under the head of this step, if it is trained."""
    return with_linear_head(data, parameters["head.v"]) if "head.v" in parameters else data


def _head_slope(data: TensorProblem, parameters: Parameters, method: Method) -> ScaledGradient:
    return head_gradient(data, method.parameterization.compose(parameters), method.loss)


def _step_length(
    data: TensorProblem, parameters: Parameters, gradient: Parameters, log_scale: Tensor, method: Method
) -> Tensor:
    """The step size; Polyak's is ``lr (L - L*) / |gradient|`` times the unit gradient."""
    if method.optimizer.name != "polyak":
        return method.lr
    above = log_excess(data, method.parameterization.compose(parameters), method.loss)
    size = torch.stack(list(squared_norms(gradient).values())).sum(0)
    # A zero gradient moves nothing, whatever the step is.
    return method.lr * torch.where(size > 0, above - log_scale - 0.5 * size.log(), 0.0).exp()


# -- snapshots ---------------------------------------------------------------------------------------------------------


def take_snapshot(data: TensorProblem, parameters: Parameters, method: Method) -> dict[str, Tensor]:
    """W, loss, norms, softmax statistics and selection of every problem, and a trained v, on the device."""
    data = _under_head(data, parameters)
    gradient, log_scale = _gradient(data, of_block(parameters), method)
    W = method.parameterization.compose(parameters)
    found = attention_state(data, W, method.loss)
    log_gradient = 0.5 * torch.stack(list(squared_norms(gradient).values())).sum(0).log() + log_scale
    trained = {}
    if method.head_lr is not None:
        slope = _head_slope(data, parameters, method)
        of_head = slope.direction.norm(dim=1).log() + slope.log_scale
        log_gradient = 0.5 * torch.logaddexp(2.0 * log_gradient, 2.0 * of_head)
        trained = {"v": parameters["head.v"].clone()}
    log_s = found.log_probabilities
    rest = log_s.scatter(-1, found.selected[..., None], -torch.inf).logsumexp(dim=-1)
    return {
        "W": W.clone(),
        "loss": found.loss,
        "norm": torch.linalg.vector_norm(W.flatten(1), dim=1),
        "log_gradient": log_gradient,
        "max_probability": log_s.amax(dim=-1).exp().mean(dim=(1, 2)),
        "log_rest": rest.amax(dim=(1, 2)),
        "selection": found.selected,
    } | trained


def _look(
    data: TensorProblem,
    state: TrainingState,
    before: TrainingState,
    kept: list[dict[str, Tensor]],
    method: Method,
    k: int,
    stop_direction: float | None,
) -> TrainingState:
    """Take a snapshot and stop the problems that it shows to be finished.

    A problem that is no longer finite goes back to the snapshot before, so that what is returned is the last
    W that means something.
    """
    finite = torch.stack([torch.isfinite(t).flatten(1).all(1) for t in state.parameters.values()]).all(0)
    # Factors may be finite where their product, or its norm, is not.
    finite &= torch.isfinite(method.parameterization.compose(state.parameters).flatten(1).norm(dim=1))
    snapshot = take_snapshot(data, where(finite, state.parameters, before.parameters), method)
    state = replace(
        state,
        parameters=where(finite, state.parameters, before.parameters),
        optimizer=where(finite, state.optimizer, before.optimizer),
    )
    finite &= torch.isfinite(snapshot["loss"]) & ~torch.isnan(snapshot["log_gradient"])
    state = state.stop(~finite, RunStatus.NOT_FINITE, k)
    state = state.stop(snapshot["log_gradient"] == -torch.inf, RunStatus.STATIONARY, k)
    if stop_direction is not None and kept:
        # A trained head that still turns will turn W: from v = 0 the first steps move v alone.
        both = [_same_direction(kept[-1][n], snapshot[n], stop_direction) for n in ("W", "v") if n in snapshot]
        state = state.stop(torch.stack(both).all(0), RunStatus.CONVERGED, k)
    kept.append(snapshot)
    return state


def _same_direction(before: Tensor, now: Tensor, tolerance: float) -> Tensor:
    """``1 - corr <= tolerance``, as half the squared distance of the unit matrices: 1 - corr itself rounds at 1e-7."""
    sizes = [W.flatten(1).norm(dim=1, keepdim=True) for W in (before, now)]
    apart = (before.flatten(1) / sizes[0] - now.flatten(1) / sizes[1]).square().sum(1) / 2  # NaN where one is 0
    close: Tensor = apart <= tolerance
    return close


# -- the start ---------------------------------------------------------------------------------------------------------


def initial_parameters(
    problem: AttentionProblem, data: TensorProblem, form: Parameterization, options: TrainOptions
) -> Parameters:
    """Parameters at step 0.

    ``options.init`` is "zero", "uniform" (every entry uniform in ``+-1/sqrt(fan_in)``, what torch's Linear layers do),
    "separating" (Theorem 4's first step of length ``radius``, W only), or arrays: W, or the pair (K, Q), or p.
    """
    init, name = options.init, form.name
    shapes = form.shapes(problem.dx, problem.dz, options.m or min(problem.dx, problem.dz))
    if isinstance(init, str):
        return _named_start(data, form, shapes, options)
    if name == "KQ":
        if not (isinstance(init, tuple) and len(init) == 2):
            raise ValueError("init for parameterization 'KQ' must be a name or a pair (K, Q)")
        return {n: _given(problem, n, value, shapes[n], data) for n, value in zip("KQ", init, strict=True)}
    (only,) = shapes
    return {only: _given(problem, "init", init, shapes[only], data)}


def _given(problem: AttentionProblem, name: str, value: Any, shape: tuple[int, ...], data: TensorProblem) -> Tensor:
    array = real_array(name, value)
    lead = () if problem.batch is None else (problem.batch,)
    if array.shape not in (shape, (*lead, *shape)):
        raise ValueError(f"{name} must have shape {(*lead, *shape)}, got {array.shape}")
    if not np.isfinite(array).all():
        raise ValueError(f"{name} must be finite")
    tensor = torch.tensor(array, dtype=data.X.dtype, device=data.X.device)
    return tensor.expand(data.batch, *shape).clone() if tensor.ndim == len(shape) else tensor


def _named_start(
    data: TensorProblem, form: Parameterization, shapes: dict[str, tuple[int, ...]], options: TrainOptions
) -> Parameters:
    if options.init == "zero":
        if form.name == "KQ":
            raise ValueError("init='zero' is a stationary point of (K, Q): start from init='uniform' or give (K, Q)")
        return {n: data.X.new_zeros(data.batch, *shape) for n, shape in shapes.items()}
    if options.init == "uniform":
        rng = generator(options.seed)
        fan_in = {n: shape[-1] if n == "W" else shape[0] for n, shape in shapes.items()}
        return {n: _uniform(data, shape, fan_in[n] ** -0.5, rng) for n, shape in shapes.items()}
    if options.init == "separating" and form.name == "W":
        return {"W": separating_init(data, get_loss(options.loss), options.radius)}
    raise ValueError(
        "init must be 'zero', 'uniform', 'separating' (parameterization 'W' only) or arrays, "
        f"got {options.init!r} with parameterization {form.name!r}"
    )


def _uniform(data: TensorProblem, shape: tuple[int, ...], bound: float, rng: np.random.Generator) -> Tensor:
    # Drawn by NumPy, so that a seed gives the same start on every device.
    draw = rng.uniform(-bound, bound, size=(data.batch, *shape))
    return torch.tensor(draw, dtype=data.X.dtype, device=data.X.device)


def _vectors(problem: AttentionProblem) -> tuple[int, ...]:
    """One token per problem: the gradient of a linear head there is v."""
    return (problem.dx,) if problem.batch is None else (problem.batch, problem.dx)


def separating_init(data: TensorProblem, loss: Loss, radius: float) -> Tensor:
    """``-radius * grad L(0) / |grad L(0)|``, the first step of Theorem 4 (Assumption C asks that it separates)."""
    B, dx, dz = data.batch, data.X.shape[-1], data.Z.shape[-1]
    zero = torch.zeros(B, dx, dz, dtype=data.X.dtype, device=data.X.device)
    direction = scaled_gradient(data, zero, loss).direction
    size = direction.flatten(1).norm(dim=1)
    return -radius * direction / torch.where(size > 0, size, 1.0)[:, None, None]


def cone_init(
    direction: npt.ArrayLike, radius: float, correlation: float = 0.99, seed: int | np.random.Generator = 0
) -> npt.NDArray[np.float64]:
    """A random W of given norm at a given correlation with a direction (the start of Theorem 5).

    Parameters
    ----------
    direction : array_like, shape (dx, dz) or (batch, dx, dz)
    radius : float
        Frobenius norm of the result.
    correlation : float in (-1, 1]
        ``<W, direction> / (|W| |direction|)``.
    seed : int or Generator

    Examples
    --------
    >>> import numpy as np
    >>> from attsvm.training import cone_init
    >>> W = cone_init(np.eye(3), radius=10.0, correlation=0.9)
    >>> round(float(np.linalg.norm(W)), 6), round(float(np.trace(W) / np.sqrt(3) / 10), 6)
    (10.0, 0.9)
    """
    D = real_array("direction", direction).astype(np.float64)
    if not (radius > 0 and -1 < correlation <= 1):
        raise ValueError(f"radius must be positive and correlation in (-1, 1], got {radius} and {correlation}")
    rng = generator(seed)
    axes = (-2, -1)
    D = D / np.linalg.norm(D, axis=axes, keepdims=True)
    if correlation < 1 and D.shape[-1] * D.shape[-2] < 2:
        raise ValueError(f"direction has one entry: nothing is at correlation {correlation} with it")
    noise = _orthogonal(rng, D) if correlation < 1 else np.zeros_like(D)
    return np.asarray(radius * (correlation * D + np.sqrt(1 - correlation**2) * noise))


def _orthogonal(rng: np.random.Generator, D: np.ndarray) -> np.ndarray:
    """Random matrices of norm 1 orthogonal to those of D, which have norm 1.

    Drawn again while little more than rounding is left: a direction drawn from the same seed is the first draw itself.
    """
    axes = (-2, -1)
    noise = np.zeros_like(D)
    short = np.ones(D.shape[:-2], dtype=bool)
    while short.any():
        drawn = rng.standard_normal(D.shape)
        left = drawn - (drawn * D).sum(axis=axes, keepdims=True) * D
        noise = np.where(short[..., None, None], left, noise)
        short &= np.linalg.norm(left, axis=axes) < 1e-3 * np.linalg.norm(drawn, axis=axes)
    noise -= (noise * D).sum(axis=axes, keepdims=True) * D
    return np.asarray(noise / np.linalg.norm(noise, axis=axes, keepdims=True))


def initial_head(problem: AttentionProblem, data: TensorProblem, options: TrainOptions) -> Parameters:
    """The v of a head that is trained, at step 0; nothing otherwise."""
    if not options.train_head:
        return {}
    head = problem.head
    if head is None or not head.is_linear:
        raise ValueError(f"train_head=True trains a LinearHead, got {'no head' if head is None else head.name}")
    given = options.head_init
    if isinstance(given, str):
        given = np.zeros(problem.dx) if given == "zero" else np.asarray(head.gradient(np.zeros(_vectors(problem))))
    return {"head.v": _given(problem, "head_init", given, (problem.dx,), data)}
