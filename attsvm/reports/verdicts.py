"""Results in plain sentences, the first lines of a command and of a page, and a glossary."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from attsvm.comparison import angle

if TYPE_CHECKING:
    from attsvm.comparison import BatchReport, Report
    from attsvm.theory import Diagnosis

# -- solutions ---------------------------------------------------------------------------------------------------------


def solution_verdict(records: Sequence[Mapping[str, Any]], n: int) -> str:
    """One sentence about the solutions of a selection, from their records.

    Examples
    --------
    >>> import attsvm
    >>> from attsvm.reports.content import solution_record
    >>> solved = attsvm.att_svm(attsvm.random_problem(n=2, T=3, d=4, seed=0))
    >>> solution_verdict([solution_record(solved)], 2)
    'One W selects these tokens in all 2 sequences: proved optimal, margin 0.8354 (frobenius).'
    """
    infeasible = [record for record in records if "farkas" in record]
    if infeasible:
        sequences = infeasible[0]["farkas"]["sequences"]
        some = ", ".join(map(str, sequences[:6])) + (", ..." if len(sequences) > 6 else "")
        return f"No W selects these tokens in all {n} sequences: sequences {some} contradict each other (proved)."
    solved = [record for record in records if "margin" in record]
    if not solved:
        return f"No solution was found: {', '.join(str(record['status']) for record in records)}."
    proved = all(record["status"] == "optimal" for record in solved)
    margins = ", ".join(f"{record['margin']:.4f} ({record['norm_name']})" for record in solved)
    how = "proved optimal" if proved else "NOT proved optimal"
    return f"One W selects these tokens in all {n} sequences: {how}, margin {margins}."


# -- training runs -----------------------------------------------------------------------------------------------------

_ENDS = {
    "Global": "ends at the predicted tokens, those of highest score",
    "Local": "ends at locally optimal tokens other than those of highest score",
    "Not local": "ends at tokens that are not locally optimal: train longer",
    "Undecided": "ends at tokens whose local optimality is undecided",
}
# The same without a theorem: nothing was predicted, and nothing says that longer training leads elsewhere.
_ENDS_UNCOVERED = _ENDS | {
    "Global": "ends at the tokens of highest score, which are locally optimal",
    "Not local": "ends at tokens that are not locally optimal",
}
_PLACES = {
    "Global": "at the predicted tokens",
    "Local": "at other locally optimal tokens",
    "Not local": "at no local optimum (Not local)",
    "Undecided": "at tokens whose local optimality is undecided",
}
_DIRECTIONS = {"frobenius": "max-margin", "nuclear": "nuclear-norm max-margin"}


def run_verdict(
    name: str, convergence: str, status: str, norm: str | None, misalignment: float | None, uncovered: str = ""
) -> str:
    """One or two sentences about a training run and the SVM of the tokens that it selects.

    Parameters
    ----------
    name, convergence, status, norm
        Of the run: its parameterization, where and how it ended, and the norm of its SVM.
    misalignment : float or None
        1 - correlation with the SVM of its own tokens.
    uncovered : str
        Why no theorem is about this run (`Report.uncovered`).

    Examples
    --------
    >>> run_verdict("W", "Global", "finished", "frobenius", 0.0002)[:64]
    'Training W ends at the predicted tokens, those of highest score;'
    >>> run_verdict("W", "Global", "finished", "frobenius", 0.0002)[64:]
    ' it is 1.1 degrees from the max-margin direction.'
    """
    form = form_name(name)
    if status == "not finite":
        return f"Training {form} left the range of floating point: lower the step size."
    ends = (_ENDS_UNCOVERED if uncovered else _ENDS)[convergence]
    if misalignment is None or math.isnan(misalignment):
        where = "there is no max-margin direction to compare with"
    else:
        where = f"it is {_degrees(misalignment)} from the {_DIRECTIONS.get(str(norm), norm)} direction"
    why = f" No theorem applies, so nothing is predicted: {uncovered}." if uncovered else ""
    return f"Training {form} {ends}; {where}.{why}"


def form_name(parameterization: str) -> str:
    """A parameterization as a sentence names it."""
    return "(K, Q)" if parameterization == "KQ" else parameterization


def _degrees(misalignment: float) -> str:
    """An angle with few digits; never 0 for a positive angle."""
    value = float(angle(misalignment))
    if value < 1e-3:
        return "less than 0.001 degrees"
    return f"{value:.2g} degrees" if value < 10 else f"{value:.0f} degrees"


def runs_verdict(reports: Sequence[Report]) -> str:
    """The sentences of several runs."""
    sentences = []
    for report in reports:
        own = report.comparisons[0]
        error = float(own.misalignment[-1]) if own.solution.status.has_solution else None
        run = report.run
        ends = str(report.convergence), str(run.status)
        sentences.append(run_verdict(run.parameterization, *ends, run.norm, error, report.uncovered))
    return " ".join(sentences)


def batch_verdict(reports: Sequence[BatchReport]) -> str:
    """One sentence per parameterization of a batch: how many runs end where, and how far off half of them are."""
    sentences = []
    for report in reports:
        name = form_name(report.run.parameterization)
        median = report.summary(report.labels[0])["median"]
        away = "" if math.isnan(median) else f"; half of them are within {_degrees(median)} of their own direction"
        uncovered = some_uncovered(one.uncovered for one in report.reports)
        sentences.append(f"Training {name} {ends_in_words(report.convergence_counts(), uncovered)}{away}.")
    return " ".join(sentences)


def ends_in_words(counts: Mapping[str, int], uncovered: str = "") -> str:
    """Where the runs of a batch end, from the number of runs per kind of end; why no theorem predicts it.

    Examples
    --------
    >>> ends_in_words({"Global": 2, "Local": 1})
    'ends at the predicted tokens in 2 of 3 problems, at other locally optimal tokens in 1'
    """
    total = sum(counts.values())
    often = sorted((-count, name) for name, count in counts.items() if count)
    words = _PLACES | ({"Global": "at the tokens of highest score"} if uncovered else {})
    places = [f"{words[name]} in {-fewer}" for fewer, name in often]
    why = f" (no theorem applies: {uncovered})" if uncovered else ""
    return f"ends {', '.join([f'{places[0]} of {total} problems', *places[1:]])}{why}"


def some_uncovered(reasons: Iterable[str]) -> str:
    """Why no theorem is about some runs of a batch: the first reason, and of how many; empty if all are covered."""
    given = list(reasons)
    missing = [reason for reason in given if reason]
    return f"{missing[0]}, in {len(missing)} of {len(given)} problems" if missing else ""


# -- theorems ----------------------------------------------------------------------------------------------------------


def diagnosis_verdict(found: Diagnosis | Mapping[str, Any]) -> str:
    """One sentence about which theorems apply.

    Examples
    --------
    >>> import attsvm
    >>> diagnosis_verdict(attsvm.diagnose(attsvm.random_problem(n=2, T=3, d=40, seed=0)))[:63]
    'Training W is predicted to reach the tokens of highest score fr'
    """
    applies = tuple(found["applies"]) if isinstance(found, Mapping) else found.applies
    said = f"{', '.join(applies)} {'applies' if len(applies) == 1 else 'apply'}"
    if "Conjecture 5.2" in applies:
        return f"Training W is predicted to reach the tokens of highest score from almost any start ({said})."
    if "Theorem 4" in applies:
        return f"Training W is predicted to reach the tokens of highest score from W = 0 ({said})."
    if "Theorem 5" in applies:
        return f"Training W converges to this selection from starts near it; other starts may end elsewhere ({said})."
    if applies:
        return f"The limit of the regularization path is predicted, but not that of gradient descent ({said})."
    if local := _attracting(found.to_dict() if not isinstance(found, Mapping) else found):
        return f"No theorem applies to this selection; Theorem 5 applies near the {local} that are locally optimal."
    return "No theorem applies to these data, so nothing is predicted."


def _attracting(found: Mapping[str, Any]) -> int:
    """Selections to which descent on W converges from nearby: all local optima, if the loss and the head allow it."""
    checks = {check["name"]: check for check in found["checks"]}
    stated = all(checks.get(name, {}).get("verdict") == "holds" for name in ("A", "linear head"))
    if not stated or found["norm"] != "frobenius":
        return 0
    return int(checks["D"]["values"].get("locally optimal") or 0)


# -- the whole page ----------------------------------------------------------------------------------------------------


def page_verdict(content: Mapping[str, Any]) -> str:
    """The sentences of a whole report, from its content."""
    sentences = [solution_verdict(content["solutions"], content["problem"]["n"])]
    for run in content["runs"]:
        form, norm, error = run["parameterization"], _norm_of(run), own_misalignment(run)
        sentences.append(run_verdict(form, run["convergence"], run["status"], norm, error, run["uncovered"]))
    if content["diagnosis"] is not None:
        sentences.append(diagnosis_verdict(content["diagnosis"]))
    return " ".join(sentences)


def own_misalignment(run: Mapping[str, Any]) -> float | None:
    """How far a run of a page ends from the SVM of its own tokens; None without one."""
    # Listed by itself, or, where its tokens are those of the solutions, among these.
    own = [c for c in run["comparisons"] if c["label"].endswith("own tokens")]
    own = own or [c for c in run["comparisons"] if c["norm_name"] == _norm_of(run)]
    return own[0]["misalignment"][-1] if own and own[0]["misalignment"] else None


def _norm_of(run: Mapping[str, Any]) -> str:
    return "nuclear" if run["parameterization"] == "KQ" else "frobenius"


# -- glossary ----------------------------------------------------------------------------------------------------------

WORDS: dict[str, str] = {
    "selection": "one token per query, which attention should select",
    "support": "tokens whose margin against the selected token is exactly 1; they determine the solution",
    "margin": "1 / norm of the smallest W that ranks every selected token first by at least 1",
    "Att-SVM": "the smallest such W in the Frobenius norm, the predicted direction of training W",
    "Att-SVM*": "the same in the nuclear norm (few singular values), the predicted direction of training (K, Q)",
    "certificate": "bounds, computed from the data, that prove a solution optimal or the problem infeasible",
    "gap": "proved distance between the norm found and the best possible one, relative",
    "locally optimal": "every support token scores strictly less than the selected one; training can end here",
    "Global, Local": "the run ends at the tokens of highest score; at other locally optimal tokens",
    "degrees": "angle between W and the solution: 0 is the same direction, 90 is unrelated",
    "1 - corr": "1 - cosine of that angle",
    "rate": "1 - corr falls like steps to the power of minus this, fitted to the last snapshots",
    "effective rank": "exponential of the entropy of the singular values: how many of them matter (in brackets)",
    "A": "Assumption A: the loss decreases strictly, with bounded slopes",
    "B.1, B.2": "Assumption B: every token supports the solution (B.1), or all other tokens score alike (B.2)",
    "C": "Assumption C: the first gradient step already ranks the best tokens first",
    "D": "every best token that a selection misses is a support token, so no other is locally optimal",
    "E": "Assumption E: mixing in unselected tokens always lowers the score (true for linear heads)",
    "NOT confirmed": "this run contradicts the claim of the figure",
    "± and [ , ]": "95 % confidence intervals over the trials",
}


def glossary(*words: str) -> list[str]:
    """Lines ``word: meaning`` for the given words.

    Examples
    --------
    >>> glossary("rate")
    ['rate: 1 - corr falls like steps to the power of minus this, fitted to the last snapshots']
    """
    return [f"{word}: {WORDS[word]}" for word in words]
