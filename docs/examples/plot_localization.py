"""
When attention localizes
========================

Left: the probability that token i passes a gradient, for tokens that form a random walk. Exact law, Monte Carlo, the
Gaussian approximation with the right variance, and the published one, whose variance is 13 times too large in the
middle.

Middle: the variance of the signal, which causes the difference.

Right: which site keeps a signal, over trace and scale of the eigenspectrum of W_QK (corrected curve).
"""

import sys
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.colors import BoundaryNorm, ListedColormap

from attsvm.dynamics.localization import (
    qk_spectrum,
    rho,
    signal_moments,
    signal_propagation,
    simulate_signals,
    summarize,
)

# %%
# Eigenvalues concentrated around a mean away from zero, d = 64, T = 40.

rng = np.random.default_rng(0)
basis = np.linalg.qr(rng.standard_normal((64, 64)))[0]
W = basis @ np.diag(rng.normal(0.5, 0.1, 64)) @ basis.T
spectrum = qk_spectrum(W)
print(f"xi = {spectrum.xi:.2f}, eta = {spectrum.eta():.2f}, r = xi eta = {spectrum.strength():.2f}")

figure, axes = plt.subplots(1, 3, figsize=(13, 4.2), layout="constrained")
sampled = signal_propagation(W, T=40, method="monte_carlo", walks=4000)
axes[0].errorbar(sampled.theta, sampled.rho, 2 * sampled.error, fmt="o", ms=3, color="0.4", label="Monte Carlo, ±2 SE")
styles = {"exact": "tab:blue", "gaussian": "tab:orange", "printed": "tab:red"}
for method, color in styles.items():
    found = signal_propagation(spectrum, T=40, method=method)
    axes[0].plot(found.theta, found.rho, color=color, ls="-" if method == "exact" else "--", label=method)
print(signal_propagation(spectrum, T=40).summary())
axes[0].set(xlabel="relative position i / T", ylabel="probability that a gradient passes", title="propagation")
axes[0].legend(fontsize=8)

# The variance of the signal.

signal = simulate_signals(W, T=40, walks=4000)
axes[1].plot(sampled.theta, signal.var(axis=0), "o", ms=3, color="0.4", label="Monte Carlo")
for form, color in {"exact": "tab:blue", "asymptotic": "tab:orange", "printed": "tab:red"}.items():
    axes[1].plot(sampled.theta, signal_moments(W, T=40, form=form).variance, color=color, label=form)
axes[1].set(xlabel="relative position i / T", yscale="log", title="variance of the signal")
axes[1].legend(fontsize=8)

# Sites over the two numbers that describe the eigenspectrum.

theta = np.linspace(0, 1, 101)
strengths, etas = np.linspace(-8, 8, 81), np.geomspace(1e-2, 100, 61)
names = ("early", "middle", "late", "uniform", "vanishing")
sites = [[names.index(summarize(rho(theta, r / eta, eta), theta).site) for r in strengths] for eta in etas]
palette = ListedColormap(["#4c72b0", "#dd8452", "#55a868", "#cccccc", "#444444"])
mesh = axes[2].pcolormesh(strengths, etas, sites, cmap=palette, norm=BoundaryNorm(np.arange(6) - 0.5, 5))
bar = figure.colorbar(mesh, ax=axes[2], ticks=range(5))
bar.ax.set_yticklabels(names)
for edge in (-2, 2):
    axes[2].axvline(edge, color="k", lw=0.8, ls=":")
axes[2].set(
    yscale="log",
    xlabel=r"$r = \mathrm{tr}(W)$ / temperature",
    ylabel=r"$\eta = \sqrt{\mathrm{tr}(W^2)}$ / temperature",
    title="site",
)

if len(sys.argv) > 1:  # python docs/examples/plot_localization.py docs/images/localization.png
    figure.savefig(Path(sys.argv[1]), dpi=110)
