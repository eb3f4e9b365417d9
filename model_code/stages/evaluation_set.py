"""The judged queries that every system is evaluated on, and documents without their own queries."""

from __future__ import annotations

import shutil
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from model_code.context import StageContext
from model_code.corpus.corpus_queries import CorpusQueries
from model_code.corpus.tables import (
    Corpus,
    Judgements,
    find_queries_with_known,
    find_query_lines,
    headlines_of,
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
from model_code.retrieval.protocol import Ranking, Retriever, Search
from model_code.text.known_queries import KnownQuery


@dataclass(frozen=True)
class StrippedDocuments:
    """Documents that contain their own queries, without the lines of these queries.

    In some corpora the queries are lines of the documents. Such a query would find its document by
    an exact copy of itself. The evaluation therefore searches these documents without those lines.

    Attributes:
        passages: Stripped passages of the documents that queries of dev, gate or test ask for.
        left_out: Ids of the documents that only training queries ask for. They answer no evaluated
            query, so a retriever could raise its scores by never returning them. They are removed
            from all rankings.
        folder: Folder that keeps the index of the stripped passages for each retriever.
    """

    passages: NewPassages
    left_out: frozenset[str]
    folder: Path

    @classmethod
    def from_corpus(
        cls,
        corpus: Corpus,
        relevant: frozenset[str],
        include_title: bool,
        folder: Path,
        known: Mapping[str, Sequence[KnownQuery]],
    ) -> StrippedDocuments:
        """Collect the documents of `corpus` that contain their own queries.

        Args:
            corpus: The corpus, with the documents' own queries in their texts.
            relevant: Ids of the documents that queries of dev, gate or test ask for.
            include_title: Whether passages begin with the title of their document.
            folder: Folder that keeps the index of the stripped passages for each retriever.
            known: Known queries by document id. None of them may be a query of dev, gate or test.
        """
        with_own_queries = frozenset(find_query_lines(corpus))
        replaced_ids = list(with_own_queries & relevant)
        left_out = with_own_queries - relevant

        stripped_corpus = strip_query_lines(corpus)
        passages = stripped_corpus.passages
        passages = passages[passages["document_id"].isin(replaced_ids)]
        documents = stripped_corpus.documents
        documents = documents[documents["document_id"].isin(replaced_ids)]
        stripped_passages = NewPassages(
            passage_texts(passages, include_title),
            passages["document_id"].tolist(),
            headlines=headlines_of(documents),
            known={name: known[name] for name in replaced_ids if name in known},
        )
        return cls(stripped_passages, left_out, folder)

    def __bool__(self) -> bool:
        """Whether any document contains its own queries."""
        return bool(self.passages.document_ids or self.left_out)

    def search_over(self, segments: Sequence[RetrieverSegment]) -> Retriever:
        """Return a search of `segments` in which the stripped passages replace the original ones.

        Only documents that are in the segments are replaced. In a fusion, they are replaced in each
        component.
        """
        first_retriever = segments[0].retriever
        if isinstance(first_retriever, FusedRetriever):
            searches = {}
            for name in first_retriever.components:
                component_segments = [
                    segment.of(segment.retriever.components[name]) for segment in segments
                ]
                searches[name] = self.search_over(component_segments)
            return FusedSearch(searches, first_retriever.fusion)

        replaced = self._replaced_documents(segments)
        removed = replaced | self.left_out
        searched_segments = []
        for segment in segments:
            removed_here = {document for document in removed if document in segment.rows}
            searched_segments.append(replace(segment, removed=segment.removed | removed_here))
        if replaced:
            stripped_segment = self._stripped_segment(first_retriever, replaced, segments)
            searched_segments.append(stripped_segment)
        return type(first_retriever).join_segments(searched_segments)

    def _replaced_documents(self, segments: Sequence[RetrieverSegment]) -> set[str]:
        """Return the ids of the documents that are searched without their own query lines."""
        documents = set()
        for document in self.passages.document_ids:
            if any(document in segment for segment in segments):
                documents.add(document)

        base_segment = segments[0]
        if base_segment.retriever.learns_documents:
            # This retriever has learned vectors, from texts that lacked the query lines already. So
            # the documents of the build need no replacement.
            documents = {document for document in documents if document not in base_segment}
        return documents

    def _stripped_segment(
        self,
        retriever: IndexedRetriever,
        documents: set[str],
        segments: Sequence[RetrieverSegment],
    ) -> RetrieverSegment:
        """Return a segment with the stripped passages of `documents`.

        The segment is read from the folder if an earlier call has written it.

        Args:
            retriever: The retriever that indexes the passages.
            documents: Ids of the documents.
            segments: Segments with the original passages. Their known queries for a document, if
                changed after the build, are used here too.
        """
        texts = []
        document_ids = []
        for text, document in zip(self.passages.texts, self.passages.document_ids, strict=True):
            if document in documents:
                texts.append(text)
                document_ids.append(document)

        headlines = {}
        for document, headline in self.passages.headlines.items():
            if document in documents:
                headlines[document] = headline
        known = {name: self.passages.known[name] for name in self.passages.known.keys() & documents}

        # The name of the folder is a hash of everything that its index depends on.
        content = [type(retriever).__name__, retriever.fingerprint]
        content.extend(texts)
        content.extend(headlines.values())
        for name in sorted(known):
            content.extend(query.text for query in known[name])
        folder = self.folder / hash_text("\0".join(content))
        if not folder.is_dir():
            staging = folder.with_name(f"{folder.name}.making")
            shutil.rmtree(staging, ignore_errors=True)
            new = NewPassages(texts, document_ids, headlines=headlines, known=known)
            retriever.write_segment(staging, new)
            replace_folder(staging, folder)

        changed_known: dict[str, Sequence[KnownQuery]] = {}
        for segment in segments:
            for document in segment.known.keys() & documents:
                if document in segment:
                    changed_known[document] = segment.known[document]
        return RetrieverSegment(retriever.reopen(folder), IdMap(document_ids), known=changed_known)


@dataclass(frozen=True)
class EvaluationSet:
    """The judged queries of dev, gate and test that every system is evaluated on.

    Attributes:
        judgements: Queries and qrels by split. Large splits are sampled.
        settings: The group `evaluation` of `params.yaml`.
        documents: The document id of each passage of the corpus.
        stripped: The documents that are searched without the lines of their own queries.
    """

    judgements: Mapping[str, Judgements]
    settings: EvaluationSettings
    documents: IdMap
    stripped: StrippedDocuments

    @classmethod
    def load(cls, context: StageContext) -> EvaluationSet:
        """Read the judged queries of a stage's corpus, sampled, and the documents to strip."""
        corpus = load_corpus(context.inputs["corpus"])
        settings = context.settings["evaluation"]

        stripped = StrippedDocuments.from_corpus(
            corpus,
            _relevant_documents(corpus),
            context.settings["encoder"].include_title,
            context.checkpoints / "held_out",
            CorpusQueries.of_corpus(context.inputs["corpus"]).by_document(),
        )
        documents = IdMap(corpus.passages["document_id"])
        return cls(sample_judgements(corpus, settings), settings, documents, stripped)

    def strip_query_lines(
        self,
        retriever: IndexedRetriever,
        written_queries: Mapping[str, Sequence[str]] | None = None,
    ) -> Retriever:
        """Return a search of the corpus in which no document contains its own judged queries.

        Args:
            retriever: A retriever over the passages of the corpus.
            written_queries: Generated queries by document id, with which the retriever expanded its
                documents. The stripped documents are expanded in the same way.
        """
        if not self.stripped:
            return retriever
        passages = self.stripped.passages
        texts = expand_texts(passages.texts, passages.document_ids, written_queries or {})
        stripped = replace(self.stripped, passages=replace(passages, texts=texts))
        return stripped.search_over([RetrieverSegment(retriever, self.documents)])

    def without_query_lines(self, judgements: Judgements) -> Judgements:
        """Return the queries whose relevant documents are all searched with their full texts.

        The other queries are lines of their own documents.
        """
        stripped_ids = set(self.stripped.passages.document_ids) | self.stripped.left_out
        queries = {}
        for query_id, text in judgements.queries.items():
            if stripped_ids.isdisjoint(judgements.qrels[query_id]):
                queries[query_id] = text
        qrels = {query_id: judgements.qrels[query_id] for query_id in queries}
        return replace(judgements, queries=queries, qrels=qrels)

    def search_live(self, segments: Sequence[RetrieverSegment]) -> Search:
        """Return a search of a live index that ranks only documents of this corpus.

        Args:
            segments: The segments of a generation. They may also hold documents that are not in
                the corpus.
        """
        live_documents = set()
        for segment in segments:
            for document in segment.rows.document_ids:
                # `in` is false for a document that was removed from the segment after it was made.
                if document in segment:
                    live_documents.add(document)
        common = {document for document in live_documents if document in self.documents}

        allowed = None
        if live_documents != common:
            allowed = common - self.stripped.left_out

        def search(texts: Sequence[str], k: int) -> list[Ranking]:
            return self.stripped.search_over(segments).search(texts, k, allowed)

        return search

    def with_known_documents(self, documents: Collection[str]) -> EvaluationSet:
        """Return the same queries, grouped by what a live index knows as well as the corpus.

        Known queries can arrive after the corpus was built, by rows and by thumbs.

        Args:
            documents: Ids of the documents with known queries in the live index.
        """
        grouped: dict[str, Judgements] = {}
        for split, judged in self.judgements.items():
            found = find_queries_with_known(judged.qrels, documents)
            grouped[split] = replace(judged, with_known=judged.with_known | found)
        return replace(self, judgements=grouped)

    def search(self, search: Search) -> dict[str, Run]:
        """Search the judged queries of each split with a system, and return the rankings."""
        return search_splits(search, self.judgements, self.settings.depth, self.documents)

    def evaluate(self, system: str, runs: Mapping[str, Run], output: Path) -> dict[str, Any]:
        """Write the evaluation folder of a system and return the content of its `metrics.json`."""
        return evaluate_system(system, runs, self.judgements, self.settings, output)

    def evaluate_retriever(
        self, system: str, retriever: Retriever, bm25_runs: Mapping[str, Run], output: Path
    ) -> dict[str, Any]:
        """Evaluate a retriever and, if `evaluation.variants` is on, its variants.

        A variant is another way to search the same trained retriever: another search of its kind,
        or the fusion of its run with BM25's run by reciprocal ranks. A variant of the system `R` is
        called `R.NAME`. Its evaluation folder is `variants/NAME/` below the folder of `R`.

        Args:
            system: Name of the system.
            retriever: The retriever to search.
            bm25_runs: BM25's run of each split.
            output: The evaluation folder to write.

        Returns:
            The content of `metrics.json`, with the metrics of each variant under `variants`.
        """
        runs = self.search(retriever.search)
        report = self.evaluate(system, runs, output)
        if not self.settings.variants:
            return report

        variant_runs = {name: self.search(search) for name, search in retriever.variants().items()}
        variant_runs[RRF] = self._fuse_with_bm25(runs, bm25_runs)

        report["variants"] = {
            name: self.evaluate(f"{system}.{name}", variant, output / VARIANTS_FOLDER / name)
            for name, variant in variant_runs.items()
        }
        return report

    def read_runs(self, folder: Path) -> dict[str, Run]:
        """Read the run of each split from an evaluation folder.

        Raises:
            FreshetError: If the folder has runs of other queries.
        """
        runs = {}
        for split, judgements in self.judgements.items():
            run = read_run(folder / f"run.{split}.trec")
            unknown = sorted(run.keys() - judgements.queries.keys())
            if unknown:
                raise FreshetError(
                    f"{folder} was made on other {split} queries, "
                    f"such as {unknown[0]!r}; run it again"
                )
            runs[split] = {query: run.get(query, []) for query in judgements.queries}
        return runs

    def _fuse_with_bm25(
        self, runs: Mapping[str, Run], bm25_runs: Mapping[str, Run]
    ) -> dict[str, Run]:
        """Fuse the run of each split with BM25's run of this split, by reciprocal ranks."""
        fused: dict[str, Run] = {}
        for split, run in runs.items():
            fused[split] = {}
            for query, ranking in run.items():
                rankings = [list(ranking), list(bm25_runs[split][query])]
                fused[split][query] = reciprocal_rank_fusion(
                    rankings, k=self.settings.depth, constant=self.settings.fusion_constant
                )
        return fused


def _relevant_documents(corpus: Corpus) -> frozenset[str]:
    """Return the ids of the documents that any query of dev, gate or test asks for.

    Queries that the evaluation leaves out of its sample are included.
    """
    relevant: set[str] = set()
    for split in EVALUATED_SPLITS:
        for grades in corpus.judgements(split).qrels.values():
            relevant.update(grades)
    return frozenset(relevant)
