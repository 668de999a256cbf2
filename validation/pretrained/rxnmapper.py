"""The ALBERT of ``rxnmapper``: twelve times one layer; head 5 of layer 10 points from product to reactant atoms."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

import attsvm
from attsvm.editing import Edit
from attsvm.trained_head import TrainedHead, split_heads
from attsvm.validation.pretrained.packages import MODELS, read_json, read_state
from attsvm.validation.pretrained.reactions import Reaction

if TYPE_CHECKING:
    import torch

__all__ = ["HEAD", "LAYER", "ReactionModel", "Tasks", "load_reaction_model", "tasks_of"]

LAYER, HEAD, HEADS = 10, 5, 8
ATTENTION = "encoder.albert_layer_groups.0.albert_layers.0.attention"


@dataclass(frozen=True, eq=False)
class ReactionModel:
    """The network in float64, its vocabulary, and the head that maps atoms."""

    network: Any
    vocabulary: dict[str, int]

    @cached_property
    def head(self) -> TrainedHead:
        """Head 5 of the shared layer."""
        state = self.network.state_dict()
        parts = [state[f"{ATTENTION}.{name}"].double().numpy() for name in
                 ("query.weight", "key.weight", "query.bias", "key.bias")]  # fmt: skip
        return split_heads(*parts, heads=HEADS)[HEAD]

    def hidden(self, reaction: Reaction, layer: int = LAYER) -> npt.NDArray[np.float64]:
        """Hidden states that enter a layer, shape (tokens, 256)."""
        import torch

        unknown = self.vocabulary["[UNK]"]
        ids = torch.tensor([[self.vocabulary.get(word, unknown) for word in reaction.words]])
        with torch.no_grad():
            states = self.network(ids, output_hidden_states=True).hidden_states
        return np.asarray(states[layer][0].numpy())

    def edited(self, edit: Edit) -> ReactionModel:
        """The same network with an edit of this head's keys or queries, in every layer: they share their weights."""
        layer = f"{ATTENTION}.{'key' if edit.of == 'K' else 'query'}"
        return replace(self, network=edit.apply_to(self.network, layer=layer, head=HEAD))


def load_reaction_model(dtype: torch.dtype | None = None) -> ReactionModel:
    """The network from the files of the package, in float64 by default."""
    import torch
    from transformers import AlbertConfig, AlbertModel

    package = MODELS["rxnmapper"]
    settings: dict[str, Any] = read_json(package.file("/config.json")) | {"attn_implementation": "eager"}
    network: Any = AlbertModel(AlbertConfig(**settings))
    network.eval()
    state = read_state(package.file("pytorch_model.bin"))
    network.load_state_dict({k.removeprefix("albert."): v for k, v in state.items() if k.startswith("albert.")})
    words = package.file("vocab.txt").read_text(encoding="utf-8").splitlines()
    return ReactionModel(network.to(dtype or torch.float64), {word: i for i, word in enumerate(words)})


@dataclass(frozen=True, eq=False)
class Tasks:
    """Product atoms that look for their reactant atoms: one sequence per reaction, one query per product atom.

    Attributes
    ----------
    problem : AttentionProblem
        Candidates and queries, padded; every query sees the candidates of its reaction.
    wanted : ndarray of int, shape (n, K)
        The right candidate; -1 for padding.
    ranks : ndarray of int, shape (n, T)
        Equal numbers for equivalent candidates, -1 where unknown.
    """

    problem: attsvm.AttentionProblem
    wanted: npt.NDArray[np.int64]
    ranks: npt.NDArray[np.int64]

    @property
    def count(self) -> int:
        """Product atoms."""
        return int((self.wanted >= 0).sum())

    def take(self, index: npt.ArrayLike) -> Tasks:
        """Some of the reactions."""
        rows, p = np.asarray(index), self.problem
        assert p.mask is not None
        return Tasks(
            attsvm.AttentionProblem(p.X[rows], Z=p.Z[rows], mask=p.mask[rows]), self.wanted[rows], self.ranks[rows]
        )

    def row_size(self, head: TrainedHead, of: str) -> float:
        """Median size of a demand's row: ``|x_right - x_t| |z|``, as the changed map sees them.

        For ``of="K"`` the queries are mapped by Q first, for ``of="Q"`` the tokens by K.
        """
        X, Z = self.problem.X, self.problem.Z
        if of == "K":
            Z = head.scale * Z @ head.query_map.T
        elif of == "Q":
            X = head.scale * X @ head.key_map.T
        i, k = np.nonzero(self.wanted >= 0)
        apart = np.linalg.norm(X[i, self.wanted[i, k]][:, None] - X[i], axis=-1)
        sizes = apart * np.linalg.norm(Z[i, k], axis=-1)[:, None]
        there = self.problem.allowed[i, k] & (np.arange(X.shape[1]) != self.wanted[i, k][:, None])
        return float(np.median(sizes[there]))

    def write(self, path: Path) -> None:
        """Keep them in a file that `read` takes."""
        p = self.problem
        np.savez(path, X=p.X, Z=p.Z, mask=np.asarray(p.mask), wanted=self.wanted, ranks=self.ranks)

    @classmethod
    def read(cls, path: str | Path) -> Tasks:
        """Tasks that `write` kept."""
        with np.load(path, allow_pickle=False) as kept:
            problem = attsvm.AttentionProblem(kept["X"], Z=kept["Z"], mask=kept["mask"])
            return cls(problem, kept["wanted"], kept["ranks"])

    def verdicts(self, W: npt.ArrayLike) -> npt.NDArray[np.int64]:
        """Per query of a reaction with this W: 2 right, 1 equivalent to the right one, 0 wrong; -1 for padding."""
        chosen = attsvm.attention.likeliest(self.problem, W)
        right = chosen == self.wanted
        theirs = np.take_along_axis(self.ranks, chosen, axis=1)
        ours = np.take_along_axis(self.ranks, np.maximum(self.wanted, 0), axis=1)
        return np.where(self.wanted < 0, -1, np.where(right, 2, np.where((theirs == ours) & (ours >= 0), 1, 0)))


def tasks_of(model: ReactionModel, reactions: list[Reaction], head: TrainedHead) -> Tasks:
    """Hidden states of the reactions (the constant 1 behind them) as a problem of the head."""
    n, T = len(reactions), max(len(r.reactant_atoms) for r in reactions)
    K, d = max(len(r.product_atoms) for r in reactions), head.key_map.shape[1]
    X, Z = np.zeros((n, T, d)), np.zeros((n, K, d))
    seen, wanted, ranks = np.zeros((n, K, T), dtype=bool), np.full((n, K), -1), np.full((n, T), -1)
    for i, reaction in enumerate(reactions):
        states = head.extend(model.hidden(reaction))
        t, k = len(reaction.reactant_atoms), len(reaction.product_atoms)
        X[i, :t], Z[i, :k] = states[reaction.reactant_atoms], states[reaction.product_atoms]
        seen[i, :, :t] = True
        wanted[i, :k] = reaction.origin
        if reaction.ranks is not None:
            ranks[i, :t] = reaction.ranks
    return Tasks(attsvm.AttentionProblem(X, Z=Z, mask=seen), wanted, ranks)
