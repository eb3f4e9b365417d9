"""A BERT's folder read without transformers: whether that gives the same encoder, its weights and its tokenizer."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

from model_code.encoding.bert import Bert
from model_code.files import read_json

WEIGHTS = "model.safetensors"
POSITION_IDS = "embeddings.position_ids"  # 0, 1, 2, ...: older checkpoints store them as if they were weights
SIZES = ("hidden_size", "intermediate_size", "layer_norm_eps", "max_position_embeddings", "num_attention_heads",
         "num_hidden_layers", "type_vocab_size", "vocab_size")  # fmt: skip
LAYER_PARTS = (
    *(f"attention.{part}" for part in ("self.query", "self.key", "self.value", "output.dense", "output.LayerNorm")),
    *("intermediate.dense", "output.dense", "output.LayerNorm"),
)
OTHER_PARTS = ("embeddings.LayerNorm", "pooler.dense")
SINGLE = [{"SpecialToken": {"id": "[CLS]", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}},
          {"SpecialToken": {"id": "[SEP]", "type_id": 0}}]  # fmt: skip
PAIR = [*SINGLE, {"Sequence": {"id": "B", "type_id": 1}}, {"SpecialToken": {"id": "[SEP]", "type_id": 1}}]


class PlainTokenizer:
    """A `tokenizer.json`, with the two attributes of transformers' fast tokenizers that an encoder reads."""

    def __init__(self, folder: Path) -> None:
        from tokenizers import Tokenizer

        self.backend_tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        self.pad_token_id = read_json(folder / "config.json").get("pad_token_id")


def is_plain_bert(folder: Path, max_tokens: int = 0) -> bool:
    """Whether `Bert` and `PlainTokenizer` do with the transformer in `folder` what transformers does, up to the bit.

    max_tokens: the texts' length, for which it must have the positions.
    """
    files = [folder / name for name in ("config.json", "tokenizer.json", "tokenizer_config.json", WEIGHTS)]
    return all(path.is_file() for path in files) and (
        _is_usual(read_json(files[0]), max_tokens)
        and _keeps_its_rules(read_json(files[1]), read_json(files[2]))
        and _weight_names(folder) == _names_of(read_json(files[0]))
    )


def _is_usual(config: dict[str, Any], max_tokens: int) -> bool:
    """Whether nothing but sizes distinguishes the model from the published one."""
    usual = {"hidden_act": "gelu", "position_embedding_type": "absolute", "is_decoder": False}
    return config.get("model_type") == "bert" and (
        all(config.get(key, value) == value for key, value in usual.items())
        and all(key in config for key in SIZES)
        and max_tokens <= config["max_position_embeddings"]
    )


def _keeps_its_rules(rules: dict[str, Any], config: dict[str, Any]) -> bool:
    """Whether transformers reads `tokenizer.json` as it is, and does not make other rules of `tokenizer_config.json`.

    Its BERT tokenizers take the vocabulary only, and build the rest from the config and their defaults.
    """
    kind = config.get("tokenizer_class", "BertTokenizer")
    if kind in ("PreTrainedTokenizerFast", "TokenizersBackend"):
        return True
    options = {"lowercase": config.get("do_lower_case", True), "strip_accents": config.get("strip_accents")}
    options["handle_chinese_chars"] = config.get("tokenize_chinese_chars", True)
    built = {
        "normalizer": {"type": "BertNormalizer", "clean_text": True, **options},
        "pre_tokenizer": {"type": "BertPreTokenizer"},
        "post_processor": {"type": "TemplateProcessing", "single": SINGLE, "pair": PAIR},
        "decoder": {"type": "WordPiece", "prefix": "##", "cleanup": True},
        "model": {"unk_token": "[UNK]", "continuing_subword_prefix": "##", "max_input_chars_per_word": 100},
    }
    return kind in ("BertTokenizer", "BertTokenizerFast") and all(
        {key: (rules[part] or {}).get(key) for key in expected} == expected for part, expected in built.items()
    )


def _weight_names(folder: Path) -> set[str]:
    from safetensors import safe_open

    with safe_open(folder / WEIGHTS, framework="pt") as file:
        return set(file.keys()) - {POSITION_IDS}


def _names_of(config: dict[str, Any]) -> set[str]:
    """The names of a `Bert`'s weights."""
    layers = [f"encoder.layer.{i}.{part}" for i in range(config["num_hidden_layers"]) for part in LAYER_PARTS]
    pairs = [f"{part}.{kind}" for part in (*layers, *OTHER_PARTS) for kind in ("weight", "bias")]
    return {*pairs, *(f"embeddings.{kind}_embeddings.weight" for kind in ("word", "position", "token_type"))}


def load_plain_bert(folder: Path) -> Bert:
    """The BERT that `save_transformer` wrote to `folder`, in float32."""
    from safetensors.torch import load_file

    model = Bert(SimpleNamespace(**read_json(folder / "config.json")))  # on "meta" torch would import its compiler
    weights: dict[str, Any] = load_file(folder / WEIGHTS)
    weights.pop(POSITION_IDS, None)
    model.load_state_dict({name: weight.float() for name, weight in weights.items()}, assign=True)
    return model.requires_grad_(False)
