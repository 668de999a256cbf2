"""Figures 2, 3 and 10 to 13: the value-softmax model by gradient descent and by its flow.

2: scores and projections under the logistic loss. 3 and 12: regression with condition numbers 1 to 5, and what of it is
the norm of the fit. 10: the KL loss, which stops at a finite entropy. 11: the tied model R softmax(R a). 13: square and
logistic losses with other maps. Initial values come from the legacy generator in the order of the published code.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from attsvm.dynamics import polarization as pol
from attsvm.solvers.arrays import FloatArray
from attsvm.sweeps import columns_of
from attsvm.validation.figures.figure import (
    Context,
    Figure,
    Outcome,
    Picture,
    Table,
    mean_of,
    mean_share_of,
    share_of,
    subplots,
)

# The names of `ATTENTION_KINDS`, written out: listing the figures must not load torch.
KINDS = (
    "softmax",
    *(f"{name}_{form}" for name in ("sigmoid", "elu", "elu_elu", "mlp", "linear") for form in ("norm", "unnorm")),
)


def legacy_seeds(count: int, seed: int) -> list[int]:
    """Seeds of the legacy generator, or of torch, for the trials of a chunk.

    Examples
    --------
    >>> len(set(legacy_seeds(5, 0)))
    5
    """
    return [int(k) for k in np.random.default_rng(seed).integers(2**31, size=count)]


def figure_2(seed: int = 123, p: int = 8) -> FloatArray:
    """Projections ``W^T beta_*``, largest first: W = 0.1 randn, a draw for a that is then set to 0, a unit beta_*.

    Examples
    --------
    >>> u = figure_2()
    >>> round(float(u[0] - u[1]), 4)
    0.0197
    """
    draw = np.random.RandomState(seed)
    W = 0.1 * draw.randn(p, p)
    draw.randn(p)
    beta = draw.randn(p)
    return np.asarray(-np.sort(-(W.T @ (beta / np.linalg.norm(beta)))))


def figure_10(seed: int = 42, p: int = 10) -> tuple[FloatArray, FloatArray]:
    """V(0) = 0.1 randn and the target softmax(10 rand); the published seed is not known.

    Examples
    --------
    >>> round(float(figure_10()[1].sum()), 12)
    1.0
    """
    draw = np.random.RandomState(seed)
    V, logits = 0.1 * draw.randn(p, p), 10 * draw.rand(p)
    weights = np.exp(logits - logits.max())
    return V, weights / weights.sum()


def figure_12(
    kappa: float, seed: int = 123, p: int = 20, difficulty: float | None = None
) -> tuple[FloatArray, FloatArray, pol.SquareLoss]:
    """W, a and the loss ``|beta - X W s|^2`` (no 1/2), X with singular values from 1 to 1 / kappa.

    ``difficulty`` rescales beta so that ``|X^-1 beta|`` has this value.

    Examples
    --------
    >>> round(figure_12(5.0)[2].difficulty, 2)
    10.82
    """
    draw = np.random.RandomState(seed)
    W, a = 1e-5 * draw.randn(p, p), 1e-3 * draw.randn(p)
    left, _, right = np.linalg.svd(draw.randn(p, p))
    X = left @ np.diag(np.linspace(1, 1 / kappa, p)) @ right
    beta = draw.randn(p)
    loss = pol.SquareLoss(beta, X=X, scale=2.0)
    return W, a, loss if difficulty is None else pol.SquareLoss(beta * difficulty / loss.difficulty, X=X, scale=2.0)


def figure_13() -> tuple[FloatArray, FloatArray, FloatArray]:
    """V(0), a(0), beta_*: the seed is reset, so that beta_* repeats the first row of V(0).

    Examples
    --------
    >>> V, a, beta = figure_13()
    >>> int((V.T @ beta).argmax()), int(a.argmax())
    (1, 6)
    """
    draw = np.random.RandomState(42)
    V, a = 0.1 * draw.randn(10, 10), 1 + 0.1 * draw.randn(10)
    beta = np.random.RandomState(42).randn(10)
    return V, a, beta / np.linalg.norm(beta)


_TIMES = (1e2, 1e3, 1e4, 1e5, 1e6, 1e8, 1e12, 1e20, 1e30)


def margins(trials: int, seed: int, p: int, b: float) -> dict[str, Any]:
    """Margins of Theorems 3.2 and 3.3 for random initial projections, at t up to 1e12.

    Examples
    --------
    >>> bool(min(margins(2, 0, p=4, b=1.0)["order"]) > 0)
    True
    """
    u0 = -np.sort(-0.1 * np.random.default_rng(seed).standard_normal((trials, p)), axis=1)
    flow = pol.aligned_flow(u0, b=b, t_end=1e12, points=60)
    return {
        "order": np.minimum(pol.order_margin(flow), pol.order_margin(flow, of="scores")),
        "repulsion": pol.repulsion_margin(flow),
        "repulsion_printed": pol.repulsion_margin(flow, form="printed"),
        "ratio": pol.ratio_margin(flow),
        "projection": pol.projection_margin(flow),
        "projection_printed": pol.projection_margin(flow, form="printed"),
        "entropy": pol.entropy_margin(flow),
        "drift": np.maximum(pol.invariant_drift(flow), pol.identity_drift(flow)),
        "top": flow.scores[:, -1].max(axis=-1),
    }


def run_figure_2(context: Context) -> Outcome:
    """The published instance by descent and by the flow, and the theorems on random instances."""
    s = context.settings
    u0 = figure_2()
    flow = pol.aligned_flow(u0, times=[0.0, *_TIMES])
    found = pol.measure_asymptotics(flow)
    rows = tuple(
        (f"{t:.0e}", flow.scores[k, 0], flow.scores[k, 1], flow.entropy[k], flow.u[k, 0] - np.log(t), flow.tau[k],
         found.loss_constant[k], found.exponents[k, 1])
        for k, t in enumerate(_TIMES, start=1)
    )  # fmt: skip
    descent = pol.descend(
        u0[None],
        np.zeros(u0.size),
        pol.LogisticLoss([1.0]),
        lr=0.1,
        steps=s["steps"],
        snapshots=60,
        device=context.device,
    )
    times = np.asarray(descent.times.tolist())
    same = pol.aligned_flow(u0, times=times)
    gd_scores = np.asarray(descent.scores[:, 0].tolist())
    steps = tuple(
        (descent.steps[k], times[k], gd_scores[k, 0], same.scores[k, 0], gd_scores[k, 1], same.scores[k, 1])
        for k in (len(times) // 2, 3 * len(times) // 4, len(times) - 1)
    )
    cells = [{"p": p, "b": b} for p in s["tokens"] for b in s["scales"]]
    many = context.sweep(margins, cells, chunk=s["chunk"], name="margins")
    table = []
    for cell in cells:
        got = many.where(**cell)
        table.append((
            cell["p"], cell["b"], *(share_of(np.asarray(got[name]) > 0) for name in
            ("order", "repulsion", "repulsion_printed", "ratio", "projection", "projection_printed", "entropy")),
            float(np.max(got["drift"])), float(np.median(got["top"])),
        ))  # fmt: skip
    dense = pol.aligned_flow(u0, t_end=1e12, points=200)
    return Outcome(
        tables=[
            Table(
                "The published instance along the flow",
                ("t", "s_0", "s_1", "entropy", "u_0 - log t", "tau", "loss t", "-dlog s_1/dlog log t"),
                rows,
            ),
            Table(
                "Gradient descent, step 0.1, beside the flow",
                ("steps", "t", "s_0 descent", "s_0 flow", "s_1 descent", "s_1 flow"),
                steps,
            ),
            Table(
                "Theorems 3.2 and 3.3 on random instances to t = 1e12: share satisfied",
                ("p", "b", "order", "repulsion", "as printed", "ratio", "eq. 17", "as printed", "entropy falls",
                 "worst drift", "median s_0"),
                table,
            ),
        ],
        curves={
            "t": dense.times[1:], "scores": dense.scores[1:], "u": dense.u[1:],
            "gd_t": times[1:], "gd_scores": gd_scores[1:],
        },
        notes=[
            f"Descent is run for {s['steps']} of the published 1e6 steps; beyond, the flow stands in for it.",
            "Repulsion as printed (any i != j) contradicts itself; equation 17 as printed loses a factor 1/2.",
        ],
    )  # fmt: skip


def draw_figure_2(outcome: Outcome) -> Picture:
    """Scores and projections over log-time; dots are gradient descent."""
    from matplotlib import pyplot as plt

    c = outcome.curves
    t, scores, u = np.asarray(c["t"]), np.asarray(c["scores"]), np.asarray(c["u"])
    picture, axes = subplots(1, 2, (11, 3.8))
    for j in range(scores.shape[1]):
        color = "tab:blue" if j == 0 else plt.get_cmap("autumn")(j / 9)
        axes[0].semilogx(t, scores[:, j], color=color, lw=2 if j == 0 else 1, label=f"token {j}")
        axes[1].semilogx(t, u[:, j], color=color, lw=2 if j == 0 else 1)
    for j in (0, 1):
        axes[0].plot(
            c["gd_t"], np.asarray(c["gd_scores"])[:, j], "k.", ms=4, label="gradient descent" if j == 0 else None
        )
    axes[1].semilogx(t, np.log(t), "k:", label="log t")
    axes[0].set(xlabel="t", ylabel="score", title="softmax(a)", xlim=(1, 1e12))
    axes[1].set(xlabel="t", ylabel="projection", title=r"$u = V^\top \beta_*$", xlim=(1, 1e12), ylim=(-1, 29))
    axes[0].legend(fontsize=7, loc="center right")
    axes[1].legend(fontsize=8)
    return picture


FIGURE_2 = Figure(
    paper="polarization",
    name="fig2",
    title="One score tends to 1, the others to 0 like 1 / log^2 t, and only one projection grows",
    protocol="""p = 8, W = 0.1 randn, a(0) = 0, unit beta_*, legacy seed 123, logistic loss, gradient descent with
        step 0.1 for 1e6 steps (as published, t = 1e5); beside it the gradient flow, integrated in log(1 + t) to t =
        1e30; random instances u(0) = 0.1 N(0, 1) for the theorems (ours).""",
    full={"trials": 200, "steps": 300_000, "tokens": (8, 32), "scales": (0.25, 1.0, 4.0), "chunk": 100},
    quick={"trials": 20, "steps": 5_000, "tokens": (8,), "scales": (1.0, 4.0), "chunk": 20},
    run=run_figure_2,
    draw=draw_figure_2,
)

_STEP = 1e-3  # of the published gradient descent


def conditioned(trials: int, seed: int, kappa: float, difficulty: float | None) -> dict[str, Any]:
    """Final entropy and steps to 1e-6 of the first loss, for seeds of the published protocol.

    Examples
    --------
    >>> conditioned(1, 0, kappa=1.0, difficulty=2.0)["entropy"][0] > 0.99
    True
    """

    def row(draw: int) -> dict[str, float]:
        W, a, loss = figure_12(kappa, draw, difficulty=difficulty)
        flow = pol.full_flow(W, a, loss, t_end=600.0, points=800, method="DOP853", rtol=1e-6, atol=1e-9)
        fitted = int(np.argmax(flow.loss < 1e-6 * flow.loss[0]))
        steps = float(flow.times[fitted]) / _STEP if fitted else np.inf
        return {"entropy": float(flow.entropy[-1] / np.log(a.size)), "steps": steps, "difficulty": loss.difficulty}

    return columns_of(map(row, legacy_seeds(trials, seed)))


def run_figure_3(context: Context) -> Outcome:
    """The published seed along the flow and by descent, and random seeds with and without matched norm."""
    s = context.settings
    kappas = s["kappas"]
    rows, curves = [], {"kappas": list(kappas), "t": [], "entropy": [], "loss": [], "scores": []}
    for kappa in kappas:
        W, a, loss = figure_12(kappa)
        flow = pol.full_flow(W, a, loss, t_end=300.0, points=600, method="DOP853", rtol=1e-7, atol=1e-10)
        descent = pol.descend(W, a, loss, lr=_STEP * s["coarser"], steps=int(300 / _STEP / s["coarser"]), snapshots=3)
        ratio = flow.entropy / np.log(a.size)
        fitted = int(np.argmax(flow.loss < 1e-6 * flow.loss[0]))
        rows.append((
            kappa, loss.difficulty, ratio[-1], float(descent.entropy[-1, 0]) / np.log(a.size), flow.scores[-1].max(),
            round(flow.times[fitted] / _STEP, -2) if fitted else float("nan"),
        ))  # fmt: skip
        curves["t"].append(flow.times)
        curves["entropy"].append(ratio)
        curves["loss"].append(flow.loss / flow.loss[0])
        curves["scores"].append(np.asarray(flow.a))
    cells = [{"kappa": k, "difficulty": d} for d in (None, *s["matched"]) for k in kappas]
    many = context.sweep(conditioned, cells, chunk=s["chunk"], name="conditioned")
    table = []
    for cell in cells:
        got = many.where(**cell)
        steps = np.asarray(got["steps"], dtype=float)
        table.append((
            "free" if cell["difficulty"] is None else cell["difficulty"], cell["kappa"], mean_of(got["difficulty"]),
            mean_of(got["entropy"]), float(np.median(steps)),
        ))  # fmt: skip
    return Outcome(
        tables=[
            Table(
                "The published instance (seed 123), t = 300",
                ("kappa", "|X^-1 beta|", "entropy / log p", "by descent", "largest score", "steps to 1e-6"),
                rows,
            ),
            Table(
                "Random seeds: |beta| as drawn, and |X^-1 beta| matched",
                ("|X^-1 beta|", "kappa", "its mean", "entropy / log p", "median steps to 1e-6"),
                table,
            ),
        ],
        curves=curves,
        notes=[
            "The effect of kappa on sparsity is real, but mostly one of |X^-1 beta|, which grows with kappa.",
            "'Higher condition number, slower optimization' holds in part only: kappa = 1 is fastest, but in the "
            "published instance kappa = 2 takes longer than 3, 4 and 5, because polarization raises |s|^2.",
            f"Descent is run with a step {s['coarser']} times the published one; the flow is its limit.",
        ],
    )


def draw_figure_3(outcome: Outcome) -> Picture:
    """Logits at both ends (Figure 3), entropies and losses (Figure 12)."""
    from matplotlib import pyplot as plt

    c = outcome.curves
    picture, axes = subplots(1, 4, (15, 3.6))
    for axis, k in zip(axes[:2], (0, len(c["kappas"]) - 1), strict=True):
        t, logits = np.asarray(c["t"][k]), np.asarray(c["scores"][k])
        axis.plot(t / _STEP / 1000, logits, lw=1)
        axis.set(title=rf"logits $a$, $\kappa = {c['kappas'][k]:g}$", xlabel="thousand steps of 1e-3")
    for k, kappa in enumerate(c["kappas"]):
        color = plt.get_cmap("viridis")(k / max(1, len(c["kappas"]) - 1))
        steps = np.asarray(c["t"][k]) / _STEP / 1000
        axes[2].plot(steps, c["entropy"][k], color=color, label=rf"$\kappa = {kappa:g}$")
        axes[3].semilogy(steps, c["loss"][k], color=color, label=rf"$\kappa = {kappa:g}$")
    axes[2].set(title=r"entropy / $\log p$", xlabel="thousand steps of 1e-3", ylim=(0, 1.05))
    axes[3].set(title="loss / first loss", xlabel="thousand steps of 1e-3", ylim=(1e-9, 2))
    axes[2].legend(fontsize=8)
    return picture


FIGURE_3 = Figure(
    paper="polarization",
    name="fig3",
    aliases=("fig12",),
    title="Ill-conditioned regression polarizes more, mostly because the fit needs a larger norm",
    protocol="""dim = 20, W = 1e-5 randn, a = 1e-3 randn, X = U diag(linspace(1, 1/kappa)) V^T, beta = randn, legacy
        seed 123, loss |beta - X W s|^2 without 1/2, step 1e-3 for 3e5 steps (as published, t = 300); here the flow,
        cross-checked by descent; random seeds and runs at a matched |X^-1 beta| are ours.""",
    full={"trials": 10, "kappas": (1.0, 2.0, 3.0, 4.0, 5.0), "matched": (7.0, 9.0), "coarser": 30, "chunk": 5},
    quick={"trials": 1, "kappas": (1.0, 2.0, 5.0), "matched": (7.0,), "coarser": 100, "chunk": 1},
    run=run_figure_3,
    draw=draw_figure_3,
)


def kl_runs(trials: int, seed: int, t_end: float) -> dict[str, Any]:
    """Final scores of the KL flow for random instances of the protocol.

    Examples
    --------
    >>> 0 < kl_runs(1, 0, t_end=100.0)["top"][0] < 1
    True
    """

    def row(draw: int) -> dict[str, float]:
        V, target = figure_10(draw)
        loss = pol.KLLoss(target)
        flow = pol.full_flow(V, np.zeros(target.size), loss, t_end=t_end, points=5, rtol=1e-6, atol=1e-10)
        top, entropy = float(flow.scores[-1].max()), float(flow.entropy[-1] / np.log(target.size))
        return {"top": top, "entropy": entropy, "divergence": loss.divergence(flow.beta[-1])}

    return columns_of(map(row, legacy_seeds(trials, seed)))


def run_figure_10(context: Context) -> Outcome:
    """One instance in time, several at the end, and the printed loss beside."""
    s = context.settings
    V, target = figure_10()
    loss = pol.KLLoss(target)
    times = np.concatenate([[0.0], np.geomspace(1, s["t_end"], 60)])
    flow = pol.full_flow(V, np.zeros(target.size), loss, times=times, rtol=1e-7, atol=1e-10)
    descent = pol.descend(V, np.zeros(target.size), loss, lr=0.1, steps=s["steps"], snapshots=4, device=context.device)
    reached = 0.1 * s["steps"]
    beside = pol.full_flow(V, np.zeros(target.size), loss, times=[0.0, reached], rtol=1e-7, atol=1e-10)
    divergence = [loss.divergence(beta) for beta in flow.beta]
    printed = pol.full_flow(
        np.abs(V),
        np.zeros(target.size),
        pol.KLLoss(target, form="printed"),
        times=[0.0, 1e2, 1e5, 1e8],
        rtol=1e-6,
        atol=1e-9,
    )
    shown = [
        int(np.argmin(np.abs(np.log(times[1:]) - np.log(t)))) + 1
        for t in (1e1, 1e2, 1e3, 1e4, 1e5, 1e6)
        if t <= s["t_end"] * 1.01
    ]
    rows = tuple(
        (f"{times[k]:.2g}", divergence[k], flow.scores[k].max(), flow.entropy[k] / np.log(target.size)) for k in shown
    )
    many = context.sweep(kl_runs, [{"t_end": s["t_end"]}], chunk=s["chunk"], name="kl")
    got = many.where(t_end=s["t_end"])
    return Outcome(
        tables=[
            Table("One instance along the flow", ("t", "KL divergence", "largest score", "entropy / log p"), rows),
            Table(
                f"Gradient descent with step 0.1 at t = {reached:g}, beside the flow",
                ("", "largest score", "entropy / log p"),
                (
                    (
                        "descent",
                        float(descent.scores[-1, 0].max()),
                        float(descent.entropy[-1, 0]) / np.log(target.size),
                    ),
                    ("flow", beside.scores[-1].max(), beside.entropy[-1] / np.log(target.size)),
                ),
            ),
            Table(
                f"Random instances at t = {s['t_end']:g}",
                ("instances", "largest score", "entropy / log p", "KL divergence"),
                (
                    (
                        len(got["top"]),
                        mean_share_of(got["top"]),
                        mean_share_of(got["entropy"]),
                        mean_of(got["divergence"]),
                    ),
                ),
            ),
            Table(
                "The loss as printed, -<p, log(V s)>, unbounded below",
                ("t", "loss", "largest score"),
                tuple((f"{t:.0e}", printed.loss[k], printed.scores[k].max()) for k, t in enumerate(printed.times) if k),
            ),
        ],
        curves={"t": times[1:], "scores": flow.scores[1:], "divergence": divergence[1:]},
        notes=["The published run has another, unknown seed: its curves are reproduced in kind, not in number."],
    )


def draw_figure_10(outcome: Outcome) -> Picture:
    """Scores and divergence over log-time."""
    c = outcome.curves
    picture, axes = subplots(1, 2, (10, 3.6))
    axes[0].semilogx(c["t"], np.asarray(c["scores"]), lw=1.4)
    axes[0].set(title="softmax(a), KL loss", xlabel="t", ylabel="score", ylim=(0, 1))
    axes[1].loglog(c["t"], np.maximum(np.asarray(c["divergence"], dtype=float), 1e-14), color="k")
    axes[1].set(title="KL divergence", xlabel="t")
    return picture


FIGURE_10 = Figure(
    paper="polarization",
    name="fig10",
    title="The KL loss polarizes as regression does, not as classification",
    protocol="""d = p = 10, V = 0.1 randn, a(0) = 0, target softmax(10 rand), prediction softmax(V s) (published
        code; the text has V s itself), step 0.1 for 1e7 steps (t = 1e6); here the flow to t = 1e6, cross-checked by
        descent at fewer steps.""",
    full={"trials": 10, "t_end": 1e6, "steps": 50_000, "chunk": 5},
    quick={"trials": 2, "t_end": 1e4, "steps": 2_000, "chunk": 1},
    run=run_figure_10,
    draw=draw_figure_10,
)


def tied(trials: int, seed: int, D: int, steps: int, transposed: bool, device: str | None) -> dict[str, Any]:
    """Gradient descent from R = I, a = 1 + 0.1 randn, unit target, as one batch; the first trial has legacy seed 42.

    Examples
    --------
    >>> tied(1, 0, D=5, steps=20, transposed=False, device=None)["largest"][0] > 0
    True
    """
    first = np.random.RandomState(42)
    beta = first.randn(D)
    beta /= np.linalg.norm(beta)
    others = np.random.default_rng(seed).standard_normal((trials - 1, D))
    a0 = 1 + 0.1 * np.concatenate([first.randn(1, D), others])
    R0 = np.tile(np.eye(D), (trials, 1, 1))
    run = pol.descend_tied(R0, a0, beta, transposed=transposed, lr=0.05, steps=steps, snapshots=40, device=device)
    norms = run.V.norm(dim=3 if transposed else 2)  # (snapshots, trial, token): rows of R when transposed
    winner = run.scores[-1].argmax(-1)
    return {
        "largest": run.scores[-1].amax(-1).tolist(),
        "winner_norm": norms[-1].gather(-1, winner[:, None])[:, 0].tolist(),
        "median_norm": norms[-1].median(-1).values.tolist(),
        "same_as_a": (run.a[-1].argmax(-1) == winner).tolist(),
        "times": [run.times.tolist()] * trials,
        "score_curve": run.scores.gather(-1, winner[None, :, None].expand(len(run.steps), -1, 1))[..., 0].T.tolist(),
        "norm_curve": norms.gather(-1, winner[None, :, None].expand(len(run.steps), -1, 1))[..., 0].T.tolist(),
        "median_curve": norms.median(-1).values.T.tolist(),
    }


def run_figure_11(context: Context) -> Outcome:
    """Both forms for every D."""
    s = context.settings
    cells = [
        {"D": D, "steps": s["steps"], "transposed": form, "device": context.device}
        for form in (False, True)
        for D in s["dimensions"]
    ]
    many = context.sweep(tied, cells, chunk=s["trials"], name="tied")
    rows, curves = [], {}
    for cell in cells:
        got = many.where(**cell)
        rows.append((
            "R^T softmax(R a)" if cell["transposed"] else "R softmax(R a)", cell["D"], float(np.mean(got["largest"])),
            float(np.min(got["largest"])), float(np.mean(got["winner_norm"])), float(np.mean(got["median_norm"])),
            f"{int(np.sum(got['same_as_a']))} of {len(got['largest'])}",
        ))  # fmt: skip
        if not cell["transposed"]:
            curves[str(cell["D"])] = {
                name: np.asarray(got[name])[0] for name in ("times", "score_curve", "norm_curve", "median_curve")
            }
    total = sum(len(many.where(**cell)["same_as_a"]) for cell in cells)
    differ = total - sum(int(np.sum(many.where(**cell)["same_as_a"])) for cell in cells)
    columns = ("model", "D", "mean largest score", "smallest", "norm of its vector", "median norm",
               "argmax a = argmax s")  # fmt: skip
    return Outcome(
        tables=[Table(f"After {s['steps']} steps", columns, rows)],
        curves=curves,
        notes=[
            f"The diverging column belongs to the largest score; the largest element of a, which the caption names, is "
            f"another token in {differ} of {total} runs.",
            "The order of the published draws is not known: the instance is one of the same distribution.",
        ],
    )


def draw_figure_11(outcome: Outcome) -> Picture:
    """Largest score and norms against time for each D."""
    from matplotlib import pyplot as plt

    picture, axes = subplots(1, 2, (10, 3.6))
    for k, (D, c) in enumerate(outcome.curves.items()):
        color = plt.get_cmap("viridis")(k / 4)
        axes[0].semilogx(c["times"][1:], c["score_curve"][1:], color=color, label=f"D = {D}")
        axes[1].semilogx(c["times"][1:], c["norm_curve"][1:], color=color, label=f"D = {D}")
        axes[1].semilogx(c["times"][1:], c["median_curve"][1:], color=color, ls=":")
    axes[0].set(title="largest score", xlabel="t", ylim=(0, 1.02))
    axes[1].set(title="norm of the winning column (dotted: median)", xlabel="t")
    axes[0].legend(fontsize=8)
    return picture


FIGURE_11 = Figure(
    paper="polarization",
    name="fig11",
    title="The tied model polarizes too, and the norm of one column grows like log t",
    protocol="""R = I, a = 1 + 0.1 randn, unit beta_*, logistic loss, D = 10, 20, 50, 100, step 0.05 for 1e4 steps
        (as published); also the transposed form that the residual stream implies, and further seeds (ours).""",
    full={"trials": 4, "dimensions": (10, 20, 50, 100), "steps": 10_000},
    quick={"trials": 2, "dimensions": (10, 20), "steps": 1_500},
    run=run_figure_11,
    draw=draw_figure_11,
)

_KINDS = {"l1": "L1", "sum": "Sum", "square": "L2", "softmax": "Softmax", "relu_norm": "Relu (normalized)",
          "sigmoid": "Sigmoid", "relu": "Relu (elementwise)", "sigmoid_norm": "Sigmoid (normalized)",
          "elu_norm": "Elu + 1 (normalized)"}  # fmt: skip


def run_figure_13(context: Context) -> Outcome:
    """The flow of both losses for every map, gradient descent beside it, and the logistic flow at t = 1e12."""
    s = context.settings
    V, a, beta = figure_13()
    rows, curves = [], {}
    for loss_name, loss, t_end, lr in (
        ("square", pol.SquareLoss(beta), 500.0, 0.1),
        ("logistic", pol.LogisticLoss(beta), 5e4, 0.5),
    ):
        for kind, label in _KINDS.items():
            times = np.concatenate([[0.0], np.geomspace(0.1, t_end, 80)])
            flow = pol.full_flow(V, a, loss, normalization=kind, times=times, rtol=1e-7, atol=1e-10)
            steps = min(s["steps"], round(t_end / lr))
            descent = pol.descend(
                V, a, loss, normalization=kind, lr=lr, steps=steps, snapshots=3, device=context.device
            )
            beside = pol.full_flow(V, a, loss, normalization=kind, times=[0.0, lr * steps], rtol=1e-7, atol=1e-10)
            last = np.abs(flow.scores[-1])
            late = float("nan")
            if loss_name == "logistic":
                far = pol.aligned_flow(V.T @ beta, a, normalization=kind, t_end=1e12, points=3)
                late = float(np.abs(far.scores[-1]).max() / np.abs(far.scores[-1]).sum())
            rows.append((
                loss_name, label, flow.scores[-1].max(), flow.scores[-1].min(), last.max() / last.sum(),
                int(last.argmax()),
                float((descent.scores[-1, 0] - descent.scores.new_tensor(beside.scores[-1])).abs().max()), late,
            ))  # fmt: skip
            curves[f"{loss_name}:{kind}"] = {"t": flow.times[1:], "scores": flow.scores[1:]}
    columns = ("loss", "map", "largest score", "smallest", "its share", "token", "descent - flow", "share at t = 1e12")
    return Outcome(
        tables=[Table("Scores at t = 500 (square) and t = 5e4 (logistic)", columns, rows)],
        curves=curves,
        notes=[
            "Figure 13's 'Relu' is normalized and becomes one-hot exactly; the elementwise one does not.",
            "The winner is argmax a(0) = 6, not argmax u(0) = 1: Assumption 3.1 (a(0) = 0) does not hold here.",
            "Entropy is undefined for Sum (signed scores) and for elementwise maps; shares of |s| are shown instead.",
            f"Descent - flow compares after at most {s['steps']} steps of the published size.",
        ],
    )


def draw_figure_13(outcome: Outcome) -> Picture:
    """A panel for each loss and map of the published figure."""
    kinds = list(_KINDS)[:6]
    picture, axes = subplots(2, 6, (16, 5), sharex="row")
    for row, loss in enumerate(("square", "logistic")):
        for axis, kind in zip(axes[row], kinds, strict=True):
            c = outcome.curves[f"{loss}:{kind}"]
            axis.semilogx(c["t"], np.asarray(c["scores"]), lw=1)
            axis.set_title(f"{loss}, {_KINDS[kind]}", fontsize=9)
        axes[row][0].set_ylabel("score")
    for axis in axes[1]:
        axis.set_xlabel("t")
    return picture


FIGURE_13 = Figure(
    paper="polarization",
    name="fig13",
    title="Which maps polarize: normalized positive ones under the logistic loss",
    protocol="""dim 10, V = 0.1 randn, a = 1 + 0.1 randn, unit beta_*, legacy seed 42 reset between draws; square
        loss 5,000 steps of 0.1, logistic loss 1e5 steps of 0.5 (as published); here the flow to the same times,
        descent over its first steps, and three more maps.""",
    full={"trials": 1, "steps": 5_000},
    quick={"trials": 1, "steps": 200},
    run=run_figure_13,
    draw=draw_figure_13,
)
