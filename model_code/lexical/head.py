"""Heads that give a lexical encoder its features: a checkpoint's own, or one solved for in closed form.

A masked language model ends before its decoder, which the lexical encoder applies itself. For encoders without such a
head: (1) Decoder rows e_v are the word embeddings, centred and scaled to unit norm. (2) A matrix W is the ridge
regression of each token's last hidden state onto the decoder row of that token. (3) The logit of entry v at a token is
scale * cos(W h, e_v) + b_v, where b_v starts at idf_v + bias: rare tokens are worth more, and no token is on at random.
Nothing random is left of an untrained head.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

from model_code.encoding.base_models import load_transformer, quiet
from model_code.errors import FreshetError
from model_code.files import read_json


class ClosedFormHead(nn.Module):
    """Hidden states (..., H) -> features scale * W h / |W h| (..., H), to be multiplied with unit decoder rows."""

    def __init__(self, hidden: int, scale: float) -> None:
        super().__init__()
        self.transform = nn.Linear(hidden, hidden, bias=False)
        self.scale = scale

    def forward(self, hidden: Tensor) -> Tensor:
        """The features of hidden states."""
        turned = self.transform(hidden)
        wide = turned if turned.dtype == torch.float64 else turned.float()  # norms in bfloat16 lose the third digit
        return self.scale * normalize(wide, dim=-1)


def decoder_rows(embeddings: Tensor, used: Tensor) -> Tensor:
    """Word embeddings (V, H) minus their mean over the `used` (V,) bool ones, scaled to unit norm.

    >>> decoder_rows(torch.tensor([[3., 0.], [1., 0.], [9., 9.]]), torch.tensor([True, True, False]))[:2]
    tensor([[ 1.,  0.],
            [-1.,  0.]])
    """
    return normalize(embeddings - embeddings[used].mean(dim=0), dim=1)


def ridge_transform(pairs: Iterable[tuple[Tensor, Tensor]], ridge: float) -> Tensor:
    """The W that minimises sum |W h - e|^2 + penalty |W|^2, in float64: (D, H).

    pairs: hidden states (n, H) and decoder rows (n, D) of the same tokens, part by part.
    ridge: the penalty as a share of the mean square of the hidden states' components, summed over all tokens.
    """
    gram: Tensor | None = None
    cross: Tensor | None = None
    for hidden, rows in pairs:
        hidden, rows = hidden.double(), rows.double()
        gram = hidden.T @ hidden if gram is None else gram + hidden.T @ hidden  # (H, H)
        cross = hidden.T @ rows if cross is None else cross + hidden.T @ rows  # (H, D)
    if gram is None or cross is None:
        raise ValueError("ridge_transform needs at least one token")
    penalty = ridge * gram.diagonal().mean()
    eye = torch.eye(len(gram), dtype=gram.dtype, device=gram.device)
    return torch.linalg.solve(gram + penalty * eye, cross).T  # (D, H)


class ClosedFormBody(nn.Module):
    """A transformer and the closed-form head on its last hidden states: token ids -> features (B, T, H)."""

    def __init__(self, backbone: Any, head: ClosedFormHead) -> None:
        super().__init__()
        self.backbone, self.head = backbone, head

    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        """The features of every token."""
        return self.head(self.backbone(input_ids=ids, attention_mask=mask).last_hidden_state)


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
            raise FreshetError(f"a {type(model).__name__} has no linear decoder; name another encoder.base")
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
        model, loading = AutoModelForMaskedLM.from_pretrained(
            folder,
            config=backbone.config,
            dtype=torch.float32,
            attn_implementation=None,  # as in `load_transformer`
            use_safetensors=True,
            output_loading_info=True,
        )
    if loading["missing_keys"]:
        missing = sorted(loading["missing_keys"])
        raise FreshetError(
            f"{folder.name} has no whole masked-language-model head ({missing[0]!r} is missing); name another "
            "encoder.base"
        )
    model.original_dropout = backbone.original_dropout
    return MaskedModel(model)
