"""`params.yaml` as one frozen object, parsed once at the entry point, and edited without losing its comments."""

from __future__ import annotations

import dataclasses
import datetime
import io
import typing
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from model_code import settings
from model_code.additions.settings import AdditionSettings
from model_code.corpus.settings import AcceptanceSettings, CorpusSettings, PassageSettings
from model_code.drift.settings import DriftSettings
from model_code.encoding.settings import EncoderSettings
from model_code.errors import SettingsError
from model_code.evaluation.settings import EvaluationSettings, PromotionSettings
from model_code.files import write_text
from model_code.hierarchy.settings import HierarchySettings
from model_code.index.settings import Bm25Settings, IndexSettings
from model_code.live.settings import LiveSettings
from model_code.queries.settings import PseudoQuerySettings
from model_code.retrievers.settings import RetrieverSettings, parse_retriever
from model_code.scale.settings import ScaleSettings
from model_code.training.settings import TrainingSettings

BASELINES = ("bm25", "zero_shot")
BM25_GENERATED = "bm25_generated"  # a baseline where a model writes queries: BM25 over documents and their queries


@dataclass(frozen=True)
class Parameters:
    """Every group of `params.yaml`. A retriever's keys are those of `training`, laid over it, and its kind's."""

    corpus: CorpusSettings
    passages: PassageSettings
    pseudo_queries: PseudoQuerySettings
    acceptance: AcceptanceSettings
    encoder: EncoderSettings
    hierarchy: HierarchySettings
    training: TrainingSettings
    retrievers: dict[str, RetrieverSettings]
    index: IndexSettings
    bm25: Bm25Settings
    evaluation: EvaluationSettings
    promotion: PromotionSettings
    drift: DriftSettings
    additions: AdditionSettings
    live: LiveSettings
    scale: ScaleSettings
    seed: int = 0

    @property
    def baselines(self) -> tuple[str, ...]:
        """Every baseline that is evaluated."""
        written = "sequence_to_sequence" in self.pseudo_queries.generators
        return (*BASELINES, BM25_GENERATED) if written else BASELINES

    @property
    def systems(self) -> tuple[str, ...]:
        """Every system that is evaluated: the baselines, then the retrievers in their order."""
        return (*self.baselines, *self.retrievers)


def parse(mapping: Mapping[str, Any]) -> Parameters:
    """Parse all groups; raises `SettingsError` naming the first unknown key or impossible value."""
    fields = [field.name for field in dataclasses.fields(Parameters)]
    settings.reject_unknown(mapping, fields, "params.yaml")
    groups = [name for name in fields if name not in ("retrievers", "seed")]
    types = typing.get_type_hints(Parameters)
    values = {name: settings.parse(types[name], mapping.get(name), name) for name in groups}
    seed = mapping.get("seed", 0)
    settings.require(isinstance(seed, int) and seed >= 0, f"seed must be a whole number of at least 0, not {seed!r}")
    retrievers = mapping.get("retrievers") or {}
    example = "retrievers must map names to settings, such as {hce: {hierarchy_weight: 0.2}}"
    settings.require(isinstance(retrievers, Mapping) and bool(retrievers), example)
    shared = mapping.get("training") or {}
    parsed = {name: _parse_retriever(name, own, shared) for name, own in retrievers.items()}
    return Parameters(**values, retrievers=parsed, seed=seed)


def _parse_retriever(name: str, own: Any, shared: Mapping[str, Any]) -> RetrieverSettings:
    where = f"retrievers.{name}"
    settings.require(str(name).replace("_", "").replace("-", "").isalnum(), f"{where}: use letters, digits, _ and -")
    settings.require(name not in (*BASELINES, BM25_GENERATED), f"{where}: this name belongs to a baseline")
    return parse_retriever(own, shared, where)


def load(path: Path) -> Parameters:
    """Parse the file `path`; once, for as long as its text stays the same."""
    return _parse_text(path.read_text(encoding="utf-8"))


def read(path: Path) -> dict[str, Any]:
    """The plain mapping in `path`."""
    return _read_text(path.read_text(encoding="utf-8"))


@lru_cache(maxsize=4)
def _parse_text(text: str) -> Parameters:
    return parse(_read_text(text))


@lru_cache(maxsize=4)
def _read_text(text: str) -> dict[str, Any]:
    from ruamel.yaml import YAML
    from ruamel.yaml.error import MarkedYAMLError

    try:
        mapping = YAML(typ="safe", pure=True).load(text)
    except MarkedYAMLError as error:
        raise SettingsError(f"params.yaml is not valid YAML: {error.problem} at {error.problem_mark}") from None
    settings.require(isinstance(mapping, dict), "params.yaml must hold groups of settings")
    return mapping


def assign(path: Path, assignments: Sequence[str]) -> None:
    """Write each `group.key=value` into the file, comments kept, only if the result is valid as a whole."""
    yaml = _editor()
    document = yaml.load(path.read_text(encoding="utf-8"))
    for assignment in assignments:
        _assign(document, assignment)
    stream = io.StringIO()
    yaml.dump(document, stream)
    parse(_read_text(stream.getvalue()))
    if stream.getvalue() != path.read_text(encoding="utf-8"):
        write_text(path, stream.getvalue())


def _editor() -> Any:
    """YAML that keeps comments and quotes, spells None as null, and quotes dates: DVC takes no unquoted ones."""
    from ruamel.yaml import YAML

    yaml, tag = YAML(), "tag:yaml.org,2002:"
    yaml.preserve_quotes, yaml.width = True, 120
    add = yaml.representer.add_representer
    add(type(None), lambda out, none: out.represent_scalar(f"{tag}null", "null"))
    add(datetime.date, lambda out, day: out.represent_scalar(f"{tag}str", day.isoformat(), style="'"))
    return yaml


def _assign(document: Any, assignment: str) -> None:
    from ruamel.yaml import YAML

    key, separator, value = assignment.partition("=")
    settings.require(bool(separator and key), f"--set {assignment}: write it as group.key=value")
    *parents, last = key.split(".")
    group = document
    for parent in parents:
        if group.get(parent) is None:
            group[parent] = {}
        group = group[parent]
        settings.require(isinstance(group, Mapping), f"--set {assignment}: {parent} is a value, not a group")
    group[last] = YAML(typ="safe", pure=True).load(value)
