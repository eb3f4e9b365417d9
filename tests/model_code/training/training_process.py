"""Train the example with everything that has state, in this process or in one that is killed.

Arguments: the folders of the encoder, of the checkpoints and of the output, and the step after
which the process kills itself (0: never).
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

from model_code.files import write_json
from model_code.training.trainer import Trainer
from tests.model_code.training.example import (
    make_data,
    make_dev,
    make_encoder,
    make_settings,
    make_tree,
)


def train(encoder_folder: Path, checkpoints: Path, output: Path, kill_at: int = 0) -> int:
    """Write the encoder and the history to `output`; return the step that training started from."""
    encoder = make_encoder(encoder_folder)
    data = make_data()
    vectors = encoder.encode_documents(data.passages.texts)
    settings = make_settings(
        cotraining=True, accumulation=2, evaluate_every=2, learning_rate=1e-2, frozen_layers=None
    )

    def kill_at_step(done: int, total: int, note: str = "") -> None:
        if done == kill_at:
            os.kill(os.getpid(), signal.SIGKILL)

    dev = make_dev(data.passages)
    tree = make_tree(vectors)
    trainer = Trainer(encoder, data, settings, 5, tree, dev, make_tree, checkpoints, kill_at_step)
    started_from = trainer.state.step
    result = trainer.fit(vectors)

    encoder.save(output / "encoder")
    write_json(
        output / "result.json", {"history": result.history, "reclustered": result.reclustered_at}
    )
    return started_from


if __name__ == "__main__":
    train(Path(sys.argv[1]), Path(sys.argv[2]), Path(sys.argv[3]), int(sys.argv[4]))
