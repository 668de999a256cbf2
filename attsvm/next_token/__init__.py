"""Next-token prediction: priority graphs of tokens, the SVM that training follows, and the finite part beside it."""

from typing import TYPE_CHECKING

from attsvm._lazy import load
from attsvm.next_token.copying import CopyRun, CopyTask, TwoStageRun, match_and_copy, train_copy, two_stage
from attsvm.next_token.finite_part import (
    CyclicSubspace,
    NextTokenDecomposition,
    SoftComposition,
    attention_shares,
    decompose,
    soft_composition,
)
from attsvm.next_token.graph_svm import (
    GraphSolution,
    graph_svm,
    graph_svms,
    linear_finite_part,
    linear_problem,
    linear_svm,
)
from attsvm.next_token.sequences import (
    Corpus,
    TokenGraphs,
    random_corpus,
    read_embeddings,
    read_sequences,
    token_graphs,
)

_LAZY = {
    "NextTokenRun": "attsvm.next_token.descent_on_sequences",
    "train": "attsvm.next_token.descent_on_sequences",
}  # these load torch

if TYPE_CHECKING:  # with a __getattr__ type checkers would accept any name
    from attsvm.next_token.descent_on_sequences import NextTokenRun, train
else:

    def __getattr__(name: str) -> object:
        return load(__name__, _LAZY, name)


__all__ = [
    "CopyRun",
    "CopyTask",
    "Corpus",
    "CyclicSubspace",
    "GraphSolution",
    "NextTokenDecomposition",
    "NextTokenRun",
    "SoftComposition",
    "TokenGraphs",
    "TwoStageRun",
    "attention_shares",
    "decompose",
    "graph_svm",
    "graph_svms",
    "linear_finite_part",
    "linear_problem",
    "linear_svm",
    "match_and_copy",
    "random_corpus",
    "read_embeddings",
    "read_sequences",
    "soft_composition",
    "token_graphs",
    "train",
    "train_copy",
    "two_stage",
]
