"""What is refused, each in one line that names the argument and the entry."""

import numpy as np
import pytest

import attsvm

Z = np.array([[0.9, 1.0], [1.0, 0.1]])
X = np.array([[1.0, 0.0], [0.0, 1.0], [0.6, 0.6]])
IDS = ["red", "green", "blue"]


def changed(array, row, value):
    array = array.copy()
    array[row] = value
    return array


@pytest.mark.parametrize(
    ("arguments", "options", "message"),
    [
        ((Z, X, [(0, 0)], [(0, 1)]), {}, "query 0 is both a failure, with the right document 0, and golden, with 1"),
        ((Z, X, [(0, 0), (0, 1)]), {}, "want different first answers of query 0: 0 and 1"),
        ((Z, X, None, [(0, 1), (0, 2)]), {}, "golden.0. and golden.1. keep different answers of query 0"),
        ((Z, X, [(0, 9)]), {}, "failures.0.: document 9 does not exist; there are 3, 0 to 2"),
        ((Z, X, [(-1, 0)]), {}, "query -1 does not exist"),
        ((Z, X, [(0, "redd")]), {"document_ids": IDS}, "no document has the id 'redd'; did you mean 'red'"),
        ((Z, X, [(0, "red")]), {}, "a document is called by its row, 0 to 2, unless document_ids are given"),
        ((Z, X, [(0, 0, [0])]), {}, "the right document 0 is among its own rivals"),
        ((Z, X, [(0,)]), {}, "failures.0. must be .query, right document. or"),
        ((Z, X, [5]), {}, "failures.0. must be a pair"),
        ((Z, X, None, [(0, [])]), {}, "golden.0. must list different documents"),
        ((Z, X, None, [(0, 1, 2)]), {}, "golden.0. must be .query, right document. or"),
        ((Z, X, [(0, 0)]), {"held_out": [(0, 1, 2)]}, "held_out.0. must be"),
        ((Z, X), {}, "failures and golden name nothing"),
        ((Z, changed(X, 1, np.nan), [(0, 0)]), {"document_ids": IDS}, "document 'green' holds NaN or infinity"),
        ((Z, changed(X, 2, 0.0), [(0, 0)]), {}, "documents: document 2 is a zero vector"),
        ((changed(Z, 1, 0.0), X, [(0, 0)]), {}, "queries: query 1 is a zero vector"),
        ((Z[0], X, [(0, 0)]), {}, "queries must have shape .n, d."),
        ((Z[:, :1], X, [(0, 0)]), {}, "must have the same dimension, got 1 and 2; pass prior"),
        ((Z, X, [(0, 0)]), {"prior": np.eye(3)}, "prior must have shape"),
        ((Z, X, [(0, "red")]), {"document_ids": ["red", "red", "blue"]}, "'red' names the vectors 0 and 1"),
        ((Z, X, [(0, "red")]), {"document_ids": ["red"]}, "document_ids must name each of the 3 vectors, got 1"),
        ((Z, X, [(0, 0)]), {"document_ids": [1.5, 2, 3]}, "document_ids must be texts or integers, got 1.5"),
        ((Z, X, [(0, 0)]), {"margin": -1.0}, "margin must be a positive number"),
        ((Z, X, [(0, 0)]), {"margin": "tight"}, "margin must be 'just above' or 'calibrated'"),
        ((Z, X, [(0, 0)]), {"margin": "calibrated"}, "needs golden answers"),
        ((Z, X, [(0, 0)]), {"C": 0.0}, "C must be None or a positive number"),
        ((Z, X, [(0, 0)]), {"side": "left"}, "side must be"),
        ((Z, X, [(0, 0)]), {"stale": "no"}, "stale must be"),
        ((Z, X, [(0, 0)]), {"start": "no"}, "start must be"),
        ((Z, X, [(0, 0)]), {"norm": "no"}, "norm"),
        ((["a"], ["b"], [(0, 0)]), {}, "queries holds texts: pass encoder="),
        ((["a"], X, [(0, 0)]), {"encoder": lambda texts: np.zeros((2, 2))}, "encoder must give one vector per text"),
        (("z.txt", X, [(0, 0)]), {}, "queries must be an array, a .npy file or a sequence of texts"),
        ((Z, X, [(0, 0)]), {"memory_limit": -1}, "memory_limit must be"),
        ((Z, X, None, [(0, 0)]), {}, "1 answers are not first now, the first is query 0, which answers 2 instead of 0"),
    ],
)
def test_bad_input_is_refused_in_one_line(arguments, options, message):
    with pytest.raises(ValueError, match=message) as raised:
        attsvm.patch(*arguments, **options)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: attsvm.patch(Z, X, 5), "failures must be a sequence"),
        (lambda: attsvm.patch(Z, X, [(0, 0)], after=3), "after must be a Patch"),
        (lambda: attsvm.patch(["a"], X, [(0, 0)], encoder=3), "encoder must be a function"),
    ],
)
def test_wrong_types(call, message):
    with pytest.raises(TypeError, match=message):
        call()


def test_golden_answers_that_are_not_first():
    left = attsvm.patch(Z, X, [(1, 2)], [(0, 0)], stale="leave_out")
    assert [(one.query, one.document, one.rival) for one in left.left_out] == [(0, 0, 2)] and not left.kept
    repaired = attsvm.patch(Z, X, None, [(0, 0)], stale="repair")
    assert [(one.kind, one.query) for one in repaired.repaired] == [("repair", 0)]


def test_a_failure_that_is_golden_with_the_same_answer_is_a_failure():
    patch = attsvm.patch(Z, X, [(0, 0)], [(0, 0)])
    assert [(one.kind, one.served) for one in patch.outcomes] == [("repair", True)]


def test_an_entry_that_is_given_twice_counts_once():
    twice = attsvm.patch(Z, X, [(0, 0), (0, 0)], [(1, 0), (1, [0, 2])])
    assert len([one for one in twice.outcomes if one.kind == "repair"]) == 1
    assert len([one for one in twice.outcomes if one.kind == "keep"]) == 2
