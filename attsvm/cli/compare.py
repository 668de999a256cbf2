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
    steps: Annotated[int, typer.Option(help="Steps.")] = 2000,
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
    from attsvm.cli.frame import close, open_with
    from attsvm.cli.support import check_out, open_whole, print_json, read_tokens, working
    from attsvm.cli.train import train_problem
    from attsvm.comparison.tables import batch_table, report_table
    from attsvm.records import console, versions
    from attsvm.reports.content import NORMS
    from attsvm.reports.solved import problem_record
    from attsvm.reports.verdict import batch_verdict, runs_verdict
    from attsvm.selection import read_selection

    check_out("--out", out, ".csv", ".json")
    read = open_whole(file, index)
    many = read.problem.batch is not None
    chosen = read_selection(read.problem, read_tokens(selection, read))
    silent = quiet or json
    with working("solving", silent):
        solutions = [attsvm.att_svm(read.problem, chosen, norm=norm) for norm in NORMS]
    reports: list[Any] = []
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
        open_with(screen, batch_verdict(reports) if many else runs_verdict(reports))
        for table in map(batch_table, reports) if many else [report_table(reports)]:
            screen.print(table)
        if out is not None:
            screen.print(f"wrote {out}", markup=False)
        words = ("Global, Local", "margin", "Att-SVM", "Att-SVM*", "degrees", "1 - corr", "rate")
        ranks = () if many else ("effective rank",)
        close(screen, words + ranks, f"attsvm report {file} -o report.html", f"attsvm diagnose {file}")
    if not all(_is_local(report, many) for report in reports):
        raise typer.Exit(1)


def _is_local(report: Any, many: bool) -> bool:
    """Whether every run ended in a selection that is proved locally optimal."""
    ends = report.convergence_counts() if many else [report.convergence]
    return all(end in ("Global", "Local") for end in ends)


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
