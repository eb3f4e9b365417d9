"""BERT's forward pass on torch alone, so that what only encodes need not import transformers, which takes seconds.

It computes what transformers' `BertModel` computes, operation by operation (Devlin et al. 2019, section 3, post-norm
layers): equal bits, equal names of the weights, hence equal fingerprints. Training and every other architecture go
through transformers.
"""

from __future__ import annotations

from types import SimpleNamespace

import torch
from torch import Tensor, nn
from torch.nn.functional import gelu, scaled_dot_product_attention


class Bert(nn.Module):
    """Hidden states of a batch of token ids; for inference only."""

    def __init__(self, config: SimpleNamespace) -> None:
        super().__init__()
        self.config = config
        self.embeddings = _Embeddings(config)
        self.encoder = nn.Module()
        self.encoder.layer = nn.ModuleList(_Layer(config) for _ in range(config.num_hidden_layers))
        self.pooler = nn.Module()  # not used; its weights count in the fingerprint
        self.pooler.dense = nn.Linear(config.hidden_size, config.hidden_size)

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> SimpleNamespace:
        """input_ids, attention_mask: (B, T) -> `last_hidden_state` (B, T, H) and `hidden_states`, one per layer + 1."""
        mask = None if bool(attention_mask.all()) else attention_mask[:, None, None, :].bool()
        if mask is not None:
            mask = mask.expand(-1, 1, input_ids.shape[1], -1)
        states = [self.embeddings(input_ids)]
        for layer in self.encoder.layer:
            states.append(layer(states[-1], mask))
        return SimpleNamespace(last_hidden_state=states[-1], hidden_states=tuple(states))


class _Embeddings(nn.Module):
    def __init__(self, config: SimpleNamespace) -> None:
        super().__init__()
        self.word_embeddings = nn.Embedding(config.vocab_size, config.hidden_size)
        self.position_embeddings = nn.Embedding(config.max_position_embeddings, config.hidden_size)
        self.token_type_embeddings = nn.Embedding(config.type_vocab_size, config.hidden_size)
        self.LayerNorm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)

    def forward(self, input_ids: Tensor) -> Tensor:
        types = torch.zeros_like(input_ids)
        positions = torch.arange(input_ids.shape[1], device=input_ids.device)[None]
        summed = self.word_embeddings(input_ids) + self.token_type_embeddings(types)
        return self.LayerNorm(summed + self.position_embeddings(positions))


class _Layer(nn.Module):
    """Attention over the text, then the feed-forward network, each added to its input and normalised."""

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
        own = self.attention.self
        query, key, value = (self._split(part(states)) for part in (own.query, own.key, own.value))
        mixed = scaled_dot_product_attention(query, key, value, attn_mask=mask)  # (B, heads, T, H / heads)
        attended = self.attention.output(mixed.transpose(1, 2).reshape(states.shape), states)
        return self.output(gelu(self.intermediate.dense(attended)), attended)

    def _split(self, states: Tensor) -> Tensor:
        return states.view(*states.shape[:2], self.heads, -1).transpose(1, 2)


class _Added(nn.Module):
    """A projection, added to the residual and normalised."""

    def __init__(self, width: int, config: SimpleNamespace) -> None:
        super().__init__()
        self.dense = nn.Linear(width, config.hidden_size)
        self.LayerNorm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)

    def forward(self, states: Tensor, residual: Tensor) -> Tensor:
        return self.LayerNorm(self.dense(states) + residual)
