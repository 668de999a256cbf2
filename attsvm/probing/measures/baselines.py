"""What a number is compared with: the same head with a random W of the same spectrum, and with shuffled tokens."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import numpy.typing as npt

from attsvm.probing.data import HeadData
from attsvm.trained_head import TrainedHead

__all__ = ["random_spectrum", "shuffled_tokens"]

Float64 = npt.NDArray[np.float64]


def _orthonormal(rng: np.random.Generator, d: int, r: int) -> Float64:
    """Columns uniform among orthonormal ones, shape (d, r)."""
    Q, R = np.linalg.qr(rng.normal(size=(d, r)))
    return np.asarray(Q * np.sign(np.diagonal(R)))


def random_spectrum(head: HeadData, seed: int | np.random.Generator = 0) -> HeadData:
    """The head with ``U S V^T`` in place of its W: its singular values, random singular vectors.

    Masks, offsets and tokens stay. In head space W = I becomes a random rotation.

    Examples
    --------
    >>> import numpy as np
    >>> from attsvm.probing import heads_from_arrays
    >>> from attsvm.probing.measures.baselines import random_spectrum
    >>> from attsvm.trained_head import TrainedHead
    >>> rng = np.random.default_rng(0)
    >>> known = TrainedHead.from_weights(rng.normal(size=(2, 6)), rng.normal(size=(2, 6)))
    >>> head = heads_from_arrays(rng.normal(size=(3, 5, 6)), [known])[0]
    >>> drawn = random_spectrum(head)
    >>> bool(np.allclose(drawn.singular_values, head.singular_values)), bool(np.allclose(drawn.matrix, head.matrix))
    (True, False)
    """
    rng = np.random.default_rng(seed)
    if head.space == "head":
        return replace(head, q=head.q @ _orthonormal(rng, head.q.shape[-1], head.q.shape[-1]))
    assert head.weights is not None
    known, values = head.weights, head.singular_values
    U = _orthonormal(rng, known.key_map.shape[1], len(values))
    V = _orthonormal(rng, known.query_map.shape[1], len(values))
    drawn = TrainedHead((U * values).T, V.T, 1.0, known.biased)
    tokens, queries = head.points()
    return replace(head, k=tokens @ drawn.key_map.T, q=queries @ drawn.query_map.T, scale=1.0, weights=drawn)


def shuffled_tokens(head: HeadData, seed: int | np.random.Generator = 0) -> HeadData:
    """The head with its tokens dealt out again over all sequences and places: what is left needs no order.

    Examples
    --------
    >>> import numpy as np
    >>> from attsvm.probing import heads_from_arrays
    >>> from attsvm.probing.measures.baselines import shuffled_tokens
    >>> from attsvm.trained_head import TrainedHead
    >>> head = heads_from_arrays(np.random.default_rng(0).normal(size=(3, 5, 4)), [TrainedHead.head_space(4)])[0]
    >>> dealt = shuffled_tokens(head)
    >>> bool(np.allclose(np.sort(dealt.k.ravel()), np.sort(head.k.ravel()))), bool(np.allclose(dealt.k, head.k))
    (True, False)
    """
    rng = np.random.default_rng(seed)
    real = (head.allowed & head.valid[..., None]).any(axis=1)
    order = rng.permutation(int(real.sum()))
    out = {}
    for name in ("k", "v", "tokens"):
        values = getattr(head, name)
        if values is not None:
            dealt = values.copy()
            dealt[real] = values[real][order]
            out[name] = dealt
    return replace(head, **out)
