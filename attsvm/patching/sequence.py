"""Patches after patches: leaving one out again, and how far a sequence has moved the map."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from attsvm.patching.patch_result import Patch
from attsvm.records import Table
from attsvm.solvers.arrays import FloatArray

__all__ = ["drift_table", "without_round"]


def without_round(patch: Patch, which: int | str) -> Patch:
    """The patch without the promises of one round, solved again from the prior (see `Patch.undo`)."""
    from attsvm.patching.smallest_patch import repatched

    names = [one.name for one in patch.rounds]
    if isinstance(which, str):
        if which not in names:
            raise ValueError(f"which must be one of the patches {', '.join(map(repr, names))}, got {which!r}")
        place = names.index(which)
    elif isinstance(which, int) and not isinstance(which, bool) and -len(names) <= which < len(names):
        place = which % len(names)
    else:
        raise ValueError(f"which must be a name, or a number from 0 to {len(names) - 1}, got {which!r}")
    rounds = tuple(one for k, one in enumerate(patch.rounds) if k != place)
    if not any(one.promises for one in rounds):
        raise ValueError(f"{names[place]!r} is the only patch that promises something: go back to patch.prior instead")
    return repatched(replace(patch, rounds=rounds))


def drift_table(patch: Patch) -> Table:
    """One line per patch: failures and golden promises, size of the whole change and of the step, angle turned by."""
    maps = [one.map for one in patch.rounds[1:]] + [patch.W]
    size = float(np.linalg.norm(patch.prior)) or 1.0
    rows, before, last = [], np.zeros_like(patch.prior), patch.rounds[0].map
    for one, after in zip(patch.rounds, maps, strict=True):
        change = after - patch.prior
        repaired = sum(record["kind"] == "repair" for record in one.promises)
        rows.append(
            (one.name, repaired, len(one.promises) - repaired, f"{np.linalg.norm(change) / size:.3%}",
             f"{np.linalg.norm(after - last) / size:.3%}", _angle(before, change))
        )  # fmt: skip
        before, last = change, after
    columns = ("patch", "failures", "golden", "whole change", "step", "turned by, degrees")
    return Table("Sizes as shares of the prior map", columns, rows)


def _angle(x: FloatArray, y: FloatArray) -> float:
    sizes = float(np.linalg.norm(x) * np.linalg.norm(y))
    if not sizes > 0:
        return float("nan")
    return float(np.degrees(np.arccos(np.clip(np.vdot(x, y) / sizes, -1.0, 1.0))))
