"""How far the solvers can be trusted and how far they reach.

Whether all backends agree and Theorem 1 holds; how many selections can be listed exactly; ranks that loose solves
report against ranks that a certificate proves; thousands of adversarial problems for the certificates, judged by
exact arithmetic; every public function with all pairs of its options.
"""

from __future__ import annotations

import time
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, Literal

import numpy as np

import attsvm
from attsvm.enumeration.listing import Mode
from attsvm.solution import Solution, SolutionBatch
from attsvm.solvers import ConvergenceWarning, MarginProblem, Status
from attsvm.sweeps import columns_of
from attsvm.validation.figures.figure import Context, Figure, Outcome, Table, mean_of, share_of
from attsvm.validation.figures.svm.rank_figures import published_rank
from attsvm.validation.fuzz_families import FAMILIES, FuzzCase, draw_group, stack_cases
from attsvm.validation.fuzz_judge import KINDS, Judge, JudgeError, against_listings, selections_of

BACKENDS = {
    "frobenius": ("cvxpy:CLARABEL", "cvxpy:SCS", "cvxpy:OSQP", "active_set", "working_set"),
    "nuclear": ("cvxpy:CLARABEL", "cvxpy:SCS", "interior", "factored", "nuclear_batch"),
}

PAIRS = [(norm, backend) for norm, backends in BACKENDS.items() for backend in backends]

_CORNERS = ((1, 2, 1), (1, 2, 2), (10, 10, 20), (10, 2, 20), (1, 10, 20))

_KINDS: tuple[Literal["cross", "self"], ...] = ("cross", "self")


def instances(count: int, seed: int = 0, corners: bool = True) -> Iterator[attsvm.AttentionProblem]:
    """Random problems, cross- and self-attention, masked and unmasked; the first few of extreme sizes.

    Examples
    --------
    >>> [problem.X.shape for problem in instances(2)]
    [(1, 2, 1), (1, 2, 2)]
    """
    rng = np.random.default_rng(seed)
    for j in range(count):
        extreme = corners and j < len(_CORNERS)
        n, T, d = _CORNERS[j] if extreme else map(int, rng.integers((1, 2, 1), (11, 11, 21)))
        # On the unit sphere of one dimension tokens are +-1 and coincide; draw Gaussians there.
        distribution: Literal["sphere", "gaussian"] = "sphere" if d > 1 else "gaussian"
        problem = attsvm.random_problem(n=n, T=T, d=d, seed=rng, kind=_KINDS[j % 2], distribution=distribution)
        if (j // 2) % 2 and T > 2:
            lengths = rng.integers(2, T + 1, size=n)
            problem = replace(problem, mask=np.arange(T) < lengths[:, None])
        yield problem


def _outside(W: np.ndarray, rows: MarginProblem) -> float:
    """Relative size of the part of W outside the spans of the token differences and of the queries."""
    pairs = rows.rows.gather(np.arange(rows.m))
    left, right = (np.linalg.svd(part.T, full_matrices=False) for part in (pairs.a, pairs.queries))
    P, R = (basis[0][:, basis[1] > 1e-10 * basis[1][0]] for basis in (left, right))
    return float(np.linalg.norm(W - P @ (P.T @ W @ R) @ R.T) / np.linalg.norm(W))


def _against_the_best(problem: attsvm.AttentionProblem, norm: str) -> Iterator[tuple[Any, ...]]:
    """Status, difference, gap, part outside the spans and excess rank of every backend of a norm."""
    solutions = [attsvm.att_svm(problem, norm=norm, solver=backend) for backend in BACKENDS[norm]]
    solved = [s for s in solutions if s.status.has_solution]
    best = min(solved, key=lambda s: s.certificate.worst, default=None)
    for s in solutions:
        if best is not None and s.status.has_solution:
            difference, excess = abs(s.norm - best.norm) / best.norm, s.rank - min(problem.n, problem.dx)
            yield str(s.status), difference, s.certificate.gap, _outside(s.W, s.rows.margin_problem), excess
        else:
            agreed = best is None and s.status is Status.INFEASIBLE
            yield str(s.status), 0.0 if agreed else float("inf"), 0.0, 0.0, 0


def compare_backends(trials: int, seed: int, *, corners: bool) -> dict[str, Any]:
    """Solve every instance with every backend and compare with the best certificate in its norm.

    Every column has one list per instance, with one entry per pair of `PAIRS`: ``difference`` of the norm (0 when both
    say infeasible, infinite when they disagree on feasibility), ``gap``, ``outside`` of the spans, and ``excess``, the
    numerical rank minus min(n, d), which Lemma 1 says is never positive.

    Examples
    --------
    >>> found = compare_backends(1, 0, corners=True)
    >>> max(found["difference"][0]) < 1e-6
    True
    """

    def row(problem: attsvm.AttentionProblem) -> dict[str, Any]:
        values = zip(*(found for norm in BACKENDS for found in _against_the_best(problem, norm)), strict=True)
        return dict(zip(("status", "difference", "gap", "outside", "excess"), values, strict=True))

    return columns_of(map(row, instances(trials, seed, corners)))


def feasible_draws(trials: int, seed: int, *, kind: Literal["cross", "self"]) -> dict[str, Any]:
    """Which draws at d = max(T - 1, n), with random sizes and random selections, are feasible (Theorems 1 and 6).

    Examples
    --------
    >>> all(feasible_draws(5, 0, kind="self")["feasible"])
    True
    """
    rng = np.random.default_rng(seed)
    found = []
    for _ in range(trials):
        n, T = int(rng.integers(1, 9)), int(rng.integers(2, 10))
        problem = attsvm.random_problem(n=n, T=T, d=max(T - 1, n), seed=rng, kind=kind, distribution="gaussian")
        found.append(attsvm.att_svm(problem, selection=rng.integers(T, size=n)).status is Status.OPTIMAL)
    return {"feasible": found}


def run_agreement(context: Context) -> Outcome:
    """The worst disagreement per norm and backend, and feasibility."""
    s = context.settings
    parts = [
        context.sweep(compare_backends, [{"corners": corners}], trials, chunk=20, name=name).columns[0]
        for corners, trials, name in ((True, len(_CORNERS), "corners"), (False, s["trials"], "random sizes"))
    ]
    found = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    rows, refuted = [], []
    for k, (norm, backend) in enumerate(PAIRS):
        status, difference, gap, outside, excess = (found[name][:, k] for name in found)
        optimal, infeasible = (int((status == str(x)).sum()) for x in (Status.OPTIMAL, Status.INFEASIBLE))
        worst = (f"{float(values.max()):.1e}" for values in (difference, gap, outside))
        above = int((excess > 0).sum())
        rows.append((norm, backend, optimal, infeasible, len(status) - optimal - infeasible, *worst, above))
        if above:
            refuted.append(f"Lemma 1: rank <= min(n, d), {norm}, {backend}")
    feasible = context.sweep(feasible_draws, [{"kind": kind} for kind in _KINDS], chunk=50, name="feasible")
    shares = {cell["kind"]: columns["feasible"] for cell, columns in feasible}
    refuted += [f"Theorem 1, {kind}-attention: every draw is feasible" for kind in _KINDS if not shares[kind].all()]
    columns = ("norm", "backend", "optimal", "infeasible", "other", "worst norm difference", "worst gap", "off span",
               "rank > min(n, d)")  # fmt: skip
    return Outcome(
        tables=[
            Table("Every backend against the best certificate", columns, rows, align="llrrrrrrr"),
            Table("Theorem 1 at d = max(T - 1, n)", ("attention", "feasible"),
                  [(kind, share_of(flags)) for kind, flags in shares.items()]),
        ],
        curves={},
        refuted=refuted,
    )  # fmt: skip


FIGURE_AGREEMENT = Figure(
    paper="own",
    name="agreement",
    title="Whether all backends agree, their certificates say so, and Theorem 1 holds",
    protocol="""Random instances from (n, T, d) = (1, 2, 1) to (10, 10, 20), the five extreme sizes among them, cross-
        and self-attention, masked and unmasked, both norms; then feasibility at d = max(T - 1, n) for random sizes and
        selections.""",
    full={"trials": 200},
    quick={"trials": 8},
    run=run_agreement,
)


def listing(
    trials: int,
    _: int,
    *,
    draw: int,
    size: list[int],
    mode: Mode,
    top: int | None = None,
    time_limit: float | None = None,
) -> dict[str, Any]:
    """The list of locally optimal selections, and the seconds it took, for problem seeds from ``draw`` on.

    Examples
    --------
    >>> listing(1, 0, draw=0, size=[3, 3, 4], mode="exhaustive")["complete"]
    [True]
    """

    def row(seed: int) -> dict[str, Any]:
        problem = attsvm.random_problem(n=size[0], T=size[1], d=size[2], seed=seed)
        start = time.perf_counter()
        found = attsvm.locally_optimal_selections(problem, top=top, mode=mode, time_limit=time_limit)
        return {
            "tokens": [list(item.tokens) for item in found],
            "margin": found[0].margin if len(found) else None,
            "complete": found.complete,
            "proved": found.proved,
            "bound": found.bound,
            "selections": found.counts.selections,
            "nodes": found.counts.nodes,
            "seconds": time.perf_counter() - start,
        }

    return columns_of(row(draw + k) for k in range(trials))


def run_search(context: Context) -> Outcome:
    """All selections of small problems, the best few of larger ones with proof, and a size without."""
    s = context.settings
    draws = range(context.seed, context.seed + s["trials"])
    few = {"size": s["search"], "top": s["top"]}
    cells = [{"draw": draw, "size": size, "mode": "exhaustive"} for size in s["all"] for draw in draws]
    cells += [{"draw": draw, "mode": "search", **few} for draw in draws]
    if s["check"]:
        cells += [{"draw": draw, "mode": "exhaustive", **few} for draw in draws]
    if s["time_limit"]:
        large = {"size": s["beyond"], "top": s["top"], "time_limit": s["time_limit"]}
        cells.append({"draw": context.seed, "mode": "auto", **large})
    found = context.sweep(listing, cells, 1, chunk=1, name="listing")
    rows: list[tuple[Any, ...]] = []
    lists: dict[tuple[Any, ...], Any] = {}
    refuted = []
    for cell, columns in found:
        r = {name: values[0] for name, values in columns.items()}
        tokens = columns["tokens"].tolist()[0]
        n, T, d = cell["size"]
        place = (n, T, d, cell["draw"], cell.get("top"))
        if lists.setdefault(place, tokens) != tokens:
            refuted.append(f"search and exhaustive list agree at n={n}, T={T}, d={d}, seed {cell['draw']}")
        proof = "complete" if r["complete"] else f"best {r['proved']} proved, bound {r['bound']:.4f}"
        rows.append((f"n={n}, T={T}, d={d}", cell["draw"], f"{r['selections']:.3g}", cell["mode"], cell.get("top"),
                     len(tokens), r["margin"], proof, int(r["nodes"]), f"{r['seconds']:.1f}"))  # fmt: skip
    heads = ("size", "seed", "selections", "mode", "top", "found", "best margin", "proof", "nodes", "seconds")
    agree = ["Where both were run, search and exhaustive listing give the same list."] if s["check"] else []
    return Outcome([Table("Locally optimal selections", heads, rows)], {}, [] if refuted else agree, refuted)


FIGURE_SEARCH = Figure(
    paper="own",
    name="search",
    title="How far exact listing of locally optimal selections reaches",
    protocol="""All selections of n = T = 5, the best ten of 279,936 with proof (n = 7, T = 6, d = 7) and against the
        exhaustive list, and n = 12, T = 8, d = 16, where no proof is possible in the time given; one problem per seed
        from SEED on.""",
    full={"trials": 3, "all": ((5, 5, 5), (5, 5, 10)), "search": (7, 6, 7), "top": 10, "check": True,
          "beyond": (12, 8, 16), "time_limit": 110.0},
    quick={"trials": 1, "all": ((4, 4, 3), (4, 4, 5)), "search": (5, 4, 5), "top": 3, "time_limit": 0.0},
    run=run_search,
)  # fmt: skip

_LABELS = {
    "published_scs": "published protocol (tol 1e-7, default accuracy), SCS",
    "published_clarabel": "published protocol (tol 1e-7, default accuracy), CLARABEL",
    "numerical": "numerical rank of a certified solve",
    "certified": "certified rank (dual singular values equal to 1)",
}


def rank_trials(trials: int, _: int, *, draw: int, n: int, T: int, d: int) -> dict[str, Any]:
    """Ranks by the published protocol with two solvers, and certified; problem seeds from ``draw`` on.

    None where the draw is infeasible (the published code counts it as rank 1).

    Examples
    --------
    >>> found = rank_trials(1, 0, draw=0, n=3, T=3, d=5)
    >>> found["certified"] == found["numerical"]
    True
    """

    def row(seed: int) -> dict[str, Any]:
        problem = attsvm.random_problem(n=n, T=T, d=d, seed=seed)
        certificate = attsvm.att_svm(problem, norm="nuclear").certificate
        rank = certificate.rank_certificate
        if rank is None:
            return dict.fromkeys((*_LABELS, "gap", "singular_gap"))
        published = {f"published_{solver.lower()}": published_rank(problem, solver) for solver in ("SCS", "CLARABEL")}
        found = {"numerical": rank.numerical_rank, "certified": rank.rank, "singular_gap": rank.singular_gap}
        return {**published, **found, "gap": certificate.gap}

    return columns_of(row(draw + k) for k in range(trials))


def run_ranks(context: Context) -> Outcome:
    """Mean ranks over the feasible draws."""
    s = context.settings
    size = {name: s[name] for name in ("n", "T", "d")}
    cells = [{"draw": draw, **size} for draw in range(context.seed, context.seed + s["trials"])]
    found = context.sweep(rank_trials, cells, 1, chunk=1, name="ranks").columns
    kept = [{name: values[0] for name, values in c.items()} for c in found if c["certified"][0] is not None]
    if not kept:
        raise ValueError(f"every draw was infeasible at {size}; raise d")
    values = {name: [row[name] for row in kept] for name in kept[0]}
    equal = sum(row["certified"] == row["numerical"] for row in kept)
    title = f"Mean rank of Att-SVM* solutions, n={s['n']}, T={s['T']}, d={s['d']}, {len(kept)} feasible draws"
    rows = [(label, mean_of(values[name]), max(values[name])) for name, label in _LABELS.items()]
    note = (
        f"certified = numerical in {equal} of {len(kept)}; worst relative gap {max(values['gap']):.0e}; smallest "
        f"singular-value gap {min(values['singular_gap']):.0e}"
    )
    return Outcome([Table(title, ("", "mean", "largest"), rows)], {"rows": kept}, [note])


FIGURE_RANKS = Figure(
    paper="own",
    name="ranks",
    title="Published and certified ranks of Att-SVM* solutions",
    protocol="""The published protocol solves at the modelling package's default accuracy, one constraint object per
        row, and counts singular values above an absolute 1e-7. Optimal tokens, unit sphere, one problem per seed
        from SEED on; infeasible draws are dropped.""",
    full={"trials": 100, "n": 15, "T": 5, "d": 20},
    quick={"trials": 3, "n": 8, "T": 4, "d": 10},
    run=run_ranks,
)

NORMS = ("frobenius", "nuclear")

# Problems of equal sizes that are solved alone and then as one batch.
_GROUP = 5

# Families in which several solutions are common.
_STRUCTURED = frozenset({"ties", "integer", "sparse", "low rank"})

_SHOWN_FUZZ = 20


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


def run_fuzz(context: Context) -> Outcome:
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
        refuted=[f"{where}: {line}" for where, line in against[:_SHOWN_FUZZ]],
    )  # fmt: skip


FIGURE_FUZZ = Figure(
    paper="own",
    name="fuzz",
    title="Certificates against exact arithmetic, on adversarial problems",
    protocol="""Small problems (n, T <= 5, d <= 6) of 17 families: sphere, Gaussian, integer, sparse, low rank, near
        duplicates, mixed scales 1e-8 to 1e8, float32, ties, zero queries, masks, ragged, several queries, causal, equal
        tokens, extreme scales, selected sets (Gen-SVM, with equality rows); both norms, alone and in batches of five.
        Judged by rational arithmetic, itself checked by plain fractions: feasibility, violation, least norm, lower
        bound, rank at its resolution, uniqueness within its radius, single = batch in status and support; of every
        tenth problem, if it has up to 27 selections, the listings of locally optimal ones, by both norms and searches.
        trials is the number of problems per family.""",
    full={"trials": 590},
    quick={"trials": 20},
    run=run_fuzz,
)  # fmt: skip

_SHOWN_MATRIX = 40


def judge_function(trials: int, seed: int, *, function: str, most: int) -> dict[str, Any]:
    """Combinations tried, refused as documented and failed, for coverings of one function, one row each.

    Examples
    --------
    >>> found = judge_function(1, 0, function="attsvm.export.factor", most=2)
    >>> found["combinations"], found["failed"]
    ([2], [0])
    """
    from attsvm.validation.matrix_calls import judge, rows_of  # loads torch, which a list of figures must not

    rows = []
    for covering in range(trials):
        own = seed + covering
        chosen = rows_of(function, own)
        # A sample is spread over the whole covering, whose first rows vary the first axes.
        picked = np.unique(np.linspace(0, len(chosen) - 1, min(most, len(chosen))).round().astype(int))
        judged = [judge(function, chosen[k], own) for k in picked]
        bad = [one for one in judged if one.faults]
        rows.append({
            "combinations": len(judged), "refused": sum(one.refused for one in judged), "failed": len(bad),
            "work": max(one.work for one in judged), "took": sum(one.seconds for one in judged),
            "faults": "\n".join(f"{one.row}: {'; '.join(one.faults[:2])} (seed {own})" for one in bad),
        })  # fmt: skip
    return columns_of(rows)


def run_matrix(context: Context) -> Outcome:
    """Counts per function, and every failure with its combination."""
    from attsvm.validation.matrix_calls import CASES, public_functions

    missing = [name for name in public_functions() if name not in CASES]
    grid = {"function": list(CASES), "most": [context.settings["most"]]}
    found = context.sweep(judge_function, grid, chunk=1, name="matrix")
    rows: list[tuple[object, ...]] = []
    faults: list[str] = []
    for cell, columns in found:
        name = cell["function"].removeprefix("attsvm.")
        counts = [int(columns[key].sum()) for key in ("combinations", "refused", "failed")]
        rows.append((name, len(CASES[cell["function"]].axes), *counts, int(columns["work"].max()),
                     f"{columns['took'].sum():.1f}"))  # fmt: skip
        faults += [f"{name}: {line}" for text in columns["faults"] for line in str(text).split("\n") if line]
    whole = [sum(int(str(row[k])) for row in rows) for k in (2, 3, 4)]
    seconds = sum(float(str(row[6])) for row in rows)
    total = (f"all {len(rows)} functions", "", *whole, max(int(str(row[5])) for row in rows), f"{seconds:.1f}")
    heads = ("function", "axes", "combinations", "refused as documented", "failed", "most calls", "seconds")
    return Outcome(
        tables=[Table("Public functions with all pairs of their options", heads, [*rows, total], align="lrrrrrr")],
        curves={"faults": faults, "missing": missing},
        notes=[f"{len(rows)} functions, {whole[0]} combinations, {whole[2]} failed, {seconds:.0f} s of work."],
        refuted=[*(f"{name} has no case" for name in missing), *faults[:_SHOWN_MATRIX]],
    )


FIGURE_MATRIX = Figure(
    paper="own",
    name="matrix",
    title="Every public function with all pairs of its options, against separate arithmetic",
    protocol="""Public are the functions of `attsvm` and of its documented modules. Choices come from the signatures:
        Literal types, booleans, optional arguments given and not, strings with a list in the docstring; a choice
        without a case is a failure. Three sizes, one problem and a batch. Combinations in which every two values of
        different axes meet; those that a docstring excludes must raise. Judged by cvxpy on constraints written out,
        enumeration, autograd, finite differences, plain Runge-Kutta steps and simulation; statuses must be final; work
        is counted in calls of functions and in iterations, not in seconds. trials is the number of coverings per
        function, each with its own random problems.""",
    full={"trials": 1, "most": 1000},
    quick={"trials": 1, "most": 3},
    run=run_matrix,
)
