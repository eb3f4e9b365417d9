"""Contracts of the corpus, of the queries that are made from it, and of the verdict over both."""

from __future__ import annotations

import pandas as pd

from model_code.context import StageContext
from model_code.contracts.frames import fail
from model_code.contracts.rules import require, require_files
from model_code.contracts.tables import check_tables
from model_code.corpus.tables import TABLES, Corpus, frame, judged
from model_code.files import read_json

VERDICT = {"passed": bool, "source": str, "expectations": list}
EXPECTATION = ("table", "expectation", "bounds", "observed", "passed")


def check_corpus(context: StageContext) -> None:
    """All five tables, quarantine included, against their schemas and each other, as they were written."""
    names = (*TABLES, "quarantine")
    require_files(context.output, [f"{name}.parquet" for name in names])
    check_tables({name: pd.read_parquet(context.output / f"{name}.parquet") for name in names})


def check_pseudo_queries(context: StageContext) -> None:
    """The table's schema; initial documents only, each in one split, and that is train where the corpus has judges."""
    require_files(context.output, ["pseudo_queries.parquet"])
    table = pd.read_parquet(context.output / "pseudo_queries.parquet")
    if table.empty:  # a column without a value has no type of its own
        table = frame("pseudo_queries", []).reindex(columns=table.columns)
    check_tables({"pseudo_queries": table})
    folder = context.inputs["corpus"]
    documents = pd.read_parquet(folder / "documents.parquet", columns=["document_id", "part"])
    initial = documents.loc[documents["part"] == "initial", "document_id"]
    _refuse(table, ~table["document_id"].isin(initial), "document_id must be of an initial document", "document_id")
    _refuse(table, ~table["text"].str.strip().astype(bool), "text must hold more than white space", "text")
    parted = table.groupby("document_id")["split"].transform("nunique") > 1
    _refuse(table, parted, "all queries of a document must be of one split", "document_id")
    tables = {name: pd.read_parquet(folder / f"{name}.parquet") for name in ("queries", "qrels")}
    corpus = Corpus(documents=documents, passages=documents.iloc[:0], **tables)
    if judged(corpus, table.iloc[:0], "dev").source == "qrels":
        rule = "split must be train, as the corpus has judged queries of its own for dev or test"
        _refuse(table, table["split"] != "train", rule, "split")


def check_acceptance(context: StageContext) -> None:
    """A verdict that says who judged, and of each expectation what was seen; only a passed one is ever published."""
    require_files(context.output, ["verdict.json"])
    verdict = read_json(context.output / "verdict.json")
    for name, kind in VERDICT.items():
        require(isinstance(verdict.get(name), kind), f"verdict.json must have {name!r}, a {kind.__name__}")
    require(verdict["source"] in ("qrels", "pseudo-queries"), f"verdict.json: unknown source {verdict['source']!r}")
    require(len(verdict["expectations"]) > 0, "verdict.json must hold at least one expectation")
    for row in verdict["expectations"]:
        lacking = [name for name in EXPECTATION if name not in row]
        require(not lacking, f"verdict.json: the expectation {row.get('expectation')!r} lacks {', '.join(lacking)}")
    every = all(row["passed"] for row in verdict["expectations"])
    require(verdict["passed"] and every, "verdict.json must have passed, and each of its expectations with it")


def _refuse(table: pd.DataFrame, broken: pd.Series, rule: str, column: str) -> None:
    if broken.any():
        fail("pseudo_queries", rule, table.loc[broken, column])
