"""From hypotheses to theorems to what gradient descent is predicted to do."""

from __future__ import annotations

from collections.abc import Mapping

from attsvm.problem import AttentionProblem
from attsvm.selection import Selection
from attsvm.theory.check import Check, Verdict, all_of
from attsvm.theory.mixtures import check_head

__all__ = ["judge_theorems", "predict", "why_uncovered"]

# Hypotheses, corrected, and conclusion of each statement. Queries count as sequences: K queries of one sequence enter
# the loss like K sequences with the same tokens.
_STATEMENTS: dict[str, tuple[tuple[str, ...], str]] = {
    "Theorem 2": (
        ("A", "head", "unique optimal tokens", "feasible"),
        "the regularization path of W goes to Att-SVM of the optimal tokens, that of (K, Q) to Att-SVM*",
    ),
    "Theorem 3": (
        ("A", "linear head", "unique optimal tokens", "B", "feasible"),
        "no stationary point; |W| diverges from any start with steps up to 1 / L_W",
    ),
    "Theorem 4": (
        ("A", "linear head", "unique optimal tokens", "C"),
        "from W = 0 and a long first step, descent goes to Att-SVM of the optimal tokens while it stays in the cone",
    ),
    "Theorem 5": (
        ("A", "linear head", "locally optimal"),
        "started far out in a narrow cone around Att-SVM of the selection, descent goes there",
    ),
    "Theorem 7": (
        ("A", "head E", "locally optimal", "support sets"),
        "the regularization path inside the separating cone goes to the SVM of the selection",
    ),
    "Conjecture 5.2": (
        ("A", "linear head", "unique optimal tokens", "B.1", "D"),
        "descent on W goes to Att-SVM of the optimal tokens from almost any start (open; no counterexample known)",
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
    >>> from attsvm.theory.prediction import why_uncovered
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
        out.append("The best W of growing norm turns towards Att-SVM of the optimal tokens (Theorem 2).")
    if "Theorem 7" in applies:
        out.append("Within its cone, it turns towards Att-SVM of the selection (Theorem 7).")
    if not applies & {"Theorem 2", "Theorem 7"}:
        out.append("Theorems 2 and 7 do not apply either.")
    local = checks["D"].values.get("locally optimal")
    if local:
        out.append(f"Selections that are locally optimal: {local}; no theorem says that W goes to one of them.")
    return out


def _about_optimal_tokens(checks: Mapping[str, Check], applies: set[str], norm: str) -> list[str]:
    out = []
    feasible = checks["feasible"]
    margin = f"margin {feasible.values['margin']:.4g}" if feasible else ""
    if feasible.verdict == "fails":
        out.append("The optimal tokens are infeasible, so theory says nothing about them and W may stay finite.")
    elif not checks["unique optimal tokens"]:
        out.append("Optimal tokens are tied: descent may approach a mixture of them, in a direction that is no SVM.")
    if "Conjecture 5.2" in applies:
        out.append(
            f"From any start |W| diverges (Theorem 3), and the optimal tokens are the only locally optimal selection "
            f"(D), so W is predicted to go in the direction of their Att-SVM ({margin}; Conjecture 5.2)."
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
            out.append("The optimal tokens are the only locally optimal selection, so the only proved direction.")
        else:
            where = "started near one of them, W goes there (Theorem 5)"
            if norm != "frobenius":
                where = "no theorem says that (K, Q) goes to one of them"
            out.append(f"Selections that are locally optimal: {local}; {where}.")
    if "Theorem 4" in applies:
        out.append(
            f"From W = 0 with a long first step W goes to Att-SVM of the optimal tokens ({margin}) if all iterates "
            f"keep the separating margin mu < {checks['C'].values['mu']:.3g} (Theorem 4)."
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
        out.append(f"W is not predicted to stay with this selection: {checks['locally optimal'].detail}.")
    return out


def _predict_KQ(checks: Mapping[str, Check], applies: set[str]) -> list[str]:
    if not checks["A"]:
        return [_NO_LOSS]
    if "Theorem 2" not in applies:
        return ["Nothing is predicted: Theorem 2 does not apply, and descent on (K, Q) has no theorem of its own."]
    return [
        "Descent on (K, Q) has no theorem of its own. Its regularization path goes to Att-SVM* (nuclear norm) of the "
        "optimal tokens when the inner dimension m reaches the rank of a solution, m >= min(queries, dx, dz) at the "
        "latest (Theorem 2); descent follows it in experiments, where locally optimal selections are those of the "
        "nuclear norm.",
    ]
