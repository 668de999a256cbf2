"""Numerics: rank-one margin problems, their solvers and certificates. Knows nothing of attention."""

from attsvm.solvers.certificate import Certificate, FarkasCertificate, RankCertificate, certify, certify_infeasible
from attsvm.solvers.dispatch import SOLVERS, SolverSpec, solve
from attsvm.solvers.farkas import find_farkas
from attsvm.solvers.margin import MarginProblem
from attsvm.solvers.norms import Norm, get_norm
from attsvm.solvers.reduction import Reduction, reduce_dimensions
from attsvm.solvers.solution import MarginSolution
from attsvm.solvers.status import InfeasibleError, Status

__all__ = [
    "SOLVERS",
    "Certificate",
    "FarkasCertificate",
    "InfeasibleError",
    "MarginProblem",
    "MarginSolution",
    "Norm",
    "RankCertificate",
    "Reduction",
    "SolverSpec",
    "Status",
    "certify",
    "certify_infeasible",
    "find_farkas",
    "get_norm",
    "reduce_dimensions",
    "solve",
]
