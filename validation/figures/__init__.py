"""Figures and tables of the papers, each run by one command and resumable."""

from attsvm.validation.figures.figure import Context, Figure, Outcome, Table

__all__ = ["Context", "Figure", "Outcome", "Table"]
