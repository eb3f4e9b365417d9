"""A checkpoint's own masked-language-model head: whether it has one, and its features and decoder apart."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from model_code.encoding.transformer import load_transformer, quiet
from model_code.errors import FreshetError
from model_code.files import read_json


def has_masked_head(folder: Path) -> bool:
    """Whether the checkpoint says that it is a masked language model."""
    architectures = read_json(folder / "config.json").get("architectures") or []
    return any(name.endswith("ForMaskedLM") for name in architectures)


class MaskedModel(nn.Module):
    """A masked language model that ends before its decoder: token ids -> features (B, T, D).

    The decoder, a linear map to the vocabulary whose rows are mostly the word embeddings, is the lexical encoder's.
    """

    def __init__(self, model: Any) -> None:
        """Take `model` apart; FreshetError if its decoder is no linear map."""
        super().__init__()
        decoder = model.get_output_embeddings()
        if not isinstance(decoder, nn.Linear):
            raise FreshetError(f"a {type(model).__name__} has no linear decoder; set head: closed_form")
        self._place = next(name for name, module in model.named_modules() if module is decoder)
        self.model = model
        self.put(nn.Identity())
        self._decoder = [decoder]  # in a list: its parameters are registered where the lexical encoder has them

    @property
    def decoder(self) -> nn.Linear:
        """The linear map that was taken out."""
        return self._decoder[0]

    @property
    def backbone(self) -> Any:
        """The transformer without any head."""
        return self.model.base_model

    def put(self, decoder: nn.Module) -> None:
        """Set what stands in the decoder's place."""
        self.model.set_submodule(self._place, decoder)

    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        """The features of every token, those that the decoder multiplies."""
        return self.model(input_ids=ids, attention_mask=mask).logits


def load_masked_model(folder: Path, max_tokens: int) -> MaskedModel:
    """The model in float32 with dropout 0, taken apart. FreshetError if the checkpoint lacks a part of the head."""
    from transformers import AutoModelForMaskedLM

    backbone = load_transformer(folder, max_tokens)  # its config: checked positions, dropout 0
    with quiet():
        model, found = AutoModelForMaskedLM.from_pretrained(
            folder,
            config=backbone.config,
            dtype=torch.float32,
            attn_implementation=None,  # as in `load_transformer`
            use_safetensors=True,
            output_loading_info=True,
        )
    if found["missing_keys"]:
        missing = sorted(found["missing_keys"])
        raise FreshetError(
            f"{folder.name} has no whole masked-language-model head ({missing[0]!r} is missing); set head: closed_form"
        )
    model.original_dropout = backbone.original_dropout
    return MaskedModel(model)
