"""Read, check, edit and describe `params.yaml`.

The file is parsed once, at the entry point of a command, into one frozen object. Edits keep its
comments.
"""

from __future__ import annotations

import datetime
import io
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import groupby
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML

from model_code import settings
from model_code.audit import AuditAction, AuditLog
from model_code.collection.settings import LiveSettings
from model_code.corpus.settings import AcceptanceSettings, CorpusSettings
from model_code.distributed.engine import ScaleSettings
from model_code.drift.settings import DriftSettings
from model_code.encoding.settings import EncoderSettings
from model_code.evaluation.settings import EvaluationSettings, PromotionSettings
from model_code.files import write_text
from model_code.hierarchy.settings import HierarchySettings
from model_code.incdsi.settings import AdditionSettings
from model_code.project import (
    PARAMS,
    Project,
    load_yaml,
    load_yaml_mapping,
    parse_yaml_mapping,
    plain_yaml,
    read_utf8,
)
from model_code.queries.settings import PseudoQuerySettings
from model_code.retrieval.index_settings import Bm25Settings, IndexSettings, KnownQuerySettings
from model_code.retrieval.reranker import RerankSettings
from model_code.retriever_settings import (
    BM25,
    BM25_KNOWN,
    FusionSettings,
    RetrieverSettings,
    parse_retriever,
)
from model_code.settings import Field, SettingDescription, Settings, describe_settings, require
from model_code.text.settings import PassageSettings
from model_code.training.settings import TrainingSettings

BASELINES = (BM25, BM25_KNOWN, "zero_shot", "untrained")
FUSED_BASELINE = "untrained"
# Name of the baseline that searches documents and their generated queries with BM25. It is built
# only if a model writes queries.
BM25_GENERATED = "bm25_generated"
# Name of the component that searches headlines. It is part of fusions and not a separate system.
HEADLINE = "headline"

# Signs that docs/settings.md shows in place of the words of a bound.
BOUND_SIGNS = {"at least": "≥", "above": ">", "at most": "≤", "below": "<"}
PAGE_HEAD = """# Settings

Look up here every key of `params.yaml`, with its allowed values, default and meaning. To change
one, edit the file and run `freshet run`, or do both at once:

    freshet run --set training.temperature=0.02    # runs only the stages that the key affects
    freshet settings --describe                    # prints this table; --json is for programs

- A missing key has its default. Unknown keys, wrong types, infinite numbers and values out of
  bounds are refused with one line that names the key.
- `NAME` stands for a retriever or a fusion. A key under `retrievers.NAME` may also be any key of
  `training`, and overrides it for this retriever.
- Terms are in the [glossary](glossary.md), and formulas in [methods](methods.md).

The first table has the keys that a new project changes first. All other keys are under
[Advanced](#advanced), by group. `freshet settings --markdown` writes this page.
"""
# The keys that a newcomer needs, in the order in which they are explained.
FIRST_KEYS = (
    "corpus.path",
    "passages.words",
    "encoder.base",
    "encoder.max_tokens",
    "encoder.device",
    "bm25.language",
    "training.min_judged_queries",
    "training.epochs",
    "training.learning_rate",
    "retrievers.NAME.kind",
    "fusions.NAME.of",
    "evaluation.main_metric",
    "promotion.metric",
    "live.sync",
)
TABLE_HEAD = ("| key | values | default | meaning |", "|---|---|---|---|")
# The name of a retriever becomes a folder, a DVC address and part of a Dagster asset key.
_RETRIEVER_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*")


class Parameters(Settings):
    """All groups of `params.yaml`.

    The group of a retriever accepts the keys of its kind and all keys of `training`. Its values
    override those of the group `training`.
    """

    corpus: CorpusSettings = Field(default_factory=CorpusSettings)
    passages: PassageSettings = Field(default_factory=PassageSettings)
    pseudo_queries: PseudoQuerySettings = Field(default_factory=PseudoQuerySettings)
    acceptance: AcceptanceSettings = Field(default_factory=AcceptanceSettings)
    encoder: EncoderSettings = Field(default_factory=EncoderSettings)
    hierarchy: HierarchySettings = Field(default_factory=HierarchySettings)
    training: TrainingSettings = Field(default_factory=TrainingSettings)
    retrievers: dict[str, RetrieverSettings]
    fusions: dict[str, FusionSettings] = Field(default_factory=dict)
    index: IndexSettings = Field(default_factory=IndexSettings)
    bm25: Bm25Settings = Field(default_factory=Bm25Settings)
    known_queries: KnownQuerySettings = Field(default_factory=KnownQuerySettings)
    evaluation: EvaluationSettings = Field(default_factory=EvaluationSettings)
    promotion: PromotionSettings = Field(default_factory=PromotionSettings)
    drift: DriftSettings = Field(default_factory=DriftSettings)
    additions: AdditionSettings = Field(default_factory=AdditionSettings)
    live: LiveSettings = Field(default_factory=LiveSettings)
    rerank: RerankSettings = Field(default_factory=RerankSettings)
    scale: ScaleSettings = Field(default_factory=ScaleSettings)
    seed: int = Field(0, ge=0, description="Random seed of all stages.")

    @property
    def built(self) -> tuple[str, ...]:
        """Names of all retrievers, followed by the names of all fusions."""
        return (*self.retrievers, *self.fusions)

    @property
    def searchable_baselines(self) -> tuple[str, ...]:
        """Names of the untrained systems that may be registered.

        One of them, `bm25_known`, also finds documents by words of their known queries. It is left
        out if the settings do not use known queries.
        """
        if self.known_queries.use:
            return BASELINES
        return tuple(name for name in BASELINES if name != BM25_KNOWN)

    def build_folders(self, artifacts: Path, name: str) -> tuple[Path, Path]:
        """Return the encoder folder and the index folder of a system.

        A system that is not trained has both in the folder of its evaluation.
        """
        if name in self.retrievers:
            encoder = artifacts / "train" / name / "encoder"
            index = artifacts / "index" / name / "index"
            return encoder, index
        build = evaluation_folder(artifacts, name) / "build"
        return build / "encoder", build / "index"


def evaluation_folder(artifacts: Path, name: str) -> Path:
    """Return the folder with the measurements of a system."""
    stage = "baselines" if name in BASELINES else "evaluate"
    return artifacts / stage / name


def parse(mapping: Mapping[str, Any]) -> Parameters:
    """Parse the content of `params.yaml`.

    Args:
        mapping: The groups of the file. A group that is None has its defaults.

    Raises:
        SettingsError: If a key is unknown or a value is not allowed. The message names the key.
    """
    settings.reject_unknown(mapping, list(Parameters.model_fields), PARAMS)
    groups = {name: group for name, group in mapping.items() if group is not None}

    training = settings.parse(TrainingSettings, groups.get("training"), "training")
    retrievers = _parse_retrievers(groups.get("retrievers"), groups.get("training") or {})
    fusions = _parse_fusions(groups.get("fusions") or {}, retrievers)
    groups.update(training=training, retrievers=retrievers, fusions=fusions)

    parameters = settings.parse(Parameters, groups, "")
    _check_gate_metrics(parameters.promotion, parameters.evaluation)
    return parameters


def _parse_retrievers(groups: Any, training: Mapping[str, Any]) -> dict[str, RetrieverSettings]:
    """Parse the group `retrievers`, which holds the settings of each retriever by its name.

    Args:
        groups: Content of the group.
        training: Content of the group `training`, whose values a retriever inherits.
    """
    require(
        isinstance(groups, Mapping) and bool(groups),
        "retrievers must map names to settings, such as {hce: {hierarchy_weight: 0.2}}",
    )
    parsed = {}
    for name, group in groups.items():
        path = f"retrievers.{name}"
        _check_name(name, path)
        parsed[name] = parse_retriever(group, training, path)
    return parsed


def _parse_fusions(
    groups: Any, retrievers: Mapping[str, RetrieverSettings]
) -> dict[str, FusionSettings]:
    """Parse the group `fusions`, which holds the settings of each fusion by its name.

    Args:
        groups: Content of the group.
        retrievers: The retrievers, which a fusion may combine.
    """
    require(
        isinstance(groups, Mapping),
        "fusions must map names to settings, such as {fused: {of: [hce, bm25]}}",
    )
    # A fusion cannot be part of another fusion.
    unfused_baselines = [name for name in BASELINES if name != FUSED_BASELINE]
    allowed = [*unfused_baselines, HEADLINE, *retrievers]

    parsed = {}
    for name, group in groups.items():
        path = f"fusions.{name}"
        _check_name(name, path)
        require(name not in retrievers, f"{path}: a retriever has this name; choose another name")
        fusion = settings.parse(FusionSettings, group, path)
        for component in fusion.of:
            require(
                component in allowed,
                f"{path}.of names {component!r}, which is none of {', '.join(allowed)}",
            )
        parsed[name] = fusion
    return parsed


def _check_name(name: Any, path: str) -> None:
    """Raise `SettingsError` if a retriever or fusion cannot have this name."""
    require(
        isinstance(name, str),
        f"{path}: YAML reads this name as {type(name).__name__}; put quotes around it, '{name}'",
    )
    require(
        _RETRIEVER_NAME.fullmatch(name) is not None,
        f"{path}: a name consists of letters from a to z, digits, _ and -, "
        "and begins with a letter or a digit",
    )
    require(
        name not in (*BASELINES, BM25_GENERATED, HEADLINE),
        f"{path}: this name belongs to a baseline; choose another name",
    )
    require(
        name != "current",
        f"{path}: this name belongs to the folder of the live index; choose another name",
    )


def _check_gate_metrics(promotion: PromotionSettings, evaluation: EvaluationSettings) -> None:
    """Raise `SettingsError` if the gate uses a metric that is not measured.

    This is checked before anything is trained.
    """
    used_metrics = [("metric", promotion.metric)]
    used_metrics += [("protected", metric) for metric in promotion.protected]
    for key, metric in used_metrics:
        require(
            metric in evaluation.metrics,
            f"promotion.{key} names {metric}, which is not measured; take one of "
            f"evaluation.metrics ({', '.join(evaluation.metrics)}), or add it there",
        )


def load(path: Path) -> Parameters:
    """Parse the file `path`. An unchanged text is parsed only once."""
    return _parse_text(read_utf8(path))


def read_mapping(path: Path) -> dict[str, Any]:
    """Return the content of the file `path` without checking keys and values."""
    return parse_yaml_mapping(read_utf8(path))


@lru_cache(maxsize=4)
def _parse_text(text: str) -> Parameters:
    """Parse the text of `params.yaml`. Parsing takes long, and commands read the file often."""
    return parse(parse_yaml_mapping(text))


def get_by_path(settings: Any, key: str, default: Any = None) -> Any:
    """Return the value at a dotted key of nested mappings or settings.

    >>> get_by_path({"index": {"nprobe": 8}}, "index.nprobe")
    8
    """
    value = settings
    for name in key.split("."):
        if isinstance(value, Mapping):
            value = value.get(name, default)
        else:
            value = getattr(value, name, default)
    return value


def flatten(mapping: Any, prefix: str = "") -> dict[str, Any]:
    """Return nested mappings as one mapping with dotted keys.

    >>> flatten({"index": {"nprobe": 8}, "seed": 0})
    {'index.nprobe': 8, 'seed': 0}
    """
    if not isinstance(mapping, dict):
        return {prefix: mapping}
    flat: dict[str, Any] = {}
    for name, value in mapping.items():
        key = f"{prefix}.{name}" if prefix else str(name)
        flat.update(flatten(value, key))
    return flat


def apply_overrides(path: Path, assignments: Sequence[str]) -> tuple[str, Parameters]:
    """Return the text of `params.yaml` after some assignments, and the parsed result.

    The file itself is not changed. Comments are kept.

    Args:
        path: The file.
        assignments: Texts such as `training.temperature=0.02`; the value is YAML.

    Raises:
        SettingsError: If an assignment cannot be read, or the result is not valid as a whole.
    """
    text = read_utf8(path)
    if assignments:
        yaml = _comment_preserving_yaml()
        document = load_yaml_mapping(yaml, text)
        for assignment in assignments:
            _apply_assignment(document, assignment)

        stream = io.StringIO()
        yaml.dump(document, stream)
        text = stream.getvalue()
    return text, _parse_text(text)


def write_overrides(path: Path, assignments: Sequence[str]) -> bool:
    """Write some assignments into `params.yaml`; see `apply_overrides`.

    The file is not written if its content would not change.

    Returns:
        Whether the file was written.
    """
    text, _ = apply_overrides(path, assignments)
    if text == read_utf8(path):
        return False
    write_text(path, text)
    return True


def change_settings(project: Project, assignments: Sequence[str]) -> None:
    """Write assignments into the project's `params.yaml`, and record who changed them.

    The audit log gets the names of the settings. A value may be a secret.

    Args:
        project: The project.
        assignments: Texts such as `training.temperature=0.02`; see `apply_overrides`.
    """
    if write_overrides(project.params_file, assignments):
        names = [assignment.partition("=")[0] for assignment in assignments]
        log = AuditLog(project.audit)
        log.append(AuditAction.SETTINGS, len(names), detail=", ".join(names))


def missing_keys(path: Path, keys: Iterable[str]) -> list[str]:
    """Return assignments that add the keys that `params.yaml` does not have.

    Args:
        path: The file.
        keys: Dotted keys.

    Returns:
        Texts for `write_overrides`, sorted by key: `KEY={}` for a missing group, and `KEY=DEFAULT`
        for a missing key.
    """
    mapping = read_mapping(path)
    # The parsed settings have the defaults of the missing keys.
    parameters = load(path)

    assignments = []
    for key in sorted(keys):
        group_key, _, name = key.rpartition(".")
        group = mapping
        if group_key:
            group = get_by_path(mapping, group_key) or {}
        if name in group:
            continue

        value = get_by_path(parameters, key)
        is_group = isinstance(value, (Settings, dict))
        text = "{}" if is_group else json.dumps(value)
        assignments.append(f"{key}={text}")
    return assignments


def _apply_assignment(document: Any, assignment: str) -> None:
    """Set one `group.key=value` in a parsed YAML document."""
    key, separator, text = assignment.partition("=")
    require(bool(separator and key), f"--set {assignment}: write it as group.key=value")

    *parents, name = key.split(".")
    group = document
    for parent in parents:
        if group.get(parent) is None:
            group[parent] = {}
        group = group[parent]
        require(isinstance(group, Mapping), f"--set {assignment}: {parent} is a value, not a group")

    remedy = f"""; text goes between quotes, --set '{key}="..."'"""
    group[name] = load_yaml(plain_yaml(), text, f"--set {assignment}: the value", remedy=remedy)


def _comment_preserving_yaml() -> Any:
    """Return a YAML processor that keeps comments and quotes.

    It writes None as `null`, and puts quotes around dates, because DVC reads the same file and
    refuses dates without quotes.
    """

    def represent_none(representer: Any, value: None) -> Any:
        return representer.represent_scalar("tag:yaml.org,2002:null", "null")

    def represent_date(representer: Any, value: datetime.date) -> Any:
        return representer.represent_scalar("tag:yaml.org,2002:str", value.isoformat(), style="'")

    yaml = YAML()
    yaml.preserve_quotes = True
    yaml.width = 120
    yaml.representer.add_representer(type(None), represent_none)
    yaml.representer.add_representer(datetime.date, represent_date)
    yaml.representer.add_representer(datetime.datetime, represent_date)
    return yaml


def settings_reference() -> list[SettingDescription]:
    """Describe every key of `params.yaml`.

    The keys of a retriever are listed once, as `retrievers.NAME`, without the keys of `training`.
    """
    rows: list[SettingDescription] = []
    for name, group in Parameters.model_fields.items():
        if name == "retrievers":
            rows += _retriever_reference(name)
        elif name == "fusions":
            rows += describe_settings(FusionSettings, f"{name}.NAME")
        elif name != "seed":
            rows += describe_settings(group.annotation, name)

    # `seed` is the only key outside of a group. It comes last.
    rows += [row for row in describe_settings(Parameters, "") if row.key == "seed"]
    return rows


def _retriever_reference(group: str) -> Iterator[SettingDescription]:
    """Yield the keys of a retriever, without those that it shares with the group `training`."""
    for row in describe_settings(RetrieverSettings, f"{group}.NAME"):
        if not row.key.startswith(f"{group}.NAME.training."):
            yield row


def settings_page() -> str:
    """Return the page `docs/settings.md`: the first keys, then a table for each group."""
    reference = settings_reference()
    row_by_key = {row.key: row for row in reference}
    lines = [PAGE_HEAD, "## First settings", "", *TABLE_HEAD]
    lines += [_table_row(row_by_key[key]) for key in FIRST_KEYS]

    lines += ["", "## Advanced", ""]
    advanced = [row for row in reference if row.key not in FIRST_KEYS]
    for group, rows in groupby(advanced, key=_group_of_row):
        lines += [f"### {group}", "", *TABLE_HEAD]
        lines += [_table_row(row) for row in rows]
        lines.append("")
    return "\n".join(lines)


def _group_of_row(row: SettingDescription) -> str:
    return row.key.partition(".")[0]


def _table_row(row: SettingDescription) -> str:
    """Return one line of a Markdown table."""
    values = row.type
    if row.bounds:
        bounds = row.bounds
        for words, sign in BOUND_SIGNS.items():
            bounds = bounds.replace(words, sign)
        values += f", {bounds}"
    default = f"`{row.default}`" if row.default else ""

    cells = [f"`{row.key}`", values, default, row.description]
    escaped = [cell.replace("|", "\\|") for cell in cells]
    return f"| {' | '.join(escaped)} |"
