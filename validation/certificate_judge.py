"""Certificate files judged by other arithmetic than that of their checker: honest ones, and mutations of them.

A record is drawn with `honest`, changed with `MUTATIONS`, and its claims are judged with `truth`: "false" where exact
arithmetic refutes one, "true" where it confirms all, "open" where neither is shown. Nothing of
``tools/check_certificate.py`` is used for that: rows are built anew, feasibility and least Frobenius norms are solved
over the rationals, other norms are enclosed by balls of 192 bits, local optimality is decided by `attsvm.exact_tokens`.
A mutation counts only where the claim has become false; a changed digit of a multiplier often leaves it true.
"""

from __future__ import annotations

import copy
import importlib.util
import json
import tempfile
from collections.abc import Callable
from fractions import Fraction
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import numpy.typing as npt

import attsvm
from attsvm.enumeration.listing import listing_record
from attsvm.exact_tokens import exact_listing, exact_local_optimality
from attsvm.solvers import MarginProblem, get_norm, solve
from attsvm.solvers.certify.proof_file import number_text, proof_record
from attsvm.solvers.exact import ExactRows, exact_feasibility, exact_least_norm, exact_rows, repair
from attsvm.solvers.exact.measures import norm_enclosure
from attsvm.solvers.exact.rows import rational, rational_matrix

Drawn = dict[str, Any]

CHECKER = Path(__file__).resolve().parents[1] / "tools" / "check_certificate.py"
_HADAMARD = np.array([[1, 1, 1, 1], [1, -1, 1, -1], [1, 1, -1, -1], [1, -1, -1, 1]]) / 2.0


@cache
def checker() -> ModuleType:
    """The checker, loaded from its file: the source tree has it, an installed package does not."""
    if not CHECKER.exists():
        raise FileNotFoundError(f"{CHECKER} is part of the source tree; run this there")
    spec = importlib.util.spec_from_file_location("check_certificate", CHECKER)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def verdict(record: Drawn) -> str:
    """What the checker says of a record that was written to a file: "accepted", or why not.

    Examples
    --------
    >>> record = honest("frobenius", seed=0)
    >>> verdict(record)[:8], verdict(record | {"version": 2})
    ('accepted', 'no certificate: version 2; this checker reads 1')
    """
    module = checker()
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "proof.json"
        file.write_text(json.dumps(record))
        try:
            return f"accepted: {module.check(module.read(file))}"
        except module.Refused as error:
            return f"refused: {error}"
        except (module.Unreadable, KeyError, ValueError, TypeError, AttributeError, IndexError) as error:
            return f"no certificate: {error}"


# Honest records -----------------------------------------------------------------------------------------------------


def _sizes(rng: np.random.Generator) -> tuple[int, int, int]:
    return int(rng.integers(2, 6)), int(rng.integers(3, 6)), int(rng.integers(3, 7))


def _problem(rng: np.random.Generator, **options: Any) -> attsvm.AttentionProblem:
    n, T, d = _sizes(rng)
    problem: attsvm.AttentionProblem = attsvm.random_problem(n=n, T=T, d=d, seed=int(rng.integers(1 << 30)), **options)
    return problem


def _saved(solution: attsvm.Solution) -> Drawn:
    certificate = solution.certificate
    return dict(proof_record(certificate, certificate._source))


def _solved(norm: str, **options: Any) -> Callable[[np.random.Generator], Drawn]:
    def draw(rng: np.random.Generator) -> Drawn:
        problem = _problem(rng)
        tokens: npt.ArrayLike | None = rng.integers(0, problem.T, problem.n)
        found: Drawn = {}
        while not found or found["claims"][0]["claim"] == "infeasible":
            found = _saved(attsvm.att_svm(problem, tokens, norm=norm, **options))
            problem, tokens = _problem(rng), None
        return found

    return draw


def _gen(rng: np.random.Generator) -> Drawn:
    problem = attsvm.random_problem(n=2, T=4, d=6, seed=int(rng.integers(1 << 30)))
    norm = ("frobenius", "nuclear", "l1")[int(rng.integers(3))]
    return _saved(attsvm.gen_svm(problem, [[0, 2], [1]], norm=norm))


def _prior(rng: np.random.Generator) -> Drawn:
    problem = attsvm.random_problem(n=3, T=4, d=5, seed=int(rng.integers(1 << 30)))
    norm = ("frobenius", "nuclear", "linf")[int(rng.integers(3))]
    return _saved(attsvm.att_svm(problem, norm=norm, prior=0.3 * rng.normal(size=(5, 5))))


def _causal(rng: np.random.Generator) -> Drawn:
    problem = attsvm.random_problem(n=2, T=4, d=6, kind="sequence", causal=True, seed=int(rng.integers(1 << 30)))
    return _saved(attsvm.satt_svm(problem))


def _infeasible(rng: np.random.Generator) -> Drawn:
    found: Drawn = {"claims": [{"claim": ""}]}
    while found["claims"][0]["claim"] != "infeasible":
        problem = attsvm.random_problem(n=int(rng.integers(1, 6)), T=4, d=2, seed=int(rng.integers(1 << 30)))
        solution = attsvm.att_svm(problem, rng.integers(0, 4, problem.n))
        found = _saved(solution) if solution.status == "infeasible" else found
    return found


def _local(rng: np.random.Generator) -> Drawn:
    return _saved(attsvm.att_svm(_problem(rng)))


def _planted(rng: np.random.Generator) -> Drawn:
    """A nuclear-norm problem with a known solution: singular values 1/c along columns of Hadamard matrices.

    Rows ``c_i u_i v_i^T`` and right-hand sides 1 with orthonormal u, v: the trace inequality makes
    ``sum_i u_i v_i^T / c_i`` a solution.
    """
    c = rng.choice([1.0, 2.0, 3.0, 5.0, 8.0, 64.0], size=4)
    left = (_HADAMARD * c)[:, rng.permutation(4)].T
    solved = solve(MarginProblem(left, _HADAMARD[:, rng.permutation(4)].T, np.arange(4)), "nuclear")
    found = dict(proof_record(solved.certificate, solved.certificate._source))
    return found


def _listing(rng: np.random.Generator) -> Drawn:
    n, T = (2, 3) if rng.random() < 0.5 else (3, 2)
    problem = attsvm.random_problem(n=n, T=T, d=int(rng.integers(2, 4)), seed=int(rng.integers(1 << 30)))
    return dict(listing_record(attsvm.locally_optimal_selections(problem)))


HONEST: dict[str, Callable[[np.random.Generator], Drawn]] = {
    "frobenius": _solved("frobenius"), "nuclear": _solved("nuclear"), "spectral": _solved("spectral"),
    "l1": _solved("l1"), "linf": _solved("linf"), "soft": _solved("frobenius", C=1.0),
    "soft nuclear": _solved("nuclear", C=1.0, loss="squared_hinge"), "Gen-SVM": _gen, "prior": _prior,
    "causal": _causal, "infeasible": _infeasible, "locally optimal": _local, "planted rank": _planted,
    "complete listing": _listing,
}  # fmt: skip


def honest(kind: str, seed: int) -> Drawn:
    """The record of a certificate as the library writes it.

    Examples
    --------
    >>> [claim["claim"] for claim in honest("planted rank", seed=1)["claims"]]
    ['optimal', 'rank']
    """
    return HONEST[kind](np.random.default_rng([seed, list(HONEST).index(kind)]))


# The judge ----------------------------------------------------------------------------------------------------------


def fraction(text: str | int) -> Fraction:
    """A number of a record.

    Examples
    --------
    >>> fraction("-0x3p-2"), fraction("0x1/0x3"), fraction("12")
    (Fraction(-3, 4), Fraction(1, 3), Fraction(12, 1))
    """
    if isinstance(text, int):
        return Fraction(text)
    top, _, bottom = text.partition("/")
    mantissa, _, power = top.partition("p")
    return Fraction(int(mantissa, 0)) * Fraction(2) ** int(power or 0) / Fraction(int(bottom or "1", 0))


def _array(nested: Any) -> np.ndarray:
    def convert(item: Any) -> Any:
        return [convert(part) for part in item] if isinstance(item, list) else fraction(item)

    return np.array(convert(nested), dtype=object)


def _floats(array: np.ndarray) -> np.ndarray:
    return np.array([float(x) for x in array.ravel()]).reshape(array.shape)


def rows_of_record(record: Drawn) -> ExactRows:
    """The rows that a record is about, for the change where there is a prior.

    Examples
    --------
    >>> record = honest("frobenius", seed=0)
    >>> rows_of_record(record).m == len(record["multipliers"])
    True
    """
    problem = record["problem"]
    if problem["kind"] == "rows":
        left, queries, owner = _array(problem["left"]), _array(problem["queries"]), problem["owner"]
    else:
        tokens, nested = _array(problem["tokens"]), _array(problem["queries"])
        queries = nested.reshape(-1, nested.shape[-1])
        T, K, rows = tokens.shape[1], nested.shape[1], []
        for j, chosen in enumerate(problem["selected"]):
            allowed = problem["allowed"][j] if "allowed" in problem else [1] * T
            rows += [(j, tokens[j // K, chosen] - tokens[j // K, t]) for t in range(T) if t != chosen and allowed[t]]
        left, owner = np.array([a for _, a in rows], dtype=object), [j for j, _ in rows]
    m = len(owner)
    rhs = _array(problem["rhs"]) if "rhs" in problem else np.array([Fraction(1)] * m, dtype=object)
    equality = np.array(problem.get("equality", [0] * m), dtype=bool)
    rows_found = exact_rows(left, queries, owner, rhs, equality)
    if "prior" in problem:
        margins = rows_found.margins(_array(problem["prior"]))
        rhs = np.array([r - Fraction(int(v.p), int(v.q)) for r, v in zip(rhs, margins, strict=True)], dtype=object)
        rows_found = exact_rows(left, queries, owner, rhs, equality)
    return rows_found


def _known_pair(rows: ExactRows, norm: str) -> tuple[Any, list[Any]] | None:
    """A feasible matrix and multipliers near the optimum, as rationals; None if no matrix is feasible."""
    if norm == "frobenius":
        best = exact_least_norm(rows)
        return (best.matrix, list(best.values)) if hasattr(best, "matrix") else None
    if not exact_feasibility(rows).feasible:
        return None
    left = np.array(
        [[float(x * Fraction(int(s.p), int(s.q))) for x in a] for a, s in zip(rows.left, rows.scale, strict=True)]
    )
    rhs = np.array([int(r.p) / int(r.q) for r in rows.rhs])
    solved = solve(MarginProblem(left, np.array(rows.right, dtype=float), rows.owner, rhs, rows.equality), norm)
    lam = [
        rational(x) if e else rational(max(x, 0.0))
        for x, e in zip(solved.multipliers.tolist(), rows.equality, strict=True)
    ]
    return repair(rows, solved.W), lam


def _optimal(record: Drawn, claim: Drawn) -> str:
    from flint import arb, ctx

    rows, W = rows_of_record(record), rational_matrix("W", _array(record["W"]))
    most, gap = fraction(claim.get("violation", 0)), fraction(claim["gap"])
    asked = [fraction(x) for x in record["problem"].get("rhs", [1] * rows.m)]
    for slack, equal, c in zip(rows.slacks(W), rows.equality.tolist(), asked, strict=True):
        missed = abs(Fraction(int(slack.p), int(slack.q))) if slack < 0 or equal else Fraction(0)
        if missed > most * max(Fraction(1), abs(c)):
            return "false"
    norm = get_norm(record["norm"])
    known = _known_pair(rows, record["norm"])
    if known is None:
        return "true"  # nothing satisfies the rows
    best, lam = known
    with ctx.workprec(192):
        value = norm_enclosure(W, norm) * arb(rational(1 - gap))
        if best is not None and value.lower() > norm_enclosure(best, norm).upper():
            return "false"
        D = rows.combination(lam)
        objective = sum((r * y for r, y in zip(rows.rhs, lam, strict=True)), start=rational(0))
        proved = (
            any(x != 0 for x in D.entries())
            and value.upper() <= (arb(objective) / norm_enclosure(D, norm.dual)).lower()
        )
    return "true" if proved or W == 0 * W else "open"


def _soft_value(record: Drawn, rows: ExactRows, W: Any) -> Any:
    """A ball around the objective of a soft margin."""
    from flint import arb

    penalty, slacks = record["problem"]["penalty"], dict[int, Fraction]()
    for k, (slack, equal) in enumerate(zip(rows.slacks(W), rows.equality.tolist(), strict=True)):
        j = k if penalty["slack"] == "row" else int(rows.owner[k])
        missed = Fraction(int(slack.p), int(slack.q))
        slacks[j] = max(slacks.get(j, Fraction(0)), abs(missed) if equal else max(-missed, Fraction(0)))
    square = penalty["loss"] != "hinge"
    cost = fraction(penalty["C"]) * sum(x * x if square else x for x in slacks.values())
    norm = norm_enclosure(W, get_norm(record["norm"]))
    return arb(rational(cost)) + (norm * norm / 2 if record["norm"] == "frobenius" else norm)


def _soft(record: Drawn, claim: Drawn) -> str:
    """False where the library's own solution of the changed problem has an objective that the claim excludes."""
    from flint import arb, ctx

    rows, penalty = rows_of_record(record), record["problem"]["penalty"]
    left = np.array(
        [[float(x * Fraction(int(s.p), int(s.q))) for x in a] for a, s in zip(rows.left, rows.scale, strict=True)]
    )
    soft = MarginProblem(left, np.array(rows.right, dtype=float), rows.owner).soft(
        float(fraction(penalty["C"])), penalty["slack"], penalty["loss"]
    )
    with ctx.workprec(192):
        value = _soft_value(record, rows, rational_matrix("W", _array(record["W"])))
        other = _soft_value(record, rows, rational_matrix("W", solve(soft, record["norm"]).W))
        return "false" if (value * arb(rational(1 - fraction(claim["gap"])))).lower() > other.upper() else "open"


def _rank(record: Drawn, claim: Drawn) -> str:
    """Decided for planted problems: the singular values of a solution are 1 / |a_i|."""
    if record["problem"]["kind"] != "rows":
        return "open"
    sizes = sorted((sum(fraction(x) ** 2 for x in a) for a in record["problem"]["left"]), reverse=False)
    values = [Fraction(1) / Fraction(float(size) ** 0.5) for size in sizes]  # squares of integers: exact roots
    tail = sum(values[int(claim["rank"]) :], Fraction(0))
    return "false" if tail > fraction(claim["resolution"]) else "true"


def _attention(record: Drawn) -> attsvm.AttentionProblem:
    problem = record["problem"]
    X, Z = _floats(_array(problem["tokens"])), _floats(_array(problem["queries"]))
    K = Z.shape[1]
    labels = _floats(_array(problem["labels"]))
    mask = np.array(problem["allowed"], dtype=bool) if "allowed" in problem else None
    head = attsvm.LinearHead(_floats(_array(problem["head"])))
    if K == 1:
        return attsvm.AttentionProblem(X, labels, Z[:, 0], head, mask)
    shape = (len(X), K)
    mask = None if mask is None else mask.reshape(*shape, -1)
    return attsvm.AttentionProblem(X, labels.reshape(shape), Z, head, mask)


def _locally_optimal(record: Drawn, _: Drawn) -> str:
    problem = _attention(record)
    selected = np.reshape(record["problem"]["selected"], problem.query_shape)
    return "true" if exact_local_optimality(problem, selected).locally_optimal else "false"


def _complete(record: Drawn, claim: Drawn) -> str:
    return "true" if exact_listing(_attention(record), [tuple(s) for s in claim["selections"]]).complete else "false"


def _no_matrix(record: Drawn, _: Drawn) -> str:
    return "false" if exact_feasibility(rows_of_record(record)).feasible else "true"


_JUDGES = {"optimal": _optimal, "rank": _rank, "locally optimal": _locally_optimal, "complete listing": _complete,
           "infeasible": _no_matrix}  # fmt: skip


def truth(record: Drawn) -> str:
    """Whether the claims of a record hold, by exact arithmetic: "false", "true" or "open".

    Examples
    --------
    >>> truth(honest("infeasible", seed=0)), truth(honest("locally optimal", seed=0))
    ('true', 'true')
    """
    found = []
    for claim in record["claims"]:
        judge = _soft if "penalty" in record["problem"] else _JUDGES[claim["claim"]]
        found.append(judge(record, claim))
    return "false" if "false" in found else "true" if set(found) == {"true"} else "open"


# Mutations: each returns a changed record, or None where there is nothing to change --------------------------------


def _digit(text: str, rng: np.random.Generator) -> str:
    """One digit of a number changed."""
    start = text.find("0x") + 2 if "0x" in text else int(text.startswith("-"))
    stop = min((text.find(c) for c in "p/" if c in text), default=len(text))
    place = int(rng.integers(start, min(stop, start + 4)))
    digits = "0123456789abcdef" if "0x" in text else "0123456789"
    other = digits[(digits.index(text[place]) + int(rng.integers(1, len(digits)))) % len(digits)]
    return text[:place] + other + text[place + 1 :]


def _entry(nested: list[Any], rng: np.random.Generator, change: Callable[[str], str]) -> None:
    """Change one number of nested lists in place."""
    place = int(rng.integers(len(nested)))
    if isinstance(nested[place], list):
        _entry(nested[place], rng, change)
    else:
        nested[place] = change(nested[place])


def _negated(text: str) -> str:
    return text[1:] if text.startswith("-") else f"-{text}"


def _in(
    *path: str, change: Callable[[str, np.random.Generator], str]
) -> Callable[[Drawn, np.random.Generator], Drawn | None]:
    def mutate(record: Drawn, rng: np.random.Generator) -> Drawn | None:
        place: Any = record
        for name in path:
            if name not in place:
                return None
            place = place[name]
        _entry(place, rng, lambda text: change(text, rng))
        return record

    return mutate


def _scaled_W(factor: float) -> Callable[[Drawn, np.random.Generator], Drawn | None]:
    def mutate(record: Drawn, rng: np.random.Generator) -> Drawn | None:
        if "W" not in record:
            return None
        W = _array(record["W"]) * Fraction(factor)
        record["W"] = [[number_text(x) for x in line] for line in W]
        return record

    return mutate


def _stronger_gap(record: Drawn, rng: np.random.Generator) -> Drawn | None:
    if record["claims"][0]["claim"] != "optimal":
        return None
    record["claims"][0]["gap"] = "0"
    return record


def _swapped_tokens(record: Drawn, rng: np.random.Generator) -> Drawn | None:
    problem = record["problem"]
    if "selected" not in problem:
        return None
    j = int(rng.integers(len(problem["selected"])))
    tokens = problem["tokens"][j // len(problem["queries"][0])]
    chosen, other = problem["selected"][j], int(rng.integers(len(tokens)))
    tokens[chosen], tokens[other] = tokens[other], tokens[chosen]
    return record


def _other_selection(record: Drawn, rng: np.random.Generator) -> Drawn | None:
    problem = record["problem"]
    if "selected" not in problem:
        return None
    j, T = int(rng.integers(len(problem["selected"]))), len(problem["tokens"][0])
    allowed = [
        t for t in range(T) if t != problem["selected"][j] and ("allowed" not in problem or problem["allowed"][j][t])
    ]
    if not allowed:
        return None
    problem["selected"][j] = int(rng.choice(allowed))
    return record


def _dropped_row(record: Drawn, rng: np.random.Generator) -> Drawn | None:
    """A row with a multiplier goes, its multiplier with it."""
    problem = record["problem"]
    if "multipliers" not in record or "rhs" in problem or "equality" in problem:
        return None
    weights = [abs(fraction(y)) for y in record["multipliers"]]
    k = int(np.argmax([float(w) for w in weights])) if rng.random() < 0.5 else int(rng.integers(len(weights)))
    if problem["kind"] == "rows":
        del problem["left"][k], problem["owner"][k], record["multipliers"][k]
        return record
    T, q = len(problem["tokens"][0]), len(problem["selected"])
    allowed = problem.setdefault("allowed", [[1] * T for _ in range(q)])
    places = [(j, t) for j in range(q) for t in range(T) if t != problem["selected"][j] and allowed[j][t]]
    j, t = places[k]
    allowed[j][t] = 0
    del record["multipliers"][k]
    return record if len(places) > 1 else None


def _smaller_rank(record: Drawn, rng: np.random.Generator) -> Drawn | None:
    claim = record["claims"][-1]
    if claim["claim"] != "rank" or not claim["rank"]:
        return None
    claim["rank"] -= 1
    for factor in record["bounds"]["rank"].get("factors", []):
        for line in factor:
            del line[-1:]
    if not claim["rank"]:
        del record["bounds"]["rank"]["factors"]
    return record


def _finer_resolution(record: Drawn, rng: np.random.Generator) -> Drawn | None:
    """A rank too small, with a resolution just below what is left over."""
    claim = record["claims"][-1]
    if claim["claim"] != "rank" or record["problem"]["kind"] != "rows" or not claim["rank"]:
        return None
    smaller = _smaller_rank(record, rng)
    sizes = sorted(sum(fraction(x) ** 2 for x in a) for a in record["problem"]["left"])
    tail = sum((Fraction(1) / Fraction(float(s) ** 0.5) for s in sizes[claim["rank"] :]), Fraction(0))
    claim["resolution"] = number_text(tail * Fraction(999, 1000))
    return smaller


def _claimed_local(record: Drawn, rng: np.random.Generator) -> Drawn | None:
    """Local optimality claimed for a selection that need not be; W and multipliers are those of its SVM."""
    problem = record["problem"]
    if record["claims"][-1]["claim"] != "locally optimal" or "allowed" in problem:
        return None
    attention = _attention(record)
    tokens = rng.integers(0, attention.T, len(problem["selected"])).reshape(attention.query_shape)
    other = attsvm.att_svm(attention, tokens)
    if other.status != "optimal":
        return None
    made = _saved(other)
    made["problem"] |= {"head": problem["head"], "labels": problem["labels"]}
    made["claims"] = [claim for claim in made["claims"] if claim["claim"] == "optimal"] + [{"claim": "locally optimal"}]
    return made


def _listed(change: str) -> Callable[[Drawn, np.random.Generator], Drawn | None]:
    def mutate(record: Drawn, rng: np.random.Generator) -> Drawn | None:
        if "proofs" not in record:
            return None
        listed, proofs = record["claims"][0]["selections"], record["proofs"]
        some = proofs[int(rng.integers(len(proofs)))]["tokens"]
        if change == "one left out":
            if not listed:
                return None
            gone = listed.pop(int(rng.integers(len(listed))))
            if rng.random() < 0.5:
                record["proofs"] = [proof for proof in proofs if proof["tokens"] != gone]
        elif change == "one too many":
            if some in listed:
                return None
            listed.append(some)
        else:
            kept = [proof for proof in proofs if proof["tokens"] in listed]
            listed.clear()
            record["proofs"] = [proof for proof in proofs if proof not in kept]
        return record

    return mutate


def _other_norm(record: Drawn, rng: np.random.Generator) -> Drawn | None:
    if "W" not in record or "penalty" in record["problem"]:
        return None
    record["norm"] = str(rng.choice([name for name in ("frobenius", "l1", "linf") if name != record["norm"]]))
    record["claims"] = record["claims"][:1]
    return record


MUTATIONS: dict[str, Callable[[Drawn, np.random.Generator], Drawn | None]] = {
    "digit of W": _in("W", change=_digit),
    "digit of a token": _in("problem", "tokens", change=_digit),
    "digit of a row": _in("problem", "left", change=_digit),
    "digit of a query": _in("problem", "queries", change=_digit),
    "digit of the prior": _in("problem", "prior", change=_digit),
    "digit of a multiplier": _in("multipliers", change=_digit),
    "sign in W": _in("W", change=lambda text, _: _negated(text)),
    "sign in a query": _in("problem", "queries", change=lambda text, _: _negated(text)),
    "sign of a multiplier": _in("multipliers", change=lambda text, _: _negated(text)),
    "sign in the head": _in("problem", "head", change=lambda text, _: _negated(text)),
    "sign of a label": _in("problem", "labels", change=lambda text, _: _negated(text)),
    "W 1 % longer": _scaled_W(1.01),
    "W 0.1 % shorter": _scaled_W(0.999),
    "gap 0": _stronger_gap,
    "tokens swapped": _swapped_tokens,
    "another selection": _other_selection,
    "a row dropped": _dropped_row,
    "rank less by 1": _smaller_rank,
    "rank less by 1, coarser": _finer_resolution,
    "locally optimal claimed": _claimed_local,
    "listing: one left out": _listed("one left out"),
    "listing: one too many": _listed("one too many"),
    "listing: emptied": _listed("emptied"),
    "another norm": _other_norm,
}


def mutated(record: Drawn, name: str, rng: np.random.Generator) -> Drawn | None:
    """A changed copy of a record, or None where the change does not apply or changes nothing.

    Examples
    --------
    >>> changed = mutated(honest("frobenius", seed=0), "W 1 % longer", np.random.default_rng(0))
    >>> truth(changed), verdict(changed)
    ('false', 'refused: the multipliers do not prove the gap')
    """
    changed = MUTATIONS[name](copy.deepcopy(record), rng)
    return None if changed == record else changed
