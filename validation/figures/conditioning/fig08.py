"""Figure 8: Assumption B1 in the last layer of a trained vision transformer: leakage, important keys, dim I."""

from __future__ import annotations

from typing import Any

import numpy as np

from attsvm.dynamics.conditioning import PromptProblem, leakage, sampled_leakage, signal_subspace
from attsvm.sweeps import columns_of
from attsvm.validation.figures.framework import Context, Figure, Outcome, Picture, Table, finish, subplots

__all__ = ["FIGURE", "draw", "final_layer", "run"]


def final_layer(
    trials: int, seed: int, *, epochs: int, limit: int, test: int, dim: int, layers: int, patch: int,
    device: str | None = None,
) -> dict[str, Any]:  # fmt: skip
    """Train on the digits' labels; for every head of the last layer the numbers of the three panels.

    Examples
    --------
    >>> from attsvm.validation.figures.conditioning.fig08 import final_layer
    >>> found = final_layer(1, 0, epochs=2, limit=200, test=20, dim=16, layers=1, patch=2)
    >>> len(found["dimension"][0])
    4
    """
    import torch

    from attsvm.validation.figures.conditioning.images import load_images
    from attsvm.validation.figures.conditioning.vit import SmallViT, accuracy, train_on_labels

    pixels, classes, _ = load_images(limit=limit)
    images, labels = torch.tensor(pixels, device=device), torch.tensor(classes, device=device)

    def row(trial: int) -> dict[str, Any]:
        start = seed % 2**31 + trial
        model = SmallViT(images.shape[1], patch, dim, layers, hidden=2 * dim, seed=start).to(device)
        train_on_labels(model, images[test:], labels[test:], epochs=epochs, seed=start)
        with torch.no_grad():
            last = model(images[:test], inside=True)[1][-1]
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
        return {**found, "accuracy": accuracy(model, images[:test], labels[:test])}

    return columns_of(map(row, range(trials)))


def run(context: Context) -> Outcome:
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


def draw(outcome: Outcome) -> Picture:
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


FIGURE = Figure(
    paper="conditioning",
    name="fig8",
    title="Assumption B1 in the final layer of a trained vision transformer",
    protocol="""As Tables 1-3: digits, Adam on the labels, class token, S_i = tokens with at least half of the
        largest attention, I = principal subspace of the important keys with 90 % of their squared norm. The paper's
        model is not published.""",
    full={"trials": 2, "epochs": 25, "limit": 1797, "test": 400, "dim": 64, "layers": 3, "patch": 2},
    quick={"trials": 1, "epochs": 4, "limit": 600, "test": 60, "dim": 32, "layers": 2},
    run=run,
    draw=draw,
)
