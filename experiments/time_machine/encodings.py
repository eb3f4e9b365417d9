"""Encode each distinct text once, and count the seconds that each policy would need without this.

All policies encode mostly the same texts with the same encoders, so they share a cache of vectors.
If a policy takes a text from the cache, the seconds are counted that encoding the text had taken.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from model_code.encoding.encoder import Encoder
from model_code.encoding.token_signs import TokenSigns
from model_code.progress import Progress, no_progress

# Methods of `Encoder` whose results are cached. Indexes and fusions call them. Training calls other
# methods, because the weights of the encoder change.
CACHED_METHODS = ("encode_queries_with_signs", "encode_documents_with_signs")

EncodeMethod = Callable[..., tuple[np.ndarray, TokenSigns]]


class EncodingCache:
    """Vectors and token signs by encoder and text.

    Attributes:
        saved_seconds: Processor seconds that encoding would have taken for texts in the cache.
    """

    def __init__(self) -> None:
        """Create an empty cache."""
        self.saved_seconds = 0.0
        self._vectors: dict[tuple[str, str, str], np.ndarray] = {}
        self._signs: dict[tuple[str, str, str], np.ndarray] = {}
        self._seconds: dict[tuple[str, str, str], float] = {}
        self._fingerprints: WeakKeyDictionary[Encoder, str] = WeakKeyDictionary()

    @contextmanager
    def shared(self) -> Iterator[None]:
        """Let all encoders of this process use the cache."""
        originals = {name: getattr(Encoder, name) for name in CACHED_METHODS}
        for name, original in originals.items():
            setattr(Encoder, name, self._wrap(name, original))
        try:
            yield
        finally:
            for name, original in originals.items():
                setattr(Encoder, name, original)

    def _wrap(self, name: str, original: EncodeMethod) -> EncodeMethod:
        """Return a method that takes known encodings from the cache and encodes only other texts.

        Args:
            name: Name of the method of `Encoder`.
            original: The method.
        """

        def encode(
            encoder: Encoder, texts: Sequence[str], progress: Progress = no_progress
        ) -> tuple[np.ndarray, TokenSigns]:
            fingerprint = self._fingerprint(encoder)
            keys = [(name, fingerprint, text) for text in texts]
            # The same text may occur several times, and is encoded and counted once.
            distinct_keys = dict.fromkeys(keys)
            missing = [key for key in distinct_keys if key not in self._vectors]
            for key in distinct_keys.keys() - set(missing):
                self.saved_seconds += self._seconds[key]
            if missing:
                self._encode(original, encoder, missing)

            vectors = np.empty((len(keys), encoder.dimension), np.float32)
            for row, key in enumerate(keys):
                vectors[row] = self._vectors[key]
            return vectors, TokenSigns.of([self._signs[key] for key in keys])

        return encode

    def _encode(
        self, original: EncodeMethod, encoder: Encoder, missing: Sequence[tuple[str, str, str]]
    ) -> None:
        """Encode texts, and keep their encodings and the processor seconds that each text took.

        Args:
            original: Method of `Encoder` that encodes.
            encoder: The encoder.
            missing: Keys of the cache: name of the method, fingerprint of the encoder, and text.
        """
        texts = [text for _, _, text in missing]
        started = time.process_time()
        vectors, signs = original(encoder, texts)
        # The time of a batch is divided evenly among its texts.
        seconds = (time.process_time() - started) / len(texts)
        for row, key in enumerate(missing):
            self._vectors[key] = vectors[row]
            self._signs[key] = signs.bits[signs.starts[row] : signs.starts[row + 1]]
            self._seconds[key] = seconds

    def _fingerprint(self, encoder: Encoder) -> str:
        """Return the fingerprint of an encoder, which is computed once."""
        if encoder not in self._fingerprints:
            self._fingerprints[encoder] = encoder.fingerprint()
        return self._fingerprints[encoder]

    def forget(self, keep: Callable[[str], bool]) -> None:
        """Delete the encodings by the encoders that `keep` refuses, which frees memory.

        Args:
            keep: Returns whether the encodings of the encoder with a fingerprint are kept.
        """
        for table in (self._vectors, self._signs, self._seconds):
            mapping: dict[tuple[str, str, str], Any] = table
            for key in [key for key in mapping if not keep(key[1])]:
                del mapping[key]


class Meter:
    """Counts the processor seconds of a policy, including the seconds that the cache saved it.

    Attributes:
        seconds: Processor seconds so far.
    """

    def __init__(self, cache: EncodingCache) -> None:
        """Create a meter that shows 0 seconds."""
        self.cache = cache
        self.seconds = 0.0

    @contextmanager
    def running(self) -> Iterator[None]:
        """Count the processor seconds of a block."""
        started = time.process_time()
        saved = self.cache.saved_seconds
        try:
            yield
        finally:
            spent = time.process_time() - started
            self.seconds += spent + self.cache.saved_seconds - saved

    def add(self, seconds: float) -> None:
        """Add the seconds of a build that was done before."""
        self.seconds += seconds
