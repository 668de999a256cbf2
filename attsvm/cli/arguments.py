"""Arguments and options that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

__all__ = ["Debug", "Device", "File", "Index", "Json", "Quiet", "Seed", "Tokens"]

File = Annotated[
    Path, typer.Argument(metavar="FILE", help="Problem file, .npz or .safetensors (attsvm new writes one).")
]
Index = Annotated[int | None, typer.Option("--index", help="Which problem of a file that holds a batch.")]
Tokens = Annotated[
    str | None,
    typer.Option("--selection", help="Tokens: 2,0,1 (K queries 2,0;1,1) or optimal [the file's]."),
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of tables.")]
Seed = Annotated[int, typer.Option("--seed", help="Seed of everything random.")]
Device = Annotated[str | None, typer.Option("--device", help="Torch device of training, e.g. cuda.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print neither tables nor progress.")]
Debug = Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")]
