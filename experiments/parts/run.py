"""Measure the value of each component in a fusion of all methods, by leaving it out.

`python -m experiments.parts.run NAME=PROJECT ...` needs projects that were built with `freshet run`
and the settings of the file of that name in this folder. It writes `result.json` and the tables of
`README.md`.

Two components are not retrievers of a build, and are computed here. One is late interaction (MaxSim
over the token vectors of `hce`; Khattab and Zaharia, 2020). The other is the similarity of a query
to the ancestors of a document in the hierarchy.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch

from experiments.comparison import compare_systems, comparison_cells
from experiments.tables import measure_projects
from model_code.context import StageContext
from model_code.corpus.tables import Corpus, load_corpus, passage_texts, strip_query_lines
from model_code.encoding.encoder import Encoder
from model_code.encoding.tokens import token_batches
from model_code.evaluation.metrics import evaluate_run
from model_code.hierarchy.tree import Hierarchy
from model_code.retrieval.fused import FusedSearch, Fusion, ScoreNormalizer
from model_code.retrieval.indexed import IndexedRetriever
from model_code.retrieval.kinds import open_retriever
from model_code.stages.evaluation_set import EvaluationSet
from model_code.stages.fusion import WEIGHT_GRID
from orchestration import parameters

HERE = Path(__file__).parent
METRIC = "nDCG@10"
# Retrievers that the build trained, and baselines that it built without training.
TRAINED = ("hce", "contrastive", "mlr", "svdr", "dsi")
BUILT = ("bm25", "zero_shot")
# All components. `late` scores by late interaction, and `levels` by the nodes of the hierarchy.
ALL = ("hce", "bm25", "mlr", "svdr", "dsi", "late", "levels")
# Components of each system.
SYSTEMS: dict[str, tuple[str, ...]] = {
    "untrained": ("zero_shot", "bm25"),
    "contrastive": ("contrastive", "bm25"),
    "hce": ("hce", "bm25"),
    "all": ALL,
    "all, contrastive for hce": ("contrastive", *ALL[1:]),
}
for left_out in ALL[1:]:
    SYSTEMS[f"all but {left_out}"] = tuple(name for name in ALL if name != left_out)
# Number of candidates that each component proposes for a query.
DEPTH = 100
# Largest number of tokens that are encoded at once.
BATCH_TOKENS = 4096
# Cosines are multiplied by this factor, so that they vary about as much as other scores.
COSINE_SCALE = 10.0
# Weight of BM25 before weights are learned.
START_WEIGHT_BM25 = 3.0


@dataclass(frozen=True)
class Query:
    """A judged query with its candidates.

    Attributes:
        relevant: Grades of the relevant documents.
        documents: Ids of the candidates in ascending order (n,).
        scores: Scores (n,) of the candidates by component.
    """

    relevant: Mapping[str, int]
    documents: list[str]
    scores: Mapping[str, np.ndarray]


class Build:
    """A built project: its retrievers, the passages of its corpus, and its hierarchy."""

    def __init__(self, root: Path, folder: Path, names: Sequence[str] = (*TRAINED, *BUILT)) -> None:
        """Load a build.

        Args:
            root: Folder of the project.
            folder: Folder for temporary files.
            names: Retrievers to open, among them `hce` and `zero_shot`.
        """
        self.artifacts = root / "artifacts"
        settings = parameters.load(root / "params.yaml")
        self.encoder_settings = settings.encoder
        stage_settings = {
            "encoder": settings.encoder,
            "evaluation": settings.evaluation.replace(max_queries=None),
        }
        context = StageContext(
            root=root,
            inputs={"corpus": self.artifacts / "corpus"},
            output=folder,
            settings=stage_settings,
            checkpoints=folder,
        )
        self.evaluation_set = EvaluationSet.load(context)
        self.corpus = load_corpus(self.artifacts / "corpus")

        opened = {name: self._open(name) for name in names}
        normalizers = {}
        for name, retriever in opened.items():
            if retriever.dense is not None:
                normalizers[name] = ScoreNormalizer.fit(retriever.dense.index.vectors)
        components = {
            name: self.evaluation_set.strip_query_lines(retriever)
            for name, retriever in opened.items()
        }
        equal_weights = dict.fromkeys(components, 1.0)
        self.fused = FusedSearch(components, Fusion(equal_weights, normalizers, DEPTH))
        self.late_encoder = opened["hce"].dense.encoder
        self.base_encoder = opened["zero_shot"].dense.encoder

    def _open(self, name: str) -> IndexedRetriever:
        """Open a baseline or a trained retriever from the build's artifacts."""
        if name in BUILT:
            build = self.artifacts / "baselines" / name / "build"
            encoder = build / "encoder"
            index = build / "index"
        else:
            encoder = self.artifacts / "train" / name / "encoder"
            index = self.artifacts / "index" / name / "index"
        return open_retriever(encoder, index, settings=self.encoder_settings)

    def queries(self, split: str) -> list[Query]:
        """Return the judged queries of a split, each scored by all components."""
        judgements = self.evaluation_set.judgements[split]
        texts = list(judgements.queries.values())
        encoded = self.fused.encode_queries(texts)
        candidates = self.fused.candidates(encoded, DEPTH)
        scored = zip(
            judgements.queries,
            candidates,
            self.fused.component_scores(encoded, candidates),
            self._late_scores(texts, candidates),
            self._level_scores(texts, candidates),
            strict=True,
        )
        queries = []
        for query, documents, component_scores, late_scores, level_scores in scored:
            scores = {**component_scores, "late": late_scores, "levels": level_scores}
            queries.append(Query(judgements.qrels[query], documents, scores))
        return queries

    def stripped_passages(self) -> list[str]:
        """Return the texts of the passages without lines that are judged queries.

        Such a line would match its query exactly.
        """
        return self._passage_texts(strip_query_lines(self.corpus))

    def passage_rows(self) -> dict[str, list[int]]:
        """Return the rows of each document's passages."""
        by_document = self.corpus.passages.reset_index().groupby("document_id")["index"].unique()
        return {str(document_id): rows.tolist() for document_id, rows in by_document.items()}

    def _passage_texts(self, corpus: Corpus) -> list[str]:
        return passage_texts(corpus.passages, self.encoder_settings.include_title)

    def _late_scores(
        self, texts: Sequence[str], candidates: Sequence[list[str]]
    ) -> Iterable[np.ndarray]:
        """Yield the late interaction scores of each query's candidates.

        A passage scores by MaxSim: the cosine of each query token with the nearest token of the
        passage, as a mean over query tokens. A document scores as its best passage.
        """
        # Only passages of documents that are a candidate of some query are encoded.
        passages = self.stripped_passages()
        rows_of = self.passage_rows()
        candidate_ids = set().union(*candidates)
        rows = sorted(row for document_id in candidate_ids for row in rows_of[document_id])
        passage_tokens = tokens(self.late_encoder, [passages[row] for row in rows])
        tokens_of_row = dict(zip(rows, passage_tokens, strict=True))

        all_query_tokens = tokens(self.late_encoder, texts)
        for query_tokens, documents in zip(all_query_tokens, candidates, strict=True):
            candidate_rows = [row for document_id in documents for row in rows_of[document_id]]
            candidate_tokens = [tokens_of_row[row] for row in candidate_rows]
            # Cosines (t, q) of all tokens of the candidates with all tokens of the query.
            joined_tokens = np.concatenate(candidate_tokens).astype(np.float32)
            cosines = joined_tokens @ query_tokens.astype(np.float32).T
            nearest = max_of_groups(cosines, [len(row_tokens) for row_tokens in candidate_tokens])
            passage_scores = nearest.mean(axis=1)
            yield COSINE_SCALE * best_passages(passage_scores, documents, rows_of)

    def _level_scores(
        self, texts: Sequence[str], candidates: Sequence[list[str]]
    ) -> Iterable[np.ndarray]:
        """Yield the hierarchy scores of each query's candidates.

        A passage scores by the mean cosine of the query with its ancestors in the hierarchy. A
        document scores as its best passage.
        """
        hierarchy = Hierarchy.load(self.artifacts / "hierarchy")
        rows_of = self.passage_rows()
        vectors = np.load(self.artifacts / "base_index" / "index" / "vectors.npy")
        vectors = vectors.astype(np.float32)

        # The vectors of passages from which a query line was removed are computed again.
        whole = self._passage_texts(self.corpus)
        stripped = self.stripped_passages()
        changed_rows = [row for row, text in enumerate(stripped) if text != whole[row]]
        if changed_rows:
            changed_texts = [stripped[row] for row in changed_rows]
            vectors[changed_rows] = self.base_encoder.encode_documents_by_last_layer(changed_texts)
        # The node of each passage at each level, (passages, levels).
        nodes = hierarchy.place(vectors)

        for query, documents in zip(
            self.base_encoder.encode_queries(texts), candidates, strict=True
        ):
            candidate_rows = [row for document_id in documents for row in rows_of[document_id]]
            level_cosines = []
            for level, centroids in enumerate(hierarchy.centroids):
                node_cosines = centroids @ query
                level_cosines.append(node_cosines[nodes[candidate_rows, level]])
            passage_scores = np.mean(level_cosines, axis=0)
            yield COSINE_SCALE * best_passages(passage_scores, documents, rows_of)


def max_of_groups(values: np.ndarray, sizes: Sequence[int]) -> np.ndarray:
    """Return the maximum of each group of consecutive rows.

    Args:
        values: Values (n, ...).
        sizes: Number of rows of each group (g), all positive, with sum n.

    Returns:
        Maxima (g, ...).
    """
    starts = np.cumsum([0, *sizes[:-1]])
    return np.maximum.reduceat(values, starts, axis=0)


def best_passages(
    passage_scores: np.ndarray, documents: Sequence[str], rows_of: Mapping[str, Sequence[int]]
) -> np.ndarray:
    """Return the score of each document's best passage (n,), float64.

    Args:
        passage_scores: Scores of all passages of the documents, one document after the other.
        documents: Ids of the documents (n).
        rows_of: Rows of the passages of each document.
    """
    sizes = [len(rows_of[document_id]) for document_id in documents]
    return max_of_groups(passage_scores, sizes).astype(np.float64)


def tokens(encoder: Encoder, texts: Sequence[str]) -> list[np.ndarray]:
    """Return the unit vectors (tokens, H) of each text's tokens, float16."""
    vectors: list[np.ndarray] = [np.empty(0)] * len(texts)
    token_counts = [len(token_ids) for token_ids in encoder.token_ids(texts)]
    with torch.no_grad():
        for batch in token_batches(token_counts, BATCH_TOKENS):
            features = encoder.tokenize([texts[number] for number in batch])
            states = encoder.backbone(**features).last_hidden_state.float()
            units = torch.nn.functional.normalize(states, dim=-1).half().numpy()
            for position, number in enumerate(batch):
                vectors[number] = units[position, : token_counts[number]]
    return vectors


def ranked(query: Query, weights: Mapping[str, float]) -> np.ndarray:
    """Return the candidates, best first; ties are broken by id."""
    total = sum(weight * query.scores[component] for component, weight in weights.items())
    return np.argsort(-np.asarray(total), kind="stable")


def mean_ndcg(queries: Sequence[Query], weights: Mapping[str, float]) -> float:
    """Return the mean of nDCG@10, as trec_eval computes it."""
    discounts = 1 / np.log2(np.arange(2, 12))
    scores = []
    for query in queries:
        best_rows = ranked(query, weights)[:10]
        gains = [query.relevant.get(query.documents[row], 0) for row in best_rows]
        ideal_gains = sorted(query.relevant.values(), reverse=True)[:10]
        dcg = np.dot(gains, discounts[: len(gains)])
        ideal_dcg = np.dot(ideal_gains, discounts[: len(ideal_gains)])
        scores.append(dcg / ideal_dcg)
    return float(np.mean(scores))


def learn(dev: Sequence[Query], components: Sequence[str]) -> dict[str, float]:
    """Learn fusion weights, one component after the other, twice.

    The weights are taken from the grid of the stage `fuse`. The first component keeps the weight 1.
    The others start at 0, except BM25.

    Args:
        dev: Queries that the weights are learned from.
        components: Names of the components.
    """
    first, *others = components
    weights = dict.fromkeys(components, 0.0)
    if "bm25" in weights:
        weights["bm25"] = START_WEIGHT_BM25
    weights[first] = 1.0
    for component in others * 2:
        weights[component] = _best_weight(dev, weights, component)
    return weights


def _best_weight(dev: Sequence[Query], weights: Mapping[str, float], component: str) -> float:
    """Return the weight of a component with the best mean nDCG@10, if the others keep theirs.

    If several weights have the same mean, the one nearest to the present weight is taken. If two
    are equally near, the smaller one is taken.

    Args:
        dev: Queries that the weights are learned from.
        weights: Present weights of all components.
        component: Name of the component.
    """
    means = {}
    for weight in WEIGHT_GRID:
        means[weight] = mean_ndcg(dev, {**weights, component: weight})

    def preference(weight: float) -> tuple[float, float, float]:
        """Return the key by which weights are compared; the largest wins."""
        return round(means[weight], 4), -abs(weight - weights[component]), -weight

    return max(means, key=preference)


def measure(project: Path) -> dict[str, Any]:
    """Measure each system on test queries, and its difference from the fusion of all components.

    Weights are learned on dev queries. Test queries are used once.
    """
    with TemporaryDirectory() as folder:
        build = Build(project, Path(folder))
        dev = build.queries("dev")
        test = build.queries("test")
        query_ids = list(build.evaluation_set.judgements["test"].queries)

    qrels = {}
    for query_id, query in zip(query_ids, test, strict=True):
        qrels[query_id] = query.relevant

    learned_weights = {}
    system_scores = {}
    for system, components in SYSTEMS.items():
        weights = learn(dev, components)
        learned_weights[system] = weights
        run = {}
        for query_id, query in zip(query_ids, test, strict=True):
            ranking = []
            for rank, row in enumerate(ranked(query, weights)[:DEPTH]):
                ranking.append((query.documents[row], float(-rank)))
            run[query_id] = ranking
        scores = evaluate_run(run, qrels, [METRIC])[METRIC]
        system_scores[system] = np.array([scores[query_id] for query_id in query_ids])

    differences = {}
    for system, scores in system_scores.items():
        if system != "all":
            differences[system] = system_scores["all"] - scores
    return {
        "dev": len(dev),
        "test": len(test),
        "weights": learned_weights,
        METRIC: {
            system: round(float(scores.mean()), 4) for system, scores in system_scores.items()
        },
        "all less": compare_systems(differences),
    }


def tables(result: Mapping[str, Any]) -> str:
    """Return the page's table of each corpus."""
    return "\n".join(_table(corpus, result[corpus]) for corpus in sorted(result))


def _table(corpus: str, result: Mapping[str, Any]) -> str:
    """Return the table of one corpus."""
    lines = [
        f"**{corpus}**, {result['test']:,} test queries, "
        f"weights from {result['dev']:,} dev queries",
        "",
        f"| system | {METRIC} | all less this | p (Holm) |",
        "|---|---|---|---|",
    ]
    for system, mean in result[METRIC].items():
        cells = comparison_cells(result["all less"].get(system))
        lines.append(f"| {system} | {mean:.4f} {cells}")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    measure_projects(HERE, sys.argv[1:], measure, tables)
