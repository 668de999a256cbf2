"""The attention SVMs as cvxpy programs, written as the paper writes them, for readers who want to change them.

With the logits ``h_t = x_it^T W z_i`` of a query, and slacks ``xi`` that are 0 unless C is given:

    Att-SVM, SAtt-SVM   ``h_alpha - h_t >= 1 - xi``                    for every allowed token t other than alpha
    Gen-SVM             ``h_t - h_tau >= 1 - xi``, ``h_t = h_t'``      for t, t' in the set O, tau outside of it
    finite part (8)     ``h_t - h_t' = log(s_t / s_t')``               for t, t' in the set O

The objective is the norm of W (of ``W - W0`` with a prior) plus the penalty of the slacks.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt

from attsvm.problem import AttentionProblem, require_single
from attsvm.selection import (
    SelectedSets,
    SelectedSetsLike,
    Selection,
    SelectionLike,
    read_selected_sets,
    read_selection,
)
from attsvm.selection_rows import AttentionRows, finite_part_rows, gen_svm_rows, rows_of_selection
from attsvm.solution import Solution
from attsvm.solvers import ConvergenceWarning, MarginProblem, find_farkas, get_norm
from attsvm.solvers.arrays import FloatArray, IntArray, require_choice
from attsvm.solvers.margin_solution import Extras, MethodResult, conclude, warn_if_inaccurate
from attsvm.solvers.norms import Norm
from attsvm.solvers.penalty import LossKind, SlackKind
from attsvm.solvers.reference import ACHIEVABLE, Stated, at_least, equal_to, in_norm_form, multipliers_of, objective
from attsvm.user_input import positive, real_array

if TYPE_CHECKING:
    import cvxpy

_NOT_CERTIFIED = (
    "W is the solution of another program than model.problem, so nothing is certified; norm, margins and violation "
    "of the rows are measured"
)


class _Query(NamedTuple):
    """One query: its logits, the tokens that it may select, and the slacks of its rows."""

    h: cvxpy.Expression  # (T,)
    allowed: IntArray
    xi: cvxpy.Expression | None  # () for all its rows, or (T,); None for a hard margin

    def slacks(self, tokens: IntArray) -> cvxpy.Expression | None:
        return self.xi if self.xi is None or self.xi.ndim == 0 else self.xi[tokens]


def _att_svm(query: _Query, alpha: int) -> list[Stated]:
    """(Att-SVM), (12): ``(x_{i,alpha} - x_it)^T W z >= 1 - xi`` for every allowed t other than alpha."""
    t = query.allowed[query.allowed != alpha]
    return at_least(query.h[alpha] - query.h[t], np.ones(len(t)), t, query.slacks(t))


def _gen_svm(query: _Query, members: IntArray) -> list[Stated]:
    """(Gen-SVM): equal logits in the set, so that its first token stands for it, and margin 1 against the others."""
    first, t, tau = members[0], members[1:], np.setdiff1d(query.allowed, members)
    inside = equal_to(query.h[first] - query.h[t], np.zeros(len(t)), t, query.slacks(t))
    return inside + at_least(query.h[first] - query.h[tau], np.ones(len(tau)), tau, query.slacks(tau))


def _finite_part(query: _Query, members: IntArray, s: FloatArray) -> list[Stated]:
    """(8): ``(x_it - x_it')^T W z = log(s_t / s_t')`` in the set."""
    first, t = members[0], members[1:]
    return equal_to(query.h[first] - query.h[t], np.log(s[first]) - np.log(s[t]), t, query.slacks(t))


@dataclass(frozen=True, eq=False)
class CvxpyModel:
    """An attention SVM as a cvxpy program.

    Solve ``model.problem``, or state a program of your own with ``model.W``, ``model.slacks``, ``model.logits`` and
    ``model.problem.constraints`` and solve that; then read `solution`.

    Attributes
    ----------
    problem : cvxpy.Problem
        Minimizes half the squared norm for the Frobenius norm (a quadratic program) and the norm otherwise, plus the
        penalty of the slacks where C is given.
    W : cvxpy.Variable, shape (dx, dz)
    slacks : cvxpy.Variable or None
        One per query, shape (n,) or (n, K), or with ``slack="row"`` one per query and token, shape (n*K, T).
    logits : cvxpy.Expression, shape (n*K, T)
        ``x_it^T W z`` plus the offset, of masked tokens as well.
    constraints : mapping
        The constraints of the query (i,) or (i, k), whose labels name it.
    rows : AttentionRows
        The same constraints as rows, as our own solvers take them.

    Examples
    --------
    >>> import attsvm
    >>> import cvxpy as cp
    >>> problem = attsvm.random_problem(n=3, T=4, d=5, seed=0)
    >>> model = attsvm.cvxpy_model(problem, norm="nuclear")
    >>> least = model.problem.solve(solver="CLARABEL")
    >>> model.solution()  # doctest: +ELLIPSIS
    Solution(Att-SVM, nuclear, optimal, margin=0.4329, rank=2, gap=...)

    The least norm of a symmetric W is larger:

    >>> symmetric = cp.Problem(model.problem.objective, [*model.problem.constraints, model.W == model.W.T])
    >>> bool(symmetric.solve(solver="CLARABEL") > least)
    True
    """

    problem: cvxpy.Problem
    W: cvxpy.Variable
    slacks: cvxpy.Variable | None
    logits: cvxpy.Expression
    constraints: Mapping[tuple[int, ...], tuple[cvxpy.Constraint, ...]]
    rows: AttentionRows
    _posed: _Posed = field(repr=False)

    def __repr__(self) -> str:
        kind = "hard" if self.slacks is None else "soft"
        size = f"W {self.W.shape[0]} x {self.W.shape[1]}, {self.rows.margin_problem.m} rows"
        return f"CvxpyModel({self._posed.formulation}, {self._posed.norm.name}, {kind}, {size})"

    def solution(self, *, tolerance: float | None = None) -> Solution:
        """What was found, as the solution of `attsvm.att_svm` and the others: status, margin, support, certificate.

        The certificate is computed from W and from the multipliers that cvxpy returned, or proves that no W satisfies
        the rows. When another program than `problem` gave W its value (it has more constraints, or another objective),
        nothing is certified: the status is "inaccurate" and ``solution.reason`` says so. An answer that is not proved
        is reported by `attsvm.ConvergenceWarning`.

        Parameters
        ----------
        tolerance : float, optional
            What the certificate must reach for the status "optimal"; by default 1e-7 for CLARABEL, 1e-5 for OSQP, 1e-4
            for SCS, which they reach with tight settings, and 1e-7 for others.

        Examples
        --------
        >>> import attsvm
        >>> model = attsvm.cvxpy_model(attsvm.random_problem(n=6, T=8, d=2, seed=0))
        >>> model.problem.solve(solver="CLARABEL")
        inf
        >>> model.solution()
        Solution(Att-SVM, frobenius, infeasible)
        """
        if self.problem.solution is None and self.W.value is None:
            raise ValueError("the model has no solution yet: call model.problem.solve() first")
        stats, name = self.problem.solver_stats, ""
        if own := self._is_own_answer():
            name = str(stats.solver_name) if stats is not None else ""
        accuracy = ACHIEVABLE.get(name, 1e-7) if tolerance is None else positive("tolerance", tolerance)
        result = conclude(
            self._posed.margins,
            self._posed.norm,
            self._found() if own else self._measured(),
            solver=f"cvxpy:{name}" if name else "cvxpy",
            seconds=float((own and stats is not None and stats.solve_time) or 0.0),
            tolerance=accuracy,
        )
        if own:
            warn_if_inaccurate(result)
        else:
            warnings.warn(_NOT_CERTIFIED, ConvergenceWarning, stacklevel=2)
        posed = self._posed
        return Solution(posed.formulation, posed.attention, posed.selection, self.rows, result)

    def _is_own_answer(self) -> bool:
        """Whether W has the value that `problem` gave it: a program that shares W overwrites it."""
        solved = self.problem.solution
        if solved is None:
            return False
        known, value = solved.primal_vars.get(self.W.id), self.W.value
        return known is value is None or (known is not None and value is not None and np.array_equal(known, value))

    def _change(self) -> FloatArray:
        """The value of W, less the prior."""
        value, prior = np.asarray(self.W.value, dtype=np.float64), self._posed.margins.prior
        return value if prior is None else value - prior.W

    def _found(self) -> MethodResult:
        """W and multipliers of `problem`, or a proof that there is no W."""
        margins = self._posed.margins
        if self.W.value is None:
            return MethodResult(farkas=find_farkas(margins) if margins.penalty is None else None)
        grid = multipliers_of(self._posed.stated, self.problem.solution.dual_vars, margins.q * self.rows.T)
        lam = self.rows.pick(grid)
        return MethodResult(
            self._change(), lam if margins.penalty is not None else in_norm_form(self._posed.norm, margins, lam)
        )

    def _measured(self) -> MethodResult:
        """W of another program: multipliers of 0 prove nothing but that norms are not negative."""
        return MethodResult(self._change(), np.zeros(self._posed.margins.m), extras=Extras(note=_NOT_CERTIFIED))


class _Posed(NamedTuple):
    """What a model was built from, and what its certificate is about."""

    formulation: str
    attention: AttentionProblem
    selection: Selection | SelectedSets
    norm: Norm
    margins: MarginProblem
    stated: tuple[Stated, ...]  # rows of token t of query o go to o T + t


def cvxpy_model(
    problem: AttentionProblem,
    selection: SelectionLike | SelectedSetsLike = None,
    *,
    formulation: str = "att",
    norm: str = "frobenius",
    C: float | None = None,
    slack: SlackKind = "query",
    loss: LossKind = "hinge",
    prior: npt.ArrayLike | None = None,
    offset: npt.ArrayLike | None = None,
    causal: bool = False,
    probabilities: npt.ArrayLike | None = None,
    W: cvxpy.Variable | None = None,
) -> CvxpyModel:
    """State an attention SVM as a cvxpy program, to read it, to change it, or to solve it with any solver of cvxpy.

    Parameters
    ----------
    problem : AttentionProblem
        One problem, not a batch.
    selection : Selection, SelectedSets or array_like, optional
        For ``formulation="att"`` one token per query, the optimal tokens by default; for "gen" and "finite" the
        selected sets, as `attsvm.gen_svm` takes them.
    formulation : {"att", "gen", "finite"}
        Att-SVM (SAtt-SVM for several queries per sequence, Att-SVM* in the nuclear norm), Gen-SVM, or the finite part.
    norm : str
        "frobenius", "nuclear", "spectral", "l1", "linf", "l<p>".
    C, slack, loss, prior, offset
        As of `attsvm.att_svm`.
    causal : bool
        Query k may select tokens 0..k only, as in `attsvm.satt_svm`.
    probabilities : array_like, shape (n, T) or (n, K, T)
        For ``formulation="finite"`` only.
    W : cvxpy.Variable, shape (dx, dz), optional
        State the program for this variable: that of another model, or one with attributes (``symmetric=True``).

    Returns
    -------
    CvxpyModel

    Examples
    --------
    >>> import attsvm
    >>> problem = attsvm.random_problem(n=2, T=4, d=6, seed=0)
    >>> model = attsvm.cvxpy_model(problem, [[0, 2], [1]], formulation="gen")
    >>> [constraint.label for constraint in model.constraints[(0,)]]
    ['query (0,), tokens [2]', 'query (0,), tokens [1, 3]']
    >>> value = model.problem.solve(solver="CLARABEL")
    >>> abs(model.solution().norm - attsvm.gen_svm(problem, [[0, 2], [1]]).norm) < 1e-7
    True
    """
    import cvxpy as cp

    require_choice("formulation", formulation, "att", "gen", "finite")
    given = require_single(problem, "cvxpy_model takes one problem at a time")
    if not isinstance(causal, (bool, np.bool_)):
        raise ValueError(f"causal must be True or False, got {causal!r}")
    if (probabilities is not None) != (formulation == "finite"):
        raise ValueError("probabilities go with formulation='finite', which needs them")
    shown = given.with_causal_mask() if causal else given
    name, chosen, rows = _read_rows(shown, selection, formulation, probabilities, offset)
    rows, kind = rows.soft(C, slack, loss), get_norm(norm)
    margins = rows.margin_problem
    if prior is not None:
        margins = margins.around(real_array("prior", prior))
    W = cp.Variable((shown.dx, shown.dz), name="W") if W is None else _read_variable(W, (shown.dx, shown.dz))
    penalty, T, slacks = margins.single_penalty, shown.T, None
    if penalty is not None:
        slacks = cp.Variable(shown.query_shape if slack == "query" else (margins.q, T), nonneg=True, name="slacks")
    logits = _logits(shown, W, offset)
    constraints, stated = {}, []
    for o, allowed in enumerate(shown.allowed.reshape(-1, T)):
        index = rows.query_index(o)
        xi = None if slacks is None else slacks[index if slack == "query" else o]
        parts = _query_constraints(_Query(logits[o], np.flatnonzero(allowed), xi), o, chosen, probabilities)
        for part in parts:
            part.constraint.set_label(f"query {index}, tokens {part.rows.tolist()}")
        constraints[index] = tuple(part.constraint for part in parts)
        stated += [part._replace(rows=part.rows + o * T) for part in parts]
    change = W if margins.prior is None else W - margins.prior.W
    program = cp.Problem(cp.Minimize(objective(change, kind, penalty, slacks)), [part.constraint for part in stated])
    posed = _Posed(name, shown, chosen, kind, margins, tuple(stated))
    return CvxpyModel(program, W, slacks, logits, MappingProxyType(constraints), rows, posed)


def _read_rows(
    problem: AttentionProblem,
    selection: SelectionLike | SelectedSetsLike,
    formulation: str,
    probabilities: npt.ArrayLike | None,
    offset: npt.ArrayLike | None,
) -> tuple[str, Selection | SelectedSets, AttentionRows]:
    """The name of what is stated, its selection, and its rows."""
    if formulation == "att":
        if isinstance(selection, SelectedSets):
            raise ValueError("selection must hold one token per query for formulation='att', got SelectedSets")
        chosen = read_selection(problem, selection)
        return "SAtt-SVM" if problem.multi_query else "Att-SVM", chosen, rows_of_selection(problem, chosen, offset)
    if selection is None:
        raise ValueError(f"selection must hold the selected sets for formulation={formulation!r}")
    sets = read_selected_sets(problem, selection)
    if probabilities is None:
        return "Gen-SVM", sets, gen_svm_rows(problem, sets, offset=offset)
    return "W_fin", sets, finite_part_rows(problem, probabilities, sets, offset=offset)


def _read_variable(W: object, shape: tuple[int, int]) -> cvxpy.Variable:
    import cvxpy as cp

    if not isinstance(W, cp.Variable) or W.shape != shape:
        got = f"shape {W.shape}" if isinstance(W, cp.Variable) else type(W).__name__
        raise ValueError(f"W must be a cvxpy.Variable of shape {shape}, got {got}")
    return W


def _logits(problem: AttentionProblem, W: cvxpy.Variable, offset: npt.ArrayLike | None) -> cvxpy.Expression:
    """``x_it^T W z_ik`` plus the offset, shape (n*K, T)."""
    import cvxpy as cp

    Z = problem.Z.reshape(len(problem.X), problem.K, problem.dz)
    h = cp.vstack([z @ W.T @ x.T for x, z in zip(problem.X, Z, strict=True)])
    if offset is None:
        return h
    added = np.broadcast_to(real_array("offset", offset), (*problem.query_shape, problem.T))
    return h + np.where(problem.allowed, added, 0.0).reshape(h.shape)


def _query_constraints(
    query: _Query, o: int, chosen: Selection | SelectedSets, probabilities: npt.ArrayLike | None
) -> list[Stated]:
    """The constraints of query ``o``, numbered in C order."""
    if isinstance(chosen, Selection):
        return _att_svm(query, int(chosen.indices.reshape(-1)[o]))
    members = np.flatnonzero(chosen.members.reshape(-1, chosen.members.shape[-1])[o])
    if probabilities is None:
        return _gen_svm(query, members)
    s = np.asarray(probabilities, dtype=np.float64).reshape(-1, chosen.members.shape[-1])[o]
    return _finite_part(query, members, s)
