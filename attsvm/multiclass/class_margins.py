"""The max-margin linear classifier of several classes, in every norm.

Row c of W scores class c, and the margin of a sample h with label y is ``min_{c != y} (e_y - e_c)^T W h``. With one-hot
tokens e_c and the samples as queries these are the rows of an attention SVM, so the solvers, the certificates and the
soft margins are those of attention. All samples are queries of one sequence: the tokens are stored once.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Unpack

import numpy as np
import numpy.typing as npt

from attsvm.margin_options import MarginOptions, check_options, takes
from attsvm.problem import AttentionProblem
from attsvm.solution import ResultView, Solution
from attsvm.solvers import Certificate, InfeasibleError, MarginSolution
from attsvm.solvers.arrays import BoolArray, FloatArray, IntArray
from attsvm.svm import satt_svm
from attsvm.user_input import finite_array, integer_array, is_tensor

# Samples in conflict that an error names.
_NAMED = 6


def read_classes(y: Any, shape: tuple[int, ...]) -> tuple[npt.NDArray[Any], IntArray]:
    """Integer or string labels: the distinct ones, sorted, and where each label stands among them.

    Parameters
    ----------
    y : array_like of int or str
    shape : tuple of int
        What their shape must be.

    Examples
    --------
    >>> from attsvm.multiclass.class_margins import read_classes
    >>> names, index = read_classes(["no", "yes", "no"], (3,))
    >>> names.tolist(), index
    (['no', 'yes'], array([0, 1, 0]))
    """
    labels = integer_array("y", y) if is_tensor(y) else np.asarray(y)
    if labels.dtype == object and all(isinstance(label, str) for label in labels.flat):
        labels = labels.astype(str)
    if labels.dtype.kind not in "iubU":
        raise ValueError(f"y must hold integers or strings, got dtype {labels.dtype}")
    if labels.shape != shape:
        raise ValueError(f"y must have shape {shape}, one label per sample, got {labels.shape}")
    names, index = np.unique(labels, return_inverse=True)
    if len(names) < 2:
        raise ValueError(f"y must hold at least two classes, got {len(names)}: there is nothing to separate")
    return names, index.reshape(shape).astype(np.int64)


@dataclass(frozen=True, eq=False, repr=False)
class MulticlassSolution(ResultView):
    """A max-margin classifier with its certificate.

    Attributes
    ----------
    classes : ndarray, shape (k,)
        The labels, sorted; row c of W scores ``classes[c]``.
    index : ndarray of int, shape (n,)
        The class of every sample.
    attention : Solution
        The same problem as attention: one sequence of k one-hot tokens with n queries. It has derivatives and
        sensitivities.
    result : MarginSolution
    """

    classes: npt.NDArray[Any]
    index: IntArray
    attention: Solution
    result: MarginSolution

    @property
    def certificate(self) -> Certificate:
        """Proof of optimality or of infeasibility; it knows the samples, for `Certificate.save`."""
        return self.attention.certificate

    @property
    def W(self) -> FloatArray:
        """The solution, shape (k, d); `InfeasibleError` names samples in conflict when there is none."""
        if self.certificate.farkas is not None:
            found = self.conflicting_samples
            named = ", ".join(map(str, found[:_NAMED])) + (", ..." if len(found) > _NAMED else "")
            raise InfeasibleError(
                f"the classes are not linearly separable: no W satisfies the margins of samples {named} together; "
                "give C for a soft margin (certificate.farkas holds the proof)"
            )
        return self.attention.W

    @property
    def conflicting_samples(self) -> IntArray:
        """Samples in the proof that no W separates the classes; empty when one does."""
        return self.attention.conflicting_queries

    @property
    def direction(self) -> FloatArray:
        """W divided by its norm, shape (k, d)."""
        return self.W / self.norm

    @property
    def rank(self) -> int:
        """Numerical rank of W; for the nuclear norm ``certificate.rank`` bounds that of every solution."""
        return self.attention.rank

    @property
    def objective(self) -> float:
        """What was minimized: the norm, or with C= the norm's term plus what the slacks cost."""
        return self.attention.objective

    @property
    def multipliers(self) -> FloatArray:
        """Dual multipliers per sample and class, shape (n, k); 0 for a sample's own class."""
        return np.asarray(self.attention.multipliers[0])

    @property
    def support(self) -> BoolArray:
        """True where the margin of a sample against a class is 1 (less its slack), shape (n, k)."""
        return np.asarray(self.attention.support[0])

    @property
    def slacks(self) -> FloatArray:
        """What a soft margin falls short, shape (n,), or (n, k) with ``slack="row"``."""
        return np.asarray(self.attention.slacks[0])

    def margins(self) -> FloatArray:
        """``(e_y - e_c)^T W h`` per sample and class, shape (n, k); NaN for a sample's own class."""
        return np.asarray(self.attention.token_margins()[0])

    def predict(self, H: npt.ArrayLike) -> npt.NDArray[Any]:
        """The class of highest score of every sample, shape (n,).

        Parameters
        ----------
        H : array_like, shape (n, d)
        """
        samples = finite_array("H", H, ("n", self.W.shape[1]))
        return np.asarray(self.classes[(samples @ self.W.T).argmax(axis=1)])

    def __repr__(self) -> str:
        size = f"{len(self.classes)} classes, {len(self.index)} samples, {self.attention.norm_name}, {self.status}"
        if not self.status.has_solution:
            return f"MulticlassSolution({size})"
        return f"MulticlassSolution({size}, margin={self.margin:.4g}, rank={self.rank}, gap={self.certificate.gap:.1e})"


@takes(MarginOptions)
def multiclass_svm(H: npt.ArrayLike, y: npt.ArrayLike, **options: Unpack[MarginOptions]) -> MulticlassSolution:
    """Solve the multiclass SVM: the least ``||W||`` with ``(e_y - e_c)^T W h >= 1`` for every sample and class c != y.

    Its direction maximizes the margin over ``||W|| <= 1``. With C it is Crammer and Singer's SVM in the norm: one slack
    per sample by default. There is no intercept: append a column of ones to H for one that counts in the norm.

    Parameters
    ----------
    H : array_like, shape (n, d)
        Samples.
    y : array_like of int or str, shape (n,)
        Labels; at least two classes.
    **options
        Passed to the solver: ``tolerance``, ``max_iterations``, ``time_limit``, ...
        All keywords: `attsvm.margin_options.MarginOptions`.

    Returns
    -------
    MulticlassSolution
        ``W`` has shape (k, d), with one row per class in the order of ``classes``.

    Examples
    --------
    >>> import attsvm
    >>> H, y = [[1.0, 0.0], [-1.0, 1.0], [0.0, -1.0]], ["red", "green", "blue"]
    >>> sol = attsvm.multiclass_svm(H, y, norm="spectral")
    >>> print(sol.status, round(sol.margin, 3), sol.predict([[3.0, 0.5]]))
    optimal 1.0 ['red']
    """
    check_options("multiclass_svm", MarginOptions, options)
    samples = finite_array("H", H, ("n", "d"))
    names, index = read_classes(y, samples.shape[:1])
    samples.flags.writeable = False  # nobody else has it: the problem keeps it without a copy
    problem = AttentionProblem(np.eye(len(names))[None], Z=samples[None])
    found = satt_svm(problem, index[None], **options)
    return MulticlassSolution(names, index, found, found.result)
