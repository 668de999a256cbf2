"""The command ``attsvm demo``: the main job on an embedded default problem."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any

import typer

import attsvm
from attsvm.cli.arguments import Debug, Json
from attsvm.records import versions
from attsvm.reports.content import NORMS, RUNS
from attsvm.reports.solved import solution_record

__all__ = ["Demo", "command", "demo_record", "make_demo"]


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
        for parameterization in RUNS:
            run = attsvm.train(problem, parameterization, steps=steps, progress=progress)
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


def command(
    n: Annotated[int, typer.Option("-n", "--n", help="Sequences.")] = 6,
    tokens: Annotated[int, typer.Option("--tokens", "-T", help="Tokens per sequence.")] = 8,
    dimension: Annotated[int, typer.Option("--dimension", "-d", help="Dimension of tokens and queries.")] = 10,
    seed: Annotated[int, typer.Option(help="Seed of the random problem.")] = 3,
    steps: Annotated[int, typer.Option(help="Training steps of W and of (K, Q); 0 leaves training out.")] = 5000,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="Write the report of the problem, .html.")] = None,
    show: Annotated[bool, typer.Option("--open", help="Write the report and open it in a browser.")] = False,
    json: Json = False,
    debug: Debug = False,
) -> None:
    """Draw a problem, solve Att-SVM and Att-SVM*, train W and (K, Q), and print how well theory predicts training.

    \b
    Example: attsvm demo --seed 1 --steps 500 --json
    """  # noqa: D301
    from attsvm.cli.frame import close, open_with
    from attsvm.cli.support import check_out, print_json, show_progress
    from attsvm.comparison.tables import report_table
    from attsvm.records import console, environment
    from attsvm.reports.solved import farkas_line, solutions_table, support_table
    from attsvm.reports.verdict import runs_verdict, solution_verdict

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
        screen.print("Training was left out: it needs torch (pip install 'attsvm[torch]').", markup=False)
    screen.print(f"[dim]{environment(record['versions'])}[/dim]")
    if page:
        screen.print(f"wrote {page}: open it in a browser", markup=False)
    words = ("support", "margin", "gap", "Global, Local", "degrees", "1 - corr", "rate", "effective rank")
    more = () if page else ("attsvm demo --open",)
    close(screen, words if demo.reports else words[:3], *more, "attsvm new problem.npz && attsvm report problem.npz")


def _write_page(demo: Demo, steps: int, out: Path | None, show: bool) -> Path | None:
    """The report of the demo's problem, opened in a browser if asked for."""
    if out is None:
        return None
    from attsvm.reports import write_report

    write_report(demo.problem, out, steps=steps, name=f"attsvm demo, seed {demo.seed}")
    if show:
        import webbrowser

        webbrowser.open(out.resolve().as_uri())
    return out
