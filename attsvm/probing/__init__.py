"""A trained transformer, head by head: capture its attention, measure it by five theories, one table and one page.

`probe` is the way in; `heads_from_arrays` the one without torch.
"""

from typing import Any

from attsvm._lazy import load
from attsvm.probing.data import HeadData, LayerData
from attsvm.probing.from_arrays import heads_from_arrays

_LAZY = {
    "ProbeError": "attsvm.probing.projections",
    "capture": "attsvm.probing.capture",
}

__all__ = ["HeadData", "LayerData", "ProbeError", "capture", "heads_from_arrays"]


def __getattr__(name: str) -> Any:
    return load(__name__, _LAZY, name)
