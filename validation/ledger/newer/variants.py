"""Mistakes that a careful reader could make with the formulas of these papers: each must be rejected by its check."""

from __future__ import annotations

from typing import Any

import numpy as np

import attsvm
from attsvm.joint import joint_svm
from attsvm.next_token import graph_svm, linear_svm, soft_composition

__all__ = ["SLIPS"]

SLIPS: dict[str, Any] = {
    "graph-direction": lambda sequences, table: graph_svm(sequences, table).W.T,  # queries and tokens exchanged
    "graph-shares": lambda sequences, table: np.ones_like(soft_composition(sequences, table).probabilities) / 2,
    "linear-infimum": lambda p: float(np.log((p > 0).sum(axis=1)).mean()),  # as if followers were equally frequent
    "bigrams": lambda contexts, counts: linear_svm(contexts, counts).W.T,  # next and last token exchanged
    "joint-head": lambda problem, selection: np.asarray(problem.head.v),  # the head it started from
    "joint-attention": [
        lambda problem, selection, ratio: joint_svm(problem, selection).W,  # Att-SVM
        lambda problem, selection, ratio: joint_svm(problem, selection, ratio=np.inf).W,  # support vectors of v alone
    ],
    "step-direction": lambda problem: attsvm.att_svm(problem, norm="nuclear").W,
    "mirror": lambda problem: attsvm.att_svm(problem).W,
    "softmax-1": lambda h: np.exp(h) / np.exp(h).sum(),
}
