"""The binary token index: which passages hold which tokens, and nothing else (SVDR, section 4.1).

A query is a weight for each of some tokens, a passage scores the weights of those it holds, and a document ranks by its
best passage. No number in the index depends on another passage or on an encoder: adding and deleting are exact, and
what depends on the collection, such as how rare a token is, is counted when it is asked for.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from functools import cached_property
from pathlib import Path

import numpy as np

from model_code.errors import FingerprintMismatch, FreshetError
from model_code.index.id_map import IdMap
from model_code.retriever import Ranking
from model_code.token_index import storage
from model_code.token_index.bags import Bags
from model_code.token_index.blocks import Blocks
from model_code.token_index.pruning import PrunedRanking, contenders, judge
from model_code.token_index.queries import Query, Sparse
from model_code.token_index.ranker import Ranker

AnyBags = Bags | Iterable[Sequence[int] | np.ndarray]
SPARSE_SHARE = 8  # below one in so many passages, look at those alone


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
        self,
        queries: Sequence[Sparse],
        k: int,
        fingerprint: str,
        allowed: Collection[str] | None = None,
        tokens: int | None = None,
        exact: bool = False,
    ) -> list[Ranking]:
        """The k best documents for each query, best first; of `allowed` documents only, unless None.

        Documents that hold none of a query's tokens are left out.
        tokens: count only the so many heaviest tokens of a query; None: all.
        exact: rank as all tokens would, looking only at passages that the tokens left out can still lift into the
        k best. It pays only where they are few, because the heaviest tokens hold nearly all of the weight; for the
        flat weights of lexical encoders the plain search by all tokens is faster.
        """
        whole, rows = self._prepared(queries, fingerprint), self._rows(allowed)
        if tokens is None:
            return [self._rank(scores, rows, k) for scores in self.blocks.scores(whole)]
        partial = self.blocks.scores([query.heaviest(tokens) for query in whole])
        if not exact:
            return [self._rank(scores, rows, k) for scores in partial]
        return [
            self._completed(query.rest(tokens), scores, rows, k) for query, scores in zip(whole, partial, strict=True)
        ]

    def search_pruned(
        self,
        queries: Sequence[Sparse],
        k: int,
        fingerprint: str,
        tokens: int,
        allowed: Collection[str] | None = None,
    ) -> list[PrunedRanking]:
        """`search` with the heaviest `tokens` of each query, and whether the others could change who is found."""
        rows = self._rows(allowed)
        documents = self.ids.documents if allowed is None else len(set(allowed))
        whole = self._prepared(queries, fingerprint)
        scores = self.blocks.scores([query.heaviest(tokens) for query in whole])
        return [
            judge(self._rank(found, rows, k + 1), k, documents, query.rest(tokens).total)
            for query, found in zip(whole, scores, strict=True)
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
        found = zip(prepared.tokens[held].tolist(), prepared.weights[held].tolist(), strict=True)
        return sorted(found, key=lambda match: (-match[1], match[0]))

    def bag(self, document_id: str, passage: int = 0) -> np.ndarray:
        """The tokens of a document's passage (0, 1, ...), ascending int64."""
        return self.blocks.bag(int(self.ids.rows_of([document_id])[passage]))

    def document_frequencies(self, tokens: np.ndarray) -> np.ndarray:
        """In how many passages each of the different `tokens` (t,) is, (t,) int64."""
        return self.blocks.counts(np.asarray(tokens, dtype=np.int64))

    def inverse_document_frequencies(self, tokens: np.ndarray) -> np.ndarray:
        """log( (N + 1) / (n_v + .5) ) for each of the different `tokens`, in n_v of the N passages: (t,) float32."""
        return np.log((len(self.ids) + 1) / (self.document_frequencies(tokens) + 0.5)).astype(np.float32)

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
        self.blocks = self.blocks.packed()
        facts = {"fingerprint": self.fingerprint, "documents": self.ids.documents, "postings": self.blocks.postings()}
        storage.write(folder, self.blocks.blocks, self.document_ids, facts)

    @classmethod
    def load(cls, folder: Path, check: bool = True) -> TokenIndex:
        """Read what `save` wrote, memory-mapped; FreshetError if a file is not what the manifest says.

        check: compare checksums, which reads every file once.
        """
        blocks, document_ids, manifest = storage.read(folder, check)
        return cls(Blocks(blocks), IdMap(document_ids), manifest["fingerprint"])

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

    def _rows(self, allowed: Collection[str] | None) -> np.ndarray | None:
        return None if allowed is None else self.ids.rows_of(allowed)

    def _rank(self, scores: np.ndarray, rows: np.ndarray | None, k: int) -> Ranking:
        """The k best documents with scores (n,) above 0, among the passages `rows` if not None."""
        return self._ranker.best(scores if rows is None else scores[rows], k, rows)

    def _completed(self, rest: Query, partial: np.ndarray, rows: np.ndarray | None, k: int) -> Ranking:
        """The ranking by a whole query, from the scores (n,) that it has without its tokens in `rest`."""
        ranking = self._rank(partial, rows, k)
        if not rest.total:
            return ranking
        chosen = None if len(ranking) < k else contenders(partial, ranking, rest)
        if chosen is None or len(chosen) * SPARSE_SHARE > len(partial):
            return self._rank(partial + next(self.blocks.scores([rest])), rows, k)
        chosen = chosen if rows is None else np.intersect1d(chosen, rows)
        return self._ranker.best(partial[chosen] + self.blocks.scores_at(rest, chosen), k, chosen)


def _fitting(bags: AnyBags, document_ids: Sequence[str]) -> Bags:
    bags = bags if isinstance(bags, Bags) else Bags.of(bags)
    if len(bags) != len(document_ids):
        raise FreshetError(f"{len(bags)} bags do not fit {len(document_ids)} passages")
    return bags
