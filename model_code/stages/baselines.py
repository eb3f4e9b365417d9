"""Stage `baselines`: build and evaluate the systems that need no training.

- `bm25`: BM25 over the texts that the encoder sees.
- `bm25_known`: BM25 over documents with the words of their known queries. A known query is one that
  a document is known to answer. The weight of these words is chosen on dev queries.
- `zero_shot`: the base encoder without training.
- `untrained`: the fusion of the base encoder, BM25 and a search of headlines (titles with first
  sentences). It uses `bm25_known` if known queries are used. The search of headlines is not
  evaluated alone.
- `bm25_generated`, if a model writes queries: BM25 over documents with the queries that were
  written for them (docT5query, Nogueira and Lin, 2019).

The systems are evaluated like every retriever. All but `bm25_generated` are also built in a form
that can go live.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from model_code.context import StageContext
from model_code.retriever_settings import FusionSettings
from model_code.stages.stage import (
    BASE_VECTORS,
    RETRIEVER_CODE,
    Stage,
    artifact_paths,
    code_paths,
)
from model_code.text.known_queries import KnownQueryLimits

if TYPE_CHECKING:
    from model_code.corpus.tables import Judgements
    from model_code.retrieval.bm25_known import KnownWords
    from model_code.retrieval.indexed import IndexedRetriever, NewPassages
    from model_code.retrieval.protocol import Ranking, Search
    from model_code.stages.evaluation_set import EvaluationSet
    from model_code.stages.fusion import Folders
    from model_code.stages.known_words import KnownWordsChoice

STAGE = Stage(
    name="baselines",
    description="BM25, with generated queries too if there are any, "
    "the base encoder, and their fusion with headlines.",
    groups=(
        "bm25",
        "encoder",
        "evaluation",
        "known_queries.use",
        "known_queries.weight",
        "known_queries.in_length",
        "known_queries.max_queries",
        "known_queries.max_words",
        "pseudo_queries.generators",
    ),
    inputs=artifact_paths("corpus", "pseudo_queries", "hierarchy", base_index=BASE_VECTORS),
    output="artifacts/baselines",
    code=(
        *RETRIEVER_CODE,
        *code_paths("stages/evaluation_set.py", "stages/fusion.py", "stages/known_words.py"),
    ),
)
NEAREST_QUERY = "nearest_query"
# Name of the component of fusions that searches headlines: titles with first sentences.
HEADLINE = "headline"
# Settings of the baseline `untrained`. Its weights are learned if there are judged dev queries.
UNTRAINED = FusionSettings(of=("zero_shot", "bm25", HEADLINE), feedback=0.3)


def run(context: StageContext) -> dict[str, Any]:
    """Build the baselines, and write one evaluation folder for each.

    A baseline that can go live has its encoder and index below `build/` in its folder. Variants of
    a baseline, which are other ways to search it, are evaluated below `variants/`.

    Returns:
        The mean metrics of each baseline.
    """
    from model_code.retrieval.kinds import open_retriever
    from model_code.stages.evaluation_set import EvaluationSet
    from model_code.stages.fusion import evaluate_fusion

    output = context.output
    evaluation_set = EvaluationSet.load(context)

    # First, build the baselines. Each consists of an encoder folder and an index folder.
    known_words = _choose_known_words(context, evaluation_set)
    zero_shot_folders = _build_zero_shot(context, output / "zero_shot")
    bm25_folders = _build_bm25(context, output / "bm25")
    bm25_known_folders = _build_bm25(context, output / "bm25_known", words=known_words.words)
    headline_folders = _build_headlines(context, zero_shot_folders, output / HEADLINE)

    # Then open them. In some corpora, queries are lines of documents. The evaluation searches such
    # documents without these lines.
    encoder_settings = context.settings["encoder"]
    zero_shot = open_retriever(*zero_shot_folders, settings=encoder_settings)
    bm25 = open_retriever(*bm25_folders, settings=encoder_settings)
    bm25_known = open_retriever(*bm25_known_folders, settings=encoder_settings)
    stripped_zero_shot = evaluation_set.strip_query_lines(zero_shot)
    stripped_bm25 = evaluation_set.strip_query_lines(bm25)
    stripped_bm25_known = evaluation_set.strip_query_lines(bm25_known)

    # Then evaluate them. BM25 is the first, because a variant of `zero_shot` fuses its rankings
    # with those of BM25.
    report: dict[str, Any] = {}
    bm25_runs = evaluation_set.search(stripped_bm25.search)
    report["bm25"] = evaluation_set.evaluate("bm25", bm25_runs, output / "bm25")
    report["zero_shot"] = evaluation_set.evaluate_retriever(
        "zero_shot", stripped_zero_shot, bm25_runs, output / "zero_shot"
    )
    nearest_query_report = _evaluate_nearest_query(context, evaluation_set, zero_shot)
    if nearest_query_report is not None:
        report["zero_shot"]["variants"][NEAREST_QUERY] = nearest_query_report

    known_runs = evaluation_set.search(stripped_bm25_known.search)
    report["bm25_known"] = evaluation_set.evaluate("bm25_known", known_runs, output / "bm25_known")
    report["bm25_known"]["known_words"] = known_words.report

    # Last, build and evaluate the baseline `untrained`, a fusion of the other ones.
    fusion_settings = UNTRAINED
    if context.settings["known_queries.use"]:
        fusion_settings = UNTRAINED.with_known_queries()
    folders = {
        "zero_shot": zero_shot_folders,
        "bm25": bm25_folders,
        "bm25_known": bm25_known_folders,
        HEADLINE: headline_folders,
    }
    components = {name: folders[name] for name in fusion_settings.of}
    report["untrained"] = evaluate_fusion(
        evaluation_set, "untrained", components, fusion_settings, context, output / "untrained"
    )

    if "sequence_to_sequence" in context.settings["pseudo_queries.generators"]:
        report["bm25_generated"] = _evaluate_bm25_generated(context, evaluation_set)
    return report


def check(context: StageContext) -> None:
    """Require the evaluation folders of all baselines, and the builds that can go live.

    `zero_shot` has the variants of a retriever, and `untrained` the variants of a fusion.
    """
    from model_code.checks.evaluations import EvaluationChecker
    from model_code.checks.indexes import check_build
    from model_code.checks.rules import require_same_names

    live_baselines = ["bm25", "bm25_known", "untrained", "zero_shot"]
    expected = list(live_baselines)
    if "sequence_to_sequence" in context.settings["pseudo_queries.generators"]:
        expected.append("bm25_generated")
    evaluated = [path.parent.name for path in context.output.glob("*/metrics.json")]
    require_same_names("one folder per baseline", evaluated, expected)

    checker = EvaluationChecker.load(context)
    variants = {
        "zero_shot": checker.retriever_variants,
        "untrained": checker.fusion_variants(context.output / "untrained"),
    }
    for name in sorted(expected):
        checker.check(name, context.output / name, variants.get(name, frozenset()))
    for name in (*live_baselines, HEADLINE):
        check_build(context.output / name / "build")


def nearest_query(retriever: IndexedRetriever, train: Judgements) -> Search:
    """Return a search that ranks documents by the training queries that ask for them.

    The score of a document is the largest inner product of the query with a training query of the
    document. The search does not use the texts of documents. It therefore shows how well a trained
    retriever could do only by remembering training queries.

    Args:
        retriever: A dense retriever, for its query encoder.
        train: Training queries with their relevant documents.
    """
    import numpy as np

    # Encode the training queries, (n, H), and list the documents that each of them asks for.
    vectors = retriever.encode_queries(list(train.queries.values()))
    relevant_documents = [sorted(train.qrels[query]) for query in train.queries]

    def search(texts: Sequence[str], k: int) -> list[Ranking]:
        rankings = []
        for scores in retriever.encode_queries(texts) @ vectors.T:
            # Training queries are visited from the nearest one on. So the first score of a document
            # is its largest one.
            best: dict[str, float] = {}
            for row in np.argsort(-scores, kind="stable").tolist():
                for document in relevant_documents[row]:
                    best.setdefault(document, float(scores[row]))
                if len(best) >= k:
                    break
            rankings.append(list(best.items())[:k])
        return rankings

    return search


def _evaluate_nearest_query(
    context: StageContext, evaluation_set: EvaluationSet, zero_shot: IndexedRetriever
) -> dict[str, Any] | None:
    """Evaluate the search `nearest_query` as a variant of `zero_shot`, and return its metrics.

    Nothing is evaluated, and None returned, if variants are switched off. The same holds if no
    document is relevant to both a training query and an evaluated query.
    """
    from model_code.corpus.tables import load_corpus
    from model_code.evaluation.scores import VARIANTS_FOLDER

    if not evaluation_set.settings.variants:
        return None
    train = load_corpus(context.inputs["corpus"]).judgements("train")
    trained_documents = _relevant_documents(train)
    evaluated_documents = _relevant_documents(*evaluation_set.judgements.values())
    if trained_documents.isdisjoint(evaluated_documents):
        return None

    runs = evaluation_set.search(nearest_query(zero_shot, train))
    folder = context.output / "zero_shot" / VARIANTS_FOLDER / NEAREST_QUERY
    return evaluation_set.evaluate(f"zero_shot.{NEAREST_QUERY}", runs, folder)


def _evaluate_bm25_generated(
    context: StageContext, evaluation_set: EvaluationSet
) -> dict[str, Any]:
    """Evaluate BM25 over documents with the queries that a model generated for them.

    The index is written to the stage's folder for unfinished work, because it does not go live.
    """
    import pandas as pd

    from model_code.queries.pseudo_queries import queries_by_document
    from model_code.retrieval.kinds import open_retriever

    pseudo_queries = pd.read_parquet(context.inputs["pseudo_queries"] / "pseudo_queries.parquet")
    generated_queries = queries_by_document(pseudo_queries)
    folder = context.checkpoints / "bm25_generated"
    encoder, index = _build_bm25(context, folder, generated_queries)
    retriever = evaluation_set.strip_query_lines(open_retriever(encoder, index), generated_queries)
    runs = evaluation_set.search(retriever.search)
    return evaluation_set.evaluate("bm25_generated", runs, context.output / "bm25_generated")


def _relevant_documents(*splits: Judgements) -> set[str]:
    """Return the ids of all documents that a query of these splits is judged with."""
    documents: set[str] = set()
    for split in splits:
        for grades in split.qrels.values():
            documents.update(grades)
    return documents


def _build_zero_shot(context: StageContext, folder: Path) -> Folders:
    """Build the baseline `zero_shot`: write the base encoder and a copy of its index.

    The base encoder is the pretrained model before any training.

    Args:
        context: Context of the stage.
        folder: The folder to write below.

    Returns:
        The folders of the encoder and of the index that were written.
    """
    from model_code.encoding.encoder import save_base_encoder
    from model_code.files import add_to_manifest
    from model_code.retrieval.kinds import PRECISION
    from model_code.stages.fusion import BUILD

    encoder = folder / BUILD / "encoder"
    index = folder / BUILD / "index"
    save_base_encoder(context.settings["encoder"], encoder)
    shutil.copytree(context.inputs["base_index"], index)
    add_to_manifest(index, {PRECISION: context.settings["encoder"].precision})
    return encoder, index


def _build_headlines(context: StageContext, zero_shot: Folders, folder: Path) -> Folders:
    """Build the search of headlines below `folder`, a component of the baseline `untrained`.

    The headline of a document is its title with its first sentence. Headlines are encoded by the
    base encoder, which is not trained.

    Args:
        context: Context of the stage.
        zero_shot: Folders of the baseline `zero_shot`. Its encoder also encodes the headlines, and
            its index has the settings that the index of headlines gets.
        folder: The folder to write below.

    Returns:
        The folders of the encoder and of the index that were written.
    """
    from model_code.corpus.tables import headlines_of, load_corpus
    from model_code.distributed.encoding import encode_resumably
    from model_code.encoding.encoder import Encoder
    from model_code.files import add_to_manifest
    from model_code.retrieval.dense_index import DenseIndex
    from model_code.retrieval.headline import build_index
    from model_code.retrieval.kinds import PRECISION
    from model_code.stages.fusion import BUILD

    base_encoder, base_index = zero_shot
    settings = context.settings["encoder"]
    encoder = Encoder.from_settings(settings, base_encoder, for_search=True)
    headlines = headlines_of(load_corpus(context.inputs["corpus"]).documents)
    vectors = encode_resumably(
        encoder,
        list(headlines.values()),
        context.checkpoints / HEADLINE,
        context.progress("encode headlines"),
        "encode_documents",
    )

    encoder_folder = folder / BUILD / "encoder"
    index_folder = folder / BUILD / "index"
    shutil.copytree(base_encoder, encoder_folder)
    index_settings = DenseIndex.load(base_index).settings
    build_index(vectors, list(headlines), encoder, index_settings, index_folder)
    add_to_manifest(index_folder, {PRECISION: settings.precision})
    return encoder_folder, index_folder


def _choose_known_words(context: StageContext, evaluation_set: EvaluationSet) -> KnownWordsChoice:
    """Choose on dev queries how the words of known queries count in BM25.

    A known query is one that a document is known to answer.
    """
    from model_code.retrieval.bm25 import Bm25Retriever
    from model_code.stages.known_words import choose_known_words, known_word_variants

    limits = KnownQueryLimits(
        context.settings["known_queries.max_queries"],
        context.settings["known_queries.max_words"],
    )
    variants = known_word_variants(
        context.settings["known_queries.weight"],
        context.settings["known_queries.in_length"],
        limits,
    )

    # Known queries are queries that documents are known to answer. They are indexed once, and the
    # variants only weigh them differently.
    passages = _bm25_passages(context)
    retriever = Bm25Retriever.index(passages, context.settings["bm25"], variants[0])
    return choose_known_words(evaluation_set, variants, retriever)


def _bm25_passages(
    context: StageContext, generated_queries: Mapping[str, Sequence[str]] | None = None
) -> NewPassages:
    """Return the passages for BM25: the texts that the encoder sees, and known queries.

    Args:
        context: Context of the stage.
        generated_queries: Generated queries by document id, which are appended to the texts.
    """
    from model_code.corpus.corpus_queries import CorpusQueries
    from model_code.corpus.tables import load_corpus, passage_texts
    from model_code.queries.pseudo_queries import expand_texts
    from model_code.retrieval.indexed import NewPassages

    passages = load_corpus(context.inputs["corpus"]).passages
    document_ids = passages["document_id"].tolist()
    texts = passage_texts(passages, context.settings["encoder"].include_title)
    texts = expand_texts(texts, document_ids, generated_queries or {})
    known = CorpusQueries.of_corpus(context.inputs["corpus"]).by_document()
    return NewPassages(texts, document_ids, known=known)


def _build_bm25(
    context: StageContext,
    folder: Path,
    generated_queries: Mapping[str, Sequence[str]] | None = None,
    words: KnownWords | None = None,
) -> Folders:
    """Build BM25 over the texts that the encoder sees, and write it below `folder`.

    Args:
        context: Context of the stage.
        folder: The folder to write below.
        generated_queries: Generated queries by document id, which are appended to the texts.
        words: Weights of the words of known queries; None ignores known queries.
    """
    from model_code.retrieval import bm25
    from model_code.stages.fusion import BUILD

    encoder = folder / BUILD / "encoder"
    index = folder / BUILD / "index"
    passages = _bm25_passages(context, generated_queries)
    bm25.build_folders(passages, context.settings["bm25"], encoder, index, words)
    return encoder, index
