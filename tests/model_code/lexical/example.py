"""Tiny lexical encoders, with a closed-form head or with the head of their checkpoint."""

from __future__ import annotations

from pathlib import Path

import torch

from model_code.encoding.settings import EncoderSettings
from model_code.lexical.encoder import Features, LexicalEncoder, elu1p, max_logits_at
from model_code.lexical.layout import start_encoder
from model_code.lexical.settings import LexicalSettings
from tests.tiny_encoder import make_tiny_encoder, make_tokenizer

WORDS = [f"word{i}" for i in range(40)]
TEXTS = [" ".join(WORDS[(7 * i + 3 * j) % 40] for j in range(2 + i % 7)) for i in range(40)]
SETTINGS = LexicalSettings(top_k=8, index_top_k=8, query_top_k=6)


def make_masked_model(folder: Path) -> Path:
    """Save a random BertForMaskedLM with its tokenizer."""
    from transformers import BertConfig, BertForMaskedLM

    from model_code.encoding.base_models import save_tokenizer, save_transformer

    tokenizer = make_tokenizer(WORDS)
    config = BertConfig(
        vocab_size=len(tokenizer),
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=64,
        max_position_embeddings=64,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = BertForMaskedLM(config)
    with torch.no_grad():
        model.bert.embeddings.word_embeddings.weight.mul_(10)
    folder.mkdir(parents=True)
    save_transformer(model, folder)
    save_tokenizer(tokenizer, folder, 16)
    return folder


def make_encoder(
    folder: Path, head: str = "closed_form", settings: LexicalSettings = SETTINGS
) -> LexicalEncoder:
    """Make an encoder of two layers, 32 components and about a hundred vocabulary entries.

    It computes in float32 on the CPU.
    """
    if not folder.exists():
        if head == "mlm":
            make_masked_model(folder)
        else:
            make_tiny_encoder(folder, WORDS)
    base = EncoderSettings(base=str(folder), max_tokens=16, precision="float32", device="cpu")
    return start_encoder(base, settings, TEXTS, seed=0)


def dense_weights(encoder: LexicalEncoder, features: Features) -> torch.Tensor:
    """Return E(x) in full, with gradient: shape (B, V), 0 at blocked entries."""
    tokens, mask = encoder.token_features(features)
    all_entries = torch.arange(encoder.vocabulary_size, device=encoder.device)
    entries = all_entries.expand(len(tokens), -1)
    weights = elu1p(max_logits_at(tokens, mask, encoder.decoder, encoder.bias, entries))
    return weights.masked_fill(encoder.blocked, 0.0)
