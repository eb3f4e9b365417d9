"""A data set of the Hugging Face hub, or a local folder that `datasets` can load, in BEIR's three
parts.

`corpus.hub` names the data set, the configurations that hold documents and queries, and the data
set that holds the qrels, whose splits are ours (validation is dev). The lock pins the commit of
each data set, so a build reads what was ingested even when the hub has moved on. With `streaming`,
nothing is stored on the disk: for BeIR/nq (2.7 million documents) take it together with
`corpus.limit`.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from huggingface_hub import HfApi

from model_code.corpus.rows import RefusedRow, Row, Table, map_columns, require_columns
from model_code.corpus.settings import CorpusSettings
from model_code.errors import FreshetError
from model_code.files import canonical_json, hash_path, hash_text
from model_code.progress import Progress, no_progress

_OUR_SPLITS = {"validation": "dev", "valid": "dev"}


class HubSource:
    """Up to three configurations of one or two data sets."""

    def __init__(
        self, settings: CorpusSettings, root: Path, locked: Mapping[str, Any] | None = None
    ) -> None:
        self.settings, self.hub, self.root = settings, settings.hub, root
        self.pinned: Mapping[str, str] = (locked or {}).get("versions", {})

    def describe(self) -> dict[str, Any]:
        """The commit of each data set (for a local folder, the hash of its content), and the
        revision asked for.
        """
        names = sorted({name for name, _ in self._parts().values()})
        versions = {
            name if self._local(name) is None else Path(name).name: self._version(name)
            for name in names
        }
        return {
            "versions": versions,
            "watermark": self._version(str(self.hub.name)),
            "content_hash": hash_text(canonical_json(versions)),
            "settings": {"corpus.hub.revision": self.hub.revision},
        }

    def rows(self, table: Table, progress: Progress = no_progress) -> Iterator[Row | RefusedRow]:
        """Yield the rows of all splits of the table's configuration; qrels carry the split that
        they are found in.
        """
        if table not in self._parts():
            return
        name, config = self._parts()[table]
        require_columns(
            self._source_rows(table),
            table,
            self.settings.columns,
            f"{name}/{config}" if config else name,
        )
        for row in self._source_rows(table):
            yield map_columns(row, self.settings.columns)

    def _source_rows(self, table: Table) -> Iterator[Row]:
        """The rows as the data set has them, by ascending names of splits; qrels with our name of
        theirs.
        """
        name, config = self._parts()[table]
        # else `datasets` calls home even for local files
        os.environ.setdefault("HF_UPDATE_DOWNLOAD_COUNTS", "0")
        import datasets  # takes seconds, and a lock does without

        local = self._local(name)
        where, revision = (name, self._version(name)) if local is None else (str(local), None)
        try:
            loaded = datasets.load_dataset(
                where, config, revision=revision, streaming=self.hub.streaming
            )
            for split, records in sorted(loaded.items()):
                label = (
                    {self.settings.columns.split: _OUR_SPLITS.get(split, split)}
                    if table == "qrels"
                    else {}
                )
                for number, record in enumerate(records):
                    yield Row(
                        table, f"{config or Path(name).name}/{split}:{number}", {**record, **label}
                    )
        except (ValueError, OSError, datasets.exceptions.DatasetsError) as error:
            raise FreshetError(
                f"the data set {name!r} (configuration {config!r}) does not load: {error}"
            ) from None

    def _parts(self) -> dict[Table, tuple[str, str | None]]:
        """Data set and configuration of each table that the settings name."""
        name = str(self.hub.name)
        parts: dict[Table, tuple[str, str | None]] = {"documents": (name, self.hub.documents)}
        if self.hub.queries is not None and self.hub.qrels is not None:
            parts["queries"] = (name, self.hub.queries)
            parts["qrels"] = (self.hub.qrels, self.hub.qrels_config)
        return parts

    def _local(self, name: str) -> Path | None:
        """The folder that `name` names, or None if it is the hub's."""
        return self.root / name if (self.root / name).is_dir() else None

    def _version(self, name: str) -> str:
        if (local := self._local(name)) is not None:
            return hash_path(local)
        return self.pinned[name] if name in self.pinned else self._newest(name)

    def _newest(self, name: str) -> str:
        revision = self.hub.revision if name == self.hub.name else None
        try:
            return str(HfApi().dataset_info(name, revision=revision).sha)
        # the client raises a dozen kinds, all meaning that the hub did not answer for it
        except Exception as error:
            reason = str(error).splitlines()[0]
            raise FreshetError(
                f"the hub does not answer for the data set {name!r}: {reason}"
            ) from None
