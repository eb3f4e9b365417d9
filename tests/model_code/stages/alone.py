"""The stages from `base_index` to `evaluate` in a process that has neither FAISS nor the
orchestration's libraries.

Argument: the folder to work in. Prints the reports as JSON.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

ABSENT = ("faiss", "dagster", "mlflow", "dvc", "datasets", "pandera")
# and not where pytest looks for doctests, in the process of all other tests
if __name__ == "__main__":
    sys.modules |= dict.fromkeys(ABSENT)  # type: ignore[arg-type]  # whoever imports one gets a ModuleNotFoundError

from model_code.context import StageContext  # noqa: E402
from model_code.encoding.settings import EncoderSettings  # noqa: E402
from model_code.evaluation.settings import EvaluationSettings  # noqa: E402
from model_code.hierarchy.settings import HierarchySettings  # noqa: E402
from model_code.retrieval.index_settings import Bm25Settings, IndexSettings, KnownQuerySettings  # noqa: E402
from model_code.retriever_settings import RetrieverSettings  # noqa: E402
from model_code.stages import base_index, baselines, evaluate, hierarchy, index, train  # noqa: E402
from model_code.training.settings import TrainingSettings  # noqa: E402
from tests.model_code.evaluation.tiny_corpus import TEXTS, write_corpus, write_pseudo_queries  # noqa: E402
from tests.tiny_encoder import make_tiny_encoder  # noqa: E402

STAGES = (base_index, hierarchy, train, index, baselines, evaluate)
# where stages find others
FINISHED = {"base_index": "base_index/index", "index": "index/index", "trained": "train"}


def run_all(root: Path) -> dict[str, Any]:
    """Run each stage and return its report. Its output is in the folder of its name."""
    inputs = {
        "corpus": write_corpus(root / "corpus"),
        "pseudo_queries": write_pseudo_queries(root / "pseudo_queries"),
    }
    for name in ("base_index", "index", "trained"):
        inputs[name] = root / FINISHED.get(name, name)
    for name in ("hierarchy", "baselines"):
        inputs[name] = root / name
    base = make_tiny_encoder(root / "base", TEXTS.values())
    training = TrainingSettings(
        steps=6,
        batch_size=8,
        learning_rate=1e-2,
        evaluate_every=2,
        checkpoint_every=2,
        min_judged_queries=0,
        document_max_tokens=16,
        frozen_layers=None,
        negatives="bm25",
    )
    settings = {
        "encoder": EncoderSettings(
            base=str(base), max_tokens=16, include_title=False, precision="float32", device="cpu"
        ),
        "index": IndexSettings(),
        "bm25": Bm25Settings(),
        "evaluation": EvaluationSettings(),
        "seed": 0,
        "hierarchy": HierarchySettings(device="cpu"),
        "retriever": RetrieverSettings(training=training),
        "pseudo_queries.generators": (),
    }
    for key, value in vars(KnownQuerySettings()).items():
        settings[f"known_queries.{key}"] = value
    reports = {}
    for stage in STAGES:
        name = stage.__name__.rpartition(".")[2]
        output = root / name
        checkpoints = root / "checkpoints" / name
        output.mkdir(parents=True)
        checkpoints.mkdir(parents=True)
        reports[name] = stage.run(StageContext(root, inputs, output, settings, checkpoints, "hce"))
    return reports


if __name__ == "__main__":
    print(json.dumps(run_all(Path(sys.argv[1]))))
