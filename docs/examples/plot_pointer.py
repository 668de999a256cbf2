"""
A pointer learnt from labels
============================

For each query, one of six candidates is right. Att-SVM finds the smallest W whose score ``x^T W z`` ranks the right
candidate first with margin 1, or proves that no W does. Here the labels come from a hidden W of rank 2; the nuclear
norm, which prefers low rank, needs fewer of them than the Frobenius norm.
"""

import sys
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

import attsvm
from attsvm.records import share

T, d, fresh = 6, 10, 400


def tasks(n, rng, hidden):
    """Candidates, queries, and the candidate that the hidden score ranks first."""
    X, Z = rng.standard_normal((n, T, d)), rng.standard_normal((n, d))
    return X, Z, np.einsum("ntd,de,ne->nt", X, hidden, Z).argmax(axis=1)


# %%
# Fit on n labelled queries, count right answers on fresh ones; the labels are the selection.

sizes, norms = (10, 20, 40, 80, 160), ("frobenius", "nuclear")
right = {(norm, n): 0 for norm in norms for n in sizes}
draws = 3
for seed in range(draws):
    rng = np.random.default_rng(seed)
    hidden = rng.standard_normal((d, 2)) @ rng.standard_normal((2, d))
    X_new, Z_new, y_new = tasks(fresh, rng, hidden)
    for n in sizes:
        X, Z, y = tasks(n, rng, hidden)
        problem = attsvm.AttentionProblem(X, None, Z)
        for norm in norms:
            solution = attsvm.att_svm(problem, y, norm=norm)
            scores = np.einsum("ntd,de,ne->nt", X_new, solution.W, Z_new)
            right[norm, n] += int((scores.argmax(axis=1) == y_new).sum())
            if seed == 0 and n == sizes[-1]:
                print(f"{norm}: {solution.status}, rank {solution.rank}, margin {solution.margin:.4f}")

# %%
# With 95 % intervals over all fresh queries.

figure, axis = plt.subplots(figsize=(6.4, 3.8), layout="constrained")
for norm, marker in zip(norms, "os", strict=True):
    found = [share(right[norm, n], draws * fresh) for n in sizes]
    middle = 100 * np.array([f.value for f in found])
    ends = [middle - [100 * f.low for f in found], [100 * f.high for f in found] - middle]
    axis.errorbar(sizes, middle, ends, marker=marker, capsize=3, label=f"{norm} norm")
    print(norm, [str(f) for f in found])
axis.axhline(100 / T, color="0.5", ls=":", label="chance")
axis.set(xscale="log", xticks=sizes, xlabel="labelled queries", ylabel="right answers, %", ylim=(0, 102))
axis.set_xticklabels([str(n) for n in sizes])
axis.minorticks_off()
axis.set_title(r"hidden $W$ of rank 2, $T = 6$ candidates, $d = 10$")
axis.legend(fontsize=8, loc="lower right")

if len(sys.argv) > 1:  # python docs/examples/plot_pointer.py docs/images/pointer.png
    figure.savefig(Path(sys.argv[1]), dpi=110)
