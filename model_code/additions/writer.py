"""The writer of a live collection whose added documents get IncDSI's vectors instead of their encodings."""

from __future__ import annotations

from collections.abc import Collection as Ids
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from model_code.additions.documents import new_documents, of_one_vector
from model_code.additions.memory import TOKEN, load_state, require_one_vector, store_of, token_of
from model_code.additions.replay import replay
from model_code.additions.settings import AdditionSettings
from model_code.additions.store import Store
from model_code.documents import Change, Document
from model_code.files import canonical_json, hash_text
from model_code.incdsi.adder import IncDsiAdder
from model_code.incdsi.documents import Status
from model_code.live.applied import Applied, Guard
from model_code.live.collection import CURRENT
from model_code.live.garbage import Freed
from model_code.live.net_changes import NetChanges, steps
from model_code.live.writer import LiveWriter


class RefiningWriter(LiveWriter):
    """A `LiveWriter` that refines: equal changes in equal order give equal vectors, however they are grouped.

    They do for equal settings, whatever was compacted or rolled back in between, and as far as the encoder gives equal
    vectors: the other texts of its batch move the last bits of an encoding. So what a call puts and changes again is
    encoded all the same, and a document that is changed and changed back is "updated" (see `replay`).
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
        self._steps: list[Change] = []
        self._token = ""
        self._warm: tuple[int, IncDsiAdder] | None = None  # with the generation that it belongs to
        self._grown: IncDsiAdder | None = None  # belongs to the generation in the making

    def apply(
        self, changes: Sequence[Change], watermark: int, provenance: Mapping[str, Any], guard: Guard | None = None
    ) -> Applied:
        """See `LiveWriter.apply`; SettingsError too, and nothing is changed, if the collection cannot be refined."""
        searcher = self.searcher
        require_one_vector(searcher.base)
        self._grown = None
        token = token_of(searcher.generation)
        if self._net(changes).puts:
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

    def _net(self, changes: Sequence[Change]) -> NetChanges:
        """A document that is put back as it was counts too: what it is put back among may have changed."""
        self._steps = steps(changes, self.searcher.views)
        return NetChanges.of(changes, self.searcher.views, anew={step.document_id for step in self._steps})

    def _refined(self, ids: Sequence[str], vectors: np.ndarray, queries: Sequence[np.ndarray]) -> np.ndarray:
        """The hook of `LiveWriter`: the vectors (n, H) of the rows of documents `ids`. Those of a document of several
        passages, which has no vector of its own, stay."""
        parent = self.searcher.generation
        adder, loose = self._adder()
        self._warm = None
        lasting = of_one_vector(ids, vectors, queries)
        added = replay(adder, self._steps, new_documents(self.searcher, self.settings.spans, self._steps, lasting))
        rows = [*(key for key in loose if key in adder.state and key not in added), *added]
        statuses = dict.fromkeys(ids, Status.NOT_REFINED.name) | {key: one.status.name for key, one in added.items()}
        self.store.keep(self._token, token_of(parent), adder.state, rows, statuses)
        self._grown = adder
        found = np.array(vectors, np.float32)
        for row, key in enumerate(ids):
            if key in added:
                found[row] = added[key].vector
        return found

    def _adder(self) -> tuple[IncDsiAdder, list[str]]:
        number = self.searcher.generation.number
        if self._warm is not None and self._warm[0] == number:
            return self._warm[1], []
        state, loose = load_state(self.searcher, self.store, self.settings.spans)
        return IncDsiAdder(state, self.settings.incdsi), loose

    def _new_token(self, number: int, watermark: int) -> str:
        changed = [
            (step.document_id, step.content_hash if isinstance(step, Document) else None) for step in self._steps
        ]
        facts = {"after": number, "watermark": watermark, "changes": changed, "settings": repr(self.settings.incdsi)}
        return hash_text(canonical_json(facts))[:16]
