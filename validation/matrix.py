"""Small drawn problems of every kind, and their optimum by arithmetic that shares nothing with the library's rows.

An instance holds the arrays that a user would pass: tokens, queries, mask, selected tokens, offsets, probabilities and
a prior. `constraints_of` writes its constraints out one by one from these arrays, `reference` gives them to cvxpy and
to a linear program that decides feasibility, and `objective` evaluates any W with NumPy.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import astuple, dataclass, fields, replace
from functools import lru_cache
from itertools import combinations as subsets
from itertools import product
from typing import Any
from zlib import crc32

import numpy as np

import attsvm
from attsvm.generate import random_points
from attsvm.solvers import NORMS, SOLVERS, MarginProblem, Norm, get_norm
from attsvm.solvers.arrays import BoolArray, FloatArray, IntArray
from attsvm.solvers.reference import is_panic


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

# Norms of a matrix by NumPy, and the same for cvxpy; those of a new norm are its own (below).
VALUES: dict[str, Callable[[FloatArray], float]] = {
    "frobenius": lambda W: float(np.linalg.norm(W)),
    "nuclear": lambda W: float(np.linalg.svd(W, compute_uv=False).sum()),
    "spectral": lambda W: float(np.linalg.svd(W, compute_uv=False).max()),
    "l1": lambda W: float(np.abs(W).sum()),
    "linf": lambda W: float(np.abs(W).max()),
    "l1.5": lambda W: float((np.abs(W) ** 1.5).sum() ** (1 / 1.5)),
    "l3": lambda W: float((np.abs(W) ** 3.0).sum() ** (1 / 3.0)),
}
EXPRESSIONS: dict[str, Callable[[Any, Any], Any]] = {
    "frobenius": lambda cp, W: cp.sum_squares(W) / 2,
    "nuclear": lambda cp, W: cp.normNuc(W),
    "spectral": lambda cp, W: cp.sigma_max(W),
    "l1": lambda cp, W: cp.norm1(cp.vec(W, order="C")),
    "linf": lambda cp, W: cp.norm_inf(cp.vec(W, order="C")),
    "l1.5": lambda cp, W: cp.pnorm(cp.vec(W, order="C"), 1.5, approx=False),
    "l3": lambda cp, W: cp.pnorm(cp.vec(W, order="C"), 3.0, approx=False),
}


def _enter(name: str, norm: Norm) -> None:
    """A norm that is not written out: where its value, dual and expression disagree, no certificate closes."""
    VALUES[name], EXPRESSIONS[name] = norm, lambda cp, W: norm.expression(W)


for _name, _norm in NORMS.items():
    if _name not in VALUES:
        _enter(_name, _norm)


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
    >>> drawn("att", "few", 0, wrong=False).X.shape
    (6, 8, 10)
    """
    rng = np.random.default_rng(seed)
    n, T, dx, dz = (_CAUSAL_SIZES if kind == "causal" else SIZES)[size] if isinstance(size, str) else size
    X, W = random_points(rng, (n, T, dx)), rng.standard_normal((dx, dz))
    Z = X if kind == "causal" else random_points(rng, (n, dz))
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
    >>> reference(drawn("finite", "many", 0, wrong=False), "l1", Margin()).feasible
    False
    """
    import cvxpy as cp

    if margin.hard and _least_violation(constraints_of(instance)) > 1e-6:
        return Reference(False)
    for settings in ({"tol_gap_abs": 1e-10, "tol_gap_rel": 1e-10, "tol_feas": 1e-10}, {}, {"use_quad_obj": False}):
        program, W = model(instance, norm, margin, constraints_of(instance))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # "may be inaccurate": the status says so
            try:
                program.solve(solver="CLARABEL", **settings)
            except BaseException as error:  # tight settings that no step reaches
                if not (isinstance(error, cp.SolverError) or is_panic(error)):
                    raise
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


NORM_NAMES = tuple(EXPRESSIONS)
MARGINS = {
    "hard": Margin(),
    "hinge-query": Margin("hinge", "query"),
    "hinge-row": Margin("hinge", "row"),
    "squared-query": Margin("squared_hinge", "query"),
    "squared-row": Margin("squared_hinge", "row"),
}
FORMS = ("one", "batch")
_BATCH = 3

# Relative difference of objectives, and amount by which a constraint of right-hand side 1 may be missed: certificates
# close to 1e-7, the reference to about as much.
_AGREES = 1e-6
# Objectives below this are compared in absolute terms: nothing is relative next to 0.
_SMALL = 1e-3


@dataclass(frozen=True)
class Combination:
    """One cell of the matrix.

    Attributes
    ----------
    norm, margin, kind, size, form : str
        From `NORM_NAMES`, `MARGINS`, `attsvm.validation.matrix.KINDS` and ``SIZES``, and `FORMS`.
    solver : str
        "auto" or the name of an entry of `attsvm.solvers.SOLVERS`.

    Examples
    --------
    >>> str(Combination("l1", "hard", "att", "few", "one"))
    'l1, hard, att, few, one, auto'
    """

    norm: str
    margin: str
    kind: str
    size: str
    form: str
    solver: str = "auto"

    def __str__(self) -> str:
        return ", ".join(astuple(self))

    @property
    def seed(self) -> int:
        """Of its problems: the same for every solver, and whatever else is in the list."""
        return crc32("/".join(astuple(self)[:-1]).encode())


@dataclass(frozen=True, eq=False)
class Answer:
    """What the library said about one instance: its status, W unless there is none, whether a proof came with it."""

    status: str
    W: FloatArray | None
    proved: bool


@dataclass(frozen=True)
class Outcome:
    """What `check` found.

    Attributes
    ----------
    combination : Combination
    excess : float
        Largest relative difference of our objective from the reference.
    faults : tuple of str
        Empty when all is as it should be.
    """

    combination: Combination
    excess: float
    faults: tuple[str, ...]


def solver_names(norm: str, margin: str) -> list[str]:
    """The library's own solvers that take this norm and margin, by their entries in `attsvm.solvers.SOLVERS`.

    Solvers for a limited rank are not among them: their problem is another one.

    Examples
    --------
    >>> "active_set" in solver_names("frobenius", "hard")
    True
    """
    one = MarginProblem([[1.0]], [[1.0]], [0])
    chosen = MARGINS[margin]
    problem = one if chosen.hard else one.soft(1.0, chosen.slack, chosen.loss)
    return [name for name, spec in SOLVERS.items() if not spec.foreign and spec.can(get_norm(norm), problem=problem)]


def combinations() -> list[Combination]:
    """All of them; those of one problem follow each other, so that they share one reference.

    Examples
    --------
    >>> len([c for c in combinations() if c.solver == "auto"]) // len(NORM_NAMES)
    180
    """
    return [
        Combination(norm, margin, kind, size, form, solver)
        for norm, margin, kind, size, form in product(NORM_NAMES, MARGINS, KINDS, SIZES, FORMS)
        for solver in ("auto", *solver_names(norm, margin))
    ]


def sample(count: int, seed: int = 0) -> list[Combination]:
    """Every norm, margin and size by "auto", every two values of different axes that can meet, more up to ``count``.

    Parameters
    ----------
    count : int
        More are returned if the pairs need more.
    seed : int

    Examples
    --------
    >>> sample(150) == sample(150)
    True
    """
    pool = combinations()
    order = [pool[k] for k in np.random.default_rng(seed).permutation(len(pool))]
    # Users meet the default solver, and its method depends on these three.
    cells = {(c.norm, c.margin, c.size): c for c in order if c.solver == "auto"}
    taken = list(cells.values())
    met = {pair for combination in taken for pair in pairs_of(combination)}
    for fewest in (4, 3, 2, 1):  # first those that bring most new pairs
        for candidate in order:
            new = pairs_of(candidate) - met
            if len(new) >= fewest:
                taken.append(candidate)
                met |= new
    rest = [candidate for candidate in order if candidate not in set(taken)]
    return taken + rest[: max(0, count - len(taken))]


def pairs_of(combination: Combination) -> set[tuple[str, str, str, str]]:
    """Values of two axes that meet in a combination, with the names of the axes."""
    named = [(field.name, getattr(combination, field.name)) for field in fields(Combination)]
    return {(*a, *b) for a, b in subsets(named, 2)}


@lru_cache(maxsize=2)
def instances(norm: str, margin: str, kind: str, size: str, form: str) -> tuple[Instance, ...]:
    """The problems of a combination, whichever solver it names."""
    seed = Combination(norm, margin, kind, size, form).seed
    count = _BATCH if form == "batch" else 1
    soft = not MARGINS[margin].hard
    # Every third hard margin has wrong labels, too, and may be infeasible.
    found = [drawn(kind, size, seed + k, wrong=soft or (seed + k) % 3 == 0) for k in range(count)]
    return tuple(replace(one, C=found[0].C) for one in found)  # a batch has one C


@lru_cache(maxsize=2)
def references(norm: str, margin: str, kind: str, size: str, form: str) -> tuple[Reference, ...]:
    """Their optima."""
    return tuple(reference(one, norm, MARGINS[margin]) for one in instances(norm, margin, kind, size, form))


def problem_of(given: Sequence[Instance], form: str) -> attsvm.AttentionProblem:
    """The instances as one problem or as a batch.

    Examples
    --------
    >>> problem_of([drawn("att", "few", seed, wrong=False) for seed in range(3)], "batch")
    AttentionProblem(batch=3, n=6, T=8, dx=10, dz=9, no head, masked)
    """
    X, Z, mask = (_joined(given, name, form) for name in ("X", "Z", "mask"))
    return attsvm.AttentionProblem(X, Z=Z, mask=mask)


def _joined(given: Sequence[Instance], name: str, form: str) -> Any:
    """An array of the instances as the public functions take it."""
    if getattr(given[0], name) is None:
        return None
    return np.stack([getattr(one, name) for one in given]) if form == "batch" else getattr(given[0], name)


def solved(
    problem: attsvm.AttentionProblem, given: Sequence[Instance], norm: str, margin: Margin, form: str, solver: str
) -> Any:
    """The solution or batch of solutions by the public function that a user would call for this kind of problem."""
    members, kind = _joined(given, "members", form), given[0].kind
    options: dict[str, Any] = {"norm": norm, "solver": solver}
    if not margin.hard:
        options |= {"C": given[0].C, "slack": margin.slack, "loss": margin.loss}
    if kind in ("offset", "prior"):
        options[kind] = _joined(given, kind, form)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # of answers that are not proved: the status says so
        if kind == "gen":
            return attsvm.gen_svm(problem, members, **options)
        if kind == "finite":
            return attsvm.finite_part(problem, _joined(given, "probabilities", form), members, **options)
        if kind == "causal":
            return attsvm.satt_svm(problem, members.argmax(axis=-1), causal=True, **options)
        return attsvm.att_svm(problem, members.argmax(axis=-1), **options)


def answers(given: Sequence[Instance], norm: str, margin: Margin, form: str, solver: str = "auto") -> list[Answer]:
    """What the library says about each instance, solved alone or in a batch.

    Examples
    --------
    >>> answers([drawn("att", "few", 1, wrong=False)], "frobenius", MARGINS["hard"], "one")[0].status
    'optimal'
    """
    found = solved(problem_of(given, form), given, norm, margin, form, solver)
    each = [found[k] for k in range(len(given))] if form == "batch" else [found]
    return [
        Answer(str(one.status), one.W if one.status.has_solution else None, one.certificate.farkas is not None)
        for one in each
    ]


def faults_of(instance: Instance, norm: str, margin: Margin, answer: Answer, known: Reference) -> tuple[float, str]:
    """The relative difference of our objective from the reference (0 without one), and what is wrong, or nothing.

    Examples
    --------
    >>> instance = drawn("att", "few", 1, wrong=False)
    >>> known = reference(instance, "l1", MARGINS["hard"])
    >>> faults_of(instance, "l1", MARGINS["hard"], Answer("optimal", 0.5 * known.W, False), known)[1]
    'W misses a constraint by 0.5'
    """
    if answer.status == "infeasible":
        if known.feasible:
            return 0.0, "called infeasible, but a W exists"
        return 0.0, "" if answer.proved else "called infeasible without a proof"
    if answer.status != "optimal":
        return 0.0, f"status {answer.status}"
    if not known.feasible:
        return 0.0, "called optimal, but no W exists"
    if answer.W is None or not np.isfinite(answer.W).all():
        return 0.0, "called optimal without a finite W"
    excess = (objective(instance, norm, margin, answer.W) - known.value) / max(known.value, _SMALL)
    if margin.hard:
        rows = constraints_of(instance, all_pairs=True)
        missed = float((rows.missed(answer.W) / np.maximum(1.0, np.abs(rows.rhs))).max())
        if missed > _AGREES:
            return excess, f"W misses a constraint by {missed:.2g}"
    return excess, f"the objective differs from cvxpy's by {excess:.2e} of it" if abs(excess) > _AGREES else ""


def check(combination: Combination, solver: str | None = None) -> Outcome:
    """Solve a combination and compare every answer with the reference.

    Parameters
    ----------
    combination : Combination
    solver : str, optional
        Another solver than its own, such as "cvxpy" to try the comparison itself.

    Examples
    --------
    >>> check(Combination("frobenius", "hard", "att", "few", "one")).faults
    ()
    """
    key = astuple(combination)[:-1]
    given, margin = instances(*key), MARGINS[combination.margin]
    try:
        found = answers(given, combination.norm, margin, combination.form, solver or combination.solver)
    except Exception as error:  # a solver that raises is one fault, and the others are still of interest
        return Outcome(combination, 0.0, (f"{type(error).__name__}: {error}",))
    judged = [
        faults_of(one, combination.norm, margin, answer, known)
        for one, answer, known in zip(given, found, references(*key), strict=True)
    ]
    faults = tuple(f"problem {k}: {fault}" for k, (_, fault) in enumerate(judged) if fault)
    return Outcome(combination, max((abs(e) for e, _ in judged), default=0.0), faults)


def run(
    chosen: Iterable[Combination] | None = None,
    solver: str | None = None,
    report: Callable[[str], None] | None = None,
) -> list[Outcome]:
    """`check` of many combinations, of all by default; ``report`` is given a line per faulty one.

    Examples
    --------
    >>> len(run(sample(150)[:2], solver="cvxpy"))
    2
    """
    outcomes = []
    for combination in combinations() if chosen is None else chosen:
        outcomes.append(check(combination, solver))
        if report is not None and outcomes[-1].faults:
            report(f"{combination}: {'; '.join(outcomes[-1].faults)}")
    return outcomes
