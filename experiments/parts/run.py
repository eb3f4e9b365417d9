"""Measure the value of each component in a fusion of all methods, by leaving it out.

`python -m experiments.parts.run NAME=PROJECT ...` needs `freshet run` in each PROJECT with the
settings of that name here. It writes `result.json` and the tables of `README.md`. It computes two
signals that
are not retrievers: late interaction (MaxSim over the token vectors of `hce`; Khattab and Zaharia,
2020) and the similarity of a query to the ancestors of a document in the hierarchy.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch

from experiments.tables import measure_projects
from model_code.context import StageContext
from model_code.corpus.tables import Corpus, load_corpus, passage_texts, strip_query_lines
from model_code.encoding.encoder import Encoder, token_batches
from model_code.evaluation.metrics import evaluate_run
from model_code.evaluation.significance import bootstrap_interval, holm, paired_randomisation_test
from model_code.hierarchy.tree import Hierarchy
from model_code.retrieval.fused import FusedSearch, Fusion, ScoreNormalizer
from model_code.retrieval.indexed import IndexedRetriever
from model_code.retrieval.kinds import open_retriever
from model_code.stages.evaluation_set import EvaluationSet
from model_code.stages.fusion import WEIGHT_GRID
from orchestration import parameters

HERE, METRIC = Path(__file__).parent, "nDCG@10"
TRAINED, BUILT = ("hce", "contrastive", "mlr", "svdr", "dsi"), ("bm25", "zero_shot")
ALL = ("hce", "bm25", "mlr", "svdr", "dsi", "late", "levels")
SYSTEMS: dict[str, tuple[str, ...]] = {
    "untrained": ("zero_shot", "bm25"),
    "contrastive": ("contrastive", "bm25"),
    "hce": ("hce", "bm25"),
    "all": ALL,
    "all, contrastive for hce": ("contrastive", *ALL[1:]),
    **{f"all but {part}": tuple(name for name in ALL if name != part) for part in ALL[1:]},
}
# TIMES scales cosines to about the scale of the other components.
DEPTH, BATCH_TOKENS, TIMES = 100, 4096, 10.0


@dataclass(frozen=True)
class Query:
    """A judged query, its candidates in ascending order, and each component's scores (n,)."""

    relevant: Mapping[str, int]
    documents: list[str]
    scores: Mapping[str, np.ndarray]


class Build:
    """A built project: retrievers, the corpus's passages, and the hierarchy."""

    def __init__(self, root: Path, aside: Path, names: Sequence[str] = (*TRAINED, *BUILT)) -> None:
        """Load the build; `names` are the retrievers, among them `hce` and `zero_shot`."""
        self.artifacts, settings = root / "artifacts", parameters.load(root / "params.yaml")
        own = {
            "encoder": settings.encoder,
            "evaluation": settings.evaluation.replace(max_queries=None),
        }
        context = StageContext(
            root=root,
            inputs={"corpus": self.artifacts / "corpus"},
            output=aside,
            settings=own,
            checkpoints=aside,
        )
        self.bench, self.encoder_settings = EvaluationSet.load(context), settings.encoder
        self.corpus = load_corpus(self.artifacts / "corpus")
        opened = {name: self._open(name) for name in names}
        scales = {
            name: ScoreNormalizer.fit(one.dense.index.vectors)
            for name, one in opened.items()
            if one.dense is not None
        }
        parts = {name: self.bench.strip_query_lines(one) for name, one in opened.items()}
        self.fused = FusedSearch(parts, Fusion(dict.fromkeys(parts, 1.0), scales, DEPTH))
        self.late, self.base = opened["hce"].dense.encoder, opened["zero_shot"].dense.encoder

    def _open(self, name: str) -> IndexedRetriever:
        build = self.artifacts / "baselines" / name / "build"
        folders = (
            (build / "encoder", build / "index")
            if name in BUILT
            else (
                self.artifacts / "train" / name / "encoder",
                self.artifacts / "index" / name / "index",
            )
        )
        return open_retriever(*folders, settings=self.encoder_settings)

    def queries(self, split: str) -> list[Query]:
        """Return the judged queries of a split, each scored by all components."""
        judged = self.bench.judgements[split]
        texts = list(judged.queries.values())
        encoded = self.fused.encode_queries(texts)
        documents = self.fused.candidates(encoded, DEPTH)
        late, levels = self._late(texts, documents), self._levels(texts, documents)
        scored = zip(
            judged.queries,
            documents,
            self.fused.component_scores(encoded, documents),
            late,
            levels,
            strict=True,
        )
        return [
            Query(judged.qrels[name], found, own | {"late": near, "levels": below})
            for name, found, own, near, below in scored
        ]

    def _passages(self, corpus: Corpus) -> list[str]:
        return passage_texts(corpus.passages, self.encoder_settings.include_title)

    def _late(self, texts: Sequence[str], documents: Sequence[list[str]]) -> Iterable[np.ndarray]:
        """Return MaxSim: mean over query tokens of the cosine with a passage's nearest token."""
        passages, rows = self._passages(strip_query_lines(self.corpus)), self._rows()
        wanted = sorted({row for found in documents for name in found for row in rows[name]})
        held = dict(zip(wanted, tokens(self.late, [passages[row] for row in wanted]), strict=True))
        for asked, found in zip(tokens(self.late, texts), documents, strict=True):
            own = [row for name in found for row in rows[name]]
            lengths = [len(held[row]) for row in own]
            products = (
                np.concatenate([held[row] for row in own]).astype(np.float32)
                @ asked.astype(np.float32).T
            )
            nearest = np.maximum.reduceat(products, np.cumsum([0, *lengths[:-1]]), axis=0).mean(
                axis=1
            )
            yield TIMES * self._best(nearest, [len(rows[name]) for name in found])

    def _levels(self, texts: Sequence[str], documents: Sequence[list[str]]) -> Iterable[np.ndarray]:
        """Return the mean cosine of queries with a passage's ancestors in the hierarchy."""
        tree = Hierarchy.load(self.artifacts / "hierarchy")
        rows = self._rows()
        whole = self._passages(self.corpus)
        vectors = np.load(self.artifacts / "base_index" / "index" / "vectors.npy").astype(
            np.float32
        )
        judged = self._passages(strip_query_lines(self.corpus))
        changed = [row for row, text in enumerate(judged) if text != whole[row]]
        if changed:
            vectors[changed] = self.base.encode_passages([judged[row] for row in changed])
        paths = tree.place(vectors)
        for asked, found in zip(self.base.encode(texts), documents, strict=True):
            own = [row for name in found for row in rows[name]]
            near = np.mean(
                [(nodes @ asked)[paths[own, level]] for level, nodes in enumerate(tree.centroids)],
                axis=0,
            )
            yield TIMES * self._best(near, [len(rows[name]) for name in found])

    def _rows(self) -> dict[str, list[int]]:
        return {
            str(name): rows.tolist()
            for name, rows in self.corpus.passages.reset_index()
            .groupby("document_id")["index"]
            .unique()
            .items()
        }

    def _best(self, scores: np.ndarray, passages: Sequence[int]) -> np.ndarray:
        return np.maximum.reduceat(scores, np.cumsum([0, *passages[:-1]])).astype(np.float64)


def tokens(encoder: Encoder, texts: Sequence[str]) -> list[np.ndarray]:
    """Return the unit vectors (tokens, H) of each text's tokens, float16."""
    found: list[np.ndarray] = [np.empty(0)] * len(texts)
    ids = encoder.token_ids(texts)
    with torch.no_grad():
        for group in token_batches([len(row) for row in ids], BATCH_TOKENS):
            features = encoder.tokenize([texts[row] for row in group])
            states = encoder.backbone(**features).last_hidden_state.float()
            units = torch.nn.functional.normalize(states, dim=-1).half().numpy()
            for place, row in enumerate(group):
                found[row] = units[place, : len(ids[row])]
    return found


def ranked(query: Query, weights: Mapping[str, float]) -> np.ndarray:
    """Return the candidates, best first; ties are broken by id."""
    total = sum(weight * query.scores[part] for part, weight in weights.items())
    return np.argsort(-np.asarray(total), kind="stable")


def mean_ndcg(queries: Sequence[Query], weights: Mapping[str, float]) -> float:
    """Return the mean of nDCG@10, as trec_eval computes it."""
    discounts = 1 / np.log2(np.arange(2, 12))
    values = []
    for query in queries:
        gains = [query.relevant.get(query.documents[row], 0) for row in ranked(query, weights)[:10]]
        ideal = sorted(query.relevant.values(), reverse=True)[:10]
        values.append(
            np.dot(gains, discounts[: len(gains)]) / np.dot(ideal, discounts[: len(ideal)])
        )
    return float(np.mean(values))


def learn(dev: Sequence[Query], parts: Sequence[str]) -> dict[str, float]:
    """Learn weights from the grid of the stage `fuse`, one component after the other, twice.

    The first component keeps 1. The others start at 0, except BM25.
    """
    weights = {part: {parts[0]: 1.0, "bm25": 3.0}.get(part, 0.0) for part in parts}
    for part in [*parts[1:]] * 2:
        tried = {weight: mean_ndcg(dev, weights | {part: weight}) for weight in WEIGHT_GRID}
        weights[part] = max(
            tried,
            key=lambda weight: (round(tried[weight], 4), -abs(weight - weights[part]), -weight),
        )
    return weights


def measured(project: Path) -> dict[str, Any]:
    """Measure each system on test, with weights from dev.

    Test is used once. Also return each system's difference to all components.
    """
    with TemporaryDirectory() as aside:
        build = Build(project, Path(aside))
        dev, test = build.queries("dev"), build.queries("test")
        names = list(build.bench.judgements["test"].queries)
    qrels, values, learned = (
        dict(zip(names, (query.relevant for query in test), strict=True)),
        {},
        {},
    )
    for system, parts in SYSTEMS.items():
        learned[system] = weights = learn(dev, parts)
        run = {
            name: [
                (query.documents[row], float(-rank))
                for rank, row in enumerate(ranked(query, weights)[:DEPTH])
            ]
            for name, query in zip(names, test, strict=True)
        }
        scores = evaluate_run(run, qrels, [METRIC])[METRIC]
        values[system] = np.array([scores[name] for name in names])
    others = {system: values["all"] - own for system, own in values.items() if system != "all"}
    columns = np.column_stack(list(others.values()))
    low, high = bootstrap_interval(columns, 2000, 0.95, 0)
    adjusted = holm(paired_randomisation_test(columns, 10_000, 0))
    rows = zip(others, columns.mean(axis=0), low, high, adjusted, strict=True)
    return {
        "dev": len(dev),
        "test": len(test),
        "weights": learned,
        METRIC: {system: round(float(own.mean()), 4) for system, own in values.items()},
        "all less": {name: [round(float(one), 4) for one in row] for name, *row in rows},
    }


def tables(result: Mapping[str, Any]) -> str:
    """Return the page's table of each corpus."""
    return "\n".join(map(partial(_table, result), sorted(result)))


def _table(result: Mapping[str, Any], corpus: str) -> str:
    own = result[corpus]
    lines = [
        f"**{corpus}**, {own['test']:,} test queries, weights from {own['dev']:,} dev queries",
        "",
        f"| system | {METRIC} | all less this | p (Holm) |",
        "|---|---|---|---|",
    ]
    for system, value in own[METRIC].items():
        difference, low, high, p = own["all less"].get(system, [None] * 4)
        cells = (
            "| | |"
            if difference is None
            else f"| {difference:+.4f} [{low:+.4f}, {high:+.4f}] | {p:.4f} |"
        )
        lines.append(f"| {system} | {value:.4f} {cells}")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    measure_projects(HERE, sys.argv[1:], measured, tables)
