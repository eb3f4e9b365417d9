"""The sentence-transformers folder layout: which modules a model folder holds, read and written without that library.

Its import takes seconds, and a machine that only trains may not have it. Supported is what dense text encoders use:
Transformer, Pooling (mean or cls), any number of Dense projections, Normalize. Anything else is refused by name.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from model_code.encoding.settings import Pooling
from model_code.errors import FreshetError
from model_code.files import read_json, write_json

MODULES = ("Transformer", "Pooling", "Dense", "Normalize")
CONFIG = "config_sentence_transformers.json"
DOCUMENT_PROMPTS = ("document", "passage", "corpus")  # names that sentence-transformers tries, in its order
LAYERS, MULTI_VECTOR = "layers.json", "multi_vector"  # of encoders whose documents are a vector per layer
ACTIVATIONS = {"Identity": torch.nn.Identity, "Tanh": torch.nn.Tanh, "ReLU": torch.nn.ReLU, "GELU": torch.nn.GELU}


@dataclass(frozen=True)
class Prompts:
    """What is put before each query and each document; empty for an encoder that was trained on bare texts."""

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
    """What a folder says of itself: where the transformer lies, how it pools, its length limit, its projections."""

    transformer: Path
    pooling: Pooling | None = None
    max_tokens: int | None = None
    projections: tuple[Path, ...] = ()


def read_layout(folder: Path) -> Layout:
    """Read `modules.json`; a plain transformers folder without one has its transformer at the top and no pooling."""
    if not (folder / "modules.json").is_file():
        return Layout(folder)
    transformer, pooling, projections = folder, None, []
    for module in read_json(folder / "modules.json"):
        kind, path = module["type"].rsplit(".", 1)[-1], folder / module["path"]
        if kind == "Transformer":
            transformer = path
        elif kind == "Pooling":
            pooling = _pooling_mode(path)
        elif kind == "Dense":
            projections.append(path)
        elif kind not in MODULES:
            raise FreshetError(f"{folder}: module {kind!r} is not supported; known: {', '.join(MODULES)}")
    return Layout(transformer, pooling, _length_limit(transformer), tuple(projections))


def _length_limit(folder: Path) -> int | None:
    path = folder / "sentence_bert_config.json"
    return read_json(path).get("max_seq_length") if path.is_file() else None


def _pooling_mode(folder: Path) -> Pooling:
    config = read_json(folder / "config.json")
    modes = {"cls": config.get("pooling_mode_cls_token"), "mean": config.get("pooling_mode_mean_tokens")}
    others = [key for key, value in config.items() if key.startswith("pooling_mode_") and value is True]
    if config.get("include_prompt") is False:
        raise FreshetError(f"{folder}: pooling without the prompt's tokens is not supported")
    mode = config.get("pooling_mode") or next((name for name, chosen in modes.items() if chosen), None)
    if mode not in modes or len(others) > 1:
        raise FreshetError(f"{folder}: pooling {mode or others} is not supported; known: mean, cls")
    return mode


def read_prompts(folder: Path) -> Prompts:
    """What sentence-transformers puts before queries and documents; FreshetError for a default prompt without text.

    A side without a prompt of its own gets the default one, if there is any. A passage's prompt counts, although an
    empty one of a document may hide it there.
    """
    path = folder / CONFIG
    config = read_json(path) if path.is_file() else {}
    prompts, default = config.get("prompts") or {}, config.get("default_prompt_name")
    if default is not None and default not in prompts:
        raise FreshetError(f"{path}: the default prompt {default!r} is not among the prompts")
    documents = [prompts[name] for name in DOCUMENT_PROMPTS if name in prompts]
    otherwise = prompts.get(default, "")
    return Prompts(prompts.get("query", otherwise), next(filter(None, documents), "" if documents else otherwise))


def write_layout(
    folder: Path, dimension: int, pooling: str, max_tokens: int, projections: int, prompts: Prompts
) -> None:
    """Write everything but weights and tokenizer, so that `SentenceTransformer(folder)` builds the same encoder."""
    names = ["", "1_Pooling", *(f"{2 + i}_Dense" for i in range(projections)), f"{2 + projections}_Normalize"]
    kinds = ["Transformer", "Pooling", *["Dense"] * projections, "Normalize"]
    modules = [
        {"idx": i, "name": str(i), "path": name, "type": f"sentence_transformers.models.{kind}"}
        for i, (name, kind) in enumerate(zip(names, kinds, strict=True))
    ]
    modes = {f"pooling_mode_{mode}": False for mode in ("max_tokens", "mean_sqrt_len_tokens")}
    modes |= {"pooling_mode_mean_tokens": pooling == "mean", "pooling_mode_cls_token": pooling == "cls"}
    write_json(folder / "modules.json", modules)
    write_json(folder / "1_Pooling" / "config.json", {"word_embedding_dimension": dimension, **modes})
    write_json(folder / "sentence_bert_config.json", {"max_seq_length": max_tokens, "do_lower_case": False})
    stated = {"prompts": vars(prompts)} if prompts != Prompts() else {}
    write_json(folder / CONFIG, {"similarity_fn_name": "cosine", **stated})


def load_projection(folder: Path) -> torch.nn.Sequential:
    """A Dense module: linear map and activation, from `config.json` and `model.safetensors`."""
    from safetensors.torch import load_file

    config = read_json(folder / "config.json")
    activation = str(config.get("activation_function", "torch.nn.modules.activation.Tanh")).rsplit(".", 1)[-1]
    if activation not in ACTIVATIONS:
        raise FreshetError(f"{folder}: activation {activation!r} is not supported; known: {', '.join(ACTIVATIONS)}")
    linear = torch.nn.Linear(config["in_features"], config["out_features"], bias=config.get("bias", True))
    weights = load_file(folder / "model.safetensors")
    linear.load_state_dict({name.removeprefix("linear."): value.float() for name, value in weights.items()})
    return torch.nn.Sequential(linear, ACTIVATIONS[activation]())


def save_projection(projection: torch.nn.Sequential, folder: Path) -> None:
    """Write a Dense module as sentence-transformers reads it."""
    from safetensors.torch import save_file

    linear, activation = projection
    folder.mkdir(parents=True, exist_ok=True)
    config: dict[str, Any] = {"in_features": linear.in_features, "out_features": linear.out_features}
    config["bias"] = linear.bias is not None
    config["activation_function"] = f"{type(activation).__module__}.{type(activation).__name__}"
    write_json(folder / "config.json", config)
    weights = {f"linear.{name}": value.detach().cpu().contiguous() for name, value in linear.state_dict().items()}
    save_file(weights, folder / "model.safetensors")


def read_layers(folder: Path) -> tuple[int, ...]:
    """What `write_layers` wrote; empty if the folder is of an ordinary encoder."""
    path = folder / LAYERS
    return tuple(read_json(path)["numbers"]) if path.is_file() else ()


def write_layers(folder: Path, numbers: Sequence[int]) -> None:
    """Have `Encoder.load` index documents by these layers; elsewhere the folder loads as the query side."""
    write_json(folder / LAYERS, {"numbers": list(numbers), "pooling": MULTI_VECTOR})
