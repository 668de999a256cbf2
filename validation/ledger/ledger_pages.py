"""The ledger as pages of the documentation, as records, and as text for the terminal.

One page per paper follows the paper: every item with an answer, the paper's words, the correction and its proof. What
accounts for an item is found by the sources of the claims. Another page lists what needs a correction.
"""

from __future__ import annotations

import re
import textwrap
import tomllib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

from attsvm.records import plain
from attsvm.validation.figures.figure import LEDGER
from attsvm.validation.ledger.audit import Audit, all_claims, item_key
from attsvm.validation.ledger.claim_record import Claim, Verdict


@dataclass(frozen=True)
class Item:
    """A theorem, lemma, equation or figure of a paper.

    Parameters
    ----------
    name : str
        ``Theorem 1``.
    figure : str
        The figure that `attsvm validate` computes.
    why : str
        Why neither a claim nor a figure accounts for it.
    """

    name: str
    figure: str = ""
    why: str = ""


@cache
def _tables() -> dict[str, dict[str, Any]]:
    return tomllib.loads((files("attsvm.validation.ledger") / "items.toml").read_text(encoding="utf-8"))


def items_of(paper: str) -> tuple[Item, ...]:
    """The items of a paper in its order.

    Examples
    --------
    >>> items_of("svm")[0]
    Item(name='Figure 1', figure='fig1', why='')
    """
    return tuple(Item(name, **fields) for name, fields in _tables()[paper]["items"].items())


# Where the papers are; the one on conditioning is an anonymous submission without a public number.
_LINKS = {
    "svm": "[arXiv 2308.16898](https://arxiv.org/abs/2308.16898)",
    "conditioning": "anonymous submission, no public number",
    "polarization": "[arXiv 2603.06248](https://arxiv.org/abs/2603.06248)",
    "localization": "[arXiv 2402.02098](https://arxiv.org/abs/2402.02098)",
    "specialization": "[arXiv 2603.03993](https://arxiv.org/abs/2603.03993)",
    "newer": "by their abstracts",
}

_INDEX = """\
# Which of the papers' statements hold

Five papers state what this library computes: which margin problem trained attention solves, how sparse attention harms
conditioning, why gradient flow polarizes, when attention localizes, and how heads specialize. Our own checks confirm
most statements; the rest need another constant, hypothesis or index. Each page follows its paper: an item, a
one-sentence answer, the paper's own words, the correction with its proof, and the evidence.

*Holds*: no random instance contradicted it, which is evidence, not a proof. *Missing hypothesis*: true under a
condition that is not stated there. *Fails as printed*: false under every reasonable reading, with a counterexample.
*Imprecise*: false under one reading. *Typo*: the paper itself has the right form elsewhere.

`attsvm claims "svm:Theorem 4"` prints an item, `attsvm claims svm:thm4 --run` checks it again,
`attsvm claims --run --seeds 30` checks all items, and `attsvm claims --mutate` gives wrong forms to every check.
[What needs a correction](wrong.md) lists only the corrections. `attsvm claims --pages docs` writes these pages.
"""

_WRONG = """\
# What needs a correction in the papers

The corrections of the [pages on the papers](claims.md), one sentence each. Each item links to the paper's words, the
corrected form, its proof and the evidence. Most corrections concern a constant, a hypothesis or an index; the main
results stand. A correction that follows from another one is listed with it. For the submission under review the
corrections are questions.
"""


def claim_record(claim: Claim, audit: Audit | None = None) -> dict[str, Any]:
    """A claim, and its audit if it was run, as plain data.

    Examples
    --------
    >>> from attsvm.validation.ledger.audit import all_claims
    >>> claim_record(all_claims(["svm"])[0])["paper"]
    'svm'
    """
    names = (
        "id", "paper", "source", "statement", "verdict", "answer", "quote", "hypotheses", "correction", "holds",
        "proof", "evidence", "reason", "same_as",
    )  # fmt: skip
    record = {name: plain(getattr(claim, name)) for name in names} | {"has_check": claim.measure is not None}
    if audit is not None:
        record |= {
            "printed": str(audit.printed) if audit.printed else None,
            "corrected": str(audit.corrected) if audit.corrected else None,
            "agrees": audit.agrees,
            "seconds": audit.seconds,
        }
    return record


_SIGNS = {
    r"\le": " <= ", r"\ge": " >= ", r"\ne": " != ", r"\to": " -> ", r"\Rightarrow": " => ", r"\perp": " _|_ ",
    r"\cdot": " . ", r"\infty": " infinity", r"\emptyset": "\0\1", r"\sim": " ~ ", r"\propto": " ~ ",
    r"\notin": " not in ", r"\in": " in ", r"\langle": "<", r"\rangle": ">", r"\|": "|", r"\{": "\0", r"\}": "\1",
    r"\,": " ", r"\;": " ", r"\ ": " ", r"\quad": "  ", r"\qquad": "  ", r"\top": "T", r"\gtrsim": " >~ ",
    r"\lesssim": " <~ ", r"\ll": " << ", r"\dots": "...", r"\cdots": "...", r"\mathbf 1": " 1", r"\ell": " l",
    r"\varepsilon": " eps",
}  # fmt: skip
_PLAIN = str.maketrans({"$": "", "{": "", "}": "", "\0": "{", "\1": "}"})  # braces that are meant come last
_ARGUMENT = r"\s*(?:\{([^{}]*)\}|(\\[a-zA-Z]+|\w))"


def _quotient(found: re.Match[str]) -> str:
    parts = [part or sign for part, sign in (found.groups()[:2], found.groups()[2:])]
    return " " + "/".join(part if re.fullmatch(r"\\?\w+", part) else f"({part})" for part in parts) + " "


def _without_tex(text: str) -> str:
    """TeX as a terminal can show it: fractions as quotients, commands as names."""
    text = re.sub(r"\\(?:text|mathrm|operatorname|mathcal|mathbb|tilde|widetilde)\s*\{?([\w -]*)\}?", r" \1", text)
    text = re.sub(r"\\hat\s*(\w)", r" \1hat", text)
    text = re.sub(r"\^\{([^{}]*[^{}\w][^{}]*)\}", r"^(\1)", text)
    text = re.sub(r"\\sqrt\{([^{}]*)\}", r" sqrt(\1)", text)
    text = re.sub(r"\\[dt]?frac" + _ARGUMENT + _ARGUMENT, _quotient, text)
    for sign, shown in sorted(_SIGNS.items(), key=lambda pair: -len(pair[0])):
        text = re.sub(re.escape(sign) + (r"(?![a-zA-Z])" if sign[-1].isalpha() else ""), shown, text)
    text = re.sub(r"\\(?:left|right|[bB]ig+[lr]?|textstyle|limits)", "", text)
    text = re.sub(r"(?<=[A-Za-z0-9)}])\\([a-zA-Z]+)", r" \1", text)
    text = re.sub(r"\\([a-zA-Z]+)", r"\1", text).translate(_PLAIN)
    return re.sub(r"(?<=\S) +(?=[ ,.;:)'])|(?<=[(|<]) +", "", text).strip()


def item_text(name: str) -> str:
    """What there is of an item that no claim concerns; empty for any other name.

    Examples
    --------
    >>> item_text("svm:Figure 3"), item_text("svm:fig 1"), item_text("svm:thm4")
    ('svm: Figure 3: a diagram of the results', 'svm: Figure 1: `attsvm validate fig1`', '')
    """
    paper, _, wanted = name.partition(":")
    if paper not in LEDGER:
        return ""
    named = {item for claim in all_claims([paper]) for item in claim.items}
    for item in items_of(paper):
        if item.name not in named and item_key(item.name) == item_key(wanted):
            return f"{paper}: {item.name}: {_command(paper, item.figure) if item.figure else item.why}"
    return ""


def claim_text(claim: Claim) -> str:
    """What is known of a claim, as lines for the terminal.

    Examples
    --------
    >>> from attsvm.validation.ledger.audit import find_claims
    >>> print(claim_text(find_claims(["svm:thm6"])[0]))
    svm:thm6 (Theorem 6): holds
        The same size makes every selection of tokens feasible.
        evidence: three random selections per data set, all feasible
    """
    lines = [f"{claim.id} ({claim.source}): {claim.verdict}"]
    told = [
        ("", claim.answer or claim.statement),
        ("printed: ", claim.quote if claim.verdict.refuted else ""),
        ("supposed: ", "; ".join(claim.hypotheses)),
        ("corrected: " if claim.verdict.refuted else "note: ", claim.correction or _without_tex(claim.holds)),
        ("proof: ", _without_tex(claim.proof)),
        ("evidence: ", claim.evidence),
        ("no check: ", claim.reason),
        ("counted with ", claim.same_as),
    ]
    for label, text in told:
        if text:
            lines += textwrap.wrap(label + text, 110, initial_indent="    ", subsequent_indent="      ")
    return "\n".join(lines)


def _escaped(text: str) -> str:
    """Text without signs that Markdown reads; what stands between dollars or backticks is left as it is."""
    parts = re.split(r"(\$[^$]*\$|`[^`]*`)", text)
    parts[::2] = [re.sub(r"([\\*_\[\]<>#`~])", r"\\\1", part) for part in parts[::2]]
    return "".join(parts)


def _ended(text: str) -> str:
    return text if text.endswith((".", "?", "!")) else f"{text}."


_WIDE = 60  # characters of TeX that fit a narrow screen, about


def _display(tex: str) -> str:
    """A displayed formula; a long one has a line for each of its parts."""
    parts = [part.strip() for part in re.split(r"\\q?quad", tex)]
    if len(tex) > _WIDE and len(parts) > 1:
        tex = r"\begin{gathered}" + r" \\ ".join(parts) + r"\end{gathered}"
    return f"$$\n{tex}\n$$"


def _block(claim: Claim) -> list[str]:
    """A statement that needs a correction, in full; a typo's correction needs no evidence beside its proof."""
    correction = _display(claim.holds) if claim.holds else f"Correction: {_ended(_escaped(claim.correction))}"
    told = _ended(_escaped(claim.proof))
    if claim.verdict is not Verdict.TYPO:
        told += f" *Supposed:* {_ended(_escaped('; '.join(claim.hypotheses)))}"
        told += f" *Evidence:* {_ended(_escaped(claim.evidence))}"
    return [
        f"**{_escaped(claim.answer)}** ({claim.verdict}, `{claim.id}`)", f"> {_escaped(claim.quote)}", correction, told,
    ]  # fmt: skip


_NUMBERED = re.compile(r"\(|Theorem|Lemma|Proposition|Corollary|Definition|Assumption|Remark")
_BRIEF = 12  # words of a note that stand on the page; `attsvm claims ID` prints all


def _line(claim: Claim, alone: bool) -> str:
    """A statement that holds, is open, or follows from another correction, in one line.

    A numbered item with this claim alone is not told again: the reader has the paper.
    """
    if claim.same_as:
        return f"- With `{claim.same_as}`: {_ended(_escaped(claim.answer))} ({claim.verdict}, `{claim.id}`)"
    if claim.verdict is Verdict.OPEN:
        why = claim.reason or claim.evidence
        why = _ended(_escaped(why[:1].upper() + why[1:]))
        return f"- Open: {_ended(_escaped(claim.statement))} {why} `{claim.id}`"
    brief = claim.correction if len(claim.correction.split()) <= _BRIEF else ""
    note = f" Note: {_ended(_escaped(brief))}" if brief else ""
    if alone and _NUMBERED.match(claim.items[0]):
        return f"- Holds.{note} `{claim.id}`"
    return f"- Holds: {_ended(_escaped(claim.statement))} `{claim.id}`"


def _anchor(item: str) -> str:
    """The anchor that Sphinx gives a heading."""
    return re.sub(r"[^\w -]", "", item.lower()).replace(" ", "-")


def _command(paper: str, figure: str) -> str:
    return f"`attsvm validate {'' if paper == 'svm' else paper + ' '}{figure}`"


def _tally(claims: Sequence[Claim]) -> str:
    """How many claims there are of each verdict; what follows from another one is counted there."""
    counts = Counter(claim.verdict for claim in claims if not claim.same_as)
    return ", ".join(f"{counts[verdict]} {verdict}" for verdict in Verdict if counts[verdict])


def _is_told(claim: Claim) -> bool:
    """Whether it is a correction of its own."""
    return claim.verdict.refuted and not claim.same_as


def _paper_page(paper: str, claims: Sequence[Claim]) -> str:
    """The items of a paper in its order."""
    link = _LINKS[paper][:1].upper() + _LINKS[paper][1:]
    again = f"`attsvm claims {claims[0].id} --run` measures a claim again."
    lines = [
        f"# {LEDGER[paper]}",
        _tables()[paper]["opens"],
        f"{link}; {_tally(claims)}. {again}",
        "## In the order of the paper",
    ]
    lone = []
    for item in items_of(paper):
        own = [claim for claim in claims if claim.items[0] == item.name]
        other = [claim for claim in claims if item.name in claim.items[1:]]
        if not own and not other:
            lone.append(f"- {item.name}: {_command(paper, item.figure) if item.figure else item.why}.")
            continue
        lines += [f"### {item.name}", *_item(own, other, _command(paper, item.figure) if item.figure else "")]
    if lone:
        lines += ["## Other numbered items", "\n".join(lone)]
    return "\n\n".join(lines) + "\n"


def _item(own: Sequence[Claim], other: Sequence[Claim], command: str) -> list[str]:
    """What stands under an item: its corrections, one line for each other claim, and the command of its figure."""
    blocks = [part for claim in own if _is_told(claim) for part in _block(claim)]
    rest = [_line(claim, len(own) == 1) for claim in own if not _is_told(claim)]
    told: dict[str, list[str]] = {}
    for claim in other:
        told.setdefault(claim.items[0], []).append(f"{claim.verdict} (`{claim.id}`)")
    rest += [f"- See [{name}](#{_anchor(name)}): {', '.join(found)}." for name, found in told.items()]
    rest += [f"- {command}"] if command else []
    return [*blocks, "\n".join(rest)] if rest else blocks


def _wrong_page(claims: Sequence[Claim]) -> str:
    """The corrections alone, by verdict and paper."""
    lines = [_WRONG.rstrip()]
    main = [claim for claim in claims if _is_told(claim)]
    for verdict in (Verdict.FAILS, Verdict.MISSING, Verdict.IMPRECISE, Verdict.TYPO):
        lines.append(f"## {str(verdict).capitalize()}")
        for paper, title in LEDGER.items():
            own = [claim for claim in main if claim.paper == paper and claim.verdict is verdict]
            places = [f"[{c.items[0]}](claims_{paper}.md#{_anchor(c.items[0])})" for c in own]
            if own and verdict is Verdict.TYPO:
                lines.append(f"{title}: {', '.join(places)}.")
            elif own:
                rows = [f"- {place}: {_escaped(c.answer)}" for place, c in zip(places, own, strict=True)]
                lines += [f"### {title}", "\n".join(rows)]
    return "\n\n".join(lines) + "\n"


def _index_page(claims: Sequence[Claim]) -> str:
    """What the pages are, and how many claims of each verdict a paper has."""
    rows = [
        f"- [{title}](claims_{paper}.md): {_tally([claim for claim in claims if claim.paper == paper])}."
        for paper, title in LEDGER.items()
    ]
    return "\n".join([_INDEX, *rows, f"- All: {_tally(claims)}.", ""])


def ledger_pages(claims: Sequence[Claim]) -> dict[str, str]:
    """The pages of the documentation by file name: one per paper, what needs a correction, and an index.

    Examples
    --------
    >>> from attsvm.validation.ledger.audit import all_claims
    >>> sorted(ledger_pages(all_claims()))[:3]
    ['claims.md', 'claims_conditioning.md', 'claims_localization.md']
    """
    pages = {f"claims_{paper}.md": _paper_page(paper, [c for c in claims if c.paper == paper]) for paper in LEDGER}
    return pages | {"wrong.md": _wrong_page(claims), "claims.md": _index_page(claims)}
