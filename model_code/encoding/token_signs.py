"""Late interaction over token signs: one bit for each dimension of each token's vector.

For each query token, the most similar token of a passage is found. The score of the passage is the
mean of these similarities, as in ColBERT (Khattab and Zaharia, 2020, eq. 3):

    s(q, p) = 1/|q| * sum_{i in q} max_{j in p} (1 - 2 * d_ij / b),

where d_ij is the number of bits in which tokens i and j differ. b is the number of bits of a token,
padded to a multiple of 64. The score of a document is that of its best passage.

Only integers are summed, so the bits of a score do not depend on other texts. A token of
all-MiniLM-L6-v2 takes 48 bytes. A "token" is a whole word here, see
`Encoder.encode_queries_with_signs`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import numpy as np

from model_code.errors import FreshetError
from model_code.files import write_array
from model_code.row_file import RowFile

SIGNS_FILE = "token_signs.npy"
STARTS_FILE = "token_starts.npy"

# Number of bits of the machine words (integers) in which signs are stored and compared.
BITS_PER_WORD = 64

# Number of pairs of tokens that are compared at a time. They fit into the processor's cache.
MAX_TOKEN_PAIRS_AT_ONCE = 2**16


@dataclass(frozen=True, eq=False)
class TokenSigns:
    """The token signs of n texts: one bit per dimension of each word's vector.

    Attributes:
        bits: Signs of each token, one text after the other, in W machine words, shape (t, W),
            uint64.
        starts: First token of each text, then the number of tokens, shape (n + 1,).
        file: File from which `bits` are mapped, if it is large. Selected texts are read from it.

    >>> first = pack_signs(np.array([[0.5, -0.1], [0.2, 0.3]]))
    >>> second = pack_signs(np.array([[-1.0, -1.0]]))
    >>> signs = TokenSigns.of([first, second])
    >>> signs[:1].similarities(signs).tolist() == [1, 1 - 1.5 * 2 / BITS_PER_WORD]
    True
    """

    bits: np.ndarray
    starts: np.ndarray
    file: RowFile | None = None

    @classmethod
    def of(cls, texts: Sequence[np.ndarray]) -> Self:
        """Join the packed signs (t, W) of each text to one object."""
        bits = np.concatenate(texts) if texts else np.empty((0, 1), np.uint64)
        return cls(bits, np.cumsum([0, *map(len, texts)]))

    def __len__(self) -> int:
        """Number of texts."""
        return len(self.starts) - 1

    def __getitem__(self, rows: np.ndarray | slice) -> Self:
        """Return the signs of the given texts (r,), in the order of `rows`."""
        old_starts = self.starts[:-1][rows]
        token_counts = self.starts[1:][rows] - old_starts
        new_starts = np.concatenate([[0], np.cumsum(token_counts)])
        if self.file is not None:
            return type(self)(self.file.read_runs(old_starts, token_counts), new_starts)
        # Where each selected token was before: all tokens of a text move by the same distance.
        distances = np.repeat(old_starts - new_starts[:-1], token_counts)
        old_places = np.arange(new_starts[-1]) + distances
        return type(self)(self.bits[old_places], new_starts)

    @classmethod
    def concatenate(cls, parts: Sequence[Self | None]) -> Self | None:
        """Concatenate the signs of several lists of texts.

        Args:
            parts: Signs, or None for texts whose signs are not stored.

        Returns:
            The signs of all texts, or None if none are stored.

        Raises:
            FreshetError: If only some are stored.
        """
        present = [part for part in parts if part is not None]
        if not present:
            return None
        if len(present) < len(parts):
            raise FreshetError(
                "some passages have tokens and others have none; build the index again"
            )
        bits = np.concatenate([part.bits for part in present])
        token_counts = np.concatenate([np.diff(part.starts) for part in present])
        return cls(bits, np.concatenate([[0], np.cumsum(token_counts)]))

    def similarities(self, texts: Self) -> np.ndarray:
        """Return the late-interaction score of n texts, for the tokens of this object as query.

        For each query token, the most similar token of the text counts. The score is their mean.

        A query token without any positive value is ignored. If all are ignored, scores are 0.

        Args:
            texts: Token signs of n texts.

        Returns:
            Scores of shape (n,), float64.
        """
        query_bits = self.bits[self.bits.any(axis=1)]
        if not len(texts) or not len(query_bits):
            return np.zeros(len(texts))

        # With the machine words as first axis, each iteration reads consecutive memory, which is
        # faster.
        text_words = np.ascontiguousarray(texts.bits.T)
        # For each text, the bits in which query tokens differ from their most similar tokens.
        differing_bits = np.zeros(len(texts), np.int64)
        step = max(1, MAX_TOKEN_PAIRS_AT_ONCE // len(texts.bits))
        for start in range(0, len(query_bits), step):
            query_words = query_bits[start : start + step].T
            # Bits in which each query token (rows) differs from each token of the texts (columns).
            distances = sum(
                np.bitwise_count(text_word ^ query_word[:, None]).astype(np.uint16)
                for text_word, query_word in zip(text_words, query_words, strict=True)
            )
            nearest = np.minimum.reduceat(distances, texts.starts[:-1], axis=1)
            differing_bits += nearest.sum(axis=0, dtype=np.int64)
        return 1 - 2 * differing_bits / (BITS_PER_WORD * query_bits.size)

    def save(self, folder: Path) -> None:
        """Write the signs to two files in a folder."""
        write_array(folder / SIGNS_FILE, self.bits)
        write_array(folder / STARTS_FILE, self.starts)

    @classmethod
    def load(cls, folder: Path) -> Self:
        """Read token signs that `save` wrote. The bits are memory-mapped."""
        path = folder / SIGNS_FILE
        bits = np.asarray(np.load(path, mmap_mode="r"))
        return cls(bits, np.load(folder / STARTS_FILE), RowFile.open_large(path))


def pack_signs(vectors: np.ndarray) -> np.ndarray:
    """Pack the signs of token vectors into machine words of 64 bits.

    Args:
        vectors: Token vectors, shape (t, H).

    Returns:
        Signs of shape (t, W), uint64. A bit is 1 for a positive value. Bits beyond H are 0. If
        there are no vectors, one token of zeros is returned, because every text needs a token.
    """
    if len(vectors):
        sign_bytes = np.packbits(vectors > 0, axis=1)
    else:
        bytes_per_token = math.ceil(vectors.shape[1] / 8)
        sign_bytes = np.zeros((1, bytes_per_token), np.uint8)
    # Zero bytes fill the last machine word of each token.
    padding = -sign_bytes.shape[1] % (BITS_PER_WORD // 8)
    return np.pad(sign_bytes, ((0, 0), (0, padding))).view(np.uint64)
