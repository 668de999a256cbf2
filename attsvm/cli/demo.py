"""The main job on an embedded default problem."""

from __future__ import annotations

import json
import math
import platform
from importlib.metadata import version
from collections.abc import Callable
from typing import Any

from rich.console import Console
from rich.table import Table

import attsvm

__all__ = ["demo_record", "run_demo"]

NORMS = {"frobenius": "Att-SVM", "nuclear": "Att-SVM*"}


def demo_record(n: int, T: int, d: int, seed: int) -> dict[str, Any]:
    """Everything that the demo prints, as plain data.

    Examples
    --------
    >>> from attsvm.cli.demo import demo_record
    >>> sorted(demo_record(n=2, T=3, d=4, seed=0)["solutions"])
    ['frobenius', 'nuclear']
    """
    problem = attsvm.random_problem(n=n, T=T, d=d, seed=seed)
    selection = problem.optimal_tokens()
    solutions = {norm: attsvm.att_svm(problem, selection, norm=norm) for norm in NORMS}
    return {
        "problem": {"n": n, "T": T, "d": d, "seed": seed, "rows": n * (T - 1)},
        "selection": selection.indices.tolist(),
        "ties": {str(k): list(v) for k, v in selection.ties.items()},
        "scores": [float(problem.scores()[i, t]) for i, t in enumerate(selection.indices)],
        "solutions": {norm: _solution_record(solution) for norm, solution in solutions.items()},
        "versions": {name: version(name) for name in ("attsvm", "numpy", "scipy", "cvxpy", "clarabel")}
        | {"python": platform.python_version()},
    }


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


def run_demo(n: int, T: int, d: int, seed: int, as_json: bool) -> None:
    """Print the demo as tables or as one JSON object."""
    record = demo_record(n, T, d, seed)
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
