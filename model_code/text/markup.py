"""Removal of markup, for places that show plain text."""

from __future__ import annotations

import html
import re

_HTML_TAG = re.compile(
    r"</?(?:a|abbr|b|blockquote|br|code|dd|div|dl|dt|em|h[1-6]|hr|i|img|kbd|li|ol|p|pre|small|"
    r"span|strong|sub|sup|table|tbody|td|th|thead|tr|u|ul)(?:\s[^<>]*)?/?>",
    re.IGNORECASE,
)
_FENCE = re.compile(r"(?:^|(?<=\s))(?:`{3,}|~{3,})\w*(?=\s|$)")
_COMMENT = re.compile(r"<!--.*?-->", re.DOTALL)

# Markup around a text. The markup is removed, and the text, the pattern's first group, is kept.
_WRAPPED = (
    # Markdown: images and links, inline or by reference.
    re.compile(r"!?\[([^\[\]]*)\](?:\([^()]*\)|\[[^\[\]]*\])"),
    # reStructuredText: roles, and links with their address.
    re.compile(r":[a-zA-Z][\w:+-]*:`~?([^`<]+?)(?:\s*<[^`<>]*>)?`"),
    re.compile(r"`([^`<]+?)\s*<[^`<>]*>`__?"),
    # Code and emphasis.
    re.compile(r"`+([^`]+)`+_{0,2}"),
    re.compile(r"(?<![\w*])\*\*(?![*\s])([^*]+?)(?<!\s)\*\*(?![\w*])"),
    re.compile(r"(?<![\w*])\*(?![*\s])([^*]+?)(?<!\s)\*(?![\w*])"),
    re.compile(r"(?<![\w.])__(?![_\s])([^_]+?)(?<!\s)__(?!\w|\.\w|\()"),
    re.compile(r"(?<![\w.])_(?![_\s])([^_]+?)(?<!\s)_(?!\w|\.\w|\()"),
)

# Markup between words: signs of headings, lines below headings, borders of table columns.
_BETWEEN_WORDS = re.compile(r"(?:^|(?<=\s))(?:#{1,6}|[=~^*+-]{3,}|\|(?:[-:| ]*\|)?)(?=\s|$)")
_LINE_START = re.compile(r"^(?:[-*+>]\s+)+")


def strip_markup(text: str) -> str:
    """Return a text without the markup of Markdown, reStructuredText and HTML, on one line.

    >>> strip_markup("## Use `sort` See **the** [manual](https://example.org).")
    'Use sort See the manual.'
    >>> strip_markup("See :func:`numpy.sort` and <b>2 &lt; 3</b>")
    'See numpy.sort and 2 < 3'
    """
    text = _COMMENT.sub(" ", text)
    text = _HTML_TAG.sub(" ", text)
    text = _FENCE.sub(" ", text)
    for pattern in _WRAPPED:
        text = pattern.sub(r"\1", text)
    text = _BETWEEN_WORDS.sub(" ", text)
    text = " ".join(html.unescape(text).split())
    return _LINE_START.sub("", text)
