"""One self-contained HTML page about a problem, and one that leads to those of a batch."""

from attsvm.reports.content import build_content
from attsvm.reports.page import overview_record, page_of, render_page, write_overview, write_page, write_report

__all__ = [
    "build_content",
    "overview_record",
    "page_of",
    "render_page",
    "write_overview",
    "write_page",
    "write_report",
]
