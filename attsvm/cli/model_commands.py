"""The command ``attsvm probe``: every head of a trained model on one page."""

from __future__ import annotations

import csv
import json as json_format
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from attsvm.cli.command_support import Debug, Json, Quiet, Seed


def probe_command(
    model: Annotated[
        str,
        typer.Argument(
            metavar="MODEL",
            help="Folder of a transformers model, .gguf file, or minilm, smollm2, rxnfp.",
        ),
    ],
    text: Annotated[
        Path | None, typer.Option("--text", help="Text file; each line (or paragraph) is a sequence.")
    ] = None,
    out: Annotated[Path, typer.Option("--out", "-o", help="Page (.html) or table (.csv, .parquet, .json).")] = Path(
        "atlas.html"
    ),
    sequences: Annotated[int, typer.Option(help="Sequences to use, from the beginning of the text.")] = 32,
    length: Annotated[int, typer.Option(help="Tokens per sequence, at most.")] = 128,
    svm: Annotated[bool, typer.Option("--svm/--no-svm", help="Also solve the SVMs, after a time estimate.")] = False,
    full: Annotated[bool, typer.Option("--full", help="As --svm, on every sequence and 16 queries.")] = False,
    svm_sequences: Annotated[int, typer.Option(hidden=True, help="Sequences of the SVMs.")] = 8,
    svm_queries: Annotated[int, typer.Option(hidden=True, help="Queries per sequence of the SVMs.")] = 4,
    removal: Annotated[int, typer.Option(help="Sequences on which heads are removed; 0: none.")] = 4,
    pruning: Annotated[int, typer.Option(hidden=True, help="Heads to remove greedily.")] = 12,
    store: Annotated[Path | None, typer.Option(help="SQLite file of finished SVMs, to resume from.")] = None,
    workers: Annotated[int | None, typer.Option(help="Processes of the SVMs [one per core]; 0: none.")] = None,
    seed: Seed = 0,
    json: Json = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Measure every attention head of a trained model by all five theories, on one page.

    \b
    Example: attsvm probe path/to/model --text notes.txt -o atlas.html
    """  # noqa: D301
    from attsvm.cli.command_support import check_out, print_json, told_progress
    from attsvm.probing import SvmBudget, probe
    from attsvm.records import console
    from attsvm.user_input import require_count

    check_out("--out", out, ".html", ".csv", ".parquet", ".json")
    for name, value in (("--sequences", sequences), ("--length", length)):
        require_count(name, value)
    source = _check_text(text)
    budget = SvmBudget(sequences=svm_sequences, queries=svm_queries)
    if full:
        budget = SvmBudget(sequences=sequences, held_out=max(1, sequences // 4), queries=16)
    loaded = _model(model)
    texts = _texts(source, sequences, loaded)
    with told_progress(quiet) as told:
        table = probe(
            loaded.model, texts, tokenizer=loaded.tokenizer, svm=budget if svm or full else None, removal=removal,
            pruning=pruning, max_length=length, store=":memory:" if store is None else store, workers=workers,
            seed=seed, name=loaded.name,
            progress=told,
        )  # fmt: skip
    write: Any = getattr(table, f"to_{out.suffix[1:]}")
    write(out)
    if json:
        print_json({"about": table.about, "records": table.to_records()})
    elif not quiet:
        shown = console()
        shown.print(table.summary(rows=24))
        if len(table) > 24:
            shown.print(f"... and {len(table) - 24} heads more")
        shown.print(f"wrote {out} ({out.stat().st_size // 1024} KiB)", markup=False)


def _check_text(path: Path | None) -> Path:
    """Refuse a text that cannot be read before a model is loaded."""
    if path is None:
        raise ValueError("--text is missing: a file whose lines the model reads")
    if not path.is_file():
        what = "is a folder" if path.is_dir() else "does not exist"
        raise ValueError(f"--text {path} {what}: expected a text file, each line (or paragraph) a sequence")
    return path


def _model(name: str) -> Any:
    from attsvm._lazy import need
    from attsvm.probing.model_files import load_model

    if Path(name).exists():
        return load_model(name)
    need(f"probing {name}", "torch", "transformers")
    from attsvm.validation.pretrained.installed_models import INSTALLED, installed_model

    if name not in INSTALLED:
        raise ValueError(f"MODEL must be a folder, a .gguf file or one of {', '.join(INSTALLED)}, got {name!r}")
    return installed_model(name)


def _texts(path: Path, count: int, loaded: Any) -> list[str]:
    """Sequences of a text file: lines, or paragraphs where lines are short."""
    try:
        whole = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not UTF-8 text ({error.reason} at byte {error.start})") from None
    if loaded.tokenizer is None:
        raise ValueError(f"{loaded.name} has no tokenizer: use attsvm.probe with encoded inputs")
    lines = [
        " ".join(line.split()) for line in (whole.split("\n\n") if "\n\n" in whole.strip() else whole.splitlines())
    ]
    found = [line for line in lines if line][:count]
    if len(found) < 2:
        raise ValueError(f"{path} must hold at least two sequences (lines, or paragraphs between empty lines)")
    return found


class Side(StrEnum):
    """Which embeddings are mapped."""

    query = "query"
    document = "document"
    both = "both"


class Stale(StrEnum):
    """What happens to golden answers that are not first now."""

    refuse = "refuse"
    leave_out = "leave_out"
    repair = "repair"


class Start(StrEnum):
    """Where the smallest change starts."""

    origin = "origin"
    previous = "previous"


def patch_command(
    queries: Annotated[Path, typer.Argument(metavar="QUERIES.npy", hidden=True)],
    documents: Annotated[Path, typer.Argument(metavar="DOCUMENTS.npy", hidden=True)],
    failures: Annotated[Path | None, typer.Option(help=".csv, .jsonl: query,document[,rivals].")] = None,
    golden: Annotated[Path | None, typer.Option(help="To keep: query,document[,second].")] = None,
    held_out: Annotated[Path | None, typer.Option(help="To measure only: query,document.")] = None,
    query_ids: Annotated[Path | None, typer.Option(help="Text file, an id per line [row numbers].")] = None,
    document_ids: Annotated[Path | None, typer.Option(help="The same for the index.")] = None,
    side: Annotated[Side, typer.Option(help="Map to change.")] = Side.query,
    norm: Annotated[str, typer.Option(metavar="NORM", help="Or nuclear, spectral, l1.")] = "frobenius",
    margin: Annotated[str, typer.Option(help="Or a number, calibrated.")] = "just above",
    C: Annotated[float | None, typer.Option("--C", help="Give up failures that need more weight.")] = None,
    prior: Annotated[Path | None, typer.Option(hidden=True, help="The map of now, .npy [identity].")] = None,
    stale: Annotated[Stale, typer.Option(hidden=True, help="Golden answers that are not first now.")] = Stale.refuse,
    after: Annotated[Path | None, typer.Option(help="An earlier patch, .npz, to go on from.")] = None,
    start: Annotated[Start, typer.Option(hidden=True, help="Smallest change from where.")] = Start.origin,
    name: Annotated[str | None, typer.Option(hidden=True, help="Of this patch in a sequence.")] = None,
    tolerance: Annotated[float | None, typer.Option(hidden=True, help="Relative gap.")] = None,
    max_rounds: Annotated[int, typer.Option(hidden=True, help="Scans of the index.")] = 60,
    time_limit: Annotated[float | None, typer.Option(hidden=True, help="Seconds.")] = None,
    memory_limit: Annotated[float | None, typer.Option(hidden=True, help="Bytes beside the embeddings.")] = None,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="Write the patch, .npz.")] = None,
    report: Annotated[Path | None, typer.Option(help="Write the page about it, .html.")] = None,
    json: Json = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Find the smallest change of an embedding map that repairs failures. Exit code 1 unless proved.

    \b
    Example: attsvm patch queries.npy documents.npy --failures failures.csv
    """  # noqa: D301
    import numpy as np

    import attsvm
    from attsvm.cli.command_support import check_out, open_with, print_json, told_progress
    from attsvm.records import console

    check_out("--out", out, ".npz")
    check_out("--report", report, ".html")
    names = _ids("--query-ids", query_ids), _ids("--document-ids", document_ids)
    with told_progress(quiet or json) as told:
        found = attsvm.patch(
            queries, documents, read_pairs("--failures", failures, names), read_pairs("--golden", golden, names),
            side=side.value, norm=norm, margin=_margin(margin), C=C,
            prior=None if prior is None else np.load(prior, allow_pickle=False),
            held_out=read_pairs("--held-out", held_out, names), query_ids=names[0], document_ids=names[1],
            stale=stale.value, after=None if after is None else attsvm.load_patch(after), start=start.value, name=name,
            tolerance=tolerance, max_rounds=max_rounds, time_limit=time_limit, memory_limit=memory_limit, progress=told,
        )  # fmt: skip
    if out is not None:
        found.save(out)
    if report is not None:
        found.report(report)
    if json:
        print_json(found.record())
    elif not quiet:
        screen = console()
        facts = found.facts()
        open_with(screen, facts.pop("status"))
        for what, value in facts.items():
            screen.print(f"{what}: {value}", markup=False)
        for path in (out, report):
            if path is not None:
                screen.print(f"wrote {path}", markup=False)
    if found.status != "optimal":
        raise typer.Exit(1)


def _margin(text: str) -> Any:
    try:
        return float(text)
    except ValueError:
        return text


def _ids(option: str, path: Path | None) -> list[str] | None:
    if path is None:
        return None
    return _text(option, path).splitlines()


def _text(option: str, path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"{option} {path} is no text in UTF-8 ({error.reason} at byte {error.start})") from None


def read_pairs(
    option: str, path: Path | None, ids: tuple[list[str] | None, list[str] | None]
) -> list[tuple[Any, ...]] | None:
    r"""Entries of a ``.csv`` or ``.jsonl`` file: a query, a document and further documents.

    Parameters
    ----------
    option : str
        Name of the option, for errors.
    path : Path or None
    ids : tuple
        Ids of queries and documents; without them entries are row numbers.

    Examples
    --------
    >>> import tempfile
    >>> from pathlib import Path
    >>> file = Path(tempfile.mkdtemp()) / "golden.csv"
    >>> _ = file.write_text("query,document\n0,5\n1,7,9\n")
    >>> read_pairs("--golden", file, (None, None)), read_pairs("--failures", file, (None, None))
    ([(0, 5), (1, [7, 9])], [(0, 5), (1, 7, [9])])
    """
    if path is None:
        return None
    lines = _jsonl(option, path) if path.suffix == ".jsonl" else _csv(option, path)
    found: list[tuple[Any, ...]] = []
    for line, cells in lines:
        where = f"{option} {path}, line {line}"
        if len(cells) < 2:
            raise ValueError(f"{where}: expected a query and a document, got {cells!r}")
        query = _name(cells[0], ids[0], where)
        documents = [_name(cell, ids[1], where) for cell in cells[1:]]
        if len(documents) == 1:
            found.append((query, documents[0]))
        elif option == "--failures":
            found.append((query, documents[0], documents[1:]))
        else:
            found.append((query, documents))
    return found


def _name(cell: Any, ids: list[str] | None, where: str) -> Any:
    if ids is not None:
        return str(cell)
    try:
        return int(cell)
    except (TypeError, ValueError):
        raise ValueError(f"{where}: {cell!r} is no row number; pass --query-ids and --document-ids for ids") from None


def _csv(option: str, path: Path) -> list[tuple[int, list[Any]]]:
    rows = list(csv.reader(_text(option, path).splitlines()))
    lines = [(k + 1, [cell.strip() for cell in row if cell.strip()]) for k, row in enumerate(rows)]
    lines = [(k, row) for k, row in lines if row]
    titled = lines and lines[0][1][0].lower() in ("query", "query_id", "query id")
    return list(lines[1:] if titled else lines)


def _jsonl(option: str, path: Path) -> list[tuple[int, list[Any]]]:
    found = []
    for k, line in enumerate(_text(option, path).splitlines()):
        if not line.strip():
            continue
        try:
            entry = json_format.loads(line)
        except ValueError as error:
            raise ValueError(f"{option} {path}, line {k + 1}: no JSON ({error})") from None
        if isinstance(entry, dict):
            first = entry.get("documents", [entry.get("document")])
            rest = [*first, *entry.get("rivals", [])] if isinstance(first, list) else []
            entry = [entry.get("query"), *rest]
        if not isinstance(entry, list) or None in entry or any(isinstance(cell, list | dict) for cell in entry):
            raise ValueError(
                f'{option} {path}, line {k + 1}: expected {{"query": ..., "document": ...}} or a list of ids, got '
                f"{line.strip()[:60]}"
            )
        found.append((k + 1, entry))
    return found
