"""Guards the stage `query_generator`: nothing when off; a model and its curve when on; equal bytes;
and the stage `pseudo_queries` lets the trained model write.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest

from model_code.context import StageContext
from model_code.encoding.settings import EncoderSettings
from model_code.errors import FreshetError
from model_code.files import hash_path, read_json
from model_code.queries.sequence_to_sequence import load_sequence_model
from model_code.queries.settings import (
    GeneratorTrainingSettings,
    PseudoQuerySettings,
    SequenceToSequenceSettings,
)
from model_code.stages import pseudo_queries, query_generator
from tests.model_code.queries.toy import DOCUMENTS, WORDS, make_tiny_t5

WRITTEN = SequenceToSequenceSettings(
    model="trained", per_document=2, section_tokens=16, max_query_tokens=6
)
TRAINING = GeneratorTrainingSettings(
    base="replaced",
    steps=6,
    batch_size=4,
    evaluate_every=3,
    checkpoint_every=2,
    held_out_share=0.3,
    learning_rate=1e-2,
)


def write_corpus(folder: Path) -> None:
    """The toy's documents, each but the last asked for by a training query; the last by a dev
    query.
    """
    folder.mkdir()
    documents = pd.DataFrame(
        {"document_id": list(DOCUMENTS), "title": "", "text": list(DOCUMENTS.values())}
    )
    documents.to_parquet(folder / "documents.parquet")
    documents.assign(ordinal=0).to_parquet(folder / "passages.parquet")
    queries = pd.DataFrame(
        {"query_id": [f"q{i}" for i in DOCUMENTS], "split": ["train"] * 15 + ["dev"]}
    )
    queries["text"] = [" ".join(text.split()[:3]) for text in DOCUMENTS.values()]
    queries.to_parquet(folder / "queries.parquet")
    queries.assign(document_id=list(DOCUMENTS), relevance=1).to_parquet(folder / "qrels.parquet")


def make_context(root: Path, run: str, **changes) -> StageContext:
    """Make a context of the stage; `changes` are settings of pseudo-queries."""
    if not (root / "corpus").exists():
        write_corpus(root / "corpus")
        make_tiny_t5(root / "base", WORDS)
    for name in ("output", "checkpoints"):
        (root / run / name).mkdir(parents=True)
    values = {
        "sequence_to_sequence": WRITTEN,
        "training": TRAINING.replace(base=str(root / "base")),
        **changes,
    }
    settings = PseudoQuerySettings(**values)
    groups = {
        "pseudo_queries": settings,
        "pseudo_queries.training": settings.training,
        "pseudo_queries.sequence_to_sequence": settings.sequence_to_sequence,
        "encoder": EncoderSettings(precision="float32", device="cpu"),
        "seed": 1,
    }
    inputs = {"corpus": root / "corpus", "query_generator": root / "trained" / "output"}
    return StageContext(root, inputs, root / run / "output", groups, root / run / "checkpoints")


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> tuple[Path, dict]:
    """A folder in which the stage has run as "trained", and its report."""
    root = tmp_path_factory.mktemp("stage")
    return root, query_generator.run(make_context(root, "trained"))


NO_TRAINING_CODE = """
import sys
from types import SimpleNamespace

from model_code.queries.settings import TRAINING_GROUP, GeneratorTrainingSettings
from model_code.stages import query_generator

# The context has no output folder, so nothing can be written.
context = SimpleNamespace(settings={TRAINING_GROUP: GeneratorTrainingSettings()})
assert query_generator.run(context) == {"trained": False}
slow = {"torch", "numpy", "pandas", "transformers", "accelerate"}
print(sorted(slow & set(sys.modules)))
"""


def test_disabled_generator_avoids_slow_imports():
    printed = subprocess.run(
        [sys.executable, "-c", NO_TRAINING_CODE], capture_output=True, text=True, check=True
    ).stdout

    assert printed.strip() == "[]"


def test_report_and_outputs_and_the_same_bytes_again(trained: tuple[Path, dict]):
    root, report = trained
    output = root / "trained" / "output"

    assert sorted(path.name for path in output.iterdir()) == ["history.json", "model"]
    assert report["trained"] is True
    assert report["base"] == str(root / "base")
    assert report["steps"] == 6
    assert report["pairs"] + report["held_out_pairs"] == 15

    history = read_json(output / "history.json")
    assert history[0] == {"step": 0, "log_likelihood": report["start_log_likelihood"]}
    assert report["best_log_likelihood"] == max(
        row["log_likelihood"] for row in history if "log_likelihood" in row
    )
    assert load_sequence_model(output / "model")[0].config.model_type == "t5"

    context = make_context(root, "again")
    assert query_generator.run(context) == report
    assert hash_path(context.output) == hash_path(output)


def test_a_base_without_a_hub_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)

    with pytest.raises(FreshetError, match="'someone/some-t5' is no sequence-to-sequence model"):
        query_generator.run(
            make_context(tmp_path, "a", training=GeneratorTrainingSettings(base="someone/some-t5"))
        )


def test_the_trained_model_writes_the_pseudo_queries(trained: tuple[Path, dict]):
    context = make_context(trained[0], "written", generators=("sequence_to_sequence",))
    report = pseudo_queries.run(context)

    assert report["generated"] == 32
    assert set(report["by_kind"]) == {"sequence_to_sequence"}
