"""Reduced corpora, and the inputs of the stages that train and index a retriever."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from model_code.context import StageContext
from model_code.corpus.build import build_corpus
from model_code.corpus.settings import CorpusSettings
from model_code.corpus.sources.base import open_source
from model_code.corpus.tables import TABLES, Corpus, make_table, strip_query_lines, write_table
from model_code.encoding.settings import EncoderSettings
from model_code.files import read_json, write_json
from model_code.hierarchy.build import build_hierarchy
from model_code.hierarchy.settings import HierarchySettings
from model_code.queries.pseudo_queries import InverseCloze
from model_code.queries.settings import ClozeSettings
from model_code.retrieval.dense_index import DenseIndex
from model_code.retrieval.index_settings import IndexSettings
from model_code.settings import parse
from model_code.stages import base_index
from model_code.text.settings import PassageSettings

READY = "ready.json"
PSEUDO_QUERIES = ClozeSettings(per_document=1, min_words=8, max_words=64)
INDEX = IndexSettings(late_interaction=False)
# The key in the settings that has the number of queries of each split.
SPLIT_SIZES = {"train": "train_queries", "dev": "dev_queries", "test": "test_queries"}


def prepare_corpus(
    name: str, settings: Mapping[str, Any], data: Path, cache: Path
) -> dict[str, Path]:
    """Return the folders that a training reads. Folders that the cache lacks are created.

    Args:
        name: Name of the corpus.
        settings: All settings of the experiment. `sizes` applies to all corpora, and
            `sizes_of.NAME` changes some of them for one corpus.
        data: Folder of the data sets.
        cache: Folder of downloads and builds.
    """
    folder = cache / "corpora" / name
    sizes = dict(settings["sizes"])
    sizes.update(settings.get("sizes_of", {}).get(name, {}))
    # Settings that the folders depend on. They are built again if one of these changes.
    made_of = {
        "corpus": settings["corpora"][name],
        "sizes": sizes,
        "encoder": settings["encoder"],
    }
    inputs = {
        "corpus": folder / "corpus",
        "pseudo_queries": folder / "corpus",
        "base_index": folder / "base" / "index",
    }
    ready = folder / READY
    if ready.is_file() and read_json(ready) == made_of:
        return inputs

    shutil.rmtree(folder, ignore_errors=True)
    for subfolder in ("corpus", "base", "checkpoints"):
        (folder / subfolder).mkdir(parents=True)
    corpus_settings = parse(CorpusSettings, settings["corpora"][name], f"corpora.{name}")
    built = build_corpus(
        open_source(corpus_settings, data), corpus_settings, PassageSettings(words=0)
    )
    whole = Corpus(**{table: built.tables[table] for table in TABLES})
    _write_corpus(reduce_corpus(whole, sizes), folder / "corpus")

    context = StageContext(
        data, inputs, folder / "base", _base_settings(settings), folder / "checkpoints"
    )
    base_index.run(context)
    write_json(ready, made_of)
    return inputs


def add_hierarchy(inputs: Mapping[str, Path], settings: HierarchySettings) -> dict[str, Path]:
    """Return the inputs with a hierarchy of the passages, which is built if there is none yet."""
    folder = inputs["corpus"].parent / f"hierarchy-{settings.branching}"
    if not folder.is_dir():
        staging = folder.with_name("hierarchy-staging")
        shutil.rmtree(staging, ignore_errors=True)
        staging.mkdir()
        vectors = DenseIndex.load(inputs["base_index"]).vectors
        build_hierarchy(vectors, settings, seed=0).save(staging)
        staging.rename(folder)
    return {**inputs, "hierarchy": folder}


def reduce_corpus(corpus: Corpus, sizes: Mapping[str, int]) -> Corpus:
    """Return a corpus with fewer documents and judged queries. Equal calls give the same ones.

    Documents with judged queries are preferred. Training queries and test queries then ask for the
    same documents often, as in the papers' data.

    Args:
        corpus: The whole corpus.
        sizes: Number of documents, and of queries of each split.
    """
    random = np.random.default_rng(0)
    judged = sorted(set(corpus.qrels["document_id"]))
    others = sorted(set(corpus.documents["document_id"]) - set(judged))
    drawn = [*random.permutation(judged), *random.permutation(others)]
    documents = {str(document) for document in drawn[: sizes["documents"]]}

    queries: set[str] = set()
    for split, size_key in SPLIT_SIZES.items():
        # A query is complete if all its relevant documents were drawn.
        complete = []
        for query, grades in corpus.judgements(split).qrels.items():
            if grades.keys() <= documents:
                complete.append(query)
        queries.update(str(query) for query in random.permutation(complete)[: sizes[size_key]])

    stripped = strip_query_lines(corpus)
    return replace(
        stripped,
        documents=_select_rows(stripped.documents, "document_id", documents),
        passages=_select_rows(stripped.passages, "document_id", documents),
        queries=_select_rows(corpus.queries, "query_id", queries),
        qrels=_select_rows(corpus.qrels, "query_id", queries),
    )


def _select_rows(table: pd.DataFrame, column: str, values: set[str]) -> pd.DataFrame:
    """Return the rows of a table whose column has one of the values."""
    return table[table[column].isin(values)].reset_index(drop=True)


def _write_corpus(corpus: Corpus, folder: Path) -> None:
    """Write the tables of a corpus, with one pseudo-query per document."""
    for table in TABLES:
        write_table(folder, table, getattr(corpus, table))

    texts = dict(zip(corpus.documents["document_id"], corpus.documents["text"], strict=True))
    cloze = InverseCloze("inverse_cloze", PSEUDO_QUERIES)
    rows = []
    for number, query in enumerate(cloze.generate(texts, 0)):
        rows.append(
            {
                "query_id": str(number),
                "document_id": query.document_id,
                "text": query.text,
                "kind": query.kind,
            }
        )
    write_table(folder, "pseudo_queries", make_table("pseudo_queries", rows))


def _base_settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    return {"encoder": parse(EncoderSettings, settings["encoder"], "encoder"), "index": INDEX}
