"""A bilinear score ``x^T W z`` for other programs: a torch module, safetensors, ONNX.

W is stored as factors ``K^T Q`` of its numerical rank r, so that scoring costs r (dx + dz) per pair instead of dx dz.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from attsvm._lazy import needs
from attsvm.records import atomic_write
from attsvm.solvers.arrays import FloatArray
from attsvm.solvers.certify.ranks import count_above
from attsvm.user_input import real_array, require_count, require_finite

if TYPE_CHECKING:
    import torch

__all__ = ["factor", "save_factors", "to_onnx", "to_torch"]


def factor(W: npt.ArrayLike, rank: int | None = None) -> tuple[FloatArray, FloatArray]:
    """Balanced factors K (r, dx) and Q (r, dz) with ``W = K^T Q``; the best of rank r if a rank is given.

    Examples
    --------
    >>> import numpy as np
    >>> from attsvm.export import factor
    >>> K, Q = factor(np.outer([1.0, 2.0], [3.0, 4.0, 5.0]))
    >>> K.shape, Q.shape, bool(np.allclose(K.T @ Q, np.outer([1, 2], [3, 4, 5])))
    ((1, 2), (1, 3), True)
    """
    matrix = real_array("W", W).astype(np.float64)
    if matrix.ndim != 2 or 0 in matrix.shape:
        raise ValueError(f"W must have shape (dx, dz), got {matrix.shape}")
    require_finite("W", matrix)
    require_count("rank", rank, optional=True)
    left, right = balanced_factors(matrix, 1e-10, 1, rank)
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


def to_torch(W: npt.ArrayLike, rank: int | None = None, *, dtype: torch.dtype | None = None) -> torch.nn.Module:
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


def save_factors(W: npt.ArrayLike, path: str | Path, rank: int | None = None) -> Path:
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


def to_onnx(W: npt.ArrayLike, path: str | Path, rank: int | None = None) -> Path:
    """Write the score as an ONNX graph with inputs ``tokens`` (n, T, dx) and ``queries`` (n, dz), output ``logits``.

    Needs the package ``onnx`` (``pip install 'attsvm[onnx]'``), nothing of torch.
    """
    with needs("to_onnx"):
        from onnx import TensorProto, checker, helper, numpy_helper
    K, Q = factor(W, rank)

    def tensor(name: str, value: Any) -> Any:
        return numpy_helper.from_array(value, name)

    nodes = [
        helper.make_node("MatMul", ["tokens", "K"], ["keys"]),
        helper.make_node("MatMul", ["queries", "Q"], ["asked"]),
        helper.make_node("Unsqueeze", ["asked", "last"], ["column"]),
        helper.make_node("MatMul", ["keys", "column"], ["products"]),
        helper.make_node("Squeeze", ["products", "last"], ["logits"]),
    ]
    graph = helper.make_graph(
        nodes,
        "bilinear_score",
        [
            helper.make_tensor_value_info("tokens", TensorProto.FLOAT, ["n", "T", K.shape[1]]),
            helper.make_tensor_value_info("queries", TensorProto.FLOAT, ["n", Q.shape[1]]),
        ],
        [helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["n", "T"])],
        [
            tensor("K", np.ascontiguousarray(K.T, dtype=np.float32)),
            tensor("Q", np.ascontiguousarray(Q.T, dtype=np.float32)),
            tensor("last", np.array([-1], dtype=np.int64)),
        ],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    checker.check_model(model)
    with atomic_write(Path(path)) as file:
        file.write(model.SerializeToString())
    return Path(path)
