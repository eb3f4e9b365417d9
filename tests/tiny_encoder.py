"""A real but tiny BERT in the sentence-transformers layout, made in milliseconds, for every test
that needs an encoder, and other architectures as plain transformers folders.

Word vectors dominate its output, so that texts which share words are close: rankings mean something
without training. Use from a test: `from tests.tiny_encoder import make_tiny_encoder`.
"""

from __future__ import annotations

import string
from collections.abc import Iterable
from pathlib import Path
from typing import Any

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]


def make_tiny_encoder(
    folder: Path,
    vocabulary: Iterable[str],
    seed: int = 0,
    layers: int = 2,
    hidden: int = 32,
    max_tokens: int = 64,
) -> Path:
    """Write a random BERT with a WordPiece vocabulary of `vocabulary`, letters and digits to
    `folder`; return `folder`.

    Equal arguments give equal bytes. `vocabulary` may be whole texts: their lower-cased words are
    taken.
    """
    import torch
    from transformers import BertConfig, BertModel

    from model_code.encoding.encoder import Encoder

    tokenizer = make_tokenizer(vocabulary)
    config = BertConfig(
        vocab_size=len(tokenizer),
        hidden_size=hidden,
        num_hidden_layers=layers,
        num_attention_heads=2,
        intermediate_size=2 * hidden,
        max_position_embeddings=max_tokens,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        backbone = BertModel(config)
    with torch.no_grad():
        backbone.embeddings.word_embeddings.weight.mul_(10)
    Encoder(backbone, tokenizer, "mean", max_tokens).save(folder)
    return folder


def make_tiny_model(
    folder: Path, kind: str, vocabulary: Iterable[str], masked: bool = False, **changes: Any
) -> Path:
    """Write a random transformer of architecture `kind` ("mpnet", "roberta", ...) with a WordPiece
    tokenizer.

    masked: with its masked-language-model head. changes: of the config.
    """
    import torch
    from transformers import AutoConfig, AutoModel, AutoModelForMaskedLM

    from model_code.encoding.base_models import save_tokenizer, save_transformer

    tokenizer = make_tokenizer(vocabulary)
    sizes = {
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "intermediate_size": 64,
    }
    sizes |= {"vocab_size": len(tokenizer), "pad_token_id": 0, "max_position_embeddings": 64}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        config = AutoConfig.for_model(kind, **{**sizes, **changes})
        model_class = AutoModelForMaskedLM if masked else AutoModel
        model = model_class.from_config(config)
    folder.mkdir(parents=True)
    save_transformer(model, folder)
    save_tokenizer(tokenizer, folder, 16)
    return folder


def make_tokenizer(vocabulary: Iterable[str]) -> Any:
    """Make a lower-casing WordPiece tokenizer.

    It knows the words of `vocabulary`, and spells out any other.
    """
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    normalizer = normalizers.BertNormalizer(lowercase=True)
    splitter = pre_tokenizers.BertPreTokenizer()
    words = set()
    for text in vocabulary:
        for word, _ in splitter.pre_tokenize_str(normalizer.normalize_str(text)):
            words.add(word)
    letters = string.ascii_lowercase + string.digits
    pieces = dict.fromkeys(
        [*SPECIAL, *letters, *(f"##{letter}" for letter in letters), *sorted(words)]
    )
    tokenizer = Tokenizer(
        models.WordPiece({piece: i for i, piece in enumerate(pieces)}, unk_token="[UNK]")
    )
    tokenizer.normalizer = normalizer
    tokenizer.pre_tokenizer = splitter
    special = [("[CLS]", SPECIAL.index("[CLS]")), ("[SEP]", SPECIAL.index("[SEP]"))]
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=special
    )
    names = {f"{name.strip('[]').lower()}_token": name for name in SPECIAL}
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, **names)
