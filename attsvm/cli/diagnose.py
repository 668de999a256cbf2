"""The command ``attsvm diagnose``: which theorems apply, and what they predict."""

from __future__ import annotations

from typing import Annotated

import typer

from attsvm.cli.arguments import Debug, File, Index, Json, Quiet, Seed, Tokens
from attsvm.cli.enumerate_ import Norm

__all__ = ["command"]


def command(
    file: File,
    norm: Annotated[Norm, typer.Option(help="frobenius for W, nuclear for (K, Q).")] = Norm.FROBENIUS,
    loss: Annotated[str, typer.Option(help="logistic, exponential or correlation.")] = "logistic",
    selection: Tokens = None,
    seed: Seed = 0,
    index: Index = None,
    json: Json = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Check the assumptions of the theory on the data. Exit code 1 if no theorem applies.

    \b
    Example: attsvm diagnose problem.npz
    """  # noqa: D301
    import attsvm
    from attsvm.cli.support import open_problem, print_json, read_tokens, working
    from attsvm.records import console

    read = open_problem(file, index)
    with working("diagnosing", quiet or json):
        found = attsvm.diagnose(read.problem, read_tokens(selection, read), loss=loss, norm=norm.value, seed=seed)
    if json:
        print_json(found.to_dict())
    elif not quiet:
        console().print(str(found), markup=False)
    if not found.applies:
        raise typer.Exit(1)
