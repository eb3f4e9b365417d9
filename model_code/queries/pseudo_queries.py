"""Generate pseudo-queries from documents, and drop the unusable ones.

The inverse cloze task takes a random span of words of a document as a query for it (Lee et al.
2019; q~ in HCE, section 4.3). Queries that a model wrote also expand documents for BM25, as in
docT5query. A query that occurs word for word in another document is dropped. Training would
otherwise count a right answer as wrong.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple
from zlib import crc32

import numpy as np

from model_code.files import hash_text
from model_code.progress import Progress, no_progress, report_each
from model_code.queries.settings import ClozeSettings
from model_code.text.phrases import documents_containing, normalize_phrase
from model_code.text.words import join_words, word_spans

if TYPE_CHECKING:
    import pandas as pd


class PseudoQuery(NamedTuple):
    """A query, the document that it was generated from, and the generator that wrote it."""

    document_id: str
    text: str
    kind: str


def derive_seed(seed: int, *parts: str | int) -> int:
    """Return a 63-bit random seed that depends only on the project's seed and on `parts`.

    >>> derive_seed(1, "inverse_cloze", "d7") == derive_seed(1, "inverse_cloze", "d7")
    True
    >>> derive_seed(1, "inverse_cloze", "d7") == derive_seed(2, "inverse_cloze", "d7")
    False
    """
    key = "\0".join(map(str, (seed, *parts)))
    # 16 hexadecimal digits are 64 bits, of which the last one is dropped.
    return int(hash_text(key)[:16], 16) >> 1


# Least number of words of a span. Shorter spans rarely tell documents apart.
MIN_SPAN_WORDS = 3


class InverseCloze:
    """Takes spans of words at random places of a document as queries for it.

    Args:
        kind: Name of the generator in the queries.
        settings: Number and lengths of the spans.
    """

    def __init__(self, kind: str, settings: ClozeSettings) -> None:
        self.kind = kind
        self.settings = settings

    def generate(
        self,
        documents: Mapping[str, str],
        seed: int,
        checkpoints: Path | None = None,
        progress: Progress = no_progress,
    ) -> list[PseudoQuery]:
        """Generate queries for documents.

        The queries of a document depend on its id, its text and `seed` only, never on other
        documents. A document that is too short for a span of `MIN_SPAN_WORDS` words gets none.

        Args:
            documents: Text by document id.
            seed: The project's seed.
            checkpoints: Not used: spans are cut in seconds.
            progress: Called with the number of finished documents.

        Returns:
            The queries in ascending order of document ids.
        """
        queries = []
        for document_id in report_each(sorted(documents), len(documents), progress, "documents"):
            for span in self.spans(document_id, documents[document_id], seed):
                queries.append(PseudoQuery(document_id, span, self.kind))
        return queries

    def lasting_span(self, document_id: str, text: str, seed: int) -> str | None:
        """Return a random span of words that stays the same if the document changes elsewhere.

        Of all spans of a document, the one with the smallest hash is taken (min-wise sampling;
        Broder, 1997). Each span has the same chance. Two versions of a document therefore have the
        same span with a chance that equals the share of spans that they have in common.

        Args:
            document_id: Id of the document, which influences the hashes.
            text: Text of the document.
            seed: The project's seed.

        Returns:
            The words, joined by single spaces. None if the text is too short.

        >>> settings = ClozeSettings(per_document=1, min_words=3, max_words=3)
        >>> cloze = InverseCloze("short_cloze", settings)
        >>> versions = ["a b c d e f g h", "a b c d e f g i"]
        >>> [cloze.lasting_span("d1", version, seed=7) for version in versions]
        ['a b c', 'a b c']
        """
        document_spans = word_spans(text)
        max_words = int(len(document_spans) * self.settings.max_share)
        if max_words < MIN_SPAN_WORDS:
            return None

        key = derive_seed(seed, self.kind, document_id)
        generator = random.Random(key)
        drawn_words = generator.randint(self.settings.min_words, self.settings.max_words)
        length = min(max_words, drawn_words)
        word_hashes = [crc32(text[start:end].encode()) for start, end in document_spans]
        first_word = int(np.argmin(_span_hashes(word_hashes, length, key)))
        return join_words(text, document_spans, first_word, first_word + length)

    def spans(self, document_id: str, text: str, seed: int) -> list[str]:
        """Return random spans of words of a document, each joined by single spaces.

        >>> settings = ClozeSettings(per_document=2, min_words=3, max_words=3)
        >>> cloze = InverseCloze("short_cloze", settings)
        >>> cloze.spans("d1", "a b c d e f g h", seed=7)
        ['c d e', 'f g h']
        """
        document_spans = word_spans(text)
        # A query must not be a whole document.
        max_words = int(len(document_spans) * self.settings.max_share)
        if max_words < MIN_SPAN_WORDS:
            return []

        generator = random.Random(derive_seed(seed, self.kind, document_id))
        spans = []
        for _ in range(self.settings.per_document):
            drawn_words = generator.randint(self.settings.min_words, self.settings.max_words)
            length = min(max_words, drawn_words)
            start = generator.randint(0, len(document_spans) - length)
            spans.append(join_words(text, document_spans, start, start + length))
        return spans


def _span_hashes(word_hashes: Sequence[int], length: int, key: int) -> np.ndarray:
    """Return a hash of each span of words of a document.

    Args:
        word_hashes: Hashes of the n words of the document, 32 bits each.
        length: Number of words in a span.
        key: Seed of the hash function.

    Returns:
        Hashes of the n - length + 1 spans, uint64.
    """
    # A sum with random odd factors, in which the order of the words counts (modulo 2^64).
    factors = np.random.default_rng(key).integers(1, 2**63, length, dtype=np.uint64) * 2 + 1
    windows = np.lib.stride_tricks.sliding_window_view(np.array(word_hashes, np.uint64), length)
    hashes: np.ndarray = windows @ factors
    # Only the upper bits of a sum depend on all bits of the words.
    return hashes >> np.uint64(16)


def queries_by_document(pseudo_queries: pd.DataFrame) -> dict[str, list[str]]:
    """Return the queries that a model wrote, by document id.

    Spans that were cut out of documents are left out. In an expanded document they would only
    repeat some of its own words.
    """
    model_queries = pseudo_queries[pseudo_queries["kind"] == "sequence_to_sequence"]
    return model_queries.groupby("document_id", sort=False)["text"].agg(list).to_dict()


def expand_texts(
    texts: Sequence[str], document_ids: Sequence[str], queries: Mapping[str, Sequence[str]]
) -> list[str]:
    """Return each passage's text with all queries of its document appended.

    Args:
        texts: Texts of the passages.
        document_ids: The document of each passage.
        queries: Queries by document id.

    >>> expand_texts(["sort a list", "open a file"], ["a", "b"], {"a": ["ordering", "rank items"]})
    ['sort a list ordering rank items', 'open a file']
    """
    expanded: list[str] = []
    for text, document_id in zip(texts, document_ids, strict=True):
        document_queries = queries.get(document_id, ())
        expanded.append(" ".join([text, *document_queries]))
    return expanded


# Reason to drop a query: it has no letter or digit.
EMPTY = "empty"
# Reason to drop a query: its document has the same query already.
REPEATED = "repeated"
# Reason to drop a query: another document contains it word for word, or has the same query.
AMBIGUOUS = "several_documents"
DROP_REASONS = (EMPTY, REPEATED, AMBIGUOUS)


def reasons_to_drop(
    queries: Sequence[PseudoQuery], documents: Mapping[str, str]
) -> list[str | None]:
    """Return why each query is dropped: one of `DROP_REASONS`, or None to keep it.

    Args:
        queries: The generated queries.
        documents: Text by document id, as it is searched.

    >>> documents = {"d1": "Learns. Returns self.", "d2": "Fits a tree and returns self."}
    >>> ambiguous = PseudoQuery("d1", "Returns self.", "cloze")
    >>> unique = PseudoQuery("d2", "fits a tree", "cloze")
    >>> reasons_to_drop([ambiguous, unique], documents)
    ['several_documents', None]
    """
    phrases = [normalize_phrase(query.text) for query in queries]
    texts = {document_id: normalize_phrase(text) for document_id, text in documents.items()}
    # A document answers the queries that it contains, and those that were made from it.
    answering = documents_containing(phrases, texts)
    for query, phrase in zip(queries, phrases, strict=True):
        answering[phrase].add(query.document_id)

    reasons = []
    seen: set[tuple[str, str]] = set()
    for query, phrase in zip(queries, phrases, strict=True):
        is_repeated = (query.document_id, phrase) in seen
        seen.add((query.document_id, phrase))
        reasons.append(_reason_to_drop(phrase, answering[phrase], is_repeated))
    return reasons


def _reason_to_drop(phrase: str, answering: set[str], is_repeated: bool) -> str | None:
    """Return why a query is dropped, or None to keep it.

    Args:
        phrase: The normalised query.
        answering: Ids of the documents that contain the query or have it as their own.
        is_repeated: Whether the query's document has the same query already.
    """
    if not phrase:
        return EMPTY
    if len(answering) > 1:
        return AMBIGUOUS
    if is_repeated:
        return REPEATED
    return None
