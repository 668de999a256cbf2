"""Draw how a solve flows: ``python docs/solve_flow.py`` writes docs/images/solve_flow.svg.

Solvers and ladders come from solvers/ladder.py: the ladder of each case is what ``rungs`` returns for a problem of that
size. A test draws the picture again and fails when the code has changed since.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple
from xml.sax.saxutils import escape

import numpy as np

from attsvm.solvers import SOLVERS, MarginProblem, SolverSpec, get_norm
from attsvm.solvers.compiled.batched_pivoting import MOST_ROWS
from attsvm.solvers.ladder import (
    BATCH_ROWS,
    COMPILED_ORDER,
    GRAM_ROWS,
    GROWING_ORDER,
    GROWING_PER_QUERY,
    MOST_ENTRIES,
    NUCLEAR_ORDER,
    REFERENCE_NUMBERS,
    ROWS_PER_ENTRY,
    rungs,
)

TARGET = Path(__file__).parent / "images" / "solve_flow.svg"

WIDTH, ROW, LEFT = 1000, 30, 20
STAGES = (
    ("read", "MarginProblem: rows (a protocol), right-hand sides, penalty; one or a batch", "margin_problem.py, rows/"),
    ("choose", "the ladder of the norm: methods in the order in which they are tried", "ladder.py"),
    ("unit rows", "each row divided by its norm; powers of two first where squares leave the range", "unit.py"),
    ("settle", "a zero row with a positive right-hand side is a proof; W = 0 may be the answer", "certify/farkas.py"),
    ("vectors", "spectral, nuclear: rows that share a factor have the least Frobenius norm of a vector", "norms.py"),
    ("climb", "one method after the other, until a certificate or a proof is good enough", "solve.py"),
)  # fmt: skip
ENDINGS = (
    ("certify", "violation, gap, bound, rank at a resolution: from the data, with error bounds", "certify/"),
    ("prove", "infeasible: by a zero row, by rounding bounds, or by rationals", "certify/farkas.py"),
    ("open?", "small hard margins that float64 leaves open are settled in exact arithmetic", "exact/"),
    ("conclude", "the certificate, not the method, decides the status; MarginSolution", "margin_solution.py"),
)
FAMILIES = ("frobenius", "nuclear", "spectral", "l1", "linf", "lp")


class Case(NamedTuple):
    """A problem whose ladder is drawn.

    Attributes
    ----------
    norm, margin, which : str
        What the picture says of it.
    m, d : int
        Rows, and dimension of tokens and queries, of a problem of this kind.
    batch, rank : int or None
    """

    norm: str
    margin: str
    which: str
    m: int
    d: int = 2
    batch: int | None = None
    rank: int | None = None

    def ladder(self) -> tuple[str, ...]:
        """Names of the methods that "auto" tries, in this order."""
        lead = () if self.batch is None else (self.batch,)
        rows = np.ones((*lead, self.m, self.d)), np.ones((*lead, 1, self.d)), np.zeros(self.m, dtype=int)
        problem = MarginProblem(*rows).soft(1.0 if self.margin == "soft" else None)
        norm = get_norm("spectral" if self.norm == "other" else self.norm)
        return tuple(spec.name for spec in rungs(problem, norm, rank=self.rank)[0])

    def drawn(self) -> tuple[str, ...]:
        """The same, with a mark on a reference that is left out where it would take minutes."""
        names = self.ladder()
        conditional = self.norm != "other" or names[0] == "growing_rows"
        return tuple(f"{name}*" if conditional and name == "cvxpy" else name for name in names)


def _cases() -> tuple[Case, ...]:
    wide = int(COMPILED_ORDER**0.5) + 1  # tokens whose W has more entries than compiled systems may have
    return (
        Case("frobenius", "hard", f"up to {GRAM_ROWS:,} rows", GRAM_ROWS),
        Case(
            "frobenius", "hard", f"more; {ROWS_PER_ENTRY} rows per entry of W, up to {MOST_ENTRIES:,} entries", 1600, 20
        ),
        Case("frobenius", "hard", "more; fewer rows per entry", GRAM_ROWS + 1, 40),
        Case("frobenius", "soft", f"up to {MOST_ROWS} inequality rows, at most one per entry of W", MOST_ROWS, 20),
        Case("frobenius", "soft", f"up to {GRAM_ROWS:,} rows, few entries of W", GRAM_ROWS),
        Case("frobenius", "soft", f"up to {GRAM_ROWS:,} rows, more entries", GRAM_ROWS, 20),
        Case("frobenius", "soft", "more", GRAM_ROWS + 1),
        Case("nuclear", "hard", f"batch, up to {BATCH_ROWS} rows", BATCH_ROWS, batch=2),
        Case("nuclear", "hard", f"up to {BATCH_ROWS} rows", BATCH_ROWS),
        Case("nuclear", "hard", f"up to {NUCLEAR_ORDER} rows", NUCLEAR_ORDER, 40),
        Case("nuclear", "hard", "more, on few entries of W", NUCLEAR_ORDER + 1),
        Case("nuclear", "hard", "more (rows that share tokens: reweighted alone)", NUCLEAR_ORDER + 1, 40),
        Case("nuclear", "soft", f"up to {NUCLEAR_ORDER} rows, or few entries of W", NUCLEAR_ORDER, 40),
        Case("nuclear", "soft", "more", NUCLEAR_ORDER + 1, 40),
        Case("nuclear", "rank=", "any size", 10, rank=1),
        Case("other", "both", f"up to {COMPILED_ORDER:,} rows or entries of W, whichever are fewer", COMPILED_ORDER),
        Case(
            "other",
            "both",
            f"of these over {GROWING_ORDER} rows, {GROWING_PER_QUERY} a query, at most one per entry of W",
            GROWING_ORDER + 1,
            30,
        ),
        Case("other", "both", "more", COMPILED_ORDER + 1, wide),
    )


CASES = _cases()


def _box(y: int, name: str, text: str, place: str, kind: str) -> str:
    return (
        f'<g class="{kind}"><rect x="{LEFT}" y="{y}" width="{WIDTH - 2 * LEFT}" height="{ROW - 6}" rx="5"/>'
        f'<text x="{LEFT + 10}" y="{y + 16}" class="name">{escape(name)}</text>'
        f'<text x="{LEFT + 125}" y="{y + 16}">{escape(text)}</text>'
        f'<text x="{WIDTH - LEFT - 10}" y="{y + 16}" class="place">{escape(place)}</text></g>'
    )


def families(able: frozenset[str] | None) -> str:
    """Families of norms as a list of words: "all" for None, "none" for the empty set."""
    if able is None:
        return "all"
    return ", ".join(family.replace("lp", "l<p>") for family in FAMILIES if family in able) or "none"


def _limits(spec: SolverSpec) -> str:
    hard, soft = families(spec.norms), families(spec.soft_norms)
    flags = [word for word, on in (("batches", spec.batched), ("rank=", spec.ranks), ("in C", spec.compiled)) if on]
    both = hard if hard == soft else f"hard: {hard}; soft: {soft}"
    return f"{both}" + (f" ({', '.join(flags)})" if flags else "")


def _boxes(y: int, kind: str, lines: list[tuple[str, str, str]], label: str = "") -> tuple[list[str], int]:
    """Boxes below each other, with a line of text above them, and where the next one goes."""
    parts = []
    if label:
        parts.append(f'<text x="{LEFT}" y="{y + 14}" class="label">{escape(label)}</text>')
        y += 22
    for name, text, place in lines:
        parts.append(_box(y, name, text, place, kind))
        y += ROW
    return parts, y + 4


def picture() -> str:
    """The drawing as SVG."""
    arrow = " \N{RIGHTWARDS ARROW} "
    ladders = [(f"{case.norm}, {case.margin}", case.which, arrow.join(case.drawn())) for case in CASES]
    methods = [
        (spec.name, _limits(spec), spec.target.split(":")[0].removeprefix("attsvm.solvers.").replace(".", "/") + ".py")
        for spec in SOLVERS.values()
    ]
    parts, y = [], 16
    for kind, lines, label in (
        ("stage", list(STAGES), ""),
        ("ladder", ladders, f"one ladder per norm (* up to {REFERENCE_NUMBERS:,} rows times entries of W)"),
        ("method", methods, "methods: margins that they solve"),
        ("stage", list(ENDINGS), "then"),
    ):  # fmt: skip
        more, y = _boxes(y, kind, lines, label)
        parts += more
    style = (
        "text{font:13px sans-serif;fill:#1b2733}.name{font-weight:600}"
        ".place{text-anchor:end;fill:#5b6b7b;font-size:12px}.label{fill:#5b6b7b}"
        ".stage rect{fill:#e8f0fa;stroke:#7da3cf}.method rect{fill:#fdf3e3;stroke:#d8a657}"
        ".ladder rect{fill:#eef6ea;stroke:#8fb87a}.ladder .place{fill:#1b2733;font-weight:600}"
    )
    body = "\n".join(parts)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {y + 10}" role="img" '
        f'aria-label="How a solve flows"><style>{style}</style><rect width="100%" height="100%" fill="#fff"/>\n'
        f"{body}\n</svg>\n"
    )


if __name__ == "__main__":
    TARGET.write_text(picture())
