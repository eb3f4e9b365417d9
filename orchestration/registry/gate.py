"""The gate before the champion: may a challenger take its place? Both are judged on the same
queries of today.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence, Set
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory

from model_code.collection.generations.generation_store import GenerationStore
from model_code.collection.generations.searcher import Searcher
from model_code.collection.segments.documents import ENCODER, HIERARCHY, INDEX
from model_code.context import StageContext
from model_code.corpus.settings import GATE
from model_code.evaluation.promotion import Verdict, judge_promotion, judge_retrain
from model_code.evaluation.scores import load_gate_scores
from model_code.evaluation.settings import PromotionSettings
from model_code.files import read_json
from model_code.hierarchy.tree import DOCUMENT_IDS
from model_code.project import Project
from model_code.retrieval.id_map import IdMap
from model_code.retrieval.indexed import RetrieverSegment
from model_code.retrieval.kinds import open_retriever
from orchestration import parameters
from orchestration.registry import versions
from orchestration.registry.versions import Version

NO_JUDGED_QUERIES = (
    "nobody has judged queries of this corpus, so nothing tells what is better: bring qrels, documents with `queries`, "
    "or feedback; freshet promote --by-hand makes what freshet register was given champion all the same"
)
JUDGED_BY_TEST_SPLIT = (
    "judged by the test queries, as the gate has none of its own (corpus.splits.gate_share, or a split `gate` of the "
    "qrels): a champion's test score is a winner's from then on"
)


@dataclass(frozen=True)
class GateRules:
    """What a challenger is judged by: `settings`, on the judged queries under the artifacts of
    `project`.

    new: the ids of queries that ask for documents added since the champion was trained, where the
    challenger is a retrain: it must find these better and others no worse. None: better on all
    queries together.
    """

    project: Project
    settings: PromotionSettings
    seed: int
    new: Set[str] | None = None

    @classmethod
    def of(cls, project: Project, new: Set[str] | None = None) -> GateRules:
        """Those that the project's `params.yaml` states."""
        settings = parameters.load(project.params_file)
        return cls(project, settings.promotion, settings.seed, new)


def judge_challenger(challenger: Version, champion: Version | None, rules: GateRules) -> Verdict:
    """Judge the challenger against the champion (None: there is none) on queries of the gate's own,
    or on the test queries if it has none, which the verdict then says.

    Where people judged none, nothing may replace a champion: made queries praised trainings by
    which real ones lost .075 nDCG@10.
    """
    scores, others = versions.load_scores(rules.project, challenger), None
    if champion is not None and not scores.queries:
        return Verdict(False, (NO_JUDGED_QUERIES,), 0, ())
    if champion is not None and champion.corpus == challenger.corpus:
        others = versions.load_scores(rules.project, champion)
    elif champion is not None:  # its registered scores are of the corpus that it was built on
        others = load_gate_scores(rescore_champion(rules.project, champion))
    if rules.new is None:
        verdict = judge_promotion(scores, others, rules.settings, rules.seed)
    else:
        verdict = judge_retrain(scores, others, rules.settings, rules.new, rules.seed)
    return (
        verdict
        if others is None or scores.split == GATE
        else replace(verdict, reasons=(*verdict.reasons, JUDGED_BY_TEST_SPLIT))
    )


def rescore_champion(project: Project, champion: Version) -> Path:
    """Evaluate the champion as users search it on the judged queries under `artifacts/`; returns
    the scores' folder.

    That is its live generation, or its registered build if it is not live. Documents that it has
    not got yet, it cannot find: that counts, since the challenger would find them. Those that only
    it has, which arrived after the challenger's corpus was taken, are left out of its rankings.
    """
    output = project.state / "rescored" / champion.version
    return evaluate_segments(project, champion.retriever, _segments(project, champion), output)


def evaluate_segments(
    project: Project, system: str, segments: Sequence[RetrieverSegment], output: Path
) -> Path:
    """Evaluate the search of segments on the judged queries under `artifacts/`; returns the scores'
    folder, `output`.

    Documents that `artifacts/` lacks are left out of the rankings.
    """
    # with torch: `freshet status` and the sensors import this module
    from model_code.stages.evaluation_set import EvaluationSet

    settings = parameters.load(project.params_file)
    shutil.rmtree(output, ignore_errors=True)
    output.mkdir(parents=True)
    with TemporaryDirectory() as aside:
        context = StageContext(
            root=project.root,
            inputs={"corpus": project.artifacts / "corpus"},
            output=output,
            settings={"encoder": settings.encoder, "evaluation": settings.evaluation},
            checkpoints=Path(aside),
        )
        bench = EvaluationSet.load(context)
        bench.evaluate(system, bench.search(bench.search_live(segments)), output)
    return output


def live_searcher(project: Project, champion: Version) -> Searcher | None:
    """The champion's live collection as it is searched now; None if the champion is not live."""
    collection = GenerationStore(project.live, champion.retriever)
    if (
        collection.current_number() is None
        or collection.current().fingerprint != champion.fingerprint
    ):
        return None
    return Searcher.open(project.live, champion.retriever)


def _segments(project: Project, champion: Version) -> list[RetrieverSegment]:
    live = live_searcher(project, champion)
    if live is not None:
        return [view.searchable for view in live.views]
    files = versions.download_files(project, champion)
    rows = IdMap(read_json(files / HIERARCHY / DOCUMENT_IDS))
    return [RetrieverSegment(open_retriever(files / ENCODER, files / INDEX), rows)]
