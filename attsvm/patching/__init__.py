"""Patches of retrievers: the smallest certified change of an embedding map, in sequences, with reports."""

from attsvm.patching.patch_files import load_patch
from attsvm.patching.patch_result import Patch
from attsvm.patching.smallest_patch import patch

__all__ = ["Patch", "load_patch", "patch"]
