"""Count test queries that are easier or noisier than they look.

A test query is easier if training saw a similar query or document. The counts appear in the report
of a corpus, so that readers can judge its test scores.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from model_code.corpus.near_duplicates import near_duplicates
from model_code.corpus.tables import Corpus, find_query_lines, strip_query_lines
from model_code.text.known_queries import jaccard, normalize_query
from model_code.text.phrases import documents_containing, normalize_phrase

MIN_SIMILAR_JACCARD = 0.7
"""Jaccard similarity of word sets above which a test query nearly repeats a training query."""


def count_leaks(corpus: Corpus) -> dict[str, int]:
    """Count test queries that overlap with the training data or are ambiguous.

    Such queries distort test scores: a model may have memorised the answer, or another document may
    answer the query as well. The texts of documents are compared as evaluation searches them:
    without lines that are judged queries; see `strip_query_lines`.

    Returns:
        - "documents_searched": documents that evaluation searches. A document is left out if its
          first line is a training query and only training queries ask for it. It can never be a
          right answer.
        - "test_queries_near_training": test queries with a relevant document that is a
          near-duplicate of a document that training asks for.
        - "test_queries_equal_to_training": test queries that a training query repeats, apart from
          case and punctuation.
        - "test_queries_similar_to_training": other test queries that share most words with a
          training query (Jaccard similarity above .7).
        - "test_queries_word_for_word": test queries that another, unjudged document contains word
          for word.
    """
    test = corpus.judgements("test")
    documents = strip_query_lines(corpus).documents
    texts = dict(zip(documents["document_id"], documents["text"], strict=True))
    equal, similar = _count_repetitions(test.queries, corpus.judgements("train").queries)
    return {
        "test_queries_equal_to_training": equal,
        "test_queries_similar_to_training": similar,
        "documents_searched": len(texts) - len(_documents_left_out(corpus)),
        "test_queries_near_training": _count_near_training(corpus, test.qrels, texts),
        "test_queries_word_for_word": _count_word_for_word(test.queries, test.qrels, texts),
    }


def _count_repetitions(test: dict[str, str], train: dict[str, str]) -> tuple[int, int]:
    """Return the numbers of test queries that equal, and that nearly equal, a training query.

    Args:
        test: Text of each test query by its id.
        train: Text of each training query by its id.
    """
    training_texts = {normalize_query(text) for text in train.values()}
    training_words = [frozenset(text.split()) for text in sorted(training_texts)]
    # By word, the positions in `training_words` of the queries that contain it.
    queries_with: dict[str, list[int]] = {}
    for number, words in enumerate(training_words):
        for word in words:
            queries_with.setdefault(word, []).append(number)

    equal = 0
    similar = 0
    for query in test.values():
        text = normalize_query(query)
        if text in training_texts:
            equal += 1
        elif _is_similar_to_one(frozenset(text.split()), training_words, queries_with):
            similar += 1
    return equal, similar


def _is_similar_to_one(
    words: frozenset[str],
    others: Sequence[frozenset[str]],
    others_with: Mapping[str, Sequence[int]],
) -> bool:
    """Return whether a set of words is similar to one of several other sets.

    Two sets are similar if their Jaccard similarity is above `MIN_SIMILAR_JACCARD`. A similar set
    lacks at most `may_lack` of the words, so it has one of the `may_lack + 1` rarest words. Only
    sets with such a word are compared.

    Args:
        words: The set of words.
        others: The other sets.
        others_with: By word, the positions in `others` of the sets that contain it.
    """
    rarest_first = sorted(words, key=lambda word: (len(others_with.get(word, ())), word))
    may_lack = int(len(words) * (1 - MIN_SIMILAR_JACCARD))
    candidates: set[int] = set()
    for word in rarest_first[: may_lack + 1]:
        candidates.update(others_with.get(word, ()))
    return any(jaccard(words, others[number]) > MIN_SIMILAR_JACCARD for number in candidates)


def _documents_left_out(corpus: Corpus) -> set[str]:
    """Return the ids of the documents that evaluation removes from all rankings.

    The first line of such a document is a training query that asks for it, and no evaluated query
    asks for it. It could only be a wrong answer, so a retriever could raise its scores by never
    returning it.
    """
    evaluated = set(corpus.qrels.loc[corpus.qrels["split"] != "train", "document_id"])
    return set(find_query_lines(corpus)) - evaluated


def _count_near_training(
    corpus: Corpus, qrels: dict[str, dict[str, int]], texts: dict[str, str]
) -> int:
    """Return the number of test queries whose answer training has seen in nearly the same form.

    Such a query has a relevant document that is a near-duplicate of one that training asks for.

    Args:
        corpus: The corpus.
        qrels: Grades of the relevant documents of each test query, by query id and document id.
        texts: Text of each document by its id.
    """
    trained = set(corpus.qrels.loc[corpus.qrels["split"] == "train", "document_id"])
    tested: set[str] = set()
    for grades in qrels.values():
        tested.update(grades)

    judged_texts = {document: texts[document] for document in sorted(trained | tested)}
    duplicates = near_duplicates(judged_texts, sorted(tested))
    near_training: set[str] = set()
    for document, others in duplicates.items():
        if not others.isdisjoint(trained):
            near_training.add(document)
    return sum(not near_training.isdisjoint(grades) for grades in qrels.values())


def _count_word_for_word(
    queries: dict[str, str], qrels: dict[str, dict[str, int]], texts: dict[str, str]
) -> int:
    """Return the number of queries that a document without a judgement contains word for word.

    Args:
        queries: Text of each query by its id.
        qrels: Grades of the relevant documents of each query, by query id and document id.
        texts: Text of each document by its id.
    """
    phrases = {query: normalize_phrase(text) for query, text in queries.items()}
    normalized_texts = {document: normalize_phrase(text) for document, text in texts.items()}
    containing = documents_containing(phrases.values(), normalized_texts)
    count = 0
    for query, phrase in phrases.items():
        unjudged = containing[phrase] - qrels[query].keys()
        if unjudged:
            count += 1
    return count
