"""
Several tokens at once: Gen-SVM with a nonlinear head
=====================================================

With a nonlinear head the best attention may be a mixture. Trained weights then split into a finite part, which fixes
the proportions inside the selected sets, and a direction that suppresses all other tokens: the solution of Gen-SVM.
"""

import sys
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

import attsvm

# %%
# Train 150 problems with a ReLU head at once, as the paper does (published arithmetic), and keep those that select two
# or three tokens of some sequence and in which every token is clearly selected or masked.

rng = np.random.default_rng(0)
plain = attsvm.random_problem(n=3, T=4, d=4, batch=150, seed=rng)
V = rng.normal(size=(150, 4, 4))
head = attsvm.ReluHead(V / np.linalg.norm(V, axis=(1, 2), keepdims=True))
problems = attsvm.AttentionProblem(plain.X, plain.Y, plain.Z, head=head)
run = attsvm.train(problems, steps=2000, arithmetic="naive", seed=0, snapshots=2)
splits = {k: attsvm.decompose(problems[k], run.W[k]) for k in range(150)}
kept = {k: p for k, p in splits.items() if not p.ambiguous.any() and 2 <= p.sizes.max() <= 3}
print("correlation of trained W with: finite part + Gen-SVM, Gen-SVM alone, the SVM of single tokens")
for k, p in kept.items():
    print(f"  draw {k:3d}: {p.correlation_svmeq:.4f}  {p.correlation_mm:.4f}  {p.correlation_1token:.4f}")

# %%
# The picture shows the draw that fits best; the lines above show how the others fit.

draw = max(kept, key=lambda k: kept[k].correlation_svmeq)
parts, W = kept[draw], run.W[draw]
sets = [np.flatnonzero(m).tolist() for m in parts.selected_sets.members]
print(f"draw {draw}: selected sets {sets}")
attention = np.exp(parts.log_probabilities)

figure, axes = plt.subplots(1, 4, figsize=(13, 3.2), layout="constrained")
for i, axis in enumerate(axes[:3]):
    colors = ["tab:red" if t in sets[i] else "0.6" for t in range(4)]
    axis.bar(range(4), np.maximum(attention[i], 1e-14), color=colors)
    axis.set(yscale="log", ylim=(1e-14, 2), xticks=range(4), xlabel="token", title=f"attention of sequence {i}")
predicted = parts.W_svmeq / np.linalg.norm(parts.W_svmeq)
axes[3].scatter((W / np.linalg.norm(W)).ravel(), predicted.ravel(), s=12)
axes[3].set(xlabel="entries of trained W, normalized", ylabel="predicted", title="finite part + Gen-SVM")
axes[3].axline((0, 0), slope=1, color="0.5", lw=0.8)

if len(sys.argv) > 1:  # python docs/examples/plot_gen_svm.py gen_svm.png
    figure.savefig(Path(sys.argv[1]), dpi=110)
