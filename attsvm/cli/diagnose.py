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
    from attsvm.cli.frame import close, open_with
    from attsvm.cli.support import each_problem, print_json, read_tokens, working
    from attsvm.records import console
    from attsvm.reports.verdict import diagnosis_verdict
    from attsvm.theory.tables import diagnosis_tables

    all_found = []
    for read in each_problem(file, index):
        with working("diagnosing", quiet or json):
            tokens = read_tokens(selection, read)
            all_found.append(attsvm.diagnose(read.problem, tokens, loss=loss, norm=norm.value, seed=seed))
    if json:
        print_json(all_found[0].to_dict() if len(all_found) == 1 else [found.to_dict() for found in all_found])
    elif not quiet:
        screen = console()
        for k, found in enumerate(all_found):
            open_with(screen, (f"Problem {k}: " if len(all_found) > 1 else "") + diagnosis_verdict(found))
            if len(all_found) == 1:
                for table in diagnosis_tables(found):
                    screen.print(table)
                for name, text in found.prediction.items():
                    screen.print(f"{name}: {text}", markup=False)
        words = ("margin", "support", "locally optimal", "A", "B.1, B.2", "C", "D", "E")
        close(screen, words, f"attsvm compare {file}", f"attsvm enumerate {file} --top 5")
    if not all(found.applies for found in all_found):
        raise typer.Exit(1)
