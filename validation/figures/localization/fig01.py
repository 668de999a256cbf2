"""Figure 1: the softmax beside its piecewise-linear approximation, for two logits."""

from __future__ import annotations

import numpy as np

from attsvm.validation.figures.framework import Context, Figure, Outcome, Picture, Table, subplots

__all__ = ["FIGURE", "draw", "run"]


def run(context: Context) -> Outcome:
    """Both functions on a grid of logits (omega_1, omega_2), first component."""
    from attsvm.dynamics.localization import piecewise_softmax
    from attsvm.softmax import softmax

    s = context.settings
    axis = np.linspace(-s["width"], s["width"], s["points"])
    logits = np.stack(np.meshgrid(axis, axis, indexing="ij"), axis=-1)
    exact, clipped = softmax(logits)[..., 0], np.asarray(piecewise_softmax(logits))[..., 0]
    gap = np.abs(logits[..., 0] - logits[..., 1])
    rows = []
    for low, high in ((0.0, 0.5), (0.5, 2.0), (2.0, 4.0), (4.0, np.inf)):
        chosen = (gap >= low) & (gap < high)
        if chosen.any():
            rows.append(
                (
                    f"{low:g} to {high:g}",
                    int(chosen.sum()),
                    float(np.abs(exact - clipped)[chosen].max()),
                    float(np.abs(exact - clipped)[chosen].mean()),
                )
            )
    worst = np.unravel_index(np.abs(exact - clipped).argmax(), exact.shape)
    at = abs(float(axis[worst[0]] - axis[worst[1]]))
    return Outcome(
        tables=[Table("Softmax less its approximation", ("|omega_1 - omega_2|", "points", "largest", "mean"), rows)],
        curves={"axis": axis, "softmax": exact, "piecewise": clipped},
        notes=[
            "For two tokens both depend on omega_1 - omega_2 alone, and the approximation is clipped from a "
            "difference of 2 "
            f"on. The largest error, {float(np.abs(exact - clipped).max()):.3f}, is at a difference of {at:.2f}.",
        ],
    )


def draw(outcome: Outcome) -> Picture:
    """The two functions and their difference."""
    c = outcome.curves
    axis = np.asarray(c["axis"])
    picture, axes = subplots(1, 3, (11, 3.4))
    fields = (np.asarray(c["softmax"]), np.asarray(c["piecewise"]))
    titles = (r"$S(\omega)_1$", r"$\tilde S(\omega)_1$", r"$S(\omega)_1-\tilde S(\omega)_1$")
    for place, field, title in zip(axes, (*fields, fields[0] - fields[1]), titles, strict=True):
        limit = float(np.abs(field).max()) if title.count("-") else None
        mesh = place.pcolormesh(axis, axis, field.T, cmap="RdBu" if limit else "viridis", vmin=-limit if limit else 0,
                                vmax=limit if limit else 1)  # fmt: skip
        place.set(title=title, xlabel=r"$\omega_1$", ylabel=r"$\omega_2$", aspect="equal")
        picture.colorbar(mesh, ax=place)
    return picture


FIGURE = Figure(
    paper="localization",
    name="fig1",
    title="The softmax and its piecewise-linear approximation, two logits",
    protocol="""First component of the softmax of (omega_1, omega_2) and of its expansion at zero clipped to [0, 1],
        on a grid. Nothing is drawn at random.""",
    full={"trials": 1, "width": 4.0, "points": 161},
    quick={"trials": 1, "points": 41},
    run=run,
    draw=draw,
)
