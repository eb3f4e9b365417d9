"""The gate: decide whether a challenger may replace the champion, on the current judged queries."""

from __future__ import annotations

import shutil
from collections.abc import Sequence, Set
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory

from model_code.collection.generations.evaluation_segments import judging_segments
from model_code.collection.generations.generation import Generation
from model_code.collection.generations.generation_store import GenerationStore
from model_code.collection.generations.live_queries import documents_with_known_queries
from model_code.collection.generations.searcher import Searcher
from model_code.collection.segments.documents import ENCODER, HIERARCHY, INDEX
from model_code.context import StageContext
from model_code.corpus.corpus_queries import KNOWN_QUERIES, CorpusQueries, drop_held_out
from model_code.corpus.settings import GATE
from model_code.evaluation.promotion import (
    Verdict,
    find_groups_below,
    judge_promotion,
    judge_retrain,
)
from model_code.evaluation.scores import BM25_KNOWN, SystemScores, load_gate_scores
from model_code.evaluation.settings import PromotionSettings
from model_code.files import hash_path, read_json
from model_code.hierarchy.tree import DOCUMENT_IDS
from model_code.project import Project
from model_code.retrieval.id_map import IdMap
from model_code.retrieval.indexed import RetrieverSegment
from model_code.retrieval.kinds import open_retriever
from model_code.text.known_queries import KnownQuery
from orchestration import parameters
from orchestration.registry import versions
from orchestration.registry.shadow_record import load_record
from orchestration.registry.versions import Version

NO_JUDGED_QUERIES = (
    "this corpus has no judged queries, so the gate cannot compare versions: add qrels, documents "
    "with `queries`, or feedback; `freshet promote --by-hand` promotes a registered version "
    "without the gate"
)
JUDGED_BY_TEST_SPLIT = (
    "judged on the test queries, because the split `gate` has none (set corpus.splits.gate_share, "
    "or give the qrels a split `gate`): the champion's test scores are biased upwards from now on"
)


@dataclass(frozen=True)
class GateRules:
    """The rules by which a challenger is judged.

    Attributes:
        project: The project whose artifacts hold the judged queries.
        settings: The group `promotion` of `params.yaml`.
        seed: Seed of the bootstrap.
        new_queries: For a retrain, the ids of the queries that ask for documents added since the
            champion was trained. The challenger must be better on these and no worse on others.
            None: the challenger must be better on all queries together.
    """

    project: Project
    settings: PromotionSettings
    seed: int
    new_queries: Set[str] | None = None

    @classmethod
    def load(cls, project: Project, new_queries: Set[str] | None = None) -> GateRules:
        """Load the rules from the project's `params.yaml`."""
        settings = parameters.load(project.params_file)
        return cls(project, settings.promotion, settings.seed, new_queries)


def judge_challenger(challenger: Version, champion: Version | None, rules: GateRules) -> Verdict:
    """Decide whether the challenger may replace the champion.

    Both are compared on the queries of the split `gate`, or of `test` if `gate` is empty. The
    verdict says if it is based on `test`. Without judged queries no champion is replaced.
    Pseudo-queries are not a substitute: in an experiment, challengers that looked better by them
    lost .075 nDCG@10 on real queries.

    Args:
        challenger: The version that asks to be promoted.
        champion: The current champion, or None. If it was built on the same corpus as the
            challenger, its registered scores are used. Otherwise its live index is evaluated now.
        rules: The rules of the project.

    Returns:
        The verdict with its intervals and reasons. Findings, which decide nothing, are added: the
        groups of queries on which `bm25_known` is better, and a comparison on live queries (shadow
        mode).
    """
    challenger_scores = versions.load_scores(rules.project, challenger)
    findings = (
        *_known_query_findings(rules, challenger, challenger_scores),
        *_shadow_findings(rules.project, challenger, champion),
    )
    if champion is not None and not challenger_scores.queries:
        return Verdict(False, (NO_JUDGED_QUERIES,), queries=0, intervals=(), findings=findings)

    # Scores can be compared only if they belong to the same queries and documents.
    if champion is None:
        champion_scores = None
    elif champion.corpus == challenger.corpus:
        champion_scores = versions.load_scores(rules.project, champion)
    else:
        champion_scores = load_gate_scores(rescore_champion(rules.project, champion))

    if rules.new_queries is None:
        verdict = judge_promotion(challenger_scores, champion_scores, rules.settings, rules.seed)
    else:
        verdict = judge_retrain(
            challenger_scores, champion_scores, rules.settings, rules.new_queries, rules.seed
        )

    if champion_scores is not None and challenger_scores.split != GATE:
        verdict = replace(verdict, reasons=(*verdict.reasons, JUDGED_BY_TEST_SPLIT))
    return replace(verdict, findings=findings)


def _known_query_findings(
    rules: GateRules, challenger: Version, scores: SystemScores
) -> tuple[str, ...]:
    """Return a sentence for each group of queries on which `bm25_known` is above the challenger.

    `bm25_known` is BM25 that adds known queries to their documents. On such a group, looking up
    known queries is better than searching with the challenger. The gate's queries are never known
    queries, so `bm25_known` does not look them up.

    Nothing is returned if the baselines below `artifacts/` were evaluated on another corpus or on
    other queries than the challenger.
    """
    folder = rules.project.artifacts / "baselines" / BM25_KNOWN
    if challenger.retriever == BM25_KNOWN or not (folder / "metrics.json").is_file():
        return ()
    if challenger.corpus != hash_path(rules.project.artifacts / "corpus"):
        return ()
    known_scores = load_gate_scores(folder)
    metric = rules.settings.metric
    is_comparable = (
        known_scores.split == scores.split
        and known_scores.values.index.equals(scores.values.index)
        and metric in known_scores.values
        and metric in scores.values
    )
    if not is_comparable:
        return ()
    return tuple(find_groups_below(scores, known_scores, metric))


def _shadow_findings(
    project: Project, challenger: Version, champion: Version | None
) -> tuple[str, ...]:
    """Return what shadow mode found when it compared the challenger with this champion.

    In shadow mode, the challenger answers a share of the live queries, and nobody sees its answers.
    """
    record = load_record(project, challenger.version)
    if record is None or champion is None:
        return ()
    # The counts may compare the challenger with a former champion. They are not shown then.
    is_about_champion = record.is_about(champion.retriever, champion.fingerprint)
    if not is_about_champion or record.queries == 0:
        return ()
    return (f"shadow mode: {record.text}",)


def rescore_champion(project: Project, champion: Version) -> Path:
    """Evaluate the champion on the judged queries of the corpus below `artifacts/`.

    The champion's live generation is evaluated, or its registered files if it is not live.
    Documents of the corpus that the champion does not have count as not found, because the
    challenger can find them. Documents that only the champion has are left out of its rankings.

    Returns:
        The folder of the scores.
    """
    output = project.state / "rescored" / champion.version
    known_documents: frozenset[str] = frozenset()
    generation = _live_generation(project, champion)
    if generation is not None:
        known_documents = documents_with_known_queries(
            generation, judging_queries(project), with_feedback=False
        )
    with TemporaryDirectory() as encodings:
        segments = _champion_segments(project, champion, Path(encodings))
        return evaluate_segments(project, champion.retriever, segments, output, known_documents)


def evaluate_segments(
    project: Project,
    system: str,
    segments: Sequence[RetrieverSegment],
    output: Path,
    known_documents: frozenset[str] = frozenset(),
) -> Path:
    """Evaluate a search over segments on the judged queries of the corpus below `artifacts/`.

    A segment is an immutable index of some documents. Documents that are not in the corpus are left
    out of the rankings.

    Args:
        project: The project whose artifacts hold the corpus.
        system: The name under which the scores are written.
        segments: The segments, which are searched together.
        output: The folder of the scores, which is replaced.
        known_documents: Ids of the documents with known queries in the segments. The scores state
            which queries ask for them, or for a document with known queries in the corpus.

    Returns:
        `output`.
    """
    # Imported here because `evaluation_set` imports torch, which takes seconds. `freshet status`
    # and the sensors import this module and do not need torch.
    from model_code.stages.evaluation_set import EvaluationSet

    settings = parameters.load(project.params_file)
    shutil.rmtree(output, ignore_errors=True)
    output.mkdir(parents=True)

    with TemporaryDirectory() as checkpoints:
        context = StageContext(
            root=project.root,
            inputs={"corpus": project.artifacts / "corpus"},
            output=output,
            settings={"encoder": settings.encoder, "evaluation": settings.evaluation},
            checkpoints=Path(checkpoints),
        )
        evaluation_set = EvaluationSet.load(context).with_known_documents(known_documents)
        search = evaluation_set.search(evaluation_set.search_live(segments))
        evaluation_set.evaluate(system, search, output)
    return output


def open_live_searcher(project: Project, champion: Version) -> Searcher | None:
    """Open the champion's current generation, the snapshot of its index that is searched.

    None if the champion is not live: another build of the retriever may be.
    """
    if _live_generation(project, champion) is None:
        return None
    return Searcher.open(project.live, champion.retriever)


def _live_generation(project: Project, champion: Version) -> Generation | None:
    """Return the champion's current generation, or None if the champion is not live."""
    collection = GenerationStore(project.live, champion.retriever)
    if collection.current_number() is None:
        return None
    generation = collection.current()
    if generation.fingerprint != champion.fingerprint:
        return None
    return generation


def judging_queries(project: Project) -> frozenset[str]:
    """Return the hashes of the queries of dev, gate and test of the corpus below `artifacts/`.

    Documents may be indexed with queries that they are known to answer. An index must not hold the
    queries of the gate among these. Otherwise it would find the documents by an exact copy of the
    query.
    """
    return CorpusQueries.of_corpus(project.artifacts / "corpus").held_out


def _champion_segments(
    project: Project, champion: Version, encodings: Path
) -> list[RetrieverSegment]:
    """Return the segments of the champion, without those known queries that the gate asks.

    A segment is an immutable index of some documents. An index may hold a query as a known query of
    a document, and would find the document by it. Queries from feedback are left out, too, because
    the scores of a challenger are those of its build, which knows none. Both know them when live.

    Args:
        project: The project whose artifacts hold the judged queries.
        champion: The champion.
        encodings: Empty folder for encodings of documents. It must exist as long as the segments
            are in use.
    """
    held_out = judging_queries(project)
    searcher = open_live_searcher(project, champion)
    if searcher is not None:
        return judging_segments(searcher, held_out, encodings, with_feedback=False)

    files = versions.download_files(project, champion)
    document_ids = IdMap(read_json(files / HIERARCHY / DOCUMENT_IDS))
    retriever = open_retriever(files / ENCODER, files / INDEX)
    known = _known_without(files / KNOWN_QUERIES, held_out)
    return [RetrieverSegment(retriever, document_ids, known=known)]


def _known_without(path: Path, held_out: frozenset[str]) -> dict[str, list[KnownQuery]]:
    """Return the known queries that remain after some are removed.

    A known query is a query that a document is known to answer.

    Args:
        path: File of the known queries of a build.
        held_out: Hashes of the queries to remove.

    Returns:
        Known queries by document id, only for documents that lose a query.
    """
    changed: dict[str, list[KnownQuery]] = {}
    if path.is_file():
        for document_id, evidence in CorpusQueries.load(path).by_document().items():
            kept = drop_held_out(evidence, held_out)
            if len(kept) < len(evidence):
                changed[document_id] = kept
    return changed
