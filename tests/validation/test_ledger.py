"""The ledger itself: records refuse nonsense, verdicts follow from measurements, the command reports both."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from attsvm.cli import app
from attsvm.validation.figures.figure import LEDGER
from attsvm.validation.ledger import Claim, Measurement, Verdict
from attsvm.validation.ledger import audit as ledger_run
from attsvm.validation.ledger.audit import all_claims, audit, find_claims
from attsvm.validation.ledger.claim_record import Check, count
from attsvm.validation.ledger.ledger_pages import claim_record, claim_text, ledger_pages
from attsvm.validation.ledger.mutate import mutations

RUNNER = CliRunner()


def _square(formula: Any, rng: np.random.Generator, trials: int) -> Measurement:
    x = rng.normal(size=trials)
    return count(abs(formula(x) - x * x), 1e-12, "error")


def _right(x: Any) -> Any:
    return x * x


def _wrong(x: Any) -> Any:
    return 2 * x


TOLD: dict[str, Any] = {"answer": "Read x*x.", "quote": "2x", "hypotheses": ("x real",), "proof": "2 * 3 is not 9."}


def _claim(verdict: Verdict, printed: Any = _right, corrected: Any = None, **more: Any) -> Claim:
    return Claim("svm:example", "Theorem 1", "a statement", verdict, _square, printed, corrected, **(TOLD | more))


# -- measurements ---------------------------------------------------------------------------------------


def test_a_measurement_needs_trials() -> None:
    with pytest.raises(ValueError, match="at least one trial: nothing was checked"):
        Measurement(0, 0, 0.0)


def test_count_takes_errors_above_the_tolerance_and_nan_for_violations() -> None:
    found = count([0.0, 1e-3, 0.5], 1e-2)
    assert (found.violations, found.trials, found.worst, found.holds) == (1, 3, 0.5, False)
    with_nan = count([0.0, np.nan], 1.0)
    assert with_nan.violations == 1 and with_nan.worst == np.inf
    assert count(0.5, 1.0).holds


def test_an_empty_count_checks_nothing() -> None:
    with pytest.raises(ValueError):
        count([], 1.0)


# -- records ------------------------------------------------------------------------------------------------


def test_an_id_names_its_paper() -> None:
    with pytest.raises(ValueError, match="id must read paper:place, got 'thm1'"):
        Claim("thm1", "p. 1", "x", Verdict.OPEN, reason="none")


@pytest.mark.parametrize(
    ("verdict", "arguments", "message"),
    [
        (Verdict.HOLDS, {"measure": None}, "only an open claim with a reason may lack a check"),
        (Verdict.OPEN, {"measure": None}, "only an open claim with a reason may lack a check"),
        (Verdict.HOLDS, {"printed": None}, "printed must hold the formula that measure takes"),
        (Verdict.FAILS, {"corrected": None, "correction": "x*x"}, "a refuted claim needs its corrected form"),
        (Verdict.TYPO, {"corrected": _right}, "a refuted claim needs its corrected form"),
        (
            Verdict.MISSING,
            {"corrected": _right, "correction": "x*x", "quote": ""},
            "a refuted claim needs a quotation, its hypotheses, an answer and a proof",
        ),
        (
            Verdict.FAILS,
            {"corrected": _right, "correction": "x*x", "hypotheses": ()},
            "a refuted claim needs a quotation, its hypotheses, an answer and a proof",
        ),
        (Verdict.HOLDS, {"corrected": _right}, "corrected belongs to refuted claims"),
        (Verdict.OPEN, {"corrected": _right}, "corrected belongs to refuted claims"),
    ],
)
def test_incomplete_records_are_refused(verdict: Verdict, arguments: dict[str, Any], message: str) -> None:
    fields: dict[str, Any] = TOLD | {"measure": _square, "printed": _right} | arguments
    with pytest.raises(ValueError, match=f"svm:example: {message}"):
        Claim("svm:example", "p. 1", "a statement", verdict, **fields)


# -- audits ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("verdict", "printed", "corrected", "agrees"),
    [
        (Verdict.HOLDS, _right, None, True),
        (Verdict.HOLDS, _wrong, None, False),
        (Verdict.OPEN, _right, None, True),
        (Verdict.OPEN, _wrong, None, False),  # a counterexample to an open claim was found
        (Verdict.FAILS, _wrong, _right, True),
        (Verdict.FAILS, _right, _right, False),  # the printed form survives after all
        (Verdict.FAILS, _wrong, _wrong, False),  # the correction is wrong, too
        (Verdict.MISSING, _wrong, _right, True),
        (Verdict.TYPO, _wrong, _right, True),
        (Verdict.TYPO, _right, _right, False),
    ],
)
def test_the_verdict_is_derived_from_both_forms(verdict: Verdict, printed: Any, corrected: Any, agrees: bool) -> None:
    claim = _claim(verdict, printed, corrected, correction="x*x" if corrected else "")
    assert audit(claim).agrees is agrees


def test_an_audit_gives_both_forms_the_same_instances_and_repeats() -> None:
    seen: list[float] = []

    def measure(formula: Any, rng: np.random.Generator, trials: int) -> Measurement:
        seen.append(float(rng.normal()))
        return Measurement(int(formula), trials, 0.0)

    claim = Claim("svm:seen", "p. 1", "x", Verdict.FAILS, measure, 1, 0, correction="0", trials=3, **TOLD)
    first = audit(claim, seed=4)
    assert first.printed is not None and first.printed.trials == 3
    audit(claim, seed=4, trials=9)
    assert seen[0] == seen[1] == seen[2] == seen[3]
    audit(claim, seed=5)
    assert seen[4] != seen[0]


def test_an_open_claim_without_check_is_never_contradicted() -> None:
    result = audit(Claim("svm:open", "p. 1", "x", Verdict.OPEN, reason="a limit"))
    assert result.agrees and result.printed is None and result.seconds == 0.0


# -- the list ---------------------------------------------------------------------------------------------------


def test_an_unknown_paper_is_refused() -> None:
    with pytest.raises(ValueError, match=r"paper must be one of svm, .*got 'algebra'"):
        all_claims(["algebra"])


def test_ids_are_unique(monkeypatch: pytest.MonkeyPatch) -> None:
    ids = [claim.id for claim in all_claims()]
    assert len(set(ids)) == len(ids)
    assert all_claims(["svm"]) == [claim for claim in all_claims() if claim.paper == "svm"]
    twice = type("Module", (), {"CHECKS": {"example": Check(_square, _right)}, "__path__": [], "__name__": "m"})
    monkeypatch.setattr(ledger_run, "import_module", lambda name: twice)
    found = [type("M", (), {"name": name}) for name in ("svm_a", "svm_b")]
    monkeypatch.setattr(ledger_run, "iter_modules", lambda path: found)
    with pytest.raises(ValueError, match=r"two checks of svm share a place: \['example'\]"):
        all_claims(["svm"])


def test_a_check_needs_the_record_of_its_claim(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ledger_run, "_checks", lambda paper: {"example": Check(_square, _right)})
    with pytest.raises(ValueError, match=r"svm: svm.toml has no record of the checks \['example'\]"):
        all_claims(["svm"])


def test_the_words_of_a_claim_and_its_wrong_forms_may_stand_beside_its_check(monkeypatch: pytest.MonkeyPatch) -> None:
    words = {"source": "Theorem 1", "statement": "x times x is its square", "evidence": "algebra"}
    check, known = Check(_square, _right, slips=(_wrong,), words=words), ledger_run._checks("svm")
    monkeypatch.setattr(ledger_run, "_checks", lambda paper: known | {"example": check})
    claim = all_claims(["svm"])[-1]
    assert (claim.id, claim.statement, claim.verdict) == ("svm:example", words["statement"], Verdict.HOLDS)
    assert [m.caught for m in mutations(claim, scaled=False)] == [True]
    monkeypatch.setattr(ledger_run, "_checks", lambda paper: known | {"thm6": check})
    with pytest.raises(ValueError, match=r"svm: svm.toml and the checks both have records of \['thm6'\]"):
        all_claims(["svm"])


def test_records_and_the_terminal_hold_what_is_known() -> None:
    claims = all_claims(["svm"])
    record = claim_record(claims[0], audit(claims[0], trials=2))
    assert record["agrees"] is True and record["printed"].startswith("0/2 violated")
    json.dumps(record)
    told = claim_text(find_claims(["svm:thm4-unique"])[0])
    for part in (
        "Theorem 4 holds if the optimal tokens are unique.",
        "printed: ",
        "supposed: ",
        "corrected: ",
        "proof: ",
    ):
        assert part in told
    assert not set("$\\\\") & set(told)  # no TeX
    sets, quotients = claim_text(find_claims(["svm:lemma5-inside"])[0]), claim_text(find_claims(["localization:20"])[0])
    assert "X_1={c,0}" in sets and "T_2={}" in sets
    assert "sqrt(2v)" in quotients and "e^(-1/(2v eta^2))" in quotients


def test_text_of_a_page_is_not_markup() -> None:
    claim = _claim(Verdict.FAILS, _wrong, _right, correction="a * b * c < d", quote="[a, b]: x_i $ and *")
    pages = ledger_pages([claim, *(c for c in all_claims() if c.paper != "svm")])
    assert r"a \* b \* c \< d" in pages["claims_svm.md"]
    assert r"> \[a, b\]: x\_i" in pages["claims_svm.md"]
    assert "`attsvm validate localization fig6`" in pages["claims_localization.md"]  # code stays code


# -- the command --------------------------------------------------------------------------------------------------


def test_the_command_lists_claims() -> None:
    result = RUNNER.invoke(app, ["claims", "--paper", "svm"])
    assert result.exit_code == 0
    assert "svm:thm1" in result.output


def test_ids_and_items_find_every_claim_on_them() -> None:
    def found(*wanted: str) -> list[str]:
        return [claim.id for claim in find_claims(wanted)]

    for name in ("svm:thm4", "svm:Theorem 4", "svm:Thm. 4", "svm:theorem 4", "svm:thm 4"):
        assert found(name) == ["svm:thm4-limit", "svm:thm4-unique"], name
    assert found("svm:thm3") == ["svm:assA-slope", "svm:thm3"]  # not only the ids that begin so
    assert found("svm:lemma1") == ["svm:lemma1-rank", "svm:lemma1-span", "svm:fig4-bound"]  # and not Lemma 10
    assert found("svm:(34b)") == found("svm:eq34b") == found("svm:eq. (34b)") == ["svm:eq34b"]
    assert found("localization:1") == ["localization:1"]  # a claim, not equation (1) or claim 11
    assert found("localization:(1)") == ["localization:3"]
    assert found("specialization:Lemma III.1")[-1] == "specialization:24"
    assert found("conditioning:lem2") == found("conditioning:Lem. 2") == ["conditioning:L2"]
    assert found("conditioning:41") == found("conditioning:(41)") == ["conditioning:E42"]  # a number alone
    assert found("polarization:3.4") == found("polarization:Assumption 3.4") == ["polarization:C26"]
    for wanted in ("svm:", "polar"):
        every = {claim.id for claim in all_claims() if claim.id.startswith(wanted)}
        assert set(found(wanted)) == every and every
    with pytest.raises(ValueError, match=r"no id begins with thm4, .*near it are svm:Theorem 4, svm:thm4-limit, "):
        found("thm4")
    with pytest.raises(ValueError, match="near it are svm:Theorem 4; "):
        found("Theorem 4")  # of which paper?
    with pytest.raises(ValueError, match="no id begins with zzz, nor is it an item of a paper; attsvm claims lists"):
        found("zzz")


def test_the_command_answers_a_question_on_an_item() -> None:
    result = RUNNER.invoke(app, ["claims", "svm:Theorem 4"])
    assert result.exit_code == 0
    assert "Theorem 4 holds if the optimal tokens are unique." in result.output
    drawing = RUNNER.invoke(app, ["claims", "polarization:Figure 8"])
    assert drawing.exit_code == 0 and drawing.output == "polarization: Figure 8: a drawing of the task\n"


@pytest.mark.parametrize("paper", LEDGER)
def test_no_statement_is_cut_when_the_list_is_piped(paper) -> None:
    """Every word of every claim, in its order; in a grid the words of a cell stand in its column."""
    out = RUNNER.invoke(app, ["claims", "--paper", paper]).output
    lines = [[cell.strip() for cell in line.split("│")] for line in out.splitlines()]
    columns = zip(*(line for line in lines if len(line) == 6), strict=True)
    texts = [" ".join(out.split()), *(" ".join(" ".join(column).split()) for column in columns)]
    for claim in all_claims([paper]):
        for told in (claim.answer or claim.statement, claim.correction):
            assert any(" ".join((told or "").split()) in text for text in texts), (claim.id, told)


def test_the_command_prints_records_of_named_claims() -> None:
    result = RUNNER.invoke(app, ["claims", "svm:eq10", "svm:fig12", "--json"])
    assert result.exit_code == 0
    records = json.loads(result.stdout)
    assert [record["id"] for record in records] == ["svm:eq10", "svm:fig12"]
    assert [record["has_check"] for record in records] == [True, False]
    assert "agrees" not in records[0]


def test_the_command_measures_again() -> None:
    result = RUNNER.invoke(app, ["claims", "svm:eq10", "svm:eq17", "--run", "--trials", "20", "--seed", "3", "--json"])
    assert result.exit_code == 0
    records = {record["id"]: record for record in json.loads(result.stdout)}
    assert records["svm:eq10"]["printed"].startswith("20/20") and records["svm:eq10"]["corrected"].startswith("0/20")
    assert all(record["agrees"] for record in records.values())


def test_the_command_says_how_it_ended() -> None:
    result = RUNNER.invoke(app, ["claims", "svm:eq10", "--run", "--trials", "5"])
    assert result.exit_code == 0
    assert "1 claims, " in result.output and "of processor time" in result.output
    assert "every stored verdict confirmed" in result.output


def test_a_contradicted_verdict_ends_in_exit_code_1(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ledger_run, "all_claims", lambda papers=None: [_claim(Verdict.HOLDS, _wrong)])
    result = RUNNER.invoke(app, ["claims", "--run"])
    assert result.exit_code == 1
    assert "NOT confirmed: svm:example" in result.output


def test_the_command_writes_the_pages(tmp_path) -> None:
    result = RUNNER.invoke(app, ["claims", "--pages", str(tmp_path)])
    assert result.exit_code == 0
    assert (tmp_path / "claims_svm.md").read_text().startswith("# Transformers as Support Vector Machines")
    refused = RUNNER.invoke(app, ["claims", "--pages", str(tmp_path / "none")])
    assert isinstance(refused.exception, ValueError) and "--pages must be a folder" in str(refused.exception)


def test_unknown_papers_and_ids_are_refused() -> None:
    paper = RUNNER.invoke(app, ["claims", "--paper", "algebra"])
    assert isinstance(paper.exception, ValueError) and "got 'algebra'" in str(paper.exception)
    claim = RUNNER.invoke(app, ["claims", "svm:thm99"])
    assert isinstance(claim.exception, ValueError) and "no id begins with svm:thm99, " in str(claim.exception)
    assert "near it are svm:thm9, " in str(claim.exception)
