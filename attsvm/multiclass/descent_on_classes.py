"""Training a linear classifier with the cross-entropy, in logarithms: no loss is too small for the next step.

With the gaps ``g_c = (e_c - e_y)^T W h`` the probability of a wrong class is ``p_c = exp(g_c) / (1 + sum_{c != y}
exp(g_c))``, and the gradient in the logits is p_c for a wrong class and ``-sum p_c`` for the right one. Relative to the
label nothing cancels, and the largest ``log p_c`` of the batch is factored out.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from attsvm.comparison import angle, misalignment
from attsvm.heads import LinearHead
from attsvm.multiclass.class_margins import MulticlassSolution, read_classes
from attsvm.parameterizations import get_parameterization
from attsvm.problem import AttentionProblem
from attsvm.solvers import get_norm
from attsvm.solvers.arrays import FloatArray, IntArray
from attsvm.training.log_gradient import ScaledGradient
from attsvm.training.loop import initial_parameters, pulled_back
from attsvm.training.options import Recipe, TrainOptions
from attsvm.training.tensors import Parameters, tensor_problem, torch_threads
from attsvm.user_input import finite_array, generator, require_choice, require_count

# Below it log(1 + e^x) is e^x to the last bit.
_TINY = -40.0


@dataclass(frozen=True, eq=False, repr=False)
class MulticlassRun:
    """Trained weights with their history; one more axis, after that of the snapshots, for a batch of data sets.

    Attributes
    ----------
    classes : ndarray, shape (k,)
        The labels, sorted.
    index : ndarray of int, shape (*batch, n)
        The class of every sample.
    samples : ndarray, shape (*batch, n, d)
    W : ndarray, shape (*batch, k, d)
    parameters : dict of ndarray
        ``W``, or the factors ``K (k, m)`` and ``Q (d, m)`` with ``W = K Q^T``.
    steps : ndarray of int, shape (S,)
        Steps of the snapshots.
    history : ndarray, shape (S, *batch, k, d)
    log_loss : ndarray, shape (S, *batch)
        Logarithm of the mean cross-entropy over all samples.
    """

    classes: npt.NDArray[Any]
    index: IntArray
    samples: FloatArray
    W: FloatArray
    parameters: dict[str, FloatArray]
    steps: IntArray
    history: FloatArray
    log_loss: FloatArray

    def angles(self, solution: MulticlassSolution | npt.ArrayLike) -> FloatArray:
        """Degrees between W and a classifier at every snapshot, shape (S, *batch); NaN where W is 0.

        Parameters
        ----------
        solution : MulticlassSolution or array_like, shape (k, d) or (batch, k, d)
        """
        W = solution.W if isinstance(solution, MulticlassSolution) else np.asarray(solution, dtype=np.float64)
        return angle(misalignment(self.history, np.broadcast_to(W, self.history.shape)))

    def margins(self, norm: str = "frobenius") -> FloatArray:
        """Smallest margin of ``W / ||W||`` at every snapshot, shape (S, *batch); NaN where W is 0.

        At most the ``margin`` of `multiclass_svm` in this norm, and equal to it at a solution.

        Parameters
        ----------
        norm : str
        """
        scores = self.history @ self.samples.swapaxes(-1, -2)  # (S, *batch, k, n)
        index = np.broadcast_to(self.index[..., None, :], (*scores.shape[:-2], 1, scores.shape[-1]))
        right = np.take_along_axis(scores, index, axis=-2)
        gaps = right - scores
        np.put_along_axis(gaps, index, np.inf, axis=-2)
        sizes = np.asarray(get_norm(norm).values(self.history))
        with np.errstate(invalid="ignore", divide="ignore"):
            return np.asarray(gaps.min(axis=(-2, -1)) / np.where(sizes > 0, sizes, np.nan))

    def __repr__(self) -> str:
        size = f"{self.W.shape[0]} data sets, " if self.W.ndim == 3 else ""
        return f"MulticlassRun({size}{len(self.classes)} classes, {self.steps[-1]} steps)"


def train(
    H: npt.ArrayLike,
    y: npt.ArrayLike,
    parameterization: str = "W",
    *,
    optimizer: str | None = None,
    steps: int = 2000,
    lr: float | None = None,
    decay_after: int | None = None,
    batch_size: int | None = None,
    init: Any = "zero",
    m: int | None = None,
    log_ridge: float | None = None,
    seed: int | np.random.Generator = 0,
    snapshots: int = 60,
    device: torch.device | str | None = None,
    dtype: torch.dtype = torch.float64,
) -> MulticlassRun:
    """Train a linear classifier (no intercept) with the mean cross-entropy, by one of the optimizers of `attsvm.train`.

    Parameters
    ----------
    H : array_like, shape (n, d) or (batch, n, d)
        Samples; a batch of data sets is trained at once.
    y : array_like of int or str, shape (n,) or (batch, n)
        Labels; a batch has one list of classes.
    parameterization : {"W", "KQ"}
        W itself, or factors ``W = K Q^T``.
    optimizer : {"normalized_gd", "gd", "adam", "muon", "signum", "spectral", "sign", "ridge_decay"}, optional
        Or "flow", "compositional_muon" (factors), "steepest:<norm>", "mirror:l<p>" and moments that keep other shares
        ("adam:0.9,0.99"), as for `attsvm.train`.
        By default "normalized_gd" for W and "ridge_decay" for factors.
    steps : int
    lr : float, optional
        0.1 by default, and for "gd" on W one over the smoothness constant, ``2 n / |H|^2`` with the spectral norm.
    decay_after : int, optional
        Step after which lr decays as 1/k.
    batch_size : int, optional
        Samples of a step, drawn without replacement in every epoch; all of them by default. Batches of a step are the
        same samples in every data set. The last batch of an epoch may be smaller.
    init : str or arrays
        "zero" (W only), "uniform" (+-1/sqrt(fan_in)), or W / (K, Q). Factors start from "uniform" by default.
    m : int, optional
        Inner dimension of the factors; min(k, d) by default.
    log_ridge : float, optional
        Logarithm of a ridge added to the gradient.
    seed : int or Generator
        Of the start and of the batches.
    snapshots : int
        About how many log-spaced snapshots to keep, or the steps to keep.
    device, dtype
        Where and in what precision to train.

    Examples
    --------
    >>> import numpy as np
    >>> import attsvm
    >>> H, y = np.array([[1.0, 0.0], [-1.0, 1.0], [0.0, -1.0]]), ["red", "green", "blue"]
    >>> run = attsvm.multiclass.train(H, y, steps=2000)
    >>> bool(run.angles(attsvm.multiclass_svm(H, y))[-1] < 1.0)
    True
    """
    require_choice("parameterization", parameterization, "W", "KQ")
    require_count("batch_size", batch_size, optional=True)
    if optimizer == "polyak" or (isinstance(init, str) and init == "separating"):
        raise ValueError("optimizer 'polyak' and init='separating' are for attention: use attsvm.train")
    samples = finite_array("H", H, ("n", "d"), ("batch", "n", "d"))
    classes, index = read_classes(y, samples.shape[:-1])
    if parameterization == "KQ" and isinstance(init, str) and init == "zero":
        init = "uniform"
    rng = generator(seed)
    options = TrainOptions(
        parameterization=parameterization, optimizer=optimizer, steps=steps, lr=lr, decay_after=decay_after,
        init=init, m=m, log_ridge=log_ridge, seed=rng, snapshots=snapshots, device=device, dtype=dtype,
    )  # fmt: skip
    data = _Data.of(samples, index, len(classes), options)
    with torch.no_grad(), torch_threads(data.H.device, data.H.numel() * len(classes)):
        parameters, kept = _descend(data, options, batch_size, rng)
    single = samples.ndim == 2

    def bring(tensor: Tensor, axis: int = 0) -> FloatArray:
        array = tensor.to("cpu").numpy()
        return np.asarray(array.take(0, axis) if single else array, dtype=np.float64)

    history, log_loss = (bring(torch.stack(of_all), 1) for of_all in zip(*kept, strict=True))
    return MulticlassRun(
        classes, index, samples, history[-1], {name: bring(t) for name, t in parameters.items()},
        np.asarray(options.snapshot_steps(), dtype=np.int64), history, log_loss,
    )  # fmt: skip


@dataclass(frozen=True, eq=False)
class _Data:
    """Samples (B, n, d) and labels (B, n, 1) on a device, and where training starts."""

    H: Tensor
    label: Tensor
    start: Parameters

    @staticmethod
    def of(samples: FloatArray, index: IntArray, k: int, options: TrainOptions) -> _Data:
        """As attention: one sequence of k one-hot tokens, which the start is drawn for, under a head of no effect."""
        eye = np.broadcast_to(np.eye(k), (*samples.shape[:-2], 1, k, k))
        problem = AttentionProblem(eye, Z=samples[..., None, :, :], head=LinearHead(np.zeros(k)))
        moved = tensor_problem(problem, options.device, options.dtype)
        start = initial_parameters(problem, moved, get_parameterization(options.parameterization), options)
        H = moved.Z[:, 0]
        return _Data(H, torch.as_tensor(index, device=H.device).reshape(*H.shape[:2], 1), start)


def _descend(
    data: _Data, options: TrainOptions, batch_size: int | None, rng: np.random.Generator
) -> tuple[Parameters, list[tuple[Tensor, Tensor]]]:
    """The last parameters, and W and the logarithm of the loss at every snapshot."""
    recipe, form, parameters = options.recipe(), get_parameterization(options.parameterization), data.start
    rate, state = _rates(data, options, recipe), recipe.optimizer.init(parameters)
    batches = _Batches(data, batch_size, rng)
    kept, wanted = [], set(options.snapshot_steps())
    for k in range(options.steps + 1):
        if k in wanted:
            W = form.compose(parameters)
            kept.append((W.clone(), class_gradient(data.H, data.label, W)[1]))
        if k == options.steps:
            break
        H, label = batches.draw()
        scaled, _ = class_gradient(H, label, form.compose(parameters))
        gradient, log_scale = pulled_back(scaled, parameters, form, recipe.log_ridge)
        decay = 1.0 if recipe.decay_after is None else min(1.0, recipe.decay_after / (k + 1))
        parameters, state = recipe.optimizer.step(parameters, gradient, log_scale, state, decay * rate, k + 1)
    return parameters, kept


def _rates(data: _Data, options: TrainOptions, recipe: Recipe) -> Tensor:
    """One step size per data set. The Hessian in the logits of a sample has norm at most 1/2."""
    if options.lr is None and recipe.optimizer.name == "gd":
        largest: Tensor = torch.linalg.matrix_norm(data.H, 2)
        return 2.0 * data.H.shape[1] / largest.square()
    return torch.full_like(data.H[:, 0, 0], 0.1 if options.lr is None else options.lr)


class _Batches:
    """The samples of every step: all, or the next of a permutation that is drawn anew in every epoch."""

    def __init__(self, data: _Data, size: int | None, rng: np.random.Generator) -> None:
        n = data.H.shape[1]
        if size is not None and size > n:
            raise ValueError(f"batch_size must be at most the number of samples, {n}, got {size}")
        self._data, self._size, self._rng, self._left = data, size, rng, np.empty(0, dtype=np.int64)

    def draw(self) -> tuple[Tensor, Tensor]:
        H, label = self._data.H, self._data.label
        if self._size is None or self._size == H.shape[1]:
            return H, label
        if not len(self._left):
            self._left = self._rng.permutation(H.shape[1])
        chosen, self._left = self._left[: self._size], self._left[self._size :]
        at = torch.as_tensor(chosen, device=H.device)
        return H[:, at], label[:, at]


def class_gradient(H: Tensor, label: Tensor, W: Tensor) -> tuple[ScaledGradient, Tensor]:
    """Gradient of the mean cross-entropy in W, and the logarithm of the loss, exact however small both are.

    Parameters
    ----------
    H : Tensor, shape (B, n, d)
    label : Tensor of int, shape (B, n, 1)
    W : Tensor, shape (B, k, d)

    Examples
    --------
    >>> import torch
    >>> from attsvm.multiclass.descent_on_classes import class_gradient
    >>> H, label, W = torch.ones(1, 1, 1), torch.zeros(1, 1, 1, dtype=torch.int64), torch.tensor([[[5000.0], [0.0]]])
    >>> gradient, log_loss = class_gradient(H, label, W)
    >>> gradient.direction.flatten(), gradient.log_scale.item(), log_loss.item()
    (tensor([-1.,  1.]), -5000.0, -5000.0)
    """
    logits = H @ W.mT  # (B, n, k)
    gaps = (logits - logits.gather(-1, label)).scatter_(-1, label, -torch.inf)
    odds = gaps.logsumexp(-1, keepdim=True)
    each = torch.logaddexp(odds, torch.zeros_like(odds))  # the loss of each sample
    log_p = gaps - each
    log_scale = log_p.amax(dim=(1, 2))
    weights = (log_p - log_scale[:, None, None]).exp_()
    weights.scatter_(-1, label, -weights.sum(-1, keepdim=True))
    direction = weights.mT @ H / H.shape[1]
    log_each = torch.where(odds < _TINY, odds, each.log())
    log_loss = log_each.flatten(1).logsumexp(1) - math.log(H.shape[1])
    return ScaledGradient(direction, log_scale), log_loss
