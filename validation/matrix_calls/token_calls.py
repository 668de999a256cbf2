"""Cases of next-token prediction: graphs by Floyd and Warshall, all pairs of tokens as constraints, autograd."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import numpy as np

import attsvm
from attsvm import next_token
from attsvm.solvers.arrays import FloatArray
from attsvm.validation.matrix import EXPRESSIONS, VALUES, Instance, Margin, faults_of, reference
from attsvm.validation.matrix_calls.call_cases import GIVEN, Call, case, close
from attsvm.validation.matrix_calls.svm_calls import answer_of, iterations_within


def _corpus(call: Call, labels: Any = "random") -> tuple[list[list[int]], FloatArray]:
    n, T, V, d = call.pick((2, 3, 4, 4), (4, 4, 5, 5), (6, 5, 6, 6))
    return next_token.random_corpus(n, T, V, d, labels=labels, seed=call.seed)


def _reach(sequences: list[list[int]], labels: list[int] | None = None) -> dict[int, set[tuple[int, int]]]:
    """Which token reaches which in the graph of each last token, by Floyd and Warshall."""
    edges: dict[int, set[tuple[int, int]]] = {}
    for i, (*context, following) in enumerate(sequences):
        label = following if labels is None else labels[i]
        edges.setdefault(context[-1], set()).update((label, token) for token in context if token != label)
    for known in edges.values():
        tokens = {token for edge in known for token in edge}
        for k in tokens:
            known |= {(i, j) for i in tokens for j in tokens if (i, k) in known and (k, j) in known}
    return edges


def _graph_reference(
    sequences: list[list[int]], E: FloatArray, norm: str, labels: list[int] | None = None
) -> float | None:
    """The least norm with all pairs of tokens as constraints, by cvxpy; None where there is no W."""
    import cvxpy as cp

    W = cp.Variable((E.shape[1], E.shape[1]))
    held = []
    for query, known in _reach(sequences, labels).items():
        for i, j in known:
            if i != j:
                value = (E[i] - E[j]) @ W @ E[query]
                held.append(value == 0 if (j, i) in known else value >= 1)
    program = cp.Problem(cp.Minimize(EXPRESSIONS[norm](cp, W)), held)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # "may be inaccurate": then the other solver decides
        with suppress(cp.SolverError):
            program.solve(solver="CLARABEL")
        if program.status in (None, "optimal_inaccurate"):
            program.solve(solver="SCS", eps=1e-9, max_iters=100_000)
    return VALUES[norm](np.asarray(W.value)) if program.status in ("optimal", "optimal_inaccurate") else None


def _judge_graph(call: Call, found: Any, wanted: float | None) -> Iterator[str]:
    yield from iterations_within(call, found)
    if wanted is None:
        if str(found.status) != "infeasible":
            yield f"no W exists, but the status is {found.status}"
    elif str(found.status) != "optimal":
        yield f"status {found.status}"
    else:
        yield from close("norm", found.norm, wanted, 1e-5)


@case("attsvm.next_token.graph_svm", work=120_000)
def _graph_svm(call: Call) -> Iterator[str]:
    sequences, E = _corpus(call)
    labels = [sequence[0] for sequence in sequences] if call.given("selected") else None
    found = call.run(next_token.graph_svm, sequences, E, selected=labels, **call.options("norm", "solver"))
    yield from _judge_graph(call, found, _graph_reference(sequences, E, call["norm"], labels))


@case("attsvm.next_token.graph_svms", work=200_000)
def _graph_svms(call: Call) -> Iterator[str]:
    n, T, V, d = call.pick((2, 3, 4, 4), (4, 4, 5, 5), (6, 5, 6, 6))
    made = [next_token.random_corpus(n, T, V, d, seed=call.seed + k) for k in range(3)]
    found = call.run(
        next_token.graph_svms, [s for s, _ in made], [E for _, E in made], **call.options("norm", "solver")
    )
    for one, (sequences, E) in zip(found, made, strict=True):
        yield from _judge_graph(call, one, _graph_reference(sequences, E, call["norm"]))


@case("attsvm.next_token.token_graphs")
def _token_graphs(call: Call) -> Iterator[str]:
    sequences, _ = _corpus(call)
    labels = [sequence[0] for sequence in sequences] if call.given("selected") else None
    found = call.run(next_token.token_graphs, sequences, labels)
    for query, known in _reach(sequences, labels).items():
        for part in found.components(query):
            if any((i, j) not in known for i in part for j in part if i != j):
                yield f"{part} is no component of the graph of {query}"
        whole = [set(part) for part in found.components(query)]
        for i, j in known:
            if (j, i) in known and i != j and not any({i, j} <= part for part in whole):
                yield f"{i} and {j} belong to one component of the graph of {query}"


@case("attsvm.next_token.read_sequences", words={"kind": ("lists", "arrays")})
def _read_sequences(call: Call) -> Iterator[str]:
    sequences, _ = _corpus(call)
    labels = [sequence[1] for sequence in sequences] if call.given("selected") else None
    given: Any = [np.array(s) for s in sequences] if call["kind"] == "arrays" else sequences
    found = call.run(next_token.read_sequences, given, labels)
    rows = [(i, t, s[:-1].count(t)) for i, s in enumerate(sequences) for t in sorted(set(s[:-1]))]
    yield from close("tokens", np.stack([found.owner, found.token, found.count], axis=1), rows)
    yield from close("labels", found.label, labels or [s[-1] for s in sequences])
    yield from close("labelled", found.token[found.labelled], found.label)


@case("attsvm.next_token.read_embeddings")
def _read_embeddings(call: Call) -> Iterator[str]:
    sequences, E = _corpus(call)
    found = call.run(next_token.read_embeddings, E.tolist(), next_token.read_sequences(sequences))
    yield from close("table", found, E, 0.0)


@case(
    "attsvm.next_token.random_corpus", words={"wide": (False, True)},
    refused=lambda row: not row["wide"] and row["embeddings"] != "sphere",
)  # fmt: skip
def _random_corpus(call: Call) -> Iterator[str]:
    n, T, V = call.pick((1, 2, 3), (4, 5, 6), (20, 7, 9))
    d = V + 1 if call["wide"] else V - 1
    sequences, E = call.run(
        next_token.random_corpus, n, T, V, d, seed=call.seed, **call.options("embeddings", "labels")
    )
    gram = E @ E.T
    if call["embeddings"] == "sphere":
        yield from close("norms", np.diag(gram), np.ones(V))
    else:
        inner = 0.5 if call["embeddings"] == "equicorrelated" else 0.0
        yield from close("products", gram, np.full((V, V), inner) + (1 - inner) * np.eye(V))
    if any(len(s) != T + 1 or s[-1] not in s[:-1] for s in sequences):
        yield "a sequence has another length, or a label outside its context"
    if call["labels"] == "realizable" and any((j, i) in k for k in _reach(sequences).values() for i, j in k if i != j):
        yield "realizable labels contradict each other"


def _shares(sequences: list[list[int]], E: FloatArray, W: FloatArray) -> list[dict[int, float]]:
    found = []
    for *context, _ in sequences:
        logits = {t: float(E[t] @ W @ E[context[-1]]) for t in set(context)}
        total = sum(np.exp(logits[t]) for t in context)
        found.append({t: context.count(t) * np.exp(h) / total for t, h in sorted(logits.items())})
    return found


@case("attsvm.next_token.attention_shares")
def _attention_shares(call: Call) -> Iterator[str]:
    sequences, E = _corpus(call)
    W = call.rng.standard_normal((E.shape[1],) * 2)
    found = call.run(next_token.attention_shares, next_token.token_graphs(sequences), E, W)
    yield from close("shares", found, [x for part in _shares(sequences, E, W) for x in part.values()], 1e-10)


@case("attsvm.next_token.soft_composition")
def _soft_composition(call: Call) -> Iterator[str]:
    """The gradient of the cross-entropy over the label's component vanishes in the cyclic subspace."""
    sequences, E = _corpus(call)
    found = call.run(next_token.soft_composition, sequences, E)
    reach = _reach(sequences)
    slope = np.zeros_like(found.W)
    for *context, label in sequences:
        known = reach.get(context[-1], set())
        part = [t for t in context if t == label or ((t, label) in known and (label, t) in known)]
        logits = np.array([E[t] @ found.W @ E[context[-1]] for t in part])
        s = np.exp(logits - logits.max())
        s /= s.sum()
        slope += np.outer(s @ E[part] - E[label], E[context[-1]]) / len(sequences)
    if np.linalg.norm(slope) > 1e-7:
        yield f"the gradient has norm {np.linalg.norm(slope):.1e}"
    if found.steps > 50:
        yield f"took {found.steps} Newton steps"


@case("attsvm.next_token.decompose", work=150_000)
def _next_decompose(call: Call) -> Iterator[str]:
    sequences, E = _corpus(call)
    W = 3.0 * call.rng.standard_normal((E.shape[1],) * 2)
    parts = call.run(next_token.decompose, sequences, E, W, norm=call["norm"])
    yield from close("sum", parts.finite + parts.rest, W, 1e-12)
    yield from close("orthogonality", (parts.finite * parts.rest).sum(), 0.0, 1e-9)
    basis = [
        np.outer(E[i] - E[j], E[q]).ravel()
        for q, known in _reach(sequences).items()
        for i, j in known
        if i != j and (j, i) in known
    ]
    if basis:
        A = np.array(basis).T
        yield from close("finite part", parts.finite.ravel(), A @ np.linalg.lstsq(A, W.ravel(), rcond=None)[0], 1e-8)
    held = [
        sum(x for t, x in share.items() if t == s[-1] or _tied(sequences, s, t))
        for s, share in zip(sequences, _shares(sequences, E, W), strict=True)
    ]
    if parts.recovered != bool(min(held) > 0.5):
        yield f"recovered is {parts.recovered}, shares are {np.round(held, 3)}"


def _tied(sequences: list[list[int]], sequence: list[int], token: int) -> bool:
    known = _reach(sequences).get(sequence[-2], set())
    return (token, sequence[-1]) in known and (sequence[-1], token) in known


def _linear(call: Call) -> tuple[FloatArray, FloatArray]:
    m, V, d = call.pick((2, 3, 3), (3, 4, 5), (5, 5, 6))
    counts = call.rng.integers(0, 4, (m, V)).astype(float)
    counts[:, 0] += 1
    counts[0, 1:] = 0  # something to separate, and in the next one some odds to match
    counts[1, 1] += 1
    return call.rng.standard_normal((m, d)), counts


@case("attsvm.next_token.linear_problem")
def _linear_problem(call: Call) -> Iterator[str]:
    contexts, counts = _linear(call)
    problem, p = call.run(next_token.linear_problem, contexts, counts)
    yield from close("probabilities", p, counts / counts.sum(axis=1, keepdims=True))
    W = call.rng.standard_normal((counts.shape[1], contexts.shape[1]))
    yield from close("logits", attsvm.attention.logits(problem, W), contexts @ W.T)


@case("attsvm.next_token.linear_svm", "attsvm.next_token.linear_finite_part")
def _linear_parts(call: Call) -> Iterator[str]:
    contexts, counts = _linear(call)
    m, V = counts.shape
    function: Any = next_token.linear_svm if call.name == "linear_svm" else next_token.linear_finite_part
    found = call.run(function, contexts, counts, norm=call["norm"])
    tokens, kind = np.broadcast_to(np.eye(V), (m, V, V)), "gen" if call.name == "linear_svm" else "finite"
    p = counts / counts.sum(axis=1, keepdims=True)
    one = Instance(kind, tokens, contexts, None, counts > 0, 1.0, probabilities=p if kind == "finite" else None)
    fault = faults_of(one, call["norm"], Margin(), answer_of(found), reference(one, call["norm"], Margin()))[1]
    yield from [fault] if fault else []


@case("attsvm.next_token.train", words={"device": (None, GIVEN)})
def _next_train(call: Call) -> Iterator[str]:
    """Acyclic data: normalized descent on the documented losses, three steps against autograd."""
    import torch

    n, T, V, d = call.pick((2, 3, 4, 4), (4, 4, 5, 5), (6, 5, 6, 6))
    made = [next_token.random_corpus(n, T, V, d, labels="realizable", seed=call.seed + k) for k in range(2)]
    data: Any = [s for s, _ in made] if call["batch"] else made[0][0]
    tables = np.stack([E for _, E in made]) if call["batch"] else made[0][1]
    options = call.options("loss", "batch", m=2, device="cpu")
    run = call.run(
        next_token.train, data, tables, call["parameterization"], steps=3, snapshots=[1, 2, 3], seed=4, init_scale=0.3,
        **options,
    )  # fmt: skip
    rng = np.random.default_rng(4)
    count, inner = (2 if call["batch"] else 1), (2 if call.given("m") else d)
    shapes = [(count, d, d)] if call["parameterization"] == "W" else [(count, d, inner)] * 2
    starts = [0.3 * rng.normal(size=shape) for shape in shapes]
    for b in range(count):
        parts = [torch.tensor(start[b]) for start in starts]
        for k in range(4):
            W = parts[0] if len(parts) == 1 else parts[0] @ parts[1].T
            history = run.history[k, b] if call["batch"] else run.history[k]
            yield from close(f"W after {k} steps", history, W, 1e-8)
            parts = _next_step(parts, *made[b], call["loss"])


def _next_step(parts: list[Any], sequences: list[list[int]], E: FloatArray, loss: str) -> list[Any]:
    import torch

    own = [part.clone().requires_grad_() for part in parts]
    W = own[0] if len(own) == 1 else own[0] @ own[1].T
    table, total = torch.tensor(E), torch.zeros(()).double()
    for *context, label in sequences:
        s = torch.softmax(table[context] @ W @ table[context[-1]], dim=0)
        u = s[[k for k, t in enumerate(context) if t == label]].sum()
        total = total + {"cross_entropy": -u.log(), "squared": (1 - u) ** 2 / 2, "correlation": -u}[loss]
    slopes = torch.autograd.grad(total / len(sequences), own)
    size = torch.stack([g.square().sum() for g in slopes]).sum().sqrt()
    return [part - 0.1 * g / size for part, g in zip(parts, slopes, strict=True)]


@case("attsvm.next_token.match_and_copy")
def _match_and_copy(call: Call) -> Iterator[str]:
    n, T, d = call.pick((1, 2, 3), (3, 4, 5), (5, 5, 6))
    found = call.run(next_token.match_and_copy, n, T, d, seed=call.seed, **call.options(value_dim=2))
    if found.values.shape != (n, T, 2 if call.given("value_dim") else d):
        yield f"values have shape {found.values.shape}"
    yield from close("queries", found.problem.Z, found.problem.X[np.arange(n), found.selection], 0.0)


@case("attsvm.next_token.train_copy", work=400_000)
def _train_copy(call: Call) -> Iterator[str]:
    """Two steps by autograd on the squared loss as it is written."""
    import torch

    n, T, d = call.pick((1, 3, 3), (3, 4, 4), (4, 5, 5))
    task = next_token.match_and_copy(n, T, d, seed=call.seed)
    found = call.run(next_token.train_copy, task, steps=2, lr=0.2, seed=call.seed, **call.options("normalized"))
    X, Z, values = (torch.tensor(part) for part in (task.problem.X, task.problem.Z, task.values))
    W = torch.tensor(0.01 * np.random.default_rng(call.seed).standard_normal((d, d)))
    for _ in range(2):
        W.requires_grad_(True)
        s = torch.softmax(torch.einsum("ntd,de,ne->nt", X, W, Z), dim=1)
        aim = values[torch.arange(n), torch.tensor(task.selection)]
        loss = 0.5 * (torch.einsum("nt,ntv->nv", s, values) - aim).square().sum()
        (slope,) = torch.autograd.grad(loss, W)
        W = (W - 0.2 * (slope / slope.norm() if call["normalized"] else slope)).detach()
    yield from close("W", found.W, W, 1e-9)


@case("attsvm.next_token.two_stage", work=400_000)
def _two_stage(call: Call) -> Iterator[str]:
    """Both stages by autograd, and both predictions with all pairs as constraints."""
    import torch

    n, T, V, d = call.pick((2, 3, 4, 4), (4, 4, 5, 5), (6, 5, 6, 6))
    lines, E = next_token.random_corpus(n, T, V, d, labels="realizable", seed=call.seed)
    successors = np.random.default_rng(call.seed).permutation(V)
    sequences = [[*line[:-1], int(successors[line[-1]])] for line in lines]
    found = call.run(next_token.two_stage, sequences, E, successors, decoder_steps=3, steps=2, lr=0.2, seed=call.seed)
    wanted = _graph_reference(sequences, E, "frobenius", [line[-1] for line in lines])
    if wanted is not None:
        yield from close("norm of attention", found.graph.norm, wanted, 1e-5)
    rng = np.random.default_rng(call.seed)
    table = torch.tensor(E)
    D, W = (torch.tensor(0.01 * rng.standard_normal(shape)) for shape in ((V, d), (d, d)))

    def stepped(parameter: Any, loss_of: Any) -> Any:
        parameter.requires_grad_(True)
        (slope,) = torch.autograd.grad(loss_of(parameter), parameter)
        return (parameter - 0.2 * slope / slope.norm()).detach()

    def attended(w: Any) -> Any:
        loss = torch.zeros(()).double()
        for *context, following in sequences:
            x = table[context]
            loss = loss - torch.log_softmax(D @ (x.T @ torch.softmax(x @ w @ x[-1], dim=0)), dim=0)[following]
        return loss

    each = torch.arange(V)
    for _ in range(3):
        D = stepped(D, lambda m: -torch.log_softmax(table @ m.T, dim=1)[each, torch.tensor(successors)].sum())
    for _ in range(2):
        W = stepped(W, attended)
    yield from close("decoder", found.decoder, D, 1e-9)
    yield from close("W", found.W, W, 1e-9)
