"""A trained transformer, head by head: capture its attention, measure it by five theories, one table and one page.

`probe` is the way in; `heads_from_arrays` the one without torch.
"""

from typing import TYPE_CHECKING

from attsvm._lazy import load
from attsvm.probing.head_data import HeadData, LayerData, heads_from_arrays

_LAZY = {
    "MEASURES": "attsvm.probing.cheap_measures",
    "Monitor": "attsvm.probing.monitor",
    "ProbeError": "attsvm.probing.model_weights",
    "ProbeTable": "attsvm.probing.head_table",
    "SvmBudget": "attsvm.probing.svm_measures",
    "capture": "attsvm.probing.captured_head",
    "capture_layers": "attsvm.probing.model_hooks",
    "probe": "attsvm.probing.probe_model",
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
    "capture_layers",
    "heads_from_arrays",
    "probe",
]

if TYPE_CHECKING:  # with a __getattr__ type checkers would accept any name
    from attsvm.probing.captured_head import capture
    from attsvm.probing.head_table import ProbeTable
    from attsvm.probing.measure_catalog import MEASURES
    from attsvm.probing.model_hooks import capture_layers
    from attsvm.probing.model_weights import ProbeError
    from attsvm.probing.monitor import Monitor
    from attsvm.probing.probe_model import probe
    from attsvm.probing.svm_measures import SvmBudget
else:

    def __getattr__(name: str) -> object:
        return load(__name__, _LAZY, name)
