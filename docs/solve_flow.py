"""Draw how a solve flows from the table of solvers: ``python docs/solve_flow.py`` writes docs/images/solve_flow.svg.

A test draws the picture again and fails when the table has changed since.
"""

from __future__ import annotations

from pathlib import Path
from xml.sax.saxutils import escape

from attsvm.solvers import SOLVERS, SolverSpec

TARGET = Path(__file__).parent / "images" / "solve_flow.svg"

WIDTH, ROW, LEFT = 940, 30, 20
STAGES = (
    ("read", "MarginProblem: rows (a protocol), right-hand sides, senses; one or a batch axis", "problem.py, rows/"),
    ("choose", "the first line of the table that fits norm, rows, rank", "registry.py"),
    ("unit rows", "each row divided by its norm; powers of two first where squares leave the range", "unit.py"),
    ("settle", "a zero row that asks for something is a proof; W = 0 may be the answer", "certify/farkas.py"),
)  # fmt: skip
ENDINGS = (
    ("certify", "violation, gap, bound, rank at a resolution: from the data, with error bounds", "certify/"),
    ("prove", "infeasible: by a zero row, by rounding bounds, or by rationals", "certify/farkas.py"),
    ("open?", "small problems that float64 leaves open are settled in exact arithmetic", "exact/"),
    ("conclude", "the certificate, not the method, decides the status; MarginSolution", "solution.py"),
)


def _box(y: int, name: str, text: str, place: str, kind: str) -> str:
    return (
        f'<g class="{kind}"><rect x="{LEFT}" y="{y}" width="{WIDTH - 2 * LEFT}" height="{ROW - 6}" rx="5"/>'
        f'<text x="{LEFT + 10}" y="{y + 16}" class="name">{escape(name)}</text>'
        f'<text x="{LEFT + 110}" y="{y + 16}">{escape(text)}</text>'
        f'<text x="{WIDTH - LEFT - 10}" y="{y + 16}" class="place">{escape(place)}</text></g>'
    )


def _limits(spec: SolverSpec) -> str:
    norms = "any norm" if spec.norms is None else ", ".join(sorted(spec.norms))
    rows = "" if spec.most_rows == float("inf") else f", up to {spec.most_rows:g} rows"
    flags = [word for word, on in (("batches", spec.batched), ("rank=", spec.ranks)) if on]
    return f"{norms}{rows}" + (f"; {', '.join(flags)}" if flags else "")


def picture() -> str:
    """The drawing as SVG."""
    parts, y = [], 16
    for name, text, place in STAGES:
        parts.append(_box(y, name, text, place, "stage"))
        y += ROW
    parts.append(f'<text x="{LEFT}" y="{y + 14}" class="label">one method (in the order in which "auto" looks)</text>')
    y += 22
    for spec in SOLVERS.values():
        module = spec.target.split(":")[0].removeprefix("attsvm.solvers.").replace(".", "/")
        parts.append(_box(y, spec.name, _limits(spec), f"{module}.py", "method"))
        y += ROW
    y += 6
    for name, text, place in ENDINGS:
        parts.append(_box(y, name, text, place, "stage"))
        y += ROW
    style = (
        "text{font:13px sans-serif;fill:#1b2733}.name{font-weight:600}"
        ".place{text-anchor:end;fill:#5b6b7b;font-size:12px}"
        ".label{fill:#5b6b7b}.stage rect{fill:#e8f0fa;stroke:#7da3cf}.method rect{fill:#fdf3e3;stroke:#d8a657}"
    )
    body = "\n".join(parts)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {y + 10}" role="img" '
        f'aria-label="How a solve flows"><style>{style}</style><rect width="100%" height="100%" fill="#fff"/>\n'
        f"{body}\n</svg>\n"
    )


if __name__ == "__main__":
    TARGET.write_text(picture())
