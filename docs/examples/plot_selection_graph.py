"""
The graph of selections
=======================

Three sequences of three tokens have 27 selections. An arrow swaps one token for a support token of higher score, so
every arrow points up; selections without an outgoing arrow are locally optimal, and gradient descent can end there.
"""

import sys
from pathlib import Path

import matplotlib.pyplot as plt

import attsvm
from attsvm.enumeration import basins, draw_selection_graph, locally_optimal_selections, selection_graph

problem = attsvm.random_problem(n=3, T=3, d=3, seed=5)
found = locally_optimal_selections(problem)
print(found)

graph = selection_graph(problem)
reach = basins(graph)
for item in found:
    sink = item.tokens
    print(f"{sink}: reached from {reach.reaching[sink]} of 27 selections, {reach.only[sink]} of them reach only it")

figure, axis = plt.subplots(figsize=(7.5, 5.2), layout="constrained")
draw_selection_graph(graph, axis)
axis.set_title("n=3, T=3, d=3: arrows swap a token for a support token of higher score", fontsize=10)

if len(sys.argv) > 1:  # python docs/examples/plot_selection_graph.py docs/images/selection_graph.png
    figure.savefig(Path(sys.argv[1]), dpi=110)
