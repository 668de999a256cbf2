"""Command line of the benchmark."""

from __future__ import annotations

import argparse
import json
import os
import time
from dataclasses import asdict
from typing import Any

from rich.table import Table

from attsvm.records import console, environment
from attsvm.validation.bench.cases import CASES, Result, run_case
from attsvm.validation.bench.growth import fitted_exponent, growth_times
from attsvm.validation.bench.softmax import spectrum_speed
from attsvm.validation.bench.specialization import reduced_gradient_ratio
from attsvm.validation.bench.training import training_throughput

EXTRA = ("growth", "training", "spectrum", "heads")  # what is not a solve
GROWTH_SIZES = (63, 125, 250, 500, 1000)


def _time(seconds: float) -> str:
    if seconds != seconds:
        return "-"
    return (
        f"{seconds * 1e6:.1f} us"
        if seconds < 1e-3
        else f"{seconds * 1e3:.1f} ms"
        if seconds < 1
        else f"{seconds:.1f} s"
    )


def _bytes(size: float) -> str:
    return "-" if size != size else f"{size / 2**20:.0f} MiB"


def _table(results: list[Result]) -> Table:
    table = Table(title="attsvm against its peers (one run, one machine)", width=170)
    for name, justify in (
        ("work", "left"), ("solver", "left"), ("gap", "right"), ("time per problem", "right"),
        ("ratio", "right"), ("peak memory", "right"), ("goal", "left"),
    ):  # fmt: skip
        table.add_column(name, justify=justify)  # type: ignore[arg-type]
    for result in results:
        case = result.case
        batch = f", batch {case.batch}" if case.batch > 1 else ""
        data = f" (data {_bytes(result.data_bytes)})" if case.slow else ""
        goals = "; ".join(f"{'ok' if ok else 'MISSED'}: {text}" for text, ok in result.goals().items())
        ours = result.ours
        table.add_row(
            f"{case.norm} {case.size}{batch}", f"attsvm ({result.solver})", f"{ours.gap:.0e}", _time(ours.seconds), "1",
            _bytes(ours.memory) + data, goals + (f"; {result.rank_note}" if result.rank_note else ""),
        )  # fmt: skip
        for name, peer in result.peers.items():
            ratio = result.ratios.get(name)
            table.add_row(
                "", name.removeprefix("nuclear: "), peer.note or f"{peer.gap:.0e}", _time(peer.seconds),
                "-" if ratio is None else f"{ratio:.0f}x", _bytes(peer.memory), "",
            )  # fmt: skip
        table.add_section()
    return table


def _plot(path: str, growth: list[tuple[int, float, float]], exponent: float) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt
    import numpy as np

    rows, seconds, _ = map(np.array, zip(*growth, strict=True))
    figure, axis = plt.subplots(figsize=(5.5, 4), layout="constrained")
    axis.loglog(rows, seconds, "o-", label="attsvm, certificate included")
    axis.loglog(rows, seconds[0] * (rows / rows[0]) ** exponent, "--", color="0.5", label=f"fitted rows^{exponent:.2f}")
    axis.set(xlabel="rows", ylabel="seconds", title="Frobenius solve, T = 64, d = 512")
    axis.legend()
    figure.savefig(path, dpi=110)


def main(arguments: list[str] | None = None) -> None:
    """Run the cases and print the table."""
    parser = argparse.ArgumentParser(prog="python -m attsvm.validation.bench")
    names = [case.name for case in CASES]
    parser.add_argument("--only", nargs="+", choices=[*names, *EXTRA], help="run these only")
    parser.add_argument("--quick", action="store_true", help="leave out everything that takes more than seconds")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--plot", metavar="FILE", help="draw time against size")
    options = parser.parse_args(arguments)
    out = console()
    err = console(stderr=True)

    def wanted(name: str, slow: bool) -> bool:
        return name in options.only if options.only else not (slow and options.quick)

    start = time.perf_counter()
    results = []
    for case in CASES:
        if wanted(case.name, case.slow):
            err.print(f"{case.name} ...")
            results.append(run_case(case, options.seed, lambda line: err.print(f"  {line}")))
    record: dict[str, Any] = {"seed": options.seed, "environment": environment(), "cores": os.cpu_count()}
    record["cases"] = [asdict(r) | {"goals": r.goals()} for r in results]
    if wanted("growth", True):
        err.print("growth ...")
        growth = growth_times(GROWTH_SIZES, T=64, d=512, seed=options.seed)
        exponent = fitted_exponent([g[0] for g in growth], [g[1] for g in growth])
        record["growth"] = {"points": growth, "exponent": exponent}
        if options.plot:
            _plot(options.plot, growth, exponent)
    if wanted("training", False):
        err.print("training ...")
        record["training"] = training_throughput(seed=options.seed)
    if wanted("spectrum", True):
        err.print("spectrum ...")
        record["spectrum"] = [spectrum_speed(scale=scale, seed=options.seed) for scale in (1.0, 4.0)]
    if wanted("heads", False):
        err.print("heads ...")
        kinds = ("softmax", "softmax1", "bayes")
        record["heads"] = [reduced_gradient_ratio(kind, seed=options.seed) for kind in kinds]
    record["seconds"] = time.perf_counter() - start
    if options.json:
        print(json.dumps(record, indent=2))
        return
    if results:
        out.print(_table(results))
    if "growth" in record:
        points = ", ".join(f"{rows} rows {_time(seconds)}" for rows, seconds, _ in record["growth"]["points"])
        out.print(f"growth at T=64, d=512: {points}; fitted exponent {record['growth']['exponent']:.2f} (goal < 1.6)")
    for row in record.get("training", []):
        out.print(
            f"training {row['parameterization']}, batch {row['batch']}, n=T=5, d=10: {_time(row['per_step'])} per "
            f"problem and step, {row['steps_per_second']:.0f} batch steps/s, {row['ratio']:.0f}x the one-problem "
            f"autograd loop ({_time(row['peer_per_step'])} per step; goal >= 100x for W); its matrix products alone "
            f"take {100 * row['matmul_share']:.0f} % of the time"
        )
    for row in record.get("spectrum", []):
        out.print(
            f"spectra of {row['vectors']} softmax Jacobians, n={row['n']}, logits of spread {row['scale']:g}: "
            f"{_time(row['ours'])}, {row['ratio']:.0f}x eigvalsh ({_time(row['dense'])} from {row['sample']} of them, "
            f"goal >= 50x); largest difference {row['difference']:.0e} of the largest eigenvalue"
        )
    for row in record.get("heads", []):
        out.print(
            f"gradient of the reduced loss, {row['activation']}, H=8, F=3, L=5, 1e5 samples: {_time(row['seconds'])}; "
            f"autograd head by head {row['terms_ratio']:.0f}x term by term (goal >= 20x), "
            f"{row['products_ratio']:.0f}x with matrix-vector products; largest difference {row['difference']:.0e}"
        )
    out.print(f"{record['seconds']:.0f} s in all; {record['cores']} cores; {record['environment']}")


if __name__ == "__main__":
    main()
