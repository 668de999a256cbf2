"""One training step as a pure function of tensors, and what a snapshot records."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from attsvm.losses import Loss, get_loss
from attsvm.parameterizations import Parameterization, get_parameterization
from attsvm.problem import AttentionProblem
from attsvm.training.gradient import ScaledGradient, attention_state, head_gradient, naive_gradient, scaled_gradient
from attsvm.training.optimizers import Optimizer
from attsvm.training.options import TrainOptions
from attsvm.training.parameters import Parameters, of_block, scale_each, squared_norms
from attsvm.training.polyak import log_excess
from attsvm.training.run import RunStatus
from attsvm.training.smoothness import smoothness_constant
from attsvm.training.tensors import TensorProblem, with_linear_head

__all__ = ["CODES", "RUNNING", "Method", "TrainingState", "make_method", "take_snapshot", "training_step"]

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
