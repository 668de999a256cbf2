"""What certificates and solutions look like: short in a shell, a table in notebooks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from html import escape

import numpy as np
import numpy.typing as npt

__all__ = ["counted", "html_facts", "largest"]


def largest(value: float | npt.NDArray[np.float64]) -> str:
    """A number, or the largest of an array, to two digits.

    Examples
    --------
    >>> import numpy as np
    >>> from attsvm.solvers.display import largest
    >>> largest(0.25), largest(np.array([1e-9, 3e-8]))
    ('2.5e-01', '3.0e-08')
    """
    return f"{np.max(value) + 0.0:.1e}"  # no -0


def counted(values: Iterable[object]) -> str:
    """How often each occurs, as in ``4 optimal, 1 infeasible``.

    Examples
    --------
    >>> from attsvm.solvers.display import counted
    >>> counted(["optimal", "optimal", "failed"])
    '2 optimal, 1 failed'
    """
    return ", ".join(f"{count} {value}" for value, count in Counter(map(str, values)).items())


def html_facts(title: str, facts: Mapping[str, object]) -> str:
    """Names and values as a table for notebooks.

    Examples
    --------
    >>> from attsvm.solvers.display import html_facts
    >>> "<td>1e-9</td>" in html_facts("Certificate", {"gap": "1e-9"})
    True
    """
    rows = "".join(f"<tr><th>{escape(name)}</th><td>{escape(str(value))}</td></tr>" for name, value in facts.items())
    return f"<table><caption>{escape(title)}</caption><tbody>{rows}</tbody></table>"
