"""The stage `acceptance`: is a finished corpus, taken as a whole, fit to train and judge on? Else
nothing is trained.

Contracts hold row by row; these expectations (Great Expectations) are about the data set: how many
documents and judged queries, how many of these are repeated or have no words. The library takes
seconds to import, so functions import it.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd

from model_code.context import StageContext
from model_code.corpus.settings import SPLITS, AcceptanceSettings
from model_code.corpus.tables import Corpus, load_corpus
from model_code.errors import FreshetError
from model_code.files import write_json
from model_code.text.words import word_spans

if TYPE_CHECKING:
    from great_expectations.data_context import EphemeralDataContext
    from great_expectations.expectations import Expectation

DATA_DOCS = ".freshet/data_docs"


def run(context: StageContext) -> dict[str, Any]:
    """Assess the corpus, whose tables keep their contracts; write `verdict.json`, return its
    summary.

    The verdict is pure: `passed`, and for each expectation its table, bounds, what was observed (a
    value, or the percentage of rows that break it) and whether it passed. Queries are looked at
    where people judged any. Data Docs (HTML), and a copy of the verdict that a failure leaves
    readable, go to `root/.freshet/data_docs`: HTML names its time, so it is no output of the stage.
    Raises `FreshetError` naming each expectation that failed.
    """
    corpus, data_docs = load_corpus(context.inputs["corpus"]), context.root / DATA_DOCS
    checks = _context(data_docs)
    expectations, frames = _expectations(context.settings["acceptance"]), acceptance_frames(corpus)
    results = [
        row
        for table, data in frames.items()
        for row in _validate(checks, table, data, expectations[table])
    ]
    checks.build_data_docs()
    failed = [row for row in results if not row["passed"]]
    verdict = {"passed": not failed, "expectations": results}
    write_json(context.output / "verdict.json", verdict)
    write_json(data_docs / "verdict.json", verdict)
    if failed:
        raise FreshetError(
            f"the corpus is not accepted: {'; '.join(map(_sentence, failed))}. Mend the source, or move the bounds "
            f"under `acceptance` in params.yaml; {DATA_DOCS}/verdict.json has all that was looked at."
        )
    return {"passed": True, "expectations": len(results)}


LIMITS = {"min_value": "at least", "max_value": "at most"}
WORDS = {  # what is wrong where an expectation fails; the last ones by their column
    "expect_table_row_count_to_be_between": "too few",
    "expect_column_values_to_be_unique": "there twice",
    "expect_column_values_to_be_between": "without words",
    "repeated": "equal to another",
    "document_exists": "of a document that is not there",
}


def _sentence(row: dict[str, Any]) -> str:
    """An expectation that failed, in words.

    >>> row = {"table": "documents", "expectation": "expect_table_row_count_to_be_between", "observed": 3}
    >>> _sentence(row | {"bounds": {"min_value": 10}})
    'documents: too few: 3, and 10 at least'
    """
    bounds, expectation = row["bounds"], row["expectation"]
    wrong = WORDS.get(expectation) or WORDS[bounds["column"]]
    unit = " %" if "_values_" in expectation else ""
    limits = [
        f"{bounds[name]:g} {word}" for name, word in LIMITS.items() if bounds.get(name) is not None
    ]
    if unit:
        limits += [f"{100 * (1 - bounds.get('mostly', 1)):g} % at most"]
    return f"{row['table']}: {wrong}: {row['observed']}{unit}, and {', '.join(limits)}"


_SHOWN = ("column", "min_value", "max_value", "mostly", "value_set")


def acceptance_frames(corpus: Corpus) -> dict[str, pd.DataFrame]:
    """The data that expectations are stated on: `documents`, and if there are any the `queries` of
    dev, gate and test and all `judgements`.
    """
    documents, splits = (
        corpus.documents,
        [corpus.judgements(split) for split in SPLITS if split != "train"],
    )
    texts = pd.Series([text for split in splits for text in split.queries.values()], dtype=object)
    judgements = corpus.qrels[["query_id", "document_id"]]
    frames = {
        "documents": documents[["document_id"]],
        "queries": pd.DataFrame(
            {
                "query_id": [query for split in splits for query in split.queries],
                "words": texts.map(lambda text: len(word_spans(text))).astype("int64"),
                "repeated": texts.str.casefold().duplicated(),
            }
        ),
        "judgements": judgements.assign(
            document_exists=judgements["document_id"].isin(documents["document_id"])
        ),
    }
    return {name: frame for name, frame in frames.items() if name == "documents" or len(frame)}


def _expectations(settings: AcceptanceSettings) -> dict[str, list[Expectation]]:
    import great_expectations.expectations as gx

    return {
        "documents": [
            gx.ExpectTableRowCountToBeBetween(min_value=settings.min_documents),
            gx.ExpectColumnValuesToBeUnique(column="document_id"),
        ],
        "queries": [
            gx.ExpectColumnValuesToBeUnique(column="query_id"),
            gx.ExpectColumnValuesToBeBetween(column="words", min_value=1),
            gx.ExpectColumnValuesToBeInSet(
                column="repeated", value_set=[False], mostly=1 - settings.max_repeated_query_share
            ),
        ],
        "judgements": [gx.ExpectColumnValuesToBeInSet(column="document_exists", value_set=[True])],
    }


def _context(data_docs: Path) -> EphemeralDataContext:
    """A context that keeps nothing but the HTML in `data_docs`, which replaces what was there."""
    os.environ.setdefault("GX_ANALYTICS_ENABLED", "false")
    import great_expectations as gx

    shutil.rmtree(data_docs, ignore_errors=True)
    data_docs.mkdir(parents=True)
    context = gx.get_context(mode="ephemeral")
    context.variables.progress_bars = {"globally": False}
    for site in context.get_site_names():
        context.delete_data_docs_site(site)
    store = {
        "class_name": "TupleFilesystemStoreBackend",
        "base_directory": str(data_docs.resolve()),
    }
    site = {
        "class_name": "SiteBuilder",
        "site_index_builder": {"class_name": "DefaultSiteIndexBuilder"},
    }
    context.add_data_docs_site("freshet", {**site, "store_backend": store})
    return context


def _validate(
    context: EphemeralDataContext, table: str, data: pd.DataFrame, expectations: list[Expectation]
) -> list[dict[str, Any]]:
    import great_expectations as gx

    asset = context.data_sources.add_pandas(table).add_dataframe_asset(table)
    batch = asset.add_batch_definition_whole_dataframe("all")
    suite = context.suites.add(gx.ExpectationSuite(table, expectations=expectations))
    validation = gx.ValidationDefinition(name=table, data=batch, suite=suite)
    outcome = context.validation_definitions.add(validation).run(
        batch_parameters={"dataframe": data}
    )
    return [_row(table, result) for result in outcome.results]


def _row(table: str, result: Any) -> dict[str, Any]:
    kwargs: Mapping[str, Any] = result.expectation_config.kwargs
    observed = result.result.get("observed_value", result.result.get("unexpected_percent"))
    return {
        "table": table,
        "expectation": result.expectation_config.type,
        "bounds": {name: kwargs[name] for name in _SHOWN if kwargs.get(name) is not None},
        "observed": None if observed is None else _short(observed),
        "passed": bool(result.success),
    }


def _short(number: float) -> float | int:
    rounded = round(float(number), 6)
    return int(rounded) if rounded.is_integer() else rounded
