"""One self-contained HTML page about a problem."""

from attsvm.reports.content import build_content
from attsvm.reports.page import render_page, write_page, write_report

__all__ = ["build_content", "render_page", "write_page", "write_report"]
