"""Run the checks of the claims, at one seed or at many, and compare what they find with the stored verdicts.

Many seeds run in worker processes and can be resumed; none of them may contradict the stored verdict.
"""

from __future__ import annotations

import re
import time
import zlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cache
from importlib import import_module
from importlib.resources import files
from pathlib import Path
from pkgutil import iter_modules
from typing import Any

import numpy as np

import attsvm
from attsvm.records import digest
from attsvm.validation.figures.figure import LEDGER
from attsvm.validation.ledger.claim_record import Check, Claim, Measurement, Verdict, records


@dataclass(frozen=True)
class Audit:
    """One claim's check, run again.

    Parameters
    ----------
    claim : Claim
    printed, corrected : Measurement or None
    seconds : float
        Processor time.
    """

    claim: Claim
    printed: Measurement | None
    corrected: Measurement | None
    seconds: float

    @property
    def agrees(self) -> bool:
        """Whether the measurements support the stored verdict."""
        if self.printed is None:  # open, without a check
            return True
        if self.claim.verdict in (Verdict.HOLDS, Verdict.OPEN):
            return self.printed.holds
        return not self.printed.holds and self.corrected is not None and self.corrected.holds


def all_claims(papers: Iterable[str] | None = None) -> list[Claim]:
    """Every claim of the named papers (default: all) with its reading, in the order of the ledger.

    Examples
    --------
    >>> all_claims(["svm"])[0].paper
    'svm'
    """
    claims: list[Claim] = []
    for paper in LEDGER if papers is None else papers:
        if paper not in LEDGER:
            raise ValueError(f"paper must be one of {', '.join(LEDGER)}, got {paper!r}")
        checks = _checks(paper)
        beside = {place: dict(check.words) for place, check in checks.items() if check.words}
        words = records(paper) | beside
        if twice := records(paper).keys() & beside.keys():
            raise ValueError(f"{paper}: {paper}.toml and the checks both have records of {sorted(twice)}")
        if unstated := checks.keys() - words.keys():
            raise ValueError(f"{paper}: {paper}.toml has no record of the checks {sorted(unstated)}")
        for place, record in words.items():
            fields: dict[str, Any] = record | (vars(checks[place]) if place in checks else {})
            fields.pop("words", None)
            fields["verdict"] = Verdict(record.get("verdict", Verdict.HOLDS))
            claims.append(Claim(f"{paper}:{place}", **fields))
    return claims


def _checks(paper: str) -> dict[str, Check]:
    """The checks of all sections of a paper by place."""
    package = import_module("attsvm.validation.ledger")
    found: dict[str, Check] = {}
    names = sorted(m.name for m in iter_modules(package.__path__) if m.name.startswith(f"{paper}_"))
    tables = [vars(import_module(f"{package.__name__}.{name}")) for name in names]
    for checks in (table[key] for table in tables for key in table if key.startswith("CHECKS")):
        if twice := found.keys() & checks.keys():
            raise ValueError(f"two checks of {paper} share a place: {sorted(twice)}")
        found |= checks
    return found


_SHORT = {
    "thm": "theorem", "fig": "figure", "sec": "section", "def": "definition", "ass": "assumption", "rem": "remark",
    "cor": "corollary", "prop": "proposition", "app": "appendix", "tab": "table", "eq": "eq", "equation": "eq",
    "lem": "lemma",
}  # fmt: skip


def item_key(text: str) -> str:
    """An item's name without what differs between spellings.

    Examples
    --------
    >>> item_key("Thm. 4"), item_key("thm4"), item_key("Theorem 4"), item_key("eq. 34a")
    ('theorem4', 'theorem4', 'theorem4', '(34a)')
    """
    parts = re.fullmatch(r"([a-z]+)\.?\s*(.+)", text.strip().lower())
    if parts is None:
        return text.strip().lower()
    word, number = _SHORT.get(parts[1], parts[1]), parts[2].replace(" ", "")
    return f"({number.strip('()')})" if word == "eq" else word + number


def find_claims(ids: Sequence[str], papers: Iterable[str] | None = None) -> list[Claim]:
    """The claims of some ids or items of a paper, in the order of the ledger; all of them without ids.

    ``svm:thm4`` stands for the claims whose ids begin so and for all that concern Theorem 4; ``svm:Theorem 4``,
    ``svm:Thm. 4``, ``svm:(34a)`` and ``svm:Section 5.2`` name items, and a number alone names all items that bear it. A
    whole id stands for its claim and the parts of it, not for every id that happens to go on (``localization:1`` is not
    ``localization:12``).

    Raises
    ------
    ValueError
        Where nothing is so called; the message names near ids.

    Examples
    --------
    >>> [claim.id for claim in find_claims(["svm:thm4"])]
    ['svm:thm4-limit', 'svm:thm4-unique']
    >>> [claim.id for claim in find_claims(["svm:Theorem 3"])]
    ['svm:assA-slope', 'svm:thm3']
    """
    named = {wanted.partition(":")[0] for wanted in ids}
    if ids and not papers and named <= LEDGER.keys():
        papers = [paper for paper in LEDGER if paper in named]  # the checks of other papers need not be imported
    claims = all_claims(papers or None)
    if not ids:
        return claims
    found = set[str]().union(*(_named(wanted, claims) for wanted in ids))
    return [claim for claim in claims if claim.id in found]


def _named(wanted: str, claims: Sequence[Claim]) -> set[str]:
    """Ids of the claims that one id or item stands for."""
    known = [claim.id for claim in claims]
    paper, _, item = wanted.partition(":")
    key = item_key(item)
    same = {c.id for c in claims if c.paper == paper and key in map(item_key, c.items)}
    start = f"{wanted}-" if same or wanted in known else wanted  # lemma1 is not lemma10
    same |= {name for name in known if name == wanted or name.startswith(start)}
    number = item.strip(" ()").lower()  # 34a, 3.4
    same = same or {c.id for c in claims if c.paper == paper and number in map(_number, c.items)}
    if not same:
        raise ValueError(
            f"claims: no id begins with {wanted}, nor is it an item of a paper; {_near(wanted, claims)}"
            "attsvm claims lists them all"
        )
    return same


def _number(item: str) -> str:
    return item.split()[-1].strip("()").lower()


def _near(wanted: str, claims: Sequence[Claim]) -> str:
    """Items of this name of other papers, ids that hold these letters, that begin or are spelt alike; three at most."""
    known = [claim.id for claim in claims]
    inside = [f"{c.paper}:{name}" for c in claims for name in c.items if item_key(name) == item_key(wanted)]
    inside += [name for name in known if wanted.lower() in name.lower()]
    paper = len(wanted.partition(":")[0]) + 1
    stems = (wanted[:length] for length in range(len(wanted) - 1, paper + 1, -1))
    begin = next((same for stem in stems if (same := [name for name in known if name.startswith(stem)])), [])
    alike = dict.fromkeys([*inside, *begin, *get_close_matches(wanted, known)])
    return f"near it are {', '.join(list(alike)[:3])}; " if alike else ""


def audit(claim: Claim, seed: int = 0, trials: int | None = None) -> Audit:
    """Run the check of one claim on its printed and its corrected form.

    Both forms meet the same random instances.

    Examples
    --------
    >>> from attsvm.validation.ledger.claim_record import count
    >>> def measure(square, rng, trials):
    ...     x = rng.normal(size=trials)
    ...     return count(abs(square(x) - x * x), 1e-12)
    >>> audit(Claim("svm:example", "p. 1", "x squared is x x", Verdict.HOLDS, measure, lambda x: x * x)).agrees
    True
    """
    start = time.process_time()
    if claim.measure is None:
        return Audit(claim, None, None, 0.0)
    tried = claim.trials if trials is None else trials
    words = [seed, zlib.crc32(claim.id.encode())]
    printed = claim.measure(claim.printed, np.random.default_rng(words), tried)
    corrected = None
    if claim.corrected is not None:
        corrected = claim.measure(claim.corrected, np.random.default_rng(words), tried)
    return Audit(claim, printed, corrected, time.process_time() - start)


@dataclass(frozen=True)
class SeedRun:
    """One claim at one seed.

    Parameters
    ----------
    claim : str
    seed : int
    agrees : bool
    seconds : float
        Processor time.
    found : str
        The two measurements, or the error that the check raised.
    """

    claim: str
    seed: int
    agrees: bool
    seconds: float
    found: str


@cache
def _claims() -> dict[str, Claim]:
    return {claim.id: claim for claim in find_claims([])}


def _claim(name: str) -> Claim:
    return _claims()[name]


def _one(trials: int, seed: int, *, claim: str, at: int, instances: int | None, code: str) -> dict[str, list[Any]]:
    """A cell of the sweep; the sweep's own seed is not used, since the ledger's seeds are the subject."""
    try:
        result = audit(_claim(claim), at, instances)
        found = f"printed {result.printed}" + (f"; corrected {result.corrected}" if result.corrected else "")
        row = (bool(result.agrees), result.seconds, found)
    except Exception as error:  # a check that crashes contradicts its verdict, and the others go on
        row = (False, 0.0, f"{type(error).__name__}: {error}")
    return {"agrees": [row[0]], "seconds": [row[1]], "found": [row[2]]}


def code_digest(paper: str) -> str:
    """A digest of the source of a paper's checks: results of other checks are not mixed, other papers' stay.

    Examples
    --------
    >>> len(code_digest("svm"))
    12
    """
    root = Path(str(files("attsvm.validation.ledger")))
    checks = sorted((root / "claim_record.py", *root.glob(f"{paper}_*.py")))
    return digest(*(path.read_bytes() for path in checks), length=12)  # not of the pages


def audit_seeds(
    claims: Sequence[Claim],
    seeds: Sequence[int],
    *,
    trials: int | None = None,
    store: str | Path = ":memory:",
    workers: int | None = 0,
    fresh: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> list[SeedRun]:
    """Run the checks at several seeds; a store keeps what is finished, so that a run can be interrupted and continued.

    Parameters
    ----------
    claims : sequence of Claim
        Those without a check are left out.
    seeds : sequence of int
    trials : int, optional
        Instances per check instead of each claim's own number.
    store : str or Path
        SQLite file of `attsvm.sweep`; it may hold other claims and seeds. What other checks found is not used.
    workers : int, optional
        Processes; 0 runs here, None takes one per core.
    fresh : bool
        Discard what the store holds.
    progress : callable, optional
        Called with the numbers of finished and of all checks.

    Examples
    --------
    >>> runs = audit_seeds(find_claims(["svm:eq10"]), [0, 1, 2], trials=5)
    >>> [(run.seed, run.agrees) for run in runs]
    [(0, True), (1, True), (2, True)]
    """
    codes = {paper: code_digest(paper) for paper in {claim.paper for claim in claims}}
    cells = [
        {"claim": claim.id, "at": int(seed), "instances": trials, "code": codes[claim.paper]}
        for seed in seeds
        for claim in claims
        if claim.measure is not None
    ]
    if not cells:
        return []
    done = attsvm.sweep(
        _one, cells, trials=1, chunk=1, store=store, workers=workers, fresh=fresh, progress=progress, name="claims",
        extend=True,
    )  # fmt: skip
    return [
        SeedRun(
            str(cell["claim"]),
            int(cell["at"]),
            bool(columns["agrees"][0]),
            float(columns["seconds"][0]),
            str(columns["found"][0]),
        )
        for cell, columns in done
    ]
