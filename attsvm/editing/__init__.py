"""Smallest certified changes of a trained head, and how they get into a layer, a file or an adapter."""

from attsvm.editing.smallest import Edit, edit
from attsvm.editing.weights import edit_file

__all__ = ["Edit", "edit", "edit_file"]
