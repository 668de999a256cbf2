"""Numerics: rank-one margin problems, their solvers and certificates. Knows nothing of attention."""

from attsvm.solvers.certify.certificate import Certificate, CertificateBatch, RankCertificate
from attsvm.solvers.certify.certify_pair import certify
from attsvm.solvers.certify.farkas import FarkasCertificate, certify_infeasible
from attsvm.solvers.frobenius.conflicts import find_farkas
from attsvm.solvers.ladder import SOLVERS, SolverSpec
from attsvm.solvers.margin_problem import MarginProblem, MarginProblemBatch
from attsvm.solvers.margin_solution import Extras, MarginSolution, MarginSolutionBatch, RankLimit
from attsvm.solvers.memory import MemoryLimitError
from attsvm.solvers.norms import NORMS, Norm, get_norm
from attsvm.solvers.penalty import Penalty
from attsvm.solvers.rows.pairs import PairRows
from attsvm.solvers.rows.protocol import Rows
from attsvm.solvers.rows.shared import SharedRows
from attsvm.solvers.solve import solve, solve_batch
from attsvm.solvers.status import ConvergenceWarning, DegenerateError, InfeasibleError, NoSolutionError, Status

__all__ = [
    "NORMS",
    "SOLVERS",
    "Certificate",
    "CertificateBatch",
    "ConvergenceWarning",
    "DegenerateError",
    "Extras",
    "FarkasCertificate",
    "InfeasibleError",
    "MarginProblem",
    "MarginProblemBatch",
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
    "certify_infeasible",
    "find_farkas",
    "get_norm",
    "solve",
    "solve_batch",
]
