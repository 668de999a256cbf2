"""The command ``attsvm solve``: an attention SVM with its certificate."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from attsvm.cli.arguments import Debug, File, Index, Json, Quiet, Tokens

__all__ = ["command"]


def command(
    file: File,
    norm: Annotated[
        list[str] | None,
        typer.Option("--norm", metavar="NORM", help="frobenius, nuclear, spectral, l1, linf, l<p>; repeatable."),
    ] = None,
    rank: Annotated[int | None, typer.Option(help="Largest rank of W (nuclear norm).")] = None,
    solver: Annotated[str, typer.Option(help="auto, an own solver, or cvxpy, cvxpy:SCS, ...")] = "auto",
    selection: Tokens = None,
    index: Index = None,
    exact: Annotated[bool, typer.Option("--exact", help="Prove it again in rational arithmetic (small).")] = False,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="Write the solution, .npz (one norm).")] = None,
    json: Json = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Solve Att-SVM and certify the answer. Exit code 1 unless it is proved optimal.

    \b
    Example: attsvm solve problem.npz --norm frobenius --norm nuclear
    """  # noqa: D301
    import attsvm
    from attsvm.cli.support import check_out, open_problem, print_json, read_tokens, working
    from attsvm.records import console
    from attsvm.reports.solved import problem_record
    from attsvm.selection import read_selection

    norms = norm or ["frobenius"]
    check_out("--out", out, ".npz")
    if out is not None and len(norms) > 1:
        raise ValueError(f"--out writes one norm, got {', '.join(norms)}")
    read = open_problem(file, index)
    chosen = read_selection(read.problem, read_tokens(selection, read))
    solutions = []
    for name in norms:
        with working(f"solving ({name})", quiet or json):
            solutions.append(attsvm.att_svm(read.problem, chosen, norm=name, rank=rank, solver=solver))
    records = [_record(solution, exact) for solution in solutions]
    if out is not None:
        _save(out, solutions[0], records[0])
    if json:
        print_json({"problem": problem_record(read.problem, chosen), "solutions": records})
    elif not quiet:
        _show(console(), f"{file}", read.problem, chosen, solutions, records)
        if out is not None:
            console().print(f"wrote {out}", markup=False)
    if any(solution.status != "optimal" for solution in solutions):
        raise typer.Exit(1)


def _record(solution: Any, exact: bool) -> dict[str, Any]:
    from attsvm.reports.solved import exact_record, solution_record

    record = solution_record(solution)
    if exact and (solution.status.has_solution or solution.status == "infeasible"):
        record["exact"] = exact_record(solution)
    return record


def _show(screen: Any, title: str, problem: Any, chosen: Any, solutions: list[Any], records: list[Any]) -> None:
    from attsvm.reports.solved import solutions_table, support_table

    screen.print(solutions_table(records, title))
    solved = [record for record in records if "support" in record]
    if solved:
        screen.print(support_table(problem, chosen, solved))
    for solution, record in zip(solutions, records, strict=True):
        for line in _remarks(solution, record):
            screen.print(line, markup=False)


def _remarks(solution: Any, record: dict[str, Any]) -> Iterator[str]:
    """What the table does not say of a solution."""
    from attsvm.reports.solved import exact_line, farkas_line

    if "farkas" in record:
        yield farkas_line(record, "Choose another --selection or a larger dimension.")
    elif solution.status != "optimal":
        yield f"{record['norm_name']}: {solution.reason}. {solution.status.advice}"
    if "exact" in record:
        yield exact_line(record, record["exact"])


def _save(out: Path, solution: Any, record: dict[str, Any]) -> None:
    import json

    import numpy as np

    from attsvm.files import save_arrays
    from attsvm.records import plain

    arrays: dict[str, Any] = {"selection": solution.selection.indices, "record": json.dumps(plain(record))}
    if solution.status.has_solution:
        arrays |= {
            "W": solution.W,
            "singular_values": np.linalg.svd(solution.W, compute_uv=False),
            "margins": solution.token_margins(),
            "multipliers": solution.multipliers,
            "support": solution.support,
        }
    save_arrays(out, arrays)
