"""One head of a real model as a problem: its weights, its tokens and queries on given texts, and their words."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np
import numpy.typing as npt

from attsvm.probing.head_data import HeadData, Inputs, LayerData, Space, read_inputs
from attsvm.problem import AttentionProblem
from attsvm.solvers.arrays import BoolArray, IntArray
from attsvm.trained_head import TrainedHead
from attsvm.user_input import is_count, require_choice, require_count

if TYPE_CHECKING:
    from torch import nn

CapturedOf = Literal["W", "Q"]


@dataclass(frozen=True, eq=False, repr=False)
class CapturedHead(TrainedHead):
    """A head with its place in the model that it was read from.

    Attributes
    ----------
    module : str
        Name of its attention module in the model.
    layer, number : int
        The call of attention, and the head in it.
    space : {"tokens", "head", "turned"}
        "tokens": W acts on hidden states. "head": on rotated or normalized keys and queries, W is the scale times the
        identity. "turned": on keys that are rotated back to the position of the query, W is the query map.
    shares_keys : tuple of int
        Heads whose keys are the same (grouped queries), this one among them.
    calls : int
        How often the model calls this module on one input: shared layers have the same weights.
    """

    module: str = ""
    layer: int = 0
    number: int = 0
    space: Literal["tokens", "head", "turned"] = "tokens"
    shares_keys: tuple[int, ...] = (0,)
    calls: int = 1

    def __repr__(self) -> str:
        dx, dz = self.key_map.shape[1], self.query_map.shape[1]
        space = "" if self.space == "tokens" else f", {self.space} space"
        shared = f", keys of heads {', '.join(map(str, self.shares_keys))}" if len(self.shares_keys) > 1 else ""
        return f"CapturedHead({self.module}[{self.number}], d_head={self.d_head}, W {dx} x {dz}{space}{shared})"


@dataclass(frozen=True, eq=False, init=False, repr=False)
class CapturedProblem(AttentionProblem):
    """The problem of a head on texts; queries and tokens can be named by their words.

    Attributes
    ----------
    words : list of list of str, or None
        The tokens of each sequence, as the tokenizer writes them.
    """

    words: list[list[str]] | None

    def __init__(self, X: npt.ArrayLike, Z: npt.ArrayLike, mask: npt.ArrayLike, words: list[list[str]] | None) -> None:
        super().__init__(X, Z=Z, mask=mask)
        object.__setattr__(self, "words", words)

    def find(self, query: str | int, token: str | int, *, sequence: int | None = None) -> tuple[tuple[int, ...], int]:
        """The place of a query and of a token that it may see, by their words.

        Parameters
        ----------
        query, token : str or int
            A word of one token (its marks for beginnings and continuations left out), or a position.
        sequence : int, optional
            Which sequence, where the pair occurs in several of them.

        Returns
        -------
        query : tuple of int
            An index of ``query_shape``.
        token : int

        Raises
        ------
        ValueError
            When no pair fits, or more than one: positions, or ``sequence``, tell them apart.

        Examples
        --------
        >>> import numpy as np
        >>> from attsvm.probing.captured_head import CapturedProblem
        >>> hidden = np.random.default_rng(0).normal(size=(1, 3, 4))
        >>> problem = CapturedProblem(hidden, hidden, np.ones((1, 3), dtype=bool), [["the", "cat", "it"]])
        >>> problem.find("it", "cat")
        ((0, 2), 1)
        """
        texts = self._words()
        if sequence is not None and not (is_count(sequence, 0) and sequence < len(texts)):
            raise ValueError(f"sequence must be one of the {len(texts)} sequences, got {sequence!r}")
        found = [
            (i, k, t)
            for i in (range(len(texts)) if sequence is None else [sequence])
            for k in _positions(texts[i], query, "query")
            for t in _positions(texts[i], token, "token")
        ]
        if not found:
            shown = " | ".join(" ".join(filter(None, words)) for words in texts[:3])
            raise ValueError(
                f"no sequence holds the query {query!r} and the token {token!r} as one token each: {shown}"
            )
        seen = [place for place in found if self.allowed[self._query(*place[:2])][place[2]]]
        if not seen:
            i, k, t = found[0]
            raise ValueError(f"query {query!r} (position {k}) may not see token {token!r} (position {t}): it is masked")
        if len(seen) > 1:
            told = ", ".join(f"sequence {i}: {k} to {t}" for i, k, t in seen[:6])
            raise ValueError(f"{query!r} to {token!r} is not one pair: {told}; give positions, or sequence=")
        i, k, t = seen[0]
        return self._query(i, k), t

    def select(self, *pairs: tuple[str | int, str | int], sequence: int | None = None) -> IntArray:
        """The selection for `attsvm.edit` in which each query selects its token, and -1 elsewhere.

        Parameters
        ----------
        *pairs : (query, token)
            As for `find`.
        sequence : int, optional

        Examples
        --------
        >>> import numpy as np
        >>> from attsvm.probing.captured_head import CapturedProblem
        >>> hidden = np.random.default_rng(0).normal(size=(1, 3, 4))
        >>> problem = CapturedProblem(hidden, hidden, np.ones((1, 3), dtype=bool), [["the", "cat", "it"]])
        >>> problem.select(("it", "cat"))
        array([[-1, -1,  1]])
        """
        out = np.full(self.query_shape, -1, dtype=np.int64)
        for query, token in pairs:
            place, chosen = self.find(query, token, sequence=sequence)
            if out[place] not in (-1, chosen):
                raise ValueError(f"query {query!r} cannot select both token {out[place]} and token {chosen}")
            out[place] = chosen
        return out

    def _words(self) -> list[list[str]]:
        if self.words is None:
            raise ValueError("the problem has no words: capture it from texts, with their tokenizer")
        return self.words

    def _query(self, sequence: int, position: int) -> tuple[int, ...]:
        """Index of a query; where every query is a sequence of its own they are numbered one after the other."""
        return (sequence, position) if self.multi_query else (sequence * self.T + position,)


def _positions(words: list[str], asked: str | int, name: str) -> list[int]:
    if isinstance(asked, str):
        plain = [word.lstrip("Ġ▁").removeprefix("##") or word for word in words]
        exact = [k for k, word in enumerate(words) if asked in (word, plain[k])]
        return exact or [k for k, word in enumerate(plain) if word.lower() == asked.lower()]
    if not is_count(asked, 0):
        raise ValueError(f"{name} must be a word or a position, got {asked!r}")
    return [asked] if asked < len(words) else []


def capture(
    model: nn.Module,
    texts: Any,
    tokenizer: Any = None,
    *,
    layer: int,
    head: int,
    of: CapturedOf = "W",
    batch_size: int = 8,
    max_length: int = 128,
) -> tuple[CapturedHead, CapturedProblem]:
    """One head of a model on texts: its weights, and the problem of what it selects there.

    Queries, keys and attention are recomputed from what hooks see and must equal the model's own attention to 1e-5.
    The result goes into `attsvm.edit`, and the edit back into the model by ``edit.apply_to(model)``.

    Parameters
    ----------
    model : torch.nn.Module
        Any that `attsvm.probe` reads. It is run, not changed; edits are exact to rounding for a model in float64.
    texts : str, list of str, mapping of tensors, tensor, tuple, or list of those
        As for `attsvm.probe`. Texts need a tokenizer.
    tokenizer : callable, optional
        Of transformers.
    layer, head : int
        The call of attention, counted from 0 in the order of the calls, and the head in it.
    of : {"W", "Q"}
        "W": tokens and queries are hidden states, ``W = scale [W_k, b_k]^T [W_q, b_q]``; every position is a query.
        With RoPE or QK-norm no such W exists: tokens are then the rotated keys, queries the rotated queries and W is
        the scale times the identity, which can be analysed but not written back. "Q" is for RoPE: each query is a
        sequence of its own, whose tokens are the keys rotated back to its position, and ``W = scale [W_q, b_q]``; an
        edit of "Q" can be written back.
    batch_size, max_length : int
        How texts are batched and cut.

    Returns
    -------
    head : CapturedHead
        A `TrainedHead` that knows its place in the model.
    problem : CapturedProblem
        An `AttentionProblem` with `find` and `select`, which take words. Padded queries see one token, so that nothing
        is asked of them.

    Raises
    ------
    ProbeError
        For what cannot be read, and for heads whose logits have a position bias (ALiBi, T5), which no W expresses.

    Examples
    --------
    >>> import torch
    >>> import attsvm
    >>> torch.manual_seed(0)  # doctest: +ELLIPSIS
    <...>
    >>> model = torch.nn.MultiheadAttention(8, 2, batch_first=True, dtype=torch.float64)
    >>> head, problem = attsvm.capture(model, torch.randn(3, 5, 8, dtype=torch.float64), layer=0, head=1)
    >>> head
    CapturedHead(MultiheadAttention[1], d_head=4, W 9 x 9)
    >>> problem
    AttentionProblem(n=3, T=5, dx=9, dz=9, K=5, no head, masked)
    >>> wanted = attsvm.attention.likeliest(problem, head.W)
    >>> wanted[0, 2] = (wanted[0, 2] + 1) % 5  # one query should look elsewhere
    >>> edit = attsvm.edit(head, problem, wanted, of="Q", margin=0.1)
    >>> changed = edit.apply_to(model)
    >>> again = attsvm.capture(changed, torch.tensor(problem.X[..., :8]), layer=0, head=1)[0]
    >>> attsvm.attention.likeliest(problem, again.W)[0, 2] == wanted[0, 2]
    np.True_
    """
    from attsvm.probing.model_hooks import capture_layers
    from attsvm.probing.model_weights import ProbeError

    require_choice("of", of, *get_args(CapturedOf))
    for name, value in (("layer", layer), ("head", head)):
        require_count(name, value, 0)
    parameter = next(iter(model.parameters()), None) if hasattr(model, "parameters") else None
    inputs = read_inputs(
        texts, tokenizer, batch_size=batch_size, max_length=max_length,
        device=None if parameter is None else parameter.device,
    )  # fmt: skip
    layers = capture_layers(model, inputs.batches, turns=of == "Q")
    if layer >= len(layers):
        raise ValueError(f"layer must be one of the {len(layers)} calls of attention, got {layer}")
    whole = layers[layer]
    if head >= whole.heads:
        raise ValueError(f"head must be one of the {whole.heads} heads of {whole.module}, got {head}")
    if whole.offset is not None and whole.offset[:, head].any():
        raise ProbeError(
            f"{whole.module} adds a position bias to its logits (ALiBi, relative positions), which no W expresses"
        )
    calls = sum(other.module == whole.module for other in layers)
    place: dict[str, Any] = {
        "module": whole.module, "layer": layer, "number": head, "calls": calls, "shares_keys": _sharing(whole, head),
    }  # fmt: skip
    words = _aligned(inputs) if whole.attends == "self" else None
    if of == "Q":
        return _turned(whole, head, place, words)
    return _plain(whole[head], place, words)


def _aligned(inputs: Inputs) -> list[list[str]] | None:
    """The words of each sequence by position, empty for padding on either side."""
    if inputs.tokens is None or inputs.ids is None:
        return None
    each = [iter(words) for words in inputs.tokens]
    return [[next(words) if k >= 0 else "" for k in row] for words, row in zip(each, inputs.ids, strict=True)]


def _sharing(layer: LayerData, head: int) -> tuple[int, ...]:
    """Heads with the keys of this one."""
    own = layer.k[:, head]
    return tuple(h for h in range(layer.heads) if h == head or np.array_equal(layer.k[:, h], own))


def _seen(data: HeadData) -> BoolArray:
    """What each query may see; padded queries, and those that see nothing, one token."""
    return np.where(data.counts[..., None], data.allowed, np.arange(data.allowed.shape[-1]) == 0)


def _plain(
    data: HeadData, place: dict[str, Any], words: list[list[str]] | None
) -> tuple[CapturedHead, CapturedProblem]:
    """Tokens and queries on which the W of the head acts."""
    space: Space = data.space
    tokens, queries = (points.astype(np.float64) for points in data.points())
    if space == "head":
        unit = np.eye(data.q.shape[-1])
        head = CapturedHead(unit, unit, data.scale, False, space=space, **place)
    else:
        assert data.weights is not None
        weights = data.weights
        head = CapturedHead(weights.key_map, weights.query_map, weights.scale, weights.biased, space=space, **place)
    return head, CapturedProblem(tokens, queries, _seen(data), words)


def _turned(
    layer: LayerData, number: int, place: dict[str, Any], words: list[list[str]] | None
) -> tuple[CapturedHead, CapturedProblem]:
    """Each query by itself, with keys rotated back to its position: ``(R_k q)^T (R_t k) = q^T (R_k^T R_t k)``."""
    from attsvm.probing.model_weights import ProbeError

    data = layer[number]
    if data.weights is None:
        raise ProbeError(f"{layer.module} normalizes its queries (QK-norm): its logits are not linear in the query map")
    keys = data.k.astype(np.float64)  # (n, T, r), rotated
    if layer.turns is None:  # without RoPE the keys are those of every query
        turned = np.broadcast_to(keys[:, None], (*data.q.shape[:2], *keys.shape[1:]))
    else:
        turned = np.einsum("nkji,ntj->nkti", layer.turns.astype(np.float64), keys)
    weights = data.weights
    queries = weights.extend(data.queries).astype(np.float64)
    head = CapturedHead(
        np.eye(weights.d_head), weights.query_map, weights.scale, weights.biased, space="turned", **place
    )
    problem = CapturedProblem(
        turned.reshape(-1, *turned.shape[2:]), queries.reshape(-1, queries.shape[-1]),
        _seen(data).reshape(-1, keys.shape[1]), words,
    )  # fmt: skip
    return head, problem
