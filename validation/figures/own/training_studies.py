"""Training of small transformers beside the margin problems of their selections.

Whether W turns towards its SVM as training goes on; which problem several heads, softmax-1, sigmoid, sparsemax and
entmax attention follow; and what a monitor costs, with and without it in turn, in one process.
"""

from __future__ import annotations

from typing import Any

import numpy as np

import attsvm
from attsvm.comparison import misalignment
from attsvm.probing import SvmBudget
from attsvm.probing.cheap_measures import random_spectrum
from attsvm.probing.head_data import LayerData
from attsvm.probing.svm_measures import draw_sample, sample_measures
from attsvm.records import mean_of, median_of, share_of
from attsvm.sweeps import columns_of
from attsvm.validation.bench.model_cases import monitor_overhead
from attsvm.validation.figures.figure import Context, Figure, Outcome, Picture, Table, finish, subplots
from attsvm.validation.models.attention_layers import FINITE_MAPS, SUMMED, descend_finite, descend_summed


def _first_query_only(layer: LayerData) -> LayerData:
    from dataclasses import replace

    valid = np.zeros_like(layer.valid)
    valid[:, 0] = True
    return replace(layer, valid=valid)


def snapshots(
    trials: int, _: int, *, draw: int, steps: list[int], images: int, sample: int, heads: int
) -> dict[str, Any]:
    """Train one model per trial; at each of the steps the cosines of its heads with their SVMs, and of random W.

    Examples
    --------
    >>> found = snapshots(1, 0, draw=0, steps=[0, 2], images=40, sample=4, heads=1)
    >>> len(found["correlation_seen_frobenius"][0])
    2
    """
    import torch

    from attsvm.training.optimizers import gradient_step
    from attsvm.validation.models.attention_layers import DigitReader, load_digits

    budget = SvmBudget(sequences=sample, held_out=0, queries=1, tolerance=1e-6, soft=False, shares=())
    rows = []
    for seed in range(draw, draw + trials):
        torch.manual_seed(seed)
        X, y = load_digits(images)
        model = DigitReader(heads=heads)
        optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
        record: dict[str, list[float]] = {}
        for step in range(max(steps) + 1):
            if step in steps:
                for name, value in _measured(model, X[: 2 * sample], budget, seed).items():
                    record.setdefault(name, []).append(value)
            pick = torch.randint(len(X), (64,))
            loss = torch.nn.functional.cross_entropy(model(X[pick]), y[pick])
            gradient_step(optimizer, loss)
            if step in steps:
                record.setdefault("loss", []).append(float(loss.detach()))
        rows.append(record)
    return columns_of(rows)


def _measured(model: Any, images: Any, budget: SvmBudget, seed: int) -> dict[str, float]:
    from attsvm.probing.model_hooks import capture_layers

    layer = _first_query_only(capture_layers(model, [images])[0])
    found: dict[str, list[float]] = {}
    for head in layer:
        for suffix, one in (("", head), ("_random", random_spectrum(head, seed))):
            fitted, _ = draw_sample(one, budget, seed)
            measured = sample_measures(fitted, None, SvmBudget(**{**budget.record(), "baseline": False}), baseline=True)
            for name in ("correlation_seen_frobenius", "correlation_seen_nuclear", "margin_ratio_frobenius"):
                found.setdefault(name + suffix, []).append(float(measured.get(name) or np.nan))
        found.setdefault("norm", []).append(float(np.linalg.norm(head.singular_values)))
        found.setdefault("peak", []).append(float(np.exp(head.log_attention[:, 0].max(axis=-1)).mean()))
    return {name: float(np.mean(values)) for name, values in found.items()}


def run_turning(context: Context) -> Outcome:
    """Cosines over training, mean over seeds."""
    s = context.settings
    cells = [
        {
            "draw": context.seed + k,
            "steps": s["steps"],
            "images": s["images"],
            "sample": s["sample"],
            "heads": s["heads"],
        }
        for k in range(s["trials"])
    ]
    done = context.sweep(snapshots, cells, 1, chunk=1, name="turning").columns
    curves: dict[str, Any] = {"steps": s["steps"]}
    for name in done[0]:
        curves[name] = np.array([column[name][0] for column in done], dtype=float)
    told = ("correlation_seen_frobenius", "correlation_seen_nuclear", "margin_ratio_frobenius")
    names = ("loss", "norm", "peak", *(f"{name}{suffix}" for name in told for suffix in ("", "_random")))
    rows = [(step, *(mean_of(curves[name][:, k]) for name in names)) for k, step in enumerate(s["steps"])]
    table = Table(f"Training a one-layer transformer on digits, {s['trials']} seeds", ("step", *names), rows)
    change = curves["correlation_seen_frobenius"][:, -1] - curves["correlation_seen_frobenius"][:, 0]
    beyond = (curves["correlation_seen_frobenius"] - curves["correlation_seen_frobenius_random"])[:, -1]
    star = curves["correlation_seen_nuclear"][:, -1] - curves["correlation_seen_nuclear"][:, 0]
    notes = [
        f"From the first to the last snapshot the cosine with Att-SVM changes by {mean_of(change)}, with Att-SVM* by "
        f"{mean_of(star)}; at the end it exceeds that of a random W by {mean_of(beyond)}.",
        "Theory turns W towards the solution as the attention saturates, with all else fixed; here values, patches and "
        "places train too.",
        "The first query is the same for every image: solutions have rank one, where both norms agree.",
    ]
    return Outcome([table], curves, notes)


def draw_turning(outcome: Outcome) -> Picture:
    """Cosines against the step, beside random W."""
    picture, axes = subplots(1, 2, (10, 4))
    steps = np.maximum(np.array(outcome.curves["steps"], dtype=float), 0.5)
    for axis, norm, title in ((axes[0], "frobenius", "Att-SVM"), (axes[1], "nuclear", "Att-SVM*")):
        for suffix, label in (("", "trained W"), ("_random", "random W of its spectrum")):
            values = np.array(outcome.curves[f"correlation_seen_{norm}{suffix}"], dtype=float)
            axis.plot(steps, values.mean(axis=0), "o-", label=label)
            if len(values) > 1:
                half = 1.96 * values.std(axis=0, ddof=1) / np.sqrt(len(values))
                axis.fill_between(steps, values.mean(axis=0) - half, values.mean(axis=0) + half, alpha=0.2)
        axis.set(xscale="log", xlabel="step", ylabel=f"cosine with {title} of its own selections")
    return finish(picture, axes)


FIGURE_TURNING = Figure(
    paper="own",
    name="turning",
    title="Training from scratch: does W turn towards the SVM of its selections?",
    protocol="""Digits of scikit-learn as 16 patches and a first token that answers; one attention layer, Adam. At each
        snapshot the tokens that the first query selects on a sample of images make an SVM; its solutions in both norms
        are compared with the part of W that these images can see, and likewise for a random W of the same spectrum.""",
    full={"trials": 10, "steps": [0, 30, 100, 300, 1000, 3000], "images": 1500, "sample": 24, "heads": 1},
    quick={"trials": 2, "steps": [0, 10], "images": 64, "sample": 6, "heads": 1},
    run=run_turning,
    draw=draw_turning,
)  # fmt: skip

_MARKS = (100, 200, 500, 1000, 2000, 5000, 10_000)

_WHAT = {
    "softmax": "Att-SVM",
    "softmax-1": "Att-SVM with one more token, x = 0, of score 0",
    "sigmoid": "x_t^T W z >= 1 for tokens that are on, <= -1 for those that are off",
    "2 heads, own W": "one Att-SVM per head, side by side in one norm",
    "2 heads, one W": "the rows of both heads together",
}


def summed(trials: int, seed: int, *, variant: str, steps: int) -> dict[str, Any]:
    """1 - corr of W with the SVM of the variant's own rows, and with Att-SVM of softmax, at the marks: (trials, marks).

    Examples
    --------
    >>> found = summed(3, 0, variant="softmax-1", steps=500)
    >>> found["own"].shape, len(found["best"])
    ((3, 3), 3)
    """
    rng = np.random.default_rng(seed)
    batch = attsvm.random_problem(n=4, T=4, d=8, batch=trials, seed=seed)
    layer = SUMMED[variant](batch, rng)
    marks = [k for k in _MARKS if k <= steps]
    W = descend_summed(layer, steps, 0.1, marks, seed)
    chosen = attsvm.attention.likeliest(layer.problem, W[-1])
    own = attsvm.att_svm(layer.problem, chosen)
    plain = attsvm.att_svm(batch)
    same_shape = plain.W.shape == own.W.shape
    scores = layer.data.scores
    assert scores is not None
    allowed = np.where(layer.problem.allowed, scores.expand(layer.data.allowed.shape).numpy(), -np.inf)
    return {
        "own": np.stack([misalignment(w, own.W) for w in W], axis=1),
        "plain": misalignment(W[-1], plain.W) if same_shape else np.full(trials, np.nan),
        "solved": [status is attsvm.Status.OPTIMAL for status in own.status],
        "best": (allowed.argmax(axis=-1) == chosen).reshape(trials, -1).all(axis=1),
    }


def finite(trials: int, seed: int, *, name: str, steps: int) -> dict[str, Any]:
    """Where sparsemax or entmax stop: margins over the lead that makes them one-hot, and distances from Att-SVM.

    Examples
    --------
    >>> sorted(finite(2, 0, name="sparsemax", steps=500))[:3]
    ['best', 'error', 'last']
    """
    batch = attsvm.random_problem(n=4, T=4, d=8, batch=trials, seed=seed)
    W, last, stopped = descend_finite(batch, name, steps, 0.02, seed)
    lead = FINITE_MAPS[name][1]
    logits = attsvm.attention.logits(batch, W)
    chosen = logits.argmax(axis=-1)
    solved = attsvm.att_svm(batch, chosen)
    ranked = np.sort(logits, axis=-1)
    softmax = attsvm.train(batch, steps=2000, lr=0.02, seed=seed, snapshots=100, stop_norm=None).history
    # The softmax run when it is as long as this W, for comparison.
    at = np.abs(softmax.norm - np.linalg.norm(W, axis=(1, 2))).argmin(axis=0)
    there = softmax.W[at, np.arange(trials)]
    return {
        "stopped": stopped,
        "last": last,
        "one_hot": ((ranked[..., -1] - ranked[..., -2]).min(axis=-1) >= lead),
        "margin": (ranked[..., -1] - ranked[..., -2]).min(axis=-1) / lead,
        "size": np.linalg.norm(W, axis=(1, 2)) / (lead * solved.norm),
        "error": misalignment(W, solved.W),
        "softmax_error": misalignment(there, solved.W),
        "best": (chosen == np.asarray(batch.optimal_tokens())).all(axis=-1),
    }


def run_variants(context: Context) -> Outcome:
    """Variants that saturate at infinity, then those that stop."""
    s = context.settings
    cells = [{"variant": name, "steps": s["steps"]} for name in SUMMED]
    infinite = context.sweep(summed, cells, chunk=s["trials"], name="sums").columns
    names = [{"name": name, "steps": s["finite_steps"]} for name in FINITE_MAPS]
    ended = context.sweep(finite, names, chunk=s["trials"], name="finite").columns
    marks = [k for k in _MARKS if k <= s["steps"]]
    curves = {
        "steps": marks,
        "own": {v: np.asarray(c["own"], dtype=float) for v, c in zip(SUMMED, infinite, strict=True)},
    }
    tables = [_summed_table(infinite, s), _finite_table(ended, s)]
    return Outcome(tables, curves, [*_summed_notes(infinite), *_finite_notes(ended)])


def _summed_table(infinite: Any, s: Any) -> Table:
    rows = []
    for name, c in zip(SUMMED, infinite, strict=True):
        own = np.asarray(c["own"], dtype=float)
        plain = median_of(np.asarray(c["plain"], dtype=float)) if "heads" not in name else "-"
        rows.append(
            (
                name,
                _WHAT[name],
                str(median_of(own[:, -1])),
                str(plain),
                str(share_of(c["solved"])),
                str(share_of(c["best"])),
            )
        )
    heads = (
        "attention",
        "its rows",
        "1 - corr with them",
        "with Att-SVM of softmax",
        "rows feasible",
        "best tokens selected",
    )
    return Table(f"{s['trials']} problems, {s['steps']} steps: medians and shares with 95 % intervals", heads, rows)


def _finite_table(ended: Any, s: Any) -> Table:
    rows = []
    for name, c in zip(FINITE_MAPS, ended, strict=True):
        medians = (
            median_of(np.asarray(c[k], dtype=float)) for k in ("last", "margin", "size", "error", "softmax_error")
        )
        rows.append((name, str(share_of(c["stopped"])), *map(str, medians), str(share_of(c["best"]))))
    heads = (
        "attention", "gradient exactly 0", "last step", "margin / lead", "|W| / (lead |W_svm|)", "1 - corr: Att-SVM",
        "softmax at that |W|", "optimal tokens",
    )  # fmt: skip
    return Table(f"Maps that become one-hot at finite logits: {s['trials']} problems", heads, rows)


def _summed_notes(infinite: Any) -> list[str]:
    notes = []
    for name, c in zip(SUMMED, infinite, strict=True):
        own = np.asarray(c["own"], dtype=float)
        solved = np.isfinite(own[:, -1])
        falling = share_of(own[solved, -1] < own[solved, 0])
        verdict = (
            "follows the SVM of its own rows" if np.nanmedian(own[:, -1]) < 1e-2 else "has not come near its own rows"
        )
        notes.append(f"{name} {verdict}; 1 - corr fell from the first mark to the last in {falling}")
        away = np.flatnonzero(solved & (own[:, -1] > 1e-2))
        if len(away):
            shown = ", ".join(f"{b} ({own[b, -1]:.1e})" for b in away[:8])
            notes.append(
                f"exceptions: {name}: {len(away)} runs above 1e-2, draws {shown}{' ...' if len(away) > 8 else ''}"
            )
    return notes


def _finite_notes(ended: Any) -> list[str]:
    notes = []
    for name, c in zip(FINITE_MAPS, ended, strict=True):
        error, other = (np.asarray(c[k], dtype=float) for k in ("error", "softmax_error"))
        size = median_of(np.asarray(c["size"], dtype=float))
        nearer = share_of(error < other)
        notes.append(
            f"{name}: training ends where every selected token leads by {FINITE_MAPS[name][1]:g}, at {size} times the "
            "least norm that does so, and follows no margin problem further; nearer to Att-SVM of its tokens than a "
            f"softmax run of the same norm: {nearer}"
        )
    return notes


def draw_variants(outcome: Outcome) -> Picture:
    """Medians and quartiles over the steps."""
    picture, axis = subplots(1, 1, size=(5.6, 3.8))
    for name, values in outcome.curves["own"].items():
        low, middle, high = np.nanquantile(np.asarray(values, dtype=float), (0.25, 0.5, 0.75), axis=0)
        axis.fill_between(outcome.curves["steps"], low, high, alpha=0.15)
        axis.plot(outcome.curves["steps"], middle, marker="o", markersize=3, label=name)
    axis.set(xscale="log", yscale="log", xlabel="steps", ylabel=r"$1 - $ correlation with its own SVM")
    axis.set_xticks(outcome.curves["steps"], [f"{k:,}" for k in outcome.curves["steps"]], minor=False)
    axis.xaxis.minorticks_off()
    return finish(picture, [axis], legend=8)


FIGURE_VARIANTS = Figure(
    paper="own",
    name="variants",
    title="Other attention maps and several heads: which margin problem training follows",
    protocol="""Normalized gradient descent on W, logistic loss, n = 4, T = 4, d = 8, fixed linear heads, exact
        gradients in the log domain. Softmax-1 is softmax with a null token, sigmoid attention a sum of T softmaxes over
        {token, null token}, H heads a sum of H softmaxes; so each has rows of its own, solved for the tokens selected
        at the end. Sparsemax and 1.5-entmax are trained with lr 0.02 until their gradient is exactly 0. An experiment:
        no theorem is tested.""",
    full={"trials": 200, "steps": 5000, "finite_steps": 3000},
    quick={"trials": 6, "steps": 500, "finite_steps": 600},
    run=run_variants,
    draw=draw_variants,
)


def run_monitor(context: Context) -> Outcome:
    """Overhead as a share of a step, run by run."""
    s = context.settings
    names = ("d", "layers", "heads", "batch", "length", "repeats", "every")
    runs = [monitor_overhead(context.seed + k, **{name: s[name] for name in names}) for k in range(s["trials"])]
    shares = np.array([found["share of a step"] for found in runs])
    labels = {"seconds": "CPU seconds of a step", "measuring": "monitor, measuring", "waiting": "monitor, waiting"}
    rows: list[tuple[str, Any]] = [(label, mean_of([found[kind] for found in runs])) for kind, label in labels.items()]
    rows += [("overhead, mean", mean_of(shares)), ("overhead, median", float(np.median(shares)))]
    sizes = f"{s['layers']} layers, d = {s['d']}, batches of {s['batch']} x {s['length']}"
    title = f"Monitor at every = {s['every']}: {sizes}, {s['trials']} runs"
    refuted = [] if np.median(shares) < 0.05 else [f"overhead {np.median(shares):.1%} is not below 5 % of a step"]
    return Outcome([Table(title, ("", ""), rows)], {"overhead": shares}, [], refuted if s["judge"] else [])


FIGURE_MONITOR = Figure(
    paper="own",
    name="monitor",
    title="What a monitor costs: less than 5 % of a training step at every = 100",
    protocol="""Training steps of a transformer of MiniLM's size without a monitor, with one that measures and with one
        that waits, in turn, in one process; medians of the processor time of a step, and of that inside the monitor's
        methods. The share at every = N is that of one measured and N - 1 waiting steps.""",
    full={"trials": 5, "d": 384, "layers": 6, "heads": 12, "batch": 8, "length": 64, "repeats": 5, "every": 100,
          "judge": True},
    quick={"trials": 1, "d": 16, "layers": 1, "heads": 2, "batch": 2, "length": 8, "repeats": 3, "every": 100,
           "judge": False},
    run=run_monitor,
)  # fmt: skip
