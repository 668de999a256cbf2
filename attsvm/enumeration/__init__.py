"""Every locally optimal selection of a problem: exhaustive, by search with proof, or by climbing; and their graph."""

from attsvm.enumeration.listing import iter_locally_optimal, locally_optimal_selections
from attsvm.enumeration.selection_space import Counts, LocalOptima, LocalOptimum, Undecided
from attsvm.enumeration.swap_graph import (
    Basins,
    SelectionTable,
    basins,
    count_selections,
    draw_selection_graph,
    selection_graph,
    solve_every_selection,
    solve_selections,
    write_graphml,
)

__all__ = [
    "Basins",
    "Counts",
    "LocalOptima",
    "LocalOptimum",
    "SelectionTable",
    "Undecided",
    "basins",
    "count_selections",
    "draw_selection_graph",
    "iter_locally_optimal",
    "locally_optimal_selections",
    "selection_graph",
    "solve_every_selection",
    "solve_selections",
    "write_graphml",
]
