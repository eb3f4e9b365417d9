"""Read front matter: the block of values before the text of a Markdown file.

A YAML block is enclosed in lines `---`, and a TOML block in lines `+++`. A JSON block is an object
at the beginning of the file. Handwritten blocks often have errors, so a block that is not valid is
read line by line. A block of values is never part of the document's text.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from model_code.corpus.formats.extraction import Remark

# Longest block, in characters. A longer one is text.
MAX_FRONT_MATTER_CHARACTERS = 100_000

# Most values of a block. A value counts once for each YAML alias that refers to it.
MAX_VALUES = 10_000

# Deepest nesting of values, in levels.
MAX_LEVELS = 50

_YAML_BLOCK = re.compile(r"\A\s*?---[ \t]*\n(?P<block>(?:[^\n]*\n)*?)(?:---|\.\.\.)[ \t]*(?:\n|\Z)")
_TOML_BLOCK = re.compile(r"\A\s*?\+\+\+[ \t]*\n(?P<block>(?:[^\n]*\n)*?)\+\+\+[ \t]*(?:\n|\Z)")
# A key is one word here, because a sentence may begin with some words and a colon.
_KEY_LINE = re.compile(r"(?P<key>[^\W\d][\w.-]{0,60}?)\s*[:=](?!//)\s*(?P<value>.*)")
# A line such as `[locks]`, which begins a table of TOML.
_TABLE_LINE = re.compile(r"\[{1,2}[\w.\s\"'-]+\]{1,2}")
_JSON_BLOCK = re.compile(r"\A\s*(?=\{\s*\")")
_ITEM_LINE = re.compile(r"\s*-\s+(?P<value>.+)")
_TEMPLATE = re.compile(r"\{\{.*?\}\}|\{%.*?%\}|<%.*?%>|\$\{.*?\}")


@dataclass
class FrontMatter:
    """The values before a text.

    Attributes:
        values: The values by their keys.
        text: The text behind the block.
        remarks: What was wrong with the block.
    """

    values: dict[str, Any]
    text: str
    remarks: list[Remark] = field(default_factory=list)


def split_front_matter(source: str) -> FrontMatter:
    """Split a Markdown source into its front matter and its text.

    Args:
        source: The source, with `\\n` as line end.

    Returns:
        The values and the text. Without front matter there are no values, and the text is the whole
        source.
    """
    for pattern, language in ((_YAML_BLOCK, "YAML"), (_TOML_BLOCK, "TOML")):
        match = pattern.match(source)
        if match is None or len(match["block"]) > MAX_FRONT_MATTER_CHARACTERS:
            continue
        block = match["block"]
        parsed = _parse(block, language)
        if parsed is not None:
            values, remarks = parsed
            front_matter = FrontMatter(values, source[match.end() :], remarks)
            _drop_template_values(front_matter)
            return front_matter
    return _split_json(source)


def _split_json(source: str) -> FrontMatter:
    """Split a source that begins with a JSON object, as Hugo writes it.

    An object is front matter only if it has a title or a date, nothing follows it on its last line,
    and a text follows it. Any other object is text.
    """
    match = _JSON_BLOCK.match(source)
    if match is None:
        return FrontMatter({}, source)
    start = match.end()
    try:
        block = source[start : start + MAX_FRONT_MATTER_CHARACTERS]
        values, length = json.JSONDecoder().raw_decode(block)
    except (ValueError, RecursionError):
        return FrontMatter({}, source)
    line_end, _, text = source[start + length :].partition("\n")
    is_named = any(key.lower() in ("title", "date") for key in values)
    if line_end.strip() or not text.strip() or not is_named or not _is_small(values):
        return FrontMatter({}, source)
    return FrontMatter(values, text)


def _parse(block: str, language: str) -> tuple[dict[str, Any], list[Remark]] | None:
    """Return the values of a block with remarks; None if the block is text between two rules."""
    if not block.strip():
        return {}, []
    value = _parse_yaml(block) if language == "YAML" else _parse_toml(block)
    if not isinstance(value, Mapping) and language == "YAML":
        # Tools that know both languages leave TOML between the marks of YAML.
        value = _parse_toml(block) or value
    if isinstance(value, Mapping) and block.startswith("\n"):
        # Sentences with a colon between two rules, as slides have them, are YAML by chance.
        if any(" " in str(key).strip() for key in value):
            return None
    if isinstance(value, Mapping):
        if _is_small(value):
            return {str(key): item for key, item in value.items()}, []
        return {}, [Remark("unreadable value", "the front matter has too many values")]
    if value is None and language == "YAML" and _has_only_comments(block):
        return {}, []

    values = _parse_lines(block)
    if values is None:
        return None
    detail = f"the front matter is not valid {language}, and was read line by line"
    return values, [Remark("unreadable value", detail)]


def _parse_yaml(block: str) -> Any:
    from ruamel.yaml import YAML
    from ruamel.yaml.error import YAMLError

    try:
        return YAML(typ="safe").load(block)
    except (YAMLError, ValueError, TypeError, KeyError, AttributeError, RecursionError):
        # The parser raises errors of any kind for values such as impossible dates.
        return None


def _parse_toml(block: str) -> Any:
    try:
        return tomllib.loads(block)
    except (tomllib.TOMLDecodeError, RecursionError):
        return None


def _has_only_comments(block: str) -> bool:
    lines = [line for line in block.splitlines() if line.strip()]
    return all(line.lstrip().startswith("#") for line in lines)


def _is_small(value: Any) -> bool:
    """Return whether a value is neither large nor deep, with its aliases written out."""
    items = [value]
    seen = 0
    for _ in range(MAX_LEVELS):
        seen += len(items)
        if seen > MAX_VALUES:
            return False
        inner: list[Any] = []
        for item in items:
            if isinstance(item, Mapping):
                inner.extend(item.values())
            elif isinstance(item, list | tuple | set):
                inner.extend(item)
            if len(inner) > MAX_VALUES:
                return False
        if not inner:
            return True
        items = inner
    return False


def _parse_lines(block: str) -> dict[str, Any] | None:
    """Return the values of a block line by line.

    Returns:
        {key: text or list of texts}; None if most lines are neither keys nor items, so that the
        block is text.
    """
    values: dict[str, Any] = {}
    key: str | None = None
    other_lines = 0
    key_lines = 0
    for line in block.splitlines():
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        if _TABLE_LINE.fullmatch(line.strip()):
            key = None
            continue
        is_indented = line[0] in " \t"
        key_match = _KEY_LINE.fullmatch(line.strip())
        item_match = _ITEM_LINE.fullmatch(line)
        if key_match is not None and key_match["key"] not in values:
            key = key_match["key"]
            values[key] = _unquote(key_match["value"] or "")
            key_lines += 1
        elif key_match is not None and not is_indented:
            # Of equal keys, the first one counts.
            key = None
            key_lines += 1
        elif item_match is not None and key is not None:
            _append_item(values, key, _unquote(item_match["value"]))
        elif is_indented and key is not None:
            # An indented line continues the value before it.
            if isinstance(values[key], str):
                values[key] = f"{values[key]} {line.strip()}".strip()
        else:
            other_lines += 1
            if key is not None and isinstance(values[key], str):
                values[key] = f"{values[key]} {line.strip()}".strip()
    if other_lines >= max(1, key_lines):
        return None
    return values if key_lines else None


def _append_item(values: dict[str, Any], key: str, item: str) -> None:
    if not isinstance(values[key], list):
        values[key] = [values[key]] if values[key] else []
    values[key].append(item)


def _unquote(value: str) -> str:
    value = value.strip()
    # A quote that never closes is one of the common mistakes.
    if value[:1] in ("'", '"'):
        return value.strip(value[0])
    return value


def _drop_template_values(front_matter: FrontMatter) -> None:
    """Leave out values that a template would have filled in, such as `{{title}}`."""
    for key, value in list(front_matter.values.items()):
        # YAML reads `{{title}}` as a mapping whose key is a mapping.
        text = value if isinstance(value, str) else ""
        if text and not _TEMPLATE.sub("", text).strip():
            del front_matter.values[key]
            remark = Remark("unreadable value", f"{key} is the placeholder {text!r}")
            front_matter.remarks.append(remark)
