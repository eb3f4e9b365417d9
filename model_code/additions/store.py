"""What is remembered of additions: parts of V and Z in folders of their own, each naming the one it continues.

    additions/KEY/base/                  all documents of the live base, and the unit of margins
    additions/KEY/TOKEN/                 what one generation added: rows, the status of each, and `parent.json`

KEY stands for a base, its encoder and how queries are made of texts; a generation's provenance holds its TOKEN. Parts
are never changed, so generations that share a past share its parts, and one that is rolled back leaves no trace.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from model_code.errors import FreshetError
from model_code.files import read_json, replace_folder, write_json
from model_code.incdsi.state import IncDsiState
from model_code.incdsi.storage import DOCUMENT_IDS, read_state, write_part
from model_code.manifest import MANIFEST

BASE, PARENT, STATUSES = "base", "parent.json", "statuses.json"
LONGEST = 32  # parts in a row; the next one then holds all their rows


class Store:
    """The parts below `folder` (additions/KEY)."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @property
    def has_base(self) -> bool:
        """Whether the part of the base was written."""
        return (self.folder / BASE / MANIFEST).is_file()

    def keep_base(self, state: IncDsiState) -> None:
        """Write the part of the base."""
        self._keep(BASE, state, state.ids, {}, None)

    def keep(
        self, token: str, parent: str | None, state: IncDsiState, ids: Sequence[str], statuses: Mapping[str, str]
    ) -> None:
        """Write the part `token`: the rows `ids` of `state` (its newest), on top of those of `parent`."""
        before = self.chain(parent)
        if len(before) >= LONGEST:
            statuses = self.statuses(parent) | dict(statuses)
            added = {one for name in before for one in read_json(self.folder / name / DOCUMENT_IDS)} | set(ids)
            ids, parent = [one for one in state.ids if one in added], None
        self._keep(token, state, ids, statuses, parent)

    def chain(self, token: str | None) -> list[str]:
        """The parts that `token` stands for, oldest first; none where `token` is None or of another store."""
        found: list[str] = []
        while token is not None and (self.folder / token / PARENT).is_file():
            found.append(token)
            token = read_json(self.folder / token / PARENT)
        return found[::-1]

    def read(self, token: str | None, alive: Collection[str]) -> IncDsiState:
        """The rows of the documents `alive`, as far as base and parts have them; FreshetError if a part is damaged."""
        try:
            return read_state([self.folder / name for name in (BASE, *self.chain(token))], alive)
        except FreshetError as error:
            raise FreshetError(f"{error}; or delete {self.folder}, which is then made from the texts again") from None

    def statuses(self, token: str | None) -> dict[str, str]:
        """The name of the latest `Status` of each document that the parts of `token` added."""
        return {key: one for name in self.chain(token) for key, one in read_json(self._statuses(name)).items()}

    def forget_all_but(self, tokens: Collection[str | None]) -> None:
        """Delete every part that none of `tokens` stands on."""
        needed = {BASE}.union(*(self.chain(token) for token in tokens))
        for file in sorted(self.folder.glob(f"*/{PARENT}")):
            if file.parent.name not in needed:
                shutil.rmtree(file.parent)

    def _statuses(self, token: str) -> Path:
        return self.folder / token / STATUSES

    def _keep(
        self, name: str, state: IncDsiState, ids: Sequence[str], statuses: Mapping[str, str], parent: str | None
    ) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        aside = Path(tempfile.mkdtemp(prefix=".making.", dir=self.folder))
        try:
            write_json(aside / PARENT, parent)
            write_json(aside / STATUSES, dict(statuses))
            write_part(aside, state, ids)
            replace_folder(aside, self.folder / name)
        finally:
            shutil.rmtree(aside, ignore_errors=True)
