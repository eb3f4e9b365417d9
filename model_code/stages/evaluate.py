"""The stage `evaluate`: search the judged queries with a trained retriever and score what it finds."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from model_code.context import StageContext, left_out_reason, mark_left_out
from model_code.corpus.tables import (
    Corpus,
    Judgements,
    find_query_lines,
    load_corpus,
    passage_texts,
    strip_query_lines,
)
from model_code.errors import FreshetError
from model_code.evaluation.metrics import Run
from model_code.evaluation.runs import read_run
from model_code.evaluation.scores import EVALUATED_SPLITS, RRF, VARIANTS_FOLDER
from model_code.evaluation.settings import EvaluationSettings
from model_code.evaluation.system_evaluation import (
    evaluate_system,
    reciprocal_rank_fusion,
    sample_judgements,
    search_splits,
)
from model_code.files import hash_text, replace_folder
from model_code.queries.pseudo_queries import expand_texts
from model_code.retrieval.fused import FusedRetriever, FusedSearch
from model_code.retrieval.id_map import IdMap
from model_code.retrieval.indexed import IndexedRetriever, NewPassages, RetrieverSegment
from model_code.retrieval.kinds import open_retriever
from model_code.retrieval.protocol import Retriever, Search


def run(context: StageContext) -> dict[str, Any]:
    """Open what lies in `inputs["trained"]` and `inputs["index"]`, evaluate it, return the means of
    each split.

    Writes the evaluation folder and, below `variants/`, one per variant; the hybrid among them
    takes BM25's runs from `inputs["baselines"]`.
    """
    if reason := left_out_reason(context.inputs["trained"]):
        return mark_left_out(context.output, reason)
    bench = EvaluationSet.load(context)
    folders = context.inputs["trained"] / "encoder", context.inputs["index"]
    retriever = bench.strip_own_queries(
        open_retriever(*folders, settings=context.settings["encoder"])
    )
    bm25 = bench.read_runs(context.inputs["baselines"] / "bm25")
    return bench.evaluate_retriever(str(context.name), retriever, bm25, context.output)


@dataclass(frozen=True)
class StrippedDocuments:
    """What a corpus that judges itself is searched as: documents without the lines by which they
    are asked for.

    passages: of the documents that queries of dev, gate or test ask for. left_out: those that only
    training asks for, which are found by nobody: never to find them would be rewarded, as they
    answer no query. folder: where the passages are kept as each retriever indexes them.
    """

    passages: NewPassages
    left_out: frozenset[str]
    folder: Path

    @classmethod
    def of(
        cls, corpus: Corpus, relevant: frozenset[str], include_title: bool, folder: Path
    ) -> StrippedDocuments:
        """relevant: the documents that these queries ask for."""
        changed, passages = frozenset(find_query_lines(corpus)), strip_query_lines(corpus).passages
        passages = passages[passages["document_id"].isin(list(changed & relevant))]
        new = NewPassages(passage_texts(passages, include_title), passages["document_id"].tolist())
        return cls(new, changed - relevant, folder)

    def __bool__(self) -> bool:
        """Whether any document is judged by a line of its own."""
        return bool(self.passages.document_ids or self.left_out)

    def search_over(self, segments: Sequence[RetrieverSegment]) -> Retriever:
        """The search of segments with these passages in the place of the whole ones, as far as they
        are in there.
        """
        first = segments[0].retriever
        if isinstance(first, FusedRetriever):
            parts = {
                name: [segment.of(segment.retriever.components[name]) for segment in segments]
                for name in first.components
            }
            return FusedSearch(
                {name: self.search_over(segments) for name, segments in parts.items()}, first.fusion
            )
        learned = segments[0] if first.learns_documents else ()  # from texts without the lines
        documents = {document for document in self.passages.document_ids if document not in learned}
        documents = {
            document for document in documents if any(document in segment for segment in segments)
        }
        gone = documents | self.left_out
        others = [
            replace(each, removed=each.removed | {key for key in gone if key in each.rows})
            for each in segments
        ]
        return type(first).join_segments(
            [*others, *([self._segment(first, documents)] if documents else [])]
        )

    def _segment(self, retriever: IndexedRetriever, documents: set[str]) -> RetrieverSegment:
        pairs = zip(self.passages.texts, self.passages.document_ids, strict=True)
        texts, ids = zip(
            *((text, document) for text, document in pairs if document in documents), strict=True
        )
        folder = self.folder / hash_text("\0".join((retriever.fingerprint, *texts)))
        if not folder.is_dir():
            aside = folder.with_name(f"{folder.name}.making")
            shutil.rmtree(aside, ignore_errors=True)
            retriever.write_segment(aside, NewPassages(texts, ids))
            replace_folder(aside, folder)
        return RetrieverSegment(retriever.reopen(folder), IdMap(ids))


@dataclass(frozen=True)
class EvaluationSet:
    """What every system is evaluated on: the judged queries of dev, gate and test.

    documents: the document of each passage.
    """

    judgements: Mapping[str, Judgements]
    settings: EvaluationSettings
    documents: IdMap
    stripped: StrippedDocuments

    @classmethod
    def load(cls, context: StageContext) -> EvaluationSet:
        """Read the corpus."""
        corpus = load_corpus(context.inputs["corpus"])
        settings = context.settings["evaluation"]
        # all of them, whatever is sampled
        judgements = {split: corpus.judgements(split) for split in EVALUATED_SPLITS}
        relevant = frozenset().union(
            *(grades for part in judgements.values() for grades in part.qrels.values())
        )
        title, folder = context.settings["encoder"].include_title, context.checkpoints / "held_out"
        documents, lines = (
            IdMap(corpus.passages["document_id"]),
            StrippedDocuments.of(corpus, relevant, title, folder),
        )
        return cls(sample_judgements(corpus, settings), settings, documents, lines)

    def strip_own_queries(
        self, retriever: IndexedRetriever, written: Mapping[str, Sequence[str]] | None = None
    ) -> Retriever:
        """A retriever over the corpus's documents as it is judged; written: queries that are
        searched with them.
        """
        if not self.stripped:
            return retriever
        new = self.stripped.passages
        texts = expand_texts(new.texts, new.document_ids, written or {})
        return replace(self.stripped, passages=replace(new, texts=texts)).search_over(
            [RetrieverSegment(retriever, self.documents)]
        )

    def search_live(self, segments: Sequence[RetrieverSegment]) -> Search:
        """The search of what else has documents of the corpus, as it is judged and with rankings of
        these alone.
        """
        documents = {
            document
            for segment in segments
            for document in segment.rows.document_ids
            if document in segment
        }
        common = {document for document in documents if document in self.documents}
        shared = None if documents == common else common - self.stripped.left_out
        return lambda texts, k: self.stripped.search_over(segments).search(texts, k, shared)

    def search(self, search: Search) -> dict[str, Run]:
        """The system's run on each split."""
        return search_splits(search, self.judgements, self.settings.depth)

    def evaluate(self, system: str, runs: Mapping[str, Run], output: Path) -> dict[str, Any]:
        """Write an evaluation folder; returns the content of its metrics.json."""
        return evaluate_system(system, runs, self.judgements, self.settings, output)

    def evaluate_retriever(
        self, system: str, retriever: Retriever, bm25: Mapping[str, Run], output: Path
    ) -> dict[str, Any]:
        """`evaluate` for a retriever and, unless the settings say no, its variants, which the
        result has beside it.

        They are what one build finds without another training: by its kind's other searches, and
        fused with BM25's run. A variant of the system R is the system `R.NAME`, and its evaluation
        folder is `variants/NAME/` in that of R.
        """
        runs = self.search(retriever.search)
        report = self.evaluate(system, runs, output)
        if not self.settings.variants:
            return report
        variants = {name: self.search(search) for name, search in retriever.variants().items()}
        fuse = partial(
            reciprocal_rank_fusion, k=self.settings.depth, constant=self.settings.fusion_constant
        )
        variants[RRF] = {
            split: {
                query: fuse([list(ranking), list(bm25[split][query])])
                for query, ranking in run.items()
            }
            for split, run in runs.items()
        }
        evaluated = {
            name: self.evaluate(f"{system}.{name}", part, output / VARIANTS_FOLDER / name)
            for name, part in variants.items()
        }
        return report | {"variants": evaluated}

    def read_runs(self, folder: Path) -> dict[str, Run]:
        """The runs of an evaluation folder; FreshetError if they are on other queries."""
        runs = {}
        for split, judged_queries in self.judgements.items():
            run = read_run(folder / f"run.{split}.trec")
            unknown = sorted(run.keys() - judged_queries.queries.keys())
            if unknown:
                raise FreshetError(
                    f"{folder} was made on other {split} queries, such as {unknown[0]!r}; run it again"
                )
            runs[split] = {query: run.get(query, []) for query in judged_queries.queries}
        return runs
