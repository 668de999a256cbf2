"""Trials shared by the figures of this paper: flows, SGD beside its flow, trained and pruned heads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from attsvm.sweeps import columns_of

if TYPE_CHECKING:
    import torch

    from attsvm.dynamics.specialization import Prior

__all__ = ["ACTIVATIONS", "NAMES", "flow_cell", "flow_paths", "make_prior", "pruned_heads", "sgd_beside_flow",
           "trained_heads"]  # fmt: skip

ACTIVATIONS = ("softmax", "softmax1", "bayes")
NAMES = {"softmax": "softmax", "softmax1": "softmax-1", "bayes": "Bayes-softmax"}


def make_prior(kind: str, F: int, nu1: float, nu2: float | None = None) -> Prior:
    """A law of theta by its name: ``flip`` (F = 2), ``one-hot`` or ``gaussian``.

    Examples
    --------
    >>> from attsvm.validation.figures.specialization.runs import make_prior
    >>> make_prior("gaussian", 3, 9.0).features
    3
    """
    from attsvm.dynamics.specialization import flipping_spike, gaussian_spikes, one_hot_spikes

    if kind == "flip":
        return flipping_spike(nu1, nu1 if nu2 is None else nu2)
    if kind == "one-hot":
        return one_hot_spikes(F, nu1)
    if kind == "gaussian":
        return gaussian_spikes(F, nu1, nu2)
    raise ValueError(f"kind must be 'flip', 'one-hot' or 'gaussian', got {kind!r}")


def _generator(seed: int) -> torch.Generator:
    import torch

    return torch.Generator().manual_seed(seed % 2**63)


def sgd_beside_flow(
    trials: int,
    seed: int,
    *,
    prior: Sequence[Any],
    activation: str,
    L: int,
    H: int,
    D: int,
    times: Sequence[float],
    lr: float,
    samples: int,
    start_seed: int,
) -> dict[str, Any]:
    """SGD with batches of D, and the flow of its order parameters, from one common start.

    The trials of a cell share the start; SGD draws its own data, the flow its own samples. The flow runs with the
    overlaps of the actual spikes and the kick of the finite learning rate; both losses are those of tokens of norm 1.

    Examples
    --------
    >>> from attsvm.validation.figures.specialization.runs import sgd_beside_flow
    >>> found = sgd_beside_flow(1, 0, prior=("flip", 2, 2.0, 2.0), activation="softmax", L=3, H=2, D=30,
    ...                         times=(0.0, 1.0), lr=0.1, samples=600, start_seed=0)
    >>> len(found["sgd_m"][0]), len(found["flow_loss"][0])
    (2, 2)
    """
    import attsvm.dynamics.specialization as sp

    law = make_prior(*prior)
    start = sp.random_overlaps(H, law.features, D, generator=_generator(start_seed))
    seen = sp.transformed(law, start.whitened()[1].numpy())
    steps = [round(t / lr) for t in times]

    def row(trial: int) -> dict[str, Any]:
        generator = _generator(seed + 7919 * trial)
        path = sp.projected_sgd(
            start, law, activation, L=L, D=D, steps=steps[-1], lr=lr, batch=D, generator=generator, snapshots=steps,
            reduced=True,
        )  # fmt: skip
        drawn = sp.draw_samples(seen, L, H, samples, generator=generator)
        flow = sp.gradient_flow(sp.order_parameters(start), drawn, activation, times, step=0.5, noise=lr)
        runs = {"sgd": path, "flow": flow}
        return {f"{who}_{what}": getattr(run, what) for who, run in runs.items() for what in ("m", "G", "loss")}

    return columns_of(map(row, range(trials)))


def flow_paths(
    trials: int,
    seed: int,
    *,
    prior: Sequence[Any],
    activation: str,
    L: int,
    H: int,
    times: Sequence[float],
    samples: int,
    step: float,
    D: float = 1e4,
) -> dict[str, Any]:
    """The flow from random starts of heads in dimension D; the trials of a chunk share their samples.

    Examples
    --------
    >>> from attsvm.validation.figures.specialization.runs import flow_paths
    >>> found = flow_paths(2, 0, prior=("flip", 2, 2.0), activation="softmax", L=3, H=2, times=(0.0, 1.0), samples=600, step=0.5)
    >>> len(found["m"]), len(found["m"][0])
    (2, 2)
    """  # noqa: E501
    import attsvm.dynamics.specialization as sp

    law, generator = make_prior(*prior), _generator(seed)
    start = sp.initial_order_parameters(H, law.features, noise=D**-0.5, runs=trials, generator=generator)
    drawn = sp.draw_samples(law, L, H, samples, generator=generator)
    path = sp.gradient_flow(start, drawn, activation, times, step=step)
    size = np.trace(path.G.numpy(), axis1=-2, axis2=-1)
    return {
        "m": [path.m[:, k].tolist() for k in range(trials)],
        "loss": [path.loss[:, k].tolist() for k in range(trials)],
        "orthogonal": [size[:, k].tolist() for k in range(trials)],
    }


def flow_cell(prior: Sequence[Any], L: int, H: int, settings: Mapping[str, Any], step: float, **others: Any) -> Any:
    """A cell of `flow_paths` with the times and samples of a figure's settings; softmax unless told otherwise.

    Examples
    --------
    >>> from attsvm.validation.figures.specialization.runs import flow_cell
    >>> flow_cell(("flip", 2, 2.0), 3, 2, {"times": (0.0, 1.0), "samples": 9}, 0.5)["activation"]
    'softmax'
    """
    chosen = {"times": settings["times"], "samples": settings["samples"], "activation": "softmax"}
    return {"prior": prior, "L": L, "H": H, **chosen, "step": step, **others}


def _train(trials: int, seed: int, *, prior: Sequence[Any], activation: str, **options: Any) -> Any:
    import attsvm.dynamics.specialization as sp

    return sp.train_heads(make_prior(*prior), activation, runs=trials, generator=_generator(seed), **options)


def trained_heads(trials: int, seed: int, **training: Any) -> dict[str, Any]:
    """Heads at the end of training, and their loss on fresh samples.

    Examples
    --------
    >>> from attsvm.validation.figures.specialization.runs import trained_heads
    >>> found = trained_heads(1, 0, prior=("one-hot", 2, 9.0), activation="bayes", L=3, H=2, samples=900, steps=80, test_samples=900)
    >>> found["loss"][0] < 0.4
    True
    """  # noqa: E501
    heads = _train(trials, seed, **training)
    return {
        "loss": [loss.value for loss in heads.losses],
        "error": [loss.error for loss in heads.losses],
        "m": heads.point.m.tolist(),
        "b": heads.point.b.tolist(),
        "v": heads.point.v.tolist(),
    }


def pruned_heads(
    trials: int, seed: int, *, prior: Sequence[Any], activation: str, L: int, samples: int, test_samples: int,
    **training: Any,
) -> dict[str, Any]:  # fmt: skip
    """Trained heads, then removed greedily: the loss with 0, ..., H - 1 of them gone.

    ``rescaled`` has the amplitude of softmax-1 fitted again after each removal.

    Examples
    --------
    >>> from attsvm.validation.figures.specialization.runs import pruned_heads
    >>> found = pruned_heads(1, 0, prior=("one-hot", 2, 9.0), activation="bayes", L=3, H=3, samples=900, steps=80, test_samples=900)
    >>> len(found["losses"][0])
    3
    """  # noqa: E501
    import attsvm.dynamics.specialization as sp

    sizes = {"L": L, "samples": samples, "test_samples": 300}
    heads = _train(trials, seed, prior=prior, activation=activation, **sizes, **training)
    law, generator = make_prior(*prior), _generator(seed + 1)
    choose = sp.draw_samples(law, L, 0, samples, generator=generator)
    test = sp.draw_samples(law, L, 0, test_samples, generator=generator)

    def row(trial: int) -> dict[str, Any]:
        point = heads.point[trial]
        path = sp.greedy_pruning(point, choose, activation, test=test)
        again = path
        if activation == "softmax1":
            again = sp.greedy_pruning(point, choose, activation, test=test, rescale="mass")
        return {"losses": list(path.losses), "rescaled": list(again.losses), "removed": list(path.removed)}

    return columns_of(map(row, range(trials)))
