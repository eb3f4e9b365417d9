"""Guards training with separate encoders: each part of the loss reaches its side, both learn and are kept together, a
resumed run ends with the same bits, and negatives and dev metric encode each text by its side."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from model_code.encoding.encoder import Encoder
from model_code.encoding.layers import represent_documents
from model_code.encoding.settings import LayerSettings
from model_code.training.objective import LAST_LAYER
from model_code.training.trainer import Trainer
from tests.model_code.training.example import make_data, make_dev, make_encoder, make_settings, make_tree
from tests.model_code.training.killing import kill_at

EVERY = pytest.mark.parametrize("pooling", ["", "self_contrastive", "multi_vector"])


def make_trainer(
    tmp_path: Path, pooling: str = "", separate: bool = True, checkpoints: Path | None = None, **changes: object
) -> Trainer:
    encoder, data = make_encoder(tmp_path / "tiny"), make_data()
    layers = LayerSettings(numbers=(1,), pooling=pooling) if pooling else LAST_LAYER
    if separate:
        encoder.separate()
    represent_documents(encoder, layers)
    tree = make_tree(encoder.encode(data.passages.texts))
    settings = make_settings(**changes)
    cluster = make_tree if settings.cotraining else None
    dev = make_dev(data.passages)
    return Trainer(encoder, data, settings, 0, tree, dev, cluster, checkpoints, layers=layers)


def weights(module: torch.nn.Module) -> torch.Tensor:
    return torch.cat([weight.detach().flatten() for weight in module.parameters()])


def sides(trainer: Trainer) -> list[torch.Tensor]:
    """The weights of the documents' transformer and of the queries'."""
    return [weights(side.backbone) for side in trainer.encoder.sides]


@EVERY
def test_the_first_loss_is_that_of_one_encoder(tmp_path: Path, pooling: str) -> None:
    one, two = (make_trainer(tmp_path, pooling, separate) for separate in (False, True))
    batch = one.collate(0, one.schedule[0])
    for name, value in one.model(batch).items():
        torch.testing.assert_close(two.model(batch)[name], value, rtol=0, atol=0)


@EVERY
def test_gradients_of_the_sides_sum_to_those_of_one_encoder(tmp_path: Path, pooling: str) -> None:
    """Equal weights on both sides: the chain rule says so, and that neither side is detached."""
    one, two = (make_trainer(tmp_path, pooling, separate) for separate in (False, True))
    batch = one.collate(0, one.schedule[0])
    for trainer in (one, two):
        trainer.model(batch)["loss"].backward()
    documents, queries = (dict(side.backbone.named_parameters()) for side in two.encoder.sides)
    for name, weight in one.encoder.backbone.named_parameters():
        assert weight.requires_grad == documents[name].requires_grad == queries[name].requires_grad
        if weight.grad is not None:
            assert documents[name].grad.norm() > 0 or weight.grad.norm() < 1e-6
            assert queries[name].grad.norm() > 0 or weight.grad.norm() < 1e-6
            torch.testing.assert_close(documents[name].grad + queries[name].grad, weight.grad, rtol=1e-4, atol=1e-6)


def test_the_hierarchy_teaches_the_query_side_alone(tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path)
    batch = trainer.collate(0, trainer.schedule[0])
    vectors = trainer.encoder.query_side(batch.queries.parts[0])
    rows = len(vectors)
    excluded = [None if mask is None else mask[:rows] for mask in batch.excluded]
    trainer.model.hierarchy(vectors, batch.paths[:rows], excluded).sum().backward()
    documents, queries = trainer.encoder.sides
    assert all(weight.grad is None for weight in documents.backbone.parameters())
    assert any(weight.grad is not None and weight.grad.norm() > 0 for weight in queries.backbone.parameters())
    loss = trainer.model(batch)["hierarchy_1"]
    with torch.no_grad():
        for weight in documents.backbone.parameters():
            weight.add_(0.1)
    torch.testing.assert_close(trainer.model(batch)["hierarchy_1"], loss, rtol=0, atol=0)


def test_both_sides_learn_apart_and_frozen_layers_do_not(tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path, evaluate_every=None)
    start = sides(trainer)[0].clone()
    embeddings = trainer.encoder.backbone.embeddings.word_embeddings.weight.clone()
    for _ in range(4):
        trainer.take_step()
    documents, queries = sides(trainer)
    assert not torch.equal(documents, start)
    assert not torch.equal(queries, start)
    assert not torch.equal(documents, queries)
    for side in trainer.encoder.sides:
        assert torch.equal(side.backbone.embeddings.word_embeddings.weight, embeddings)
    single = make_trainer(tmp_path, separate=False)
    assert trainer._result().trained_parameters == 2 * single._result().trained_parameters


def test_the_best_step_is_returned_of_both_sides(tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path)
    values, at_step = iter([0.2, 0.6, 0.5, 0.1]), {}

    def score(*_: object) -> float:
        at_step[trainer.state.step] = [one.clone() for one in sides(trainer)]
        return next(values)

    trainer.dev.score = score
    assert trainer.fit().best_step == 4
    for found, best, last in zip(sides(trainer), at_step[4], at_step[12], strict=True):
        assert torch.equal(found, best)
        assert not torch.equal(found, last)


@pytest.mark.parametrize("changes", [{"cotraining": True}, {"negatives": "mined"}])
def test_a_resumed_run_is_as_if_never_stopped(tmp_path: Path, changes: dict) -> None:
    whole = make_trainer(tmp_path, checkpoints=tmp_path / "others", learning_rate=1e-2, **changes)
    expected = whole.fit()
    killed = make_trainer(tmp_path, checkpoints=tmp_path / "checkpoints", learning_rate=1e-2, **changes)
    kill_at(killed, 7)
    resumed = make_trainer(tmp_path, checkpoints=tmp_path / "checkpoints", learning_rate=1e-2, **changes)
    assert resumed.state.step == 4
    assert resumed.fit() == expected
    for found, wanted in zip(sides(resumed), sides(whole), strict=True):
        assert torch.equal(found, wanted)


@pytest.mark.parametrize("pooling", ["", "multi_vector"])
def test_negatives_and_dev_are_of_documents_and_queries_by_their_sides(tmp_path: Path, pooling: str) -> None:
    trainer = make_trainer(tmp_path, pooling, negatives="mined")
    torch.nn.init.normal_(trainer.encoder.query_encoder.backbone.embeddings.word_embeddings.weight, std=3.0)
    trainer.negatives.refresh(trainer.encoder, None)
    documents, queries = (Encoder.encode(side, trainer.data.passages.texts) for side in one_sided(trainer.encoder))
    encoded = one_sided(trainer.encoder)[1].encode(list(trainer.data.pairs.queries))
    for pair, scores in enumerate(encoded @ documents.T):
        mined = scores[trainer.negatives.candidates(pair)]
        assert len(mined) == len(documents) - 1
        assert (np.diff(mined) < 2e-6).all()
    assert np.abs(documents - queries).max() > 0.1
    vectors = trainer.encoder.encode_documents(trainer.data.passages.texts)
    shown = one_sided(trainer.encoder)[1]
    assert trainer.dev.score(trainer.encoder, vectors) == trainer.dev.score(shown, vectors)


def one_sided(encoder: Encoder) -> list[Encoder]:
    """Both sides as encoders of their own, by the last layer."""
    alone = Encoder(encoder.backbone, encoder.tokenizer, encoder.pooling, encoder.max_tokens, "float32")
    return [alone, encoder.query_encoder]
