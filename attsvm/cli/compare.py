"""The command ``attsvm compare``: training against theory."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from attsvm.cli.arguments import Debug, Device, File, Index, Json, Quiet, Seed, Tokens
from attsvm.cli.train import Parameterization

__all__ = ["command"]


def command(
    file: File,
    parameterization: Annotated[
        list[Parameterization] | None, typer.Option("--parameterization", "-p", help="Train W, KQ [both].")
    ] = None,
    steps: Annotated[int, typer.Option(help="Steps.")] = 5000,
    lr: Annotated[float | None, typer.Option(help="Step size [0.1].")] = None,
    optimizer: Annotated[str | None, typer.Option(help="See attsvm train.")] = None,
    selection: Tokens = None,
    seed: Seed = 0,
    device: Device = None,
    index: Index = None,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="Write every snapshot, .csv or .json.")] = None,
    json: Json = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Train, and say how well the SVMs predict it. Exit code 1 if a run ends on no local optimum.

    \b
    Example: attsvm compare problem.npz --steps 500
    """  # noqa: D301
    import attsvm
    from attsvm.cli.support import check_out, open_problem, print_json, read_tokens, working
    from attsvm.cli.train import train_problem
    from attsvm.comparison.tables import report_table
    from attsvm.records import console, versions
    from attsvm.reports.content import NORMS
    from attsvm.reports.solved import problem_record
    from attsvm.selection import read_selection

    check_out("--out", out, ".csv", ".json")
    read = open_problem(file, index)
    chosen = read_selection(read.problem, read_tokens(selection, read))
    silent = quiet or json
    with working("solving", silent):
        solutions = [attsvm.att_svm(read.problem, chosen, norm=norm) for norm in NORMS]
    reports = []
    for form in parameterization or list(Parameterization):
        run = train_problem(read.problem, form.value, optimizer, device, quiet=silent, steps=steps, lr=lr, seed=seed)
        with working("comparing", silent):
            reports.append(attsvm.compare(run, *solutions))
    if out is not None:
        _save(out, reports)
    if json:
        record = [report.to_dict() for report in reports]
        print_json({"problem": problem_record(read.problem, chosen), "runs": record, "versions": versions("torch")})
    elif not quiet:
        screen = console()
        screen.print(report_table(reports))
        screen.print(
            "Global: the run selects the tokens of highest score; Local: other tokens that are locally optimal. "
            "Columns: docs/command_line.md."
        )
        if out is not None:
            screen.print(f"wrote {out}", markup=False)
    if any(report.convergence not in ("Global", "Local") for report in reports):
        raise typer.Exit(1)


def _save(out: Path, reports: list[Any]) -> None:
    import csv
    import io

    from attsvm.records import atomic_write, write_json

    records = [{"run": report.run.parameterization} | record for report in reports for record in report.records()]
    if out.suffix == ".json":
        write_json(out, records)
        return
    text = io.StringIO()
    writer = csv.DictWriter(text, list(records[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(records)
    with atomic_write(out) as stream:
        stream.write(text.getvalue().encode())
