import typed_use


def test_a_users_file_runs(tmp_path):
    """`make types` checks the same file without a cast."""
    typed_use.main(tmp_path)
