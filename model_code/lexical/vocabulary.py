"""The vocabulary as a lexical encoder sees it: which tokens may carry weight, which a text holds, how rare they are."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import numpy as np

UNUSED = re.compile(r"\[unused\d+\]|<unused\d+>|<extra_id_\d+>")
PART = "\ufffd"  # what a token decodes to that holds some bytes of a character
Sparse = tuple[np.ndarray, np.ndarray]
"""One text: token ids (n,) int64 ascending, and their weights (n,) float32."""


def blocked_tokens(tokenizer: Any, size: int, punctuation: bool) -> np.ndarray:
    """Which of the `size` vocabulary entries never carry weight: (size,) bool.

    Special and unused tokens, entries without a token, and, unless `punctuation`, tokens with no letter or digit in the
    text that they stand for: byte-level tokenizers write "Ġ," for " ,".
    """
    names = {number: name for name, number in tokenizer.get_vocab().items()}
    special = set(tokenizer.all_special_ids)
    blocked = np.ones(size, dtype=bool)
    for number in range(size):
        name = names.get(number)
        if name is None or number in special or UNUSED.fullmatch(name):
            continue
        blocked[number] = not (punctuation or _has_letter(tokenizer.convert_tokens_to_string([name])))
    return blocked


def _has_letter(text: str) -> bool:
    """Whether there is a letter or a digit, or a part of a character, which may be one.

    >>> [_has_letter(text) for text in (" ,", " a", "7", PART)]
    [False, True, True, True]
    """
    return any(letter.isalnum() or letter == PART for letter in text)


def own_tokens(token_ids: Sequence[int], blocked: np.ndarray) -> np.ndarray:
    """T(x): the different tokens of a text that may carry weight, ascending int64.

    >>> own_tokens([101, 7, 5, 7, 102], np.isin(np.arange(200), [101, 102])).tolist()
    [5, 7]
    """
    ids = np.unique(np.asarray(token_ids, dtype=np.int64))
    return ids[~blocked[ids]]


def inverse_document_frequencies(bags: Sequence[np.ndarray], size: int) -> np.ndarray:
    """log( (N + 1) / (n_v + 1) ) for each of `size` tokens, in n_v of the N bags: (size,) float32.

    A token of no bag is held to be little rarer than one of a single bag: with a larger idf, vocabulary that the corpus
    never uses fills the places of query expansion.

    >>> inverse_document_frequencies([np.array([0, 1]), np.array([0])], size=3).round(2).tolist()
    [0.0, 0.41, 1.1]
    """
    counts = np.bincount(np.concatenate([*bags, np.empty(0, dtype=np.int64)]), minlength=size)
    return np.log((len(bags) + 1) / (counts + 1)).astype(np.float32)
