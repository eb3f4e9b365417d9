"""Bags of tokens: which tokens each of n passages holds, from texts by the tokenizer alone.

No encoder is needed, so a new corpus is searchable in seconds. BERT's rules take a text apart at
spaces and punctuation before WordPiece looks at a word, so the pieces of a text are those of its
words, and each different word is looked up once: asking again for every text is what makes
tokenizing slow.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from tokenizers import Tokenizer

from model_code.retrieval.id_map import number_on_lookup

WINDOW = 4096  # texts taken apart at once: bounds memory on large corpora
PUNCTUATION = r"!-/:-@\[-`{-~"
WORD = re.compile(rf"[{PUNCTUATION}]|[^ \n\r\t{PUNCTUATION}]+")
"""BERT's rules part a text at each of these characters, whatever stands beside it. They part at
others too: a word that holds anything but printable ASCII is left to the tokenizer as a whole.
"""
# then the cache starts anew: some 200 MB, and far more words than one language has
MOST_WORDS = 2**20
# begins a text that is kept in one piece; no word holds a space, and BERT's rules drop it
WHOLE = " "


@dataclass(frozen=True)
class Bags:
    """`tokens` (m,) int64: those of passage 0, of passage 1, ...; `lengths` (n,) int64: how many
    each has.

    A token may stand several times in a passage, which means the same as once: the bags are binary.
    """

    tokens: np.ndarray
    lengths: np.ndarray

    @classmethod
    def of(cls, bags: Iterable[Sequence[int] | np.ndarray]) -> Bags:
        """From one sequence of token ids per passage.

        >>> Bags.of([[7, 3], [], [3]]).lengths.tolist()
        [2, 0, 1]
        """
        arrays = [np.asarray(bag, dtype=np.int64) for bag in bags]
        tokens = np.concatenate([np.empty(0, np.int64), *arrays])
        return cls(tokens, np.fromiter(map(len, arrays), np.int64, len(arrays)))

    @classmethod
    def joined(cls, parts: Sequence[Bags]) -> Bags:
        """The passages of all `parts`, in order."""
        empty = cls.of([])
        tokens = np.concatenate([part.tokens for part in (empty, *parts)])
        return cls(tokens, np.concatenate([part.lengths for part in (empty, *parts)]))

    def __len__(self) -> int:
        """Number of passages."""
        return len(self.lengths)

    @property
    def passages(self) -> np.ndarray:
        """The passage of each of `tokens`, (m,) int64."""
        return np.repeat(np.arange(len(self)), self.lengths)

    def slice(self, start: int, end: int) -> Bags:
        """The passages from `start` up to `end`, numbered from 0."""
        first, last = self.lengths[:start].sum(), self.lengths[:end].sum()
        return Bags(self.tokens[first:last], self.lengths[start:end])


class TokenBags:
    """Which tokens a text holds, by a fast tokenizer of transformers; special and unknown tokens do
    not count.
    """

    def __init__(self, tokenizer: Any) -> None:

        # with torch, which searching bags does without
        from model_code.encoding.base_models import tokenizer_rules

        rules, special = tokenizer_rules(tokenizer), sorted({*map(int, tokenizer.all_special_ids)})
        # a copy: truncation and padding are state that others set
        self._backend = Tokenizer.from_str(rules)
        self._words = (
            WordCache(self._backend, json.loads(rules))
            if WordCache.fits(json.loads(rules))
            else None
        )
        self._counted = np.ones(
            1 + max([0, *special, *self._backend.get_vocab().values()]), dtype=bool
        )
        self._counted[special] = False

    def __call__(self, texts: Sequence[str]) -> Bags:
        """The bag of each of `texts`."""
        starts = range(0, len(texts), WINDOW)
        return Bags.joined([self._bags(texts[start : start + WINDOW]) for start in starts])

    def _bags(self, texts: Sequence[str]) -> Bags:
        tokens, lengths = self._words.tokens(texts) if self._words else self._whole(texts)
        keep = self._counted[tokens]
        counts = np.concatenate([[0], np.cumsum(keep)])
        return Bags(tokens[keep], np.diff(counts[np.cumsum(lengths)], prepend=0))

    def _whole(self, texts: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
        ids = [
            encoding.ids
            for encoding in self._backend.encode_batch_fast(list(texts), add_special_tokens=False)
        ]
        lengths = np.fromiter(map(len, ids), np.int64, len(ids))
        return np.array([token for text in ids for token in text], dtype=np.int64), lengths


class WordCache:
    """Token ids by way of words. backend: a `tokenizers.Tokenizer` without truncation; rules: it as
    JSON.
    """

    def __init__(self, backend: Any, rules: Mapping[str, Any]) -> None:
        self._backend, self._model = backend, backend.model
        self._lowercase = (rules["normalizer"] or {}).get("lowercase", False)
        longest = rules["model"]["max_input_chars_per_word"]
        vocabulary = backend.get_vocab(with_added_tokens=False)
        self._single = {
            word: [number] for word, number in vocabulary.items() if len(word) <= longest
        }
        self._added = [token["content"] for token in rules["added_tokens"]]
        self._clear()

    @staticmethod
    def fits(rules: Mapping[str, Any]) -> bool:
        """Whether the tokenizer of these rules takes words one by one: WordPiece with BERT's
        normalizer and splitter.

        Added tokens that are looked for in the normalized text might lie across words that differ
        in the raw one.
        """
        kinds = [
            (rules[part] or {}).get("type") for part in ("model", "pre_tokenizer", "normalizer")
        ]
        by_words = kinds[:2] == ["WordPiece", "BertPreTokenizer"] and kinds[2] in (
            None,
            "BertNormalizer",
        )
        return by_words and not any(token["normalized"] for token in rules["added_tokens"])

    def tokens(self, texts: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
        """The token ids of all texts in a row (m,), as the tokenizer gives them, and how many each
        text has (n,).
        """
        if len(self._numbers) > MOST_WORDS:
            self._clear()
        numbers, ends, number = [], [], self._numbers.__getitem__
        for text in texts:
            # such as a literal "[MASK]", which is one token
            unsplit = any(token in text for token in self._added)
            numbers += map(number, [WHOLE + text] if unsplit else WORD.findall(text))
            ends.append(len(numbers))
        self._resolve()
        return self._pieces_of(np.array(numbers, dtype=np.int64), np.array(ends, dtype=np.int64))

    def _clear(self) -> None:
        self._numbers = number_on_lookup()
        # word i: flat[starts[i]:starts[i + 1]]
        self._flat, self._starts = np.empty(0, np.int64), np.zeros(1, np.int64)

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
        pieces = [
            self._plain(word) if simple else next(encoded).ids
            for word, simple in zip(new, plain, strict=True)
        ]
        lengths = np.fromiter(map(len, pieces), np.int64, len(pieces))
        self._flat = np.concatenate(
            [self._flat, np.array([i for word in pieces for i in word], dtype=np.int64)]
        )
        self._starts = np.concatenate([self._starts, self._starts[-1] + np.cumsum(lengths)])

    def _plain(self, word: str) -> list[int]:
        """The pieces of printable ASCII, of which the normalizer changes nothing but the case.

        WordPiece tries the longest piece first, so a word of the vocabulary is one piece.
        """
        word = word.lower() if self._lowercase else word
        return self._single.get(word) or [token.id for token in self._model.tokenize(word)]
