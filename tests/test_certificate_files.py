"""Certificate files: what is written is accepted, what is false is refused, and bad files end in one line."""

import ast
import gzip
import json
import pickle
import subprocess
import sys
from collections import Counter
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import attsvm
from attsvm.solvers import MarginProblem, certify, solve
from attsvm.solvers.certify import proof_file
from attsvm.solvers.certify.proof_file import number_text, proof_record
from attsvm.validation.certificate_judge import (
    CHECKER,
    HONEST,
    MUTATIONS,
    fraction,
    honest,
    mutated,
    rows_of_record,
    truth,
    verdict,
)
from attsvm.validation.certificate_judge import checker as load_checker
from attsvm.validation.figures.own.certificate_studies import PROBLEMS, foreign_claims, timed_sizes

checker = load_checker()


def record_of(solution):
    return proof_record(solution.certificate, solution.certificate._source)


def run_checker(*files):
    return subprocess.run([sys.executable, "-I", str(CHECKER), *map(str, files)], capture_output=True, text=True)


@pytest.mark.parametrize("kind", HONEST)
def test_honest_certificates_are_accepted_and_false_mutations_refused(kind):
    counts = Counter()
    for seed in range(1 + (kind == "infeasible")):
        record = honest(kind, seed)
        assert verdict(record).startswith("accepted"), verdict(record)
        assert truth(record) != "false"
        rng = np.random.default_rng(seed)
        for name in MUTATIONS:
            changed = mutated(record, name, rng)
            if changed is not None:
                found = truth(changed), verdict(changed).split(":")[0]
                counts[found] += 1
                assert found != ("false", "accepted"), name
    assert sum(n for (judged, _), n in counts.items() if judged == "false") >= 2


def test_claims_that_a_reader_would_miss_are_refused():
    """True claims whose proof is broken, and files that do not say what they assume."""
    record = honest("planted rank", 0)
    assert verdict(record | {"assumes": []}).startswith("refused: the file must say")
    weak = record | {"multipliers": ["0"] * len(record["multipliers"])}
    assert verdict(weak).startswith("refused")
    listing = honest("complete listing", 0)
    fewer = listing | {"proofs": listing["proofs"][1:]}
    twice = listing | {"proofs": [*listing["proofs"][1:], listing["proofs"][1]]}
    assert "every selection" in verdict(fewer) and "every selection" in verdict(twice)
    infeasible = honest("infeasible", 0)
    soft = infeasible | {"problem": infeasible["problem"] | {"penalty": {"C": "1", "slack": "row", "loss": "hinge"}}}
    assert verdict(soft).startswith("refused")


def test_the_checker_needs_python_alone_and_is_short():
    tree = ast.parse(CHECKER.read_text())
    names = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    names |= {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert names <= set(sys.stdlib_module_names)
    assert len(CHECKER.read_text().splitlines()) < 450
    floats = [node for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, float)]
    assert not floats  # decisions are made by integers and fractions


def test_files_are_checked_in_a_process_of_their_own(tmp_path):
    good, packed, bad, none = (tmp_path / name for name in ("a.json", "b.json.gz", "c.json", "d.json"))
    solution = attsvm.att_svm(attsvm.random_problem(n=3, T=4, d=5, seed=0))
    assert solution.certificate.save(good) == ("optimal", "locally optimal")
    assert solution.certificate.save(packed) == ("optimal", "locally optimal")
    assert gzip.decompress(packed.read_bytes()) + b"\n" == good.read_bytes()
    bad.write_text(json.dumps(json.loads(good.read_text()) | {"W": [["0"] * 5] * 5}))
    none.write_text("")
    done = run_checker(good, packed)
    assert done.returncode == 0 and done.stdout.count("accepted") == 2 and not done.stderr
    assert run_checker(good, bad).returncode == 1
    done = run_checker(good, bad, none)
    assert done.returncode == 2 and done.stdout.count("\n") == 3
    assert run_checker().returncode == 2


def test_files_speak_of_tokens_and_every_formulation_is_written():
    problem = attsvm.random_problem(n=3, T=5, d=6, seed=1)
    rng = np.random.default_rng(0)
    prior, offset = 0.3 * rng.normal(size=(6, 6)), rng.normal(size=(3, 5))
    causal = attsvm.random_problem(n=2, T=4, d=6, kind="sequence", causal=True, seed=0)
    probabilities = np.full((3, 5), 0.2)
    probabilities[:, 0] = 0.6
    expected = {
        ("optimal", "locally optimal"): [attsvm.att_svm(problem), attsvm.satt_svm(causal)],
        ("optimal",): [
            attsvm.att_svm(problem, prior=prior), attsvm.att_svm(problem, offset=offset),
            attsvm.gen_svm(problem, [[0, 2], [1], [3, 4]]), attsvm.att_svm(problem, C=2.0, norm="l1"),
            attsvm.finite_part(problem, probabilities, [[0, 1], [0, 2], [0]]),
        ],
        ("optimal", "rank"): [
            attsvm.att_svm(problem, norm="nuclear"), attsvm.gen_svm(problem, [[0, 2], [1], [3]], norm="nuclear"),
            attsvm.att_svm(problem, norm="nuclear", prior=prior),
        ],
    }  # fmt: skip
    for claims, solutions in expected.items():
        for solution in solutions:
            record = record_of(solution)
            assert tuple(claim["claim"] for claim in record["claims"]) == claims
            assert record["problem"]["kind"] == "attention" and verdict(record).startswith("accepted")
            assert rows_of_record(record).m == solution.rows.margin_problem.m
    batch = attsvm.att_svm(attsvm.random_problem(n=3, T=4, d=5, batch=2, seed=0))
    assert verdict(record_of(batch[1])).startswith("accepted")


def test_scores_of_other_heads_are_stated_as_an_assumption():
    plain = attsvm.random_problem(n=2, T=3, d=3, seed=0)
    head = attsvm.ReluHead(np.random.default_rng(0).normal(size=(3, 3)))
    problem = attsvm.AttentionProblem(plain.X, plain.Y, plain.Z, head)
    tokens = attsvm.locally_optimal_selections(problem)[0].selection
    record = record_of(attsvm.att_svm(problem, tokens))
    assert record["assumes"] == ["scores as given"] and verdict(record).endswith("scores as given")


def test_masked_tokens_have_no_rows():
    plain = attsvm.random_problem(n=3, T=4, d=5, seed=2)
    mask = np.ones((3, 4), dtype=bool)
    mask[1, 3] = mask[2, 0] = False
    problem = attsvm.AttentionProblem(plain.X, plain.Y, plain.Z, plain.head, mask)
    assert verdict(record_of(attsvm.att_svm(problem))).startswith("accepted")
    found = attsvm.locally_optimal_selections(problem)
    from attsvm.enumeration.listing import listing_record

    assert "of 36 " in verdict(listing_record(found))


def test_a_margin_that_floats_cannot_tell_from_1_is_decided_by_rationals():
    """The other token lies at 1 + 2^-44: locally optimal; at exactly 1 it is not."""
    for extra, claims in ((2.0**-44, ["optimal", "locally optimal"]), (0.0, ["optimal"])):
        X = [[[0.0, 0.0], [-1.0, 0.0], [-1.0 - extra, -1.0]]]
        problem = attsvm.AttentionProblem(X, [1.0], [[1.0]], attsvm.LinearHead([1.0, -5.0]))
        record = record_of(attsvm.att_svm(problem, [0]))
        assert [claim["claim"] for claim in record["claims"]] == claims
        assert verdict(record).startswith("accepted")


def test_large_proofs_of_infeasibility_become_lower_bounds(monkeypatch):
    solution = attsvm.att_svm(attsvm.random_problem(n=8, T=4, d=2, seed=0), np.zeros(8, dtype=int))
    assert solution.status == "infeasible"
    monkeypatch.setattr(proof_file, "EXACT_ENTRIES", 0)
    record = record_of(solution)
    assert record["claims"][0]["claim"] == "lower bound" and verdict(record).startswith("accepted: no W of")
    record["claims"][0]["norm"] = number_text(1e300)
    assert verdict(record).startswith("refused")


def test_numbers_of_any_solver_can_be_saved(tmp_path):
    problem = MarginProblem([[2.0, 0.0], [0.0, 1.0]], [[1.0]], [0, 0])
    certificate = certify(problem, [[0.5], [1.0 - 1e-7]], [0.4, 1.0])  # rows missed, multipliers off
    assert certificate.save(tmp_path / "proof.json") == ("optimal",)
    record = json.loads((tmp_path / "proof.json").read_text())
    assert verdict(record).startswith("accepted") and 1e-4 < fraction(record["claims"][0]["gap"]) < 1e-1
    with pytest.raises(ValueError, match="no positive lower bound"):
        certify(problem, [[0.5], [1.0]], [0.0, 0.0]).save(tmp_path / "nothing.json")


def test_what_cannot_be_certified_is_refused_with_a_reason(tmp_path):
    problem, file = attsvm.random_problem(n=2, T=3, d=4, seed=0), tmp_path / "proof.json"
    with pytest.raises(ValueError, match="norms frobenius, nuclear, spectral, l1, linf"):
        attsvm.att_svm(problem, norm="l3").certificate.save(file)
    with pytest.raises(ValueError, match="index the batch"):
        solve(MarginProblem(np.ones((2, 1, 2)), np.ones((2, 1, 2)), [0])).certificate.save(file)
    with pytest.raises(ValueError, match="needs the problem"):
        pickle.loads(pickle.dumps(attsvm.att_svm(problem).certificate)).save(file)
    with pytest.raises(ValueError, match="not proved complete"):
        several = attsvm.random_problem(n=3, T=4, d=4, seed=5)
        attsvm.locally_optimal_selections(several, limit=1).save_certificate(file)
    with pytest.raises(ValueError, match="Frobenius"):
        attsvm.locally_optimal_selections(problem, norm="nuclear").save_certificate(file)
    assert not file.exists()


GOOD = honest("locally optimal", 0)


def _text(**changes):
    return json.dumps(GOOD | changes)


def _with_number(text):
    return json.dumps(GOOD).replace(json.dumps(GOOD["W"][0][0]), text, 1)


HOSTILE = {
    "later version": _text(version=2),
    "no version": json.dumps({k: v for k, v in GOOD.items() if k != "version"}),
    "truncated": _text()[: len(_text()) // 2],
    "empty": "",
    "bytes": bytes(range(256)),
    "NaN": _with_number("NaN"),
    "infinity": _with_number("-Infinity"),
    "NaN in a string": _with_number('"nan"'),
    "a float": _with_number("0.5"),
    "a huge exponent": _with_number("1e999999999"),
    "a huge binary exponent": _with_number('"0x1p+99999999"'),
    "a million digits": _with_number("1" * 10**6),
    "a million digits in a string": _with_number('"' + "1" * 10**6 + '"'),
    "a million hexadecimal digits": _with_number('"0x' + "f" * 10**6 + '"'),
    "division by zero": _with_number('"1/0"'),
    "other digits": _with_number('"٣"'),
    "spaces": _with_number('" 1"'),
    "a nested number": _with_number("[" * 50 + "]" * 50),
    "deep lists": "[" * 10**6 + "]" * 10**6,
    "deep objects": '{"claims":' * 10**5 + "1" + "}" * 10**5,
    "a field twice": _text()[:-1] + ',"norm":"l1"}',
    "an unknown field": _text(remark="true"),
    "a field in the wrong place": _text(penalty={"C": "1", "slack": "row", "loss": "hinge"}),
    "an unknown claim": _text(claims=[{"claim": "true"}]),
    "a claim with a field of another": _text(claims=[{"claim": "locally optimal", "norm": "nuclear"}]),
    "a listing beside the claims": _text(claims=[*GOOD["claims"], {"claim": "complete listing", "selections": []}]),
    "another kind of problem": _text(problem={"kind": "line\nbreak", "left": [[1]], "queries": [[1]], "owner": [0]}),
    "no claim": _text(claims=[]),
    "an unknown norm": _text(norm="l7"),
    "an index out of range": _text(problem=GOOD["problem"] | {"selected": [99]}),
    "a negative index": _text(problem=GOOD["problem"] | {"selected": [-1] * len(GOOD["problem"]["selected"])}),
    "compressed spaces": gzip.compress(b" " * (1 << 27), 1),
    "half of a compressed file": gzip.compress(_text().encode())[:100],
    "more rows than can be": _text(
        problem={"kind": "attention", "tokens": [[[1]] * 40_000], "queries": [[[1]] * 40_000],
                 "selected": [0] * 40_000}
    ),
    "a matrix larger than can be": _text(
        problem={"kind": "rows", "left": [[1] * 40_000], "queries": [[1] * 40_000], "owner": [0]}, multipliers=[1]
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", HOSTILE)
def test_bad_files_end_in_one_line(name, tmp_path, capsys):
    file = tmp_path / "bad.json"
    data = HOSTILE[name]
    file.write_bytes(data if isinstance(data, bytes) else data.encode())
    assert checker.main([str(file)]) == 2
    out, err = capsys.readouterr()
    assert out.count("\n") == 1 and len(out) < 400 and "no certificate" in out and not err


@given(st.lists(st.lists(st.floats(-1e3, 1e3, width=32), min_size=3, max_size=3), min_size=2, max_size=5))
@settings(max_examples=60, deadline=None)
def test_bounds_of_norms_hold_and_are_tight(rows):
    """Against LAPACK in float64, whose error is far below the room of 1e-9."""
    A = np.array(rows)
    M = checker.integers([[number_text(x) for x in line] for line in A.tolist()], len(rows), 3)
    s = np.linalg.svd(A, compute_uv=False)
    square = checker.squared(M)
    assert square == sum(Fraction(x) ** 2 for x in A.ravel().tolist())
    root = checker.root_above(square)
    assert square <= root**2 <= square * (1 + Fraction(1, 2**140))
    if s[0] > 1e-30:
        above = Fraction(float(s[0])) * (1 + Fraction(1, 10**9))
        assert checker.operator_above(M, above) == above
        with pytest.raises(checker.Refused):
            checker.operator_above(M, Fraction(float(s[0])) * (1 - Fraction(1, 10**9)))
        U, d, Vt = np.linalg.svd(A, full_matrices=False)
        factors = [[[number_text(x) for x in line] for line in F.tolist()] for F in (U * d**0.5, Vt.T * d**0.5)]
        bound = checker.norm_above(M, "nuclear", {"factors": factors})
        assert s.sum() * (1 - 1e-9) <= bound <= s.sum() * (1 + 1e-9)


@given(st.floats(allow_nan=False, allow_infinity=False))
@settings(max_examples=200, deadline=None)
def test_numbers_are_exact(x):
    assert checker.number(number_text(x)) == Fraction(x) == fraction(number_text(x))
    assert checker.number(number_text(Fraction(x) / 3)) == Fraction(x) / 3
    assert float.fromhex(x.hex()) == x and checker.number(x.hex()) == Fraction(x)


def test_the_command_line_writes_certificates(attsvm_command):
    attsvm.save_problem(attsvm.random_problem(n=2, T=3, d=3, seed=0), "p.npz")
    shown = attsvm_command("solve", "p.npz", "--norm", "nuclear", "--certificate", "proof.json")
    assert shown.code == 0 and "wrote proof.json (optimal, rank)" in " ".join(shown.out.split())
    said = json.loads(attsvm_command("solve", "p.npz", "--certificate", "proof.json", "--json").out)
    assert said["solutions"][0]["certificate_claims"] == ["optimal", "locally optimal"]
    assert attsvm_command("enumerate", "p.npz", "--certificate", "list.json.gz", "--quiet").code == 0
    assert run_checker("proof.json", "list.json.gz").returncode == 0
    for command, *options, message in (
        ("solve", "--certificate", "x.txt", ".json or .gz"),
        ("solve", "--norm", "l1", "--norm", "linf", "--certificate", "x.json", "one norm"),
        ("solve", "--norm", "l3", "--certificate", "x.json", "l3"),
        ("enumerate", "--top", 1, "--certificate", "x.json", "--top"),
        ("enumerate", "--norm", "nuclear", "--certificate", "x.json", "frobenius"),
    ):
        failed = attsvm_command(command, "p.npz", *options)
        assert failed.code == 2 and message in failed.err and not Path("x.json").exists()


@pytest.mark.parametrize("problems", PROBLEMS)
def test_files_hold_where_the_library_makes_a_claim(problems):
    found = foreign_claims(1, 0, problems=problems)
    counts = {name.split(": ")[1]: sum(values) for name, values in found.items() if name.startswith("attsvm file")}
    assert counts["contradicted"] == 0
    assert counts["own_tolerance"] == counts["optimal"] and counts["raw"] == counts["infeasible"]
    assert sum(found["CLARABEL, default: raw"]) == 0  # float rays do not cancel exactly


def test_times_are_of_accepted_files():
    assert timed_sizes(1, 0, size=(3, 4, 5), norm="frobenius")["accepted"] == [1]
