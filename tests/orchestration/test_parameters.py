"""Guards that `params.yaml` is parsed strictly and edited without losing its comments."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from model_code.corpus.settings import CorpusSettings
from model_code.errors import SettingsError
from model_code.project import Project
from orchestration import parameters

SHIPPED = Path(__file__).parents[2] / "params.yaml"


@pytest.fixture
def params(tmp_path):
    return Path(shutil.copy(SHIPPED, tmp_path / "params.yaml"))


def test_retriever_inherits_and_overrides_training(
    params,
):
    assert parameters.load(params).retrievers["contrastive"].training.hierarchy_weight == 0

    parameters.write_overrides(
        params, ["training.temperature=0.03", "retrievers.hce.temperature=0.07"]
    )
    loaded = parameters.load(params)

    assert loaded.retrievers["contrastive"].training.temperature == 0.03
    assert loaded.retrievers["hce"].training.temperature == 0.07


def test_group_parses_the_same_alone(params):
    parameters.write_overrides(params, ["corpus.max_characters=7"])
    assert (
        Project(params.parent).settings("corpus", CorpusSettings) == parameters.load(params).corpus
    )

    params.write_text(params.read_text().replace("\ntraining:", "\ntraining:\n  wrong: 1"))
    assert Project(params.parent).settings("corpus", CorpusSettings).max_characters == 7

    params.write_text(params.read_text().replace("max_characters", "max_charcters"))
    with pytest.raises(
        SettingsError, match="corpus.max_charcters is not a setting; did you mean 'max_characters'"
    ):
        Project(params.parent).settings("corpus", CorpusSettings)


@pytest.mark.parametrize(
    ("assignment", "message"),
    [
        (
            "additions.written_queries.per_document=5",
            "additions.written_queries is not a setting. Known: ",
        ),
        (
            "training.temprature=1",
            "training.temprature is not a setting; did you mean 'temperature'",
        ),
        ("retrievers.hce.stepz=1", "retrievers.hce.stepz is not a setting"),
        ("trainings.temperature=1", "params.yaml.trainings is not a setting"),
        ("retrievers.bm25.steps=1", "belongs to a baseline"),
        ("retrievers.bm25_generated.steps=1", "belongs to a baseline"),
        ("training.temperature=-1", "must be above 0"),
        ("fusions.hce={of: [hce, bm25]}", "fusions.hce: a retriever has this name"),
        ("fusions.fused={of: [hce]}", "a fused retriever has two parts or more, each once"),
        ("fusions.fused={of: [hce, bm26]}", "fusions.fused.of names 'bm26', which is none of"),
        (
            "fusions.fused={of: [hce, bm25], weights: {hce: 1}}",
            "give one for each of ['hce', 'bm25']",
        ),
        ("fusions.fused={of: [hce, bm25], weights: {hce: 1, bm25: -1}}", "none may be below 0"),
        ("fusions.bm25={of: [hce, bm25]}", "belongs to a baseline"),
        ("fusions=[hce]", "fusions must map names to settings"),
        ("training.batch_size=many", "training.batch_size must be of type int"),
        (
            "promotion.metric=R@50",
            "promotion.metric names R@50, which is not measured; take one of evaluation.metrics",
        ),
        (
            "promotion.protected=[nDCG@10, hit@3]",
            "promotion.protected names hit@3, which is not measured",
        ),
        (
            "pseudo_queries.generators=[inverse_close]",
            "pseudo_queries.generators[0] is 'inverse_close', but must be",
        ),
        (
            "pseudo_queries.held_out_generator=x",
            "pseudo_queries.held_out_generator is not a setting",
        ),
        ("seed=-1", "seed is -1, but must be at least 0"),
        ("seed=true", "seed must be of type int, not True"),
        ("training.temperature=.inf", "training.temperature is inf, but must be a finite number"),
        (
            "retrievers.dsi.document_vectors={train_encoder: 1}",
            "document_vectors.train_encoder must be ",
        ),
        (
            "retrievers.current.steps=1",
            "retrievers.current: this name belongs to the folder of the live index",
        ),
        ("seed.x=1", "is a value, not a group"),
        ("temperature", "write it as group.key=value"),
        ("training.temperature=[", "--set training.temperature=[: the value is not valid YAML"),
        (
            "corpus.columns.document_id=@id",
            """text goes between quotes, --set 'corpus.columns.document_id="..."'""",
        ),
        ("corpus.path=2025-02-30", "the value is not valid YAML: day is out of range for month"),
        (
            "retrievers.größe.epochs=1",
            "retrievers.größe: a name consists of letters from a to z, digits, _ and -",
        ),
        ("retrievers.-x.epochs=1", "begins with a letter or a digit"),
        (
            "retrievers={1: {epochs: 1}}",
            "retrievers.1: YAML reads this name as int; put quotes around it, '1'",
        ),
        ("retrievers={true: {epochs: 1}}", "retrievers.True: YAML reads this name as bool"),
    ],
)
def test_invalid_override_is_refused_and_not_written(params, assignment, message):
    before = params.read_bytes()

    with pytest.raises(SettingsError, match=re.escape(message)):
        parameters.write_overrides(params, [assignment])
    assert params.read_bytes() == before


def test_an_edit_keeps_comments_and_everything_else(params):
    before = params.read_text().splitlines()
    parameters.write_overrides(params, ["training.temperature=0.02"])
    after = params.read_text().splitlines()
    changed = [(old, new) for old, new in zip(before, after, strict=True) if old != new]

    assert len(changed) == 1
    assert "0.02" in changed[0][1]
    assert "# divides cosines" in changed[0][1]


@pytest.mark.parametrize(
    "assignment", ["corpus.hub.name=2025-01-01", "corpus.hub={name: 2025-01-01}"]
)
def test_date_is_written_as_text(params, assignment):
    parameters.write_overrides(params, [assignment])

    assert parameters.read_mapping(params)["corpus"]["hub"]["name"] == "2025-01-01"
    assert parameters.load(params).corpus.hub.name == "2025-01-01"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"seed: [1", r"params\.yaml is not valid YAML: .* at line 1, column \d+$"),
        (b"seed: 1\nseed: 2\n", r"not valid YAML: found duplicate key \"seed\""),
        (b"seed: \x07\n", "params.yaml is not valid YAML: unacceptable character #x0007"),
        (
            b"# gr\xf6\xdfe\n",
            r"params\.yaml is not UTF-8 \(byte 0xf6 in line 1\): save it as UTF-8",
        ),
        (b"", "params.yaml must hold groups of settings"),
        (b"- seed\n", "params.yaml must hold groups of settings"),
    ],
)
@pytest.mark.parametrize(
    "act",
    [
        parameters.load,
        parameters.read_mapping,
        lambda path: parameters.write_overrides(path, ["seed=1"]),
    ],
)
def test_a_broken_file_is_one_teaching_line(params, content, message, act):
    params.write_bytes(content)

    with pytest.raises(SettingsError, match=message) as raised:
        act(params)
    assert "\n" not in str(raised.value)
    assert params.read_bytes() == content


def test_overrides_can_be_applied_without_saving(params):
    before = params.read_bytes()

    _, settings = parameters.apply_overrides(params, ["retrievers.third.epochs=2"])

    assert "third" in settings.retrievers
    assert params.read_bytes() == before


def test_saved_overrides_equal_applied_ones(params):
    overrides = ["retrievers.third.epochs=2"]
    text, settings = parameters.apply_overrides(params, overrides)

    parameters.write_overrides(params, overrides)

    assert params.read_text() == text
    assert parameters.load(params) == settings


def test_settings_page_is_up_to_date() -> None:
    """Renew it by: freshet settings --markdown > docs/settings.md"""
    page = SHIPPED.parent / "docs" / "settings.md"

    assert page.read_text("utf-8") == parameters.settings_page()


def test_every_key_of_the_shipped_file_is_described() -> None:
    described = {row.key for row in parameters.settings_reference()}

    assert len(described) == len(parameters.settings_reference())
    assert all(row.description for row in parameters.settings_reference())

    shared = {key.removeprefix("training.") for key in described if key.startswith("training.")}
    for key in parameters.flatten(parameters.read_mapping(SHIPPED)):
        group, _, rest = key.partition(".")
        own = rest.partition(".")[2]
        repeated = f"{group}.NAME.{own}" in described or (group == "retrievers" and own in shared)
        assert key in described or repeated, key
