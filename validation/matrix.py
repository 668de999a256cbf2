"""Every norm with every margin, kind of problem and size, alone and in a batch, by every solver, against cvxpy.

`combinations` lists them, `sample` takes a few that still meet in all pairs, `check` solves one through the public
functions and compares it with `attsvm.validation.matrix_reference`, `run` does so for a list of them.
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
from attsvm.solvers import SOLVERS, MarginProblem, get_norm
from attsvm.solvers.arrays import FloatArray
from attsvm.validation.matrix_reference import (
    EXPRESSIONS,
    KINDS,
    SIZES,
    Instance,
    Margin,
    Reference,
    constraints_of,
    drawn,
    objective,
    reference,
)

__all__ = [
    "FORMS", "MARGINS", "NORM_NAMES", "Answer", "Combination", "Outcome", "answers", "check", "combinations",
    "faults_of", "instances", "pairs_of", "problem_of", "run", "sample", "solved", "solver_names",
]  # fmt: skip


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
        From `NORM_NAMES`, `MARGINS`, `attsvm.validation.matrix_reference.KINDS` and ``SIZES``, and `FORMS`.
    solver : str
        "auto" or the name of an entry of `attsvm.solvers.SOLVERS`.

    Examples
    --------
    >>> from attsvm.validation.matrix import Combination
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
    >>> from attsvm.validation.matrix import solver_names
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
    >>> from attsvm.validation.matrix import combinations
    >>> len([c for c in combinations() if c.solver == "auto"])
    1260
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
    >>> from attsvm.validation.matrix import sample
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
    >>> from attsvm.validation.matrix import problem_of
    >>> from attsvm.validation.matrix_reference import drawn
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
    >>> from attsvm.validation.matrix import MARGINS, answers
    >>> from attsvm.validation.matrix_reference import drawn
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
    >>> from attsvm.validation.matrix import MARGINS, Answer, faults_of
    >>> from attsvm.validation.matrix_reference import drawn, reference
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
    >>> from attsvm.validation.matrix import Combination, check
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
    >>> from attsvm.validation.matrix import run, sample
    >>> len(run(sample(150)[:2], solver="cvxpy"))
    2
    """
    outcomes = []
    for combination in combinations() if chosen is None else chosen:
        outcomes.append(check(combination, solver))
        if report is not None and outcomes[-1].faults:
            report(f"{combination}: {'; '.join(outcomes[-1].faults)}")
    return outcomes
