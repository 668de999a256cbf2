"""Tiny random models of every architecture that is read, with weights large enough for peaked attention."""

import torch

SIZES = {
    "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48, "vocab_size": 50,
    "max_position_embeddings": 64, "initializer_range": 0.4,
}  # fmt: skip
_ENDS = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
GROUPED = {**SIZES, **_ENDS, "num_key_value_heads": 2}


def _bert():
    from transformers import BertConfig, BertModel

    return BertModel(BertConfig(**SIZES))


def _roberta():
    from transformers import RobertaConfig, RobertaModel

    return RobertaModel(RobertaConfig(**SIZES))


def _distilbert():
    from transformers import DistilBertConfig, DistilBertModel

    sizes = {"dim": 32, "n_layers": 2, "n_heads": 4, "hidden_dim": 48, "vocab_size": 50, "initializer_range": 0.4}
    return DistilBertModel(DistilBertConfig(**sizes))


def _albert():
    from transformers import AlbertConfig, AlbertModel

    return AlbertModel(AlbertConfig(embedding_size=16, **SIZES))


def _vit():
    from transformers import ViTConfig, ViTModel

    sizes = {name: SIZES[name] for name in ("hidden_size", "num_hidden_layers", "num_attention_heads")}
    return ViTModel(ViTConfig(**sizes, intermediate_size=48, image_size=12, patch_size=4, initializer_range=0.4))


def _gpt2():
    from transformers import GPT2Config, GPT2LMHeadModel

    return GPT2LMHeadModel(GPT2Config(n_embd=32, n_layer=2, n_head=4, vocab_size=50, initializer_range=0.4, **_ENDS))


def _opt():
    from transformers import OPTConfig, OPTForCausalLM

    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "ffn_dim": 48, "vocab_size": 50}
    return OPTForCausalLM(OPTConfig(**sizes, word_embed_proj_dim=32, max_position_embeddings=64, init_std=0.4))


def _llama():
    from transformers import LlamaConfig, LlamaForCausalLM

    return LlamaForCausalLM(LlamaConfig(**GROUPED))


def _qwen2():
    from transformers import Qwen2Config, Qwen2ForCausalLM

    return Qwen2ForCausalLM(Qwen2Config(**GROUPED))


def _qwen3():
    from transformers import Qwen3Config, Qwen3ForCausalLM

    return Qwen3ForCausalLM(Qwen3Config(head_dim=8, **GROUPED))


def _bloom():
    from transformers import BloomConfig, BloomForCausalLM

    sizes = {"hidden_size": 32, "n_layer": 2, "n_head": 4, "vocab_size": 50, "initializer_range": 0.4}
    return BloomForCausalLM(BloomConfig(**sizes, **_ENDS))


def _mpt():
    from transformers import MptConfig, MptForCausalLM

    return MptForCausalLM(MptConfig(d_model=32, n_layers=2, n_heads=4, vocab_size=50, max_seq_len=64))


def _t5():
    from transformers import T5Config, T5Model

    return T5Model(T5Config(d_model=32, d_kv=8, num_layers=2, num_heads=4, d_ff=48, vocab_size=50))


def _whisper():
    from transformers import WhisperConfig, WhisperModel

    sizes = {f"{side}_{what}": count for side in ("encoder", "decoder") for what, count in
             (("layers", 2), ("attention_heads", 4), ("ffn_dim", 48))}  # fmt: skip
    more = {"d_model": 32, "vocab_size": 50, "num_mel_bins": 8, "max_source_positions": 10, "max_target_positions": 20}
    return WhisperModel(WhisperConfig(**sizes, **more, **_ENDS, decoder_start_token_id=1, init_std=0.4))


def _encoder():
    layer = torch.nn.TransformerEncoderLayer(16, 4, 32, batch_first=True)
    model = torch.nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
    with torch.no_grad():
        for inner in model.layers:
            inner.self_attn.in_proj_weight.mul_(3.0)
    return model


MODELS = {
    name[1:]: make for name, make in list(globals().items())
    if name.startswith("_") and callable(make) and not name.startswith("__")
}  # fmt: skip
HEAD_SPACE = {"llama", "qwen2", "qwen3"}
OFFSETS = {"bloom", "mpt", "t5"}


def make(name, seed=0):
    torch.manual_seed(seed)
    return MODELS[name]().eval()


def batch_for(name, padding="right", seed=1):
    """Three sequences of 9 tokens, two of them padded."""
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(5, 50, (3, 9), generator=generator)
    mask = torch.ones(3, 9, dtype=torch.long)
    for i, length in ((1, 6), (2, 4)):
        mask[i, length:] = 0
    if padding == "left":
        mask = mask.flip(1)
    if name == "encoder":
        return torch.randn(3, 9, 16, generator=generator)
    if name == "vit":
        return {"pixel_values": torch.randn(3, 3, 12, 12, generator=generator)}
    if name == "whisper":
        return {"input_features": torch.randn(3, 8, 20, generator=generator), "decoder_input_ids": ids[:, :5]}
    found = {"input_ids": ids, "attention_mask": mask}
    return {**found, "decoder_input_ids": ids[:, :5]} if name == "t5" else found
