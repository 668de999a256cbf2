"""The checks at many seeds: resumable, in worker processes, and none of them may contradict the stored verdict."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

import attsvm
from attsvm.validation.ledger.record import Claim
from attsvm.validation.ledger.run import audit, find_claims

__all__ = ["SeedRun", "audit_seeds"]


@dataclass(frozen=True)
class SeedRun:
    """One claim at one seed.

    Parameters
    ----------
    claim : str
    seed : int
    agrees : bool
    seconds : float
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


def code_digest() -> str:
    """A digest of the source of the checks: results of other checks are not mixed.

    Examples
    --------
    >>> from attsvm.validation.ledger.seeds import code_digest
    >>> len(code_digest())
    12
    """
    digest = hashlib.sha256()
    root = Path(str(files("attsvm.validation.ledger")))
    for path in sorted((root / "record.py", *root.glob("*/[s_]*.py"))):  # not the pages, nor the variants
        digest.update(path.read_bytes())
    return digest.hexdigest()[:12]


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
    >>> from attsvm.validation.ledger.run import find_claims
    >>> from attsvm.validation.ledger.seeds import audit_seeds
    >>> runs = audit_seeds(find_claims(["svm:eq10"]), [0, 1, 2], trials=5)
    >>> [(run.seed, run.agrees) for run in runs]
    [(0, True), (1, True), (2, True)]
    """
    code = code_digest()
    cells = [
        {"claim": claim.id, "at": int(seed), "instances": trials, "code": code}
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
