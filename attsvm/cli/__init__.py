"""The ``attsvm`` command."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

import attsvm
from attsvm.cli import bench, compare, diagnose, enumerate_, new, report, solve, train
from attsvm.cli.arguments import Debug
from attsvm.cli.run import run_app

__all__ = ["app", "main"]

app = typer.Typer(
    name="attsvm",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # plain help is half as long
    context_settings={"max_content_width": 110, "help_option_names": ["-h", "--help"]},
)


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"attsvm {attsvm.__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version and exit.")
    ] = False,
    debug: Debug = False,
) -> None:
    """Softmax attention as a max-margin machine: solve its SVMs with certificates, train, compare.

    \b
    Example: attsvm new problem.npz && attsvm solve problem.npz
    Exit codes: 0 done, 1 ran but the answer is negative or not proved, 2 bad input, 130 interrupted.
    """  # noqa: D301


@app.command(short_help="Do the main job on a random problem.")
def demo(
    n: Annotated[int, typer.Option(help="Sequences.")] = 6,
    tokens: Annotated[int, typer.Option("--tokens", "-T", help="Tokens per sequence.")] = 8,
    dimension: Annotated[int, typer.Option("--dimension", "-d", help="Dimension of tokens and queries.")] = 10,
    seed: Annotated[int, typer.Option(help="Seed of the random problem.")] = 3,
    steps: Annotated[int, typer.Option(help="Training steps of W and of (K, Q); 0 leaves training out.")] = 5000,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of tables.")] = False,
    debug: Debug = False,
) -> None:
    """Draw a problem, solve Att-SVM and Att-SVM*, train W and (K, Q), and print how well theory predicts training.

    \b
    Example: attsvm demo --seed 1 --steps 500 --json
    """  # noqa: D301
    from attsvm.cli.demo import run_demo

    run_demo(n=n, T=tokens, d=dimension, seed=seed, steps=steps, as_json=json)


# Each command's options stand beside what it does; this is the order of the help.
app.command("new", short_help="Write an example problem file.")(new.command)
app.command("solve", short_help="Solve an attention SVM with a certificate.")(solve.command)
app.command("train", short_help="Train attention weights by gradient descent.")(train.command)
app.command("compare", short_help="Train, and say how well theory predicts it.")(compare.command)
app.command("enumerate", short_help="List every locally optimal selection.")(enumerate_.command)
app.command("diagnose", short_help="Say which theorems apply to the data.")(diagnose.command)
app.command("report", short_help="Write all of this as one HTML page.")(report.command)


@app.command(short_help="Reproduce figures of the papers.")
def validate(
    figures: Annotated[list[str] | None, typer.Argument(help="Figures, each paper's name before its own.")] = None,
    everything: Annotated[bool, typer.Option("--all", help="Every figure of the named papers (default: svm).")] = False,
    listing: Annotated[bool, typer.Option("--list", help="List the figures and exit.")] = False,
    trials: Annotated[int | None, typer.Option(help="Trials instead of the paper's number.")] = None,
    seed: Annotated[int, typer.Option(help="Seed of everything random.")] = 0,
    quick: Annotated[bool, typer.Option("--quick", help="Small settings, seconds per figure.")] = False,
    out: Annotated[Path | None, typer.Option(help="Folder of results [validation-results/full or /quick].")] = None,
    device: Annotated[str | None, typer.Option(help="Torch device of training.")] = None,
    workers: Annotated[int | None, typer.Option(help="Processes; 0 computes in this one [one per core].")] = None,
    fresh: Annotated[bool, typer.Option("--fresh", help="Discard stored results first.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="Write files only.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print the records instead of tables.")] = False,
    debug: Debug = False,
) -> None:
    """Reproduce figures of the papers: tables, JSON, pictures. Stopped runs resume where they were.

    \b
    Example: attsvm validate --list
             attsvm validate fig5 --quick
    """  # noqa: D301
    from attsvm.cli.validate import list_figures, run_validate

    if listing:
        for paper, name, title in list_figures():
            typer.echo(f"{paper:15s} {name:14s} {title}")
        return
    run_validate(figures or [], everything=everything, trials=trials, seed=seed, quick=quick, out=out, device=device,
                 workers=workers, fresh=fresh, quiet=quiet, as_json=json)  # fmt: skip


@app.command(short_help="Show what the papers claim and what holds.")
def claims(
    ids: Annotated[list[str] | None, typer.Argument(help="Claims by id (default: all).")] = None,
    paper: Annotated[list[str] | None, typer.Option(help="svm, conditioning, polarization, ... (repeatable).")] = None,
    run: Annotated[bool, typer.Option("--run", help="Measure again and compare with the stored verdicts.")] = False,
    seed: Annotated[int, typer.Option(help="Seed of the random instances.")] = 0,
    trials: Annotated[int | None, typer.Option(help="Instances per check instead of each claim's own number.")] = None,
    json: Annotated[bool, typer.Option("--json", help="Print records.")] = False,
    markdown: Annotated[bool, typer.Option("--markdown", help="Print the documentation's page of all claims.")] = False,
    wrong: Annotated[bool, typer.Option("--wrong", help="Print the page of what the papers got wrong.")] = False,
    debug: Debug = False,
) -> None:
    """What the papers claim and what of it holds, with checks that run again. Exit code 1 if one is not confirmed.

    \b
    Example: attsvm claims svm:thm1 --run
    """  # noqa: D301
    from attsvm.cli.claims import run_claims

    confirmed = run_claims(
        paper or [], ids=ids or [], run=run, seed=seed, trials=trials, as_json=json, markdown=markdown, wrong=wrong
    )
    if not confirmed:
        raise typer.Exit(1)


app.command("bench", short_help="Measure speed against other solvers.")(bench.command)


def main() -> None:
    """Run the command; errors end in one line on stderr and a meaningful exit code."""
    run_app(app)
