"""The ``attsvm`` command."""

from __future__ import annotations

from typing import Annotated

import typer

import attsvm
from attsvm.cli import model_commands, problem_commands, run_commands, validation_commands
from attsvm.cli.command_support import run_app

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
    debug: Annotated[bool, typer.Option("--debug", hidden=True)] = False,  # every command shows it
) -> None:
    """\b
    Max-margin token selection of softmax attention: solve, train, compare, patch.
    Example: attsvm new problem.npz && attsvm solve problem.npz
    Exit codes: 0 done, 1 negative or not proved, 2 bad input, 130 interrupted.
    """  # noqa: D205, D301


# Each command's options stand beside what it does; this is the order of the help.
app.command("demo", short_help="Solve and train on a random problem.")(run_commands.demo_command)
app.command("new", short_help="Write an example problem file.")(problem_commands.new_command)
app.command("solve", short_help="Solve an attention SVM with a certificate.")(problem_commands.solve_command)
app.command("train", short_help="Train attention weights by gradient descent.")(run_commands.train_command)
app.command("compare", short_help="Train, and compare with the prediction.")(run_commands.compare_command)
app.command("enumerate", short_help="List every locally optimal selection.")(problem_commands.enumerate_command)
app.command("diagnose", short_help="List the theorems that apply to the data.")(problem_commands.diagnose_command)
app.command("report", short_help="Write all of this as one HTML page.")(run_commands.report_command)
app.command("probe", short_help="Measure every head of a trained transformer.")(model_commands.probe_command)
app.command("patch", short_help="Repair a retriever, keep its golden answers.")(model_commands.patch_command)
app.command("validate", short_help="Reproduce figures of the papers.")(validation_commands.validate_command)
app.command("claims", short_help="Show which statements of the papers hold.")(validation_commands.claims_command)
app.command("bench", short_help="Measure speed against other solvers.")(validation_commands.bench_command)


def main() -> None:
    """Run the command; errors end in one line on stderr and a meaningful exit code."""
    run_app(app)
