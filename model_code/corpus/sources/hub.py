"""Read a data set of the Hugging Face hub, or a local folder that `datasets` can load.

A data set has documents, queries and qrels, as in BEIR. `corpus.hub` names the data set, its
configurations of documents and queries, and the data set of the qrels. The splits of the qrels are
kept; "validation" is called dev.

The lock pins the commit of each data set. A build therefore reads the ingested version even if the
hub has a newer one. With `streaming` nothing is stored on disk. Use it together with `corpus.limit`
for large data sets such as BeIR/nq, which has 2.7 million documents.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from huggingface_hub import HfApi

from model_code.corpus.rows import RefusedRow, Row, Table, map_columns, require_columns
from model_code.corpus.settings import CorpusSettings
from model_code.errors import FreshetError
from model_code.files import canonical_json, hash_path, hash_text
from model_code.progress import Progress, no_progress

# Names of splits on the hub that differ from ours.
_SPLIT_NAMES = {"validation": "dev", "valid": "dev"}


class _Part(NamedTuple):
    """The data set and the configuration that hold a table."""

    data_set: str
    config: str | None


class HubSource:
    """Documents of a data set of the hub, with optional queries and qrels.

    The qrels may be in another data set than the documents and queries.
    """

    def __init__(
        self, settings: CorpusSettings, root: Path, locked: Mapping[str, Any] | None = None
    ) -> None:
        """Set the data set. Nothing is read yet.

        Args:
            settings: Settings of the corpus.
            root: Folder that a local data set is resolved against.
            locked: Content of `corpus.lock.json`, whose commits are read. None: the newest ones.
        """
        self.settings = settings
        self.hub = settings.hub
        self.root = root
        # The commit of each data set by its name.
        self.pinned: Mapping[str, str] = (locked or {}).get("versions", {})

    def describe(self) -> dict[str, Any]:
        """Return the commit of each data set, or the hash of a local folder, and the revision."""
        versions: dict[str, str] = {}
        for name in sorted({part.data_set for part in self._parts().values()}):
            # A lock holds no absolute path, so a local folder is listed by its last name.
            shown_name = name if self._local_folder(name) is None else Path(name).name
            versions[shown_name] = self._version(name)
        return {
            "versions": versions,
            "watermark": self._version(str(self.hub.name)),
            "content_hash": hash_text(canonical_json(versions)),
            "settings": {"corpus.hub.revision": self.hub.revision},
        }

    def rows(self, table: Table, progress: Progress = no_progress) -> Iterator[Row | RefusedRow]:
        """Yield the rows of all splits of a table. Rows of qrels state their split."""
        part = self._parts().get(table)
        if part is None:
            return
        name = f"{part.data_set}/{part.config}" if part.config else part.data_set
        columns = self.settings.columns
        require_columns(self._source_rows(table, part), table, columns, name)
        for row in self._source_rows(table, part):
            yield map_columns(row, columns)

    def _source_rows(self, table: Table, part: _Part) -> Iterator[Row]:
        """Yield rows with the column names of the data set, in ascending order of splits.

        Args:
            table: The table.
            part: The data set and configuration that hold the table.

        Raises:
            FreshetError: If the data set does not load.
        """
        # Without this, `datasets` reports downloads to the hub even for local files.
        os.environ.setdefault("HF_UPDATE_DOWNLOAD_COUNTS", "0")

        # The import takes seconds, and making a lock does not need it.
        import datasets

        folder = self._local_folder(part.data_set)
        if folder is None:
            path = part.data_set
            revision = self._version(part.data_set)
        else:
            path = str(folder)
            revision = None

        config_name = part.config or Path(part.data_set).name
        try:
            splits = datasets.load_dataset(
                path, part.config, revision=revision, streaming=self.hub.streaming
            )
            for split, records in sorted(splits.items()):
                for number, record in enumerate(records):
                    values = dict(record)
                    if table == "qrels":
                        values[self.settings.columns.split] = _SPLIT_NAMES.get(split, split)
                    yield Row(table, f"{config_name}/{split}:{number}", values)
        except (ValueError, OSError, datasets.exceptions.DatasetsError) as error:
            raise FreshetError(
                f"the data set {part.data_set!r} (configuration {part.config!r}) does not load: "
                f"{error}"
            ) from None

    def _parts(self) -> dict[Table, _Part]:
        """Return the data set and configuration of each table that the settings name."""
        name = str(self.hub.name)
        parts: dict[Table, _Part] = {"documents": _Part(name, self.hub.documents)}
        if self.hub.queries is not None and self.hub.qrels is not None:
            parts["queries"] = _Part(name, self.hub.queries)
            parts["qrels"] = _Part(self.hub.qrels, self.hub.qrels_config)
        return parts

    def _local_folder(self, name: str) -> Path | None:
        """Return the local folder of a data set; None if it is on the hub."""
        folder = self.root / name
        return folder if folder.is_dir() else None

    def _version(self, name: str) -> str:
        """Return the commit of a data set, or the hash of a local folder.

        The commit is the one that the lock pins; without a lock it is the newest.
        """
        folder = self._local_folder(name)
        if folder is not None:
            return hash_path(folder)
        if name in self.pinned:
            return self.pinned[name]
        return self._newest_commit(name)

    def _newest_commit(self, name: str) -> str:
        """Ask the hub for the newest commit of a data set, or of the revision in the settings.

        Raises:
            FreshetError: If the hub does not answer.
        """
        # The revision is that of the documents. Qrels may be in a data set of their own.
        revision = self.hub.revision if name == self.hub.name else None
        try:
            return str(HfApi().dataset_info(name, revision=revision).sha)
        except Exception as error:
            # The client raises a dozen kinds of errors. All mean that the hub has no answer.
            # An error such as a timeout may have no text.
            reason = str(error).strip().partition("\n")[0] or type(error).__name__
            raise FreshetError(
                f"the hub does not answer for the data set {name!r}: {reason}"
            ) from None
