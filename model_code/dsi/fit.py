"""Train a DSI retriever, which searches one learned vector per document.

Training writes three parts. `encoder/` is the base encoder unless it is trained too, and
`history.json` is the training curve. `document_vectors/` is a dense index, with the mean query
vector of each document.

Training moves a document's vector away from the queries of other documents. A document that is
added later only has its encoding, which training never moved. Encodings have unit norm, and with
this norm they would rank first for too many queries of older documents. A shorter vector has lower
scores. Training therefore also measures a factor by which the encodings of added documents are
multiplied, called their scale; see `largest_safe_scale`.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import numpy as np
import torch

from model_code.context import StageContext
from model_code.corpus.tables import load_corpus
from model_code.distributed.encoding import encode_resumably
from model_code.dsi.settings import DocumentVectorSettings
from model_code.dsi.trainer import DocumentTrainer, QueryVectors, loop_settings, pool_pairs
from model_code.dsi.vectors import (
    REPRESENTATIVES,
    add_representatives,
    document_means,
    mean_by_owner,
)
from model_code.encoding.encoder import Encoder
from model_code.errors import FreshetError
from model_code.files import MANIFEST, read_json
from model_code.progress import Progress
from model_code.retrieval.dense_index import DenseIndex
from model_code.retrieval.index_settings import ALWAYS_EXACT, IndexSettings
from model_code.retrieval.indexing import save_index
from model_code.training.data import TrainingData
from model_code.training.fit import (
    load_start_encoder,
    make_trainer,
    reusable_vectors,
    write_training_report,
)
from model_code.training.settings import TrainingSettings
from model_code.training.tables import DevEvaluator, TrainingTables

# `largest_safe_scale` needs queries that added documents could harm. With fewer such queries than
# this, it returns no scale, because the result would be mostly chance.
MIN_ANSWERED_QUERIES = 30

# Largest number of scores (queries times documents) that `largest_safe_scale` keeps in memory.
MAX_SCORES_AT_ONCE = 2**24

# Second part of the seed of random start vectors. It makes them independent of other random numbers
# that are drawn with the project's seed.
VECTOR_STREAM = 23

# Largest number of trained documents that stand for added ones when the scale is measured. At most
# half of all documents are used.
MAX_SAMPLE_DOCUMENTS = 5000


def fit_document_vectors(context: StageContext, tables: TrainingTables) -> dict[str, Any]:
    """Train a vector for each document, and write the output of the stage `train`.

    A DSI retriever searches one learned vector per document. Training moves the vectors so that the
    queries of a document find it. If the settings ask for it, the query encoder is trained as well.
    Afterwards the scale for the encodings of documents that are added later is measured.

    Args:
        context: Context of the stage `train`, with the retriever's settings.
        tables: Pairs, passages and dev queries of the corpus.

    Returns:
        Report of the stage: the training data, the best step, the encoder's fingerprint, and the
        measured scale (None if it could not be measured).
    """
    vector_settings: DocumentVectorSettings = context.settings["retriever"].document_vectors
    training: TrainingSettings = context.settings["retriever"].training
    seed: int = context.settings["seed"]

    encoder = load_start_encoder(context, training.start)
    data = tables.training_data(training)
    pooled_data = pool_pairs(data)

    # Choose the vectors that training starts from, one per document.
    starts_at_random = vector_settings.initial == "random"
    if starts_at_random:
        start_vectors = random_unit_vectors(len(tables.number), encoder.dimension, seed)
    else:
        start_vectors = _encode_start_vectors(context, tables, encoder)

    # If the encoder is frozen, each query is encoded only once, before training.
    query_vectors = None
    if not vector_settings.train_encoder:
        query_vectors = _encode_queries(context, encoder, pooled_data, "queries")

    # Rank the whole corpus in each evaluation. This is cheap here, because no passage is encoded.
    dev = tables.dev_evaluator(training.replace(dev_passages=None), seed)
    # Training changes the parameter in place, and the start vectors are needed afterwards.
    vectors = torch.nn.Parameter(torch.from_numpy(start_vectors.copy()))
    trainer = make_trainer(
        DocumentTrainer,
        context,
        encoder,
        pooled_data,
        loop_settings(vector_settings, training, len(pooled_data.pairs)),
        dev,
        vector_settings=vector_settings,
        vectors=vectors,
        query_vectors=query_vectors,
    )
    trainer.fit()

    # To measure the scale, encodings of the documents are needed. The start vectors can be used if
    # they are encodings and training did not change the encoder.
    are_encodings = not starts_at_random and not vector_settings.train_encoder
    encodings = start_vectors if are_encodings else None
    scale = measure_encoding_scale(trainer, encodings, seed, context.progress("encode a sample"))

    encoder.save(context.output / "encoder")
    fingerprint = encoder.fingerprint()
    report = write_training_report(context, tables, data, training, trainer)
    report["fingerprint"] = fingerprint
    report["encoding_scale"] = scale
    saved_scale = 1.0 if scale is None else scale
    report.update(_save_vectors(context, tables, trainer, fingerprint, saved_scale))
    return report


def random_unit_vectors(count: int, dimension: int, seed: int) -> np.ndarray:
    """Draw `count` directions, all equally likely: (count, dimension) float32 of unit norm.

    >>> random_unit_vectors(2, 3, seed=0).shape
    (2, 3)
    """
    vectors = np.random.default_rng([seed, VECTOR_STREAM]).standard_normal((count, dimension))
    norms = np.linalg.norm(vectors, axis=1, keepdims=True)
    return (vectors / norms).astype(np.float32)


def _encode_start_vectors(
    context: StageContext, tables: TrainingTables, encoder: Encoder
) -> np.ndarray:
    """Return the mean of each document's passage vectors, (n, H) float32.

    The vectors of the base index are used if they come from the same encoder and texts.
    """
    vectors = reusable_vectors(context, encoder, tables.corpus)
    if vectors is None:
        vectors = encode_resumably(
            encoder,
            list(tables.passages.texts),
            context.checkpoints / "passages",
            context.progress("encode passages"),
            "encode_documents",
        )
    return document_means(vectors, tables.passages.documents, len(tables.number))


def _encode_queries(
    context: StageContext, encoder: Encoder, data: TrainingData, folder: str
) -> QueryVectors:
    """Encode the queries of all pairs.

    Args:
        context: Context of the stage.
        encoder: Encoder of the queries.
        data: The training pairs.
        folder: Name of the folder of finished batches, from which an interrupted encoding resumes.
    """
    checkpoint_folder = context.checkpoints / folder
    progress = context.progress("encode queries")
    return QueryVectors.encode(data.pairs, encoder, checkpoint_folder, progress)


def _save_vectors(
    context: StageContext,
    tables: TrainingTables,
    trainer: DocumentTrainer,
    fingerprint: str,
    scale: float,
) -> dict[str, Any]:
    """Write the trained vectors and the mean query vector of each document; return their counts.

    IncDSI calls the mean query vectors representatives, and needs them to add documents later.

    Args:
        context: Context of the stage.
        tables: Tables of the corpus, with the ids of the documents.
        trainer: A trainer whose method `fit` has run.
        fingerprint: Fingerprint of the query encoder.
        scale: Scale of the encodings of added documents.
    """
    data = trainer.data
    vectors = trainer.vectors.detach().cpu().numpy()
    queries = trainer.query_vectors
    if queries is None:
        # The encoder was trained, so its queries must be encoded again.
        queries = _encode_queries(context, trainer.encoder, data, "trained_queries")

    # `owners` has the document of each training pair. A document is represented by the mean vector
    # of its queries.
    owners = data.passages.documents[data.pairs.passages]
    means, counts = mean_by_owner(queries.vectors[queries.rows], owners, len(vectors))
    # A document without queries is represented by its own vector.
    has_no_queries = counts == 0
    means[has_no_queries] = vectors[has_no_queries]

    folder = context.output / "document_vectors"
    exact = IndexSettings(flat_below=ALWAYS_EXACT)
    DenseIndex.build(vectors, list(tables.number), fingerprint, exact).save(folder)
    add_representatives(folder, means, scale)
    return {
        "documents": len(vectors),
        "documents_without_queries": int(has_no_queries.sum()),
    }


def largest_safe_scale(
    vectors: np.ndarray,
    sample: np.ndarray,
    encodings: np.ndarray,
    queries: np.ndarray,
    relevant: Sequence[Collection[int]],
) -> float | None:
    """Return the largest factor c for encodings of added documents that harms no old documents.

    An added document has the vector c * encoding. If c is too large, it ranks above old documents
    for their queries. To find c, a sample of the trained documents plays the part of added ones.

    The best answer of a query is the document with the highest score that answers it. A query
    counts if its best answer scores above 0 and above all other documents outside the sample. Such
    a query is lost if a document of the sample scores at least as high as the best answer, although
    it does not answer the query.

    Some queries are lost even if the documents of the sample have their learned vectors. The result
    is the largest c with which no more queries are lost than that. An added document then harms old
    documents no more than if it had been trained together with them.

    Args:
        vectors: Learned vectors V, (n, H).
        sample: Rows of V of the documents in the sample, (s,).
        encodings: The encoder's vectors of the documents in the sample, (s, H).
        queries: Vectors of queries that were not trained on, (m, H).
        relevant: For each query, the rows of V of the documents that answer it.

    Returns:
        The factor c. None if fewer than `MIN_ANSWERED_QUERIES` queries count, or if no factor is
        too large.

    >>> learned, encoded = np.array([[1.0, 0.0], [0.5, 0.0]]), np.array([[1.0, 0.0]])
    >>> queries = np.stack([np.linspace(1, 2, 40), np.zeros(40)], axis=1)
    >>> # At scale 1 the encoding of document 1 would win all 40 queries of document 0.
    >>> round(largest_safe_scale(learned, np.array([1]), encoded, queries, [{0}] * 40), 6)
    1.0
    """
    # The queries are scored in blocks, to bound the memory.
    block_size = MAX_SCORES_AT_ONCE // len(vectors) + 1
    blocks = [np.empty((4, 0))]
    for start in range(0, len(queries), block_size):
        block = slice(start, start + block_size)
        blocks.append(_best_scores(vectors, sample, encodings, queries[block], relevant[block]))
    # For each query, the best score in each of four groups of vectors. All four arrays are (m,).
    # - answers: learned vectors of the documents that answer the query
    # - outside_sample: learned vectors of the other documents outside the sample
    # - learned: learned vectors of the other documents in the sample
    # - encoded: encodings of the documents of the group `learned`
    answers, outside_sample, learned, encoded = np.concatenate(blocks, axis=1)

    is_counted = (answers > outside_sample) & (answers > 0)
    lost_by_learned = int((learned >= answers)[is_counted].sum())
    # As the scale c grows, a query is lost when c * encoded reaches the score of its best answer,
    # which is at c = answers / encoded. If `encoded` is at most 0, it never is.
    can_be_lost = is_counted & (encoded > 0)
    losing_scales = np.sort(answers[can_be_lost] / encoded[can_be_lost])
    no_scale_is_too_large = lost_by_learned >= len(losing_scales)
    if is_counted.sum() < MIN_ANSWERED_QUERIES or no_scale_is_too_large:
        return None
    # At this scale, one query more would be lost than with the learned vectors. So return the next
    # smaller number.
    return float(np.nextafter(losing_scales[lost_by_learned], 0))


def _best_scores(
    vectors: np.ndarray,
    sample: np.ndarray,
    encodings: np.ndarray,
    queries: np.ndarray,
    relevant: Sequence[Collection[int]],
) -> np.ndarray:
    """Return the best score of each of b queries in four groups of vectors.

    The groups of a query are:

    1. The learned vectors of the documents that answer the query.
    2. The learned vectors of the other documents outside the sample.
    3. The learned vectors of the other documents in the sample.
    4. The encodings of the documents of group 3.

    Args:
        vectors: Learned vectors of all documents, (n, H).
        sample: Rows in `vectors` of the documents in the sample, (s,).
        encodings: Encodings of the documents in the sample, (s, H).
        queries: Vectors of the queries, (b, H).
        relevant: For each query, the rows in `vectors` of the documents that answer it.

    Returns:
        Scores (4, b), one row per group. The best score of an empty group is -inf.
    """
    position_in_sample = {int(row): i for i, row in enumerate(sample)}
    learned_scores = queries @ vectors.T
    encoded_scores = queries @ encodings.T

    # Group 1. Its scores are then overwritten by -inf, so that no other group counts these
    # documents. The encodings of documents that answer the query are overwritten as well.
    answers = np.empty(len(queries))
    for query, rows in enumerate(relevant):
        answer_rows = list(rows)
        answers[query] = learned_scores[query, answer_rows].max()
        learned_scores[query, answer_rows] = -np.inf
        positions = [position_in_sample[row] for row in rows if row in position_in_sample]
        encoded_scores[query, positions] = -np.inf

    # Group 3. Its scores are then overwritten as well, which leaves those of group 2.
    in_sample = learned_scores[:, sample].max(axis=1, initial=-np.inf)
    learned_scores[:, sample] = -np.inf
    outside_sample = learned_scores.max(axis=1)

    # Group 4.
    encoded = encoded_scores.max(axis=1, initial=-np.inf)
    return np.stack([answers, outside_sample, in_sample, encoded])


def measure_encoding_scale(
    trainer: DocumentTrainer, encodings: np.ndarray | None, seed: int, progress: Progress
) -> float | None:
    """Measure the scale for encodings of added documents after training, on the dev queries.

    A random sample of the trained documents plays the part of added documents; see
    `largest_safe_scale`.

    Args:
        trainer: A trainer whose method `fit` has run.
        encodings: The encodings of all documents by the trainer's encoder, (n, H). None: the
            documents of the sample are encoded.
        seed: Seed of the sample.
        progress: Called while the sample is encoded.

    Returns:
        The scale, or None if it cannot be measured, for example without dev queries.
    """
    dev = trainer.dev
    vectors = trainer.vectors.detach().cpu().numpy()
    sample_size = min(len(vectors) // 2, MAX_SAMPLE_DOCUMENTS)
    if dev is None or sample_size == 0:
        return None

    sample = np.sort(np.random.default_rng(seed).permutation(len(vectors))[:sample_size])
    if encodings is None:
        sample_encodings = _encode_documents(trainer.encoder, dev, sample, progress)
    else:
        sample_encodings = encodings[sample]
    relevant = [[int(document) for document in judged] for judged in dev.qrels.values()]
    return largest_safe_scale(vectors, sample, sample_encodings, trainer.dev_queries(dev), relevant)


def _encode_documents(
    encoder: Encoder, dev: DevEvaluator, documents: np.ndarray, progress: Progress
) -> np.ndarray:
    """Return the mean of each given document's passage vectors, (s, H) float32, of unit norm."""
    texts: list[str] = []
    owners: list[int] = []
    for number, document in enumerate(documents.tolist()):
        rows = dev.passages.of(document).tolist()
        texts.extend(dev.passages.texts[row] for row in rows)
        owners.extend([number] * len(rows))
    vectors = encoder.encode_documents_by_last_layer(texts, progress)
    return document_means(vectors, np.array(owners), len(documents))


def index_documents(context: StageContext) -> dict[str, Any]:
    """Build the index of a DSI retriever from its trained document vectors; nothing is encoded.

    The vectors are read from `inputs["trained"]`. The folder `index/` is a `DenseIndex` with one
    row per document. It also holds the mean query vector of each document. IncDSI needs these to
    compute vectors for documents that are added to a live collection.

    Returns:
        Counts of the index, for the report of the stage `index`.

    Raises:
        FreshetError: If the corpus has other documents than training had.
    """
    folder = context.inputs["trained"] / "document_vectors"
    trained = DenseIndex.load(folder)
    scale = read_json(folder / MANIFEST)["encoding_scale"]

    documents = load_corpus(context.inputs["corpus"]).passages["document_id"]
    differing = sorted(set(documents) ^ set(trained.document_ids))
    if differing:
        raise FreshetError(
            f"the corpus and the trained vectors differ by {len(differing)} documents "
            f"({differing[0]!r} is one); every document needs a vector: train again"
        )

    index = DenseIndex.build(
        trained.vectors, trained.document_ids, trained.fingerprint, context.settings["index"]
    )
    report = save_index(index, context)
    add_representatives(context.output / "index", np.load(folder / REPRESENTATIVES), scale)
    return report
