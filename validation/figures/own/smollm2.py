"""SmolLM2-135M: first-token sinks and what else its 270 heads do, in head space."""

from __future__ import annotations

from typing import Any

import numpy as np

from attsvm.probing import LayerData
from attsvm.probing.inputs import read_inputs
from attsvm.probing.measures.context import Context as LayerContext
from attsvm.probing.measures.polarization import polarization_measures
from attsvm.records import mean_share_of
from attsvm.validation.figures.framework import Context, Figure, Outcome, Picture, Table, subplots
from attsvm.validation.figures.own.real_heads import kinds_table, measures_table, paired_table, probed
from attsvm.validation.pretrained.transformer_models import english_paragraphs, installed_model

__all__ = ["FIGURE", "draw", "first_token_sinks", "run"]

PROMPTS = (
    "The quick brown fox jumps over the lazy dog and runs away into the forest.",
    "The capital of France is",
    "Once upon a time there was a girl who lived in a small house near the sea.",
    "Water boils at one hundred degrees, and ice melts at zero.",
    "She opened the letter, read it twice, and put it back into the drawer.",
    "In 1905 a clerk in Bern published four papers that changed physics.",
)


def first_token_sinks(layers: list[LayerData]) -> Any:
    """Sink score of the first token, shape (layers, heads, sequences)."""
    return np.array([
        [polarization_measures(head, LayerContext(layer))["sink_share_first"] for head in layer] for layer in layers
    ])  # fmt: skip


def run(context: Context) -> Outcome:
    """Sinks on single prompts, then the probe on paragraphs."""
    from attsvm.probing.hooks import capture

    s = context.settings
    loaded = installed_model("smollm2")
    rows, scores = [], []
    for prompt in PROMPTS[: s["prompts"]]:
        layers = capture(loaded.model, read_inputs(prompt, loaded.tokenizer).batches)
        found = first_token_sinks(layers)[..., 0]
        scores.append(found)
        rows.append((prompt, layers[0].q.shape[2], int((found > 0.5).sum()), found.size))
    table = probed(
        loaded, english_paragraphs(s["sequences"]), context, seed=context.seed, svm=s["svm"], baselines=s["sequences"]
    )
    told = [
        Table(
            "Heads with more than half of their attention on the first token",
            ("prompt", "tokens", "sinks", "heads"),
            rows,
        ),
        kinds_table("What the heads do on paragraphs (head space)", table),
        measures_table(f"{len(table)} heads, {table.about['sequences']} paragraphs", table),
    ]
    if s["svm"]:
        told.append(paired_table("Against their own SVM in head space (W = I)", [table]))
    share = mean_share_of([float((found > 0.5).mean()) for found in scores])
    notes = [
        f"Sinks in {share} of the heads over {len(scores)} prompts; measured before on a short prompt: 181 of 270.",
        f"Recomputed attention within {table.about['error']:.0e} of the model's own.",
        "Weights of four bits: small singular values are blurred by the rounding.",
    ]
    return Outcome(told, {"sinks": np.mean(scores, axis=0), "log10_kappa": table.grid("log10_kappa")}, notes)


def draw(outcome: Outcome) -> Picture:
    """Sinks and condition numbers, layer by head."""
    picture, axes = subplots(1, 2, (9, 6))
    for axis, name, title in (
        (axes[0], "sinks", "attention on the first token"),
        (axes[1], "log10_kappa", "log10 condition number"),
    ):
        shown = axis.imshow(np.array(outcome.curves[name], dtype=float), aspect="auto", cmap="viridis")
        axis.set(xlabel="head", ylabel="layer", title=title)
        picture.colorbar(shown, ax=axis)
    return picture


FIGURE = Figure(
    paper="own",
    name="smollm2",
    title="SmolLM2-135M: first-token sinks in most heads",
    protocol="""Four-bit weights from the package, rotated keys and queries (head space). Prompts one by one; a head is
        a sink when the mean share of attention on the first token, from all later queries, exceeds one half. Then
        paragraphs of Python's language reference through the whole probe.""",
    full={"trials": 1, "prompts": 6, "sequences": 8, "length": 96, "svm": True, "svm_sequences": 4, "svm_held_out": 4,
          "svm_queries": 4, "tolerance": 1e-3, "removal": 2, "pruning": 0},
    quick={"trials": 1, "prompts": 2, "sequences": 2, "length": 12, "svm": False, "svm_sequences": 1, "svm_held_out": 1,
           "svm_queries": 2, "tolerance": 1e-3, "removal": 0, "pruning": 0},
    run=run,
    draw=draw,
)  # fmt: skip
