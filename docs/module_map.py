"""Draw the modules of attsvm from their real imports: ``python docs/module_map.py`` writes docs/images/modules.svg.

A test draws it again and compares. It refuses imports against the order of LAYERS, and cycles of imports between the
modules of solvers/.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from html import escape
from pathlib import Path

import networkx as nx

ROOT = Path(__file__).parents[1]
PICTURE = ROOT / "docs" / "images" / "modules.svg"

# What is imported stands below, or in the same layer further left. A unit is a module or a folder of attsvm.
LAYERS: dict[str, tuple[str, ...]] = {
    "ground": ("_arrays", "_callables", "_checks", "_lazy", "_problem_input", "records"),  # for everybody
    "numerics and functions": (
        "solvers",
        "support_proof",
        "heads",
        "losses",
        "parameterizations",
        "secular_equation",
        "softmax_spectrum",
        "softmax",
    ),
    "tokens and selections": ("selection", "_problem_data", "problem", "generate", "trained_head", "tasks", "files"),
    "rows and logits": ("exact", "exact_local", "row_builder", "rows", "score_order", "attention"),
    "W and its certificate": (
        "conflict",
        "solution",
        "svm",
        "verification",
        "local_proof",
        "editing",
        "export",
        "sklearn",
    ),
    "local optimality": ("optimality",),
    "descent, paths, lists": ("training", "enumeration", "paths", "dynamics"),
    "theory against training": ("theory", "comparison", "joint", "next_token"),
    "sweeps and pages": ("sweeps", "reports", "probing"),
    "public names": ("attsvm",),
    "validation": (
        "validation.fuzz_families",
        "validation.fuzz_fractions",
        "validation.fuzz_judge",
        "validation.fuzz_listing",
        "validation.matrix_reference",
        "validation.matrix",
        "validation.matrix_calls",
        "validation.pictures",
        "validation.models",
        "validation.pretrained",
        "validation.bench",
        "validation.figures",
        "validation.ledger",
    ),
    "command line": ("cli",),
}
# The way of the data, one direction only, and where each thing is made.
DATA: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("tokens", ("problem", "files")),
    ("scores, selection", ("heads", "selection")),
    ("rows", ("rows",)),
    ("multipliers", ("solvers",)),
    ("W", ("svm", "solution")),
    ("certificate", ("solvers",)),
    ("report", ("comparison", "reports")),
)


def modules(root: Path = ROOT) -> dict[str, Path]:
    """Every module by its full name; the two linked folders under the names they import as."""
    found = {}
    for folder, package in (("attsvm", "attsvm"), ("solvers", "attsvm.solvers"), ("validation", "attsvm.validation")):
        for path in sorted((root / folder).rglob("*.py")):
            parts = path.relative_to(root / folder).with_suffix("").parts
            if folder == "attsvm" and parts[0] in ("solvers", "validation"):
                continue  # the links
            found[".".join((package, *parts)).removesuffix(".__init__")] = path
    return found


def unit_of(module: str) -> str:
    """The unit that a module belongs to: ``attsvm.training.loop`` to ``training``."""
    parts = module.split(".")[1:]
    if not parts:
        return "attsvm"
    return ".".join(parts[:2]) if parts[0] == "validation" else parts[0]


def _type_only(tree: ast.AST) -> set[ast.AST]:
    """Imports that only type checkers see; they may point anywhere."""
    blocks = (n for n in ast.walk(tree) if isinstance(n, ast.If) and "TYPE_CHECKING" in ast.unparse(n.test))
    return {inner for block in blocks for statement in block.body for inner in ast.walk(statement)}


def _imported(tree: ast.AST, known: dict[str, Path]) -> Iterator[str]:
    hidden = _type_only(tree)
    for node in ast.walk(tree):
        if node in hidden:
            continue
        if isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                whole = f"{node.module}.{alias.name}"
                yield whole if whole in known else node.module
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.Assign) and "_LAZY" in ast.unparse(node.targets[0]):  # names loaded at first use
            yield from (str(value) for value in ast.literal_eval(node.value).values())


def import_graph(root: Path = ROOT) -> nx.DiGraph:
    """An edge from a unit to each other unit that one of its modules imports; ``modules`` on it names who does."""
    known = modules(root)
    graph = nx.DiGraph()
    for name, path in known.items():
        graph.add_node(unit_of(name))
        for target in _imported(ast.parse(path.read_text(encoding="utf-8")), known):
            if target.split(".")[0] == "attsvm" and unit_of(target) != unit_of(name):
                if not graph.has_edge(unit_of(name), unit_of(target)):
                    graph.add_edge(unit_of(name), unit_of(target), modules=set())
                graph.edges[unit_of(name), unit_of(target)]["modules"].add(name)
    graph.remove_nodes_from([node for node in graph if node == "validation"])  # an empty __init__
    return graph


def module_graph(package: str, root: Path = ROOT) -> nx.DiGraph:
    """An edge from a module of a package to each other one that it imports, at its top or inside a function.

    Imports for type checkers alone are left out. What a package's ``__init__`` imports counts for that ``__init__``.
    """
    known = {name: path for name, path in modules(root).items() if f"{name}.".startswith(f"{package}.")}
    graph = nx.DiGraph()
    graph.add_nodes_from(known)
    for name, path in known.items():
        found = _imported(ast.parse(path.read_text(encoding="utf-8")), known)
        graph.add_edges_from((name, target) for target in found if target in known and target != name)
    return graph


def against_the_layers(graph: nx.DiGraph) -> list[str]:
    """Imports that go up or to the right, each with the modules that do it."""
    order = {unit: place for place, unit in enumerate(unit for units in LAYERS.values() for unit in units)}
    return [
        f"{a} imports {b} ({', '.join(sorted(data['modules']))})"
        for a, b, data in sorted(graph.edges(data=True))
        if order[a] <= order[b]
    ]


_WIDTH, _LEFT, _TOP, _ROW, _BOX = 1160, 210, 170, 78, 34
_STYLE = """text{font:14px sans-serif;fill:#222}.name{font-size:13px;fill:#666}.data{font-weight:bold;font-size:13px}
.small{font-size:12px;fill:#555}rect{fill:#fff;stroke:#557;stroke-width:1.2;rx:6}.way{fill:#fdf0d5;stroke:#b7791f}
.band{fill:#f4f6f9;stroke:none}path{fill:none;stroke:#8a94a6;stroke-width:1.1}.far{stroke:#c9d0dc}.flow{stroke:#b7791f;stroke-width:2}"""


def _label(unit: str) -> str:
    """What stands in a unit's box; the layer names the folder."""
    return unit.removeprefix("validation.")


def _size(unit: str) -> float:
    return 7.4 * len(_label(unit)) + 12


def places() -> dict[str, tuple[float, float, float]]:
    """Left, top and width of every unit's box: the first layer at the bottom."""
    found = {}
    for height, units in enumerate(reversed(LAYERS.values())):
        room = _WIDTH - _LEFT - 20
        gap = (room - sum(map(_size, units))) / (len(units) + 1)
        left = _LEFT + gap
        for unit in units:
            found[unit] = (left, _TOP + height * _ROW + (_ROW - _BOX) / 2, _size(unit))
            left += _size(unit) + gap
    return found


def _edge(at: dict[str, tuple[float, float, float]], upper: str, lower: str) -> str:
    a, b = at[upper], at[lower]
    x1, y1, x2, y2 = a[0] + a[2] / 2, a[1] + _BOX, b[0] + b[2] / 2, b[1]
    if a[1] == b[1]:
        (units,) = (units for units in LAYERS.values() if upper in units)
        if units.index(upper) - units.index(lower) == 1:
            return f'<path d="M{a[0]:.0f},{y1 - _BOX / 2:.0f} L{b[0] + b[2]:.0f},{y1 - _BOX / 2:.0f}"/>'
        return f'<path d="M{x1:.0f},{y1:.0f} C{x1:.0f},{y1 + 28:.0f} {x2:.0f},{y1 + 28:.0f} {x2:.0f},{y1:.0f}"/>'
    bend = min(60.0, (y2 - y1) / 2)
    far = ' class="far"' if y2 - y1 > 2 * _ROW else ""
    return f'<path{far} d="M{x1:.0f},{y1:.0f} C{x1:.0f},{y1 + bend:.0f} {x2:.0f},{y2 - bend:.0f} {x2:.0f},{y2:.0f}"/>'


def _flow() -> list[str]:
    """The band on top: what becomes of the data, and which units make it."""
    parts = [f'<text class="name" x="20" y="34">{escape("The way of the data, one direction only:")}</text>']
    step = (_WIDTH - 40) / len(DATA)
    for place, (what, units) in enumerate(DATA):
        x, middle = 20 + place * step, 20 + place * step + (step - 26) / 2
        parts.append(f'<rect class="way" x="{x:.0f}" y="50" width="{step - 26:.0f}" height="56"/>')
        parts.append(f'<text class="data" x="{middle:.0f}" y="74" text-anchor="middle">{escape(what)}</text>')
        names = escape(", ".join(units))
        parts.append(f'<text class="small" x="{middle:.0f}" y="94" text-anchor="middle">{names}</text>')
        if place + 1 < len(DATA):
            start = x + step - 25
            parts.append(f'<path class="flow" d="M{start:.0f},78 h20 m-6,-5 l6,5 l-6,5"/>')
    return parts


def draw(graph: nx.DiGraph) -> str:
    """The picture as SVG.

    Lines are imports, downwards or to the left; those that others imply are left out, and those of the ground, which
    everybody may use.
    """
    at = places()
    made = {unit for _, units in DATA for unit in units}
    height = _TOP + _ROW * len(LAYERS) + 20
    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" width="{_WIDTH}" '
             f'height="{height}"><title>Modules of attsvm and their imports</title><style>{_STYLE}</style>'
             f'<rect x="0" y="0" width="{_WIDTH}" height="{height}" style="stroke:none;rx:0"/>', *_flow()]  # fmt: skip
    parts.append(f'<text class="name" x="20" y="{_TOP - 14}">Imports go down, or left within a layer:</text>')
    for row, name in enumerate(reversed(LAYERS)):
        y = _TOP + row * _ROW
        parts.append(f'<rect class="band" x="10" y="{y + 4}" width="{_WIDTH - 20}" height="{_ROW - 8}"/>')
        parts.append(f'<text class="name" x="20" y="{y + _ROW / 2 + 5:.0f}">{escape(name)}</text>')
    shown = nx.transitive_reduction(graph.subgraph(unit for unit in graph if unit not in LAYERS["ground"]))
    parts += [_edge(at, a, b) for a, b in sorted(shown.edges)]
    for unit, (x, y, width) in at.items():
        kind = ' class="way"' if unit in made else ""
        parts.append(f'<rect{kind} x="{x:.0f}" y="{y:.0f}" width="{width:.0f}" height="{_BOX}"/>')
        parts.append(
            f'<text x="{x + width / 2:.0f}" y="{y + 22:.0f}" text-anchor="middle">{escape(_label(unit))}</text>'
        )
    return "\n".join([*parts, "</svg>", ""])


if __name__ == "__main__":
    found = import_graph()
    wrong = against_the_layers(found)
    PICTURE.write_text(draw(found), encoding="utf-8")
    print(f"wrote {PICTURE.relative_to(ROOT)}: {len(found)} units, {found.number_of_edges()} imports between them")
    raise SystemExit("\n".join(wrong) or 0)
