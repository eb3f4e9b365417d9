"""BERT for inference with NumPy, in float32 on a CPU.

PyTorch takes 200 MB of memory and more than a second to import. A process that only searches
encodes a few short queries, which NumPy does about as fast.

The operations are those of `bert.Bert` (Devlin et al. 2019, section 3, with normalisation after
each sublayer). The states agree with those of PyTorch in float32, up to rounding.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
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

# Coefficients of the error function as a quotient of two polynomials in x^2, highest power first.
# They are those of the library Eigen. For numbers of float32 the error is at most 5e-7.
ERF_NUMERATOR = (
    -2.72614225801306e-10,
    2.77068142495902e-08,
    -2.10102402082508e-06,
    -5.69250639462346e-05,
    -7.34990630326855e-04,
    -2.95459980854025e-03,
    -1.60960333262415e-02,
)
ERF_DENOMINATOR = (
    -1.45660718464996e-05,
    -2.13374055278905e-04,
    -1.68282697438203e-03,
    -7.37332916720468e-03,
    -1.42647390514189e-02,
)

# Largest number of multiplications of a product that OpenBLAS computes without copies.
SMALL_PRODUCT = 1_000_000

# Number of tokens for which products are small. Most queries have fewer.
SMALL_TOKENS = 20

# The error function of larger numbers is 1 in float32.
LARGEST_ERF_INPUT = 4.0


@dataclass(frozen=True)
class LinearMap:
    """A linear map (t, in) -> (t, out).

    Attributes:
        blocks: Weights of consecutive outputs, (blocks, in, outputs per block); see
            `outputs_per_block`.
        bias: Is added to each row, (out,).
    """

    blocks: np.ndarray
    bias: np.ndarray

    @classmethod
    def join(cls, tensors: Mapping[str, np.ndarray], names: Sequence[str]) -> LinearMap:
        """Join linear maps of the same inputs, so that one product computes all of them.

        Args:
            tensors: Weights of the file by name, (out, in).
            names: Names of the linear maps.
        """
        weights = np.concatenate([tensors[f"{name}.weight"] for name in names])
        biases = np.concatenate([tensors[f"{name}.bias"] for name in names])
        output_count, input_count = weights.shape
        block_size = outputs_per_block(input_count, output_count)
        blocks = weights.reshape(-1, block_size, input_count).transpose(0, 2, 1)
        return cls(np.ascontiguousarray(blocks), biases)

    def __call__(self, inputs: np.ndarray) -> np.ndarray:
        """Return the outputs (t, out) for inputs (t, in)."""
        block_count, _, block_size = self.blocks.shape
        outputs = np.empty((len(inputs), block_count * block_size), np.float32)
        outputs_of_blocks = outputs.reshape(len(inputs), block_count, block_size).transpose(1, 0, 2)
        np.matmul(inputs, self.blocks, out=outputs_of_blocks)
        outputs += self.bias
        return outputs


def outputs_per_block(input_count: int, output_count: int) -> int:
    """Return the number of outputs that one product of a linear map computes.

    OpenBLAS copies both matrices of a product before it multiplies, which takes most of the time
    for the few tokens of a query. It multiplies directly if the product has at most
    `SMALL_PRODUCT` multiplications. So the outputs are divided into blocks that are small enough
    for `SMALL_TOKENS` tokens.

    >>> outputs_per_block(384, 1536)
    128
    >>> outputs_per_block(1536, 384)
    32
    """
    largest = SMALL_PRODUCT // (SMALL_TOKENS * input_count)
    for size in range(min(largest, output_count), 0, -1):
        if output_count % size == 0:
            return size
    return output_count


@dataclass(frozen=True)
class LayerNormalization:
    """Gives each token's state mean 0 and variance 1, then scales and shifts it.

    Attributes:
        scale: Factor of each dimension, (H,).
        shift: Is added to each dimension, (H,).
        epsilon: Is added to the variance.
    """

    scale: np.ndarray
    shift: np.ndarray
    epsilon: np.float32

    @classmethod
    def read(
        cls, tensors: Mapping[str, np.ndarray], name: str, epsilon: float
    ) -> LayerNormalization:
        """Copy the weights of a normalisation."""
        scale = np.array(tensors[f"{name}.weight"])
        shift = np.array(tensors[f"{name}.bias"])
        return cls(scale, shift, np.float32(epsilon))

    def __call__(self, states: np.ndarray) -> np.ndarray:
        """Normalise states (t, H) in place, and return them."""
        width = np.float32(states.shape[1])
        states -= np.add.reduce(states, axis=1, keepdims=True) / width
        variances = np.einsum("th,th->t", states, states) / width
        states /= np.sqrt(variances + self.epsilon)[:, np.newaxis]
        states *= self.scale
        states += self.shift
        return states


@dataclass(frozen=True)
class NumpyLayer:
    """A transformer layer: self-attention, then a feed-forward network.

    Attributes:
        projections: Queries, keys and values of attention, one after the other: H -> 3 H.
        attention_output: Projects the mixed values.
        attention_norm: Normalises the sum of the projected values and the layer's input.
        expansion: First map of the feed-forward network.
        contraction: Second map of the feed-forward network.
        output_norm: Normalises the sum of the network's output and its input.
        head_count: Number of heads of attention.
    """

    projections: LinearMap
    attention_output: LinearMap
    attention_norm: LayerNormalization
    expansion: LinearMap
    contraction: LinearMap
    output_norm: LayerNormalization
    head_count: int

    @classmethod
    def read(
        cls, tensors: Mapping[str, np.ndarray], number: int, config: Mapping[str, Any]
    ) -> NumpyLayer:
        """Copy the weights of a layer.

        Args:
            tensors: Weights of the file by name.
            number: Number of the layer.
            config: Contents of `config.json`.
        """
        prefix = layer_prefix(number)
        epsilon = config["layer_norm_eps"]
        attention = f"{prefix}.attention.self"
        projected = [f"{attention}.query", f"{attention}.key", f"{attention}.value"]
        return cls(
            LinearMap.join(tensors, projected),
            LinearMap.join(tensors, [f"{prefix}.attention.output.dense"]),
            LayerNormalization.read(tensors, f"{prefix}.attention.output.LayerNorm", epsilon),
            LinearMap.join(tensors, [f"{prefix}.intermediate.dense"]),
            LinearMap.join(tensors, [f"{prefix}.output.dense"]),
            LayerNormalization.read(tensors, f"{prefix}.output.LayerNorm", epsilon),
            config["num_attention_heads"],
        )

    def __call__(self, states: np.ndarray, lengths: Sequence[int]) -> np.ndarray:
        """Return the states (t, H) of this layer.

        The output of each of the two parts is added to its input, and the sum is normalised.

        Args:
            states: States (t, H) of the layer below, for the tokens of all texts.
            lengths: Number of tokens of each text. A token attends only to those of its text.
        """
        projected = self.projections(states)
        mixed = np.empty_like(states)
        start = 0
        for length in lengths:
            text = slice(start, start + length)
            mixed[text] = self._attend(projected[text])
            start += length

        attended = self.attention_output(mixed)
        attended += states
        attended = self.attention_norm(attended)

        output = self.contraction(gelu(self.expansion(attended)))
        output += attended
        return self.output_norm(output)

    def _attend(self, projected: np.ndarray) -> np.ndarray:
        """Return the mean values (t, H) of a text's tokens, weighted by softmax attention.

        Args:
            projected: Queries, keys and values of the text's tokens, (t, 3 H). Each of the three
                has one block of dimensions per head.
        """
        token_count = len(projected)
        heads = projected.reshape(token_count, 3, self.head_count, -1).transpose(1, 2, 0, 3)
        queries, keys, values = heads
        scores = queries @ keys.transpose(0, 2, 1)
        scores *= np.float32(1 / math.sqrt(queries.shape[-1]))

        # Subtracting the largest score changes no weight, and avoids an overflow.
        scores -= scores.max(axis=-1, keepdims=True)
        weights = np.exp(scores, out=scores)
        weights /= np.add.reduce(weights, axis=-1, keepdims=True)
        return (weights @ values).transpose(1, 0, 2).reshape(token_count, -1)


class NumpyBert:
    """Computes the hidden states of texts.

    Texts of different lengths need no padding: the linear maps are applied to the tokens of all
    texts at once, and only attention treats each text alone.

    Attributes:
        width: Number of dimensions H of a state.
    """

    def __init__(self, config: Mapping[str, Any], weights_file: Path) -> None:
        """Read the weights of the layers, and map the embeddings, of which a text needs few rows.

        Args:
            config: Contents of `config.json`.
            weights_file: File with the weights, in float32.
        """
        self.width: int = config["hidden_size"]
        tensors = map_tensors(weights_file)
        layer_count = config["num_hidden_layers"]
        self._layers = [NumpyLayer.read(tensors, number, config) for number in range(layer_count)]
        self._norm = LayerNormalization.read(tensors, EMBEDDING_NORM, config["layer_norm_eps"])

        # The pages of the layers were read above. A new mapping does not hold them.
        del tensors
        tensors = map_tensors(weights_file)
        self._words, self._positions, self._token_types = (tensors[name] for name in EMBEDDINGS)

    def last_states(self, texts: Sequence[Sequence[int]]) -> list[np.ndarray]:
        """Return the states of the last layer for each text.

        Args:
            texts: Token ids of each text.

        Returns:
            One array (t, H) float32 per text, with t tokens.
        """
        lengths = [len(ids) for ids in texts]
        states = self._embed(texts)
        for layer in self._layers:
            states = layer(states, lengths)
        return np.split(states, np.cumsum(lengths)[:-1])

    def _embed(self, texts: Sequence[Sequence[int]]) -> np.ndarray:
        """Return the embeddings (t, H) of the tokens of all texts, one text after the other."""
        token_ids = np.concatenate([np.asarray(ids, np.int64) for ids in texts])
        positions = np.concatenate([np.arange(len(ids)) for ids in texts])
        # The types tell two texts of a pair apart. Here each text stands alone.
        embedded = self._words[token_ids] + self._token_types[0]
        embedded += self._positions[positions]
        return self._norm(embedded)


def gelu(values: np.ndarray) -> np.ndarray:
    """Return x * Phi(x) for values x, where Phi is the normal distribution (GELU).

    >>> gelu(np.array([-10, 0, 1, 10], np.float32)).round(4).tolist()
    [-0.0, 0.0, 0.8413000106811523, 10.0]
    """
    # Phi(x) is (1 + erf(x / sqrt(2))) / 2. All steps work in place.
    activations = erf(values * np.float32(math.sqrt(0.5)))
    activations += 1
    activations *= values
    activations *= np.float32(0.5)
    return activations


def erf(values: np.ndarray) -> np.ndarray:
    """Return the error function of float32 values, with an error of at most 5e-7.

    NumPy has no error function, and the import of scipy's takes as long as ten queries.
    """
    clipped = np.clip(values, -LARGEST_ERF_INPUT, LARGEST_ERF_INPUT)
    squares = clipped * clipped
    quotient = _polynomial(squares, ERF_NUMERATOR)
    quotient /= _polynomial(squares, ERF_DENOMINATOR)
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
    return NumpyBert(config, weights_file)
