"""Thousands of small problems made to break certificates, every claim about them judged by exact arithmetic."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Sequence
from typing import Any

import attsvm
from attsvm.solution import Solution, SolutionBatch
from attsvm.solvers import ConvergenceWarning, Status
from attsvm.sweeps import columns_of
from attsvm.validation.figures.framework import Context, Figure, Outcome, Table
from attsvm.validation.fuzz_families import FAMILIES, FuzzCase, draw_group, stack_cases
from attsvm.validation.fuzz_judge import KINDS, Judge, JudgeError
from attsvm.validation.fuzz_listing import against_listings, selections_of

__all__ = ["FIGURE", "fuzz_family", "judge_group", "run"]

NORMS = ("frobenius", "nuclear")
# Problems of equal sizes that are solved alone and then as one batch.
_GROUP = 5
# Families in which several solutions are common.
_STRUCTURED = frozenset({"ties", "integer", "sparse", "low rank"})
_SHOWN = 20


def _solve(case: FuzzCase, **options: Any) -> Solution:
    if case.sets is not None:
        return attsvm.gen_svm(case.problem, case.sets, **options)
    return attsvm.att_svm(case.problem, case.selection, **options)


def _solve_group(group: Sequence[FuzzCase], norm: str) -> tuple[list[Solution], SolutionBatch]:
    alone = [_solve(case, norm=norm) for case in group]
    batch, chosen = stack_cases(group)
    call: Any = attsvm.att_svm if group[0].sets is None else attsvm.gen_svm
    return alone, call(batch, chosen, norm=norm)


def _against_lower_rank(judge: Judge, solution: Solution) -> list[tuple[str, str]]:
    """Where there are many solutions, some have a smaller rank: one of these, against what is said of all."""
    case, rank = judge.case, solution.certificate.rank_certificate
    often = case.member == 0 or case.family in _STRUCTURED
    if case.sets is not None or rank is None or rank.numerical_rank < 2 or not often:
        return []
    other = _solve(case, norm="nuclear", rank=rank.numerical_rank - 1, starts=1)
    return [*judge.against_radius(solution, other)] if other.status == "optimal" else []


def _judge_norm(group: Sequence[FuzzCase], judges: Sequence[Judge], norm: str, rows: list[dict[str, Any]]) -> None:
    """Solve a group in one norm and add what is found to the row of each problem."""
    alone, together = _solve_group(group, norm)
    for judge, solution, other, row in zip(judges, alone, together, rows, strict=True):
        found = [*judge.against(solution), *judge.against(other), *judge.against_pair(solution, other)]
        row[norm] = str(solution.status)
        if norm == "nuclear" and solution.status == "optimal":
            row["uniqueness"] = solution.result.uniqueness.verdict
            row["rank"] = str(solution.certificate.rank)
            found += _against_lower_rank(judge, solution)
        row["against"] += [f"{kind}: {norm}, {detail}" for kind, detail in found]


def _judge_listing(case: FuzzCase, row: dict[str, Any]) -> None:
    """List the locally optimal selections of the first problem of a group, where they are few."""
    if case.seed % 2 or not selections_of(case):
        return
    row["listing"] = "judged"
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            warnings.simplefilter("ignore", ConvergenceWarning)
            row["against"] += [f"{kind}: {detail}" for kind, detail in against_listings(case)]
    except Exception as error:  # whatever it is, it is a finding
        row["against"].append(f"crash: listing, {type(error).__name__}: {error}")


def judge_group(group: Sequence[FuzzCase]) -> list[dict[str, Any]]:
    """Statuses, verdicts and contradictions of problems of equal sizes, solved alone and as a batch.

    Examples
    --------
    >>> from attsvm.validation.figures.own.fuzz import judge_group
    >>> from attsvm.validation.fuzz_families import draw_group
    >>> [row["against"] for row in judge_group(draw_group("ties", 0, 2))]
    ['', '']
    """
    judges = [Judge(case) for case in group]
    rows: list[dict[str, Any]] = [
        {"seed": case.seed, "member": case.member, "frobenius": "crash", "nuclear": "crash", "uniqueness": "",
         "rank": "", "listing": "", "against": []}
        for case in group
    ]  # fmt: skip
    for norm in NORMS:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                warnings.simplefilter("ignore", ConvergenceWarning)  # statuses are counted
                _judge_norm(group, judges, norm, rows)
        except Exception as error:  # whatever it is, it is a finding
            kind = "judge" if isinstance(error, JudgeError) else "crash"
            rows[0]["against"].append(f"{kind}: {norm}, {type(error).__name__}: {error}")
    _judge_listing(group[0], rows[0])
    for row in rows:
        row["against"] = "\n".join(row["against"])
    return rows


def fuzz_family(trials: int, seed: int, *, family: str) -> dict[str, Any]:
    """Problems of a family in groups, one row each; seeds of the groups follow from ``seed``.

    Examples
    --------
    >>> from attsvm.validation.figures.own.fuzz import fuzz_family
    >>> fuzz_family(2, 1, family="sphere")["frobenius"]
    ['optimal', 'optimal']
    """
    rows: list[dict[str, Any]] = []
    for start in range(0, trials, _GROUP):
        rows += judge_group(draw_group(family, seed + start // _GROUP, min(_GROUP, trials - start)))
    return columns_of(rows)


def _status_row(family: str, columns: dict[str, Any]) -> tuple[object, ...]:
    counts: list[object] = []
    for norm in NORMS:
        found = Counter(columns[norm].tolist())
        counts += [found.get(str(status), 0) for status in (Status.OPTIMAL, Status.INFEASIBLE, Status.INACCURATE)]
        counts.append(sum(found.values()) - sum(int(str(c)) for c in counts[-3:]))
    verdicts = Counter(columns["uniqueness"].tolist())
    said = (verdicts.get(word, 0) for word in ("unique", "not unique", "undecided"))
    bad = sum(1 for text in columns["against"] if text)
    listed = int((columns["listing"] == "judged").sum())
    return (family, len(columns["against"]), *counts, *said, listed, bad)


def run(context: Context) -> Outcome:
    """Counts per family and contradictions by kind."""
    found = context.sweep(fuzz_family, {"family": list(FAMILIES)}, chunk=25, name="fuzz")
    rows = [_status_row(cell["family"], columns) for cell, columns in found]
    total = ("all", *(sum(int(str(row[k])) for row in rows) for k in range(1, len(rows[0]))))
    against = [
        (f"{row['family']}, seed {row['seed']}, member {row['member']}", line)
        for row in found.rows()
        for line in str(row["against"]).split("\n")
        if line
    ]
    by_kind = Counter(line.split(":")[0] for _, line in against)
    heads: tuple[str, ...] = ("family", "problems")
    heads += tuple(f"{norm[:3]}. {word}" for norm in NORMS for word in ("optimal", "infeasible", "inaccurate", "other"))
    heads += ("unique", "not unique", "undecided", "listings", "contradicted")
    return Outcome(
        tables=[
            Table("Statuses and verdicts per family", heads, [*rows, total]),
            Table("Contradictions by kind", ("kind", "what exact arithmetic says", "count"),
                  [(kind, text, by_kind.get(kind, 0)) for kind, text in KINDS.items()], align="llr"),
        ],
        curves={"against": [f"{where}: {line}" for where, line in against]},
        notes=[f"{len(against)} contradictions of {total[1]} problems, each alone and in a batch, in both norms."],
        refuted=[f"{where}: {line}" for where, line in against[:_SHOWN]],
    )  # fmt: skip


FIGURE = Figure(
    paper="own",
    name="fuzz",
    title="Certificates against exact arithmetic, on problems made to break them",
    protocol="""Small problems (n, T <= 5, d <= 6) of 17 families: sphere, Gaussian, integer, sparse, low rank, near
        duplicates, mixed scales 1e-8 to 1e8, float32, ties, zero queries, masks, ragged, several queries, causal, equal
        tokens, extreme scales, selected sets (Gen-SVM, with equality rows); both norms, alone and in batches of five.
        Judged by rational arithmetic, itself checked by plain fractions: feasibility, violation, least norm, lower
        bound, rank at its resolution, uniqueness within its radius, single = batch in status and support; of every
        tenth problem, if it has up to 27 selections, the listings of locally optimal ones, by both norms and searches.
        trials is the number of problems per family.""",
    full={"trials": 590},
    quick={"trials": 20},
    run=run,
)  # fmt: skip
