"""The files of a published BERT and its tokenizer, read without transformers and PyTorch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from model_code.files import read_json

CONFIG_FILE = "config.json"
TOKENIZER_FILE = "tokenizer.json"
TOKENIZER_CONFIG_FILE = "tokenizer_config.json"
WEIGHTS_FILE = "model.safetensors"

# Name of a weight in checkpoints of early versions of transformers: the numbers 0, 1, 2, ...
POSITION_IDS = "embeddings.position_ids"

# Names of the weights of the embeddings.
EMBEDDINGS = (
    "embeddings.word_embeddings.weight",
    "embeddings.position_embeddings.weight",
    "embeddings.token_type_embeddings.weight",
)

# Name of the normalisation of the embeddings. Its weights are `weight` and `bias`.
EMBEDDING_NORM = "embeddings.LayerNorm"

# Name of a linear map that encoders do not use. Its weights are part of their fingerprints.
POOLER = "pooler.dense"

# Names of the parts of a layer, each with the weights `weight` and `bias`.
LAYER_MODULES = (
    "attention.self.query",
    "attention.self.key",
    "attention.self.value",
    "attention.output.dense",
    "attention.output.LayerNorm",
    "intermediate.dense",
    "output.dense",
    "output.LayerNorm",
)

# Keys of the configuration that `Bert` reads: the sizes of the model.
REQUIRED_CONFIG_KEYS = (
    "hidden_size",
    "intermediate_size",
    "layer_norm_eps",
    "max_position_embeddings",
    "num_attention_heads",
    "num_hidden_layers",
    "type_vocab_size",
    "vocab_size",
)

# Special tokens that BERT puts around one text, in the format of `tokenizer.json`.
SINGLE_TEXT_TEMPLATE = [
    {"SpecialToken": {"id": "[CLS]", "type_id": 0}},
    {"Sequence": {"id": "A", "type_id": 0}},
    {"SpecialToken": {"id": "[SEP]", "type_id": 0}},
]

# Special tokens that BERT puts around two texts.
TEXT_PAIR_TEMPLATE = [
    *SINGLE_TEXT_TEMPLATE,
    {"Sequence": {"id": "B", "type_id": 1}},
    {"SpecialToken": {"id": "[SEP]", "type_id": 1}},
]


class PlainTokenizer:
    """A tokenizer that does not need the library transformers.

    It has the two attributes of a fast tokenizer of transformers that an encoder reads.

    Attributes:
        backend_tokenizer: The tokenizer of `tokenizer.json`.
        pad_token_id: Id of the padding token, or None.
    """

    def __init__(self, folder: Path) -> None:
        """Load the tokenizer of an encoder's folder."""
        self.backend_tokenizer = Tokenizer.from_file(str(folder / TOKENIZER_FILE))
        self.pad_token_id = read_json(folder / CONFIG_FILE).get("pad_token_id")


def read_plain_config(folder: Path, max_tokens: int) -> dict[str, Any] | None:
    """Return the configuration of a published BERT whose tokenizer needs no further rules.

    Args:
        folder: Folder of the transformer and its tokenizer.
        max_tokens: Number of tokens per text that the transformer must have positions for.

    Returns:
        The configuration. None if a file is missing, the architecture is not the published BERT, or
        the library transformers would build another tokenizer.
    """
    file_names = (CONFIG_FILE, TOKENIZER_FILE, TOKENIZER_CONFIG_FILE, WEIGHTS_FILE)
    if not all((folder / name).is_file() for name in file_names):
        return None

    config: dict[str, Any] = read_json(folder / CONFIG_FILE)
    if not _is_published_architecture(config, max_tokens):
        return None
    rules = read_json(folder / TOKENIZER_FILE)
    if not _reads_same_rules(rules, read_json(folder / TOKENIZER_CONFIG_FILE)):
        return None
    return config


def weight_names(layer_count: int) -> set[str]:
    """Return the names of all weights of a published BERT.

    Args:
        layer_count: Number of its layers.
    """
    modules = [EMBEDDING_NORM, POOLER]
    for number in range(layer_count):
        modules.extend(f"{layer_prefix(number)}.{module}" for module in LAYER_MODULES)
    names = {f"{module}.{part}" for module in modules for part in ("weight", "bias")}
    names.update(EMBEDDINGS)
    return names


def layer_prefix(number: int) -> str:
    """Return the prefix of the names of a layer's weights."""
    return f"encoder.layer.{number}"


def _is_published_architecture(config: dict[str, Any], max_tokens: int) -> bool:
    """Return whether a model is a published BERT of any size, with enough positions."""
    if config.get("model_type") != "bert":
        return False

    # The library transformers assumes these values for keys that the configuration lacks.
    defaults = {"hidden_act": "gelu", "position_embedding_type": "absolute", "is_decoder": False}
    for key, default in defaults.items():
        if config.get(key, default) != default:
            return False

    has_sizes = all(key in config for key in REQUIRED_CONFIG_KEYS)
    return has_sizes and max_tokens <= config["max_position_embeddings"]


def _reads_same_rules(rules: dict[str, Any], config: dict[str, Any]) -> bool:
    """Return whether the library transformers would build the tokenizer of `tokenizer.json`.

    The library's BERT tokenizers read only the vocabulary from that file. They take all other rules
    from `tokenizer_config.json` and from defaults, so both must agree.

    Args:
        rules: Contents of `tokenizer.json`.
        config: Contents of `tokenizer_config.json`.
    """
    tokenizer_class = config.get("tokenizer_class", "BertTokenizer")
    if tokenizer_class in ("PreTrainedTokenizerFast", "TokenizersBackend"):
        return True
    if tokenizer_class not in ("BertTokenizer", "BertTokenizerFast"):
        return False

    expected_rules = {
        "normalizer": {
            "type": "BertNormalizer",
            "clean_text": True,
            "lowercase": config.get("do_lower_case", True),
            "strip_accents": config.get("strip_accents"),
            "handle_chinese_chars": config.get("tokenize_chinese_chars", True),
        },
        "pre_tokenizer": {"type": "BertPreTokenizer"},
        "post_processor": {
            "type": "TemplateProcessing",
            "single": SINGLE_TEXT_TEMPLATE,
            "pair": TEXT_PAIR_TEMPLATE,
        },
        "decoder": {"type": "WordPiece", "prefix": "##", "cleanup": True},
        "model": {
            "unk_token": "[UNK]",
            "continuing_subword_prefix": "##",
            "max_input_chars_per_word": 100,
        },
    }
    for part, expected in expected_rules.items():
        # `tokenizer.json` may have null in place of a group of rules.
        actual = rules[part] or {}
        for key, value in expected.items():
            if actual.get(key) != value:
                return False
    return True
