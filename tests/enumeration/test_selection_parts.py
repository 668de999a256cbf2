"""How many selections are solved at once."""

import attsvm
from attsvm.enumeration.selection_space import SelectionSpace


def test_wide_tokens_are_solved_in_smaller_parts():
    narrow, wide = (SelectionSpace(attsvm.random_problem(n=5, T=5, d=d, seed=0)) for d in (10, 100))
    entries = 20 * (20 + 100) + 100 * 100  # rows, their Gram matrix and W of a selection
    assert narrow.at_once == 4096 and wide.at_once * entries <= 1 << 23 < (wide.at_once + 1) * entries
