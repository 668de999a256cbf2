"""What training returns."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from attsvm.heads import Head, LinearHead
from attsvm.losses import get_loss
from attsvm.problem import AttentionProblem
from attsvm.records import html_table
from attsvm.selection import Selection
from attsvm.solvers.arrays import FloatArray
from attsvm.solvers.status import Advised
from attsvm.training.options import TrainOptions

# What a snapshot records of every problem, in the order of `History`.
_SNAPSHOT_NAMES = ("W", "loss", "norm", "log_gradient", "max_probability", "log_rest", "selection")


def snapshot_names(trained_head: bool) -> tuple[str, ...]:
    """What a snapshot records, in the order of `History`; a trained head adds its v."""
    return (*_SNAPSHOT_NAMES, "v") if trained_head else _SNAPSHOT_NAMES


class RunStatus(Advised):
    """Why a problem's training ended; ``status.advice`` says more.

    Examples
    --------
    >>> from attsvm.training import RunStatus
    >>> RunStatus.STATIONARY.advice
    'The gradient is exactly zero: equal scores, an unlucky start, or a finite minimum.'
    """

    FINISHED = "finished", "All steps were taken."
    NORM = "norm reached", "W reached the requested norm."
    CONVERGED = "converged", "The direction of W changed by less than the tolerance between two snapshots."
    STATIONARY = "stationary", "The gradient is exactly zero: equal scores, an unlucky start, or a finite minimum."
    NOT_FINITE = "not finite", "A step gave NaN or infinity and was not taken; lower lr or check the head."
    INTERRUPTED = "interrupted", "Training was stopped from outside; this is its last snapshot."


@dataclass(frozen=True, eq=False, repr=False)
class History:
    """Snapshots along a run; S of them at log-spaced steps. Batched runs have an axis B after S.

    Attributes
    ----------
    steps : ndarray of int, shape (S,)
    W : ndarray, shape (S, dx, dz)
    loss : ndarray, shape (S,)
    norm : ndarray, shape (S,)
        Frobenius norm of W.
    log_gradient : ndarray, shape (S,)
        Logarithm of the gradient's norm (in the parameters); -inf at a stationary point.
    max_probability : ndarray, shape (S,)
        Mean over queries of the largest attention probability.
    log_rest : ndarray, shape (S,)
        Logarithm of the largest probability, over queries, that is not on the selected token: what
        ``1 - max_probability`` would show if it did not round to 0.
    selection : ndarray of int, shape (S, n) or (S, n, K)
    v : ndarray or None, shape (S, dx)
        The head, where it is trained.
    """

    steps: npt.NDArray[np.int64]
    W: FloatArray
    loss: FloatArray
    norm: FloatArray
    log_gradient: FloatArray
    max_probability: FloatArray
    log_rest: FloatArray
    selection: npt.NDArray[np.int64]
    v: FloatArray | None = None

    def __len__(self) -> int:
        return len(self.steps)

    def __repr__(self) -> str:
        return f"History({len(self)} snapshots, steps {self.steps[0]}..{self.steps[-1]})"


@dataclass(frozen=True, eq=False, repr=False)
class Run:
    """A training run of one problem, or of a batch.

    Attributes
    ----------
    problem : AttentionProblem
    parameterization : str
    norm : str or None
        Norm of the SVM that theory compares this run with.
    parameters : dict of ndarray
        "W", or "K" and "Q", or "p", at the end; and "v" of a trained head.
    W : ndarray, shape (dx, dz) or (batch, dx, dz)
    history : History
    status : RunStatus, or tuple of RunStatus for a batch
    steps : ndarray of int
        Steps taken, a number or one per problem.
    options : TrainOptions
        What was asked for.

    Examples
    --------
    >>> import attsvm
    >>> run = attsvm.train(attsvm.random_problem(n=3, T=4, d=6, seed=0), steps=300)
    >>> run  # doctest: +ELLIPSIS
    Run(W, normalized_gd, finished after 300 steps, |W|=..., loss=...)
    """

    problem: AttentionProblem
    parameterization: str
    norm: str | None
    parameters: dict[str, FloatArray]
    W: FloatArray
    history: History
    status: Any
    steps: npt.NDArray[np.int64]
    options: TrainOptions

    @property
    def selection(self) -> Selection:
        """The most likely tokens at the end."""
        return Selection(self.history.selection[-1])

    @property
    def head(self) -> Head | None:
        """The prediction head at the end: the problem's own, or what training made of it."""
        return LinearHead(self.parameters["v"]) if "v" in self.parameters else self.problem.head

    @property
    def v(self) -> FloatArray:
        """The vector of a trained head, shape (dx,) or (batch, dx)."""
        if "v" not in self.parameters:
            raise AttributeError("this run did not train its head; train(..., train_head=True) does")
        return self.parameters["v"]

    @property
    def trained_problem(self) -> AttentionProblem:
        """The problem under the head at the end: its scores and optimal tokens are those of the trained model."""
        return replace(self.problem, head=self.head) if "v" in self.parameters else self.problem

    @property
    def batch(self) -> int | None:
        """Number of problems; None for a single one."""
        return self.problem.batch

    def __getitem__(self, index: int) -> Run:
        if self.batch is None:
            raise TypeError("only a batched run can be indexed; this is a single run")
        h = self.history
        history = History(
            h.steps,
            *(getattr(h, name)[:, index] for name in snapshot_names(h.v is not None)),
        )
        return Run(
            self.problem[index],
            self.parameterization,
            self.norm,
            {name: value[index] for name, value in self.parameters.items()},
            self.W[index],
            history,
            self.status[index],
            self.steps[index],
            self.options,
        )

    def _ends(self) -> str:
        if self.batch is None:
            return f"{self.status} after {int(self.steps)} steps"
        counts = Counter(str(status) for status in self.status)
        return ", ".join(f"{count} {status}" for status, count in counts.most_common())

    def _last(self, name: str) -> str:
        values = np.asarray(getattr(self.history, name)[-1])
        return f"{float(np.median(values)):.4g}{'' if values.ndim == 0 else ' (median)'}"

    def __repr__(self) -> str:
        many = "" if self.batch is None else f"batch of {self.batch}, "
        size = f"|W|={self._last('norm')}, loss={self._last('loss')}"
        return f"Run({many}{self.parameterization}, {self.options.optimizer_name}, {self._ends()}, {size})"

    def _repr_html_(self) -> str:
        rows = {
            "problem": repr(self.problem),
            "parameterization": self.parameterization,
            "optimizer": self.options.optimizer_name,
            "head": "trained" if "v" in self.parameters else "given",
            "loss function": get_loss(self.options.loss).name,
            "ended": self._ends(),
            "|W|": self._last("norm"),
            "loss": self._last("loss"),
            "log gradient": self._last("log_gradient"),
            "log probability off the selected tokens": self._last("log_rest"),
            "snapshots": len(self.history),
        }
        return html_table("Training run" if self.batch is None else "Batch of training runs", rows)
