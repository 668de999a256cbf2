"""Everything that can be asked of training, as one frozen object, checked when it is made."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Literal, TypeAlias, TypedDict

import numpy as np
import torch

from attsvm.losses import Loss, get_loss
from attsvm.parameterizations import get_parameterization, require_inner_dimension
from attsvm.training.optimizers import Optimizer, get_optimizer
from attsvm.user_input import generator, require_choice, require_count, require_flag, require_number

Arithmetic: TypeAlias = Literal["log", "naive"]
"""How gradients are computed: relative to the likeliest token in logarithms, or as published."""


class TrainSettings(TypedDict, total=False):
    """Keywords of `attsvm.train`: the fields of `TrainOptions` but for the first two, which may also go by position."""

    lr: float | None
    optimizer: str | None
    init: Any
    m: int | None
    device: torch.device | str | None
    seed: int | np.random.Generator
    loss: str | Loss
    dtype: torch.dtype
    arithmetic: Arithmetic
    normalization: Literal["joint", "factor"] | None
    log_ridge: float | None
    decay_after: int | None
    radius: float
    stop_norm: float | None
    stop_direction: float | None
    snapshots: int | Sequence[int]
    progress: bool
    checkpoint: str | Path | None
    resume: bool
    key_matrix: Any
    train_head: bool
    head_lr: float | None
    head_init: Any
    weight_decay: float
    decay_power: float


@dataclass(frozen=True, eq=False)
class Recipe:
    """What an optimizer's name stands for: a rule, a ridge and a decay of the step."""

    optimizer: Optimizer
    log_ridge: float | None
    decay_after: int | None


@dataclass(frozen=True, repr=False)
class TrainOptions:
    """Settings of `attsvm.train`, checked when they are made; `dataclasses.replace` changes some of them.

    Parameters
    ----------
    parameterization : {"W", "KQ", "prompt"}
        W itself, W = K Q^T, or one vector p with logits ``x^T M p`` (needs queries Z = 1, shape (n, 1)).
    steps : int
    lr : float, optional
        0.1 by default; for ``optimizer="gd"`` the largest step of the descent lemma, ``1 / L_W``; for "polyak" the
        factor of its step, 0.5.
    optimizer : str, optional
        By default "normalized_gd" for W and the prompt model, "ridge_decay" for (K, Q) ("normalized_gd" if the head is
        trained, too). There are "normalized_gd" (the papers'), "gd", "polyak" (step ``lr (L - L*) / |gradient|^2``,
        linear heads), "flow" (normalized steps of lr times the parameters' length), "adam", "muon" and "signum"
        (spectral and sign steps on a running mean of gradients), "compositional_muon" (spectral steps of K Q^T),
        "spectral", "sign", "steepest:<norm>", "mirror:l<p>", and "ridge_decay": normalized descent with a ridge of
        e^-200 and a step that decays as 1/k after a quarter of the steps, which brings (K, Q) closer to Att-SVM*.
    init : str or arrays
        "uniform" (+-1/sqrt(fan_in)), "zero", "separating" (Theorem 4's first step), or W / (K, Q) / p.
    m : int, optional
        Inner dimension of (K, Q); min(dx, dz) by default.
    device, dtype
        Where and in what precision to train.
    seed : int or Generator
    loss : str or Loss
        "logistic", "exponential", "correlation", or a `Loss` of your own.
    arithmetic : {"log", "naive"}
        Exact log-domain gradients, or the published arithmetic (which stalls once the softmax saturates).
    normalization : {"joint", "factor"}, optional
        For normalized descent on (K, Q); "joint" by default.
    log_ridge : float, optional
        Logarithm of a ridge added to the gradient in the log domain.
    decay_after : int, optional
        Step after which lr decays as ``k^-decay_power``.
    radius : float
        Length of the first step for ``init="separating"``.
    stop_norm : float, optional
        Stop a problem when ``|W|_F`` reaches this.
    stop_direction : float, optional
        Stop a problem when ``1 - corr`` between consecutive snapshots falls below this, for W and for a trained v.
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
    train_head : bool
        Train the v of a linear head as well, by the same optimizer on a block of its own: both blocks start each step
        from the same point, and normalized methods normalize each.
    head_lr : float, optional
        Step size of v; lr by default.
    head_init : "given", "zero" or array_like, shape (dx,) or (batch, dx)
        Where v starts: the problem's head by default.
    weight_decay : float
        Decoupled: each step also subtracts ``lr * weight_decay`` times W, K and Q, or p (not v).
    decay_power : float
        1 by default; 1/2 with ``decay_after=1`` keeps the steps of K Q^T about constant while K and Q grow.

    Examples
    --------
    >>> import attsvm
    >>> options = attsvm.TrainOptions(steps=50, loss=attsvm.exponential)
    >>> attsvm.train(attsvm.random_problem(n=3, T=4, d=6, seed=0), options).options.loss
    Loss('exponential')
    """

    parameterization: str = "W"
    steps: int = 2000
    lr: float | None = None
    optimizer: str | None = None
    init: Any = "uniform"
    m: int | None = None
    device: torch.device | str | None = None
    seed: int | np.random.Generator = 0
    loss: str | Loss = "logistic"
    dtype: torch.dtype = torch.float64
    arithmetic: str = "log"
    normalization: str | None = None
    log_ridge: float | None = None
    decay_after: int | None = None
    radius: float = 1.0
    stop_norm: float | None = None
    stop_direction: float | None = None
    snapshots: int | Sequence[int] = 60
    progress: bool = False
    checkpoint: str | Path | None = None
    resume: bool = False
    key_matrix: Any = None
    train_head: bool = False
    head_lr: float | None = None
    head_init: Any = "given"
    weight_decay: float = 0.0
    decay_power: float = 1.0

    def __post_init__(self) -> None:
        require_count("steps", self.steps, least=0)
        get_parameterization(self.parameterization)
        self.snapshot_steps()
        self._check_numbers()
        require_inner_dimension(self.parameterization, self.m)
        require_choice("arithmetic", self.arithmetic, "log", "naive")
        if self.recipe().optimizer.name == "gd" and self.lr is None and self.parameterization != "W":
            raise ValueError("lr must be given for optimizer 'gd' on factors: their smoothness changes along the way")
        self._check_optimizer()
        if self.resume and self.checkpoint is None:
            raise ValueError("resume=True needs checkpoint=PATH")
        self._check_head()
        object.__setattr__(self, "loss", get_loss(self.loss))

    def _check_optimizer(self) -> None:
        name = self.recipe().optimizer.name
        if name == "compositional_muon" and (self.parameterization != "KQ" or self.train_head):
            raise ValueError("optimizer 'compositional_muon' needs parameterization 'KQ', without train_head")
        if name.startswith("mirror") and self.weight_decay:
            raise ValueError(f"weight_decay must be 0 for optimizer {name!r}, whose state is not W")

    def _check_head(self) -> None:
        if not self.train_head:
            if self.head_lr is not None or not (isinstance(self.head_init, str) and self.head_init == "given"):
                raise ValueError("head_lr and head_init are for train_head=True")
            return
        if isinstance(self.head_init, str) and self.head_init not in ("given", "zero"):
            raise ValueError(f"head_init must be 'given', 'zero' or an array of shape (dx,), got {self.head_init!r}")
        if self.arithmetic == "naive":
            raise ValueError("train_head=True needs arithmetic='log': a head that grows makes plain losses underflow")
        name = self.recipe().optimizer.name
        if name == "polyak" or (name == "gd" and self.lr is None):
            reason = "its infimum moves with the head" if name == "polyak" else "its smoothness moves: give lr"
            raise ValueError(f"optimizer {name!r} cannot train the head: {reason}")

    def _check_numbers(self) -> None:
        require_number("lr", self.lr, "a positive number", low=0.0, optional=True)
        require_number("log_ridge", self.log_ridge, "a finite number", optional=True)
        require_count("decay_after", self.decay_after, optional=True)
        require_number("decay_power", self.decay_power, "a positive number", low=0.0)
        require_number("weight_decay", self.weight_decay, "a number >= 0", low=0.0, ends="[)")
        require_number("radius", self.radius, "a positive number", low=0.0)
        require_number("stop_norm", self.stop_norm, "a positive number", 0.0, ends="(]", optional=True)
        require_number("stop_direction", self.stop_direction, "a number between 0 and 1", 0.0, 1.0, optional=True)
        if not isinstance(self.optimizer, str | None):
            raise ValueError(f"optimizer must be a name such as 'normalized_gd', got {self.optimizer!r}")
        if not (isinstance(self.dtype, torch.dtype) and self.dtype.is_floating_point):
            raise ValueError(f"dtype must be a floating torch dtype such as torch.float64, got {self.dtype!r}")
        if not isinstance(self.checkpoint, str | Path | None):
            raise ValueError(f"checkpoint must be a path, got {self.checkpoint!r}")
        generator(self.seed)
        require_number("head_lr", self.head_lr, "a positive number", low=0.0, optional=True)
        for name in ("progress", "resume", "train_head"):
            require_flag(name, getattr(self, name))
        if self.key_matrix is not None and self.parameterization != "prompt":
            raise ValueError(f"key_matrix is for parameterization 'prompt', got {self.parameterization!r}")

    def __repr__(self) -> str:
        plain = {"init": self.init if isinstance(self.init, str) else "given"}
        plain |= {} if self.key_matrix is None else {"key_matrix": "given"}
        plain |= {} if isinstance(self.head_init, str) else {"head_init": "array"}
        values = {field.name: plain.get(field.name, getattr(self, field.name)) for field in fields(self)}
        standard = {field.name: field.default for field in fields(self)} | {"loss": get_loss("logistic")}
        changed = ", ".join(f"{name}={value!r}" for name, value in values.items() if value != standard[name])
        return f"TrainOptions({changed})"

    def snapshot_steps(self) -> list[int]:
        """Steps at which a snapshot is taken."""
        return snapshot_steps(self.steps, self.snapshots)

    @property
    def optimizer_name(self) -> str:
        """The optimizer, or the default one of the parameterization."""
        if self.optimizer is not None:
            return self.optimizer
        return "normalized_gd" if self.train_head else get_parameterization(self.parameterization).optimizer

    @property
    def norm(self) -> str | None:
        """Norm of the SVM that theory compares the run's W with; None where nothing is known."""
        return self.recipe().optimizer.norm_on(self.parameterization)

    def recipe(self) -> Recipe:
        """The update rule with its ridge and its decay."""
        name, log_ridge, decay_after = self.optimizer_name, self.log_ridge, self.decay_after
        if name == "ridge_decay":  # for (K, Q): see the table in docs/training.md
            name = "normalized_gd"
            log_ridge = -200.0 if log_ridge is None else log_ridge
            decay_after = max(1, self.steps // 4) if decay_after is None else decay_after
        # Published code adds the machine epsilon to the norm; with exact gradients there is nothing to protect from.
        floor = float(np.finfo(np.float64).eps) if self.arithmetic == "naive" else 0.0
        return Recipe(get_optimizer(name, self.normalization or "joint", floor), log_ridge, decay_after)

    def to_dict(self) -> dict[str, Any]:
        """What decides the outcome, as plain data for records and checkpoints."""
        return {
            "parameterization": self.parameterization,
            "steps": int(self.steps),
            "lr": self.lr,
            "optimizer": self.optimizer_name,
            "loss": get_loss(self.loss).name,
            "m": self.m,
            "dtype": str(self.dtype),
            "arithmetic": self.arithmetic,
            "normalization": self.normalization,
            "log_ridge": self.log_ridge,
            "decay_after": self.decay_after,
            "stop_norm": self.stop_norm,
            "stop_direction": self.stop_direction,
            "snapshots": self.snapshot_steps(),
            "init": self.init if isinstance(self.init, str) else "given",
            "radius": self.radius,
            "seed": int(self.seed) if isinstance(self.seed, int | np.integer) else "generator",
            "weight_decay": float(self.weight_decay),
            "decay_power": float(self.decay_power),
        } | ({"train_head": True, "head_lr": self.head_lr} if self.train_head else {})


def snapshot_steps(steps: int, wanted: int | Sequence[int]) -> list[int]:
    """About ``wanted`` log-spaced steps, or the wanted steps, with 0 and ``steps`` included.

    Examples
    --------
    >>> from attsvm.training import snapshot_steps
    >>> snapshot_steps(1000, 4), snapshot_steps(1000, [30, 70])
    ([0, 1, 10, 100, 1000], [0, 30, 70, 1000])
    """
    if isinstance(wanted, bool) or not isinstance(wanted, int | np.integer):
        if isinstance(wanted, bool | str) or not isinstance(wanted, Iterable):
            raise ValueError(f"snapshots must be an integer of at least 2 or a list of steps, got {wanted!r}")
        for k in wanted:
            require_count("a step of snapshots", k, least=0)
        outside = [k for k in wanted if not 0 <= k <= steps]
        if outside:
            raise ValueError(f"snapshots must lie in [0, {steps}], got {outside[0]}")
        return sorted({0, steps, *(int(k) for k in wanted)})
    require_count("snapshots", wanted, least=2)
    if steps == 0:
        return [0]
    spaced = np.geomspace(1, steps, wanted).round().astype(int)
    return sorted({0, steps, *spaced.tolist()})
