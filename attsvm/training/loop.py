"""One training step as a pure function of tensors, and what a snapshot records.

The training loop: log-spaced snapshots, stopping, checkpoints.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, Unpack

import numpy as np
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
from attsvm.training.start import initial_head, initial_parameters
from attsvm.training.tensors import (
    Parameters,
    TensorProblem,
    of_block,
    scale_each,
    squared_norms,
    tensor_problem,
    torch_threads,
    where,
    with_linear_head,
)
from attsvm.user_input import check_keywords

__all__ = [
    "CODES",
    "RUNNING",
    "Interrupted",
    "Method",
    "TrainingState",
    "make_method",
    "take_snapshot",
    "train",
    "training_step",
]


CODES = tuple(RunStatus)


RUNNING = -1


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

    def decay(self, k: int) -> float:
        """What step sizes are multiplied by at step k, counted from 1."""
        return 1.0 if self.decay_after is None or k <= self.decay_after else self.decay_after / k


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
        head_rate if options.train_head else None,
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


def _under_head(data: TensorProblem, parameters: Parameters) -> TensorProblem:
    """The data under the head of this step, if it is trained."""
    return with_linear_head(data, parameters["head.v"]) if "head.v" in parameters else data


def _head_slope(data: TensorProblem, parameters: Parameters, method: Method) -> ScaledGradient:
    return head_gradient(data, method.parameterization.compose(parameters), method.loss)


def _gradient(data: TensorProblem, parameters: Parameters, method: Method) -> tuple[Parameters, Tensor]:
    W = method.parameterization.compose(parameters)
    rule = scaled_gradient if method.arithmetic == "log" else naive_gradient
    scaled = rule(data, W, method.loss)
    pulled = method.parameterization.pull_back(parameters, scaled.direction)
    if method.log_ridge is None:
        return pulled, scaled.log_scale
    # grad + e^log_ridge * parameters, with the larger of the two scales factored out.
    # A gradient that is exactly zero has no scale, and beside the one it is given the ridge would underflow in float32.
    own = scaled.log_scale.masked_fill((scaled.direction == 0).flatten(1).all(1), -torch.inf)
    log_scale = own.clamp(min=method.log_ridge)
    data_part = scale_each(pulled, (own - log_scale).exp())
    ridge = scale_each(parameters, (method.log_ridge - log_scale).exp())
    return {name: g + ridge[name] for name, g in data_part.items()}, log_scale


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
        ``head_init``: see `TrainOptions`.

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
        "nuclear" if method.parameterization.name == "KQ" else method.optimizer.norm,
        {name.removeprefix("head."): bring(t) for name, t in state.parameters.items()},
        bring(method.parameterization.compose(state.parameters)),
        History(steps, **stacked),
        tuple(CODES[c] for c in bring(state.code)),
        bring(state.taken),
        options,
    )
    return replace(run[0], problem=problem) if single else run
