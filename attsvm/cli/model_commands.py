"""The command ``attsvm probe``: every head of a trained model on one page."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from attsvm.cli.command_support import Debug, Json, Quiet, Seed

__all__ = [
    "probe_command",
]


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
