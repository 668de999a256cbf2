import pytest

from attsvm.solvers import Status
from attsvm.validation.agreement import compare_backends, feasible_fraction, main
from attsvm.validation.ranks import main as ranks_main
from attsvm.validation.ranks import rank_table


def test_backends_agree_and_certificates_say_so():
    rows = compare_backends(16, seed=5)
    assert {row.status for row in rows} <= {Status.OPTIMAL, Status.INFEASIBLE}
    for row in rows:
        assert row.relative_difference <= (1e-4 if "SCS" in row.backend else 1e-6), row
        if "CLARABEL" in row.backend:
            assert row.gap <= 1e-7, row
        assert row.rank_excess <= 0, row
        assert row.span_residual <= 1e-9, row


@pytest.mark.parametrize("kind", ["cross", "self"])
def test_theorem_1_on_random_sizes(kind):
    assert feasible_fraction(15, kind, seed=3) == 1.0


def test_published_ranks_exceed_certified_ones():
    rows = rank_table(n=8, T=4, d=10, trials=3)
    assert all(row.certified == row.numerical < row.published_scs <= 8 for row in rows)


def test_commands_print_their_tables(capsys):
    main(["--instances", "2"])
    assert "Theorem 1, self-attention" in capsys.readouterr().out
    ranks_main(["--n", "4", "--T", "3", "--d", "5", "--trials", "2"])
    assert "certified rank (dual singular values equal to 1)" in capsys.readouterr().out
