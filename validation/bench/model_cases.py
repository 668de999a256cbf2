"""Cases about models: next-token graphs, training, the reduced loss, and softmax Jacobians.

Graph-SVM of small vocabularies against one cvxpy constraint per pair of tokens, and of a large corpus through a
working set; batched training against the loop that the literature's code runs; the spectrum by the secular equation
against dense eigenvalues. The gradient of the reduced loss meets two peers, both head by head and on exactly our
sequences: ``terms`` writes equation (11) as it stands, one term per feature and per noise direction; ``products``
uses one matrix-vector product per head, the best that can be done head by head.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from statistics import median
from typing import Any, NamedTuple

import networkx as nx
import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

import attsvm
import attsvm.dynamics.specialization as sp
from attsvm.next_token import graph_svm, graph_svms, random_corpus, token_graphs
from attsvm.next_token.graph_svm import solve_graphs
from attsvm.softmax import jacobian_spectrum, log_softmax
from attsvm.validation.bench.measurement import Numbers, Stopwatch, measure, one_thread, timed


class Modelled(NamedTuple):
    """What cvxpy answers: W is None and the value NaN where its solver breaks down, infinite where it finds no W."""

    W: npt.NDArray[np.float64] | None
    value: float
    status: str


def all_pairs_model(
    sequences: Sequence[Any],
    embeddings: npt.NDArray[np.float64],
    norm: str,
    *,
    independent: bool = False,
    **options: Any,
) -> Modelled:
    """Graph-SVM as a user would write it: one cvxpy constraint for every pair of tokens that the graphs order.

    ``independent`` leaves out equations that follow from others: tokens of a component are tied to its first alone.

    Examples
    --------
    >>> round(float(all_pairs_model([[0, 1, 2, 0]], np.eye(3), "frobenius", solver="CLARABEL").value), 4)
    0.8165
    """
    import cvxpy as cp

    d = embeddings.shape[1]
    W = cp.Variable((d, d))
    rows = []
    graphs = token_graphs(sequences)
    for k in graphs.queries.tolist():
        closure = nx.transitive_closure(graphs.graph(k))
        for i, j in closure.edges:
            tied = closure.has_edge(j, i)
            if i == j or (tied and i > j):  # the same equation twice makes interior-point solvers break down
                continue
            if tied and independent and any(closure.has_edge(i, h) and closure.has_edge(h, i) for h in range(i)):
                continue
            score = (embeddings[i] - embeddings[j]) @ W @ embeddings[k]
            rows.append(score == 0 if tied else score >= 1)
    size = cp.sum_squares(W) if norm == "frobenius" else cp.normNuc(W)
    program = cp.Problem(cp.Minimize(size), rows)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # where its solver stops short the status says so
            program.solve(**options)
    except cp.SolverError:  # ties that depend on each other
        return Modelled(None, np.nan, "broken")
    if W.value is None:
        return Modelled(None, np.inf, program.status)
    value = float(np.sqrt(program.value)) if norm == "frobenius" else float(program.value)
    return Modelled(W.value, value, program.status)


def vocabularies(count: int, seed: int, norm: str) -> list[tuple[list[list[int]], npt.NDArray[np.float64]]]:
    """Sequences and embeddings whose Graph-SVM is feasible and orders something: n 4-10, T 4-6, 6-8 tokens, d = 8.

    Examples
    --------
    >>> (sequences, table), = vocabularies(1, 0, "frobenius")
    >>> 4 <= len(sequences) <= 10, table.shape[1]
    (True, 8)
    """
    rng = np.random.default_rng(seed)
    found: list[tuple[list[list[int]], npt.NDArray[np.float64]]] = []
    while len(found) < count:
        sizes = (int(rng.integers(4, 11)), int(rng.integers(4, 7)), int(rng.integers(6, 9)))
        sequences, table = random_corpus(*sizes, 8, seed=rng)
        svm = graph_svm(sequences, table, norm=norm)
        if svm.status == "optimal" and svm.norm > 0:
            found.append((sequences, table))
    return found


def graph_speed(seed: int, norm: str, batch: int = 200, sample: int = 9) -> dict[str, dict[str, float]]:
    """Graph-SVM of small vocabularies, alone and as a batch, against one cvxpy constraint per pair of tokens.

    cvxpy has its default accuracy and solves the first ``sample`` vocabularies; its median counts for all.

    Examples
    --------
    >>> found = graph_speed(0, "frobenius", batch=4, sample=1)
    >>> found["attsvm"]["gap"] <= 1e-8, found["cvxpy CLARABEL"]["seconds"] > 0
    (True, True)
    """
    data = vocabularies(batch, seed, norm)
    corpora, tables = zip(*data, strict=True)
    peers, alone = [], []
    all_pairs_model(*data[0], norm, solver="CLARABEL")  # loads what it needs
    for sequences, table in data[:sample]:
        watch = Stopwatch()
        all_pairs_model(sequences, table, norm, solver="CLARABEL")
        peers.append(watch.seconds())
        watch = Stopwatch()
        for _ in range(4):
            graph_svm(sequences, table, norm=norm)
        alone.append(watch.seconds() / 4)
    together = graph_svms(corpora, tables, norm=norm)
    watch = Stopwatch()
    for _ in range(3):
        graph_svms(corpora, tables, norm=norm)
    many = watch.seconds() / 3 / batch
    ours = {
        "seconds": median(alone),
        "seconds in a batch": many,
        "times as fast": median(peer / own for peer, own in zip(peers, alone, strict=True)),
        "times as fast in a batch": median(peers) / many,
        "gap": max(svm.certificate.proved for svm in together),
    }
    return {"attsvm": ours, "cvxpy CLARABEL": {"seconds": median(peers)}}


def large_corpus(
    seed: int, vocabulary: int = 10_000, sequences: int = 100_000, T: int = 6, d: int = 16
) -> dict[str, dict[str, float]]:
    """Sequences whose next token is the one that a hidden W prefers: acyclic graphs, a feasible SVM.

    Examples
    --------
    >>> found = large_corpus(0, vocabulary=100, sequences=800, d=6)["attsvm"]
    >>> found["gap"] <= 1e-8, found["rows"] > 2000
    (True, True)
    """
    data, table = random_corpus(sequences, T, vocabulary, d, labels="realizable", seed=seed)
    token_graphs(data[:10])  # loads what it needs
    built = measure(lambda _: token_graphs(data), lambda: None)
    graphs = built.answer
    solved = measure(lambda _: solve_graphs(graphs, table), lambda: None)
    svm = solved.answer
    numbers = {
        "seconds": built.seconds + solved.seconds,
        "seconds of the graphs": built.seconds,
        "MB": max(built.memory, solved.memory) / 1e6,
        "gap": svm.certificate.proved,
        "nodes": float(len(graphs.token)),
        "components": float(len(graphs.root)),
        "rows": float(len(svm.pairs)),
        "working rows": float(svm.result.extras.working_rows),
        "steps": float(svm.result.iterations),
    }
    return {"attsvm": numbers}


def _literature_loop(problem: attsvm.AttentionProblem, steps: int) -> float:
    """Seconds per step of one problem, autograd and normalized descent in plain arithmetic."""
    import torch

    X, Z, Y = (torch.tensor(a.copy()) for a in (problem.X, problem.Z, problem.Y))
    v = torch.tensor(problem.head.v.copy())  # type: ignore[union-attr]
    W = torch.nn.Parameter(torch.zeros(problem.dx, problem.dz, dtype=torch.float64))
    watch = Stopwatch()
    for _ in range(steps):
        attention = torch.softmax(torch.einsum("ntd,de,ne->nt", X, W, Z), dim=1)
        output = torch.einsum("nt,ntd,d->n", attention, X, v)
        loss = torch.log(1 + torch.exp(-Y * output)).mean()
        torch.autograd.backward(loss)
        with torch.no_grad():
            gradient = W.grad
            assert gradient is not None
            W.sub_(0.1 * gradient / (gradient.norm() + 2.2e-16))
            W.grad = None
    return watch.seconds() / steps


def _matmul_seconds(problem: attsvm.AttentionProblem, parameterization: str, repeats: int = 200) -> float:
    """Seconds of the matrix products of one step alone."""
    import torch

    from attsvm.training.tensors import tensor_problem

    data = tensor_problem(problem)
    B, n, K, dz = data.Z.shape
    W = torch.zeros(B, problem.dx, dz, dtype=torch.float64)
    Z, s = data.Z.reshape(B, n * K, dz), torch.zeros(B, n, K, problem.T, dtype=torch.float64)
    watch = Stopwatch()
    for _ in range(repeats):
        keys = torch.bmm(Z, W.transpose(1, 2)).reshape(B, n, K, -1)
        _ = keys @ data.X.transpose(2, 3)
        pulled = s @ data.X
        G = torch.bmm(pulled.reshape(B, n * K, -1).transpose(1, 2), Z)
        if parameterization == "KQ":
            _ = (W @ W.transpose(1, 2), G @ W, G.transpose(1, 2) @ W)
    return watch.seconds() / repeats


def training_throughput(seed: int, *, batch: int = 500, steps: int = 300) -> dict[str, dict[str, float]]:
    """Seconds per problem and step and their ratio to the peer's, both in turn in this process, for one draw.

    Examples
    --------
    >>> list(training_throughput(0, batch=2, steps=3))
    ['attsvm W', 'attsvm KQ']
    """
    problem = attsvm.random_problem(n=5, T=5, d=10, batch=batch, seed=seed)
    with one_thread():  # the peer is faster on one thread, too
        _literature_loop(problem[0], 20)  # warm-up
        return {f"attsvm {name}": _throughput(problem, name, batch, steps) for name in ("W", "KQ")}


def _throughput(problem: attsvm.AttentionProblem, parameterization: str, batch: int, steps: int) -> dict[str, float]:
    def run(p: attsvm.AttentionProblem, steps: int) -> attsvm.Run:
        return attsvm.train(p, parameterization, steps=steps, optimizer="normalized_gd", snapshots=3)

    run(problem, 5)
    ours = measure(lambda p: run(p, steps), lambda: problem).seconds
    peer = _literature_loop(problem[0], steps)
    return {
        "seconds": ours / steps / batch,
        "times as fast as the autograd loop": peer / (ours / steps / batch),
        "peer's seconds": peer,
        "share of matrix products": _matmul_seconds(problem, parameterization) * steps / ours,
    }


def head_by_head(
    point: sp.OrderParameters, chi: Tensor, xi: Tensor, activation: str, products: bool
) -> tuple[Tensor, ...]:
    """Loss and gradient in (m, r, b, v) by autograd; chi and xi have shapes (N, L, F) and (N, L, H).

    Examples
    --------
    >>> import attsvm.dynamics.specialization as sp
    >>> point = sp.OrderParameters(torch.zeros(1, 1).double(), torch.zeros(1, 1).double())
    >>> zero = torch.zeros(2, 4, 1).double()
    >>> head_by_head(point, zero, zero, "softmax", products=True)[0].item()
    0.75
    """
    assert point.r is not None
    m, r, b, v = (t.clone().requires_grad_() for t in (point.m, point.r, point.b, point.v))
    scores = []
    for h in range(point.heads):
        if products:
            scores.append(chi @ m[h] + xi @ r[h])
        else:
            terms = [m[h, f] * chi[:, :, f] for f in range(point.features)]
            terms += [r[h, k] * xi[:, :, k] for k in range(point.heads)]
            scores.append(sum(terms[1:], terms[0]))
    attention = torch.zeros_like(scores[0])
    joint = sum((scores[h] + b[h]).exp().sum(1, keepdim=True) for h in range(point.heads)) / point.heads
    for h in range(point.heads):
        if activation == "softmax":
            sigma = torch.softmax(scores[h], dim=1)
        elif activation == "softmax1":
            raised = scores[h].exp()
            sigma = v * raised / (b[h].exp() + raised.sum(1, keepdim=True))
        else:
            sigma = (scores[h] + b[h]).exp() / joint
        attention = attention + sigma / point.heads
    target = torch.zeros(chi.shape[1], dtype=chi.dtype, device=chi.device)
    target[0] = 1.0
    loss = (target - attention).square().sum(1).mean()
    slopes = torch.autograd.grad(loss, (m, r, b, v), allow_unused=True, materialize_grads=True)
    return (loss.detach(), *slopes)


def reduced_gradient_ratio(
    activation: str = "softmax",
    *,
    H: int = 8,
    F: int = 3,
    L: int = 5,
    n: int = 100_000,
    repeats: int = 5,
    seed: int = 0,
) -> dict[str, float]:
    """Seconds of our gradient, both peers in units of it, and the largest difference of any number.

    Examples
    --------
    >>> found = reduced_gradient_ratio("bayes", n=1000, repeats=1)
    >>> found["difference"] < 1e-13, "times as fast as term by term" in found
    (True, True)
    """
    generator = torch.Generator().manual_seed(seed)
    samples = sp.draw_samples(sp.gaussian_spikes(F, 20.0, 1.0), L, H, n, generator=generator)
    start = sp.initial_order_parameters(H, F, noise=0.3, generator=generator)
    point = sp.OrderParameters(
        start.m, start.r, 0.3 * torch.randn(H, generator=generator, dtype=torch.float64), torch.tensor(1.3).double()
    )
    z = torch.cat(samples.relevant_first().blocks, dim=-1)
    chi, xi = z[1 : 1 + F].permute(2, 1, 0).contiguous(), z[1 + F :].permute(2, 1, 0).contiguous()
    with one_thread():
        ours, seconds = timed(lambda: sp.reduced_gradient(point, samples, activation), repeats, min)
        found, worst = {"seconds": seconds}, 0.0
        for name, products in (("term by term", False), ("head by head", True)):
            answer, taken = timed(lambda p=products: head_by_head(point, chi, xi, activation, p), repeats, min)  # type: ignore[misc]
            found[f"times as fast as {name}"] = taken / seconds
            mine = (ours.loss, ours.m, ours.r, ours.b, ours.v)
            worst = max(worst, *(float((a - b).abs().max()) for a, b in zip(answer, mine, strict=True)))
    return found | {"difference": worst}


def reduced_gradient_speed(seed: int) -> Numbers:
    """`reduced_gradient_ratio` of every activation."""
    return {kind: reduced_gradient_ratio(kind, repeats=3, seed=seed) for kind in ("softmax", "softmax1", "bayes")}


def spectrum_speed(seed: int, vectors: int = 1000, n: int = 1024, *, scale: float = 1.0, sample: int = 2) -> Numbers:
    """Time of all spectra beside `numpy.linalg.eigvalsh`, and the largest difference between the two.

    Parameters
    ----------
    seed : int
    vectors, n : int
        Attention vectors and their length.
    scale : float
        Standard deviation of the logits.
    sample : int
        Dense matrices solved, spread over the run; their mean time is multiplied by ``vectors``.

    Returns
    -------
    dict of str to dict
        ``difference``: relative to the largest eigenvalue, for eigvalsh is not more accurate than that.

    Examples
    --------
    >>> spectrum_speed(0, 8, 128, sample=2)["attsvm"]["difference"] < 1e-10
    True
    """
    if not 1 <= sample <= vectors:
        raise ValueError(f"sample must be between 1 and vectors = {vectors}, got {sample}")
    rng = np.random.default_rng(seed)
    ours = dense = difference = 0.0
    with one_thread():  # both on one thread: processor time adds up over threads
        for part in np.array_split(np.arange(vectors), sample):  # alternately: both meet the same load of the machine
            logs = log_softmax(scale * rng.normal(size=(len(part), n)))
            begun = time.process_time()
            spectra = jacobian_spectrum(log_attention=logs)
            ours += time.process_time() - begun
            a = np.exp(logs[0])
            begun = time.process_time()
            reference = np.linalg.eigvalsh(np.diag(a) - np.outer(a, a))
            dense += time.process_time() - begun
            difference = max(difference, float(np.abs(spectra[0] - reference).max() / reference[-1]))
    ratio = dense * (vectors / sample) / ours
    return {"attsvm": {"seconds": ours, "times as fast as eigvalsh": ratio, "difference": difference}}


def monitor_overhead(
    seed: int = 0,
    *,
    d: int = 384,
    layers: int = 6,
    heads: int = 12,
    batch: int = 8,
    length: int = 64,
    repeats: int = 9,
    every: int = 100,
) -> dict[str, float]:
    """Medians of a plain step and of a monitor that measures or waits, and its share; by default at MiniLM's size.

    Parameters
    ----------
    seed : int
    d, layers, heads : int
        Of the transformer.
    batch, length : int
        Sequences of a step and tokens of a sequence.
    repeats : int
        Steps of each kind.
    every : int
        For which the share is said.

    Examples
    --------
    >>> sorted(monitor_overhead(d=8, layers=1, heads=2, batch=2, length=4, repeats=2))
    ['measuring', 'seconds', 'share of a step', 'waiting']
    """
    import torch
    from torch import nn

    from attsvm.probing.monitor import Monitor
    from attsvm.training.optimizers import gradient_step

    torch.manual_seed(seed)
    layer = nn.TransformerEncoderLayer(d, heads, 4 * d, batch_first=True)
    model = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)

    def step(monitor: Any) -> float:
        states = torch.randn(batch, length, d)
        start = time.process_time()
        gradient_step(optimizer, model(states).square().mean())
        if monitor is not None:
            monitor.step()
        return time.process_time() - start

    step(None)
    found: dict[str, list[float]] = {"plain": [], "measured": [], "waiting": []}
    for _ in range(repeats):
        found["plain"].append(step(None))
        with _timed(Monitor, model, every) as (monitor, spent):
            for kind in ("measured", "waiting"):
                spent[0] = 0.0
                step(monitor)
                found[kind].append(spent[0])
            assert len(monitor.history) == 1
    plain, measured, waiting = (float(np.median(found[kind])) for kind in ("plain", "measured", "waiting"))
    overhead = (measured + (every - 1) * waiting) / (every * plain)
    return {"seconds": plain, "measuring": measured, "waiting": waiting, "share of a step": overhead}


def monitor_cost(seed: int) -> Numbers:
    """`monitor_overhead` at MiniLM's size."""
    return {"attsvm": monitor_overhead(seed)}


@contextmanager
def _timed(kind: Any, model: Any, every: int) -> Iterator[tuple[Any, list[float]]]:
    """A monitor whose methods add their processor time to a list of one number."""
    spent = [0.0]

    def timed(name: str) -> Callable[..., Any]:
        def call(self: Any, *args: Any) -> Any:
            start = time.process_time()
            try:
                return getattr(kind, name)(self, *args)
            finally:
                spent[0] += time.process_time() - start

        return call

    methods = {name: timed(name) for name in ("_begin", "_look", "_end", "step")}
    with type("TimedMonitor", (kind,), methods)(model, every=every) as monitor:
        yield monitor, spent


def cheap_speed(seed: int, *, model: str = "minilm", sequences: int = 32, length: int = 128) -> Numbers:
    """Processor seconds of everything but the SVM solves, for every head of the model."""
    from attsvm.probing import probe
    from attsvm.validation.pretrained.installed_models import english_paragraphs, installed_model

    loaded, texts = installed_model(model), english_paragraphs(sequences)
    with one_thread():
        watch = Stopwatch()
        table = probe(loaded.model, texts, tokenizer=loaded.tokenizer, svm=None, max_length=length, seed=seed)
        seconds = watch.seconds()
    return {"attsvm": {"seconds": seconds, "heads": float(len(table)), "tokens": float(table.about["tokens"])}}


def svm_speed(
    seed: int, *, model: str = "minilm", heads: int = 3, sequences: int = 32, length: int = 128, cores: int = 2
) -> Numbers:
    """Processor seconds per head of the SVM measures at the default budget, from some heads at random.

    ``minutes`` is what all heads would take on so many cores: an extrapolation, heads are independent.
    """
    from attsvm.probing import SvmBudget, capture_layers
    from attsvm.probing.head_data import read_inputs
    from attsvm.probing.svm_measures import svm_measures
    from attsvm.validation.pretrained.installed_models import english_paragraphs, installed_model

    loaded, budget = installed_model(model), SvmBudget()
    with one_thread():
        read = read_inputs(english_paragraphs(sequences), loaded.tokenizer, max_length=length)
        every = [head for layer in capture_layers(loaded.model, read.batches) for head in layer]
        chosen = np.random.default_rng(seed).choice(len(every), min(heads, len(every)), replace=False)
        seconds, gaps = [], []
        for k in chosen:
            watch = Stopwatch()
            found = svm_measures(every[k], budget, seed)
            seconds.append(watch.seconds())
            gaps.append({name: float(value) for name, value in found.items() if name.startswith("gap_")})
    numbers = {
        "seconds": float(np.mean(seconds)),
        "slowest head": float(np.max(seconds)),
        "minutes for all heads on 2 cores": float(np.mean(seconds)) * len(every) / cores / 60.0,
        "gap": max(value for one in gaps for name, value in one.items() if name != "gap_soft_nuclear"),
        "gap of the soft nuclear solve": max(one["gap_soft_nuclear"] for one in gaps),
    }
    return {"attsvm": numbers}
