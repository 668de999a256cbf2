"""
Batches, and a sweep that can be stopped
========================================

A batch is a problem with one more leading axis, which is solved, trained and compared as a whole. ``attsvm.sweep`` runs
such batches over a grid of parameters and keeps every finished chunk in a file: a second run with the same file
computes nothing.
"""

import sys
import tempfile
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

import attsvm


def descend(trials, seed, d):
    """Train a batch and compare each run with the SVM of its own tokens."""
    problems = attsvm.random_problem(n=4, T=5, d=d, batch=trials, seed=seed)
    run = attsvm.train(problems, steps=800, seed=seed, snapshots=2)
    report = attsvm.compare(run)
    best = attsvm.att_svm(problems)
    return {
        "misalignment": [r.comparisons[0].misalignment[-1] for r in report.reports],
        "is_global": [r.convergence == "Global" for r in report.reports],
        "margin": best.margin,
    }


# %%
# Three dimensions, 100 problems each, in chunks of 50. Here, chunks run in this process (``workers=0``); by default
# they run in worker processes. Any ``concurrent.futures`` executor or ``dask.distributed`` client also works.

with tempfile.TemporaryDirectory() as folder:
    store = Path(folder) / "results.sqlite"
    first = attsvm.sweep(descend, {"d": [4, 8, 16]}, trials=100, chunk=50, workers=0, store=store)
    again = attsvm.sweep(descend, {"d": [4, 8, 16]}, trials=100, chunk=50, workers=0, store=store)
print(f"first call: {first.computed} chunks computed; second: {again.computed} computed, {again.resumed} read")

figure, axes = plt.subplots(1, 2, figsize=(10, 3.4), layout="constrained")
for cell, columns in first:
    print(f"d={cell['d']:2d}: {100 * columns['is_global'].mean():.0f} % end Global, "
          f"median 1 - corr {np.nanmedian(columns['misalignment']):.1e}")  # fmt: skip
    axes[0].hist(np.log10(columns["misalignment"]), bins=25, alpha=0.6, label=f"$d = {cell['d']}$")
    axes[1].hist(columns["margin"], bins=25, alpha=0.6)
axes[0].set(xlabel=r"$\log_{10}$ of 1 $-$ correlation after 800 steps", ylabel="problems")
axes[1].set(xlabel="margin of the optimal tokens")
axes[0].legend()

if len(sys.argv) > 1:  # python docs/examples/plot_batches.py batches.png
    figure.savefig(Path(sys.argv[1]), dpi=110)
