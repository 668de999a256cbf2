"""The theory as functions: which assumptions hold for given data, what follows, and where descent really goes."""

from attsvm.theory.assumptions import Check
from attsvm.theory.attraction import Attraction, Reached, attraction
from attsvm.theory.diagnosis import Diagnosis, diagnose

__all__ = [
    "Attraction",
    "Check",
    "Diagnosis",
    "Reached",
    "attraction",
    "diagnose",
]
