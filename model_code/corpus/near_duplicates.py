"""Find near-duplicate documents by the overlap of their sets of words."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Collection, Mapping

from model_code.text.words import split_words

# Default Jaccard similarity above which two documents are near-duplicates.
MAX_JACCARD = 0.8


def near_duplicates(
    texts: Mapping[str, str], document_ids: Collection[str], threshold: float = MAX_JACCARD
) -> dict[str, set[str]]:
    """Return the near-duplicates of the given documents among all of `texts`.

    Two documents are near-duplicates if the Jaccard similarity |A & B| / |A | B| of their sets of
    words, in lower case, is above `threshold`. The search is exact. Two such sets share a word
    among the |A| - ceil(threshold |A|) + 1 rarest words of each (prefix filtering, Bayardo et al.
    2007), so few pairs are compared.

    Args:
        texts: Text by document id.
        document_ids: The documents to find near-duplicates of. They must be in `texts`.
        threshold: Similarity above which two documents are near-duplicates.

    Returns:
        Ids of near-duplicates by document id, without documents that have none.

    >>> texts = {"a": "sort a list of numbers now", "b": "now sort a list of numbers"}
    >>> texts["c"] = "open a file"
    >>> near_duplicates(texts, ["a", "c"])
    {'a': {'b'}}
    """
    word_sets: dict[str, frozenset[str]] = {}
    # Number of documents that contain each word.
    frequency: Counter[str] = Counter()
    for document, text in texts.items():
        word_sets[document] = frozenset(split_words(text.casefold()))
        frequency.update(word_sets[document])

    def rarest_words(document: str) -> list[str]:
        """Return the words of a document of which a near-duplicate has at least one."""
        words = word_sets[document]
        by_rarity = sorted(words, key=lambda word: (frequency[word], word))
        return by_rarity[: len(words) - math.ceil(threshold * len(words)) + 1]

    documents_by_word: defaultdict[str, list[str]] = defaultdict(list)
    for document in texts:
        for word in rarest_words(document):
            documents_by_word[word].append(document)

    duplicates: dict[str, set[str]] = {}
    for document in document_ids:
        candidates: set[str] = set()
        for word in rarest_words(document):
            candidates.update(documents_by_word[word])
        candidates.discard(document)

        for other in candidates:
            shared = len(word_sets[document] & word_sets[other])
            union = len(word_sets[document]) + len(word_sets[other]) - shared
            if shared > threshold * union:
                duplicates.setdefault(document, set()).add(other)
    return duplicates
