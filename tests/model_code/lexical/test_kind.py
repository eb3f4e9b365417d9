"""Guards the lexical retriever from corpus to search: every variant against dense products,
explanations, bytes.
"""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from model_code.context import StageContext
from model_code.corpus.known_queries import KNOWN_QUERIES, CorpusQueries
from model_code.errors import FingerprintMismatch, FreshetError
from model_code.files import hash_path, read_json, write_json, write_manifest
from model_code.lexical.index import NAMES, PRECISION, PassagesOnTheFly
from model_code.lexical.layout import load_encoder, save_encoder, start_encoder
from model_code.lexical.retriever import LexicalRetriever
from model_code.lexical.settings import LexicalSettings
from model_code.retrieval.bm25 import KNOWN_WORDS
from model_code.retrieval.bm25_index import KnownWords
from model_code.retrieval.kinds import open_retriever
from model_code.retrieval.protocol import Ranking
from model_code.stages import index
from model_code.text.known_queries import KnownQuery, QuerySource
from tests.model_code.collection.laws import reranked
from tests.model_code.lexical.corpus import make_context
from tests.model_code.lexical.example import SETTINGS

QUERIES = ["word3 word7", "word12 word1 word5 word39", "word20"]
LEXICAL = SETTINGS.replace(rerank_depth=5, search="full")


def build(
    tmp_path: Path, lexical: LexicalSettings = LEXICAL, use_known_queries: bool = False
) -> tuple[Path, Path]:
    """Folders of an untrained encoder and of the index that the stage builds with it.

    The known query "word39 word38" of d00 counts if known queries are used.
    """
    context = make_context(tmp_path, lexical)
    context.settings["known_queries.use"] = use_known_queries
    known = KnownQuery("d00", "word39 word38", QuerySource.QRELS)
    CorpusQueries((known,)).save(context.inputs["corpus"] / KNOWN_QUERIES)
    words = asdict(KnownWords(1.0, in_length=True))
    (tmp_path / "bm25_known").mkdir(exist_ok=True)
    write_json(tmp_path / "bm25_known" / KNOWN_WORDS, words)
    passages = pd.read_parquet(context.inputs["corpus"] / "passages.parquet")
    encoder = start_encoder(context.settings["encoder"], lexical, passages["text"].tolist(), 0)
    save_encoder(encoder, context.output / "encoder")
    inputs = {
        **context.inputs,
        "trained": context.output,
        "bm25_known": tmp_path / "bm25_known",
    }
    output = context.output.parent / "indexed"
    output.mkdir()
    stage = StageContext(tmp_path, inputs, output, context.settings, context.checkpoints, "svdr")
    report = index.run(stage)
    assert (report["passages"], report["documents"], report["kind"]) == (32, 24, "lexical")
    return context.output / "encoder", output / "index"


def opened(folders: tuple[Path, Path]) -> LexicalRetriever:
    return open_retriever(*folders)  # type: ignore[return-value]


def views(
    folders: tuple[Path, Path],
) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray], list[str]]:
    """Return E and T of queries and passages as dense rows, and the document of each passage."""
    encoder = load_encoder(folders[0], precision="float32", device="cpu")
    passages = pd.read_parquet(folders[0].parents[2] / "corpus" / "passages.parquet")

    def rows(sparse: list) -> np.ndarray:
        table = np.zeros((len(sparse), encoder.vocabulary_size))
        for row, (ids, weights) in zip(table, sparse, strict=True):
            row[ids] = weights
        return table

    def tokens(texts: list[str]) -> np.ndarray:
        return rows([(bag, np.ones(len(bag))) for bag in encoder.bags(texts)])

    def stored(texts: list[str]) -> list:
        return [(ids, weights.astype(PRECISION)) for ids, weights in encoder.encode(texts)]

    queries = {
        "E": rows(encoder.encode_queries(QUERIES)),
        "O": rows(encoder.encode_own(QUERIES)),
        "T": tokens(QUERIES),
    }
    texts = passages["text"].tolist()
    return queries, {"E": rows(stored(texts)), "T": tokens(texts)}, passages["document_id"].tolist()


def ranked(scores: np.ndarray, documents: list[str], k: int) -> Ranking:
    best: dict[str, float] = {}
    for document, score in zip(documents, scores.astype(np.float32).tolist(), strict=True):
        best[document] = max(score, best.get(document, 0.0))
    return sorted(((d, s) for d, s in best.items() if s > 0), key=lambda item: (-item[1], item[0]))[
        :k
    ]


def same(found: Ranking, expected: Ranking) -> None:
    np.testing.assert_allclose(
        [score for _, score in found], [score for _, score in expected], rtol=1e-5
    )
    clear = expected[-1][1] * 1.0001
    assert {d for d, s in found if s > clear} == {d for d, s in expected if s > clear}


def test_index_stage_counts_known_queries(tmp_path: Path) -> None:
    beta = LEXICAL.replace(search="beta_own")

    known = opened(build(tmp_path / "known", beta, use_known_queries=True))
    plain = opened(build(tmp_path / "plain", beta))

    (found,) = known.search(["word39 word38"], 1)
    assert found[0][0] == "d00"
    assert plain.known is None


SIDES = {"full": ("E", "E"), "alpha": ("T", "E"), "beta": ("E", "T"), "beta_own": ("O", "T")}


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """One build, which no test changes."""
    return build(tmp_path_factory.mktemp("lexical"))


def test_every_search_equals_its_dense_product(
    folders: tuple[Path, Path],
) -> None:
    queries, passages, documents = views(folders)
    retriever = opened(folders)
    searches = {**retriever.variants(), retriever.main: retriever.search}
    assert set(searches) == set(NAMES)
    for name, (left, right) in SIDES.items():
        for row, found in zip(
            queries[left] @ passages[right].T, searches[name](QUERIES, 7), strict=True
        ):
            same(found, ranked(row, documents, 7))
    beta, full = (queries["E"] @ passages[side].T for side in ("T", "E"))
    for first, second, found in zip(beta, full, searches["beta_rerank"](QUERIES, 3), strict=True):
        candidates = {document for document, _ in ranked(first, documents, 5)}
        inside = np.array([document in candidates for document in documents])
        same(found, ranked(np.where(inside, second, 0), documents, 3))
    for text, row in zip(QUERIES, np.float32(full), strict=True):
        own = [score for score, document in zip(row, documents, strict=True) if document == "d03"]
        assert retriever.best_passage_encoded(retriever.encode_queries([text]), "d03") == int(
            np.argmax(own)
        )


def test_queries_are_encoded_once_for_all_variants(folders, monkeypatch):
    retriever, asked = opened(folders), []
    encode = retriever.encoder.encode_queries
    monkeypatch.setattr(
        retriever.encoder,
        "encode_queries",
        lambda texts: asked.append(list(texts)) or encode(texts),
    )
    for search in retriever.variants().values():
        search(QUERIES, 7)
    assert asked == [QUERIES]
    ranking = retriever.search(QUERIES[:1], 5)[0]
    asked.clear()
    for document, _ in ranking:
        retriever.explain(QUERIES[0], document)
    assert len(ranking) > 1
    assert asked == [QUERIES[:1]]


@pytest.mark.parametrize("name", NAMES)
def test_main_search_reranks_filters_and_explains_alike(tmp_path: Path, name: str) -> None:
    folders = build(tmp_path, LEXICAL.replace(search=name, rerank_depth=30))
    retriever = opened(folders)
    assert name not in retriever.variants()
    for text in QUERIES:
        ranking = retriever.search([text], 30)[0]
        some = [document for document, _ in ranking[1:6:2]]
        assert reranked(retriever, [text], [some])[0] == ranking[1:6:2]
        assert retriever.search([text], 30, allowed=some)[0] == ranking[1:6:2]
        for document, score in ranking[:4]:
            matches = retriever.explain(text, document)
            assert sum(match.weight for match in matches) == pytest.approx(score, rel=1e-6)
            assert [match.weight for match in matches] == sorted(
                (match.weight for match in matches), reverse=True
            )
            assert all(match.expanded == (match.token not in text.split()) for match in matches)
        if name in ("alpha", "beta_own"):
            assert not any(match.expanded for match in retriever.explain(text, ranking[0][0]))


def test_beta_rerank_embeds_passages_as_they_come(tmp_path, folders, monkeypatch):
    stored, without = opened(folders), build(tmp_path, LEXICAL.replace(search="beta_rerank"))
    assert not (without[1] / "embeddings").exists()
    flying = opened(without)
    assert set(flying.variants()) == {"beta", "beta_own"}
    for found, expected in zip(
        flying.search(QUERIES, 5), stored.variants()["beta_rerank"](QUERIES, 5), strict=True
    ):
        same(found, expected)
    document = flying.search(QUERIES[:1], 1)[0][0][0]
    explained = [
        [match.token for match in one.explain(QUERIES[0], document)] for one in (flying, stored)
    ]
    assert explained[0] == explained[1]
    with pytest.raises(FreshetError, match="build the index for it"):
        flying.with_main_search("full").search(QUERIES, 1)
    passages = flying.passages
    assert isinstance(passages, PassagesOnTheFly)
    kept = passages._embeddings([1, 2, 3])
    with monkeypatch.context() as patch:
        patch.setattr(
            passages.encoder, "encode", lambda texts: pytest.fail("encoded again") if texts else []
        )
        assert all(
            a[1] is b[1]
            for a, b in zip(passages._embeddings([3, 1]), (kept[2], kept[0]), strict=True)
        )
    monkeypatch.setattr("model_code.lexical.index.MAX_CACHED_EMBEDDINGS", 2)
    passages._embeddings([4])
    assert list(passages._cache) == [4]


def test_token_search_keeps_tokens_only(tmp_path):
    folders = build(tmp_path, SETTINGS)
    assert sorted(path.name for path in folders[1].iterdir()) == ["manifest.json", "tokens"]
    retriever = opened(folders)
    assert (retriever.main, set(retriever.variants())) == ("beta_own", {"beta"})
    with pytest.raises(FreshetError, match="build the index for it"):
        retriever.with_main_search("beta_rerank").search(QUERIES, 1)
    assert retriever.search([""], 3) == [[]]


def test_equal_inputs_give_equal_bytes(tmp_path: Path, folders: tuple[Path, Path]) -> None:
    assert hash_path(build(tmp_path)[1]) == hash_path(folders[1])
    assert [path.name for path in sorted(folders[1].iterdir())] == [
        "embeddings",
        "manifest.json",
        "tokens",
    ]


def test_foreign_and_damaged_folders_are_refused(tmp_path: Path) -> None:
    folders, other = build(tmp_path), build(tmp_path, LEXICAL.replace(index_top_k=7))
    with pytest.raises(FingerprintMismatch, match="build the index again"):
        open_retriever(other[0], folders[1])
    manifest = read_json(folders[1] / "manifest.json")
    assert (manifest["kind"], manifest["documents"]) == ("lexical", 24)
    (folders[1] / "tokens" / "more").write_text("x")
    with pytest.raises(FreshetError, match="was added"):
        open_retriever(*folders)
    write_manifest(folders[1], 1, {"kind": "dense"})
    with pytest.raises(FreshetError, match="holds no lexical index but one of kind dense"):
        LexicalRetriever.open(folders[1], load_encoder(folders[0]))
