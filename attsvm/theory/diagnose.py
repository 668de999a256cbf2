"""Which assumptions of the theory hold for a problem, which theorems follow, and what they predict."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from attsvm._checks import generator
from attsvm.losses import Loss, get_loss
from attsvm.problem import AttentionProblem, require_problem
from attsvm.records import html_table, plain
from attsvm.selection import Selection, SelectionLike, read_selection
from attsvm.theory.assumptions import (
    check_equal_scores,
    check_feasible,
    check_first_step,
    check_local,
    check_size,
    check_support_sets,
    check_unique,
    solve_selection,
)
from attsvm.theory.check import Check, verdict_of
from attsvm.theory.loss_check import check_loss, prediction_range
from attsvm.theory.mixtures import check_head
from attsvm.theory.prediction import judge_theorems, predict
from attsvm.theory.support_assumptions import check_all_support, check_optimal_support

__all__ = ["Diagnosis", "diagnose"]


@dataclass(frozen=True, eq=False, repr=False)
class Diagnosis:
    """What the theory says about a problem; ``print`` shows it as tables.

    Attributes
    ----------
    problem : AttentionProblem
    selection : Selection
        The selection that local statements are about.
    norm : str
    checks : tuple of Check
        Assumptions and other hypotheses.
    theorems : tuple of Check
        Theorems 2, 3, 4, 5, 7 and the conjecture of section 5.2, by their corrected hypotheses.
    prediction : dict of str to str
        What gradient descent on "W" and on "KQ" is predicted to do, in plain words.

    Examples
    --------
    >>> import attsvm
    >>> from attsvm.theory import diagnose
    >>> diagnosis = diagnose(attsvm.random_problem(n=2, T=3, d=40, seed=0))
    >>> diagnosis.applies
    ('Theorem 2', 'Theorem 3', 'Theorem 4', 'Theorem 5', 'Theorem 7', 'Conjecture 5.2')
    >>> diagnosis["B.1"].verdict
    'holds'
    """

    problem: AttentionProblem
    selection: Selection
    norm: str
    checks: tuple[Check, ...]
    theorems: tuple[Check, ...]
    prediction: dict[str, str]

    @cached_property
    def _by_name(self) -> dict[str, Check]:
        return {check.name: check for check in (*self.checks, *self.theorems)}

    def __getitem__(self, name: str) -> Check:
        if name not in self._by_name:
            raise KeyError(f"no check is named {name!r}; there are {', '.join(self._by_name)}")
        return self._by_name[name]

    @property
    def applies(self) -> tuple[str, ...]:
        """Names of the theorems whose hypotheses all hold."""
        return tuple(theorem.name for theorem in self.theorems if theorem)

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return {
            "selection": plain(self.selection.indices),
            "norm": self.norm,
            "checks": [check.to_dict() for check in self.checks],
            "theorems": [theorem.to_dict() for theorem in self.theorems],
            "applies": list(self.applies),
            "prediction": dict(self.prediction),
        }

    def __repr__(self) -> str:
        counts = Counter(check.verdict for check in self.checks)
        verdicts = ", ".join(f"{count} {verdict}" for verdict, count in counts.most_common())
        return f"Diagnosis({self.norm}, assumptions: {verdicts}; applies: {', '.join(self.applies) or 'no theorem'})"

    def _repr_html_(self) -> str:
        judged = {check.name: f"{check.verdict}: {check.detail}" for check in (*self.checks, *self.theorems)}
        title = f"Diagnosis, {self.norm} norm; applies: {', '.join(self.applies) or 'no theorem'}"
        return html_table(title, judged | {f"prediction for {name}": text for name, text in self.prediction.items()})

    def __str__(self) -> str:
        from attsvm.theory.tables import diagnosis_text

        return diagnosis_text(self)


def _check_linear(problem: AttentionProblem) -> Check:
    assert problem.head is not None
    linear = problem.head.is_linear
    text = "h(x) = v . x" if linear else f"{problem.head.name}: Theorems 3 to 5 are stated for linear heads"
    return Check("linear head", verdict_of(linear), {}, text)


def diagnose(
    problem: AttentionProblem,
    selection: SelectionLike = None,
    *,
    loss: str | Loss = "logistic",
    norm: str = "frobenius",
    exact_limit: int = 20_000,
    seed: int = 0,
) -> Diagnosis:
    """Check the assumptions of the theory on a problem and say which theorems apply.

    Hypotheses are the corrected ones: A with ``l' < 0``, feasibility in Theorem 3, unique optimal tokens in
    Theorem 4, non-empty support sets in Theorem 7. K queries of a sequence count as K sequences, which is what they
    are in the loss.

    Parameters
    ----------
    problem : AttentionProblem
        A single problem. Without a prediction head (a trained layer has no labels) only what needs no scores is
        checked: whether the selection can be separated and which tokens support it.
    selection : Selection or array_like of int, optional
        What local statements (Theorems 5 and 7) are about; the optimal tokens by default.
    loss : str or Loss
    norm : {"frobenius", "nuclear"}
        Whose support tokens decide local optimality and D: "frobenius" for W, "nuclear" for (K, Q). B.1 is about W.
    exact_limit : int
        Most selections that are solved to decide D; beyond, a sufficient condition and a search for a
        counterexample.
    seed : int
        For sampled mixtures (heads that are not of the library) and sampled selections.

    Returns
    -------
    Diagnosis

    Examples
    --------
    >>> import attsvm
    >>> from attsvm.theory import diagnose
    >>> diagnosis = diagnose(attsvm.random_problem(n=3, T=4, d=5, seed=0))
    >>> diagnosis.applies
    ('Theorem 2', 'Theorem 5', 'Theorem 7')
    >>> diagnosis["D"].verdict, diagnosis["B.1"].verdict
    ('fails', 'fails')
    """
    generator(seed)  # said here, whether or not a check draws from it
    if require_problem(problem).batch is not None:
        raise ValueError("diagnose takes one problem; index the batch first, e.g. problem[0]")
    if norm not in ("frobenius", "nuclear"):
        raise ValueError(f"norm must be 'frobenius' (for W) or 'nuclear' (for (K, Q)), got {norm!r}")
    if exact_limit < 0:
        raise ValueError(f"exact_limit must be >= 0, got {exact_limit}")
    rule = get_loss(loss)
    if problem.head is None:
        return _without_labels(problem, selection, norm)
    optimal = problem.optimal_tokens()
    chosen = read_selection(problem, selection)
    is_optimal = chosen == optimal
    best = solve_selection(problem, optimal, "frobenius")
    own = best if is_optimal and norm == "frobenius" else solve_selection(problem, chosen, norm)
    low, high, _ = prediction_range(problem, seed)
    checks = [
        check_loss(rule, low, high),
        _check_linear(problem),
        check_unique(problem),
        check_feasible(best),
        check_size(problem),
        *check_all_support(best),
        check_equal_scores(problem, optimal),
        check_first_step(problem, optimal, rule),
        check_optimal_support(problem, optimal, norm, exact_limit, seed),
        check_head(problem, chosen, seed=seed),
        check_local(problem, chosen, own),
        check_support_sets(problem, chosen, own),
    ]
    if own is not best:
        checks.insert(4, check_feasible(own, "selection feasible"))
    if not is_optimal:
        checks.append(check_head(problem, optimal, "E, optimal tokens", seed))
    named = {check.name: check for check in checks}
    theorems = judge_theorems(named, norm)
    return Diagnosis(problem, chosen, norm, tuple(checks), theorems, predict(named, theorems, is_optimal, norm))


def _without_labels(problem: AttentionProblem, selection: SelectionLike, norm: str) -> Diagnosis:
    """What can be said of a selection when nothing scores the tokens."""
    if selection is None:
        raise ValueError(
            "selection is missing: the problem has no prediction head, so nothing says which tokens are optimal; give "
            "the tokens that a trained head selects, attsvm.attention.likeliest(problem, head.W)"
        )
    chosen = read_selection(problem, selection)
    own = solve_selection(problem, chosen, norm)
    frobenius = own if norm == "frobenius" else solve_selection(problem, chosen, "frobenius")
    checks = (check_feasible(own), check_size(problem), *check_all_support(frobenius))
    words = (
        "Without labels and a prediction head nothing says where training goes. If this selection is the one that "
        "training prefers, W (trained to saturation) turns towards its "
    )
    return Diagnosis(
        problem, chosen, norm, checks, (), {"W": f"{words}Att-SVM solution.", "KQ": f"{words}Att-SVM* solution."}
    )
