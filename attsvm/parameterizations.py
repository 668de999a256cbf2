"""Parameterizations of the attention weights: W itself, factors (K, Q), or a prompt; for arrays and tensors alike."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from attsvm.user_input import ArrayT, is_count, require_choice

Name = Literal["W", "KQ", "prompt"]

# How each is trained unless something else is asked for: the papers' update, and for (K, Q) the recipe that reaches
# the nuclear direction, where the papers' update stops short of it.
_OPTIMIZERS: dict[Name, str] = {"W": "normalized_gd", "KQ": "ridge_decay", "prompt": "normalized_gd"}


@dataclass(frozen=True, eq=False)
class Parameterization:
    """How parameters make W, and how a gradient in W is pulled back to them.

    Parameters may carry any leading axes.

    Attributes
    ----------
    name : {"W", "KQ", "prompt"}
    key_matrix : array or tensor, shape (dx, r), or None
        For "prompt": the fixed key matrix M of ``softmax(X M p)``; the identity by default.
    """

    name: Name
    key_matrix: Any = None

    @property
    def norm(self) -> str:
        """Norm whose SVM theory predicts for normalized gradient descent."""
        return "nuclear" if self.name == "KQ" else "frobenius"

    @property
    def optimizer(self) -> str:
        """Name of the optimizer that trains it by default."""
        return _OPTIMIZERS[self.name]

    def shapes(self, dx: int, dz: int, m: int) -> dict[str, tuple[int, ...]]:
        """Shape of each parameter; ``m`` is the inner dimension of (K, Q)."""
        if self.name == "W":
            return {"W": (dx, dz)}
        if self.name == "KQ":
            return {"K": (dx, m), "Q": (dz, m)}
        return {"p": (dx if self.key_matrix is None else int(self.key_matrix.shape[-1]),)}

    def compose(self, parameters: Mapping[str, ArrayT]) -> ArrayT:
        """W, shape (..., dx, dz)."""
        if self.name == "W":
            return parameters["W"]
        if self.name == "KQ":
            return parameters["K"] @ parameters["Q"].swapaxes(-1, -2)
        # One trained vector p, logits x^T M p: W is the column M p and every query is 1.
        p = parameters["p"][..., None]
        return p if self.key_matrix is None else self.key_matrix @ p

    def pull_back(self, parameters: Mapping[str, ArrayT], G: ArrayT) -> dict[str, ArrayT]:
        """Gradients in the parameters from a gradient in W."""
        if self.name == "W":
            return {"W": G}
        if self.name == "KQ":
            # (20a) and (20b) are printed with the transposes exchanged; with W = K Q^T the chain rule gives these.
            return {"K": G @ parameters["Q"], "Q": G.swapaxes(-1, -2) @ parameters["K"]}
        pulled = G if self.key_matrix is None else self.key_matrix.swapaxes(-1, -2) @ G
        return {"p": pulled[..., 0]}


def get_parameterization(name: str, key_matrix: Any = None) -> Parameterization:
    """Look a parameterization up: "W", "KQ" or "prompt".

    Parameters
    ----------
    name : str
    key_matrix : array or tensor, shape (dx, r), optional
        For "prompt".

    Examples
    --------
    >>> import numpy as np
    >>> KQ = get_parameterization("KQ")
    >>> KQ.compose({"K": np.ones((2, 3)), "Q": np.ones((5, 3))}).shape, KQ.norm
    ((2, 5), 'nuclear')
    """
    require_choice("parameterization", name, "W", "KQ", "prompt")
    return Parameterization(name, key_matrix)  # type: ignore[arg-type]


def require_inner_dimension(parameterization: str, m: object) -> None:
    """Refuse an inner dimension of anything but (K, Q), or one that is no count."""
    if m is not None and (parameterization != "KQ" or not is_count(m)):
        raise ValueError(f"m is the inner dimension of parameterization 'KQ' and must be an integer >= 1, got m={m!r}")
