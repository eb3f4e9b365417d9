"""Build batches of real documents, score how well they are found, and run drift checks on them.

Home documents are documents without a shift: docstrings of some packages. Shifted documents are
docstrings of neighbouring packages, and a jargon that no encoder has seen: docstrings and their
summaries with exchanged letters. If there is a folder of data sets, its `tldr` and `scifact` are
sources of shifted documents, too. There is then a second study, with early pages of tldr as home
documents and its latest pages as the shift.

Each document comes with a query that people wrote, which is its summary or a judged query. It gets
one more query that is cut out of its text.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from model_code.corpus.settings import CorpusSettings
from model_code.corpus.sources.base import open_source
from model_code.drift.calibration import Calibration
from model_code.drift.measures import Arrivals, OldScores
from model_code.drift.reference import DriftReference
from model_code.drift.report import make_report
from model_code.drift.settings import DriftSettings
from model_code.errors import FreshetError
from model_code.hierarchy.tree import Hierarchy
from model_code.queries.pseudo_queries import InverseCloze
from model_code.queries.settings import QUERY_LENGTH_SPANS
from orchestration.freshness.policy import decide

# Packages whose docstrings are home documents, shifted documents, and jargon.
HOME = ("stdlib", "numpy", "pandas")
NEIGHBOURS = ("scipy", "matplotlib")
JARGON = ("sklearn",)
# Folders of data sets in BEIR layout. The documents of the set `BY_DATE` are in order of date.
SETS = ("tldr", "scifact")
BY_DATE = "tldr"
# Vowels become the next vowel, and consonants the consonant after the next.
JARGON_LETTERS = str.maketrans("aeioubcdfghjklmnpqrstvwxyz", "eiouadfghjklmnpqrstvwxyzbc")
# By a customary rule, a population stability index above this value requires retraining.
CUSTOMARY_PSI = 0.2
# Scores that differ by less than this are ties.
SCORE_TOLERANCE = 1e-6
# Documents, each with a query that people wrote for it.
Pairs = list[tuple[str, str]]
# Documents, each with a query that was cut out of it, and the written query.
Triples = list[tuple[str, str, str]]


@dataclass(frozen=True, eq=False)
class Vectors:
    """Unit vectors of documents and of their queries.

    Attributes:
        documents: Vectors of the documents (n, H).
        cut_out: Vectors of the queries that were cut out of the documents (n, H); (0, H) if they
            are left out.
        asked: Vectors of the queries that people wrote (n, H).
    """

    documents: np.ndarray
    cut_out: np.ndarray
    asked: np.ndarray

    def __getitem__(self, rows: np.ndarray | slice) -> Vectors:
        return Vectors(self.documents[rows], self.cut_out[rows], self.asked[rows])


@dataclass(frozen=True)
class StudyPlan:
    """Size of a simulation.

    Attributes:
        reference: Documents of the reference, a sample of old documents.
        batch: Documents of a batch.
        per_source: Shifted documents of each source.
        splits: Random divisions of the home documents into a reference and new documents.
        more_splits: Further splits, which only have batches without a shift. They are needed
            because false alarms are rare, and batches of one split are not independent. For
            example, the share of false alarms was .083 over 12 splits, and .043 over 60 others.
        repeats: Batches per share and split.
        draws: Number of draws of each null distribution.
        max_tokens: Tokens after which a text is cut off.
    """

    reference: int = 1500
    batch: int = 100
    per_source: int = 300
    splits: int = 12
    more_splits: int = 48
    repeats: int = 4
    draws: int = 399
    max_tokens: int = 64


class Study(NamedTuple):
    """The documents of a simulation.

    Attributes:
        name: Name of the simulation.
        home: Documents without a shift.
        elsewhere: Shifted documents by source.
    """

    name: str
    home: Pairs
    elsewhere: dict[str, Pairs]


def studies(data: Path | None, plan: StudyPlan) -> Iterator[Study]:
    """Yield a simulation on docstrings, and one on the pages of tldr if there are data sets.

    Args:
        data: Folder of data sets in BEIR layout, or None.
        plan: Size of the simulation.
    """
    elsewhere = {name: _sample_pairs(_docstrings((name,)), plan) for name in NEIGHBOURS}
    elsewhere["jargon"] = [
        (_to_jargon(text), _to_jargon(query))
        for text, query in _sample_pairs(_docstrings(JARGON), plan)
    ]
    data_sets: dict[str, Pairs] = {}
    if data is not None:
        for name in SETS:
            data_sets[name] = _read_pairs(CorpusSettings(source="beir", path=name), data)
    for name, pairs in data_sets.items():
        elsewhere[name] = _sample_pairs(pairs, plan)
    yield Study("docstrings", _docstrings(HOME), elsewhere)

    if BY_DATE in data_sets:
        dated = data_sets[BY_DATE]
        early = dated[: 2 * plan.reference]
        latest = dated[-plan.per_source :]
        yield Study(f"early {BY_DATE}", early, {f"latest {BY_DATE}": latest})


def cut_queries(pairs: Pairs) -> Triples:
    """Cut a query out of each document. Documents that are too short for that are left out.

    The drift check makes such queries of documents that come without one.
    """
    cloze = InverseCloze("short_cloze", QUERY_LENGTH_SPANS)
    triples = []
    for text, query in pairs:
        spans = cloze.spans(text, text, seed=0)
        if spans:
            triples.append((text, spans[0], query))
    return triples


def encode(encoder: Any, triples: Triples, with_cut_out: bool = True) -> Vectors:
    """Encode documents and their queries.

    Args:
        encoder: Encoder of documents and queries.
        triples: Documents with their two queries.
        with_cut_out: Whether to encode the queries that were cut out of the documents.
    """
    documents = []
    cut_out_queries = []
    written_queries = []
    for document, cut_out_query, written_query in triples:
        documents.append(document)
        written_queries.append(written_query)
        if with_cut_out:
            cut_out_queries.append(cut_out_query)
    return Vectors(
        documents=encoder.encode_documents(documents),
        cut_out=encoder.encode_queries(cut_out_queries),
        asked=encoder.encode_queries(written_queries),
    )


def mix_batch(
    home: Vectors, away: Vectors, share: float, size: int, random: np.random.Generator
) -> Vectors:
    """Draw a random batch with a share of shifted documents.

    Args:
        home: Documents without a shift.
        away: Shifted documents.
        share: Share of shifted documents.
        size: Documents of the batch.
        random: Generator of the draws.

    Raises:
        FreshetError: If a source has too few documents.
    """
    shifted = round(share * size)
    if len(away.documents) < shifted or len(home.documents) < size - shifted:
        raise FreshetError(
            f"a batch of {size} needs as many documents; "
            f"a source has {len(away.documents)} with a query"
        )
    away_sample = away[random.permutation(len(away.documents))[:shifted]]
    home_sample = home[random.permutation(len(home.documents))[: size - shifted]]
    return Vectors(
        documents=np.concatenate([away_sample.documents, home_sample.documents]),
        cut_out=np.concatenate([away_sample.cut_out, home_sample.cut_out]),
        asked=np.concatenate([away_sample.asked, home_sample.asked]),
    )


def _docstrings(packages: tuple[str, ...]) -> Pairs:
    return _read_pairs(CorpusSettings(source="installed_packages", packages=packages), Path())


def _read_pairs(settings: CorpusSettings, root: Path) -> Pairs:
    """Return the documents of a source that have judged queries, each with its last query."""
    source = open_source(settings, root)
    queries = {row.values["id"]: row.values["text"] for row in source.rows("queries")}
    query_of_document = {}
    for row in source.rows("qrels"):
        query_of_document[row.values["document_id"]] = queries[row.values["query_id"]]

    pairs = []
    for row in source.rows("documents"):
        document = row.values
        query = query_of_document.get(document["id"])
        if query is not None:
            text = _strip_query(document["text"], query)
            pairs.append((f"{document['title']} {text}", query))
    return pairs


def _strip_query(text: str, query: str) -> str:
    """Remove the first paragraph of the text if it is the query."""
    first_paragraph, _, rest = text.partition("\n\n")
    if first_paragraph.split() == query.split():
        return rest
    return text


def _sample_pairs(pairs: Pairs, plan: StudyPlan) -> Pairs:
    """Draw the shifted documents of one source, always the same ones."""
    order = np.random.default_rng(0).permutation(len(pairs))
    return [pairs[i] for i in order[: plan.per_source]]


def _to_jargon(text: str) -> str:
    """Exchange the letters of a text, which gives words that the encoder has never seen."""
    return text.lower().translate(JARGON_LETTERS)


@dataclass
class CellCounts:
    """Results of the batches that have one source and one share of shifted documents.

    Each list has a value per batch.

    Attributes:
        harm: Loss of mean reciprocal rank of each batch.
        alarm: Whether a drift measure exceeded its threshold.
        retrain: Whether the drift check requested a retrain.
        customary: Whether the customary rule on the PSI requires retraining.
        by_made: Whether the cut-out queries reported harm.
        by_asked: Whether the written queries reported harm.
    """

    harm: list[float] = field(default_factory=list)
    alarm: list[bool] = field(default_factory=list)
    retrain: list[bool] = field(default_factory=list)
    customary: list[bool] = field(default_factory=list)
    by_made: list[bool] = field(default_factory=list)
    by_asked: list[bool] = field(default_factory=list)


@dataclass(frozen=True)
class BothReferences:
    """References of the drift check and of the customary rule.

    Attributes:
        ours: Reference of the drift check.
        hierarchy: Hierarchy of the old documents. The customary rule counts documents by its nodes.
    """

    ours: Calibration
    hierarchy: Hierarchy

    def count_by_node(self, documents: np.ndarray) -> np.ndarray:
        """Return the number of documents below each of the K nodes of the first level, (K,).

        Args:
            documents: Vectors (n, H) of the documents.
        """
        nodes = self.hierarchy.place(documents)[:, 0]
        return np.bincount(nodes, minlength=len(self.hierarchy.centroids[0]))


def calibrate(old: Vectors, plan: StudyPlan, rows: np.ndarray | None = None) -> BothReferences:
    """Build the references of the drift check and of the customary rule.

    Args:
        old: Old documents. The documents of the reference are ranked among all of them.
        plan: Size of the simulation.
        rows: Rows of `old` that belong to the reference. None: all rows.
    """
    from model_code.hierarchy.build import build_hierarchy
    from model_code.hierarchy.settings import HierarchySettings

    settings = DriftSettings(
        minimum_batch=plan.batch,
        largest_batch=plan.batch,
        reference_documents=plan.reference,
        draws=plan.draws,
    )
    hierarchy_settings = HierarchySettings(max_iterations=20, device="cpu")
    hierarchy = build_hierarchy(old.documents, hierarchy_settings, seed=0)

    scored = old if rows is None else old[rows]
    old_scores = OldScores(*score_queries(scored, old.documents))
    reference = DriftReference.build(old.documents, "", settings, rows)
    calibration = Calibration(reference, settings, scores=old_scores)
    return BothReferences(calibration, hierarchy)


def judge(references: BothReferences, old: np.ndarray, batch: Vectors, cell: CellCounts) -> None:
    """Run the drift check and the customary rule on a batch, and add the results to `cell`.

    Args:
        references: References of the drift check and of the customary rule.
        old: Vectors (n, H) of the old documents, among which the batch is ranked.
        batch: New documents.
        cell: Receives the results.
    """
    calibration = references.ours
    cut_out, asked = score_queries(batch, np.concatenate([old, batch.documents]))
    arrivals = Arrivals(batch.documents, "", cut_out, asked=asked)
    report = make_report(calibration, [arrivals], added=len(cut_out))

    # The measure "growth" does not count: it tells that documents were added, which is not a shift.
    alarms = {measure.name for measure in report.exceeded} - {"growth"}
    decision = decide(report, (), calibration.settings)
    # The value is the gain of new documents against old ones, so harm has the other sign.
    asked_quality = report.of("asked_quality")[0].value
    cell.harm.append(-asked_quality)
    cell.alarm.append(bool(alarms))
    cell.by_made.append("new_quality" in alarms)
    cell.by_asked.append("asked_quality" in alarms)
    cell.retrain.append(decision.action == "retrain")

    old_counts = references.count_by_node(calibration.reference.vectors)
    new_counts = references.count_by_node(batch.documents)
    cell.customary.append(population_stability(old_counts, new_counts) > CUSTOMARY_PSI)


def population_stability(old: np.ndarray, new: np.ndarray) -> float:
    """Return the population stability index (PSI) of two vectors of counts, which is at least 0.

    PSI = sum_t (q_t - p_t) ln(q_t / p_t), where p and q are the shares of the old and the new
    counts. It is the sum of the two Kullback-Leibler divergences, in nats. Without a correction it
    would be infinite for an empty node. Therefore .5 is added to each count (Jeffreys' prior).

    Args:
        old: Number of old documents at each node (K,).
        new: Number of new documents at each node (K,).
    """
    p = (old + 0.5) / (old + 0.5).sum()
    q = (new + 0.5) / (new + 0.5).sum()
    return float(((q - p) * np.log(q / p)).sum())


def score_queries(scored: Vectors, documents: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return how well documents are found by their queries.

    Args:
        scored: The documents with their queries.
        documents: Vectors (m, H) of all documents, among which they are ranked.

    Returns:
        Reciprocal ranks (n,) by the cut-out queries, and (n,) by the written queries.
    """
    cut_out = reciprocal_ranks(scored.cut_out, scored.documents, documents)
    asked = reciprocal_ranks(scored.asked, scored.documents, documents)
    return cut_out, asked


def reciprocal_ranks(
    queries: np.ndarray, relevant: np.ndarray, documents: np.ndarray, depth: int = 10
) -> np.ndarray:
    """Return 1 / rank of each query's relevant document: (n,).

    Args:
        queries: Query vectors (n, H).
        relevant: Vectors (n, H) of the relevant document of each query.
        documents: Vectors (m, H) of all documents, including the relevant ones.
        depth: Rank beyond which the value is 0.
    """
    # Score of the relevant document of each query, (n,).
    relevant_scores = (queries * relevant).sum(axis=1)
    is_better = queries @ documents.T > relevant_scores[:, None] + SCORE_TOLERANCE
    # Number of documents above the relevant one, (n,).
    better_count = is_better.sum(axis=1)
    return np.where(better_count < depth, 1 / (1 + better_count), 0.0)
