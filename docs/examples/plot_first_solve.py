"""
A first solve, and why ranks need certificates
==============================================

Left and middle: two sequences of five tokens in the plane. Attention separates the selected token (star) from the
others along ``W z``; on the line the margin is exactly 1; the tokens on it are the support tokens.

Right: singular values of the nuclear-norm solution of a larger problem. A solve at default accuracy leaves a tail above
1e-7, which an absolute tolerance counts as rank; in the certified solve, the values drop by many orders of magnitude at
the true rank.
"""

import sys
import warnings
from pathlib import Path

import cvxpy as cp
import matplotlib.pyplot as plt
import numpy as np

import attsvm

# %%
# Two sequences in the plane, solved with both norms. The seed was picked for a large margin and a clear picture.

problem = attsvm.random_problem(n=2, T=5, d=2, seed=142)
solutions = {norm: attsvm.att_svm(problem, norm=norm) for norm in ("frobenius", "nuclear")}
for solution in solutions.values():
    print(solution)

# %%
# Fifteen sequences: the rank that a loose solve reports, and the certified one.

larger = attsvm.random_problem(n=15, T=5, d=20, seed=0)
certified = attsvm.att_svm(larger, norm="nuclear")
rows = certified.rows.margin_problem.rows
W = cp.Variable(rows.shape)
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    values = cp.sum(cp.multiply(rows.a @ W, rows.right), axis=1)
    cp.Problem(cp.Minimize(cp.normNuc(W)), [values >= 1]).solve(solver="SCS")
print("published protocol:", np.linalg.matrix_rank(W.value, tol=1e-7), " certified:", certified.certificate.rank)

# %%
# The picture.

figure, axes = plt.subplots(1, 3, figsize=(13, 4.2), width_ratios=[1, 1, 1.3], layout="constrained")
colors = {"frobenius": "tab:blue", "nuclear": "tab:orange"}
selected = problem.optimal_tokens().indices
for i, axis in enumerate(axes[:2]):
    chosen = problem.X[i, selected[i]]
    others = np.delete(problem.X[i], selected[i], axis=0)
    axis.scatter(*others.T, s=45, color="0.35", zorder=3, label="other tokens")
    axis.scatter(*chosen, s=190, marker="*", color="tab:red", zorder=3, label="selected token")
    for norm, solution in solutions.items():
        key = solution.W @ problem.Z[i]
        unit = key / np.linalg.norm(key)
        axis.annotate(
            "", xy=0.75 * unit, xytext=(0, 0), arrowprops={"arrowstyle": "-|>", "color": colors[norm], "lw": 2}
        )
        # Points x with (chosen - x) . key = 1.
        foot = key * (chosen @ key - 1) / (key @ key)
        along = np.array([-unit[1], unit[0]])
        ends = np.stack([foot - 3 * along, foot + 3 * along])
        label = f"{'Att-SVM' if norm == 'frobenius' else 'Att-SVM*'}: W z and margin 1"
        axis.plot(*ends.T, color=colors[norm], ls="--", lw=1.2, label=label)
    axis.set(xlim=(-1.35, 1.35), ylim=(-1.35, 1.35), aspect="equal", title=f"sequence {i}")
figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower left", fontsize=8, ncols=4)

for matrix, color, marker, label in (
    (W.value, "tab:red", "o", "SCS, default accuracy"),
    (certified.W, "tab:blue", "s", f"certified, gap {certified.certificate.gap:.0e}"),
):
    singular = np.maximum(np.linalg.svd(matrix, compute_uv=False), 1e-17)
    axes[2].semilogy(np.arange(1, 21), singular, marker=marker, color=color, label=label, ms=5)
axes[2].axhline(1e-7, color="0.5", ls=":", label="tolerance of the published ranks")
axes[2].axvline(certified.certificate.rank + 0.5, color="k", lw=0.8)
axes[2].set(
    xlabel="index",
    ylabel="singular value of W",
    xticks=range(1, 21, 2),
    title=f"Att-SVM*, $n = 15$, $T = 5$, $d = 20$: certified rank {certified.certificate.rank}",
)
axes[2].legend(fontsize=8, loc="upper right")

if len(sys.argv) > 1:  # python docs/examples/plot_first_solve.py docs/images/first_solve.png
    figure.savefig(Path(sys.argv[1]), dpi=110)
