"""Settings: frozen pydantic models that refuse what makes no sense, with one line that names the
key's full path.

Every group of `params.yaml` is a class of fields with types, defaults, bounds and descriptions;
rules between fields are its `check`, by `require`. Constructing one, `parse` and `replace` raise
`SettingsError` alike.
"""

from __future__ import annotations

import datetime
import difflib
import re
import types
import typing
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Self, TypeVar

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails, PydanticCustomError, PydanticUndefined

from model_code.errors import SettingsError

__all__ = [
    "Field",
    "SettingDescription",
    "Settings",
    "constant_field",
    "describe_settings",
    "parse",
    "reject_unknown",
    "require",
]
T = TypeVar("T", bound="Settings")
DEFAULT = "its default is a constant now"
JUDGED = "only people's judgements judge: corpus.splits parts them"
TRAINED = "(training|retrievers.[^.]*)"
REMOVED = {  # by the pattern of a key's full path: what to do in its place, told for one release
    "hierarchy.initialisation": "k-means always starts by k-means++ in rounds, the best of three that were measured",
    "hierarchy.method": "trees are built bottom up, as in the paper",
    "hierarchy.tolerance": "k-means ends when no passage moves, or after hierarchy.max_iterations",
    "bm25.stopwords": "words that most passages have weigh next to nothing",
    "live.retrain_from": "a retrain begins as a training does; retrievers.NAME.start names a folder of other weights, "
    "such as live/NAME/generations/000000/encoder",
    "drift.batches": "batches of the null are drawn from the reference at random",
    "drift.topic_divergence": "shares of topics are not compared: no decision came of them",
    "additions.use": "docs/incdsi.md names the settings that did best; write them in this group",
    "additions.protect": "all documents' queries constrain an added one, as published",
    "additions.written_queries": "write queries yourself, in each document's `queries`, and `freshet update` them",
    "hierarchy.compare_up_to": "experiments/tree_against_flat tells what a tree gives up against flat k-means",
    "evaluation.rerank_depth": "of hybrids there is rrf; fusions are what can be registered",
    "corpus.parts": "leave documents that come later out of the source, and `freshet add` them when they do",
    "corpus.keep_title_only": "a document of a title alone is a document",
    "acceptance.m.*_words": "documents and queries may be as long as they are",
    "acceptance.max_empty_title_share": "titles are optional",
    "evaluation.references": "systems are tested against bm25, zero_shot, untrained and contrastive",
    "pseudo_queries.held_out_cloze": "spans stay in their documents, as in HCE",
    "pseudo_queries.(distinctive_within|consistency_filter.*)": "queries that others have word for word are dropped",
    "pseudo_queries.(held_out_generator|.*_share)|acceptance.min_queries": JUDGED,
    "retrievers.*.document_vectors.evaluations_per_epoch": "each epoch ends with one",
    "additions.prior.*": "a vector is pulled to its document's encoding, which did best (docs/incdsi.md)",
    "additions.on_conflict": "where no vector meets every constraint the best compromise is kept, which did best",
    "index.factory": "exact below index.flat_below, an inverted file of FAISS from there, level with HNSW by its bench",
    "index.ef_search": "there is no graph; nprobe says how many lists a query visits",
    "additions.hinge": "hinges are squared, as published; plain ones gave the same vectors",
    "additions.margins_in": "gamma1 and gamma2 are in standard deviations of the collection's scores",
    "additions.(batch_size|precision|device)": "passes are the CPU's, in float32; vectors never depended on it",
    "retrievers.*.lexical.warmup_.*": "the closed-form head is the start",
    "retrievers.*.lexical.first_stage_.*": "a first stage did harm before the whole loss (experiments/svdr_loss)",
    "retrievers.*.lexical.semi_parametric": "the whole loss trains; alone the first stage found as much, no cheaper",
    "retrievers.*.lexical.in_training_.*": "a second query in a negative's place was better (experiments/svdr_loss)",
    "retrievers.*.lexical.head": "a checkpoint's own head is taken where it has one, else one in closed form",
    "retrievers.*.lexical.embeddings": "the index holds what its search reads: embeddings for full and alpha",
    "retrievers.*.(layers.regulariser|document_vectors.(logit_scale|learning_rate))": DEFAULT,
    "retrievers.*.document_vectors.start": "vectors start as the mean of their passages: random ones reached little "
    "more than half",
    "retrievers.*.document_vectors.epochs": "steps says how long to train",
    "live.follow": "every live retriever gets what arrives; delete the folder live/NAME of one that shall not",
    "live.collect_every": "old generations go as soon as ten can",
    "retrievers.*.encoders": "one encoder is for both sides; two gained nothing (experiments/mlr_layers)",
    "retrievers.*.lexical.weights": "learned weights are stored in float16",
    "pseudo_queries.training.(weight_decay|warmup_share|gradient_clip|held_out_pairs)": DEFAULT,
    f"{TRAINED}.(unsupervised_weight|centroid_learning_rate|weight_decay|dev_queries)": DEFAULT,
    "retrievers.*.lexical.(scale|bias.*|head_.*|ridge|punctuation|cache|.*top_k)": DEFAULT,
    f"{TRAINED}.gradient_clip": "no measurement clipped gradients; lower learning_rate where the loss runs away",
    f"{TRAINED}.hierarchy_temperature": "the hierarchy loss has the contrastive one's temperature",
    f"{TRAINED}.shared_negatives": "an extra document is a negative of the query that it was drawn for",
    f"{TRAINED}.negatives_skip": "negatives come from the first negatives_depth ranks",
    f"{TRAINED}.negatives_(margin|outside_leaf)": "what is known to answer, or holds one of the query's answers, is "
    "never drawn",
    f"{TRAINED}.negatives_refresh": "negatives: bm25 ranks passages once, before the first step",
}
CONSTANT = {"constant": True}
WORDS = {
    "ge": "at least",
    "gt": "above",
    "le": "at most",
    "lt": "below",
    "min_length": "of length at least",
}
"""A bound's attribute, and how it is said"""


def constant_field(*default: Any, **rules: Any) -> Any:
    """A field that is no setting: only code, such as a test that wants it small, gives it another
    value.
    """
    return Field(*default, **rules, json_schema_extra=CONSTANT)


def require(condition: bool, message: str) -> None:
    """Raise `SettingsError(message)` unless `condition` holds.

    >>> require(1 < 2, "never seen")
    """
    if not condition:
        raise SettingsError(message)


class Settings(BaseModel):
    """A group of settings. YAML's `1e-5`, a string, is a float and its lists are tuples; nothing
    else is converted.

    >>> class Passages(Settings):
    ...     words: int = Field(180, ge=0, description="window length")
    >>> Passages(words=-1)
    Traceback (most recent call last):
    model_code.errors.SettingsError: words is -1, but must be at least 0: window length
    """

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        strict=True,
        allow_inf_nan=False,
        validate_default=True,
        hide_input_in_errors=True,
    )

    def __init__(self, **values: Any) -> None:
        try:
            self.__pydantic_validator__.validate_python(values, self_instance=self)
        except ValidationError as error:
            raise SettingsError(_message(error, type(self), "")) from None

    __init__.__pydantic_base_init__ = True  # type: ignore[attr-defined]  # groups within groups are validated in place

    def check(self) -> None:
        """Raise `SettingsError` where fields that are sound by themselves do not fit together."""

    def replace(self, **changes: Any) -> Self:
        """The same settings with some values changed, checked like any others."""
        return type(self)(**{**dict(self), **changes})

    @field_validator("*", mode="before")
    @classmethod
    def _from_yaml(cls, value: Any, info: ValidationInfo) -> Any:
        hints = list(_options(cls.model_fields[info.field_name or ""].annotation))
        if float in hints and isinstance(value, str):
            try:
                return float(value)
            except ValueError:
                return value
        if isinstance(value, list) and any(typing.get_origin(hint) is tuple for hint in hints):
            return tuple(value)
        # which DVC, that reads the same file, does not take
        if isinstance(value, datetime.date) and str in hints:
            raise _text_error(
                f" must be text, and YAML reads a date here; put quotes around it: '{value}'"
            )
        return value

    @model_validator(mode="after")
    def _checked(self) -> Self:
        try:
            self.check()
        except SettingsError as error:
            raise _text_error(f": {error}") from None
        return self


def parse(cls: type[T], mapping: Mapping[str, Any] | None, where: str) -> T:
    """Build the settings `cls` from `mapping`; `where` is the key path that error messages begin
    with.

    >>> class Passages(Settings):
    ...     words: int = 180
    >>> parse(Passages, {"words": 90}, "passages")
    Passages(words=90)
    >>> parse(Passages, {"wrods": 90}, "passages")
    Traceback (most recent call last):
    model_code.errors.SettingsError: passages.wrods is not a setting; did you mean 'words'? Known: words
    """
    mapping = {} if mapping is None else mapping
    require(isinstance(mapping, Mapping), f"{where} must be a group of settings, not {mapping!r}")
    _refuse_constants(mapping, cls, where)
    try:
        return cls.model_validate(dict(mapping))
    except ValidationError as error:
        raise SettingsError(_message(error, cls, where)) from None


def reject_unknown(mapping: Mapping[str, Any], names: list[str], where: str) -> None:
    """Raise `SettingsError` for the first key of `mapping` that is none of `names`, with the
    nearest of them.
    """
    for key in mapping:
        if key not in names:
            raise SettingsError(_unknown(key, names, where))


@dataclass(frozen=True)
class SettingDescription:
    """One key for the reference: its path, type, default and bounds as text, and what it is for."""

    key: str
    type: str
    default: str
    bounds: str
    description: str


def describe_settings(
    cls: type[Settings], where: str, chosen: Settings | None = None
) -> Iterator[SettingDescription]:
    """Every key of `cls`, groups within it included. chosen: whose values stand for the defaults.

    >>> class Passages(Settings):
    ...     words: int | None = Field(180, ge=0, description="window length")
    >>> next(describe(Passages, "passages"))
    Described(key='passages.words', type='int | null', default='180', bounds='at least 0', description='window length')
    """
    for name, field in cls.model_fields.items():
        if field.json_schema_extra == CONSTANT:
            continue
        key, group = _joined(where, name), _group(field)
        value = getattr(chosen, name) if chosen else field.get_default(call_default_factory=True)
        if group is not None:
            yield from describe_settings(group, key, value if isinstance(value, Settings) else None)
            continue
        default = "required" if value is PydanticUndefined else _shown(value)
        yield SettingDescription(
            key, _type(field.annotation), default, _bounds(field), field.description or ""
        )


def _refuse_constants(mapping: Mapping[str, Any], cls: type[Settings], where: str) -> None:
    for key, value in mapping.items():
        field = cls.model_fields.get(key)
        if field is not None and field.json_schema_extra == CONSTANT:
            raise SettingsError(
                f"{_joined(where, key)} is no longer a setting: {DEFAULT}; delete the key"
            )
        if (
            field is not None
            and (group := _group(field)) is not None
            and isinstance(value, Mapping)
        ):
            _refuse_constants(value, group, _joined(where, key))


def _message(error: ValidationError, cls: type[Settings], where: str) -> str:
    """What is wrong with the first key, an unknown one before all others, in one line."""
    details = error.errors(include_url=False)
    first = next(
        (detail for detail in details if detail["type"] in ("extra_forbidden", "invalid_key")),
        details[0],
    )
    path, kind = _joined(where, *first["loc"]), first["type"]
    if kind in ("extra_forbidden", "invalid_key"):
        parent = _model_at(cls, first["loc"][:-1])
        return _unknown(first["loc"][-1], keys(parent), _joined(where, *first["loc"][:-1]))
    if kind == "told":
        return f"{path}{first['msg']}" if path else first["msg"].removeprefix(": ")
    if kind == "missing":
        return f"{path} is required and missing"
    # an item's place is that of its field
    names = [key for key in first["loc"] if isinstance(key, str)]
    return f"{path} {_rule(first, _model_at(cls, tuple(names[:-1])).model_fields[names[-1]])}"


def _rule(detail: ErrorDetails, field: FieldInfo) -> str:
    kind, context, value = detail["type"], detail.get("ctx", {}), detail["input"]
    if any(name in context for name in WORDS):
        null = ", or null" if type(None) in _options(field.annotation) else ""
        return (
            f"is {value!r}, but must be {_bounds(field)}{null}"
            + f": {field.description}" * bool(field.description)
        )
    rules = {
        "literal_error": f"is {value!r}, but must be one of {context.get('expected', '').replace(' or ', ', ')}",
        "tuple_type": f"must be a list, not {value!r}",
        "model_type": f"must be a group of settings, not {value!r}",
        "dict_type": f"must be a group of settings, not {value!r}",
        "finite_number": f"is {value!r}, but must be a finite number",
        "float_type": f"must be a number, not {value!r}",
    }
    if kind in rules:
        return rules[kind]
    if kind in ("int_type", "string_type", "bool_type"):
        return (
            f"must be of type {kind.removesuffix('_type').replace('string', 'str')}, not {value!r}"
        )
    return f"is {value!r}: {detail['msg']}"


def keys(cls: type[Settings]) -> list[str]:
    """The names of the settings of a group."""
    return [name for name, field in cls.model_fields.items() if field.json_schema_extra != CONSTANT]


def _text_error(text: str) -> PydanticCustomError:
    return PydanticCustomError("told", "{text}", {"text": text})


def _unknown(key: Any, names: list[str], where: str) -> str:
    path = _joined(where, str(key))
    for removed, instead in REMOVED.items():
        if re.fullmatch(removed, path):
            return f"{path} is no longer a setting: {instead}; delete the key"
    near = difflib.get_close_matches(str(key), names, n=1)
    hint = f"; did you mean {near[0]!r}?" if near else "."
    return f"{path} is not a setting{hint} Known: {', '.join(names)}"


def _joined(where: str, *keys: Any) -> str:
    for key in keys:
        where = (
            f"{where}[{key}]" if isinstance(key, int) else f"{where}.{key}" if where else str(key)
        )
    return where


def _model_at(cls: type[Settings], path: tuple[int | str, ...]) -> type[Settings]:
    """The group within `cls` that `path` leads to."""
    for key in path:
        cls = _group(cls.model_fields[str(key)]) or cls
    return cls


def _options(hint: Any) -> tuple[Any, ...]:
    """The types that a union allows; a type alone allows itself."""
    return (
        typing.get_args(hint)
        if typing.get_origin(hint) in (typing.Union, types.UnionType)
        else (hint,)
    )


def _group(field: FieldInfo) -> type[Settings] | None:
    """The group of settings that a field is, or None."""
    groups = (
        hint
        for hint in _options(field.annotation)
        if isinstance(hint, type) and issubclass(hint, Settings)
    )
    return next(groups, None)


def _type(hint: Any) -> str:
    if len(_options(hint)) > 1:
        return " | ".join(_type(option) for option in _options(hint))
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is typing.Literal:
        return " | ".join(map(str, arguments))
    if origin is tuple:
        return f"list of {_type(arguments[0])}"
    return {str: "text", type(None): "null"}.get(hint, getattr(hint, "__name__", str(hint)))


def _shown(value: Any) -> str:
    if isinstance(value, tuple):
        return f"[{', '.join(map(_shown, value))}]"
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    return f"{value:g}" if isinstance(value, float) else str(value)


def _bounds(field: FieldInfo) -> str:
    """What a field's value must be, in words."""
    rules = [
        (name, getattr(rule, name))
        for rule in field.metadata
        for name in WORDS
        if hasattr(rule, name)
    ]
    return ", ".join(f"{WORDS[name]} {_shown(value)}" for name, value in rules)
