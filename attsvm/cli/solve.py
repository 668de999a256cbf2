"""The command ``attsvm solve``: an attention SVM with its certificate."""

from __future__ import annotations

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
    from attsvm.reports.solved import (
        exact_line,
        exact_record,
        farkas_line,
        problem_record,
        solution_record,
        solutions_table,
        support_table,
    )
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
    records = [solution_record(solution) for solution in solutions]
    if exact:
        for solution, record in zip(solutions, records, strict=True):
            if solution.status.has_solution or solution.status == "infeasible":
                record["exact"] = exact_record(solution)
    if out is not None:
        _save(out, solutions[0], records[0])
    if json:
        print_json({"problem": problem_record(read.problem, chosen), "solutions": records})
    elif not quiet:
        screen = console()
        screen.print(solutions_table(records, f"{file}"))
        solved = [record for record in records if "support" in record]
        if solved:
            screen.print(support_table(read.problem, chosen, solved))
        for solution, record in zip(solutions, records, strict=True):
            if "farkas" in record:
                advice = "Choose another --selection or a larger dimension."
                screen.print(farkas_line(record, advice), markup=False)
            elif solution.status != "optimal":
                screen.print(f"{record['norm_name']}: {solution.status.advice}", markup=False)
            if "exact" in record:
                screen.print(exact_line(record, record["exact"]), markup=False)
        if out is not None:
            screen.print(f"wrote {out}", markup=False)
    if any(solution.status != "optimal" for solution in solutions):
        raise typer.Exit(1)


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
