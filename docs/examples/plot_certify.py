"""
A certificate for a W from anywhere
===================================

A certificate is computed from the data and the returned arrays alone: primal violation, dual violation and the gap
between an upper and a lower bound on the optimum. Here four backends solve the same problem. Then a correct answer is
perturbed, and its certificate degrades.
"""

import sys
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

import attsvm

problem = attsvm.random_problem(n=8, T=6, d=10, seed=0)
solvers = ("active_set", "working_set", "cvxpy:CLARABEL", "cvxpy:SCS")
solutions = {name: attsvm.att_svm(problem, solver=name) for name in solvers}
for name, solution in solutions.items():
    print(f"{name:15s} {solution.status}: norm {solution.norm:.10f}, relative gap {solution.certificate.gap:.0e}")

# %%
# Move a certified W slightly in a random direction and verify it. ``verify`` scales any W until its margins are 1, and
# bounds the distance from the optimum with the multipliers that it finds.

rng = np.random.default_rng(0)
exact = solutions["active_set"]
noise = rng.normal(size=exact.W.shape)
noise *= exact.norm / np.linalg.norm(noise)
sizes = np.logspace(-8, 0, 17)
gaps = [attsvm.verify(problem, exact.W + size * noise).gap for size in sizes]
print("gap after moving W by 1e-2 of its norm:", f"{gaps[12]:.1e}")

figure, axes = plt.subplots(1, 2, figsize=(10, 3.6), layout="constrained")
axes[0].barh(list(solutions), [max(s.certificate.gap, 1e-17) for s in solutions.values()], log=True)
axes[0].set(xlabel="certified relative gap", title="one problem, four solvers", xlim=(1e-18, 1e-3))
axes[1].loglog(sizes, np.maximum(gaps, 1e-17), "o-")
axes[1].set(xlabel="distance that W was moved, relative", ylabel="relative gap", title="a spoilt answer is noticed")

if len(sys.argv) > 1:  # python docs/examples/plot_certify.py certify.png
    figure.savefig(Path(sys.argv[1]), dpi=110)
