"""
Head and attention trained together
===================================

When the prediction head v is trained beside the attention weights W, v becomes the max-margin classifier of the tokens
that attention selects. Sequences that v classifies better than necessary need less sharp attention: W follows a margin
problem with lower right-hand sides for them; how much lower depends on the ratio of the two norms.
"""

import sys
from pathlib import Path

import matplotlib.pyplot as plt

import attsvm
from attsvm.joint import compare_joint

problem = attsvm.random_problem(n=6, T=5, d=6, seed=0)

# %%
# Train both blocks by normalized gradient descent, the head with smaller, equal and larger steps.

rates = (0.06, 0.3, 1.5)
runs = {rate: attsvm.train(problem, steps=800, lr=0.3, train_head=True, head_lr=rate, snapshots=14) for rate in rates}
for lr, run in runs.items():
    print(f"head lr {lr}: {compare_joint(run, [-1])!r}")
    print("  asked of attention:", compare_joint(run, [-1]).solutions[-1].demanded.round(2))

# %%
# Left: v turns towards the label SVM. Right: W turns towards the SVM with lower right-hand sides (solid), not towards
# Att-SVM (dashed).

figure, (left, right) = plt.subplots(1, 2, figsize=(10, 3.8), layout="constrained")
for color, (lr, run) in zip(("tab:blue", "tab:orange", "tab:green"), runs.items(), strict=True):
    found = compare_joint(run)
    left.loglog(found.steps, found.head, color=color, label=f"head lr {lr}")
    right.loglog(found.steps, found.attention, color=color)
    right.loglog(found.steps, found.plain, "--", color=color)
left.set(xlabel="steps", ylabel=r"$1 - $ correlation", title="v and the label SVM")
right.set(xlabel="steps", title=r"W and its SVM at the ratio $|v|/|W|$ (dashed: Att-SVM)")
left.legend()

if len(sys.argv) > 1:  # python docs/examples/plot_joint.py joint.png
    figure.savefig(Path(sys.argv[1]), dpi=110)
