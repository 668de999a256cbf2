"""A bilinear score ``x^T W z`` for other programs, as a score of pairs and as a map of embeddings.

As a score (`to_torch`, `save_factors`, `to_onnx`) W is stored as factors ``K^T Q`` of its numerical rank r, so that
scoring costs r (dx + dz) per pair instead of dx dz.

As a map, ``document^T W query`` is the inner product of the documents as they are with the queries times W, or of
documents times W^T with the queries: one matrix M after the encoder of one side, applied as ``embeddings @ M.T``.
`save_map` writes it for NumPy, safetensors and ONNX, `save_low_rank` as a low-rank update, `save_dense` and
`save_sentence_transformer` for sentence-transformers, `save_linear_adapter` for LlamaIndex. All of them take an array,
an `attsvm.editing.Edit`, a fitted `attsvm.sklearn.AttentionSelector`, or an object with both maps (``query_map`` and
``document_map``).
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeAlias, get_args

import numpy as np
import numpy.typing as npt

from attsvm._lazy import needs
from attsvm.records import atomic_write, write_json
from attsvm.solvers.arrays import FloatArray
from attsvm.solvers.certify.ranks import count_above
from attsvm.user_input import real_array, require_choice, require_count, require_finite

if TYPE_CHECKING:
    import torch

__all__ = [
    "embedding_maps",
    "factor",
    "save_dense",
    "save_factors",
    "save_linear_adapter",
    "save_low_rank",
    "save_map",
    "save_sentence_transformer",
    "to_onnx",
    "to_torch",
]


class HasW(Protocol):
    """A result with a score matrix."""

    @property
    def W(self) -> FloatArray:
        """Of shape (dx, dz)."""


class HasFittedW(Protocol):
    """A fitted estimator with a score matrix."""

    W_: FloatArray


class HasMaps(Protocol):
    """A result with a map for each side."""

    @property
    def query_map(self) -> FloatArray:
        """Of shape (d_out, d_queries)."""

    @property
    def document_map(self) -> FloatArray:
        """Of shape (d_out, d_documents)."""


ScoreLike: TypeAlias = npt.ArrayLike | HasW | HasFittedW
"""The W of a score, or what has one: a solution, an edit, a fitted selector."""
MapLike: TypeAlias = ScoreLike | HasMaps
"""A map of queries (d_out, d_in), a score ``document^T W query``, or what has both maps."""
Side = Literal["query", "document"]


def _matrix(W: Any) -> FloatArray:
    """W as float64, whatever has it."""
    found: Any = W
    if not isinstance(W, np.ndarray):
        if hasattr(W, "get_params") and not hasattr(W, "W_"):
            raise ValueError(f"W must be a matrix or a fitted estimator; this {type(W).__name__} is not fitted")
        found = getattr(W, "W_", getattr(W, "W", W))
    matrix = real_array("W", found).astype(np.float64)
    if matrix.ndim != 2 or 0 in matrix.shape:
        raise ValueError(f"W must have shape (dx, dz), got {matrix.shape}")
    require_finite("W", matrix)
    return matrix


def factor(W: ScoreLike, rank: int | None = None) -> tuple[FloatArray, FloatArray]:
    """Balanced factors K (r, dx) and Q (r, dz) with ``W = K^T Q``; the best of rank r if a rank is given.

    Examples
    --------
    >>> import numpy as np
    >>> from attsvm.export import factor
    >>> K, Q = factor(np.outer([1.0, 2.0], [3.0, 4.0, 5.0]))
    >>> K.shape, Q.shape, bool(np.allclose(K.T @ Q, np.outer([1, 2], [3, 4, 5])))
    ((1, 2), (1, 3), True)
    """
    require_count("rank", rank, optional=True)
    left, right = balanced_factors(_matrix(W), 1e-10, 1, rank)
    return np.ascontiguousarray(left.T), right


def balanced_factors(
    W: FloatArray, tolerance: float = 1e-8, least: int = 0, most: int | None = None
) -> tuple[FloatArray, FloatArray]:
    """``(B, A)`` of shapes (dx, r) and (r, dz) with ``W = B A`` up to ``tolerance`` times its largest singular value.

    Examples
    --------
    >>> import numpy as np
    >>> from attsvm.export import balanced_factors
    >>> B, A = balanced_factors(np.diag([4.0, 0.0]))
    >>> B.tolist(), A.tolist()
    ([[2.0], [0.0]], [[2.0, 0.0]])
    """
    U, s, Vt = np.linalg.svd(W, full_matrices=False)
    r = max(least, int(count_above(s, tolerance)))
    r = r if most is None else min(r, int(most))
    root = np.sqrt(s[:r])
    return np.ascontiguousarray(U[:, :r] * root), np.ascontiguousarray(Vt[:r] * root[:, None])


def to_torch(W: ScoreLike, rank: int | None = None, *, dtype: torch.dtype | None = None) -> torch.nn.Module:
    """A module with parameters K and Q: ``module(tokens (..., T, dx), queries (..., dz)) -> logits (..., T)``.

    Examples
    --------
    >>> import numpy as np
    >>> import torch
    >>> from attsvm.export import to_torch
    >>> module = to_torch(np.diag([1.0, 4.0]))
    >>> module(torch.eye(2), torch.tensor([1.0, 1.0])).tolist()
    [1.0, 4.0]
    """
    with needs("to_torch"):
        import torch

    K, Q = factor(W, rank)

    class BilinearScore(torch.nn.Module):
        """Logits ``(K x) . (Q z)``."""

        def __init__(self) -> None:
            super().__init__()
            kind = dtype or torch.float32
            self.K = torch.nn.Parameter(torch.tensor(K, dtype=kind))
            self.Q = torch.nn.Parameter(torch.tensor(Q, dtype=kind))

        def forward(self, tokens: torch.Tensor, queries: torch.Tensor) -> torch.Tensor:
            keys, asked = tokens @ self.K.T, queries @ self.Q.T
            return (keys @ asked.unsqueeze(-1)).squeeze(-1)

    return BilinearScore()


def save_factors(W: ScoreLike, path: str | Path, rank: int | None = None) -> Path:
    """Write the factors as float32 tensors ``K`` and ``Q`` of a ``.safetensors`` file, atomically.

    The names are those of the parameters of `to_torch`: its ``load_state_dict`` takes what the file holds.
    """
    with needs("save_factors"):
        from safetensors.numpy import save

    target = Path(path)
    if target.suffix != ".safetensors":
        raise ValueError(f"path must end in .safetensors, got {target.name!r}")
    K, Q = factor(W, rank)
    with atomic_write(target) as file:
        file.write(save({"K": K.astype(np.float32), "Q": Q.astype(np.float32)}))
    return target


def to_onnx(W: ScoreLike, path: str | Path, rank: int | None = None) -> Path:
    """Write the score as an ONNX graph with inputs ``tokens`` (n, T, dx) and ``queries`` (n, dz), output ``logits``.

    Needs the package ``onnx`` (``pip install 'attsvm[onnx]'``), nothing of torch.
    """
    with needs("to_onnx"):
        from onnx import helper
    K, Q = factor(W, rank)
    nodes = [
        helper.make_node("MatMul", ["tokens", "K"], ["keys"]),
        helper.make_node("MatMul", ["queries", "Q"], ["asked"]),
        helper.make_node("Unsqueeze", ["asked", "last"], ["column"]),
        helper.make_node("MatMul", ["keys", "column"], ["products"]),
        helper.make_node("Squeeze", ["products", "last"], ["logits"]),
    ]
    shapes = {"tokens": ["n", "T", K.shape[1]], "queries": ["n", Q.shape[1]], "logits": ["n", "T"]}
    arrays = {"K": K.T.astype(np.float32), "Q": Q.T.astype(np.float32), "last": np.array([-1], dtype=np.int64)}
    return _write_onnx(Path(path), "bilinear_score", nodes, shapes, arrays)


def _write_onnx(path: Path, name: str, nodes: list[Any], shapes: dict[str, list[Any]], arrays: dict[str, Any]) -> Path:
    """A checked graph in a file, atomically; the last of ``shapes`` is that of the output."""
    from onnx import TensorProto, checker, helper, numpy_helper

    double = any(array.dtype == np.float64 for array in arrays.values())
    kind = TensorProto.DOUBLE if double else TensorProto.FLOAT
    *inputs, output = [helper.make_tensor_value_info(key, kind, shape) for key, shape in shapes.items()]
    constants = [numpy_helper.from_array(np.ascontiguousarray(value), key) for key, value in arrays.items()]
    graph = helper.make_graph(nodes, name, inputs, [output], constants)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    checker.check_model(model)
    with atomic_write(path) as file:
        file.write(model.SerializeToString())
    return path


def embedding_maps(source: MapLike) -> tuple[FloatArray | None, FloatArray | None]:
    """The maps M of queries and of documents, each applied as ``embeddings @ M.T``; None where a side stays as it is.

    Parameters
    ----------
    source : array_like, shape (d_out, d_in), or an object with ``query_map`` and ``document_map``, ``W`` or ``W_``
        An array is the map of the queries. So is W: the score ``document^T W query`` is the inner product of the
        document with ``W query``.

    Examples
    --------
    >>> import numpy as np
    >>> from attsvm.export import embedding_maps
    >>> embedding_maps(np.diag([1.0, 2.0]))
    (array([[1., 0.],
           [0., 2.]]), None)
    """
    if not isinstance(source, np.ndarray) and hasattr(source, "query_map") and hasattr(source, "document_map"):
        query, document = _matrix(source.query_map), _matrix(source.document_map)
        if len(query) != len(document):
            raise ValueError(f"both maps must have as many rows, got {query.shape} and {document.shape}")
        return (None if _is_identity(query) else query), (None if _is_identity(document) else document)
    return _matrix(source), None


def _is_identity(M: FloatArray) -> bool:
    return M.shape[0] == M.shape[1] and bool((np.eye(len(M)) == M).all())


def _side(source: MapLike, side: Side) -> FloatArray:
    """The map of one side; that of the documents of a bare W is its transpose."""
    require_choice("side", side, *get_args(Side))
    query, document = embedding_maps(source)
    if hasattr(source, "document_map"):
        found = query if side == "query" else document
        return np.eye(np.shape(getattr(source, f"{side}_map"))[1]) if found is None else found
    assert query is not None
    return query if side == "query" else np.ascontiguousarray(query.T)


def save_map(source: MapLike, path: str | Path, *, side: Side = "query", dtype: str | None = None) -> Path:
    """Write the map M of one side, shape (d_out, d_in), for ``embeddings @ M.T``; atomically.

    Parameters
    ----------
    source
        As for `embedding_maps`. For ``side="document"`` of a W its transpose is written.
    path : str or Path
        Ends in ``.npz`` or ``.safetensors`` (one array ``M``), or ``.onnx`` (input ``embeddings`` (n, d_in), output
        ``mapped`` (n, d_out)).
    side : {"query", "document"}
    dtype : {"float32", "float64"}, optional
        float64 for NumPy and float32 for the other two by default.

    Examples
    --------
    >>> import tempfile
    >>> from pathlib import Path
    >>> import numpy as np
    >>> from attsvm.export import save_map
    >>> file = save_map(np.diag([1.0, 2.0]), Path(tempfile.mkdtemp()) / "map.npz")
    >>> np.ones((1, 2)) @ np.load(file)["M"].T
    array([[1., 2.]])
    """
    M = _side(source, side)
    if Path(path).suffix != ".onnx":
        return _save_arrays(path, {"M": M}, dtype)
    with needs("save_map"):
        from onnx import helper
    arrays = {"M": M.T.astype(_kind(path, dtype))}
    node = helper.make_node("MatMul", ["embeddings", "M"], ["mapped"])
    shapes = {"embeddings": ["n", M.shape[1]], "mapped": ["n", M.shape[0]]}
    return _write_onnx(Path(path), "embedding_map", [node], shapes, arrays)


def _kind(path: str | Path, dtype: str | None) -> str:
    kind = dtype or ("float64" if Path(path).suffix == ".npz" else "float32")
    require_choice("dtype", kind, "float32", "float64")
    return kind


def _save_arrays(path: str | Path, arrays: dict[str, FloatArray], dtype: str | None) -> Path:
    """Arrays in a ``.npz`` or ``.safetensors`` file, atomically."""
    target, kind = Path(path), _kind(path, dtype)
    if target.suffix not in (".npz", ".safetensors"):
        raise ValueError(f"path must end in .npz, .safetensors or (of a map) .onnx, got {target.name!r}")
    kept = {name: np.ascontiguousarray(array, dtype=kind) for name, array in arrays.items()}
    if target.suffix == ".npz":
        with atomic_write(target) as file:
            np.savez(file, **kept)  # type: ignore[arg-type]  # its stub takes the names for options
        return target
    with needs("save_map"):
        from safetensors.numpy import save
    with atomic_write(target) as file:
        file.write(save(kept))
    return target


def save_low_rank(
    source: MapLike,
    path: str | Path,
    *,
    side: Side = "query",
    prior: npt.ArrayLike | None = None,
    rank: int | None = None,
    dtype: str | None = None,
) -> Path:
    """Write a map as a low-rank update of another one: ``M = prior + B A``, applied as ``e @ prior.T + e @ A.T @ B.T``.

    Parameters
    ----------
    source
        As for `embedding_maps`.
    path : str or Path
        ``.npz`` or ``.safetensors``: arrays ``B`` (d_out, r) and ``A`` (r, d_in), balanced.
    side : {"query", "document"}
    prior : array_like, shape (d_out, d_in), optional
        The map that is there already; by default the identity, which leaves embeddings as they are.
    rank : int, optional
        The largest r; the best update of that rank is written. By default the numerical rank of the change.
    dtype : {"float32", "float64"}, optional
        As for `save_map`.

    Examples
    --------
    >>> import tempfile
    >>> from pathlib import Path
    >>> import numpy as np
    >>> from attsvm.export import save_low_rank
    >>> file = np.load(save_low_rank(np.eye(3) + np.outer([1, 0, 0], [0, 0, 2]), Path(tempfile.mkdtemp()) / "f.npz"))
    >>> file["B"].shape, (file["B"] @ file["A"]).round(9).tolist()
    ((3, 1), [[0.0, 0.0, 2.0], [0.0, 0.0, 0.0], [0.0, 0.0, 0.0]])
    """
    M = _side(source, side)
    require_count("rank", rank, optional=True)
    if prior is None and M.shape[0] != M.shape[1]:
        raise ValueError(f"prior must be given for a map that is not square, got shape {M.shape}")
    base = np.eye(len(M)) if prior is None else _matrix(prior)
    if base.shape != M.shape:
        raise ValueError(f"prior must have shape {M.shape}, got {base.shape}")
    # Rounding of prior + change, not of the change, is what the difference holds.
    noise = 1e-14 * float(np.abs(M).max()) * max(M.shape)
    size = float(np.linalg.norm(M - base, 2))
    B, A = balanced_factors(M - base, max(1e-10, noise / size) if size > 0 else 1e-10, 1, rank)
    return _save_arrays(path, {"B": B, "A": A}, dtype)


def save_dense(source: MapLike, folder: str | Path, *, side: Side = "query") -> Path:
    """Write the map of one side as a ``Dense`` module of sentence-transformers, without a bias or an activation.

    ``sentence_transformers.base.modules.Dense.load(folder)`` reads it (before version 6,
    ``sentence_transformers.models.Dense.load``); weights are float32. `save_sentence_transformer` puts it behind
    a model.

    Parameters
    ----------
    source, side
        As for `save_map`.
    folder : str or Path
        Made if needed; existing files of a module are refused.
    """
    with needs("save_dense"):
        from safetensors.numpy import save
    M = _side(source, side)
    out = _new_folder(folder, "config.json", "model.safetensors")
    config = {
        "in_features": M.shape[1], "out_features": M.shape[0], "bias": False,
        "activation_function": "torch.nn.modules.linear.Identity",
    }  # fmt: skip
    with atomic_write(out / "model.safetensors") as file:
        file.write(save({"linear.weight": np.ascontiguousarray(M, dtype=np.float32)}, {"format": "pt"}))
    write_json(out / "config.json", config)
    return out


def _new_folder(folder: str | Path, *names: str) -> Path:
    out = Path(folder)
    for name in names:
        if (out / name).exists():
            raise FileExistsError(f"{out / name} exists; write to a new folder")
    out.mkdir(parents=True, exist_ok=True)
    return out


def save_linear_adapter(source: MapLike, folder: str | Path, *, side: Side = "query") -> Path:
    """Write the map of one side as LlamaIndex's linear adapter: ``config.json`` and ``pytorch_model.bin``.

    ``LinearAdapterEmbeddingModel(base, folder)`` of ``llama_index.embeddings.adapter`` applies it to queries;
    ``transform_query=False`` there leaves queries alone. Its ``LinearLayer`` starts as an identity, so that maps must
    be square; weights are float32, a torch file that ``weights_only=True`` reads.

    Parameters
    ----------
    source, side
        As for `save_map`.
    folder : str or Path
        Made if needed; an existing adapter is refused.
    """
    with needs("save_linear_adapter"):
        import torch
    M = _side(source, side)
    if M.shape[0] != M.shape[1]:
        raise ValueError(f"a linear adapter of LlamaIndex must be square, got a map of shape {M.shape}")
    out = _new_folder(folder, "config.json", "pytorch_model.bin")
    with atomic_write(out / "pytorch_model.bin") as file:
        torch.save({"linear.weight": torch.tensor(M, dtype=torch.float32)}, file)
    write_json(out / "config.json", {"in_features": M.shape[1], "out_features": M.shape[0], "bias": False})
    return out


def save_sentence_transformer(source: MapLike, model: Any, folder: str | Path) -> Path:
    """Write a sentence-transformers model with the map behind it; ``SentenceTransformer(folder)`` loads it.

    Queries and documents take different routes through the same encoder (a ``Router``): ``encode_query`` applies the
    map of the queries, ``encode_document`` and ``encode`` that of the documents. Scores are inner products, which is
    what the folder's ``similarity`` computes: after a map embeddings have no longer length 1.

    Parameters
    ----------
    source
        As for `embedding_maps`; what is an identity is left out.
    model : SentenceTransformer, or str or Path of one
        The model whose embeddings the map was computed for. It is not changed.
    folder : str or Path
        A new one, or without a model in it.
    """
    with needs("save_sentence_transformer"):
        import torch
        from sentence_transformers import SentenceTransformer
        from sentence_transformers.base.modules import Dense, Router

    maps = embedding_maps(source)
    known: Any = model
    if not isinstance(model, SentenceTransformer):
        known = SentenceTransformer(str(model), local_files_only=True)
    encoder = list(known.children())
    if any(isinstance(module, Router) for module in encoder):
        raise ValueError("model routes queries and documents already; give the encoder that both of them share")
    size = known.get_embedding_dimension()
    for side, M in zip(get_args(Side), maps, strict=True):
        if M is not None and M.shape[1] != size:
            raise ValueError(f"the {side} map takes {M.shape[1]} dimensions, but the model gives {size}")
    ends = [size if M is None else len(M) for M in maps]
    if ends[0] != ends[1]:
        raise ValueError(f"queries and documents must end in one dimension, got {ends[0]} and {ends[1]}")
    out = _new_folder(folder, "modules.json")

    def route(M: FloatArray | None) -> list[Any]:
        if M is None:
            return encoder
        weight = torch.tensor(M, dtype=torch.float32)
        dense = Dense(M.shape[1], M.shape[0], bias=False, activation_function=None, init_weight=weight)
        return [*encoder, dense]

    router = Router.for_query_document(route(maps[0]), route(maps[1]))
    mapped = SentenceTransformer(
        modules=[router], device=str(known.device), prompts=known.prompts, similarity_fn_name="dot",
        default_prompt_name=known.default_prompt_name,
    )  # fmt: skip
    mapped.save(str(out), create_model_card=False)
    return out
