"""Find the weights of an untrained fusion for corpora without judged queries.

`python -m experiments.untrained_weights.run NAME=PROJECT ...` needs the stage `base_index`. It
writes `result.json` and the table of `README.md`. BM25's weight varies beside the base encoder,
late interaction and feedback. Queries are the dev queries that people judged, or the train queries
if there are few. As if no query were judged, documents' titles and first sentences are queries too.
On test the default fusion is compared with a plain one of encoder and BM25 without feedback.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from experiments.tables import measure_projects
from model_code.context import StageContext
from model_code.corpus.tables import Corpus, Judgements, load_corpus, passage_texts
from model_code.encoding.encoder import Encoder
from model_code.evaluation.metrics import evaluate_run
from model_code.evaluation.significance import bootstrap_interval, paired_randomisation_test
from model_code.evaluation.system_evaluation import sample_queries
from model_code.files import hash_text
from model_code.retrieval import bm25
from model_code.retrieval.fused import FusedSearch, Fusion, ScoreNormalizer
from model_code.retrieval.indexed import NewPassages, RetrieverSegment
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

HERE, METRIC = Path(__file__).parent, "nDCG@10"
# Queries, documents that are searched by titles, and number of dev queries that is too small.
JUDGED, MOST, FEW = 500, 1000, 200
DENSE, WORDS = "zero_shot", "bm25"
# Words of the shortest title that is used as a query.
SHORTEST = 2
# Weight that a column shows, because it was the default before.
SHOWN = 3.0


def measured(root: Path) -> dict[str, Any]:
    """Return the mean metric of people's queries and of titles for each weight of BM25."""
    with TemporaryDirectory() as aside:
        return _measured(root, Path(aside))


def _measured(root: Path, aside: Path) -> dict[str, Any]:
    settings, corpus = (
        parameters.load(root / "params.yaml"),
        load_corpus(root / "artifacts" / "corpus"),
    )
    own = {"encoder": settings.encoder, "evaluation": settings.evaluation}
    bench = EvaluationSet.load(
        StageContext(root, {"corpus": root / "artifacts" / "corpus"}, aside, own, aside)
    )
    texts = passage_texts(corpus.passages, settings.encoder.include_title)
    encoder, index, by_words = (
        aside / "encoder",
        root / "artifacts" / "base_index" / "index",
        aside / "words",
    )
    Encoder.from_settings(settings.encoder).save(encoder)
    ids = corpus.passages["document_id"].tolist()
    bm25.build_folders(
        NewPassages(texts, ids), settings.bm25, by_words / "encoder", by_words / "index"
    )
    parts = {
        DENSE: open_retriever(encoder, index),
        WORDS: open_retriever(by_words / "encoder", by_words / "index"),
    }
    weights = {
        DENSE: DEFAULT_TOTAL_WEIGHT["dense"],
        WORDS: DEFAULT_TOTAL_WEIGHT["words"],
        DENSE + LATE_SUFFIX: DEFAULT_TOTAL_WEIGHT["late"],
    }
    fusion = Fusion(
        weights,
        {DENSE: ScoreNormalizer.fit(parts[DENSE].index.vectors)},
        feedback=UNTRAINED.feedback,
    )
    few = len(bench.judgements["dev"].queries) < FEW
    people = sample_queries(corpus.judgements("train") if few else bench.judgements["dev"], JUDGED)
    titles, passages = held_out_titles(corpus, settings.encoder.include_title)
    held = StrippedDocuments(passages, frozenset(), aside / "titles")
    without = {
        name: held.search_over([RetrieverSegment(part, bench.documents)])
        for name, part in parts.items()
    }
    whole = {name: bench.strip_query_lines(part) for name, part in parts.items()}
    plain = Fusion({name: weights[name] for name in parts}, fusion.normalizers)
    return {
        "people": _by_weight(whole, fusion, people),
        "titles": _by_weight(without, fusion, titles),
        "test": _beside(bench, FusedSearch(whole, plain), FusedSearch(whole, fusion)),
    }


def _beside(bench: EvaluationSet, plain: FusedSearch, default: FusedSearch) -> dict[str, Any]:
    """Return the means of both on test, their difference with its interval over queries, and p."""
    test, found = bench.judgements["test"], []
    for search in (plain, default):
        runs = dict(zip(test.queries, search.search(list(test.queries.values()), 100), strict=True))
        scores = evaluate_run(runs, test.qrels, [METRIC])[METRIC]
        found.append(np.array([scores[query] for query in test.queries]))
    gains = (found[1] - found[0])[:, None]
    low, high = bootstrap_interval(gains, 2000, 0.95, 0)
    numbers = [
        *map(np.mean, found),
        gains.mean(),
        low[0],
        high[0],
        paired_randomisation_test(gains, 10_000, 0)[0],
    ]
    return {
        "queries": len(gains),
        "plain, default, gain, low, high, p": [round(float(one), 4) for one in numbers],
    }


def _by_weight(parts: Mapping[str, Retriever], fusion: Fusion, asked: Judgements) -> dict[str, Any]:
    if not asked.queries:
        return {"queries": 0, METRIC: {}}
    search = FusedSearch(parts, fusion)
    queries = search.encode_queries(list(asked.queries.values()))
    scores = search.component_scores(queries, queries.candidates)
    scored = [
        ScoredQuery(*row) for row in zip(asked.queries, queries.candidates, scores, strict=True)
    ]
    means = {
        weight: float(
            metric_values(scored, dict(fusion.weights) | {WORDS: weight}, asked, METRIC).mean()
        )
        for weight in WEIGHT_GRID
    }
    return {
        "queries": len(asked.queries),
        METRIC: {str(weight): round(mean, 4) for weight, mean in means.items()},
    }


def held_out_titles(corpus: Corpus, include_title: bool) -> tuple[Judgements, NewPassages]:
    """Return at most `MOST` documents as answers to their titles, and passages without these.

    Documents are chosen by hash of the id. If a title is short or several documents share it, the
    query is the first sentence. A document that has nothing else is left out.
    """
    rows = corpus.passages.sort_values(["document_id", "ordinal"])
    by_document = dict(iter(rows.groupby("document_id", sort=False)))
    times = Counter(own["title"].iloc[0].casefold() for own in by_document.values())
    queries: dict[str, str] = {}
    texts: list[str] = []
    documents: list[str] = []
    for document in sorted(by_document, key=lambda name: hash_text(f"title {name}")):
        own = by_document[document].copy()
        query = own["title"].iloc[0]
        if times[query.casefold()] == 1 and len(split_words(query)) >= SHORTEST:
            own["title"], start = "", own["text"].iloc[0]
            if start.casefold().startswith(query.casefold()):
                own["text"] = [start[len(query) :], *own["text"].iloc[1:]]
        else:
            query, rest = split_first_sentence(own["text"].iloc[0])
            own["text"] = [rest, *own["text"].iloc[1:]]
        if len(split_words(query)) >= SHORTEST and own["text"].str.strip().any():
            queries[document] = query
            texts += passage_texts(own, include_title)
            documents += own["document_id"].tolist()
        if len(queries) == MOST:
            break
    answers = {document: {document: 1} for document in queries}
    return Judgements(queries, answers, "titles"), NewPassages(texts, documents)


def tables(result: Mapping[str, Any]) -> str:
    """Return a row per corpus: the best weight, and the metric of other choices.

    The best weight is by people's queries.
    """
    default = DEFAULT_TOTAL_WEIGHT["words"]
    lines = [
        f"| corpus, queries | best weight | {METRIC} | by {SHOWN:g} | "
        f"by the default {default:g} | by titles | gives |",
        "|---|---|---|---|---|---|---|",
    ]
    rows, losses = [], []
    for corpus, own in sorted(
        (corpus, own) for corpus, own in result.items() if own["people"]["queries"]
    ):
        people, titles = (
            {float(w): mean for w, mean in own[by][METRIC].items()} for by in ("people", "titles")
        )
        best, chosen = (max(means, key=means.__getitem__) for means in (people, titles))
        shown = [people[weight] for weight in (SHOWN, default, chosen)]
        means = " | ".join(f"{mean:.4f}" for mean in (people[best], *shown[:2]))
        rows.append(
            f"| {corpus}, {own['people']['queries']} | {best:g} | {means} | "
            f"{chosen:g} | {shown[2]:.4f} |"
        )
        losses.append([one - people[best] for one in shown])
    mean = np.mean(losses, axis=0)
    rows.append(f"| mean loss | | | {mean[0]:+.4f} | {mean[1]:+.4f} | | {mean[2]:+.4f} |")
    return "\n".join(lines + rows) + "\n\n" + _gains(result)


def _gains(result: Mapping[str, Any]) -> str:
    """Compare the default fusion with a plain one on test."""
    lines = [
        f"| corpus, test queries | plain, {METRIC} | default | gain | p |",
        "|---|---|---|---|---|",
    ]
    gains = []
    for corpus, own in sorted((corpus, own) for corpus, own in result.items() if "test" in own):
        plain, default, gain, low, high, p = own["test"]["plain, default, gain, low, high, p"]
        change = f"{gain:+.4f} [{low:+.4f}, {high:+.4f}]"
        lines.append(
            f"| {corpus}, {own['test']['queries']:,} | {plain:.4f} | "
            f"{default:.4f} | {change} | {p:.4f} |"
        )
        gains.append(gain)
    return "\n".join([*lines, f"| mean | | | {np.mean(gains):+.4f} | |"]) + "\n"


if __name__ == "__main__":
    measure_projects(HERE, sys.argv[1:], measured, tables)
