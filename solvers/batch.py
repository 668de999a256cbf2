"""Many small margin problems at once: data, one call that solves them all, and certified results.

The batch is solved in lockstep in torch, on any device and in any floating dtype; the certificates that
decide the statuses are computed in float64 from the data, as for a single problem.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from attsvm.solvers.certificate import certify_infeasible
from attsvm.solvers.margin import BoolArray, FloatArray, IntArray, MarginProblem
from attsvm.solvers.norms import Norm
from attsvm.solvers.solution import MarginSolution, conclude, without_solution
from attsvm.solvers.status import Status

if TYPE_CHECKING:
    import torch

    from attsvm.solvers.batch_certificate import BatchRows

__all__ = ["BatchSolution", "MarginBatch"]


def _is_tensor(value: object) -> bool:
    torch = sys.modules.get("torch")  # a tensor cannot exist before torch is imported
    return torch is not None and isinstance(value, torch.Tensor)


def _to_numpy(value: Any) -> npt.NDArray[Any]:
    return value.detach().cpu().numpy() if _is_tensor(value) else np.asarray(value)


def _tensor(value: Any, device: torch.device, dtype: torch.dtype) -> torch.Tensor:
    import torch

    if _is_tensor(value):
        tensor: torch.Tensor = value.detach()
        return tensor.to(device=device, dtype=dtype)
    return torch.tensor(np.ascontiguousarray(value), device=device).to(dtype)


def _factor(name: str, value: Any, axes: str) -> Any:
    """A float array or tensor of three axes, as the caller gave it where possible."""
    if _is_tensor(value):
        array = value if value.is_floating_point() else value.double()
    else:
        array = np.asarray(value)
        if array.dtype != np.float32:
            try:
                array = array.astype(np.float64, copy=False)
            except (TypeError, ValueError) as error:
                raise ValueError(f"{name} must hold real numbers, got dtype {array.dtype}") from error
    if array.ndim != 3 or 0 in array.shape[1:]:
        raise ValueError(f"{name} must be a 3-d array {axes} with rows and columns, got shape {tuple(array.shape)}")
    return array


def _shared_or_own(name: str, value: Any, size: int, m: int, what: str) -> npt.NDArray[Any]:
    array = _to_numpy(value)
    if array.shape not in ((m,), (size, m)):
        raise ValueError(f"{name} must be {what} of shape ({m},) or ({size}, {m}), got shape {array.shape}")
    return array


@dataclass(frozen=True, eq=False)
class MarginBatch:
    """B margin problems of common shape, with numpy arrays or torch tensors inside.

    Parameters
    ----------
    a : array_like or Tensor, shape (B, m, dx)
        Left factors of the rows.
    queries : array_like or Tensor, shape (B, q, dz)
        Distinct right factors of each problem; a tensor exactly when ``a`` is one, on the same device.
    owner : array_like of int, shape (m,) or (B, m)
        Row ``k`` of problem ``i`` has right factor ``queries[i, owner[k]]`` or ``queries[i, owner[i, k]]``.
    valid : array_like of bool, shape (m,) or (B, m), optional
        False marks rows that do not exist (ragged problems); their entries may hold anything and are
        stored as zeros. Every problem keeps at least one row.
    rhs : array_like, shape (m,) or (B, m), optional
        Right-hand sides, 1 by default.
    equality : array_like of bool, shape (m,) or (B, m), optional
        True where the row is an equality; every row is ``>=`` by default.

    Attributes
    ----------
    a, queries : ndarray or Tensor
        Kind, dtype and device as given (float32 stays float32).
    owner, valid, rhs, equality : ndarray
        ``valid``, ``rhs`` and ``equality`` have shape (B, m), ``owner`` the shape given. Rows that do not
        exist have rhs 0.

    Examples
    --------
    >>> import numpy as np
    >>> from attsvm.solvers.batch import MarginBatch
    >>> batch = MarginBatch(np.ones((3, 2, 4)), np.ones((3, 1, 5)), owner=[0, 0])
    >>> batch.margins(np.ones((3, 4, 5))).shape, batch.problem(1).m
    ((3, 2), 2)
    """

    a: Any
    queries: Any
    owner: IntArray
    valid: BoolArray = field(default=None)  # type: ignore[arg-type]
    rhs: FloatArray = field(default=None)  # type: ignore[arg-type]
    equality: BoolArray = field(default=None)  # type: ignore[arg-type]

    def __post_init__(self) -> None:
        a, queries = _factor("a", self.a, "(B, m, dx)"), _factor("queries", self.queries, "(B, q, dz)")
        if _is_tensor(a) != _is_tensor(queries) or (_is_tensor(a) and a.device != queries.device):
            raise ValueError("a and queries must both be arrays, or both tensors on the same device")
        size, m = int(a.shape[0]), int(a.shape[1])
        if len(queries) != size:
            raise ValueError(f"queries must hold one set per problem: a has {size} problems, queries {len(queries)}")
        flags: dict[str, npt.NDArray[Any]] = {}
        for name, value, default in (("valid", self.valid, True), ("equality", self.equality, False)):
            flag = np.asarray(default) if value is None else _shared_or_own(name, value, size, m, "booleans")
            if flag.dtype != bool:
                raise ValueError(f"{name} must be booleans, got dtype {flag.dtype}")
            flags[name] = np.broadcast_to(flag, (size, m))
        valid = flags["valid"]
        if not valid.any(axis=1).all():
            i = int(np.flatnonzero(~valid.any(axis=1))[0])
            raise ValueError(f"valid must leave at least one row in every problem, but problem {i} has none")

        owner = _shared_or_own("owner", self.owner, size, m, "integers")
        if not np.issubdtype(owner.dtype, np.integer):
            raise ValueError(f"owner must be integers, got dtype {owner.dtype}")
        used = valid.any(axis=0) if owner.ndim == 1 else valid
        owner = np.where(used, owner, 0).astype(np.int64, copy=False) if size else owner.astype(np.int64)
        if owner.size and (owner.min() < 0 or owner.max() >= queries.shape[1]):
            raise ValueError(f"owner must lie in [0, {queries.shape[1]}), got {owner.min()} to {owner.max()}")
        rhs = np.ones(m) if self.rhs is None else _shared_or_own("rhs", self.rhs, size, m, "numbers")
        try:
            rhs = np.where(valid, np.broadcast_to(rhs, (size, m)).astype(np.float64), 0.0)
        except (TypeError, ValueError) as error:
            raise ValueError(f"rhs must hold real numbers, got dtype {rhs.dtype}") from error

        if not valid.all():
            if _is_tensor(a):
                import torch

                a = a.masked_fill(~torch.as_tensor(valid, device=a.device)[..., None], 0.0)
            else:
                a = np.where(valid[..., None], a, a.dtype.type(0))
        numbers: tuple[tuple[str, Any], ...] = (("a", a), ("queries", queries), ("rhs", rhs))
        for name, array in numbers:
            finite: Any = array.isfinite() if _is_tensor(array) else np.isfinite(array)
            if not bool(finite.all()):
                i = int(np.flatnonzero(~_to_numpy(finite).reshape(size, -1).all(axis=1))[0])
                raise ValueError(f"{name} must be finite, but problem {i} holds NaN or infinity")
        for name, array in (("a", a), ("queries", queries), ("owner", owner), ("valid", valid), ("rhs", rhs),
                            ("equality", flags["equality"] & valid)):  # fmt: skip
            object.__setattr__(self, name, array)

    @classmethod
    def from_problems(cls, problems: Sequence[MarginProblem]) -> MarginBatch:
        """Stack problems of equal ``shape``; fewer rows or queries are padded with rows that do not exist.

        Examples
        --------
        >>> from attsvm.solvers import MarginProblem
        >>> from attsvm.solvers.batch import MarginBatch
        >>> one, two = MarginProblem([[1.0]], [[1.0]], [0]), MarginProblem([[1.0], [2.0]], [[1.0]], [0, 0])
        >>> MarginBatch.from_problems([one, two]).valid.tolist()
        [[True, False], [True, True]]
        """
        problems = list(problems)
        if not problems:
            raise ValueError("problems must hold at least one MarginProblem, got an empty sequence")
        shape = problems[0].shape
        for i, problem in enumerate(problems):
            if problem.shape != shape:
                raise ValueError(
                    f"problems must share one shape of W: problem 0 has {shape}, problem {i} {problem.shape}"
                )
        size, m, q = len(problems), max(p.m for p in problems), max(p.q for p in problems)
        a = np.zeros((size, m, shape[0]), dtype=np.result_type(*(p.a.dtype for p in problems)))
        queries = np.zeros((size, q, shape[1]), dtype=np.result_type(*(p.queries.dtype for p in problems)))
        owner, rhs = np.zeros((size, m), dtype=np.int64), np.zeros((size, m))
        valid, equality = np.zeros((size, m), dtype=bool), np.zeros((size, m), dtype=bool)
        for i, p in enumerate(problems):
            a[i, : p.m], queries[i, : p.q], owner[i, : p.m] = p.a, p.queries, p.owner
            rhs[i, : p.m], equality[i, : p.m], valid[i, : p.m] = p.rhs, p.equality, True
        return cls(a, queries, owner, valid, rhs, equality)

    def __len__(self) -> int:
        return int(self.a.shape[0])

    @property
    def m(self) -> int:
        """Number of rows, existing or not."""
        return int(self.a.shape[1])

    @property
    def shape(self) -> tuple[int, int]:
        """Shape ``(dx, dz)`` of every W."""
        return int(self.a.shape[2]), int(self.queries.shape[2])

    def _right(self) -> Any:
        """Right factor of every row, shape (B, m, dz)."""
        if self.owner.ndim == 1:
            return self.queries[:, self.owner]
        return self.queries[np.arange(len(self))[:, None], self.owner]

    def _like_a(self, name: str, value: Any, shape: tuple[int, ...]) -> Any:
        if _is_tensor(self.a):
            import torch

            value = torch.as_tensor(value, device=self.a.device)
            value = value.to(torch.promote_types(value.dtype, self.a.dtype))
        else:
            value = _to_numpy(value)
        if tuple(value.shape) != shape:
            raise ValueError(f"{name} must have shape {shape}, got {tuple(value.shape)}")
        return value

    def margins(self, W: Any) -> Any:
        """Values ``<a_k b_k^T, W_i>``, shape (B, m); 0 for rows that do not exist.

        Parameters
        ----------
        W : array_like or Tensor, shape (B, dx, dz)
        """
        W = self._like_a("W", W, (len(self), *self.shape))
        return ((self.a @ W) * self._right()).sum(-1)

    def adjoint(self, multipliers: Any) -> Any:
        """Matrices ``sum_k lam_k a_k b_k^T``, shape (B, dx, dz).

        Parameters
        ----------
        multipliers : array_like or Tensor, shape (B, m)
        """
        lam = self._like_a("multipliers", multipliers, (len(self), self.m))
        return (self.a * lam[..., None]).swapaxes(-1, -2) @ self._right()

    def gram(self) -> Any:
        """Gram matrices ``(a_j . a_k)(b_j . b_k)``, shape (B, m, m); zero for rows that do not exist."""
        right = self._right()
        return (self.a @ self.a.swapaxes(-1, -2)) * (right @ right.swapaxes(-1, -2))

    def problem(self, i: int) -> MarginProblem:
        """Problem ``i`` alone, with the rows that exist."""
        keep = self.valid[i]
        owner = self.owner if self.owner.ndim == 1 else self.owner[i]
        return MarginProblem(
            _to_numpy(self.a[i])[keep],
            _to_numpy(self.queries[i]),
            owner[keep],
            self.rhs[i][keep],
            self.equality[i][keep],
        )

    def rows(self, index: slice | IntArray, device: torch.device, dtype: torch.dtype) -> BatchRows:
        """The picked problems as tensors for the solvers."""
        import torch

        from attsvm.solvers.batch_certificate import BatchRows

        queries = self.queries_of(index, device, dtype)
        if self.owner.ndim == 1:
            b = queries[:, torch.as_tensor(self.owner, device=device)]
        else:
            owner = _tensor(self.owner[index], device, torch.int64)
            b = queries.gather(1, owner[..., None].expand(-1, -1, queries.shape[-1]))
        return BatchRows(
            _tensor(self.a[index], device, dtype),
            b,
            _tensor(self.rhs[index], device, dtype),
            _tensor(self.equality[index], device, torch.bool),
        )

    def queries_of(self, index: slice | IntArray, device: torch.device, dtype: torch.dtype) -> torch.Tensor:
        """Queries of the picked problems as a tensor, shape (B', q, dz)."""
        return _tensor(self.queries[index], device, dtype)


@dataclass(frozen=True, eq=False)
class BatchSolution:
    """Certified results of a batch; numpy arrays with one entry per problem.

    Attributes
    ----------
    batch : MarginBatch
    norm_kind : Norm
    status : ndarray of Status, shape (B,)
        Compare with strings: ``solution.status == "optimal"``.
    W : ndarray, shape (B, dx, dz)
        NaN where there is no solution.
    multipliers : ndarray, shape (B, m)
        In norm form; NaN where there is no solution, 0 for rows that do not exist.
    norm, lower_bound, gap, primal_violation, dual_violation, complementarity : ndarray, shape (B,)
        As in `Certificate`; infinite where there is no solution.
    farkas : ndarray, shape (B, m)
        Multipliers of the proof where infeasible (``rhs . y = 1``), NaN elsewhere.
    farkas_residual : ndarray, shape (B,)
        `FarkasCertificate.residual` where infeasible, infinite elsewhere.
    iterations : ndarray of int, shape (B,)
    rescued : ndarray of bool, shape (B,)
        Problems that the batched method left without certificate and that the single-problem solver took over.
    tolerance : float
        What gap and violations must reach to be called optimal.
    seconds : float
        Wall-clock time of the whole batch.
    rank, numerical_rank : ndarray of int, shape (B,), or None
        Nuclear norm only: certified rank and rank of the returned W, as in `RankCertificate`; -1 where there
        is no solution.
    rank_tolerance : ndarray, shape (B,), or None
        Where both counts cut.
    """

    batch: MarginBatch
    norm_kind: Norm
    status: npt.NDArray[np.object_]
    W: FloatArray
    multipliers: FloatArray
    norm: FloatArray
    lower_bound: FloatArray
    gap: FloatArray
    primal_violation: FloatArray
    dual_violation: FloatArray
    complementarity: FloatArray
    farkas: FloatArray
    farkas_residual: FloatArray
    iterations: IntArray
    rescued: BoolArray
    tolerance: float
    seconds: float
    rank: IntArray | None = None
    numerical_rank: IntArray | None = None
    rank_tolerance: FloatArray | None = None

    def __len__(self) -> int:
        return len(self.status)

    def solution(self, i: int) -> MarginSolution:
        """Problem ``i`` as a `MarginSolution`, certified anew from its own data."""
        problem, keep = self.batch.problem(i), self.batch.valid[i]
        status: Status = self.status[i]
        label, iterations, seconds = "batch", int(self.iterations[i]), self.seconds / len(self)
        if status.has_solution:
            return conclude(
                problem, self.norm_kind, self.W[i], self.multipliers[i][keep],
                solver=label, iterations=iterations, seconds=seconds, tolerance=self.tolerance,
            )  # fmt: skip
        proof = certify_infeasible(problem, self.farkas[i][keep]) if status is Status.INFEASIBLE else None
        return without_solution(
            problem, self.norm_kind, status, proof, solver=label, iterations=iterations, seconds=seconds
        )
