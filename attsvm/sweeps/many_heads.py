"""Many problems on the same tokens: a model is a list of heads, each with its own selections.

Tokens are written once and memory-mapped by every worker; a head is a file of selections. Results go to the store of
`attsvm.sweeps.sweep` head by head, so that an interrupted run goes on where it was.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from attsvm.problem import AttentionProblem
from attsvm.records import atomic_write, digest
from attsvm.selection import Selection, read_selection
from attsvm.svm import att_svm
from attsvm.sweeps.resumable import Sweep, sweep

Options = Mapping[str, float | int | str | None]


def _saved(folder: Path, name: str, array: npt.NDArray[Any]) -> str:
    """Write an array under the digest of its content, once; where it is."""
    path = folder / f"{name}-{digest(array, length=16)}.npy"
    if not path.exists():
        with atomic_write(path) as file:
            np.save(file, array)
    return str(path)


def solve_head(
    trials: int,
    seed: int,
    head: int,
    tokens: str,
    queries: str,
    mask: str | None,
    selection: str,
    weights: str | None,
    options: dict[str, Any],
) -> dict[str, list[Any]]:
    """Solve one head from files; what the store keeps of it."""
    X, Z = (np.load(path, mmap_mode="r") for path in (tokens, queries))
    allowed = None if mask is None else np.load(mask, mmap_mode="r")
    problem = AttentionProblem(X, Z=Z, mask=allowed)
    solved = att_svm(problem, np.load(selection), **options)
    known = solved.status.has_solution
    where = None
    if known and weights is not None:
        where = str(Path(weights) / f"W-{Path(selection).stem}-{head}.npy")
        np.save(where, solved.W)
    certificate = solved.certificate
    row: dict[str, Any] = {
        "status": str(solved.status),
        "norm": solved.norm,
        "objective": solved.objective,
        "lower_bound": certificate.lower_bound,
        "gap": certificate.gap,
        "proved": certificate.proved,
        "rank": solved.rank if known else None,
        "support": int(solved.support.sum()) if known else None,
        "queries_with_slack": len(solved.queries_with_slack) if known else None,
        "rows": solved.rows.margin_problem.m,
        "rounds": solved.result.iterations,
        "seconds": solved.seconds,
        "W": where,
    }
    return {key: [value] * trials for key, value in row.items()}


def solve_heads(
    problem: AttentionProblem,
    selections: Sequence[Selection | npt.ArrayLike],
    folder: str | Path,
    executor: object = None,
    *,
    store: str | Path | None = None,
    keep_weights: bool = True,
    workers: int | None = None,
    name: str = "heads",
    progress: Callable[[int, int], None] | None = None,
    **options: float | int | str | None,
) -> Sweep:
    """Solve the attention SVM of many heads that see the same tokens, on any executor; resumable.

    Parameters
    ----------
    problem : AttentionProblem
        A single one: tokens, queries and mask that all heads share.
    selections : sequence of Selection or array_like of int
        One per head.
    folder : str or Path
        Where tokens, queries, mask and selections are written once for workers to map, and W of every head.
    executor : concurrent.futures.Executor, dask.distributed.Client or None
        None starts worker processes. All workers must see ``folder``.
    store : str or Path, optional
        SQLite file of results; ``folder / "heads.sqlite"`` by default. Heads that it holds are not solved again.
    keep_weights : bool
        Write W of every head into the folder; the column ``W`` says where.
    workers : int, optional
        Number of processes when ``executor`` is None; 0 computes in this process.
    name : str
        Of the sweep in the store.
    progress : callable, optional
        Called with (heads done, heads).
    **options
        Plain numbers and strings for `attsvm.att_svm` (``norm``, ``C``, ``tolerance``, ``time_limit``, ...).

    Returns
    -------
    Sweep
        One cell per head, with its status, norm, gap, proved accuracy, rank, support, queries with slack and file of W.

    Examples
    --------
    >>> import tempfile
    >>> import attsvm
    >>> problem, selection = attsvm.structured_problem(n=2, T=6, d=12)
    >>> heads = [selection, (selection.indices + 1) % 6]
    >>> found = solve_heads(problem, heads, tempfile.mkdtemp(), workers=0, C=1.0)
    >>> [row["status"] for row in found.rows()]
    ['optimal', 'optimal']
    """
    if problem.batch is not None:
        raise ValueError("solve_heads takes one problem that all heads share, got a batch")
    if not len(selections):
        raise ValueError("selections must hold at least one head")
    for key, value in options.items():
        if not (value is None or isinstance(value, (bool, int, float, str))):
            raise TypeError(f"{key} must be a plain number or string to reach workers, got {type(value).__name__}")
    home = Path(folder)
    home.mkdir(parents=True, exist_ok=True)
    shared = {
        "tokens": _saved(home, "tokens", problem.X),
        "queries": _saved(home, "queries", problem.Z),
        "mask": None if problem.mask is None else _saved(home, "mask", problem.mask),
        "weights": str(home) if keep_weights else None,
        "options": dict(options),
    }
    cells = [
        {"head": k, **shared, "selection": _saved(home, "selection", read_selection(problem, chosen).indices)}
        for k, chosen in enumerate(selections)
    ]
    where = home / "heads.sqlite" if store is None else store
    return sweep(
        solve_head, cells, 1, executor, where, chunk=1, workers=workers, name=name, extend=True, progress=progress
    )
