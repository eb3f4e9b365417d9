"""`params.yaml` as one frozen object, parsed once at the entry point, and edited without losing its
comments.
"""

from __future__ import annotations

import datetime
import io
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache, reduce
from itertools import groupby
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML

from model_code import settings
from model_code.collection.settings import LiveSettings
from model_code.corpus.settings import AcceptanceSettings, CorpusSettings
from model_code.distributed.engine import ScaleSettings
from model_code.drift.settings import DriftSettings
from model_code.encoding.settings import EncoderSettings
from model_code.evaluation.settings import EvaluationSettings, PromotionSettings
from model_code.files import write_text
from model_code.hierarchy.settings import HierarchySettings
from model_code.incdsi.settings import AdditionSettings
from model_code.project import PARAMS, load_yaml, mapping_in, mapping_of, plain_yaml, text_of
from model_code.queries.settings import PseudoQuerySettings
from model_code.retrieval.index_settings import Bm25Settings, IndexSettings
from model_code.retriever_settings import FusionSettings, RetrieverSettings, parse_retriever
from model_code.settings import Described, Field, Settings, describe, require
from model_code.text.settings import PassageSettings
from model_code.training.settings import TrainingSettings

BASELINES = ("bm25", "zero_shot", "untrained")  # the last one is the fusion of the others
# a baseline where a model writes queries: BM25 over documents and their queries
BM25_GENERATED = "bm25_generated"

# for bounds, in the page of settings
SIGNS = {"at least": "≥", "above": ">", "at most": "≤", "below": "<"}
PAGE_HEAD = """# Settings

Every key of `params.yaml`, written by `freshet settings --markdown`. `freshet settings --describe` prints the same,
`--json` for machines. A retriever is a key under `retrievers`, and may set every key of `training` for itself.
`freshet run --set training.temperature=0.02` edits the file and runs what that changes.
Unknown keys, other types, infinities and values out of bounds are refused with one line that names the key.
"""
# of a retriever: a folder, a DVC address, part of a Dagster key
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*")


class Parameters(Settings):
    """Every group of `params.yaml`. A retriever's keys are those of `training`, laid over it, and
    its kind's.
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
    evaluation: EvaluationSettings = Field(default_factory=EvaluationSettings)
    promotion: PromotionSettings = Field(default_factory=PromotionSettings)
    drift: DriftSettings = Field(default_factory=DriftSettings)
    additions: AdditionSettings = Field(default_factory=AdditionSettings)
    live: LiveSettings = Field(default_factory=LiveSettings)
    scale: ScaleSettings = Field(default_factory=ScaleSettings)
    seed: int = Field(0, ge=0, description="of everything that is drawn at random")

    @property
    def built(self) -> tuple[str, ...]:
        """The retrievers, then the fusions of them."""
        return (*self.retrievers, *self.fusions)

    def build_folders(self, artifacts: Path, name: str) -> tuple[Path, Path]:
        """Where a system's encoder and index lie: of what is not trained, in the folder of its
        evaluation.
        """
        if name in self.retrievers:
            return artifacts / "train" / name / "encoder", artifacts / "index" / name / "index"
        build = evaluation_folder(artifacts, name) / "build"
        return build / "encoder", build / "index"


def evaluation_folder(artifacts: Path, name: str) -> Path:
    """Where what was measured of a system lies."""
    return artifacts / ("baselines" if name in BASELINES else "evaluate") / name


def parse(mapping: Mapping[str, Any]) -> Parameters:
    """Parse all groups; raises `SettingsError` naming the first unknown key or impossible value."""
    settings.reject_unknown(mapping, list(Parameters.model_fields), PARAMS)
    groups = {name: group for name, group in mapping.items() if group is not None}
    training = settings.parse(TrainingSettings, groups.get("training"), "training")
    retrievers = groups.get("retrievers")
    example = "retrievers must map names to settings, such as {hce: {hierarchy_weight: 0.2}}"
    require(isinstance(retrievers, Mapping) and bool(retrievers), example)
    parsed = {}
    for name, group in retrievers.items():
        _check_name(name, where := f"retrievers.{name}")
        parsed[name] = parse_retriever(group, groups.get("training") or {}, where)
    fusions = _parse_fusions(groups.get("fusions") or {}, parsed)
    groups |= {"training": training, "retrievers": parsed, "fusions": fusions}
    parameters = settings.parse(Parameters, groups, "")
    _check_gate(parameters.promotion, parameters.evaluation)
    return parameters


def reference() -> list[Described]:
    """Every key of `params.yaml`; those of one retriever as `retrievers.NAME`, but for those of
    `training`.
    """
    rows: list[Described] = []
    for name, group in Parameters.model_fields.items():
        if name == "retrievers":
            described = describe(RetrieverSettings, f"{name}.NAME")
            rows += [row for row in described if not row.key.startswith(f"{name}.NAME.training.")]
        elif name == "fusions":
            rows += describe(FusionSettings, f"{name}.NAME")
        else:
            rows += describe(group.annotation, name) if name != "seed" else []
    return rows + [row for row in describe(Parameters, "") if row.key == "seed"]


def reference_page() -> str:
    """The page `docs/settings.md`: `reference` as a table for each group."""
    lines = [PAGE_HEAD]
    for group, rows in groupby(reference(), key=lambda row: row.key.partition(".")[0]):
        lines += [f"## {group}", "", "| key | values | default | what it is |", "|---|---|---|---|"]
        for row in rows:
            bounds = re.sub("|".join(SIGNS), lambda match: SIGNS[match[0]], row.bounds)
            values = ", ".join(filter(None, (row.type, bounds)))
            cells = (
                f"`{row.key}`",
                values,
                f"`{row.default}`" * bool(row.default),
                row.description,
            )
            lines.append(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |")
        lines.append("")
    return "\n".join(lines)


def _check_gate(promotion: PromotionSettings, evaluation: EvaluationSettings) -> None:
    """Refuse a gate that asks for a metric that is not measured, before anything is trained for it."""
    for key, metric in (
        ("metric", promotion.metric),
        *(("protected", metric) for metric in promotion.protected),
    ):
        require(
            metric in evaluation.metrics,
            f"promotion.{key} names {metric}, which is not measured; take one of evaluation.metrics "
            f"({', '.join(evaluation.metrics)}), or add it there",
        )


def _parse_fusions(
    groups: Any, retrievers: Mapping[str, RetrieverSettings]
) -> dict[str, FusionSettings]:
    example = "fusions must map names to settings, such as {fused: {of: [hce, bm25]}}"
    require(isinstance(groups, Mapping), example)
    parsed = {}
    for name, group in groups.items():
        where = f"fusions.{name}"
        _check_name(name, where)
        require(name not in retrievers, f"{where}: a retriever has this name; choose another one")
        parsed[name] = settings.parse(FusionSettings, group, where)
        parts = [*BASELINES[:2], *retrievers]
        unknown = [part for part in parsed[name].of if part not in parts]
        require(not unknown, f"{where}.of names {unknown[:1]}, which is none of {parts}")
    return parsed


def _check_name(name: Any, where: str) -> None:
    kind = type(name).__name__
    require(
        isinstance(name, str),
        f"{where}: YAML reads this name as {kind}; put quotes around it, '{name}'",
    )
    rule = f"{where}: a name has letters from a to z, digits, _ and -, and begins with a letter or a digit"
    require(_NAME.fullmatch(name) is not None, rule)
    require(name not in (*BASELINES, BM25_GENERATED), f"{where}: this name belongs to a baseline")
    require(
        name != "current",
        f"{where}: this name belongs to the folder of what is live; choose another one",
    )


def load(path: Path) -> Parameters:
    """Parse the file `path`; once, for as long as its text stays the same."""
    return _parse_text(text_of(path))


def read(path: Path) -> dict[str, Any]:
    """The plain mapping in `path`."""
    return mapping_of(text_of(path))


@lru_cache(maxsize=4)
def _parse_text(text: str) -> Parameters:
    return parse(mapping_of(text))


def pick(settings: Any, key: str, absent: Any = None) -> Any:
    """What a dotted key names in a mapping or in settings; `absent` if it is not there."""
    names = key.split(".")
    return reduce(
        lambda of, name: (
            of.get(name, absent) if isinstance(of, Mapping) else getattr(of, name, absent)
        ),
        names,
        settings,
    )


def flatten(mapping: Any, prefix: str = "") -> dict[str, Any]:
    """Nested mappings as dotted keys.

    >>> flatten({"index": {"nprobe": 8}, "seed": 0})
    {'index.nprobe': 8, 'seed': 0}
    """
    if not isinstance(mapping, dict):
        return {prefix: mapping}
    flat: dict[str, Any] = {}
    for key, value in mapping.items():
        flat.update(flatten(value, f"{prefix}.{key}" if prefix else str(key)))
    return flat


def edited(path: Path, assignments: Sequence[str]) -> tuple[str, Parameters]:
    """The text of the file with each `group.key=value` written into it, comments kept, and what it
    says then.

    The file stays as it is. Raises `SettingsError` if the result is not valid as a whole.
    """
    text = text_of(path)
    if assignments:
        yaml, stream = _editor(), io.StringIO()
        document = mapping_in(yaml, text)
        for assignment in assignments:
            _assign(document, assignment)
        yaml.dump(document, stream)
        text = stream.getvalue()
    return text, _parse_text(text)


def assign(path: Path, assignments: Sequence[str]) -> None:
    """Make what `edited` gives the content of the file; one that has it already is not touched."""
    text, _ = edited(path, assignments)
    if text != text_of(path):
        write_text(path, text)


def lacking(path: Path, keys: Iterable[str]) -> list[str]:
    """Those of the dotted `keys` that the file lacks, as `assign` writes them: groups as `{}`, else
    the default.
    """
    given, chosen, found = read(path), load(path), []
    for key in sorted(keys):
        group, _, name = key.rpartition(".")
        if name not in ((pick(given, group) or {}) if group else given):
            value = pick(chosen, key)
            found.append(
                f"{key}={'{}' if isinstance(value, (Settings, dict)) else json.dumps(value)}"
            )
    return found


def _assign(document: Any, assignment: str) -> None:
    key, separator, value = assignment.partition("=")
    require(bool(separator and key), f"--set {assignment}: write it as group.key=value")
    *parents, last = key.split(".")
    group = document
    for parent in parents:
        if group.get(parent) is None:
            group[parent] = {}
        group = group[parent]
        require(isinstance(group, Mapping), f"--set {assignment}: {parent} is a value, not a group")
    quoted = f"""text goes between quotes, --set '{key}="..."'"""
    group[last] = load_yaml(
        plain_yaml(), value, f"--set {assignment}: the value", remedy=f"; {quoted}"
    )


def _editor() -> Any:
    """YAML that keeps comments and quotes, spells None as null, and quotes dates: DVC takes no
    unquoted ones.
    """
    yaml, tag = YAML(), "tag:yaml.org,2002:"
    yaml.preserve_quotes, yaml.width = True, 120
    add = yaml.representer.add_representer
    add(type(None), lambda out, none: out.represent_scalar(f"{tag}null", "null"))
    for kind in (datetime.date, datetime.datetime):
        add(
            kind,
            lambda out, instant: out.represent_scalar(f"{tag}str", instant.isoformat(), style="'"),
        )
    return yaml
