"""Guards the losses (values, gradients and scales of the semi-parametric and the hierarchy loss
over tokens against float64 loops) and training: it learns, resumed = uninterrupted, honest dev
metric.
"""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch

from model_code.context import StageContext
from model_code.errors import SettingsError
from model_code.files import hash_path, read_json
from model_code.hierarchy.tree import Hierarchy
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


def test_training_reports_and_saves_the_encoder(tmp_path: Path) -> None:
    context = make_context(tmp_path)
    report = train.run(context)
    assert {
        key: report[key]
        for key in ("head", "supervised_pairs", "steps", "dev_queries", "pairs_seen")
    } == {
        "head": "closed_form",
        "supervised_pairs": 16,
        "steps": 4,
        "dev_queries": 6,
        "pairs_seen": 16,
    }
    history = read_json(context.output / "history.json")
    assert [row["step"] for row in history] == [0, 2, 4]
    assert {"loss", "full", "beta", "alpha"} < history[1].keys()
    assert report["best_dev"] == max(row["nDCG@10"] for row in history)
    saved = load_encoder(context.output / "encoder", precision="float32", device="cpu")
    assert saved.fingerprint() == report["fingerprint"]
    assert (
        'SparseEncoder("this folder", trust_remote_code=True)'
        in (context.output / "encoder/README.md").read_text()
    )


@pytest.mark.parametrize("head", ["closed_form", "mlm"])
def test_it_lowers_the_loss_of_a_batch(tmp_path: Path, head: str) -> None:
    context = make_context(tmp_path, SETTINGS, head)
    tables = TrainingTables.load(context)
    data, encoder = tables.training_data(TRAINING), make_encoder(tmp_path / "base", head)
    if head == "closed_form":  # solved, it has nothing left to learn here
        torch.nn.init.orthogonal_(encoder.body.head.transform.weight)
    settings = TRAINING.replace(steps=15, batch_size=8, evaluate_every=None)
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
    opened = open_folders(
        context.output / "encoder", output / "index", precision="float32", device="cpu"
    )
    names = {number: document for document, number in tables.number.items()}
    gains = []
    for row, ranking in enumerate(opened.search(evaluator.queries, 10)):
        answers = {names[int(number)] for number in evaluator.qrels[str(row)]}
        ranks = [rank for rank, (document, _) in enumerate(ranking) if document in answers]
        gains.append(1 / np.log2(ranks[0] + 2) if ranks else 0.0)
    assert report["best_dev"] == pytest.approx(np.mean(gains))


def test_scales_are_measured_before_training(tmp_path, monkeypatch):
    tables, encoder = (
        TrainingTables.load(make_context(tmp_path, SETTINGS)),
        make_encoder(tmp_path / "base"),
    )
    data, dev = tables.training_data(TRAINING), tables.dev_evaluator(TRAINING, 0)
    trainer = LexicalTrainer(encoder, data, TRAINING, 0, dev=dev, lexical=SETTINGS)
    objective = trainer.model
    assert isinstance(objective, SemiParametricObjective)
    before = objective.scales.clone()
    assert not torch.equal(before, torch.ones_like(before))
    objective.measure_scales(trainer.collate(0, trainer.schedule[0]))
    torch.testing.assert_close(objective.scales, before)
    monkeypatch.setattr(encoder, "encode", lambda *_: pytest.fail("a passage was encoded"))
    assert 0 <= trainer._score_dev(dev, trainer._index_dev_passages(dev)) <= 1


def test_dense_only_settings_are_refused(
    tmp_path,
):
    changes = {"cotraining": True, "evaluate_every": 5, "batches": "siblings"}
    plain = {
        "kind": "lexical",
        "hierarchy_weight": 0.0,
        "negatives": "bm25",
        "negatives_per_query": 0,
    }
    assert parse_retriever(plain, {}, "svdr").kind == "lexical"
    with pytest.raises(SettingsError, match="set cotraining: false"):
        parse_retriever(plain | changes, {}, "svdr")
    assert (
        train.run(make_context(tmp_path, SETTINGS, cotraining=True, evaluate_every=2))["steps"] == 4
    )


B, E, V = 4, 3, 12


@pytest.fixture
def views() -> tuple[TextViews, TextViews]:
    """Random weights and tokens of B queries, and of B positives and E negatives, in float64."""
    torch.manual_seed(0)

    def texts(count: int) -> TextViews:
        return TextViews(
            torch.rand(count, V, dtype=torch.float64), (torch.rand(count, V) > 0.5).double()
        )

    return texts(B), texts(B + E)


def test_semi_parametric_loss_adds_three_contrastive_ones(
    views: tuple[TextViews, TextViews],
) -> None:
    queries, documents = views
    relevant = torch.eye(B, dtype=torch.bool)
    relevant[0, 2] = relevant[3, 1] = relevant[1, 3] = True
    allowed = torch.rand(B, E) > 0.4
    learned = [queries.weights.requires_grad_(), documents.weights.requires_grad_()]
    scales = torch.tensor([2.0, 0.5, 3.0], dtype=torch.float64)
    found = add_terms(semi_parametric_losses(queries, documents, scales, relevant, allowed))
    full, beta, alpha = (
        loop_losses(left, right[:B], scale, Contrast(relevant, right[B:], allowed))
        for left, right, scale in (
            (queries.weights, documents.weights, 2.0),
            (queries.weights, documents.tokens, 0.5),
            (queries.tokens, documents.weights, 3.0),
        )
    )
    expected = full + beta / 2 + alpha / 2
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)
    gradients = (torch.autograd.grad(loss.sum(), learned) for loss in (found, expected))
    for ours, theirs in zip(*gradients, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-12)


def test_scale_is_a_quarter_deviation_of_negatives() -> None:
    scores = torch.tensor([[100.0, 1.0, 5.0], [3.0, 100.0, 7.0]])
    expected = torch.tensor([1.0, 5.0, 3.0, 7.0]).std() / 4
    torch.testing.assert_close(quarter_deviation(scores, torch.eye(2, dtype=torch.bool)), expected)
    assert quarter_deviation(torch.zeros(3, 5)) > 0


ENTRIES = 9
PARENTS = [np.array([0, 0, 0]), np.array([0, 0, 0, 1, 2, 2])]
LEAVES = np.array([0, 1, 2, 3, 4, 5, 0, 0, 2, 4])  # of ten passages, under nodes 0, 0, 0, 1, 2, 2
BAGS = [
    np.array(bag)
    for bag in ([0, 1], [1, 2, 3], [4], [2, 5], [5, 6, 7], [8], [0], [1, 4], [4, 6], [0, 7])
]


def tree() -> Hierarchy:
    return Hierarchy(
        [np.ones((len(parents), 1), np.float32) for parents in PARENTS], PARENTS, LEAVES
    )


def loop_centroid(level: int, node: int) -> list[float]:
    """The share of the node's passages that hold each token, passage by passage, at unit norm."""
    below = [
        bag
        for bag, leaf in zip(BAGS, LEAVES, strict=True)
        if (leaf if level else PARENTS[1][leaf]) == node
    ]
    shares = [sum(token in bag for bag in below) / len(below) for token in range(ENTRIES)]
    norm = math.sqrt(sum(share * share for share in shares))
    return [share / norm for share in shares]


def test_centroids_are_mean_bags_at_unit_norm() -> None:
    hierarchy, every = (
        TokenHierarchy(tree(), BAGS, ENTRIES, None),
        torch.eye(ENTRIES, dtype=torch.float64),
    )
    for level, parents in enumerate(PARENTS):
        loop = torch.tensor(
            [loop_centroid(level, node) for node in range(len(parents))], dtype=torch.float64
        )
        torch.testing.assert_close(hierarchy.scores(every, level).T, loop, rtol=1e-6, atol=0)
    assert (hierarchy.levels, TokenHierarchy(tree(), BAGS, ENTRIES, 1).levels) == (2, 1)
    assert not list(hierarchy.parameters())
    assert not hierarchy.state_dict()


def test_passages_and_nodes_without_tokens_add_nothing() -> None:
    none = np.array([], np.int64)
    places, weights = token_centroids(
        np.array([0, 0, 2, 1]), [np.array([3]), none, np.array([3, 8]), none]
    )
    assert places.tolist() == [[0, 2, 2], [3, 3, 8]]
    assert weights.tolist() == pytest.approx([1, math.sqrt(0.5), math.sqrt(0.5)])


@pytest.mark.parametrize("masked", [False, True])
def test_values_and_gradients_are_those_of_the_loop(masked: bool) -> None:
    random = torch.Generator().manual_seed(3)
    queries = torch.rand(10, ENTRIES, generator=random, dtype=torch.float64).requires_grad_()
    scales = torch.tensor([0.7, 0.2], dtype=torch.float64)
    paths = torch.from_numpy(tree().paths().astype(np.int64))
    excluded = [torch.rand(10, len(p), generator=random) < 0.4 if masked else None for p in PARENTS]
    loop = []
    for i, (level, parents) in ((i, pair) for i in range(10) for pair in enumerate(PARENTS)):
        centroids = torch.tensor(
            [loop_centroid(level, k) for k in range(len(parents))], dtype=torch.float64
        )
        out = [False] * len(parents) if excluded[level] is None else excluded[level][i]
        loop.append(
            loop_loss(queries[i], centroids, parents, int(paths[i, level]), scales[level], out)
        )
    ours, loop = (
        TokenHierarchy(tree(), BAGS, ENTRIES, None)(queries, scales, paths, excluded),
        torch.stack(loop),
    )
    # centroids are float32
    torch.testing.assert_close(ours, loop.reshape(10, 2), rtol=0, atol=1e-6)
    weights = torch.arange(1.0, 21.0, dtype=torch.float64)
    gradients = [
        torch.autograd.grad((weights * one.flatten()).sum(), queries)[0] for one in (ours, loop)
    ]
    torch.testing.assert_close(*gradients, rtol=1e-6, atol=1e-5)


def test_level_scales_measure_sibling_differences() -> None:
    queries = torch.rand(
        10, ENTRIES, generator=torch.Generator().manual_seed(5), dtype=torch.float64
    )
    paths = torch.from_numpy(tree().paths().astype(np.int64))
    excluded = [None, torch.zeros(10, 6, dtype=torch.bool)]
    # the second is the query's own node, left out anyhow
    excluded[1][0, 1] = excluded[1][2, 2] = True
    hierarchy = TokenHierarchy(tree(), BAGS, ENTRIES, None)
    for level, found in enumerate(hierarchy.measure_scales(queries, paths, excluded)):
        scores, others = hierarchy.scores(queries.T, level).tolist(), []
        for i, node in enumerate(paths[:, level].tolist()):
            negatives = [
                scores[i][k]
                for k in range(len(PARENTS[level]))
                if k != node
                and PARENTS[level][k] == PARENTS[level][node]
                and (level, i, k) != (1, 0, 1)
            ]
            if len(negatives) > 1:
                others += [score - sum(negatives) / len(negatives) for score in negatives]
        spread = math.sqrt(sum(score * score for score in others) / (len(others) - 1))
        assert float(found) == pytest.approx(spread / 4)


def test_hierarchy_loss_is_added_by_its_weight(
    tmp_path: Path,
) -> None:
    context = make_context(tmp_path, SETTINGS)
    tables, hierarchy = TrainingTables.load(context), Hierarchy.load(context.inputs["hierarchy"])
    data, encoder = tables.training_data(TRAINING), make_encoder(tmp_path / "base", "closed_form")

    def trainer_of(weight: float, **changes: int) -> LexicalTrainer:
        settings = TRAINING.replace(hierarchy_weight=weight, **changes)
        return LexicalTrainer(encoder, data, settings, 0, hierarchy=hierarchy, lexical=SETTINGS)

    without, trainer = trainer_of(0.0), trainer_of(0.5)
    plain, batch = (one.collate(0, one.schedule[0]) for one in (without, trainer))
    assert plain.paths is None
    bags = encoder.bags(tables.passages.texts)
    losses, levels = (
        trainer.model(batch),
        TokenHierarchy(hierarchy, bags, encoder.vocabulary_size, None),
    )
    queries = trainer.model._views(batch.queries).weights
    expected = levels(
        queries,
        levels.measure_scales(queries, batch.paths, batch.excluded),
        batch.paths,
        batch.excluded,
    )
    means = [losses[f"hierarchy_{level + 1}"] for level in range(expected.shape[1])]
    torch.testing.assert_close(
        torch.stack(means), expected.mean(dim=0).detach(), rtol=1e-4, atol=1e-5
    )
    found = (losses["loss"] - without.model(plain)["loss"]).item()
    assert found == pytest.approx(0.5 * expected.sum(dim=1).mean().item(), rel=1e-3)

    assert trainer_of(0.5, hierarchy_levels=1).model.hierarchy.levels == 1
    paths, several = hierarchy.paths(), 0
    for row, pair in enumerate(trainer.schedule[0]):
        passages = [
            p for p, d in enumerate(tables.passages.documents) if d in data.pairs.relevant[pair]
        ]
        several += len(passages) > 1
        for level, mask in enumerate(batch.excluded):
            assert set(mask[row].nonzero().flatten().tolist()) == {
                int(paths[p, level]) for p in passages
            }
    assert several


def test_resumed_run_keeps_its_scales(tmp_path, monkeypatch):
    whole = make_context(tmp_path, SETTINGS, hierarchy_weight=0.2, batches="siblings")
    train.run(whole)
    assert {"hierarchy_1", "hierarchy_2"} <= read_json(whole.output / "history.json")[1].keys()
    context = make_context(tmp_path, SETTINGS, hierarchy_weight=0.2, batches="siblings")
    kill_stage_after(3, context, monkeypatch)
    monkeypatch.setattr(
        SemiParametricObjective, "measure_scales", lambda self, _: self.scales.fill_(1e3)
    )
    train.run(context)
    assert hash_path(context.output) == hash_path(whole.output)
