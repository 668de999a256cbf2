"""Certificates as files: a claim, the rows that it is about, and the rational numbers that prove it.

The format is described in docs/trust.md; `tools/check_certificate.py` checks a file without this library. Every number
is exact: a float64 is a rational, written as a hexadecimal float, and what no float holds is a quotient of integers.
Each claim is made as strong as the numbers prove it over the rationals, whatever float64 said before:

- W is first made to satisfy every row exactly, by a longer W or, in small problems, by the nearest feasible one;
- gap, resolution and violation are computed exactly and rounded up;
- a proof of infeasibility is made of integers that cancel the rows exactly. Where that is too large, the claim is the
  weaker one that no W of moderate norm exists.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Mapping, Sequence
from fractions import Fraction
from importlib.metadata import PackageNotFoundError, version
from math import lcm
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from attsvm.solvers.arrays import FloatArray
from attsvm.solvers.exact.measures import EXACT_ENTRIES, exact_rows_of, root_bounds, rounded_up
from attsvm.solvers.margin_problem import MarginProblem, is_batch

if TYPE_CHECKING:
    from flint import fmpq, fmpq_mat

    from attsvm.solvers.certify.certificate import Certificate, Source
    from attsvm.solvers.exact import ExactFarkas, ExactRows

__all__ = [
    "LARGEST_FILE",
    "NORMS_IN_FILES",
    "Origin",
    "Proof",
    "Record",
    "cancelling_integers",
    "file_record",
    "number_text",
    "numbers_text",
    "proof_record",
    "write_record",
]

Record = dict[str, object]
_Fields = tuple[Record, list[Record]]

# What the checker reads.
LARGEST_FILE = 1 << 25
_LARGEST_ROWS, _LARGEST_PRODUCTS = 8_000_000, 100_000_000
NORMS_IN_FILES = ("frobenius", "nuclear", "spectral", "l1", "linf")
_DUAL = {"frobenius": "frobenius", "nuclear": "spectral", "spectral": "nuclear", "l1": "linf", "linf": "l1"}
# Bounds on singular values exceed the computed ones by this share, far more than LAPACK errs.
_ROOM = 2.0**-40
# A gap that is exactly 0 in exact arithmetic: square roots are rounded up by 2^-150.
_LEAST_GAP = 2.0**-100


class Proof(NamedTuple):
    """W and multipliers that a file will hold, as rationals.

    Attributes
    ----------
    W : fmpq_mat, shape (dx, dz)
    weights : list of fmpq, length m
        Nonnegative on inequality rows.
    """

    W: fmpq_mat
    weights: list[fmpq]


class Origin(Protocol):
    """What rows were made of: writes the problem in the words of its user, and claims that are about more than rows."""

    def problem_record(self) -> Record:
        """Fields from which a reader builds the same rows, in the same order."""
        ...

    def more_claims(self, rows: ExactRows, proof: Proof) -> tuple[Proof, list[Record], Record]:
        """Claims beside those about rows, what they need in the problem's record, and the numbers that prove them."""
        ...


def number_text(value: float | int | Fraction | fmpq) -> str:
    """A number as exact text: a short integer, a hexadecimal float, or a quotient of hexadecimal integers.

    Examples
    --------
    >>> from fractions import Fraction
    >>> from attsvm.solvers.certify.proof_file import number_text
    >>> number_text(0.1), number_text(-3.0), number_text(Fraction(1, 3))
    ('0xccccccccccccdp-55', '-3', '0x1/0x3')
    >>> float.fromhex(number_text(0.1)) == 0.1
    True
    """
    if isinstance(value, float | int | Fraction):
        top, bottom = value.as_integer_ratio()
    else:
        top, bottom = int(value.p), int(value.q)
    if bottom == 1 and abs(top) < 10**9:
        return f"{top}"
    power = bottom.bit_length() - 1
    if bottom == 1 << power and power < 10_000:
        zeros = (top & -top).bit_length() - 1 if power == 0 else 0
        return f"{top >> zeros:#x}p{zeros - power:+d}"
    return f"{top:#x}/{bottom:#x}"


def numbers_text(values: npt.ArrayLike) -> list[object]:
    """An array of floats as nested lists of text.

    Examples
    --------
    >>> from attsvm.solvers.certify.proof_file import numbers_text
    >>> numbers_text([[0.5, 2.0]])
    [['0x1p-1', '2']]
    """
    array = np.asarray(values, dtype=np.float64)
    if array.ndim > 1:
        return [numbers_text(part) for part in array]
    return [number_text(x) for x in array.tolist()]


def _rows_record(problem: MarginProblem) -> Record:
    pair = problem.pairs()
    left = [[number_text(x) for x in row] for row in pair.exact_left().tolist()]
    return {"kind": "rows", "left": left, "queries": numbers_text(pair.queries), "owner": pair.owner.tolist()}


def _sides_record(problem: MarginProblem) -> Record:
    """Right-hand sides, equalities, prior and penalty, where they are not the usual ones."""
    out: Record = {}
    if (problem.asked != 1).any():
        out["rhs"] = numbers_text(problem.asked)
    if problem.equality.any():
        out["equality"] = problem.equality.astype(int).tolist()
    if problem.prior is not None:
        out["prior"] = numbers_text(problem.prior.W)
    penalty = problem.single_penalty
    if penalty is not None:
        out["penalty"] = {"C": number_text(penalty.C), "slack": penalty.slack, "loss": penalty.loss}
    return out


def _assumed(problem: Record) -> list[str]:
    given = problem["kind"] == "attention" and ("rhs" in problem or "equality" in problem)
    found = ["right-hand sides as given"] * given + ["rows as given"] * (problem["kind"] == "rows")
    return found + ["scores as given"] * ("scores" in problem)


def file_record(problem: Record, norm: str, fields: Record, claims: list[Record]) -> Record:
    """The whole file: its version, what its reader has to believe, the problem, the claims and their proofs.

    Examples
    --------
    >>> from attsvm.solvers.certify.proof_file import file_record
    >>> file_record({"kind": "rows"}, "l1", {}, [{"claim": "infeasible"}])["assumes"]
    ['rows as given']
    """
    try:
        maker = f"attsvm {version('attsvm')}"
    except PackageNotFoundError:
        maker = "attsvm"
    head: Record = {"format": "attsvm certificate", "version": 1, "made_by": maker}
    return head | {"assumes": _assumed(problem), "problem": problem, "norm": norm} | fields | {"claims": claims}


def _whole(value: fmpq) -> Fraction:
    return Fraction(int(value.p), int(value.q))


def _violation(rows: ExactRows, W: fmpq_mat, allowance: Sequence[Fraction]) -> Fraction:
    """Largest amount by which W misses a row, relative to what is allowed."""
    worst = Fraction(0)
    for slack, equal, unit in zip(rows.slacks(W), rows.equality.tolist(), allowance, strict=True):
        if slack < 0 or (equal and slack != 0):
            worst = max(worst, abs(_whole(slack)) / unit)
    return worst


def _made_feasible(rows: ExactRows, W: FloatArray, size: int) -> fmpq_mat:
    """W, or a matrix near it that satisfies the rows exactly: a longer one in float64, or the nearest in rationals."""
    from attsvm.solvers.exact import repair
    from attsvm.solvers.exact.rows import rational_matrix, to_float

    matrix = rational_matrix("W", W, rows.shape)
    if rows.violation(matrix) == 0:
        return matrix
    margins = rows.margins(matrix)
    ratios = [r / v for r, v in zip(rows.rhs, margins, strict=True) if r > 0 and v > 0]
    growth = to_float(max(ratios)) if ratios else 1.0
    for room in (2.0**-51, 2.0**-48, 2.0**-44, 2.0**-40):
        longer = rational_matrix("W", W * (max(growth, 1.0) * (1.0 + room)), rows.shape)
        if growth < 2.0 and rows.violation(longer) == 0:
            return longer
    met = repair(rows, matrix) if size <= EXACT_ENTRIES else None
    return matrix if met is None else met


def _squared(matrix: fmpq_mat) -> Fraction:
    numerator, denominator = matrix.numer_denom()
    return Fraction(sum(int(x) ** 2 for x in numerator.entries()), int(denominator) ** 2)


def _factors(matrix: fmpq_mat, columns: int | None = None) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Float matrices with ``P Q^T`` near the matrix, of equal lengths, and its singular values."""
    from attsvm.solvers.exact import nearest

    U, s, Vt = np.linalg.svd(nearest(matrix), full_matrices=False)
    keep = max(1, int((s > 1e-14 * s[0]).sum())) if columns is None else columns
    root = np.sqrt(s[:keep])
    return U[:, :keep] * root, Vt[:keep].T * root, s


def _minus_product(matrix: fmpq_mat, P: FloatArray, Q: FloatArray) -> fmpq_mat:
    from attsvm.solvers.exact.rows import rational_matrix

    return matrix - rational_matrix("P", P) * rational_matrix("Q", Q).transpose()


def _norm_above(matrix: fmpq_mat, norm: str) -> tuple[Fraction, Record]:
    """An upper bound of a norm and what the checker needs to find it."""
    entries = [abs(_whole(x)) for x in matrix.entries()]
    largest = max(entries)
    if largest == 0:
        return Fraction(0), {}
    if norm == "linf":
        return largest, {}
    if norm == "l1":
        return sum(entries, Fraction(0)), {}
    if norm == "frobenius":
        return _above(_squared(matrix)), {}
    P, Q, s = _factors(matrix)
    if norm == "spectral":
        bound = float(s[0]) * (1.0 + _ROOM)
        return Fraction(bound), {"at_most": number_text(bound)}
    half = sum((Fraction(x) ** 2 for x in [*P.ravel().tolist(), *Q.ravel().tolist()]), Fraction(0)) / 2
    rest = _squared(_minus_product(matrix, P, Q)) * min(matrix.nrows(), matrix.ncols())
    return half + _above(rest), {"factors": [numbers_text(P), numbers_text(Q)]}


def _above(square: Fraction) -> Fraction:
    upper = root_bounds(square)[1]
    if not upper < np.inf:
        raise ValueError("the numbers of this certificate leave the range of float64")
    return Fraction(upper)


def _clipped(rows: ExactRows, multipliers: FloatArray) -> list[fmpq]:
    from attsvm.solvers.exact.rows import rational

    lam = np.where(rows.equality, multipliers, np.maximum(multipliers, 0.0)).tolist()
    return [rational(x) for x in lam]


def _dot(rows: ExactRows, weights: Sequence[fmpq]) -> Fraction:
    return sum((_whole(r) * _whole(y) for r, y in zip(rows.rhs, weights, strict=True) if y != 0), Fraction(0))


def _hard(problem: MarginProblem, rows: ExactRows, proof: Proof, norm: str, rank: int | None) -> _Fields:
    """Of a hard margin: W, multipliers and bounds, and the claims that they prove."""
    above, hint = _norm_above(proof.W, norm)
    D = rows.combination(proof.weights)
    dual, dual_hint = _norm_above(D, _DUAL[norm])
    value = _dot(rows, proof.weights)
    violation = _violation(rows, proof.W, [max(Fraction(1), abs(Fraction(c))) for c in problem.asked.tolist()])
    gap = 1 - value / (above * dual) if above * dual > 0 else Fraction(int(above > 0))
    if gap >= 1:
        raise ValueError("the multipliers prove no positive lower bound: there is nothing to certify")
    claim: Record = {"claim": "optimal", "gap": number_text(max(rounded_up(gap), _LEAST_GAP))}
    if violation:
        claim["violation"] = number_text(rounded_up(violation))
    bounds = {name: found for name, found in (("norm", hint), ("dual_norm", dual_hint)) if found}
    claims = [claim]
    if norm == "nuclear" and rank is not None and not violation and dual > 0:
        claims += _rank_claim(D, rank, dual, dual * above - value, bounds)
    return _numbers(proof, bounds), claims


def _rank_claim(D: fmpq_mat, rank: int, dual: Fraction, excess: Fraction, bounds: dict[str, Record]) -> list[Record]:
    """The claim about the rank of every solution; the next singular value of D must stay below the largest."""
    P, Q, s = _factors(D, rank)
    after = float(s[rank]) if rank < len(s) else 0.0
    most = after * (1.0 + _ROOM) + float(s[0]) * 2.0**-38
    if not Fraction(most) < dual:
        return []
    factors: Record = {"factors": [numbers_text(P), numbers_text(Q)]} if rank else {}
    bounds["rank"] = {"at_most": number_text(most)} | factors
    resolution = max(rounded_up(excess / (dual - Fraction(most))), 2.0**-1000)
    return [{"claim": "rank", "rank": rank, "resolution": number_text(resolution)}]


def _soft(problem: MarginProblem, rows: ExactRows, source: Source, norm: str) -> _Fields:
    """Of a soft margin: the best admissible multiple of the multipliers, and the gap of the two values."""
    from attsvm.solvers.exact.rows import rational, rational_matrix

    penalty = problem.single_penalty
    assert penalty is not None and source.W is not None
    weights = _clipped(rows, source.multipliers)
    lam = np.array([float(_whole(y)) for y in weights])
    size = np.linalg.norm(problem.adjoint(lam)) ** 2
    loads = penalty.loads(lam, problem.owner, problem.q)
    curve = 2.0 * penalty.conjugate(loads) + (size if norm == "frobenius" else 0.0)
    best = float(problem.rhs @ lam) / curve if curve > 0 else 1.0
    room = penalty.C / max(float(loads.max()), 1e-300) if penalty.loss == "hinge" else np.inf
    if norm != "frobenius":
        room = min(room, 1.0 / max(float(_norm_above(rows.combination(weights), _DUAL[norm])[0]), 1e-300))
        best = room if penalty.loss == "hinge" else best
    multiple = rational(max(0.0, min(best, room * (1.0 - _ROOM))))
    proof = Proof(rational_matrix("W", source.W, rows.shape), [y * multiple for y in weights])
    above, hint = _norm_above(proof.W, norm)
    D = rows.combination(proof.weights)
    _, dual_hint = _norm_above(D, _DUAL[norm])
    primal, lost = _soft_values(problem, rows, proof)
    if norm == "frobenius":
        primal, lost = primal + _squared(proof.W) / 2, lost + _squared(D) / 2
    else:
        primal += above
    gap = 1 - (_dot(rows, proof.weights) - lost) / primal if primal > 0 else Fraction(0)
    if gap >= 1:
        raise ValueError("the multipliers prove no positive lower bound: there is nothing to certify")
    bounds = {name: found for name, found in (("norm", hint), ("dual_norm", dual_hint)) if found}
    return _numbers(proof, bounds), [{"claim": "optimal", "gap": number_text(max(rounded_up(gap), _LEAST_GAP))}]


def _soft_values(problem: MarginProblem, rows: ExactRows, proof: Proof) -> tuple[Fraction, Fraction]:
    """The cost of the slacks of W, and what the conjugate of the penalty takes from the dual value."""
    penalty = problem.single_penalty
    assert penalty is not None
    C, slacks, loads = Fraction(penalty.C), dict[int, Fraction](), dict[int, Fraction]()
    sizes = zip(problem.owner.tolist(), rows.slacks(proof.W), rows.equality.tolist(), proof.weights, strict=True)
    for k, (owner, slack, equal, y) in enumerate(sizes):
        j = k if penalty.slack == "row" else owner
        missed = abs(_whole(slack)) if equal else max(-_whole(slack), Fraction(0))
        slacks[j], loads[j] = max(slacks.get(j, missed), missed), loads.get(j, Fraction(0)) + abs(_whole(y))
    if penalty.loss == "hinge":
        return C * sum(slacks.values(), Fraction(0)), Fraction(0)
    cost = sum((x * x for x in slacks.values()), Fraction(0))
    return C * cost, sum((s * s for s in loads.values()), Fraction(0)) / (4 * C)


def _numbers(proof: Proof, bounds: Mapping[str, Record]) -> Record:
    W = [[number_text(x) for x in line] for line in proof.W.tolist()]
    record: Record = {"W": W, "multipliers": [number_text(y) for y in proof.weights]}
    return record | ({"bounds": bounds} if bounds else {})


def cancelling_integers(proof: ExactFarkas) -> list[int]:
    """The multipliers of a proof of infeasibility as integers, length m: any positive multiple is a proof.

    Examples
    --------
    >>> from attsvm.solvers.certify.proof_file import cancelling_integers
    >>> from attsvm.solvers.exact import exact_farkas, exact_rows
    >>> cancelling_integers(exact_farkas(exact_rows([[1.0], [-3.0]], [[1.0]], [0, 0])))
    [3, 1]
    """
    common = lcm(*(int(y.q) for y in proof.values))
    whole = [0] * proof.m
    for k, y in zip(proof.rows.tolist(), proof.values, strict=True):
        whole[k] = int(y.p) * (common // int(y.q))
    return whole


def _infeasible(rows: ExactRows, multipliers: FloatArray) -> _Fields:
    """Of a proof that no W satisfies the rows; of a bound on its norm where exact proofs are too large."""
    from attsvm.solvers.exact import exact_farkas
    from attsvm.solvers.exact.feasibility import rows_by_weight

    support = rows_by_weight(rows, multipliers)[1]
    if len(support) * rows.shape[0] * rows.shape[1] <= EXACT_ENTRIES:
        proof = exact_farkas(rows, multipliers)
        if proof is None:
            raise ArithmeticError("the rows can be satisfied exactly: the proof of infeasibility is wrong, a bug")
        whole = cancelling_integers(proof)
        return {"multipliers": [number_text(y) for y in whole]}, [{"claim": "infeasible"}]
    weights = _clipped(rows, multipliers)
    dual = _above(_squared(rows.combination(weights)))
    bound = _dot(rows, weights) / dual
    below = float(np.nextafter(float(bound), 0.0))
    return {"multipliers": [number_text(y) for y in weights]}, [{"claim": "lower bound", "norm": number_text(below)}]


def _require(source: Source | None) -> Source:
    if source is None:
        raise ValueError("save() needs the problem that the certificate is about: take it from a solution or certify")
    if is_batch(source.problem):
        raise ValueError("a certificate file is about one problem; index the batch first, e.g. solution[0]")
    norm = "frobenius" if source.norm is None else source.norm.name
    if norm not in NORMS_IN_FILES:
        raise ValueError(
            f"certificate files are for the norms {', '.join(NORMS_IN_FILES)}, which rationals bound; got {norm!r}"
        )
    problem = source.problem
    (dx, dz), q, m = problem.shape, problem.q, problem.m
    if m * dx > _LARGEST_ROWS or q * dx * dz > _LARGEST_PRODUCTS:
        raise ValueError(f"certificate files are for smaller problems than {m} rows, {q} queries and W {dx} x {dz}")
    return source


def proof_record(certificate: Certificate, source: Source | None) -> Record:
    """What `Certificate.save` writes, as data.

    Examples
    --------
    >>> from attsvm.solvers import MarginProblem, solve
    >>> from attsvm.solvers.certify.proof_file import proof_record
    >>> certificate = solve(MarginProblem([[2.0]], [[1.0]], [0])).certificate
    >>> record = proof_record(certificate, certificate._source)
    >>> record["W"], record["claims"][0]["claim"], record["assumes"]
    ([['0x1p-1']], 'optimal', ['rows as given'])
    """
    known = _require(source)
    problem = known.problem
    assert not is_batch(problem)
    rows, origin = exact_rows_of(problem), known.origin
    described = _rows_record(problem) if origin is None else origin.problem_record()
    described |= _sides_record(problem)
    norm = "frobenius" if known.norm is None else known.norm.name
    if certificate.farkas is not None:
        fields, claims = _infeasible(rows, certificate.farkas.multipliers)
    elif known.W is None or not (np.isfinite(known.W).all() and np.isfinite(known.multipliers).all()):
        raise ValueError("save() has nothing to prove: the solve ended without W and without a proof")
    elif problem.penalty is not None:
        fields, claims = _soft(problem, rows, known, norm)
    else:
        proof = Proof(_made_feasible(rows, known.W, problem.m * known.W.size), _clipped(rows, known.multipliers))
        more: list[Record] = []
        if origin is not None and norm == "frobenius" and set(described) <= _SELECTION_FIELDS:
            proof, more, needed = origin.more_claims(rows, proof)
            described |= needed
        fields, claims = _hard(problem, rows, proof, norm, certificate.rank)
        claims += more
    return file_record(described, norm, fields, claims)


# A problem of a selection with margins of 1.
_SELECTION_FIELDS = {"kind", "tokens", "queries", "selected", "allowed"}


def write_record(record: Record, path: str | Path) -> tuple[str, ...]:
    """Write a record as JSON, compressed if the name ends in .gz; the names of its claims.

    Examples
    --------
    >>> import tempfile
    >>> from attsvm.solvers.certify.proof_file import write_record
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write_record({"claims": [{"claim": "infeasible"}]}, f"{folder}/proof.json.gz")
    ('infeasible',)
    """
    data = json.dumps(record, separators=(",", ":")).encode()
    if len(data) > LARGEST_FILE:
        raise ValueError(f"the certificate would have {len(data)} bytes; certificate files have at most {LARGEST_FILE}")
    file = Path(path)
    file.write_bytes(gzip.compress(data, mtime=0) if file.suffix == ".gz" else data + b"\n")
    claims = record["claims"]
    assert isinstance(claims, list)
    return tuple(str(claim["claim"]) for claim in claims)
