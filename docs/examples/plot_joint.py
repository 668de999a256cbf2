"""
Head and attention trained together
===================================

When the prediction head v is trained beside the attention weights W, v becomes the max-margin classifier of the tokens
that attention selects. Sequences that v classifies better than necessary need less sharp attention: W follows a margin
problem whose rows are lowered for them, by how much depends on the ratio of the two norms.
"""

import sys
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

import attsvm
from attsvm.comparison.metrics import misalignment

problem = attsvm.random_problem(n=6, T=5, d=6, seed=0)

# %%
# Train both blocks by normalized gradient descent, the head with smaller, equal and larger steps.

runs = {lr: attsvm.train(problem, steps=2000, train_head=True, head_lr=lr, snapshots=20) for lr in (0.02, 0.1, 0.5)}
for lr, run in runs.items():
    ratio = np.linalg.norm(run.v) / np.linalg.norm(run.W)
    exact, plain = attsvm.joint_svm(problem, run.selection, ratio=ratio), attsvm.joint_svm(problem, run.selection)
    print(
        f"head lr {lr:4}: |v|/|W| = {ratio:.2f}, asked of attention {exact.demanded.round(2)}, 1 - corr of W "
        f"{misalignment(run.W, exact.W):.1e} (Att-SVM: {misalignment(run.W, plain.W):.1e})"
    )

# %%
# Left: v turns towards the label SVM. Right: W turns towards the lowered rows (solid) and not towards Att-SVM (dashed).

figure, (left, right) = plt.subplots(1, 2, figsize=(10, 3.8), layout="constrained")
for color, (lr, run) in zip(("tab:blue", "tab:orange", "tab:green"), runs.items(), strict=True):
    h, steps = run.history, run.history.steps[1:]
    label = attsvm.joint_svm(problem, run.selection)
    left.loglog(steps, [misalignment(v[None], label.v[None]) for v in h.v[1:]], color=color, label=f"head lr {lr}")
    ratios = np.linalg.norm(h.v, axis=1)[1:] / h.norm[1:]
    lowered = [attsvm.joint_svm(problem, run.selection, ratio=float(r)).W for r in ratios]
    right.loglog(steps, [misalignment(*pair) for pair in zip(h.W[1:], lowered, strict=True)], color=color)
    right.loglog(steps, misalignment(h.W[1:], label.W), "--", color=color)
left.set(xlabel="steps", ylabel=r"$1 - $ correlation", title="v and the label SVM")
right.set(xlabel="steps", title=r"W and its SVM at the ratio $|v|/|W|$ (dashed: Att-SVM)")
left.legend()

if len(sys.argv) > 1:  # python docs/examples/plot_joint.py joint.png
    figure.savefig(Path(sys.argv[1]), dpi=110)
