"""
When does a convex fit beat cosine similarity?
==============================================

The task is to find the body of a docstring of the standard library by its summary line, among the nearest others by
cosine similarity in MiniLM's embedding. The numbers were printed by ``attsvm validate own retrieval`` (record:
``docs/studies/own_retrieval.json``). A fit from nothing has to learn 147,456 numbers from a few hundred questions and
fails; a hard margin around a multiple of the identity neither gains nor loses; a soft one gains. The prior and the
slack make the fit useful, not the margin alone. The made-up embeddings below show the same at a smaller size.
"""

import json
import sys
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

import attsvm
from attsvm.sklearn import AttentionSelector

here = Path(__file__).resolve().parent if "__file__" in globals() else Path.cwd()
record = json.loads((here.parent / "studies" / "own_retrieval.json").read_text())
table = record["tables"][0]
print(table["title"])
for row in table["rows"]:
    print("  ", " | ".join(row))
print(*record["notes"], sep="\n")

# %%
# The same on made-up embeddings: documents are noisy copies of their queries, and four directions carry little
# information. Over ten seeds the fit around I gains 0.024 to 0.061 over W = I, and the fit from nothing loses 0.04 to
# 0.13.

rng = np.random.default_rng(0)
d, n = 24, 1160
noise = np.where(np.arange(d) < 20, 1.0, 4.0)  # how far a document strays from its query, direction by direction
queries = rng.normal(size=(n, d))
documents = queries + noise * rng.normal(size=(n, d))
others = np.array([rng.choice(np.delete(np.arange(n), i), 7, replace=False) for i in range(n)])
X = documents[np.column_stack([np.arange(n), others])]
problem, y = attsvm.AttentionProblem(X[:160], Z=queries[:160]), np.zeros(160, dtype=int)
test = attsvm.AttentionProblem(X[160:], Z=queries[160:])
scores = {"cosine-like (W = I)": float(np.mean(attsvm.attention.likeliest(test, np.eye(d)) == 0))}
for label, options in {
    "soft, from nothing": {"C": 0.01},
    "soft, around I": {"C": 0.01, "prior": 0.3},
}.items():
    fitted = AttentionSelector(loss="squared_hinge", slack="row", **options).fit(problem, y)
    scores[label] = fitted.score(test, np.zeros(n - 160, dtype=int))
print({label: round(value, 3) for label, value in scores.items()})

# %%
# Left: real embeddings, one dot per split. Right: made-up embeddings.

figure, axes = plt.subplots(1, 2, figsize=(13, 4), layout="constrained", width_ratios=[3, 1])
found = record["curves"]["found"]
base = np.array(found["cosine"]["recall"])
shown = [label for label in reversed(found) if label != "cosine"]
for k, label in enumerate(shown):
    gain = np.array(found[label]["recall"]) - base
    axes[0].plot(gain, np.full(len(gain), k), "o", alpha=0.5)
    axes[0].plot([gain.mean()], [k], "|", markersize=18, color="black")
axes[0].axvline(0.0, color="black", linestyle="--", linewidth=0.8)
axes[0].set(yticks=range(len(shown)), yticklabels=shown, xlabel="recall@1 on held-out modules less that of cosine")
axes[1].barh(list(scores), list(scores.values()))
axes[1].set(xlabel="recall@1, made up")

if len(sys.argv) > 1:  # python docs/examples/plot_retrieval.py retrieval.png
    figure.savefig(Path(sys.argv[1]), dpi=110)
