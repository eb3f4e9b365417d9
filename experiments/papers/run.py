"""Train the papers' methods in the papers' own forms, and compare each with its control.

`python -m experiments.papers.run --data FOLDER --cache FOLDER` trains every row of `settings.toml`.
It writes `result.json` after each row, and then the tables of `README.md`. Rows that `result.json`
contains are not trained again. An interrupted row resumes from its last checkpoint.

`--parts hce svdr` trains only these parts. With `--minutes 35`, no further row of a part is started
once its rows have taken 35 minutes of processor time.
"""

from __future__ import annotations

import argparse
import shutil
import time
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from experiments.papers.data import INDEX, add_hierarchy, prepare_corpus
from experiments.papers.evaluation import METRICS, evaluate
from experiments.papers.masked_model import masked_model
from experiments.papers.report import result_tables
from experiments.tables import write_tables
from model_code.context import StageContext
from model_code.corpus.tables import load_corpus, passage_texts
from model_code.encoding.encoder import Encoder
from model_code.encoding.settings import EncoderSettings
from model_code.evaluation.system_evaluation import reciprocal_rank_fusion
from model_code.files import hash_text, read_json, write_json
from model_code.hierarchy.settings import HierarchySettings
from model_code.retrieval.bm25_index import Bm25Index
from model_code.retrieval.dense import DenseRetriever
from model_code.retrieval.dense_index import DenseIndex
from model_code.retrieval.kinds import open_retriever
from model_code.retrieval.top_k import top_k
from model_code.retriever_settings import parse_retriever
from model_code.settings import parse
from model_code.stages import index, train

HERE = Path(__file__).parent
SETTINGS = HERE / "settings.toml"
RESULT = "result.json"
DECIMALS = 4
# This name of a base encoder in the settings means the masked language model of `masked_model`.
MASKED = "masked"


@dataclass(frozen=True)
class Row:
    """One training of the experiment.

    Attributes:
        part: Part of the settings.
        corpus: Name of the corpus.
        name: Name of the retriever within its part.
        seed: Seed of the training.
    """

    part: str
    corpus: str
    name: str
    seed: int

    @property
    def key(self) -> str:
        """Key of the row in the results."""
        return f"{self.part}/{self.corpus}/{self.name}/{self.seed}"


def main(arguments: Sequence[str] | None = None) -> None:
    """Train the rows that are missing, and write results and tables."""
    options = _parser().parse_args(arguments)
    settings = tomllib.loads(options.settings.read_text(encoding="utf-8"))
    experiment = Experiment(settings, options.data.resolve(), options.cache.resolve())
    file = options.output / RESULT

    for part in options.parts or settings["parts"]:
        for row in rows_of(part, settings["parts"][part]):
            result = read_result(file)
            if seconds_spent(result, part) > 60 * options.minutes:
                print(f"{part}: {options.minutes:g} minutes are over, the remaining rows wait")
                break
            if experiment.is_measured(row, result):
                continue
            if row.corpus not in result["references"]:
                references = experiment.measure_references(row.corpus)
                add_to_result(file, "references", row.corpus, references)
            measured = experiment.measure(row)
            add_to_result(file, "rows", row.key, measured)
            print(row.key, measured["test"], flush=True)

    if (options.output / "README.md").is_file():
        write_tables(options.output, result_tables(settings, read_result(file)))


def _parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("--data", type=Path, required=True, help="folder of the data sets")
    parser.add_argument("--cache", type=Path, required=True, help="folder of downloads and builds")
    parser.add_argument("--parts", nargs="+", help="parts of the settings; all of them if left out")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="per part")
    parser.add_argument("--settings", type=Path, default=SETTINGS, help="another settings file")
    parser.add_argument("--output", type=Path, default=HERE, help="folder of result and page")
    return parser


def read_result(file: Path) -> dict[str, Any]:
    """Return the results so far."""
    if not file.is_file():
        return {"references": {}, "rows": {}}
    result: dict[str, Any] = read_json(file)
    return result


def add_to_result(file: Path, table: str, key: str, measured: Mapping[str, Any]) -> None:
    """Write one entry of `result.json`.

    The file is read again first, because another process may have written other entries.
    """
    result = read_result(file)
    result[table][key] = measured
    write_json(file, result)


def rows_of(part: str, settings: Mapping[str, Any]) -> Iterator[Row]:
    """Yield the rows of a part: all rows of the first seed, then all rows of the next one."""
    for seed in settings["seeds"]:
        for corpus in settings["corpora"]:
            for name in settings["retrievers"]:
                yield Row(part, corpus, name, seed)


def seconds_spent(result: Mapping[str, Any], part: str) -> float:
    """Return the processor time of the measured rows of a part."""
    rows = result["rows"]
    return sum(rows[key]["cpu_seconds"] for key in rows if key.startswith(f"{part}/"))


class Experiment:
    """Measures rows of the settings.

    Args:
        settings: All settings.
        data: Folder of the data sets.
        cache: Folder of downloads and builds.
    """

    def __init__(self, settings: Mapping[str, Any], data: Path, cache: Path) -> None:
        self.settings = settings
        self.data = data
        self.cache = cache

    def row_settings(self, row: Row) -> dict[str, Any]:
        """Return all settings that the result of a row depends on, as plain values."""
        part = self.settings["parts"][row.part]
        return {
            "corpus": self.settings["corpora"][row.corpus],
            "sizes": self.settings["sizes"],
            "encoder": self.settings["encoder"],
            "training": {**self.settings["training"], **part["training"]},
            "retriever": part["retrievers"][row.name],
            "branching": part.get("branching"),
        }

    def is_measured(self, row: Row, result: Mapping[str, Any]) -> bool:
        """Return whether the result holds the row with its present settings."""
        measured = result["rows"].get(row.key)
        return measured is not None and measured["settings"] == self.row_settings(row)

    def measure(self, row: Row) -> dict[str, Any]:
        """Train, index and evaluate a row.

        Returns:
            The settings, the metrics on dev and test, the metrics of variants of the search with
            the same encoder, the losses at the beginning and the end, the number of steps, and the
            processor time.
        """
        started = time.process_time()
        settings = self.row_settings(row)
        groups = self.stage_settings(row)
        inputs = prepare_corpus(row.corpus, self.settings, self.data, self.cache)
        inputs = add_hierarchy(inputs, groups["hierarchy"])

        # The folder of a row keeps its checkpoints until the row is measured. Outputs of an
        # interrupted run are deleted.
        folder = self.cache / "rows" / hash_text(f"{row.key} {settings}")[:16]
        trained = folder / "train"
        indexed = folder / "index"
        for output in (trained, indexed):
            shutil.rmtree(output, ignore_errors=True)
        for needed in (trained, indexed, folder / "training", folder / "indexing"):
            needed.mkdir(parents=True, exist_ok=True)
        report = train.run(
            StageContext(self.data, inputs, trained, groups, folder / "training", row.name)
        )
        inputs = {**inputs, "trained": trained}
        index.run(StageContext(self.data, inputs, indexed, groups, folder / "indexing", row.name))

        retriever = open_retriever(trained / "encoder", indexed / "index", groups["encoder"])
        corpus = load_corpus(inputs["corpus"])
        metrics = evaluate(corpus, retriever.search)
        variants = {}
        for name, search in retriever.variants().items():
            variants[name] = evaluate(corpus, search)

        history = read_json(trained / "history.json")
        losses = [line for line in history if "loss" in line]
        shutil.rmtree(folder)
        return {
            "settings": settings,
            **metrics,
            "variants": variants,
            "first_losses": _rounded(losses[0]),
            "last_losses": _rounded(losses[-1]),
            "best_step": report["best_step"],
            "steps": report["steps"],
            "reclustered_at": report["reclustered_at"],
            "cpu_seconds": round(time.process_time() - started, 1),
        }

    def stage_settings(self, row: Row) -> dict[str, Any]:
        """Return the parsed settings of the stages that train and index a row."""
        settings = self.row_settings(row)
        group = _without_null(settings["retriever"])
        if group.get("base") == MASKED:
            group["base"] = str(masked_model(self.settings["masked"], self.cache))
        shared = _without_null(settings["training"])
        return {
            "encoder": parse(EncoderSettings, self.settings["encoder"], "encoder"),
            "hierarchy": HierarchySettings(branching=settings["branching"]),
            "index": INDEX,
            "known_queries.use": False,
            "retriever": parse_retriever(group, shared, f"parts.{row.part}.{row.name}"),
            "seed": row.seed,
        }

    def measure_references(self, name: str) -> dict[str, Any]:
        """Return the sizes of a corpus, and the metrics of the systems that are not trained.

        These are BM25, the base encoder (`zero_shot`), and the fusion of both by reciprocal ranks
        (`untrained`).
        """
        inputs = prepare_corpus(name, self.settings, self.data, self.cache)
        corpus = load_corpus(inputs["corpus"])
        encoder_settings = parse(EncoderSettings, self.settings["encoder"], "encoder")
        encoder = Encoder.from_settings(encoder_settings, for_search=True)
        base = DenseRetriever(encoder, DenseIndex.load(inputs["base_index"]))

        ids = corpus.passages["document_id"].tolist()
        words = Bm25Index.build(passage_texts(corpus.passages, include_title=True), ids)

        def search_words(texts: Sequence[str], k: int) -> list[Any]:
            """Search with BM25; see `Search`."""
            return [top_k(words.scores(text), ids, k) for text in texts]

        def search_both(texts: Sequence[str], k: int) -> list[Any]:
            """Search with BM25 and with the base encoder, and fuse their rankings; see `Search`."""
            fused = []
            for rankings in zip(search_words(texts, k), base.search(texts, k), strict=True):
                fused.append(reciprocal_rank_fusion(rankings, k))
            return fused

        queries = {}
        for split in ("train", "dev", "test"):
            queries[split] = len(corpus.judgements(split).queries)
        return {
            "documents": len(corpus.documents),
            "queries": queries,
            "bm25": evaluate(corpus, search_words),
            "zero_shot": evaluate(corpus, base.search),
            "untrained": evaluate(corpus, search_both),
        }


def _rounded(line: Mapping[str, float]) -> dict[str, float]:
    """Return only the losses of a line of the training curve, rounded."""
    others = ("learning_rate", "step", METRICS[0])
    return {name: round(value, DECIMALS) for name, value in line.items() if name not in others}


def _without_null(group: Mapping[str, Any]) -> dict[str, Any]:
    """Replace the text "null" by None in a group of settings. TOML has no value for it."""
    values: dict[str, Any] = {}
    for key, value in group.items():
        if isinstance(value, Mapping):
            values[key] = _without_null(value)
        elif value == "null":
            values[key] = None
        else:
            values[key] = value
    return values


if __name__ == "__main__":
    main()
