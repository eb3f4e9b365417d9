"""Removal of markup, for places that show plain text."""

from __future__ import annotations

import html
import re

# Elements within a line. A word goes on behind their tags.
_INLINE_ELEMENTS = frozenset(
    ("a", "abbr", "b", "code", "em", "i", "kbd", "small", "span", "strong", "sub", "sup", "u")
)
# Elements without an end tag.
_VOID_ELEMENTS = frozenset(("br", "hr", "img"))
_BLOCK_ELEMENTS = "blockquote|dd|div|dl|dt|h[1-6]|li|ol|p|pre|table|tbody|td|th|thead|tr|ul"
_ELEMENTS = "|".join([*sorted(_INLINE_ELEMENTS | _VOID_ELEMENTS), _BLOCK_ELEMENTS])
_TAG = rf"<(?P<end>/?)(?P<name>{_ELEMENTS})(?:\s[^<>]*)?/?>"
_HTML_TAG = re.compile(_TAG, re.IGNORECASE)
_CODE_OR_TAG = re.compile(rf"(?P<code>`+[^`]+`+)|{_TAG}", re.IGNORECASE)

_FENCE = re.compile(r"(?:^|(?<=\s))(?:`{3,}|~{3,})\w*(?=\s|$)")
_COMMENT = re.compile(r"<!--.*?-->", re.DOTALL)

# Markup around a text, by a sign that it needs. The markup is removed, and the text, the pattern's
# first group, is kept. Texts without the sign need no search, which saves most of the time.
_WRAPPED = (
    # Markdown: images and links, inline or by reference.
    ("[", re.compile(r"!?\[([^\[\]]*)\](?:\([^()]*\)|\[[^\[\]]*\])")),
    # reStructuredText: roles, and links with their address.
    ("`", re.compile(r":[a-zA-Z][\w:+-]*:`~?([^`<]+?)(?:\s*<[^`<>]*>)?`")),
    ("`", re.compile(r"`([^`<]+?)\s*<[^`<>]*>`__?")),
    # Code and emphasis.
    ("`", re.compile(r"`+([^`]+)`+_{0,2}")),
    ("*", re.compile(r"(?<![\w*])\*\*(?![*\s])([^*]+?)(?<!\s)\*\*(?![\w*])")),
    ("*", re.compile(r"(?<![\w*])\*(?![*\s])([^*]+?)(?<!\s)\*(?![\w*])")),
    ("_", re.compile(r"(?<![\w.])__(?![_\s])([^_]+?)(?<!\s)__(?!\w|\.\w|\()")),
    ("_", re.compile(r"(?<![\w.])_(?![_\s])([^_]+?)(?<!\s)_(?!\w|\.\w|\()")),
)
# Backticks without a partner. Markdown encloses code in a pair of backticks, and `_WRAPPED` removes
# the pairs. If a text was cut out of a longer one, it may have only one backtick of a pair. This
# backtick is removed if it touches a word or a bracket.
_CUT_CODE = re.compile(r"(?<=[\w)\]])`+|`+(?=[\w(\[])")

# reStructuredText: the name of a directive is kept, and two colons before code become one.
_DIRECTIVE = re.compile(r"(?:^|(?<=\s))\.\. ([\w-]+)::(?=\s|$)")
_LITERAL_COLONS = re.compile(r"(?<=\w)::(?=\s|$)")

# Markup between words: signs of headings, lines below headings, borders of table columns.
_BETWEEN_WORDS = re.compile(r"(?:^|(?<=\s))(?:#{1,6}|[=~^*+-]{3,}|\|(?:[-:| ]*\|)?)(?=\s|$)")
_LINE_START = re.compile(r"^(?:[-*+>]\s+)+")


def strip_markup(text: str, source: str | None = None) -> str:
    """Return a text without the markup of Markdown, reStructuredText and HTML, on one line.

    A tag of HTML is markup if the source closes its element. Every other tag is text, such as
    `<ul>` in a sentence about lists.

    Args:
        text: The text.
        source: The longer text that `text` was cut out of; None if it is whole.

    >>> strip_markup("## Use `sort` See **the** [manual](https://example.org).")
    'Use sort See the manual.'
    >>> strip_markup("See :func:`numpy.sort` and <b>2 &lt; 3</b>")
    'See numpy.sort and 2 < 3'
    """
    text = _COMMENT.sub(" ", text)
    if "<" in text:
        text = _remove_tags(text, source or text)
    text = _FENCE.sub(" ", text)
    for sign, pattern in _WRAPPED:
        if sign in text:
            text = pattern.sub(r"\1", text)
    if "`" in text:
        text = _CUT_CODE.sub("", text)
    if "::" in text:
        text = _DIRECTIVE.sub(r"\1:", text)
        text = _LITERAL_COLONS.sub(":", text)
    text = _BETWEEN_WORDS.sub(" ", text)
    text = " ".join(html.unescape(text).split())
    return _LINE_START.sub("", text)


def _remove_tags(text: str, source: str) -> str:
    """Remove the tags of all elements that `source` closes or that have no end tag.

    Tags in code are kept.
    """
    markup = set(_VOID_ELEMENTS)
    for tag in _HTML_TAG.finditer(source):
        if tag["end"]:
            markup.add(tag["name"].lower())

    def replacement(match: re.Match[str]) -> str:
        if match["code"]:
            return match[0]
        name = match["name"].lower()
        if name not in markup:
            return match[0]
        if name in _INLINE_ELEMENTS:
            return ""
        return " "

    return _CODE_OR_TAG.sub(replacement, text)
