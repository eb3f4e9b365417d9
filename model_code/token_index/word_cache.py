"""The pieces of every word seen so far, so that WordPiece is asked once per different word and not once per text.

BERT's rules take a text apart at spaces and punctuation before WordPiece looks at a word, so the pieces of a text are
those of its words. Asking again for every text is what makes tokenizing slow: words repeat.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

PUNCTUATION = r"!-/:-@\[-`{-~"
WORD = re.compile(rf"[{PUNCTUATION}]|[^ \n\r\t{PUNCTUATION}]+")
"""BERT's rules part a text at each of these characters, whatever stands beside it. They part at others too: a word
that holds anything but printable ASCII is left to the tokenizer as a whole."""

MOST_WORDS = 2**20  # then the cache starts anew: some 200 MB, and far more words than one language has
WHOLE = " "  # begins a text that is kept in one piece; no word holds a space, and BERT's rules drop it


class _Numbering(dict[str, int]):
    """Numbers words in the order of their first look-up."""

    def __missing__(self, word: str) -> int:
        self[word] = number = len(self)
        return number


class WordCache:
    """Token ids by way of words. backend: a `tokenizers.Tokenizer` without truncation; rules: it as JSON."""

    def __init__(self, backend: Any, rules: Mapping[str, Any]) -> None:
        self._backend, self._model = backend, backend.model
        self._lowercase = (rules["normalizer"] or {}).get("lowercase", False)
        longest = rules["model"]["max_input_chars_per_word"]
        vocabulary = backend.get_vocab(with_added_tokens=False)
        self._single = {word: [number] for word, number in vocabulary.items() if len(word) <= longest}
        self._added = [token["content"] for token in rules["added_tokens"]]
        self._clear()

    @staticmethod
    def fits(rules: Mapping[str, Any]) -> bool:
        """Whether the tokenizer of these rules takes words one by one: WordPiece with BERT's normalizer and splitter.

        Added tokens that are looked for in the normalized text might lie across words that differ in the raw one.
        """
        kinds = [(rules[part] or {}).get("type") for part in ("model", "pre_tokenizer", "normalizer")]
        known = kinds[:2] == ["WordPiece", "BertPreTokenizer"] and kinds[2] in (None, "BertNormalizer")
        return known and not any(token["normalized"] for token in rules["added_tokens"])

    def tokens(self, texts: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
        """The token ids of all texts in a row (m,), as the tokenizer gives them, and how many each text has (n,)."""
        if len(self._numbers) > MOST_WORDS:
            self._clear()
        numbers, ends, number = [], [], self._numbers.__getitem__
        for text in texts:
            numbers += map(number, self._split(text))
            ends.append(len(numbers))
        self._resolve()
        return self._pieces_of(np.array(numbers, dtype=np.int64), np.array(ends, dtype=np.int64))

    def _clear(self) -> None:
        self._numbers = _Numbering()
        self._flat, self._starts = np.empty(0, np.int64), np.zeros(1, np.int64)  # word i: flat[starts[i]:starts[i + 1]]

    def _split(self, text: str) -> list[str]:
        if any(token in text for token in self._added):  # such as a literal "[MASK]", which is one token
            return [WHOLE + text]
        return WORD.findall(text)

    def _pieces_of(self, numbers: np.ndarray, ends: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        starts = self._starts[numbers]
        counts = self._starts[numbers + 1] - starts
        after = np.concatenate([[0], np.cumsum(counts)])  # after[i]: tokens before word i
        places = np.arange(after[-1]) + np.repeat(starts - after[:-1], counts)
        return self._flat[places], np.diff(after[ends], prepend=0)

    def _resolve(self) -> None:
        """Find the pieces of the words that were numbered since the last time."""
        new = list(self._numbers)[len(self._starts) - 1 :]
        plain = [word.isascii() and word.isprintable() and word[0] != WHOLE for word in new]
        odd = [word for word, simple in zip(new, plain, strict=True) if not simple]
        encoded = iter(self._backend.encode_batch_fast(odd, add_special_tokens=False))
        pieces = [self._plain(word) if simple else next(encoded).ids for word, simple in zip(new, plain, strict=True)]
        lengths = np.fromiter(map(len, pieces), np.int64, len(pieces))
        self._flat = np.concatenate([self._flat, np.array([i for word in pieces for i in word], dtype=np.int64)])
        self._starts = np.concatenate([self._starts, self._starts[-1] + np.cumsum(lengths)])

    def _plain(self, word: str) -> list[int]:
        """The pieces of printable ASCII, of which the normalizer changes nothing but the case.

        WordPiece tries the longest piece first, so a word of the vocabulary is one piece.
        """
        word = word.lower() if self._lowercase else word
        return self._single.get(word) or [token.id for token in self._model.tokenize(word)]
