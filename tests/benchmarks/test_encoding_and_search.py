"""Guards the benches `encode` and `search`: complete rows, verdicts that follow from the numbers,
faithful peers.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from benchmarks import encoding, machine_limits, search
from model_code.encoding.encoder import Encoder
from tests.benchmarks.rows import check
from tests.tiny_encoder import make_tiny_encoder


@pytest.fixture(autouse=True)
def _small_floors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine_limits, "READ_BYTES", 2**16)
    monkeypatch.setitem(machine_limits.SIDE, "cpu", 32)


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_encoder(tmp_path_factory.mktemp("base") / "encoder", encoding.mixed_texts(5))


@pytest.mark.parametrize("bfloat16", [False, True])
def test_encode(base: Path, bfloat16: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("sentence_transformers")
    monkeypatch.setattr(encoding, "has_bfloat16", lambda device: bfloat16)
    found = encoding.rows(texts=20, base=base, max_tokens=32, rounds=1, device="cpu")

    check(found)

    goal = 2.5 if bfloat16 else 1.3
    assert found[0]["goal"] == goal
    assert (found[1]["ours"] is None) is not bfloat16
    assert found[2]["met"]


def test_operations_are_those_of_the_matrix_products(base: Path) -> None:
    """Counted by torch itself on one text without padding; ours leaves out what is no matrix
    product.
    """
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from torch.utils.flop_counter import FlopCounterMode

    encoder = Encoder.load(base, 32, device="cpu")
    texts = [" ".join(encoding.mixed_texts(1)[0].split()[:20])]
    with torch.no_grad(), sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        encoder(encoder.tokenize(texts))
    assert encoding._count_operations(encoder, texts) == pytest.approx(
        counter.get_total_flops(), rel=0.02
    )


def test_search(base: Path) -> None:
    pytest.importorskip("faiss")
    found = search.rows(passages=2000, dimension=16, queries=10, rounds=1, documents=200, base=base)

    assert [line["goal"] for line in found if "fused" in line["what"]] == ["<= 1.3"] * 2
    check(found)
    assert sum("HNSW" in line["what"] for line in found) == 2
    assert sum("hierarchy" in line["what"] for line in found) == 2
    assert [line["ours"] >= 0.9 for line in found if "recall@10" in line["what"]] == [True]


def test_tuning_takes_no_more_effort_than_it_needs() -> None:
    faiss = pytest.importorskip("faiss")
    vectors, asked = search.clustered_vectors(2000, 16, 30)
    index = faiss.index_factory(16, "IVF50,Flat", faiss.METRIC_INNER_PRODUCT)
    index.train(vectors)
    index.add(vectors)
    true = np.argsort(-(asked @ vectors.T), axis=1)[:, :10]
    found = search._tune("nprobe", index, asked, true, 10)

    assert search.recall(found(asked), true) >= search.RECALL
    assert 1 < index.nprobe < 50

    index.nprobe -= 1
    assert search.recall(index.search(asked, 10)[1], true) < search.RECALL


def test_recall_is_the_share_that_was_found() -> None:
    assert search.recall(np.array([[1, 2], [5, 6]]), np.array([[2, 3], [6, 5]])) == 0.75
