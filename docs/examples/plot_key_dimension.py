"""
How many key dimensions a head needs
====================================

A head has 12 key dimensions, but its scores depend mostly on four. ``attsvm.key_dimension`` computes how many its
selections need: a number that provably suffices, the certified rank of the nuclear-norm solution, and what other W of
each rank keep on held-out sequences. The head is synthetic; for trained ones see *Key dimensions of a trained head* in
the guide.
"""

import sys
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

import attsvm
from attsvm.key_dimensions import METHODS

rng = np.random.default_rng(0)
strength = np.array([3.0, 2.5, 2.0, 1.5, *[0.15] * 8])
head = attsvm.TrainedHead.from_weights(
    strength[:, None] * rng.normal(size=(12, 16)), rng.normal(size=(12, 16)), scale=0.1
)
hidden = rng.normal(size=(48, 8, 16))
shown, held_out = head.problem(hidden[:24]), head.problem(hidden[24:])
found = attsvm.key_dimension(head, shown, of="keys", held_out=held_out, ranks=range(1, 13), starts=2)
print(found)
print(f"least nuclear norm: the head's own is {found.own_norm / found.solution.norm:.0f} times as large")
print(f"singular values beyond rank {found.certified_rank} are at most {found.resolution:.0e} of the norm together")

# %%
# A W that keeps every shown selection need not keep held-out ones. The best scores of a rank (KQ-SVD) and descent on
# the attention itself do better there, because they see more of the head than its choices.

figure, axes = plt.subplots(1, 2, figsize=(10, 3.8), layout="constrained")
for method, label in METHODS.items():
    rows = [row for row in found.rows if row.method == method]
    ranks = [row.rank for row in rows]
    axes[0].plot(ranks, [row.kept_held_out for row in rows], marker="o", markersize=3, label=label)
    axes[1].plot(ranks, [row.attention_error_held_out for row in rows], marker="o", markersize=3)
for axis in axes:
    axis.axvline(found.rank, color="black", linestyle=":", linewidth=1)
    axis.set_xlabel("key dimensions (dotted: enough for all that was shown)")
axes[0].set(ylabel="selections kept", title="held-out queries", ylim=(0, 1.05))
axes[1].set(ylabel="total variation", title="attention of held-out queries", ylim=(0, None))
axes[0].legend(fontsize=8, loc="lower right")

if len(sys.argv) > 1:  # python docs/examples/plot_key_dimension.py key_dimension.png
    figure.savefig(Path(sys.argv[1]), dpi=110)
