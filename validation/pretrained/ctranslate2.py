"""Weights in a CTranslate2 file, and Whisper's under the names that transformers gives them."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import numpy as np

__all__ = ["read_ctranslate2", "whisper_state"]

_TYPES = {0: np.float32, 1: np.int8, 2: np.int16, 3: np.int32, 4: np.float16}


class _Cursor:
    def __init__(self, data: bytes, name: str) -> None:
        self.data, self.name, self.place = data, name, 0

    def number(self, kind: str) -> int:
        size = struct.calcsize(kind)
        return int(struct.unpack("<" + kind, self.take(size))[0])

    def text(self) -> str:
        return self.take(self.number("H")).rstrip(b"\0").decode()

    def take(self, size: int) -> bytes:
        if size < 0 or self.place + size > len(self.data):
            raise ValueError(f"{self.name} ends early at byte {len(self.data)}: it is no whole CTranslate2 model")
        self.place += size
        return self.data[self.place - size : self.place]


def read_ctranslate2(path: Path) -> dict[str, np.ndarray]:
    """The variables of a ``model.bin``, as they are stored; aliases are followed.

    Raises
    ------
    ValueError
        If the file is damaged, of an unknown version, or quantized in a way that is not read.
    """
    cursor = _Cursor(path.read_bytes(), path.name)
    version = cursor.number("I")
    if not 2 <= version <= 6:
        raise ValueError(f"{path.name} is no CTranslate2 model of versions 2 to 6 (it begins with {version})")
    cursor.text()  # kind of model
    cursor.number("I")  # its revision
    found: dict[str, np.ndarray] = {}
    for _ in range(cursor.number("I")):
        name = cursor.text()
        shape = tuple(cursor.number("I") for _ in range(cursor.number("B")))
        kind = cursor.number("B")
        if kind not in _TYPES:
            raise ValueError(f"{path.name}: {name} has the unknown type {kind}")
        raw = np.frombuffer(cursor.take(cursor.number("I")), dtype=_TYPES[kind])
        found[name] = raw.reshape(shape)
    for _ in range(cursor.number("I")):
        name = cursor.text()
        found[name] = found[cursor.text()]
    return found


def whisper_state(variables: dict[str, np.ndarray]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Tensors by transformers' names, and the sizes of the configuration."""
    import torch

    state: dict[str, Any] = {}

    def put(name: str, value: np.ndarray) -> None:
        state[name] = torch.tensor(value.astype(np.float32))

    def linear(target: str, source: str, *, bias: bool = True) -> None:
        put(f"{target}.weight", variables[f"{source}/weight"])
        if bias and f"{source}/bias" in variables:
            put(f"{target}.bias", variables[f"{source}/bias"])

    def norm(target: str, source: str) -> None:
        put(f"{target}.weight", variables[f"{source}/gamma"])
        put(f"{target}.bias", variables[f"{source}/beta"])

    def split(target: str, source: str, names: tuple[str, ...]) -> None:
        """Several maps in one; keys have a bias of zeros in the file and none in transformers."""
        weights = np.split(variables[f"{source}/weight"], len(names))
        biases = np.split(variables[f"{source}/bias"], len(names))
        for name, weight, bias in zip(names, weights, biases, strict=True):
            put(f"{target}.{name}.weight", weight)
            if name != "k_proj":
                put(f"{target}.{name}.bias", bias)
            elif np.abs(bias).max() > 0:
                raise ValueError(f"{source} has a bias of keys, which Whisper has not")

    layers = {}
    for side in ("encoder", "decoder"):
        layers[side] = 1 + max(
            int(n.split("layer_")[1].split("/")[0])
            for n in variables
            if n.startswith(f"{side}/layer_") and not n.startswith(f"{side}/layer_norm")
        )
        put(f"{side}.embed_positions.weight", variables[f"{side}/position_encodings/encodings"])
        norm(f"{side}.layer_norm", f"{side}/layer_norm")
        for k in range(layers[side]):
            here, there = f"{side}/layer_{k}", f"{side}.layers.{k}"
            norm(f"{there}.self_attn_layer_norm", f"{here}/self_attention/layer_norm")
            split(f"{there}.self_attn", f"{here}/self_attention/linear_0", ("q_proj", "k_proj", "v_proj"))
            linear(f"{there}.self_attn.out_proj", f"{here}/self_attention/linear_1")
            norm(f"{there}.final_layer_norm", f"{here}/ffn/layer_norm")
            linear(f"{there}.fc1", f"{here}/ffn/linear_0")
            linear(f"{there}.fc2", f"{here}/ffn/linear_1")
            if side == "decoder":
                norm(f"{there}.encoder_attn_layer_norm", f"{here}/attention/layer_norm")
                linear(f"{there}.encoder_attn.q_proj", f"{here}/attention/linear_0")
                split(f"{there}.encoder_attn", f"{here}/attention/linear_1", ("k_proj", "v_proj"))
                linear(f"{there}.encoder_attn.out_proj", f"{here}/attention/linear_2")
    for k in (1, 2):
        linear(f"encoder.conv{k}", f"encoder/conv{k}")
    put("decoder.embed_tokens.weight", variables["decoder/embeddings/weight"])
    words, d = variables["decoder/embeddings/weight"].shape
    heads = int(np.ravel(variables["encoder/num_heads"])[0]) if "encoder/num_heads" in variables else d // 64
    sizes = {
        "d_model": d, "vocab_size": words, "encoder_layers": layers["encoder"], "decoder_layers": layers["decoder"],
        "encoder_attention_heads": heads, "decoder_attention_heads": heads,
        "encoder_ffn_dim": variables["encoder/layer_0/ffn/linear_0/weight"].shape[0],
        "decoder_ffn_dim": variables["decoder/layer_0/ffn/linear_0/weight"].shape[0],
        "num_mel_bins": variables["encoder/conv1/weight"].shape[1],
        "max_source_positions": variables["encoder/position_encodings/encodings"].shape[0],
        "max_target_positions": variables["decoder/position_encodings/encodings"].shape[0],
        "pad_token_id": 50256, "bos_token_id": 50256, "eos_token_id": 50256, "decoder_start_token_id": 50257,
    }  # fmt: skip
    return state, sizes
