"""The command ``attsvm enumerate``: every candidate limit of training."""

from __future__ import annotations

import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from attsvm.cli.arguments import Debug, File, Index, Json, Quiet, Seed

__all__ = ["Mode", "Norm", "command"]


class Norm(StrEnum):
    """Whose supports decide local optimality."""

    FROBENIUS = "frobenius"
    NUCLEAR = "nuclear"


class Mode(StrEnum):
    """How the selections are searched."""

    AUTO = "auto"
    EXHAUSTIVE = "exhaustive"
    SEARCH = "search"
    HEURISTIC = "heuristic"


def command(
    file: File,
    top: Annotated[int | None, typer.Option(help="Only the k of largest margin.")] = None,
    limit: Annotated[int | None, typer.Option(help="Stop once this many are found.")] = None,
    norm: Annotated[Norm, typer.Option(help="Norm of the margin.")] = Norm.FROBENIUS,
    mode: Annotated[Mode, typer.Option(help="How to search.")] = Mode.AUTO,
    time_limit: Annotated[float | None, typer.Option(help="Stop after about this many seconds.")] = None,
    graph: Annotated[Path | None, typer.Option(help="Graph of swaps, .graphml, .png, .svg or .pdf.")] = None,
    seed: Seed = 0,
    index: Index = None,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="Write the list, .npz.")] = None,
    json: Json = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """List the locally optimal selections. Exit code 1 unless the list is proved complete.

    \b
    Example: attsvm enumerate problem.npz --top 5
    """  # noqa: D301
    import attsvm
    from attsvm.cli.frame import close, open_with
    from attsvm.cli.support import check_out, open_problem, print_json, show_progress
    from attsvm.files import save_arrays
    from attsvm.records import console

    check_out("--graph", graph, ".graphml", ".png", ".svg", ".pdf")
    check_out("--out", out, ".npz")
    problem = open_problem(file, index).problem
    silent = quiet or json
    found = attsvm.locally_optimal_selections(
        problem, limit, top, norm=norm.value, mode=mode.value, time_limit=time_limit, seed=seed,
        progress=show_progress(silent),
    )  # fmt: skip
    decided = graph is None or _write_graph(graph, problem, norm.value, silent)
    if out is not None:
        save_arrays(
            out,
            {"selections": found.selections, "margins": found.margins, "norms": found.norms, "gaps": found.gaps,
             "complete": found.complete, "bound": found.bound},
        )  # fmt: skip
    if json:
        print_json(_record(found))
    elif not quiet:
        screen = console()
        proof = "the list is proved complete" if found.complete else f"not proved complete, bound {found.bound:.4g}"
        several = "selections are" if len(found) != 1 else "selection is"
        open_with(screen, f"{len(found)} {several} locally optimal: places where training can end; {proof}.")
        screen.print(_table(found, f"{file}"))
        counts = found.counts
        screen.print(
            f"{len(found)} found among {counts.selections:,} selections ({found.mode}, {counts.solves:,} solves, "
            f"{found.seconds:.1f} s): {proof}",
            markup=False,
        )
        for path in (graph if decided else None, out):
            if path is not None:
                screen.print(f"wrote {path}", markup=False)
        close(screen, ("selection", "margin", "locally optimal"), f"attsvm report {file} -o report.html")
    if not (found.complete and decided):
        raise typer.Exit(1)


def _record(found: Any) -> dict[str, Any]:
    return {
        "norm_name": found.norm_name,
        "mode": found.mode,
        "complete": found.complete,
        "bound": found.bound,
        "counts": found.counts.as_dict(),
        "seconds": found.seconds,
        "undecided": [{"tokens": u.selection.indices.tolist(), "reason": u.reason} for u in found.undecided],
        "selections": [
            {"tokens": item.selection.indices.tolist(), "margin": item.margin, "norm": item.norm, "gap": item.gap}
            for item in found
        ],
    }


def _write_graph(path: Path, problem: Any, norm: str, silent: bool) -> bool:
    """Write the graph of all selections; False when one of them could not be certified."""
    import attsvm
    from attsvm.cli.support import working
    from attsvm.enumeration import draw_selection_graph, write_graphml

    try:
        with working("graph", silent):
            graph = attsvm.selection_graph(problem, norm=norm)
    except RuntimeError as error:
        print(f"attsvm: {error}", file=sys.stderr)
        return False
    if path.suffix == ".graphml":
        write_graphml(graph, path)
        return True
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure = draw_selection_graph(graph).get_figure(root=True)
    assert figure is not None
    figure.savefig(path, dpi=150)
    plt.close(figure)
    return True


def _table(found: Any, heading: str, most: int = 50) -> Any:
    import numpy as np

    from attsvm.records import Table

    scores, best = found.problem.scores(), found.problem.optimal_tokens()
    rows: list[tuple[object, ...]] = []
    for place, item in enumerate(found[:most]):
        chosen = np.take_along_axis(scores, item.selection.indices[..., None], axis=-1)
        tokens = " ".join(map(str, item.tokens)) + (" (optimal tokens)" if item.selection == best else "")
        rows.append((place + 1, f"{item.margin:.6f}", f"{chosen.mean():+.4f}", f"{item.gap:.0e}", tokens))
    if len(found) > most:
        rows.append(("...", "", "", "", f"{len(found) - most} more: --json or --out lists them all"))
    title = f"{heading}: locally optimal selections ({found.norm_name})"
    return Table(title, ("", "margin", "mean score", "gap", "tokens"), rows, align="rrrrl")
