"""The page on certificates points at tests and names: all of them exist."""

import re
from pathlib import Path

import pytest

import attsvm
from attsvm.validation.fuzz_judge import KINDS

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "certificates.md").read_text()
DEFINED = {
    name
    for path in [*(ROOT / "tests").rglob("test_*.py")]
    for name in re.findall(r"^def (test_\w+)\(", path.read_text(), flags=re.MULTILINE)
}
START, END = PAGE.index("## The claims"), PAGE.index("## Exact certificates")
CLAIMS = re.split(r"^### ", PAGE[START:END], flags=re.MULTILINE)[1:]


def test_every_test_that_is_named_exists():
    named = set(re.findall(r"`(test_\w+)`", PAGE))
    assert len(named) >= 15
    assert named <= DEFINED
    for path in re.findall(r"`(tests/[\w/.]+)`", PAGE):
        assert (ROOT / path).exists(), path


@pytest.mark.parametrize("claim", CLAIMS, ids=lambda text: text.splitlines()[0])
def test_every_claim_points_at_what_tries_to_break_it(claim):
    pointers = claim[claim.index("Tests:") :]
    assert re.search(r"`test_\w+`|`tests/[\w/.]+`", pointers)


def test_kinds_of_the_fuzz_are_named_as_they_are():
    named = {
        kind for line in re.findall(r"kinds? ([^.;]*) of the fuzz", PAGE) for kind in re.findall(r"\*([a-z ]+)\*", line)
    }
    assert named <= set(KINDS)
    assert set(KINDS) - named <= {"batch", "judge", "crash"}


def test_functions_that_are_named_exist():
    from attsvm import exact_tokens as exact_local
    from attsvm.solvers import exact
    from attsvm.solvers.certify import feasible, rounding, singular_values
    from attsvm.solvers.exact import measures, settle

    modules = (attsvm, exact_local, exact, measures, feasible, settle, rounding, singular_values)
    for name in (
        "settle_exactly",
        "proved_spectrum", "singular_value_error", "feasibility_cost", "dual_bound",
        "exact_local_optimality", "locally_optimal_selections",
    ):  # fmt: skip
        assert f"{name}" in PAGE
        assert any(hasattr(module, name) for module in modules), name
