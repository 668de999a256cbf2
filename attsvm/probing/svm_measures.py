"""A head compared with the max-margin problem of its own selections: hard and soft, both norms, certified."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from attsvm.attention import token_logits
from attsvm.probing.cheap_measures import random_spectrum
from attsvm.probing.head_data import HeadData
from attsvm.problem import AttentionProblem
from attsvm.solution import Solution
from attsvm.solvers.arrays import BoolArray, FloatArray, IntArray
from attsvm.solvers.certify.ranks import count_above
from attsvm.svm import att_svm
from attsvm.user_input import require_count, require_number

_NORMS = ("frobenius", "nuclear")


@dataclass(frozen=True)
class SvmBudget:
    """How much of the data an SVM is solved on, and how well.

    Attributes
    ----------
    sequences, held_out : int
        Fitted, and kept aside for the agreement.
    queries : int
        Drawn per sequence.
    c : float
        Soft margin (squared hinge, one slack per query): C is c over the median squared size of a row (over
        its size in the nuclear norm), so that at c = 1 a query by itself would reach two thirds of its margin. No unit
        of the data enters.
    tolerance : float
        Relative duality gap asked of the solver; what it reached is in the columns ``gap_*``.
    nuclear_gap : float
        The same for a soft solve in the nuclear norm, the slowest part. Its column ``soft_ratio_nuclear`` is an upper
        bound, ``soft_ratio_nuclear_least`` the proved lower one.
    hard, soft, nuclear : bool
        Solve the hard margin; the soft one; solve in the nuclear norm.
    rounds : int
        Most weighted problems of such a solve; its gap says how far it came.
    baseline : bool
        Solve for a random W of the same spectrum too, with its own selections.
    shares : tuple of float
        Shares of the sequences at which the soft solve is repeated: how it all moves with more data.

    Examples
    --------
    >>> from attsvm.probing.svm_measures import SvmBudget
    >>> SvmBudget(sequences=4).queries
    4
    """

    sequences: int = 8
    held_out: int = 8
    queries: int = 4
    c: float = 1.0
    tolerance: float = 1e-4
    hard: bool = True
    soft: bool = True
    nuclear: bool = True
    baseline: bool = True
    shares: tuple[float, ...] = (0.25, 0.5)
    nuclear_gap: float = 0.01
    rounds: int = 24

    def __post_init__(self) -> None:
        for name in ("sequences", "queries"):
            require_count(name, getattr(self, name))
        require_count("held_out", self.held_out, least=0)
        for name in ("c", "tolerance", "nuclear_gap"):
            require_number(name, getattr(self, name), "a positive number", low=0.0)

    def record(self) -> dict[str, Any]:
        """Plain values."""
        return asdict(self)


DEFAULT_BUDGET = SvmBudget()


@dataclass(frozen=True, eq=False)
class Sample:
    """Queries of some sequences, and the W of the head on them.

    Attributes
    ----------
    X : ndarray, shape (n, T, dx)
    Z : ndarray, shape (n, K, dz)
    mask : ndarray of bool, shape (n, K, T)
    selection : ndarray of int, shape (n, K)
    offset : ndarray, shape (n, K, T), or None
    W : ndarray, shape (dx, dz)
    places : ndarray of int, shape (n, K, 2)
        Sequence and query of the head's data.
    """

    X: npt.NDArray[np.floating]
    Z: npt.NDArray[np.floating]
    mask: BoolArray
    selection: IntArray
    offset: npt.NDArray[np.floating] | None
    W: FloatArray
    places: IntArray

    @property
    def problem(self) -> AttentionProblem:
        """As a margin problem."""
        return AttentionProblem(self.X, Z=self.Z, mask=self.mask)

    def first(self, sequences: int) -> Sample:
        """The first so many sequences."""
        s = slice(sequences)
        offset = None if self.offset is None else self.offset[s]
        return replace(
            self, X=self.X[s], Z=self.Z[s], mask=self.mask[s], selection=self.selection[s], offset=offset,
            places=self.places[s],
        )  # fmt: skip

    def logits(self, W: FloatArray) -> FloatArray:
        """``x^T W z`` (plus the offset), -inf where masked, shape (n, K, T)."""
        values = token_logits(self.X.astype(np.float64), W, self.Z.astype(np.float64))
        return np.where(self.mask, values if self.offset is None else values + self.offset, -np.inf)

    def margins(self, W: FloatArray) -> FloatArray:
        """Smallest lead of the selected token of each query under W, shape (n, K)."""
        logits = self.logits(W)
        own = np.take_along_axis(logits, self.selection[..., None], axis=-1)
        others = logits.copy()
        np.put_along_axis(others, self.selection[..., None], -np.inf, axis=-1)
        return np.asarray(own[..., 0] - others.max(axis=-1))

    @cached_property
    def seen_part(self) -> FloatArray:
        """W between the spans of token differences and of queries: all that these data can see of it."""
        real = np.asarray(self.mask.any(axis=1))
        apart = [x[keep] - x[keep].mean(axis=0) for x, keep in zip(self.X.astype(np.float64), real, strict=True)]
        left, right = _basis(np.concatenate(apart)), _basis(self.Z.reshape(-1, self.Z.shape[-1]).astype(np.float64))
        return np.asarray(left @ (left.T @ self.W @ right) @ right.T)

    def row_sizes(self) -> FloatArray:
        """``|x_selected - x_t| |z|`` of every row."""
        own = np.take_along_axis(self.X[:, None], self.selection[..., None, None], axis=2)
        apart = np.linalg.norm((own - self.X[:, None]).astype(np.float64), axis=-1)
        sizes = apart * np.linalg.norm(self.Z.astype(np.float64), axis=-1)[..., None]
        rows = self.mask & (np.arange(self.X.shape[1]) != self.selection[..., None])
        return np.asarray(sizes[rows])


def _basis(rows: FloatArray) -> FloatArray:
    """Orthonormal columns that span the rows, up to rounding."""
    _, values, directions = np.linalg.svd(rows, full_matrices=False)
    return np.asarray(directions[: int(count_above(values, 1e-10))].T)


def draw_sample(head: HeadData, budget: SvmBudget, seed: int = 0) -> tuple[Sample, Sample | None]:
    """Sequences to fit and sequences to test on, with queries that have a choice; the same for every head of a layer.

    Raises
    ------
    ValueError
        If no sequence has a query that sees two tokens.
    """
    rng = np.random.default_rng(seed)
    able = head.counts & (head.seen > 1)
    K = min(budget.queries, int(able.sum(axis=1).max(initial=0)))
    usable = [i for i in rng.permutation(head.n) if able[i].sum() >= max(K, 1)]
    if not usable or K < 1:
        raise ValueError(f"{head.name}: no sequence has a query that may choose between two tokens")
    fitted = usable[: min(budget.sequences, max(1, len(usable) - min(budget.held_out, len(usable) // 2)))]
    tested = usable[len(fitted) : len(fitted) + budget.held_out]
    parts: list[Sample | None] = []
    for chosen in (fitted, tested):
        parts.append(_sample(head, np.array(chosen), K, able, rng) if chosen else None)
    assert parts[0] is not None
    return parts[0], parts[1]


def _sample(head: HeadData, chosen: IntArray, K: int, able: BoolArray, rng: np.random.Generator) -> Sample:
    queries = np.array([np.sort(rng.permutation(np.flatnonzero(able[i]))[:K]) for i in chosen])
    rows = (chosen[:, None], queries)
    tokens, asked = head.points()
    offset = None
    if head.offset is not None:
        offset = np.broadcast_to(head.offset, head.logits.shape)[rows].astype(np.float64)
    places = np.stack([np.broadcast_to(chosen[:, None], queries.shape), queries], axis=-1)
    return Sample(tokens[chosen], asked[rows], head.allowed[rows], head.selected[rows], offset, head.matrix, places)


def scaled_objective(margins: FloatArray, size: float, C: float, *, squared: bool) -> float:
    """Least soft-margin objective of a multiple s of a W: ``s^2 |W|^2 / 2`` or ``s |W|``, plus ``C sum (1 - s m)+^2``.

    Parameters
    ----------
    margins : ndarray
        Smallest margin of each query.
    size : float
        Norm of W.
    C : float
    squared : bool
        Whether the norm enters squared (Frobenius).

    Examples
    --------
    >>> import numpy as np
    >>> round(scaled_objective(np.array([2.0]), 1.0, 1e9, squared=True), 6)  # s = 1/2 reaches the margin
    0.125
    """
    m = np.sort(np.asarray(margins, dtype=np.float64).ravel())[::-1]
    first, second = (
        total - np.concatenate([[0.0], np.cumsum(part)]) for part, total in ((m, m.sum()), (m * m, (m * m).sum()))
    )
    # Where the slope vanishes while the queries of smaller margin are the ones that miss it.
    with np.errstate(divide="ignore", invalid="ignore"):
        flat = 2 * C * first / (size**2 + 2 * C * second) if squared else (first - size / (2 * C)) / second
    tries = np.concatenate([[0.0], 1.0 / m[m > 0], flat[np.isfinite(flat) & (flat > 0)]])
    return float(min(_objective(s * size, s * m, C, squared) for s in tries))


def _objective(size: float, margins: FloatArray, C: float, squared: bool) -> float:
    missed = np.maximum(0.0, 1.0 - margins)
    return (0.5 * size**2 if squared else size) + C * float((missed * missed).sum())


def svm_measures(head: HeadData, budget: SvmBudget = DEFAULT_BUDGET, seed: int = 0) -> dict[str, Any]:
    """Margins, correlations, rank, support and held-out agreement of one head, and of a random W of its spectrum.

    Returns
    -------
    dict
        Columns of the table; ``support`` (places of the closest competitors) and ``curve`` for the page.
    """
    fitted, tested = draw_sample(head, budget, seed)
    found = sample_measures(fitted, tested, budget)
    if budget.baseline:
        other = random_spectrum(head, seed)
        drawn = draw_sample(other, budget, seed)
        for name, value in sample_measures(*drawn, budget, baseline=True).items():
            found[f"{name}_random"] = value
    return found


def sample_measures(
    fitted: Sample, tested: Sample | None, budget: SvmBudget, *, baseline: bool = False
) -> dict[str, Any]:
    """The measures of one W on what was drawn; for a baseline without support and curve."""
    found: dict[str, Any] = {}
    norms = _NORMS if budget.nuclear else _NORMS[:1]
    for norm in norms:
        if budget.hard:
            found |= _against(fitted, tested, norm, None, budget)
        if budget.soft:
            found |= _against(fitted, tested, norm, _penalty(fitted, norm, budget.c), budget)
    if baseline:
        return {name: value for name, value in found.items() if not name.startswith(("support", "status", "gap"))}
    curve = []
    for share in budget.shares if budget.soft else ():
        part = fitted.first(max(1, round(share * len(fitted.X))))
        columns = _against(part, tested, "frobenius", _penalty(part, "frobenius", budget.c), budget)
        curve.append({"sequences": len(part.X), **{k: v for k, v in columns.items() if not isinstance(v, list)}})
    whole = {k: v for k, v in found.items() if (k.endswith("_frobenius") and "soft" in k) or k == "agreement_frobenius"}
    found["curve"] = [*curve, {"sequences": len(fitted.X), **whole}]
    return found


def _penalty(sample: Sample, norm: str, c: float) -> float:
    sizes = sample.row_sizes()
    sizes = sizes[sizes > 0]
    typical = float(np.median(sizes)) if len(sizes) else 1.0
    return c / (typical**2 if norm == "frobenius" else typical)


def _against(sample: Sample, tested: Sample | None, norm: str, C: float | None, budget: SvmBudget) -> dict[str, Any]:
    """One solve, and the head beside it."""
    kind = "" if C is None else "soft_"
    solution, W = _solve(sample, norm, C, budget)
    found: dict[str, Any] = {
        f"status_{kind}{norm}": str(solution.status),
        f"gap_{kind}{norm}": float(solution.certificate.gap),
    }
    if not solution.status.has_solution:
        return found
    margins = sample.margins(sample.W)
    sizes = np.linalg.svd(sample.W, compute_uv=False)
    size = float(np.linalg.norm(sizes)) if norm == "frobenius" else float(sizes.sum())
    if C is None:
        best = float(solution.margin)
        if sample.offset is None:  # an offset has a scale of its own: no margin is free of it
            found[f"margin_ratio_{norm}"] = float(margins.min()) / size / best if size > 0 and best > 0 else None
        if norm == "nuclear":
            found["rank_certified"] = solution.certificate.rank
        else:
            support = solution.support
            found["support_tokens"] = float(support.sum(axis=-1).mean())
            found["support"] = np.concatenate(
                [sample.places[np.nonzero(support)[:2]], np.nonzero(support)[2][:, None]], axis=1
            ).tolist()
    else:
        own = scaled_objective(margins, size, C, squared=norm == "frobenius") if sample.offset is None else 0.0
        reached = sample.margins(W)
        values = np.linalg.svd(W, compute_uv=False)
        reached_size = float(np.linalg.norm(values)) if norm == "frobenius" else float(values.sum())
        best = _objective(reached_size, reached.ravel(), C, norm == "frobenius")
        found[f"soft_ratio_{norm}"] = best / own if own > 0 else None
        if norm == "nuclear":
            found["soft_ratio_nuclear_least"] = float(solution.certificate.lower_bound) / own if own > 0 else None
        found[f"missed_{norm}"] = float((reached < 1 - 1e-6).mean())
    product, length = float(np.sum(W * sample.W)), float(np.linalg.norm(W))
    for name, whole in (("correlation", sample.W), ("correlation_seen", sample.seen_part)):
        overlap = length * float(np.linalg.norm(whole))  # W of the SVM lies where the data see, the product is the same
        found[f"{name}_{kind}{norm}"] = product / overlap if overlap > 0 else None
    if tested is not None:
        hits = tested.logits(W).argmax(axis=-1) == tested.selection
        found[f"agreement_{kind}{norm}"] = float(hits.mean())
    return found


def _solve(sample: Sample, norm: str, C: float | None, budget: SvmBudget) -> tuple[Solution, FloatArray]:
    """The solution in coordinates of the queries' span, and its W.

    Solutions vanish on all that is orthogonal to the queries, and few queries span little: turning them into
    coordinates changes no row and no norm, but makes W narrow and its singular values cheap.
    """
    extra: dict[str, Any] = {"tolerance": budget.tolerance}
    if C is not None and norm == "nuclear":
        extra = {"tolerance": budget.nuclear_gap, "max_iterations": budget.rounds}
    span = _basis(sample.Z.reshape(-1, sample.Z.shape[-1]).astype(np.float64))
    narrow = 0 < span.shape[1] < len(span)
    problem = replace(sample, Z=sample.Z.astype(np.float64) @ span).problem if narrow else sample.problem
    solution = att_svm(
        problem, sample.selection, norm=norm, C=C, loss="hinge" if C is None else "squared_hinge",
        offset=sample.offset, **extra,
    )  # fmt: skip
    W = np.asarray(solution.W)
    return solution, W @ span.T if narrow and solution.status.has_solution else W
