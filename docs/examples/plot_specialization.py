"""
Heads that split
================

Two heads look for one token among five. Its spike is a constant direction plus or minus a second one. Left: both heads
first align with the constant direction, then one takes each sign. Middle: a start of size ``D^-1/2`` leaves the saddle
between the two stages after a time that grows like log D. Right: four heads under three activations, against the Bayes
risk.
"""

import sys
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import torch

import attsvm.dynamics.specialization as sp

generator = torch.Generator().manual_seed(0)
prior = sp.flipping_spike(2.0, 2.0)
samples = sp.draw_samples(prior, L=5, H=2, n=4000, generator=generator)
times = np.arange(0.0, 301.0, 5.0)
figure, axes = plt.subplots(1, 3, figsize=(13, 4), layout="constrained")

# One flow per dimension, from the same start at smaller and smaller scale.

shape = sp.initial_order_parameters(2, 2, noise=1.0, generator=generator).m
dimensions = [1e2, 1e4, 1e6]
start = sp.OrderParameters(
    torch.stack([shape * D**-0.5 for D in dimensions]), torch.eye(2).double().expand(3, 2, 2).clone()
)
path = sp.gradient_flow(start, samples, "softmax", times.tolist(), step=1.0)
for h in range(2):
    axes[0].plot(path.m[:, 1, h, 0], path.m[:, 1, h, 1], ".-", ms=4, label=f"head {h + 1}")
axes[0].plot([2**0.5] * 2, [2**0.5, -(2**0.5)], "k*", ms=11, label="the two spikes")
axes[0].set(xlabel="alignment, constant direction", ylabel="alignment, flipping direction", title="$D = 10{,}000$")
axes[0].legend(fontsize=8)

split = (path.m[:, :, 0, 1] - path.m[:, :, 1, 1]).abs().numpy()  # along the flipping direction
for k, D in enumerate(dimensions):
    axes[1].plot(times, split[:, k], label=f"$D = 10^{round(np.log10(D))}$")
crossings = [sp.crossing_time(times, split[:, k], 0.5) for k in range(3)]
fit = sp.log_fit(dimensions, crossings)
axes[1].axhline(0.5, color="0.6", lw=0.8, ls="--")
axes[1].set(xlabel=r"time $\tau$", ylabel="distance between the heads", title=f"{fit.slope:.1f} per unit of $\\log D$")
axes[1].legend(fontsize=8)
print("times to specialize:", [round(t) for t in crossings])

# Three activations on the same task.

strengths = [1.0, 2.0, 4.0, 8.0]
for activation in sp.ACTIVATIONS:
    losses = []
    for nu in strengths:
        heads = sp.train_heads(
            sp.flipping_spike(nu, nu), activation, L=5, H=4, samples=1500, test_samples=40_000, steps=120,
            generator=torch.Generator().manual_seed(1),
        )  # fmt: skip
        losses.append(heads.losses[0].value)
    axes[2].plot(strengths, losses, "o-", ms=4, label=activation)
risks = [sp.bayes_risk(sp.flipping_spike(nu, nu), 5, 100_000).value for nu in strengths]
axes[2].plot(strengths, risks, "k--", label="Bayes risk")
axes[2].set(xlabel=r"signal strength $\nu$", ylabel="loss", yscale="log", title="four heads after training")
axes[2].legend(fontsize=8)

if len(sys.argv) > 1:  # python docs/examples/plot_specialization.py docs/images/specialization.png
    figure.savefig(Path(sys.argv[1]), dpi=110)
