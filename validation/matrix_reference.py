"""Small drawn problems of every kind, and their optimum by arithmetic that shares nothing with the library's rows.

An instance holds the arrays that a user would pass: tokens, queries, mask, selected tokens, offsets, probabilities and
a prior. `constraints_of` writes its constraints out one by one from these arrays, `reference` gives them to cvxpy and
to a linear program that decides feasibility, and `objective` evaluates any W with NumPy.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np

from attsvm.solvers.arrays import BoolArray, FloatArray, IntArray

__all__ = [
    "EXPRESSIONS",
    "KINDS",
    "SIZES",
    "VALUES",
    "Constraints",
    "Instance",
    "Margin",
    "Reference",
    "constraints_of",
    "drawn",
    "model",
    "objective",
    "reference",
]


@dataclass(frozen=True)
class Margin:
    """A hard margin (no loss), or the loss of a soft one and what each of its slacks covers."""

    loss: str = ""
    slack: str = ""

    @property
    def hard(self) -> bool:
        """Whether every constraint must hold."""
        return not self.loss


KINDS = ("att", "gen", "finite", "causal", "offset", "prior")

# (n, T, dx, dz): few, about as many, and many more rows than entries of W.
SIZES = {"few": (6, 8, 10, 9), "equal": (6, 7, 6, 6), "many": (9, 7, 4, 3)}
_CAUSAL_SIZES = {"few": (4, 5, 9, 9), "equal": (3, 5, 5, 5), "many": (5, 5, 3, 3)}  # every token is a query: dx = dz
_PENALTIES = (0.01, 0.1, 1.0, 10.0)

# Norms of a matrix by NumPy, and the same for cvxpy.
VALUES = {
    "frobenius": lambda W: float(np.linalg.norm(W)),
    "nuclear": lambda W: float(np.linalg.svd(W, compute_uv=False).sum()),
    "spectral": lambda W: float(np.linalg.svd(W, compute_uv=False).max()),
    "l1": lambda W: float(np.abs(W).sum()),
    "linf": lambda W: float(np.abs(W).max()),
    "l1.5": lambda W: float((np.abs(W) ** 1.5).sum() ** (1 / 1.5)),
    "l3": lambda W: float((np.abs(W) ** 3.0).sum() ** (1 / 3.0)),
}
EXPRESSIONS = {
    "frobenius": lambda cp, W: cp.sum_squares(W) / 2,
    "nuclear": lambda cp, W: cp.normNuc(W),
    "spectral": lambda cp, W: cp.sigma_max(W),
    "l1": lambda cp, W: cp.norm1(cp.vec(W, order="C")),
    "linf": lambda cp, W: cp.norm_inf(cp.vec(W, order="C")),
    "l1.5": lambda cp, W: cp.pnorm(cp.vec(W, order="C"), 1.5, approx=False),
    "l3": lambda cp, W: cp.pnorm(cp.vec(W, order="C"), 3.0, approx=False),
}


@dataclass(frozen=True, eq=False)
class Instance:
    """One problem as a user would give it.

    Attributes
    ----------
    kind : str
        One of `KINDS`.
    X : ndarray, shape (n, T, dx)
        NaN in the padding.
    Z : ndarray, shape (n, dz), or (n, T, dz) for causal attention
    mask : ndarray of bool, shape (n, T), or None
        True for tokens, False for padding.
    members : ndarray of bool, shape ``query_shape + (T,)``
        The selected tokens of each query.
    C : float
        Of soft margins.
    offset, probabilities : ndarray, shape ``query_shape + (T,)``, or None
    prior : ndarray, shape (dx, dz), or None
    """

    kind: str
    X: FloatArray
    Z: FloatArray
    mask: BoolArray | None
    members: BoolArray
    C: float
    offset: FloatArray | None = None
    probabilities: FloatArray | None = None
    prior: FloatArray | None = None

    @property
    def allowed(self) -> BoolArray:
        """Tokens that each query sees, shape ``query_shape + (T,)``."""
        n, T = self.X.shape[:2]
        if self.kind == "causal":
            return np.broadcast_to(np.tri(T, dtype=bool), (n, T, T))
        return np.ones((n, T), dtype=bool) if self.mask is None else self.mask


@dataclass(frozen=True, eq=False)
class Constraints:
    """``features @ vec(W) >= rhs`` (m,), or ``=`` where ``equality``; ``owner`` is the query of each."""

    features: FloatArray
    rhs: FloatArray
    equality: BoolArray
    owner: IntArray

    def missed(self, W: FloatArray) -> FloatArray:
        """By how much W misses each constraint, shape (m,)."""
        short = self.rhs - self.features @ W.ravel()
        return np.where(self.equality, np.abs(short), np.maximum(short, 0.0))


def drawn(kind: str, size: str | tuple[int, int, int, int], seed: int, *, wrong: bool) -> Instance:
    """An instance whose selected tokens a hidden W scores highest.

    Parameters
    ----------
    kind : str
        One of `KINDS`.
    size : str or tuple of int
        A name in `SIZES`, or (n, T, dx, dz).
    seed : int
    wrong : bool
        Give one query in five another token. Without wrong labels a hard margin exists, except for the probabilities
        of many queries, which are more equations than unknowns.

    Examples
    --------
    >>> from attsvm.validation.matrix_reference import drawn
    >>> drawn("att", "few", 0, wrong=False).X.shape
    (6, 8, 10)
    """
    rng = np.random.default_rng(seed)
    n, T, dx, dz = (_CAUSAL_SIZES if kind == "causal" else SIZES)[size] if isinstance(size, str) else size
    X, W = _unit(rng, (n, T, dx)), rng.standard_normal((dx, dz))
    Z = X if kind == "causal" else _unit(rng, (n, dz))
    mask = _ragged(rng, n, T) if kind in ("att", "gen", "finite") else None
    offset = rng.standard_normal((n, T)) if kind == "offset" else None
    plain = Instance(kind, X, Z, mask, np.zeros((*Z.shape[:-1], T), dtype=bool), 1.0)
    scores = np.einsum("ntd,de,nke->nkt", X, W, Z) if kind == "causal" else np.einsum("ntd,de,ne->nt", X, W, Z)
    scores = np.where(plain.allowed, scores if offset is None else scores + offset, -np.inf)
    chosen = scores.argmax(axis=-1)
    if wrong:
        _mislabel(rng, chosen, plain.allowed)
    members = np.arange(T) == chosen[..., None]
    if kind == "gen":
        X = _tied(rng, X, Z, W, members, plain.allowed, ties=max(1, min(n, dx * dz // 3)))
    if kind == "finite":  # all but one: nearly as many equations as entries of W in the middle size
        members = plain.allowed & ((np.arange(T) - chosen[:, None]) % T < T - 1)
    if mask is not None:
        X = np.where(mask[..., None], X, np.nan)
    return Instance(
        kind, X, Z, mask, members, float(rng.choice(_PENALTIES)), offset,
        rng.uniform(0.05, 1.0, members.shape) if kind == "finite" else None,
        W + rng.standard_normal(W.shape) if kind == "prior" else None,
    )  # fmt: skip


def _unit(rng: np.random.Generator, shape: tuple[int, ...]) -> FloatArray:
    x = rng.standard_normal(shape)
    return np.asarray(x / np.linalg.norm(x, axis=-1, keepdims=True))


def _ragged(rng: np.random.Generator, n: int, T: int) -> BoolArray:
    """Lengths of T and one less, both of them taken."""
    lengths = rng.integers(T - 1, T + 1, n)
    lengths[:2] = T, T - 1
    return np.asarray(np.arange(T) < lengths[:, None])


def _mislabel(rng: np.random.Generator, chosen: IntArray, allowed: BoolArray) -> None:
    """Give every fifth query, and at least one, another of its tokens."""
    able = [query for query in np.ndindex(chosen.shape) if allowed[query].sum() > 1]
    for k in rng.choice(len(able), size=max(1, len(able) // 5), replace=False):
        others = np.flatnonzero(allowed[able[k]])
        chosen[able[k]] = rng.choice(others[others != chosen[able[k]]])


def _tied(
    rng: np.random.Generator, X: FloatArray, Z: FloatArray, W: FloatArray, members: BoolArray, allowed: BoolArray,
    ties: int,
) -> FloatArray:  # fmt: skip
    """Move one more token of some queries to the hidden score of their selected one, and select it too."""
    X = X.copy()
    for i in range(ties):
        first = int(members[i].argmax())
        other = int(rng.choice(np.flatnonzero(allowed[i] & ~members[i])))
        direction = W @ Z[i]
        X[i, other] += ((X[i, first] - X[i, other]) @ direction) / (direction @ direction) * direction
        members[i, other] = True
    return X


def constraints_of(instance: Instance, all_pairs: bool = False) -> Constraints:
    """The constraints of an instance, one by one.

    Parameters
    ----------
    instance : Instance
    all_pairs : bool
        Compare every selected token with every other one, as Gen-SVM is defined. By default the first selected token
        stands for its set: the same in a hard margin, and what a soft margin counts
        (`attsvm.selection_rows.gen_svm_rows`).

    Examples
    --------
    >>> from attsvm.validation.matrix_reference import constraints_of, drawn
    >>> constraints_of(drawn("prior", "few", 0, wrong=False)).features.shape
    (42, 90)
    """
    rows: list[tuple[FloatArray, float, bool, int]] = []
    allowed, shape = instance.allowed, instance.Z.shape[:-1]
    for number, query in enumerate(np.ndindex(shape)):
        tokens, z = instance.X[query[0]], instance.Z[query]
        bias = np.zeros(len(tokens)) if instance.offset is None else instance.offset[query]
        inside = np.flatnonzero(instance.members[query])
        outside = np.flatnonzero(allowed[query] & ~instance.members[query])
        first = inside[0]
        for t in inside[1:]:
            ratio = 0.0
            if instance.probabilities is not None:
                ratio = float(np.log(instance.probabilities[query][first] / instance.probabilities[query][t]))
            rows.append((np.outer(tokens[first] - tokens[t], z), ratio - (bias[first] - bias[t]), True, number))
        if instance.kind == "finite":
            continue
        for leader in inside if all_pairs else inside[:1]:
            for t in outside:
                rows.append((np.outer(tokens[leader] - tokens[t], z), 1.0 - (bias[leader] - bias[t]), False, number))
    features, rhs, equality, owner = zip(*rows, strict=True)
    return Constraints(np.stack([f.ravel() for f in features]), np.array(rhs), np.array(equality), np.array(owner))


def objective(instance: Instance, norm: str, margin: Margin, W: FloatArray) -> float:
    """What a solve minimizes, at any W: the norm of a hard margin, norm (or half its square) plus loss of a soft one.

    Examples
    --------
    >>> import numpy as np
    >>> from attsvm.validation.matrix_reference import Margin, drawn, objective
    >>> instance = drawn("att", "few", 0, wrong=True)
    >>> round(objective(instance, "l1", Margin("hinge", "query"), np.zeros((10, 9))) / instance.C, 9)
    6.0
    """
    change = W if instance.prior is None else W - instance.prior
    size = VALUES[norm](change)
    if margin.hard:
        return size
    constraints = constraints_of(instance)
    slacks = constraints.missed(W)
    if margin.slack == "query":
        slacks = np.array([slacks[constraints.owner == query].max() for query in np.unique(constraints.owner)])
    loss = slacks.sum() if margin.loss == "hinge" else (slacks**2).sum()
    return (size**2 / 2 if norm == "frobenius" else size) + instance.C * float(loss)


@dataclass(frozen=True, eq=False)
class Reference:
    """What was found by other means: whether a W exists, the optimal W, and the objective at that W."""

    feasible: bool
    W: FloatArray | None = None
    value: float = float("inf")


def reference(instance: Instance, norm: str, margin: Margin) -> Reference:
    """The optimum by cvxpy, after a linear program has decided whether a hard margin exists.

    Examples
    --------
    >>> from attsvm.validation.matrix_reference import Margin, drawn, reference
    >>> reference(drawn("finite", "many", 0, wrong=False), "l1", Margin()).feasible
    False
    """
    if margin.hard and _least_violation(constraints_of(instance)) > 1e-6:
        return Reference(False)
    for settings in ({"tol_gap_abs": 1e-10, "tol_gap_rel": 1e-10, "tol_feas": 1e-10}, {}):
        program, W = model(instance, norm, margin, constraints_of(instance))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # "may be inaccurate": the status says so
            program.solve(solver="CLARABEL", **settings)
        if program.status == "optimal":
            break
    if program.status not in ("optimal", "optimal_inaccurate"):
        raise RuntimeError(f"cvxpy ended {program.status} on a problem that has a solution")
    found = np.asarray(W.value, dtype=np.float64)
    return Reference(True, found, objective(instance, norm, margin, found))


def model(instance: Instance, norm: str, margin: Margin, rows: Constraints) -> tuple[Any, Any]:
    """The cvxpy program and its variable W, constraints in one vectorised expression as a user would write them."""
    import cvxpy as cp

    at_least, equal = np.flatnonzero(~rows.equality), np.flatnonzero(rows.equality)
    W = cp.Variable((instance.X.shape[-1], instance.Z.shape[-1]))
    values = rows.features @ cp.vec(W, order="C")
    cost = EXPRESSIONS[norm](cp, W if instance.prior is None else W - instance.prior)
    if margin.hard:
        held = [values[at_least] >= rows.rhs[at_least]] if len(at_least) else []
        held += [values[equal] == rows.rhs[equal]] if len(equal) else []
        return cp.Problem(cp.Minimize(cost), held), W
    each = np.unique(rows.owner, return_inverse=True)[1] if margin.slack == "query" else np.arange(len(rows.rhs))
    slacks = cp.Variable(int(each.max()) + 1, nonneg=True)
    held = [values + slacks[each] >= rows.rhs]
    held += [values[equal] - slacks[each[equal]] <= rows.rhs[equal]] if len(equal) else []
    loss = cp.sum(slacks) if margin.loss == "hinge" else cp.sum_squares(slacks)
    return cp.Problem(cp.Minimize(cost + instance.C * loss), held), W


def _least_violation(rows: Constraints) -> float:
    """The least amount by which some constraint must be missed, by a linear program (0 if a W exists)."""
    from scipy.optimize import linprog

    m, size = rows.features.shape
    lower = np.hstack([-rows.features, -np.ones((m, 1))])
    upper = np.hstack([rows.features, -np.ones((m, 1))])[rows.equality]
    found = linprog(
        np.append(np.zeros(size), 1.0), np.vstack([lower, upper]), np.append(-rows.rhs, rows.rhs[rows.equality]),
        bounds=[(None, None)] * size + [(0, None)],
    )  # fmt: skip
    return float(found.fun)
