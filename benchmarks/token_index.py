"""Compare the binary token index and BM25 with bm25s on the same texts.

The token index stores which documents contain a token of the encoder's vocabulary, once per token
and document. A query is a set of weighted tokens, and a document's score is the sum of the weights
of its tokens. bm25s is a library for BM25.

The rows cover building (with tokenising), searching, and size. If the data sets are available
(`FRESHET_DATA`, else `../shared/data`), the texts are the paragraphs of SQuAD: first those of its
dev part, and then all. Otherwise they are the docstrings of the standard library, numpy and pandas.
Queries are judged questions. Their tokens are weighted and expanded as by a lexical encoder.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.encoding import BASE
from benchmarks.measurement import median_seconds, row, row_below, seconds
from model_code.corpus.settings import CorpusSettings
from model_code.corpus.sources.base import open_source
from model_code.lexical.token_index.bags import Bags, TokenBags
from model_code.lexical.token_index.index import TokenIndex
from model_code.lexical.token_index.postings import PARTS, Sparse
from model_code.retrieval.bm25_index import Bm25Index
from model_code.retrieval.index_settings import Bm25Settings
from model_code.text.terms import get_analyzer

DEFAULT_DATA = Path(__file__).parents[1] / ".." / "shared" / "data"
SQUAD = Path(os.environ.get("FRESHET_DATA", DEFAULT_DATA)) / "squad"
PACKAGES = ("stdlib", "numpy", "pandas")
# Number of tokens of an expanded query. A wide search uses all of them.
QUERY_TOKENS = 128
# Number of the heaviest tokens of a query, which a narrow search uses.
SEARCHED_TOKENS = 32
# Number of documents that a search returns.
DEPTH = 100
# Goal: the largest size of the index per pair of token and document, in bytes.
MAX_BYTES_PER_POSTING = 1.5
# Goal: the smallest ratio of our speed to bm25s, for BM25 on the same terms.
MIN_BM25_SPEED = 1 / 1.2
# Number of texts that are encoded to estimate the time of encoding all texts.
ENCODED_TEXTS = 200
# Number of queries that are compared with an exhaustive search, which is slow.
CHECKED_QUERIES = 50


@dataclass(frozen=True)
class Texts:
    """A collection with questions.

    Attributes:
        name: Name of the collection.
        ids: Ids of the documents.
        texts: Texts of the documents, in the order of `ids`.
        questions: Texts of the questions, each with the id of a document that answers it.
    """

    name: str
    ids: list[str]
    texts: list[str]
    questions: list[tuple[str, str]]


def rows(
    data: Path | None = None, base: str | Path = BASE, questions: int = 200, repeats: int = 12
) -> list[dict[str, Any]]:
    """Return all rows. The peer, bm25s, drops stop words and does not expand questions.

    Speeds are computed from the median time of `repeats` rounds. Building takes longer, and has a
    quarter as many rounds.

    Args:
        data: Another folder in BEIR layout.
        base: Encoder whose tokenizer is used.
        questions: Number of queries.
        repeats: Rounds of each search.
    """
    from model_code.encoding.base_models import load_tokenizer, locate_model

    tokenizer = load_tokenizer(locate_model(base))
    results = []
    for texts in _read_collections(data):
        results.extend(_token_index_rows(texts, tokenizer, questions, repeats))
        results.append(_first_search_row(texts, TokenBags(tokenizer), base))
        results.extend(_bm25_rows(texts, questions, repeats))
    return results


def _token_index_rows(
    texts: Texts, tokenizer: Any, question_count: int, repeats: int
) -> list[dict[str, Any]]:
    """Compare building and searching the token index with bm25s.

    Args:
        texts: Documents and questions.
        tokenizer: Tokenizer of the encoder.
        question_count: Number of questions, which are drawn at random.
        repeats: Rounds of each search.
    """
    order = np.random.default_rng(0).permutation(len(texts.questions))
    questions = [texts.questions[i] for i in np.sort(order[:question_count])]
    question_texts = [text for text, _ in questions]
    size = f"{texts.name}, {len(texts.ids):,} texts"
    depth = min(DEPTH, len(texts.ids))

    results = [_token_index_build_row(size, texts, tokenizer, repeats)]

    tokenize = TokenBags(tokenizer)
    bags = tokenize(texts.texts)
    index = _build_index(texts, tokenize)
    peer = _build_peer(texts.texts)
    wide_queries = make_queries(bags, texts.ids, questions, tokenize)
    results.extend(
        _token_index_search_rows(size, index, wide_queries, peer, question_texts, depth, repeats)
    )

    checked_queries = wide_queries[:CHECKED_QUERIES]
    results.extend(_recall_rows(size, index, bags, checked_queries, depth))
    results.append(_size_row(size, index))
    return results


def _token_index_build_row(size: str, texts: Texts, tokenizer: Any, repeats: int) -> dict[str, Any]:
    """Compare the speed of building the token index, tokenising included, with bm25s."""
    rounds = _build_rounds(repeats)
    # A `TokenBags` caches words. Each build, including the warm-up, therefore gets a new one.
    unused_token_bags = iter([TokenBags(tokenizer) for _ in range(rounds + 1)])

    def build_ours() -> TokenIndex:
        return _build_index(texts, next(unused_token_bags))

    def build_peer() -> Any:
        return _build_peer(texts.texts)

    our_seconds, peer_seconds = median_seconds([build_ours, build_peer], rounds)
    return row(
        f"{size}: documents/s built, tokenising included, against bm25s",
        len(texts.ids) / our_seconds,
        len(texts.ids) / peer_seconds,
        goal=1.0,
    )


def _build_rounds(repeats: int) -> int:
    """Return the rounds of building for a number of rounds of each search."""
    return repeats // 4 + 1


def _token_index_search_rows(
    size: str,
    index: TokenIndex,
    wide_queries: list[Sparse],
    peer: Any,
    questions: list[str],
    depth: int,
    repeats: int,
) -> list[dict[str, Any]]:
    """Compare the speed of searching the token index with bm25s.

    Args:
        size: Name and size of the collection.
        index: The token index.
        wide_queries: The expanded questions, with all their tokens.
        peer: The index of bm25s.
        questions: Texts of the questions, which bm25s searches without expansion.
        depth: Number of documents that a search returns.
        repeats: Rounds of each search.
    """
    import bm25s

    narrow_queries = heaviest(wide_queries)
    question_words = bm25s.tokenize(questions, return_ids=False, show_progress=False)

    def search_narrow() -> None:
        index.search(narrow_queries, depth)

    def search_narrow_one_by_one() -> None:
        for query in narrow_queries:
            index.search([query], depth)

    def search_wide() -> None:
        index.search(wide_queries, depth)

    def search_peer() -> None:
        peer.retrieve(question_words, k=depth, show_progress=False)

    def search_peer_one_by_one() -> None:
        for words in question_words:
            peer.retrieve([words], k=depth, show_progress=False)

    searches = [
        search_narrow,
        search_narrow_one_by_one,
        search_wide,
        search_peer,
        search_peer_one_by_one,
    ]
    search_times = median_seconds(searches, repeats)
    queries_per_second = [len(questions) / search_time for search_time in search_times]
    narrow, narrow_single, wide, peer_batch, peer_single = queries_per_second
    return [
        row(
            f"{size}: queries/s in a batch, {SEARCHED_TOKENS} tokens, "
            "against bm25s on the question",
            narrow,
            peer_batch,
            goal=1.0,
        ),
        row(f"{size}: queries/s one at a time, the same", narrow_single, peer_single, goal=1.0),
        row(
            f"{size}: queries/s in a batch, all {QUERY_TOKENS} tokens, the same",
            wide,
            peer_batch,
            goal=0.5,
        ),
    ]


def _bm25_rows(texts: Texts, question_count: int, repeats: int) -> list[dict[str, Any]]:
    """Compare BM25 with bm25s on the same terms: our analyzer splits and stems for both sides.

    Args:
        texts: Documents and questions.
        question_count: Number of questions, of which the first are taken.
        repeats: Rounds of each search.
    """
    import bm25s

    settings = Bm25Settings()
    depth = min(DEPTH, len(texts.ids))
    analyzer = get_analyzer(settings.language)
    questions = [text for text, _ in texts.questions[:question_count]]

    def build_ours() -> Bm25Index:
        return Bm25Index.build(texts.texts, texts.ids, settings)

    def build_peer() -> Any:
        peer = bm25s.BM25(k1=settings.k1, b=settings.b, method="lucene")
        terms = [analyzer.analyze(text) for text in texts.texts]
        peer.index(terms, show_progress=False)
        return peer

    build_times = median_seconds([build_ours, build_peer], _build_rounds(repeats))
    our_build_rate, peer_build_rate = (len(texts.ids) / build_time for build_time in build_times)

    index = build_ours()
    peer = build_peer()

    def search_ours() -> None:
        index.search(questions, depth)

    def search_peer() -> None:
        terms = [analyzer.analyze(text) for text in questions]
        peer.retrieve(terms, k=depth, show_progress=False)

    def search_ours_one_by_one() -> None:
        for text in questions:
            index.search([text], depth)

    def search_peer_one_by_one() -> None:
        for text in questions:
            peer.retrieve([analyzer.analyze(text)], k=depth, show_progress=False)

    searches = [search_ours, search_peer, search_ours_one_by_one, search_peer_one_by_one]
    search_times = median_seconds(searches, repeats)
    queries_per_second = [len(questions) / search_time for search_time in search_times]
    ours_batch, peer_batch, ours_single, peer_single = queries_per_second

    size = f"{texts.name}, {len(texts.ids):,} texts, BM25 against bm25s on the same terms"
    return [
        row(f"{size}: documents/s built", our_build_rate, peer_build_rate, goal=MIN_BM25_SPEED),
        row(f"{size}: queries/s in a batch", ours_batch, peer_batch, goal=MIN_BM25_SPEED),
        row(f"{size}: queries/s one at a time", ours_single, peer_single, goal=MIN_BM25_SPEED),
    ]


def _first_search_row(texts: Texts, tokenize: TokenBags, base: str | Path) -> dict[str, Any]:
    """Compare the time to build the index and answer a query with the time to encode the texts.

    A dense index cannot answer a query before all texts are encoded. This time is estimated from a
    sample.

    Args:
        texts: Documents and questions.
        tokenize: Tokenizer of the index.
        base: Encoder that the time is compared with.
    """
    from model_code.encoding.encoder import Encoder

    started = time.perf_counter()
    index = _build_index(texts, tokenize)
    first_question, _ = texts.questions[0]
    query_tokens = np.unique(tokenize([first_question]).tokens)
    equal_weights = np.ones(len(query_tokens), np.float32)
    index.search([(query_tokens, equal_weights)], DEPTH)
    our_seconds = time.perf_counter() - started

    step = math.ceil(len(texts.texts) / ENCODED_TEXTS)
    sample = texts.texts[::step]
    encoder = Encoder.load(base, for_search=True)
    # The first call loads libraries and is not timed.
    encoder.encode_documents_by_last_layer(sample[:8])
    sample_seconds = seconds(partial(encoder.encode_documents_by_last_layer, sample))
    encoding_seconds = sample_seconds * len(texts.texts) / len(sample)

    size = f"{texts.name}, {len(texts.ids):,} texts"
    label = f"{size}: seconds to the first answer, against encoding them (by {len(sample)})"
    return row_below(label, our_seconds, encoding_seconds)


def _recall_rows(
    size: str, index: TokenIndex, bags: Bags, wide_queries: list[Sparse], depth: int
) -> list[dict[str, Any]]:
    """Compare the results of the token index with an exhaustive search without an index.

    The first two rows check that the index is exact. The third one measures what a narrow search
    loses.

    Args:
        size: Name and size of the collection.
        index: The token index.
        bags: Tokens of the documents.
        wide_queries: The expanded questions, with all their tokens.
        depth: Number of documents that a search returns.
    """
    narrow_queries = heaviest(wide_queries)
    narrow_rankings = index.search(narrow_queries, depth)
    wide_rankings = index.search(wide_queries, depth)
    exact_narrow = search_exhaustively(narrow_queries, bags, index.ids.document_ids, depth)
    exact_wide = search_exhaustively(wide_queries, bags, index.ids.document_ids, depth)

    label = f"{size}: recall@{depth} of"
    return [
        row(
            f"{label} {SEARCHED_TOKENS} tokens, against a product over all postings",
            recall(narrow_rankings, exact_narrow),
            1.0,
            goal=0.99,
        ),
        row(
            f"{label} {QUERY_TOKENS} tokens, the same",
            recall(wide_rankings, exact_wide),
            1.0,
            goal=0.99,
        ),
        row(
            f"{label} {SEARCHED_TOKENS} tokens, against all {QUERY_TOKENS}",
            recall(narrow_rankings, exact_wide),
            1.0,
            goal=0.99,
        ),
    ]


def _size_row(size: str, index: TokenIndex) -> dict[str, Any]:
    """Compare the bytes per posting with the goal. A posting is a pair of token and document."""
    total_bytes = 0
    for block in index.blocks:
        for array_name in PARTS:
            total_bytes += getattr(block.packed, array_name).nbytes
    bytes_per_posting = total_bytes / index.postings
    # Less is better, so the ratio is the inverse of the other rows' ratio.
    return {
        "what": f"{size}: bytes per posting, at most",
        "ours": bytes_per_posting,
        "peer": MAX_BYTES_PER_POSTING,
        "ratio": MAX_BYTES_PER_POSTING / bytes_per_posting,
        "goal": 1.0,
        "met": bytes_per_posting <= MAX_BYTES_PER_POSTING,
    }


def make_queries(
    bags: Bags, ids: Sequence[str], questions: Sequence[tuple[str, str]], tokenize: TokenBags
) -> list[Sparse]:
    """Return weighted tokens for each question, like those of a lexical encoder.

    A query has at most `QUERY_TOKENS` tokens: tokens of the question, of the text that answers it,
    and of two random texts. The tokens are ordered by rarity, and the rarity of tokens that are
    not in the question is lowered. The weight at rank r is 5.8 (1 + r / 4)^-.43. From rank 0 to
    127, this agrees within 8 % with the median weight that a closed-form lexical encoder on MiniLM
    gave to 200 questions of SQuAD.

    Args:
        bags: Tokens of the documents. Each document is one passage.
        ids: Ids of the documents.
        questions: Questions (text, id of a document that answers it).
        tokenize: Tokenizer of the questions.

    Returns:
        Token numbers and weights of each query, heaviest first.
    """
    random = np.random.default_rng(1)
    document_numbers = {document_id: number for number, document_id in enumerate(ids)}
    question_bags = tokenize([text for text, _ in questions])
    # The tokens of document i end before `ends[i]` in `bags.tokens`.
    ends = np.cumsum(bags.lengths)

    # Number of documents that contain each token, (V,).
    largest_token = max(bags.tokens.max(initial=0), question_bags.tokens.max(initial=0))
    contained_tokens, _ = _distinct_pairs(bags)
    document_counts = np.bincount(contained_tokens, minlength=1 + int(largest_token))

    queries = []
    for number, (_, answer_id) in enumerate(questions):
        question_tokens = np.unique(question_bags.slice(number, number + 1).tokens)
        related_documents = [document_numbers[answer_id], *random.integers(len(ids), size=2)]
        token_lists = [question_tokens]
        for document in related_documents:
            start = ends[document] - bags.lengths[document]
            token_lists.append(bags.tokens[start : ends[document]])
        tokens = np.unique(np.concatenate(token_lists))

        rarity = np.log((len(ids) + 1) / (document_counts[tokens] + 0.5)).astype(np.float32)
        lowered_rarity = rarity * random.random(len(tokens)) / 2
        is_in_question = np.isin(tokens, question_tokens)
        priority = np.where(is_in_question, rarity, lowered_rarity)
        chosen_tokens = tokens[np.argsort(-priority, kind="stable")[:QUERY_TOKENS]]
        weights = 5.8 * (1 + np.arange(len(chosen_tokens)) / 4) ** -0.43
        queries.append((chosen_tokens, weights.astype(np.float32)))
    return queries


def _distinct_pairs(bags: Bags) -> tuple[np.ndarray, np.ndarray]:
    """Return each pair of a token and a document that contains it once, ordered by token.

    Returns:
        Token numbers (p,) and document numbers (p,).
    """
    # One integer per pair makes them unique and sorts them at once.
    pair_keys = np.unique(bags.tokens * len(bags) + bags.passages)
    tokens, documents = np.divmod(pair_keys, len(bags))
    return tokens, documents


def heaviest(queries: Sequence[Sparse]) -> list[Sparse]:
    """Return the first `SEARCHED_TOKENS` tokens of each query, which are its heaviest."""
    return [(tokens[:SEARCHED_TOKENS], weights[:SEARCHED_TOKENS]) for tokens, weights in queries]


def search_exhaustively(
    queries: Sequence[Sparse], bags: Bags, ids: Sequence[str], k: int
) -> list[set[str]]:
    """Return the ids of the k best documents of each query, scored without an index.

    The score of a document is the sum of the weights of the query's tokens that it contains.
    Documents with a score of 0 are left out.

    Args:
        queries: Token numbers and weights of each query.
        bags: Tokens of the documents. Each document is one passage.
        ids: Ids of the documents.
        k: Largest number of documents per query.
    """
    tokens, documents = _distinct_pairs(bags)
    # Position of each document in the order of ids, which breaks ties.
    id_ranks = np.argsort(np.argsort(np.array(ids)))
    results = []
    for query_tokens, query_weights in queries:
        # Weight of each token of the vocabulary, 0 for tokens that the query lacks.
        weights = np.zeros(1 + max(int(tokens.max()), int(query_tokens.max())))
        weights[query_tokens] = query_weights
        scores = np.bincount(documents, weights[tokens], len(bags)).astype(np.float32)
        best = np.lexsort((id_ranks, -scores))[:k]
        results.append({ids[document] for document in best.tolist() if scores[document] > 0})
    return results


def recall(rankings: Sequence[Sequence[tuple[str, float]]], exact: Sequence[set[str]]) -> float:
    """Return the share of the exact results in the rankings, mean over the queries.

    Queries without an exact result do not count.
    """
    shares = []
    for ranking, exact_ids in zip(rankings, exact, strict=True):
        if exact_ids:
            ranked_ids = {document_id for document_id, _ in ranking}
            shares.append(len(ranked_ids & exact_ids) / len(exact_ids))
    return float(np.mean(shares))


def _build_index(texts: Texts, tokenize: TokenBags) -> TokenIndex:
    return TokenIndex.build(tokenize(texts.texts), texts.ids)


def _build_peer(texts: list[str]) -> Any:
    """Build bm25s's index of texts, with its own words and without stop words."""
    import bm25s

    peer = bm25s.BM25()
    peer.index(bm25s.tokenize(texts, show_progress=False), show_progress=False)
    return peer


def _read_collections(data: Path | None) -> list[Texts]:
    """Read the collections to measure.

    Args:
        data: Folder in BEIR layout. None: SQuAD if it is there, and docstrings otherwise. SQuAD
            gives two collections: the paragraphs of its dev questions, and all paragraphs.
    """
    if data is not None:
        return [_read_beir(data)]
    if not SQUAD.is_dir():
        settings = CorpusSettings(source="installed_packages", packages=PACKAGES)
        return [_read_texts("docstrings", settings, Path())]

    squad = _read_beir(SQUAD)
    answer_ids = {document_id for _, document_id in squad.questions}
    dev_ids = []
    dev_texts = []
    for document_id, text in zip(squad.ids, squad.texts, strict=True):
        if document_id in answer_ids:
            dev_ids.append(document_id)
            dev_texts.append(text)
    return [Texts("squad dev", dev_ids, dev_texts, squad.questions), squad]


def _read_beir(folder: Path) -> Texts:
    settings = CorpusSettings(source="beir", path=folder.name)
    return _read_texts(folder.name, settings, folder.parent)


def _read_texts(name: str, settings: CorpusSettings, root: Path) -> Texts:
    """Read the documents, and the questions of one split.

    It is the split of the last judgement that the source yields. For SQuAD, this is dev.
    """
    source = open_source(settings, root)
    documents = {row.values["id"]: row.values["text"] for row in source.rows("documents")}
    query_texts = {row.values["id"]: row.values["text"] for row in source.rows("queries")}
    judgements = [row.values for row in source.rows("qrels")]
    last_split = judgements[-1].get("split")
    questions = []
    for judgement in judgements:
        if judgement.get("split") == last_split:
            text = query_texts[judgement["query_id"]]
            questions.append((text, judgement["document_id"]))
    return Texts(name, list(documents), list(documents.values()), questions)
