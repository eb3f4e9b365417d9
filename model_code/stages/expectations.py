"""Expectations about a corpus as a whole, validated by Great Expectations.

The library takes seconds to import, so it is imported inside functions.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd

from model_code.corpus.settings import SPLITS, AcceptanceSettings
from model_code.corpus.tables import Corpus
from model_code.text.words import word_spans

if TYPE_CHECKING:
    from great_expectations.data_context import EphemeralDataContext
    from great_expectations.expectations import Expectation

# Number of decimals to which observed values are rounded in the verdict.
OBSERVED_DECIMALS = 6
# Arguments of an expectation that the verdict shows as its bounds, if they are set.
SHOWN_BOUNDS = ("column", "min_value", "max_value", "mostly", "value_set")
LIMIT_WORDS = {"min_value": "at least", "max_value": "at most"}
# What a message says about a failed expectation, by its type in Great Expectations.
FAULT_BY_TYPE = {
    "expect_table_row_count_to_be_between": "too few",
    "expect_column_values_to_be_unique": "with an id that occurs twice",
    "expect_column_values_to_be_between": "without words",
}
# What a message says about failed expectations of other types, by the column they check.
FAULT_BY_COLUMN = {
    "repeated": "equal to another",
    "document_exists": "of an unknown document",
}


def validate_corpus(
    corpus: Corpus, settings: AcceptanceSettings, data_docs: Path
) -> list[dict[str, Any]]:
    """Validate the tables of a corpus, and write Data Docs.

    Args:
        corpus: The corpus. Its tables have passed the contract of the stage `corpus`.
        settings: The bounds of the expectations.
        data_docs: Folder for the HTML report. Its present content is deleted.

    Returns:
        One row per expectation: `table`, `expectation`, `bounds`, `observed` and `passed`.
    """
    context = _make_context(data_docs)
    expectations = _expectations(settings)
    results = []
    for table, frame in acceptance_frames(corpus).items():
        results += _validate(context, table, frame, expectations[table])
    context.build_data_docs()
    return results


def describe_failure(result: dict[str, Any]) -> str:
    """Describe an expectation that failed.

    >>> result = {"table": "documents", "observed": 3, "bounds": {"min_value": 10}}
    >>> result["expectation"] = "expect_table_row_count_to_be_between"
    >>> describe_failure(result)
    'documents: too few: 3, must be at least 10'
    """
    bounds = result["bounds"]
    expectation = result["expectation"]
    fault = FAULT_BY_TYPE.get(expectation)
    if fault is None:
        fault = FAULT_BY_COLUMN[bounds["column"]]

    limits = []
    for name, words in LIMIT_WORDS.items():
        if bounds.get(name) is not None:
            limits.append(f"{words} {bounds[name]:g}")
    unit = ""
    if "_values_" in expectation:
        # The observed value is the percentage of rows that break the expectation.
        unit = " %"
        tolerated = 100 * (1 - bounds.get("mostly", 1))
        limits.append(f"at most {tolerated:g} %")
    allowed = " and ".join(limits)
    return f"{result['table']}: {fault}: {result['observed']}{unit}, must be {allowed}"


def acceptance_frames(corpus: Corpus) -> dict[str, pd.DataFrame]:
    """Return the tables that expectations are validated on.

    Returns:
        Tables by name: `documents`; `queries`, with the queries of dev, gate and test; and
        `judgements`. The last two are missing if they have no rows.
    """
    documents = corpus.documents[["document_id"]]
    frames = {"documents": documents}

    queries = _judged_queries(corpus)
    if len(queries):
        frames["queries"] = queries

    judgements = corpus.qrels[["query_id", "document_id"]]
    document_exists = judgements["document_id"].isin(documents["document_id"])
    judgements = judgements.assign(document_exists=document_exists)
    if len(judgements):
        frames["judgements"] = judgements
    return frames


def _judged_queries(corpus: Corpus) -> pd.DataFrame:
    """Return the queries of dev, gate and test, with their number of words.

    The column `repeated` is true for a query if an earlier query has the same text, ignoring case.
    """
    query_ids: list[str] = []
    texts: list[str] = []
    for split in SPLITS:
        if split == "train":
            continue
        queries = corpus.judgements(split).queries
        query_ids.extend(queries.keys())
        texts.extend(queries.values())

    text_column = pd.Series(texts, dtype=object)
    word_counts = [len(word_spans(text)) for text in texts]
    return pd.DataFrame(
        {
            "query_id": query_ids,
            "words": pd.Series(word_counts, dtype="int64"),
            "repeated": text_column.str.casefold().duplicated(),
        }
    )


def _expectations(settings: AcceptanceSettings) -> dict[str, list[Expectation]]:
    """Return what is expected of each table of `acceptance_frames`, by the settings' bounds."""
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


def _make_context(data_docs: Path) -> EphemeralDataContext:
    """Return a context of Great Expectations that writes nothing but the HTML in `data_docs`."""
    os.environ.setdefault("GX_ANALYTICS_ENABLED", "false")
    import great_expectations as gx

    shutil.rmtree(data_docs, ignore_errors=True)
    data_docs.mkdir(parents=True)
    context = gx.get_context(mode="ephemeral")
    context.variables.progress_bars = {"globally": False}
    for site in context.get_site_names():
        context.delete_data_docs_site(site)
    site_config = {
        "class_name": "SiteBuilder",
        "site_index_builder": {"class_name": "DefaultSiteIndexBuilder"},
        "store_backend": {
            "class_name": "TupleFilesystemStoreBackend",
            "base_directory": str(data_docs.resolve()),
        },
    }
    context.add_data_docs_site("freshet", site_config)
    return context


def _validate(
    context: EphemeralDataContext, table: str, frame: pd.DataFrame, expectations: list[Expectation]
) -> list[dict[str, Any]]:
    """Validate one table, and return a row per expectation; see `validate_corpus`."""
    import great_expectations as gx

    # Great Expectations validates only what is registered, so register the table and its suite.
    asset = context.data_sources.add_pandas(table).add_dataframe_asset(table)
    batch = asset.add_batch_definition_whole_dataframe("all")
    suite = context.suites.add(gx.ExpectationSuite(table, expectations=expectations))
    validation = gx.ValidationDefinition(name=table, data=batch, suite=suite)
    outcome = context.validation_definitions.add(validation).run(
        batch_parameters={"dataframe": frame}
    )
    return [_result_row(table, result) for result in outcome.results]


def _result_row(table: str, result: Any) -> dict[str, Any]:
    """Return the verdict's row for one result of Great Expectations.

    The observed value is a number of rows, or the percentage of rows that break the expectation.
    """
    arguments: Mapping[str, Any] = result.expectation_config.kwargs
    bounds = {}
    for name in SHOWN_BOUNDS:
        if arguments.get(name) is not None:
            bounds[name] = arguments[name]

    observed = result.result.get("observed_value")
    if "observed_value" not in result.result:
        observed = result.result.get("unexpected_percent")
    if observed is not None:
        observed = _round_observed(observed)
    return {
        "table": table,
        "expectation": result.expectation_config.type,
        "bounds": bounds,
        "observed": observed,
        "passed": bool(result.success),
    }


def _round_observed(value: float) -> float | int:
    """Round an observed value, and return a whole number as an int, as it reads better."""
    rounded = round(float(value), OBSERVED_DECIMALS)
    return int(rounded) if rounded.is_integer() else rounded
