"""Certificate files under test (mutations, other solvers' claims, times), and derivatives through the solve.

Derivatives meet torch's gradcheck, and W differences of certified solves.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
import warnings
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

import attsvm
from attsvm.selection_rows import selection_rows
from attsvm.solvers import MarginProblem, solve
from attsvm.solvers.certify.proof_file import number_text, numbers_text, proof_record
from attsvm.solvers.exact import ExactFarkas, exact_farkas, exact_feasibility
from attsvm.solvers.exact.measures import exact_rows_of
from attsvm.validation.certificate_judge import CHECKER, HONEST, MUTATIONS, fraction, honest, mutated, truth, verdict
from attsvm.validation.figures.figure import Context, Figure, Outcome, Table
from attsvm.validation.fuzz_families import draw_group

_SHOWN = 20
FloatArray = npt.NDArray[np.float64]


def mutation_trials(trials: int, seed: int, *, kind: str) -> dict[str, Any]:
    """Honest certificates of a kind and every mutation of each, one row per certificate.

    Examples
    --------
    >>> mutation_trials(1, 0, kind="infeasible")["honest"]
    ['accepted']
    """
    rows: dict[str, list[Any]] = {"honest": [], "judged": [], "mutations": []}
    for trial in range(seed, seed + trials):
        record = honest(kind, trial)
        rng = np.random.default_rng([trial, 1])
        found = []
        for name in MUTATIONS:
            changed = mutated(record, name, rng)
            if changed is not None:
                found.append([name, truth(changed), verdict(changed).split(":")[0]])
        rows["honest"].append(verdict(record).split(":")[0])
        rows["judged"].append(truth(record))
        rows["mutations"].append(json.dumps(found))
    return rows


# Other solvers ------------------------------------------------------------------------------------------------------
# CLARABEL, SCS and OSQP as cvxpy installs them, called directly: cvxpy drops the ray of an infeasible problem.

Found = tuple[str, FloatArray, FloatArray]


def _clarabel(F: FloatArray, tight: bool) -> Found:
    import clarabel
    from scipy import sparse

    settings = clarabel.DefaultSettings()
    settings.verbose = False
    for name in ("tol_gap_abs", "tol_gap_rel", "tol_feas", "tol_infeas_abs", "tol_infeas_rel") if tight else ():
        setattr(settings, name, 1e-12)
    m, size = F.shape
    P, A = sparse.identity(size, format="csc"), sparse.csc_matrix(-F)
    done = clarabel.DefaultSolver(P, np.zeros(size), A, -np.ones(m), [clarabel.NonnegativeConeT(m)], settings).solve()
    status = {"Solved": "optimal", "PrimalInfeasible": "infeasible"}.get(str(done.status), str(done.status))
    return status, np.array(done.x), np.array(done.z)


def _scs(F: FloatArray, tight: bool) -> Found:
    import scs
    from scipy import sparse

    m, size = F.shape
    data = {"P": sparse.identity(size, format="csc"), "A": sparse.csc_matrix(-F), "b": -np.ones(m), "c": np.zeros(size)}
    options = {"eps_abs": 1e-10, "eps_rel": 1e-10, "eps_infeas": 1e-12, "max_iters": 100_000} if tight else {}
    done = scs.SCS(data, {"l": m}, verbose=False, **options).solve()
    status = {"solved": "optimal"}.get(done["info"]["status"], done["info"]["status"])
    return status, np.array(done["x"]), np.array(done["y"])


def _osqp(F: FloatArray, tight: bool) -> Found:
    import osqp
    from scipy import sparse

    m, size = F.shape
    options: dict[str, Any] = {"verbose": False, "max_iter": 4000}
    if tight:
        options |= {"eps_abs": 1e-10, "eps_rel": 1e-10, "eps_prim_inf": 1e-12, "max_iter": 100_000, "polishing": True}
    solver = osqp.OSQP()
    P, A = sparse.identity(size, format="csc"), sparse.csc_matrix(F)
    solver.setup(P, np.zeros(size), A, np.ones(m), np.full(m, np.inf), **options)
    done = solver.solve(raise_error=False)
    status = {"solved": "optimal", "primal infeasible": "infeasible"}.get(done.info.status, done.info.status)
    rays = done.prim_inf_cert if status == "infeasible" else done.y
    return status, np.array(done.x), -np.array(rays)


def _own(problem: MarginProblem) -> Found:
    done = solve(problem)
    size = problem.shape[0] * problem.shape[1]
    if done.certificate.farkas is not None:
        return "infeasible", np.zeros(size), done.certificate.farkas.multipliers
    if not done.status.has_solution:
        return str(done.status), np.zeros(size), done.multipliers
    return str(done.status), done.W.ravel(), done.multipliers


SOLVERS_TRIED = {"CLARABEL": _clarabel, "SCS": _scs, "OSQP": _osqp}
# Where the solvers say that they stop: the gap and the violation that they claim.
_TOLERANCES = {"CLARABEL": (1e-8, 1e-12), "SCS": (1e-4, 1e-10), "OSQP": (1e-3, 1e-10)}
_SETTINGS = [(name, tight) for name in SOLVERS_TRIED for tight in (False, True)]
_SETTINGS += [("attsvm", False), ("attsvm file", False)]  # its float64 numbers, and what `Certificate.save` writes
PROBLEMS = ("feasible", "infeasible", "adversarial")
_FAMILIES = ("near duplicates", "mixed scales", "integer", "ties")
_COUNTS = ("optimal", "own_tolerance", "at_1e-8", "infeasible", "raw", "completed", "contradicted")


def _problem(seed: int, kind: str) -> MarginProblem:
    if kind == "adversarial":
        case = draw_group(_FAMILIES[seed % len(_FAMILIES)], seed, 1)[0]
        return selection_rows(case.problem, case.selection).margin_problem
    n, T, d = (8, 4, 2) if kind == "infeasible" else (6, 8, 10)
    for draw in range(seed * 1000, seed * 1000 + 1000):
        drawn = attsvm.random_problem(n=n, T=T, d=d, seed=draw)
        tokens = np.random.default_rng(draw).integers(0, T, n)
        problem = selection_rows(drawn, tokens).margin_problem
        if exact_feasibility(exact_rows_of(problem)).feasible == (kind == "feasible"):
            return problem
    raise ValueError("no such problem among 1000 draws")


def _raw_record(problem: MarginProblem, W: FloatArray | None, y: FloatArray, claim: dict[str, Any]) -> dict[str, Any]:
    """A file with the numbers of a solver as they are; negative multipliers count as 0."""
    pair = problem.pairs()
    left = [[number_text(x) for x in row] for row in pair.exact_left().tolist()]
    rows = {"kind": "rows", "left": left, "queries": numbers_text(pair.queries), "owner": pair.owner.tolist()}
    record = {
        "format": "attsvm certificate", "version": 1, "assumes": ["rows as given"], "problem": rows,
        "norm": "frobenius", "multipliers": numbers_text(np.maximum(y, 0.0)), "claims": [claim],
    }  # fmt: skip
    return record if W is None else record | {"W": numbers_text(W.reshape(problem.shape))}


def _accepted(record: dict[str, Any]) -> int:
    return int(verdict(record).startswith("accepted"))


def _judged(problem: MarginProblem, feasible: bool, solver: str, tight: bool) -> dict[str, int]:
    """What a solver claims of a problem, and what of it holds."""
    row = dict.fromkeys(_COUNTS, 0)
    own = solver.startswith("attsvm")
    status, x, y = _own(problem) if own else SOLVERS_TRIED[solver](problem.features(), tight)
    row["contradicted"] = int(status == ("infeasible" if feasible else "optimal"))
    if status not in ("optimal", "infeasible"):
        return row
    row[status] = 1
    if solver == "attsvm file":
        return row | _of_file(problem)
    if status == "infeasible":
        row["raw"] = _accepted(_raw_record(problem, None, y, {"claim": "infeasible"}))
        row["completed"] = int(isinstance(exact_farkas(exact_rows_of(problem), np.maximum(y, 0.0)), ExactFarkas))
        return row
    for name, tolerance in (("own_tolerance", 1e-8 if own else _TOLERANCES[solver][tight]), ("at_1e-8", 1e-8)):
        text = number_text(tolerance)
        row[name] = _accepted(_raw_record(problem, x, y, {"claim": "optimal", "gap": text, "violation": text}))
    return row


def _of_file(problem: MarginProblem) -> dict[str, int]:
    """The same of the file that `Certificate.save` writes."""
    certificate = solve(problem).certificate
    record: dict[str, Any] = dict(proof_record(certificate, certificate._source))
    claim, holds = record["claims"][0], _accepted(record)
    if claim["claim"] == "infeasible":
        return {"raw": holds, "completed": holds}
    small = all(fraction(claim.get(name, 0)) <= fraction(number_text(1e-8)) for name in ("gap", "violation"))
    return {"own_tolerance": holds * small, "at_1e-8": holds * small}


def foreign_claims(trials: int, seed: int, *, problems: str) -> dict[str, Any]:
    """What every solver claims of the same problems, and which claims survive the checker; a row per problem.

    Parameters
    ----------
    trials, seed : int
    problems : str
        One of `PROBLEMS`.

    Examples
    --------
    >>> row = foreign_claims(1, 0, problems="infeasible")
    >>> row["attsvm file, default: infeasible"], row["attsvm file, default: raw"]
    ([1], [1])
    """
    columns: dict[str, list[int]] = {}
    for trial in range(seed, seed + trials):
        problem = _problem(trial, problems)
        feasible = exact_feasibility(exact_rows_of(problem)).feasible
        for solver, tight in _SETTINGS:
            for name, count in _judged(problem, feasible, solver, tight).items():
                columns.setdefault(f"{solver}, {'tight' if tight else 'default'}: {name}", []).append(count)
    return dict(columns)


# Times --------------------------------------------------------------------------------------------------------------


def timed_sizes(trials: int, seed: int, *, size: tuple[int, int, int], norm: str) -> dict[str, Any]:
    """Seconds to write a certificate and to check it in a process of its own, and its bytes; one row per problem.

    Examples
    --------
    >>> timed_sizes(1, 0, size=(2, 3, 4), norm="nuclear")["accepted"]
    [1]
    """
    n, T, d = size
    rows: dict[str, list[Any]] = {"write": [], "check": [], "process": [], "kilobytes": [], "accepted": []}
    for trial in range(seed, seed + trials):
        solution = attsvm.att_svm(attsvm.random_problem(n=n, T=T, d=d, seed=trial), norm=norm)
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "proof.json"
            start = time.perf_counter()
            solution.certificate.save(file)
            middle = time.perf_counter()
            done = subprocess.run([sys.executable, str(CHECKER), str(file)], capture_output=True, check=False)
            end = time.perf_counter()
            record = json.loads(file.read_text())
            before = time.perf_counter()
            verdict(record)
            rows["check"].append(time.perf_counter() - before)
            rows["kilobytes"].append(file.stat().st_size / 1e3)
        rows["write"].append(middle - start)
        rows["process"].append(end - middle)
        rows["accepted"].append(int(done.returncode == 0))
    return rows


def _mutation_tables(context: Context) -> tuple[list[Table], list[str], list[str]]:
    found = context.sweep(mutation_trials, {"kind": list(HONEST)}, chunk=5, name="mutations")
    kinds, counts, refuted = [], Counter[tuple[str, str, str]](), []
    for cell, columns in found:
        honest_here, mutations = Counter(columns["honest"].tolist()), 0
        for trial, (word, text) in enumerate(zip(columns["judged"], columns["mutations"], strict=True)):
            if word == "false":
                refuted.append(f"{cell['kind']}, certificate {trial}: the claim is false")
            for name, judged, said in json.loads(str(text)):
                counts[name, judged, said] += 1
                mutations += judged == "false"
                if judged == "false" and said == "accepted":
                    refuted.append(f"{cell['kind']}, certificate {trial}: {name} makes the claim false and is accepted")
        total = sum(honest_here.values())
        kinds.append((cell["kind"], total, honest_here["accepted"], mutations))
        refuted += [f"{cell['kind']}: {total - honest_here['accepted']} honest certificates not accepted"] * (
            honest_here["accepted"] < total
        )
    whole = ("all", *(sum(int(str(row[k])) for row in kinds) for k in (1, 2, 3)))
    lines = []
    for name in MUTATIONS:
        wrong = [counts[name, "false", said] for said in ("refused", "no certificate", "accepted")]
        rest = [sum(counts[name, judged, said] for said in ("refused", "no certificate", "accepted"))
                for judged in ("true", "open")]  # fmt: skip
        lines.append((name, *wrong, *rest))
    sums = ("all", *(sum(int(str(row[k])) for row in lines) for k in range(1, 6)))
    tables = [
        Table("Honest certificates", ("kind", "written", "accepted", "mutations that make it false"), [*kinds, whole]),
        Table("Mutations", ("mutation", "false: refused", "false: unreadable", "false: accepted", "still true",
                            "not decided"), [*lines, sums]),
    ]  # fmt: skip
    false = sum(int(str(count)) for count in sums[1:4])
    notes = [
        f"{whole[2]} of {whole[1]} honest certificates accepted; of {false} mutations that exact arithmetic shows to "
        f"be false, {sums[3]} accepted."
    ]
    return tables, notes, refuted


def _foreign_tables(context: Context) -> list[Table]:
    many = context.settings["foreign"]
    found = context.sweep(foreign_claims, {"problems": list(PROBLEMS)}, many, chunk=10, name="other solvers")
    heads = ("solver", "settings", "says optimal", "holds at its own tolerance", "holds at 1e-8", "says infeasible",
             "holds as it is", "completed by rationals", "contradicted")  # fmt: skip
    tables = []
    for cell, columns in found:
        rows = []
        for solver, tight in _SETTINGS:
            setting = "tight" if tight else "default"
            counts = (int(np.sum(columns[f"{solver}, {setting}: {name}"])) for name in _COUNTS)
            rows.append((solver, setting, *counts))
        tables.append(Table(f"Claims of solvers, {many} {cell['problems']} problems", heads, rows))
    return tables


def run_certificates(context: Context) -> Outcome:
    """Counts of mutations, of other solvers' claims, and times."""
    tables, notes, refuted = _mutation_tables(context)
    tables += _foreign_tables(context)
    cells = [
        {"size": tuple(size), "norm": norm} for size in context.settings["sizes"] for norm in ("frobenius", "nuclear")
    ]
    timed = context.sweep(timed_sizes, cells, context.settings["timed"], chunk=5, name="times")
    rows = []
    for cell, columns in timed:
        middle = {name: float(np.median(values)) for name, values in columns.items()}
        seconds = [f"{middle[name]:.3f}" for name in ("write", "check", "process")]
        size, accepted = f"{middle['kilobytes']:.0f}", int(np.sum(columns["accepted"]))
        rows.append((str(tuple(cell["size"])), cell["norm"], *seconds, size, accepted))
    tables.append(Table("Times, medians in seconds", ("n, T, d", "norm", "write", "check", "check, own process",
                                                      "kB", "accepted"), rows))  # fmt: skip
    lines = CHECKER.read_text().splitlines()
    notes.append(f"The checker has {len(lines)} lines, {sum(bool(line.strip()) for line in lines)} without empty ones.")
    return Outcome(tables=tables, curves={}, notes=notes, refuted=refuted[:_SHOWN])


FIGURE_CERTIFICATES = Figure(
    paper="own",
    name="certificates",
    title="Certificate files: honest ones, mutations, and the claims of other solvers",
    protocol="""Certificates of fourteen kinds (five norms, soft margins, Gen-SVM, priors, causal masks, infeasible
        problems, local optimality, planted ranks, complete listings) are written and checked by
        tools/check_certificate.py. Every mutation of each (digits, signs, swapped tokens, dropped rows, stronger
        claims) is judged by exact arithmetic that shares no code with the checker, and counts where the claim has
        become false. CLARABEL, SCS and OSQP, as cvxpy installs them, solve feasible (6, 8, 10) and infeasible
        (8, 4, 2) problems, and small ones of four families of the fuzz, at default and at tight settings; a claim is
        written with their numbers as they are. Float multipliers never cancel rows exactly, attsvm's neither, so
        it is also counted which proofs of infeasibility have an exact one on their rows; "attsvm file" is what
        Certificate.save writes. Contradicted: exact arithmetic shows that the opposite of what was said holds.
        trials is the number of certificates per kind.""",
    full={"trials": 40, "foreign": 50, "sizes": [[6, 8, 10], [20, 20, 50]], "timed": 10},
    quick={"trials": 1, "foreign": 2, "sizes": [[6, 8, 10]], "timed": 1},
    run=run_certificates,
)


NORMS_OF_MARGIN = ("frobenius", "nuclear", "spectral", "l1", "linf", "l3")
NORMS_OF_W = ("frobenius", "nuclear")
# Steps of gradcheck's central differences, and tolerances of the solves: values scatter by their gap, which is divided
# by the step. In polyhedral norms kinks are nearer, so that steps are shorter and tolerances smaller.
_STEP = {"frobenius": 1e-6, "nuclear": 1e-5, "spectral": 1e-4, "l1": 1e-6, "linf": 1e-6, "l3": 1e-4}
_SOLVE = {"l1": 1e-12, "linf": 1e-12}


def check_gradients(trials: int, seed: int, *, norm: str, of: str) -> dict[str, Any]:
    """Random problems through gradcheck, both modes; of W also against differences of certified solves.

    Columns, one entry per problem: ``passed``, ``degenerate`` (the library refuses: no derivative), and ``difference``
    of the derivative of W along random directions from a fourth-order difference, relative to its largest entry (NaN
    for the margin).

    Examples
    --------
    >>> check_gradients(1, 0, norm="frobenius", of="W")["passed"]
    [True]
    """
    import torch

    rng, rows = np.random.default_rng(seed), []
    for _ in range(trials):
        n, T, d = (int(x) for x in rng.integers((1, 2, 2), (4, 5, 5)))
        problem = attsvm.random_problem(n=n, T=T, d=d, seed=rng, distribution="gaussian")
        X, Z = (torch.tensor(value, requires_grad=True) for value in (problem.X, problem.Z))
        selection = problem.optimal_tokens()
        if not attsvm.att_svm(problem, selection, norm=norm).status.has_solution:
            continue  # an infeasible draw has no derivative
        function = attsvm.torch.att_svm if of == "W" else attsvm.torch.margin

        def value(X: Any, Z: Any, function: Any = function, selection: Any = selection) -> Any:
            return function(X, Z, selection, norm=norm, tolerance=_SOLVE.get(norm))

        row: dict[str, Any] = {"passed": False, "degenerate": False, "difference": float("nan")}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                # Of W in random projections ("fast mode"), forward and backward: all entries would take minutes.
                row["passed"] = torch.autograd.gradcheck(
                    value, (X, Z), eps=_STEP[norm], atol=1e-4, rtol=1e-3, raise_exception=False,
                    fast_mode=of == "W", check_forward_ad=of == "W",
                )  # fmt: skip
                row["difference"] = _difference(problem, selection, norm, rng) if of == "W" else float("nan")
            except attsvm.DegenerateError:
                row["degenerate"] = True
        rows.append(row)
    return {name: [row[name] for row in rows] for name in ("passed", "degenerate", "difference")}


def _difference(problem: attsvm.AttentionProblem, selection: Any, norm: str, rng: np.random.Generator) -> float:
    """Of the derivative of W along random directions from differences of solves, relative to its largest entry."""
    dX, dZ = rng.normal(size=problem.X.shape), rng.normal(size=problem.Z.shape)

    def W(h: float) -> Any:
        moved = attsvm.AttentionProblem(problem.X + h * dX, problem.Y, problem.Z + h * dZ)
        return attsvm.att_svm(moved, selection, norm=norm, tolerance=1e-10).W

    known, best = attsvm.att_svm(problem, selection, norm=norm).derivative().jvp(X=dX, Z=dZ), np.inf
    for h in (1e-4, 1e-5):  # a kink may be nearer than the longer step
        found = (8 * (W(h) - W(-h)) - (W(2 * h) - W(-2 * h))) / (12 * h)
        best = min(best, float(np.abs(found - known).max() / np.abs(known).max()))
    return best


def run_gradients(context: Context) -> Outcome:
    """How many random problems pass, by norm."""
    cells = [{"norm": norm, "of": "margin"} for norm in NORMS_OF_MARGIN]
    cells += [{"norm": norm, "of": "W"} for norm in NORMS_OF_W]
    rows, refuted = [], []
    for cell, columns in context.sweep(check_gradients, cells, chunk=20, name="gradients"):
        passed, degenerate = np.asarray(columns["passed"], bool), np.asarray(columns["degenerate"], bool)
        off = np.asarray(columns["difference"], dtype=np.float64)
        known = off[np.isfinite(off)]
        worst = f"{known.max():.1e}" if len(known) else ""
        within = f"{int((known <= 1e-6).sum())} of {len(known)}" if len(known) else ""
        failed = int((~passed & ~degenerate).sum())
        rows.append(
            (cell["of"], cell["norm"], len(passed), int(passed.sum()), int(degenerate.sum()), failed, within, worst)
        )
        if failed:
            refuted.append(f"gradcheck of {cell['of']}, {cell['norm']}: {failed} of {len(passed)} fail")
        if len(known) and (known > 1e-6).any():
            refuted.append(f"derivative of W to 1e-6, {cell['norm']}: the worst is {known.max():.1e}")
    columns_ = ("of", "norm", "problems", "pass gradcheck", "refused as degenerate", "fail", "W within 1e-6", "worst")
    return Outcome(
        tables=[Table("Gradients at random points", columns_, rows, align="llrrrrrr")], curves={}, refuted=refuted
    )


FIGURE_GRADIENTS = Figure(
    paper="own",
    name="gradients",
    title="Whether the derivatives through the solve are right",
    protocol="""Random problems with Gaussian tokens, n = 1 to 3, T = 2 to 4, d = 2 to 4: torch's gradcheck of the
        margin in six norms and of W in two (random projections, forward and backward mode), and the derivative of W
        along random directions against fourth-order differences of certified solves.""",
    full={"trials": 200},
    quick={"trials": 5},
    run=run_gradients,
)
