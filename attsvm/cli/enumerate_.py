"""The command ``attsvm enumerate``: every candidate limit of training."""

from __future__ import annotations

import sys
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from attsvm._lazy import need
from attsvm.cli.arguments import Debug, File, Index, Json, Quiet, Seed

if TYPE_CHECKING:
    from attsvm.enumeration import LocalOptima
    from attsvm.exact_local import ExactListing
    from attsvm.problem import AttentionProblem

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
    mode: Annotated[Mode, typer.Option(metavar="MODE", help="auto, exhaustive, search or heuristic.")] = Mode.AUTO,
    time_limit: Annotated[float | None, typer.Option(help="Stop after about this many seconds.")] = None,
    exact: Annotated[bool, typer.Option("--exact", help="Decide every selection in rationals (small).")] = False,
    graph: Annotated[Path | None, typer.Option(help="Graph of swaps, .graphml, .png, .svg or .pdf.")] = None,
    seed: Seed = 0,
    index: Index = None,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="Write the list, .npz.")] = None,
    json: Json = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """List the locally optimal selections. Exit code 1 unless every list is proved.

    \b
    Example: attsvm enumerate problem.npz --top 5
    """  # noqa: D301
    from attsvm.cli.support import check_out, each_problem, print_json
    from attsvm.files import save_arrays
    from attsvm.records import console

    check_out("--out", out, ".npz")
    problems = [read.problem for read in each_problem(file, index)]
    if exact:
        _check_exact(problems, norm)
    _check_graph(graph, file, len(problems))
    silent = quiet or json
    listings = [_listing(problem, limit, top, norm, mode, time_limit, seed, silent) for problem in problems]
    again = [found.exact() for found in listings] if exact else []
    decided = graph is None or _write_graph(graph, problems[0], norm.value, silent)
    if out is not None:
        save_arrays(out, _arrays(listings))
    if json:
        records = _records(listings, again)
        print_json(records[0] if len(records) == 1 else records)
    elif not quiet:
        _show(console(), f"{file}", listings, again, [graph if decided else None, out])
    if not (_all_proved(listings, again, top) and decided):
        raise typer.Exit(1)


def _all_proved(listings: list[LocalOptima], again: list[ExactListing], top: int | None) -> bool:
    """Whether every list is proved: complete, or with ``--top`` to hold the best."""
    lists = all(found.complete or (top is not None and found.proved_best) for found in listings)
    return lists and all(decision.complete for decision in again)


def _check_graph(graph: Path | None, file: Path, problems: int) -> None:
    """Refuse a graph that could not be drawn before any work is done."""
    from attsvm.cli.support import check_out

    check_out("--graph", graph, ".graphml", ".png", ".svg", ".pdf")
    if graph is None:
        return
    if problems > 1:
        raise ValueError(f"--graph draws one problem of the batch in {file}: add --index 0")
    if graph.suffix != ".graphml":
        need(f"--graph {graph}", "matplotlib")


def _listing(
    problem: AttentionProblem, limit: int | None, top: int | None, norm: Norm, mode: Mode, time_limit: float | None,
    seed: int, silent: bool,
) -> LocalOptima:  # fmt: skip
    import attsvm
    from attsvm.cli.support import show_progress

    return attsvm.locally_optimal_selections(
        problem, limit, top, norm=norm.value, mode=mode.value, time_limit=time_limit, seed=seed,
        progress=show_progress(silent),
    )  # fmt: skip


def _check_exact(problems: list[Any], norm: Norm) -> None:
    """Refuse what is not decided one selection at a time, before any work is done."""
    import math

    from attsvm.exact_local import EXACT_SELECTIONS

    if norm is not Norm.FROBENIUS:
        raise ValueError("--exact lists go with --norm frobenius; nuclear solutions need not be unique")
    count = max(math.prod(problem.allowed.reshape(-1, problem.T).sum(axis=-1).tolist()) for problem in problems)
    if count > EXACT_SELECTIONS:
        raise ValueError(f"--exact decides up to {EXACT_SELECTIONS:,} selections one by one, got {count:,}")


def _records(listings: list[Any], again: list[Any]) -> list[dict[str, Any]]:
    exact = [{"exact": _exact_record(decision)} for decision in again] or [{}] * len(listings)
    return [_record(found) | more for found, more in zip(listings, exact, strict=True)]


def _exact_record(decision: Any) -> dict[str, Any]:
    return {
        "complete": decision.complete,
        "locally_optimal": len(decision.items),
        "selections": decision.selections,
        "missing": [list(tokens) for tokens in decision.missing],
        "wrong": [list(tokens) for tokens in decision.wrong],
    }


def _arrays(listings: list[Any]) -> dict[str, Any]:
    """What ``--out`` keeps; of a batch all lists in one, with the problem that each selection belongs to."""
    import numpy as np

    names = ("selections", "margins", "norms", "gaps")
    arrays = {name: np.concatenate([np.asarray(getattr(found, name)) for found in listings]) for name in names}
    if len(listings) == 1:
        (found,) = listings
        return arrays | {"complete": found.complete, "proved_best": found.proved_best, "bound": found.bound}
    return arrays | {
        "problem": np.repeat(np.arange(len(listings)), [len(found) for found in listings]),
        "complete": [found.complete for found in listings],
        "proved_best": [found.proved_best for found in listings],
        "bound": [found.bound for found in listings],
    }


def _proof(found: Any) -> str:
    if found.complete:
        return "the list is proved complete"
    if found.proved_best and found.proved == len(found):
        return (
            f"proved to be the {len(found)} of largest margin; others may exist, with margins up to {found.bound:.4g}"
        )
    return f"not proved complete, bound {found.bound:.4g}"


def _show(screen: Any, file: str, listings: list[Any], again: list[Any], written: list[Path | None]) -> None:
    from attsvm.cli.frame import close, open_with

    if len(listings) == 1:
        (found,) = listings
        several = "selections are" if len(found) != 1 else "selection is"
        open_with(screen, f"{len(found)} {several} locally optimal: places where training can end; {_proof(found)}.")
        screen.print(_table(found, file))
        screen.print(f"{len(found)} found among {_work(found)}: {_proof(found)}", markup=False)
    else:
        proved = sum(found.complete for found in listings)
        total = sum(len(found) for found in listings)
        open_with(
            screen,
            f"{total} selections of {len(listings)} problems are locally optimal: places where training can end; "
            f"{proved} of {len(listings)} lists are proved complete.",
        )
        screen.print(_batch_table(listings, file))
    for k, decision in enumerate(again):
        screen.print(f"problem {k}: {decision}" if len(again) > 1 else f"{decision}", markup=False)
    for path in filter(None, written):
        screen.print(f"wrote {path}", markup=False)
    more = f"attsvm enumerate {file} --index 0" if len(listings) > 1 else f"attsvm report {file} -o report.html"
    close(screen, ("selection", "margin", "locally optimal"), more)


def _work(found: Any) -> str:
    counts = found.counts
    return f"{counts.selections:,} selections ({found.mode}, {counts.solves:,} solves, {found.seconds:.1f} s)"


def _batch_table(listings: list[Any], heading: str) -> Any:
    """One line per problem: how many, the largest margin and its tokens."""
    from attsvm.records import Table

    rows = []
    for k, found in enumerate(listings):
        best, tokens = (f"{found[0].margin:.6f}", " ".join(map(str, found[0].tokens))) if len(found) else (None, None)
        among = any(item.selection == found.problem.optimal_tokens() for item in found)
        rows.append((k, len(found), found.complete, among, best, tokens))
    columns = ("problem", "found", "complete", "optimal tokens found", "best margin", "its tokens")
    return Table(f"{heading}: locally optimal selections ({listings[0].norm_name})", columns, rows, align="rrllrl")


def _record(found: Any) -> dict[str, Any]:
    return {
        "norm_name": found.norm_name,
        "mode": found.mode,
        "complete": found.complete,
        "proved_best": found.proved_best,
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
