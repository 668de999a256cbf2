"""
Train, and watch the margin
===========================

Normalized gradient descent on W turns towards the Frobenius SVM of the tokens that it selects, on (K, Q) towards the
nuclear-norm SVM. With the arithmetic of published code, the direction stops improving once the softmax saturates, then
drifts away; with gradients in the log domain it keeps improving.
"""

import sys
from pathlib import Path

import matplotlib.pyplot as plt

import attsvm

problem = attsvm.random_problem(n=6, T=8, d=10, seed=3)
runs = {
    "W": attsvm.train(problem, "W", steps=4_000),
    "W, published arithmetic": attsvm.train(problem, "W", steps=4_000, arithmetic="naive"),
    "(K, Q)": attsvm.train(problem, "KQ", steps=4_000),
}
reports = {label: attsvm.compare(run) for label, run in runs.items()}
for label, report in reports.items():
    last = report.comparisons[0]
    print(f"{label:24s} {report.convergence}: margin {last.margin[-1]:.2%}, 1 - corr {last.misalignment[-1]:.1e}")

figure, axes = plt.subplots(1, 3, figsize=(13, 3.8), layout="constrained")
for label, report in reports.items():
    steps, own = report.run.history.steps[1:], report.comparisons[0]
    style = "--" if "published" in label else "-"
    axes[0].loglog(steps, own.misalignment[1:], style, label=label)
    axes[1].semilogx(steps, 100 * own.margin[1:], style)
    axes[2].loglog(steps, report.run.history.norm[1:], style)
axes[0].set(ylabel="1 $-$ correlation with its SVM", xlabel="step", title="direction")
axes[1].set(ylabel="% of the largest margin", xlabel="step", title="margin", ylim=(0, 102))
axes[2].set(ylabel=r"$\|W\|_F$", xlabel="step", title="size")
axes[0].legend(fontsize=8)

if len(sys.argv) > 1:  # python docs/examples/plot_training_margin.py training.png
    figure.savefig(Path(sys.argv[1]), dpi=110)
