"""Figures 4, 5 and 8 and Tables 1 to 3: attention of small vision transformers.

4 and 5: attention maps after training on dense and on sparse teachers. 8: Assumption B1 in the last layer (leakage,
important keys, dim I). Tables: leakage, value margins and condition numbers.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from attsvm.dynamics.conditioning import PromptProblem, kappa_report, leakage, sampled_leakage, signal_subspace
from attsvm.solvers.arrays import FloatArray
from attsvm.sweeps import columns_of
from attsvm.validation.figures.figure import Context, Figure, Outcome, Picture, Table, finish, mean_of, subplots


def maps(
    trials: int, seed: int, *, log10_ratio: float, lr: float, epochs: int, limit: int, dim: int, layers: int, patch:
    int, device: str | None = None,
) -> dict[str, Any]:  # fmt: skip
    """Train a student of a teacher with a given ratio and read the class token's attention over the patches.

    Examples
    --------
    >>> found = maps(1, 0, log10_ratio=1.0, lr=0.1, epochs=1, limit=64, dim=8, layers=1, patch=4)
    >>> np.shape(found["map"][0])
    (1, 4, 2, 2)
    """
    import torch

    from attsvm.validation.figures.conditioning.vision_model import (
        SmallViT,
        load_images,
        scaled_teacher,
        train_on_teacher,
    )

    pixels, _, _ = load_images(limit=limit)
    images = torch.tensor(pixels, device=device)
    shape = {"side": images.shape[1], "patch": patch, "dim": dim, "layers": layers, "hidden": 2 * dim}
    cells = images.shape[1] // patch

    def row(trial: int) -> dict[str, Any]:
        base = seed % 2**31 + 2 * trial
        teacher = scaled_teacher(SmallViT(**shape, seed=base).to(device), images, log10_ratio * np.log(10))
        student = SmallViT(**shape, seed=base + 1).to(device)
        with torch.no_grad():
            logits = teacher(images)
        train_on_teacher(student, images, 2 * (logits - logits.mean()) / logits.std(), lr=lr, epochs=epochs, seed=base)
        found: dict[str, Any] = {"image": images[0].cpu().numpy()}
        for who, model in (("teacher", teacher), ("student", student)):
            with torch.no_grad():
                logs = torch.stack([layer["log_attention"][:, :, 0] for layer in model(images, inside=True)[1]])
            ratio = (logs.amax(-1) - logs.amin(-1)) / np.log(10)  # (layers, examples, heads)
            weights = logs.exp()
            found[f"{who}_ratio"] = float(ratio.median())
            found[f"{who}_entropy"] = float((-(weights * logs).sum(-1)).mean() / np.log(logs.shape[-1]))
            if who == "student":
                found["map"] = weights[:, 0, :, 1:].reshape(layers, -1, cells, cells).cpu().numpy()
        return found

    return columns_of(map(row, range(trials)))


def run_figure_4(context: Context) -> Outcome:
    """A dense and a sparse teacher."""
    s = context.settings
    shape = context.cell("lr", "epochs", "limit", "dim", "layers", "patch")
    cells = [shape | {"log10_ratio": ratio} for ratio in s["log10_ratios"]]
    found = context.sweep(maps, cells, chunk=1, name="maps")
    rows = []
    curves: dict[str, Any] = {}
    for ratio, columns in zip(s["log10_ratios"], found.columns, strict=True):
        values = {name: np.asarray(columns[name], dtype=float) for name in columns if name not in ("map", "image")}
        rows.append((f"{ratio:g}", *(mean_of(values[f"{who}_{what}"]) for who in ("teacher", "student")
                                     for what in ("ratio", "entropy"))))  # fmt: skip
        curves[f"{ratio:g}"] = {"map": np.asarray(columns["map"][0], dtype=float), "entropy": values["student_entropy"]}
        curves["image"] = np.asarray(columns["image"][0], dtype=float)
    dense, sparse = (curves[f"{ratio:g}"]["entropy"].mean() for ratio in (s["log10_ratios"][0], s["log10_ratios"][-1]))
    names = ("log10 R asked", "teacher log10 R", "teacher entropy", "student log10 R", "student entropy")
    return Outcome(
        tables=[Table("Attention of the class token (entropy relative to that of even attention)", names, rows)],
        curves=curves,
        notes=[
            f"Students of the sparse teacher have {'lower' if sparse < dense else 'no lower'} relative entropy "
            "than those of the "
            f"dense one ({sparse:.2f} and {dense:.2f}).",
            "REDUCED: 8 x 8 digits instead of MNIST, and teachers made sparse by one factor on their logits.",
        ],
    )


def draw_figure_4(outcome: Outcome) -> Picture:
    """Maps of the first image: one row per teacher and layer, one column per head."""
    c = outcome.curves
    kinds = [name for name in c if name != "image"]
    stack = [(name, layer, np.asarray(c[name]["map"])[layer]) for name in kinds for layer in range(len(c[name]["map"]))]
    heads = stack[0][2].shape[0]
    picture, axes = subplots(len(stack), heads + 1, (1.5 * (heads + 1), 1.5 * len(stack)), squeeze=False)
    for row, (name, layer, patches) in zip(axes, stack, strict=True):
        row[0].imshow(np.asarray(c["image"]), cmap="gray_r")
        row[0].set_ylabel(rf"$\log_{{10}}R$ = {name}" + f"\nlayer {layer + 1}", fontsize=7)
        for head, axis in enumerate(row[1:]):
            axis.imshow(patches[head], cmap="viridis", vmin=0, vmax=patches[head].max())
            axis.set_title(f"head {head + 1}, max {patches[head].max():.2f}", fontsize=6)
        for axis in row:
            axis.set(xticks=[], yticks=[])
    return picture


FIGURE_4 = Figure(
    paper="conditioning",
    name="fig4",
    aliases=("fig5",),
    title="Attention maps of students of dense and sparse teachers",
    protocol="""The students of Figure 2(b): vision transformers on the 8 x 8 digits, SGD on the divergence from
        teachers with max/min of the class token's attention near 20 (Figure 4) and 1e7 (Figure 5).""",
    full={
        "trials": 2,
        "log10_ratios": (1.3, 7.0),
        "lr": 0.1,
        "epochs": 12,
        "limit": 1797,
        "dim": 32,
        "layers": 3,
        "patch": 2,
    },
    quick={"trials": 1, "epochs": 2, "limit": 300, "dim": 16, "layers": 2},
    run=run_figure_4,
    draw=draw_figure_4,
)


def _trained_on_digits(
    trials: int, seed: int, *, epochs: int, limit: int, test: int, dim: int, layers: int, patch: int,
    device: str | None = None,
) -> Iterator[tuple[list[dict[str, Any]], float]]:  # fmt: skip
    """What every layer of a trained model says of the test images, and the accuracy on them; one model per trial."""
    import torch

    from attsvm.validation.figures.conditioning.vision_model import SmallViT, accuracy, load_images, train_on_labels

    pixels, classes, _ = load_images(limit=limit)
    images, labels = torch.tensor(pixels, device=device), torch.tensor(classes, device=device)
    for start in range(seed % 2**31, seed % 2**31 + trials):
        model = SmallViT(images.shape[1], patch, dim, layers, hidden=2 * dim, seed=start).to(device)
        train_on_labels(model, images[test:], labels[test:], epochs=epochs, seed=start)
        with torch.no_grad():
            inside = model(images[:test], inside=True)[1]
        yield inside, accuracy(model, images[:test], labels[:test])


def final_layer(trials: int, seed: int, **sizes: Any) -> dict[str, Any]:
    """Train on the digits' labels; for every head of the last layer the numbers of the three panels.

    Examples
    --------
    >>> found = final_layer(1, 0, epochs=2, limit=200, test=20, dim=16, layers=1, patch=2)
    >>> len(found["dimension"][0])
    4
    """

    def row(layers_seen: list[dict[str, Any]], share: float) -> dict[str, Any]:
        last = layers_seen[-1]
        logs, keys = (last[name].double().cpu().numpy() for name in ("log_attention", "keys"))
        found: dict[str, list[Any]] = {name: [] for name in ("rho", "sampled", "position", "dimension", "explained")}
        for head in range(keys.shape[1]):
            attention, own = logs[:, head, 0], keys[:, head]
            members = attention >= attention.max(axis=1, keepdims=True) - np.log(2)
            kept = ~members.all(axis=1)
            if not kept.any():  # an even head: every token is important, and B1 says nothing
                for name, nothing in (("rho", np.nan), ("sampled", np.nan), ("dimension", 0), ("explained", np.nan)):
                    found[name].append(nothing)
                found["position"].append([])
                continue
            problem = PromptProblem(X=own[kept], y=np.zeros(int(kept.sum())), v=np.ones(own.shape[2]))
            signal, rest = signal_subspace(problem, members[kept])
            important = own[kept][members[kept]]
            inside, outside = (np.linalg.norm(important @ basis, axis=1) for basis in (signal, rest))
            exact = leakage(problem, members[kept], rest) if rest.shape[1] else np.zeros(1)
            found["rho"].append(float(np.median(np.where(np.isfinite(exact), exact, 1e6))))
            found["sampled"].append(float(np.median(sampled_leakage(problem, members[kept], rest, seed=seed))))
            found["position"].append(np.log10(np.maximum(outside, 1e-12) / np.maximum(inside, 1e-12)).tolist()[:400])
            found["dimension"].append(signal.shape[1])
            found["explained"].append(float((inside**2).sum() / ((inside**2).sum() + (outside**2).sum())))
        return {**found, "accuracy": share}

    return columns_of(row(*trained) for trained in _trained_on_digits(trials, seed, **sizes))


def run_figure_8(context: Context) -> Outcome:
    """Read the heads of the first trained model, and tabulate all of them."""
    s = context.settings
    cell = context.cell("epochs", "limit", "test", "dim", "layers", "patch")
    found = context.sweep(final_layer, [cell], chunk=1, name="final layer").columns[0]
    rows, below, left = [], 0, []
    for trial in range(s["trials"]):
        for head, position in enumerate(found["position"][trial]):
            rho, sampled = float(found["rho"][trial][head]), float(found["sampled"][trial][head])
            share = float(np.mean(np.asarray(position) < 0)) if len(position) else float("nan")
            below += int(sampled < 1)
            left.append(share)
            rows.append((trial, head, rho, sampled, share, int(found["dimension"][trial][head]),
                         float(found["explained"][trial][head])))  # fmt: skip
    names = (
        "model",
        "head",
        "rho_U exact, median",
        "rho_U sampled, median",
        "share with |k_U| < |k_I|",
        "dim I",
        "explained",
    )
    return Outcome(
        tables=[Table("Heads of the final layer", names, rows)],
        curves={name: list(found[name][0]) for name in ("rho", "sampled", "position", "dimension", "explained")},
        notes=[
            f"The sampled leakage is below 1 in {below} of {len(rows)} heads (published: all); the exact one in "
            f"{sum(row[2] < 1 for row in rows)}. In {int(np.isnan(left).sum())} every token counts as important.",
            f"Important keys lie nearer to I than to U in a share of {np.nanmin(left):.2f} to "
            f"{np.nanmax(left):.2f} of the tokens of "
            "a head. "
            f"I is built to hold 90 % of their squared norm, so that this is expected. Test accuracy "
            f"{float(np.mean(found['accuracy'])):.2f}.",
        ],
    )


def draw_figure_8(outcome: Outcome) -> Picture:
    """Leakage by head, where important keys lie, and the signal subspace."""
    c = outcome.curves
    picture, (left, middle, right) = subplots(1, 3, (11, 3.4))
    heads = np.arange(len(c["rho"]))
    left.bar(heads - 0.2, np.asarray(c["sampled"], dtype=float), 0.4, label="200 directions")
    left.bar(heads + 0.2, np.asarray(c["rho"], dtype=float), 0.4, label="exact")
    left.axhline(1.0, color="k", lw=0.8, ls=":")
    left.set(title=r"leakage $\rho_U$, median over examples", xlabel="head", yscale="log")
    left.margins(y=0.3)  # room for the legend
    for head, position in enumerate(c["position"]):
        if len(position):
            middle.hist(np.asarray(position, dtype=float), bins=30, histtype="step", label=f"head {head}")
    middle.axvline(0.0, color="k", lw=0.8, ls=":")
    middle.set(title="important tokens", xlabel=r"$\log_{10}(\|k_U\|/\|k_I\|)$", ylabel="tokens")
    right.bar(heads - 0.2, np.asarray(c["dimension"], dtype=float), 0.4, label=r"$\dim I$")
    right.bar(heads + 0.2, np.asarray(c["explained"], dtype=float), 0.4, label="share of squared norm")
    right.set(title="signal subspace", xlabel="head")
    return finish(picture, (left, middle, right), legend=7)


FIGURE_8 = Figure(
    paper="conditioning",
    name="fig8",
    title="Assumption B1 in the final layer of a trained vision transformer",
    protocol="""As Tables 1-3: digits, Adam on the labels, class token, S_i = tokens with at least half of the
        largest attention, I = principal subspace of the important keys with 90 % of their squared norm. The paper's
        model is not published.""",
    full={"trials": 2, "epochs": 25, "limit": 1797, "test": 400, "dim": 64, "layers": 3, "patch": 2},
    quick={"trials": 1, "epochs": 4, "limit": 600, "test": 60, "dim": 32, "layers": 2},
    run=run_figure_8,
    draw=draw_figure_8,
)


def head_statistics(log_attention: FloatArray, keys: FloatArray, values: FloatArray, seed: int) -> dict[str, Any]:
    """What Tables 1-3 need of one head: attention (N, n) of the class token, keys and values (N, n, dim).

    Examples are left out where all tokens count as important (at least half of the largest attention).

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> logits = rng.normal(size=(6, 5))
    >>> logs = logits - np.log(np.exp(logits).sum(1, keepdims=True))
    >>> found = head_statistics(logs, rng.normal(size=(6, 5, 3)), rng.normal(size=(6, 5, 3)), 0)
    >>> found["rho"].shape == found["delta"].shape, bool((found["sampled"] <= found["rho"] * (1 + 1e-9)).all())
    (True, True)
    """
    members = log_attention >= log_attention.max(axis=1, keepdims=True) - np.log(2)
    kept = ~members.all(axis=1)
    if not kept.any():
        nothing = {name: np.empty(0) for name in ("rho", "sampled", "delta", "kappa", "khat", "proxy", "dimension")}
        return nothing | {"kept": 0.0}
    logs, members = log_attention[kept], members[kept]
    problem = PromptProblem(X=keys[kept], y=np.zeros(len(logs)), v=np.ones(keys.shape[2]))
    signal, rest = signal_subspace(problem, members)
    a = np.exp(logs)
    mean = np.einsum("in,ind->id", a, values[kept])
    distance = np.linalg.norm(values[kept] - mean[:, None], axis=2)
    report = kappa_report(log_attention=logs)
    return {
        "rho": leakage(problem, members, rest) if rest.shape[1] else np.zeros(len(logs)),
        "sampled": sampled_leakage(problem, members, rest, seed=seed) if rest.shape[1] else np.zeros(len(logs)),
        "dimension": signal.shape[1],
        "delta": np.where(members, distance, np.inf).min(axis=1),
        "kappa": report.exact / np.log(10),
        "khat": report.lower / np.log(10),
        "proxy": report.proxy / np.log(10),
        "kept": float(kept.mean()),
    }


def trained_heads(trials: int, seed: int, **sizes: Any) -> dict[str, Any]:
    """Train on the digits' labels and read every head; columns hold one list per trial.

    Examples
    --------
    >>> found = trained_heads(1, 0, epochs=3, limit=200, test=20, dim=16, layers=1, patch=2)
    >>> len(found["rho"]), 0 <= found["accuracy"][0] <= 1
    (1, True)
    """

    def row(layers_seen: list[dict[str, Any]], share: float) -> dict[str, Any]:
        heads: list[dict[str, Any]] = []
        for layer in layers_seen:
            logs, keys, values = (layer[name].double().cpu().numpy() for name in ("log_attention", "keys", "values"))
            heads.extend(head_statistics(logs[:, h, 0], keys[:, h], values[:, h], seed) for h in range(keys.shape[1]))
        found = {
            name: np.concatenate([np.atleast_1d(head[name]) for head in heads])
            for name in ("rho", "sampled", "delta", "kappa", "khat", "proxy", "dimension", "kept")
        }
        if not len(found["rho"]):
            raise ValueError("every token is important in every head: train longer or with more patches")
        finite = np.isfinite(found["rho"])
        levels = np.array([0.1, 0.5, 0.9])
        return {
            **{name: np.quantile(found[name], levels) for name in ("sampled", "delta", "kappa", "khat", "proxy")},
            "rho": np.quantile(np.where(finite, found["rho"], 1e12), levels),
            "unseen": 1 - finite.mean(),
            "below_one": float((found["rho"] < 1).mean()),
            "sampled_below_one": float((found["sampled"] < 1).mean()),
            "dimension": float(np.median(found["dimension"])),
            "kept": float(np.mean(found["kept"])),
            "off_by": float(np.median(found["proxy"] - found["kappa"])),
            "accuracy": share,
        }

    return columns_of(row(*trained) for trained in _trained_on_digits(trials, seed, **sizes))


def run_table1(context: Context) -> Outcome:
    """Train, read the heads, and tabulate."""
    cell = context.cell("epochs", "limit", "test", "dim", "layers", "patch")
    found = context.sweep(trained_heads, [cell], chunk=1, name="heads").columns[0]

    def quantiles(name: str) -> tuple[float, ...]:
        return tuple(np.mean(found[name], axis=0))

    def mean(name: str) -> float:
        return float(np.mean(found[name]))

    levels = ("10 %", "median", "90 %")
    tables = [
        Table("Table 1: leakage rho_U over examples and heads", ("estimate", *levels, "share below 1"),
              (("exact", *quantiles("rho"), mean("below_one")),
               ("200 random directions", *quantiles("sampled"), mean("sampled_below_one")))),
        Table("Table 2: value margins", ("quantity", *levels), (("delta_i (norm)", *quantiles("delta")),)),
        Table("Table 3: log10 condition number of J^2 of the class token's attention", ("quantity", *levels),
              (("exact", *quantiles("kappa")), ("khat^2", *quantiles("khat")), ("(max/min)^2", *quantiles("proxy")))),
        Table("The model", ("test accuracy", "median dim I", "share of examples kept", "rho infinite"),
              ((mean("accuracy"), mean("dimension"), mean("kept"), mean("unseen")),)),
    ]  # fmt: skip
    return Outcome(
        tables=tables,
        curves={name: quantiles(name) for name in ("rho", "sampled", "kappa", "khat", "proxy")},
        notes=[
            "Sampling underestimates rho_U, most where few unimportant tokens face a large U: there the exact value is "
            "infinite (1e12 in the table) and Assumption B1 fails, though every sampled ratio is finite.",
            "S_i = tokens above half of the largest attention leaves other tokens just below it: a_I / a_U may be near "
            "1, where Theorem 2 says nothing.",
            "delta_i uses the norm of vector values, as in the paper; the theory has scalar ones.",
        ],
    )


def draw_table1(outcome: Outcome) -> Picture:
    """Quantiles of leakage and condition numbers."""
    picture, (left, right) = subplots(1, 2, (9, 3.6))
    levels = ("10 %", "median", "90 %")
    for name, label in (("rho", "exact"), ("sampled", "200 random directions")):
        left.semilogy(levels, np.asarray(outcome.curves[name], dtype=float), "o-", label=label)
    left.axhline(1.0, color="k", lw=0.8, ls=":")
    left.set(title="leakage over examples and heads", ylabel=r"$\rho_U$")
    for name, label in (("kappa", "exact"), ("khat", "lower bound, closed form"), ("proxy", r"$(\max a/\min a)^2$")):
        right.plot(levels, np.asarray(outcome.curves[name], dtype=float), "o-", label=label)
    right.set(title=r"condition number of $J^2$", ylabel=r"$\log_{10}\kappa$")
    return finish(picture, (left, right))


FIGURE_TABLE1 = Figure(
    paper="conditioning",
    name="table1",
    title="Assumption B and conditioning of the attention of a trained small vision transformer",
    protocol="""Vision transformer trained by Adam on the labels of the 8 x 8 digits; attention of the class token on
        held-out examples, all layers and heads; S_i = tokens with at least half of the largest attention, I = principal
        subspace of the important keys with 90 % of their squared norm, U its complement; rho_U exactly and from 200
        random directions. The paper's model (MNIST, 6 layers, 24 heads, about 2,000 examples) is not published.""",
    full={"trials": 2, "epochs": 25, "limit": 1797, "test": 400, "dim": 64, "layers": 3, "patch": 2},
    quick={"trials": 1, "epochs": 4, "limit": 600, "test": 60, "dim": 32, "layers": 2},
    run=run_table1,
    draw=draw_table1,
    aliases=("table2", "table3"),
)  # fmt: skip
