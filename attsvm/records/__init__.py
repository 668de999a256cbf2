"""Results as data: plain values, versions, safe files, intervals and tables.

What the command line, reports, comparisons, figures and the ledger print or store is built and rendered here.
"""

from attsvm.records.data import atomic_write, environment, plain, versions, write_json
from attsvm.records.intervals import Interval, mean_of, mean_share_of, median_of, share, share_of
from attsvm.records.tables import Raw, Table, console, html_table, render

__all__ = [
    "Interval",
    "Raw",
    "Table",
    "atomic_write",
    "console",
    "environment",
    "html_table",
    "mean_of",
    "mean_share_of",
    "median_of",
    "plain",
    "render",
    "share",
    "share_of",
    "versions",
    "write_json",
]
