"""The binary token index: which passages hold which tokens, and nothing else (SVDR, section 4.1).

A query is a weight for each of some tokens, a passage scores the weights of those it holds, and a document ranks by its
best passage. No number in the index depends on another passage or on an encoder: adding and deleting are exact, and
what depends on the collection, such as how rare a token is, is counted when it is asked for.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Sequence
from functools import cached_property
from pathlib import Path

import numpy as np

from model_code.errors import FingerprintMismatch, FreshetError
from model_code.files import read_json, write_text
from model_code.index.id_map import IdMap
from model_code.index.top_k import Ranker
from model_code.manifest import read_manifest, seal, verify
from model_code.retriever import Ranking
from model_code.token_index.bags import Bags
from model_code.token_index.blocks import Blocks
from model_code.token_index.queries import Query, Sparse

AnyBags = Bags | Iterable[Sequence[int] | np.ndarray]
FORMAT, KIND = 1, "token"
DOCUMENT_IDS = "document_ids.json"


class TokenIndex:
    """The bags of n passages, the document of each, and the fingerprint of the rules that made the bags.

    Every method that takes bags or queries takes their fingerprint too, and refuses another one's with
    `FingerprintMismatch`: token ids look alike whichever tokenizer gave them. A score is the sum of a query's weights
    without rounding (see `Query`), rounded to float32. It depends on nothing but the query and the passage.

    >>> index = TokenIndex.build([[5, 9], [9]], ["a", "b"], fingerprint="f")
    >>> index.search([(np.array([5, 9]), np.array([1.0, 0.5]))], k=2, fingerprint="f")
    [[('a', 1.5), ('b', 0.5)]]
    """

    def __init__(self, blocks: Blocks, ids: IdMap, fingerprint: str) -> None:
        self.blocks, self.ids, self.fingerprint = blocks, ids, fingerprint

    @classmethod
    def build(cls, bags: AnyBags, document_ids: Sequence[str], fingerprint: str) -> TokenIndex:
        """Index `bags` (`TokenBags` makes them), number i a passage of `document_ids[i]`."""
        bags = _fitting(bags, document_ids)
        return cls(Blocks.build(bags), IdMap(document_ids), fingerprint)

    @property
    def document_ids(self) -> list[str]:
        """The document of each passage."""
        return self.ids.document_ids

    def search(
        self, queries: Sequence[Sparse], k: int, fingerprint: str, allowed: Collection[str] | None = None
    ) -> list[Ranking]:
        """The k best documents for each query, best first; of `allowed` documents only, unless None.

        Documents that hold none of a query's tokens are left out. FreshetError if an allowed one is unknown.
        """
        prepared = self._prepared(queries, fingerprint)
        rows = None if allowed is None else self.ids.rows_of(allowed)
        return [
            self._ranker.best(scores if rows is None else scores[rows], k, rows)
            for scores in self.blocks.scores(prepared)
        ]

    def rank(self, queries: Sequence[Sparse], candidates: Sequence[Iterable[str]], fingerprint: str) -> list[Ranking]:
        """For each query all of its candidate documents, best first, scored as `search` does, 0 included.

        FreshetError if a candidate is unknown.
        """
        rankings = []
        for query, documents in zip(self._prepared(queries, fingerprint), candidates, strict=True):
            rows = self.ids.rows_of(documents)
            scores = self.blocks.scores_at(query, rows)
            rankings.append(self._ranker.best(scores, len(rows), rows, zeros=True) if len(rows) else [])
        return rankings

    def best_passage(self, query: Sparse, document_id: str, fingerprint: str) -> int:
        """Which of the document's passages (0, 1, ...) scores best; the first of equals."""
        rows = self.ids.rows_of([document_id])
        return int(np.argmax(self.blocks.scores_at(self._prepared([query], fingerprint)[0], rows).astype(np.float32)))

    def matches(self, query: Sparse, document_id: str, fingerprint: str) -> list[tuple[int, float]]:
        """The query's tokens that the document's best passage holds, with their weights, the heaviest first."""
        prepared = self._prepared([query], fingerprint)[0]
        bag = self.bag(document_id, self.best_passage(query, document_id, fingerprint))
        held = np.isin(prepared.tokens, bag)
        matches = zip(prepared.tokens[held].tolist(), prepared.weights[held].tolist(), strict=True)
        return sorted(matches, key=lambda match: (-match[1], match[0]))

    def bag(self, document_id: str, passage: int = 0) -> np.ndarray:
        """The tokens of a document's passage (0, 1, ...), ascending int64."""
        return self.blocks.bag(int(self.ids.rows_of([document_id])[passage]))

    def add(self, bags: AnyBags, document_ids: Sequence[str], fingerprint: str) -> None:
        """Add passages of new documents; FreshetError if one of the documents is there already."""
        self._require(fingerprint)
        bags = _fitting(bags, document_ids)
        ids = self.ids.added(document_ids)
        self._set(self.blocks.added(bags), ids)

    def delete(self, document_ids: Iterable[str]) -> None:
        """Remove documents with all their passages; FreshetError if one is unknown."""
        rows = self.ids.rows_of(document_ids)
        self._set(self.blocks.without(rows), self.ids.without(rows))

    def update(self, bags: AnyBags, document_ids: Sequence[str], fingerprint: str) -> None:
        """Replace all passages of documents that the index holds by new ones."""
        self._require(fingerprint)
        bags = _fitting(bags, document_ids)
        self.delete(set(document_ids))
        self.add(bags, document_ids, fingerprint)

    def save(self, folder: Path) -> None:
        """Write postings, document ids and manifest: equal passages in equal order, equal bytes."""
        folder.mkdir(parents=True, exist_ok=True)
        self.blocks = self.blocks.packed()
        tokens = self.blocks.save(folder)
        write_text(folder / DOCUMENT_IDS, json.dumps(self.document_ids, ensure_ascii=False, separators=(",", ":")))
        facts = {"fingerprint": self.fingerprint, "documents": self.ids.documents, "postings": self.blocks.postings()}
        facts |= {"kind": KIND, "passages": len(self.ids), "tokens_per_block": tokens}
        seal(folder, FORMAT, facts)

    @classmethod
    def load(cls, folder: Path, check: bool = True) -> TokenIndex:
        """Read what `save` wrote, memory-mapped; FreshetError if a file is not what the manifest says.

        check: compare checksums, which reads every file once.
        """
        manifest = read_manifest(folder, FORMAT)
        if check:
            verify(folder, manifest)
        blocks = Blocks.load(folder, manifest["passages"], manifest["tokens_per_block"])
        return cls(blocks, IdMap(read_json(folder / DOCUMENT_IDS)), manifest["fingerprint"])

    @cached_property
    def _ranker(self) -> Ranker:
        return Ranker(self.document_ids)

    def _set(self, blocks: Blocks, ids: IdMap) -> None:
        self.blocks, self.ids = blocks, ids
        self.__dict__.pop("_ranker", None)

    def _prepared(self, queries: Sequence[Sparse], fingerprint: str) -> list[Query]:
        self._require(fingerprint)
        return [Query.of(query) for query in queries]

    def _require(self, fingerprint: str) -> None:
        if fingerprint != self.fingerprint:
            raise FingerprintMismatch(
                f"the token index was built with the rules {self.fingerprint[:12]}, these tokens come from "
                f"{fingerprint[:12]}; build it again with that tokenizer, which takes seconds"
            )


def _fitting(bags: AnyBags, document_ids: Sequence[str]) -> Bags:
    bags = bags if isinstance(bags, Bags) else Bags.of(bags)
    if len(bags) != len(document_ids):
        raise FreshetError(f"{len(bags)} bags do not fit {len(document_ids)} passages")
    return bags
