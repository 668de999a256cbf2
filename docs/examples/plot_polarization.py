"""
How gradient flow polarizes attention
=====================================

Left: the softmax flow of the logistic loss to t = 1e30, integrated in log-time. One token wins; all others eventually
fall like ``2 b / (p log^2 t)``, with the same constant, so slowly that gradient descent never shows it.

Middle: the square loss stops the same orbit early, at a point that depends on the norm of the target.

Right: the limit depends on the map from logits to scores: softmax and ``x^2`` end one-hot, unnormalized sigmoids do
not.
"""

import sys
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

from attsvm.dynamics.polarization import aligned_flow, measure_asymptotics, regression_limit

rng = np.random.default_rng(0)
p = 8
u0 = np.sort(0.1 * rng.standard_normal(p))[::-1]
figure, axes = plt.subplots(1, 3, figsize=(14, 4.2), layout="constrained")

# The logistic loss, far past what any number of gradient steps reaches.

flow = aligned_flow(u0, t_end=1e30, points=300)
found = measure_asymptotics(flow)
late = flow.times > 10
axis = axes[0]
axis.loglog(flow.times[late], flow.scores[late, 0], color="tab:blue", lw=2, label="winner $s_0$")
for j in range(1, p):
    label = "others $s_j$" if j == 1 else None
    axis.loglog(flow.times[late], flow.scores[late, j], color="0.55", lw=1, label=label)
far = flow.times > 1e4
axis.loglog(flow.times[far], 2 / (p * np.log(flow.times[far]) ** 2), "k--", lw=1, label=r"$2b/(p\,\log^2 t)$")
axis.axvline(1e5, color="tab:red", lw=0.8)
axis.text(3e5, 0.05, "a million steps\nof size 0.1", color="tab:red", fontsize=8)
axis.set(xlabel="time t", ylabel="score", title=f"logistic loss: loss·t = {found.loss_constant[-1]:.6f} at t = 1e30")
axis.legend(fontsize=8, loc="lower left")

# The square loss: the polarization tau falls while the scores get sparser; ``|beta_*| tau`` is what counts.

norms = np.geomspace(0.5, 100, 25)
limits = [regression_limit(u0, b=c * c) for c in norms]  # a(0) = the numbers of u0, V(0) = 0
axis = axes[1]
axis.semilogx(norms, [limit.relative_entropy for limit in limits], color="tab:green", lw=2, label="entropy / log p")
axis.semilogx(norms, [limit.scores.max() for limit in limits], color="tab:blue", lw=2, label="largest score")
axis.semilogx(
    norms, [limit.tau / p for limit in limits], color="tab:orange", lw=2, label=r"polarization $\tau_\infty / p$"
)
axis.set(xlabel=r"norm of the target $|\beta_*|$", title="square loss: the limit at t = infinity", ylim=(0, 1.05))
axis.legend(fontsize=8, loc="center left")

# Other maps from logits to scores, from a(0) = 1 + noise.

a0 = 1 + 0.1 * rng.standard_normal(p)
axis = axes[2]
for kind, color in (
    ("softmax", "tab:blue"),
    ("square", "tab:purple"),
    ("relu_norm", "tab:brown"),
    ("elu_norm", "tab:cyan"),
    ("sigmoid_norm", "tab:orange"),
    ("sigmoid", "tab:red"),
):
    other = aligned_flow(u0, a0, normalization=kind, t_end=1e30, points=300)
    share = other.scores.max(axis=1) / other.scores.sum(axis=1)
    axis.semilogx(other.times[1:], share[1:], color=color, lw=1.6, label=kind)
    print(f"{kind:>13}: largest share {share[-1]:.4f} at t = 1e30, {other.evaluations} evaluations")
axis.set(
    xlabel="time t", ylabel="largest score / sum", xlim=(1, 1e30), title="logistic loss, other maps", ylim=(0, 1.05)
)
axis.legend(fontsize=8, loc=(0.6, 0.13))

if len(sys.argv) > 1:  # python docs/examples/plot_polarization.py docs/images/polarization.png
    figure.savefig(Path(sys.argv[1]), dpi=110)
