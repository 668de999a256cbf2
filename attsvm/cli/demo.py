"""The main job on an embedded default problem."""

from __future__ import annotations

import json
import math
import platform
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import version
from importlib.util import find_spec
from typing import Any

from rich.console import Console
from rich.table import Table

import attsvm

__all__ = ["Demo", "demo_record", "make_demo", "run_demo"]

NORMS = {"frobenius": "Att-SVM", "nuclear": "Att-SVM*"}


# How each parameterization is trained: the papers' update, and the recipe that reaches the nuclear direction.
RUNS = {"W": "normalized_gd", "KQ": "ridge_decay"}


@dataclass(frozen=True, eq=False)
class Demo:
    """The problem, its solutions and the reports of its runs."""

    problem: attsvm.AttentionProblem
    seed: int
    solutions: dict[str, attsvm.Solution]
    reports: list[attsvm.Report]


def make_demo(n: int, T: int, d: int, seed: int, steps: int, progress: bool = False) -> Demo:
    """Solve and train the default problem.

    Examples
    --------
    >>> from attsvm.cli.demo import make_demo
    >>> demo = make_demo(n=2, T=3, d=4, seed=0, steps=10)
    >>> [report.run.parameterization for report in demo.reports]
    ['W', 'KQ']
    """
    problem = attsvm.random_problem(n=n, T=T, d=d, seed=seed)
    solutions = {norm: attsvm.att_svm(problem, norm=norm) for norm in NORMS}
    reports = []
    if steps:
        for parameterization, optimizer in RUNS.items():
            run = attsvm.train(problem, parameterization, steps=steps, optimizer=optimizer, progress=progress)
            reports.append(attsvm.compare(run, *solutions.values()))
    return Demo(problem, seed, solutions, reports)


def demo_record(demo: Demo) -> dict[str, Any]:
    """Everything that the demo prints, as plain data.

    Examples
    --------
    >>> from attsvm.cli.demo import demo_record, make_demo
    >>> sorted(demo_record(make_demo(n=2, T=3, d=4, seed=0, steps=0))["solutions"])
    ['frobenius', 'nuclear']
    """
    problem, selection = demo.problem, demo.problem.optimal_tokens()
    names = ["attsvm", "numpy", "scipy", *(["torch"] if demo.reports else [])]
    return {
        "problem": {"n": problem.n, "T": problem.T, "d": problem.dx, "seed": demo.seed,
                    "rows": problem.n * (problem.T - 1)},
        "selection": selection.indices.tolist(),
        "ties": {str(k): list(v) for k, v in selection.ties.items()},
        "scores": [float(problem.scores()[i, t]) for i, t in enumerate(selection.indices)],
        "solutions": {norm: _solution_record(solution) for norm, solution in demo.solutions.items()},
        "training": [report.to_dict() for report in demo.reports],
        "versions": {name: version(name) for name in names} | {"python": platform.python_version()},
    }  # fmt: skip


def _solution_record(solution: attsvm.Solution) -> dict[str, Any]:
    certificate = solution.certificate
    record: dict[str, Any] = {"status": str(solution.status), "solver": solution.solver, "seconds": solution.seconds}
    if certificate.farkas is not None:
        conflict = [solution.rows.query_index(int(o))[0] for o in solution.conflicting_queries]
        return record | {
            "farkas": {
                "sequences": conflict,
                "residual": certificate.farkas.residual,
                "excluded_norm": certificate.farkas.excluded_norm,
            }
        }
    if not solution.status.has_solution:
        return record
    record |= {
        "norm": solution.norm,
        "margin": solution.margin,
        "rank": solution.rank,
        "support": [indices.tolist() for indices in attsvm.support_indices(solution)],
        "locally_optimal": attsvm.is_locally_optimal(solution.problem, solution.selection, solution=solution),
        "certificate": {
            "gap": certificate.gap,
            "primal_violation": certificate.primal_violation,
            "dual_violation": certificate.dual_violation,
            "complementarity": certificate.complementarity,
            "lower_bound": certificate.lower_bound,
        },
    }
    rank = certificate.rank_certificate
    if rank is not None:
        record["certificate"] |= {
            "rank": rank.rank,
            "singular_gap": rank.singular_gap,
            "dual_gap": rank.dual_gap,
            "outside_mass": rank.outside_mass,
        }
    return record


def run_demo(n: int, T: int, d: int, seed: int, steps: int, as_json: bool) -> None:
    """Print the demo as tables or as one JSON object."""
    missing = find_spec("torch") is None
    demo = make_demo(n, T, d, seed, 0 if missing else steps, progress=not as_json)
    record = demo_record(demo)
    if as_json:
        print(json.dumps(_finite(record), indent=2, allow_nan=False))
        return
    console = Console()
    versions = ", ".join(f"{name} {number}" for name, number in record["versions"].items())
    console.print(
        f"[bold]attsvm demo[/bold]  n={n} sequences, T={T} tokens, d={d}, seed {seed}: "
        f"{record['problem']['rows']} constraints on a {d} x {d} matrix"
    )
    console.print(_solutions_table(record))
    if all("support" in r for r in record["solutions"].values()):
        console.print(_support_table(record))
    for norm, solution in record["solutions"].items():
        if "farkas" in solution:
            farkas = solution["farkas"]
            console.print(
                f"{NORMS[norm]} is infeasible: sequences {farkas['sequences']} conflict. The combination of their "
                f"rows cancels to {farkas['residual']:.0e}, so no W of norm below {farkas['excluded_norm']:.0e} "
                "satisfies them. Try a larger --dimension."
            )
    if demo.reports:
        from attsvm.comparison.tables import report_table

        console.print(report_table(demo.reports))
        console.print(
            "Theory says: training W follows Att-SVM and training (K, Q) follows Att-SVM*, each for the tokens that "
            "the run itself selects; Global means that these are the tokens of highest score. Columns: steps, class, "
            "rank (effective rank), 1 - correlation, margin reached, fitted rate of 1 - correlation in steps."
        )
    elif missing and steps:
        console.print("Training was left out: it needs torch (pip install 'attsvm[torch]').", markup=False)
    console.print(f"[dim]{versions}[/dim]")


def _solutions_table(record: dict[str, Any]) -> Table:
    table = Table(title="Solutions for the optimal tokens")
    table.add_column("")
    columns = record["solutions"]
    for norm in columns:
        table.add_column(f"{NORMS[norm]} ({norm})", justify="right")
    lines: list[tuple[str, Callable[[dict[str, Any]], str]]] = [
        ("status", lambda r: r["status"]),
        ("norm", lambda r: f"{r['norm']:.6f}"),
        ("margin = 1 / norm", lambda r: f"{r['margin']:.6f}"),
        ("numerical rank", lambda r: str(r["rank"])),
        ("certified rank", lambda r: str(r["certificate"].get("rank", "-"))),
        ("singular-value gap", lambda r: _power(r["certificate"].get("singular_gap"))),
        ("support tokens", lambda r: str(sum(map(len, r["support"])))),
        ("locally optimal", lambda r: "yes" if r["locally_optimal"] else "no"),
        ("relative duality gap", lambda r: f"{r['certificate']['gap']:.0e}"),
        ("primal violation", lambda r: f"{r['certificate']['primal_violation']:.0e}"),
        ("dual violation", lambda r: f"{r['certificate']['dual_violation']:.0e}"),
        ("solver", lambda r: r["solver"]),
        ("milliseconds", lambda r: f"{1e3 * r['seconds']:.1f}"),
    ]
    for name, show in lines:
        cells = []
        for solution in columns.values():
            try:
                cells.append(show(solution))
            except KeyError:  # not defined without a solution
                cells.append("-")
        table.add_row(name, *cells)
    return table


def _finite(value: Any) -> Any:
    """JSON has no infinity: write null instead."""
    if isinstance(value, dict):
        return {k: _finite(v) for k, v in value.items()}
    if isinstance(value, list):
        return [_finite(v) for v in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _power(value: float | None) -> str:
    if value is None:
        return "-"
    return "full rank" if value == float("inf") else f"{value:.0e}"


def _support_table(record: dict[str, Any]) -> Table:
    table = Table(title="Tokens per sequence")
    for name in ("sequence", "selected", "score"):
        table.add_column(name, justify="right")
    for norm in record["solutions"]:
        table.add_column(f"support ({norm})")
    for i, (token, score) in enumerate(zip(record["selection"], record["scores"], strict=True)):
        supports = [" ".join(map(str, r["support"][i])) for r in record["solutions"].values()]
        table.add_row(str(i), str(token), f"{score:+.4f}", *supports)
    return table
