"""From hypotheses to theorems to what gradient descent is predicted to do.

Diagnoses and tallies as plain text.

Which assumptions of the theory hold for a problem, which theorems follow, and what they predict.
"""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from attsvm.losses import Loss, get_loss
from attsvm.problem import AttentionProblem, require_single
from attsvm.records import Table, html_table, plain, render
from attsvm.selection import Selection, SelectionLike, read_selection
from attsvm.theory.assumptions import (
    Check,
    Verdict,
    all_of,
    check_equal_scores,
    check_feasible,
    check_first_step,
    check_head,
    check_local,
    check_loss,
    check_size,
    check_support_sets,
    check_unique,
    prediction_range,
    solve_selection,
    verdict_of,
)
from attsvm.theory.support_assumptions import check_all_support, check_optimal_support
from attsvm.user_input import generator, require_flag, require_number

if TYPE_CHECKING:
    from attsvm.theory.assumptions import Check
    from attsvm.theory.attraction import Attraction

# Hypotheses, corrected, and conclusion of each statement. Queries count as sequences: K queries of one sequence enter
# the loss like K sequences with the same tokens.
_STATEMENTS: dict[str, tuple[tuple[str, ...], str]] = {
    "Theorem 2": (
        ("A", "head", "unique optimal tokens", "feasible"),
        "the regularization path of W converges to Att-SVM of the optimal tokens, that of (K, Q) to Att-SVM*",
    ),
    "Theorem 3": (
        ("A", "linear head", "unique optimal tokens", "B", "feasible"),
        "no stationary point; |W| diverges from any start with steps up to 1 / L_W",
    ),
    "Theorem 4": (
        ("A", "linear head", "unique optimal tokens", "C"),
        "from W = 0 and a long first step, descent in the cone converges to Att-SVM of the optimal tokens",
    ),
    "Theorem 5": (
        ("A", "linear head", "locally optimal"),
        "started far out in a narrow cone around Att-SVM of the selection, descent converges to it",
    ),
    "Theorem 7": (
        ("A", "head E", "locally optimal", "support sets"),
        "the regularization path inside the separating cone converges to the SVM of the selection",
    ),
    "Conjecture 5.2": (
        ("A", "linear head", "unique optimal tokens", "B.1", "D"),
        "descent on W converges to Att-SVM of the optimal tokens from almost any start (open; no counterexample known)",
    ),
}

_APPLIES: dict[Verdict, Verdict] = {"holds": "applies", "fails": "does not apply"}


def _either(name: str, checks: list[Check]) -> Check:
    if any(check for check in checks):
        return Check(name, "holds")
    verdict: Verdict = "unknown" if any(check.verdict == "unknown" for check in checks) else "fails"
    return Check(name, verdict)


def judge_theorems(checks: Mapping[str, Check], norm: str) -> tuple[Check, ...]:
    """Which statements apply, by their corrected hypotheses.

    Parameters
    ----------
    checks : mapping of str to Check
        From `diagnose`, by name.
    norm : str
        Theorems 3 to 5 and the conjecture are about W, so about Frobenius supports.
    """
    optimal_E = checks.get("E, optimal tokens", checks["E"])
    known = dict(checks) | {
        "B": _either("B.1 or B.2", [checks["B.1"], checks["B.2"]]),
        "head": _either("linear head or E", [checks["linear head"], optimal_E]),
        "head E": _either("linear head or E", [checks["linear head"], checks["E"]]),
    }
    found = []
    for name, (needs, says) in _STATEMENTS.items():
        if norm != "frobenius" and name in ("Theorem 5", "Conjecture 5.2"):
            text = "about descent on W, so about Frobenius supports; see norm='frobenius'"
            found.append(Check(name, "does not apply", {}, text))
            continue
        hypotheses = [known[need] for need in needs]
        verdict = all_of(hypotheses)
        by = {check.name: check.verdict for check in hypotheses}
        missing = [f"{check.name} ({check.verdict})" for check in hypotheses if not check]
        text = f"missing: {', '.join(missing)}" if missing else says
        found.append(Check(name, _APPLIES.get(verdict, verdict), by, text))
    return tuple(found)


def why_uncovered(problem: AttentionProblem, selection: Selection, seed: int = 0) -> str:
    """Why no theorem says where training with this head goes; empty where one does.

    The theorems are about linear heads, or about heads for which mixtures of tokens cost score (Assumption E).

    Examples
    --------
    >>> import attsvm
    >>> problem = attsvm.random_problem(n=2, T=3, d=4, seed=0)
    >>> why_uncovered(problem, problem.optimal_tokens())
    ''
    """
    if problem.head is None or problem.head.is_linear:
        return ""
    mixtures = check_head(problem, selection, seed=seed)
    return "" if mixtures else _uncovered(problem.head.name, mixtures)


def _uncovered(head: str, mixtures: Check) -> str:
    known = "fails" if mixtures.verdict == "fails" else "is not known to hold"
    return f"{head} is not linear, and Assumption E {known} for these tokens"


def predict(checks: Mapping[str, Check], theorems: tuple[Check, ...], is_optimal: bool, norm: str) -> dict[str, str]:
    """What descent on W and on (K, Q) is predicted to do, in words with the numbers behind them."""
    applies = {theorem.name for theorem in theorems if theorem}
    return {"W": " ".join(_predict_W(checks, applies, is_optimal, norm)), "KQ": " ".join(_predict_KQ(checks, applies))}


def _predict_W(checks: Mapping[str, Check], applies: set[str], is_optimal: bool, norm: str) -> list[str]:
    if not checks["A"]:
        return [_NO_LOSS]
    if not checks["linear head"]:
        return _without_linear_head(checks, applies)
    return _about_optimal_tokens(checks, applies, norm) + _about_selection(checks, applies, is_optimal, norm)


_NO_LOSS = "Nothing is predicted: the loss does not satisfy Assumption A with l' < 0, so no theorem applies."


def _without_linear_head(checks: Mapping[str, Check], applies: set[str]) -> list[str]:
    """Theorems 3 to 5 and the conjecture do not apply; those about paths may."""
    head = str(checks["linear head"].detail).partition(":")[0]
    out = [f"Nothing is predicted for descent: Theorems 3, 4 and 5 do not apply, as {head} is not linear."]
    if "Theorem 2" in applies:
        out.append("The regularization path converges in direction to Att-SVM of the optimal tokens (Theorem 2).")
    if "Theorem 7" in applies:
        out.append("Within the separating cone, it converges to Att-SVM of the selection (Theorem 7).")
    if not applies & {"Theorem 2", "Theorem 7"}:
        out.append("Theorems 2 and 7 do not apply either.")
    local = checks["D"].values.get("locally optimal")
    if local:
        out.append(f"Selections that are locally optimal: {local}; no theorem says that W converges to one of them.")
    return out


def _about_optimal_tokens(checks: Mapping[str, Check], applies: set[str], norm: str) -> list[str]:
    out = []
    feasible = checks["feasible"]
    margin = f"margin {feasible.values['margin']:.4g}" if feasible else ""
    if feasible.verdict == "fails":
        out.append("The optimal tokens are infeasible, so theory says nothing about them and W may stay finite.")
    elif not checks["unique optimal tokens"]:
        out.append(
            "Optimal tokens are tied: descent may approach a mixture of them, in a direction that solves no SVM."
        )
    if "Conjecture 5.2" in applies:
        out.append(
            f"From any start |W| diverges (Theorem 3), and the optimal tokens are the only locally optimal selection "
            f"(D), so W is predicted to converge in direction to their Att-SVM ({margin}; Conjecture 5.2)."
        )
    elif "Theorem 3" in applies:
        by = " and ".join(name for name in ("B.1", "B.2") if checks[name])
        out.append(f"From any start |W| diverges: there is no stationary point (Theorem 3 by {by}).")
    else:
        out.append("Divergence of |W| from every start is not guaranteed (Theorem 3 does not apply).")
    local = checks["D"].values.get("locally optimal")
    if "Conjecture 5.2" not in applies and local is not None:
        if local == 0:
            out.append("No selection is locally optimal, so no direction is proved.")
        elif local == 1 and checks["unique optimal tokens"] and feasible:
            out.append("Only the optimal tokens are locally optimal, so theirs is the only proved direction.")
        else:
            where = "started near one of them, W converges to it (Theorem 5)"
            if norm != "frobenius":
                where = "no theorem says that (K, Q) converges to one of them"
            out.append(f"Selections that are locally optimal: {local}; {where}.")
    if "Theorem 4" in applies:
        out.append(
            f"From W = 0 with a long first step W converges to Att-SVM of the optimal tokens ({margin}) if all "
            f"iterates keep the separating margin mu < {checks['C'].values['mu']:.3g} (Theorem 4)."
        )
    return out


def _about_selection(checks: Mapping[str, Check], applies: set[str], is_optimal: bool, norm: str) -> list[str]:
    out = []
    own = checks.get("selection feasible", checks["feasible"])
    if "Theorem 5" in applies:
        what = "the optimal tokens" if is_optimal else "this selection"
        out.append(
            f"Local: started far enough in a narrow cone around Att-SVM of {what} (margin {own.values['margin']:.4g}), "
            "W converges to that direction (Theorem 5)."
        )
        if checks["support sets"].values.get("empty"):
            out.append("Some support sets are empty, a case that the proof leaves out and experiments confirm.")
    elif not is_optimal and norm == "frobenius" and checks["locally optimal"].verdict == "fails":
        out.append(f"W is not predicted to keep this selection: {checks['locally optimal'].detail}.")
    return out


def _predict_KQ(checks: Mapping[str, Check], applies: set[str]) -> list[str]:
    if not checks["A"]:
        return [_NO_LOSS]
    if "Theorem 2" not in applies:
        return ["Nothing is predicted: Theorem 2 does not apply, and descent on (K, Q) has no theorem of its own."]
    return [
        "Descent on (K, Q) has no theorem of its own. Its regularization path converges to Att-SVM* (nuclear norm) of "
        "the optimal tokens when the inner dimension m reaches the rank of a solution, m >= min(queries, dx, dz) at "
        "the latest (Theorem 2); descent follows it in experiments, where locally optimal selections are those of the "
        "nuclear norm.",
    ]


_WIDTH = 118


def _check_table(title: str, first: str, checks: tuple[Check, ...]) -> Table:
    rows = [(check.name, check.verdict, check.detail) for check in checks]
    return Table(title, (first, "verdict", "because"), rows, align="LLl")


def _short(indices: object) -> str:
    return str(np.asarray(indices).tolist()).replace(" ", "")


def diagnosis_tables(diagnosis: Diagnosis) -> tuple[Table, ...]:
    """Assumptions, and theorems where there are labels to state them for."""
    p = diagnosis.problem
    size = f"n={p.n}, T={p.T}, dx={p.dx}, dz={p.dz}" + (f", K={p.K}" if p.multi_query else "")
    chosen = _short(diagnosis.selection.indices)
    where = chosen if len(chosen) <= 40 else "given"
    title = f"Assumptions ({size}, {diagnosis.norm} norm, selection {where})"
    return (
        _check_table(title, "assumption", diagnosis.checks),
        *(
            [_check_table("Theorems, with corrected hypotheses", "statement", diagnosis.theorems)]
            if diagnosis.theorems
            else []
        ),
    )


def diagnosis_text(diagnosis: Diagnosis) -> str:
    """Two tables, assumptions and theorems, and the prediction."""
    parts = [
        *(render(table, _WIDTH) for table in diagnosis_tables(diagnosis)),
        *(
            textwrap.fill(f"{name}: {text}", _WIDTH, subsequent_indent="  ")
            for name, text in diagnosis.prediction.items()
        ),
    ]
    return "\n".join(line.rstrip() for line in "\n".join(parts).splitlines())


def _rank_correlation(value: float) -> str:
    return "" if np.isnan(value) else f"; Spearman correlation of starts with margin {value:.2f}"


def attraction_text(found: Attraction, most: int = 20) -> str:
    """The most frequent selections, exceptions, and the rank correlation with the margin."""
    run = found.run
    title = f"{found.starts} starts, {run.parameterization}, {run.options.steps} steps, {found.norm} supports"
    rows = [
        (
            _short(row.selection.indices),
            row.count,
            f"{100 * row.share:.1f} % ({100 * row.interval[0]:.1f}-{100 * row.interval[1]:.1f})",
            f"{row.margin:.4g}" if row.feasible else "infeasible",
            f"{row.score:.4g}",
            row.kind,
            row.unsaturated,
        )
        for row in found.rows[:most]
    ]
    columns = ("selection", "starts", "share (95 %)", "margin", "mean score", "kind", "unsaturated")
    lines = [str(Table(title, columns, rows, align="lrLrrLr"))]
    if len(found.rows) > most:
        lines.append(f"and {len(found.rows) - most} more selections")
    kinds = ", ".join(f"{kind} {count}" for kind, count in found.counts.items())
    lines.append(f"ends: {kinds}{_rank_correlation(found.spearman)}")
    for row in found.exceptions[:5]:
        starts = ", ".join(map(str, row.examples))
        state = f"{row.unsaturated} of {row.count} not saturated yet"
        lines.append(f"exception {_short(row.selection.indices)}: starts {starts}; {state}")
    if moving := sum(row.unsaturated for row in found.rows):
        lines.append(
            f"{moving} of {found.starts} starts are not saturated: their selections may still change; "
            "more steps, or a larger lr, show where they end"
        )
    return "\n".join(line.rstrip() for line in "\n".join(lines).splitlines())


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
    progress: bool = False,
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
    progress : bool
        Show a progress bar while selections are solved to decide D, which takes longest: some seconds near
        ``exact_limit``.

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
    require_single(problem, "diagnose takes one problem")
    if norm not in ("frobenius", "nuclear"):
        raise ValueError(f"norm must be 'frobenius' (for W) or 'nuclear' (for (K, Q)), got {norm!r}")
    require_flag("progress", progress)
    require_number("exact_limit", exact_limit, "a number >= 0", 0.0, ends="[]")
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
        check_optimal_support(problem, optimal, norm, exact_limit, seed, progress=progress),
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
            "selection is missing: the problem has no prediction head, so the optimal tokens are unknown; pass "
            "the tokens that a trained head selects, attsvm.attention.likeliest(problem, head.W)"
        )
    chosen = read_selection(problem, selection)
    own = solve_selection(problem, chosen, norm)
    frobenius = own if norm == "frobenius" else solve_selection(problem, chosen, "frobenius")
    checks = (check_feasible(own), check_size(problem), *check_all_support(frobenius))
    words = (
        "Without labels and a prediction head, the limit of training is unknown. If this selection is the one that "
        "training prefers, W (trained to saturation) turns towards its "
    )
    return Diagnosis(
        problem, chosen, norm, checks, (), {"W": f"{words}Att-SVM solution.", "KQ": f"{words}Att-SVM* solution."}
    )
