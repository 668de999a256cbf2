"""
One selection, five norms
=========================

The rows of the SVM determine which token wins; the norm determines which separating W is smallest. Each solution has
the largest margin in its own norm and a smaller one in every other, and the nuclear norm gives the lowest rank.
"""

import sys
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

import attsvm

problem = attsvm.random_problem(n=5, T=6, d=8, seed=1)
norms = ("frobenius", "nuclear", "spectral", "l1", "linf")
solutions = {norm: attsvm.att_svm(problem, norm=norm) for norm in norms}
rows = solutions["frobenius"].rows.margin_problem


# %%
# Margin of each solution measured in each norm, relative to the largest possible one. All have smallest row margin 1,
# so the margin in a norm is one over that norm of W.

MEASURES = {
    "frobenius": lambda W: np.linalg.norm(W),
    "nuclear": lambda W: np.linalg.norm(W, "nuc"),
    "spectral": lambda W: np.linalg.norm(W, 2),
    "l1": lambda W: np.abs(W).sum(),
    "linf": lambda W: np.abs(W).max(),
}
relative = np.array([[solutions[m].norm / MEASURES[m](solutions[s].W) for m in norms] for s in norms])
for s, line in zip(norms, relative, strict=True):
    print(f"{s:10s} rank {solutions[s].rank}", " ".join(f"{value:7.3f}" for value in line))

figure = plt.figure(figsize=(12, 5.4), layout="constrained")
grid = figure.add_gridspec(2, len(norms), height_ratios=[1, 1])
for k, norm in enumerate(norms):
    axis = figure.add_subplot(grid[0, k])
    W = solutions[norm].direction
    limit = np.abs(W).max()
    axis.imshow(W, cmap="RdBu_r", vmin=-limit, vmax=limit)
    axis.set(title=f"{norm}, rank {solutions[norm].rank}", xticks=[], yticks=[])
table = figure.add_subplot(grid[1, :])
table.imshow(relative, cmap="Greens", vmin=0, vmax=1, aspect="auto")
for (i, j), value in np.ndenumerate(relative):
    table.text(j, i, f"{value:.2f}", ha="center", va="center", color="white" if value > 0.6 else "black")
table.set(
    xticks=range(len(norms)), xticklabels=norms, yticks=range(len(norms)), yticklabels=norms,
    xlabel="norm in which the margin is measured", ylabel="solution", title="margin relative to the largest possible",
)  # fmt: skip

if len(sys.argv) > 1:  # python docs/examples/plot_compare_norms.py norms.png
    figure.savefig(Path(sys.argv[1]), dpi=110)
