"""
The smallest edit of a real head
================================

Head 5 of layer 10 of rxnmapper's ALBERT points from each atom of a product to the reactant atom that it came from. It
is right on 98 of 118 atoms of the reactions that come with the package. The script finds the smallest change of its
keys that makes it right on all of them, proves it, and writes it into the network. The numbers of the whole study were
printed by ``attsvm validate own atoms`` (record: ``docs/studies/own_atoms.json``); what needs the weights runs if the
package is installed (``make models``).
"""

import json
import sys
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

import attsvm
from attsvm.validation.pretrained.installed_models import is_installed

here = Path(__file__).resolve().parent if "__file__" in globals() else Path.cwd()
record = json.loads((here.parent / "studies" / "own_atoms.json").read_text())
for table in record["tables"][:3]:
    print(table["title"])
    for row in table["rows"]:
        print("  ", " | ".join(row))

# %%
# The same edit, live: one reaction, before and after.

if is_installed("rxnmapper") and is_installed("transformers"):
    from attsvm.validation.figures.own.fit_studies import counts
    from attsvm.validation.pretrained.atom_mapping import load_reaction_model, package_reactions, tasks_of

    model, reactions = load_reaction_model(), package_reactions()
    tasks = tasks_of(model, reactions, model.head)
    edit = attsvm.edit(model.head, tasks.problem, tasks.wanted, of="K")
    print(edit)
    print("driven most by:", *edit.driving[:3], sep="\n  ")
    before, after = (attsvm.attention.probabilities(tasks.problem, W) for W in (model.head.W, edit.W))
    truth, mask = tasks.wanted, tasks.wanted >= 0
    share = [np.take_along_axis(p, np.maximum(truth, 0)[..., None], 2)[..., 0][mask] for p in (before, after)]
else:
    print("make models installs the weights: without them only the recorded numbers are shown")
    share = None

# %%
# The head's attention on one of the reactions, atom by atom; rings mark wrong selections.

maps = None
if share is not None:
    chosen = max(range(len(reactions)), key=lambda i: len(reactions[i].product_atoms))
    reaction = reactions[chosen]
    rows, columns = len(reaction.product_atoms), len(reaction.reactant_atoms)
    maps, sides = plt.subplots(1, 2, figsize=(11, 5.2), layout="constrained", sharey=True)
    titles = ("as trained", f"keys edited: {100 * edit.relative_norm:.1f} % of their norm")
    for axis, weights, title in zip(sides, (before, after), titles, strict=True):
        shown = weights[chosen, :rows, :columns]
        axis.imshow(shown, cmap="Blues", vmin=0, vmax=1, aspect="auto")
        wrong = np.flatnonzero(shown.argmax(axis=1) != reaction.origin)
        axis.plot(shown[wrong].argmax(axis=1), wrong, "o", mfc="none", mec="C3", ms=13, mew=2)
        axis.set_xticks(range(columns), [reaction.words[k] for k in reaction.reactant_atoms], fontsize=8)
        axis.set_yticks(range(rows), [reaction.words[k] for k in reaction.product_atoms], fontsize=8)
        right = counts(tasks.verdicts(model.head.W if axis is sides[0] else edit.W))["right"]
        axis.set_title(f"{title}\nright on {right} of {tasks.count} atoms in 13 reactions", fontsize=11)
        axis.set_xlabel("reactant atoms")
    sides[0].set_ylabel("product atoms")

# %%
# How much attention each right atom gets, and how the edit fares on reactions that it has not seen.

panels = 1 if share is None else 2
figure, axes = plt.subplots(1, panels, figsize=(5.5 * panels, 4), layout="constrained", squeeze=False)
learning, live = axes[0, -1], axes[0, 0]  # one panel where there are no weights
if share is not None:
    live.plot([0, 1], [0, 1], color="grey", linewidth=0.8)
    live.scatter(*share, s=14)
    live.set(xlabel="before the edit", ylabel="after", title="attention on the right atom, 118 product atoms")
curve = record["curves"]["curve"]
for way, label in (("W", "edit of W"), ("K", "edit of K"), ("Q", "edit of Q"), ("fit", "fitted from nothing")):
    sizes = sorted({f["size"] for f in curve if f["way"] == way})
    shares = [[f["right"] / f["total"] for f in curve if (f["way"], f["size"]) == (way, k)] for k in sizes]
    means = [100 * np.mean(values) for values in shares]
    learning.plot(sizes, means, "o-", label=label)
raw = 100 * np.mean([f["right"] / f["total"] for f in curve if f["way"] == "raw head"])
learning.axhline(raw, color="black", linestyle="--", label="raw head")
learning.set(xlabel="training reactions", ylabel="held-out atoms right (%)", title="ten random splits")
learning.legend()

if len(sys.argv) > 1:  # python docs/examples/plot_edit_atoms.py atoms.png docs/images/real_model.png
    for picture, path in zip((figure, maps), sys.argv[1:], strict=False):
        if picture is not None:
            picture.savefig(Path(path), dpi=110)
