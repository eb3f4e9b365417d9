"""Encode texts before they are indexed, so that indexing them does not wait.

A service records documents first, and indexes all recorded documents in batches. Encoding takes
most of the time of a batch. It can begin while the batch before is still being indexed.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from typing import NamedTuple

import numpy as np

from model_code.encoding.token_signs import TokenSigns

# Largest number of encodings that are kept until their documents are indexed; they take about 5 MB.
# The limit exists because some are never used: a document may be replaced before it is indexed.
# Beyond the limit, the oldest encodings are dropped. A dropped text is encoded again when needed.
MAX_WAITING_TEXTS = 1024


class Encoding(NamedTuple):
    """The encoding of one text or of several.

    Attributes:
        vectors: Vectors, the same number for each text, shape (r, H), float32.
        token_signs: Token signs, one bit per dimension of each word's vector. None if the index
            stores none.
    """

    vectors: np.ndarray
    token_signs: TokenSigns | None


# Function that encodes texts. It makes the same number of vectors for each text.
EncodeTexts = Callable[[Sequence[str]], Encoding]


class EncodingsAhead:
    """Keeps the encodings of texts that are indexed soon, until the index takes them.

    Threads may share them. No text is encoded by two threads at once.

    >>> def encode(texts): return Encoding(np.array([[len(text)] for text in texts]), None)
    >>> ahead = EncodingsAhead()
    >>> ahead.make(["aaa"], encode)
    >>> ahead.take(["b", "aaa"], encode).vectors.tolist()
    [[1], [3]]
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        # Encodings that are waiting or being made, by text, the oldest first.
        self._waiting: dict[str, Future[Encoding]] = {}

    def make(self, texts: Sequence[str], encode: EncodeTexts) -> None:
        """Encode texts, and keep the encodings until `take` is called for the texts.

        Texts are skipped if their encodings are kept already, or another thread is making them.
        """
        made: dict[str, Future[Encoding]] = {}
        with self._lock:
            for text in texts:
                if text not in self._waiting and text not in made:
                    made[text] = Future()
            self._waiting.update(made)
            while len(self._waiting) > MAX_WAITING_TEXTS:
                del self._waiting[next(iter(self._waiting))]
        if not made:
            return

        try:
            encodings = split_encoding(encode(list(made)), len(made))
        except BaseException as error:
            with self._lock:
                for text in made:
                    self._waiting.pop(text, None)
            for future in made.values():
                future.set_exception(error)
            raise
        for future, encoding in zip(made.values(), encodings, strict=True):
            future.set_result(encoding)

    def keep(self, encodings: Mapping[str, Encoding]) -> None:
        """Keep encodings that are known already, until `take` is called for their texts.

        Encodings that are waiting are not replaced. Beyond `MAX_WAITING_TEXTS` none is added.

        Args:
            encodings: Encodings by text.
        """
        with self._lock:
            for text, encoding in encodings.items():
                if len(self._waiting) >= MAX_WAITING_TEXTS:
                    break
                if text not in self._waiting:
                    self._waiting[text] = Future()
                    self._waiting[text].set_result(encoding)

    def take(self, texts: Sequence[str], encode: EncodeTexts) -> Encoding:
        """Return the encodings of texts, and stop keeping them.

        Texts that `make` has not encoded are encoded now, in one call of `encode`. If `make` has
        encoded none of the texts, the result is exactly that of `encode`.

        Args:
            texts: The n texts. A text may repeat.
            encode: Encodes the texts that were not encoded ahead.
        """
        with self._lock:
            found = {text: self._waiting.pop(text) for text in set(texts) & self._waiting.keys()}
        if not found:
            return encode(texts)

        encodings: list[Encoding | None] = [None] * len(texts)
        missing = [i for i, text in enumerate(texts) if text not in found]
        if missing:
            made = encode([texts[i] for i in missing])
            for i, encoding in zip(missing, split_encoding(made, len(missing)), strict=True):
                encodings[i] = encoding
        for i, text in enumerate(texts):
            if text in found:
                encodings[i] = found[text].result()
        return join_encodings([encoding for encoding in encodings if encoding is not None])


def split_encoding(encoding: Encoding, count: int) -> list[Encoding]:
    """Split the joint encoding of `count` texts into one encoding per text."""
    parts: list[Encoding] = []
    vectors = encoding.vectors.reshape(count, -1, encoding.vectors.shape[-1])
    for i in range(count):
        token_signs = None
        if encoding.token_signs is not None:
            token_signs = encoding.token_signs[i : i + 1]
        parts.append(Encoding(vectors[i].copy(), token_signs))
    return parts


def join_encodings(encodings: Sequence[Encoding]) -> Encoding:
    """Return the encoding of all texts of several encodings, in their order."""
    vectors = np.concatenate([encoding.vectors for encoding in encodings])
    token_signs = TokenSigns.concatenate([encoding.token_signs for encoding in encodings])
    return Encoding(vectors, token_signs)
