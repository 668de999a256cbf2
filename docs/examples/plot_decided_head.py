"""
Keep a head decided while a model trains
========================================

A head selects one token in each of six sequences. Then the embeddings are trained to tell three classes of tokens
apart, which pulls the tokens of a class together, including the selected token and its rivals, which share a class
here. The largest possible margin of a head falls, and a head that must choose between nearly equal tokens is undecided.
The penalty ``-log margin`` keeps the selection separable, at no cost in accuracy.

Ten seeds are trained at once, as the batch axis of ``attsvm.torch.margin``.
"""

import sys
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import torch

import attsvm

SEEDS, CLASSES, WORDS, n, T, d = 10, 3, 24, 6, 6, 8
STEPS = 40
rng = np.random.default_rng(0)
label = torch.arange(WORDS) % CLASSES
# Each sequence holds words of one class; the head selects its first word.
words = torch.tensor(
    np.array([[rng.permutation(np.flatnonzero(label == i % CLASSES))[:T] for i in range(n)] for _ in range(SEEDS)])
)
start = torch.tensor(rng.normal(size=(SEEDS, WORDS, d)))
Z = torch.nn.functional.normalize(torch.tensor(rng.normal(size=(SEEDS, n, d))), dim=-1)
selection = np.zeros((SEEDS, n), dtype=int)


def trained(weight):
    """Certified margins (steps, seeds) and accuracies (seeds,) of a run with this weight of the penalty."""
    E, classifier = start.clone().requires_grad_(), torch.zeros(SEEDS, d, CLASSES, dtype=torch.float64)
    optimizer = torch.optim.Adam([E, classifier.requires_grad_()], lr=0.07)
    margins = []
    for _ in range(STEPS):
        unit = torch.nn.functional.normalize(E, dim=-1)
        scores = 8.0 * unit @ classifier
        loss = torch.nn.functional.cross_entropy(scores.flatten(0, 1), label.repeat(SEEDS))
        X = torch.stack([unit[s][words[s]] for s in range(SEEDS)])
        # Where multipliers are not unique, those that were found will do for a step.
        margin = attsvm.torch.margin(X, Z, selection, degenerate="accept")
        margins.append(margin.detach().numpy())
        optimizer.zero_grad()
        (loss - weight * margin.log().mean()).backward()
        optimizer.step()
    correct = (scores.argmax(dim=-1) == label).double().mean(dim=-1)
    return np.array(margins), correct.numpy()


def interval(values):
    """Mean and 95 % interval over the seeds (t distribution with nine degrees of freedom)."""
    return np.mean(values), 2.262 * np.std(values, ddof=1) / np.sqrt(len(values))


runs = {"without": trained(0.0), "with penalty": trained(0.05)}
for name, (margins, correct) in runs.items():
    (first, _), (last, width), (share, off) = interval(margins[0]), interval(margins[-1]), interval(correct)
    print(f"{name:12s} margin {first:.3f} to {last:.3f} +- {width:.3f}, accuracy {share:.3f} +- {off:.3f}")

# %%
# Bands are 95 % intervals of the mean over ten seeds.

figure, ax = plt.subplots(figsize=(6.4, 3.6), layout="constrained")
for name, (margins, _) in runs.items():
    mean = margins.mean(axis=1)
    width = 2.262 * margins.std(axis=1, ddof=1) / np.sqrt(SEEDS)
    ax.plot(mean, label=name)
    ax.fill_between(range(STEPS), mean - width, mean + width, alpha=0.25)
ax.set(xlabel="training step", ylabel="certified margin of the selection", title="ten seeds")
ax.set_ylim(bottom=0.0)
ax.legend()

if len(sys.argv) > 1:  # python docs/examples/plot_decided_head.py decided_head.png
    figure.savefig(Path(sys.argv[1]), dpi=110)
