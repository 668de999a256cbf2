"""
A graph of tokens and its SVM: what next-token training selects
===============================================================

Sequences show which token follows which context. For each last token they define a graph, in which the next token
precedes the others. Where the data contradict themselves, tokens form a component and share attention; between
components the order is strict, and training turns W towards the SVM that keeps it.
"""

import sys
from pathlib import Path

import matplotlib.pyplot as plt
import networkx as nx
import numpy as np

from attsvm.next_token import decompose, graph_svm, soft_composition, token_graphs, train

# %%
# Five tokens, one last token (4). Tokens 0 and 1 follow each other's contexts (two to one); token 2 ranks below both,
# and 3 below 2.

data = [[0, 1, 2, 4, 0], [0, 1, 3, 4, 0], [1, 0, 2, 4, 1], [2, 3, 3, 4, 2], [3, 4, 4, 3]]
rng = np.random.default_rng(0)
embeddings = np.linalg.qr(rng.normal(size=(8, 8)))[0][:5]
graphs = token_graphs(data)
svm, soft = graph_svm(data, embeddings), soft_composition(data, embeddings)
print(graphs)
print("components of the graph of token 4:", graphs.components(4))
print(svm)
print("shares in the first context:", soft.probabilities[:4].round(4))

# %%
# Train W: its direction approaches the SVM like 1/steps, and attention inside the component settles at the shares that
# the finite part predicts.

run = train(data, embeddings, steps=2000, lr=0.25, snapshots=25)
parts = [decompose(data, embeddings, W) for W in run.history[1:]]

figure, (left, right) = plt.subplots(1, 2, figsize=(10, 3.8), layout="constrained")
graph = graphs.graph(4)
place = {0: (0, 1), 1: (1, 1), 2: (0.3, 0.42), 3: (0, 0), 4: (1.3, 0.1)}
colors = ["tab:red" if len(graphs.components(4)[c]) > 1 else "0.8" for c in range(len(graphs.components(4)))]
of_component = {t: colors[i] for i, part in enumerate(graphs.components(4)) for t in part}
nx.draw_networkx(
    graph, place, ax=left, node_color=[of_component[t] for t in graph], connectionstyle="arc3,rad=0.12", node_size=500
)
left.set(title="graph of last token 4; red shares attention")
left.margins(0.15)
left.set_axis_off()
right.loglog(run.steps[1:], [p.misalignment for p in parts], "o-", label=r"direction: $1 - \cos$ with Graph-SVM")
right.loglog(run.steps[1:], [max(p.share_error, 1e-16) for p in parts], "s-", label="largest error of a share")
right.set(xlabel="steps", title="training against theory")
right.legend()

if len(sys.argv) > 1:  # python docs/examples/plot_next_token.py next_token.png
    figure.savefig(Path(sys.argv[1]), dpi=110)
