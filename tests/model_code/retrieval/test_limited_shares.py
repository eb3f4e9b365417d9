"""Guards the limits of a fusion's shares: added documents of another domain do not crowd out the
documents that alone hold a rare identifier.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from model_code.corpus.tables import Judgements
from model_code.retrieval.bm25 import Bm25Retriever
from model_code.retrieval.bm25_segment import Bm25Segment
from model_code.retrieval.dense import DenseRetriever
from model_code.retrieval.dense_index import EXACT_SETTINGS, DenseIndex
from model_code.retrieval.fused import FusedSearch, Fusion, ScoreNormalizer, isolation_factor
from model_code.retrieval.index_settings import Bm25Settings
from model_code.stages.fusion import limit_scores, score_candidates

DIMENSION = 16
BASE_DOCUMENTS = 60
ADDED_DOCUMENTS = 300
OWN_DOMAIN = ["steam", "boiler", "pressure", "valve", "turbine", "shaft", "bearing", "pump"]
OTHER_DOMAIN = ["protein", "membrane", "enzyme", "receptor", "antibody", "plasma", "tissue", "gene"]


class DomainEncoder:
    """An encoder of words: each domain has a direction, and each text some noise of its own."""

    def encode_documents(self, texts: Sequence[str]) -> np.ndarray:
        return np.array([self._vector(text) for text in texts], np.float32)

    encode_queries = encode_documents

    def _vector(self, text: str) -> np.ndarray:
        words = text.split()
        noise = np.random.default_rng(sum(map(ord, text)))
        vector = 0.25 * noise.standard_normal(DIMENSION)
        vector[0] += sum(word in OWN_DOMAIN for word in words)
        # Words that the encoder does not know resemble the other domain, as identifiers may.
        vector[1] += sum(word not in OWN_DOMAIN for word in words)
        return vector / np.linalg.norm(vector)


def write_texts(words: Sequence[str], count: int, seed: int) -> list[str]:
    chance = np.random.default_rng(seed)
    return [" ".join(chance.choice(words, 8)) for _ in range(count)]


def open_search(texts: Sequence[str], fusion: Fusion) -> FusedSearch:
    encoder = DomainEncoder()
    document_ids = [f"d{i:04d}" for i in range(len(texts))]
    index = DenseIndex.build(encoder.encode_documents(texts), document_ids, "f", EXACT_SETTINGS)
    dense = DenseRetriever(encoder, index, "f")  # type: ignore[arg-type]
    segment = Bm25Segment.build(texts, document_ids, "english")
    return FusedSearch({"dense": dense, "bm25": Bm25Retriever(segment, Bm25Settings())}, fusion)


@pytest.fixture(scope="module")
def base_texts() -> list[str]:
    texts = write_texts(OWN_DOMAIN, BASE_DOCUMENTS, seed=0)
    texts[7] = texts[7] + " QX-48213"
    return texts


@pytest.fixture(scope="module")
def all_texts(base_texts: list[str]) -> list[str]:
    added = write_texts(OTHER_DOMAIN, ADDED_DOCUMENTS, seed=1)
    added[5] = added[5] + " ZK-90417"
    return [*base_texts, *added]


@pytest.fixture(scope="module")
def unlimited(base_texts: list[str]) -> Fusion:
    """A fusion of the base, whose dense scores have no limit."""
    normalizer = ScoreNormalizer.fit(DomainEncoder().encode_documents(base_texts))
    return Fusion({"dense": 1.0, "bm25": 3.0}, {"dense": normalizer}, feedback=0.3)


@pytest.fixture(scope="module")
def limited(base_texts: list[str], unlimited: Fusion) -> Fusion:
    """The same fusion with the limit that queries of the base show."""
    queries = {f"q{i}": " ".join(text.split()[:4]) for i, text in enumerate(base_texts)}
    dev = Judgements(queries, {}, "qrels")
    scored = score_candidates(open_search(base_texts, unlimited), dev)
    return replace(unlimited, normalizers=limit_scores(unlimited.normalizers, scored))


def first_document(search: FusedSearch, query: str) -> str:
    return search.search([query], 1)[0][0][0]


@pytest.mark.parametrize("form", ["{}", "find {}", "{} pressure"])
@pytest.mark.parametrize(
    ("identifier", "document_id"), [("QX-48213", "d0007"), ("ZK-90417", "d0065")]
)
def test_rare_identifier_is_found_first_among_added_documents(
    all_texts: list[str], limited: Fusion, form: str, identifier: str, document_id: str
) -> None:
    assert first_document(open_search(all_texts, limited), form.format(identifier)) == document_id


def test_dense_share_stays_within_the_limit_of_the_base(
    all_texts: list[str], unlimited: Fusion, limited: Fusion
) -> None:
    limit = limited.normalizers["dense"].score_limit
    query = "enzyme receptor antibody"

    def dense_shares(fusion: Fusion) -> list[float]:
        search = open_search(all_texts, fusion)
        documents = [document for document, _ in search.search([query], 20)[0]]
        encoded = search.encode_queries([query])
        (scores,) = search.component_scores(encoded, [documents])
        return scores["dense"].tolist()

    assert max(dense_shares(unlimited)) > 2 * limit
    assert 0.9 * limit < max(dense_shares(limited)) <= limit + 1e-9


def test_limit_keeps_the_dense_order(all_texts: list[str], unlimited: Fusion) -> None:
    normalizer = replace(unlimited.normalizers["dense"], score_limit=0.5)
    limited = replace(unlimited, normalizers={"dense": normalizer}, feedback=0.0)
    search = open_search(all_texts, limited)
    encoded = search.encode_queries(["enzyme receptor antibody"])
    (scores,) = search.component_scores(encoded, encoded.candidates)
    raw = search.components["dense"].score_encoded(encoded.scoring["dense"], encoded.candidates)[0]
    assert (np.argsort(scores["dense"]) == np.argsort(raw)).all()


def test_limit_of_the_base_changes_no_score_of_the_base(
    base_texts: list[str], unlimited: Fusion, limited: Fusion
) -> None:
    query = " ".join(base_texts[3].split()[:4])
    ranking = open_search(base_texts, limited).search([query], 20)
    assert ranking == open_search(base_texts, unlimited).search([query], 20)


def test_shares_sum_to_the_score_of_an_isolated_document(
    all_texts: list[str], limited: Fusion
) -> None:
    search = open_search(all_texts, limited)
    ((document, score),) = search.search(["QX-48213"], 1)[0]
    shares = search.explain("QX-48213", document)
    assert sum(share.weight for share in shares) == pytest.approx(score, abs=1e-12)


def test_filter_changes_no_limited_score(all_texts: list[str], limited: Fusion) -> None:
    search = open_search(all_texts, limited)
    whole = dict(search.search(["enzyme QX-48213"], 50)[0])
    allowed = sorted(whole)[::2]
    (filtered,) = search.search(["enzyme QX-48213"], 50, allowed)
    assert filtered
    for document, score in filtered:
        assert score == whole[document]


def test_limit_is_saved_and_part_of_the_fingerprint(
    tmp_path: Path, unlimited: Fusion, limited: Fusion
) -> None:
    limited.save(tmp_path)
    loaded = Fusion.load(tmp_path)
    limit = limited.normalizers["dense"].score_limit
    assert loaded.normalizers["dense"].score_limit == limit
    assert loaded.fingerprint({}) == limited.fingerprint({})
    assert loaded.fingerprint({}) != unlimited.fingerprint({})


def test_several_isolated_documents_stay_first() -> None:
    words = np.array([0.0, 5.0, 4.8, 1.0])
    others = np.array([30.0, 2.0, -1.0, 3.0])
    factor = isolation_factor(words, others, min_gap=1.0)
    order = np.argsort(-(words + factor * others))
    assert set(order[:2].tolist()) == {1, 2}


@pytest.mark.parametrize("words", [[5.0], [0.0, 0.0], [5.0, 4.5, 4.0, 3.5, 1.0]])
def test_other_shares_stay_without_isolated_documents(words: list[float]) -> None:
    others = np.arange(len(words), dtype=np.float64) * 10
    assert isolation_factor(np.array(words), others, min_gap=1.0) == 1.0
