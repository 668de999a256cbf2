"""The command ``attsvm train``: gradient descent on the attention weights.

The command ``attsvm compare``: training against theory.

The command ``attsvm report``: everything about a problem on one page.

The command ``attsvm demo``: the main job on an embedded default problem.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

import attsvm
from attsvm.cli.command_support import Debug, Device, File, Index, Json, Quiet, Seed, Tokens
from attsvm.records import versions
from attsvm.reports.content import NORMS, RUNS, solution_record

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

    from attsvm.problem import AttentionProblem
    from attsvm.training import Run


class Parameterization(StrEnum):
    """What is trained."""

    W = "W"
    KQ = "KQ"


def train_problem(
    problem: AttentionProblem,
    parameterization: str,
    optimizer: str | None,
    device: str | None,
    *,
    quiet: bool,
    **options: Any,
) -> Run:
    """Train with progress on stderr."""
    import attsvm
    from attsvm.cli.command_support import check_device, show_progress

    check_device(device)
    return attsvm.train(
        problem, parameterization, optimizer=optimizer, device=device, progress=show_progress(quiet), **options
    )


def train_command(
    file: File,
    parameterization: Annotated[
        Parameterization, typer.Option("--parameterization", "-p", help="Train W, or K and Q.")
    ] = Parameterization.W,
    steps: Annotated[int, typer.Option(help="Steps.")] = 2000,
    lr: Annotated[float | None, typer.Option(help="Step size [0.1; 1 / L for gd].")] = None,
    optimizer: Annotated[
        str | None, typer.Option(help="normalized_gd, gd, adam, spectral, sign, ... [KQ: ridge_decay].")
    ] = None,
    init: Annotated[str, typer.Option(help="uniform, zero or separating.")] = "uniform",
    loss: Annotated[str, typer.Option(help="logistic, exponential or correlation.")] = "logistic",
    seed: Seed = 0,
    device: Device = None,
    index: Index = None,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="Write the trajectory, .npz.")] = None,
    json: Json = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Train attention weights. Exit code 1 if W stops being finite.

    \b
    Example: attsvm train problem.npz --steps 500 --out run.npz
    """  # noqa: D301
    from attsvm.cli.command_support import check_out, close, open_whole, print_json
    from attsvm.records import console, versions
    from attsvm.reports.content import problem_record

    check_out("--out", out, ".npz")
    read = open_whole(file, index)
    try:
        run = train_problem(
            read.problem, parameterization.value, optimizer, device, quiet=quiet or json, steps=steps, lr=lr, init=init,
            loss=loss, seed=seed,
        )  # fmt: skip
    except KeyboardInterrupt as stop:
        _keep_interrupted(out, getattr(stop, "run", None), quiet)
        raise
    if out is not None:
        save_run(out, run)
    if json:
        print_json({"problem": problem_record(read.problem), "run": run_record(run), "versions": versions("torch")})
    elif not quiet:
        screen = console()
        title = f"{file}: {run.parameterization}, {run.options.optimizer_name}, seed {seed}"
        if run.batch is None:
            advice = run.status.advice.replace("lower lr", "lower --lr")
            screen.print(f"{run.status} after {int(run.steps)} steps: {advice}", style="bold", markup=False)
            screen.print(_table(run, title))
        else:
            screen.print(_batch_verdict(run), style="bold", markup=False)
            screen.print(_batch_table(run, title))
        if out is not None:
            screen.print(f"wrote {out}", markup=False)
        close(screen, (), f"attsvm compare {file} -p {run.parameterization}")
    if "not finite" in ([run.status] if run.batch is None else run.status):
        raise typer.Exit(1)


def _keep_interrupted(out: Path | None, run: Any, quiet: bool) -> None:
    """After Ctrl-C: write what there is, as far as the last snapshot."""
    if out is None or run is None:
        return
    from attsvm.records import console

    save_run(out, run)
    if not quiet:
        console(stderr=True).print(f"wrote {out}: the run up to step {run.history.steps[-1]}", markup=False)


def _batch_verdict(run: Any) -> str:
    finished = sum(status == "finished" for status in run.status)
    best = int(_optimal(run).all(axis=-1).sum())
    return f"{finished} of {run.batch} runs finished; {best} of {run.batch} end at the tokens of highest score."


def _optimal(run: Any) -> Any:
    """Which queries of each problem of a batch end at their token of highest score."""
    return (run.history.selection[-1] == run.problem.optimal_tokens().indices).reshape(run.batch, -1)


def _batch_table(run: Any, title: str) -> Any:
    from attsvm.records import Table

    same = _optimal(run)
    rows = [
        (k, str(run.status[k]), int(run.steps[k]), f"{run.history.loss[-1, k]:.6f}", f"{run.history.norm[-1, k]:.4g}",
         f"{int(same[k].sum())} of {same[k].size}")
        for k in range(run.batch)
    ]  # fmt: skip
    return Table(title, ("problem", "ended", "steps", "loss", "|W|", "optimal tokens"), rows, align="rlrrrr")


def run_record(run: Any) -> dict[str, Any]:
    """Settings, end and history of a run as plain data."""
    h = run.history
    names = ("steps", "loss", "norm", "log_gradient", "max_probability", "log_rest", "selection")
    single = run.batch is None
    return {
        "parameterization": run.parameterization,
        "status": str(run.status) if single else [str(status) for status in run.status],
        "steps": int(run.steps) if single else [int(steps) for steps in run.steps],
        "settings": {name: value for name, value in run.options.to_dict().items() if name != "snapshots"},
        "W": run.W.tolist(),
        "history": {name: getattr(h, name).tolist() for name in names},
    }


def save_run(out: Path, run: Any) -> None:
    """Write the trajectory as arrays."""
    import json

    from attsvm.files import save_arrays

    h = run.history
    names = ("steps", "W", "loss", "norm", "log_gradient", "max_probability", "log_rest", "selection")
    arrays = {name: getattr(h, name) for name in names}
    arrays |= {f"final_{name}": value for name, value in run.parameters.items()}
    status = str(run.status) if run.batch is None else [str(one) for one in run.status]
    save_arrays(out, arrays | {"settings": json.dumps(run.options.to_dict()), "status": status})


def _table(run: Any, title: str) -> Any:
    import numpy as np

    from attsvm.records import Table

    h = run.history
    best = run.problem.optimal_tokens().indices
    rows = []
    for s in np.unique(np.linspace(0, len(h) - 1, 12).round().astype(int)):
        logs = (f"{values[s] / np.log(10):.2f}" for values in (h.log_gradient, h.log_rest))
        same = f"{int((h.selection[s] == best).sum())} of {best.size}"
        rows.append((h.steps[s], f"{h.loss[s]:.6f}", f"{h.norm[s]:.4g}", *logs, same))
    columns = ("step", "loss", "|W|", "log10 |gradient|", "log10 (1 - attention)", "optimal tokens")
    return Table(title, columns, rows, align="rrrrrr")


def compare_command(
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
    from attsvm.cli.command_support import check_out, close, open_whole, open_with, print_json, read_tokens, working
    from attsvm.comparison import batch_table, report_table
    from attsvm.records import console, versions
    from attsvm.reports.content import NORMS, problem_record
    from attsvm.reports.verdicts import batch_verdict, runs_verdict
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


def report_command(
    file: File,
    out: Annotated[Path, typer.Option("--out", "-o", help="Page to write.")] = Path("report.html"),
    steps: Annotated[int, typer.Option(help="Training steps of W and of (K, Q); 0: no training.")] = 5000,
    selection: Tokens = None,
    seed: Seed = 0,
    device: Device = None,
    index: Index = None,
    graph_limit: Annotated[int, typer.Option(help="Most selections for the graph of local optima.")] = 3000,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Write one HTML page: data, diagnosis, solutions, training to scrub through, local optima.

    A batch gets a page that leads to one page per problem, report-0.html, report-1.html, ...

    \b
    Example: attsvm report problem.npz -o report.html --steps 500
    """  # noqa: D301
    from rich.progress import BarColumn

    from attsvm.cli.command_support import (
        check_device,
        check_out,
        close,
        each_problem,
        open_with,
        progress_bar,
        read_tokens,
    )
    from attsvm.records import console
    from attsvm.reports import build_content, overview_record, page_of, write_overview, write_page
    from attsvm.reports.page import batch_page_verdict
    from attsvm.reports.verdicts import page_verdict

    check_out("--out", out)
    check_device(device)
    problems = each_problem(file, index)
    many = len(problems) > 1
    records, verdict = [], ""
    with progress_bar(quiet, BarColumn()) as bar:
        task = bar.add_task("reading", total=None)
        for k, read in enumerate(problems):
            place = f"problem {k + 1} of {len(problems)}: " if many else ""
            content = build_content(
                read.problem, selection=read_tokens(selection, read), steps=steps, seed=seed, device=device,
                graph_limit=graph_limit, name=f"{file}, problem {k}" if many else str(file),
                progress=_progress(bar, task, place),
            )  # fmt: skip
            write_page(page_of(out, k) if many else out, content)
            records.append(overview_record(content))
            verdict = page_verdict(content)
        if many:
            write_overview(out, str(file), records)
            verdict = batch_page_verdict(records)
    if not quiet:
        screen = console()
        open_with(screen, verdict)
        beside = f", and {page_of(out, 0)} to {page_of(out, len(records) - 1)}" if many else ""
        screen.print(f"wrote {out} ({out.stat().st_size // 1024} KiB){beside}; open it in a browser", markup=False)
        close(screen, (), f"attsvm enumerate {file} --top 5")


def _progress(bar: Progress, task: TaskID, place: str) -> Callable[[str, int, int], object]:
    """Called with a label, the parts done and the number of parts."""
    return lambda label, done, total: bar.update(task, description=place + label, completed=done, total=total)


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
    >>> demo = make_demo(n=2, T=3, d=4, seed=0, steps=10)
    >>> [report.run.parameterization for report in demo.reports]
    ['W', 'KQ']
    """
    problem = attsvm.random_problem(n=n, T=T, d=d, seed=seed)
    solutions = {norm: attsvm.att_svm(problem, norm=norm) for norm in NORMS}
    reports = []
    if steps:
        for parameterization in RUNS:
            run = attsvm.train(problem, parameterization, steps=steps, progress=progress)
            reports.append(attsvm.compare(run, *solutions.values()))
    return Demo(problem, seed, solutions, reports)


def demo_record(demo: Demo) -> dict[str, Any]:
    """Everything that the demo prints, as plain data.

    Examples
    --------
    >>> sorted(demo_record(make_demo(n=2, T=3, d=4, seed=0, steps=0))["solutions"])
    ['frobenius', 'nuclear']
    """
    problem, selection = demo.problem, demo.problem.optimal_tokens()
    return {
        "problem": {"n": problem.n, "T": problem.T, "d": problem.dx, "seed": demo.seed,
                    "rows": problem.n * (problem.T - 1)},
        "selection": selection.indices.tolist(),
        "ties": {str(k): list(v) for k, v in selection.ties.items()},
        "scores": [float(problem.scores()[i, t]) for i, t in enumerate(selection.indices)],
        "solutions": {norm: solution_record(solution) for norm, solution in demo.solutions.items()},
        "training": [report.to_dict() for report in demo.reports],
        "versions": versions(*(["torch"] if demo.reports else [])),
    }  # fmt: skip


def demo_command(
    n: Annotated[int, typer.Option("-n", "--n", help="Sequences.")] = 6,
    tokens: Annotated[int, typer.Option("--tokens", "-T", help="Tokens per sequence.")] = 8,
    dimension: Annotated[int, typer.Option("--dimension", "-d", help="Dimension of tokens and queries.")] = 10,
    seed: Annotated[int, typer.Option(help="Seed of the random problem.")] = 3,
    steps: Annotated[int, typer.Option(help="Training steps of W and of (K, Q); 0: no training.")] = 5000,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="Write the report of the problem, .html.")] = None,
    show: Annotated[bool, typer.Option("--open", help="Write the report and open it in a browser.")] = False,
    json: Json = False,
    debug: Debug = False,
) -> None:
    """Draw a problem, solve Att-SVM and Att-SVM*, train W and (K, Q), and print how well theory predicts training.

    \b
    Example: attsvm demo --seed 1 --steps 500 --json
    """  # noqa: D301
    from attsvm.cli.command_support import check_out, close, open_with, print_json, show_progress
    from attsvm.comparison import report_table
    from attsvm.records import console, environment
    from attsvm.reports.content import farkas_line, solutions_table, support_table
    from attsvm.reports.verdicts import runs_verdict, solution_verdict

    check_out("--out", out, ".html")
    missing = find_spec("torch") is None
    demo = make_demo(n, tokens, dimension, seed, 0 if missing else steps, progress=show_progress(json))
    record = demo_record(demo)
    page = _write_page(demo, steps, out or (Path("attsvm-demo.html") if show else None), show)
    if json:
        print_json(record)
        return
    screen = console()
    open_with(screen, f"{solution_verdict(list(record['solutions'].values()), n)} {runs_verdict(demo.reports)}".strip())
    screen.print(
        f"[bold]attsvm demo[/bold]  n={n} sequences, T={tokens} tokens, d={dimension}, seed {seed}: "
        f"{record['problem']['rows']} constraints on a {dimension} x {dimension} matrix"
    )
    solved = list(record["solutions"].values())
    screen.print(solutions_table(solved, "Solutions for the optimal tokens"))
    if all("support" in r for r in solved):
        screen.print(support_table(demo.problem, demo.problem.optimal_tokens(), solved))
    for solution in solved:
        if "farkas" in solution:
            screen.print(farkas_line(solution, "Try a larger --dimension."), markup=False)
    if demo.reports:
        screen.print(report_table(demo.reports))
        screen.print(
            "Theory says: training W follows Att-SVM and training (K, Q) follows Att-SVM*, each for the tokens that "
            "the run itself selects."
        )
    elif missing and steps:
        screen.print("Training was skipped: it needs torch (pip install 'attsvm[torch]').", markup=False)
    screen.print(f"[dim]{environment(record['versions'])}[/dim]")
    if page:
        screen.print(f"wrote {page}: open it in a browser", markup=False)
    words = ("support", "margin", "gap", "Global, Local", "degrees", "1 - corr", "rate", "effective rank")
    more = () if page else ("attsvm demo --open",)
    close(screen, words if demo.reports else words[:3], *more, "attsvm new problem.npz && attsvm report problem.npz")


def _write_page(demo: Demo, steps: int, out: Path | None, show: bool) -> Path | None:
    """The report of the demo's problem, opened in a browser on request."""
    if out is None:
        return None
    from attsvm.reports import write_report

    write_report(demo.problem, out, steps=steps, name=f"attsvm demo, seed {demo.seed}")
    if show:
        import webbrowser

        webbrowser.open(out.resolve().as_uri())
    return out
