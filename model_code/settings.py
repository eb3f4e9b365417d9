"""Settings: frozen pydantic models that refuse impossible values with one line that names the key.

Each group of `params.yaml` is a subclass of `Settings` with types, defaults, bounds and
descriptions. Rules about several fields are in its method `check`, which calls `require`.
Constructing a group, `parse` and `replace` raise `SettingsError` in the same way.
"""

from __future__ import annotations

import datetime
import difflib
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
# Marks the fields that only code may change.
CONSTANT = {"constant": True}
# The type of pydantic errors whose message is complete, as `check` raised it.
OWN_MESSAGE = "own_message"
UNKNOWN_KEY_ERRORS = ("extra_forbidden", "invalid_key")
# The words for each bound of a field in messages, by pydantic's name of the bound.
BOUND_WORDS = {
    "ge": "at least",
    "gt": "above",
    "le": "at most",
    "lt": "below",
    "min_length": "of length at least",
}


def constant_field(*default: Any, **rules: Any) -> Any:
    """Declare a field that is not a setting: only code may give it another value.

    `params.yaml` may contain the key with the default value, which has no effect. The reference of
    settings does not list it.
    """
    return Field(*default, **rules, json_schema_extra=CONSTANT)


def require(condition: bool, message: str) -> None:
    """Raise `SettingsError(message)` unless `condition` holds.

    >>> require(1 < 2, "never seen")
    """
    if not condition:
        raise SettingsError(message)


class Settings(BaseModel):
    """A group of settings.

    YAML reads `1e-5` as text, and has lists but no tuples. A text for a float field and a list for
    a tuple field are therefore converted. No other value is converted.

    >>> class Passages(Settings):
    ...     words: int = Field(180, ge=0, description="Window length.")
    >>> Passages(words=-1)
    Traceback (most recent call last):
    model_code.errors.SettingsError: words is -1, but must be at least 0: Window length.
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
            raise SettingsError(_error_message(error, type(self), "")) from None

    # This mark makes pydantic validate groups within groups in place, without calling `__init__`.
    __init__.__pydantic_base_init__ = True  # type: ignore[attr-defined]

    def check(self) -> None:
        """Raise `SettingsError` if fields that are valid by themselves do not fit together."""

    def replace(self, **changes: Any) -> Self:
        """Return a copy with some values changed, checked like any other settings."""
        values = dict(self)
        values.update(changes)
        return type(self)(**values)

    @field_validator("*", mode="before")
    @classmethod
    def _convert_yaml(cls, value: Any, info: ValidationInfo) -> Any:
        """Convert a value that YAML reads as another type than the field has; see the class."""
        allowed_types = _union_members(cls.model_fields[info.field_name or ""].annotation)
        if float in allowed_types and isinstance(value, str):
            try:
                return float(value)
            except ValueError:
                return value

        allows_tuple = any(typing.get_origin(hint) is tuple for hint in allowed_types)
        if allows_tuple and isinstance(value, list):
            return tuple(value)

        # DVC reads the same file and does not accept dates.
        if str in allowed_types and isinstance(value, datetime.date):
            raise _own_message(
                f" must be text, and YAML reads a date here; put quotes around it: '{value}'"
            )
        return value

    @model_validator(mode="after")
    def _run_check(self) -> Self:
        """Call `check`, and pass its message on to `_error_message`."""
        try:
            self.check()
        except SettingsError as error:
            raise _own_message(f": {error}") from None
        return self


def parse(cls: type[T], mapping: Mapping[str, Any] | None, where: str) -> T:
    """Build the settings `cls` from a mapping.

    Args:
        cls: The group of settings.
        mapping: Values by key. None is an empty group.
        where: Path of the group, which error messages begin with.

    Raises:
        SettingsError: If a key is unknown or a value impossible.

    >>> class Passages(Settings):
    ...     words: int = 180
    >>> parse(Passages, {"words": 90}, "passages")
    Passages(words=90)
    >>> parse(Passages, {"wrods": 90}, "passages")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    model_code.errors.SettingsError: passages.wrods is not a setting; did you mean 'words'? ...
    """
    mapping = {} if mapping is None else mapping
    require(isinstance(mapping, Mapping), f"{where} must be a group of settings, not {mapping!r}")
    _refuse_changed_constants(mapping, cls, where)
    try:
        return cls.model_validate(dict(mapping))
    except ValidationError as error:
        raise SettingsError(_error_message(error, cls, where)) from None


def reject_unknown(mapping: Mapping[str, Any], names: list[str], where: str) -> None:
    """Raise SettingsError for the first unknown key, and suggest the nearest name."""
    for key in mapping:
        if key not in names:
            raise SettingsError(_unknown_key_message(key, names, where))


def keys(cls: type[Settings]) -> list[str]:
    """Return the names of the settings of a group, without constants."""
    return [name for name, field in cls.model_fields.items() if not _is_constant(field)]


@dataclass(frozen=True)
class SettingDescription:
    """One row of the reference: a key, its type, default and bounds as text, and its meaning."""

    key: str
    type: str
    default: str
    bounds: str
    description: str


def describe_settings(
    cls: type[Settings], where: str, chosen: Settings | None = None
) -> Iterator[SettingDescription]:
    """Yield a description of every key of `cls`, including groups within it.

    Args:
        cls: The group of settings.
        where: Path of the group.
        chosen: Settings whose values are shown as defaults. None: the defaults of the class.

    >>> class Passages(Settings):
    ...     words: int | None = Field(180, ge=0, description="Window length.")
    >>> row = next(describe_settings(Passages, "passages"))
    >>> row.key, row.type, row.default, row.bounds, row.description
    ('passages.words', 'int | null', '180', 'at least 0', 'Window length.')
    """
    for name, field in cls.model_fields.items():
        if _is_constant(field):
            continue

        key = _join_path(where, name)
        if chosen is None:
            value = field.get_default(call_default_factory=True)
        else:
            value = getattr(chosen, name)

        group = _nested_group(field)
        if group is not None:
            nested = value if isinstance(value, Settings) else None
            yield from describe_settings(group, key, nested)
            continue

        default = "required" if value is PydanticUndefined else _value_text(value)
        yield SettingDescription(
            key, _type_text(field.annotation), default, _bounds_text(field), field.description or ""
        )


def _refuse_changed_constants(mapping: Mapping[str, Any], cls: type[Settings], where: str) -> None:
    """Refuse a constant with another value than its default. The default value is accepted."""
    for key, value in mapping.items():
        field = cls.model_fields.get(key)
        if field is None:
            continue

        path = _join_path(where, key)
        if _is_constant(field):
            constant = field.get_default(call_default_factory=True)
            require(
                value == constant,
                f"{path} is no setting, but always {_value_text(constant)}; delete the key",
            )
        group = _nested_group(field)
        if group is not None and isinstance(value, Mapping):
            _refuse_changed_constants(value, group, path)


def _error_message(error: ValidationError, cls: type[Settings], where: str) -> str:
    """Return one line about the first error. An unknown key comes before all other errors."""
    details = error.errors(include_url=False)
    first = details[0]
    for detail in details:
        if detail["type"] in UNKNOWN_KEY_ERRORS:
            first = detail
            break

    path = _join_path(where, *first["loc"])
    if first["type"] in UNKNOWN_KEY_ERRORS:
        *parents, key = first["loc"]
        group = _group_at(cls, tuple(parents))
        return _unknown_key_message(key, keys(group), _join_path(where, *parents))
    if first["type"] == OWN_MESSAGE:
        # `check` or the conversion of a value has written the message, to follow the path.
        if path:
            return f"{path}{first['msg']}"
        return first["msg"].removeprefix(": ")
    if first["type"] == "missing":
        return f"{path} is required and missing"

    # The location of an error is a path of names. If one item of a list is wrong, the path ends
    # with the number of the item, such as ("packages", 0). The allowed values belong to the whole
    # field, here `packages`. So numbers are left out of the path that leads to the field.
    names = [key for key in first["loc"] if isinstance(key, str)]
    field = _group_at(cls, tuple(names[:-1])).model_fields[names[-1]]
    return f"{path} {_broken_rule(first, field)}"


def _broken_rule(detail: ErrorDetails, field: FieldInfo) -> str:
    """Return what is wrong with a value, and what is allowed, as the end of a sentence."""
    error_type = detail["type"]
    context = detail.get("ctx", {})
    value = detail["input"]

    if any(name in context for name in BOUND_WORDS):
        allowed = _bounds_text(field)
        if type(None) in _union_members(field.annotation):
            allowed += ", or null"
        explanation = f": {field.description}" if field.description else ""
        return f"is {value!r}, but must be {allowed}{explanation}"

    if error_type == "literal_error":
        choices = context.get("expected", "").replace(" or ", ", ")
        return f"is {value!r}, but must be one of {choices}"
    if error_type == "finite_number":
        return f"is {value!r}, but must be a finite number"
    if error_type == "tuple_type":
        return f"must be a list, not {value!r}"
    if error_type in ("model_type", "dict_type"):
        return f"must be a group of settings, not {value!r}"
    if error_type == "float_type":
        return f"must be a number, not {value!r}"

    type_names = {"int_type": "int", "string_type": "str", "bool_type": "bool"}
    if error_type in type_names:
        return f"must be of type {type_names[error_type]}, not {value!r}"
    return f"is {value!r}: {detail['msg']}"


def _own_message(text: str) -> PydanticCustomError:
    """Return an error of pydantic whose message is the end of our own one."""
    return PydanticCustomError(OWN_MESSAGE, "{text}", {"text": text})


def _unknown_key_message(key: Any, names: list[str], where: str) -> str:
    """Return the message about a key that is not a setting, with the nearest known name."""
    similar = difflib.get_close_matches(str(key), names, n=1)
    hint = f"; did you mean {similar[0]!r}?" if similar else "."
    return f"{_join_path(where, str(key))} is not a setting{hint} Known: {', '.join(names)}"


def _join_path(where: str, *names: Any) -> str:
    """Return a path such as `corpus.packages[0]`."""
    path = where
    for name in names:
        if isinstance(name, int):
            path = f"{path}[{name}]"
        elif path:
            path = f"{path}.{name}"
        else:
            path = str(name)
    return path


def _group_at(cls: type[Settings], path: tuple[int | str, ...]) -> type[Settings]:
    """Return the group within `cls` at a path of keys. Keys of plain fields are passed over."""
    for key in path:
        group = _nested_group(cls.model_fields[str(key)])
        if group is not None:
            cls = group
    return cls


def _is_constant(field: FieldInfo) -> bool:
    return field.json_schema_extra == CONSTANT


def _union_members(hint: Any) -> tuple[Any, ...]:
    """Return the types that a union allows, or the type itself."""
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        return typing.get_args(hint)
    return (hint,)


def _nested_group(field: FieldInfo) -> type[Settings] | None:
    """Return the class of a field that is a group of settings, else None."""
    for hint in _union_members(field.annotation):
        if isinstance(hint, type) and issubclass(hint, Settings):
            return hint
    return None


def _type_text(hint: Any) -> str:
    """Return a type as the reference of settings names it, such as `list of text | null`."""
    members = _union_members(hint)
    if len(members) > 1:
        return " | ".join(_type_text(member) for member in members)

    arguments = typing.get_args(hint)
    if typing.get_origin(hint) is typing.Literal:
        return " | ".join(str(choice) for choice in arguments)
    if typing.get_origin(hint) is tuple:
        return f"list of {_type_text(arguments[0])}"
    if hint is str:
        return "text"
    if hint is type(None):
        return "null"
    return getattr(hint, "__name__", str(hint))


def _value_text(value: Any) -> str:
    """Return a value as YAML spells it."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, tuple):
        return f"[{', '.join(_value_text(item) for item in value)}]"
    return str(value)


def _bounds_text(field: FieldInfo) -> str:
    """Return the bounds of a field in words, such as `at least 0, below 1`."""
    bounds = []
    for rule in field.metadata:
        for name, words in BOUND_WORDS.items():
            if hasattr(rule, name):
                bounds.append(f"{words} {_value_text(getattr(rule, name))}")
    return ", ".join(bounds)
