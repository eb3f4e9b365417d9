"""Stage `pseudo_queries`: queries generated from the documents, filtered, and split by document."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from model_code.context import StageContext
from model_code.corpus.tables import Corpus, judged, judged_corpus, load_corpus
from model_code.queries.filtering import REASONS, drop_lost, make_search, reasons_to_drop, source_ranks
from model_code.queries.generators import TRAINED_FOLDER, make_generator
from model_code.queries.pseudo_queries import PseudoQuery, split_of
from model_code.queries.settings import PseudoQuerySettings
from model_code.words import slices, spans

TITLE = "title"  # the kind of a query that is its document's title
LONGEST = 16  # words of it
COLUMNS = ("query_id", "document_id", "text", "kind", "split")


def run(context: StageContext) -> dict[str, Any]:
    """Write `pseudo_queries.parquet`; the report counts queries, what was dropped and why, and lengths in words."""
    settings: PseudoQuerySettings = context.settings["pseudo_queries"]
    corpus = judged_corpus(load_corpus(context.inputs["corpus"]))
    initial = corpus.documents[corpus.documents["part"] == "initial"]
    documents = dict(zip(initial["document_id"], initial["text"], strict=True))
    splits = _splits(corpus, documents, settings, context.settings["seed"])
    generated = _generate(documents, splits, settings, context)
    table = _table(generated, splits)
    reasons = reasons_to_drop(generated, documents)
    table["reason"] = _drop_inconsistent(generated, reasons, splits, corpus, context)
    kept = table.loc[table["reason"].isna(), list(COLUMNS)]
    if not _is_judged(corpus) and not (kept["split"] == "test").any():
        kept = _with_a_test_query(kept, initial)
    kept = kept.sort_values("query_id", ignore_index=True)
    kept.to_parquet(context.output / "pseudo_queries.parquet", index=False)
    return {
        "documents": len(documents),
        "documents_without_query": len(documents) - kept["document_id"].nunique(),
        "generated": len(table),
        "kept": len(kept),
        "dropped": {reason: int((table["reason"] == reason).sum()) for reason in REASONS},
        "by_split": {split: int((kept["split"] == split).sum()) for split in ("train", "dev", "test")},
        "by_kind": {str(kind): _lengths(rows["text"]) for kind, rows in kept.groupby("kind")},
    }


def _splits(corpus: Corpus, documents: dict[str, str], settings: PseudoQuerySettings, seed: int) -> dict[str, str]:
    """Document id -> split of its pseudo-queries: all train where the corpus brings judged dev or test queries."""
    if _is_judged(corpus):
        return dict.fromkeys(documents, "train")
    return {i: split_of(i, settings.dev_share, settings.test_share, seed) for i in documents}


def _is_judged(corpus: Corpus) -> bool:
    """Whether the corpus brings dev or test queries that people judged."""
    return judged(corpus, pd.DataFrame(columns=list(COLUMNS)), "dev").source == "qrels"


def _with_a_test_query(kept: pd.DataFrame, documents: pd.DataFrame) -> pd.DataFrame:
    """The queries, and one for the first document by its title or first words, where all texts are too short to cut."""
    first = documents.sort_values("document_id").iloc[0]
    identity, text = str(first["document_id"]), str(first["title"] or first["text"])
    query = slices(text, spans(text), 0, min(LONGEST, len(spans(text))))
    row = {"query_id": f"{identity}~{TITLE}~0", "document_id": identity, "text": query, "kind": TITLE, "split": "test"}
    return pd.concat([kept[kept["document_id"] != identity], pd.DataFrame([row])])


def _generate(
    documents: dict[str, str], splits: dict[str, str], settings: PseudoQuerySettings, context: StageContext
) -> list[PseudoQuery]:
    """All queries: those of training documents by each of `generators`, the held-out ones by `held_out_generator`."""
    to_train = {i: text for i, text in documents.items() if splits[i] == "train"}
    held_out = {i: text for i, text in documents.items() if splits[i] != "train"}
    work = [(kind, to_train) for kind in settings.generators] + [(settings.held_out_generator, held_out)]
    trained = context.inputs["query_generator"] / TRAINED_FOLDER
    queries: list[PseudoQuery] = []
    for kind, texts in work:
        if texts:
            generator = make_generator(kind, settings, trained, context.settings["encoder"].device)
            queries += generator.generate(texts, context.settings["seed"], context.checkpoints, context.progress(kind))
    return queries


def _drop_inconsistent(
    queries: list[PseudoQuery],
    reasons: list[str | None],
    splits: dict[str, str],
    corpus: Corpus,
    context: StageContext,
) -> list[str | None]:
    """Training queries only: evaluation on queries that one system has chosen would favour that system."""
    settings = context.settings["pseudo_queries"].consistency_filter
    if settings.by == "none":
        return reasons
    numbers = [i for i, query in enumerate(queries) if reasons[i] is None and splits[query.document_id] == "train"]
    folder, progress = context.checkpoints / "vectors", context.progress("encode")
    search = make_search(settings.by, corpus, context.settings["encoder"], folder, progress)
    ranks = source_ranks([queries[i] for i in numbers], search, settings.depth)
    return drop_lost(reasons, dict(zip(numbers, ranks, strict=True)), settings.depth)


def _table(queries: list[PseudoQuery], splits: dict[str, str]) -> pd.DataFrame:
    frame = pd.DataFrame(queries, columns=list(PseudoQuery._fields), dtype=str)
    ordinal = frame.groupby(["document_id", "kind"]).cumcount().astype(str)
    frame["query_id"] = frame["document_id"] + "~" + frame["kind"] + "~" + ordinal
    frame["split"] = frame["document_id"].map(splits).astype(str)
    return frame


def _lengths(texts: pd.Series) -> dict[str, int | float]:
    words = texts.map(lambda text: len(spans(text))).to_numpy(dtype=np.int64)
    quartiles = np.percentile(words, [0, 25, 50, 75, 100])
    names = ("words_min", "words_lower_quartile", "words_median", "words_upper_quartile", "words_max")
    return {"queries": len(words), **{name: float(value) for name, value in zip(names, quartiles, strict=True)}}
