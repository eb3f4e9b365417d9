"""What a contract must know of the inputs: the documents that a build is made of, and the queries it is judged on."""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from model_code.context import StageContext
from model_code.corpus.tables import Corpus, Judgements, judged
from model_code.evaluation.scores import SPLITS
from model_code.evaluation.system_evaluation import sampled


def passage_documents(corpus: Path) -> list[str]:
    """The document of each passage, in the order of their table; together they are the initial documents."""
    documents: list[str] = pd.read_parquet(corpus / "passages.parquet", columns=["document_id"])["document_id"].tolist()
    return documents


def judgements(context: StageContext) -> dict[str, Judgements]:
    """The judged queries of dev and test, as the evaluation of this stage samples them."""
    folder = context.inputs["corpus"]
    documents = pd.read_parquet(folder / "documents.parquet", columns=["document_id", "part"])  # and not their texts
    tables = {name: pd.read_parquet(folder / f"{name}.parquet") for name in ("queries", "qrels")}
    corpus = Corpus(documents=documents, passages=documents.iloc[:0], **tables)
    made = pd.read_parquet(context.inputs["pseudo_queries"] / "pseudo_queries.parquet")
    return sampled({split: judged(corpus, made, split) for split in SPLITS}, context.settings["evaluation"])
