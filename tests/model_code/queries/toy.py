"""Sixteen documents of six words, each asked for by its first three, and a tiny model that can
learn that.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from model_code.queries.generator_training import GeneratorPair, GeneratorTrainer, PairTokens
from model_code.queries.sequence_to_sequence import Loaded, load_sequence_model
from model_code.queries.settings import GeneratorTrainingSettings


def make_tiny_t5(folder: Path, words: Sequence[str]) -> Path:
    """Write a T5 of one layer and 16 components to `folder`; return `folder`."""
    import torch
    from tokenizers import Tokenizer, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast, T5Config, T5ForConditionalGeneration

    vocabulary = {word: n for n, word in enumerate(["<pad>", "</s>", "<unk>", *words])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="$A </s>", special_tokens=[("</s>", 1)]
    )
    special = {"pad_token": "<pad>", "eos_token": "</s>", "unk_token": "<unk>"}
    config = T5Config(
        vocab_size=len(vocabulary),
        d_model=16,
        d_kv=8,
        d_ff=32,
        num_layers=1,
        num_heads=2,
        decoder_start_token_id=0,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        T5ForConditionalGeneration(config).save_pretrained(folder)
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, **special, model_max_length=8
    ).save_pretrained(folder)
    return folder


WORDS = [f"w{i}" for i in range(40)]
_random = np.random.default_rng(0)
DOCUMENTS = {f"d{i:02}": " ".join(_random.choice(WORDS, 6, replace=False)) for i in range(16)}
PAIRS = [GeneratorPair(i, text, " ".join(text.split()[:3])) for i, text in DOCUMENTS.items()]
SECTION_TOKENS = 16
QUERY_TOKENS = 8


def load(folder: Path) -> Loaded:
    """Load a tiny T5, and make it on the first call."""
    if not (folder / "t5").exists():
        make_tiny_t5(folder / "t5", WORDS)
    return load_sequence_model(folder / "t5")


def tokens(loaded: Loaded) -> PairTokens:
    """Batches as `loaded` reads them."""
    return PairTokens(
        loaded[1], SECTION_TOKENS, QUERY_TOKENS, loaded[0].generation_config.decoder_start_token_id
    )


def make_trainer(
    loaded: Loaded, checkpoints: Path | None = None, held_out: list | None = None, **changes
):  # noqa: ANN201
    """Twelve quick steps, chosen by the training pairs themselves."""
    quick = {
        "base": "any",
        "steps": 12,
        "batch_size": 8,
        "learning_rate": 1e-2,
        "evaluate_every": 4,
        "log_every": 3,
        "checkpoint_every": 4,
    }
    settings = GeneratorTrainingSettings(**(quick | changes))  # type: ignore[arg-type]
    chosen_by = PAIRS if held_out is None else held_out
    return GeneratorTrainer(
        loaded, tokens(loaded), PAIRS, chosen_by, settings, 0, checkpoints, precision="float32"
    )
