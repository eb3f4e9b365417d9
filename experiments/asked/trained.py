"""Measure known queries beside trainings on them: an encoder, DSI, and a full retrain.

The encoder `hce` is trained on the known queries of old documents. Then documents arrive with
queries. They can be added in the ways of `arrivals`. Or the encoder is trained again from its
beginning, with the queries that arrived. DSI learns a vector per document from all known queries.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from experiments.asked.arrivals import Arrival, Experiment, IndexingMethod, random_arrivals
from experiments.asked.choices import (
    choose_for_old,
    choose_incdsi,
    compare_methods,
    difference_row,
    indexing_methods,
)
from experiments.asked.data import Dataset, Encoded, EncoderSource
from experiments.asked.memory import Collection, Trial
from experiments.papers.data import INDEX, add_hierarchy
from model_code.context import StageContext
from model_code.corpus.tables import make_table, write_table
from model_code.encoding.encoder import Encoder
from model_code.encoding.settings import EncoderSettings
from model_code.files import read_json, write_json
from model_code.hierarchy.settings import HierarchySettings
from model_code.retrieval.dense_index import DenseIndex
from model_code.retriever_settings import parse_retriever
from model_code.stages import train

# The file that marks a finished training. It holds the step of the best checkpoint.
FINISHED = "finished.json"


@dataclass(frozen=True)
class Training:
    """A training on known queries.

    Attributes:
        retriever: Name of the retriever in the settings, "hce" or "dsi".
        documents: Numbers of the documents that it is trained with.
        known: Ids of the queries that it is trained on.
        base: Folder or name of the encoder that it starts from.
    """

    retriever: str
    documents: Sequence[int]
    known: Sequence[str]
    base: str


def measure_trained(
    collection: Collection,
    encoder: EncoderSource,
    options: Mapping[str, Any],
    settings: Mapping[str, Any],
    cache: Path,
) -> dict[str, Any]:
    """Compare the ways to add documents under the pretrained and under a trained encoder.

    Args:
        collection: The collection, encoded by the pretrained encoder.
        encoder: The pretrained encoder.
        options: Settings of the collection.
        settings: All settings of the experiment.
        cache: Folder of trained encoders and their vectors.

    Returns:
        A row like those of `measure_arrivals` for each encoder. The row of the pretrained encoder
        also has DSI, that of `hce` also has DSI and the full retrain. `hce` is left out if its
        training did not improve the dev metric.
    """
    dataset = collection.dataset
    arrivals = random_arrivals(collection, options, settings["seed"])
    tested = arrivals["test"]
    everything = list(range(len(dataset.ids)))

    # Documents that arrive for tuning are new to the first training as well. So dev sees IncDSI
    # under an encoder that was not trained on their queries.
    new = set(arrivals["tuning"].new.tolist()) | set(tested.new.tolist())
    earlier = [number for number in everything if number not in new]
    earlier_known = [query for query in tested.old_known if tested.qrels[query].isdisjoint(new)]
    all_known = list(tested.old_known)
    for queries in tested.row_queries.values():
        all_known.extend(queries)

    def train_encoder(name: str, training: Training) -> tuple[Collection, EncoderSource]:
        folder = train_retriever(collection, training, settings, cache / name)
        source = EncoderSource(name, str(folder / "encoder"), encoder.max_tokens)
        return encode_again(collection, source, cache / name), source

    def learn_vectors(name: str, start: Collection, source: EncoderSource) -> Collection:
        training = Training("dsi", everything, all_known, source.path)
        folder = train_retriever(start, training, settings, cache / name)
        vectors = load_document_vectors(folder, dataset.ids)
        return start.with_encodings(replace(start.documents, vectors=vectors), start.queries)

    hce, hce_source = train_encoder("hce", Training("hce", earlier, earlier_known, encoder.path))
    retrained, _ = train_encoder("retrained", Training("hce", everything, all_known, encoder.path))
    trained_again = {
        "pretrained": {"DSI": learn_vectors("dsi-pretrained", collection, encoder)},
        "hce": {"DSI": learn_vectors("dsi-hce", hce, hce_source), "full retrain": retrained},
    }
    systems = {"pretrained": collection}
    if is_improved(cache / "hce" / "train"):
        systems["hce"] = hce
    rows = {}
    for name, encoded in systems.items():
        rows[name] = compare_with_trainings(encoded, trained_again[name], arrivals, settings)
    return rows


def train_on_known(
    collection: Collection,
    trial: Trial,
    encoder: EncoderSource,
    settings: Mapping[str, Any],
    folder: Path,
) -> Collection:
    """Train `hce` on the known queries of a trial, and encode the collection again.

    Args:
        collection: The collection, encoded by the pretrained encoder.
        trial: Division of its queries. Dev queries choose the best checkpoint.
        encoder: The pretrained encoder.
        settings: All settings of the experiment.
        folder: Folder of the training and its vectors.
    """
    dataset = collection.dataset
    known = {query: trial.qrels[query] for query in trial.dev_known}
    dev = {query: trial.qrels[query] for query in trial.dev}
    divided = collection.with_qrels({"train": known, "dev": dev})
    documents = range(len(dataset.ids))
    training = Training("hce", documents, trial.dev_known, encoder.path)
    trained = train_retriever(divided, training, settings, folder)
    source = EncoderSource("hce", str(trained / "encoder"), encoder.max_tokens)
    return encode_again(collection, source, folder)


def encode_again(collection: Collection, source: EncoderSource, cache: Path) -> Collection:
    """Return the collection, encoded by another encoder.

    Args:
        collection: The collection.
        source: The other encoder.
        cache: Folder of its vectors.
    """
    dataset = collection.dataset
    documents = Encoded.load_or_encode(dataset.texts, source, cache / "documents", passages=True)
    queries = Encoded.load_or_encode(
        list(dataset.queries.values()), source, cache / "queries", passages=False
    )
    return collection.with_encodings(documents, queries)


def compare_with_trainings(
    collection: Collection,
    trained_again: Mapping[str, Collection],
    arrivals: Mapping[str, Arrival],
    settings: Mapping[str, Any],
) -> dict[str, Any]:
    """Compare the methods of indexing under one encoder with trainings that saw all known queries.

    Args:
        collection: The collection under the encoder.
        trained_again: The collection under each of the trainings, by the name of its row.
        arrivals: The divisions for tuning and testing.
        settings: All settings of the experiment.
    """
    tuning = arrivals["tuning"]
    tested = arrivals["test"]
    words, weights, choices = choose_for_old(collection, tuning, settings)
    incdsi, tried = choose_incdsi(collection, tuning, words, weights, settings["incdsi"])
    nearest = choose_nearest(
        Experiment(collection, tuning, words, weights), settings["nearest"]["penalties"]
    )
    experiment = Experiment(collection, tested, words, weights)
    methods = [*indexing_methods(incdsi), nearest]
    row = compare_methods(experiment, methods, settings["seed"])

    old_plain, new_plain, _ = experiment.evaluate(methods[0])
    for name, trained in trained_again.items():
        words, weights, choices[name] = choose_for_old(trained, tuning, settings)
        after = Experiment(trained, tested, words, weights)
        for suffix, used in (("", "none"), (" and words of all", "all")):
            old, new, _ = after.evaluate(IndexingMethod(name, used))
            row["ways"][name + suffix] = difference_row(
                old, new, old_plain, new_plain, settings["seed"]
            )
    row["choices"] = {**choices, "incdsi": asdict(incdsi), "nearest": nearest.nearest}
    row["tried"] = tried
    return row


def choose_nearest(experiment: Experiment, penalties: Sequence[float]) -> IndexingMethod:
    """Choose the penalty of the score of a document's nearest known query, on dev queries."""
    best_mean = -1.0
    for penalty in penalties:
        method = IndexingMethod("nearest query", "none", nearest=penalty)
        old, new, _ = experiment.evaluate(method)
        mean = float(np.concatenate([old, new]).mean())
        if mean > best_mean:
            best = method
            best_mean = mean
    return best


def train_retriever(
    collection: Collection, training: Training, settings: Mapping[str, Any], folder: Path
) -> Path:
    """Train a retriever on known queries, unless the folder holds the finished training.

    Args:
        collection: The collection, encoded by the encoder that the training starts from.
        training: Documents and queries of the training.
        settings: All settings of the experiment.
        folder: Folder of the training.

    Returns:
        The folder with the output of the stage `train`.
    """
    trained = folder / "train"
    if (folder / FINISHED).is_file():
        return trained

    shutil.rmtree(folder, ignore_errors=True)
    for name in ("corpus", "train", "checkpoints"):
        (folder / name).mkdir(parents=True)
    write_corpus(collection.dataset, training, folder / "corpus")

    encoder_settings = EncoderSettings(base=training.base, max_tokens=settings["max_tokens"])
    fingerprint = Encoder.from_settings(encoder_settings).fingerprint()
    ids = [collection.dataset.ids[number] for number in training.documents]
    vectors = collection.documents.vectors[np.array(training.documents)]
    DenseIndex.build(vectors, ids, fingerprint, INDEX).save(folder / "base_index")

    hierarchy_settings = HierarchySettings()
    inputs = {
        "corpus": folder / "corpus",
        "pseudo_queries": folder / "corpus",
        "base_index": folder / "base_index",
    }
    inputs = add_hierarchy(inputs, hierarchy_settings)
    groups = {
        "encoder": encoder_settings,
        "hierarchy": hierarchy_settings,
        "index": INDEX,
        "known_queries.use": False,
        "retriever": parse_retriever(
            settings["retrievers"][training.retriever],
            settings["training"],
            f"retrievers.{training.retriever}",
        ),
        "seed": settings["seed"],
    }
    context = StageContext(
        folder, inputs, trained, groups, folder / "checkpoints", training.retriever
    )
    report = train.run(context)
    write_json(folder / FINISHED, {"best_step": report["best_step"]})
    return trained


def is_improved(trained: Path) -> bool:
    """Return whether a training improved on its start by the dev metric.

    Otherwise the best checkpoint is the start, and its rows would repeat those of the start.

    Args:
        trained: Result of `train_retriever`.
    """
    return best_step(trained) > 0


def best_step(trained: Path) -> int:
    """Return the step of the best checkpoint of a training; 0 for its start."""
    step: int = read_json(trained.parent / FINISHED)["best_step"]
    return step


def load_document_vectors(folder: Path, document_ids: Sequence[str]) -> np.ndarray:
    """Return the vectors (n, H) that DSI learned, in the order of the documents."""
    learned = DenseIndex.load(folder / "document_vectors")
    row_of = {document_id: row for row, document_id in enumerate(learned.document_ids)}
    rows = np.array([row_of[document_id] for document_id in document_ids])
    return np.asarray(learned.vectors[rows], np.float32)


def write_corpus(dataset: Dataset, training: Training, folder: Path) -> None:
    """Write the tables that the stage `train` reads.

    Train queries are the known queries of the training. Dev queries are those of the collection
    whose documents take part. They choose the best checkpoint.

    Args:
        dataset: The collection.
        training: Documents and queries of the training.
        folder: Folder to write to.
    """
    documents = []
    for number in training.documents:
        title, _, text = dataset.texts[number].partition("\n")
        documents.append(
            {
                "document_id": dataset.ids[number],
                "ordinal": 0,
                "title": title,
                "text": text,
                "fields": "{}",
                "content_hash": dataset.ids[number],
            }
        )

    present = set(training.documents)
    known = set(training.known)
    queries = []
    qrels = []
    for split in ("train", "dev"):
        for query, relevant in dataset.qrels[split].items():
            is_used = relevant <= present and (split == "dev" or query in known)
            if not is_used:
                continue
            queries.append({"query_id": query, "text": dataset.queries[query], "split": split})
            for number in sorted(relevant):
                qrels.append(
                    {
                        "query_id": query,
                        "document_id": dataset.ids[number],
                        "relevance": 1,
                        "split": split,
                    }
                )

    write_table(folder, "documents", make_table("documents", documents))
    write_table(folder, "passages", make_table("passages", documents))
    write_table(folder, "queries", make_table("queries", queries))
    write_table(folder, "qrels", make_table("qrels", qrels))
    write_table(folder, "pseudo_queries", make_table("pseudo_queries", []))
