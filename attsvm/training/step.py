"""One training step as a pure function of tensors, and what a snapshot records."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from attsvm.losses import Loss, get_loss
from attsvm.parameterizations import Parameterization, get_parameterization
from attsvm.problem import AttentionProblem
from attsvm.training.gradient import attention_state, naive_gradient, scaled_gradient
from attsvm.training.optimizers import Optimizer
from attsvm.training.options import TrainOptions
from attsvm.training.parameters import Parameters, scale_each, squared_norms
from attsvm.training.run import RunStatus
from attsvm.training.smoothness import smoothness_constant
from attsvm.training.tensors import TensorProblem

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

    def rate(self, k: int) -> Tensor:
        """Step size of step k, counted from 1."""
        if self.decay_after is None or k <= self.decay_after:
            return self.lr
        return self.lr * (self.decay_after / k)


def make_method(problem: AttentionProblem, data: TensorProblem, options: TrainOptions) -> Method:
    """What the options mean for a problem: one step size per problem, the key matrix on the device."""
    recipe, loss = options.recipe(), get_loss(options.loss)
    if options.lr is None and recipe.optimizer.name == "gd":
        rates = 1.0 / np.atleast_1d(smoothness_constant(problem, loss))
    else:
        rates = np.full(data.batch, 0.1 if options.lr is None else options.lr)
    rate = torch.tensor(rates, dtype=data.X.dtype, device=data.X.device)
    M = options.key_matrix
    form = get_parameterization(options.parameterization, None if M is None else data.X.new_tensor(np.asarray(M)))
    return Method(
        form, recipe.optimizer, loss, options.arithmetic, rate, recipe.log_ridge, recipe.decay_after, options.stop_norm
    )


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


def _gradient(data: TensorProblem, parameters: Parameters, method: Method) -> tuple[Parameters, Tensor]:
    W = method.parameterization.compose(parameters)
    rule = scaled_gradient if method.arithmetic == "log" else naive_gradient
    scaled = rule(data, W, method.loss)
    pulled = method.parameterization.pull_back(parameters, scaled.direction)
    if method.log_ridge is None:
        return pulled, scaled.log_scale
    # grad + e^log_ridge * parameters, with the larger of the two scales factored out.
    log_scale = scaled.log_scale.clamp(min=method.log_ridge)
    data_part = scale_each(pulled, (scaled.log_scale - log_scale).exp())
    ridge = scale_each(parameters, (method.log_ridge - log_scale).exp())
    return {name: g + ridge[name] for name, g in data_part.items()}, log_scale


def training_step(data: TensorProblem, state: TrainingState, method: Method, k: int) -> TrainingState:
    """Step k (from 1) of every problem that still runs; pure tensor operations on the data's device."""
    gradient, log_scale = _gradient(data, state.parameters, method)
    rate = method.rate(k) * (state.code == RUNNING)
    parameters, optimizer = method.optimizer.step(state.parameters, gradient, log_scale, state.optimizer, rate, k)
    state = replace(state, parameters=parameters, optimizer=optimizer)
    if method.stop_norm is not None:
        size = torch.linalg.vector_norm(method.parameterization.compose(parameters).flatten(1), dim=1)
        state = state.stop(size >= method.stop_norm, RunStatus.NORM, k)
    return state


def take_snapshot(data: TensorProblem, parameters: Parameters, method: Method) -> dict[str, Tensor]:
    """W, loss, norms, softmax statistics and selection of every problem, on the device."""
    gradient, log_scale = _gradient(data, parameters, method)
    W = method.parameterization.compose(parameters)
    found = attention_state(data, W, method.loss)
    squares = torch.stack(list(squared_norms(gradient).values())).sum(0)
    log_s = found.log_probabilities
    rest = log_s.scatter(-1, found.selected[..., None], -torch.inf).logsumexp(dim=-1)
    return {
        "W": W.clone(),
        "loss": found.loss,
        "norm": torch.linalg.vector_norm(W.flatten(1), dim=1),
        "log_gradient": 0.5 * squares.log() + log_scale,
        "max_probability": log_s.amax(dim=-1).exp().mean(dim=(1, 2)),
        "log_rest": rest.amax(dim=(1, 2)),
        "selection": found.selected,
    }
