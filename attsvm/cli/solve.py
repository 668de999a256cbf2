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
    from attsvm.cli.frame import close
    from attsvm.cli.support import check_out, open_problem, print_json, read_tokens, working
    from attsvm.files import read_problem_file
    from attsvm.records import console
    from attsvm.reports.solved import problem_record
    from attsvm.selection import read_selection

    norms = norm or ["frobenius"]
    check_out("--out", out, ".npz")
    if out is not None and len(norms) > 1:
        raise ValueError(f"--out writes one norm, got {', '.join(norms)}")
    if index is None and read_problem_file(file).problem.batch is not None:
        _solve_batch(file, norms, selection, rank, solver, out, exact, json, quiet)
        return
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
        close(console(), ("support", "margin", "gap", "locally optimal"), f"attsvm compare {file}")
    if any(solution.status != "optimal" for solution in solutions):
        raise typer.Exit(1)


def _record(solution: Any, exact: bool) -> dict[str, Any]:
    from attsvm.reports.solved import exact_record, solution_record

    record = solution_record(solution)
    if exact and (solution.status.has_solution or solution.status == "infeasible"):
        record["exact"] = exact_record(solution)
    return record


def _show(screen: Any, title: str, problem: Any, chosen: Any, solutions: list[Any], records: list[Any]) -> None:
    from attsvm.cli.frame import open_with
    from attsvm.reports.solved import solutions_table, support_table
    from attsvm.reports.verdict import solution_verdict

    open_with(screen, solution_verdict(records, problem.n))
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


def _solve_batch(
    file: Path, norms: list[str], selection: str | None, rank: int | None, solver: str, out: Path | None, exact: bool,
    json: bool, quiet: bool,
) -> None:  # fmt: skip
    """Every problem of a batch at once, one line each."""
    import attsvm
    from attsvm.cli.frame import close, open_with
    from attsvm.cli.support import print_json, working
    from attsvm.files import read_problem_file, save_arrays
    from attsvm.records import Table, console

    if selection not in (None, "optimal") or exact:
        raise ValueError(f"--selection and --exact go with one problem of the batch in {file}: add --index 0")
    read = read_problem_file(file)
    tokens = None if selection == "optimal" else read.selection
    with working("solving", quiet or json):
        solved: dict[str, Any] = {
            n: attsvm.att_svm(read.problem, tokens, norm=n, rank=rank, solver=solver) for n in norms
        }
    rows = [
        (k, name, str(one.status), *((f"{one.margin:.6f}", one.rank, f"{one.certificate.gap:.0e}")
         if one.status.has_solution else (None, None, None)))
        for name, batch in solved.items() for k, one in enumerate(batch)
    ]  # fmt: skip
    proved = sum(row[2] == "optimal" for row in rows)
    if out is not None:
        (batch,) = solved.values()
        save_arrays(out, {"W": batch.W, "margin": batch.margin, "status": [str(status) for status in batch.status]})
    if json:
        names = ("problem", "norm_name", "status", "margin", "rank", "gap")
        print_json({"batch": read.problem.batch, "solutions": [dict(zip(names, row, strict=True)) for row in rows]})
    elif not quiet:
        screen = console()
        open_with(screen, f"{proved} of {len(rows)} solutions are proved optimal.")
        screen.print(Table(f"{file}", ("problem", "norm", "status", "margin", "rank", "gap"), rows, align="rllrrr"))
        close(screen, ("margin", "gap"), f"attsvm solve {file} --index 0", f"attsvm compare {file}")
    if proved < len(rows):
        raise typer.Exit(1)
