"""A trained transformer, head by head: capture its attention, measure it by five theories, one table and one page.

`probe` is the way in; `heads_from_arrays` the one without torch.
"""

from typing import TYPE_CHECKING

from attsvm._lazy import load
from attsvm.probing.data import HeadData, LayerData
from attsvm.probing.from_arrays import heads_from_arrays

_LAZY = {
    "MEASURES": "attsvm.probing.measures.catalog",
    "Monitor": "attsvm.probing.monitor",
    "ProbeError": "attsvm.probing.projections",
    "ProbeTable": "attsvm.probing.table",
    "SvmBudget": "attsvm.probing.measures.svm",
    "capture": "attsvm.probing.hooks",
    "probe": "attsvm.probing.run",
}

__all__ = [
    "MEASURES",
    "HeadData",
    "LayerData",
    "Monitor",
    "ProbeError",
    "ProbeTable",
    "SvmBudget",
    "capture",
    "heads_from_arrays",
    "probe",
]

if TYPE_CHECKING:  # with a __getattr__ type checkers would accept any name
    from attsvm.probing.hooks import capture
    from attsvm.probing.measures.catalog import MEASURES
    from attsvm.probing.measures.svm import SvmBudget
    from attsvm.probing.monitor import Monitor
    from attsvm.probing.projections import ProbeError
    from attsvm.probing.run import probe
    from attsvm.probing.table import ProbeTable
else:

    def __getattr__(name: str) -> object:
        return load(__name__, _LAZY, name)
