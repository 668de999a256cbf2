"""
A causal sequence
=================

Every token is a query and sees only the tokens up to itself: T queries per sequence, each with its own rows. The
causal SAtt-SVM predicts the direction of training; the SVM without the mask asks for separations that the model never
makes.
"""

import sys
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

import attsvm

problem = attsvm.random_problem(n=2, T=5, d=12, kind="sequence", causal=True, seed=0)
causal = attsvm.satt_svm(problem)
everything = attsvm.AttentionProblem(problem.X, problem.Y, problem.Z, problem.head)
unmasked = attsvm.satt_svm(everything, problem.optimal_tokens())
run = attsvm.train(problem, steps=1_000, lr=0.5)
report = attsvm.compare(run, causal, unmasked)
print(f"rows: {causal.rows.margin_problem.m} causal, {unmasked.rows.margin_problem.m} without the mask")
print(f"training ends {report.convergence}")
for comparison in report.comparisons[:3]:
    print(f"{comparison.label}: 1 - correlation {comparison.misalignment[-1]:.1e}")

figure, axes = plt.subplots(1, 4, figsize=(13, 3.4), layout="constrained")
for column, (title, W) in enumerate((("trained W", run.W), (r"causal SAtt-SVM $\times$ 20", 20 * causal.W))):
    logits = np.einsum("itd,de,ike->ikt", problem.X, W, problem.Z)
    logits = np.where(problem.allowed, logits, -np.inf)
    attention = np.exp(logits - logits.max(axis=-1, keepdims=True))
    attention /= attention.sum(axis=-1, keepdims=True)
    for i in range(2):
        axis = axes[2 * i + column]
        axis.imshow(attention[i], cmap="Blues", vmin=0, vmax=1)
        chosen = problem.optimal_tokens().indices[i]
        axis.scatter(chosen, range(5), marker="*", color="tab:red", s=60)
        axis.set(xlabel="token", ylabel="query", xticks=range(5), yticks=range(5))
        axis.set_title(f"sequence {i}: {title}", fontsize=9)

if len(sys.argv) > 1:  # python docs/examples/plot_causal.py causal.png
    figure.savefig(Path(sys.argv[1]), dpi=110)
