"""SVDR's token index counts the tokens of known queries as tokens of their documents."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pytest

from model_code.encoding.settings import EncoderSettings
from model_code.files import hash_path
from model_code.lexical.encoder import LexicalEncoder
from model_code.lexical.index import KNOWN, LexicalSearch, index_tokens, token_bags
from model_code.lexical.layout import start_encoder
from model_code.lexical.retriever import LexicalRetriever
from model_code.lexical.token_index.index import TokenIndex
from model_code.lexical.token_index.known_tokens import KnownTokens
from model_code.lexical.token_index.postings import Postings
from model_code.retrieval.bm25_known import KnownWords
from model_code.retrieval.id_map import IdMap
from model_code.retrieval.indexed import NewPassages, RetrieverSegment
from model_code.text.known_queries import KnownQuery, KnownQueryLimits, QuerySource
from tests.model_code.lexical.example import SETTINGS, WORDS
from tests.tiny_encoder import make_tiny_encoder

PAGES = {"a": "word1 word2", "b": "word3 word4", "c": "word5 word6", "d": "word1 word7"}
WEIGHT = 0.25
KNOWN_WORDS = KnownWords(WEIGHT, in_length=True)


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> LexicalEncoder:
    base = make_tiny_encoder(tmp_path_factory.mktemp("base") / "base", WORDS)
    settings = EncoderSettings(base=str(base), max_tokens=16, precision="float32", device="cpu")
    return start_encoder(settings, SETTINGS, list(PAGES.values()), 0)


def row_query(document_id: str, text: str) -> KnownQuery:
    return KnownQuery(document_id, text, QuerySource.ROW)


def known_of(**texts: str) -> dict[str, list[KnownQuery]]:
    return {name: [row_query(name, text)] for name, text in texts.items()}


def make_retriever(
    encoder: LexicalEncoder,
    known: Mapping[str, Sequence[KnownQuery]],
    names: Sequence[str] = tuple(PAGES),
    words: KnownWords | None = KNOWN_WORDS,
) -> LexicalRetriever:
    texts = [PAGES[name] for name in names]
    tokens, known_tokens = index_tokens(encoder, texts, list(names), known, words)
    return LexicalRetriever(encoder, tokens, None, "beta_own", 10, "fingerprint", known_tokens)


def scores(retriever: LexicalSearch, text: str) -> dict[str, float]:
    (ranking,) = retriever.search([text], 10)
    return dict(ranking)


def test_token_of_a_known_query_counts_with_its_weight(encoder: LexicalEncoder) -> None:
    retriever = make_retriever(encoder, known_of(b="word9"))
    whole = make_retriever(encoder, known_of(b="word9"), words=KnownWords(1.0, in_length=True))

    assert scores(make_retriever(encoder, {}), "word9") == {}
    assert set(scores(retriever, "word9")) == {"b"}
    assert scores(retriever, "word9")["b"] == pytest.approx(WEIGHT * scores(whole, "word9")["b"])


def test_token_of_text_and_query_counts_once(encoder: LexicalEncoder) -> None:
    retriever = make_retriever(encoder, known_of(a="word1 word9"))
    plain = make_retriever(encoder, {})

    assert scores(retriever, "word1") == scores(plain, "word1")


def test_limits_bound_the_tokens_of_a_document(encoder: LexicalEncoder) -> None:
    words = KnownWords(1.0, True, KnownQueryLimits(max_queries=1, max_words=2))
    known = {"a": [row_query("a", "word8"), row_query("a", "word9")]}

    retriever = make_retriever(encoder, known, words=words)

    assert scores(retriever, "word8")
    assert not scores(retriever, "word9")


def test_explanation_marks_tokens_of_known_queries(encoder: LexicalEncoder) -> None:
    retriever = make_retriever(encoder, known_of(a="word9"))

    matches = {match.token: match for match in retriever.explain("word1 word9", "a")}

    assert matches["word9"].known
    assert not matches["word1"].known
    total = sum(match.weight for match in matches.values())
    assert total == pytest.approx(scores(retriever, "word1 word9")["a"])


def test_plain_search_ignores_known_queries(encoder: LexicalEncoder) -> None:
    retriever = make_retriever(encoder, known_of(a="word9"))

    assert scores(retriever.without_known_words(), "word9") == {}
    assert retriever.variants()["without_known"](["word9"], 5) == [[]]
    plain = make_retriever(encoder, {}, words=None)
    assert plain.without_known_words() is plain
    assert "without_known" not in plain.variants()


def test_segments_one_by_one_equal_a_rebuild(encoder: LexicalEncoder, tmp_path: Path) -> None:
    known = known_of(a="word9", c="word5 word10", d="word11")
    rebuilt = make_retriever(encoder, known)
    rebuilt.save(tmp_path / "rebuilt")

    base = make_retriever(encoder, {})
    parts: list[tuple[LexicalRetriever, list[str]]] = []
    for name in PAGES:
        new = NewPassages([PAGES[name], "word12"], [name, "removed"], known=known)
        base.write_segment(tmp_path / name, new)
        opened = LexicalRetriever.open(tmp_path / name, encoder, "fingerprint")
        parts.append((opened, [name]))
    LexicalRetriever.merge(parts, tmp_path / "merged")

    assert hash_path(tmp_path / "merged" / KNOWN) == hash_path(tmp_path / "rebuilt" / KNOWN)
    assert hash_path(tmp_path / "merged") == hash_path(tmp_path / "rebuilt")


def test_changed_queries_equal_a_rebuild(encoder: LexicalEncoder) -> None:
    old = make_retriever(encoder, known_of(a="word9", b="word10"))
    changed = {"a": [], "c": [row_query("c", "word11 word5")], "gone": [row_query("gone", "word1")]}
    segment = RetrieverSegment(old, IdMap(list(PAGES)), known=changed)
    rebuilt = make_retriever(encoder, known_of(b="word10", c="word11 word5"))

    joined = LexicalRetriever.join_segments([segment])

    for text in ("word9", "word10", "word11 word5", "word1 word3"):
        assert joined.search([text], 10) == rebuilt.search([text], 10)
    plain = joined.without_known_words()
    assert plain.search(["word11"], 10) == [[]]


def test_change_reads_the_changed_documents_only(
    encoder: LexicalEncoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    retriever = make_retriever(encoder, known_of(a="word9"))
    assert retriever.known is not None

    def fail(*arguments: object) -> None:
        pytest.fail("the tokens of the whole segment were read")

    monkeypatch.setattr(TokenIndex, "bags", fail)
    monkeypatch.setattr(Postings, "pairs", fail)

    changed = retriever.known.change_queries(
        known_of(c="word11 word5"), retriever.tokens, token_bags(encoder)
    )

    assert changed.index is retriever.known.index
    assert changed.changed is not None
    assert changed.changed.ids.document_ids == ["c"]


def test_changed_tokens_equal_a_rebuild_bit_for_bit(encoder: LexicalEncoder) -> None:
    random = np.random.default_rng(0)
    names = [f"d{number:02}" for number in range(40)]
    # A document has one to three passages.
    ids = np.repeat(names, random.integers(1, 4, 40)).tolist()

    def draw(count: int) -> str:
        return " ".join(random.choice(WORDS, count))

    def ask(chosen: Sequence[str]) -> dict[str, list[KnownQuery]]:
        return {name: [row_query(name, draw(3)), row_query(name, draw(2))] for name in chosen}

    find_tokens = token_bags(encoder)
    texts = TokenIndex.build(find_tokens([draw(4) for _ in ids]), ids)
    before = ask(names[::2])
    later: dict[str, list[KnownQuery]] = {**ask(names[::3]), names[2]: []}
    queries = [(np.sort(find_tokens([draw(5)]).tokens), random.random(5)) for _ in range(8)]
    queries = [
        (np.unique(tokens), weights[: len(np.unique(tokens))]) for tokens, weights in queries
    ]
    passages = np.arange(len(ids))[::-2]

    indexed = KnownTokens.build(before, texts, KNOWN_WORDS, find_tokens)
    changed = indexed.change_queries(later, texts, find_tokens)
    rebuilt = KnownTokens.build({**before, **later}, texts, KNOWN_WORDS, find_tokens)

    for scores, expected in zip(changed.scores(queries), rebuilt.scores(queries), strict=True):
        assert scores.tolist() == expected.tolist()
    for query in queries:
        at_passages = changed.scores_at(query, passages)
        assert at_passages.tolist() == rebuilt.scores_at(query, passages).tolist()
        for passage in range(len(ids)):
            assert changed.matches_at(query, passage) == rebuilt.matches_at(query, passage)
