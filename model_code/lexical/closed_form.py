"""A lexical encoder from an encoder without a head: the closed-form start of `head.py`, on sample passages."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from model_code.encoding.batching import pad, token_batches
from model_code.encoding.encoder import CPU_BATCH_TOKENS
from model_code.encoding.settings import Precision
from model_code.errors import FreshetError
from model_code.lexical.encoder import LexicalConfig, LexicalEncoder
from model_code.lexical.head import ClosedFormHead, decoder_rows, ridge_transform
from model_code.lexical.settings import LexicalSettings
from model_code.lexical.vocabulary import inverse_document_frequencies


class ClosedFormBody(nn.Module):
    """A transformer and the closed-form head on its last hidden states: token ids -> features (B, T, H)."""

    def __init__(self, backbone: Any, head: ClosedFormHead) -> None:
        super().__init__()
        self.backbone, self.head = backbone, head

    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        """The features of every token."""
        return self.head(self.backbone(input_ids=ids, attention_mask=mask).last_hidden_state)


def start_closed_form(
    backbone: Any,
    tokenizer: Any,
    texts: Sequence[str],
    settings: LexicalSettings,
    config: LexicalConfig,
    max_tokens: int,
    precision: Precision,
    seed: int,
) -> LexicalEncoder:
    """Solve for the head: W on `settings.head_passages` of `texts`, idf on all of them. On the backbone's device.

    FreshetError if word embeddings and hidden states differ in width, or no text holds a token that may carry weight.
    """
    embeddings = backbone.get_input_embeddings().weight.detach()
    if embeddings.shape[1] != backbone.config.hidden_size:
        raise FreshetError(
            f"the base's word embeddings have {embeddings.shape[1]} components and its hidden states "
            f"{backbone.config.hidden_size}, but a closed-form head needs as many of both; set lexical.head: mlm, if "
            "the base has such a head, or name another encoder.base"
        )
    body = ClosedFormBody(backbone, ClosedFormHead(embeddings.shape[1], settings.scale))
    blank = nn.Parameter(torch.zeros(len(embeddings)))
    rows = nn.Parameter(torch.zeros_like(embeddings), requires_grad=False)
    encoder = LexicalEncoder(body, rows, blank, tokenizer, config, max_tokens, precision).to(embeddings.device)
    bags = encoder.bags(texts)
    if not sum(map(len, bags)):
        raise FreshetError("no passage holds a token of the encoder's vocabulary, so there is nothing to start from")
    sample = np.sort(np.random.default_rng([seed, 17]).permutation(len(texts))[: settings.head_passages])
    with torch.no_grad():
        rows.copy_(decoder_rows(embeddings, ~encoder.blocked))
        pairs = _token_pairs(encoder, [texts[row] for row in sample])
        body.head.transform.weight.copy_(ridge_transform(pairs, settings.ridge))
        idf = inverse_document_frequencies(bags, len(embeddings))
        encoder.bias.copy_(torch.from_numpy(idf) + settings.bias)
    return encoder.eval()


@torch.no_grad()
def _token_pairs(encoder: LexicalEncoder, texts: Sequence[str]) -> Iterator[tuple[Tensor, Tensor]]:
    """Last hidden states (n, H) and decoder rows (n, H) of the texts' tokens that may carry weight, batch by batch."""
    ids = encoder.token_ids(texts)
    for group in token_batches([len(row) for row in ids], CPU_BATCH_TOKENS):
        batch = pad([ids[row] for row in group], encoder.tokenizer.pad_token_id or 0)
        tokens, mask = (batch[name].to(encoder.device) for name in ("input_ids", "attention_mask"))
        hidden = encoder.backbone(input_ids=tokens, attention_mask=mask).last_hidden_state  # (B, T, H)
        counted = (mask == 1) & ~encoder.blocked[tokens]
        yield hidden[counted], encoder.decoder[tokens[counted]]
