"""Every public function whose work has a size: time and memory as each size grows alone, beside the plain way.

An entry of `GROWN` names a function, the sizes of its documented example and how a call is made from sizes; the plain
way (cvxpy, torch, NumPy) makes one from the same sizes. Calls run in a child process that is ended at the limit.
"""

from __future__ import annotations

import math
import multiprocessing
import queue
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import numpy as np

import attsvm
from attsvm import export, joint, next_token, softmax
from attsvm.validation.bench.measurement import Numbers, measure

FACTORS = (1, 3, 10)

# Seconds of one call, beyond which it is ended and marked.
LIMIT = 10.0

# A shorter time than this is that of the call, not of the work: its growth says nothing.
_NOISE = 2e-4

Call = Callable[[], Any]


@dataclass(frozen=True)
class Grown:
    """A function as it is timed.

    Attributes
    ----------
    sizes : dict
        Of the documented example; each grows alone, up to ten times.
    make : callable
        From sizes to a call without arguments; what it prepares is not timed.
    plain : callable, optional
        The same for the plain way.
    reasons : dict
        By size, why a mark of its line stays.
    """

    sizes: Mapping[str, int]
    make: Callable[..., Call]
    plain: Callable[..., Call] | None = None
    reasons: Mapping[str, str] = field(default_factory=dict)


def _problem(n: int = 6, T: int = 8, d: int = 10, K: int | None = None, batch: int | None = None) -> Any:
    return attsvm.random_problem(n, T, d, queries=K, batch=batch, seed=0)


def _svm(function: Callable[..., Any], **options: Any) -> Callable[..., Call]:
    def make(**sizes: int) -> Call:
        problem = _problem(**sizes)
        return lambda: function(problem, **options)

    return make


def _on(prepared: Callable[[Any], Call]) -> Callable[..., Call]:
    """From sizes to a call on their problem; what comes before the call is not timed."""
    return lambda **sizes: prepared(_problem(**sizes))


def _random(*shape: int) -> Any:
    return np.random.default_rng(0).standard_normal(shape)


def _with_W(function: Callable[..., Any], size: float = 1.0) -> Callable[..., Call]:
    """A function of a problem and a random W."""
    return _on(lambda p: partial(function, p, size * _random(p.dx, p.dz)))


def _of_attention(function: Callable[..., Any]) -> Callable[..., Call]:
    def make(n: int, T: int) -> Call:
        a = np.random.default_rng(0).dirichlet(np.ones(T), size=n)
        return lambda: function(a)

    return make


def _factor(d: int) -> Call:
    return partial(export.factor, _random(d, d))


def _cvxpy(norm: str = "frobenius", soft: bool = False) -> Callable[..., Call]:
    """The same program as a user writes it, all rows in one expression; a batch one by one."""
    from attsvm.validation.matrix import Instance, Margin, constraints_of, model

    margin = Margin("hinge", "query") if soft else Margin()

    def make(n: int = 6, T: int = 8, d: int = 10, K: int | None = None, batch: int | None = None) -> Call:
        problem = _problem(n, T, d, K)
        members = np.arange(T) == problem.optimal_tokens().indices[..., None]
        one = Instance("att", problem.X, problem.Z, np.ones_like(members) if K else None, members, 1.0)
        rows = constraints_of(one)

        def call() -> None:
            for _ in range(batch or 1):
                model(one, norm, margin, rows)[0].solve(solver="CLARABEL")

        return call

    return make


def _torch_training(steps: int) -> Callable[..., Call]:
    """Normalized descent by autograd, as one writes it."""

    def make(n: int = 3, T: int = 4, d: int = 6, batch: int | None = None) -> Call:
        import torch

        problem = _problem(n, T, d, batch=batch or 1)
        X, Z, Y, v = (torch.tensor(np.array(part)) for part in (problem.X, problem.Z, problem.Y, problem.head.v))

        def call() -> Any:
            W = torch.zeros(len(X), d, d, dtype=X.dtype)
            for _ in range(steps):
                W.requires_grad_()
                s = torch.softmax(torch.einsum("bntd,bde,bne->bnt", X, W, Z), dim=-1)
                risk = torch.nn.functional.softplus(-Y * torch.einsum("bnt,bntd,bd->bn", s, X, v)).mean(1).sum()
                (slope,) = torch.autograd.grad(risk, W)
                W = (W - 0.1 * slope / slope.flatten(1).norm(dim=1)[:, None, None]).detach()
            return W

        return call

    return make


def _plain_attention(**sizes: int) -> Call:
    import torch

    problem = _problem(**sizes)
    X, Z = torch.tensor(np.array(problem.X)), torch.tensor(np.array(problem.Z))
    W = torch.zeros(problem.dx, problem.dz, dtype=X.dtype)
    pattern = "...ntd,de,...nke->...nkt" if problem.multi_query else "...ntd,de,...ne->...nt"
    return lambda: torch.softmax(torch.einsum(pattern, X, W, Z), dim=-1)


def _corpus(n: int, T: int, V: int, d: int) -> tuple[list[list[int]], Any]:
    return next_token.random_corpus(n, T, V, d, seed=0)


def _selector(n: int, T: int, d: int) -> Call:
    from attsvm.sklearn import AttentionSelector

    rng = np.random.default_rng(0)
    tasks = [(rng.normal(size=(T, d)), rng.normal(size=d)) for _ in range(n)]
    y = [int(np.argmax(x @ np.arange(d) * z[0])) for x, z in tasks]
    return lambda: AttentionSelector(C=10.0).fit(tasks, y)


def _edit(n: int, T: int, d: int) -> Call:
    rng = np.random.default_rng(0)
    head = attsvm.TrainedHead.from_weights(rng.normal(size=(4, d)), rng.normal(size=(4, d)))
    problem = attsvm.AttentionProblem(rng.normal(size=(n, T, d)), Z=rng.normal(size=(n, d)))
    wanted = np.full(n, -1)
    wanted[:2] = 2, 0
    return lambda: attsvm.edit(head, problem, wanted, of="K", keep=True, norm="nuclear")


def _probe(n: int, T: int, d: int) -> Call:
    import torch

    layer = torch.nn.TransformerEncoderLayer(d, 4, 2 * d, batch_first=True)
    model, hidden = torch.nn.TransformerEncoder(layer, 2, enable_nested_tensor=False), torch.randn(n, T, d)
    return lambda: attsvm.probe(model, hidden, svm=None)


def _of_corpus(function: Callable[..., Any], *, embedded: bool) -> Callable[..., Call]:
    def make(n: int, T: int, V: int, d: int) -> Call:
        sequences, table = _corpus(n, T, V, d)
        return (lambda: function(sequences, table)) if embedded else (lambda: function(sequences))

    return make


def _linear(n: int, V: int, d: int) -> Call:
    rng = np.random.default_rng(0)
    contexts, counts = rng.normal(size=(n, d)), (rng.random((n, V)) < 0.4).astype(float)
    counts[:, 0], counts[:, -1] = 1.0, 0.0
    return lambda: next_token.linear_svm(contexts, counts)


def _patch(n: int, d: int, queries: int) -> Call:
    """Queries near documents, those that find them as golden answers, the others as failures."""
    rng = np.random.default_rng(0)
    documents = rng.normal(size=(n, d))
    documents /= np.linalg.norm(documents, axis=1, keepdims=True)
    near = documents[np.arange(queries) % n] + 0.25 * rng.normal(size=(queries, d))
    found = (near @ documents.T).argmax(axis=1) == np.arange(queries) % n
    wrong, right = ([(q, q % n) for q in np.flatnonzero(part)] for part in (~found, found))
    return lambda: attsvm.patch(near, documents, wrong, right)


def _capture(n: int, T: int, d: int) -> Call:
    import torch

    model = torch.nn.MultiheadAttention(d, 2, batch_first=True, dtype=torch.float64)
    hidden = torch.randn(n, T, d, dtype=torch.float64)
    return lambda: attsvm.capture(model, hidden, layer=0, head=1)


def _of_solution(call: Callable[[Any], Any], norm: str = "frobenius") -> Callable[..., Call]:
    def make(**sizes: int) -> Call:
        solution = attsvm.att_svm(_problem(**sizes), norm=norm)
        return lambda: call(solution)

    return make


def _pulled(solution: Any) -> Any:
    return solution.derivative().vjp(np.ones(solution.W.shape))


def _certificate(n: int, T: int, d: int) -> Call:
    certificate = attsvm.att_svm(_problem(n, T, d)).certificate

    def call() -> None:
        with tempfile.TemporaryDirectory() as folder:
            certificate.save(Path(folder) / "proof.json")

    return call


def _of_tensors(name: str) -> Callable[..., Call]:
    """The value and its gradient."""

    def make(**sizes: int) -> Call:
        import torch

        from attsvm import torch as tensors

        problem = _problem(**sizes)
        X, Z = (torch.tensor(np.array(part), requires_grad=True) for part in (problem.X, problem.Z))
        tokens = torch.tensor(problem.optimal_tokens().indices)
        return lambda: getattr(tensors, name)(X, Z, tokens).sum().backward()

    return make


def _written(name: str, file: str) -> Callable[..., Call]:
    def make(d: int) -> Call:
        W = _random(d, d)

        def call() -> None:
            with tempfile.TemporaryDirectory() as folder:
                getattr(export, name)(W, Path(folder) / file)

        return call

    return make


def _conditioning(name: str) -> Callable[..., Call]:
    def make(n: int, T: int, d: int) -> Call:
        from attsvm.dynamics import conditioning

        teacher = conditioning.student_teacher(N=n, n=T, d=d, sigma_p=0.5, seed=0)
        if name == "descend":
            p0 = teacher.student(seed=1)[0]
            return lambda: conditioning.descend(teacher.problem, p0, steps=200)
        return lambda: getattr(conditioning, name)(teacher.problem, teacher.p_star)

    return make


def _flow(name: str) -> Callable[..., Call]:
    def make(T: int) -> Call:
        from attsvm.dynamics import polarization

        u0 = np.linspace(1.0, -1.0, T)
        if name == "full_flow":
            loss = polarization.SquareLoss([3.0, 0.0])
            return lambda: polarization.full_flow(np.zeros((2, T)), u0, loss, t_end=1e6)
        if name == "tied_flow":
            return lambda: polarization.tied_flow(np.eye(T), 1 + 0.1 * u0, np.eye(T)[0], t_end=1e4)
        return lambda: getattr(polarization, name)(u0)

    return make


def _propagation(name: str) -> Callable[..., Call]:
    def make(T: int, d: int) -> Call:
        from attsvm.dynamics import localization

        W = 0.5 * np.eye(d)
        return lambda: getattr(localization, name)(W, T)

    return make


def _reduced(n: int, T: int, K: int) -> Call:
    import torch

    from attsvm.dynamics import specialization as spe

    g = torch.Generator().manual_seed(0)
    samples = spe.draw_samples(spe.flipping_spike(2.0, 2.0), L=T, H=K, n=n, generator=g)
    point = spe.initial_order_parameters(K, 2, generator=g)
    return lambda: spe.reduced_gradient(point, samples, "softmax")


def _plain_reduced(n: int, T: int, K: int) -> Call:
    import torch

    from attsvm.dynamics import specialization as spe

    g = torch.Generator().manual_seed(0)
    samples = spe.draw_samples(spe.flipping_spike(2.0, 2.0), L=T, H=K, n=n, generator=g).relevant_first()
    point = spe.initial_order_parameters(K, 2, generator=g)
    aim = torch.eye(T).double()[0]

    def call() -> Any:
        P = torch.cat([point.m, point.r], dim=1).requires_grad_()  # type: ignore[list-item]
        A = [torch.softmax(torch.einsum("hk,kln->nhl", P, block[1:]), dim=-1).mean(1) for block in samples.blocks]
        return torch.autograd.grad(((aim - torch.cat(A)) ** 2).sum(1).mean(), P)

    return call


_SIX = {"n": 6, "T": 8, "d": 10}
_SOLVED = {"n": 3, "T": 4, "d": 12, "batch": 10}
_THREE = {"n": 3, "T": 4, "d": 6}
_CORPUS = {"n": 4, "T": 5, "V": 7, "d": 8}


def _plain_spectrum(n: int, T: int) -> Call:
    a = np.random.default_rng(0).dirichlet(np.ones(T), size=n)
    return lambda: np.linalg.eigvalsh(np.einsum("ni,ij->nij", a, np.eye(T)) - a[:, :, None] * a[:, None])


_ALL_SELECTIONS = (
    "there are T^n selections, and to list all is to decide each; top=, limit=, time_limit= or mode='heuristic'"
)
_BEST_SELECTIONS = "a proof that no other of T^n selections is better; time_limit= returns what is proved by then"
_NODES = "a node for each of T^n selections, refused beyond limit="
_ENTRIES_OF_W = "W has d^2 entries, each with its own bound or power in every step"
_WIDE_LIST = "every selection has its own W of d^2 entries"
_DECOMPOSED = "a singular value decomposition, d^3"
_SECULAR = "eigenvalues to 1e-10 of themselves however small, which eigvalsh does not give"

GROWN: dict[str, Grown] = {
    "att_svm": Grown(_SIX | {"batch": 10}, _svm(attsvm.att_svm), _cvxpy()),
    "att_svm, nuclear": Grown(_SIX | {"batch": 10}, _svm(attsvm.att_svm, norm="nuclear"), _cvxpy("nuclear")),
    "att_svm, spectral": Grown(_SIX | {"batch": 10}, _svm(attsvm.att_svm, norm="spectral"), _cvxpy("spectral")),
    "att_svm, l1": Grown(
        _SIX | {"batch": 10}, _svm(attsvm.att_svm, norm="l1"), _cvxpy("l1"), reasons={"d": _ENTRIES_OF_W}
    ),
    "att_svm, linf": Grown(
        _SIX | {"batch": 10}, _svm(attsvm.att_svm, norm="linf"), _cvxpy("linf"), reasons={"d": _ENTRIES_OF_W}
    ),
    "att_svm, l3": Grown(
        _SIX | {"batch": 10}, _svm(attsvm.att_svm, norm="l3"), _cvxpy("l3"), reasons={"d": _ENTRIES_OF_W}
    ),
    "att_svm, soft": Grown(_SIX | {"batch": 10}, _svm(attsvm.att_svm, C=1.0), _cvxpy(soft=True)),
    "att_svm, soft nuclear": Grown(
        _SIX | {"batch": 10}, _svm(attsvm.att_svm, C=1.0, norm="nuclear"), _cvxpy("nuclear", soft=True)
    ),
    "satt_svm": Grown({"n": 3, "T": 4, "d": 6, "K": 4}, _svm(attsvm.satt_svm), _cvxpy()),
    "satt_svm, nuclear": Grown(
        {"n": 3, "T": 4, "d": 6, "K": 4}, _svm(attsvm.satt_svm, norm="nuclear"), _cvxpy("nuclear")
    ),
    "gen_svm": Grown(_SIX, _on(lambda p: partial(attsvm.gen_svm, p, p.optimal_tokens())), _cvxpy()),
    "verify": Grown({"n": 3, "T": 4, "d": 5}, _with_W(attsvm.verify)),
    "soft_path": Grown({"n": 6, "T": 6, "d": 3}, _svm(attsvm.soft_path, Cs=[0.01, 0.1, 1.0])),
    "cvxpy_model": Grown(
        {"n": 3, "T": 4, "d": 5}, _on(lambda p: lambda: attsvm.cvxpy_model(p).problem.get_problem_data("CLARABEL"))
    ),
    "solution.Solution.sensitivity": Grown(_SOLVED, _of_solution(lambda solution: solution.sensitivity())),
    "solution.Solution.sensitivity, l1": Grown(_SOLVED, _of_solution(lambda solution: solution.sensitivity(), "l1")),
    "solution.Solution.derivative": Grown(_SOLVED, _of_solution(_pulled)),
    "solution.Solution.derivative, nuclear": Grown(_SOLVED, _of_solution(_pulled, "nuclear")),
    "solvers.Certificate.save": Grown({"n": 3, "T": 4, "d": 5}, _certificate),
    "torch.margin": Grown(_SOLVED, _of_tensors("margin")),
    "torch.objective": Grown(_SOLVED, _of_tensors("objective")),
    "torch.att_svm": Grown(_SOLVED, _of_tensors("att_svm")),
    "patch": Grown(
        {"n": 300, "d": 16, "queries": 40},
        _patch,
        reasons={
            "queries": "ten times the failures and golden answers in d^2 entries; all that bind are solved together"
        },
    ),
    "capture": Grown({"n": 3, "T": 5, "d": 8}, _capture),
    "edit": Grown({"n": 6, "T": 5, "d": 10}, _edit),
    "sklearn.AttentionSelector": Grown({"n": 20, "T": 4, "d": 6}, _selector, _cvxpy(soft=True)),
    "joint.joint_svm": Grown({"n": 6, "T": 5, "d": 4}, _svm(attsvm.joint.joint_svm, ratio=1.0)),
    "joint.consistent_selection": Grown({"n": 4, "T": 5, "d": 8}, _svm(joint.consistent_selection)),
    "is_locally_optimal": Grown({"n": 3, "T": 4, "d": 5}, _svm(attsvm.is_locally_optimal)),
    "separating_cone": Grown({"n": 3, "T": 4, "d": 5}, _svm(attsvm.separating_cone)),
    "locally_optimal_selections": Grown(
        {"n": 5, "T": 5, "d": 10},
        _svm(attsvm.locally_optimal_selections),
        reasons={"n": _ALL_SELECTIONS, "T": _ALL_SELECTIONS, "d": _WIDE_LIST},
    ),
    "locally_optimal_selections, top": Grown(
        {"n": 5, "T": 5, "d": 10},
        _svm(attsvm.locally_optimal_selections, top=1),
        reasons={"n": _BEST_SELECTIONS, "T": _BEST_SELECTIONS, "d": _WIDE_LIST},
    ),
    "selection_graph": Grown(
        {"n": 3, "T": 4, "d": 4}, _svm(attsvm.selection_graph), reasons={"n": _NODES, "T": _NODES}
    ),
    "diagnose": Grown(
        {"n": 2, "T": 3, "d": 40},
        _svm(attsvm.diagnose),
        reasons={
            "T": "all T^2 selections of 2 (T - 1) rows are solved to decide D, T^4 at least; exact_limit= is the most"
        },
    ),
    "attraction": Grown({"n": 2, "T": 3, "d": 6}, _svm(attsvm.attraction, starts=20, steps=300)),
    "train": Grown(_THREE | {"batch": 10}, _svm(attsvm.train, steps=300), _torch_training(300)),
    "train, (K, Q)": Grown(_THREE | {"batch": 10}, _svm(attsvm.train, parameterization="KQ", steps=300)),
    "compare": Grown(_THREE, _on(lambda p: partial(attsvm.compare, attsvm.train(p, steps=50), attsvm.att_svm(p)))),
    "regularization_path": Grown({"n": 3, "T": 4, "d": 4}, _svm(attsvm.regularization_path, radii=[5.0, 80.0])),
    "joint.joint_path": Grown({"n": 3, "T": 4, "d": 5}, _svm(attsvm.joint.joint_path, radii=[10.0, 160.0], starts=2)),
    "decompose": Grown({"n": 2, "T": 4, "d": 6}, _with_W(attsvm.decompose, 5.0)),
    "smoothness_constant": Grown(_THREE, _svm(attsvm.smoothness_constant)),
    "probe": Grown({"n": 4, "T": 6, "d": 16}, _probe),
    "attention.probabilities": Grown(
        {"n": 30, "T": 40, "d": 50, "batch": 3},
        _with_W(attsvm.attention.probabilities),
        _plain_attention,
    ),
    "attention.risk": Grown(
        {"n": 30, "T": 40, "d": 50, "batch": 3},
        _with_W(attsvm.attention.risk),
        _plain_attention,
    ),
    "softmax.jacobian_spectrum": Grown(
        {"n": 20, "T": 30},
        _of_attention(softmax.jacobian_spectrum),
        _plain_spectrum,
        reasons={"n": _SECULAR, "T": _SECULAR},
    ),
    "softmax.condition_number": Grown({"n": 20, "T": 30}, _of_attention(softmax.condition_number), _plain_spectrum),
    "export.save_map": Grown({"d": 40}, _written("save_map", "map.npz")),
    "export.save_low_rank": Grown({"d": 40}, _written("save_low_rank", "rank.npz"), reasons={"d": _DECOMPOSED}),
    "export.save_factors": Grown(
        {"d": 40}, _written("save_factors", "factors.safetensors"), reasons={"d": _DECOMPOSED}
    ),
    "export.save_dense": Grown({"d": 40}, _written("save_dense", "dense")),
    "export.save_linear_adapter": Grown({"d": 40}, _written("save_linear_adapter", "adapter")),
    "export.factor": Grown({"d": 40}, _factor, reasons={"d": _DECOMPOSED}),
    "random_problem": Grown(_SIX | {"batch": 10}, lambda **sizes: lambda: _problem(**sizes)),
    "structured_problem": Grown(
        {"n": 2, "T": 8, "d": 24}, lambda n, T, d: lambda: attsvm.structured_problem(n, T, d, seed=0)
    ),
    "next_token.graph_svm": Grown(_CORPUS, _of_corpus(next_token.graph_svm, embedded=True)),
    "next_token.token_graphs": Grown(_CORPUS, _of_corpus(next_token.token_graphs, embedded=False)),
    "next_token.soft_composition": Grown(_CORPUS, _of_corpus(next_token.soft_composition, embedded=True)),
    "next_token.train": Grown(_CORPUS, _of_corpus(partial(next_token.train, steps=100), embedded=True)),
    "next_token.linear_svm": Grown({"n": 4, "V": 5, "d": 4}, _linear),
    "conditioning.descend": Grown({"n": 30, "T": 6, "d": 4}, _conditioning("descend")),
    "conditioning.curvature": Grown({"n": 30, "T": 5, "d": 4}, _conditioning("curvature")),
    "localization.signal_propagation": Grown({"T": 10, "d": 32}, _propagation("signal_propagation")),
    "localization.signal_moments": Grown({"T": 40, "d": 4}, _propagation("signal_moments")),
    "polarization.aligned_flow": Grown({"T": 4}, _flow("aligned_flow")),
    "polarization.gap_flow": Grown({"T": 3}, _flow("gap_flow")),
    "polarization.row_flow": Grown({"T": 3}, _flow("row_flow")),
    "polarization.full_flow": Grown({"T": 3}, _flow("full_flow")),
    "polarization.tied_flow": Grown({"T": 4}, _flow("tied_flow")),
    "specialization.reduced_gradient": Grown({"n": 2000, "T": 5, "K": 2}, _reduced, _plain_reduced),
}

Job = tuple[str, str, int, bool]  # name, size that grows, its factor, whether the plain way


def _sizes(job: Job) -> dict[str, int]:
    name, axis, factor, _ = job
    sizes = dict(GROWN[name].sizes)
    if "batch" in sizes and axis != "batch":
        del sizes["batch"]  # one problem
    return sizes | {axis: factor * GROWN[name].sizes[axis]}


def _child(jobs: list[Job], channel: Any) -> None:
    """Time jobs one after the other, each warmed up by one call at the sizes of the example."""
    warnings.simplefilter("ignore")
    seen: set[tuple[str, bool]] = set()
    for job in jobs:
        grown, plain = GROWN[job[0]], job[3]
        make: Any = grown.plain if plain else grown.make
        channel.put(("begun", job, 0.0, 0.0))
        try:
            if (job[0], plain) not in seen:
                make(**_sizes((job[0], job[1], 1, plain)))()
                seen.add((job[0], plain))
            call = make(**_sizes(job))
            channel.put(("begun", job, 0.0, 0.0))
            found = measure(lambda _, call=call: call(), lambda: None, repeats=5, budget=0.3)  # type: ignore[misc]
            channel.put(("done", job, found.seconds, found.memory))
        except Exception as error:
            channel.put((f"{type(error).__name__}: {error}", job, math.nan, math.nan))
    channel.put(("end", None, 0.0, 0.0))


def _next_message(channel: Any, process: BaseProcess, seconds: float) -> Any:
    """What the child says within so many seconds; None where it says nothing, or has ended."""
    deadline = time.monotonic() + seconds
    while (left := deadline - time.monotonic()) > 0:
        alive = process.is_alive()  # before the look: what it said last is not lost
        with suppress(queue.Empty):
            return channel.get(timeout=min(1.0, left))
        if not alive:
            break
    return None


def _ended(jobs: list[Job], current: Job, code: int | None, limit: float) -> Iterator[tuple[Job, float, float, str]]:
    """What is known of the calls of one size after its process ended or was late; ``jobs`` loses them."""
    late = [j for j in jobs if (j[0], j[1], j[3]) == (current[0], current[1], current[3])]
    jobs[:] = [j for j in jobs if j not in late]
    if code:
        yield from ((job, math.nan, math.nan, f"its process ended with exit code {code}") for job in late)
    else:
        yield current, math.inf, math.nan, f"more than {limit:g} s"


def _measured(jobs: list[Job], limit: float) -> Iterator[tuple[Job, float, float, str]]:
    """Seconds, bytes and a note of each job; a call beyond the limit ends the child, and larger ones are left out."""
    context, jobs = multiprocessing.get_context("spawn"), list(jobs)
    while jobs:
        channel = context.Queue()
        process = context.Process(target=_child, args=(list(jobs), channel), daemon=True)
        process.start()
        current, patience, begun = jobs[0], 60.0, False  # the first one loads modules
        while jobs:
            message = _next_message(channel, process, patience)
            if message is None:
                if not begun and process.exitcode:
                    raise RuntimeError(f"the process that times the calls did not start: exit code {process.exitcode}")
                yield from _ended(jobs, current, process.exitcode, limit)
                break
            what, job, seconds, memory = message
            begun, current, patience = True, job or current, 2 * limit  # repeats, on a machine with other work
            if what == "end":
                jobs = []
            elif what != "begun":
                yield job, seconds, memory, "" if what == "done" else what
                jobs.remove(job)
        process.kill()
        process.join()


def growth_all(seed: int, names: tuple[str, ...] = tuple(GROWN), limit: float = LIMIT) -> Numbers:
    """One line per function and size: seconds at the example and at ten times it, exponent, memory, the plain way.

    The exponent is that of the last step, from three to ten times the size: what is spent before the work begins hides
    growth at smaller sizes. Problems are the same whatever the seed.

    Parameters
    ----------
    seed : int
        Not used: growth differs little between draws, and what is compared with the documentation must not.
    names : tuple of str
        Entries of `GROWN`.
    limit : float
        Seconds of one call.

    Examples
    --------
    >>> found = growth_all(0, ("softmax.condition_number",))
    >>> list(found)
    ['softmax.condition_number, n', 'softmax.condition_number, T']
    """
    jobs = [
        (name, axis, factor, plain)
        for name in names
        for plain in ((False, True) if GROWN[name].plain is not None else (False,))
        for axis in GROWN[name].sizes
        for factor in ((1, FACTORS[-1]) if plain else FACTORS)
    ]
    taken = {job: (seconds, memory, note) for job, seconds, memory, note in _measured(jobs, limit)}
    lines: Numbers = {}
    for name in names:
        for axis in GROWN[name].sizes:
            lines[f"{name}, {axis}"] = _line({f: taken.get((name, axis, f, False)) for f in FACTORS},
                                             {f: taken.get((name, axis, f, True)) for f in FACTORS})  # fmt: skip
    return lines


Taken = Mapping[int, tuple[float, float, str] | None]


def _line(own: Taken, plain: Taken) -> dict[str, float]:
    first, middle, last = ((own[f] or (math.inf, math.nan, "")) for f in FACTORS)
    exponent = math.nan
    if math.isfinite(last[0]) and last[0] > _NOISE and middle[0] > 0:
        exponent = math.log(last[0] / middle[0]) / math.log(FACTORS[2] / FACTORS[1])
    found = {
        "seconds": first[0], "seconds at 10x": last[0], "exponent": exponent, "memory": last[1],
        "raised": float(bool(last[2]) and math.isnan(last[0])),
    }  # fmt: skip
    for label, factor in (("plain way", 1), ("plain way at 10x", FACTORS[-1])):
        if (other := plain[factor]) is not None:
            found[label] = other[0]
    return found


def marks(line: Mapping[str, float]) -> list[str]:
    """What stands out in a line: growth above the square, a call beyond the limit, slower than the plain way.

    Examples
    --------
    >>> marks({"seconds": 0.1, "seconds at 10x": 20.0, "exponent": 2.3, "raised": 0.0, "plain way": 0.05})
    ['exponent 2.3', '10x above 10 s', '2.0x slower than the plain way']
    """
    found = []
    if line.get("exponent", math.nan) > 2.0:
        found.append(f"exponent {line['exponent']:.1f}")
    if max(line["seconds"], line["seconds at 10x"]) > LIMIT:
        found.append("10x above 10 s")
    if line.get("raised"):
        found.append("10x refused")
    for own, other in (("seconds", "plain way"), ("seconds at 10x", "plain way at 10x")):
        ratio = line[own] / line.get(other, math.nan)
        if ratio >= 1.05 and math.isfinite(ratio):  # less is noise
            found.append(f"{ratio:.1f}x slower than the {other}")
    return found


def _shown(seconds: float) -> str:
    if math.isnan(seconds):
        return "-"
    if math.isinf(seconds):
        return f"> {LIMIT:g} s"
    return f"{seconds:.2g} s" if seconds >= 1 else f"{1e3 * seconds:.3g} ms"


def _marked(name: str, line: Mapping[str, float]) -> str:
    """What stands out, and why it stays."""
    stands = "; ".join(marks(line))
    if not stands:
        return ""
    function, _, axis = name.rpartition(", ")
    reason = GROWN[function].reasons.get(axis, "") if function in GROWN else ""
    return f"**{stands}**" + (f": {reason}" if reason else "")


def as_markdown(lines: Mapping[str, Mapping[str, float]]) -> str:
    """The lines as a table for the documentation, marked ones with what stands out.

    Examples
    --------
    >>> line = {"seconds": 0.001, "seconds at 10x": 0.01, "exponent": 1.1, "memory": 1048576.0, "raised": 0.0}
    >>> print(as_markdown({"train, n": line}).splitlines()[-1])
    | train, n | 1 ms | 10 ms | 1.1 | 1 MiB | - | - | |
    """
    rows = ["| function, size | example | 10x | exponent | memory at 10x | plain way | at 10x | marked |",
            "|---|--:|--:|--:|--:|--:|--:|---|"]  # fmt: skip
    for name, line in lines.items():
        exponent = "-" if math.isnan(line["exponent"]) else f"{line['exponent']:.1f}"
        memory = "-" if math.isnan(line["memory"]) else f"{line['memory'] / 2**20:.0f} MiB"
        times = [
            _shown(line.get(key, math.nan)) for key in ("seconds", "seconds at 10x", "plain way", "plain way at 10x")
        ]
        cells = (name, times[0], times[1], exponent, memory, times[2], times[3], _marked(name, line))
        rows.append("| " + " | ".join(cells).rstrip() + " |")
    return "\n".join(rows)
