"""
Sparse attention and conditioning
=================================

Left: the condition number of the squared softmax Jacobian and the (max / min)^2 proxy. With Gaussian logits the proxy
is close while no token dominates; with one dominant token the condition number is n^2 and the proxy is unbounded.
Right: gradient descent, and methods that use curvature, near a minimum where the important tokens lead by a gap.
"""

import sys
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

from attsvm.dynamics.conditioning import descend, dominant_token, kappa_report, local_rate, structured_teacher
from attsvm.softmax import log_softmax

rng = np.random.default_rng(0)
figure, (left, right) = plt.subplots(1, 2, figsize=(10, 4), layout="constrained")

gaussian = kappa_report(log_attention=log_softmax(rng.normal(size=(400, 50)) * rng.uniform(0.2, 8, size=(400, 1))))
dominant = kappa_report(log_attention=dominant_token(50, 10.0 ** -np.linspace(1, 14, 14)))
scale = np.log(10)
left.plot(gaussian.proxy / scale, gaussian.exact / scale, ".", ms=3, label="Gaussian logits, n = 50")
left.plot(dominant.proxy / scale, dominant.exact / scale, "s", ms=4, label="one dominant token, n = 50")
left.plot([0, 30], [0, 30], "k:", lw=1, label="proxy = truth")
left.set(
    xlabel=r"$\log_{10}\,(\max a / \min a)^2$", ylabel=r"$\log_{10}\,\kappa(J^2)$, exact", xlim=(0, 32), ylim=(-0.5, 32)
)
left.legend(fontsize=8)

teacher, _, _ = structured_teacher(60, 8, 6, 3, gap=4.0, seed=0)
rate = local_rate(teacher.problem, teacher.p_star)
p0 = teacher.p_star + 1e-2 * rng.normal(size=6)
print(f"slowest factor per step: predicted {rate.predicted:.6f}, measured {rate.measured:.6f}")
for name, lr, label in (
    ("gd", rate.step, r"gradient descent, step $N / \lambda_{\max}$"),
    ("adam", 1e-3, "Adam"),
    ("natural", 0.5, "natural gradient, damped"),
    ("gauss_newton", 1e3, "Gauss-Newton"),
):
    run = descend(teacher.problem, p0, optimizer=name, lr=lr, steps=2000, target=1e-24, every=1)
    below = run.first_below(1e-10)
    print(f"{label}: " + (f"1e-10 after {below[0]} steps" if below else f"{run.losses[-1]:.1e} after 2000 steps"))
    right.loglog(run.steps + 1, run.losses, label=label)
right.set(xlabel="steps + 1", ylabel="loss", ylim=(1e-25, 1e2))
right.legend(fontsize=8, loc="upper right")

if len(sys.argv) > 1:  # python docs/examples/plot_conditioning.py docs/images/conditioning.png
    figure.savefig(Path(sys.argv[1]), dpi=110)
