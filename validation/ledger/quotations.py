"""Quotations beside the papers' texts: every quoted phrase is printed, up to white space and mathematical typography.

The papers are not part of the project: the command takes a folder of plain texts, one file per paper. Words are
compared, formulas are not: text extracted from a paper garbles them, and a quotation writes them in plain letters.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from attsvm.validation.ledger.claim_record import Claim

# Words by which a text is known to be the paper: of its title, or (where the text starts after it) of its abstract.
TITLES: Mapping[str, str] = {
    "svm": "hard-margin SVM problem that separates optimal input tokens from non-optimal tokens",
    "conditioning": "Softmax-induced ill-conditioning in transformer models",
    "polarization": "Gradient flow polarizes softmax outputs towards low-entropy solutions",
    "localization": "Self-attention networks localize when QK-eigenspectrum concentrates",
    "specialization": "Specialization of softmax attention heads",
}
_START = 4000  # characters of a text in which its title stands
_GAP = 12  # garbled words of a formula that may stand between two quoted words
_SIGN = "\u00a7"  # stands for a formula
_FEW = 3  # words: a quotation of fewer is a formula
# Words of formulas in plain letters, and names that extraction writes as signs.
_MATHS = frozenset({
    "alpha", "beta", "gamma", "delta", "eps", "epsilon", "zeta", "eta", "theta", "kappa", "lambda", "mu", "nu", "xi",
    "rho", "sigma", "tau", "phi", "chi", "psi", "omega", "grad", "nabla", "tilde", "bar", "hat", "sqrt", "exp", "log",
    "sum", "max", "min", "erf", "inf", "infinity", "succeq", "approx", "mathcal", "mathbf", "mathrm", "text", "left",
    "right", "frac", "tfrac", "opt", "cone", "clip", "mean", "svm", "att", "satt", "ell", "prime", "top", "bullet",
    "odot",
})  # fmt: skip


@dataclass(frozen=True)
class Quotation:
    """What became of one quotation.

    "printed", "NOT printed", "formula" (not compared), "no text" of the paper in the folder, or "not looked for" where
    the ledger quotes an abstract of a paper outside `TITLES`.
    """

    claim: str
    quote: str
    outcome: str
    missing: str = ""


def prose(text: str) -> list[str]:
    r"""Words of a text in order: lower case, hyphens of line breaks joined, formulas and names of signs left out.

    Examples
    --------
    >>> prose("we posit that d >~ (T + n) log(T + n) will suf-\nfice")
    ['posit', 'that', 'will', 'suffice']
    """
    return [word for word, _ in _words(text)]


def _words(text: str) -> list[tuple[str, bool]]:
    """Words, each with whether a formula stands before it."""
    plain = unicodedata.normalize("NFKD", text)
    plain = "".join(sign for sign in plain if not unicodedata.combining(sign))
    plain = re.sub(r"(?<=[a-z])[-\u2010]\s*\n\s*(?=[a-z])", "", plain)
    plain = re.sub(r"\\[A-Za-z]+|\w*_\{?[\w,^*]+\}?|\w+\^\{?[\w-]+\}?", f" {_SIGN} ", plain)  # TeX, x_i, L^T
    found, formula = [], False
    for token in re.findall(rf"[A-Za-z]+|[{_SIGN}\d=<>+*/|~]", plain):
        word = token.lower()
        if word in _MATHS or (len(token) == 1 and token not in "aAiI"):
            formula = True
        elif len(word) >= 3:
            found.append((word, formula))
            formula = False
    return found


def is_printed(quote: str, words: Sequence[str]) -> str:
    """The first part of a quotation that does not stand in the words of a paper; empty when all of it does.

    Parts are separated by "...". The words of a part must follow each other in the paper; what extraction makes of a
    formula may stand between two of them only where the quotation has a formula.

    Examples
    --------
    >>> paper = prose("Suppose the loss l is strictly decreasing. Then no finite W is stationary.")
    >>> is_printed("the loss l is strictly decreasing ... no finite W", paper)
    ''
    >>> is_printed("strictly and surely decreasing", paper)
    'strictly and surely decreasing'
    """
    for part in re.split(r"\.\.\.", quote):
        wanted = _words(part)
        if wanted and not any(_follows(wanted[1:], words, start) for start in _starts(wanted[0][0], words)):
            return part.strip()
    return ""


def _starts(word: str, words: Sequence[str]) -> Iterator[int]:
    return (place for place, here in enumerate(words) if here == word)


def _follows(wanted: Sequence[tuple[str, bool]], words: Sequence[str], place: int) -> bool:
    """Whether the wanted words come one after the other behind a place."""
    for word, formula in wanted:
        following = words[place + 1 : place + 2 + (_GAP if formula else 0)]
        if word not in following:
            return False
        place += 1 + following.index(word)
    return True


def find_papers(folder: Path) -> dict[str, Path]:
    """The text of each paper in a folder, known by its title; papers without one are left out."""
    found: dict[str, Path] = {}
    for path in sorted(folder.glob("*.txt")):
        opening = " ".join(prose(path.read_text(encoding="utf-8", errors="replace")[:_START]))
        for paper, title in TITLES.items():
            if " ".join(prose(title)) in opening:
                found.setdefault(paper, path)
    return found


def check_quotations(claims: Iterable[Claim], folder: Path) -> list[Quotation]:
    """Compare the quotation of every claim that has one with the text of its paper."""
    words = {
        paper: prose(path.read_text(encoding="utf-8", errors="replace")) for paper, path in find_papers(folder).items()
    }
    found = []
    for claim in claims:
        quote = claim.quote
        if not quote:
            continue
        if len(prose(quote)) < _FEW:
            found.append(Quotation(claim.id, quote, "formula"))
        elif claim.paper not in TITLES:
            found.append(Quotation(claim.id, quote, "not looked for"))
        elif claim.paper not in words:
            found.append(Quotation(claim.id, quote, "no text"))
        else:
            missing = is_printed(quote, words[claim.paper])
            found.append(Quotation(claim.id, quote, "NOT printed" if missing else "printed", missing))
    return found
