"""Compare retrievers that other libraries train with Freshet's retrievers.

`python -m experiments.rivals.run --data FOLDER --cache FOLDER` trains every system of
`settings.toml` on each corpus. After each system, it writes `result.json` and the table of
`README.md`. Systems that `result.json` contains are not trained again.
"""

from __future__ import annotations

import argparse
import time
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from experiments.known_words import WordSearch, format_difference, measure, training_queries
from experiments.papers.data import prepare_corpus
from experiments.papers.evaluation import evaluate
from experiments.papers.masked_model import masked_model
from experiments.papers.run import Experiment, rows_of
from experiments.tables import write_tables
from model_code.corpus.corpus_queries import KNOWN_QUERIES
from model_code.corpus.tables import Corpus, load_corpus, passage_texts
from model_code.encoding.base_models import locate_model
from model_code.files import read_json, write_json
from model_code.retriever_settings import BM25, BM25_KNOWN
from orchestration.parameters import Parameters

if TYPE_CHECKING:
    from experiments.rivals.systems import Task

HERE = Path(__file__).parent
SETTINGS = HERE / "settings.toml"
RESULT = "result.json"
METRIC = "nDCG@10"
PART = "freshet"
BM25S = "bm25s"
# Freshet's systems that are not trained.
UNTRAINED_SYSTEMS = (BM25, "zero_shot", "untrained")
# Systems that are not trained, in the order of the table. Trained systems follow.
TABLE_ORDER = (BM25, BM25_KNOWN, BM25S, "zero_shot", "untrained")


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure the systems that are missing, and write results and table."""
    options = _parser().parse_args(arguments)
    settings = tomllib.loads(options.settings.read_text(encoding="utf-8"))
    data = options.data.resolve()
    cache = options.cache.resolve()
    experiment = Experiment(settings, data, cache)
    file = options.output / RESULT

    def read_result() -> dict[str, Any]:
        return read_json(file) if file.is_file() else {}

    def keep(corpus: str, system: str, measured: Mapping[str, Any]) -> None:
        # The file is read again, because another process may have written it.
        result = read_result()
        result.setdefault(corpus, {})[system] = measured
        write_json(file, result)
        if (options.output / "README.md").is_file():
            write_tables(options.output, result_tables(result))
        print(corpus, system, measured["test"], flush=True)

    for name in settings["corpora"]:
        measured = read_result().get(name, {})
        if not measured.keys() >= set(UNTRAINED_SYSTEMS):
            references = experiment.measure_references(name)
            for system in UNTRAINED_SYSTEMS:
                keep(name, system, references[system])
        if BM25_KNOWN not in measured:
            keep(name, BM25_KNOWN, measure_known_words(name, settings, data, cache))
        for row in rows_of(PART, settings["parts"][PART]):
            if row.corpus == name and row.name not in measured:
                keep(name, row.name, _without_details(experiment.measure(row)))
        missing = [rival for rival in (BM25S, *settings["rivals"]) if rival not in measured]
        if missing:
            measure_rivals(name, missing, settings, data, cache, keep)


def measure_known_words(
    name: str, settings: Mapping[str, Any], data: Path, cache: Path
) -> dict[str, Any]:
    """Evaluate BM25 with the words of training queries, as a build does.

    Args:
        name: Name of the corpus.
        settings: All settings.
        data: Folder of the data sets.
        cache: Folder of downloads and builds.

    Returns:
        The mean metrics on dev and test, how known queries count, and the paired difference of
        the test metric from BM25 without known queries.
    """
    folder = prepare_corpus(name, settings, data, cache)["corpus"]
    corpus = load_corpus(folder)
    training_queries(corpus).save(folder / KNOWN_QUERIES)
    searches = WordSearch.open(folder, Parameters(retrievers={}), folder.parent / "checkpoints")
    measured = measure(searches)
    return {
        **evaluate(corpus, searches.known.search),
        "words": measured["words"],
        "less_bm25": measured["difference"],
    }


def measure_rivals(
    name: str,
    rivals: Sequence[str],
    settings: Mapping[str, Any],
    data: Path,
    cache: Path,
    keep: Any,
) -> None:
    """Train and evaluate systems of other libraries on one corpus.

    Args:
        name: Name of the corpus.
        rivals: Names of the systems.
        settings: All settings.
        data: Folder of the data sets.
        cache: Folder of downloads and builds.
        keep: Receives the names of corpus and system, and the metrics.
    """
    # These libraries take seconds to import.
    from experiments.rivals.systems import TRAINERS, Budget, bm25s_search, mine_triplets

    inputs = prepare_corpus(name, settings, data, cache)
    corpus = load_corpus(inputs["corpus"])
    task = make_task(corpus, settings["encoder"]["max_tokens"])
    encoder = locate_model(settings["encoder"]["base"])
    triplets = None
    for rival in rivals:
        if rival == BM25S:
            keep(name, rival, evaluate(corpus, bm25s_search(task)))
            continue

        started = time.process_time()
        if triplets is None:
            triplets = mine_triplets(encoder, task)
        rival_settings = settings["rivals"][rival]
        base = encoder
        if rival_settings["base"] == "masked":
            base = masked_model(settings["masked"], cache)
        trained = []
        for rate in settings["budget"]["learning_rates"]:
            budget = Budget(
                settings["budget"]["steps"],
                settings["budget"]["batch_size"],
                rate,
                settings["seeds"][0],
            )
            train = TRAINERS[rival_settings["kind"]]
            search = train(base, task, triplets, budget, cache / "rivals" / rival)
            trained.append({**evaluate(corpus, search), "learning_rate": rate})
        best = max(trained, key=lambda metrics: metrics["dev"][METRIC])
        seconds = round(time.process_time() - started, 1)
        keep(name, rival, {**best, "cpu_seconds": seconds})


def make_task(corpus: Corpus, max_tokens: int) -> Task:
    """Return the texts of a corpus, and its training pairs as texts."""
    # These libraries take seconds to import.
    from experiments.rivals.systems import Task

    ids = corpus.passages["document_id"].tolist()
    texts = passage_texts(corpus.passages, include_title=True)
    text_of = dict(zip(ids, texts, strict=True))
    judged = corpus.judgements("train")
    queries = []
    positives = []
    for query, grades in judged.qrels.items():
        for document in grades:
            queries.append(judged.queries[query])
            positives.append(text_of[document])
    return Task(ids, texts, queries, positives, max_tokens)


def result_tables(result: Mapping[str, Mapping[str, Any]]) -> str:
    """Return the table of all systems, and the table of BM25 with known queries."""
    return f"{result_table(result)}\n{known_words_table(result)}"


def known_words_table(result: Mapping[str, Mapping[str, Any]]) -> str:
    """Return the gain of BM25 by the words of training queries on each corpus."""
    lines = [
        "| corpus | word weight | bm25_known less bm25 | p |",
        "|---|---|---|---|",
    ]
    for corpus, measured in result.items():
        if BM25_KNOWN in measured:
            known = measured[BM25_KNOWN]
            difference = known["less_bm25"]
            lines.append(
                f"| {corpus} | {known['words']['weight']:g} | {format_difference(difference)} "
                f"| {difference['p']:.4f} |"
            )
    return "\n".join(lines) + "\n"


def result_table(result: Mapping[str, Mapping[str, Any]]) -> str:
    """Return the test metric of each system on each corpus."""
    measured_systems: dict[str, None] = {}
    for measured in result.values():
        measured_systems.update(dict.fromkeys(measured))
    untrained = [system for system in TABLE_ORDER if system in measured_systems]
    trained = [system for system in measured_systems if system not in TABLE_ORDER]
    lines = [
        f"| system | {' | '.join(result)} |",
        f"|---|{'---|' * len(result)}",
    ]
    for system in (*untrained, *trained):
        cells = []
        for measured in result.values():
            # A system that was not measured on this corpus has an empty cell.
            cell = ""
            if system in measured:
                cell = _short(measured[system]["test"][METRIC])
            cells.append(cell)
        lines.append(f"| {system} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _without_details(measured: Mapping[str, Any]) -> dict[str, Any]:
    return {key: measured[key] for key in ("dev", "test", "cpu_seconds")}


def _short(value: float) -> str:
    return f"{value:.3f}".removeprefix("0")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("--data", type=Path, required=True, help="folder of the data sets")
    parser.add_argument("--cache", type=Path, required=True, help="folder of downloads and builds")
    parser.add_argument("--settings", type=Path, default=SETTINGS, help="another settings file")
    parser.add_argument("--output", type=Path, default=HERE, help="folder of result and page")
    return parser


if __name__ == "__main__":
    main()
