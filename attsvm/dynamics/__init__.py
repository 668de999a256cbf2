"""Sibling models of softmax attention: conditioning, polarization, localization, specialization.

Each is a subpackage of its own on the algebra of `attsvm.softmax`, loaded at first use.
"""

from typing import TYPE_CHECKING

from attsvm._lazy import load

__all__ = ["conditioning", "localization", "polarization", "specialization"]

if TYPE_CHECKING:  # with a __getattr__ type checkers would accept any name
    from attsvm.dynamics import conditioning, localization, polarization, specialization
else:

    def __getattr__(name: str) -> object:
        return load(__name__, {module: f"{__name__}.{module}" for module in __all__}, name)
