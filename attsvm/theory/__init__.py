"""The theory as functions: which assumptions hold for given data, what follows, and where descent really goes."""

from attsvm.theory.attraction import Attraction, Reached, attraction
from attsvm.theory.check import Check
from attsvm.theory.diagnose import Diagnosis, diagnose
from attsvm.theory.exhaustive import SelectionTable, count_selections, solve_every_selection

__all__ = [
    "Attraction",
    "Check",
    "Diagnosis",
    "Reached",
    "SelectionTable",
    "attraction",
    "count_selections",
    "diagnose",
    "solve_every_selection",
]
