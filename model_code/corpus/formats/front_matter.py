"""Read front matter: the block of values before the text of a Markdown file.

Several forms are known:

- YAML between lines `---`, TOML between lines `+++`, and JSON between lines `;;;`. A first line
  such as `---toml` names another language.
- A JSON object at the beginning of the file, as Hugo writes it.
- Pandoc's lines `% TITLE`, `% AUTHORS` and `% DATE`.
- A first paragraph of lines such as `Title: Tides`, as in MultiMarkdown and Pelican.

Handwritten blocks often have errors, so a block that is not valid is read line by line. A block of
values is never part of the document's text.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from model_code.corpus.formats.extraction import Extraction, Remark

# Longest block, in characters. A longer one is text.
MAX_FRONT_MATTER_CHARACTERS = 100_000

# Most values of a block. A value counts once for each YAML alias that refers to it.
MAX_VALUES = 10_000

# Deepest nesting of values, in levels.
MAX_LEVELS = 50

# The first line may name the language, or end with a comment.
_YAML_BLOCK = re.compile(
    r"\A\s*?---[ \t]*(?P<language>yaml|toml|json)?(?:[ \t]+#[^\n]*)?[ \t]*\n"
    r"(?P<block>(?:[^\n]*\n)*?)(?:---|\.\.\.)[ \t]*(?:\n|\Z)"
)
_TOML_BLOCK = re.compile(r"\A\s*?\+\+\+[ \t]*\n(?P<block>(?:[^\n]*\n)*?)\+\+\+[ \t]*(?:\n|\Z)")
_SEMICOLON_BLOCK = re.compile(r"\A\s*?;;;[ \t]*\n(?P<block>(?:[^\n]*\n)*?);;;[ \t]*(?:\n|\Z)")
# A value may go on in lines that begin with a blank. An empty line ends the block.
_PANDOC_BLOCK = re.compile(
    r"\A\s*?%[ \t]+(?P<title>[^\n]*(?:\n[ \t]+\S[^\n]*)*)"
    r"(?:\n%(?P<author>[^%\n][^\n]*(?:\n[ \t]+\S[^\n]*)*|))?"
    r"(?:\n%(?P<date>[^%\n][^\n]*|))?[ \t]*(?:\n[ \t]*\n|\n?\Z)"
)
_FIRST_PARAGRAPH = re.compile(r"\A\s*?(?P<block>\S[^\n]*\n(?:[ \t]*\S[^\n]*\n)*)[ \t]*\n(?=\s*\S)")
_HEADER_LINE = re.compile(r"[^\W\d][\w -]{0,40}:[ \t]*\S[^\n]*|[ \t]+\S[^\n]*")
# YAML takes `#42` in `title: Issue #42` for a comment. A real comment has a blank after its sign.
_CUT_TITLE = re.compile(
    r"^title[ \t]*:[ \t]*(?P<title>[^\s\"'|>\[{&*!#][^\n]*?)(?P<cut>[ \t]#[^\s#][^\n]*)$",
    re.M | re.I,
)
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
        text: The text after the block of values.
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
    # JSON is valid YAML.
    forms = ((_YAML_BLOCK, "YAML"), (_TOML_BLOCK, "TOML"), (_SEMICOLON_BLOCK, "YAML"))
    for pattern, language in forms:
        match = pattern.match(source)
        if match is None or len(match["block"]) > MAX_FRONT_MATTER_CHARACTERS:
            continue
        if match.groupdict().get("language") == "toml":
            language = "TOML"
        parsed = _parse(match["block"], language)
        if parsed is None:
            continue
        values, remarks = parsed
        text = source[match.end() :]
        front_matter = FrontMatter(values, text, remarks)
        _drop_template_values(front_matter)
        return front_matter
    for split in (_split_pandoc, _split_header_lines):
        unfenced = split(source)
        if unfenced is not None:
            return unfenced
    return _split_json(source)


def apply_front_matter(front_matter: FrontMatter, extraction: Extraction) -> None:
    """Set the title, the date and the fields that front matter states, and copy its remarks.

    Keys may be written in any case. A title of the text is kept if front matter states none.
    """
    extraction.remarks.extend(front_matter.remarks)
    fields = front_matter.values
    title = _pop_value(fields, "title")
    if isinstance(title, str | int | float) and not isinstance(title, bool):
        extraction.title = str(title)
    elif title is not None:
        extraction.note("unreadable value", f"the title is a {type(title).__name__}, no text")
    date = _pop_value(fields, "date")
    if date is not None:
        extraction.date = date
    extraction.fields.update(fields)


def _pop_value(fields: dict[str, Any], name: str) -> Any:
    """Remove and return a value of the front matter, however its key is capitalised."""
    for key in fields:
        if key.lower() == name:
            return fields.pop(key)
    return None


def _split_pandoc(source: str) -> FrontMatter | None:
    """Split a source that begins with Pandoc's title block; None if it does not."""
    match = _PANDOC_BLOCK.match(source)
    if match is None:
        return None
    values: dict[str, Any] = {}
    for name in ("title", "author", "date"):
        text = " ".join((match[name] or "").split())
        if text:
            values[name] = text
    return FrontMatter(values, source[match.end() :])


def _split_header_lines(source: str) -> FrontMatter | None:
    """Split a source whose first paragraph has only lines such as `Title: Tides`; else None.

    One of the lines must be the title, because other paragraphs may have such lines as well.
    """
    match = _FIRST_PARAGRAPH.match(source[:MAX_FRONT_MATTER_CHARACTERS])
    if match is None:
        return None
    lines = match["block"].splitlines()
    has_only_values = all(_HEADER_LINE.fullmatch(line) for line in lines)
    if not has_only_values or lines[0][0] in " \t":
        return None
    values: dict[str, Any] = {}
    name = ""
    for line in lines:
        if line[0] in " \t":
            values[name] = f"{values[name]} {line.strip()}"
        else:
            name, _, value = line.partition(":")
            values[name] = value.strip()
    if not any(key.lower() == "title" for key in values):
        return None
    front_matter = FrontMatter(values, source[match.end() :])
    _drop_template_values(front_matter)
    return front_matter


def _split_json(source: str) -> FrontMatter:
    """Split a source that begins with a JSON object, as Hugo writes it.

    An object is front matter only if it has a title or a date. Nothing may follow it on its last
    line, and a text must follow after this line. Any other object is text.
    """
    no_front_matter = FrontMatter({}, source)
    match = _JSON_BLOCK.match(source)
    if match is None:
        return no_front_matter
    start = match.end()
    try:
        block = source[start : start + MAX_FRONT_MATTER_CHARACTERS]
        values, length = json.JSONDecoder().raw_decode(block)
    except (ValueError, RecursionError):
        return no_front_matter

    rest_of_line, _, text = source[start + length :].partition("\n")
    is_alone = not rest_of_line.strip()
    has_name = any(key.lower() in ("title", "date") for key in values)
    if is_alone and has_name and text.strip() and _is_small(values):
        return FrontMatter(values, text)
    return no_front_matter


def _parse(block: str, language: str) -> tuple[dict[str, Any], list[Remark]] | None:
    """Read the values in a block that may be the front matter of a Markdown file.

    Front matter is enclosed in two lines `---` or `+++`. However, such lines may also enclose plain
    text, because Markdown shows `---` as a horizontal line.

    Args:
        block: The text between the two lines.
        language: "YAML" if the lines are `---`, "TOML" if they are `+++`.

    Returns:
        The values by key, and remarks about errors in the block. None if the block is plain text.
    """
    if not block.strip():
        return {}, []
    value = _parse_yaml(block) if language == "YAML" else _parse_toml(block)
    if language == "YAML" and not isinstance(value, Mapping):
        # Some tools write TOML between lines `---`, which should enclose YAML.
        value = _parse_toml(block) or value

    if isinstance(value, Mapping):
        # Slides separate their pages by lines `---`. A sentence with a colon on such a page, such
        # as "Next steps: test", happens to be a key and a value in YAML.
        has_sentence = any(" " in str(key).strip() for key in value)
        if block.startswith("\n") and has_sentence:
            return None
        if not _is_small(value):
            return {}, [Remark("unreadable value", "the front matter has too many values")]
        values = {str(key): item for key, item in value.items()}
        if language == "YAML":
            _restore_cut_title(values, block)
        return values, []
    if value is None and language == "YAML" and _has_only_comments(block):
        return {}, []

    values = _parse_lines(block)
    if values is None:
        return None
    detail = f"the front matter is not valid {language}, and was read line by line"
    return values, [Remark("unreadable value", detail)]


def _restore_cut_title(values: dict[str, Any], block: str) -> None:
    """Append the end of a title that YAML took for a comment, such as `#42`."""
    match = _CUT_TITLE.search(block)
    if match is None:
        return
    for key, value in values.items():
        if key.lower() == "title" and value == match["title"]:
            values[key] = match["title"] + match["cut"].rstrip()


def _parse_yaml(block: str) -> Any:
    """Return the value of a block in YAML; None if the block is not valid YAML."""
    from ruamel.yaml import YAML
    from ruamel.yaml.error import YAMLError

    try:
        return YAML(typ="safe").load(block)
    except (YAMLError, ValueError, TypeError, KeyError, AttributeError, RecursionError):
        # The parser raises errors of any kind for values such as impossible dates.
        return None


def _parse_toml(block: str) -> Any:
    """Return the values of a block in TOML; None if the block is not valid TOML."""
    try:
        return tomllib.loads(block)
    except (tomllib.TOMLDecodeError, RecursionError):
        return None


def _has_only_comments(block: str) -> bool:
    """Return whether each line of a block is empty or a comment, which begins with `#`."""
    lines = [line for line in block.splitlines() if line.strip()]
    return all(line.lstrip().startswith("#") for line in lines)


def _is_small(value: Any) -> bool:
    """Return whether a value has few entries and few levels, with its aliases written out.

    The value is searched level by level. A YAML alias refers to a value that exists once in memory,
    but is counted each time. A small file could otherwise state billions of values.
    """
    level_values = [value]
    count = 0
    for _ in range(MAX_LEVELS):
        count += len(level_values)
        if count > MAX_VALUES:
            return False
        inner_values: list[Any] = []
        for item in level_values:
            if isinstance(item, Mapping):
                inner_values.extend(item.values())
            elif isinstance(item, list | tuple | set):
                inner_values.extend(item)
            if len(inner_values) > MAX_VALUES:
                return False
        if not inner_values:
            return True
        level_values = inner_values
    return False


def _parse_lines(block: str) -> dict[str, Any] | None:
    """Return the values of a block line by line.

    Returns:
        {key: text or list of texts}; None if most lines are neither keys nor items, so that the
        block is text.
    """
    values: dict[str, Any] = {}
    # Key whose value the next lines may continue; None before the first key, for example.
    open_key: str | None = None
    key_lines = 0
    other_lines = 0
    for line in block.splitlines():
        content = line.strip()
        if not content or content.startswith("#"):
            continue
        if _TABLE_LINE.fullmatch(content):
            open_key = None
            continue

        is_indented = line[0] in " \t"
        key_match = _KEY_LINE.fullmatch(content)
        item_match = _ITEM_LINE.fullmatch(line)
        if key_match is not None and key_match["key"] not in values:
            open_key = key_match["key"]
            values[open_key] = _read_value(key_match["value"] or "")
            key_lines += 1
        elif key_match is not None and not is_indented:
            # Of equal keys, the first one counts.
            open_key = None
            key_lines += 1
        elif item_match is not None and open_key is not None:
            _append_item(values, open_key, _unquote(item_match["value"]))
        elif is_indented and open_key is not None:
            # An indented line continues the value before it.
            _append_text(values, open_key, content)
        else:
            # A line that is neither a key nor an item may also continue a value. If many lines are
            # like this, the block is text.
            other_lines += 1
            if open_key is not None:
                _append_text(values, open_key, content)

    is_text = other_lines >= max(1, key_lines)
    if is_text or key_lines == 0:
        return None
    return values


def _append_item(values: dict[str, Any], key: str, item: str) -> None:
    """Append an item to the list of a key. A text that the key already has is its first item."""
    if not isinstance(values[key], list):
        values[key] = [values[key]] if values[key] else []
    values[key].append(item)


def _append_text(values: dict[str, Any], key: str, text: str) -> None:
    """Append a line to the text of a key. A list stays as it is."""
    if isinstance(values[key], str):
        values[key] = f"{values[key]} {text}".strip()


def _read_value(value: str) -> Any:
    """Return the value of a line: a list in brackets such as `[locks, "weirs"]`, or text."""
    value = value.strip()
    if value.startswith("[") and value.endswith("]"):
        items = _parse_yaml(value)
        if isinstance(items, list):
            return items
    return _unquote(value)


def _unquote(value: str) -> str:
    """Return a value without blanks and quotes around it.

    >>> _unquote("'It's late'"), _unquote('"Tides" and more'), _unquote('"Tides')
    ("It's late", '"Tides" and more', 'Tides')
    """
    value = value.strip()
    quote = value[:1]
    if quote not in ("'", '"'):
        return value
    # A quote that never closes is a common mistake, so it is removed as well.
    if quote not in value[1:]:
        return value[1:]
    # A quote that follows a letter, and that no letter follows, ends a quotation inside.
    ends_inside = re.search(rf"(?<=\S){quote}(?!\w)", value[1:-1])
    if value.endswith(quote) and ends_inside is None:
        return value[1:-1]
    return value


def _drop_template_values(front_matter: FrontMatter) -> None:
    """Leave out values that a template would have filled in, such as `{{title}}`."""
    for key, value in list(front_matter.values.items()):
        # YAML reads an unquoted `{{title}}` as a mapping, which is kept.
        if not isinstance(value, str) or not value:
            continue
        text_around_placeholders = _TEMPLATE.sub("", value).strip()
        if not text_around_placeholders:
            del front_matter.values[key]
            remark = Remark("unreadable value", f"{key} is the placeholder {value!r}")
            front_matter.remarks.append(remark)
