"""Cases of problems, files, tasks, exports, probes, reports, sweeps, softmax and next-token prediction."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import numpy as np

import attsvm
from attsvm import export, softmax
from attsvm.editing import edit_file
from attsvm.probing import SvmBudget, heads_from_arrays
from attsvm.solvers.arrays import FloatArray
from attsvm.trained_head import TrainedHead, split_heads
from attsvm.validation.matrix_calls.call_cases import FORMS, GIVEN, Call, Row, case, close


# -- problems and files --------------------------------------------------------------------------------
def _random_refused(row: Row) -> bool:
    own = row["dz"] is not None or row["queries"] is not None
    return (row["kind"] != "cross" and own) or (row["causal"] and row["kind"] != "sequence")


@case("attsvm.random_problem", refused=_random_refused)
def _random_problem(call: Call) -> Iterator[str]:
    n, T, d = call.pick((1, 2, 2), (3, 4, 5), (6, 8, 10))
    options = call.options(
        "kind", "causal", "distribution", batch=3, min_score_gap=0.05, dz=d + 1, queries=2, seed=call.seed
    )
    problem = call.run(attsvm.random_problem, n, T, d, **options)
    lead = (3,) if call.given("batch") else ()
    K = {"sequence": (T,), "self": (), "cross": (2,) if call.given("queries") else ()}[call["kind"]]
    dz = d + 1 if call.given("dz") else d
    if problem.X.shape != (*lead, n, T, d) or problem.Z.shape != (*lead, n, *K, dz):
        yield f"shapes {problem.X.shape} and {problem.Z.shape}"
    if call["distribution"] == "sphere":
        yield from close("norms", np.linalg.norm(problem.X, axis=-1), np.ones((*lead, n, T)))
    if call["kind"] == "self" and not (problem.X[..., 0, :] == problem.Z).all():
        yield "the query is not the first token"
    if call["causal"] and (problem.allowed != np.tri(T, dtype=bool)).any():
        yield "the mask is not causal"
    if call.given("min_score_gap"):
        top = np.sort(problem.scores(), axis=-1)
        if not (top[..., -1] - top[..., -2] >= 0.05).all():
            yield "a score gap is too small"
    if call.given("seed"):
        again = attsvm.random_problem(n, T, d, **options)
        yield from close("second draw", again.X, problem.X, 0.0)


@case("attsvm.structured_problem", words={"dtype": ("float64", "float32")})
def _structured(call: Call) -> Iterator[str]:
    n, T, d = call.pick((1, 2, 4), (2, 6, 12), (3, 8, 20))
    options = call.options("causal", "bias", vocabulary=5, seed=call.seed) | {"dtype": np.dtype(call["dtype"])}
    problem, selection = call.run(attsvm.structured_problem, n, T, d, rank=2, **options)
    if problem.X.shape != (n, T, d + call["bias"]) or problem.X.dtype != call["dtype"]:
        yield f"tokens {problem.X.shape} of {problem.X.dtype}"
    yield from close("norms", np.linalg.norm(problem.X[..., :d], axis=-1), np.full((n, T), np.sqrt(d)), 1e-6)
    if not np.take_along_axis(problem.allowed, selection.indices[..., None], axis=-1).all():
        yield "a token is selected that its query does not see"
    found = attsvm.satt_svm(problem, selection, C=None)
    if str(found.status) not in ("optimal", "inaccurate"):
        yield f"no W separates the selection: {found.status}"


@case(
    "attsvm.save_problem",
    "attsvm.load_problem",
    forms=FORMS,
    words={"selection": (None, GIVEN), "masked": (False, True)},
)
def _files(call: Call) -> Iterator[str]:
    n, T, d = call.pick((1, 2, 2), (3, 4, 5), (6, 8, 10))
    problem = attsvm.random_problem(n, T, d, batch=call.batch, seed=call.seed)
    if call["masked"]:
        mask = np.ones(problem.X.shape[:-1], dtype=bool)
        mask[..., 0, -1] = T == 2
        problem = attsvm.AttentionProblem(problem.X, problem.Y, problem.Z, problem.head, mask)
    selection = np.zeros(problem.Y.shape, dtype=int) if call.given("selection") else None
    call.run(attsvm.save_problem, problem, call.folder / "p.npz", selection=selection)
    again = call.run(attsvm.load_problem, call.folder / "p.npz")
    for name in ("X", "Y", "Z"):
        yield from close(name, getattr(again, name), getattr(problem, name), 0.0)
    yield from close("scores", again.scores(), problem.scores(), 0.0)


# -- heads and exports ---------------------------------------------------------------------------------
@case("attsvm.trained_head.split_heads")
def _split_heads(call: Call) -> Iterator[str]:
    heads, d_head, d = call.pick((2, 1, 3), (4, 2, 5), (6, 3, 8))
    kv = heads // 2 if call.given("kv_heads") else heads
    W_q, W_k = call.rng.standard_normal((heads * d_head, d)), call.rng.standard_normal((kv * d_head, d))
    b_q, b_k = call.rng.standard_normal(heads * d_head), call.rng.standard_normal(kv * d_head)
    options = call.options(b_q=b_q, b_k=b_k, kv_heads=kv, scale=0.3)
    found = call.run(split_heads, W_q, W_k, heads=heads, **options)
    h = call.rng.standard_normal((4, d))
    q = h @ W_q.T + (b_q if call.given("b_q") else 0.0)
    k = h @ W_k.T + (b_k if call.given("b_k") else 0.0)
    scale = 0.3 if call.given("scale") else d_head**-0.5
    for i, head in enumerate(found):
        j = i * kv // heads
        wanted = scale * k[:, j * d_head : (j + 1) * d_head] @ q[:, i * d_head : (i + 1) * d_head].T
        states = head.extend(h)
        yield from close(f"logits of head {i}", states @ head.W @ states.T, wanted, 1e-10)


def _low_rank(call: Call) -> FloatArray:
    dx, dz, r = call.pick((2, 3, 1), (5, 4, 2), (9, 12, 4))
    return np.asarray(call.rng.standard_normal((dx, r)) @ call.rng.standard_normal((r, dz)))


def _truncated(W: FloatArray, rank: int | None) -> FloatArray:
    U, s, Vt = np.linalg.svd(W, full_matrices=False)
    return W if rank is None else np.asarray((U[:, :rank] * s[:rank]) @ Vt[:rank])


@case("attsvm.export.factor")
def _factor(call: Call) -> Iterator[str]:
    W = _low_rank(call)
    rank = 1 if call.given("rank") else None
    K, Q = call.run(export.factor, W, rank)
    yield from close("product", K.T @ Q, _truncated(W, rank), 1e-10)
    yield from close("balance", K @ K.T, Q @ Q.T, 1e-9)


@case("attsvm.export.save_factors")
def _save_factors(call: Call) -> Iterator[str]:
    from safetensors.numpy import load_file

    W = _low_rank(call)
    rank = 1 if call.given("rank") else None
    read = load_file(call.run(export.save_factors, W, call.folder / "w.safetensors", rank))
    yield from close("product", read["K"].T @ read["Q"], _truncated(W, rank), 1e-5)


@case("attsvm.export.to_onnx", work=300_000)
def _to_onnx(call: Call) -> Iterator[str]:
    import onnx
    from onnx.reference import ReferenceEvaluator

    W = _low_rank(call)
    rank = 1 if call.given("rank") else None
    model = onnx.load(call.run(export.to_onnx, W, call.folder / "w.onnx", rank))
    X = call.rng.standard_normal((2, 3, W.shape[0])).astype(np.float32)
    Z = call.rng.standard_normal((2, W.shape[1])).astype(np.float32)
    (found,) = ReferenceEvaluator(model).run(None, {"tokens": X, "queries": Z})
    yield from close("logits", found, np.einsum("ntd,de,ne->nt", X, _truncated(W, rank), Z), 1e-4)


def _exported(call: Call, square: bool) -> tuple[Any, FloatArray, FloatArray]:
    """What is exported in one of its kinds, and the maps of queries and documents."""
    d, e = call.pick((2, 2), (4, 3), (8, 6))
    W = call.rng.standard_normal((d, d if square else e))
    if call["kind"] == "array":
        return W, W, W.T
    if call["kind"] == "edit":
        problem = attsvm.AttentionProblem(
            call.rng.standard_normal((2, 3, len(W))), Z=call.rng.standard_normal((2, W.shape[1]))
        )
        edit = attsvm.edit(W, problem, [0, 1], C=1.0)
        return edit, edit.W, edit.W.T
    return SimpleNamespace(query_map=W, document_map=np.eye(len(W))), W, np.eye(len(W))


_KINDS = ("array", "edit", "maps")


@case("attsvm.export.embedding_maps", words={"kind": _KINDS})
def _embedding_maps(call: Call) -> Iterator[str]:
    source, query, _ = _exported(call, square=False)
    found = call.run(export.embedding_maps, source)
    yield from close("query map", found[0], query)
    if found[1] is not None:
        yield "documents have a map"


@case("attsvm.export.save_map", words={"kind": _KINDS, "suffix": (".npz", ".safetensors", ".onnx")}, work=300_000)
def _save_map(call: Call) -> Iterator[str]:
    from onnx.reference import ReferenceEvaluator
    from safetensors.numpy import load_file

    source, query, document = _exported(call, square=False)
    path = call.run(export.save_map, source, call.folder / f"map{call['suffix']}", **call.options("side", "dtype"))
    M = query if call["side"] == "query" else document
    given = call.rng.standard_normal((3, M.shape[1]))
    if call["suffix"] == ".onnx":
        session = ReferenceEvaluator(str(path))
        (found,) = session.run(None, {"embeddings": given.astype(call["dtype"] or np.float32)})
    else:
        found = given @ (np.load(path) if call["suffix"] == ".npz" else load_file(path))["M"].T
    yield from close("mapped", found, given @ M.T, 1e-5)


@case("attsvm.export.save_low_rank", words={"kind": _KINDS}, work=300_000)
def _save_low_rank(call: Call) -> Iterator[str]:
    source, query, document = _exported(call, square=True)
    M = query if call["side"] == "query" else document
    prior = call.rng.standard_normal(M.shape)
    options = call.options("side", "dtype", rank=1, prior=prior)
    file = np.load(call.run(export.save_low_rank, source, call.folder / "update.npz", **options))
    base = prior if call.given("prior") else np.eye(len(M))
    yield from close("update", file["B"] @ file["A"], _truncated(M - base, 1 if call.given("rank") else None), 1e-5)


@case("attsvm.export.save_dense", "attsvm.export.save_linear_adapter", words={"kind": _KINDS}, work=300_000)
def _save_layer(call: Call) -> Iterator[str]:
    import torch
    from safetensors.torch import load_file

    source, query, document = _exported(call, square=True)
    M = query if call["side"] == "query" else document
    dense = call.name == "save_dense"
    out = call.run(getattr(export, call.name), source, call.folder / "layer", side=call["side"])
    file = out / ("model.safetensors" if dense else "pytorch_model.bin")
    state = load_file(file) if dense else torch.load(file, weights_only=True)
    config = json.loads((out / "config.json").read_text())
    layer = torch.nn.Linear(config["in_features"], config["out_features"], bias=config["bias"])
    layer.load_state_dict({name.removeprefix("linear."): value for name, value in state.items()})
    given = call.rng.standard_normal((3, len(M)))
    yield from close("layer", layer(torch.tensor(given, dtype=torch.float32)).detach().numpy(), given @ M.T, 1e-5)


@case("attsvm.export.save_sentence_transformer", words={"kind": ("array", "maps", "folder")}, work=3_000_000)
def _save_sentence_transformer(call: Call) -> Iterator[str]:
    """A bag of words as the encoder: its embeddings are counts."""
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import BoW

    words = ["cat", "dog", "mat", "house"][: call.pick(2, 3, 4)]
    encoder: Any = SentenceTransformer(modules=[BoW(words)], device="cpu")
    maps = [call.rng.standard_normal((2, len(words))) for _ in range(2)]
    source: Any = SimpleNamespace(query_map=maps[0], document_map=maps[1])
    if call["kind"] == "array":
        source = call.rng.standard_normal((len(words), len(words)))
        maps = [source, np.eye(len(words))]
    elif call["kind"] == "folder":
        encoder.save(str(call.folder / "encoder"), create_model_card=False)
        encoder = call.folder / "encoder"
    out = call.run(export.save_sentence_transformer, source, encoder, call.folder / "mapped")
    again = SentenceTransformer(str(out), device="cpu")
    counts = np.eye(len(words))
    yield from close("queries", again.encode_query(words), counts @ maps[0].T, 1e-5)
    yield from close("documents", again.encode_document(words), counts @ maps[1].T, 1e-5)


@case("attsvm.capture", words={"maps": ("biased", "plain")}, work=300_000)
def _capture(call: Call) -> Iterator[str]:
    """The W and the tokens of one head of torch's own attention, against the weights that it returns."""
    import torch

    n, T, heads, d_head = call.pick((1, 2, 1, 2), (2, 4, 2, 3), (3, 6, 4, 4))
    d = heads * d_head
    torch.manual_seed(call.seed)
    biased = call["maps"] == "biased"
    model = torch.nn.MultiheadAttention(d, heads, bias=biased, batch_first=True, dtype=torch.float64)
    x = torch.tensor(call.rng.standard_normal((n, T, d)))
    number = int(call.rng.integers(heads))
    head, problem = call.run(
        attsvm.capture, model, x, layer=0, head=number, **call.options("of", tokenizer=None)
    )  # fmt: skip
    own = model(x, x, x, average_attn_weights=False)[1][:, number].detach().numpy()
    found = attsvm.attention.probabilities(problem, head.W)
    yield from close("attention", found.reshape(own.shape), own, 1e-10)


@case("attsvm.export.to_torch")
def _to_torch(call: Call) -> Iterator[str]:
    import torch

    W = _low_rank(call)
    rank = 1 if call.given("rank") else None
    module = call.run(export.to_torch, W, rank, dtype=torch.float64 if call.given("dtype") else None)
    dtype = next(module.parameters()).dtype
    X, Z = call.rng.standard_normal((2, 3, W.shape[0])), call.rng.standard_normal((2, W.shape[1]))
    found = module(torch.tensor(X, dtype=dtype), torch.tensor(Z, dtype=dtype)).detach()
    yield from close("logits", found, np.einsum("ntd,de,ne->nt", X, _truncated(W, rank), Z), 1e-4)


@case(
    "attsvm.editing.edit_file",
    skip={"layer": "a name"},
    words={"format": ("safetensors", "pt"), "there": (False, True)},
)
def _edit_file(call: Call) -> Iterator[str]:
    import torch
    from safetensors.torch import load_file, save_file

    d, d_head = call.pick((3, 2), (5, 2), (8, 3))
    W_q, W_k = (torch.tensor(call.rng.standard_normal((2 * d_head, d))) for _ in range(2))
    head = TrainedHead.from_weights(W_q[d_head:].numpy(), W_k[d_head:].numpy())
    X, Z = call.rng.standard_normal((1, 3, d)), call.rng.standard_normal((1, d))
    edit = attsvm.edit(head, attsvm.AttentionProblem(X, Z=Z), [int(np.argmin(X[0] @ head.W @ Z[0]))], of="K")
    source, target = (call.folder / f"{name}.{call['format']}" for name in ("old", "new"))
    state = {"key.weight": W_k, "query.weight": W_q}
    if call["format"] == "pt":
        torch.save(state, source)
    else:
        save_file(state, source)
    if call["there"]:
        target.write_bytes(b"")
    try:
        call.run(edit_file, edit, source, target, layer="key", head=1, **call.options("check", "overwrite"))
    except FileExistsError:
        if call["overwrite"] or not call["there"]:
            yield "FileExistsError without a file in the way"
        return
    if call["there"] and not call["overwrite"]:
        yield "a file was replaced that should not be"
    new = torch.load(target, weights_only=True) if call["format"] == "pt" else load_file(target)
    changed = W_k.clone()
    changed[d_head:] += torch.tensor(edit.change)
    yield from close("keys", new["key.weight"], changed, 1e-12)
    yield from close("queries", new["query.weight"], W_q, 0.0)


# -- probes --------------------------------------------------------------------------------------------
@case(
    "attsvm.probing.heads_from_arrays", skip={"name": "a title"},
    refused=lambda row: row["causal"] and row["queries"] is not None,
)  # fmt: skip
def _from_arrays(call: Call) -> Iterator[str]:
    n, T, d, H = call.pick((1, 2, 3, 1), (2, 4, 5, 2), (3, 6, 8, 3))
    hidden = call.rng.standard_normal((n, T, d))
    heads = [TrainedHead.from_weights(*call.rng.standard_normal((2, 2, d))) for _ in range(H)]
    asked = call.rng.standard_normal((n, T + 1, d)) if call.given("queries") else hidden
    mask = np.ones((n, asked.shape[1], T), dtype=bool)
    mask[..., -1] = False
    offset = call.rng.standard_normal((n, H, asked.shape[1], T))
    values = call.rng.standard_normal((n, H, T, 2))
    options = call.options("causal", queries=asked, values=values, offset=offset, mask=mask)
    layer = call.run(heads_from_arrays, hidden, heads, **options)
    allowed = mask if call.given("mask") else np.ones_like(mask)
    if call["causal"]:
        allowed = allowed & np.tri(T, dtype=bool)
    for h, head in enumerate(heads):
        values = np.einsum("nkd,de,nte->nkt", asked, head.W.T, hidden)
        values = values + (offset[:, h] if call.given("offset") else 0.0)
        yield from close("selected", layer[h].selected, np.where(allowed, values, -np.inf).argmax(axis=-1))


@case(
    "attsvm.probe", work=4_000_000,
    skip={"tokenizer": "texts: tests/probing", "workers": "processes: tests/sweeps", "executor": "tests/sweeps"},
)  # fmt: skip
def _probe(call: Call) -> Iterator[str]:
    """A layer of arrays, or a torch module with the same weights: one row per head, attention as recomputed by hand."""
    import torch

    n, T, d, H = call.pick((4, 4, 4, 2), (5, 5, 8, 2), (6, 6, 12, 3))
    torch.manual_seed(call.seed % 2**31)
    module = torch.nn.MultiheadAttention(d, H, batch_first=True, dtype=torch.float64)
    hidden = torch.randn(n, T, d, dtype=torch.float64)
    size = SvmBudget(sequences=2, held_out=2, queries=2, nuclear=False, rounds=4) if call.given("svm") else None
    options = call.options(name="tiny", progress=lambda *parts: None) | {"svm": size, "removal": 0, "baselines": 2}
    W_q, W_k, _ = module.in_proj_weight.detach().numpy().reshape(3, d, d)
    heads = split_heads(W_q, W_k, heads=H)
    if call.given("inputs"):
        table = call.run(attsvm.probe, _Layer(module), hidden, **options)
    else:
        table = call.run(attsvm.probe, heads_from_arrays(hidden.numpy(), heads), **options)
    if len(table) != H:
        yield f"{len(table)} rows for {H} heads"
    for record, head in zip(table.to_records(), heads, strict=True):
        logits = np.einsum("nkd,de,nte->nkt", hidden.numpy(), head.W.T, hidden.numpy())
        s = np.exp(logits - logits.max(axis=-1, keepdims=True))
        s /= s.sum(axis=-1, keepdims=True)
        entropy = float(-(s * np.log(s)).sum(axis=-1).mean())
        yield from close("entropy", record["entropy"], entropy, 1e-6)


class _Layer:
    """Makes a module of a layer without importing torch for every case."""

    def __new__(cls, attention: Any) -> Any:
        import torch

        class Layer(torch.nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.attention = attention

            def forward(self, x: torch.Tensor) -> torch.Tensor:
                found: torch.Tensor = self.attention(x, x, x, need_weights=False)[0]
                return found

        return Layer()


# -- reports and sweeps --------------------------------------------------------------------------------
@case(
    "attsvm.write_report", skip={"device": "there is one device here", "name": "a title"}, work=3_000_000,
    words={"selection": (None, GIVEN), "steps": (0, 40)},
)  # fmt: skip
def _report(call: Call) -> Iterator[str]:
    n, T, d = call.pick((2, 3, 4), (3, 3, 5), (3, 4, 6))
    problem = attsvm.random_problem(n, T, d, seed=call.seed)
    chosen = call.rng.integers(T, size=n) if call.given("selection") else None
    said: list[Any] = []
    options = call.options("steps", progress=lambda *parts: said.append(parts)) | {"selection": chosen}
    call.run(attsvm.write_report, problem, call.folder / "report.html", **options)
    page = (call.folder / "report.html").read_text()
    found: Any = attsvm.att_svm(problem, chosen)
    numbers = np.array(re.findall(r"\d+\.\d+", page), dtype=float)
    told = found.status != "optimal" or (np.abs(numbers - found.margin) < 5e-3 * found.margin).any()
    if str(found.status) not in page or not told:
        yield "the page does not tell status and margin of the solution"
    if call.given("progress") and not said:
        yield "no progress was told"


def _squares(trials: int, seed: int, *, base: int) -> dict[str, list[float]]:
    """A task of a sweep: numbers that depend on cell and seed alone."""
    return {"value": (base + np.random.default_rng(seed).random(trials)).tolist()}


@case("attsvm.sweep", words={"workers": (0,)}, skip={"workers": "processes: tests/sweeps"})
def _sweep(call: Call) -> Iterator[str]:
    trials = call.pick(1, 5, 23)
    said: list[Any] = []
    grid = {"base": [10, 20]}
    store = call.folder / "s.sqlite"
    options = call.options("extend", "fresh", name="mine", progress=lambda *parts: said.append(parts))
    with ThreadPoolExecutor(1) as pool:
        options["executor"] = pool if call.given("executor") else None
        done = call.run(attsvm.sweep, _squares, grid, trials, store=store, chunk=4, workers=0, **options)
        again = attsvm.sweep(_squares, grid, trials, store=store, chunk=4, workers=0, **options)
    for cell, base in zip(done.columns, (10, 20), strict=True):
        values = np.asarray(cell["value"])
        if len(values) != trials or not ((values >= base) & (values < base + 1)).all():
            yield f"cell {base} holds {values}"
    yield from close("resumed", [c["value"] for c in again.columns], [c["value"] for c in done.columns], 0.0)
    if (again.computed == 0) == call["fresh"]:
        yield f"{again.computed} chunks were computed again"
    if call.given("progress") and not said:
        yield "no progress was told"


# -- tasks ---------------------------------------------------------------------------------------------
@case("attsvm.sklearn.read_tasks", words={"kind": ("pairs", "objects", "problem")})
def _tasks(call: Call) -> Iterator[str]:
    from attsvm.sklearn import read_tasks

    n, T, d = call.pick((1, 2, 2), (3, 4, 5), (7, 6, 4))
    X, Z = call.rng.standard_normal((n, T, d)), call.rng.standard_normal((n, d))
    lengths = call.rng.integers(2, T + 1, n)
    there = np.arange(T) < lengths[:, None]
    given: Any = [(X[i, : lengths[i]], Z[i]) for i in range(n)]
    if call["kind"] == "objects":
        pairs = np.empty(n, dtype=object)
        pairs[:] = given
        given = pairs
    elif call["kind"] == "problem":
        given = attsvm.AttentionProblem(X, Z=Z, mask=there)
    found = call.run(read_tasks, given)
    width = found.T
    yield from close("allowed", found.allowed, there[:, :width])
    yield from close(
        "tokens", np.where(found.allowed[..., None], found.X, 0), np.where(there[..., None], X, 0)[:, :width]
    )


@case(
    "attsvm.sklearn.mean_reciprocal_rank", "attsvm.sklearn.recall_at", "attsvm.sklearn.ndcg_at",
    words={"k": (None, GIVEN), "rows": ("tasks", "flat")},
)  # fmt: skip
def _scorers(call: Call) -> Iterator[str]:
    from attsvm.sklearn import mean_reciprocal_rank, ndcg_at, recall_at

    n, T = call.pick((1, 2), (5, 4), (20, 6))
    scores, y = call.rng.standard_normal((n, T)), call.rng.integers(T, size=n)
    places = np.array([1 + (scores[i] > scores[i, y[i]]).sum() for i in range(n)])
    k = 2 if call.given("k") else T if call.name == "ndcg_at" else 1
    scorer: Any = {"recall_at": recall_at(k), "ndcg_at": ndcg_at(k)}.get(call.name, mean_reciprocal_rank)
    expected = {"recall_at": places <= k, "ndcg_at": (places <= k) / np.log2(1 + places)}.get(call.name, 1 / places)
    flat = call["rows"] == "flat"

    class Fixed:
        def decision_function(self, tasks: Any) -> FloatArray:
            return scores.ravel() if flat else scores

    labels: Any = (np.arange(T) == y[:, None]).ravel().astype(int) if flat else y
    qid = np.repeat(np.arange(n), T) if flat else None
    yield from close("score", call.run(scorer, Fixed(), [], labels, qid), np.mean(expected))


# -- softmax -------------------------------------------------------------------------------------------
def _attention(call: Call) -> tuple[FloatArray, dict[str, Any]]:
    n = call.pick(2, 5, 17)
    lead = () if call.batch is None else (call.batch,)
    a = call.rng.dirichlet(np.ones(n), size=lead or None)
    given = {"attention": a if call.given("attention") else None}
    return a, given | {"log_attention": np.log(a) if call.given("log_attention") else None}


def _one_of_two(row: Row) -> bool:
    return (row["attention"] is None) == (row["log_attention"] is None)


def _spectrum(a: FloatArray) -> FloatArray:
    """Eigenvalues of ``diag(a) - a a^T``, largest first, shape (..., n)."""
    J = np.einsum("...i,ij->...ij", a, np.eye(a.shape[-1])) - a[..., :, None] * a[..., None, :]
    return np.linalg.eigvalsh(J)[..., ::-1]


_JACOBIAN = ("jacobian_spectrum", "condition_number", "condition_bounds", "peakedness")


@case(*(f"attsvm.softmax.{name}" for name in _JACOBIAN), forms=FORMS, refused=_one_of_two)
def _jacobian(call: Call) -> Iterator[str]:
    a, given = _attention(call)
    name = call.name
    found = call.run(getattr(softmax, name), log=call["log"], **given)
    values = _spectrum(a)[..., :-1]
    back = np.exp if call["log"] else np.asarray
    if name == "jacobian_spectrum":
        yield from close("eigenvalues", np.sort(back(found), axis=-1)[..., -values.shape[-1] :], np.sort(values), 1e-10)
    elif name == "condition_number":
        yield from close(
            "condition number", back(found) / (values[..., 0] / values[..., -1]), np.ones(a.shape[:-1]), 1e-7
        )
    elif name == "condition_bounds":
        low, middle, high = (back(part) for part in found)
        exact = values[..., 0] / values[..., -1]
        if not ((low <= exact * (1 + 1e-7)) & (exact <= high * (1 + 1e-7))).all():
            yield f"bounds {low}..{high} do not hold {exact} ({middle})"
    else:
        yield from close("peakedness", back(found), a.max(axis=-1) / a.min(axis=-1), 1e-9)


@case("attsvm.softmax.entropy", "attsvm.softmax.read_log_attention", forms=FORMS, refused=_one_of_two)
def _entropy(call: Call) -> Iterator[str]:
    a, given = _attention(call)
    if call.name == "entropy":
        yield from close("entropy", call.run(softmax.entropy, **given), -(a * np.log(a)).sum(axis=-1), 1e-12)
    else:
        yield from close("log attention", call.run(softmax.read_log_attention, **given), np.log(a), 1e-12)


@case("attsvm.softmax.softmax", "attsvm.softmax.log_softmax", forms=FORMS)
def _softmax(call: Call) -> Iterator[str]:
    from scipy.special import log_softmax

    shape = (call.pick(1, 4, 30),) if call.batch is None else (call.batch, call.pick(1, 4, 30))
    x = 50.0 * call.rng.standard_normal(shape)
    wanted = log_softmax(x, axis=-1)
    found = call.run(getattr(softmax, call.name), x)
    yield from close(call.name, found, wanted if call.name == "log_softmax" else np.exp(wanted), 1e-12)
