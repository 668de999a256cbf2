"""The command ``attsvm train``: gradient descent on the attention weights."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from attsvm.cli.arguments import Debug, Device, File, Index, Json, Quiet, Seed

if TYPE_CHECKING:
    from attsvm.problem import AttentionProblem
    from attsvm.training import Run

__all__ = ["Parameterization", "command", "train_problem"]


class Parameterization(StrEnum):
    """What is trained."""

    W = "W"
    KQ = "KQ"


def train_problem(
    problem: AttentionProblem,
    parameterization: str,
    optimizer: str | None,
    device: str | None,
    *,
    quiet: bool,
    **options: Any,
) -> Run:
    """Train with progress on stderr."""
    import attsvm
    from attsvm.cli.support import check_device, show_progress

    check_device(device)
    return attsvm.train(
        problem, parameterization, optimizer=optimizer, device=device, progress=show_progress(quiet), **options
    )


def command(
    file: File,
    parameterization: Annotated[
        Parameterization, typer.Option("--parameterization", "-p", help="Train W, or K and Q.")
    ] = Parameterization.W,
    steps: Annotated[int, typer.Option(help="Steps.")] = 2000,
    lr: Annotated[float | None, typer.Option(help="Step size [0.1; 1 / L for gd].")] = None,
    optimizer: Annotated[
        str | None, typer.Option(help="normalized_gd, gd, adam, spectral, sign, ... [KQ: ridge_decay].")
    ] = None,
    init: Annotated[str, typer.Option(help="uniform, zero or separating.")] = "uniform",
    loss: Annotated[str, typer.Option(help="logistic, exponential or correlation.")] = "logistic",
    seed: Seed = 0,
    device: Device = None,
    index: Index = None,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="Write the trajectory, .npz.")] = None,
    json: Json = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Train attention weights. Exit code 1 if W stops being finite.

    \b
    Example: attsvm train problem.npz --steps 500 --out run.npz
    """  # noqa: D301
    from attsvm.cli.frame import close
    from attsvm.cli.support import check_out, open_whole, print_json
    from attsvm.records import console, versions
    from attsvm.reports.solved import problem_record

    check_out("--out", out, ".npz")
    read = open_whole(file, index)
    try:
        run = train_problem(
            read.problem, parameterization.value, optimizer, device, quiet=quiet or json, steps=steps, lr=lr, init=init,
            loss=loss, seed=seed,
        )  # fmt: skip
    except KeyboardInterrupt as stop:
        _keep_interrupted(out, getattr(stop, "run", None), quiet)
        raise
    if out is not None:
        save_run(out, run)
    if json:
        print_json({"problem": problem_record(read.problem), "run": run_record(run), "versions": versions("torch")})
    elif not quiet:
        screen = console()
        title = f"{file}: {run.parameterization}, {run.options.optimizer_name}, seed {seed}"
        if run.batch is None:
            advice = run.status.advice.replace("lower lr", "lower --lr")
            screen.print(f"{run.status} after {int(run.steps)} steps: {advice}", style="bold", markup=False)
            screen.print(_table(run, title))
        else:
            screen.print(_batch_verdict(run), style="bold", markup=False)
            screen.print(_batch_table(run, title))
        if out is not None:
            screen.print(f"wrote {out}", markup=False)
        close(screen, (), f"attsvm compare {file} -p {run.parameterization}")
    if "not finite" in ([run.status] if run.batch is None else run.status):
        raise typer.Exit(1)


def _keep_interrupted(out: Path | None, run: Any, quiet: bool) -> None:
    """After Ctrl-C: write what there is, as far as the last snapshot."""
    if out is None or run is None:
        return
    from attsvm.records import console

    save_run(out, run)
    if not quiet:
        console(stderr=True).print(f"wrote {out}: the run up to step {run.history.steps[-1]}", markup=False)


def _batch_verdict(run: Any) -> str:
    finished = sum(status == "finished" for status in run.status)
    best = int(_optimal(run).all(axis=-1).sum())
    return f"{finished} of {run.batch} runs finished; {best} of {run.batch} end at the tokens of highest score."


def _optimal(run: Any) -> Any:
    """Which queries of each problem of a batch end at their token of highest score."""
    return (run.history.selection[-1] == run.problem.optimal_tokens().indices).reshape(run.batch, -1)


def _batch_table(run: Any, title: str) -> Any:
    from attsvm.records import Table

    same = _optimal(run)
    rows = [
        (k, str(run.status[k]), int(run.steps[k]), f"{run.history.loss[-1, k]:.6f}", f"{run.history.norm[-1, k]:.4g}",
         f"{int(same[k].sum())} of {same[k].size}")
        for k in range(run.batch)
    ]  # fmt: skip
    return Table(title, ("problem", "ended", "steps", "loss", "|W|", "optimal tokens"), rows, align="rlrrrr")


def run_record(run: Any) -> dict[str, Any]:
    """Settings, end and history of a run as plain data."""
    h = run.history
    names = ("steps", "loss", "norm", "log_gradient", "max_probability", "log_rest", "selection")
    single = run.batch is None
    return {
        "parameterization": run.parameterization,
        "status": str(run.status) if single else [str(status) for status in run.status],
        "steps": int(run.steps) if single else [int(steps) for steps in run.steps],
        "settings": {name: value for name, value in run.options.to_dict().items() if name != "snapshots"},
        "W": run.W.tolist(),
        "history": {name: getattr(h, name).tolist() for name in names},
    }


def save_run(out: Path, run: Any) -> None:
    """Write the trajectory as arrays."""
    import json

    from attsvm.files import save_arrays

    h = run.history
    names = ("steps", "W", "loss", "norm", "log_gradient", "max_probability", "log_rest", "selection")
    arrays = {name: getattr(h, name) for name in names}
    arrays |= {f"final_{name}": value for name, value in run.parameters.items()}
    status = str(run.status) if run.batch is None else [str(one) for one in run.status]
    save_arrays(out, arrays | {"settings": json.dumps(run.options.to_dict()), "status": status})


def _table(run: Any, title: str) -> Any:
    import numpy as np

    from attsvm.records import Table

    h = run.history
    best = run.problem.optimal_tokens().indices
    rows = []
    for s in np.unique(np.linspace(0, len(h) - 1, 12).round().astype(int)):
        logs = (f"{values[s] / np.log(10):.2f}" for values in (h.log_gradient, h.log_rest))
        same = f"{int((h.selection[s] == best).sum())} of {best.size}"
        rows.append((h.steps[s], f"{h.loss[s]:.6f}", f"{h.norm[s]:.4g}", *logs, same))
    columns = ("step", "loss", "|W|", "log10 |gradient|", "log10 (1 - attention)", "optimal tokens")
    return Table(title, columns, rows, align="rrrrrr")
