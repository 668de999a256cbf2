"""Reactions with atom maps as tokens: which reactant atom each product atom came from.

A mapped SMILES such as ``[CH3:1][OH:2]>>[CH3:1][O-:2]`` is split into the tokens of the model; numbers behind colons
are taken off (``[CH3:1]`` becomes ``C``) and kept as the truth. Equivalent atoms (mirror images inside a molecule,
copies of a molecule) are told by RDKit's canonical ranks, if it is installed.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from attsvm.validation.pretrained.packages import MODELS

__all__ = ["Reaction", "package_reactions", "read_reactions", "tokenize"]

IntArray = npt.NDArray[np.int64]

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
    >>> from attsvm.validation.pretrained.reactions import tokenize
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
