"""Turn plain mappings (read from `params.yaml`) into frozen dataclasses that refuse what makes no sense.

Every stage declares its settings as a frozen dataclass with types and defaults; this parser fills it and rejects
unknown keys and wrong types, naming the key's full path. Ranges are each dataclass's own `__post_init__`, by `require`.
"""

from __future__ import annotations

import dataclasses
import datetime
import difflib
import types
import typing
from collections.abc import Mapping
from fnmatch import fnmatch
from typing import Any, TypeVar

from model_code.errors import SettingsError

T = TypeVar("T")
REMOVED = {  # by the key's full path, `*` a retriever's name: what to do in its place, told for one release
    "hierarchy.initialisation": "k-means always starts by k-means++ in rounds, the best of three that were measured",
    "hierarchy.tolerance": "k-means ends when no passage moves, or after hierarchy.max_iterations",
    "drift.topic_divergence": "topics are compared by their Jensen-Shannon divergence",
    "additions.written_queries": "write queries yourself, in each document's `queries`, and `freshet update` them",
    "retrievers.*.lexical.warmup_*": "the closed-form head and the first stage (first_stage_steps) are the start",
    "retrievers.*.lexical.weights": "learned weights are stored in float16",
    **{
        f"retrievers.*.lexical.{key}": "its default is a constant now"
        for key in ("scale", "bias*", "head_*", "ridge", "punctuation", "cache")
    },
    **{
        f"{group}.{key}": instead
        for group in ("training", "retrievers.*")
        for key, instead in {
            "hierarchy_temperature": "the hierarchy loss has the contrastive one's temperature",
            "shared_negatives": "an extra document is a negative of the query that it was drawn for",
            "negatives_skip": "negatives come from the first negatives_depth ranks",
            "negatives_margin": "what is known to answer, or holds one of the query's answers, is never drawn",
            "negatives_outside_leaf": "what is known to answer, or holds one of the query's answers, is never drawn",
            "negatives_refresh": "negatives: mined, searched once, was measured to help as much as searching again",
        }.items()
    },
}


def require(condition: bool, message: str) -> None:
    """Raise `SettingsError(message)` unless `condition` holds.

    >>> require(1 < 2, "never seen")
    """
    if not condition:
        raise SettingsError(message)


def require_at_least(least: float, values: object, *names: str) -> None:
    """Raise `SettingsError` unless each of the attributes `names` of `values` is None or at least `least`.

    >>> require_at_least(1, types.SimpleNamespace(depth=0), "depth")
    Traceback (most recent call last):
    model_code.errors.SettingsError: depth is 0, but must be at least 1
    """
    for name in names:
        value = getattr(values, name)
        require(value is None or value >= least, f"{name} is {value}, but must be at least {least}")


def parse(cls: type[T], mapping: Mapping[str, Any] | None, where: str) -> T:
    """Build the dataclass `cls` from `mapping`; `where` is the key path that error messages begin with.

    >>> @dataclasses.dataclass(frozen=True)
    ... class Passages:
    ...     words: int = 180
    >>> parse(Passages, {"words": 90}, "passages")
    Passages(words=90)
    >>> parse(Passages, {"wrods": 90}, "passages")
    Traceback (most recent call last):
    model_code.errors.SettingsError: passages.wrods is not a setting; did you mean 'words'? Known: words
    """
    mapping = {} if mapping is None else mapping
    require(isinstance(mapping, Mapping), f"{where} must be a group of settings, not {mapping!r}")
    hints = typing.get_type_hints(cls)
    fields = [field for field in dataclasses.fields(cls) if field.init]  # type: ignore[arg-type]
    reject_unknown(mapping, [field.name for field in fields], where)
    for field in fields:
        needed = field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
        require(not needed or field.name in mapping, f"{where}.{field.name} is required and missing")
    values = {key: _convert(hints[key], value, f"{where}.{key}") for key, value in mapping.items()}
    try:
        return cls(**values)
    except SettingsError as error:
        raise SettingsError(f"{where}: {error}") from None


def reject_unknown(mapping: Mapping[str, Any], known: list[str], where: str) -> None:
    """Raise `SettingsError` for the first key of `mapping` that is not `known`, with the nearest known one."""
    for key in mapping:
        if key not in known:
            path = f"{where}.{key}"
            for removed, instead in REMOVED.items():
                require(not fnmatch(path, removed), f"{path} is no longer a setting: {instead}; delete the key")
            near = difflib.get_close_matches(str(key), known, n=1)
            hint = f"; did you mean {near[0]!r}?" if near else "."
            raise SettingsError(f"{path} is not a setting{hint} Known: {', '.join(known)}")


def _convert(hint: Any, value: Any, where: str) -> Any:
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return _convert_union(arguments, value, where)
    if origin is typing.Literal:
        require(value in arguments, f"{where} is {value!r}, but must be one of {', '.join(map(repr, arguments))}")
        return value
    if origin is tuple:
        require(isinstance(value, (list, tuple)), f"{where} must be a list, not {value!r}")
        return tuple(_convert(arguments[0], item, f"{where}[{i}]") for i, item in enumerate(value))
    if origin is dict:
        require(isinstance(value, Mapping), f"{where} must be a mapping, not {value!r}")
        return {str(key): _convert(arguments[1], item, f"{where}.{key}") for key, item in value.items()}
    if dataclasses.is_dataclass(hint):
        return value if isinstance(value, typing.cast(type, hint)) else parse(typing.cast(type, hint), value, where)
    return _convert_scalar(hint, value, where)


def _convert_union(options: tuple[Any, ...], value: Any, where: str) -> Any:
    if value is None and type(None) in options:
        return None
    failures = []
    for option in options:
        if option is type(None):
            continue
        try:
            return _convert(option, value, where)
        except SettingsError as error:
            failures.append(str(error))
    raise SettingsError(failures[0])


def _convert_scalar(hint: Any, value: Any, where: str) -> Any:
    if hint is float and isinstance(value, str):  # YAML 1.1 reads 1e-5 as a string
        try:
            return float(value)
        except ValueError:
            raise SettingsError(f"{where} must be a number, not {value!r}") from None
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if hint is str and isinstance(value, datetime.date):  # which DVC, that reads the same file, does not take
        raise SettingsError(f"{where} must be text, and YAML reads a date here; put quotes around it: '{value}'")
    matches = isinstance(value, hint) and not (hint is not bool and isinstance(value, bool))
    require(matches, f"{where} must be of type {hint.__name__}, not {value!r}")
    return value
