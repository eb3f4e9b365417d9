"""A saved random T5 that knows some words, made in milliseconds."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path


def make_tiny_t5(folder: Path, words: Sequence[str]) -> Path:
    """Write a T5 of one layer and 16 components to `folder`; return `folder`."""
    import torch
    from tokenizers import Tokenizer, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast, T5Config, T5ForConditionalGeneration

    vocabulary = {word: n for n, word in enumerate(["<pad>", "</s>", "<unk>", *words])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.post_processor = processors.TemplateProcessing(single="$A </s>", special_tokens=[("</s>", 1)])
    special = {"pad_token": "<pad>", "eos_token": "</s>", "unk_token": "<unk>"}
    config = T5Config(
        vocab_size=len(vocabulary), d_model=16, d_kv=8, d_ff=32, num_layers=1, num_heads=2, decoder_start_token_id=0
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        T5ForConditionalGeneration(config).save_pretrained(folder)
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, **special, model_max_length=8).save_pretrained(folder)
    return folder
