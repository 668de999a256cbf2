"""The command ``attsvm new``: an example problem file.

The command ``attsvm solve``: an attention SVM with its certificate.

The command ``attsvm enumerate``: every candidate limit of training.

The command ``attsvm diagnose``: which theorems apply, and what they predict.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import typer

import attsvm
from attsvm._lazy import need
from attsvm.cli.command_support import Debug, File, Index, Json, Quiet, Seed, Tokens, check_out, close
from attsvm.files import save_problem
from attsvm.records import console
from attsvm.reports.content import problem_record

if TYPE_CHECKING:
    from attsvm.enumeration import LocalOptima
    from attsvm.exact_tokens import ExactListing
    from attsvm.problem import AttentionProblem


class Kind(StrEnum):
    """Where the queries come from."""

    CROSS = "cross"
    SELF = "self"
    SEQUENCE = "sequence"
    CAUSAL = "causal"


class HeadKind(StrEnum):
    """Which head scores the tokens."""

    LINEAR = "linear"
    RELU = "relu"
    CONCAVE = "concave"


def example_problem(kind: Kind, head: HeadKind, seed: int, **sizes: Any) -> attsvm.AttentionProblem:
    """A random problem with the asked-for head.

    Examples
    --------
    >>> type(example_problem(Kind.CAUSAL, HeadKind.RELU, seed=0, n=2, T=3, d=4).head).__name__
    'ReluHead'
    """
    causal = kind is Kind.CAUSAL
    name: Any = "sequence" if causal else kind.value
    problem: attsvm.AttentionProblem = attsvm.random_problem(kind=name, causal=causal, seed=seed, **sizes)
    if head is HeadKind.LINEAR:
        return problem
    made: attsvm.ReluHead | attsvm.ConcaveHead
    if head is HeadKind.RELU:
        made = attsvm.ReluHead(np.random.default_rng(seed).standard_normal((problem.dx, problem.dx)))
    else:
        made = attsvm.ConcaveHead(np.asarray(getattr(problem.head, "v")), lam=0.5)  # noqa: B009
    return attsvm.AttentionProblem(problem.X, problem.Y, problem.Z, made, problem.mask)


def new_command(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="File to write, .npz or .safetensors.")] = Path(
        "problem.npz"
    ),
    kind: Annotated[
        Kind, typer.Option(help="Queries: own, first token, every token, every token causally.")
    ] = Kind.CROSS,
    head: Annotated[HeadKind, typer.Option(help="Prediction head.")] = HeadKind.LINEAR,
    n: Annotated[int, typer.Option("-n", "--n", help="Sequences.")] = 4,
    tokens: Annotated[int, typer.Option("--tokens", "-T", help="Tokens per sequence.")] = 5,
    dimension: Annotated[int, typer.Option("--dimension", "-d", help="Dimension of tokens and queries.")] = 4,
    batch: Annotated[int | None, typer.Option(help="Problems in one file.")] = None,
    seed: Seed = 0,
    force: Annotated[bool, typer.Option("--force", help="Replace an existing file.")] = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Write an example problem file; docs/files.md says how to write your own.

    \b
    Example: attsvm new problem.npz --seed 1 --force
    """  # noqa: D301
    check_out("FILE", file)
    if file.exists() and not force:
        raise ValueError(f"{file} exists already: choose another name or replace it with --force")
    if batch is not None and head is not HeadKind.LINEAR:
        raise ValueError(f"--batch goes with --head linear, got --head {head}")
    problem = example_problem(kind, head, seed, n=n, T=tokens, d=dimension, batch=batch)
    save_problem(problem, file)
    if not quiet:
        record = problem_record(problem)
        screen = console()
        screen.print(
            f"wrote {file}: {problem.n} sequences of {problem.T} tokens in dimension {problem.dx}, {record['head']}, "
            f"seed {seed}" + (f", batch of {batch}" if batch else ""),
            markup=False,
        )
        close(screen, (), f"attsvm solve {file}", f"attsvm compare {file}", f"attsvm report {file} -o report.html")


def solve_command(
    file: File,
    norm: Annotated[
        list[str] | None,
        typer.Option("--norm", metavar="NORM", help="frobenius, nuclear, spectral, l1, linf, l<p>; repeatable."),
    ] = None,
    rank: Annotated[int | None, typer.Option(help="Largest rank of W (nuclear norm).")] = None,
    solver: Annotated[str, typer.Option(help="auto, an own solver, or cvxpy, cvxpy:SCS, ...")] = "auto",
    selection: Tokens = None,
    index: Index = None,
    exact: Annotated[bool, typer.Option("--exact", help="Prove it again in rational arithmetic (small).")] = False,
    certificate: Annotated[Path | None, typer.Option(help="Write a checkable proof, .json or .gz (one norm).")] = None,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="Write the solution, .npz (one norm).")] = None,
    json: Json = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Solve Att-SVM and certify the answer. Exit code 1 unless it is proved optimal.

    \b
    Example: attsvm solve problem.npz --norm frobenius --norm nuclear
    """  # noqa: D301
    import attsvm
    from attsvm.cli.command_support import close, open_problem, print_json, read_tokens, working
    from attsvm.files import read_problem_file
    from attsvm.records import console
    from attsvm.reports.content import problem_record
    from attsvm.selection import read_selection

    norms = norm or ["frobenius"]
    _check_written(out, certificate, norms)
    if index is None and read_problem_file(file).problem.batch is not None:
        if certificate is not None:
            raise ValueError(f"--certificate goes with one problem of the batch in {file}: add --index 0")
        _solve_batch(file, norms, selection, rank, solver, out, exact, json, quiet)
        return
    read = open_problem(file, index)
    chosen = read_selection(read.problem, read_tokens(selection, read))
    solutions = []
    for name in norms:
        with working(f"solving ({name})", quiet or json):
            solutions.append(attsvm.att_svm(read.problem, chosen, norm=name, rank=rank, solver=solver))
    records = [_record(solution, exact) for solution in solutions]
    written = _write_solution(out, certificate, solutions[0], records[0])
    if json:
        print_json({"problem": problem_record(read.problem, chosen), "solutions": records})
    elif not quiet:
        _show(console(), f"{file}", read.problem, chosen, solutions, records)
        for line in written:
            console().print(line, markup=False)
        close(console(), ("support", "margin", "gap", "locally optimal"), f"attsvm compare {file}")
    if any(solution.status != "optimal" for solution in solutions):
        raise typer.Exit(1)


def _check_written(out: Path | None, certificate: Path | None, norms: list[str]) -> None:
    """Refuse files that could not be written before any work is done."""
    check_out("--out", out, ".npz")
    check_out("--certificate", certificate, ".json", ".gz")
    for option, path in (("--out", out), ("--certificate", certificate)):
        if path is not None and len(norms) > 1:
            raise ValueError(f"{option} writes one norm, got {', '.join(norms)}")


def _write_solution(out: Path | None, certificate: Path | None, solution: Any, record: dict[str, Any]) -> list[str]:
    """Write the requested files; a line about each."""
    lines = []
    if out is not None:
        _save(out, solution, record)
        lines.append(f"wrote {out}")
    if certificate is not None:
        record["certificate_claims"] = list(solution.certificate.save(certificate))
        claims = ", ".join(record["certificate_claims"])
        lines.append(f"wrote {certificate} ({claims}). Check it: python tools/check_certificate.py {certificate}")
    return lines


def _record(solution: Any, exact: bool) -> dict[str, Any]:
    from attsvm.reports.content import exact_record, solution_record

    record = solution_record(solution)
    if exact and (solution.status.has_solution or solution.status == "infeasible"):
        record["exact"] = exact_record(solution)
    return record


def _show(screen: Any, title: str, problem: Any, chosen: Any, solutions: list[Any], records: list[Any]) -> None:
    from attsvm.cli.command_support import open_with
    from attsvm.reports.content import solutions_table, support_table
    from attsvm.reports.verdicts import solution_verdict

    open_with(screen, solution_verdict(records, problem.n))
    screen.print(solutions_table(records, title))
    solved = [record for record in records if "support" in record]
    if solved:
        screen.print(support_table(problem, chosen, solved))
    for solution, record in zip(solutions, records, strict=True):
        for line in _remarks(solution, record):
            screen.print(line, markup=False)


def _remarks(solution: Any, record: dict[str, Any]) -> Iterator[str]:
    """What the table does not say of a solution."""
    from attsvm.reports.content import exact_line, farkas_line

    if "farkas" in record:
        yield farkas_line(record, "Choose another --selection or a larger dimension.")
    elif solution.status != "optimal":
        yield f"{record['norm_name']}: {solution.reason}. {solution.status.advice}"
    if "exact" in record:
        yield exact_line(record, record["exact"])


def _save(out: Path, solution: Any, record: dict[str, Any]) -> None:
    import json

    import numpy as np

    from attsvm.files import save_arrays
    from attsvm.records import plain

    arrays: dict[str, Any] = {"selection": solution.selection.indices, "record": json.dumps(plain(record))}
    if solution.status.has_solution:
        arrays |= {
            "W": solution.W,
            "singular_values": np.linalg.svd(solution.W, compute_uv=False),
            "margins": solution.token_margins(),
            "multipliers": solution.multipliers,
            "support": solution.support,
        }
    save_arrays(out, arrays)


def _solve_batch(
    file: Path, norms: list[str], selection: str | None, rank: int | None, solver: str, out: Path | None, exact: bool,
    json: bool, quiet: bool,
) -> None:  # fmt: skip
    """Every problem of a batch at once, one line each."""
    import attsvm
    from attsvm.cli.command_support import close, open_with, print_json, working
    from attsvm.files import read_problem_file, save_arrays
    from attsvm.records import Table, console

    if selection not in (None, "optimal") or exact:
        raise ValueError(f"--selection and --exact go with one problem of the batch in {file}: add --index 0")
    read = read_problem_file(file)
    tokens = None if selection == "optimal" else read.selection
    with working("solving", quiet or json):
        solved: dict[str, Any] = {
            n: attsvm.att_svm(read.problem, tokens, norm=n, rank=rank, solver=solver) for n in norms
        }
    rows = [
        (k, name, str(one.status), *((f"{one.margin:.6f}", one.rank, f"{one.certificate.gap:.0e}")
         if one.status.has_solution else (None, None, None)))
        for name, batch in solved.items() for k, one in enumerate(batch)
    ]  # fmt: skip
    proved = sum(row[2] == "optimal" for row in rows)
    if out is not None:
        (batch,) = solved.values()
        save_arrays(out, {"W": batch.W, "margin": batch.margin, "status": [str(status) for status in batch.status]})
    if json:
        names = ("problem", "norm_name", "status", "margin", "rank", "gap")
        print_json({"batch": read.problem.batch, "solutions": [dict(zip(names, row, strict=True)) for row in rows]})
    elif not quiet:
        screen = console()
        open_with(screen, f"{proved} of {len(rows)} solutions are proved optimal.")
        screen.print(Table(f"{file}", ("problem", "norm", "status", "margin", "rank", "gap"), rows, align="rllrrr"))
        close(screen, ("margin", "gap"), f"attsvm solve {file} --index 0", f"attsvm compare {file}")
    if proved < len(rows):
        raise typer.Exit(1)


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


def enumerate_command(
    file: File,
    top: Annotated[int | None, typer.Option(help="Only the k of largest margin.")] = None,
    limit: Annotated[int | None, typer.Option(help="Stop once this many are found.")] = None,
    norm: Annotated[Norm, typer.Option(help="Norm of the margin.")] = Norm.FROBENIUS,
    mode: Annotated[Mode, typer.Option(metavar="MODE", help="auto, exhaustive, search or heuristic.")] = Mode.AUTO,
    time_limit: Annotated[float | None, typer.Option(help="Stop after about this many seconds.")] = None,
    exact: Annotated[bool, typer.Option("--exact", help="Decide every selection in rationals (small).")] = False,
    certificate: Annotated[Path | None, typer.Option(help="Write a checkable proof, .json or .gz (small).")] = None,
    graph: Annotated[Path | None, typer.Option(help="Graph of swaps, .graphml, .png, .svg or .pdf.")] = None,
    seed: Seed = 0,
    index: Index = None,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="Write the list, .npz.")] = None,
    json: Json = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """\b
    List the locally optimal selections. Exit code 1 unless every list is proved.
    Example: attsvm enumerate problem.npz --top 5
    """  # noqa: D205, D301, D400
    from attsvm.cli.command_support import check_out, each_problem, print_json
    from attsvm.files import save_arrays
    from attsvm.records import console

    check_out("--out", out, ".npz")
    problems = [read.problem for read in each_problem(file, index)]
    if exact:
        _check_exact("--exact", problems, norm)
    _check_listing_certificate(certificate, problems, norm, top, limit)
    _check_graph(graph, file, len(problems))
    silent = quiet or json
    listings = [_listing(problem, limit, top, norm, mode, time_limit, seed, silent) for problem in problems]
    again = [found.exact() for found in listings] if exact else []
    decided = graph is None or _write_graph(graph, problems[0], norm.value, silent)
    if out is not None:
        save_arrays(out, _arrays(listings))
    proved = _certified(certificate, listings[0], silent)
    if json:
        records = _records(listings, again)
        print_json(records[0] if len(records) == 1 else records)
    elif not quiet:
        written = [graph if decided else None, out, certificate if proved else None]
        _show_listing(console(), f"{file}", listings, again, written)
    if not (_all_proved(listings, again, top) and decided and proved):
        raise typer.Exit(1)


def _check_listing_certificate(
    certificate: Path | None, problems: list[Any], norm: Norm, top: int | None, limit: int | None
) -> None:
    """Refuse a certificate that could not be written before any work is done."""
    check_out("--certificate", certificate, ".json", ".gz")
    if certificate is None:
        return
    _check_exact("--certificate", problems, norm)
    if len(problems) > 1 or top is not None or limit is not None:
        more = ", add --index 0" if len(problems) > 1 else ""
        raise ValueError(f"--certificate is about the complete list of one problem: leave out --top and --limit{more}")


def _certified(certificate: Path | None, found: LocalOptima, silent: bool) -> bool:
    """Write the certificate of a complete list, if requested; False, with a line, where the list is not complete."""
    from attsvm.cli.command_support import working

    if certificate is None:
        return True
    if not found.complete:
        print(f"attsvm: {certificate} was not written: the list is not proved complete", file=sys.stderr)
        return False
    with working("proving every selection", silent):
        found.save_certificate(certificate)
    return True


def _all_proved(listings: list[LocalOptima], again: list[ExactListing], top: int | None) -> bool:
    """Whether every list is proved: complete, or with ``--top`` to hold the best."""
    lists = all(found.complete or (top is not None and found.proved_best) for found in listings)
    return lists and all(decision.complete for decision in again)


def _check_graph(graph: Path | None, file: Path, problems: int) -> None:
    """Refuse a graph that could not be drawn before any work is done."""
    from attsvm.cli.command_support import check_out

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
    from attsvm.cli.command_support import show_progress

    return attsvm.locally_optimal_selections(
        problem, limit, top, norm=norm.value, mode=mode.value, time_limit=time_limit, seed=seed,
        progress=show_progress(silent),
    )  # fmt: skip


def _check_exact(option: str, problems: list[Any], norm: Norm) -> None:
    """Refuse what is not decided one selection at a time, before any work is done."""
    import math

    from attsvm.exact_tokens import EXACT_SELECTIONS

    if norm is not Norm.FROBENIUS:
        raise ValueError(f"{option} lists go with --norm frobenius; nuclear solutions need not be unique")
    count = max(math.prod(problem.allowed.reshape(-1, problem.T).sum(axis=-1).tolist()) for problem in problems)
    if count > EXACT_SELECTIONS:
        raise ValueError(f"{option} decides up to {EXACT_SELECTIONS:,} selections one by one, got {count:,}")


def _records(listings: list[Any], again: list[Any]) -> list[dict[str, Any]]:
    exact = [{"exact": _exact_record(decision)} for decision in again] or [{}] * len(listings)
    return [_listing_record(found) | more for found, more in zip(listings, exact, strict=True)]


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


def _show_listing(screen: Any, file: str, listings: list[Any], again: list[Any], written: list[Path | None]) -> None:
    from attsvm.cli.command_support import close, open_with

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


def _listing_record(found: Any) -> dict[str, Any]:
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
    from attsvm.cli.command_support import working
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


def diagnose_command(
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
    from attsvm.cli.command_support import close, each_problem, open_with, print_json, read_tokens, show_progress
    from attsvm.records import console
    from attsvm.reports.verdicts import diagnosis_verdict
    from attsvm.theory.diagnosis import diagnosis_tables

    all_found = []
    for read in each_problem(file, index):
        tokens, shown = read_tokens(selection, read), show_progress(quiet or json)
        all_found.append(attsvm.diagnose(read.problem, tokens, loss=loss, norm=norm.value, seed=seed, progress=shown))
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
