"""BM25 over a generation's own documents, fused with its retriever's ranking by reciprocal ranks."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from model_code.index.bm25 import Bm25
from model_code.index.settings import Bm25Settings
from model_code.index.top_k import Ranking
from model_code.live.documents import read_columns
from model_code.retrievers.fusion import reciprocal_rank_fusion
from model_code.retrievers.retriever import Retriever


@dataclass(frozen=True)
class HybridSettings:
    """As in the evaluation of `rrf`: BM25's settings, how many documents of each ranking count, RRF's constant."""

    bm25: Bm25Settings = field(default_factory=Bm25Settings)
    depth: int = 100
    constant: int = 60


class Hybrid:
    """BM25 over whole documents (title and text), in memory; built once, in about a second per 50,000 documents."""

    def __init__(self, documents: Path, settings: HybridSettings) -> None:
        """Read and index a generation's documents file."""
        document_ids, titles, texts = read_columns(documents, "document_id", "title", "text")
        whole = [f"{title} {text}" for title, text in zip(titles, texts, strict=True)]
        self.settings, self.bm25 = settings, Bm25(whole, document_ids, settings.bm25)
        self.documents = len(document_ids)

    def search(
        self, retriever: Retriever, texts: Sequence[str], k: int, allowed: Collection[str] | None = None
    ) -> list[Ranking]:
        """The k best documents for each text by both rankings together; of `allowed` documents only, unless None."""
        depth = max(k, self.settings.depth)
        pairs = zip(retriever.search(texts, depth, allowed), self._lexical(texts, depth, allowed), strict=True)
        return [reciprocal_rank_fusion(pair, k, self.settings.constant) for pair in pairs]

    def _lexical(self, texts: Sequence[str], depth: int, allowed: Collection[str] | None) -> list[Ranking]:
        if allowed is None:
            return self.bm25.search(texts, depth)
        kept = set(allowed)
        rankings = self.bm25.search(texts, self.documents)
        return [[hit for hit in ranking if hit[0] in kept][:depth] for ranking in rankings]
