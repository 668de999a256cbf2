"""Multiclass classification as attention with one-hot tokens: max-margin classifiers in every norm, and training."""

from typing import TYPE_CHECKING

from attsvm._lazy import load
from attsvm.multiclass.class_margins import MulticlassSolution, multiclass_svm

_LAZY = {
    "MulticlassRun": "attsvm.multiclass.descent_on_classes",
    "train": "attsvm.multiclass.descent_on_classes",
}  # these load torch

if TYPE_CHECKING:  # with a __getattr__ type checkers would accept any name
    from attsvm.multiclass.descent_on_classes import MulticlassRun, train
else:

    def __getattr__(name: str) -> object:
        return load(__name__, _LAZY, name)


__all__ = ["MulticlassRun", "MulticlassSolution", "multiclass_svm", "train"]
