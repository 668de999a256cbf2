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

# Boxes of the picture from the bottom to the top, and what each holds: a unit is a module or a folder of attsvm. What
# is imported stands in a lower box, or in the same box further left.
BOXES: dict[str, tuple[tuple[str, ...], str]] = {
    "solvers": (("solvers",), "margin problems, certificates"),
    "shared": (
        ("_lazy", "user_input", "_callables", "records", "softmax_spectrum", "softmax", "losses", "heads",
         "parameterizations"),
        "arguments, losses, heads",
    ),
    "problem and selection": (
        ("selection", "problem", "generate", "trained_head", "tasks", "attention"),
        "tokens, queries, labels",
    ),
    "SVMs and solutions": (
        ("selection_rows", "sensitivity", "exact_tokens", "attention_proofs", "support_proof", "solution",
         "margin_options", "svm", "torch", "cvxpy_models", "optimality"),
        "rows, W, local optimality",
    ),
    "training and paths": (("training", "paths"), "descent, growing balls"),
    "sibling models": (("dynamics",), "four other papers"),
    "theory": (("enumeration", "theory", "comparison"), "listings, theorems, runs"),
    "next token, joint": (("next_token", "multiclass", "joint"), "graphs, classes, joint"),
    "files, sweeps, pages": (("files", "sweeps", "reports"), "what is stored and shown"),
    # The public names stand here: `attsvm/__init__.py` imports all of the above.
    "trained heads": (
        ("export", "key_dimensions", "probing", "editing", "patching", "sklearn", "attsvm"),
        "edit, patch, fit, export, probe",
    ),
    "validation": (
        tuple(
            f"validation.{name}"
            for name in (
                "fuzz_families", "fuzz_judge", "certificate_judge", "matrix", "matrix_calls",
                "pictures", "models", "pretrained", "bench", "figures", "ledger",
            )
        ),
        "figures, claims, benchmark",
    ),
    "command line": (("cli",), "one function per command"),
}  # fmt: skip
LAYERS: dict[str, tuple[str, ...]] = {box: units for box, (units, _) in BOXES.items()}
# Rows of the picture, from its bottom to its top.
ROWS = (
    ("solvers", "shared"),
    ("problem and selection", "SVMs and solutions"),
    ("sibling models", "training and paths", "theory", "next token, joint"),
    ("files, sweeps, pages", "trained heads"),
    ("validation", "command line"),
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


_WIDTH, _ROW, _BOX, _WIDE = 1000, 112, 58, 210
_STYLE = """text{font:bold 15px sans-serif;fill:#222;text-anchor:middle}.small{font:12px sans-serif;fill:#555}
rect{fill:#fff;stroke:#557;stroke-width:1.2;rx:6}path{fill:none;stroke:#8a94a6;stroke-width:1.2}"""


def box_graph(graph: nx.DiGraph) -> nx.DiGraph:
    """An edge from a box to each other one that a unit of it imports."""
    home = {unit: box for box, units in LAYERS.items() for unit in units}
    found = nx.DiGraph()
    found.add_nodes_from(LAYERS)
    found.add_edges_from((home[a], home[b]) for a, b in graph.edges if home[a] != home[b])
    return found


def places() -> dict[str, tuple[float, float]]:
    """Left and top of every box."""
    found = {}
    for height, boxes in enumerate(reversed(ROWS)):
        gap = (_WIDTH - len(boxes) * _WIDE) / (len(boxes) + 1)
        for place, box in enumerate(boxes):
            found[box] = (gap + place * (_WIDE + gap), 20 + height * _ROW)
    return found


def _edge(a: tuple[float, float], b: tuple[float, float]) -> str:
    """A line from an importing box to an imported one: below it, or beside it in its row."""
    if a[1] == b[1]:
        ends = (a[0], b[0] + _WIDE) if a[0] > b[0] else (a[0] + _WIDE, b[0])
        if abs(ends[0] - ends[1]) < _WIDE:
            return f'<path d="M{ends[0]:.0f},{a[1] + _BOX / 2:.0f} L{ends[1]:.0f},{a[1] + _BOX / 2:.0f}"/>'
        x1, x2, y = a[0] + _WIDE / 2, b[0] + _WIDE / 2, a[1] + _BOX
        return f'<path d="M{x1:.0f},{y:.0f} C{x1:.0f},{y + 40:.0f} {x2:.0f},{y + 40:.0f} {x2:.0f},{y:.0f}"/>'
    x1, y1, x2, y2 = a[0] + _WIDE / 2, a[1] + _BOX, b[0] + _WIDE / 2, b[1]
    return f'<path d="M{x1:.0f},{y1:.0f} C{x1:.0f},{y1 + 30:.0f} {x2:.0f},{y2 - 30:.0f} {x2:.0f},{y2:.0f}"/>'


def draw(graph: nx.DiGraph) -> str:
    """The picture as SVG; imports go down or sideways, and those that others imply are left out."""
    at = places()
    height = 20 + _ROW * len(ROWS)
    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" width="{_WIDTH}" '
             f'height="{height}"><title>Parts of attsvm and their imports</title><style>{_STYLE}</style>'
             f'<rect x="0" y="0" width="{_WIDTH}" height="{height}" style="stroke:none;rx:0"/>']  # fmt: skip
    shown = nx.transitive_reduction(box_graph(graph))
    parts += [_edge(at[a], at[b]) for a, b in sorted(shown.edges)]
    for box, (x, y) in at.items():
        middle = x + _WIDE / 2
        parts.append(f'<rect x="{x:.0f}" y="{y:.0f}" width="{_WIDE}" height="{_BOX}"/>')
        parts.append(f'<text x="{middle:.0f}" y="{y + 25:.0f}">{escape(box)}</text>')
        parts.append(f'<text class="small" x="{middle:.0f}" y="{y + 45:.0f}">{escape(BOXES[box][1])}</text>')
    return "\n".join([*parts, "</svg>", ""])


if __name__ == "__main__":
    found = import_graph()
    wrong = against_the_layers(found)
    PICTURE.write_text(draw(found), encoding="utf-8")
    print(f"wrote {PICTURE.relative_to(ROOT)}: {len(found)} units, {found.number_of_edges()} imports between them")
    raise SystemExit("\n".join(wrong) or 0)
