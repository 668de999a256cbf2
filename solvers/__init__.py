"""Numerics: rank-one margin problems, their solvers and certificates. Knows nothing of attention."""

from attsvm.solvers.certificate import Certificate, CertificateBatch, RankCertificate
from attsvm.solvers.certify import certify, certify_batch
from attsvm.solvers.dispatch import solve, solve_batch
from attsvm.solvers.farkas import FarkasCertificate, certify_infeasible
from attsvm.solvers.infeasible import find_farkas
from attsvm.solvers.memory import MemoryLimitError
from attsvm.solvers.norms import NORMS, Norm, get_norm
from attsvm.solvers.pairs import PairRows
from attsvm.solvers.penalty import Penalty
from attsvm.solvers.problem import MarginProblem
from attsvm.solvers.registry import SOLVERS, SolverSpec
from attsvm.solvers.rows import Rows
from attsvm.solvers.shared_rows import SharedRows
from attsvm.solvers.solution import Extras, MarginSolution, MarginSolutionBatch, RankLimit
from attsvm.solvers.status import InfeasibleError, NoSolutionError, Status

__all__ = [
    "NORMS",
    "SOLVERS",
    "Certificate",
    "CertificateBatch",
    "Extras",
    "FarkasCertificate",
    "InfeasibleError",
    "MarginProblem",
    "MarginSolution",
    "MarginSolutionBatch",
    "MemoryLimitError",
    "NoSolutionError",
    "Norm",
    "PairRows",
    "Penalty",
    "RankCertificate",
    "RankLimit",
    "Rows",
    "SharedRows",
    "SolverSpec",
    "Status",
    "certify",
    "certify_batch",
    "certify_infeasible",
    "find_farkas",
    "get_norm",
    "solve",
    "solve_batch",
]
