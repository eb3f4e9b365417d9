"""BERT for inference with NumPy, in float32 on a CPU.

PyTorch takes 200 MB of memory and more than a second to import. A process that only searches
encodes a few short queries, which NumPy does as fast. The weights are mapped from their file, so
that processes share them.

The operations are those of `bert.Bert` (Devlin et al. 2019, section 3, with normalisation after
each sublayer). The states agree with those of PyTorch in float32, up to rounding.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import safe_open

from model_code.encoding.bert_files import (
    EMBEDDING_NORM,
    EMBEDDINGS,
    POSITION_IDS,
    WEIGHTS_FILE,
    layer_prefix,
    read_plain_config,
    weight_names,
)
from model_code.mapped_tensors import map_tensors

NUMERATOR = (
    -2.72614225801306e-10,
    2.77068142495902e-08,
    -2.10102402082508e-06,
    -5.69250639462346e-05,
    -7.34990630326855e-04,
    -2.95459980854025e-03,
    -1.60960333262415e-02,
)
DENOMINATOR = (
    -1.45660718464996e-05,
    -2.13374055278905e-04,
    -1.68282697438203e-03,
    -7.37332916720468e-03,
    -1.42647390514189e-02,
)
"""Coefficients of the error function as a quotient of two polynomials in x^2, highest power first.

They are those of the library Eigen. For numbers of float32 the error is at most 5e-7.
"""

LARGEST_ERF_INPUT = 4.0
"""The error function of larger numbers is 1 in float32."""


class NumpyBert:
    """Computes the hidden states of texts.

    Texts of different lengths need no padding: the linear maps are applied to the tokens of all
    texts at once, and only attention treats each text alone.

    Args:
        config: Contents of `config.json`.
        weights: Weights by name, float32.
    """

    def __init__(self, config: Mapping[str, Any], weights: Mapping[str, np.ndarray]) -> None:
        self.width: int = config["hidden_size"]
        self._layer_count: int = config["num_hidden_layers"]
        self._head_count: int = config["num_attention_heads"]
        self._epsilon = np.float32(config["layer_norm_eps"])
        self._weights = weights

    def last_states(self, texts: Sequence[Sequence[int]]) -> list[np.ndarray]:
        """Return the states of the last layer for each text.

        Args:
            texts: Token ids of each text.

        Returns:
            One array (t, H) float32 per text, with t tokens.
        """
        lengths = [len(ids) for ids in texts]
        # The last token of each text but the last, plus one: where the next text begins.
        borders = np.cumsum(lengths)[:-1]
        states = self._embed(texts)
        for number in range(self._layer_count):
            states = self._apply_layer(states, borders, layer_prefix(number))
        return np.split(states, borders)

    def _embed(self, texts: Sequence[Sequence[int]]) -> np.ndarray:
        """Return the embeddings (t, H) of the tokens of all texts, one text after the other."""
        words, positions, token_types = (self._weights[name] for name in EMBEDDINGS)
        token_ids = np.concatenate([np.asarray(ids, np.int64) for ids in texts])
        token_positions = np.concatenate([np.arange(len(ids)) for ids in texts])
        # The types tell two texts of a pair apart. Here each text stands alone.
        embedded = words[token_ids] + token_types[0]
        embedded += positions[token_positions]
        return self._normalize(embedded, EMBEDDING_NORM)

    def _apply_layer(self, states: np.ndarray, borders: np.ndarray, prefix: str) -> np.ndarray:
        """Return the states (t, H) of a layer: self-attention, then a feed-forward network.

        The output of each of the two is added to its input, and the sum is normalised.

        Args:
            states: States (t, H) of the layer below, for the tokens of all texts.
            borders: Where each text but the first begins.
            prefix: Prefix of the names of the layer's weights.
        """
        query = self._project(states, f"{prefix}.attention.self.query")
        key = self._project(states, f"{prefix}.attention.self.key")
        value = self._project(states, f"{prefix}.attention.self.value")
        # A token attends only to tokens of its own text.
        mixed = []
        for text in zip(
            np.split(query, borders), np.split(key, borders), np.split(value, borders), strict=True
        ):
            mixed.append(self._attend(*text))
        attended = self._project(np.concatenate(mixed), f"{prefix}.attention.output.dense")
        attended += states
        attended = self._normalize(attended, f"{prefix}.attention.output.LayerNorm")

        inner = gelu(self._project(attended, f"{prefix}.intermediate.dense"))
        output = self._project(inner, f"{prefix}.output.dense")
        output += attended
        return self._normalize(output, f"{prefix}.output.LayerNorm")

    def _attend(self, query: np.ndarray, key: np.ndarray, value: np.ndarray) -> np.ndarray:
        """Return the mean values (t, H) of a text's tokens, weighted by softmax attention.

        Args:
            query: Projections (t, H) of the states, one block of components per head.
            key: The same for keys.
            value: The same for values.
        """
        query_heads = self._split_heads(query)
        key_heads = self._split_heads(key)
        scores = query_heads @ key_heads.transpose(0, 2, 1)
        scores *= np.float32(1 / math.sqrt(query_heads.shape[-1]))

        # Subtracting the largest score changes no weight, and avoids an overflow.
        scores -= scores.max(axis=-1, keepdims=True)
        weights = np.exp(scores, out=scores)
        weights /= weights.sum(axis=-1, keepdims=True)

        mixed_heads = weights @ self._split_heads(value)
        return mixed_heads.transpose(1, 0, 2).reshape(query.shape)

    def _split_heads(self, projected: np.ndarray) -> np.ndarray:
        """Reshape (t, H) to (heads, t, H / heads)."""
        heads = projected.reshape(len(projected), self._head_count, -1)
        return heads.transpose(1, 0, 2)

    def _project(self, inputs: np.ndarray, name: str) -> np.ndarray:
        """Apply a linear map to inputs (t, in), and return (t, out)."""
        outputs = inputs @ self._weights[f"{name}.weight"].T
        outputs += self._weights[f"{name}.bias"]
        return outputs

    def _normalize(self, states: np.ndarray, name: str) -> np.ndarray:
        """Return states (t, H) with mean 0 and variance 1 per token, then scaled and shifted."""
        centred = states - states.mean(axis=1, keepdims=True)
        variances = np.einsum("th,th->t", centred, centred) / np.float32(self.width)
        centred /= np.sqrt(variances + self._epsilon)[:, np.newaxis]
        centred *= self._weights[f"{name}.weight"]
        centred += self._weights[f"{name}.bias"]
        return centred


def gelu(values: np.ndarray) -> np.ndarray:
    """Return x * Phi(x) for values x, where Phi is the normal distribution (GELU).

    >>> gelu(np.array([-10, 0, 1, 10], np.float32)).round(4).tolist()
    [-0.0, 0.0, 0.8413000106811523, 10.0]
    """
    share = erf(values * np.float32(math.sqrt(0.5)))
    share += 1
    share *= values
    share *= np.float32(0.5)
    return share


def erf(values: np.ndarray) -> np.ndarray:
    """Return the error function of float32 values, with an error of at most 5e-7.

    NumPy has no error function, and the import of scipy's takes as long as ten queries.
    """
    clipped = np.clip(values, -LARGEST_ERF_INPUT, LARGEST_ERF_INPUT)
    squares = clipped * clipped
    quotient = _polynomial(squares, NUMERATOR)
    quotient /= _polynomial(squares, DENOMINATOR)
    quotient *= clipped
    return quotient


def _polynomial(values: np.ndarray, coefficients: Sequence[float]) -> np.ndarray:
    """Return a polynomial of values; its coefficients begin with that of the highest power."""
    result = np.full_like(values, coefficients[0])
    for coefficient in coefficients[1:]:
        result *= values
        result += np.float32(coefficient)
    return result


def load_numpy_bert(folder: Path, max_tokens: int) -> NumpyBert | None:
    """Load a BERT that NumPy can compute.

    Args:
        folder: Folder of the transformer and its tokenizer.
        max_tokens: Number of tokens per text that the transformer must have positions for.

    Returns:
        The model. None if it is not a published BERT in float32; see `read_plain_config`.
    """
    config = read_plain_config(folder, max_tokens)
    if config is None:
        return None

    weights_file = folder / WEIGHTS_FILE
    with safe_open(weights_file, "np") as stored:
        names = set(stored.keys())
        dtypes = {stored.get_slice(name).get_dtype() for name in names - {POSITION_IDS}}
    if dtypes != {"F32"} or names - {POSITION_IDS} != weight_names(config["num_hidden_layers"]):
        return None
    return NumpyBert(config, map_tensors(weights_file))
