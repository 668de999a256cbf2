"""The rows of a finished sweep.

Run the missing chunks of a sweep on an executor and store each as it finishes.
"""

from __future__ import annotations

import os
import pickle
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Executor, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import get_context, parent_process
from multiprocessing.connection import wait as wait_for
from pathlib import Path
from typing import Any

import numpy as np

from attsvm.records import plain
from attsvm.sweeps.store import Chunk, Grid, Plan, Store, Task, make_plan
from attsvm.user_input import require_count


@dataclass(frozen=True, eq=False, repr=False)
class Sweep:
    """A finished sweep.

    Parameters
    ----------
    cells : tuple of dict
        Parameters of each cell.
    columns : tuple of dict
        For each cell the columns, arrays of shape ``(trials, ...)`` in the order of the trials.
    resumed, computed : int
        Chunks found in the store and chunks computed now.
    seconds : float
        Computing time of all chunks, added over workers and earlier runs.

    Examples
    --------
    >>> import numpy as np
    >>> from attsvm.sweeps import Sweep
    >>> done = Sweep(({"d": 2},), ({"x": np.array([1.0, 2.0])},), resumed=0, computed=1, seconds=0.0)
    >>> list(done.rows())
    [{'d': 2, 'trial': 0, 'x': 1.0}, {'d': 2, 'trial': 1, 'x': 2.0}]
    """

    cells: tuple[dict[str, Any], ...]
    columns: tuple[dict[str, np.ndarray], ...]
    resumed: int
    computed: int
    seconds: float

    def __len__(self) -> int:
        return len(self.cells)

    def __repr__(self) -> str:
        trials = len(next(iter(self.columns[0].values()), ()))
        found = f"columns {', '.join(self.columns[0])}; {self.resumed} chunks resumed, {self.computed} computed"
        return f"Sweep({len(self)} cells of {trials} trials, {found})"

    def __iter__(self) -> Iterator[tuple[dict[str, Any], dict[str, np.ndarray]]]:
        return iter(zip(self.cells, self.columns, strict=True))

    def where(self, **parameters: object) -> dict[str, np.ndarray]:
        """The columns of the one cell with these parameters."""
        found = [c for cell, c in self if all(cell.get(k) == v for k, v in parameters.items())]
        if len(found) != 1:
            raise ValueError(f"{parameters} names {len(found)} cells of this sweep, expected one")
        return found[0]

    def rows(self) -> Iterator[dict[str, Any]]:
        """One flat record per trial: the cell's parameters, the number of the trial, its values."""
        for cell, columns in self:
            for trial in range(len(next(iter(columns.values())))):
                yield {**cell, "trial": trial, **{k: _scalar(v[trial]) for k, v in columns.items()}}


def columns_of(rows: Iterable[Mapping[str, object]]) -> dict[str, list[Any]]:
    """One list per name, from one row per trial: what a task of a sweep returns.

    Examples
    --------
    >>> from attsvm.sweeps import columns_of
    >>> columns_of({"square": k * k} for k in range(3))
    {'square': [0, 1, 4]}
    """
    columns: dict[str, list[Any]] = {}
    for row in rows:
        for name, value in row.items():
            columns.setdefault(name, []).append(value)
    return columns


def join_columns(parts: Sequence[Mapping[str, Any]]) -> dict[str, np.ndarray]:
    """Chunks of one cell as one set of columns."""
    joined: dict[str, np.ndarray] = {}
    for name in parts[0]:
        values = [entry for part in parts for entry in part[name]]
        try:
            joined[name] = np.asarray(values)
        except ValueError:  # entries of different lengths stay as they are
            joined[name] = np.empty(len(values), dtype=object)
            joined[name][:] = values
    return joined


def _scalar(value: Any) -> Any:
    return value.item() if isinstance(value, np.generic) else value


_PATIENCE = 4  # losses of a worker in a row, without a chunk finished in between, after which a sweep gives up

Progress = Callable[[int, int], None]


def sweep(
    fn: Task,
    grid: Grid,
    trials: int,
    executor: object = None,
    store: str | Path = "results.sqlite",
    *,
    seed: int = 0,
    chunk: int = 100,
    workers: int | None = None,
    name: str | None = None,
    extend: bool = False,
    fresh: bool = False,
    progress: Progress | None = None,
) -> Sweep:
    """Evaluate ``fn`` on many trials of every cell of a grid, so that nothing finished is ever lost.

    Trials run by chunk: ``fn(trials, seed, **cell)`` draws and solves ``trials`` problems at once (as one batch, where
    the library has batches) and returns a dict of columns with one entry per trial. Each finished chunk is written to
    the store in a transaction; a later call with the same arguments computes only what is missing. Rows depend on
    the arguments alone, not on the executor, its number of workers, or interruptions.

    Parameters
    ----------
    fn : callable
        ``fn(trials, seed, **cell) -> dict of columns``; for processes it must be importable (a function of a module),
        and in a script the call must stand under ``if __name__ == "__main__":``.
        Entries are numbers, strings, booleans, None or nested lists of them (arrays are converted).
    grid : dict of sequences, or list of dict
        Parameters and their values (the product is taken), or the cells themselves.
    trials : int
        Trials per cell.
    executor : concurrent.futures.Executor, dask.distributed.Client or None
        Where chunks run; anything with the executor's ``submit``. None starts worker processes with one thread each.
    store : str or Path
        SQLite file; ``":memory:"`` keeps nothing.
    seed : int
        Seed of the sweep; chunk k of a cell gets a seed made from it, the cell's content and k.
    chunk : int
        Trials per chunk.
    workers : int, optional
        Number of processes when ``executor`` is None (default: one per core); 0 computes in this process.
    name : str, optional
        Name of the sweep in the store (default: the function's); several may share a file.
    extend : bool
        Accept a store made with other cells or another number of trials and use what fits.
    fresh : bool
        Discard what the store holds under this name.
    progress : callable, optional
        Called as ``progress(finished, total)`` after every chunk.

    Returns
    -------
    Sweep

    Raises
    ------
    StoreError
        If the store was made by other parameters, another version of ``fn``, or is not a store.

    Examples
    --------
    >>> import numpy as np
    >>> import attsvm
    >>> def margins(trials, seed, d):
    ...     problems = attsvm.random_problem(n=3, T=3, d=d, seed=seed, batch=trials)
    ...     return {"margin": attsvm.att_svm(problems).margin}
    >>> done = attsvm.sweep(margins, {"d": [4, 8]}, trials=20, chunk=10, workers=0, store=":memory:")
    >>> done.columns[0]["margin"].shape, done.computed
    ((20,), 4)
    >>> bool(np.nanmean(done.where(d=8)["margin"]) > 0)
    True
    """
    plan = make_plan(fn, grid, trials, chunk=chunk, seed=seed, name=name)
    require_count("workers", workers, least=0, optional=True)
    with Store(store) as opened:
        opened.claim(plan, extend=extend, fresh=fresh)
        return _complete(plan, opened, executor, workers, progress)


def process_pool(workers: int | None = None) -> ProcessPoolExecutor:
    """Worker processes with one thread each; what :func:`sweep` starts by itself.

    Examples
    --------
    >>> with process_pool(1) as pool:
    ...     pool.submit(abs, -2).result()
    2
    """
    # Spawned, not forked: a forked child inherits the locks of BLAS and torch threads and may hang.
    return ProcessPoolExecutor(workers or os.cpu_count(), get_context("spawn"), initializer=_start_worker)


def compute_chunk(fn: Task, cell: dict[str, Any], chunk: Chunk) -> tuple[dict[str, Any], float]:
    """One chunk as plain columns, and the seconds it took; this is what runs in a worker."""
    start = time.perf_counter()
    columns = fn(chunk.trials, chunk.seed, **cell)
    return _plain_columns(columns, chunk.trials, fn), time.perf_counter() - start


def _complete(plan: Plan, store: Store, executor: Any, workers: int | None, progress: Progress | None) -> Sweep:
    """Compute and store what the store lacks, and join it with what is there."""
    finished = store.read(plan)
    missing = [c for c in plan.chunks() if (c.cell, c.index) not in finished]
    resumed, total = len(finished), len(finished) + len(missing)

    def keep(chunk: Chunk, columns: dict[str, Any], seconds: float) -> None:
        finished[chunk.cell, chunk.index] = store.write(plan, chunk, columns, seconds)
        if progress is not None:
            progress(len(finished), total)

    if progress is not None:
        progress(resumed, total)
    if missing:
        _run(plan, missing, keep, executor, workers)
    columns = tuple(_join(plan, finished, cell) for cell in range(len(plan.cells)))
    return Sweep(plan.cells, columns, resumed, total - resumed, store.seconds(plan))


Keep = Callable[[Chunk, dict[str, Any], float], None]


def _run(plan: Plan, missing: list[Chunk], keep: Keep, executor: Any, workers: int | None) -> None:
    if executor is not None:
        on = (
            executor
            if isinstance(executor, Executor) or not hasattr(executor, "get_executor")
            else executor.get_executor()
        )
        _submit_all(plan, missing, keep, on)
    elif workers == 0:
        for chunk in missing:
            keep(chunk, *_computed_here(plan, chunk))
    else:
        _check_importable(plan.fn)
        _run_on_own_workers(plan, missing, keep, workers)


def _run_on_own_workers(plan: Plan, missing: list[Chunk], keep: Keep, workers: int | None) -> None:
    """Replace workers that are killed from outside (out of memory, kill -9) for as long as chunks get finished."""
    lost = 0
    while missing:
        left = len(missing)
        with process_pool(workers) as pool:
            try:
                # Futures of workers that are ended are not cancelled: the pool would trip over them (and say so).
                _submit_all(plan, missing, keep, pool, cancel=False)
            except BrokenProcessPool as error:
                lost = lost + 1 if len(missing) == left else 1
                if lost >= _PATIENCE:
                    raise BrokenProcessPool(
                        f"worker processes ended {lost} times without finishing a chunk {_place(plan, missing[0])}; is "
                        "there too little memory, or, in a script, no `if __name__ == '__main__':` around the call?"
                    ) from error
            except BaseException:
                _end_workers(pool)
                raise


def _end_workers(pool: ProcessPoolExecutor) -> None:
    """End the workers now: they do not hear Ctrl-C, and their chunks would be computed to the end for nobody."""
    for process in list((getattr(pool, "_processes", None) or {}).values()):
        process.terminate()


def _submit_all(plan: Plan, missing: list[Chunk], keep: Keep, pool: Any, *, cancel: bool = True) -> None:
    """Run chunks with a bounded number under way, removing from ``missing`` what was kept."""
    queue = list(missing)
    under_way: dict[Future[tuple[dict[str, Any], float]], Chunk] = {}
    limit = 4 * (os.cpu_count() or 1) + 8  # enough to keep workers busy without holding every result in memory
    try:
        while queue or under_way:
            while queue and len(under_way) < limit:
                chunk = queue.pop(0)
                with _no_interrupt():
                    under_way[pool.submit(compute_chunk, plan.fn, plan.cells[chunk.cell], chunk)] = chunk
            done, _ = wait(under_way, return_when=FIRST_COMPLETED)
            for future in done:
                chunk = under_way.pop(future)
                try:
                    columns, seconds = future.result()
                except BrokenProcessPool:
                    raise
                except Exception as error:
                    error.add_note(_place(plan, chunk))
                    raise
                keep(chunk, columns, seconds)
                missing.remove(chunk)
    except BaseException:
        for future in under_way if cancel else ():
            future.cancel()
        raise


@contextmanager
def _no_interrupt() -> Iterator[None]:
    """Hold Ctrl-C back while workers may start: they inherit this and leave the interrupt to us."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _computed_here(plan: Plan, chunk: Chunk) -> tuple[dict[str, Any], float]:
    try:
        return compute_chunk(plan.fn, plan.cells[chunk.cell], chunk)
    except Exception as error:
        error.add_note(_place(plan, chunk))
        raise


def _place(plan: Plan, chunk: Chunk) -> str:
    return f"in sweep {plan.name!r}, cell {plan.cells[chunk.cell]}, chunk {chunk.index}, seed {chunk.seed}"


def _join(plan: Plan, finished: dict[tuple[int, int], dict[str, Any]], cell: int) -> dict[str, np.ndarray]:
    indices = sorted(index for k, index in finished if k == cell)
    parts = [finished[cell, index] for index in indices]
    for index, part in zip(indices, parts, strict=True):
        if set(part) != set(parts[0]):
            raise ValueError(
                f"fn must return the same columns for every chunk; cell {plan.cells[cell]} has {sorted(parts[0])} "
                f"in chunk {indices[0]} and {sorted(part)} in chunk {index}"
            )
    return join_columns(parts)


def _plain_columns(columns: Any, trials: int, fn: Task) -> dict[str, Any]:
    if not isinstance(columns, Mapping) or not columns:
        raise ValueError(f"fn must return a dict of columns, got {type(columns).__name__} from {fn!r}")
    listed: dict[str, Any] = {}
    for name, values in columns.items():
        listed[str(name)] = plain(values if hasattr(values, "__array__") else list(values), finite=False)
        if len(listed[str(name)]) != trials:
            raise ValueError(f"fn must return {trials} entries per column, got {len(listed[str(name)])} in {name!r}")
    return listed


def _check_importable(fn: Task) -> None:
    try:
        pickle.dumps(fn)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise ValueError(
            f"fn must be a function of a module to run in worker processes ({error}); "
            "move it to a module, or pass workers=0"
        ) from error


def _start_worker() -> None:
    """Hold a worker to one thread, since parallelism comes from the processes, and let it end with its parent."""
    from threadpoolctl import threadpool_limits

    threading.Thread(target=_end_with_parent, daemon=True).start()

    for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ[variable] = "1"  # for libraries that are loaded later
    threadpool_limits(1)  # for those that are loaded already


def _end_with_parent() -> None:
    """Workers of a killed process would wait for work for ever."""
    parent = parent_process()
    if parent is not None:
        wait_for([parent.sentinel])
        os._exit(1)
