"""
Infeasible data, explained
==========================

Not every selection can be separated. The solver then returns a proof: nonnegative multipliers with which the rows add
up to zero, so that no W can give all of them margin 1. The rows involved show which sequences are in conflict.
"""

import sys
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.ticker import MaxNLocator

import attsvm
from attsvm.records import share_of

problem = attsvm.random_problem(n=6, T=4, d=2, seed=0)
solution = attsvm.att_svm(problem)
print(solution.status, "because of sequences", solution.conflicting_queries)
proof = solution.certificate.farkas
rows = solution.rows.margin_problem
weighted = rows.adjoint(proof.multipliers)
print(f"the weighted rows add up to {np.abs(weighted).max():.0e}, their margins to {proof.multipliers.sum():.3f} > 0")

# %%
# Leave out sequences of the conflict one at a time: some removals resolve it.

for i in solution.conflicting_queries:
    keep = np.delete(np.arange(problem.n), i)
    rest = attsvm.AttentionProblem(problem.X[keep], problem.Y[keep], problem.Z[keep], problem.head)
    print(f"without sequence {i}: {attsvm.att_svm(rest).status}")

# %%
# Share of feasible problems against the dimension. Theorem 1 guarantees feasibility from d = max(T - 1, n) on.

dimensions = range(2, 9)
shares = []
for d in dimensions:
    batch = attsvm.att_svm(attsvm.random_problem(n=6, T=4, d=d, batch=200, seed=d))
    shares.append(share_of([status is attsvm.Status.OPTIMAL for status in batch.status]))

figure, axes = plt.subplots(1, 2, figsize=(10, 3.4), layout="constrained")
axes[0].bar(range(rows.m), proof.multipliers, color=[f"C{o}" for o in rows.owner])
axes[0].set(xlabel="row (coloured by sequence)", ylabel="multiplier of the proof", title="who is in conflict")
axes[0].xaxis.set_major_locator(MaxNLocator(integer=True))
middle = 100 * np.array([s.value for s in shares])
ends = [middle - [100 * s.low for s in shares], [100 * s.high for s in shares] - middle]  # 95 % intervals
axes[1].errorbar(dimensions, middle, np.maximum(ends, 0), fmt="o-", capsize=3)
axes[1].axvline(6, color="0.5", ls=":", label=r"$d = \max(T - 1, n)$")
axes[1].set(xlabel="$d$", ylabel="% feasible of 200", title=r"$n = 6$, $T = 4$, optimal tokens", ylim=(-3, 103))
axes[1].legend()

if len(sys.argv) > 1:  # python docs/examples/plot_infeasible.py infeasible.png
    figure.savefig(Path(sys.argv[1]), dpi=110)
