"""Reactions with reference atom maps and the answers of RXNMapper, from the source archive of ``syntemp`` (MIT).

The archive is read, never unpacked and never imported. Both files map the same reactions, but write their molecules
in different orders: answers are carried over to the reference's atoms by RDKit's canonical order, and maps are compared
up to symmetry, of the reactants and of the product.
"""

from __future__ import annotations

import hashlib
import tarfile
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

import attsvm
from attsvm._lazy import needs
from attsvm.solvers.arrays import IntArray
from attsvm.validation.pretrained.atom_mapping import Reaction, ReactionModel, Tasks, tokenize

ARCHIVE = "syntemp-1.0.3.tar.gz"

# Of the archive that the figures of the docs were computed from.
DIGEST = "4e0736df304f477e49e8abda31e9dde8c5217a525b0e28fbbc614893a82bf9ce"

_REFERENCE, _ANSWERS = (f"Data/AAM/cgrtool_benchmark/{name}.smiles" for name in ("ref", "rxnmapper"))


def archive_at(name: str, folder: Path) -> Path:
    """The archive: the file of this name, or without a name the one in the folder.

    Raises
    ------
    FileNotFoundError
        Where it is not there; the message says how to get it.
    """
    path = Path(name) if name else folder / ARCHIVE
    if not path.is_file():
        raise FileNotFoundError(
            f"{path} is not there: the reactions are in the source archive of syntemp 1.0.3 (39 MB, MIT). Run `pip "
            f"download --no-deps --no-binary :all: syntemp==1.0.3` and name the file with --data {ARCHIVE}, or put "
            "it into the folder of the results"
        )
    return path


def archive_digest(path: Path) -> str:
    """SHA-256 of the archive, and whether it is the one that the documentation's figures are from."""
    with path.open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    return f"SHA-256 {found[:12]}" + ("" if found == DIGEST else f" (the documentation's: {DIGEST[:12]})")


@dataclass(frozen=True, eq=False)
class MappedReaction:
    """A reaction with its reference map, its symmetries and the answer of RXNMapper.

    Attributes
    ----------
    reaction : Reaction
        As the reference maps it.
    reactant_classes : ndarray of int, shape (T,)
        Equal numbers for reactant atoms that a symmetry exchanges (stereochemistry left out).
    product_classes : ndarray of int, shape (k,)
        The same for the product atoms whose origin is known.
    same_element : ndarray of bool, shape (k, T)
        Where product and reactant atom are of one element.
    answers : ndarray of int, shape (k,)
        The reactant atom that RXNMapper gives each product atom; -1 where it gives none.
    """

    reaction: Reaction
    reactant_classes: IntArray
    product_classes: IntArray
    same_element: npt.NDArray[np.bool_]
    answers: IntArray


@dataclass(frozen=True, eq=False)
class _Side:
    """Molecules of one side of a reaction: canonical SMILES, its order of the atoms, classes and elements."""

    smiles: str
    order: IntArray
    classes: IntArray
    elements: IntArray


def _side(words: Sequence[str]) -> _Side:
    """Read one side of a reaction without its atom maps, stereochemistry left out."""
    with needs("comparing atom maps"):
        from rdkit import Chem, rdBase
    logging: Any = rdBase
    logging.DisableLog("rdApp.*")
    text = "".join(words)
    molecule: Any = Chem.MolFromSmiles(
        text, sanitize=False
    )  # a valence that RDKit refuses is no reason to leave it out
    if molecule is None:
        raise ValueError(f"RDKit must read the SMILES of a reaction, got {text[:60]!r}")
    Chem.RemoveStereochemistry(molecule)
    molecule.UpdatePropertyCache(strict=False)
    Chem.FastFindRings(molecule)
    smiles = Chem.MolToSmiles(molecule)
    order = np.array(list(molecule.GetPropsAsDict(True, True)["_smilesAtomOutputOrder"]), dtype=np.int64)
    classes = np.array(list(Chem.CanonicalRankAtoms(molecule, breakTies=False)), dtype=np.int64)
    elements = np.array([atom.GetAtomicNum() for atom in molecule.GetAtoms()], dtype=np.int64)
    return _Side(smiles, order, classes, elements)


def _sides(reaction: Reaction) -> tuple[_Side, _Side, IntArray]:
    """Reactants, product, and which atoms of the product the reaction's product atoms are."""
    split = reaction.words.index(">>")
    left, right = _side(reaction.words[1:split]), _side(reaction.words[split + 1 : -1])
    atoms = [p for p in range(split + 1, len(reaction.words) - 1) if _is_atom(reaction.words[p])]
    if len(left.classes) != len(reaction.reactant_atoms) or len(right.classes) != len(atoms):
        raise ValueError(f"atoms and tokens must agree, got {''.join(reaction.words[1:-1])[:60]!r}")
    return left, right, np.searchsorted(np.array(atoms), reaction.product_atoms)


def _is_atom(word: str) -> bool:
    return word[0].isalpha() or word[0] in "[*"


def _carried(here: _Side, there: _Side) -> IntArray | None:
    """For each atom of one writing of the molecules the same atom in another; None where they are not the same."""
    if here.smiles != there.smiles:
        return None
    found = np.empty(len(here.order), dtype=np.int64)
    found[here.order] = there.order
    return found


def compared(reference: str, answer: str) -> MappedReaction | None:
    """A reference map and RXNMapper's as one reaction; None where they are not of the same molecules.

    Examples
    --------
    >>> found = compared("[CH3:1][Br:2].[OH-:3]>>[CH3:1][OH:3]", "[OH-:1].Br[CH3:2]>>[OH:1][CH3:2]")
    >>> found.answers.tolist()
    [0, 2]
    """
    ours, theirs = tokenize(reference), tokenize(answer)
    left, right, at = _sides(ours)
    their_left, their_right, their_at = _sides(theirs)
    reactants, product = _carried(their_left, left), _carried(right, their_right)
    if reactants is None or product is None:
        return None
    given = np.full(len(right.classes), -1)  # by their atom of the product: our atom of the reactants
    given[their_at] = reactants[theirs.origin]
    same = right.elements[at][:, None] == left.elements[None, :]
    return MappedReaction(ours, left.classes, right.classes[at], same, given[product[at]])


def matched(product: IntArray, reactant: IntArray, wanted: IntArray, chosen: IntArray) -> int:
    """Product atoms that are mapped as in the reference, up to symmetry.

    Product atoms of one class are exchangeable, and so are reactant atoms: of each pair of classes as many count as
    both maps have.

    Parameters
    ----------
    product : ndarray of int, shape (k,)
        Classes of the product atoms.
    reactant : ndarray of int, shape (T,)
        Classes of the reactant atoms.
    wanted, chosen : ndarray of int, shape (k,)
        Indices of reactant atoms, -1 for none.

    Examples
    --------
    >>> methyls, asked = np.array([0, 1, 0, 2]), np.array([0, 1, 2, 3])  # acetone to isopropanol
    >>> matched(methyls, methyls, asked, np.array([2, 1, 0, 1]))  # methyl groups exchanged, the oxygen wrong
    3
    """
    classes = np.append(reactant, -1)  # index -1: no answer
    ours, theirs = (Counter(zip(product.tolist(), classes[c].tolist(), strict=True)) for c in (wanted, chosen))
    return (ours & theirs).total()


def read_archive(path: Path, limit: int, longest: int, vocabulary: set[str]) -> tuple[list[MappedReaction], int]:
    """The first usable reactions of the archive, and how many before the last of them were left out.

    Parameters
    ----------
    path : Path
        ``syntemp-1.0.3.tar.gz``.
    limit : int
        Reactions to return.
    longest : int
        Most tokens of a reaction.
    vocabulary : set of str
        Reactions with other tokens are left out; so are those whose two maps are not of the same molecules.
    """
    found: list[MappedReaction] = []
    skipped = 0
    for reference, answer in _pairs(path):
        both = compared(reference, answer)
        words = () if both is None else both.reaction.words
        if both is None or len(words) > longest or not vocabulary.issuperset(words):
            skipped += 1
            continue
        found.append(both)
        if len(found) == limit:
            break
    if not found:
        raise ValueError(f"{path.name} holds no mapped reaction of at most {longest} known tokens")
    return found, skipped


def _pairs(path: Path) -> Iterator[tuple[str, str]]:
    """Reference map and RXNMapper's map of each reaction, by their numbers in the files."""
    try:
        with tarfile.open(path, "r:gz") as archive:
            reference, answers = (_numbered(archive, ending) for ending in (_REFERENCE, _ANSWERS))
    except tarfile.TarError as error:
        raise ValueError(f"{path.name} must be the source archive {ARCHIVE}: {error}") from error
    for number, text in reference.items():
        if number in answers:
            yield text, answers[number]


def _numbered(archive: tarfile.TarFile, ending: str) -> dict[str, str]:
    """Lines ``SMILES NUMBER`` behind a heading."""
    members = [member for member in archive.getmembers() if member.isfile() and member.name.endswith(f"/{ending}")]
    content = archive.extractfile(members[0]) if len(members) == 1 else None
    if content is None:
        raise ValueError(f"the archive must hold one file {ending}, found {len(members)}: it is not {ARCHIVE}")
    lines = content.read().decode("utf-8").splitlines()[1:]
    return {number: text for text, _, number in (line.strip().rpartition(" ") for line in lines) if text}


@dataclass(frozen=True, eq=False)
class ReactionStates:
    """Hidden states of many reactions without padding, with what is known of their atoms.

    Attributes
    ----------
    X : ndarray of float32, shape (reactant atoms of all reactions, d)
        Hidden states that enter the layer; in float32, half the memory. What is computed from them is in float64.
    Z : ndarray of float32, shape (product atoms of all reactions, d)
    at_x, at_z : ndarray of int, shape (n + 1,)
        Where the atoms of each reaction begin.
    wanted, answers, product_classes : ndarray of int, shape (product atoms,)
        See `MappedReaction`; `wanted` is the reference's origin.
    reactant_classes : ndarray of int, shape (reactant atoms,)
    same : ndarray of bool
        The matrices ``same_element`` of all reactions, one behind the other.
    skipped : ndarray of int, shape ()
        Reactions of the archive that were left out on the way.
    """

    X: npt.NDArray[np.float32]
    Z: npt.NDArray[np.float32]
    at_x: IntArray
    at_z: IntArray
    wanted: IntArray
    answers: IntArray
    product_classes: IntArray
    reactant_classes: IntArray
    same: npt.NDArray[np.bool_]
    skipped: IntArray

    def __len__(self) -> int:
        return len(self.at_x) - 1

    def tasks(self, index: Sequence[int] | IntArray) -> Tasks:
        """Some of the reactions as a padded problem, to learn from."""
        T = max(int(self.at_x[i + 1] - self.at_x[i]) for i in index)
        K = max(int(self.at_z[i + 1] - self.at_z[i]) for i in index)
        n, d = len(index), self.X.shape[1]
        X, Z, seen = np.zeros((n, T, d)), np.zeros((n, K, d)), np.zeros((n, K, T), dtype=bool)
        wanted, ranks = np.full((n, K), -1), np.full((n, T), -1)
        for row, i in enumerate(index):
            x, z = slice(*self.at_x[i : i + 2]), slice(*self.at_z[i : i + 2])
            t, k = x.stop - x.start, z.stop - z.start
            X[row, :t], Z[row, :k], ranks[row, :t] = self.X[x], self.Z[z], self.reactant_classes[x]
            seen[row, :, :t] = True
            wanted[row, :k] = self.wanted[z]
        return Tasks(attsvm.AttentionProblem(X, Z=Z, mask=seen), wanted, ranks)

    def judged(self, index: Sequence[int] | IntArray, W: npt.ArrayLike | None) -> npt.NDArray[np.int64]:
        """Atoms per reaction, shape (len(index), 4): all, right, right up to symmetry, the same of a one-to-one map.

        Each product atom goes to the candidate of highest logit under W, or, in the last column, all together to
        different candidates of their elements. Without W the answers of RXNMapper are judged, in both last columns.
        """
        found = np.zeros((len(index), 4), dtype=np.int64)
        rows = np.concatenate([[0], np.cumsum(np.diff(self.at_x) * np.diff(self.at_z))])
        for row, i in enumerate(index):
            x, z = slice(*self.at_x[i : i + 2]), slice(*self.at_z[i : i + 2])
            wanted, classes = self.wanted[z], (self.product_classes[z], self.reactant_classes[x])
            if W is None:
                chosen = together = self.answers[z]
            else:
                logits = self.Z[z].astype(np.float64) @ np.asarray(W).T @ self.X[x].astype(np.float64).T
                chosen = logits.argmax(axis=1)
                together = one_to_one(logits, self.same[rows[i] : rows[i + 1]].reshape(logits.shape))
            right = int((chosen == wanted).sum())
            found[row] = len(wanted), right, matched(*classes, wanted, chosen), matched(*classes, wanted, together)
        return found


def one_to_one(logits: npt.NDArray[np.float64], allowed: npt.NDArray[np.bool_]) -> IntArray:
    """The likeliest map that uses each candidate once and only allowed pairs; -1 where no candidate is left.

    Parameters
    ----------
    logits : ndarray of float, shape (k, T)
    allowed : ndarray of bool, shape (k, T)

    Examples
    --------
    >>> one_to_one(np.array([[2.0, 1.0, 9.0], [5.0, 0.0, 9.0]]), np.array([[True, True, False]] * 2)).tolist()
    [1, 0]
    """
    from scipy.optimize import linear_sum_assignment

    shifted = logits - logits.max(axis=1, keepdims=True)
    cost = np.log(np.exp(shifted).sum(axis=1, keepdims=True)) - shifted  # of a pair: minus its log-probability
    cost[~allowed] = 1.0 + len(logits) * (1.0 + cost.max())  # more than all allowed pairs together
    atoms, candidates = linear_sum_assignment(cost)
    found = np.full(len(logits), -1)
    found[atoms] = np.where(allowed[atoms, candidates], candidates, -1)
    return found


def write_states(path: Path, model: ReactionModel, reactions: Sequence[MappedReaction], skipped: int = 0) -> None:
    """Compute the hidden states of the reactions (the constant 1 behind them) and keep them in a file."""
    X, Z = [], []
    for reaction in (mapped.reaction for mapped in reactions):
        states = model.head.extend(model.hidden(reaction)).astype(np.float32)
        X.append(states[reaction.reactant_atoms])
        Z.append(states[reaction.product_atoms])
    np.savez(
        path, X=np.concatenate(X), Z=np.concatenate(Z), at_x=np.cumsum([0, *map(len, X)]),
        at_z=np.cumsum([0, *map(len, Z)]), wanted=np.concatenate([m.reaction.origin for m in reactions]),
        answers=np.concatenate([m.answers for m in reactions]),
        product_classes=np.concatenate([m.product_classes for m in reactions]),
        reactant_classes=np.concatenate([m.reactant_classes for m in reactions]),
        same=np.concatenate([m.same_element.ravel() for m in reactions]), skipped=skipped,
    )  # fmt: skip


@lru_cache(maxsize=1)  # the cells of a sweep read the same file
def read_states(path: str) -> ReactionStates:
    """What `write_states` kept."""
    with np.load(path, allow_pickle=False) as kept:
        return ReactionStates(**{name: kept[name] for name in kept.files})
