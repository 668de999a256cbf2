"""Cases of the functions that solve margin problems, against cvxpy on constraints written out one by one."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

import attsvm
from attsvm.solvers import MarginProblem, solve
from attsvm.solvers.arrays import FloatArray
from attsvm.solvers.reference import TIGHT
from attsvm.trained_head import TrainedHead
from attsvm.validation.matrix import (
    EXPRESSIONS,
    VALUES,
    Answer,
    Constraints,
    Instance,
    Margin,
    constraints_of,
    drawn,
    faults_of,
    objective,
    problem_of,
    reference,
)
from attsvm.validation.matrix_calls.call_cases import FORMS, GIVEN, Call, Row, case, close

# Iterations of a solver on problems of up to 42 rows, in its own unit: pivots, Newton steps or interior steps. The
# reference (cvxpy) may need more.
_ITERATIONS = 1500

# Evaluations of a search with a limited rank: two starts of at most 60 rounds with 100 inner steps of two each.
_EVALUATIONS = 2 * 60 * 200

_STARTS = 2

_TOLERANCE_OF_SUPPORT = {"support_tolerance": "a number; the support has cases of its own"}


def margin_of(call: Call) -> Margin:
    """The margin that C, slack and loss of a call describe."""
    return Margin(call["loss"], call["slack"]) if call.given("C") else Margin()


def scored(one: Instance, rng: np.random.Generator) -> tuple[Instance, FloatArray, FloatArray]:
    """The instance with the tokens selected that a random linear head and random labels score highest; head, labels."""
    v: FloatArray = rng.standard_normal((one.X.shape[-1],))
    labels = rng.choice([-1.0, 1.0], one.Z.shape[:-1])
    values = np.nan_to_num(one.X) @ v
    scores = labels[..., None] * (values[:, None] if one.Z.ndim == 3 else values)
    chosen = np.where(one.allowed, scores, -np.inf).argmax(axis=-1)
    return replace(one, members=np.arange(one.X.shape[1]) == chosen[..., None]), v, labels


def multi_query(size: tuple[int, int, int], rng: np.random.Generator, causal: bool, wrong: bool) -> Instance:
    """Self-attention of n sequences, every token a query, with the selection of a hidden W."""
    one = drawn("causal", (*size, size[-1]), int(rng.integers(2**31)), wrong=wrong)
    if causal:
        return one
    n, T, d = size
    scores = np.einsum("ntd,de,nke->nkt", one.X, rng.standard_normal((d, d)), one.Z)
    members = np.arange(T) == scores.argmax(axis=-1)[..., None]
    return replace(one, kind="att", members=members, mask=np.ones((n, T, T), dtype=bool))


def instances_of(call: Call, kind: str) -> list[Instance]:
    """One instance, or those of a batch, with offset and prior where the call gives them."""
    soft = call.given("C")
    found: list[Instance] = []
    for _ in range(call.batch or 1):
        if kind == "satt":
            size = call.pick((2, 4, 6), (3, 4, 4), (4, 5, 3))
            one = multi_query(size, call.rng, call["causal"], soft)
        else:
            one = drawn(kind, call.pick("few", "equal", "many"), int(call.rng.integers(2**31)), wrong=soft)
        shape = (one.X.shape[-1], one.Z.shape[-1])
        if call.row.get("offset") is not None:
            one = replace(one, offset=0.3 * call.rng.standard_normal(one.members.shape))
        if call.row.get("prior") is not None:
            one = replace(one, prior=call.rng.standard_normal(shape))
        found.append(replace(one, C=found[0].C if found else one.C))  # a batch has one C
    return found


def _stacked(given: Sequence[Any], batch: int | None) -> Any:
    if given[0] is None:
        return None
    return given[0] if batch is None else np.stack(list(given))


def answer_of(one: Any) -> Answer:
    """What a solution says."""
    return Answer(str(one.status), one.W if one.status.has_solution else None, one.certificate.farkas is not None)


def iterations_within(call: Call, found: Any) -> Iterator[str]:
    """A sentence when a solver took more steps than problems of this size need."""
    most = int(np.max(found.result.iterations if hasattr(found, "result") else found.iterations))
    allowed = _EVALUATIONS if call.row.get("rank") is not None else _ITERATIONS
    if call.row.get("solver") != "cvxpy" and most > allowed:
        yield f"took {most} iterations, more than {allowed}"


def _judge_rank(one: Instance, answer: Answer, rank: int) -> Iterator[str]:
    """A solution of limited rank: feasible, of that rank, and no better than without the limit."""
    known = reference(one, "nuclear", Margin())
    if answer.status in ("infeasible", "failed"):  # "failed": no start became feasible, which proves nothing
        if answer.status == "infeasible" and known.feasible:
            yield "called infeasible, but a W exists"
        return
    if answer.status not in ("optimal", "local"):
        yield f"status {answer.status}"
    assert answer.W is not None
    change = answer.W if one.prior is None else answer.W - one.prior
    singular = np.linalg.svd(change, compute_uv=False)
    if (singular[rank:] > 1e-6 * singular[0]).any():
        yield f"the change has rank above {rank}"
    missed = float(constraints_of(one).missed(answer.W).max())
    if missed > 1e-6:
        yield f"W misses a constraint by {missed:.2g}"
    value = VALUES["nuclear"](change)
    if known.feasible and value < known.value * (1 - 1e-6):
        yield f"norm {value:.6g} lies below the convex optimum {known.value:.6g}"


def _rank_refused(row: Row) -> bool:
    """A rank that binds is for hard margins in the nuclear norm, by an own method."""
    limited = row["rank"] is not None
    return limited and (row["norm"] != "nuclear" or row["C"] is not None or row["solver"] == "cvxpy")


def slack_refused(row: Row) -> bool:
    """Slack and loss say how rows may be missed, which a hard margin does not allow."""
    return row["C"] is None and (row["slack"], row["loss"]) != ("query", "hinge")


def _svm_refused(row: Row) -> bool:
    return _rank_refused(row) or slack_refused(row)


def _svm_work(row: Row) -> int:
    """Cvxpy builds its programs in Python, and searches with a limited rank run from several starts."""
    if row.get("rank") is not None:  # with max_iter, until rounding is what is left
        return 15_000_000 if row.get("max_iter") is not None else 6_000_000
    return 250_000 if row["solver"] == "cvxpy" else 60_000


def _starts(call: Call) -> dict[str, int]:
    return {"starts": _STARTS} if call.given("rank") else {}


def _accuracy(call: Call) -> dict[str, float]:
    """CLARABEL does not always come to the default tolerance; what it reaches is compared up to this one."""
    return {"tolerance": 1e-6} if call["solver"] == "cvxpy" else {}


def _selected(call: Call, kind: str) -> tuple[list[Instance], Any, Any]:
    """Instances, their problem, and the selection; None for that of the problem's own head."""
    given = instances_of(call, kind)
    problem: Any = problem_of([replace(one, mask=None) for one in given] if kind == "satt" else given, call["number"])
    if call.given("selection"):
        return given, problem, _stacked([one.members.argmax(axis=-1) for one in given], call.batch)
    picked = [scored(one, call.rng) for one in given]
    head = attsvm.LinearHead(_stacked([v for _, v, _ in picked], call.batch))
    labels = _stacked([y for _, _, y in picked], call.batch)
    shown = attsvm.AttentionProblem(problem.X, labels, problem.Z, head, problem.mask)
    return [one for one, _, _ in picked], shown, None


def _svm(call: Call, kind: str) -> Iterator[str]:
    function = attsvm.att_svm if kind == "att" else attsvm.satt_svm
    given, problem, selection = _selected(call, kind)
    rank = 2
    options = call.options(
        "norm", "slack", "loss", "solver", rank=rank, C=given[0].C,
        prior=_stacked([one.prior for one in given], call.batch),
        offset=_stacked([one.offset for one in given], call.batch),
    )  # fmt: skip
    options |= _starts(call) | _accuracy(call)
    if kind == "satt":
        options["causal"] = call["causal"]
    if call.given("warm_start"):
        plain = {name: options[name] for name in ("norm", "slack", "loss", "C") + (("causal",) * (kind == "satt"))}
        options["warm_start"] = function(problem, selection, **plain)
    found = call.run(function, problem, selection, **options)
    yield from iterations_within(call, found)
    for k, one in enumerate(given):
        answer = answer_of(found[k] if call.batch else found)
        if call.given("rank"):
            yield from _judge_rank(one, answer, rank)
        else:
            fault = faults_of(one, call["norm"], margin_of(call), answer, reference(one, call["norm"], margin_of(call)))
            yield from [fault[1]] if fault[1] else []


@case("attsvm.att_svm", forms=FORMS, skip=_TOLERANCE_OF_SUPPORT, refused=_svm_refused, work=_svm_work)
def _att_svm(call: Call) -> Iterator[str]:
    yield from _svm(call, "att")


@case("attsvm.satt_svm", forms=FORMS, skip=_TOLERANCE_OF_SUPPORT, refused=_svm_refused, work=_svm_work)
def _satt_svm(call: Call) -> Iterator[str]:
    yield from _svm(call, "satt")


def _sets(call: Call, kind: str) -> Iterator[str]:
    given = instances_of(call, kind)
    problem = problem_of(given, call["number"])
    arguments: list[Any] = [problem, _stacked([one.members for one in given], call.batch)]
    if kind == "finite":
        arguments.insert(1, _stacked([one.probabilities for one in given], call.batch))
    options = call.options(
        "norm", "slack", "loss", "solver", C=given[0].C, prior=_stacked([one.prior for one in given], call.batch),
        offset=_stacked([one.offset for one in given], call.batch),
    ) | _accuracy(call)  # fmt: skip
    found = call.run(attsvm.gen_svm if kind == "gen" else attsvm.finite_part, *arguments, **options)
    yield from iterations_within(call, found)
    for k, one in enumerate(given):
        known = reference(one, call["norm"], margin_of(call))
        fault = faults_of(one, call["norm"], margin_of(call), answer_of(found[k] if call.batch else found), known)[1]
        yield from [fault] if fault else []


@case("attsvm.gen_svm", forms=FORMS, skip=_TOLERANCE_OF_SUPPORT, refused=slack_refused, work=_svm_work)
def _gen_svm(call: Call) -> Iterator[str]:
    yield from _sets(call, "gen")


@case("attsvm.finite_part", forms=FORMS, refused=slack_refused, work=_svm_work)
def _finite_part(call: Call) -> Iterator[str]:
    yield from _sets(call, "finite")


def _model_refused(row: Row) -> bool:
    """Probabilities are for the finite part, several queries for one token each; slack and loss need C."""
    finite, sets = row["formulation"] == "finite", row["formulation"] != "att"
    unset = sets and row["selection"] is None
    return unset or finite != (row["probabilities"] is not None) or (sets and row["causal"]) or slack_refused(row)


@case("attsvm.cvxpy_model", refused=_model_refused, work=lambda row: 60_000)
def _cvxpy_model(call: Call) -> Iterator[str]:
    """The program as it is stated, and W as a variable of the caller's, against constraints written out one by one."""
    import cvxpy as cp

    kind = call["formulation"]
    kind = "satt" if kind == "att" and call["causal"] else kind
    if kind in ("att", "satt"):
        (one,), problem, selection = _selected(call, kind)
    else:
        (one,) = instances_of(call, kind)
        problem, selection = problem_of([one], "one"), one.members if call.given("selection") else None
    W = cp.Variable((problem.dx, problem.dz)) if call.given("W") else None
    options = call.options(
        "norm", "slack", "loss", "causal", "formulation", C=one.C, prior=one.prior, offset=one.offset
    )
    shares = one.probabilities
    if call.given("probabilities") and shares is None:
        shares = np.full((*problem.query_shape, problem.T), 1.0 / problem.T)
    options |= {"W": W, "probabilities": shares if call.given("probabilities") else None}
    model = call.run(attsvm.cvxpy_model, problem, selection, **options)
    _solve_program(model.problem)  # what cvxpy does with it is no work of ours
    if call.given("W") and model.W is not W:
        yield "the program is about another W than the one that was given"
    known = reference(one, call["norm"], margin_of(call))
    fault = faults_of(one, call["norm"], margin_of(call), answer_of(model.solution(tolerance=1e-6)), known)[1]
    yield from [fault] if fault else []


def _solve_program(program: Any) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # "may be inaccurate": settings as tight as these are not reached
        program.solve(solver="CLARABEL", **TIGHT["CLARABEL"])


def _verify_refused(row: Row) -> bool:
    both = row["selection"] is not None and row["selected_sets"] is not None
    scaled = row["scale_free"] and (row["offset"] is not None or row["C"] is not None)
    return both or scaled or slack_refused(row)


@case("attsvm.verify", refused=_verify_refused)
def _verify(call: Call) -> Iterator[str]:
    (one,) = instances_of(call, "gen" if call.given("selected_sets") else "att")
    problem: Any = problem_of([one], "one")
    if not call.given("selected_sets") and call["selection"] is None:
        one, v, labels = scored(one, call.rng)
        problem = attsvm.AttentionProblem(problem.X, labels, problem.Z, attsvm.LinearHead(v), problem.mask)
    norm, margin = call["norm"], margin_of(call)
    known = reference(one, norm, margin)
    W = known.W if known.W is not None else call.rng.standard_normal((problem.dx, problem.dz))
    plain = call.options("norm", "slack", "loss", "solver", C=one.C, offset=one.offset)
    multipliers = None
    if call.given("multipliers"):
        own: Any = (
            attsvm.gen_svm(problem, one.members, **plain)
            if call.given("selected_sets")
            else attsvm.att_svm(problem, one.members.argmax(axis=-1), **plain)
        )
        multipliers = np.nan_to_num(own.multipliers)
    options = plain | {"multipliers": multipliers, "scale_free": call["scale_free"]}
    options |= {"selected_sets": one.members if call.given("selected_sets") else None}
    selection = one.members.argmax(axis=-1) if call.given("selection") else None
    scale = 2.0 if call["scale_free"] else 1.0
    found = call.run(attsvm.verify, problem, scale * W, selection, **options)
    if not known.feasible:
        if call["multipliers"] is None and found.farkas is None:
            yield "no W exists, and no proof of it was given"
        return
    # The reference is accurate to about 1e-8 in objective and rows, and the gap adds both.
    if not max(found.gap, found.primal_violation) <= 1e-5:
        yield f"the optimal W has gap {found.gap:.1e} and violation {found.primal_violation:.1e}"
    wrong = attsvm.verify(problem, 3.0 * W + 1e-3, selection, **(options | {"scale_free": False}))
    worse = objective(one, norm, margin, 3.0 * W + 1e-3) > 1.1 * known.value + 1e-3
    proved = max(wrong.gap, wrong.primal_violation, wrong.dual_violation) <= 1e-3
    if np.abs(W).max() > 1e-4 and worse and proved:
        yield f"a W that is not optimal has gap {wrong.gap:.1e}"


@case(
    "attsvm.solvers.solve", forms=FORMS, words={"rows": ("inequalities", "equalities")},
    refused=lambda row: row["rank"] is not None and (row["norm"] != "nuclear" or row["solver"] == "cvxpy"),
    work=_svm_work,
)  # fmt: skip
def _solve(call: Call) -> Iterator[str]:
    """Rows of an Att-SVM or a Gen-SVM as margin problems."""
    given = [
        drawn("gen" if call["rows"] == "equalities" else "prior", call.pick("few", "equal", "many"), seed, wrong=False)
        for seed in call.rng.integers(2**31, size=call.batch or 1).tolist()
    ]
    given = [replace(one, prior=None) for one in given]
    problems = [_rows_of(one) for one in given]
    problem = MarginProblem.stack(problems) if call.batch else problems[0]
    rounds = 60 if call.given("rank") else 500
    options = call.options("norm", "solver", rank=2, tolerance=1e-6, max_iterations=rounds) | _starts(call)
    if call.given("warm_start"):
        options["warm_start"] = solve(problem, call["norm"])
    found = call.run(solve, problem, **options)
    yield from iterations_within(call, found)
    for k, one in enumerate(given):
        answer = answer_of(found[k] if call.batch else found)
        known = reference(one, call["norm"], Margin())
        if call.given("rank"):
            yield from _judge_rank(one, answer, 2)
        else:
            fault = faults_of(one, call["norm"], Margin(), answer, known)[1]
            yield from [fault] if fault else []


def _rows_of(one: Instance) -> MarginProblem:
    """Differences and queries of an instance, first selected token against all others."""
    a, owner, equality = [], [], []
    for i in range(len(one.X)):
        inside = np.flatnonzero(one.members[i])
        for t in (*inside[1:], *np.flatnonzero(one.allowed[i] & ~one.members[i])):
            a.append(one.X[i, inside[0]] - one.X[i, t])
            owner.append(i)
            equality.append(bool(one.members[i, t]))
    return MarginProblem(a, one.Z, owner, rhs=1.0 - np.array(equality), equality=equality)


@case("attsvm.multiclass_svm", refused=slack_refused, work=_svm_work)
def _multiclass(call: Call) -> Iterator[str]:
    n, k, d = call.pick((6, 3, 7), (8, 4, 5), (15, 3, 3))
    H, names = call.rng.standard_normal((n, d)), np.array(["c", "b", "a", "d"])
    if not call.given("C"):  # separable: by the labels of a hidden W
        y = (H @ call.rng.standard_normal((d, k))).argmax(axis=1)
    else:
        y = np.append(np.arange(k), call.rng.integers(k, size=n - k))
    found = call.run(attsvm.multiclass_svm, H, names[y], **call.options("norm", "slack", "loss", "solver", C=0.3))
    yield from iterations_within(call, found)
    known, index = np.unique(names[y], return_inverse=True)
    tokens = np.broadcast_to(np.eye(len(known)), (n, len(known), len(known)))
    one = Instance("att", tokens, H, None, np.arange(len(known)) == index[:, None], 0.3)
    margin = margin_of(call)
    fault = faults_of(one, call["norm"], margin, answer_of(found), reference(one, call["norm"], margin))[1]
    yield from [fault] if fault else []
    if found.status.has_solution and list(found.predict(H)) != list(known[(H @ found.W.T).argmax(axis=1)]):
        yield "predicts other classes than those of the highest score"


@case("attsvm.soft_path", work=lambda row: 3 * _svm_work(row))
def _soft_path(call: Call) -> Iterator[str]:
    one = drawn("att", call.pick("few", "equal", "many"), call.seed, wrong=True)
    if call.given("offset"):
        one = replace(one, offset=0.3 * call.rng.standard_normal(one.members.shape))
    if call.given("prior"):
        one = replace(one, prior=call.rng.standard_normal((one.X.shape[-1], one.Z.shape[-1])))
    problem: Any = problem_of([one], "one")
    if call["selection"] is None:
        one, v, labels = scored(one, call.rng)
        problem = attsvm.AttentionProblem(problem.X, labels, problem.Z, attsvm.LinearHead(v), problem.mask)
    selection = one.members.argmax(axis=-1) if call.given("selection") else None
    Cs = [1.0, 0.02, 0.2]
    options = call.options("norm", "slack", "loss", "solver", offset=one.offset, prior=one.prior)
    path = call.run(attsvm.soft_path, problem, Cs, selection, **options)
    yield from close("Cs", path.Cs, sorted(Cs))
    margin = Margin(call["loss"], call["slack"])
    for C, solution in zip(path.Cs, path, strict=True):
        at_C = replace(one, C=float(C))
        fault = faults_of(at_C, call["norm"], margin, answer_of(solution), reference(at_C, call["norm"], margin))
        yield from [f"C = {C}: {fault[1]}"] if fault[1] else []


@case(
    "attsvm.edit", words={"keep": (None, GIVEN, True, "problem", "selected"), "head": ("bare", "trained")},
    refused=lambda row: _svm_refused(row) or (row["head"] == "bare" and row["of"] != "W") or (
        row["weights"] is not None and row["C"] is None), work=_svm_work,
)  # fmt: skip
def _edit(call: Call) -> Iterator[str]:
    """The change of W, K or Q against cvxpy in the same matrix, and the demands on the W that results."""
    n, T, d = call.pick((4, 4, 5), (5, 5, 6), (6, 6, 7))
    rng = call.rng
    X, Z = rng.standard_normal((n, T, d)), rng.standard_normal((n, d))
    head = TrainedHead.from_weights(rng.standard_normal((3, d)), rng.standard_normal((3, d)))
    problem = attsvm.AttentionProblem(X, Z=Z)
    own = np.einsum("ntd,de,ne->nt", X, head.W, Z).argmax(axis=1)
    wanted = np.full(n, -1)
    wanted[:2] = (own[:2] + 1) % T
    more = rng.standard_normal((2, T, d)), rng.standard_normal((2, d))
    other = attsvm.AttentionProblem(more[0], Z=more[1])
    kept = np.einsum("ntd,de,ne->nt", more[0], head.W, more[1]).argmax(axis=1)
    marked = np.arange(n) % 2 == 0
    marked[:2] = False
    keep = {None: None, True: True, GIVEN: marked, "problem": other, "selected": (other, kept)}[call["keep"]]
    margin, C = 0.7, 0.5
    given: Any = head.W if call["head"] == "bare" else head
    found = call.run(
        attsvm.edit, given, problem, wanted, keep=keep, margin=margin,
        **call.options("of", "norm", "slack", "loss", "solver", rank=1, C=C, weights=WEIGHTS[:n]), **_starts(call),
    )  # fmt: skip
    yield from iterations_within(call, found)
    sides: list[tuple[Any, ...]] = [(X[i], Z[i], int(wanted[i]), None) for i in range(2)]
    if call["keep"] in (True, GIVEN):
        sides += [(X[i], Z[i], int(own[i]), margin) for i in range(2, n) if call["keep"] is True or marked[i]]
    elif call["keep"] in ("problem", "selected"):
        sides += [(more[0][i], more[1][i], int(kept[i]), margin) for i in range(2)]
    rows = _edit_rows(sides, head, call["of"], margin)
    yield from _judge_edit(call, found, rows, head, C)


WEIGHTS = np.array([0.4, 2.5, 1.0, 1.0, 1.0, 1.0])
"""Of the queries of an edit, the first two of which have demands."""


def _slack_weights(call: Call, rows: Constraints) -> FloatArray:
    """What C is multiplied by, per slack."""
    each = np.unique(rows.owner) if call["slack"] == "query" else rows.owner
    return np.where(each < 2, WEIGHTS[np.minimum(each, 2)], 1.0) if call.given("weights") else np.ones(len(each))


def _edit_rows(sides: list[tuple[Any, ...]], head: TrainedHead, of: str, margin: float) -> Constraints:
    """The demands as rows of the change of W, K^T or Q."""
    features, rhs, owner = [], [], []
    for number, (tokens, z, chosen, most) in enumerate(sides):
        for t in range(len(tokens)):
            if t == chosen:
                continue
            a = tokens[chosen] - tokens[t]
            now = float(a @ head.W @ z)
            lead = margin if most is None else min(most, now)
            left, right = {
                "W": (a, z), "K": (a, head.scale * head.query_map @ z), "Q": (head.scale * head.key_map @ a, z)
            }[of]  # fmt: skip
            features.append(np.outer(left, right).ravel())
            rhs.append(lead - now)
            owner.append(number)
    return Constraints(np.array(features), np.array(rhs), np.zeros(len(rhs), dtype=bool), np.array(owner))


def _edit_program(call: Call, rows: Constraints, shape: tuple[int, int], C: float) -> Any:
    """The smallest change by cvxpy, solved."""
    import cvxpy as cp

    D = cp.Variable(shape)
    values = rows.features @ cp.vec(D, order="C")
    cost, held = EXPRESSIONS[call["norm"]](cp, D), [values >= rows.rhs]
    if call.given("C"):
        each = rows.owner if call["slack"] == "query" else np.arange(len(rows.rhs))
        slacks = cp.Variable(int(each.max()) + 1, nonneg=True)
        held = [values + slacks[each] >= rows.rhs]
        cost = cost + C * (_slack_weights(call, rows) @ (slacks if call["loss"] == "hinge" else cp.square(slacks)))
    program = cp.Problem(cp.Minimize(cost), held)
    program.solve(solver="CLARABEL")
    return program


def _edit_value(call: Call, rows: Constraints, change: FloatArray, C: float) -> float:
    """What an edit minimizes, at any change."""
    size = VALUES[call["norm"]](change)
    value = size**2 / 2 if call["norm"] == "frobenius" else size
    if not call.given("C"):
        return value
    slack = rows.missed(change)
    if call["slack"] == "query":
        slack = np.array([slack[rows.owner == k].max() for k in np.unique(rows.owner)])
    return value + C * float(_slack_weights(call, rows) @ (slack if call["loss"] == "hinge" else np.square(slack)))


def _judge_edit(call: Call, found: Any, rows: Constraints, head: TrainedHead, C: float) -> Iterator[str]:
    d, limited = head.W.shape[0], call.given("rank")
    program = _edit_program(call, rows, {"W": (d, d), "K": (d, 3), "Q": (3, d)}[call["of"]], C)
    status = str(found.status)
    if program.status == "infeasible" or status == "infeasible":
        if program.status != status:
            yield f"status {status}, and {program.status} by cvxpy"
        return
    if status not in (("optimal", "local", "failed") if limited else ("optimal",)):
        yield f"status {status}"
    if status not in ("optimal", "local"):
        return
    change = found.change.T if call["of"] == "K" else found.change
    singular = np.linalg.svd(change, compute_uv=False)
    if limited and singular[1] > 1e-6 * singular[0]:
        yield "the change has rank above 1"
    if not call.given("C") and rows.missed(change).max() > 1e-6:
        yield f"the change misses a demand by {rows.missed(change).max():.1e}"
    excess = (_edit_value(call, rows, change, C) - program.value) / max(abs(program.value), 1e-3)
    if excess < -1e-5 or (excess > 1e-5 and not limited):  # cvxpy at its default accuracy
        yield f"the objective differs from cvxpy's by {excess:.1e}"


@case(
    "attsvm.sklearn.AttentionSelector",
    words={"prior": (None, GIVEN, "number", "head", "cosine"), "refit": (False, True)},
    refused=_rank_refused, work=_svm_work,
)  # fmt: skip
def _selector(call: Call) -> Iterator[str]:
    from attsvm.sklearn import AttentionSelector

    n, T, d = call.pick((5, 4, 4), (8, 4, 4), (12, 5, 4))
    rng, hidden = call.rng, call.rng.standard_normal((d, d))
    X, Z = rng.standard_normal((n, T, d)), rng.standard_normal((n, d))
    y = np.einsum("ntd,de,ne->nt", X, hidden, Z).argmax(axis=1)
    head = TrainedHead.from_weights(rng.standard_normal((2, d)), rng.standard_normal((2, d)))
    W0: Any = {None: None, GIVEN: rng.standard_normal((d, d)), "number": 0.5, "head": head, "cosine": "cosine"}[
        call["prior"]
    ]
    known: dict[Any, Any] = {None: np.zeros((d, d)), "number": 0.5 * np.eye(d), "head": head.W, "cosine": np.eye(d)}
    dense: Any = known.get(call["prior"], W0)
    C = 0.3
    split = 0.4 if call["refit"] else 0.0  # a fit of some tasks, to set the temperature, then of all
    model = AttentionSelector(
        prior=W0, temperature_split=split,
        **call.options("norm", "slack", "loss", "solver", rank=2, C=C, random_state=1, query_columns=1, max_iter=10**6),
    )  # fmt: skip
    tasks = [(X[i], Z[i]) for i in range(n)]
    if call["refit"]:
        call.run(model.fit, tasks[: n // 2], y[: n // 2])
        call.run(model.partial_fit, tasks[n // 2 :], y[n // 2 :])
    else:
        call.run(model.fit, tasks, y)
    one = Instance("att", X, Z, None, np.arange(T) == y[:, None], C, prior=dense)
    answer = Answer(str(model.edit_.status), model.W_, model.edit_.certificate.farkas is not None)
    if call.given("rank"):
        yield from _judge_rank(one, answer, 2)
    else:
        margin = margin_of(call)
        fault = faults_of(one, call["norm"], margin, answer, reference(one, call["norm"], margin))[1]
        yield from [fault] if fault else []
    scores = np.einsum("ntd,de,ne->nt", X, model.W_, Z)
    yield from close("decision_function", model.decision_function(tasks), scores)
    # Two rivals that are missed by the same slack have equal scores.
    yield from close("score of predict", scores[np.arange(n), model.predict(tasks)], scores.max(axis=1))
    hot = np.exp(scores / model.temperature_ - (scores / model.temperature_).max(axis=1, keepdims=True))
    yield from close("predict_proba", model.predict_proba(tasks), hot / hot.sum(axis=1, keepdims=True))


@case("attsvm.joint.label_svm")
def _label_svm(call: Call) -> Iterator[str]:
    n, T, d = call.pick((3, 3, 4), (5, 4, 6), (9, 4, 5))
    problem = attsvm.random_problem(n, T, d, seed=call.seed)
    assert isinstance(problem.head, attsvm.LinearHead)
    chosen = (problem.Y[:, None] * (problem.X @ problem.head.v)).argmax(axis=1)
    if call.given("selection"):
        chosen = call.rng.integers(T, size=n)
    found = call.run(attsvm.joint.label_svm, problem, chosen if call.given("selection") else None)
    yield from _judge_label(problem, chosen, found)


def _judge_label(problem: Any, chosen: Any, found: Any) -> Iterator[str]:
    """The least v by non-negative least squares: ``min |v|`` subject to ``A v >= 1`` is a projection."""
    from scipy.optimize import nnls

    A = problem.Y[:, None] * problem.X[np.arange(problem.n), np.asarray(chosen)]
    lam, residual = nnls(np.vstack([A.T, np.ones(len(A))]), np.append(np.zeros(A.shape[1]), 1.0))
    feasible = residual > 1e-8
    if feasible != found.status.has_solution:
        yield f"status {found.status}, but a v {'exists' if feasible else 'does not exist'}"
    elif feasible:
        short = np.append(np.zeros(A.shape[1]), 1.0) - np.vstack([A.T, np.ones(len(A))]) @ lam
        yield from close("v", found.W[:, 0], -short[:-1] / short[-1], 1e-6)


@case("attsvm.joint.consistent_selection")
def _consistent(call: Call) -> Iterator[str]:
    n, T, d = call.pick((3, 3, 4), (4, 5, 8), (6, 4, 12))
    problem = attsvm.random_problem(n, T, d, seed=call.seed)
    selection = call.rng.integers(T, size=n) if call.given("selection") else None
    found = call.run(attsvm.joint.consistent_selection, problem, selection)
    head = attsvm.joint.label_svm(problem, found)
    if head.status.has_solution:
        scores = problem.Y[:, None] * (problem.X @ head.W[:, 0])
        own = np.take_along_axis(scores, found.indices[:, None], axis=1)[:, 0]
        if (scores.max(axis=1) > own + 1e-7).any():
            yield "a token scores more than the selected one under the label SVM of the selection"


@case(
    "attsvm.joint.joint_svm", words={"ratio": (0.0, 0.7, float("inf"))},
    work=lambda row: 2_000_000 if row["solver"] == "cvxpy" else 200_000,  # a root of the ratio takes some 20 solves
)  # fmt: skip
def _joint_svm(call: Call) -> Iterator[str]:
    """The attention part against cvxpy with the demands that it states, and those against their formula."""
    n, T, d = call.pick((3, 3, 4), (4, 4, 6), (5, 5, 8))
    problem: Any = attsvm.random_problem(n, T, d, seed=call.seed)
    selection = call.rng.integers(T, size=n) if call.given("selection") else None
    found = call.run(attsvm.joint.joint_svm, problem, selection, ratio=call["ratio"], **call.options("norm", "solver"))
    chosen = found.selection.indices
    yield from _judge_label(problem, chosen, found.head)
    if not found.head.status.has_solution:
        return
    v = found.head.W[:, 0]
    lead = problem.Y * (problem.X[np.arange(n), chosen] @ v) / np.linalg.norm(v) - 1 / np.linalg.norm(v)
    members = np.arange(T) == chosen[:, None]
    offset = np.where(members, (1.0 - found.demanded)[:, None], 0.0)
    one = Instance("att", problem.X, problem.Z, None, members, 1.0, offset=offset)
    known = reference(one, call["norm"], Margin())
    fault = faults_of(one, call["norm"], Margin(), answer_of(found.attention), known)[1]
    yield from [fault] if fault else []
    slackless = lead <= 1e-5 / np.linalg.norm(v)
    with np.errstate(invalid="ignore"):
        wanted = np.where(slackless, 1.0, np.maximum(0.0, 1.0 - np.where(slackless, 0.0, found.weight * lead)))
    yield from close("demanded margins", found.demanded, wanted, 1e-6)
    if call["ratio"] == 0.7 and known.feasible and not slackless.all():
        yield from close("ratio", found.weight / found.attention.norm, 0.7, 1e-4)
