"""Guards that `params.yaml` is parsed strictly and edited without losing its comments.

Run: python -m pytest tests/orchestration/test_parameters.py
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from model_code.errors import SettingsError
from orchestration import parameters

SHIPPED = Path(__file__).parents[2] / "params.yaml"


@pytest.fixture
def params(tmp_path):
    return Path(shutil.copy(SHIPPED, tmp_path / "params.yaml"))


def test_the_shipped_file_is_valid_and_names_the_control(params):
    loaded = parameters.load(params)
    assert loaded.systems[:2] == ("bm25", "zero_shot")
    assert loaded.retrievers["contrastive"].training.hierarchy_weight == 0


def test_bm25_with_generated_queries_is_a_system_where_a_model_writes_queries(params):
    assert "bm25_generated" not in parameters.load(params).systems
    parameters.assign(params, ["pseudo_queries.generators=[inverse_cloze, sequence_to_sequence]"])
    assert parameters.load(params).systems[:3] == ("bm25", "zero_shot", "bm25_generated")


def test_a_retriever_inherits_training_and_overrides_it(params):
    parameters.assign(params, ["training.temperature=0.03", "retrievers.hce.temperature=0.07"])
    loaded = parameters.load(params)
    assert loaded.retrievers["contrastive"].training.temperature == 0.03
    assert loaded.retrievers["hce"].training.temperature == 0.07


@pytest.mark.parametrize(
    ("assignment", "message"),
    [
        ("training.temprature=1", "training.temprature is not a setting; did you mean 'temperature'"),
        ("retrievers.hce.stepz=1", "retrievers.hce.stepz is not a setting"),
        ("trainings.temperature=1", "params.yaml.trainings is not a setting"),
        ("retrievers.bm25.steps=1", "belongs to a baseline"),
        ("retrievers.bm25_generated.steps=1", "belongs to a baseline"),
        ("training.temperature=-1", "must be above 0"),
        ("training.batch_size=many", "training.batch_size must be of type int"),
        ("seed=-1", "seed must be a whole number"),
        ("seed.x=1", "is a value, not a group"),
        ("temperature", "write it as group.key=value"),
    ],
)
def test_nonsense_is_refused_with_its_name_and_the_file_stays_as_it_was(params, assignment, message):
    before = params.read_bytes()
    with pytest.raises(SettingsError, match=message.replace("(", r"\(")):
        parameters.assign(params, [assignment])
    assert params.read_bytes() == before


def test_an_edit_keeps_comments_and_everything_else(params):
    before = params.read_text().splitlines()
    parameters.assign(params, ["training.temperature=0.02"])
    after = params.read_text().splitlines()
    changed = [(old, new) for old, new in zip(before, after, strict=True) if old != new]
    assert len(changed) == 1
    assert "0.02" in changed[0][1]
    assert "# divides cosines" in changed[0][1]


@pytest.mark.parametrize("assignment", ["corpus.parts.new_from=2025-01-01", "corpus.parts={new_from: 2025-01-01}"])
def test_a_date_is_written_as_text_which_dvc_can_read(params, assignment):
    parameters.assign(params, [assignment])
    assert parameters.read(params)["corpus"]["parts"]["new_from"] == "2025-01-01"
    assert parameters.load(params).corpus.parts.new_from == "2025-01-01"


def test_broken_yaml_is_one_teaching_line(params):
    params.write_text("seed: [1")
    with pytest.raises(SettingsError, match=r"not valid YAML.*line"):
        parameters.load(params)
