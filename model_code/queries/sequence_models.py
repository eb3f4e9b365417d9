"""Sequence-to-sequence models as files: load any, save one without a trace of the machine that made it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from model_code.encoding.base_models import MACHINE_KEYS, quiet, save_tokenizer
from model_code.errors import FreshetError, SettingsError
from model_code.files import read_json, write_json

Loaded = tuple[Any, Any]
"""A transformers model and its tokenizer."""


def load_sequence_model(source: str | Path, revision: str | None = None, dtype: torch.dtype = torch.float32) -> Loaded:
    """Load a folder or hub name with `AutoModelForSeq2SeqLM`, for evaluation; FreshetError if that is not possible."""
    from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

    try:
        with quiet():
            model = AutoModelForSeq2SeqLM.from_pretrained(source, revision=revision or "main", dtype=dtype)
            tokenizer = AutoTokenizer.from_pretrained(source, revision=revision or "main")
    except (OSError, ValueError) as error:
        reason = str(error).strip().splitlines()[0]
        raise FreshetError(
            f"{str(source)!r} is no sequence-to-sequence model that can be loaded here ({reason}); name a folder or, "
            "with access to the hub, a hub model; or train one: pseudo_queries.training.base: warm_start"
        ) from error
    return model.eval(), tokenizer


def save_sequence_model(model: Any, tokenizer: Any, folder: Path, section_tokens: int) -> None:
    """Write a folder that `AutoModelForSeq2SeqLM` loads; equal models give equal bytes, nothing is pickled."""
    with quiet():
        model.save_pretrained(folder)
    for path in (folder / "config.json", folder / "generation_config.json"):
        write_json(path, _without_machine(read_json(path)))
    save_tokenizer(tokenizer, folder, section_tokens)


def vocabulary_size(model: Any) -> int:
    """Number of tokens that the model chooses between."""
    return int(model.get_output_embeddings().weight.shape[0])


def require_positions(model: Any, section_tokens: int, max_query_tokens: int) -> None:
    """SettingsError if the model has fewer positions than texts have tokens; relative ones, as T5's, have no limit."""
    limits = {"section_tokens": (model.get_encoder(), section_tokens)}
    limits["max_query_tokens"] = (model.get_decoder(), max_query_tokens)
    for name, (part, tokens) in limits.items():
        positions = getattr(part.config, "max_position_embeddings", None) or tokens
        if tokens > positions:
            raise SettingsError(
                f"pseudo_queries.sequence_to_sequence.{name} is {tokens}, but the model has {positions} positions; "
                f"lower {name}"
            )


def _without_machine(config: Any) -> Any:
    """The same mapping, and all in it, without paths and versions."""
    if not isinstance(config, dict):
        return config
    return {key: _without_machine(value) for key, value in config.items() if key not in MACHINE_KEYS}
