"""
Each optimizer has its own max-margin classifier
================================================

If a linear map separates the classes, many classifiers are perfect. Training chooses the one of largest margin in a
norm that depends on the optimizer: Frobenius for gradient descent, spectral for Muon, the largest entry for sign
descent and Adam, nuclear for a product of two factors.
"""

import sys
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_wine

import attsvm

# %%
# Wine from three cultivars, standardized. The solver finds the largest margin in each norm and certifies it.

samples, cultivar = load_wine(return_X_y=True)
samples = (samples - samples.mean(axis=0)) / samples.std(axis=0)
norms = ("frobenius", "nuclear", "spectral", "linf")
svm = {norm: attsvm.multiclass_svm(samples, cultivar, norm=norm) for norm in norms}
print(svm["spectral"])

# %%
# Five methods, with steps so short that each lowers the logarithm of the loss by at most 0.05 (0.03 if momentum must
# forget its first gradients). Gradients are computed in logarithms, as the loss itself underflows.

methods = {
    "normalized GD": ("normalized_gd", "frobenius", 0.05),
    "factors": ("ridge_decay", "nuclear", 0.1),
    "Muon": ("muon", "spectral", 0.03),
    "sign descent": ("sign", "linf", 0.02),
    "Adam": ("adam:0.9,0.9", "linf", 0.03),
}
share = {}
for name, (optimizer, norm, pace) in methods.items():
    factors = name == "factors"
    run = attsvm.multiclass.train(
        samples,
        cultivar,
        "KQ" if factors else "W",
        optimizer=optimizer,
        lr=pace if factors else pace / svm[norm].margin,
        steps=2000,
        init="uniform",
    )
    share[name] = np.stack([run.margins(norm) / svm[norm].margin for norm in norms])
    print(f"{name:13s} log loss {run.log_loss[-1]:5.0f}, margins:", share[name][:, -1].round(3))

# %%
# Left: the margin in the method's own norm rises to the largest one. Right: the share of the largest margin reached in
# every norm.

figure, (left, right) = plt.subplots(1, 2, figsize=(10, 3.8), layout="constrained")
for name, (_, norm, _) in methods.items():
    left.plot(run.steps[1:], share[name][norms.index(norm), 1:], label=f"{name}: {norm}")
left.set(xscale="log", xlabel="steps", ylabel="share of the largest margin", ylim=(0, 1.02))
left.legend(fontsize=8)
table = np.stack([share[name][:, -1] for name in methods])
right.imshow(table, vmin=0.5, vmax=1.0, cmap="viridis", aspect="auto")
for (i, j), value in np.ndenumerate(table):
    right.text(j, i, f"{value:.2f}", ha="center", va="center", color="black" if value > 0.8 else "white")
right.set(xticks=range(4), xticklabels=norms, yticks=range(len(methods)), yticklabels=list(methods))
right.set_title("share of the largest margin after 2,000 steps", fontsize=10)

if len(sys.argv) > 1:  # python docs/examples/plot_multiclass.py multiclass.png
    figure.savefig(Path(sys.argv[1]), dpi=110)
