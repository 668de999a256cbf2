"""The ``attsvm`` command."""

from __future__ import annotations

import sys
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


def main() -> None:
    """Run the command; errors in the input end in one line on stderr and exit code 2."""
    try:
        app()
    except ValueError as error:
        print(f"attsvm: {error}", file=sys.stderr)
        sys.exit(2)
