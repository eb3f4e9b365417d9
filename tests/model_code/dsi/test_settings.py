"""Guards the group `document_vectors`: defaults by start, and what the loop reads of it."""

from __future__ import annotations

from model_code.dsi.settings import DocumentVectorSettings
from model_code.dsi.trainer import loop_settings
from model_code.retrievers.settings import parse_retriever
from model_code.training.settings import TrainingSettings


def test_parsed_as_a_group_of_a_retriever():
    own = {"kind": "dsi", "document_vectors": {"start": "random"}}
    parsed = parse_retriever(own, {"hierarchy_weight": 0.0}, "retrievers.dsi").document_vectors
    assert (parsed.start, parsed.passes, parsed.rate) == ("random", 12.0, 5e-3)


def test_the_loop_reads_its_own_epochs_and_no_negatives():
    shared = TrainingSettings(
        epochs=9, batch_size=8, negatives="bm25", negatives_per_query=3,
        hierarchy_weight=0.0, batches="siblings", learning_rate=1e-5,
    )  # fmt: skip
    loop = loop_settings(DocumentVectorSettings(epochs=2, batch_size=10), shared, pairs=105)
    assert (loop.epochs, loop.batch_size, loop.evaluate_every, loop.checkpoint_every) == (2, 10, 10, 10)
    assert (loop.learning_rate, loop.frozen_layers, loop.needs_hierarchy) == (5e-4, None, False)
    joint = loop_settings(DocumentVectorSettings(train_encoder=True), shared, pairs=1)
    assert (joint.learning_rate, joint.frozen_layers, joint.checkpoint_every, joint.evaluate_every) == (1e-5, 3, 50, 1)
