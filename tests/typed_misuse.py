"""Names and keywords that are not there: mypy must refuse each, or `make types` reports an ignore that is not used."""

import attsvm
import attsvm.probing

problem = attsvm.random_problem(n=2, T=3, d=4)
attsvm.att_svm(problem, nomr="nuclear")  # type: ignore[call-arg]
attsvm.satt_svm(problem, slack="token")  # type: ignore[arg-type]
attsvm.soft_path(problem, [1.0], C=1.0)  # type: ignore[call-arg]
attsvm.edit(problem.X[0], problem, [0, 1], prior=None)  # type: ignore[call-arg]
names = (
    attsvm.att_smv,  # type: ignore[attr-defined]
    attsvm.sklearn.AttentionSelektor,  # type: ignore[attr-defined]
    attsvm.probing.prob,  # type: ignore[attr-defined]
    attsvm.next_token.trian,  # type: ignore[attr-defined]
    attsvm.dynamics.polarisation,  # type: ignore[attr-defined]
    attsvm.dynamics.polarization.descent_tied,  # type: ignore[attr-defined]
)
