"""The writer of a live collection whose added documents get IncDSI's vectors instead of their encodings."""

from __future__ import annotations

from collections.abc import Collection as Ids
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from model_code.additions.memory import TOKEN, has_one, load_state, require_one_vector, store_of, token_of
from model_code.additions.representatives import query_vectors
from model_code.additions.settings import AdditionSettings
from model_code.additions.store import Store
from model_code.files import canonical_json, hash_text
from model_code.incdsi.adder import IncDsiAdder
from model_code.incdsi.documents import NewDocument, Status
from model_code.live.applied import Applied, Guard
from model_code.live.changes import Change
from model_code.live.collection import CURRENT
from model_code.live.garbage import Freed
from model_code.live.net_changes import NetChanges
from model_code.live.writer import LiveWriter


class RefiningWriter(LiveWriter):
    """A `LiveWriter` that refines; equal generations, changes and settings give equal vectors, whatever came between.

    What has to be remembered of a generation is kept in `folder`. Every document becomes searchable, also where no
    vector meets all constraints; what became of each is told by `model_code.additions.statuses`.
    """

    def __init__(
        self,
        live: Path,
        retriever: str,
        settings: AdditionSettings,
        folder: Path,
        max_segments: int = 8,
        pointer: str = CURRENT,
    ) -> None:
        super().__init__(live, retriever, self._refined, max_segments, pointer)
        self.settings, self.folder = settings, folder
        self._net, self._token = NetChanges(), ""
        self._warm: tuple[int, IncDsiAdder] | None = None  # with the generation that it belongs to
        self._grown: IncDsiAdder | None = None  # belongs to the generation in the making

    def apply(
        self, changes: Sequence[Change], watermark: int, provenance: Mapping[str, Any], guard: Guard | None = None
    ) -> Applied:
        """See `LiveWriter.apply`; SettingsError too, and nothing is changed, if the collection cannot be refined."""
        searcher = self.searcher
        require_one_vector(searcher.base)
        self._net, self._grown = NetChanges.of(changes, searcher.views), None
        token = token_of(searcher.generation)
        if self._net.puts:
            token = self._token = self._new_token(searcher.generation.number, watermark)
        applied = super().apply(changes, watermark, {**provenance, **({TOKEN: token} if token else {})}, guard)
        if self._grown is not None:
            self._warm = (applied.generation.number, self._grown)
        return applied

    def collect_garbage(self, keep: int, registered: Ids[int] = ()) -> Freed:
        """See `LiveWriter.collect_garbage`; what is remembered for deleted generations alone goes too."""
        freed = super().collect_garbage(keep, registered)
        self.store.forget_all_but({token_of(generation) for generation in self.collection.generations()})
        return freed

    @property
    def store(self) -> Store:
        """Where the current generation's base is remembered."""
        return store_of(self.folder, self.searcher.generation, self.settings.spans)

    def _refined(self, ids: Sequence[str], vectors: np.ndarray, queries: Sequence[np.ndarray]) -> np.ndarray:
        """The hook of `LiveWriter`: the vectors (n, H) of the rows of documents `ids`. Those of a document of several
        passages, which has no vector of its own, stay."""
        parent = self.searcher.generation
        adder, loose = self._adder()
        self._warm = None
        gone = set(ids).union(*self._net.lost.values())
        adder.delete([key for key in sorted(gone) if key in adder.state])
        alone = np.flatnonzero(has_one(ids))
        added = adder.add_batch(self._documents([(ids[row], vectors[row], queries[row]) for row in alone]))
        rows = [*(key for key in loose if key not in gone), *(one.id for one in added)]
        statuses = dict.fromkeys(ids, Status.NOT_REFINED.name) | {one.id: one.status.name for one in added}
        self.store.keep(self._token, token_of(parent), adder.state, rows, statuses)
        self._grown = adder
        found = np.array(vectors, np.float32)
        for row, one in zip(alone, added, strict=True):
            found[row] = one.vector
        return found

    def _documents(self, given: Sequence[tuple[str, np.ndarray, np.ndarray]]) -> list[NewDocument]:
        """Documents of one vector each: id, encoding (H), and the vectors (m, H) of the queries that each came with."""
        puts, encoder = {put.document_id: put for put in self._net.puts}, self.searcher.base.retriever.encoder
        own = query_vectors(encoder, [(puts[key].title, puts[key].text) for key, *_ in given], self.settings.spans)
        return [
            NewDocument(key, np.concatenate([made, queries]), encoding)
            for (key, encoding, queries), made in zip(given, own, strict=True)
        ]

    def _adder(self) -> tuple[IncDsiAdder, list[str]]:
        number = self.searcher.generation.number
        if self._warm is not None and self._warm[0] == number:
            return self._warm[1], []
        state, loose = load_state(self.searcher, self.store, self.settings.spans)
        return IncDsiAdder(state, self.settings.incdsi), loose

    def _new_token(self, number: int, watermark: int) -> str:
        changed = [(put.document_id, put.content_hash) for put in self._net.puts]
        lost = sorted(set().union(*self._net.lost.values()))
        facts = {
            "after": number,
            "watermark": watermark,
            "changes": changed,
            "lost": lost,
            "settings": repr(self.settings.incdsi),
        }
        return hash_text(canonical_json(facts))[:16]
