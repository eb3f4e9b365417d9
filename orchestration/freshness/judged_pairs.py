"""Collect the judgements that a retrain trains on and is judged by, and count them.

A judgement states that a document is relevant, or not relevant, to a query. Judgements come from
four origins. These are the judgements (qrels) of the built corpus, the file `judgements.jsonl` of
the project, the queries that documents arrived with, and feedback on hits.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from model_code.audit import AuditAction, AuditLog
from model_code.collection.generations.generation import (
    Generation,
    added_since_training,
    live_rows,
)
from model_code.collection.generations.generation_store import GenerationStore, default_retriever
from model_code.collection.generations.generation_store import retrievers as live_retrievers
from model_code.collection.index.project_ledger import read_feedback, read_forgotten_queries
from model_code.corpus.corpus_queries import query_hash
from model_code.corpus.judgement_file import (
    JudgedPair,
    JudgementChanges,
    read_judgements,
    record_judgements,
    text_query_id,
    write_judgements,
)
from model_code.corpus.rows import FROM_FEEDBACK, ORIGIN
from model_code.corpus.settings import GATE, SPLITS, QuerySplitSettings
from model_code.corpus.source_ids import renamed_id
from model_code.corpus.splits import key_documents, split_queries
from model_code.errors import FreshetError
from model_code.project import Project
from model_code.text.known_queries import normalize_query
from orchestration import parameters
from orchestration.freshness.feedback import feedback_relevance
from orchestration.pipeline.ingest import lock_judgements

if TYPE_CHECKING:
    from model_code.evaluation.gate_power import Deviations, GateQueries

# The tables of the corpus that hold judgements, with the columns that are read.
CORPUS_COLUMNS = {
    "queries": ("query_id", "text", "split", "answers"),
    "qrels": ("query_id", "document_id", "relevance", "origin"),
}
SPLIT_ORDER = ("train", "dev", GATE, "test")

Row = dict[str, Any]


@dataclass
class JudgedPairs:
    """The judged pairs of query and document that a retrain would have.

    Attributes:
        texts: Text by query id.
        splits: Split by query id. None means that the build assigns a split by a hash.
        answers: Known answer texts as JSON, by query id. Queries without answer texts are missing.
        relevance: Grade by (query id, document id). A grade of 0 or less means not relevant.
        from_feedback: The pairs in `relevance` whose grade comes from feedback alone.
        typed: Ids of the queries that only feedback brought. Users of the search typed their texts,
            which can be personal data, so they are trained on and never shown.
    """

    texts: dict[str, str] = field(default_factory=dict)
    splits: dict[str, str | None] = field(default_factory=dict)
    answers: dict[str, str] = field(default_factory=dict)
    relevance: dict[tuple[str, str], int] = field(default_factory=dict)
    from_feedback: set[tuple[str, str]] = field(default_factory=set)
    typed: set[str] = field(default_factory=set)

    def query_rows(self) -> list[Row]:
        """Return the rows of a snapshot's queries table: one for each query that has a pair.

        A snapshot is the copy of the live documents and their judgements that a retrain reads.
        """
        judged = {query_id for query_id, _ in self.relevance}
        rows = []
        for query_id, text in self.texts.items():
            if query_id in judged:
                rows.append({"id": query_id, "text": text, "answers": self.answers.get(query_id)})
        return rows

    def qrel_rows(self) -> list[Row]:
        """Return the rows of a snapshot's qrels table: one for each judged pair.

        A snapshot is the copy of the live documents and their judgements that a retrain reads.
        """
        rows = []
        for (query_id, document_id), grade in self.relevance.items():
            origin = FROM_FEEDBACK if (query_id, document_id) in self.from_feedback else None
            rows.append(
                {
                    "query_id": query_id,
                    "document_id": document_id,
                    "relevance": grade,
                    "split": self.splits[query_id],
                    ORIGIN: origin,
                }
            )
        return rows

    def remove_queries(self, hashes: Set[str]) -> None:
        """Remove queries with all their pairs.

        Args:
            hashes: Hashes of the queries; see `query_hash`.
        """
        # Without hashes, no text has to be normalised.
        if not hashes:
            return
        removed = {name for name, text in self.texts.items() if query_hash(text) in hashes}
        for query_id in removed:
            del self.texts[query_id]
            self.splits.pop(query_id, None)
            self.answers.pop(query_id, None)
        self.relevance = {
            pair: grade for pair, grade in self.relevance.items() if pair[0] not in removed
        }

    def final_splits(self, settings: QuerySplitSettings) -> dict[str, str]:
        """Return the split that a build gives to each query with a relevant document.

        Args:
            settings: The shares of the splits.
        """
        relevant = {pair: grade for pair, grade in self.relevance.items() if grade > 0}
        # The split that the source states; None for a query whose split is drawn by a hash.
        stated = {query_id: self.splits[query_id] for query_id, _ in relevant}
        return split_queries(stated, settings, key_documents(relevant))


@dataclass(frozen=True)
class JudgementCounts:
    """The number of judged questions, and the number that a training needs.

    Attributes:
        by_split: Number of judged questions in each split.
        needed_for_training: Number of questions in the split train below which nothing is trained.
        needed: Number of questions in all splits that gives about `needed_for_training` questions
            in the split train.
    """

    by_split: Mapping[str, int]
    needed_for_training: int
    needed: int

    @property
    def total(self) -> int:
        """Number of judged questions in all splits."""
        return sum(self.by_split.values())

    @property
    def training(self) -> int:
        """Number of questions in the split train."""
        return self.by_split.get("train", 0)

    @property
    def enough_for_training(self) -> bool:
        """Whether there are enough questions to train at least one retriever."""
        return self.training >= self.needed_for_training

    def as_dict(self) -> dict[str, Any]:
        """Return the counts as plain values."""
        return {
            "total": self.total,
            "needed": self.needed,
            "by_split": dict(self.by_split),
            "needed_for_training": self.needed_for_training,
            "text": str(self),
        }

    def __str__(self) -> str:
        """The counts in one line.

        >>> print(JudgementCounts({"train": 17, "test": 24}, 30, 75))
        41 of about 75 judged questions; 17 train, 30 are needed
        >>> print(JudgementCounts({"train": 44, "dev": 9, "test": 31}, 30, 75))
        84 judged questions: 44 train, 9 dev, 31 test
        """
        if self.enough_for_training:
            counts = [f"{self.by_split[s]:,} {s}" for s in SPLIT_ORDER if self.by_split.get(s)]
            # With training.min_judged_queries = 0, a training needs no questions.
            if not counts:
                return "none"
            return f"{self.total:,} judged questions: {', '.join(counts)}"
        total = f"{self.total:,}"
        if self.total < self.needed:
            total += f" of about {self.needed:,}"
        return (
            f"{total} judged questions; {self.training:,} train, {self.needed_for_training:,} "
            "are needed"
        )


def read_judged_pairs(
    project: Project, generation: Generation | None, only: Set[str] | None = None
) -> JudgedPairs:
    """Collect the judgements of all four origins into one set.

    If several origins judge the same pair, the project's own judgements win, then the corpus, then
    feedback, then the queries that documents arrived with. All documents that arrived with the same
    query are relevant to this query.

    Two queries are the same if their normalised texts are equal; see `normalize_query`. A query
    that the corpus judges keeps the id and the split that it has in the corpus. A query without a
    relevant document is left out, unless the corpus judges it.

    A corpus that a retrain has built contains pairs from earlier feedback. They do not count: the
    feedback itself is read again, and it may have been withdrawn. Forgotten queries are left out,
    whoever judges them.

    Args:
        project: The project.
        generation: The generation whose live documents may be judged. None allows any document.
        only: The ids of the documents that may be judged; None for all.
    """
    queries_by_document = _queries_by_document(generation)
    document_ids: Set[str] | None = None
    if generation is not None:
        document_ids = queries_by_document.keys()
    if only is not None:
        document_ids = only if document_ids is None else document_ids & only

    own = _Relevance(document_ids)
    for judged in read_judgements(project.judgements):
        own.add(judged.question, judged.document_id, judged.relevance, judged.split)

    arrived = _Relevance(document_ids)
    for document_id, queries in queries_by_document.items():
        for text in queries:
            arrived.add(text, document_id, 1)
    for text, grades in feedback_relevance(read_feedback(project)).items():
        for document_id, grade in grades.items():
            arrived.add_feedback(text, document_id, grade)
    arrived.replace_by(own)

    corpus = _read_corpus_pairs(project, document_ids)
    merged = _merge(arrived, corpus, own)
    merged.remove_queries(read_forgotten_queries(project))
    return merged


def _merge(arrived: _Relevance, corpus: JudgedPairs, own: _Relevance) -> JudgedPairs:
    """Merge the judgements of the corpus with all other judgements.

    The corpus identifies queries by id, and the other origins identify them by text. A query of
    another origin gets the id of the corpus query with an equal text. A pair that both judge gets
    the grade of the corpus, unless the project's own judgements contain the pair.

    Args:
        arrived: The judgements of all other origins, which include the project's own.
        corpus: The judgements of the corpus.
        own: The project's own judgements alone.
    """
    # Without other judgements, the texts of the corpus need not be compared.
    id_by_text: dict[str, str] = {}
    if arrived:
        id_by_text = _ids_by_text(corpus)

    merged = JudgedPairs(answers=corpus.answers, typed=set(corpus.typed))
    for text, grades in arrived.with_answer():
        query_id = id_by_text.get(normalize_query(text))
        if query_id is None:
            query_id = text_query_id(text)
            merged.texts[query_id] = text
            merged.splits[query_id] = arrived.split(text)
            if arrived.is_typed(text):
                merged.typed.add(query_id)
        elif query_id in corpus.typed and not arrived.is_typed(text):
            # Another origin brings the query now, and its spelling may be shown.
            merged.texts[query_id] = text
            merged.typed.discard(query_id)
        for document_id, grade in grades.items():
            merged.relevance[query_id, document_id] = grade
            if arrived.is_from_feedback(text, document_id):
                merged.from_feedback.add((query_id, document_id))

    for query_id, text in corpus.texts.items():
        merged.texts.setdefault(query_id, text)
    for query_id, split in corpus.splits.items():
        # A query without a split in the corpus keeps the one that its own judgements state.
        if split is not None or query_id not in merged.splits:
            merged.splits[query_id] = split
    for (query_id, document_id), grade in corpus.relevance.items():
        own_grade = own.grade(corpus.texts[query_id], document_id)
        merged.relevance[query_id, document_id] = grade if own_grade is None else own_grade
        merged.from_feedback.discard((query_id, document_id))
    return merged


def _ids_by_text(corpus: JudgedPairs) -> dict[str, str]:
    """Return the id of each judged query of the corpus by its normalised text.

    Of equal queries in several splits, the first one in `SPLITS` wins. So a pair of another origin
    is not trained on if its query is in test.
    """
    ids: dict[str, str] = {}
    for split in SPLITS:
        # A query without a split has no judgements in the corpus.
        for query_id, corpus_split in corpus.splits.items():
            if corpus_split == split:
                ids.setdefault(normalize_query(corpus.texts[query_id]), query_id)
    return ids


def judgeable_documents(project: Project) -> set[str]:
    """Return the ids of the documents that may be judged: all that are live or in the corpus.

    Raises:
        FreshetError: If nothing is built yet.
    """
    document_ids: set[str] = set()
    if live_retrievers(project.live):
        generation = GenerationStore(project.live, default_retriever(project.live)).current()
        # A row has one value, because only one column is read.
        document_ids.update(document_id for (document_id,) in live_rows(generation, "document_id"))

    path = _corpus_table(project, "documents")
    if path.is_file():
        import pyarrow.parquet as pq

        with pq.ParquetFile(path) as file:
            table = file.read(columns=["document_id"])
        document_ids.update(table["document_id"].to_pylist())
    if not document_ids:
        raise FreshetError(
            "no document is built yet, so judgements cannot be checked: "
            "run `freshet demo` or `freshet run corpus` first"
        )
    return document_ids


def add_judgements(project: Project, pairs: Sequence[JudgedPair]) -> JudgementChanges:
    """Record judgements in `judgements.jsonl`, and accept the file for the next build.

    Args:
        project: The project.
        pairs: The new judgements. They replace older judgements of the same pairs.
    """
    with project.lock():
        changes = record_judgements(project.judgements, pairs)
        lock_judgements(project)
    AuditLog(project.audit).append(AuditAction.JUDGE, changes.added + changes.changed)
    return changes


def rename_judged_source(project: Project, old: str, new: str, dry_run: bool = False) -> int:
    """Rename the documents of a source in the project's own judgements.

    The ids of these documents begin with the name of the source.

    Args:
        project: The project.
        old: Present name of the source.
        new: New name of the source.
        dry_run: Whether to only count the judgements and change no file.

    Returns:
        The number of judgements about documents of the source.
    """
    with project.lock():
        pairs = read_judgements(project.judgements)
        renamed: list[JudgedPair] = []
        changed = 0
        for pair in pairs:
            new_id = renamed_id(pair.document_id, old, new)
            if new_id != pair.document_id:
                changed += 1
            renamed.append(replace(pair, document_id=new_id))
        if changed and not dry_run:
            write_judgements(project.judgements, renamed)
            lock_judgements(project)
    if not dry_run:
        AuditLog(project.audit).append(AuditAction.JUDGE, changed, detail="renamed")
    return changed


def count_judgements(project: Project) -> JudgementCounts:
    """Count the judged questions that the next retrain or build would have."""
    generation = None
    if live_retrievers(project.live):
        generation = GenerationStore(project.live, default_retriever(project.live)).current()
    return _count(project, generation)


def retrain_obstacle(project: Project, generation: Generation) -> str | None:
    """Return the reason why the judgements do not suffice for a retrain, or None if they do.

    A retrain needs enough questions to train with, and questions for the gate. None is also
    returned if the corpus is not built: the answer is then unknown, and `export_snapshot` raises an
    error that says so.
    """
    if not _corpus_table(project, "queries").is_file():
        return None
    counts = _count(project, generation)
    if not counts.enough_for_training:
        return (
            f"{counts}: add judgements with `freshet judge FILE` or `freshet judge --interactive`, "
            "or lower training.min_judged_queries"
        )
    if not counts.by_split.get(GATE) and not counts.by_split.get("test"):
        # Imported here because the gate imports numpy and scipy, and counting needs neither.
        from orchestration.registry.gate import NO_JUDGED_QUERIES

        return NO_JUDGED_QUERIES
    return None


def retrain_gate_obstacle(
    project: Project, generation: Generation, deviations: Deviations | None = None
) -> str | None:
    """Return the reason why the gate would probably refuse a retrain, or None if it may accept it.

    The reason is that too few queries judge it. A person may start the retrain nevertheless. None
    is also returned if the corpus is not built: the number of queries is then unknown.

    Args:
        project: The project.
        generation: The live generation.
        deviations: Deviations that the last verdict on a retrain has measured; None without one.
    """
    if not _corpus_table(project, "queries").is_file():
        return None
    # Imported here because it imports numpy, and counting judgements does not need it.
    from model_code.evaluation.gate_power import Deviations, gate_obstacle

    queries, judged = count_gate_queries(project, generation)
    settings = parameters.load(project.params_file).promotion
    return gate_obstacle(queries, settings, deviations or Deviations(), judged)


def count_gate_queries(project: Project, generation: Generation) -> tuple[GateQueries, int]:
    """Count the judged queries by which the gate would judge a retrain.

    These are the queries of the split `gate`, or of `test` if that split is empty. The gate judges
    queries for new documents apart from all others. If one of these groups is empty, all queries
    must show a gain.

    Args:
        project: The project.
        generation: The live generation. Its documents that training has not seen are new.

    Returns:
        The numbers of these queries, and the number of judged questions in all splits.
    """
    from model_code.evaluation.gate_power import GateQueries

    settings = parameters.load(project.params_file)
    pairs = read_judged_pairs(project, generation)
    splits = pairs.final_splits(settings.corpus.splits)
    judging_split = GATE if GATE in splits.values() else "test"
    new_documents = added_since_training(generation)

    judging = {query_id for query_id, split in splits.items() if split == judging_split}
    for_new_documents = set()
    for (query_id, document_id), grade in pairs.relevance.items():
        if grade > 0 and query_id in judging and document_id in new_documents:
            for_new_documents.add(query_id)

    judged = len(judging)
    new = len(for_new_documents)
    limit = settings.evaluation.max_queries
    if limit is not None and judged > limit:
        # The gate evaluates a sample of its queries.
        new = round(new * limit / judged)
        judged = limit
    if new in (0, judged):
        return GateQueries(gain=judged), len(splits)
    return GateQueries(gain=new, no_loss=judged - new), len(splits)


def _count(project: Project, generation: Generation | None) -> JudgementCounts:
    """Count the judged questions by split, and compute how many a training needs.

    Args:
        project: The project.
        generation: The generation whose live documents may be judged. None allows any document.
    """
    settings = parameters.load(project.params_file)
    shares = settings.corpus.splits
    pairs = read_judged_pairs(project, generation)
    by_split = Counter(pairs.final_splits(shares).values())

    # The smallest limit counts: a build is useful if it can train at least one retriever.
    needed_for_training = min(
        retriever.training.min_judged_queries for retriever in settings.retrievers.values()
    )
    training_share = 1 - shares.test_share - shares.dev_share - shares.gate_share
    # Rounded before `ceil`: 30 / (1 - .3 - .1 - .2) is a little more than 75 in floating point.
    needed = math.ceil(round(needed_for_training / training_share, 6))
    return JudgementCounts(dict(by_split), needed_for_training, needed)


class _Relevance:
    """Grades by the text of the query and the id of the document.

    Texts that are equal after normalisation are one query; see `normalize_query`. It is shown with
    the text of its own judgements, if it has any, and else with the text that was added first.

    Args:
        document_ids: Ids of the documents that may be judged; None for all.
    """

    def __init__(self, document_ids: Set[str] | None) -> None:
        self._document_ids = document_ids
        self._texts: dict[str, str] = {}
        self._grades: dict[str, dict[str, int]] = {}
        self._splits: dict[str, str] = {}
        self._public_keys: set[str] = set()
        self._from_feedback: set[tuple[str, str]] = set()

    def add(self, text: str, document_id: str, grade: int, split: str | None = None) -> None:
        """Set the grade of a pair, unless its document may not be judged."""
        if not self._may_be_judged(document_id):
            return
        key = normalize_query(text)
        self._texts.setdefault(key, text)
        self._grades.setdefault(key, {})[document_id] = grade
        self._public_keys.add(key)
        self._from_feedback.discard((key, document_id))
        if split is not None:
            self._splits[key] = split

    def add_feedback(self, text: str, document_id: str, grade: int) -> None:
        """Set the grade of a pair that users of the search gave, unless it may not be judged."""
        if not self._may_be_judged(document_id):
            return
        key = normalize_query(text)
        self._texts.setdefault(key, text)
        grades = self._grades.setdefault(key, {})
        # A grade that another origin states as well does not come from feedback alone.
        if grades.get(document_id) != grade:
            self._from_feedback.add((key, document_id))
        grades[document_id] = grade

    def _may_be_judged(self, document_id: str) -> bool:
        return self._document_ids is None or document_id in self._document_ids

    def is_typed(self, text: str) -> bool:
        """Return whether only feedback brought a query: users of the search typed it."""
        return normalize_query(text) not in self._public_keys

    def is_from_feedback(self, text: str, document_id: str) -> bool:
        """Return whether the grade of a pair comes from feedback alone."""
        return (normalize_query(text), document_id) in self._from_feedback

    def replace_by(self, other: _Relevance) -> None:
        """Add the texts, grades and splits of `other`; they replace those of the same pairs."""
        for key, grades in other._grades.items():
            self._texts[key] = other._texts[key]
            for document_id, grade in grades.items():
                self.add(other._texts[key], document_id, grade, other._splits.get(key))

    def grade(self, text: str, document_id: str) -> int | None:
        """Return the grade of a pair; None if it is not judged."""
        # A corpus can have many queries, and normalising each of them takes time.
        if not self._grades:
            return None
        return self._grades.get(normalize_query(text), {}).get(document_id)

    def split(self, text: str) -> str | None:
        """Return the stated split of a query; None if the build assigns one by a hash."""
        return self._splits.get(normalize_query(text))

    def __bool__(self) -> bool:
        """Return whether there is any grade."""
        return bool(self._grades)

    def with_answer(self) -> Iterator[tuple[str, dict[str, int]]]:
        """Yield each query that has a relevant document, with its grades by document id.

        The queries are in ascending order of their texts.
        """
        for key, text in sorted(self._texts.items(), key=itemgetter(1)):
            grades = self._grades[key]
            if any(grade > 0 for grade in grades.values()):
                yield text, dict(sorted(grades.items()))


def _queries_by_document(generation: Generation | None) -> dict[str, list[str]]:
    """Return the queries that each live document arrived with, by document id."""
    queries: dict[str, list[str]] = {}
    if generation is not None:
        for document_id, text in live_rows(generation, "document_id", "queries"):
            queries[document_id] = json.loads(text) if text else []
    return queries


def _read_corpus_pairs(project: Project, document_ids: Set[str] | None) -> JudgedPairs:
    """Read the judgements of the built corpus; none if no corpus is built.

    Pairs that come from feedback alone are left out. Their queries keep their ids and splits.

    Args:
        project: The project.
        document_ids: Ids of the documents that may be judged; None for all.
    """
    pairs = JudgedPairs()
    for row in _read_corpus_table(project, "queries"):
        pairs.texts[row["query_id"]] = row["text"]
        pairs.splits[row["query_id"]] = row["split"]
        if row["answers"] is not None:
            pairs.answers[row["query_id"]] = row["answers"]

    judged_by_others: set[str] = set()
    for row in _read_corpus_table(project, "qrels"):
        query_id = row["query_id"]
        document_id = row["document_id"]
        if row[ORIGIN] == FROM_FEEDBACK:
            pairs.typed.add(query_id)
            continue
        judged_by_others.add(query_id)
        may_be_judged = document_ids is None or document_id in document_ids
        if may_be_judged and pairs.splits.get(query_id) is not None:
            pairs.relevance[query_id, document_id] = row["relevance"]
    pairs.typed -= judged_by_others
    return pairs


def _read_corpus_table(project: Project, name: str) -> list[Row]:
    """Return the rows of a table of the corpus; none if no corpus is built."""
    path = _corpus_table(project, name)
    if not path.is_file():
        return []
    # Imported here because the import takes a fifth of a second, and some commands need no tables.
    # `ParquetFile` is used because `read_table` imports pandas, which is slower still.
    import pyarrow.parquet as pq

    columns = CORPUS_COLUMNS[name]
    with pq.ParquetFile(path) as file:
        # The columns `answers` and `origin` exist only in a corpus with such values.
        present = [column for column in columns if column in file.schema_arrow.names]
        table = file.read(columns=present)
    rows = []
    for values in table.to_pylist():
        rows.append({column: values.get(column) for column in columns})
    return rows


def require_corpus_tables(project: Project) -> None:
    """Check that the corpus is built. A retrain needs it because it keeps the corpus's judgements.

    Raises:
        FreshetError: If a table of the corpus is missing.
    """
    for name in CORPUS_COLUMNS:
        path = _corpus_table(project, name)
        if not path.is_file():
            raise FreshetError(
                f"{path} is missing: a retrain keeps the corpus's judged queries; "
                "run `freshet run corpus`"
            )


def _corpus_table(project: Project, name: str) -> Path:
    return project.artifacts / "corpus" / f"{name}.parquet"
