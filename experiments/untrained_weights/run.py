"""Find the weights of an untrained fusion for corpora without judged queries.

`python -m experiments.untrained_weights.run NAME=PROJECT ...` needs projects in which the stage
`base_index` has run. It writes `result.json` and the table of `README.md`.

The weight of BM25 is varied in a fusion with the base encoder, late interaction and feedback. It is
evaluated on judged dev queries, or on train queries if there are few dev queries. It is also
evaluated on titles and first sentences of documents, which could replace queries in a corpus
without judgements. On test queries, the default fusion is compared with a plain one: encoder and
BM25 without feedback.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from experiments.comparison import compare_systems
from experiments.tables import measure_projects
from model_code.context import StageContext
from model_code.corpus.tables import Corpus, Judgements, load_corpus, passage_texts
from model_code.encoding.encoder import Encoder
from model_code.evaluation.metrics import evaluate_run
from model_code.evaluation.system_evaluation import sample_queries
from model_code.files import hash_text
from model_code.retrieval import bm25
from model_code.retrieval.fused import FusedSearch, Fusion, ScoreNormalizer
from model_code.retrieval.indexed import IndexedRetriever, NewPassages, RetrieverSegment
from model_code.retrieval.kinds import open_retriever
from model_code.retrieval.protocol import LATE_SUFFIX, Retriever
from model_code.stages.baselines import UNTRAINED
from model_code.stages.evaluation_set import EvaluationSet, StrippedDocuments
from model_code.stages.fusion import (
    DEFAULT_TOTAL_WEIGHT,
    WEIGHT_GRID,
    ScoredQuery,
    metric_values,
)
from model_code.text.words import split_first_sentence, split_words
from orchestration import parameters

HERE = Path(__file__).parent
METRIC = "nDCG@10"
# Largest number of judged queries that weights are evaluated on.
MAX_PEOPLE_QUERIES = 500
# Largest number of documents whose titles are used as queries.
MAX_TITLES = 1000
# Number of dev queries below which the train queries are used.
MIN_DEV_QUERIES = 200
# Names of the components.
DENSE = "zero_shot"
WORDS = "bm25"
# Titles with fewer words are not used as queries.
MIN_TITLE_WORDS = 2
# An earlier default weight of BM25, which a column of the table shows for comparison.
FORMER_DEFAULT_WEIGHT = 3.0
# Key of the list of numbers on test queries in `result.json`. It names the numbers.
TEST_NUMBERS = "plain, default, gain, low, high, p"


def measure(root: Path) -> dict[str, Any]:
    """Return the mean metric of judged queries, and of titles as queries, for each BM25 weight."""
    with TemporaryDirectory() as folder:
        return _measure_in(root, Path(folder))


def _measure_in(root: Path, folder: Path) -> dict[str, Any]:
    """Measure the project `root` with temporary files in `folder`.

    Two fusions are built. The default one has late interaction and feedback; the plain one has
    neither. For judged queries, documents are searched without lines that are queries. For titles
    as queries, documents are searched without their titles.
    """
    settings = parameters.load(root / "params.yaml")
    include_title = settings.encoder.include_title
    corpus_folder = root / "artifacts" / "corpus"
    corpus = load_corpus(corpus_folder)
    stage_settings = {"encoder": settings.encoder, "evaluation": settings.evaluation}
    context = StageContext(root, {"corpus": corpus_folder}, folder, stage_settings, folder)
    evaluation_set = EvaluationSet.load(context)
    components = _open_components(root, folder, settings, corpus)
    plain_fusion, default_fusion = _make_fusions(components[DENSE])

    people_judgements = evaluation_set.judgements["dev"]
    if len(people_judgements.queries) < MIN_DEV_QUERIES:
        people_judgements = corpus.judgements("train")
    people = sample_queries(people_judgements, MAX_PEOPLE_QUERIES)

    # A document must not contain the query that it is searched for, whether a judged query or its
    # own title.
    titles, passages_without_titles = use_titles_as_queries(corpus, include_title)
    stripped = StrippedDocuments(passages_without_titles, frozenset(), folder / "titles")
    without_query_lines = {}
    without_titles = {}
    for name, component in components.items():
        without_query_lines[name] = evaluation_set.strip_query_lines(component)
        segment = RetrieverSegment(component, evaluation_set.documents)
        without_titles[name] = stripped.search_over([segment])

    plain = FusedSearch(without_query_lines, plain_fusion)
    default = FusedSearch(without_query_lines, default_fusion)
    return {
        "people": _means_by_weight(without_query_lines, default_fusion, people),
        "titles": _means_by_weight(without_titles, default_fusion, titles),
        "test": _compare_on_test(evaluation_set, plain, default),
    }


def _open_components(
    root: Path, folder: Path, settings: parameters.Parameters, corpus: Corpus
) -> dict[str, IndexedRetriever]:
    """Open the base encoder with the project's index, and build BM25.

    Args:
        root: Folder of the project.
        folder: Folder for temporary files.
        settings: Settings of the project.
        corpus: Corpus of the project.
    """
    encoder = folder / "encoder"
    Encoder.from_settings(settings.encoder).save(encoder)
    texts = passage_texts(corpus.passages, settings.encoder.include_title)
    ids = corpus.passages["document_id"].tolist()
    bm25_folders = (folder / "words" / "encoder", folder / "words" / "index")
    bm25.build_folders(NewPassages(texts, ids), settings.bm25, *bm25_folders)
    return {
        DENSE: open_retriever(encoder, root / "artifacts" / "base_index" / "index"),
        WORDS: open_retriever(*bm25_folders),
    }


def _make_fusions(dense: IndexedRetriever) -> tuple[Fusion, Fusion]:
    """Return the plain fusion (vectors and BM25), and the default one.

    The default one also has late interaction and feedback.
    """
    plain_weights = {DENSE: DEFAULT_TOTAL_WEIGHT["dense"], WORDS: DEFAULT_TOTAL_WEIGHT["words"]}
    weights = {**plain_weights, DENSE + LATE_SUFFIX: DEFAULT_TOTAL_WEIGHT["late"]}
    normalizers = {DENSE: ScoreNormalizer.fit(dense.index.vectors)}
    plain = Fusion(plain_weights, normalizers)
    return plain, Fusion(weights, normalizers, feedback=UNTRAINED.feedback)


def _compare_on_test(
    evaluation_set: EvaluationSet, plain: FusedSearch, default: FusedSearch
) -> dict[str, Any]:
    """Compare the default fusion with the plain one on test queries.

    Returns:
        The number of queries, and a list: both means, their difference, its interval, and p.
    """
    plain_scores = _score_on_test(evaluation_set, plain)
    default_scores = _score_on_test(evaluation_set, default)
    gains = default_scores - plain_scores
    comparison = compare_systems({"default": gains})["default"]
    means = [round(float(scores.mean()), 4) for scores in (plain_scores, default_scores)]
    return {"queries": len(gains), TEST_NUMBERS: [*means, *comparison]}


def _score_on_test(evaluation_set: EvaluationSet, search: FusedSearch) -> np.ndarray:
    """Return nDCG@10 of each test query (q,)."""
    test = evaluation_set.judgements["test"]
    rankings = search.search(list(test.queries.values()), 100)
    run = dict(zip(test.queries, rankings, strict=True))
    scores = evaluate_run(run, test.qrels, [METRIC])[METRIC]
    return np.array([scores[query] for query in test.queries])


def _means_by_weight(
    components: Mapping[str, Retriever], fusion: Fusion, judgements: Judgements
) -> dict[str, Any]:
    """Return the number of queries, and the mean metric for each weight of BM25.

    The components score the candidates once, and only the weights change.

    Args:
        components: Components of the fusion.
        fusion: The fusion, whose weight of BM25 is varied.
        judgements: Queries with their answers.
    """
    if not judgements.queries:
        return {"queries": 0, METRIC: {}}

    search = FusedSearch(components, fusion)
    queries = search.encode_queries(list(judgements.queries.values()))
    component_scores = search.component_scores(queries, queries.candidates)
    scored_queries = []
    for query, candidates, scores in zip(
        judgements.queries, queries.candidates, component_scores, strict=True
    ):
        scored_queries.append(ScoredQuery(query, candidates, scores))

    means = {}
    for weight in WEIGHT_GRID:
        weights = {**fusion.weights, WORDS: weight}
        values = metric_values(scored_queries, weights, judgements, METRIC)
        means[str(weight)] = round(float(values.mean()), 4)
    return {"queries": len(judgements.queries), METRIC: means}


def use_titles_as_queries(corpus: Corpus, include_title: bool) -> tuple[Judgements, NewPassages]:
    """Use titles of documents as queries, and remove them from the documents.

    At most `MAX_TITLES` documents are chosen by a hash of their ids. If a title is short, or
    several documents have it, the first sentence is the query. Documents without further text are
    left out.

    Returns:
        The titles as queries, with their documents as answers. All passages, without the titles
        that are queries.
    """
    # The passages of each document, in their order in the document.
    rows = corpus.passages.sort_values(["document_id", "ordinal"])
    rows_by_document = dict(iter(rows.groupby("document_id", sort=False)))
    title_counts = Counter(
        document_rows["title"].iloc[0].casefold() for document_rows in rows_by_document.values()
    )

    queries: dict[str, str] = {}
    texts: list[str] = []
    owners: list[str] = []
    for document_id in sorted(rows_by_document, key=_title_hash):
        document_rows = rows_by_document[document_id].copy()
        title = document_rows["title"].iloc[0]
        first_text = document_rows["text"].iloc[0]
        later_texts = document_rows["text"].iloc[1:]

        is_unique = title_counts[title.casefold()] == 1
        if is_unique and len(split_words(title)) >= MIN_TITLE_WORDS:
            query = title
            document_rows["title"] = ""
            if first_text.casefold().startswith(title.casefold()):
                document_rows["text"] = [first_text[len(title) :], *later_texts]
        else:
            query, rest = split_first_sentence(first_text)
            document_rows["text"] = [rest, *later_texts]

        has_text = document_rows["text"].str.strip().any()
        if has_text and len(split_words(query)) >= MIN_TITLE_WORDS:
            queries[document_id] = query
            texts.extend(passage_texts(document_rows, include_title))
            owners.extend(document_rows["document_id"].tolist())
        if len(queries) == MAX_TITLES:
            break

    qrels = {document_id: {document_id: 1} for document_id in queries}
    return Judgements(queries, qrels, "titles"), NewPassages(texts, owners)


def _title_hash(document_id: str) -> str:
    return hash_text(f"title {document_id}")


def tables(result: Mapping[str, Any]) -> str:
    """Return a table with a row per corpus: the best weight, and the metric with other weights.

    The best weight is the best one on judged queries.
    """
    default = DEFAULT_TOTAL_WEIGHT["words"]
    lines = [
        f"| corpus, queries | best weight | {METRIC} | by {FORMER_DEFAULT_WEIGHT:g} | "
        f"by the default {default:g} | by titles | gives |",
        "|---|---|---|---|---|---|---|",
    ]
    losses = []
    for corpus, corpus_result in sorted(result.items()):
        query_count = corpus_result["people"]["queries"]
        if query_count == 0:
            continue
        people = _read_means(corpus_result["people"])
        titles = _read_means(corpus_result["titles"])
        best_weight = max(people, key=people.__getitem__)
        title_weight = max(titles, key=titles.__getitem__)

        best = people[best_weight]
        by_former = people[FORMER_DEFAULT_WEIGHT]
        by_default = people[default]
        by_titles = people[title_weight]
        lines.append(
            f"| {corpus}, {query_count} | {best_weight:g} | "
            f"{best:.4f} | {by_former:.4f} | {by_default:.4f} | "
            f"{title_weight:g} | {by_titles:.4f} |"
        )
        losses.append([by_former - best, by_default - best, by_titles - best])

    former_loss, default_loss, title_loss = np.mean(losses, axis=0)
    lines.append(
        f"| mean loss | | | {former_loss:+.4f} | {default_loss:+.4f} | | {title_loss:+.4f} |"
    )
    return "\n".join(lines) + "\n\n" + _test_table(result)


def _read_means(result: Mapping[str, Any]) -> dict[float, float]:
    return {float(weight): mean for weight, mean in result[METRIC].items()}


def _test_table(result: Mapping[str, Any]) -> str:
    """Compare the default fusion with a plain one on test."""
    lines = [
        f"| corpus, test queries | plain, {METRIC} | default | gain | p |",
        "|---|---|---|---|---|",
    ]
    gains = []
    for corpus, corpus_result in sorted(result.items()):
        if "test" not in corpus_result:
            continue
        test = corpus_result["test"]
        plain, default, gain, low, high, p = test[TEST_NUMBERS]
        lines.append(
            f"| {corpus}, {test['queries']:,} | {plain:.4f} | {default:.4f} | "
            f"{gain:+.4f} [{low:+.4f}, {high:+.4f}] | {p:.4f} |"
        )
        gains.append(gain)
    lines.append(f"| mean | | | {np.mean(gains):+.4f} | |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    measure_projects(HERE, sys.argv[1:], measure, tables)
