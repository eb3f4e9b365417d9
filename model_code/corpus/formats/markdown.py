"""Read Markdown: its text with headings, alt texts and link texts, and its front matter.

A tag of HTML is markup if HTML knows it and the source closes it. Every other tag is text, such as
`<form>` in a sentence about forms, or the placeholder `<your name>`. Nothing behind such a tag is
lost.
"""

from __future__ import annotations

import html
import re
from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING, Any

from model_code.corpus.formats.character_sets import decode_text
from model_code.corpus.formats.extraction import (
    Extraction,
    count_words,
    measure_completeness,
)
from model_code.corpus.formats.front_matter import apply_front_matter, split_front_matter
from model_code.corpus.formats.html import INLINE_TAG, RAISED_MARK, drop_between, read_markup

if TYPE_CHECKING:
    from markdown_it import MarkdownIt
    from markdown_it.rules_block import StateBlock
    from markdown_it.token import Token

# Deepest nesting of blocks, such as lists in lists. The parser's lower default loses deeper text.
MAX_NESTED_BLOCKS = 60

# Most lines that are appended because rendering drops them. With more lines none is appended.
MAX_DROPPED_LINES = 100

# Most nested open brackets. A source with more is not rendered, because parsing would take long.
MAX_NESTED_BRACKETS = 1000

# A longer source is not rendered, because rendering takes seconds per million characters.
MAX_RENDERED_CHARACTERS = 5_000_000

# Key of the parser's environment that holds skipped scripts and style sheets.
_CODE = "freshet_code"

# A source that would lose a larger share of its words is not rendered.
MAX_LOST_SHARE = 0.05

_TAG = re.compile(r"<(?P<close>/?)(?P<name>[A-Za-z][A-Za-z0-9-]*)(?P<rest>[^<>]*)>", re.S)
_VOID_ELEMENTS = frozenset(("br", "hr", "img", "wbr"))
# Elements that people use as markup in Markdown. Their text is always shown.
_MARKUP_ELEMENTS = _VOID_ELEMENTS | frozenset(
    [
        "a",
        "abbr",
        "address",
        "article",
        "aside",
        "b",
        "bdi",
        "bdo",
        "big",
        "blockquote",
        "center",
        "cite",
        "code",
        "dd",
        "del",
        "details",
        "dfn",
        "div",
        "dl",
        "dt",
        "em",
        "figcaption",
        "figure",
        "font",
        "footer",
        "form",
        "h1",
        "h2",
        "h3",
        "h4",
        "h5",
        "h6",
        "header",
        "i",
        "ins",
        "kbd",
        "label",
        "li",
        "main",
        "mark",
        "ol",
        "p",
        "picture",
        "pre",
        "q",
        "rt",
        "ruby",
        "s",
        "samp",
        "section",
        "small",
        "span",
        "strike",
        "strong",
        "sub",
        "summary",
        "sup",
        "table",
        "tbody",
        "td",
        "tfoot",
        "th",
        "thead",
        "tr",
        "tt",
        "u",
        "ul",
        "var",
    ]
)
_COMMENT = re.compile(r"<!--.*?-->", re.S)
_RAW_OPENING = re.compile(r"<(script|style)(?:\s[^<>]*)?>", re.I)


def read_markdown(data: bytes) -> Extraction:
    """Read a Markdown file with its front matter."""
    decoded = decode_text(data)
    front_matter = split_front_matter(decoded.text)
    extraction = read_markdown_text(front_matter.text)
    apply_front_matter(front_matter, extraction)
    extraction.note_encoding(decoded)
    return extraction


def read_markdown_text(source: str) -> Extraction:
    """Read a Markdown source without front matter.

    The source is rendered as HTML, and the page is read. If rendering takes too long or loses too
    many words, the text is the source itself, with a note.
    """
    parser = _parser()
    if len(source) > MAX_RENDERED_CHARACTERS or _has_deep_brackets(source):
        return _keep_source(source, [])
    all_text = _list_source_text(source)
    try:
        environment: dict[str, Any] = {_CODE: []}
        tokens = parser.parse(source, environment)
        _escape_text_tags(tokens)
        _show_link_titles(tokens)
        markup = parser.renderer.render(tokens, parser.options, environment)
    except RecursionError:
        return _keep_source(source, all_text)

    page = read_markup(markup)
    left_out = [*page.left_out, *environment[_CODE]]
    extraction = Extraction(page.text, all_text=all_text, left_out=left_out)
    _append_dropped_lines(extraction, source)

    lost_share = 0.0
    for remark in measure_completeness(extraction):
        if remark.kind == "lost text":
            lost_share += remark.share or 0.0
    if lost_share > MAX_LOST_SHARE:
        return _keep_source(source, all_text)
    return extraction


def _append_dropped_lines(extraction: Extraction, source: str) -> None:
    """Append the lines of the source that hold words which rendering drops.

    A table drops the cells beyond its columns, for example.
    """
    found_words = count_words([extraction.text, *extraction.left_out])
    dropped_words = count_words([source]).keys() - found_words.keys()
    dropped_lines: list[str] = []
    for line in extraction.all_text or ():
        if not dropped_words.isdisjoint(count_words([line])):
            dropped_lines.append(line)
    if 0 < len(dropped_lines) <= MAX_DROPPED_LINES:
        extraction.text = "\n".join([extraction.text, "", *dropped_lines])


def _has_deep_brackets(source: str) -> bool:
    """Return whether brackets are open inside of each other so deep that parsing would take long.

    The parser looks for the end of each open bracket.
    """
    level = 0
    for bracket in re.finditer(r"[\[\]]", source):
        level = level + 1 if bracket[0] == "[" else max(0, level - 1)
        if level > MAX_NESTED_BRACKETS:
            return True
    return False


def _keep_source(source: str, all_text: list[str]) -> Extraction:
    """Return the source as the text, because rendering it would lose text."""
    extraction = Extraction(source.strip(), all_text=all_text)
    extraction.note("unreadable value", "the Markdown could not be rendered; its source is read")
    return extraction


@cache
def _parser() -> MarkdownIt:
    """Return the parser, which knows no blocks of HTML.

    In CommonMark, a line that begins with `<script>` starts a block that may go on to the end of
    the file. Tags are read as parts of paragraphs instead.
    """
    from markdown_it import MarkdownIt

    parser = MarkdownIt("commonmark", {"maxNesting": MAX_NESTED_BLOCKS}).enable("table")
    parser.block.ruler.disable("html_block")
    # Comments may interrupt the blocks that are listed.
    parser.block.ruler.before(
        "paragraph", "comment", _skip_comment, {"alt": ["paragraph", "blockquote", "list"]}
    )
    parser.block.ruler.at("reference", _read_reference)
    return parser


def _read_reference(state: StateBlock, start_line: int, end_line: int, silent: bool) -> bool:
    """Read the definition of a link, such as `[name]: address`, but not a footnote.

    This is a rule of the parser. It replaces the rule of the library, which takes the footnote
    `[^1]: word` for a link to the address "word", and drops it.
    """
    from markdown_it.rules_block import reference

    line_start = state.bMarks[start_line] + state.tShift[start_line]
    if state.src.startswith("[^", line_start):
        return False
    return reference(state, start_line, end_line, silent)


def _skip_comment(state: StateBlock, start_line: int, end_line: int, silent: bool) -> bool:
    """Skip a comment, a script or a style sheet that begins a line and is closed.

    This is a rule of the parser. A comment is closed if its closing mark ends a line. Scripts and
    style sheets are kept in the environment of the parser, as text that is left out.

    Args:
        state: State of the parser.
        start_line: Line to which the rule is applied.
        end_line: End of the enclosing block, exclusive.
        silent: Whether the parser only asks if the rule applies.

    Returns:
        Whether the rule applies.
    """
    if state.is_code_block(start_line):
        return False
    start = state.bMarks[start_line] + state.tShift[start_line]
    opening = _RAW_OPENING.match(state.src, start)
    if state.src.startswith("<!--", start):
        closing = "-->"
    elif opening is not None:
        closing = f"</{opening[1].lower()}>"
    else:
        return False

    # The environment holds, for each closing mark, the line up to which an earlier search was in
    # vain. Without it, many marks that are never closed would take quadratic time.
    searched_to = state.env.get(closing, start_line)
    if searched_to > start_line:
        return False
    for line in range(start_line, end_line):
        text = state.src[state.bMarks[line] : state.eMarks[line]].lower()
        if closing not in text:
            continue
        if not text.rstrip().endswith(closing):
            state.env[closing] = line + 1
            return False
        if not silent:
            if opening is not None:
                state.env[_CODE].append(state.getLines(start_line, line + 1, 0, False))
            state.line = line + 1
        return True
    state.env[closing] = end_line
    return False


def _escape_text_tags(tokens: Sequence[Token]) -> None:
    """Escape the tags that are not markup, so that they are shown as text. Remove comments."""
    tags: list[Token] = []
    for token in tokens:
        for child in token.children or ():
            if child.type == "html_inline":
                tags.append(child)

    markup = _markup_tags(tags)
    for tag in tags:
        if id(tag) in markup:
            continue
        if _COMMENT.fullmatch(tag.content):
            tag.content = " "
        else:
            tag.content = html.escape(tag.content)


def _show_link_titles(tokens: Sequence[Token]) -> None:
    """Append the title of each link to its text, unless the text has it already.

    A browser shows the title only beside the pointer, but the author of a source wrote it as text.
    """
    from markdown_it.token import Token

    for token in tokens:
        children: list[Token] = []
        title = ""
        link_texts: list[str] = []
        for child in token.children or ():
            children.append(child)
            link_texts.append(child.content)
            if child.type == "link_open":
                title = str(child.attrs.pop("title", ""))
                link_texts.clear()
            elif child.type == "link_close" and title not in "".join(link_texts):
                children.append(Token("text", "", 0, content=f" ({title})"))
        if token.children:
            token.children = children


def _markup_tags(tags: Sequence[Token]) -> set[int]:
    """Return the identities of the tags that are markup and no text.

    Each of them names an element of HTML. Unless the element is void, such as `<br>`, the tag has a
    partner that opens or closes it.
    """
    markup: set[int] = set()
    open_tags: dict[str, list[Token]] = {}
    for token in tags:
        match = _TAG.fullmatch(token.content)
        if match is None or match["name"].lower() not in _MARKUP_ELEMENTS:
            continue
        name = match["name"].lower()
        if name in _VOID_ELEMENTS:
            markup.add(id(token))
        elif not match["close"]:
            open_tags.setdefault(name, []).append(token)
        elif open_tags.get(name):
            markup.add(id(open_tags[name].pop()))
            markup.add(id(token))
    return markup


# A crude list of all text shows whether the reader lost some. It is made from the source by regular
# expressions, and knows no structure.
_CODE_BLOCK = re.compile(r"^[ \t>]*(?:(?:[-*+]|\d+[.)])[ \t]+)*(?:```|~~~).*$", re.M)
_LIST_MARK = re.compile(r"^[ \t>]*(?:(?:[-*+]|\d{1,9}[.)])[ \t]+)+", re.M)
_DEFINITION = re.compile(
    r"^ {0,3}\[(?!\^)[^\]\n]+\]:[ \t]*\n?[ \t]*\S+(?:[ \t\n]+(?:\"[^\"]*\"|'[^']*'))?", re.M
)
_DESTINATION = re.compile(
    r"\]\([^()\s]*(?:\([^()\s]*\)[^()\s]*)*(?:\s+(?:\"[^\"]*\"|'[^']*'))?\s*\)"
)
_LONG_DESTINATION = re.compile(r"\]\(\s*<[^<>\n]*>[^)\n]*\)")
_LABEL = re.compile(r"(?<=\])\[[^\]\n]*\]")
_KNOWN_TAG = re.compile(rf"</?(?:{'|'.join(sorted(_MARKUP_ELEMENTS))})(?:[\s/][^<>]*)?>", re.I)
_ALT = re.compile(r"<img\b[^<>]*?\balt\s*=\s*(?:\"([^\"]*)\"|'([^']*)')[^<>]*>", re.I)
_ESCAPE = re.compile(r"\\([!-/:-@\[-`{-~])")


def _list_source_text(source: str) -> list[str]:
    """Return the lines of a source without markup, without the reader's rules.

    The lines are compared with the text of the reader, to find text that the reader lost. Comments,
    list marks, tags, and the targets and labels of links are removed by regular expressions.
    """
    text = drop_between(source, "<!--", "-->")
    text = _CODE_BLOCK.sub(" ", text)
    text = _LIST_MARK.sub("", text)
    text = _ALT.sub(lambda match: f" {match[1] or match[2] or ''} ", text)
    text = _LONG_DESTINATION.sub("]", text)
    text = _DESTINATION.sub("]", text)
    text = _DEFINITION.sub(" ", text)
    text = _LABEL.sub("", text)
    text = RAISED_MARK.sub(r" \1 ", text)
    text = INLINE_TAG.sub("", text)
    text = _KNOWN_TAG.sub(" ", text)
    text = _ESCAPE.sub(r"\1", text)
    return [line for line in html.unescape(text).split("\n") if line.strip()]
