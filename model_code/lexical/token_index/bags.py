"""Bags of tokens: the set of tokens that each passage contains.

Only the tokenizer is needed, and no encoder. So a new corpus can be searched within seconds.

BERT's rules split a text into words at spaces and punctuation, and then WordPiece splits each word
into tokens. So the tokens of a word do not depend on its neighbours. This module finds the tokens
of each different word once and caches them, which is much faster than to tokenize whole texts.
"""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np
from tokenizers import Tokenizer

from model_code.retrieval.id_map import number_on_lookup

# Number of texts that are tokenized together. It bounds memory on large corpora.
WINDOW = 4096
PUNCTUATION = r"!-/:-@\[-`{-~"
WORD = re.compile(rf"[{PUNCTUATION}]|[^ \n\r\t{PUNCTUATION}]+")
"""A punctuation character, or a run of other characters without ASCII spaces.

BERT's rules always split a text between such words. They also split at some other characters. So a
word with anything but printable ASCII is passed to the tokenizer.
"""
# Number of words at which the cache is emptied. It then takes about 200 MB, and holds far more
# words than one language has.
MAX_CACHED_WORDS = 2**20
# First character of a cache entry that is a whole text instead of a word. No word contains a space,
# and BERT's rules ignore it.
WHOLE_TEXT_MARK = " "


@dataclass(frozen=True)
class Bags:
    """The tokens of n passages, one passage after the other.

    A token may be listed several times for a passage. This makes no difference, because the index
    only stores whether a passage contains a token.

    Attributes:
        tokens: Token ids, (m,) int64.
        lengths: Number of tokens of each passage, (n,) int64.
    """

    tokens: np.ndarray
    lengths: np.ndarray

    @classmethod
    def of(cls, bags: Iterable[Sequence[int] | np.ndarray]) -> Bags:
        """Combine one sequence of token ids per passage.

        >>> Bags.of([[7, 3], [], [3]]).lengths.tolist()
        [2, 0, 1]
        """
        arrays = [np.asarray(bag, dtype=np.int64) for bag in bags]
        tokens = np.concatenate([np.empty(0, np.int64), *arrays])
        return cls(tokens, np.fromiter(map(len, arrays), np.int64, len(arrays)))

    @classmethod
    def joined(cls, parts: Sequence[Bags]) -> Bags:
        """Join the passages of several objects to one, in their order."""
        if not parts:
            return cls.of([])
        tokens = np.concatenate([part.tokens for part in parts])
        lengths = np.concatenate([part.lengths for part in parts])
        return cls(tokens, lengths)

    def __len__(self) -> int:
        """Return the number of passages."""
        return len(self.lengths)

    @property
    def passages(self) -> np.ndarray:
        """Number of the passage of each token, (m,) int64."""
        return np.repeat(np.arange(len(self)), self.lengths)

    def slice(self, start: int, end: int) -> Bags:
        """Return the passages from `start` to before `end`, which are numbered from 0 again."""
        first_token = self.lengths[:start].sum()
        end_token = self.lengths[:end].sum()
        return Bags(self.tokens[first_token:end_token], self.lengths[start:end])


class TokenBags:
    """Finds the tokens of texts with a fast tokenizer of transformers.

    Special and unknown tokens are left out. Threads may share an instance.
    """

    def __init__(self, tokenizer: Any) -> None:
        """Copy a tokenizer's rules.

        Args:
            tokenizer: A fast tokenizer of transformers.
        """
        # Imported here because it imports torch, which a search of bags does not need.
        from model_code.encoding.base_models import tokenizer_rules

        rules = tokenizer_rules(tokenizer)
        # A copy is needed, because other code sets truncation and padding of the original.
        self._backend = Tokenizer.from_str(rules)
        self._words: WordCache | None = None
        self._words_lock = threading.Lock()
        parsed_rules = json.loads(rules)
        if WordCache.fits(parsed_rules):
            self._words = WordCache(self._backend, parsed_rules)

        # Whether each token id counts as a token of a text. Special tokens do not.
        special = sorted({int(number) for number in tokenizer.all_special_ids})
        largest_id = max([0, *special, *self._backend.get_vocab().values()])
        self._is_counted = np.ones(1 + largest_id, dtype=bool)
        self._is_counted[special] = False

    def __call__(self, texts: Sequence[str]) -> Bags:
        """Return the set of tokens that each text contains."""
        windows = []
        for start in range(0, len(texts), WINDOW):
            windows.append(self._bags(texts[start : start + WINDOW]))
        return Bags.joined(windows)

    def _bags(self, texts: Sequence[str]) -> Bags:
        """Return the tokens of some texts, which are tokenized together, without special ones."""
        if self._words is not None:
            # The words of another thread would get in between the numbers and tokens of new words.
            with self._words_lock:
                tokens, lengths = self._words.tokens(texts)
        else:
            tokens, lengths = self._tokenize(texts)

        is_kept = self._is_counted[tokens]
        # Number of kept tokens before each token, and before the end of each text.
        kept_before = np.concatenate([[0], np.cumsum(is_kept)])
        kept_at_ends = kept_before[np.cumsum(lengths)]
        return Bags(tokens[is_kept], np.diff(kept_at_ends, prepend=0))

    def _tokenize(self, texts: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
        """Return the token ids of all texts, (m,), and the number of tokens of each, (n,)."""
        encodings = self._backend.encode_batch_fast(list(texts), add_special_tokens=False)
        return _concat_ids([encoding.ids for encoding in encodings])


class WordCache:
    """Finds the token ids of texts word by word, and caches the token ids of each word.

    Words are numbered in the order of their first occurrence.
    """

    def __init__(self, backend: Any, rules: Mapping[str, Any]) -> None:
        """Prepare an empty cache.

        Args:
            backend: A `tokenizers.Tokenizer` without truncation.
            rules: The rules of the tokenizer as parsed JSON.
        """
        self._backend = backend
        self._model = backend.model
        self._lowercase = (rules["normalizer"] or {}).get("lowercase", False)
        self._added_tokens = [token["content"] for token in rules["added_tokens"]]
        # Words of the vocabulary. Each of them is a single token, unless it is so long that
        # WordPiece does not read it.
        max_letters = rules["model"]["max_input_chars_per_word"]
        self._single: dict[str, list[int]] = {}
        for word, number in backend.get_vocab(with_added_tokens=False).items():
            if len(word) <= max_letters:
                self._single[word] = [number]
        self._clear()

    @staticmethod
    def fits(rules: Mapping[str, Any]) -> bool:
        """Return whether the tokens of a text are the tokens of its words.

        This holds for WordPiece with BERT's normalizer and splitter. It does not hold if an added
        token is searched in the normalised text, because such a token may span several words.

        Args:
            rules: The rules of a tokenizer as parsed JSON.
        """

        def type_of(part: str) -> str | None:
            # The rules have null in place of a part that the tokenizer lacks.
            return (rules[part] or {}).get("type")

        splits_into_words = (
            type_of("model") == "WordPiece"
            and type_of("pre_tokenizer") == "BertPreTokenizer"
            and type_of("normalizer") in (None, "BertNormalizer")
        )
        return splits_into_words and not any(token["normalized"] for token in rules["added_tokens"])

    def tokens(self, texts: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
        """Find the tokens of texts, like the tokenizer.

        Returns:
            The token ids of all texts, (m,), and the number of tokens of each text, (n,).
        """
        if len(self._numbers) > MAX_CACHED_WORDS:
            self._clear()

        # `numbers` holds the words of all texts as numbers, and `ends` the end of each text in it.
        # Looking up a new word gives it the next number.
        numbers: list[int] = []
        ends: list[int] = []
        number_of = self._numbers.__getitem__
        for text in texts:
            # WORD would split an added token such as a literal "[MASK]". A text with an added token
            # is therefore tokenized as a whole.
            has_added_token = any(token in text for token in self._added_tokens)
            words = [WHOLE_TEXT_MARK + text] if has_added_token else WORD.findall(text)
            numbers.extend(map(number_of, words))
            ends.append(len(numbers))
        self._tokenize_new_words()
        return self._tokens_of(np.array(numbers, dtype=np.int64), np.array(ends, dtype=np.int64))

    def _clear(self) -> None:
        """Empty the cache of words, when it has become too large or is new."""
        # Number of each word that was looked up.
        self._numbers = number_on_lookup()
        # The tokens of the word with number i are _tokens[_starts[i] : _starts[i + 1]].
        self._tokens = np.empty(0, np.int64)
        self._starts = np.zeros(1, np.int64)

    def _tokens_of(self, numbers: np.ndarray, ends: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the tokens of all texts, and the number of tokens of each text.

        Args:
            numbers: Numbers of the w words of all texts, one text after the other, (w,). Their
                tokens are in the cache.
            ends: Position in `numbers` at which each text ends, (n,).

        Returns:
            The token ids of all texts, (m,), and the number of tokens of each text, (n,).
        """
        # Where the tokens of each word start in the cache, and how many there are.
        cached_starts = self._starts[numbers]
        counts = self._starts[numbers + 1] - cached_starts
        # Where the tokens of each word start in the result, followed by the length m of the result.
        starts = np.concatenate([[0], np.cumsum(counts)])

        # For each token of the result, its position in the cache. The positions in the cache and in
        # the result differ by the same amount for all tokens of a word.
        offsets = np.repeat(cached_starts - starts[:-1], counts)
        cached_positions = np.arange(starts[-1]) + offsets
        lengths = np.diff(starts[ends], prepend=0)
        return self._tokens[cached_positions], lengths

    def _tokenize_new_words(self) -> None:
        """Find and cache the tokens of words that were numbered after the last call."""
        cached_words = len(self._starts) - 1
        new_words = list(self._numbers)[cached_words:]
        unusual = [word for word in new_words if not _is_plain(word)]
        encodings = iter(self._backend.encode_batch_fast(unusual, add_special_tokens=False))

        tokens_by_word: list[list[int]] = []
        for word in new_words:
            if _is_plain(word):
                tokens_by_word.append(self._tokenize_plain(word))
            else:
                tokens_by_word.append(next(encodings).ids)

        new_tokens, lengths = _concat_ids(tokens_by_word)
        self._tokens = np.concatenate([self._tokens, new_tokens])
        self._starts = np.concatenate([self._starts, self._starts[-1] + np.cumsum(lengths)])

    def _tokenize_plain(self, word: str) -> list[int]:
        """Return the tokens of a word in printable ASCII without the slow part of the tokenizer.

        In such a word the normalizer only changes the case. WordPiece tries the longest piece
        first, so a word of the vocabulary is one token.
        """
        if self._lowercase:
            word = word.lower()
        return self._single.get(word) or [token.id for token in self._model.tokenize(word)]


def _concat_ids(id_lists: Sequence[Sequence[int]]) -> tuple[np.ndarray, np.ndarray]:
    """Return the token ids of several lists as one array, (m,), and their lengths, (n,)."""
    lengths = np.fromiter(map(len, id_lists), np.int64, len(id_lists))
    ids = np.fromiter(chain.from_iterable(id_lists), np.int64, int(lengths.sum()))
    return ids, lengths


def _is_plain(word: str) -> bool:
    """Return whether a cache entry is a word in printable ASCII; see `WHOLE_TEXT_MARK`."""
    return word.isascii() and word.isprintable() and word[0] != WHOLE_TEXT_MARK
