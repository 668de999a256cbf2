"""Reactions with atom maps as tokens: which reactant atom each product atom came from.

A mapped SMILES such as ``[CH3:1][OH:2]>>[CH3:1][O-:2]`` is split into the tokens of the model; numbers behind colons
are taken off (``[CH3:1]`` becomes ``C``) and kept as the truth. Equivalent atoms (mirror images inside a molecule,
copies of a molecule) are told by RDKit's canonical ranks, if it is installed.

The ALBERT of ``rxnmapper``: twelve times one layer; head 5 of layer 10 points from product to reactant atoms.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

import attsvm
from attsvm.editing import Edit
from attsvm.solvers.arrays import IntArray
from attsvm.trained_head import TrainedHead, split_heads
from attsvm.validation.pretrained.installed_models import MODELS, read_json, read_state

if TYPE_CHECKING:
    import torch

# The tokens of the model's vocabulary, as its authors split SMILES (Schwaller et al., Science Advances 2021).
_TOKEN = re.compile(
    r"(\[[^\]]+]|Br?|Cl?|N|O|S|P|F|I|b|c|n|o|s|p|\(|\)|\.|=|#|-|\+|\\|\/|:|~|@|\?|>>?|\*|\$|\%[0-9]{2}|[0-9])"
)

_ATOM = re.compile(r"\[[^\]]+]|Br?|Cl?|N|O|S|P|F|I|b|c|n|o|s|p|\*")

_PLAIN = re.compile(r"\[(B|C|N|O|P|S|F|Cl|Br|I|b|c|n|o|s|p)(H\d*)?:(\d+)\]")

_MAPPED = re.compile(r"(\[[^\]]*):(\d+)\]")

_QUOTED = re.compile(r"[\"']([^\"'\s]*:\d+\][^\"'\s]*>>[^\"'\s]*)[\"']")

_SPECIAL = ("[CLS]", "[SEP]")


@dataclass(frozen=True, eq=False)
class Reaction:
    """One reaction as the model reads it.

    Attributes
    ----------
    words : tuple of str
        Tokens, [CLS] and [SEP] included.
    reactant_atoms : ndarray of int, shape (T,)
        Positions of the atoms left of ``>>``: the candidates.
    product_atoms : ndarray of int, shape (k,)
        Positions of the product atoms whose origin is known.
    origin : ndarray of int, shape (k,)
        Index into ``reactant_atoms`` of the atom that each of them came from.
    ranks : ndarray of int, shape (T,), or None
        Equal numbers for equivalent reactant atoms.
    """

    words: tuple[str, ...]
    reactant_atoms: IntArray
    product_atoms: IntArray
    origin: IntArray
    ranks: IntArray | None


def _bare(token: str) -> tuple[str, int]:
    """A token without its atom map, and the number (0: none)."""
    plain = _PLAIN.fullmatch(token)
    if plain:
        symbol, hydrogens, number = plain.groups()
        return ("[nH]" if symbol == "n" and hydrogens else symbol), int(number)
    mapped = _MAPPED.fullmatch(token)
    return (f"{mapped[1]}]", int(mapped[2])) if mapped else (token, 0)


def tokenize(smiles: str) -> Reaction:
    """Tokens, candidates and truth of one mapped reaction.

    Examples
    --------
    >>> reaction = tokenize("[CH3:1][Br:2].[OH-:3]>>[CH3:1][OH:3]")
    >>> reaction.words
    ('[CLS]', 'C', 'Br', '.', '[OH-]', '>>', 'C', 'O', '[SEP]')
    >>> reaction.origin.tolist()
    [0, 2]
    """
    pairs = [_bare(token) for token in _TOKEN.findall(smiles.split(" ")[0])]
    words = (_SPECIAL[0], *(word for word, _ in pairs), _SPECIAL[1])
    numbers = np.array([0, *(number for _, number in pairs), 0])
    if words.count(">>") != 1:
        raise ValueError(f"a reaction must have one >>, got {smiles[:60]!r}")
    split = words.index(">>")
    atom = np.array([bool(_ATOM.fullmatch(word)) and word not in _SPECIAL for word in words])
    candidates = np.flatnonzero(atom[:split])
    places = {int(n): [int(k) for k in np.flatnonzero(numbers[candidates] == n)] for n in set(numbers) - {0}}
    products = [p for p in range(split + 1, len(words)) if atom[p] and len(places.get(int(numbers[p]), [])) == 1]
    origin = np.array([places[int(numbers[p])][0] for p in products], dtype=np.int64)
    ranks = _ranks("".join(words[1:split]), len(candidates))
    return Reaction(words, candidates, np.array(products, dtype=np.int64), origin, ranks)


def _ranks(smiles: str, atoms: int) -> IntArray | None:
    """Equal numbers for equivalent atoms; None without RDKit or where it does not understand the SMILES."""
    try:
        from rdkit import Chem, rdBase
    except ImportError:
        return None
    logging: Any = rdBase
    logging.DisableLog("rdApp.*")
    molecule: Any = Chem.MolFromSmiles(smiles, sanitize=False)  # some examples break rules of valence on purpose
    if molecule is None or molecule.GetNumAtoms() != atoms:
        return None
    molecule.UpdatePropertyCache(strict=False)
    Chem.FastFindRings(molecule)
    return np.array(list(Chem.CanonicalRankAtoms(molecule, breakTies=False)), dtype=np.int64)


def _usable(texts: Iterable[str], vocabulary: set[str] | None, longest: int) -> Iterator[Reaction]:
    seen: set[str] = set()
    for text in texts:
        if text in seen or text.count(">>") != 1:
            continue
        seen.add(text)
        reaction = tokenize(text)
        known = vocabulary is None or vocabulary.issuperset(reaction.words)
        if (
            known
            and len(reaction.words) <= longest
            and len(reaction.product_atoms)
            and len(reaction.reactant_atoms) > 1
        ):
            yield reaction


def package_reactions() -> list[Reaction]:
    """The 13 mapped reactions that the tests of the package ``rxnmapper`` hold (and its wheel installs)."""
    package = MODELS["rxnmapper"]
    files = package.files("tests/test_batched_mapper.py") + package.files("tests/test_mapper.py")
    texts = (text for path in files for text in _QUOTED.findall(path.read_text(encoding="utf-8")))
    return list(_usable(texts, None, 512))


def read_reactions(path: str | Path, limit: int, longest: int, vocabulary: set[str]) -> list[Reaction]:
    """The first usable reactions of a CSV file with a column ``rxn_Smiles``.

    Parameters
    ----------
    path : str or Path
    limit : int
        Reactions to return.
    longest : int
        Most tokens of a reaction.
    vocabulary : set of str
        Reactions with other tokens are left out.
    """
    csv.field_size_limit(2**24)
    with Path(path).open(newline="", encoding="utf-8") as file:
        table = csv.DictReader(file)
        if table.fieldnames is None or "rxn_Smiles" not in table.fieldnames:
            raise ValueError(f"{path} must be a CSV file with a column rxn_Smiles, got {table.fieldnames}")
        found: list[Reaction] = []
        for reaction in _usable((row["rxn_Smiles"] for row in table), vocabulary, longest):
            found.append(reaction)
            if len(found) == limit:
                break
    if not found:
        raise ValueError(f"{path} holds no mapped reaction of at most {longest} known tokens")
    return found


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
        sizes = []
        for i, wanted in enumerate(self.wanted):  # one reaction at a time: all differences at once would take gigabytes
            (k,) = np.nonzero(wanted >= 0)
            apart = np.linalg.norm(X[i, wanted[k]][:, None] - X[i], axis=-1)
            there = self.problem.allowed[i, k] & (np.arange(X.shape[1]) != wanted[k][:, None])
            sizes.append((apart * np.linalg.norm(Z[i, k], axis=-1)[:, None])[there])
        return float(np.median(np.concatenate(sizes)))

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
