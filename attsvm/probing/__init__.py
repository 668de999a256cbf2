"""A trained transformer, head by head: capture its attention, measure it by five theories, one table and one page.

`probe` is the way in; `heads_from_arrays` the one without torch.
"""

from typing import Any

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


def __getattr__(name: str) -> Any:
    return load(__name__, _LAZY, name)
