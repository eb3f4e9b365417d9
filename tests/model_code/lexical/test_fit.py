"""Tests of the losses and the training of lexical encoders.

Values, gradients and scales of the semi-parametric loss and of the hierarchy loss over tokens are
compared with loops in float64. Training learns, a resumed run equals an uninterrupted one, and the
dev metric equals a search of the build.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
import torch

from model_code.context import StageContext
from model_code.errors import SettingsError
from model_code.files import hash_path, read_json
from model_code.hierarchy.tree import Hierarchy
from model_code.lexical.encoder import LexicalEncoder
from model_code.lexical.fit import LexicalTrainer, SemiParametricObjective
from model_code.lexical.kind import index, open_folders
from model_code.lexical.layout import load_encoder
from model_code.lexical.losses import (
    TextViews,
    add_terms,
    quarter_deviation,
    semi_parametric_losses,
)
from model_code.lexical.token_hierarchy import TokenHierarchy, token_centroids
from model_code.losses.contrastive import Contrast
from model_code.retriever_settings import parse_retriever
from model_code.stages import train
from model_code.training.tables import TrainingTables
from tests.model_code.lexical.corpus import TRAINING, make_context
from tests.model_code.lexical.example import SETTINGS, make_encoder
from tests.model_code.losses.test_contrastive import loop_losses
from tests.model_code.losses.test_hierarchy import loop_loss
from tests.model_code.training.killing import kill_stage_after


def test_training_reports_what_it_did(tmp_path: Path) -> None:
    report = train.run(make_context(tmp_path))

    names = ("head", "supervised_pairs", "steps", "dev_queries", "pairs_seen")
    assert {name: report[name] for name in names} == {
        "head": "closed_form",
        "supervised_pairs": 16,
        "steps": 4,
        "dev_queries": 6,
        "pairs_seen": 16,
    }


def test_training_writes_its_history(tmp_path: Path) -> None:
    context = make_context(tmp_path)

    report = train.run(context)

    history = read_json(context.output / "history.json")
    assert [row["step"] for row in history] == [0, 2, 4]
    assert {"loss", "full", "beta", "alpha"} < history[1].keys()
    assert report["best_dev"] == max(row["nDCG@10"] for row in history)


def test_training_saves_the_encoder(tmp_path: Path) -> None:
    context = make_context(tmp_path)

    report = train.run(context)

    saved = load_encoder(context.output / "encoder", precision="float32", device="cpu")
    readme = (context.output / "encoder/README.md").read_text()
    assert saved.fingerprint() == report["fingerprint"]
    assert 'SparseEncoder("this folder", trust_remote_code=True)' in readme


@pytest.mark.parametrize("head", ["closed_form", "mlm"])
def test_training_lowers_the_loss_of_a_batch(tmp_path: Path, head: str) -> None:
    tables = TrainingTables.load(make_context(tmp_path, SETTINGS, head))
    encoder = make_encoder(tmp_path / "base", head)
    if head == "closed_form":
        # The solved head has nothing left to learn from this corpus.
        torch.nn.init.orthogonal_(encoder.body.head.transform.weight)
    settings = TRAINING.replace(steps=15, batch_size=8, evaluate_every=None)
    data = tables.training_data(TRAINING)
    trainer = LexicalTrainer(encoder, data, settings, 0, lexical=SETTINGS)
    batch = trainer.collate(99, np.arange(16))

    before = trainer.model(batch)["loss"].item()
    trainer.fit()

    assert trainer.model(batch)["loss"].item() < 0.95 * before


@pytest.mark.parametrize("search", ["full", "beta_own", "beta_rerank"])
def test_dev_metric_equals_search_of_the_build(tmp_path: Path, search: str) -> None:
    lexical = SETTINGS.replace(search=search)
    context = make_context(tmp_path, lexical, steps=1, evaluate_every=None)
    report = train.run(context)
    tables = TrainingTables.load(context)
    evaluator = tables.dev_evaluator(TRAINING, context.settings["seed"])
    output = context.output.parent / "index"
    output.mkdir()
    inputs = {**context.inputs, "trained": context.output}
    index(StageContext(tmp_path, inputs, output, context.settings, output / "shards", "svdr"))
    retriever = open_folders(
        context.output / "encoder", output / "index", precision="float32", device="cpu"
    )

    rankings = retriever.search(evaluator.queries, 10)

    document_ids = {number: document for document, number in tables.number.items()}
    gains = []
    for row, ranking in enumerate(rankings):
        relevant = {document_ids[int(number)] for number in evaluator.qrels[str(row)]}
        gain = 0.0
        for rank, (document, _) in enumerate(ranking):
            if document in relevant:
                gain = 1 / np.log2(rank + 2)
                break
        gains.append(gain)
    assert report["best_dev"] == pytest.approx(np.mean(gains))


@pytest.fixture
def dev_trainer(tmp_path: Path) -> LexicalTrainer:
    """A trainer of the small corpus with a dev evaluator."""
    tables = TrainingTables.load(make_context(tmp_path, SETTINGS))
    encoder = make_encoder(tmp_path / "base")
    data = tables.training_data(TRAINING)
    dev = tables.dev_evaluator(TRAINING, 0)
    return LexicalTrainer(encoder, data, TRAINING, 0, dev=dev, lexical=SETTINGS)


def test_scales_are_measured_before_training(dev_trainer: LexicalTrainer) -> None:
    objective = dev_trainer.model
    scales = objective.scales.clone()

    objective.measure_scales(dev_trainer.collate(0, dev_trainer.schedule[0]))

    assert isinstance(objective, SemiParametricObjective)
    assert not torch.equal(scales, torch.ones_like(scales))
    torch.testing.assert_close(objective.scales, scales)


def test_dev_search_encodes_no_passage(dev_trainer: LexicalTrainer, monkeypatch) -> None:
    def fail_to_encode(*arguments: object) -> None:
        pytest.fail("a passage was encoded")

    monkeypatch.setattr(dev_trainer.encoder, "encode", fail_to_encode)
    dev_index = dev_trainer._index_dev_passages(dev_trainer.dev)

    score = dev_trainer._score_dev(dev_trainer.dev, dev_index)

    assert 0 <= score <= 1


LEXICAL_PARAMS = {
    "kind": "lexical",
    "hierarchy_weight": 0.0,
    "negatives": "bm25",
    "negatives_per_query": 0,
}


def test_lexical_settings_are_accepted() -> None:
    assert parse_retriever(LEXICAL_PARAMS, {}, "svdr").kind == "lexical"


def test_cotraining_of_lexical_retriever_is_refused() -> None:
    cotraining = {"cotraining": True, "evaluate_every": 5, "batches": "siblings"}

    with pytest.raises(SettingsError, match="set cotraining: false"):
        parse_retriever({**LEXICAL_PARAMS, **cotraining}, {}, "svdr")


def test_shared_cotraining_setting_is_ignored(tmp_path: Path) -> None:
    report = train.run(make_context(tmp_path, SETTINGS, cotraining=True, evaluate_every=2))

    assert report["steps"] == 4


# Numbers of queries, of extra negatives and of vocabulary entries.
QUERIES = 4
NEGATIVES = 3
VOCABULARY = 12


def make_random_views(count: int) -> TextViews:
    """Make random weights and tokens of `count` texts, in float64."""
    weights = torch.rand(count, VOCABULARY, dtype=torch.float64)
    tokens = (torch.rand(count, VOCABULARY) > 0.5).double()
    return TextViews(weights, tokens)


def test_semi_parametric_loss_adds_three_contrastive_losses() -> None:
    torch.manual_seed(0)
    queries = make_random_views(QUERIES)
    documents = make_random_views(QUERIES + NEGATIVES)
    relevant = torch.eye(QUERIES, dtype=torch.bool)
    for query, document in [(0, 2), (3, 1), (1, 3)]:
        relevant[query, document] = True
    allowed = torch.rand(QUERIES, NEGATIVES) > 0.4
    learned = [queries.weights.requires_grad_(), documents.weights.requires_grad_()]
    scales = torch.tensor([2.0, 0.5, 3.0], dtype=torch.float64)

    losses = add_terms(semi_parametric_losses(queries, documents, scales, relevant, allowed))

    def contrastive(left: torch.Tensor, right: torch.Tensor, scale: float) -> torch.Tensor:
        contrast = Contrast(relevant, right[QUERIES:], allowed)
        return loop_losses(left, right[:QUERIES], scale, contrast)

    full = contrastive(queries.weights, documents.weights, 2.0)
    beta = contrastive(queries.weights, documents.tokens, 0.5)
    alpha = contrastive(queries.tokens, documents.weights, 3.0)
    expected = full + beta / 2 + alpha / 2
    torch.testing.assert_close(losses, expected, rtol=0, atol=1e-12)
    gradients = torch.autograd.grad(losses.sum(), learned)
    expected_gradients = torch.autograd.grad(expected.sum(), learned)
    for gradient, expected_gradient in zip(gradients, expected_gradients, strict=True):
        torch.testing.assert_close(gradient, expected_gradient, rtol=0, atol=1e-12)


def test_scale_is_a_quarter_deviation_of_negatives() -> None:
    scores = torch.tensor([[100.0, 1.0, 5.0], [3.0, 100.0, 7.0]])
    negatives = torch.tensor([1.0, 5.0, 3.0, 7.0])

    scale = quarter_deviation(scores, torch.eye(2, dtype=torch.bool))

    torch.testing.assert_close(scale, negatives.std() / 4)


def test_scale_of_equal_scores_is_positive() -> None:
    assert quarter_deviation(torch.zeros(3, 5)) > 0


# A tree of two levels with three and six nodes. Ten passages lie below the nodes 0, 0, 0, 1, 2 and 2
# of the upper level.
ENTRIES = 9
PARENTS = [np.array([0, 0, 0]), np.array([0, 0, 0, 1, 2, 2])]
LEAVES = np.array([0, 1, 2, 3, 4, 5, 0, 0, 2, 4])
# The tokens of each passage.
BAGS = [
    np.array([0, 1]),
    np.array([1, 2, 3]),
    np.array([4]),
    np.array([2, 5]),
    np.array([5, 6, 7]),
    np.array([8]),
    np.array([0]),
    np.array([1, 4]),
    np.array([4, 6]),
    np.array([0, 7]),
]


def make_tree() -> Hierarchy:
    """Make the tree of PARENTS and LEAVES; its dense centroids are not used."""
    centroids = [np.ones((len(parents), 1), np.float32) for parents in PARENTS]
    return Hierarchy(centroids, PARENTS, LEAVES)


def node_at(level: int, leaf: int) -> int:
    """Return the ancestor of a leaf at a level."""
    if level == 1:
        return leaf
    return PARENTS[1][leaf]


def centroid_by_loop(level: int, node: int) -> list[float]:
    """Return the share of the node's passages with each token, passage by passage, at unit norm."""
    bags_below = []
    for bag, leaf in zip(BAGS, LEAVES, strict=True):
        if node_at(level, leaf) == node:
            bags_below.append(bag)

    shares = []
    for token in range(ENTRIES):
        with_token = sum(token in bag for bag in bags_below)
        shares.append(with_token / len(bags_below))
    norm = math.sqrt(sum(share * share for share in shares))
    return [share / norm for share in shares]


def centroids_by_loop(level: int) -> torch.Tensor:
    """Return the centroids of all nodes of a level, shape (nodes, ENTRIES)."""
    centroids = [centroid_by_loop(level, node) for node in range(len(PARENTS[level]))]
    return torch.tensor(centroids, dtype=torch.float64)


@pytest.mark.parametrize("level", [0, 1])
def test_centroids_are_mean_bags_at_unit_norm(level: int) -> None:
    hierarchy = TokenHierarchy(make_tree(), BAGS, ENTRIES, None)
    one_query_per_token = torch.eye(ENTRIES, dtype=torch.float64)

    scores = hierarchy.scores(one_query_per_token, level)

    torch.testing.assert_close(scores.T, centroids_by_loop(level), rtol=1e-6, atol=0)


@pytest.mark.parametrize(("hierarchy_levels", "levels"), [(None, 2), (1, 1)])
def test_token_hierarchy_has_the_levels_of_the_settings(
    hierarchy_levels: int | None, levels: int
) -> None:
    hierarchy = TokenHierarchy(make_tree(), BAGS, ENTRIES, hierarchy_levels)

    assert hierarchy.levels == levels


def test_token_hierarchy_learns_nothing() -> None:
    hierarchy = TokenHierarchy(make_tree(), BAGS, ENTRIES, None)

    assert not list(hierarchy.parameters())
    assert not hierarchy.state_dict()


def test_passages_and_nodes_without_tokens_add_nothing() -> None:
    no_tokens = np.array([], np.int64)
    bags = [np.array([3]), no_tokens, np.array([3, 8]), no_tokens]

    places, weights = token_centroids(np.array([0, 0, 2, 1]), bags)

    assert places.tolist() == [[0, 2, 2], [3, 3, 8]]
    assert weights.tolist() == pytest.approx([1, math.sqrt(0.5), math.sqrt(0.5)])


def passage_paths() -> torch.Tensor:
    """Return the ancestors of the ten passages at both levels, shape (10, 2)."""
    return torch.from_numpy(make_tree().paths().astype(np.int64))


def losses_by_loop(
    queries: torch.Tensor, scales: torch.Tensor, excluded: list[torch.Tensor | None]
) -> torch.Tensor:
    """Return the hierarchy losses of ten queries at both levels, shape (10, 2)."""
    paths = passage_paths()
    losses = []
    for row in range(10):
        row_losses = []
        for level, parents in enumerate(PARENTS):
            excluded_nodes = [False] * len(parents)
            if excluded[level] is not None:
                excluded_nodes = excluded[level][row]
            node = int(paths[row, level])
            loss = loop_loss(
                queries[row],
                centroids_by_loop(level),
                parents,
                node,
                scales[level],
                excluded_nodes,
            )
            row_losses.append(loss)
        losses.append(torch.stack(row_losses))
    return torch.stack(losses)


@pytest.mark.parametrize("masked", [False, True])
def test_hierarchy_losses_equal_the_loop(masked: bool) -> None:
    random = torch.Generator().manual_seed(3)
    queries = torch.rand(10, ENTRIES, generator=random, dtype=torch.float64).requires_grad_()
    scales = torch.tensor([0.7, 0.2], dtype=torch.float64)
    excluded: list[torch.Tensor | None] = [None, None]
    if masked:
        excluded = [torch.rand(10, len(nodes), generator=random) < 0.4 for nodes in PARENTS]
    hierarchy = TokenHierarchy(make_tree(), BAGS, ENTRIES, None)

    losses = hierarchy(queries, scales, passage_paths(), excluded)

    expected = losses_by_loop(queries, scales, excluded)
    # Centroids are float32, hence the tolerance.
    torch.testing.assert_close(losses, expected, rtol=0, atol=1e-6)
    weights = torch.arange(1.0, 21.0, dtype=torch.float64).reshape(10, 2)
    (gradient,) = torch.autograd.grad((weights * losses).sum(), queries)
    (expected_gradient,) = torch.autograd.grad((weights * expected).sum(), queries)
    torch.testing.assert_close(gradient, expected_gradient, rtol=1e-6, atol=1e-5)


def negative_nodes(level: int, row: int, node: int) -> list[int]:
    """Return the siblings of a node, without the one that the first query excludes."""
    siblings = []
    for other, parent in enumerate(PARENTS[level]):
        is_excluded = (level, row, other) == (1, 0, 1)
        if other != node and parent == PARENTS[level][node] and not is_excluded:
            siblings.append(other)
    return siblings


@pytest.mark.parametrize("level", [0, 1])
def test_level_scales_measure_sibling_differences(level: int) -> None:
    random = torch.Generator().manual_seed(5)
    queries = torch.rand(10, ENTRIES, generator=random, dtype=torch.float64)
    paths = passage_paths()
    excluded = [None, torch.zeros(10, 6, dtype=torch.bool)]
    excluded[1][0, 1] = True
    # This is the query's own node, which is no negative anyway.
    excluded[1][2, 2] = True
    hierarchy = TokenHierarchy(make_tree(), BAGS, ENTRIES, None)

    scale = hierarchy.measure_scales(queries, paths, excluded)[level]

    scores = hierarchy.scores(queries.T, level).tolist()
    deviations = []
    for row, node in enumerate(paths[:, level].tolist()):
        negatives = [scores[row][other] for other in negative_nodes(level, row, node)]
        if len(negatives) > 1:
            mean = sum(negatives) / len(negatives)
            deviations += [score - mean for score in negatives]
    spread = math.sqrt(sum(value * value for value in deviations) / (len(deviations) - 1))
    assert float(scale) == pytest.approx(spread / 4)


class HierarchyCase(NamedTuple):
    """The tables, the hierarchy and the encoder of a small corpus."""

    tables: TrainingTables
    hierarchy: Hierarchy
    encoder: LexicalEncoder

    def make_trainer(self, weight: float, **changes: int) -> LexicalTrainer:
        """Make a trainer whose hierarchy loss has a weight."""
        settings = TRAINING.replace(hierarchy_weight=weight, **changes)
        data = self.tables.training_data(TRAINING)
        return LexicalTrainer(
            self.encoder, data, settings, 0, hierarchy=self.hierarchy, lexical=SETTINGS
        )


@pytest.fixture
def hierarchy_case(tmp_path: Path) -> HierarchyCase:
    """A small corpus with its hierarchy and an encoder."""
    context = make_context(tmp_path, SETTINGS)
    return HierarchyCase(
        TrainingTables.load(context),
        Hierarchy.load(context.inputs["hierarchy"]),
        make_encoder(tmp_path / "base", "closed_form"),
    )


def test_hierarchy_loss_is_added_by_its_weight(hierarchy_case: HierarchyCase) -> None:
    tables, hierarchy, encoder = hierarchy_case
    plain_trainer = hierarchy_case.make_trainer(0.0)
    trainer = hierarchy_case.make_trainer(0.5)
    plain_batch = plain_trainer.collate(0, plain_trainer.schedule[0])
    batch = trainer.collate(0, trainer.schedule[0])

    losses = trainer.model(batch)
    plain_losses = plain_trainer.model(plain_batch)

    bags = encoder.bags(tables.passages.texts)
    token_hierarchy = TokenHierarchy(hierarchy, bags, encoder.vocabulary_size, None)
    queries = trainer.model._views(batch.queries).weights
    scales = token_hierarchy.measure_scales(queries, batch.paths, batch.excluded)
    expected = token_hierarchy(queries, scales, batch.paths, batch.excluded)
    level_count = expected.shape[1]
    level_losses = torch.stack([losses[f"hierarchy_{n + 1}"] for n in range(level_count)])
    expected_level_losses = expected.mean(dim=0).detach()
    torch.testing.assert_close(level_losses, expected_level_losses, rtol=1e-4, atol=1e-5)
    added = (losses["loss"] - plain_losses["loss"]).item()
    assert added == pytest.approx(0.5 * expected.sum(dim=1).mean().item(), rel=1e-3)
    assert plain_batch.paths is None


def test_number_of_levels_can_be_limited(hierarchy_case: HierarchyCase) -> None:
    trainer = hierarchy_case.make_trainer(0.5, hierarchy_levels=1)

    assert trainer.model.hierarchy.levels == 1


def test_nodes_of_relevant_passages_are_excluded(hierarchy_case: HierarchyCase) -> None:
    tables, hierarchy, _ = hierarchy_case
    trainer = hierarchy_case.make_trainer(0.5)
    paths = hierarchy.paths()
    relevant_documents = trainer.data.pairs.relevant
    pairs = trainer.schedule[0]

    batch = trainer.collate(0, pairs)

    has_several_passages = False
    for row, pair in enumerate(pairs):
        passages = []
        for passage, document in enumerate(tables.passages.documents):
            if document in relevant_documents[pair]:
                passages.append(passage)
        if len(passages) > 1:
            has_several_passages = True
        for level, mask in enumerate(batch.excluded):
            excluded = set(mask[row].nonzero().flatten().tolist())
            assert excluded == {int(paths[passage, level]) for passage in passages}
    assert has_several_passages


def test_hierarchy_losses_are_in_the_history(tmp_path: Path) -> None:
    context = make_context(tmp_path, SETTINGS, hierarchy_weight=0.2, batches="siblings")

    train.run(context)

    history = read_json(context.output / "history.json")
    assert {"hierarchy_1", "hierarchy_2"} <= history[1].keys()


def test_resumed_run_keeps_its_scales(tmp_path: Path, monkeypatch) -> None:
    whole = make_context(tmp_path, SETTINGS, hierarchy_weight=0.2, batches="siblings")
    train.run(whole)
    resumed = make_context(tmp_path, SETTINGS, hierarchy_weight=0.2, batches="siblings")
    kill_stage_after(3, resumed, monkeypatch)

    def measure_wrong_scales(self: SemiParametricObjective, batch: object) -> None:
        self.scales.fill_(1e3)

    monkeypatch.setattr(SemiParametricObjective, "measure_scales", measure_wrong_scales)
    train.run(resumed)

    assert hash_path(resumed.output) == hash_path(whole.output)
