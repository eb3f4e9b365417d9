"""Guards what the corpus report says about test queries, on one example of each."""

from __future__ import annotations

from model_code.corpus.build import build_corpus
from model_code.corpus.settings import CorpusSettings
from model_code.text.settings import PassageSettings

TWIN = " ".join(f"twin{i}" for i in range(30))
DOCUMENTS = {
    "tested": f"{TWIN} first",
    "trained": f"{TWIN} second",
    "lined": "who asks for this\n\nOnly training asks for this document.",
    "told": "a phrase that repeats what to find, word for word",
    "other": "nothing of the kind",
}
QUERIES = {
    "near": "about twins",
    "repeated": "What to find?",
    "plain": "of no kind",
    "train": "more twins",
    "line": "who asks for this",
}
QRELS = {
    "near": ("tested", "test"),
    "repeated": ("other", "test"),
    "plain": ("other", "test"),
    "train": ("trained", "train"),
    "line": ("lined", "train"),
}


def report_of(row_source, qrels, queries=QUERIES):
    rows = {
        "documents": [{"id": name, "text": text} for name, text in DOCUMENTS.items()],
        "queries": [{"id": name, "text": text} for name, text in queries.items()],
        "qrels": [
            {"query_id": query, "document_id": document, "split": split}
            for query, (document, split) in qrels.items()
        ],
    }
    splits = CorpusSettings().splits.replace(dev_share=0.0, gate_share=0.0)
    settings = CorpusSettings(quarantine_limit=1.0).replace(splits=splits)
    return build_corpus(row_source(**rows), settings, PassageSettings(words=0)).report


def test_leaks_are_counted(row_source):
    report = report_of(row_source, QRELS)

    assert report["test_queries_near_training"] == 1
    assert report["test_queries_word_for_word"] == 1
    assert report["documents_searched"] == len(DOCUMENTS) - 1


def test_repeated_training_queries_are_counted(row_source):
    """ "About twins!" repeats a query, "more of twins to be found" nearly, "of no kind" does not."""
    queries = {**QUERIES, "repeated": "About, TWINS!", "long": "more of twins to be found"}
    qrels = {
        "near": ("tested", "train"),
        "repeated": ("other", "test"),
        "long": ("other", "test"),
        "plain": ("other", "test"),
        "longer": ("lined", "train"),
    }
    queries["longer"] = "more of twins to be found here"
    report = report_of(row_source, qrels, queries)

    assert report["test_queries_equal_to_training"] == 1
    assert report["test_queries_similar_to_training"] == 1


def test_judged_repetitions_are_no_leaks(row_source):
    report = report_of(row_source, {**QRELS, "repeated": ("told", "test")})

    assert report["test_queries_word_for_word"] == 0


def test_a_tested_document_is_searched(row_source):
    report = report_of(row_source, {**QRELS, "line": ("lined", "test")})

    assert report["documents_searched"] == len(DOCUMENTS)
