"""Smallest certified changes of a trained head, and how they get into a layer, a file or an adapter."""

from attsvm.editing.edited_weights import edit_file
from attsvm.editing.smallest_edit import Edit, edit

__all__ = ["Edit", "edit", "edit_file"]
