"""What an edit asks of a head: tokens to select, and selections to keep, as rows with names.

The smallest change of a head that makes it select what it should: ``min ||W - W0||`` over the rows of the demands.

A changed W may have more than d_head dimensions. With the queries' map fixed the keys' map is what the same rows are
about (queries become ``Q z``), and the other way round: such an edit fits into the layer as it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, Unpack, get_args, overload

import numpy as np
import numpy.typing as npt

from attsvm.attention import likeliest
from attsvm.export import balanced_factors
from attsvm.margin_options import DEFAULTS, AttSvmOptions, MarginOptions, check_options, method_options, takes
from attsvm.problem import AttentionProblem, require_problem, require_single
from attsvm.records import html_table
from attsvm.selection import Selection, SelectionLike
from attsvm.selection_rows import AttentionRows, selection_rows
from attsvm.solution import ResultView
from attsvm.solvers import InfeasibleError, MarginProblem, MarginSolution, PairRows, Rows, get_norm, solve
from attsvm.solvers.arrays import BoolArray, FloatArray, IntArray
from attsvm.solvers.certify.ranks import count_above
from attsvm.solvers.correction import with_rows_met
from attsvm.solvers.margin_solution import warn_if_inaccurate
from attsvm.trained_head import TrainedHead
from attsvm.user_input import integer_array, real_array, require_choice, require_finite, require_number

if TYPE_CHECKING:
    from collections.abc import Mapping

    import torch

    from attsvm.editing.edited_weights import ModuleT
    from attsvm.trained_head import TrainedHead

KeepLike: TypeAlias = bool | npt.ArrayLike | AttentionProblem | tuple[AttentionProblem, SelectionLike] | None

"""True or a mask (queries of the problem), another problem, or a problem with its selection."""


@dataclass(frozen=True)
class Demand:
    """One row of an edit in words: this query selects one token over another.

    Attributes
    ----------
    kind : {"select", "keep"}
        What the head should select, or selects already and must go on selecting.
    query : tuple of int
        (i,) or (i, k) in the problem of its kind.
    selected, other : int
        Tokens of that sequence.
    multiplier : float
        How much the row drives the edit: by how much the smallest change grows per unit of margin.
    margin : float
        ``(x_selected - x_other)^T W z`` after the edit.
    """

    kind: str
    query: tuple[int, ...]
    selected: int
    other: int
    multiplier: float
    margin: float

    def __str__(self) -> str:
        place = ", ".join(map(str, self.query))
        return f"{self.kind} token {self.selected} over {self.other} for query ({place})"


@dataclass(frozen=True, eq=False)
class _Part:
    """Rows of one kind, of one problem."""

    kind: str
    rows: AttentionRows
    index: IntArray  # of the rows that count
    sides: FloatArray


@dataclass(frozen=True, eq=False)
class Demands:
    """Rows of an edit of W and what each of them means.

    Attributes
    ----------
    rows : Rows
        Of the whole W; tokens that are stored once stay so where one problem has all the rows.
    sides : ndarray, shape (m,)
        Required margins.
    parts : sequence
        Where rows come from, in their order.
    """

    rows: Rows
    sides: FloatArray
    parts: Sequence[_Part]

    def name(self, row: int, multiplier: float = 0.0, margin: float = float("nan")) -> Demand:
        """What a row says."""
        for part in self.parts:
            if row < len(part.index):
                k = int(part.index[row])
                owner = int(part.rows.margin_problem.owner[k])
                anchor, token = int(part.rows.anchors[owner]), int(part.rows.token[k])
                return Demand(part.kind, part.rows.query_index(owner), anchor, token, multiplier, margin)
            row -= len(part.index)
        raise IndexError(f"row {row} is out of range")


def read_demands(
    W0: FloatArray, problem: AttentionProblem, selection: npt.ArrayLike | Selection, margin: float, keep: KeepLike
) -> Demands:
    """Rows of what should be selected (-1: nothing is asked of a query), then of what must be kept."""
    given = require_single(problem, "edit takes one problem")
    require_number("margin", margin, "a positive number", low=0.0)
    wanted = _wanted(given, selection)
    asked = wanted >= 0
    now = likeliest(given, W0)
    filled = np.where(asked, wanted, now)
    rows = selection_rows(given, filled)
    parts = [_part("select", rows, asked, np.full(rows.margin_problem.m, float(margin)))] if asked.any() else []
    parts += _kept(W0, given, rows, asked, float(margin), keep)
    if not parts:
        raise ValueError("selection requests no token: every entry is -1, and keep names no query")
    return _joined(parts)


def _wanted(problem: AttentionProblem, selection: npt.ArrayLike | Selection) -> IntArray:
    """Tokens to select, -1 where nothing is asked, shape of the queries."""
    wanted = np.asarray(
        selection.indices if isinstance(selection, Selection) else integer_array("selection", selection)
    )
    if wanted.shape != problem.query_shape:
        raise ValueError(f"selection must have shape {problem.query_shape}, one token per query, got {wanted.shape}")
    if (wanted < -1).any():
        place = tuple(int(i) for i in np.argwhere(wanted < -1)[0])
        raise ValueError(f"selection must hold tokens, or -1 where nothing is asked, got {wanted[place]} at {place}")
    return wanted


def _joined(parts: list[_Part]) -> Demands:
    """Rows of all parts as those of one problem."""
    sides = np.concatenate([part.sides for part in parts])
    if len(parts) == 1 and len(parts[0].index) == parts[0].rows.margin_problem.m:
        return Demands(parts[0].rows.margin_problem.rows, sides, parts)
    pairs = [part.rows.margin_problem.rows.gather(part.index) for part in parts]
    starts = np.cumsum([0, *(p.q for p in pairs)])
    owner = np.concatenate([p.owner + start for p, start in zip(pairs, starts, strict=False)])
    a = np.concatenate([p.a.astype(np.float64, copy=False) for p in pairs])
    queries = np.concatenate([p.queries.astype(np.float64, copy=False) for p in pairs])
    used, owner = np.unique(owner, return_inverse=True)  # queries without a row are left out
    return Demands(PairRows(a, queries[used], owner), sides, parts)


def _part(kind: str, rows: AttentionRows, queries: BoolArray, sides: FloatArray) -> _Part:
    index = np.flatnonzero(queries.ravel()[rows.margin_problem.owner])
    return _Part(kind, rows, index, sides[index])


def _kept(
    W0: FloatArray, problem: AttentionProblem, rows: AttentionRows, asked: BoolArray, margin: float, keep: KeepLike
) -> list[_Part]:
    """Rows of selections to keep: at least the margin that W0 has, or the asked one where W0 has more."""
    if keep is None or keep is False:
        return []
    if isinstance(keep, AttentionProblem):
        keep = (keep, None)
    if isinstance(keep, tuple):
        other = require_problem(keep[0], "keep")
        if (other.dx, other.dz) != (problem.dx, problem.dz):
            raise ValueError(
                f"keep must hold tokens and queries of dimension {(problem.dx, problem.dz)}, got {(other.dx, other.dz)}"
            )
        now = likeliest(other, W0)
        chosen = now if keep[1] is None else np.asarray(keep[1])
        wrong = np.argwhere(chosen != now) if chosen.shape == now.shape else np.empty((0, 0))
        if len(wrong):
            place = tuple(int(i) for i in wrong[0])
            raise ValueError(
                f"keep must hold what the head selects already, but query {place} selects token {now[place]}, not "
                f"{chosen[place]}; request a new token with selection"
            )
        rows, queries = selection_rows(other, chosen), np.ones(other.query_shape, dtype=bool)
    else:
        queries = ~asked if keep is True else np.asarray(keep)
        if queries.shape != problem.query_shape or queries.dtype != bool:
            raise ValueError(
                f"keep must be True, a problem, or booleans of shape {problem.query_shape}, got shape {queries.shape} "
                f"and dtype {queries.dtype}"
            )
        if (queries & asked).any():
            place = tuple(int(i) for i in np.argwhere(queries & asked)[0])
            raise ValueError(f"keep names query {place}, for which selection requests a token")
        if not queries.any():
            return []
    values = rows.margin_problem.margins(W0)
    return [_part("keep", rows, queries, np.minimum(values, margin))]


def rows_for(of: str, demands: Demands, head: TrainedHead | None, W0: FloatArray) -> tuple[MarginProblem, FloatArray]:
    """The margin problem of the matrix that is edited, and that matrix as it is: W, K^T or Q."""
    if of == "W":
        return MarginProblem.from_rows(demands.rows, demands.sides), W0
    assert head is not None
    pairs = demands.rows.gather(np.arange(demands.rows.m))
    if of == "K":  # x^T K^T (scale Q z): rows of K^T with queries that went through Q
        queries = head.scale * (pairs.queries @ head.query_map.T)
        return MarginProblem(pairs.a, queries, pairs.owner, demands.sides), np.ascontiguousarray(head.key_map.T)
    a = head.scale * (pairs.a @ head.key_map.T)  # (scale K x)^T Q z
    return MarginProblem(a, pairs.queries, pairs.owner, demands.sides), np.asarray(head.query_map)


def scales_of(
    demands: Demands, weights: npt.ArrayLike, problem: AttentionProblem, C: float | None, slack: str, loss: str
) -> FloatArray:
    """What each row and its right-hand side are multiplied by, so that C counts ``weights`` times for its slack.

    With ``xi' = s xi`` the row ``<a b^T, W> >= rhs - xi`` reads ``<s a b^T, W> >= s rhs - xi'``: ``s = w`` turns
    ``C sum xi'`` into ``C sum w xi``, and ``s = sqrt(w)`` does the same to the squared hinge.
    """
    if C is None:
        raise ValueError("weights multiply the penalty of violated rows: they need C=")
    shapes = (problem.query_shape, (*problem.query_shape, problem.T))
    given = real_array("weights", weights).astype(np.float64)
    if given.shape not in shapes:
        raise ValueError(f"weights must have shape {shapes[0]} or {shapes[1]}, got {given.shape}")
    if given.shape == shapes[1] and slack != "row":
        raise ValueError('weights of single tokens need slack="row": a query has one slack')
    require_finite("weights", given)
    if (given < 0).any():
        place = tuple(int(i) for i in np.argwhere(given < 0)[0])
        raise ValueError(f"weights must be nonnegative, but weights{list(place)} is {given[place]}")
    parts = []
    for part in demands.parts:
        if part.kind != "select":
            parts.append(np.ones(len(part.index)))
            continue
        owner = part.rows.margin_problem.owner[part.index]
        flat = given.reshape(-1, problem.T)[owner, part.rows.token[part.index]] if given.shape == shapes[1] else None
        parts.append(given.ravel()[owner] if flat is None else flat)
    found = np.concatenate(parts)
    return found if loss == "hinge" else np.sqrt(found)


def _scaled(rows: MarginProblem, scales: FloatArray) -> MarginProblem:
    """Rows and right-hand sides times a number each."""
    pairs = rows.rows.gather(np.arange(rows.m))
    return MarginProblem(pairs.a * scales[:, None], pairs.queries, pairs.owner, rows.rhs * scales)


Of = Literal["W", "K", "Q"]

# Multipliers below this share of the largest belong to rows that drive nothing.
_DRIVES = 1e-9


@dataclass(frozen=True, eq=False, repr=False)
class Edit(ResultView):
    """The smallest change of a head and its certificate.

    Attributes
    ----------
    of : {"W", "K", "Q"}
        Which matrix changes.
    before : TrainedHead or None
        The head as it was; None when a bare W was given.
    result : MarginSolution
        Of the margin problem of the change.
    demands : Demands
    row_scales : ndarray, shape (m,), or None
        What weights multiplied the rows of that margin problem by, and their right-hand sides; None without weights.
    """

    of: Of
    before: TrainedHead | None
    result: MarginSolution
    demands: Demands
    row_scales: FloatArray | None = None

    @property
    def _base(self) -> FloatArray:
        """The matrix that changes, as it was, in the orientation of the margin problem."""
        prior = self.result.problem.prior
        assert prior is not None
        return prior.W

    @cached_property
    def change(self) -> FloatArray:
        """What is added: to W (dx, dz), to the key map (d_head, dx) or to the query map (d_head, dz)."""
        if self.certificate.farkas is not None:
            raise InfeasibleError(f"no change of {self.of} does what is asked: {self._conflict()}")
        found = self.result.W
        return np.ascontiguousarray(found.T) if self.of == "K" else found

    @property
    def conflicts(self) -> list[Demand]:
        """The demands that contradict each other, of an edit that is impossible."""
        farkas = self.certificate.farkas
        if farkas is None:
            return []
        return [self.demands.name(int(k), float(farkas.multipliers[k])) for k in farkas.rows]

    def _conflict(self) -> str:
        told = [str(demand) for demand in self.conflicts]
        more = f" and {len(told) - 6} more" if len(told) > 6 else ""
        return f"these demands contradict each other: {'; '.join(told[:6])}{more}"

    @property
    def W(self) -> FloatArray:
        """The whole W after the edit, shape (dx, dz)."""
        if self.of == "W":
            return np.asarray(self._base + self.change)
        return self.head.W

    @cached_property
    def head(self) -> TrainedHead:
        """The head after the edit. An edit of W adds its rank to d_head: ``K^T Q`` and the factors side by side."""
        if self.of == "W":
            B, A = self.factors
            if self.before is None:
                left, right = balanced_factors(self.W, 1e-14, least=1)  # all of W: the head must score as it does
                return TrainedHead(left.T, right, 1.0)
            old = self.before
            return TrainedHead(
                np.vstack([old.key_map, B.T]), np.vstack([old.query_map, A / old.scale]), old.scale, old.biased
            )
        assert self.before is not None
        old = self.before
        if self.of == "K":
            return TrainedHead(old.key_map + self.change, old.query_map, old.scale, old.biased)
        return TrainedHead(old.key_map, old.query_map + self.change, old.scale, old.biased)

    @property
    def relative_norm(self) -> float:
        """Norm of the change over that of the matrix as it was, in the norm that was minimized."""
        return self._over(self.norm, float(self.result.norm_kind.values(self._base)))

    @property
    def relative_frobenius(self) -> float:
        """The same in the Frobenius norm, whatever was minimized."""
        return self._over(float(np.linalg.norm(self.change)), float(np.linalg.norm(self._base)))

    @staticmethod
    def _over(change: float, whole: float) -> float:
        return change / whole if whole > 0 else (0.0 if change == 0 else float("inf"))

    @cached_property
    def rank(self) -> int:
        """Certified rank in the nuclear norm (no smallest edit has more), numerical rank in the others."""
        if self.certificate.rank is not None:
            return self.certificate.rank
        return int(count_above(np.linalg.svd(self.change, compute_uv=False)))

    @cached_property
    def factors(self) -> tuple[FloatArray, FloatArray]:
        """``(B, A)`` with ``change = B A``, balanced: what a LoRA update with scaling 1 holds, rank numerical."""
        return balanced_factors(self.change)

    @cached_property
    def driving(self) -> list[Demand]:
        """The demands that the edit rests on (positive multiplier), those that cost most first."""
        if self.certificate.farkas is not None or not self.norm > 0:
            return []
        lam = self.result.multipliers if self.row_scales is None else self.result.multipliers * self.row_scales
        margins = self.demands.rows.margins(self.W)
        rows = [int(k) for k in np.argsort(-lam) if lam[k] > _DRIVES * lam.max()]
        return [self.demands.name(k, float(lam[k]), float(margins[k])) for k in rows]

    @property
    def violation(self) -> float:
        """Largest amount by which the edited head, as it stands, misses a demand; 0 when it meets all."""
        return float(max(0.0, (self.demands.sides - self.demands.rows.margins(self.W)).max()))

    def selected(self, problem: AttentionProblem) -> npt.NDArray[np.int64]:
        """Tokens that the edited head selects, shape ``problem.query_shape``."""
        return likeliest(problem, self.W)

    @overload
    def apply_to(
        self,
        target: ModuleT,
        *,
        layer: str | None = ...,
        head: int | None = ...,
        check: bool = ...,
        inplace: bool = ...,
        shared: bool = ...,
    ) -> ModuleT: ...
    @overload
    def apply_to(
        self,
        target: Mapping[str, torch.Tensor],
        *,
        layer: str | None = ...,
        head: int | None = ...,
        check: bool = ...,
        inplace: bool = ...,
        shared: bool = ...,
    ) -> dict[str, torch.Tensor]: ...
    def apply_to(
        self,
        target: torch.nn.Module | Mapping[str, torch.Tensor],
        *,
        layer: str | None = None,
        head: int | None = None,
        check: bool = True,
        inplace: bool = False,
        shared: bool = False,
    ) -> torch.nn.Module | dict[str, torch.Tensor]:
        """The edit in a torch model or a state dict; see `attsvm.editing.edited_weights.apply_to`.

        Parameters
        ----------
        target : torch.nn.Module or dict of str to Tensor
        layer : str, optional
            Name of the attention module (``"h.3.attn"``, ``"encoder.layer.0.attention.self"``, or none where the target
            is the module itself), or of the linear layer of its keys (``of="K"``) or queries (``of="Q"``), as in a
            state dict. The place of a head from `attsvm.capture` by default.
        head : int, optional
            Which head of it; by default that of the captured head, else 0.
        check : bool
            Refuse weights that are not those that the edit was computed for.
        inplace : bool
            Change the target itself instead of a copy.
        shared : bool
            Write an edit whose weights other heads (keys of grouped queries) or other layers (ALBERT) share, too; it is
            refused otherwise, for its certificate is about one head in one layer.

        Returns
        -------
        The module or state dict with the edit; the tensors that did not change are shared with a state dict that was
        given, and copied with a module.

        Raises
        ------
        ValueError
            By name: for an edit of W, which needs more than d_head dimensions; for rotated (RoPE) or normalized
            (QK-norm) queries, unless the head was captured with ``of="Q"``; for weights that are shared, or not those
            of the edit.
        """
        from attsvm.editing.edited_weights import apply_to

        return apply_to(self, target, layer=layer, head=head, check=check, inplace=inplace, shared=shared)

    def write_adapter(
        self, folder: str | Path, *, layer: str, heads: int, head: int = 0, config: Mapping[str, Any] | None = None
    ) -> Path:
        """Write the edit as adapter files that PEFT loads; see `attsvm.editing.edited_weights.write_adapter`."""
        from attsvm.editing.edited_weights import write_adapter

        return write_adapter(self, folder, layer=layer, heads=heads, head=head, config=config)

    def __repr__(self) -> str:
        if not self.status.has_solution:
            return f"Edit(of {self.of}, {self.result.norm_kind.name}, {self.status})"
        share = self.relative_norm
        size = f"{100 * share:.3g} % of ||{self.of}||" if np.isfinite(share) else f"norm {self.norm:.4g}"
        found = f"rank {self.rank}, {len(self.driving)} driving rows, gap={self.certificate.gap:.1e}"
        return f"Edit(of {self.of}, {self.result.norm_kind.name}, {self.status}, {size}, {found})"

    def _repr_html_(self) -> str:
        facts: dict[str, object] = {"status": f"{self.status}: {self.status.advice}"}
        if not self.status.has_solution:
            told = [str(demand) for demand in self.conflicts]
            facts |= {f"contradiction {k + 1}": demand for k, demand in enumerate(told[:_SHOWN])}
            return html_table(f"Edit of {self.of}, {self.result.norm_kind.name} norm", facts)
        driving = self.driving
        facts |= {
            f"size, as a share of ||{self.of}||": f"{self.relative_norm:.3%}",
            "rank": self.rank,
            "largest demand missed by": f"{self.violation:.1e}",
            "gap": f"{self.certificate.gap:.1e}",
            "driving demands": len(driving),
        }
        facts |= {
            f"driving {k + 1}": f"{demand} ({demand.multiplier:.3g})" for k, demand in enumerate(driving[:_SHOWN])
        }
        return html_table(f"Edit of {self.of}, {self.result.norm_kind.name} norm", facts)


_SHOWN = 6  # demands in a table for notebooks


@takes(MarginOptions)
def edit(
    head: TrainedHead | npt.ArrayLike,
    problem: AttentionProblem,
    selection: npt.ArrayLike | Selection,
    *,
    of: Of = "W",
    keep: KeepLike = None,
    rank: int | None = None,
    margin: float = 1.0,
    weights: npt.ArrayLike | None = None,
    **options: Unpack[MarginOptions],
) -> Edit:
    """The smallest change of a head that makes it select the given tokens, with proof.

    Minimize ``||W - W0||`` subject to ``(x_selected - x_t)^T W z >= margin`` for every allowed token t of every query.
    With C demands may be missed at a cost, and rows to keep cost as much. The nuclear norm gives a change of low rank.

    Parameters
    ----------
    head : TrainedHead or array_like, shape (dx, dz)
        The head, or its W0 (for ``of="W"``).
    problem : AttentionProblem
        Tokens and queries; of a head with biases with the constant 1 behind them (`TrainedHead.extend`).
    selection : array_like of int, shape (n,) or (n, K)
        The tokens that should be selected; -1 where nothing is asked.
    of : {"W", "K", "Q"}
        Change W as a whole, or only the map of the keys or of the queries, which keeps the architecture.
    keep : True, array_like of bool, AttentionProblem, or (AttentionProblem, selection), optional
        What must go on being selected: by the queries without a demand (True, or those marked), or by the queries of
        another problem. Each row keeps the margin that it has, or ``margin`` where it has more. A selection that is
        given must be the head's own.
    rank : int, optional
        Largest rank of the change (nuclear norm; see `att_svm`).
    margin : float
        What each selected token must lead by, in logits.
    weights : array_like, shape ``query_shape`` or (with ``slack="row"``) ``query_shape + (T,)``, optional
        With C: the penalty of each selection is C times its weight. Selections to keep have weight 1.
    **options
        Passed to the solver: ``tolerance``, ``max_iterations``, ``time_limit``, ...
        All keywords: `attsvm.margin_options.MarginOptions`.

    Returns
    -------
    Edit

    Examples
    --------
    >>> import numpy as np
    >>> import attsvm
    >>> from attsvm.trained_head import TrainedHead
    >>> rng = np.random.default_rng(0)
    >>> head = TrainedHead.from_weights(rng.normal(size=(4, 10)), rng.normal(size=(4, 10)))
    >>> problem = attsvm.AttentionProblem(rng.normal(size=(6, 5, 10)), Z=rng.normal(size=(6, 10)))
    >>> wanted = [2, 0, -1, -1, -1, -1]  # two queries to correct
    >>> smallest = attsvm.edit(head, problem, wanted, of="K", keep=True, norm="nuclear")
    >>> smallest.selected(problem)[:2], smallest.violation < 1e-9
    (array([2, 0]), True)
    >>> smallest.rank, [factor.shape for factor in smallest.factors]
    (1, [(4, 1), (1, 10)])
    """
    check_options("edit", MarginOptions, options, "warm_start")
    asked: AttSvmOptions = {**DEFAULTS, **options}
    require_choice("of", of, *get_args(Of))
    trained = head if isinstance(head, TrainedHead) else None
    if trained is None and of != "W":
        raise ValueError(f"of={of!r} needs a TrainedHead with its key and query maps, got a bare W")
    W0 = trained.W if trained is not None else np.asarray(head, dtype=np.float64)
    if W0.shape != (problem.dx, problem.dz):
        hint = "; extend(hidden) appends the constant 1 of the biases" if trained is not None and trained.biased else ""
        raise ValueError(
            f"problem must have (dx, dz) = {W0.shape}, the shape of W, got {(problem.dx, problem.dz)}{hint}"
        )
    require_finite("head", W0)
    demands = read_demands(W0, problem, selection, margin, keep)
    rows, base = rows_for(of, demands, trained, W0)
    scales = None
    if weights is not None:
        scales = scales_of(demands, weights, problem, asked["C"], asked["slack"], asked["loss"])
        rows = _scaled(rows, scales)
    near = rows.around(base).soft(asked["C"], asked["slack"], asked["loss"])
    norm, method = asked["norm"], method_options(MarginOptions, options)
    bound = get_norm(norm).rank_bound(near.q, near.shape)
    limit = None if rank is None or rank >= bound else rank
    solved = solve(near, norm, asked["solver"], rank=limit, **method)
    warn_if_inaccurate(solved)
    if limit is None:  # what must be kept is kept to rounding, not to the tolerance of a method
        solved = with_rows_met(solved)
    return Edit(of, trained, solved, demands, scales)
