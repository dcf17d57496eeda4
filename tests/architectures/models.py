"""Tiny, randomly initialised, unmodified models of the `transformers` package, each with a batch to train on.

    ARCHITECTURES: tuple[Architecture, ...]     Architecture.model() -> nn.Module     Architecture.batch() -> keywords

Called with its batch, a model returns an output with a ``loss``. Dropout is on, as these models train.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import torch

_VOCABULARY = 64
_TEXT = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4}
_ENCODER_AND_DECODER = {
    **{"d_model": 32, "encoder_layers": 2, "encoder_attention_heads": 4, "encoder_ffn_dim": 48},
    **{"decoder_layers": 2, "decoder_attention_heads": 4, "decoder_ffn_dim": 48},
}

_WAV2VEC2 = {
    **{"conv_dim": (16, 16), "conv_kernel": (10, 4), "conv_stride": (5, 4), "num_feat_extract_layers": 2},
    **{"num_conv_pos_embeddings": 4, "num_conv_pos_embedding_groups": 2, "classifier_proj_size": 16},
    **{"layerdrop": 0.0, "vocab_size": _VOCABULARY, "num_labels": 3},
}


@dataclasses.dataclass(frozen=True)
class Architecture:
    """One model.

    Attributes:
        name: what the table calls it.
        kind: decoder, encoder, encoder-decoder, vision, speech, and so on.
        model: () -> the model, in training mode, with weights drawn from torch's generator.
        batch: () -> its keyword arguments, labels included.
    """

    name: str
    kind: str
    model: Callable[[], torch.nn.Module]
    batch: Callable[[], dict[str, torch.Tensor]]


def find(name: str) -> Architecture:
    """The architecture called ``name``."""
    return next(architecture for architecture in ARCHITECTURES if architecture.name == name)


def _made(config: str, model: str, **settings: Any) -> Callable[[], torch.nn.Module]:
    def make() -> torch.nn.Module:
        import transformers

        made: torch.nn.Module = getattr(transformers, model)(getattr(transformers, config)(**settings))
        return made.train()

    return make


def _tokens() -> torch.Tensor:
    return torch.randint(5, _VOCABULARY, (2, 12))


def _next_token() -> dict[str, torch.Tensor]:
    tokens = _tokens()
    return {"input_ids": tokens, "labels": tokens.clone()}


def _masked_token() -> dict[str, torch.Tensor]:
    mask = torch.ones(2, 12, dtype=torch.long)
    mask[1, 8:] = 0
    return {"input_ids": _tokens(), "attention_mask": mask, "labels": _tokens()}


def _padded() -> dict[str, torch.Tensor]:
    """Of one length, with labels for what is no padding."""
    given = _masked_token()
    return {**given, "labels": given["input_ids"].masked_fill(given["attention_mask"] == 0, -100)}


def _sequence_to_sequence() -> dict[str, torch.Tensor]:
    return {"input_ids": _tokens(), "labels": torch.randint(5, _VOCABULARY, (2, 7))}


def _image_class() -> dict[str, torch.Tensor]:
    return {"pixel_values": torch.randn(2, 3, 16, 16), "labels": torch.tensor([1, 3])}


def _audio_class() -> dict[str, torch.Tensor]:
    return {"input_values": torch.randn(2, 800), "labels": torch.tensor([1, 0])}


def _speech_to_text() -> dict[str, torch.Tensor]:
    return {"input_features": torch.randn(2, 8, 24), "labels": torch.randint(5, _VOCABULARY, (2, 7))}


def _image_and_text() -> dict[str, torch.Tensor]:
    return {"input_ids": _tokens(), "pixel_values": torch.randn(2, 3, 16, 16), "return_loss": torch.tensor(True)}


ARCHITECTURES = (
    Architecture(
        "GPT-2",
        "decoder",
        _made("GPT2Config", "GPT2LMHeadModel", vocab_size=_VOCABULARY, n_positions=16, n_embd=32, n_layer=2, n_head=4),
        _next_token,
    ),
    Architecture(
        "Llama",
        "decoder",
        _made("LlamaConfig", "LlamaForCausalLM", vocab_size=_VOCABULARY, num_key_value_heads=2, **_TEXT),
        _next_token,
    ),
    Architecture(
        "Gemma 3",  # ties its embeddings, and returns views of what is in the middle
        "decoder",
        _made(
            *("Gemma3TextConfig", "Gemma3ForCausalLM"),
            **_TEXT,
            vocab_size=_VOCABULARY,
            num_key_value_heads=2,
            head_dim=8,
            sliding_window=8,
        ),
        _padded,
    ),
    Architecture(
        "Bart",
        "encoder-decoder",
        _made(
            *("BartConfig", "BartForConditionalGeneration"),
            vocab_size=_VOCABULARY,
            **_ENCODER_AND_DECODER,
            max_position_embeddings=16,
        ),
        _padded,
    ),
    Architecture(
        "Mixtral",
        "mixture of experts",
        _made(
            *("MixtralConfig", "MixtralForCausalLM"),
            **_TEXT,
            vocab_size=_VOCABULARY,
            num_key_value_heads=2,
            num_local_experts=4,
            output_router_logits=True,
        ),
        _next_token,
    ),
    Architecture(
        "Mamba",
        "state space",
        _made("MambaConfig", "MambaForCausalLM", vocab_size=_VOCABULARY, hidden_size=32, num_hidden_layers=2, state_size=4),
        _next_token,
    ),
    Architecture(
        "BERT",
        "encoder",
        _made("BertConfig", "BertForMaskedLM", vocab_size=_VOCABULARY, max_position_embeddings=16, **_TEXT),
        _masked_token,
    ),
    Architecture(
        "T5",
        "encoder-decoder",
        _made(
            "T5Config",
            "T5ForConditionalGeneration",
            vocab_size=_VOCABULARY,
            d_model=32,
            d_kv=8,
            d_ff=48,
            num_layers=2,
            num_heads=4,
            decoder_start_token_id=0,
        ),
        _sequence_to_sequence,
    ),
    Architecture(
        "ViT",
        "vision",
        _made("ViTConfig", "ViTForImageClassification", image_size=16, patch_size=4, num_labels=5, **_TEXT),
        _image_class,
    ),
    Architecture(
        "ConvNeXt",
        "vision, convolutional",
        _made(
            "ConvNextConfig",
            "ConvNextForImageClassification",
            image_size=16,
            patch_size=2,
            num_stages=2,
            hidden_sizes=[8, 16],
            depths=[1, 1],
            num_labels=5,
            drop_path_rate=0.1,
        ),
        _image_class,
    ),
    Architecture(
        "CLIP",
        "vision and text",
        _made(
            "CLIPConfig",
            "CLIPModel",
            text_config={"vocab_size": _VOCABULARY, "max_position_embeddings": 16, **_TEXT},
            vision_config={"image_size": 16, "patch_size": 4, **_TEXT},
            projection_dim=16,
        ),
        _image_and_text,
    ),
    Architecture(
        "Wav2Vec2",
        "speech",
        _made("Wav2Vec2Config", "Wav2Vec2ForSequenceClassification", apply_spec_augment=False, **_WAV2VEC2, **_TEXT),
        _audio_class,
    ),
    Architecture(
        "Wav2Vec2 with SpecAugment",  # draws its masks from NumPy's generator
        "speech",
        _made("Wav2Vec2Config", "Wav2Vec2ForSequenceClassification", mask_time_length=2, **_WAV2VEC2, **_TEXT),
        _audio_class,
    ),
    Architecture(
        "Whisper",
        "speech, encoder-decoder",
        _made(
            "WhisperConfig",
            "WhisperForConditionalGeneration",
            vocab_size=_VOCABULARY,
            num_mel_bins=8,
            **_ENCODER_AND_DECODER,
            max_source_positions=12,
            max_target_positions=16,
            pad_token_id=0,
            bos_token_id=1,
            eos_token_id=2,
            decoder_start_token_id=3,
            suppress_tokens=None,
            begin_suppress_tokens=None,
        ),
        _speech_to_text,
    ),
)
