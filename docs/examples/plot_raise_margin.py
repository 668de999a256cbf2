"""
Move tokens to raise a certified margin
=======================================

The margin of a selection is a function of the tokens, and ``attsvm.torch.margin`` differentiates it by the multipliers
of the solve. Here tokens on the unit sphere take gradient steps that raise the margin of a selection; every margin on
the curve is certified. Before the first step, ``sensitivity`` shows which tokens matter.
"""

import sys
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import torch

import attsvm

problem = attsvm.random_problem(n=6, T=8, d=10, seed=0)
selection = problem.optimal_tokens()
before = attsvm.att_svm(problem, selection)
sensitivity = before.sensitivity()
print(
    f"{int((sensitivity.token_sizes > 1e-9).sum())} of {problem.n * problem.T} tokens hold the margin in place; first:"
)
for effect in sensitivity.top(3):
    print(f"  sequence {effect.sequence}, token {effect.token}, size {effect.size:.3f}, selected: {effect.selected}")

# %%
# Gradient steps on the tokens, each projected back onto the sphere. The margin is that of the least Frobenius norm in
# the first run and of the least nuclear norm in the second.


def raised(norm, steps=25, lr=0.05):
    """Margins before each step and at the end, the solution at the end, and its problem."""
    X, Z = torch.tensor(problem.X, requires_grad=True), torch.tensor(problem.Z)
    margins = []
    for _ in range(steps):
        value = attsvm.torch.margin(X, Z, selection, norm=norm)
        margins.append(value.item())
        (gradient,) = torch.autograd.grad(value, X)
        with torch.no_grad():
            X += lr * gradient / gradient.norm() * X.norm() / np.sqrt(problem.n * problem.T)
            X /= X.norm(dim=-1, keepdim=True)
    moved = attsvm.AttentionProblem(X.detach().numpy(), problem.Y, problem.Z)
    end = attsvm.att_svm(moved, selection, norm=norm)
    return [*margins, end.margin], end, moved


figure, axes = plt.subplots(1, 2, figsize=(10, 3.6), layout="constrained")
for norm in ("frobenius", "nuclear"):
    margins, end, moved = raised(norm)
    print(f"{norm}: margin {margins[0]:.3f} to {margins[-1]:.3f}, {end.status}, gap {end.certificate.gap:.0e}")
    axes[0].plot(margins, label=norm)
    distance = np.linalg.norm(moved.X - problem.X, axis=-1).ravel()
    axes[1].plot(np.sort(distance)[::-1], label=norm)
axes[0].set(xlabel="gradient step", ylabel="certified margin", title="margin of the same selection")
axes[1].set(xlabel="tokens, farthest first", ylabel="distance moved", title="some tokens hardly move")
for ax in axes:
    ax.legend()

if len(sys.argv) > 1:  # python docs/examples/plot_raise_margin.py raise_margin.png
    figure.savefig(Path(sys.argv[1]), dpi=110)
