"""What is wrong with a picture: empty axes, texts on top of each other, texts that are no text.

Judged from the drawn figure, without eyes: every picture of the gallery and of ``attsvm validate`` is looked at this
way before it is shown.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import combinations
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.text import Text

_REPR = re.compile(r"<[\w.]+(?: object)? (?:at 0x|of )|\bnan\b|\bdtype=|array\(")
# Boxes of text have some air around the letters: overlaps of less are not seen.
_AIR = 0.18


def picture_faults(figure: Figure) -> list[str]:
    """What a reader would complain about, in words; empty for a whole picture.

    Parameters
    ----------
    figure : matplotlib.figure.Figure
        Drawn once more here, to know where its texts are.

    Examples
    --------
    >>> import matplotlib
    >>> matplotlib.use("Agg")
    >>> from matplotlib import pyplot
    >>> figure, (left, right) = pyplot.subplots(1, 2)
    >>> _ = left.plot([1, 2])
    >>> picture_faults(figure)
    ['axes 2 is empty']
    >>> pyplot.close(figure)
    """
    figure.canvas.draw()
    faults = [] if figure.axes else ["there are no axes"]
    for number, axes in enumerate(figure.axes, 1):
        if axes.get_visible() and not _artists(axes):
            faults.append(f"axes {number} is empty")
    texts = [text for text in _texts(figure) if text.get_text().strip()]
    faults += [f"a text is no text: {text.get_text()!r}" for text in texts if _REPR.search(text.get_text())]
    return faults + [f"{a!r} and {b!r} overlap" for a, b in _overlaps(figure, texts)]


def _artists(axes: Axes) -> list[Any]:
    """What has been drawn on the axes, besides their own frame."""
    return [*axes.lines, *axes.collections, *axes.patches, *axes.images, *axes.texts, *axes.tables]


def _texts(figure: Figure) -> Iterator[Text]:
    """Every visible text: titles, labels, tick labels within the axes' limits, annotations, legends."""
    for text in [*figure.texts, getattr(figure, "_suptitle", None)]:
        if text is not None and text.get_visible():
            yield text
    for axes in figure.axes:
        if not axes.get_visible():
            continue
        if axes.axison:
            for axis in (axes.xaxis, axes.yaxis):
                yield axis.label
                yield from _tick_labels(axis)
        yield from (axes.title, axes._left_title, axes._right_title)  # type: ignore[attr-defined]
        yield from (text for text in axes.texts if text.get_visible())
        legend = axes.get_legend()
        if legend is not None:
            yield from legend.get_texts()


def _tick_labels(axis: Any) -> Iterator[Text]:
    low, high = sorted(axis.get_view_interval())
    for tick in [*axis.get_major_ticks(), *axis.get_minor_ticks()]:
        inside = low - 1e-9 * abs(low) <= tick.get_loc() <= high + 1e-9 * abs(high)  # also on a logarithmic axis
        if inside and tick.label1.get_visible() and tick.label1.get_text():
            yield tick.label1


def _overlaps(figure: Figure, texts: list[Text]) -> Iterator[tuple[str, str]]:
    renderer = figure.canvas.get_renderer()  # type: ignore[attr-defined]
    boxes = []
    for text in dict.fromkeys(texts):
        box = text.get_window_extent(renderer)
        if box.width > 0 and box.height > 0:
            air = _AIR * min(box.width, box.height)
            boxes.append((text.get_text(), box.x0 + air, box.y0 + air, box.x1 - air, box.y1 - air))
    for (one, *a), (two, *b) in combinations(boxes, 2):
        if a[0] < b[2] and b[0] < a[2] and a[1] < b[3] and b[1] < a[3]:
            yield one, two
