"""Counts that limit what scores on the test queries of a corpus mean."""

from __future__ import annotations

from model_code.corpus.near_duplicates import near_duplicates
from model_code.corpus.tables import Corpus, find_query_lines, strip_query_lines
from model_code.text.phrases import documents_containing, normalize_phrase


def count_leaks(corpus: Corpus) -> dict[str, int]:
    """Count what makes test scores of a corpus easier or noisier than they look.

    Texts are compared as evaluation searches them, without the lines that are queries.

    Returns:
        - "documents_searched": documents that evaluation searches. Documents that only training
          asks for by a line of their own are left out.
        - "test_queries_near_training": test queries with a relevant document that is a
          near-duplicate of a document that training asks for.
        - "test_queries_word_for_word": test queries that another, unjudged document contains word
          for word.
    """
    test = corpus.judgements("test")
    documents = strip_query_lines(corpus).documents
    texts = dict(zip(documents["document_id"], documents["text"], strict=True))
    return {
        "documents_searched": len(texts) - len(_documents_left_out(corpus)),
        "test_queries_near_training": _count_near_training(corpus, test.qrels, texts),
        "test_queries_word_for_word": _count_word_for_word(test.queries, test.qrels, texts),
    }


def _documents_left_out(corpus: Corpus) -> set[str]:
    evaluated = set(corpus.qrels.loc[corpus.qrels["split"] != "train", "document_id"])
    return set(find_query_lines(corpus)) - evaluated


def _count_near_training(
    corpus: Corpus, qrels: dict[str, dict[str, int]], texts: dict[str, str]
) -> int:
    trained = set(corpus.qrels.loc[corpus.qrels["split"] == "train", "document_id"])
    tested = {document for grades in qrels.values() for document in grades}
    judged = {document: texts[document] for document in sorted(trained | tested)}
    duplicates = near_duplicates(judged, sorted(tested))
    near_training = {document for document, others in duplicates.items() if others & trained}
    return sum(not near_training.isdisjoint(grades) for grades in qrels.values())


def _count_word_for_word(
    queries: dict[str, str], qrels: dict[str, dict[str, int]], texts: dict[str, str]
) -> int:
    phrases = {query: normalize_phrase(text) for query, text in queries.items()}
    normalized = {document: normalize_phrase(text) for document, text in texts.items()}
    containing = documents_containing(phrases.values(), normalized)
    return sum(bool(containing[phrase] - qrels[query].keys()) for query, phrase in phrases.items())
