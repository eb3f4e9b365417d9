"""A source's documents as lines that `freshet add` takes, each with the queries that are judged to ask for it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from model_code.corpus.settings import ColumnSettings, CorpusSettings, PartSettings, PassageSettings
from model_code.documents import Document
from model_code.errors import FreshetError
from orchestration.arrivals import as_row
from orchestration.project import Project


def package_documents(project: Project, settings: CorpusSettings, packages: Sequence[str]) -> Iterator[dict[str, Any]]:
    """The docstrings of installed packages, in the corpus's own columns; FreshetError if one is not installed."""
    rules = replace(settings, source="installed_packages", packages=tuple(packages), limit=None)
    for one in _documents(project, replace(rules, columns=ColumnSettings(), parts=PartSettings())):
        yield as_row(one, settings)


def _documents(project: Project, settings: CorpusSettings) -> Iterator[Document]:
    """Every sound document of the source that `settings` name, with the queries that are judged to ask for it."""
    from model_code.corpus.build import build_corpus
    from model_code.corpus.sources.base import open_source

    tables = build_corpus(open_source(settings, project.root), settings, PassageSettings(words=0)).tables
    texts = dict(zip(tables["queries"]["query_id"], tables["queries"]["text"], strict=True))
    queries: dict[str, list[str]] = {}
    for query, document in zip(tables["qrels"]["query_id"], tables["qrels"]["document_id"], strict=True):
        queries.setdefault(document, []).append(texts[query])
    if tables["documents"].empty:
        raise FreshetError("the source holds no document")
    for row in tables["documents"].itertuples():
        asked = tuple(queries.get(row.document_id, ()))
        yield Document(row.document_id, row.title, row.text, json.loads(row.fields), asked)
