"""Names that are not there: mypy must refuse each line, or `make types` reports an ignore that is not used."""

import attsvm
import attsvm.probing

names = (
    attsvm.att_smv,  # type: ignore[attr-defined]
    attsvm.sklearn.AttentionSelektor,  # type: ignore[attr-defined]
    attsvm.probing.prob,  # type: ignore[attr-defined]
    attsvm.next_token.trian,  # type: ignore[attr-defined]
    attsvm.dynamics.polarisation,  # type: ignore[attr-defined]
    attsvm.dynamics.polarization.descent_tied,  # type: ignore[attr-defined]
)
