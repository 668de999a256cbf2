"""Figures on small settings, and what their tables and pictures hold."""

from __future__ import annotations

from typing import Any

import matplotlib
from matplotlib import pyplot as plt

from attsvm.validation.figures.figure import Context, Figure, Outcome

matplotlib.use("Agg", force=False)


def outcome_of(figure: Figure, **settings: Any) -> Outcome:
    """The outcome of a quick run with some settings changed."""
    return figure.run(Context(settings={**figure.quick, **settings}))


def column(outcome: Outcome, table: int, name: str) -> list[Any]:
    """One column of a table by its name."""
    t = outcome.tables[table]
    return [row[t.columns.index(name)] for row in t.rows]


def check_picture(figure: Figure, outcome: Outcome, axes: int | None = None) -> None:
    """Draw the outcome: this many axes (any number without one), none of them empty."""
    assert figure.draw is not None
    picture = figure.draw(outcome)
    assert axes is None or len(picture.axes) == axes
    assert all(a.lines or a.collections or a.images or a.patches or a.texts for a in picture.axes)
    plt.close(picture)
