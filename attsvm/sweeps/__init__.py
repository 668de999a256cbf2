"""Sweeps over a grid of parameters that survive interruption."""

from attsvm.sweeps.resumable import Sweep, columns_of, sweep
from attsvm.sweeps.store import StoreError

__all__ = ["StoreError", "Sweep", "columns_of", "sweep"]
