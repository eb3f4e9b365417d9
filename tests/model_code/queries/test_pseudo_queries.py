"""Guards pseudo-queries: spans of the asked length from every part of a text, expanded texts."""

from __future__ import annotations

import pandas as pd
import pytest

from model_code.queries.pseudo_queries import (
    InverseCloze,
    derive_seed,
    expand_texts,
    queries_by_document,
)
from model_code.queries.settings import ClozeSettings
from model_code.retrieval.bm25_index import Bm25Index

WORDS = [f"w{i}" for i in range(200)]
TEXT = "\n ".join(WORDS)


def cloze(**settings: float) -> InverseCloze:
    return InverseCloze("inverse_cloze", ClozeSettings(**settings))


def test_spans_are_consecutive_words():
    spans = [query.text.split() for query in cloze(per_document=50).generate({"d": TEXT}, seed=1)]
    starts = [WORDS.index(span[0]) for span in spans]

    assert spans == [WORDS[start : start + 64] for start in starts]
    assert min(starts) < 30
    # Spans reach the end of the document: 136 is the last start.
    assert max(starts) > 106


def test_lengths_cover_their_range():
    spans = cloze(per_document=200, min_words=8, max_words=12).generate({"d": TEXT}, seed=1)

    assert {len(span.text.split()) for span in spans} == {8, 9, 10, 11, 12}


@pytest.mark.parametrize(("words", "length"), [(90, 45), (6, 3), (5, None), (0, None)])
def test_short_documents_give_short_spans(words, length):
    spans = cloze(per_document=1).generate({"d": " ".join(WORDS[:words])}, seed=1)
    expected = [] if length is None else [length]

    assert [len(span.text.split()) for span in spans] == expected


def test_spans_do_not_depend_on_other_documents():
    documents = {"b": TEXT, "a": TEXT.upper(), "c": TEXT[::-1]}
    together = cloze().generate(documents, seed=3)

    assert together == cloze().generate(dict(reversed(documents.items())), seed=3)
    assert [q for q in together if q.document_id == "b"] == cloze().generate({"b": TEXT}, seed=3)
    assert [q.document_id for q in together] == ["a"] * 3 + ["b"] * 3 + ["c"] * 3


def test_seed_and_kind_change_the_spans():
    spans = set()
    for kind in ("inverse_cloze", "short_cloze"):
        for seed in (1, 2):
            cloze = InverseCloze(kind, ClozeSettings())
            spans.add(tuple(cloze.spans("d", TEXT, seed)))

    assert len(spans) == 4


ROWS = [
    ("a", "how to order", "sequence_to_sequence"),
    ("b", "what is a heap", "inverse_cloze"),
    ("a", "a list", "inverse_cloze"),
    ("a", "rank items", "sequence_to_sequence"),
]
TABLE = pd.DataFrame(ROWS, columns=["document_id", "text", "kind"])


def test_written_queries_are_grouped_by_document():
    assert queries_by_document(TABLE) == {"a": ["how to order", "rank items"]}
    assert queries_by_document(TABLE.head(0)) == {}


UNEXPANDED = ["sort a list", "more on sorting", "open a file"]
UNEXPANDED_IDS = ["a", "a", "c"]


def test_texts_are_expanded_by_written_queries():
    expanded = expand_texts(UNEXPANDED, UNEXPANDED_IDS, queries_by_document(TABLE))

    assert expanded == [
        "sort a list how to order rank items",
        "more on sorting how to order rank items",
        "open a file",
    ]


def test_expanded_texts_are_found_by_written_queries():
    expanded = expand_texts(UNEXPANDED, UNEXPANDED_IDS, queries_by_document(TABLE))

    (plain_ranking,) = Bm25Index.build(UNEXPANDED, UNEXPANDED_IDS).search(["order"], 1)
    (ranking,) = Bm25Index.build(expanded, UNEXPANDED_IDS).search(["order"], 1)

    assert plain_ranking == []
    assert [document for document, _ in ranking] == ["a"]


def test_derived_seeds_differ_and_fit_63_bits():
    seeds = []
    for seed in (0, 1):
        for parts in (("a",), ("b",), ("a", 0), ("a", 1), ("ab",)):
            seeds.append(derive_seed(seed, *parts))

    assert len(set(seeds)) == len(seeds)
    for seed in seeds:
        assert seed >= 0
        assert seed < 2**63


def test_lasting_span_survives_edits_elsewhere() -> None:
    generator = cloze(per_document=1, min_words=4, max_words=4)
    same = 0
    for number in range(100):
        words = [f"w{number}x{place}" for place in range(43)]
        edited = [*words[:-1], "edited"]
        before = generator.lasting_span(f"d{number}", " ".join(words), seed=0)
        after = generator.lasting_span(f"d{number}", " ".join(edited), seed=0)
        assert before is not None
        assert after is not None
        assert after in " ".join(edited)
        same += before == after

    assert same >= 90


def test_lasting_spans_of_documents_differ() -> None:
    generator = cloze(per_document=1, min_words=3, max_words=3)
    text = " ".join(f"w{place}" for place in range(50))

    spans = {generator.lasting_span(f"d{number}", text, seed=0) for number in range(20)}

    assert len(spans) > 10


def test_short_text_has_no_lasting_span() -> None:
    generator = cloze(per_document=1, min_words=3, max_words=3)

    assert generator.lasting_span("d", "one two", seed=0) is None
