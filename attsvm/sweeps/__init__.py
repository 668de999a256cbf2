"""Sweeps over a grid of parameters that survive interruption."""

from attsvm.sweeps.result import Sweep, columns_of
from attsvm.sweeps.run import sweep
from attsvm.sweeps.store import StoreError

__all__ = ["StoreError", "Sweep", "columns_of", "sweep"]
