"""Build and evaluate fusions: default weights, learned weights, and the share of each component.

A fusion scores a document by a weighted sum of the scores of its components. The weights are
learned on judged dev queries. With too few of these, the default weights are used. Learning on
titles and first sentences as made-up queries was no better (`experiments/untrained_weights`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from model_code.context import StageContext
from model_code.corpus.tables import Judgements
from model_code.errors import FreshetError
from model_code.evaluation.metrics import Run, evaluate_run, metric_cutoff
from model_code.evaluation.scores import VARIANTS_FOLDER, WITH_KNOWN, WITHOUT_KNOWN
from model_code.evaluation.system_evaluation import own_document_queries, sample_queries
from model_code.files import add_to_manifest
from model_code.retrieval.dense import DenseRetriever
from model_code.retrieval.fused import (
    FusedSearch,
    Fusion,
    ScoreNormalizer,
    build_folders,
    leave_one_out,
)
from model_code.retrieval.headline import HeadlineRetriever
from model_code.retrieval.indexed import IndexedRetriever
from model_code.retrieval.kinds import PRECISION, open_retriever
from model_code.retrieval.protocol import LATE_SUFFIX, Retriever
from model_code.retriever_settings import FusionSettings
from model_code.stages.evaluation_set import EvaluationSet

# Name of the subfolder of an evaluation folder that holds the encoder and the index. Only baselines
# and fusions have it, because other retrievers are written by the stages `train` and `index`.
BUILD = "build"
WEIGHT_GRID = (0.0, 0.25, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0, 12.0)
# Default weights: the total weight of all components of one sort, which they share equally.
DEFAULT_TOTAL_WEIGHT = {"dense": 1.0, "words": 5.0, "late": 1.0, "headline": 0.5}
# Smallest number of judged dev queries with which weights are learned.
MIN_LEARNING_QUERIES = 30
# Largest number of dev queries that weights are learned on. Even weights that are learned on 30
# queries are nearly as good as weights learned on all, so more queries would only take time.
MAX_LEARNING_QUERIES = 1000
# A learned weight replaces the default weight if the mean gain on dev queries is larger than this
# number of standard errors. On 30 queries, the best of twelve weights is often best by chance; the
# value 2 protects small dev sets from that.
MIN_GAIN = 2.0
# Largest allowed loss of the mean metric on dev queries for documents without known queries, if
# words of known queries are searched. A known query is one that a document is known to answer.
MAX_LOSS = 0.01
# Number of dev queries that are searched to find the largest dense scores of a build (see
# `limit_scores`), if no weights are learned.
MAX_LIMIT_QUERIES = 200
# Number of decimals to which mean metrics are rounded before they are compared. Weights whose means
# differ by less count as equally good.
MEAN_DECIMALS = 4

# The folders of an encoder and of an index.
Folders = tuple[Path, Path]


def component_folders(context: StageContext, name: str) -> Folders:
    """Return the encoder and index folders of a component: a baseline or a trained retriever."""
    build = context.inputs["baselines"] / name / BUILD
    if build.is_dir():
        return build / "encoder", build / "index"
    encoder = context.inputs["trained"] / name / "encoder"
    index = context.inputs["indexes"] / name / "index"
    return encoder, index


def evaluate_fusion(
    evaluation_set: EvaluationSet,
    name: str,
    components: Mapping[str, Folders],
    settings: FusionSettings,
    context: StageContext,
    output: Path,
) -> dict[str, Any]:
    """Build a fusion, evaluate it, and evaluate it again without each of its components.

    Args:
        evaluation_set: The judged queries.
        name: Name of the fusion.
        components: Encoder and index folder of each component.
        settings: Components, weights and depth.
        context: Context of the stage, for the settings of the encoder.
        output: The evaluation folder to write. The retriever goes to `build/` in it.

    Returns:
        The metrics of each split, with `weights`, `learned_by`, `weights_on_dev` (see
        `WeightsChoice.report`) and the metrics of `variants`.

    Raises:
        FreshetError: If the settings give a weight to the late interaction of a component whose
            index has no token signs.
    """
    retrievers = {
        component: open_retriever(*folders, settings=context.settings["encoder"])
        for component, folders in components.items()
    }
    fuser = FusionBuilder(evaluation_set, retrievers, settings)
    names = fuser.weighted_names(name)
    choice = fuser.fuse(names)
    fusion = choice.fusion

    ablations = {}
    if evaluation_set.settings.variants:
        for component, rest in leave_one_out(list(fusion.weights)).items():
            ablations[f"without_{component}"] = fuser.fuse(rest).fusion

    encoder = output / BUILD / "encoder"
    index = output / BUILD / "index"
    build_folders(components, fusion, encoder, index)
    add_to_manifest(index, {PRECISION: context.settings["encoder"].precision})

    report = fuser.evaluate(name, fusion, output)
    report["weights"] = dict(fusion.weights)
    report["learned_by"] = choice.learned_by
    report["weights_on_dev"] = choice.report
    variants = {}
    for without, ablation in ablations.items():
        variants[without] = fuser.evaluate(
            f"{name}.{without}", ablation, output / VARIANTS_FOLDER / without
        )
    if variants:
        report["variants"] = variants
    return report


@dataclass(frozen=True)
class WeightsChoice:
    """The weights of a fusion, and the metrics of the dev queries that they were chosen on.

    Attributes:
        fusion: The fusion with the chosen weights.
        learned_by: Source of the judgements; None if no weight was learned.
        variants: The compared weights, each with its mean metric; see `measure_weights`. Empty if
            no weight was learned.
        group_sizes: Number of dev queries of each group, `WITH_KNOWN` and `WITHOUT_KNOWN`.
        limit: A sentence about the limit of the loss of documents without known queries.
    """

    fusion: Fusion
    learned_by: str | None = None
    variants: Sequence[Mapping[str, Any]] = ()
    group_sizes: Mapping[str, int] = field(default_factory=dict)
    limit: str = ""

    @property
    def report(self) -> dict[str, Any]:
        """The compared weights as values for a report, with the metrics of each group."""
        return {
            "queries": dict(self.group_sizes),
            "limit": self.limit,
            "variants": [dict(variant) for variant in self.variants],
        }


class FusionBuilder:
    """Builds fusions of opened retrievers, and evaluates them on one evaluation set.

    Args:
        evaluation_set: The judged queries. Weights are learned on the split dev.
        retrievers: The opened retriever of each component.
        settings: Components, weights and depth.
        searches: The search of each component. None: the component's retriever, over documents
            without their own queries.
    """

    def __init__(
        self,
        evaluation_set: EvaluationSet,
        retrievers: Mapping[str, IndexedRetriever],
        settings: FusionSettings,
        searches: Mapping[str, Retriever] | None = None,
    ) -> None:
        self.evaluation_set = evaluation_set
        self.settings = settings
        if searches is None:
            searches = {
                name: evaluation_set.strip_query_lines(retriever)
                for name, retriever in retrievers.items()
            }
        self.searches = searches

        # The components that search headlines, by name, and the dense retriever of each component
        # with vectors, headlines included.
        self.headlines: list[str] = []
        self.dense: dict[str, DenseRetriever] = {}
        for name, retriever in retrievers.items():
            if isinstance(retriever, HeadlineRetriever):
                self.headlines.append(name)
                self.dense[name] = retriever
            elif retriever.dense is not None:
                self.dense[name] = retriever.dense

    def weighted_names(self, fusion_name: str) -> list[str]:
        """Return the names of a fusion's parts: its components, and late interactions by them.

        These are the names in the settings or, if the settings have no weights, all of them.

        Args:
            fusion_name: Name of the fusion, for the error message.

        Raises:
            FreshetError: If late interaction has a weight and the index keeps no token signs.
        """
        late_names = [
            name + LATE_SUFFIX for name, dense in self.dense.items() if dense.index.token_signs
        ]
        names = list(self.settings.weights)
        if not names:
            names = [*self.settings.of, *late_names]

        for name in names:
            if name.endswith(LATE_SUFFIX) and name not in late_names:
                raise FreshetError(
                    f"fusions.{fusion_name} weighs {name}, but that component's index keeps no "
                    "tokens; leave it out"
                )
        return names

    def fuse(self, names: Sequence[str]) -> WeightsChoice:
        """Return the fusion of some components, with the choice of its weights.

        Weights are learned on dev queries, unless the settings have weights or too few dev queries
        are judged by people. Otherwise the dev queries are only used to limit the dense scores.

        Args:
            names: Names of the components and late interactions.
        """
        normalizers = {
            name: ScoreNormalizer.fit(dense.index.vectors)
            for name, dense in self.dense.items()
            if name in names
        }
        weights = {name: self.settings.weights.get(name, 0.0) for name in names}
        if not any(weights.values()):
            weights = default_weights(names, normalizers, self.headlines)
        fusion = Fusion(weights, normalizers, self.settings.depth, self.settings.feedback)

        dev = self.evaluation_set.judgements["dev"]
        has_enough_judgements = dev.source == "qrels" and len(dev.queries) >= MIN_LEARNING_QUERIES
        learns_weights = has_enough_judgements and not self.settings.weights

        # Some dev queries are lines of their own documents, which find them too easily. The weights
        # are learned on the others, if these are enough.
        other_dev = self.evaluation_set.without_query_lines(dev)
        fixed: Sequence[str] = ()
        if learns_weights and len(other_dev.queries) >= MIN_LEARNING_QUERIES:
            dev = other_dev
        elif len(other_dev.queries) < len(dev.queries):
            # The queries were made of first sentences, which headlines contain. Headlines would
            # find their documents by an exact copy, so their weight must not be learned.
            fixed = self.headlines
        max_queries = MAX_LEARNING_QUERIES if learns_weights else MAX_LIMIT_QUERIES
        sample = sample_queries(dev, max_queries)
        if not sample.queries:
            return WeightsChoice(fusion)

        search = FusedSearch(self.searches, fusion)
        scored = score_candidates(search, sample)
        fusion = replace(fusion, normalizers=limit_scores(normalizers, scored))
        if not learns_weights:
            return WeightsChoice(fusion)

        metric = self.evaluation_set.settings.main_metric
        limit = find_loss_limit(search, sample, metric, fixed)
        chosen = choose_weights(fusion, scored, sample, metric, fixed, limit)
        variants = [
            {"choice": "default", **measure_weights(scored, fusion.weights, sample, metric)},
            {"choice": "chosen", **measure_weights(scored, chosen.weights, sample, metric)},
        ]
        if limit.reference is not None:
            variants.append({"choice": "without known queries", **limit.reference_means(sample)})
        chosen_values = metric_values(scored, chosen.weights, sample, metric)
        limit_text = limit.describe(chosen_values)
        return WeightsChoice(chosen, dev.source, variants, group_sizes(sample), limit_text)

    def evaluate(self, system: str, fusion: Fusion, output: Path) -> dict[str, Any]:
        """Search the judged queries with a fusion, write its evaluation, and return its metrics."""
        runs = self.evaluation_set.search(FusedSearch(self.searches, fusion).search)
        return self.evaluation_set.evaluate(system, runs, output)


def default_weights(
    names: Sequence[str],
    dense_names: Collection[str],
    headlines: Collection[str] = (),
) -> dict[str, float]:
    """Return weights for components before any are learned.

    There are four sorts of components: dense ones, word searches, searches of headlines, and late
    interactions. Each sort has a total weight that its components share equally.

    Args:
        names: Names of components and late interactions.
        dense_names: Names of the components that search vectors, headlines included.
        headlines: Names of the components that search headlines.

    >>> default_weights(("hce", "bm25", "hce.late"), ["hce"])
    {'hce': 1.0, 'bm25': 5.0, 'hce.late': 1.0}
    """
    sorts = {}
    for name in names:
        if name in headlines:
            sorts[name] = "headline"
        elif name in dense_names:
            sorts[name] = "dense"
        elif name.endswith(LATE_SUFFIX):
            sorts[name] = "late"
        else:
            sorts[name] = "words"
    count = Counter(sorts.values())
    return {name: DEFAULT_TOTAL_WEIGHT[sort] / count[sort] for name, sort in sorts.items()}


@dataclass(frozen=True)
class ScoredQuery:
    """A query with the normalised scores of its candidates by each component.

    Attributes:
        query_id: Id of the query.
        candidates: Ids of n documents that at least one component proposes.
        scores: Normalised scores of the candidates by the name of the component, (n,) each.
    """

    query_id: str
    candidates: Sequence[str]
    scores: Mapping[str, np.ndarray]

    def without(self, document_id: str) -> ScoredQuery:
        """Return the query without one candidate, such as the document that the query itself is."""
        rows = [i for i, candidate in enumerate(self.candidates) if candidate != document_id]
        candidates = [self.candidates[i] for i in rows]
        scores = {name: values[rows] for name, values in self.scores.items()}
        return replace(self, candidates=candidates, scores=scores)


def score_candidates(search: FusedSearch, dev: Judgements) -> list[ScoredQuery]:
    """Score each query's candidates by every component.

    Some queries are documents themselves, for example in a corpus of questions. Such a query would
    find itself, so its own document is no candidate.
    """
    encoded = search.encode_queries(list(dev.queries.values()))
    scores_by_query = search.component_scores(encoded, encoded.candidates)
    all_candidates = set().union(*encoded.candidates)
    with_own_document = own_document_queries(dev, all_candidates)
    scored: list[ScoredQuery] = []
    for query_id, candidates, scores in zip(
        dev.queries, encoded.candidates, scores_by_query, strict=True
    ):
        query = ScoredQuery(query_id, candidates, scores)
        if query_id in with_own_document:
            query = query.without(query_id)
        scored.append(query)
    return scored


def limit_scores(
    normalizers: Mapping[str, ScoreNormalizer], scored: Sequence[ScoredQuery]
) -> dict[str, ScoreNormalizer]:
    """Limit the scores of each dense component to the largest score that the build has shown.

    The largest score is taken over the candidates of the given queries. Documents that are added
    later cannot score higher. Without the limit, documents of another domain could get such high
    dense scores that they rank above exact matches of words.

    Args:
        normalizers: The normalizer of each dense component.
        scored: Queries with the scores of their candidates, which are documents of the build.

    Returns:
        The normalizers with their score limits.
    """
    limited = dict(normalizers)
    for name, normalizer in normalizers.items():
        largest = max((query.scores[name].max(initial=0) for query in scored), default=0.0)
        # If no score is positive, for example because there are no queries, no limit is set.
        if largest > 0:
            limited[name] = replace(normalizer, score_limit=float(largest))
    return limited


def learn_weights(
    search: FusedSearch, dev: Judgements, metric: str, fixed: Collection[str] = ()
) -> Fusion:
    """Choose the weights of a fusion that give the highest mean metric on dev queries.

    See `choose_weights` for the procedure.

    Args:
        search: A search by the fusion with its initial weights.
        dev: Judged queries to learn from.
        metric: Name of the metric to raise.
        fixed: Components that keep their weights.
    """
    return choose_weights(search.fusion, score_candidates(search, dev), dev, metric, fixed)


@dataclass(frozen=True, eq=False)
class LossLimit:
    """A limit of what documents without known queries may lose by words of known queries.

    A known query is one that a document is known to answer. Its words are searched with the words
    of its document. Documents without known queries then rank lower.

    Attributes:
        reference: Metric of each of q dev queries by the fusion without words of known queries,
            (q,). None: there are too few plain dev queries to measure a loss.
        is_plain: Whether all relevant documents of a dev query lack known queries, (q,).
        text: A sentence that says what is excluded, or why nothing is.
        word_components: Names of the components that search words of known queries. Only their
            weights are lowered to keep the limit.
        largest_weights: Largest weight of some components, by name. Where no loss can be measured,
            words of known queries must not make a component more important.
    """

    reference: np.ndarray | None
    is_plain: np.ndarray
    text: str
    word_components: frozenset[str] = frozenset()
    largest_weights: Mapping[str, float] = field(default_factory=dict)

    def excludes(self, values: np.ndarray) -> bool:
        """Return whether documents without known queries lose clearly more than `MAX_LOSS`.

        Args:
            values: Metric of each dev query with the weights that are tried, (q,).
        """
        if self.reference is None:
            return False
        return is_clear_loss((self.reference - values)[self.is_plain])

    def allows(self, name: str, weight: float, values: np.ndarray) -> bool:
        """Return whether a component may get a weight.

        Args:
            name: Name of the component.
            weight: The weight.
            values: Metric of each dev query with this weight, (q,).
        """
        largest_weight = self.largest_weights.get(name, np.inf)
        return weight <= largest_weight and not self.excludes(values)

    def describe(self, chosen: np.ndarray) -> str:
        """Return `text`, and whether the chosen weights exceed the limit nevertheless.

        Args:
            chosen: Metric of each dev query with the chosen weights, (q,).
        """
        if self.excludes(chosen):
            return f"{self.text}; the chosen weights exceed this limit, as all that were tried do"
        return self.text

    def reference_means(self, dev: Judgements) -> dict[str, float]:
        """Return the mean metrics of the fusion without words of known queries."""
        assert self.reference is not None
        return group_means(self.reference, dev)


def find_loss_limit(
    search: FusedSearch, dev: Judgements, metric: str, fixed: Collection[str] = ()
) -> LossLimit:
    """Measure the fusion without words of known queries, whose metric limits the weights.

    Its weights are chosen by the same rule on the same queries, from the same initial weights. So
    the reference is the fusion that would be chosen without known queries.

    Args:
        search: A search by the fusion with its initial weights.
        dev: Judged queries to learn from.
        metric: Name of the metric.
        fixed: Components that keep their weights.
    """
    is_plain = np.array([query_id not in dev.with_known for query_id in dev.queries], bool)
    plain_queries = int(is_plain.sum())
    plain_search = search.without_known_words()
    if plain_search is search:
        text = "no weight is excluded, because no component searches words of known queries"
        return LossLimit(None, is_plain, text)
    word_components = [
        name
        for name, component in search.components.items()
        if plain_search.components[name] is not component
    ]

    scored = score_candidates(plain_search, dev)
    plain_fusion = choose_weights(search.fusion, scored, dev, metric, fixed)
    if plain_queries < MIN_LEARNING_QUERIES:
        text = (
            f"the weight of {', '.join(word_components)} is at most that without known queries, "
            f"because {plain_queries} dev queries for documents without known queries are fewer "
            f"than {MIN_LEARNING_QUERIES}"
        )
        largest_weights = {name: plain_fusion.weights[name] for name in word_components}
        return LossLimit(None, is_plain, text, frozenset(word_components), largest_weights)

    reference = metric_values(scored, plain_fusion.weights, dev, metric)
    text = (
        f"weights are excluded by which {plain_queries} dev queries for documents without known "
        f"queries clearly lose more than {MAX_LOSS:g}"
    )
    return LossLimit(reference, is_plain, text, frozenset(word_components))


def choose_weights(
    fusion: Fusion,
    scored: list[ScoredQuery],
    dev: Judgements,
    metric: str,
    fixed: Collection[str] = (),
    limit: LossLimit | None = None,
) -> Fusion:
    """Choose the weights of a fusion that give the highest mean metric on scored queries.

    The search is coordinate-wise. The first component keeps its weight. The weights of the others
    are set one after the other to the best value of `WEIGHT_GRID`, in two rounds if there are
    several. A weight changes only if the gain is clear (see `is_clear_gain`). There is one
    exception: if the limit excludes the present weight of a component that searches words of known
    queries, the component gets the best value that is not excluded. If all are, its weight stays.
    Late interaction with weight 0 is removed from the fusion.

    Args:
        fusion: A fusion with initial weights.
        scored: The judged queries with the scores of their candidates.
        dev: The judged queries.
        metric: Name of the metric to raise.
        fixed: Components that keep their weights.
        limit: Limit of the loss of documents without known queries; None excludes no weight.
    """
    weights = dict(fusion.weights)
    # Doubling all weights changes no ranking, so the first weight can stay as it is.
    later_names = list(weights)[1:]
    tuned_names = [name for name in later_names if name not in fixed]
    # A second round changes nothing if there is only one weight to choose.
    rounds = min(2, len(tuned_names))
    for _ in range(rounds):
        for name in tuned_names:
            weights[name] = _best_weight(scored, weights, name, dev, metric, limit)

    kept: dict[str, float] = {}
    for name, weight in weights.items():
        if weight or not name.endswith(LATE_SUFFIX):
            kept[name] = weight
    return replace(fusion, weights=kept)


def is_clear_gain(gains: np.ndarray) -> bool:
    """Return whether a mean gain is larger than `MIN_GAIN` of its standard errors.

    Args:
        gains: Gain of each query, (q,).

    >>> is_clear_gain(np.array([0.2, 0.1, 0.2, 0.1]))
    True
    >>> is_clear_gain(np.array([0.3, -0.1, 0.1, 0.0]))
    False
    """
    standard_error = gains.std() / len(gains) ** 0.5
    return bool(gains.mean() > MIN_GAIN * standard_error)


def is_clear_loss(losses: np.ndarray) -> bool:
    """Return whether a mean loss exceeds `MAX_LOSS`, and is too large to be due to chance.

    Args:
        losses: Loss of each query, (q,).

    >>> is_clear_loss(np.array([0.2, 0.1, 0.2, 0.1]))
    True
    >>> is_clear_loss(np.array([0.01, 0.005, 0.01, 0.005]))
    False
    """
    return bool(losses.mean() > MAX_LOSS) and is_clear_gain(losses)


def _best_weight(
    scored: list[ScoredQuery],
    weights: Mapping[str, float],
    name: str,
    dev: Judgements,
    metric: str,
    limit: LossLimit | None,
) -> float:
    """Return the weight to give one component, while all other weights stay as they are.

    The best weight gives the highest mean metric. If several weights give the same mean, it is the
    one nearest to the present weight, and of two equally near ones the smaller. See
    `choose_weights` for the cases in which the present weight is returned instead.

    Args:
        scored: q queries with the scores of their candidates.
        weights: The present weights.
        name: Name of the component.
        dev: The judged queries.
        metric: Name of the metric.
        limit: Limit of the loss of documents without known queries, or None.
    """
    present = weights[name]
    # For each weight that is tried: the metric of each query, and its mean.
    values: dict[float, np.ndarray] = {}
    means: dict[float, float] = {}
    for weight in {*WEIGHT_GRID, present}:
        tried_weights = dict(weights)
        tried_weights[name] = weight
        values[weight] = metric_values(scored, tried_weights, dev, metric)
        means[weight] = round(float(values[weight].mean()), MEAN_DECIMALS)

    allowed = []
    for weight in values:
        if limit is None or limit.allows(name, weight, values[weight]):
            allowed.append(weight)
    if limit is not None and present not in allowed and name not in limit.word_components:
        # The weights of other components are not at fault, so they follow the usual rule.
        allowed = list(values)
    if not allowed:
        return present
    best = max(allowed, key=lambda weight: (means[weight], -abs(weight - present), -weight))
    is_gain_required = present in allowed
    if is_gain_required and not is_clear_gain(values[best] - values[present]):
        return present
    return best


def group_sizes(dev: Judgements) -> dict[str, int]:
    """Return the number of queries of each group, without a group that is empty.

    The groups are the queries with a relevant document that has known queries, and all others.
    """
    with_known = len(dev.queries.keys() & dev.with_known)
    sizes = {WITH_KNOWN: with_known, WITHOUT_KNOWN: len(dev.queries) - with_known}
    return {group: size for group, size in sizes.items() if size}


def group_means(values: np.ndarray, dev: Judgements) -> dict[str, float]:
    """Return the mean metric of all queries as `dev`, and of each group of `group_sizes`.

    Args:
        values: Metric of each query, (q,).
        dev: The q judged queries.
    """
    has_known = np.array([query_id in dev.with_known for query_id in dev.queries], bool)
    means = {"dev": round(float(values.mean()), MEAN_DECIMALS)}
    for group, in_group in ((WITH_KNOWN, has_known), (WITHOUT_KNOWN, ~has_known)):
        if in_group.any():
            means[group] = round(float(values[in_group].mean()), MEAN_DECIMALS)
    return means


def measure_weights(
    scored: list[ScoredQuery], weights: Mapping[str, float], dev: Judgements, metric: str
) -> dict[str, Any]:
    """Return weights with their mean metrics on the queries; see `group_means`."""
    values = metric_values(scored, weights, dev, metric)
    return {"weights": dict(weights), **group_means(values, dev)}


def metric_values(
    scored: list[ScoredQuery], weights: Mapping[str, float], dev: Judgements, metric: str
) -> np.ndarray:
    """Return the metric of each query of `dev`, (q,), if a fusion had these weights.

    A component without a weight has the weight 0.
    """
    run: Run = {}
    # Only the first documents of a ranking count, such as 10 in nDCG@10.
    cutoff = metric_cutoff(metric)
    for query in scored:
        total = sum(weights.get(name, 0.0) * scores for name, scores in query.scores.items())
        order = np.argsort(-total, kind="stable")[:cutoff].tolist()
        run[query.query_id] = [(query.candidates[i], float(total[i])) for i in order]
    value_of_query = evaluate_run(run, dev.qrels, [metric])[metric]
    return np.array([value_of_query[query_id] for query_id in dev.queries])
