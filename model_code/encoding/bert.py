"""BERT for inference with PyTorch, without the library transformers, whose import takes seconds.

`Bert` computes the same operations as `BertModel` of transformers, so that vectors have equal bits.
Its weights have the same names, so that fingerprints are equal too. The model is that of Devlin et
al. 2019, section 3, with normalisation after each sublayer.

`load_plain_bert` loads a folder that holds such a model and its tokenizer. Training and all other
architectures use the library.
"""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn.functional import gelu, scaled_dot_product_attention

from model_code.encoding.bert_files import POSITION_IDS, WEIGHTS_FILE, read_plain_config


class Bert(nn.Module):
    """Computes the hidden states of a batch of texts, for inference only.

    Shapes: B texts, T tokens per text, H dimensions of a hidden state.
    """

    def __init__(self, config: SimpleNamespace) -> None:
        """Create a model with random weights.

        Args:
            config: The keys of `config.json` as attributes.
        """
        super().__init__()
        self.config = config
        width = config.hidden_size

        self.embeddings = nn.Module()
        self.embeddings.word_embeddings = nn.Embedding(config.vocab_size, width)
        self.embeddings.position_embeddings = nn.Embedding(config.max_position_embeddings, width)
        self.embeddings.token_type_embeddings = nn.Embedding(config.type_vocab_size, width)
        self.embeddings.LayerNorm = nn.LayerNorm(width, eps=config.layer_norm_eps)

        self.encoder = nn.Module()
        self.encoder.layer = nn.ModuleList(_Layer(config) for _ in range(config.num_hidden_layers))

        # The pooler is not used, but its weights are part of the fingerprint.
        self.pooler = nn.Module()
        self.pooler.dense = nn.Linear(width, width)

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> SimpleNamespace:
        """Return the hidden states of a batch.

        Args:
            input_ids: Token ids, shape (B, T), int64.
            attention_mask: 1 for tokens and 0 for padding, shape (B, T).

        Returns:
            `last_hidden_state`, shape (B, T, H), and `hidden_states`: a tuple with the embeddings
            and the output of every layer, each of shape (B, T, H).
        """
        # Attention without a mask is faster, and without padding no mask is needed.
        mask = None
        has_padding = not bool(attention_mask.all())
        if has_padding:
            token_count = input_ids.shape[1]
            # No token may attend to padding. The mask is the same for all heads and all tokens of
            # a text, so its shape is (B, 1, T, T).
            mask = attention_mask[:, None, None, :].bool().expand(-1, 1, token_count, -1)

        states = [self._embed(input_ids)]
        for layer in self.encoder.layer:
            states.append(layer(states[-1], mask))
        return SimpleNamespace(last_hidden_state=states[-1], hidden_states=tuple(states))

    def _embed(self, input_ids: Tensor) -> Tensor:
        """Return the embeddings (B, T, H) of token ids (B, T), with those of their positions."""
        embeddings = self.embeddings
        positions = torch.arange(input_ids.shape[1], device=input_ids.device)[None]
        # The types tell two texts of a pair apart. Here each text stands alone.
        token_types = torch.zeros_like(input_ids)

        # The order of the additions influences the last bits, so it is that of transformers.
        summed = embeddings.word_embeddings(input_ids)
        summed = summed + embeddings.token_type_embeddings(token_types)
        summed = summed + embeddings.position_embeddings(positions)
        return embeddings.LayerNorm(summed)


class _Layer(nn.Module):
    """A transformer layer: self-attention, then a feed-forward network.

    The output of each of the two is added to its input, and the sum is normalised.
    """

    def __init__(self, config: SimpleNamespace) -> None:
        """Create a layer with random weights. Its parts have the names that checkpoints use."""
        super().__init__()
        self.head_count = config.num_attention_heads
        width = config.hidden_size

        self.attention = nn.Module()
        self.attention.self = nn.Module()
        self.attention.self.query = nn.Linear(width, width)
        self.attention.self.key = nn.Linear(width, width)
        self.attention.self.value = nn.Linear(width, width)
        self.attention.output = _ResidualProjection(width, config)

        self.intermediate = nn.Module()
        self.intermediate.dense = nn.Linear(width, config.intermediate_size)
        self.output = _ResidualProjection(config.intermediate_size, config)

    def forward(self, states: Tensor, mask: Tensor | None) -> Tensor:
        """Return the hidden states of this layer, shape (B, T, H).

        Args:
            states: Hidden states of the layer below, shape (B, T, H).
            mask: Whether token i may attend to token j, shape (B, 1, T, T), bool. None: every
                token attends to every token.
        """
        attention = self.attention.self
        query = self._split_heads(attention.query(states))
        key = self._split_heads(attention.key(states))
        value = self._split_heads(attention.value(states))

        mixed = scaled_dot_product_attention(query, key, value, attn_mask=mask)
        mixed = mixed.transpose(1, 2).reshape(states.shape)
        attended = self.attention.output(mixed, states)
        return self.output(gelu(self.intermediate.dense(attended)), attended)

    def _split_heads(self, projected: Tensor) -> Tensor:
        """Reshape (B, T, H) to (B, heads, T, H / heads)."""
        batch_size, token_count, _ = projected.shape
        return projected.view(batch_size, token_count, self.head_count, -1).transpose(1, 2)


class _ResidualProjection(nn.Module):
    """Projects its input, adds the residual and normalises the sum."""

    def __init__(self, input_width: int, config: SimpleNamespace) -> None:
        super().__init__()
        self.dense = nn.Linear(input_width, config.hidden_size)
        self.LayerNorm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)

    def forward(self, states: Tensor, residual: Tensor) -> Tensor:
        """Return a tensor of the shape of `residual`, (B, T, H).

        Args:
            states: Input of the projection, shape (B, T, input width).
            residual: Is added to the projection, shape (B, T, H).
        """
        return self.LayerNorm(self.dense(states) + residual)


def load_plain_bert(folder: Path, max_tokens: int = 0) -> Bert | None:
    """Load a BERT without the library transformers, if this gives exactly the same vectors.

    Args:
        folder: Folder of the transformer and its tokenizer.
        max_tokens: Number of tokens per text that the transformer must have positions for.

    Returns:
        The model in float32. None if a file is missing, the architecture is not the published BERT,
        or weights have other names. Also None if the library would build another tokenizer.
    """
    config = read_plain_config(folder, max_tokens)
    if config is None:
        return None

    # Creating the model on the "meta" device would make torch import its compiler.
    model = Bert(SimpleNamespace(**config))
    saved_weights = _map_weights(folder)
    if saved_weights.keys() != model.state_dict().keys():
        return None

    weights = {name: weight.float() for name, weight in saved_weights.items()}
    model.load_state_dict(weights, assign=True)
    return model.requires_grad_(False)


def map_weights_again(model: Bert, folder: Path) -> None:
    """Replace a model's weights by equal ones that are mapped from its file, but not read yet.

    The fingerprint and the packing of weights read all of them once, so that they take memory.
    Later, a query reads some rows of the embeddings only. Weights that are not mapped stay: those
    of a GPU, and those that were converted to float32. Another thread may use the model meanwhile,
    because all values are equal.

    Args:
        model: Model of `load_plain_bert`.
        folder: The folder that it was loaded from.
    """
    saved_weights = _map_weights(folder)
    parameters = model.state_dict()
    for name, weight in saved_weights.items():
        if weight.dtype != torch.float32 or parameters[name].device != weight.device:
            return
    model.load_state_dict(saved_weights, assign=True)
    model.requires_grad_(False)


def _map_weights(folder: Path) -> dict[str, Tensor]:
    """Return the weights in a folder by name, mapped from their file."""
    weights: dict[str, Tensor] = load_file(folder / WEIGHTS_FILE)
    weights.pop(POSITION_IDS, None)
    return weights
