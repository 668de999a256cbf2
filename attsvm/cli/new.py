"""The command ``attsvm new``: an example problem file."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

import attsvm
from attsvm.cli.arguments import Debug, Quiet, Seed
from attsvm.cli.frame import close
from attsvm.cli.support import check_out
from attsvm.files import save_problem
from attsvm.records import console
from attsvm.reports.solved import problem_record

__all__ = ["HeadKind", "Kind", "command", "example_problem"]


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
    >>> from attsvm.cli.new import HeadKind, Kind, example_problem
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


def command(
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
