"""rxnfp: one pretrained and two fine-tuned checkpoints of a BERT on reactions; which heads moved, and where to."""

from __future__ import annotations

from typing import Any

import numpy as np

from attsvm.probing import LayerData, SvmBudget
from attsvm.probing.inputs import read_inputs
from attsvm.probing.measures.svm import draw_sample
from attsvm.records import mean_of, mean_share_of
from attsvm.svm import att_svm
from attsvm.validation.figures.framework import Context, Figure, Outcome, Picture, Table, finish, subplots
from attsvm.validation.pretrained.transformer_models import rxnfp_model

__all__ = ["FIGURE", "REACTIONS", "draw", "run", "turned"]

CHECKPOINTS = ("bert_pretrained", "bert_ft", "bert_ft_10k_25s")
REACTIONS = (
    "CC(=O)O.OCC>>CC(=O)OCC",
    "c1ccccc1Br.OB(O)c1ccccc1>>c1ccc(-c2ccccc2)cc1",
    "CC(=O)Cl.NCc1ccccc1>>CC(=O)NCc1ccccc1",
    "O=Cc1ccccc1.NCCO>>OCCNCc1ccccc1",
    "CCBr.Oc1ccccc1>>CCOc1ccccc1",
    "O=C(O)c1ccccc1.CN>>CNC(=O)c1ccccc1",
    "COC(=O)c1ccccc1.[OH-]>>O=C(O)c1ccccc1",
    "CC(C)=O.[BH4-]>>CC(C)O",
    "c1ccc2[nH]ccc2c1.CI>>Cn1ccc2ccccc21",
    "O=[N+]([O-])c1ccccc1.[H][H]>>Nc1ccccc1",
    "CC(C)(C)OC(=O)NCc1ccccc1.Cl>>NCc1ccccc1",
    "Clc1ncccn1.NC1CCCCC1>>c1cnc(NC2CCCCC2)nc1",
    "CCOC(=O)CC(=O)OCC.BrCCC>>CCCC(C(=O)OCC)C(=O)OCC",
    "OCc1ccccc1.O=S(Cl)Cl>>ClCc1ccccc1",
    "C=CC=C.C=CC(=O)OC>>COC(=O)C1CC=CCC1",
    "N#Cc1ccccc1.O>>NC(=O)c1ccccc1",
)


def turned(before: LayerData, after: LayerData, head: int, budget: SvmBudget, seed: int) -> dict[str, Any]:
    """How far a head moved, and where: cosines with the SVM of its selections, before, after, and of the step."""
    old, new = before[head], after[head]
    sample, _ = draw_sample(old, budget, seed)
    other, _ = draw_sample(new, budget, seed)
    W0, W1 = old.matrix, new.matrix
    target = att_svm(sample.problem, sample.selection, tolerance=budget.tolerance)
    later = att_svm(other.problem, other.selection, tolerance=budget.tolerance)
    same = float((old.selected[old.counts] == new.selected[old.counts]).mean())
    found = {"moved": float(np.linalg.norm(W1 - W0) / np.linalg.norm(W0)), "same_selection": same}
    if target.status.has_solution and later.status.has_solution:
        found |= {
            "before": _cosine(W0, target.W), "after": _cosine(W1, later.W), "step": _cosine(W1 - W0, target.W),
        }  # fmt: skip
    return found


def _cosine(A: Any, B: Any) -> float:
    size = float(np.linalg.norm(A) * np.linalg.norm(B))
    return float(np.sum(A * B)) / size if size > 0 else float("nan")


def run(context: Context) -> Outcome:
    """Every head of both fine-tuned checkpoints against the pretrained one, over seeds of the sample."""
    from attsvm.probing.hooks import capture

    s = context.settings
    texts = list(REACTIONS[: s["sequences"]])
    layers = {}
    for name in CHECKPOINTS:
        loaded = rxnfp_model(name)
        layers[name] = capture(loaded.model, read_inputs(texts, loaded.tokenizer, max_length=s["length"]).batches)
    budget = SvmBudget(sequences=s["svm_sequences"], held_out=0, queries=s["svm_queries"], tolerance=s["tolerance"])
    told, curves = [], {}
    depth = s["layers"] or len(layers[CHECKPOINTS[0]])
    for name in CHECKPOINTS[1:]:
        rows = [
            {"layer": k, "head": h, **_mean([turned(a, b, h, budget, context.seed + t) for t in range(s["trials"])])}
            for k, (a, b) in enumerate(zip(layers[CHECKPOINTS[0]][:depth], layers[name][:depth], strict=True))
            for h in range(a.heads)
        ]
        curves[name] = rows
        told.append(_summary(name, rows))
        most = sorted(rows, key=lambda row: -row["moved"])[:6]
        cells = [
            (
                f"{r['layer']}.{r['head']}",
                r["moved"],
                r["same_selection"],
                r.get("before"),
                r.get("after"),
                r.get("step"),
            )
            for r in most
        ]
        columns = ("head", "|dW| / |W|", "same selection", "cosine before", "after", "of the step")
        told.append(Table(f"{name}: heads that moved most", columns, cells))
    errors = max(layer.error for found in layers.values() for layer in found)
    notes = [
        f"{len(texts)} reactions, {s['trials']} seeds of the sample; recomputed attention within {errors:.0e}.",
        "Cosines are with the hard Att-SVM of the head's own selections: before and after each with its own, the step "
        "with the one before. A step towards the solution has a positive cosine.",
    ]
    return Outcome(told, curves, notes)


def _mean(parts: list[dict[str, Any]]) -> dict[str, Any]:
    return {name: float(np.mean([part[name] for part in parts if name in part])) for name in parts[0]}


def _summary(name: str, rows: list[dict[str, Any]]) -> Table:
    known = [row for row in rows if "before" in row]
    change = np.array([row["after"] - row["before"] for row in known])
    cells = [
        ("relative change of W", mean_of([row["moved"] for row in rows])),
        ("same token selected", mean_share_of([row["same_selection"] for row in rows])),
        ("cosine with Att-SVM, pretrained", mean_of([row["before"] for row in known])),
        ("cosine with Att-SVM, fine-tuned", mean_of([row["after"] for row in known])),
        ("change of the cosine", mean_of(change)),
        ("cosine of the step with the pretrained solution", mean_of([row["step"] for row in known])),
        ("heads that turned towards their solution", f"{int((change > 0).sum())} of {len(change)}"),
    ]
    return Table(f"{name} against bert_pretrained, {len(rows)} heads", ("", "mean over heads"), cells)


def draw(outcome: Outcome) -> Picture:
    """How far each head moved, against how its cosine changed."""
    picture, axes = subplots(1, 1, (6, 4))
    for name, rows in outcome.curves.items():
        known = [row for row in rows if "before" in row]
        axes.plot([r["moved"] for r in known], [r["after"] - r["before"] for r in known], "o", alpha=0.7, label=name)
    axes.axhline(0.0, color="gray", lw=0.8)
    axes.set(xlabel="relative change of W by fine-tuning", ylabel="change of the cosine with Att-SVM")
    return finish(picture, [axes])


FIGURE = Figure(
    paper="own",
    name="rxnfp",
    title="rxnfp: which heads fine-tuning moved, towards or away from their SVM",
    protocol="""One pretrained BERT on reactions and two checkpoints fine-tuned from it, on the same reactions. The SVM
        of each head's own selections is solved on a sample of queries, for several seeds of the sample.""",
    full={"trials": 3, "sequences": 16, "length": 64, "svm_sequences": 8, "svm_queries": 4, "tolerance": 1e-4,
          "layers": 0},
    quick={"trials": 1, "sequences": 4, "length": 32, "svm_sequences": 2, "svm_queries": 2, "tolerance": 1e-3,
           "layers": 2},
    run=run,
    draw=draw,
)  # fmt: skip
