"""The training loop: log-spaced snapshots, stopping, checkpoints."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from attsvm.problem import AttentionProblem
from attsvm.solvers.threads import torch_threads
from attsvm.training.checkpoint import fingerprint, load_checkpoint, save_checkpoint
from attsvm.training.data import TensorProblem, tensor_problem
from attsvm.training.init import initial_parameters
from attsvm.training.optimizers import get_optimizer
from attsvm.training.parameters import get_parameterization, where
from attsvm.training.run import History, Run, RunStatus
from attsvm.training.smoothness import smoothness_constant
from attsvm.training.step import CODES, RUNNING, Method, TrainingState, take_snapshot, training_step

__all__ = ["snapshot_steps", "train"]

_SNAPSHOT_NAMES = ("W", "loss", "norm", "log_gradient", "max_probability", "log_rest", "selection")


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
        state = state.stop(_same_direction(kept[-1]["W"], snapshot["W"], stop_direction), RunStatus.CONVERGED, k)
    kept.append(snapshot)
    return state


def _same_direction(before: Tensor, now: Tensor, tolerance: float) -> Tensor:
    inner = (before * now).flatten(1).sum(1)
    sizes = before.flatten(1).norm(dim=1) * now.flatten(1).norm(dim=1)
    close: Tensor = (inner >= (1 - tolerance) * sizes) & (sizes > 0)
    return close


def snapshot_steps(steps: int, wanted: int | Sequence[int]) -> list[int]:
    """About ``wanted`` log-spaced steps, or the wanted steps, with 0 and ``steps`` included.

    Examples
    --------
    >>> from attsvm.training import snapshot_steps
    >>> snapshot_steps(1000, 4), snapshot_steps(1000, [30, 70])
    ([0, 1, 10, 100, 1000], [0, 30, 70, 1000])
    """
    if not isinstance(wanted, int):
        outside = [k for k in wanted if not 0 <= k <= steps]
        if outside:
            raise ValueError(f"snapshots must lie in [0, {steps}], got {outside[0]}")
        return sorted({0, steps, *(int(k) for k in wanted)})
    if wanted < 2:
        raise ValueError(f"snapshots must be at least 2, got {wanted}")
    if steps == 0:
        return [0]
    spaced = np.geomspace(1, steps, wanted).round().astype(int)
    return sorted({0, steps, *spaced.tolist()})


def _read_method(
    problem: AttentionProblem,
    data: TensorProblem,
    parameterization: str,
    *,
    optimizer: str,
    lr: float | None,
    loss: str,
    arithmetic: str,
    normalization: str | None,
    log_ridge: float | None,
    decay_after: int | None,
    stop_norm: float | None,
    steps: int,
    key_matrix: Any,
) -> Method:
    if arithmetic not in ("log", "naive"):
        raise ValueError(f"arithmetic must be 'log' or 'naive', got {arithmetic!r}")
    if lr is not None and not (np.isfinite(lr) and lr > 0):
        raise ValueError(f"lr must be a positive number, got {lr}")
    if stop_norm is not None and not stop_norm > 0:
        raise ValueError(f"stop_norm must be positive, got {stop_norm}")
    if optimizer == "ridge_decay":  # the recipe for (K, Q): see the table in docs/training.md
        optimizer, normalization = "normalized_gd", normalization or "joint"
        log_ridge = -200.0 if log_ridge is None else log_ridge
        decay_after = max(1, steps // 4) if decay_after is None else decay_after
    # Published code adds the machine epsilon to the norm; with exact gradients there is nothing to protect from.
    floor = float(np.finfo(np.float64).eps) if arithmetic == "naive" else 0.0
    rule = get_optimizer(optimizer, normalization or "joint", floor)
    if lr is None and rule.name == "gd":
        if parameterization != "W":
            raise ValueError("lr must be given for optimizer 'gd' on factors: their smoothness changes along the way")
        rates = 1.0 / np.atleast_1d(smoothness_constant(problem, loss))
    else:
        rates = np.full(data.batch, 0.1 if lr is None else lr)
    rate = torch.tensor(rates, dtype=data.X.dtype, device=data.X.device)
    M = None if key_matrix is None else torch.as_tensor(key_matrix, dtype=data.X.dtype, device=data.X.device)
    form = get_parameterization(parameterization, M)
    return Method(form, rule, loss, arithmetic, rate, log_ridge, decay_after, stop_norm)


def train(
    problem: AttentionProblem,
    parameterization: str = "W",
    steps: int = 2000,
    lr: float | None = None,
    optimizer: str = "normalized_gd",
    init: Any = "uniform",
    m: int | None = None,
    device: Any = None,
    seed: int | np.random.Generator = 0,
    *,
    loss: str = "logistic",
    dtype: torch.dtype = torch.float64,
    arithmetic: str = "log",
    normalization: str | None = None,
    log_ridge: float | None = None,
    decay_after: int | None = None,
    radius: float = 1.0,
    stop_norm: float | None = None,
    stop_direction: float | None = None,
    snapshots: int | Sequence[int] = 60,
    progress: bool = False,
    checkpoint: str | Path | None = None,
    resume: bool = False,
    key_matrix: Any = None,
) -> Run:
    """Train attention weights on a problem or on a batch of problems at once.

    Parameters
    ----------
    problem : AttentionProblem
        One query, K queries (the sequence losses (11), causal by mask), or a batch.
    parameterization : {"W", "KQ", "prompt"}
        W itself, W = K Q^T, or one vector p with logits ``x^T M p`` (needs queries Z = 1, shape (n, 1)).
    steps : int
    lr : float, optional
        0.1 by default; for ``optimizer="gd"`` the largest step of the descent lemma, ``1 / L_W``.
    optimizer : str
        "normalized_gd" (the papers'), "gd", "adam", "spectral", "sign", "steepest:<norm>", "mirror:l<p>", or
        "ridge_decay": the recipe for (K, Q), normalized descent with a ridge of e^-200 and a step that
        decays as 1/k after a quarter of the steps.
    init : str or arrays
        "uniform" (+-1/sqrt(fan_in)), "zero", "separating" (Theorem 4's first step), or W / (K, Q) / p.
    m : int, optional
        Inner dimension of (K, Q); min(dx, dz) by default.
    device, dtype
        Where and in what precision to train.
    seed : int or Generator
    loss : {"logistic", "exponential", "correlation"}
    arithmetic : {"log", "naive"}
        Exact log-domain gradients, or the published arithmetic (which stalls once the softmax saturates).
    normalization : {"joint", "factor"}
        For normalized descent on (K, Q).
    log_ridge : float, optional
        Logarithm of a ridge added to the gradient in the log domain.
    decay_after : int, optional
        Step after which lr decays as 1/k.
    radius : float
        Length of the first step for ``init="separating"``.
    stop_norm : float, optional
        Stop a problem when ``|W|_F`` reaches this.
    stop_direction : float, optional
        Stop a problem when ``1 - corr`` between consecutive snapshots falls below this.
    snapshots : int or sequence of int
        About how many log-spaced snapshots to keep, or the steps to keep (0 and the last are always kept).
    progress : bool
        Show a progress bar.
    checkpoint : path, optional
        Save the whole state there at every snapshot, atomically.
    resume : bool
        Continue from ``checkpoint`` if the file exists, bit for bit as if never stopped.
    key_matrix : array_like, shape (dx, r), optional
        M of the prompt model.

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
    if not isinstance(steps, int | np.integer) or steps < 0:
        raise ValueError(f"steps must be an integer >= 0, got {steps!r}")
    planned = snapshot_steps(steps, snapshots)
    if m is not None and (parameterization != "KQ" or m < 1):
        raise ValueError(f"m is the inner dimension of parameterization 'KQ' and must be >= 1, got m={m}")
    if parameterization == "prompt" and not (problem.dz == 1 and bool((problem.Z == 1).all())):
        raise ValueError("the prompt model has no queries: build the problem with Z = np.ones((n, 1))")
    data = tensor_problem(problem, device, dtype)
    method = _read_method(
        problem,
        data,
        parameterization,
        optimizer=optimizer,
        lr=lr,
        loss=loss,
        arithmetic=arithmetic,
        normalization=normalization,
        log_ridge=log_ridge,
        decay_after=decay_after,
        stop_norm=stop_norm,
        steps=steps,
        key_matrix=key_matrix,
    )
    inner = m or min(problem.dx, problem.dz)
    prompt_dim = problem.dx if key_matrix is None else int(np.shape(key_matrix)[-1])
    parameters = initial_parameters(
        problem, data, parameterization, init, m=inner, loss=loss, radius=radius, seed=seed, prompt_dim=prompt_dim
    )
    state = TrainingState(
        parameters,
        method.optimizer.init(parameters),
        torch.full((data.batch,), RUNNING, dtype=torch.int64, device=data.X.device),
        torch.zeros(data.batch, dtype=torch.int64, device=data.X.device),
    )
    settings = {
        "parameterization": parameterization, "steps": steps, "lr": lr, "optimizer": optimizer, "loss": loss,
        "m": inner, "dtype": str(dtype), "arithmetic": arithmetic, "normalization": normalization,
        "log_ridge": log_ridge, "decay_after": decay_after, "stop_norm": stop_norm,
        "stop_direction": stop_direction, "snapshots": planned,
        "init": init if isinstance(init, str) else "given", "seed": seed if isinstance(seed, int) else "generator",
    }  # fmt: skip
    print_ = fingerprint(settings, data, parameters)
    kept: list[dict[str, Tensor]] = []
    done = 0
    path = None if checkpoint is None else Path(checkpoint)
    if resume and path is None:
        raise ValueError("resume=True needs checkpoint=PATH")
    if resume and path is not None and path.exists():
        saved = load_checkpoint(path, print_, data.X.device)
        state = TrainingState(saved["parameters"], saved["optimizer"], saved["code"], saved["taken"])
        kept, done = saved["history"], saved["step"]
    with (
        torch.no_grad(),
        torch_threads(data.X.device, data.X.numel() * data.Z.shape[2]),
        _bar(progress, steps) as advance,
    ):
        if not kept:
            state = _look(data, state, state, kept, method, 0, None)
        advance(done)
        for target in planned[len(kept) :]:
            if not bool((state.code == RUNNING).any()):
                break
            before = state
            for k in range(done + 1, target + 1):
                state = training_step(data, state, method, k)
            advance(target - done)
            done = target
            state = _look(data, state, before, kept, method, done, stop_direction)
            if path is not None:
                save_checkpoint(path, print_, state, kept, done)
        state = state.stop(state.code == RUNNING, RunStatus.FINISHED, done)
    # A run that was stopped early repeats nothing: its history simply ends there.
    return _finish(problem, method, state, kept, planned[: len(kept)], settings)


@contextmanager
def _bar(wanted: bool, total: int) -> Iterator[Any]:
    if not wanted:
        yield lambda count: None
        return
    from rich.progress import Progress

    with Progress(transient=True) as progress:
        task = progress.add_task("training", total=total)
        yield lambda count: progress.update(task, advance=count)


def _finish(
    problem: AttentionProblem,
    method: Method,
    state: TrainingState,
    kept: list[dict[str, Tensor]],
    steps: list[int],
    settings: dict[str, Any],
) -> Run:
    single = problem.batch is None

    def bring(tensor: Tensor) -> Any:
        return tensor.detach().to("cpu").numpy()

    stacked = {name: bring(torch.stack([snap[name] for snap in kept])) for name in _SNAPSHOT_NAMES}
    if not problem.multi_query:
        stacked["selection"] = stacked["selection"][..., 0]
    if single:
        stacked = {name: value[:, 0] for name, value in stacked.items()}
    codes = bring(state.code)
    statuses = tuple(CODES[c] for c in codes)
    parameters = {name: bring(t) for name, t in state.parameters.items()}
    W = bring(method.parameterization.compose(state.parameters))
    taken = bring(state.taken)
    norm = "nuclear" if method.parameterization.name == "KQ" else method.optimizer.norm
    return Run(
        problem,
        method.parameterization.name,
        norm,
        {name: value[0] if single else value for name, value in parameters.items()},
        W[0] if single else W,
        History(np.asarray(steps, dtype=np.int64), **stacked),
        statuses[0] if single else statuses,
        taken[0] if single else taken,
        settings,
    )
