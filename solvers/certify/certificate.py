"""Certificates as data: what W and multipliers prove; `attsvm.solvers.certify.certify_pair` computes them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from copy import copy
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Generic, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from attsvm.solvers.arrays import Count, FloatArray, IntArray, Number, lazy
from attsvm.solvers.margin_problem import EitherProblem
from attsvm.solvers.norms import Norm

if TYPE_CHECKING:
    from attsvm.solvers.certify.farkas import FarkasCertificate
    from attsvm.solvers.certify.proof_file import Origin
    from attsvm.solvers.exact.measures import ExactCertificate

__all__ = [
    "Certificate",
    "CertificateBatch",
    "RankCertificate",
    "RankCertificateBatch",
    "Source",
    "counted",
    "html_facts",
    "largest",
]


@dataclass(frozen=True, eq=False)
class RankCertificate(Generic[Number, Count]):
    """What the dual matrix proves about the rank of every nuclear-norm solution.

    Let D be the dual matrix divided by its largest singular value. Every feasible W has
    ``<D, W> >= lower_bound``, and by von Neumann's trace inequality ``<D, W> <= sum_i sigma_i(D) sigma_i(W)``. So an
    optimal W, whose norm is at most that of the one returned, satisfies

        sum_{i > rank} sigma_i(W) <= (norm - lower_bound) / (1 - sigma_{rank+1}(D)) <= resolution:

    it is a matrix of rank ``rank`` up to ``resolution`` in the nuclear norm. Arrays over the batch for a batch.

    Attributes
    ----------
    rank : int
        Number of singular values of D that reach ``1 - tolerance``: no optimal W has more singular values above
        ``resolution``.
    resolution : float
        See above; rounding included. Infinite when the dual proves nothing.
    numerical_rank : int
        Number of singular values of the returned W above ``tolerance`` times the largest.
    tolerance : float
        Where both counts cut.
    dual_gap : float
        ``1 - sigma_{rank+1}(D)``: how far the first inactive dual singular value stays below 1.
    singular_gap : float
        ``sigma_r(W) / sigma_{r+1}(W)`` at the numerical rank r; infinite when nothing follows.
    dual_singular_values : ndarray, shape (*batch, min(dx, dz))
        Of D.
    """

    rank: Count
    resolution: Number
    numerical_rank: Count
    tolerance: Number
    dual_gap: Number
    singular_gap: Number
    dual_singular_values: FloatArray

    def __repr__(self) -> str:
        if not isinstance(self.resolution, float):
            return f"RankCertificate(of {len(self.resolution)} problems)"
        found = f"rank={self.rank}, resolution={self.resolution:.1e}, numerical_rank={self.numerical_rank}"
        return f"RankCertificate({found}, dual_gap={self.dual_gap:.1e})"

    def __getitem__(self: RankCertificateBatch, index: int) -> RankCertificate:
        """Of one problem of a batch."""
        return RankCertificate(
            self.rank.item(index), self.resolution.item(index), self.numerical_rank.item(index),
            self.tolerance.item(index), self.dual_gap.item(index), self.singular_gap.item(index),
            self.dual_singular_values[index],
        )  # fmt: skip


RankCertificateBatch: TypeAlias = RankCertificate[FloatArray, IntArray]


class Source(NamedTuple):
    """What a certificate was computed from."""

    problem: EitherProblem
    W: FloatArray | None
    multipliers: FloatArray
    norm: Norm | None
    origin: Origin | None = None

    def of(self, index: int) -> Source:
        """Of one problem of a batch."""
        valid = self.problem.valid
        keep = slice(None) if valid is None else valid[index]
        W = None if self.W is None else self.W[index]
        return Source(self.problem[index], W, self.multipliers[index][keep], self.norm)


@dataclass(frozen=True, eq=False)
class Certificate(Generic[Number, Count]):
    """Optimality measures of a pair (W, multipliers); every field is recomputed from the data.

    For a batch every field is an array over the batch; index it to get the certificate of one problem.

    Attributes
    ----------
    primal_violation : float
        Largest amount by which W misses a row, relative to ``max(1, |rhs|)`` of what is asked of the whole W.
    dual_violation : float
        Largest of ``N*(W(lam)) - 1`` and of the negative parts of inequality multipliers (times row norm).
    gap : float
        ``|N(W) - rhs . lam / N*(W(lam))| / N(W)``; of a soft margin the difference of the primal and the dual value,
        relative to the primal one.
    complementarity : float
        Largest ``lam_k |margin_k - rhs_k|`` relative to ``N(W)``.
    norm : float
        N(W).
    lower_bound : float
        Proved lower bound on the norm of every feasible W (soft margin: on the objective of every W): multipliers
        clipped and rescaled to be exactly dual feasible, rounding subtracted.
    primal_error, gap_error : float
        Bounds on what rounding can have hidden from ``primal_violation`` and from ``gap``.
    rank_certificate : RankCertificate or None
        For the nuclear norm.
    farkas : FarkasCertificate or None
        Proof of infeasibility; the other fields are then infinite, never 0.
    soft_objective : float or None
        Primal value of a soft margin, ``r(W)`` plus what the slacks cost; None for a hard one. Nothing is violated
        then: what W misses is paid for.
    """

    primal_violation: Number
    dual_violation: Number
    gap: Number
    complementarity: Number
    norm: Number
    lower_bound: Number
    primal_error: Number
    gap_error: Number
    rank_certificate: RankCertificate[Number, Count] | None = None
    farkas: FarkasCertificate | None = None
    _source: Source | None = field(default=None, repr=False)
    soft_objective: Number | None = None

    @property
    def primal_value(self) -> Number:
        """What was minimized: the norm, or the objective of a soft margin."""
        return self.norm if self.soft_objective is None else self.soft_objective

    @property
    def dual_value(self) -> Number:
        """`lower_bound`: what every other W has at least."""
        return self.lower_bound

    def exact(self, tolerance: float | None = None) -> ExactCertificate:
        """The same claim proved again in rational arithmetic, from the same numbers; small problems.

        Parameters
        ----------
        tolerance : float, optional
            What violation and gap must reach to be called optimal; 1e-8, other norms than Frobenius 1e-7 by default.

        Examples
        --------
        >>> from attsvm.solvers import MarginProblem, solve
        >>> solved = solve(MarginProblem([[3.0], [1.0]], [[1.0]], [0, 0]))
        >>> proved = solved.certificate.exact()
        >>> print(proved.status, proved.violation)
        optimal 0
        >>> print(solve(MarginProblem([[1.0], [-2.0]], [[1.0]], [0, 0])).certificate.exact())
        infeasible, by exact multipliers on rows [0, 1]
        """
        from attsvm.solvers.exact.measures import exact_from_source

        return exact_from_source(self._source, self.farkas, tolerance)

    def save(self: Certificate, path: str | Path) -> tuple[str, ...]:
        """Write the rows, the claim and its proof to a file that anyone can check without this library.

        ``tools/check_certificate.py``, a single file that needs Python alone, accepts or refuses it; docs: "Trust".
        Every claim is proved over the rationals before it is written: W is made exactly feasible, gaps are rounded up.

        Parameters
        ----------
        path : str or Path
            JSON, compressed if the name ends in ``.gz``.

        Returns
        -------
        tuple of str
            The claims that were written: "optimal" to a gap, "rank", "locally optimal", "infeasible", or, where an
            exact proof of infeasibility is too large, "lower bound": no W of moderate norm satisfies the rows.

        Raises
        ------
        ValueError
            For a batch, for l_p norms with p other than 1, 2 and infinity, and where nothing is proved.

        Examples
        --------
        >>> import tempfile
        >>> from attsvm.solvers import MarginProblem, solve
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     solve(MarginProblem([[3.0]], [[1.0]], [0]), "nuclear").certificate.save(f"{folder}/proof.json")
        ('optimal', 'rank')
        """
        from attsvm.solvers.certify.proof_file import proof_record, write_record

        return write_record(proof_record(self, self._source), path)

    def with_origin(self, origin: Origin) -> Certificate[Number, Count]:
        """The same certificate, which knows what its rows were made of."""
        if self._source is None:
            return self
        known = copy(self)
        object.__setattr__(known, "_source", self._source._replace(origin=origin))
        return known

    def _facts(self) -> dict[str, str]:
        if self.farkas is not None:
            return {"proof": f"infeasible, by {self.farkas.proof}", "rows": f"{len(self.farkas.rows)}"}
        measures = ("gap", "primal_violation", "dual_violation")
        facts = {name: largest(getattr(self, name)) for name in measures}
        if not isinstance(self.norm, float):
            return facts
        facts |= {"norm": f"{self.norm:.6g}", "lower_bound": f"{self.lower_bound:.6g}"}
        return facts if self.rank is None else facts | {"rank": f"{self.rank}"}

    def __repr__(self) -> str:
        many, sign = (f"{np.size(self.gap)} problems, ", " <= ") if np.ndim(self.gap) else ("", "=")
        return f"Certificate({many}{', '.join(f'{name}{sign}{value}' for name, value in self._facts().items())})"

    def _repr_html_(self) -> str:
        return html_facts("Certificates, the largest" if np.ndim(self.gap) else "Certificate", self._facts())

    def __getstate__(self) -> dict[str, object]:
        return {**self.__dict__, "_source": None}  # rows may hold functions, which cannot be written

    @property
    def rank(self) -> Count | None:
        """Certified rank (nuclear norm only)."""
        return None if self.rank_certificate is None else self.rank_certificate.rank

    @property
    def worst(self) -> Number:
        """Largest of gap, primal violation and dual violation, as computed."""
        return _largest(self.gap, self.primal_violation, self.dual_violation)

    @lazy
    def proved(self) -> Number:
        """`worst` with the rounding errors added: what may be compared with a tolerance to claim optimality."""
        violation, gap = self.primal_violation + self.primal_error, self.gap + self.gap_error
        return _largest(gap, violation, self.dual_violation)

    def reason(self: Certificate, tolerance: float) -> str:
        """What keeps one solve from being called optimal at a tolerance, and at which tolerance it could be.

        Examples
        --------
        >>> from attsvm.solvers import MarginProblem, certify
        >>> certify(MarginProblem([[2.0]], [[1.0]], [0]), [[0.4]], [0.5]).reason(1e-8)
        'rows are missed by up to 2.0e-01; the norm is proved to within 2.5e-01: proved at a tolerance of 2.5e-01 only'
        """
        if self.farkas is not None:
            return f"no W satisfies the rows, proved by {self.farkas.proof}"
        if not self.proved < np.inf:
            return "no W was found that could be measured"
        found = []
        for what, value, hidden in (
            ("rows are missed by up to", self.primal_violation, self.primal_error),
            ("the norm is proved to within", self.gap, self.gap_error),
        ):
            if value + hidden > tolerance:
                rounding = ", which is rounding" if value <= tolerance else ""
                found.append(f"{what} {value + hidden:.1e}{rounding}")
        if self.dual_violation > tolerance:
            found.append(f"the multipliers miss their constraints by {self.dual_violation:.1e}")
        only = " only" if found else ""
        return f"{'; '.join(found)}{': ' if found else ''}proved at a tolerance of {self.proved:.1e}{only}"

    def __getitem__(self: CertificateBatch, index: int) -> Certificate:
        """Of one problem of a batch."""
        return self.of(index, None if self._source is None else self._source.of(index))

    def of(self: CertificateBatch, index: int, source: Source | None) -> Certificate:
        """Of one problem of a batch, with what it was computed from."""
        ranks, objective = self.rank_certificate, self.soft_objective
        return Certificate(
            self.primal_violation.item(index), self.dual_violation.item(index), self.gap.item(index),
            self.complementarity.item(index), self.norm.item(index), self.lower_bound.item(index),
            self.primal_error.item(index), self.gap_error.item(index), None if ranks is None else ranks[index], None,
            source, None if objective is None else objective.item(index),
        )  # fmt: skip

    @staticmethod
    def unknown(
        farkas: FarkasCertificate | None = None, bound: float = 0.0, source: Source | None = None
    ) -> Certificate:
        """Of a solve that ended without W: infinite, never 0; ``bound`` is what is proved of the norm all the same."""
        inf = float("inf")
        lower = bound if farkas is None else inf
        return Certificate(inf, inf, inf, inf, inf, lower, inf, inf, farkas=farkas, _source=source)

    @staticmethod
    def unknown_batch(size: int) -> CertificateBatch:
        """`unknown` for each of so many problems."""
        inf = np.full(size, np.inf)
        return Certificate(inf, inf, inf, inf, inf, np.zeros(size), inf, inf)


CertificateBatch: TypeAlias = Certificate[FloatArray, IntArray]


def _largest(x: Number, y: Number, z: Number) -> Number:
    return max(x, y, z) if isinstance(x, float) else np.asarray(np.maximum.reduce((x, y, z)))


# -- how certificates and solutions look in a shell and in notebooks ------------------------------------


def largest(value: float | npt.NDArray[np.float64]) -> str:
    """A number, or the largest of an array, to two digits.

    Examples
    --------
    >>> import numpy as np
    >>> from attsvm.solvers.certify.certificate import largest
    >>> largest(0.25), largest(np.array([1e-9, 3e-8]))
    ('2.5e-01', '3.0e-08')
    """
    return f"{np.max(value) + 0.0:.1e}"  # no -0


def counted(values: Iterable[object]) -> str:
    """How often each occurs, as in ``4 optimal, 1 infeasible``.

    Examples
    --------
    >>> from attsvm.solvers.certify.certificate import counted
    >>> counted(["optimal", "optimal", "failed"])
    '2 optimal, 1 failed'
    """
    return ", ".join(f"{count} {value}" for value, count in Counter(map(str, values)).items())


def html_facts(title: str, facts: Mapping[str, object]) -> str:
    """Names and values as a table for notebooks.

    Examples
    --------
    >>> from attsvm.solvers.certify.certificate import html_facts
    >>> "<td>1e-9</td>" in html_facts("Certificate", {"gap": "1e-9"})
    True
    """
    rows = "".join(f"<tr><th>{escape(name)}</th><td>{escape(str(value))}</td></tr>" for name, value in facts.items())
    return f"<table><caption>{escape(title)}</caption><tbody>{rows}</tbody></table>"
