"""Checks the source of ir_datasets with a tiny data set that is registered by the test."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import NamedTuple

import ir_datasets
import pytest
from ir_datasets.datasets.base import Dataset
from ir_datasets.formats import BaseDocs, BaseQrels, BaseQueries, GenericQuery, TrecQrel

from model_code.corpus.build import build_corpus
from model_code.corpus.settings import CorpusSettings
from model_code.corpus.sources.base import open_source
from model_code.errors import FreshetError
from model_code.text.settings import PassageSettings


class Recipe(NamedTuple):
    doc_id: str
    title: str
    text: str

    def default_text(self):
        return f"{self.title} {self.text}"


class Recipes(BaseDocs):
    def docs_iter(self):
        yield Recipe("r1", "Barley soup", "Boil barley with leeks.")
        yield Recipe("r2", "Rye bread", "Bake rye for an hour.")

    def docs_cls(self):
        return Recipe


class Asked(BaseQueries):
    def __init__(self, queries):
        self.queries = queries

    def queries_iter(self):
        for query_id, text in self.queries.items():
            yield GenericQuery(query_id, text)

    def queries_cls(self):
        return GenericQuery


class Judged(BaseQrels):
    def __init__(self, rows):
        self.judgements = rows

    def qrels_iter(self):
        for query_id, document_id, relevance in self.judgements:
            yield TrecQrel(query_id, document_id, relevance, "0")

    def qrels_cls(self):
        return TrecQrel


@pytest.fixture
def registry(monkeypatch):
    """A registry that holds recipes, with a train part and a test part."""
    parts = {
        "recipes": Dataset(Recipes()),
        "recipes/train": Dataset(
            Recipes(), Asked({"1": "leek soup", "9": "unjudged"}), Judged([("1", "r1", 1)])
        ),
        "recipes/test": Dataset(
            Recipes(), Asked({"2": "rye loaf"}), Judged([("2", "r2", 2), ("2", "r1", 0)])
        ),
        "questions": Dataset(Asked({"1": "leek soup"})),
    }
    monkeypatch.setattr(ir_datasets, "load", lambda name: parts[name])
    return SimpleNamespace(parts=parts)


def settings_of(name):
    return CorpusSettings(source="ir_datasets", path=name)


def test_parts_are_read_with_their_splits(registry, tmp_path):
    settings = settings_of("recipes")

    built = build_corpus(open_source(settings, tmp_path), settings, PassageSettings())

    queries = built.tables["queries"].set_index("query_id")
    assert built.tables["documents"]["title"].tolist() == ["Barley soup", "Rye bread"]
    # Train queries may be carved into dev and gate.
    assert queries.loc["1", "split"] != "test"
    assert queries.loc["2", "split"] == "test"
    assert queries.loc["2", "not_relevant"] == '["r1"]'


def test_a_part_keeps_its_own_split(registry, tmp_path):
    source = open_source(settings_of("recipes/test"), tmp_path)

    assert [row.values["split"] for row in source.rows("qrels")] == ["test", "test"]


def test_unknown_data_sets_are_named(registry, tmp_path):
    with pytest.raises(FreshetError, match="no data set 'soups'"):
        open_source(settings_of("soups"), tmp_path)


def test_data_sets_without_documents_are_refused(registry, tmp_path):
    with pytest.raises(FreshetError, match="has no documents"):
        open_source(settings_of("questions"), tmp_path)


def test_missing_library_is_named(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "ir_datasets", None)

    with pytest.raises(FreshetError, match=r"pip install -e '\.\[research\]'"):
        open_source(settings_of("recipes"), tmp_path)


def test_description_has_name_and_version(registry, tmp_path):
    description = open_source(settings_of("recipes"), tmp_path).describe()

    assert set(description["versions"]) == {"ir_datasets"}
    other = open_source(settings_of("recipes/test"), tmp_path).describe()
    assert other["content_hash"] != description["content_hash"]
