"""From texts to bags of tokens by the tokenizer alone: no encoder, so a new corpus is searchable in seconds."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Sequence
from typing import Any

import numpy as np

from model_code.progress import Progress, silent
from model_code.settings import require
from model_code.token_index.bags import Bags
from model_code.token_index.word_cache import WordCache

WINDOW = 4096  # texts taken apart at once: bounds memory on large corpora


class TokenBags:
    """Which tokens a text holds, by a fast tokenizer of transformers; special and unknown tokens do not count.

    max_tokens: bags hold what an encoder sees that cuts texts there, its special tokens counted; None: all tokens.
    left_out: further token ids that do not count, such as those that never carry weight in a query.
    fingerprint: SHA-256 of all this; an index refuses the bags and queries of another one.
    """

    def __init__(self, tokenizer: Any, max_tokens: int | None = None, left_out: Collection[int] = ()) -> None:
        from tokenizers import Tokenizer

        from model_code.encoding.fingerprint import tokenizer_rules

        rules = tokenizer_rules(tokenizer)
        dropped = sorted({*map(int, tokenizer.all_special_ids), *map(int, left_out)})
        self.fingerprint = hashlib.sha256(f"token bags {max_tokens} {dropped}\n{rules}".encode()).hexdigest()
        self._backend = Tokenizer.from_str(rules)  # a copy: truncation and padding are state that others set
        self._words = WordCache(self._backend, json.loads(rules)) if WordCache.fits(json.loads(rules)) else None
        self._counted = np.ones(1 + max([0, *dropped, *self._backend.get_vocab().values()]), dtype=bool)
        self._counted[dropped] = False
        added = self._backend.num_special_tokens_to_add(False)
        require(max_tokens is None or max_tokens > added, f"max_tokens is {max_tokens}; {added} of them are special")
        self._room = None if max_tokens is None else max_tokens - added

    def __call__(self, texts: Sequence[str], progress: Progress = silent) -> Bags:
        """The bag of each of `texts`."""
        parts = []
        for start in range(0, len(texts), WINDOW):
            window = texts[start : start + WINDOW]
            parts.append(self._bags(window))
            progress(start + len(window), len(texts), "texts")
        return Bags.joined(parts)

    def _bags(self, texts: Sequence[str]) -> Bags:
        tokens, lengths = self._words.tokens(texts) if self._words else self._whole(texts)
        keep = self._counted[tokens]
        if self._room is not None:
            keep &= np.arange(len(tokens)) - np.repeat(np.cumsum(lengths) - lengths, lengths) < self._room
        kept = np.concatenate([[0], np.cumsum(keep)])
        return Bags(tokens[keep], np.diff(kept[np.cumsum(lengths)], prepend=0))

    def _whole(self, texts: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
        ids = [encoding.ids for encoding in self._backend.encode_batch_fast(list(texts), add_special_tokens=False)]
        lengths = np.fromiter(map(len, ids), np.int64, len(ids))
        return np.array([token for text in ids for token in text], dtype=np.int64), lengths
