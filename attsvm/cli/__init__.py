"""The ``attsvm`` command."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

import attsvm

__all__ = ["app", "main"]

app = typer.Typer(
    name="attsvm",
    help="Softmax attention as a max-margin machine: solve its SVMs with certificates.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
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
) -> None:
    """Options of the command itself."""


@app.command()
def demo(
    n: Annotated[int, typer.Option(help="Sequences.")] = 6,
    tokens: Annotated[int, typer.Option("--tokens", "-T", help="Tokens per sequence.")] = 8,
    dimension: Annotated[int, typer.Option("--dimension", "-d", help="Dimension of tokens and queries.")] = 10,
    seed: Annotated[int, typer.Option(help="Seed of the random problem.")] = 3,
    steps: Annotated[int, typer.Option(help="Training steps of W and of (K, Q); 0 leaves training out.")] = 5000,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of tables.")] = False,
) -> None:
    """Draw a problem, solve Att-SVM and Att-SVM*, train W and (K, Q), and print how well theory predicts training.

    Example: attsvm demo --seed 1 --json
    """
    from attsvm.cli.demo import run_demo

    run_demo(n=n, T=tokens, d=dimension, seed=seed, steps=steps, as_json=json)


@app.command()
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
) -> None:
    """Reproduce figures of the papers: tables, JSON, pictures. Stopped runs resume where they were.

    Example: attsvm validate fig5 --quick
    """
    from attsvm.cli.validate import list_figures, run_validate

    if listing:
        for paper, name, title in list_figures():
            typer.echo(f"{paper:15s} {name:14s} {title}")
        return
    run_validate(figures or [], everything=everything, trials=trials, seed=seed, quick=quick, out=out, device=device,
                 workers=workers, fresh=fresh, quiet=quiet)  # fmt: skip


@app.command()
def claims(
    ids: Annotated[list[str] | None, typer.Argument(help="Claims by id (default: all).")] = None,
    paper: Annotated[list[str] | None, typer.Option(help="svm, conditioning, polarization, ... (repeatable).")] = None,
    run: Annotated[bool, typer.Option("--run", help="Measure again and compare with the stored verdicts.")] = False,
    seed: Annotated[int, typer.Option(help="Seed of the random instances.")] = 0,
    trials: Annotated[int | None, typer.Option(help="Instances per check instead of each claim's own number.")] = None,
    json: Annotated[bool, typer.Option("--json", help="Print records.")] = False,
    markdown: Annotated[bool, typer.Option("--markdown", help="Print the documentation's page.")] = False,
) -> None:
    """What the papers claim and what of it holds, with checks that run again. Exit code 1 if one is not confirmed.

    Example: attsvm claims --paper svm --run
    """
    from attsvm.cli.claims import run_claims

    confirmed = run_claims(
        paper or [], ids=ids or [], run=run, seed=seed, trials=trials, as_json=json, markdown=markdown
    )
    if not confirmed:
        raise typer.Exit(1)


def main() -> None:
    """Run the command; errors in the input end in one line on stderr and exit code 2."""
    try:
        app()
    except ValueError as error:
        print(f"attsvm: {error}", file=sys.stderr)
        sys.exit(2)
