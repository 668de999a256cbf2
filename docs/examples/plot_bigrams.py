"""
From bigrams to attention
=========================

A bigram model knows which tokens may follow the last one, and how often. Attention that sees the whole vocabulary in
every context learns the same, in direction and finite part; attention that sees less orders only the tokens that its
data compare.
"""

import sys
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

from attsvm.next_token import (
    decompose,
    graph_svm,
    linear_finite_part,
    linear_svm,
    soft_composition,
    token_graphs,
    train,
)

# %%
# How often token y follows token k, for five tokens. Zero means never.

counts = np.array([[0, 3, 1, 0, 0], [2, 0, 0, 2, 0], [0, 1, 0, 0, 4], [5, 0, 0, 1, 0], [0, 0, 2, 1, 3]])
V = len(counts)
embeddings = np.eye(V)

# A linear decoder with one-hot contexts: log odds inside each support, and a direction that leaves the rest behind.
decoder, log_odds = linear_svm(embeddings, counts), linear_finite_part(embeddings, counts)

# %%
# The same counts as sequences for attention: every context holds the whole vocabulary and ends in k. For last token k
# the followers form one component of the token-priority graph, and all other tokens rank below it. Rows, SVM and finite
# part are the decoder's.

whole = [
    [*(t for t in range(V) if t != k), k, y] for k, y in np.ndindex(V, V) for _ in range(int(counts[k, y]))
]  # context, then next token
svm, soft = graph_svm(whole, embeddings), soft_composition(whole, embeddings)
print("components by last token:", [token_graphs(whole).components(k) for k in range(V)])
print(f"SVMs differ by {np.abs(svm.W - decoder.W).max():.0e}, finite parts by {np.abs(soft.W - log_odds.W).max():.0e}")

# %%
# Contexts of at most three tokens compare fewer pairs: followers that never meet need not share attention, and compared
# tokens can form chains, so the graphs, the SVM and its norm differ. Training follows the SVM in both cases.

rng = np.random.default_rng(1)
short = []
for *context, k, y in whole:
    others = [t for t in context if t != y]
    seen = list(rng.permutation(others)[:1]) + ([y] if y != k else [])
    short.append([*map(int, seen), k, y])
partial = graph_svm(short, embeddings)
print(f"rows: {len(svm.pairs)} with whole contexts, {len(partial.pairs)} with short ones")
print(f"norms: {svm.norm:.3f} and {partial.norm:.3f}")

runs = {"whole contexts": (whole, train(whole, embeddings, steps=1000, lr=0.3, snapshots=25)),
        "short contexts": (short, train(short, embeddings, steps=1000, lr=0.3, snapshots=25))}  # fmt: skip
W = runs["whole contexts"][1].W
attention = np.exp(W - W.max(axis=0))  # logits of token j after last token k are W[j, k]
attention = (attention / attention.sum(axis=0)).T
bigrams = counts / counts.sum(axis=1, keepdims=True)
print(f"attention against bigram frequencies: largest difference {np.abs(attention - bigrams).max():.1e}")

figure, axes = plt.subplots(1, 3, figsize=(12, 3.7), layout="constrained")
for axis, table, title in zip(axes, (bigrams, attention), ("bigram frequencies", "attention, trained"), strict=False):
    picture = axis.imshow(table, cmap="Blues", vmin=0, vmax=1)
    for k, y in np.ndindex(V, V):
        axis.text(y, k, f"{table[k, y]:.2f}", ha="center", va="center", color="w" if table[k, y] > 0.6 else "k")
    axis.set(title=title, xlabel="next token", ylabel="last token", xticks=range(V), yticks=range(V))
for label, (data, run) in runs.items():
    errors = [decompose(data, embeddings, step).misalignment for step in run.history[1:]]
    axes[2].loglog(run.steps[1:], errors, "o-", markersize=3, label=label)
axes[2].set(xlabel="steps", ylabel=r"$1 - \cos$ with its Graph-SVM", title="direction")
axes[2].legend()

if len(sys.argv) > 1:  # python docs/examples/plot_bigrams.py bigrams.png
    figure.savefig(Path(sys.argv[1]), dpi=110)
