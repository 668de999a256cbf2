import numpy as np
import pytest

from attsvm.exact_tokens import exact_selection_rows
from attsvm.solvers.exact import ExactLeastNorm, exact_feasibility, exact_least_norm
from attsvm.validation.fuzz_families import FAMILIES, draw_group, stack_cases


@pytest.mark.parametrize("family", list(FAMILIES))
def test_families_are_small_valid_and_seeded(family):
    for seed in range(30):
        case, again = (draw_group(family, seed, 1)[0] for _ in range(2))
        problem = case.problem
        assert (problem.X == again.problem.X).all()
        assert case.selection == again.selection
        assert problem.n <= 5
        assert problem.T <= 5
        assert problem.dx <= 6
        chosen = np.take_along_axis(problem.allowed, case.selection.indices[..., None], axis=-1)
        assert chosen.all()
        rows, _ = exact_selection_rows(problem, case.selection)
        # no selected token equals another allowed one
        assert all(any(row) for row in rows.left) or family == "equal tokens"


def test_families_are_what_they_say():
    cases = {family: [draw_group(family, seed, 1)[0].problem for seed in range(30)] for family in FAMILIES}
    assert all(p.X.dtype == np.float32 for p in cases["float32"])
    assert all((~p.Z.any(axis=-1)).any() for p in cases["zero queries"])
    assert all((p.X == p.X.round()).all() for p in cases["integer"] + cases["ties"])
    assert any(p.mask is not None and not p.mask.all() for p in cases["masks"])
    assert any(p.mask is not None and not p.mask.all() for p in cases["ragged"])
    assert all(p.multi_query for p in cases["several queries"] + cases["causal"])
    spread = [np.abs(p.X).max() / np.abs(p.X[p.X != 0]).min() for p in cases["mixed scales"]]
    assert max(spread) > 1e10
    sizes = [np.abs(p.X).max() for p in cases["extreme scales"]]
    assert min(sizes) < 1e-160 and max(sizes) > 1e155
    copies = [draw_group("equal tokens", seed, 1)[0] for seed in range(30)]
    rows = [exact_selection_rows(case.problem, case.selection)[0].left for case in copies]
    assert 3 <= sum(not all(any(row) for row in left) for left in rows) <= 27
    assert any(not case.is_unique for case in (p.optimal_tokens() for p in cases["ties"]))


def test_two_exact_judges_agree():
    """The linear program and the least norm are different algorithms: one verdict on every family."""
    counts = {True: 0, False: 0}
    for case in (draw_group(family, seed, 1)[0] for seed in range(4) for family in FAMILIES):
        rows, _ = exact_selection_rows(case.problem, case.selection)
        feasible = exact_feasibility(rows).feasible
        assert isinstance(exact_least_norm(rows), ExactLeastNorm) == feasible
        counts[feasible] += 1
    assert min(counts.values()) >= 5


def test_unknown_family_is_refused():
    with pytest.raises(ValueError, match="family must be one of"):
        draw_group("cubes", 0, 1)


@pytest.mark.parametrize("family", list(FAMILIES))
def test_a_group_has_equal_sizes_and_is_a_batch(family):
    for seed in range(5):
        group = draw_group(family, seed, 4)
        batch, selections = stack_cases(group)
        for k, case in enumerate(group):
            assert (batch[k].X == case.problem.X).all() and batch[k].X.dtype == case.problem.X.dtype
            assert (batch[k].allowed == case.problem.allowed).all()
            assert (selections[k] == (case.selection.indices if case.sets is None else case.sets.members)).all()
            assert (draw_group(family, seed, k + 1)[k].problem.X == case.problem.X).all()
        assert any((group[0].problem.Z != case.problem.Z).any() for case in group[1:]) or family == "ties"
