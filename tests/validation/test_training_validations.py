import json

from attsvm.validation import floor, geometry, paths, search


def test_floor_prints_both_tables(capsys):
    floor.main(["--problems", "2", "--steps", "1000", "--factor-problems", "1", "--factor-steps", "50", "--json"])
    record = json.loads(capsys.readouterr().out)
    assert [row["step"] for row in record["W"]] == [500, 1000]
    assert len(record["KQ"]) == len(floor.FACTOR_VARIANTS)
    floor.main(["--problems", "1", "--steps", "500", "--factor-problems", "1", "--factor-steps", "20"])
    assert "the recipe" in capsys.readouterr().out


def test_geometry_prefers_the_own_norm():
    table = geometry.margin_table(problems=3, steps=800, seed=3)
    for optimizer, (_, own) in geometry.OPTIMIZERS.items():
        if own in ("spectral", "linf"):
            assert table[optimizer][own]["margin"] > table["normalized_gd"][own]["margin"]
        for norm in geometry.NORMS:
            assert table[optimizer][norm]["margin"] <= 1 + 1e-6


def test_search_prints_lists_and_proofs(capsys):
    search.main(["--small", "--seeds", "1", "--top", "3", "--time-limit", "0", "--check"])
    out = capsys.readouterr().out
    assert "exhaustive: the same list" in out
    assert out.count("complete") >= 3


def test_paths_print_distances(capsys):
    paths.main(["--seeds", "1", "--radii", "5", "40"])
    out = capsys.readouterr().out
    assert "Theorem 2" in out
    assert "logistic" in out
