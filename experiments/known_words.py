"""Evaluate BM25 with the words of known queries, as the stage `baselines` of a build does.

A known query is a query that a document is known to answer. `bm25_known` is BM25 that counts the
words of known queries as words of their documents. It needs no encoder, so its row can be added to
a table whose systems took hours to train.

`python -m experiments.known_words ROOT --cache FOLDER` adds the row to the pages that are named
in `PAGES`. ROOT is a folder that has the data sets under `data/`, as the settings of these
pages name them. `--only scifact` measures one page.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from experiments.tables import write_tables
from model_code.context import StageContext
from model_code.corpus.build import build_corpus
from model_code.corpus.corpus_queries import KNOWN_QUERIES, CorpusQueries, collect_known_queries
from model_code.corpus.sources.base import open_source
from model_code.corpus.tables import Corpus, Judgements, load_corpus, passage_texts, write_table
from model_code.evaluation.metrics import Run, evaluate_run
from model_code.evaluation.scores import WITH_KNOWN, WITHOUT_KNOWN
from model_code.evaluation.significance import bootstrap_interval, paired_randomisation_test
from model_code.files import write_json
from model_code.retrieval.bm25 import Bm25Retriever
from model_code.retrieval.index_settings import Bm25Settings, KnownQuerySettings
from model_code.retrieval.indexed import NewPassages
from model_code.retriever_settings import BM25, BM25_KNOWN
from model_code.stages.evaluation_set import EvaluationSet
from model_code.stages.known_words import (
    KnownWordsChoice,
    choose_known_words,
    known_word_variants,
)
from model_code.text.known_queries import KnownQueryLimits
from orchestration import parameters
from orchestration.parameters import Parameters

HERE = Path(__file__).parent
RESULT = "known_words.json"
SETTINGS = "params.yaml"
# Pages whose builds are older than `bm25_known`. Their settings are in `params.yaml` beside them.
PAGES = ("scifact", "tldr_lines", "tldr_pages")
METRICS = ("nDCG@10", "hit@1", "R@100")
METRIC = METRICS[0]
CONFIDENCE = 0.95
# Numbers of the result are rounded to so many digits.
DIGITS = 6
GROUP_LABELS = {
    WITH_KNOWN: "with known queries",
    WITHOUT_KNOWN: "without known queries",
}


@dataclass(frozen=True)
class WordSearch:
    """BM25 with and without known queries over one corpus.

    Attributes:
        evaluation_set: The judged queries. Searches through it do not see lines of documents that
            are queries.
        plain: BM25 over the texts.
        known: The same with the words of known queries.
        choice: How the words count, chosen on dev queries.
    """

    evaluation_set: EvaluationSet
    plain: Bm25Retriever
    known: Bm25Retriever
    choice: KnownWordsChoice

    @classmethod
    def open(cls, corpus: Path, groups: Parameters, checkpoints: Path) -> WordSearch:
        """Index the corpus in a folder, and choose how known queries count.

        Args:
            corpus: Folder of the corpus, with its known queries.
            groups: Settings of the build.
            checkpoints: Folder for indexes of documents without their query lines.
        """
        context = StageContext(
            root=corpus,
            inputs={"corpus": corpus},
            output=checkpoints,
            settings={"encoder": groups.encoder, "evaluation": groups.evaluation},
            checkpoints=checkpoints,
        )
        evaluation_set = EvaluationSet.load(context)
        known = CorpusQueries.of_corpus(corpus)
        new = corpus_passages(load_corpus(corpus), known, groups.encoder.include_title)
        return cls.index(new, evaluation_set, groups.bm25, groups.known_queries)

    @classmethod
    def index(
        cls,
        new: NewPassages,
        evaluation_set: EvaluationSet,
        settings: Bm25Settings,
        known_queries: KnownQuerySettings,
    ) -> WordSearch:
        """Index passages, and choose how known queries count.

        Args:
            new: The passages with their known queries.
            evaluation_set: The judged queries.
            settings: Settings of BM25.
            known_queries: Limits of known queries, and how they count; None where dev decides.
        """
        limits = KnownQueryLimits(known_queries.max_queries, known_queries.max_words)
        variants = known_word_variants(known_queries.weight, known_queries.in_length, limits)
        first = Bm25Retriever.index(new, settings, variants[0])
        choice = choose_known_words(evaluation_set, variants, first)
        plain = Bm25Retriever(first.segment, settings)
        return cls(evaluation_set, plain, first.with_words(choice.words), choice)

    def scores(self, split: str = "test") -> dict[str, dict[str, np.ndarray]]:
        """Return the scores (q,) of the queries of a split, by system and metric."""
        judged = self.evaluation_set.judgements[split]
        scores = {}
        for system, retriever in ((BM25, self.plain), (BM25_KNOWN, self.known)):
            search = self.evaluation_set.strip_query_lines(retriever).search
            run = self.evaluation_set.search(search)[split]
            scores[system] = score_run(run, judged)
        return scores


def score_run(run: Run, judged: Judgements) -> dict[str, np.ndarray]:
    """Return the scores (q,) of judged queries, by metric."""
    by_query = evaluate_run(run, judged.graded(), METRICS)
    scores = {}
    for metric in METRICS:
        scores[metric] = np.array([by_query[metric][query] for query in judged.queries])
    return scores


def corpus_passages(corpus: Corpus, known: CorpusQueries, include_title: bool) -> NewPassages:
    """Return the passages of a corpus as BM25 indexes them, with their known queries."""
    texts = passage_texts(corpus.passages, include_title)
    names = corpus.passages["document_id"].tolist()
    return NewPassages(texts, names, known=known.by_document())


def training_queries(corpus: Corpus) -> CorpusQueries:
    """Return the known queries of a corpus that has no file of them: its training queries."""
    texts: dict[str, str] = {}
    splits: dict[str, str] = {}
    grades: dict[tuple[str, str], int] = {}
    for split in ("train", "dev", "test"):
        judged = corpus.judgements(split)
        texts.update(judged.queries)
        splits.update(dict.fromkeys(judged.queries, split))
        for query, relevant in judged.qrels.items():
            for document, grade in relevant.items():
                grades[query, document] = grade
    return collect_known_queries([], texts, splits, grades)


def write_corpus(groups: Parameters, root: Path, folder: Path) -> None:
    """Write the tables of a corpus and its known queries, unless the folder exists.

    Args:
        groups: Settings of the build.
        root: Folder that paths in the settings are relative to.
        folder: Folder to write.
    """
    if (folder / KNOWN_QUERIES).is_file():
        return
    folder.mkdir(parents=True, exist_ok=True)
    source = open_source(groups.corpus, root)
    built = build_corpus(source, groups.corpus, groups.passages)
    for name, table in built.tables.items():
        write_table(folder, name, table)
    # This file comes last, so that an interrupted run writes the folder again.
    built.known_queries.save(folder / KNOWN_QUERIES)


def open_from_settings(settings: Path, root: Path, cache: Path) -> WordSearch:
    """Build the corpus of a settings file, and index it.

    Args:
        settings: The file, such as `params.yaml`.
        root: Folder that paths in the settings are relative to.
        cache: Folder of the corpus, which is read if it was built before.
    """
    groups = parameters.load(settings)
    corpus = cache / "corpus"
    write_corpus(groups, root, corpus)
    checkpoints = cache / "checkpoints"
    checkpoints.mkdir(exist_ok=True)
    return WordSearch.open(corpus, groups, checkpoints)


def measure(searches: WordSearch, groups: Mapping[str, np.ndarray] | None = None) -> dict[str, Any]:
    """Return means and paired differences on test queries, over all and by group.

    Args:
        searches: Both kinds of BM25.
        groups: Whether each test query (q,) is in a group, by its name. None: the groups
            "with_known", whose queries have a relevant document with known queries, and
            "without_known".
    """
    if groups is None:
        judged = searches.evaluation_set.judgements["test"]
        has_known = np.array([query in judged.with_known for query in judged.queries])
        groups = {WITH_KNOWN: has_known, WITHOUT_KNOWN: ~has_known}

    scores = searches.scores()
    by_group = {}
    for name, in_group in groups.items():
        if in_group.any():
            by_group[name] = summarise(scores, in_group)
    everything = np.ones(len(scores[BM25][METRIC]), bool)
    return {
        "words": searches.choice.report,
        **summarise(scores, everything),
        "groups": by_group,
    }


def summarise(
    scores: Mapping[str, Mapping[str, np.ndarray]], in_group: np.ndarray
) -> dict[str, Any]:
    """Return means with intervals, and the difference of both systems, on some queries.

    Args:
        scores: Scores (q,) by system and metric.
        in_group: Whether a query counts (q,).
    """
    systems = {}
    for system, by_metric in scores.items():
        systems[system] = {}
        for metric, values in by_metric.items():
            systems[system][metric] = mean_with_interval(values[in_group])
    gains = (scores[BM25_KNOWN][METRIC] - scores[BM25][METRIC])[in_group]
    return {
        "queries": int(in_group.sum()),
        "systems": systems,
        "difference": mean_difference(gains),
    }


def mean_with_interval(values: np.ndarray) -> dict[str, float]:
    """Return the mean of scores (q,) with its bootstrap interval over queries."""
    low, high = bootstrap_interval(values[:, None], 2000, CONFIDENCE, 0)
    numbers = {"value": values.mean(), "low": low[0], "high": high[0]}
    return {name: round(float(number), DIGITS) for name, number in numbers.items()}


def mean_difference(gains: np.ndarray) -> dict[str, float]:
    """Return the mean of paired differences (q,), its interval over queries, and p."""
    low, high = bootstrap_interval(gains[:, None], 2000, CONFIDENCE, 0)
    (p,) = paired_randomisation_test(gains[:, None], 10_000, 0)
    numbers = {"difference": gains.mean(), "low": low[0], "high": high[0], "p": p}
    return {name: round(float(number), DIGITS) for name, number in numbers.items()}


def table(result: Mapping[str, Any]) -> str:
    """Return the table of one page: all test queries, and both groups of them."""
    parts = {"all": result}
    for name, group in result["groups"].items():
        parts[GROUP_LABELS[name]] = group
    lines = [
        "| test queries | bm25 | bm25_known | bm25_known less bm25 | p |",
        "|---|---|---|---|---|",
    ]
    for label, part in parts.items():
        systems = part["systems"]
        cells = [f"{label}, {part['queries']:,}"]
        cells.extend(format_interval(systems[system][METRIC]) for system in (BM25, BM25_KNOWN))
        cells.append(format_difference(part["difference"]))
        cells.append(f"{part['difference']['p']:.4f}")
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def format_value(value: float) -> str:
    """Return a number with three digits and no leading zero.

    >>> format_value(0.5), format_value(-0.0251)
    ('.500', '-.025')
    """
    return f"{value:.3f}".replace("0.", ".", 1)


def format_interval(cell: Mapping[str, float]) -> str:
    """Return a mean with its interval, such as .512 [.498, .527]."""
    low = format_value(cell["low"])
    high = format_value(cell["high"])
    return f"{format_value(cell['value'])} [{low}, {high}]"


def format_difference(row: Mapping[str, float]) -> str:
    """Return a difference with its interval, such as +.012 [-.003, +.027]."""
    text = f"{row['difference']:+.3f} [{row['low']:+.3f}, {row['high']:+.3f}]"
    return text.replace("0.", ".")


def describe_choice(choice: Mapping[str, Any]) -> str:
    """Return how the words of known queries count, as a sentence.

    Args:
        choice: The report of a `KnownWordsChoice`.
    """
    length = "count" if choice["in_length"] else "do not count"
    origin = "dev decided" if choice["chosen_on_dev"] else "the default"
    return f"Word weight {choice['weight']:g}; the words {length} towards the length ({origin})."


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure the pages, and write their results and tables."""
    options = _parser().parse_args(arguments)
    for page in options.only or PAGES:
        folder = HERE / page
        searches = open_from_settings(
            folder / SETTINGS, options.root.resolve(), options.cache.resolve() / page
        )
        result = measure(searches)
        write_json(folder / RESULT, result)
        write_tables(folder, page_text(result))
        print(page, page_text(result), flush=True)


def page_text(result: Mapping[str, Any]) -> str:
    """Return the text between the marks of a page: the table, and how known queries count."""
    return f"{table(result)}\n{describe_choice(result['words'])}\n"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("root", type=Path, help="folder that has the data sets under data/")
    parser.add_argument("--cache", type=Path, required=True, help="folder of corpora and indexes")
    parser.add_argument("--only", nargs="+", choices=PAGES, help="pages; all of them if left out")
    return parser


if __name__ == "__main__":
    main()
