"""BERT's forward pass on torch alone, so that what only encodes need not import transformers, which
takes seconds.

It computes what transformers' `BertModel` computes, operation by operation (Devlin et al. 2019,
section 3, post-norm layers): equal bits, equal names of the weights, hence equal fingerprints.
`load_plain_bert` loads a folder that holds such a BERT and its tokenizer. Training and every other
architecture go through transformers.
"""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from safetensors.torch import load_file
from tokenizers import Tokenizer
from torch import Tensor, nn
from torch.nn.functional import gelu, scaled_dot_product_attention

from model_code.files import read_json

WEIGHTS = "model.safetensors"
# 0, 1, 2, ...: older checkpoints store them as if they were weights
POSITION_IDS = "embeddings.position_ids"
SIZES = (
    "hidden_size",
    "intermediate_size",
    "layer_norm_eps",
    "max_position_embeddings",
    "num_attention_heads",
    "num_hidden_layers",
    "type_vocab_size",
    "vocab_size",
)
SINGLE = [
    {"SpecialToken": {"id": "[CLS]", "type_id": 0}},
    {"Sequence": {"id": "A", "type_id": 0}},
    {"SpecialToken": {"id": "[SEP]", "type_id": 0}},
]
PAIR = [
    *SINGLE,
    {"Sequence": {"id": "B", "type_id": 1}},
    {"SpecialToken": {"id": "[SEP]", "type_id": 1}},
]


class Bert(nn.Module):
    """Hidden states of a batch of token ids; for inference only."""

    def __init__(self, config: SimpleNamespace) -> None:
        super().__init__()
        self.config = config
        self.embeddings = nn.Module()
        self.embeddings.word_embeddings = nn.Embedding(config.vocab_size, config.hidden_size)
        self.embeddings.position_embeddings = nn.Embedding(
            config.max_position_embeddings, config.hidden_size
        )
        self.embeddings.token_type_embeddings = nn.Embedding(
            config.type_vocab_size, config.hidden_size
        )
        self.embeddings.LayerNorm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.encoder = nn.Module()
        self.encoder.layer = nn.ModuleList(_Layer(config) for _ in range(config.num_hidden_layers))
        self.pooler = nn.Module()  # not used; its weights count in the fingerprint
        self.pooler.dense = nn.Linear(config.hidden_size, config.hidden_size)

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> SimpleNamespace:
        """input_ids, attention_mask: (B, T) -> `last_hidden_state` (B, T, H) and `hidden_states`,
        one per layer + 1.
        """
        mask = None if bool(attention_mask.all()) else attention_mask[:, None, None, :].bool()
        if mask is not None:
            mask = mask.expand(-1, 1, input_ids.shape[1], -1)
        embeddings = self.embeddings
        positions = torch.arange(input_ids.shape[1], device=input_ids.device)[None]
        summed = embeddings.word_embeddings(input_ids) + embeddings.token_type_embeddings(
            torch.zeros_like(input_ids)
        )
        states = [embeddings.LayerNorm(summed + embeddings.position_embeddings(positions))]
        for layer in self.encoder.layer:
            states.append(layer(states[-1], mask))
        return SimpleNamespace(last_hidden_state=states[-1], hidden_states=tuple(states))


class _Layer(nn.Module):
    """Attention over the text, then the feed-forward network, each added to its input and
    normalised.
    """

    def __init__(self, config: SimpleNamespace) -> None:
        super().__init__()
        self.heads = config.num_attention_heads
        self.attention = nn.Module()
        self.attention.self = nn.Module()
        for name in ("query", "key", "value"):
            self.attention.self.add_module(name, nn.Linear(config.hidden_size, config.hidden_size))
        self.attention.output = _Added(config.hidden_size, config)
        self.intermediate = nn.Module()
        self.intermediate.dense = nn.Linear(config.hidden_size, config.intermediate_size)
        self.output = _Added(config.intermediate_size, config)

    def forward(self, states: Tensor, mask: Tensor | None) -> Tensor:
        """states: (B, T, H) of the layer below; mask: (B, 1, T, T) bool, who may look at whom,
        None: all at all.
        """
        attention, heads = self.attention.self, (*states.shape[:2], self.heads, -1)
        projections = attention.query, attention.key, attention.value
        query, key, value = (project(states).view(heads).transpose(1, 2) for project in projections)
        # (B, heads, T, H / heads)
        mixed = scaled_dot_product_attention(query, key, value, attn_mask=mask)
        attended = self.attention.output(mixed.transpose(1, 2).reshape(states.shape), states)
        return self.output(gelu(self.intermediate.dense(attended)), attended)


class _Added(nn.Module):
    """A projection, added to the residual and normalised."""

    def __init__(self, width: int, config: SimpleNamespace) -> None:
        super().__init__()
        self.dense = nn.Linear(width, config.hidden_size)
        self.LayerNorm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)

    def forward(self, states: Tensor, residual: Tensor) -> Tensor:
        """states: (B, T, width), residual: (B, T, H) -> (B, T, H)."""
        return self.LayerNorm(self.dense(states) + residual)


class PlainTokenizer:
    """A `tokenizer.json`, with the two attributes of transformers' fast tokenizers that an encoder
    reads.
    """

    def __init__(self, folder: Path) -> None:

        self.backend_tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        self.pad_token_id = read_json(folder / "config.json").get("pad_token_id")


def load_plain_bert(folder: Path, max_tokens: int = 0) -> Bert | None:
    """The transformer in `folder`, in float32; None unless this module does what transformers does,
    up to the bit.

    max_tokens: the texts' length, for which it must have the positions.
    """
    files = [
        folder / name
        for name in ("config.json", "tokenizer.json", "tokenizer_config.json", WEIGHTS)
    ]
    if not all(path.is_file() for path in files):
        return None
    config = read_json(files[0])
    if not _is_usual(config, max_tokens) or not _keeps_its_rules(
        read_json(files[1]), read_json(files[2])
    ):
        return None
    model = Bert(SimpleNamespace(**config))  # on "meta" torch would import its compiler
    weights: dict[str, Any] = load_file(folder / WEIGHTS)
    weights.pop(POSITION_IDS, None)
    if weights.keys() != model.state_dict().keys():
        return None
    model.load_state_dict({name: weight.float() for name, weight in weights.items()}, assign=True)
    return model.requires_grad_(False)


def _is_usual(config: dict[str, Any], max_tokens: int) -> bool:
    """Whether nothing but sizes distinguishes the model from the published one."""
    usual = {"hidden_act": "gelu", "position_embedding_type": "absolute", "is_decoder": False}
    return config.get("model_type") == "bert" and (
        all(config.get(key, value) == value for key, value in usual.items())
        and all(key in config for key in SIZES)
        and max_tokens <= config["max_position_embeddings"]
    )


def _keeps_its_rules(rules: dict[str, Any], config: dict[str, Any]) -> bool:
    """Whether transformers reads `tokenizer.json` as it is, and does not make other rules of
    `tokenizer_config.json`.

    Its BERT tokenizers take the vocabulary only, and build the rest from the config and their
    defaults.
    """
    kind = config.get("tokenizer_class", "BertTokenizer")
    if kind in ("PreTrainedTokenizerFast", "TokenizersBackend"):
        return True
    options = {
        "lowercase": config.get("do_lower_case", True),
        "strip_accents": config.get("strip_accents"),
    }
    options["handle_chinese_chars"] = config.get("tokenize_chinese_chars", True)
    built = {
        "normalizer": {"type": "BertNormalizer", "clean_text": True, **options},
        "pre_tokenizer": {"type": "BertPreTokenizer"},
        "post_processor": {"type": "TemplateProcessing", "single": SINGLE, "pair": PAIR},
        "decoder": {"type": "WordPiece", "prefix": "##", "cleanup": True},
        "model": {
            "unk_token": "[UNK]",
            "continuing_subword_prefix": "##",
            "max_input_chars_per_word": 100,
        },
    }
    return kind in ("BertTokenizer", "BertTokenizerFast") and all(
        {key: (rules[part] or {}).get(key) for key in expected} == expected
        for part, expected in built.items()
    )
