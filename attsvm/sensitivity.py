"""Derivatives of a solved attention SVM: of its optimal value by the multipliers, of W by implicit differentiation.

The value is the least norm of a hard margin and the objective of a soft one. With the multipliers ``lam`` of the rows
``(x_anchor - x_t)^T W z >= 1 + o_t - o_anchor`` (offsets o) and a prior W0, the envelope theorem gives

    d value = sum_k lam_k (do_t - do_anchor - d[(x_anchor - x_t)^T W z] - (x_anchor - x_t)^T dW0 z)

with W held fixed. X, Z, offset and prior are independent variables; where queries are tokens, ``query_tokens`` adds the
derivative in Z to that in the tokens. The systems behind the derivative of W are those of `attsvm.solvers.implicit`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from attsvm.problem import AttentionProblem
from attsvm.selection_rows import AttentionRows
from attsvm.solvers.active_rows import Fault
from attsvm.solvers.arrays import BoolArray, FloatArray, IntArray, require_count
from attsvm.solvers.implicit import ImplicitSystem
from attsvm.solvers.margin_solution import EitherSolution, is_one
from attsvm.solvers.status import DegenerateError, Status
from attsvm.solvers.value_kinks import ValueKinks, value_kinks
from attsvm.user_input import finite_array, integer_array

INPUTS = ("X", "Z", "offset", "prior")


@dataclass(frozen=True, eq=False)
class Gradients:
    """The gradient of one number in the inputs of a problem, or of one number per problem of a batch.

    Attributes
    ----------
    X : ndarray, shape (*batch, n, T, dx)
        0 at tokens that no query may see.
    Z : ndarray, shape (*batch, n, dz) or (*batch, n, K, dz)
    offset : ndarray, shape (*batch, n, T) or (*batch, n, K, T)
    prior : ndarray, shape (*batch, dx, dz)
        Also where the problem has none: at W0 = 0.
    """

    X: FloatArray
    Z: FloatArray
    offset: FloatArray
    prior: FloatArray

    def scaled(self, factor: float | FloatArray) -> Gradients:
        """Each array times one number, or one per problem of a batch."""
        number = np.asarray(factor)

        def times(array: FloatArray) -> FloatArray:
            return np.asarray(array * number.reshape(number.shape + (1,) * (array.ndim - number.ndim)))

        return Gradients(times(self.X), times(self.Z), times(self.offset), times(self.prior))

    def __getitem__(self, index: int) -> Gradients:
        return Gradients(self.X[index], self.Z[index], self.offset[index], self.prior[index])


class TokenEffect(NamedTuple):
    """How much one token matters: ``size`` is the Euclidean norm of the gradient of the optimal value in its vector."""

    sequence: int
    token: int
    size: float
    selected: bool


@dataclass(frozen=True, eq=False)
class Sensitivity:
    """How the optimal value of a solved problem changes with its inputs; index that of a batch to get one.

    Attributes
    ----------
    of : {"norm", "objective"}
        What ``value`` is: the least norm of a hard margin, or the objective of a soft one.
    value : float, or ndarray of shape (batch,)
    gradients : Gradients
        Of the value.
    margin : Gradients or None
        Of the margin ``1 / norm``; None for a soft margin, whose norm is not what is minimized.
    differentiable : dict of str to bool, or to ndarray of bool, shape (batch,)
        By input ("X", "Z", "offset", "prior"): False where the multipliers, or W, are not unique, so that the value
        has a kink and the gradient belongs to the multipliers and the W that were found.
    selected : ndarray of bool, shape (*batch, n, T)
        Tokens that a query selects.

    Examples
    --------
    >>> import attsvm
    >>> sens = attsvm.att_svm(attsvm.random_problem(n=3, T=4, d=5, seed=0)).sensitivity()
    >>> sens
    Sensitivity(of norm, n=3, T=4, differentiable in X, Z, offset, prior)
    >>> [(effect.sequence, effect.token, round(effect.size, 3)) for effect in sens.top(2)]
    [(0, 3, 0.993), (2, 0, 0.574)]
    """

    of: str
    value: float | FloatArray
    gradients: Gradients
    margin: Gradients | None
    differentiable: Mapping[str, bool | BoolArray]
    selected: BoolArray

    @property
    def token_sizes(self) -> FloatArray:
        """Euclidean norm of the gradient in each token, shape (*batch, n, T)."""
        return np.asarray(np.sqrt(np.vecdot(self.gradients.X, self.gradients.X)))

    @property
    def ranking(self) -> IntArray:
        """Tokens (i, t) from the largest to the smallest gradient, shape (*batch, n T, 2)."""
        sizes = self.token_sizes
        T = sizes.shape[-1]
        order = np.argsort(-sizes.reshape(*sizes.shape[:-2], -1), axis=-1, kind="stable")
        return np.stack([order // T, order % T], axis=-1)

    def top(self, count: int = 10) -> tuple[TokenEffect, ...]:
        """The tokens that matter most, at most ``count`` of those whose gradient is not 0; of one problem."""
        require_count("count", count)
        if self.selected.ndim > 2:
            raise ValueError("top is about one problem; index the sensitivity of the batch first, e.g. sensitivity[0]")
        sizes = self.token_sizes
        found = [(int(i), int(t)) for i, t in self.ranking[:count] if sizes[i, t] > 0]
        return tuple(TokenEffect(i, t, float(sizes[i, t]), bool(self.selected[i, t])) for i, t in found)

    def __getitem__(self, index: int) -> Sensitivity:
        if self.selected.ndim == 2:
            raise TypeError("only the sensitivity of a batch can be indexed")
        known = {name: bool(np.asarray(flag)[index]) for name, flag in self.differentiable.items()}
        margin = None if self.margin is None else self.margin[index]
        value = float(np.asarray(self.value)[index])
        return Sensitivity(self.of, value, self.gradients[index], margin, known, self.selected[index])

    def __repr__(self) -> str:
        sizes = f"n={self.selected.shape[-2]}, T={self.selected.shape[-1]}"
        if self.selected.ndim > 2:
            return f"Sensitivity(of {self.of}, {len(self.selected)} problems, {sizes})"
        smooth = ", ".join(name for name in INPUTS if self.differentiable[name]) or "nothing"
        return f"Sensitivity(of {self.of}, {sizes}, differentiable in {smooth})"


class _Grid(NamedTuple):
    """One problem or a batch with K written out: X (*batch, n, T, dx), Z (*batch, n, K, dz), anchors (*batch, n, K)."""

    X: FloatArray
    Z: FloatArray
    anchors: IntArray

    @classmethod
    def of(cls, problem: AttentionProblem, rows: AttentionRows) -> _Grid:
        X = problem.X.astype(np.float64, copy=False)
        Z = problem.Z.astype(np.float64, copy=False)
        Z = Z if problem.multi_query else Z[..., None, :]
        return cls(X, Z, rows.anchors.reshape(Z.shape[:-1]))

    def moved(self, rows: AttentionRows, weights: FloatArray) -> FloatArray:
        """Weights of rows ``x_anchor - x_t`` as weights of tokens, shape (*batch, n, K, T)."""
        flat = rows.scatter(weights, fill=0.0).reshape(-1, rows.T)
        total = flat.sum(axis=-1)
        np.negative(flat, out=flat)
        flat[np.arange(len(flat)), self.anchors.reshape(-1)] = total  # which has no row of its own
        return flat.reshape(*self.Z.shape[:-1], rows.T)


def _pull_back(
    grid: _Grid, moved: FloatArray, W: FloatArray, along: tuple[FloatArray, FloatArray] | None = None
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Gradients in X, Z (with K written out) and offset of ``sum_k <mu_k P - eta_k W, dA_k> + eta_k dc_k``.

    ``moved`` are the weights of the tokens for eta, ``along`` those for mu with P.
    """
    X, Z = _products(grid, moved, W)
    if along is not None:
        more = _products(grid, along[0], along[1])
        return more[0] - X, more[1] - Z, -moved
    return -X, -Z, -moved


def _products(grid: _Grid, weights: FloatArray, M: FloatArray) -> tuple[FloatArray, FloatArray]:
    """``sum_k weights_kt M z_k`` per token and ``M^T sum_t weights_kt x_t`` per query."""
    K, n = grid.Z.shape[-2], grid.Z.shape[-3]
    queries = grid.Z.reshape(*grid.Z.shape[:-3], n * K, -1)  # one product for all sequences
    keys = (queries @ M.mT).reshape(*grid.Z.shape[:-1], -1)
    if K == 1:
        w = weights[..., 0, :]
        tokens = w[..., None] * keys
        sums = np.einsum("...nt,...ntd->...nd", w, grid.X)
        return tokens, (sums @ M)[..., None, :]
    sums = (weights @ grid.X).reshape(*queries.shape[:-1], -1)
    return weights.mT @ keys, (sums @ M).reshape(*grid.Z.shape[:-1], -1)


def _shaped(
    problem: AttentionProblem, X: FloatArray, Z: FloatArray, offset: FloatArray, prior: FloatArray
) -> Gradients:
    if not problem.multi_query:
        Z, offset = Z[..., 0, :], offset[..., 0, :]
    return Gradients(X, Z, offset, prior)


def value_gradients(problem: AttentionProblem, rows: AttentionRows, result: EitherSolution, W: FloatArray) -> Gradients:
    """Gradient of the optimal value by the multipliers, W being the whole one; NaN where there is no solution.

    Examples
    --------
    >>> import attsvm
    >>> sol = attsvm.att_svm(attsvm.random_problem(n=2, T=3, d=4, seed=0))
    >>> value_gradients(sol.problem, sol.rows, sol.result, sol.W).X.shape
    (2, 3, 4)
    """
    grid = _Grid.of(problem, rows)
    lam = result.multipliers
    if problem.batch is not None and rows.margin_problem.valid is not None:
        lam = np.where(rows.margin_problem.valid, lam, 0.0)
    X, Z, offset = _pull_back(grid, grid.moved(rows, lam), W)
    return _shaped(problem, X, Z, offset, -np.asarray(result.problem.adjoint(lam)))


def _tie(problem: AttentionProblem, gradients: Gradients, query_tokens: npt.ArrayLike | None) -> Gradients:
    """Add the gradient in each query to that in the token of its sequence that it is."""
    if query_tokens is None:
        return gradients
    index = integer_array("query_tokens", query_tokens)
    try:
        index = np.broadcast_to(index, problem.query_shape)
    except ValueError:
        raise ValueError(f"query_tokens must have shape {problem.query_shape}, got {index.shape}") from None
    if index.min() < 0 or index.max() >= problem.T:
        raise ValueError(f"query_tokens must lie in [0, {problem.T}), got {index.min()} to {index.max()}")
    index = index if problem.multi_query else index[..., None]
    Z = problem.Z if problem.multi_query else problem.Z[..., None, :]
    same = problem.dx == problem.dz and np.array_equal(np.take_along_axis(problem.X, index[..., None], axis=-2), Z)
    if not same:
        raise ValueError("query_tokens must name the tokens that the queries are, but Z differs from these rows of X")
    picked = (index[..., None] == np.arange(problem.T)).astype(np.float64)  # (*batch, n, K, T)
    dZ = gradients.Z if problem.multi_query else gradients.Z[..., None, :]
    return Gradients(gradients.X + picked.mT @ dZ, gradients.Z, gradients.offset, gradients.prior)


def _refuse_rank_limit(result: EitherSolution) -> None:
    """Refuse solutions that a limit on the rank holds back: the multipliers do not know it."""
    if result.status is Status.LOCAL if is_one(result) else (result.status == Status.LOCAL).any():
        raise ValueError("derivatives need an optimal solution, but rank= limits this one and it is a local one")


def sensitivity_of(
    problem: AttentionProblem,
    rows: AttentionRows,
    result: EitherSolution,
    W: FloatArray,
    query_tokens: npt.ArrayLike | None = None,
) -> Sensitivity:
    """What `Solution.sensitivity` returns."""
    _refuse_rank_limit(result)
    gradients = _tie(problem, value_gradients(problem, rows, result, W), query_tokens)
    kinks = kinks_in_tokens(problem, rows, result)
    soft = result.problem.penalty is not None
    norm = np.asarray(result.norm)
    with np.errstate(divide="ignore", invalid="ignore"):
        margin = None if soft else gradients.scaled(-1.0 / norm**2)
    known = differentiable_in(kinks, query_tokens is not None)
    value = np.asarray(result.certificate.primal_value if soft else result.norm)
    one = problem.batch is None
    selected = np.zeros((*problem.X.shape[:-1],), dtype=bool)
    anchors = rows.anchors.reshape(*problem.X.shape[:-2], -1)
    np.put_along_axis(selected, anchors, True, axis=-1)
    flags: dict[str, bool | BoolArray] = {name: bool(flag[0]) if one else flag for name, flag in known.items()}
    return Sensitivity(
        "objective" if soft else "norm", float(value) if one else value, gradients, margin, flags, selected
    )


def kinks_in_tokens(problem: AttentionProblem, rows: AttentionRows, result: EitherSolution) -> ValueKinks:
    """`value_kinks`, where W need be unique only in what the tokens see of it: the sum over the queries of each."""

    def left(member: int) -> FloatArray:
        grid, rng = _Grid.of(problem, rows), np.random.default_rng(0)
        moved = grid.moved(rows, np.nan_to_num(result.multipliers))
        X, Z, weights = (x if problem.batch is None else x[member] for x in (grid.X, grid.Z, moved))
        return np.asarray((rng.normal(size=X.shape).mT @ (weights.mT @ Z)).sum(axis=0))

    return value_kinks(result, left=left)


def differentiable_in(kinks: ValueKinks, tied: bool = False) -> dict[str, BoolArray]:
    """By input, shape (B,): tokens that are queries as well are both kinds of factors."""
    X = kinks.left | kinks.right if tied else kinks.left
    return {"X": ~X, "Z": ~kinks.right, "offset": ~kinks.multipliers, "prior": ~kinks.multipliers}


def in_words(rows: AttentionRows, faults: Mapping[int, Fault], batch: bool) -> str:
    """Why there is no derivative, with the query and the token; of a batch, which problems, and the first reason."""
    first = min(faults)
    fault = faults[first]
    where = ""
    if fault.row >= 0:
        owner, token = rows.margin_problem.owner, rows.token
        query = int(owner[first, fault.row] if owner.ndim > 1 else owner[fault.row])
        t = int(token[first, fault.row] if token.ndim > 1 else token[fault.row])
        where = f"the row of query {rows.query_index(query)} and token {t} "
    members = sorted(faults)
    listed = ", ".join(map(str, members[:10])) + (", ..." if len(members) > 10 else "")
    whose = f"problem{'s' if len(members) > 1 else ''} {listed} of the batch: " if batch else ""
    return f"{whose}{where}{fault.reason}"


def _of_shape(name: str, value: npt.ArrayLike, shape: tuple[int, ...]) -> FloatArray:
    """A finite array of float64 of this shape; `finite_array` looks more closely where it is none."""
    if (
        isinstance(value, np.ndarray)
        and value.shape == shape
        and value.dtype == np.float64
        and np.isfinite(value).all()
    ):
        return value
    return finite_array(name, value, shape)


class Derivative:
    """The derivative of W at a solution, as products with its Jacobian; Frobenius and nuclear norm, one or a batch.

    Parameters
    ----------
    problem : AttentionProblem
    rows : AttentionRows
    result : MarginSolution

    Raises
    ------
    DegenerateError
        W has no derivative: the support is not strict, its rows are linearly dependent, or the rank is not
        determined. The message names the query and the token, and the problems of a batch.

    Examples
    --------
    >>> import numpy as np
    >>> import attsvm
    >>> sol = attsvm.att_svm(attsvm.random_problem(n=3, T=4, d=5, seed=0))
    >>> derivative = sol.derivative()
    >>> G, dX = np.ones((5, 5)), np.zeros((3, 4, 5))
    >>> dX[0, 1, 2] = 1.0
    >>> bool(np.isclose(derivative.vjp(G).X[0, 1, 2], (G * derivative.jvp(X=dX)).sum()))
    True
    """

    def __init__(self, problem: AttentionProblem, rows: AttentionRows, result: EitherSolution) -> None:
        _refuse_rank_limit(result)
        self._problem, self._rows = problem, rows
        self._system = ImplicitSystem(result)
        D, prior = self._system.D if problem.batch is not None else self._system.D[0], result.problem.prior
        self._W = D if prior is None else prior.W + D

    @property
    def W(self) -> FloatArray:
        """W at which the derivative is taken: refined by Newton steps on its support where that is needed."""
        return self._W

    def require(self, inputs: Collection[str] = INPUTS) -> None:
        """Raise `DegenerateError` unless W has a derivative in these inputs."""
        faults, resting = self._system.faults, self._system.resting
        if faults and not set(inputs) - {"X", "Z"}:
            faults = {b: fault for b, fault in faults.items() if not resting[b]}
        if faults:
            text = in_words(self._rows, faults, self._problem.batch is not None)
            raise DegenerateError(f"W has no derivative here: {text}")

    def vjp(self, G: npt.ArrayLike, inputs: Collection[str] = INPUTS) -> Gradients:
        """Gradient of ``<G, W>`` in the inputs, for G of the shape of W; NaN for problems without a solution.

        ``inputs`` are those in which W must have a derivative: at W = 0 of a soft margin it has one in X and Z, even
        where it has none in offset and prior.
        """
        self.require(inputs)
        given = _of_shape("G", G, self._W.shape)
        one = self._problem.batch is None
        found = self._system.vjp(given[None] if one else given)
        weights, along, sides, prior = (x[0] if one else x for x in found)
        grid = _Grid.of(self._problem, self._rows)
        moved = (grid.moved(self._rows, weights), along)
        X, Z, offset = _pull_back(grid, grid.moved(self._rows, sides), self._W, moved)
        return _shaped(self._problem, X, Z, offset, prior)

    def jvp(
        self,
        X: npt.ArrayLike | None = None,
        Z: npt.ArrayLike | None = None,
        offset: npt.ArrayLike | None = None,
        prior: npt.ArrayLike | None = None,
    ) -> FloatArray:
        """Change of W for changes of the inputs, in their shapes; what is left out does not change.

        Returns
        -------
        ndarray, shape of W
        """
        given = (("X", X), ("Z", Z), ("offset", offset), ("prior", prior))
        self.require([name for name, value in given if value is not None])
        problem, rows, W = self._problem, self._rows, self._W
        grid, one = _Grid.of(problem, rows), problem.batch is None
        per_token = (*problem.query_shape, problem.T)
        dX = np.zeros(problem.X.shape) if X is None else finite_array("X", X, problem.X.shape)
        dZ = np.zeros(problem.Z.shape) if Z is None else finite_array("Z", Z, problem.Z.shape)
        dW0 = np.zeros(W.shape) if prior is None else finite_array("prior", prior, W.shape)
        add = np.zeros(per_token) if offset is None else finite_array("offset", offset, per_token)
        dZ = dZ.reshape(grid.Z.shape)
        mu = self._system.multipliers
        moved = grid.moved(rows, mu[0] if one else mu)
        F = (dX.mT @ (moved.mT @ grid.Z) + grid.X.mT @ (moved.mT @ dZ)).sum(axis=-3)
        V, V0 = W[..., None, :, :], dW0[..., None, :, :]
        logits = grid.Z @ V.mT @ dX.mT + (dZ @ V.mT + grid.Z @ V0.mT) @ grid.X.mT + add.reshape(*grid.Z.shape[:-1], -1)
        rest = logits - np.take_along_axis(logits, grid.anchors[..., None], axis=-1)
        sides = rows.pick(rest.reshape(per_token))
        change = self._system.jvp(F[None] if one else F, sides[None] if one else sides)
        return np.asarray((change[0] if one else change) + dW0)
