"""Read HTML: the text that a browser shows, at any depth, with Markdown headings.

libxml2 parses the page as a stream of events, and no tree is built. A tree would be limited to
2,048 levels.
"""

from __future__ import annotations

import html
import re
from collections.abc import Mapping
from typing import Any

from model_code.corpus.formats.character_sets import decode_text
from model_code.corpus.formats.extraction import Extraction
from model_code.corpus.formats.front_matter import (
    FrontMatter,
    apply_front_matter,
    split_front_matter,
)
from model_code.corpus.formats.properties import add_property
from model_code.corpus.formats.titles import clean_title

# The charset of a page is searched in this number of bytes at its beginning.
CHARSET_PREFIX_BYTES = 4096

# Markdown, to which pages are converted, has six levels of headings.
MAX_HEADING_LEVEL = 6

_CHARSET = re.compile(rb"<meta[^>]{0,200}charset\s*=\s*[\"']?([\w-]+)", re.I)
_CDATA = re.compile(r"<!\[CDATA\[(.*?)\]\]>", re.S)
_XML_ENCODING = re.compile(rb"\A\s*<\?xml[^>]{0,100}encoding\s*=\s*[\"']([\w-]+)")

# A line of code that would read as a heading of Markdown if it stands alone.
_HEADING_LIKE_LINE = re.compile(r"\s*#{1,6} ")

_HEADINGS = {f"h{level}": "#" * level for level in range(1, MAX_HEADING_LEVEL + 1)}
_BLOCK_ELEMENTS = frozenset(
    [
        "address",
        "article",
        "aside",
        "blockquote",
        "body",
        "caption",
        "center",
        "dd",
        "details",
        "dialog",
        "div",
        "dl",
        "dt",
        "fieldset",
        "figcaption",
        "figure",
        "footer",
        "form",
        "header",
        "hr",
        "legend",
        "listing",
        "main",
        "menu",
        "ol",
        "option",
        "p",
        "plaintext",
        "pre",
        "search",
        "section",
        "summary",
        "table",
        "tbody",
        "tfoot",
        "thead",
        "title",
        "tr",
        "ul",
        "xmp",
    ]
)
# Inline elements that are separated by a blank, so that their text does not join the text around
# it.
_SPACED_ELEMENTS = frozenset(
    [
        "td",
        "th",
        "button",
        "input",
        "textarea",
        "select",
        "optgroup",
        "label",
        "text",
        "math",
        "mrow",
        "mfrac",
        "mroot",
        "msqrt",
        "mstyle",
        "msub",
        "msup",
        "msubsup",
        "munder",
        "mover",
        "munderover",
        "mtable",
        "mtr",
        "mtd",
        "mtext",
        "img",
        "area",
        "nav",
    ]
)

# Elements that hold programs or data, and no text.
_CODE_ELEMENTS = frozenset(("script", "style"))
# Elements that a browser does not show.
_HIDDEN_ELEMENTS = frozenset(
    [
        "template",
        "noscript",
        "noframes",
        "iframe",
        "datalist",
        "audio",
        "video",
        "canvas",
        "annotation",
        "annotation-xml",
        "metadata",
        "defs",
        "rp",
    ]
)
_HIDING_STYLE = re.compile(r"(?:^|;)\s*(?:display\s*:\s*none|visibility\s*:\s*(?:hidden|collapse))")

# A style that makes an element, such as the label of a list item, a block of its own.
_BLOCK_STYLE = re.compile(r"(?:^|;)\s*display\s*:\s*(?:block|flex|grid|list-item|table)")

# The mark of a footnote, such as "1", "iv" or "*". It links to the note, and the note links back.
_NOTE_MARK = re.compile(r"\d{1,4}|[ivxlc]{1,7}|[a-z]|[*\u2020\u2021\u00a7]{1,3}", re.I)

# A raised number behind a word is the mark of a footnote, too, such as those of authors. Behind one
# or two letters it is a power, as in km².
_RAISED_NUMBER = re.compile(r"\d{1,3}(?:[,-]\d{1,3})*")
_MARKED_WORD = re.compile(r"[^\W\d_]{3}\Z")

# Characters at the beginning of a style sheet that are searched for rules that hide elements.
MAX_STYLE_CHARACTERS = 100_000
_AT_RULE = re.compile(r"@[^{};]*\{(?:[^{}]*\{[^{}]*\})*+[^{}]*\}")
_RULE = re.compile(r"(?P<selectors>[^{}]{1,2000})\{(?P<style>[^{}]*)\}")
_SIMPLE_SELECTOR = re.compile(r"\w*[.#][\w-]+")

# Elements whose hiding styles are ignored. Many pages hide themselves until a script shows them.
_NEVER_HIDDEN = frozenset(("html", "body"))

# Types of `input` whose value a browser does not show as text.
_INPUTS_WITHOUT_TEXT = frozenset(
    [
        "hidden",
        "password",
        "checkbox",
        "radio",
        "file",
        "image",
        "color",
        "range",
        "date",
        "datetime-local",
        "month",
        "week",
        "time",
    ]
)
_DATE_NAMES = frozenset(("article:published_time", "date", "dcterms.date", "dc.date"))


def read_html(data: bytes) -> Extraction:
    """Read a page.

    The encoding is found by `decode_text`, with the charset that the page declares. Generators of
    sites such as Jekyll write front matter before a page.
    """
    declared = _XML_ENCODING.search(data) or _CHARSET.search(data[:CHARSET_PREFIX_BYTES])
    charset = None if declared is None else declared[1].decode()
    decoded = decode_text(data, charset)
    front_matter = FrontMatter({}, decoded.text)
    if decoded.text.startswith("---"):
        front_matter = split_front_matter(decoded.text)
    markup = front_matter.text
    if markup.lstrip().startswith("<?xml"):
        # The parser reads only HTML, in which a CDATA section is a comment. So the text of such a
        # section is made plain text.
        markup = _CDATA.sub(lambda section: html.escape(section[1], quote=False), markup)
    extraction = read_markup(markup)
    extraction.all_text = list_page_text(front_matter.text)
    apply_front_matter(front_matter, extraction)
    extraction.note_encoding(decoded)
    return extraction


def escape_headings(code: str) -> str:
    """Return code in which no line reads as a heading of Markdown.

    A comment such as `# load` reads as a heading if the lines around it are empty.

    >>> escape_headings("# load")
    '\\\\# load'
    """
    lines = code.split("\n")
    escaped: list[str] = []
    for number, line in enumerate(lines):
        follows_empty_line = number == 0 or not lines[number - 1].strip()
        precedes_empty_line = number == len(lines) - 1 or not lines[number + 1].strip()
        is_alone = follows_empty_line and precedes_empty_line
        if is_alone and _HEADING_LIKE_LINE.match(line):
            line = "\\" + line.lstrip()
        escaped.append(line)
    return "\n".join(escaped)


def read_markup(markup: str) -> Extraction:
    """Return title, text and date of a page, without text that a browser does not show.

    Args:
        markup: The page.
    """
    from lxml import etree

    page = _Page()
    if markup.strip():
        parser = etree.HTMLParser(encoding="utf-8", target=page, huge_tree=True)
        parser.feed(markup.encode("utf-8", "replace"))
        parser.close()

    # Lines have no blanks around them, and at most one empty line lies between two of them.
    text = "".join(page.pieces)
    text = re.sub(r"[ \t]*\n[ \t]*", "\n", text)
    text = re.sub(r"\n{3,}", "\n\n", text).strip()

    stated_title = "".join(page.title_pieces)
    title = clean_title(stated_title)
    if not title:
        # A title that a program left there is left out on purpose, so it does not count as lost.
        page.left_out.append(stated_title)
    extraction = Extraction(text, title, page.date, left_out=page.left_out)
    for name, content in page.properties:
        add_property(extraction, name, content)
    return extraction


class _Page:
    """Receives the elements of a page from libxml2, and renders their text.

    Attributes:
        pieces: The text in pieces, with Markdown headings and line breaks around blocks.
        title_pieces: The text of the first title.
        left_out: The text of hidden elements and of navigation.
        date: The date that the page states.
        properties: The names and contents of its `meta` elements.
    """

    def __init__(self) -> None:
        """Begin an empty page. The parser then delivers its elements."""
        self.pieces: list[str] = []
        self.title_pieces: list[str] = []
        self.left_out: list[str] = []
        self.date: str | None = None
        self.properties: list[tuple[str, str]] = []

        # Text since the last begin or end of an element. The parser delivers it in parts.
        self._run: list[str] = []
        # Names of the open elements, the outermost first.
        self._open_elements: list[str] = []

        # Depth of the element that hides everything inside of it, the text that is hidden so far,
        # and whether it is a script or a style sheet.
        self._hidden_at: int | None = None
        self._hidden_text: list[str] = []
        self._is_code = False
        # Classes and ids that style sheets of the page hide, such as ".modal" or "p#draft".
        self._hiding_selectors: set[str] = set()

        # Whether the first title of the page ended. Later titles are left out.
        self._has_title = False
        # Number of open `pre` elements, whose white space is kept.
        self._pre_elements = 0
        # Pieces of the heading that is open, if there is one.
        self._heading: list[str] | None = None
        # Depth of the open link to a place of a page, if there is one.
        self._page_link_at: int | None = None
        # Depth of the open raised text that directly follows a word, if there is one.
        self._raised_at: int | None = None
        # Depths of the open elements that a style makes blocks.
        self._styled_blocks: list[int] = []
        # Readings of the open ruby element, and the depth of the `rt` element that is open.
        self._readings: list[str] = []
        self._reading_at: int | None = None

    def start(self, tag: str, attributes: Mapping[str, str]) -> None:
        """Begin an element. The parser calls this method for each start tag."""
        follows_word = _MARKED_WORD.search("".join(self._run)[-3:]) is not None
        # Raised text with other elements inside is no mark.
        self._raised_at = None
        self._flush()
        self._open_elements.append(tag)
        if tag == "a" and attributes.get("title"):
            # A browser shows the title of a link only beside the pointer.
            self.left_out.append(attributes.get("title") or "")
        if self._hidden_at is not None:
            self._hidden_text.append(_separator(tag, is_start=True))
            self._hidden_text.append(_attribute_text(tag, attributes))
            return

        is_code = tag in _CODE_ELEMENTS
        is_hidden_by_itself = is_code or _is_hidden(tag, attributes)
        if tag == "meta":
            self._read_meta(attributes)
        elif is_hidden_by_itself or self._is_hidden_by_sheet(tag, attributes):
            self._write(_separator(tag, is_start=True))
            self._hidden_at = len(self._open_elements)
            self._is_code = is_code
        elif tag in _HEADINGS:
            if self._heading is None:
                self._heading = []
            else:
                # A heading inside of a heading continues its line.
                self._write(" ")
        elif tag == "rt" and self._reading_at is None and "ruby" in self._open_elements:
            self._reading_at = len(self._open_elements)
        else:
            if tag == "pre":
                self._pre_elements += 1
            elif tag == "a" and "#" in (attributes.get("href") or ""):
                # A page that a browser saved has the address of the page before each `#`.
                self._page_link_at = len(self._open_elements)
            elif tag == "sup" and follows_word:
                self._raised_at = len(self._open_elements)
            self._write(_separator(tag, is_start=True))
            self._write(_attribute_text(tag, attributes))
            if _BLOCK_STYLE.search((attributes.get("style") or "").lower()):
                self._styled_blocks.append(len(self._open_elements))
                self._write(" ")

    def end(self, tag: str) -> None:
        """End an element. The parser calls this method once for each element that began."""
        self._flush()
        depth = len(self._open_elements)
        self._open_elements.pop()
        if self._hidden_at is not None:
            self._hidden_text.append(_separator(tag, is_start=False))
            if self._hidden_at == depth:
                self._end_hidden(tag)
            return

        # Pictures inside of a page have titles, too, but only a title in the head is that of the
        # page.
        is_page_title = tag == "title" and self._open_elements[-1:] == ["head"]
        is_outer_heading = tag in _HEADINGS and not self._is_inside_heading()
        if is_page_title:
            self._has_title = True
        elif is_outer_heading and self._heading is not None:
            self._end_heading(tag)
        elif self._reading_at == depth:
            self._reading_at = None
        elif tag == "ruby":
            # The base text of a ruby element stays one word. Its reading, the pronunciation,
            # follows it.
            self._write(f" {''.join(self._readings)} ")
            self._readings.clear()
        else:
            if tag == "pre":
                self._pre_elements -= 1
            elif self._page_link_at == depth:
                self._page_link_at = None
            elif self._raised_at == depth:
                self._raised_at = None
            if self._styled_blocks[-1:] == [depth]:
                self._styled_blocks.pop()
                self._write(" ")
            self._write(_separator(tag, is_start=False))

    def data(self, text: str) -> None:
        """Add text. The parser may deliver the text between two tags in several parts."""
        self._run.append(text)

    def close(self) -> None:
        """End the page, and render the text after its last element."""
        self._flush()

    def _flush(self) -> None:
        """Render the text since the last begin or end of an element, by the elements around it."""
        if not self._run:
            return
        text = "".join(self._run)
        self._run.clear()
        is_title = self._open_elements[-2:] == ["head", "title"]
        if self._hidden_at is not None:
            self._hidden_text.append(text)
        elif is_title and self._has_title:
            self.left_out.append(text)
        elif is_title:
            self.title_pieces.append(text)
        elif self._pre_elements and self._heading is None:
            self.pieces.append(escape_headings(text))
        elif self._is_note_mark(text.strip()):
            # The mark of a footnote is no part of the word beside it.
            self._write(f" {text.strip()} ")
        else:
            self._write(re.sub(r"\s+", " ", text))

    def _is_note_mark(self, text: str) -> bool:
        """Return whether a text is the mark of a footnote, by the elements around it."""
        is_linked_mark = self._page_link_at is not None and _NOTE_MARK.fullmatch(text)
        is_raised_mark = self._raised_at is not None and _RAISED_NUMBER.fullmatch(text)
        return bool(is_linked_mark or is_raised_mark)

    def _end_hidden(self, tag: str) -> None:
        """End an element that is not shown.

        Its text is kept as left out. A style sheet is read for rules that hide other elements.
        """
        text = "".join(self._hidden_text)
        if not self._is_code:
            self.left_out.extend(text.split("\n"))
        elif tag == "style":
            self._read_style_sheet(text)
        self._hidden_text.clear()
        self._hidden_at = None
        self._is_code = False
        self._write(_separator(tag, is_start=False))

    def _read_style_sheet(self, text: str) -> None:
        """Note the classes and ids that a style sheet of the page hides.

        A later rule that sets the same property to another value shows them again. Rules for other
        media and rules with several conditions are passed over.
        """
        rules = _AT_RULE.sub(" ", drop_between(text[:MAX_STYLE_CHARACTERS], "/*", "*/"))
        for rule in _RULE.finditer(rules):
            style = rule["style"].lower()
            is_hiding = _HIDING_STYLE.search(style) is not None
            is_about_display = "display" in style or "visibility" in style
            if not is_hiding and not is_about_display:
                continue
            for selector in rule["selectors"].split(","):
                selector = selector.strip()
                if _SIMPLE_SELECTOR.fullmatch(selector) is None:
                    continue
                if is_hiding:
                    self._hiding_selectors.add(selector)
                else:
                    self._hiding_selectors.discard(selector)

    def _is_hidden_by_sheet(self, tag: str, attributes: Mapping[str, str]) -> bool:
        """Return whether a style sheet of the page hides an element by its class or id."""
        if not self._hiding_selectors or tag in _NEVER_HIDDEN:
            return False
        selectors = [f".{name}" for name in (attributes.get("class") or "").split()]
        selectors.append(f"#{attributes.get('id') or ''}")
        for selector in selectors:
            if selector in self._hiding_selectors or f"{tag}{selector}" in self._hiding_selectors:
                return True
        return False

    def _write(self, piece: str) -> None:
        """Add a piece of text to the open ruby reading, the open heading, or the page's text."""
        if self._reading_at is not None:
            self._readings.append(piece.strip())
        elif self._heading is not None:
            self._heading.append(piece)
        else:
            self.pieces.append(piece)

    def _is_inside_heading(self) -> bool:
        return any(tag in _HEADINGS for tag in self._open_elements)

    def _end_heading(self, tag: str) -> None:
        """Write a heading on one line, whatever elements it has inside."""
        content = " ".join("".join(self._heading or ()).split())
        self._heading = None
        if content:
            self.pieces.append(f"\n\n{_HEADINGS[tag]} {content}\n\n")

    def _read_meta(self, attributes: Mapping[str, str]) -> None:
        """Keep the property that a `meta` element states. The first date is that of the page."""
        name = attributes.get("property") or attributes.get("name") or ""
        content = (attributes.get("content") or "").strip()
        if self.date is None and content and name.lower() in _DATE_NAMES:
            self.date = content
        elif name and content:
            self.properties.append((name, content))


def _attribute_text(tag: str, attributes: Mapping[str, str]) -> str:
    """Return the text that a browser shows for an attribute; empty if there is none."""
    text = ""
    if tag in ("img", "area"):
        text = attributes.get("alt") or ""
        tooltip = attributes.get("title") or ""
        if tooltip not in text:
            text = f"{text} {tooltip}"
    elif tag in ("abbr", "acronym"):
        # The title of an abbreviation is its long form.
        long_form = attributes.get("title") or ""
        if long_form:
            text = f" {long_form} "
    elif tag == "input":
        kind = (attributes.get("type") or "text").strip().lower()
        if kind == "image":
            text = attributes.get("alt") or ""
        elif kind not in _INPUTS_WITHOUT_TEXT:
            text = attributes.get("value") or ""
    elif tag == "optgroup":
        text = attributes.get("label") or ""
    return re.sub(r"\s+", " ", text)


def _is_hidden(tag: str, attributes: Mapping[str, str]) -> bool:
    """Return whether a browser does not show an element, or shows it for navigation only."""
    if tag == "template" and "shadowrootmode" in attributes:
        # A browser shows such a template as a part of the element around it.
        return False
    if tag in _HIDDEN_ELEMENTS or tag == "nav":
        return True
    if tag in _NEVER_HIDDEN:
        return False
    if tag == "dialog" and "open" not in attributes:
        return True
    if "popover" in attributes:
        # A browser shows such an element only after somebody presses its button.
        return True
    hidden = attributes.get("hidden") or ""
    # Elements that are "hidden until found" are shown by the search of a browser.
    is_findable = hidden.strip().lower() == "until-found"
    if "hidden" in attributes and not is_findable:
        return True
    style = attributes.get("style") or ""
    return _HIDING_STYLE.search(style.lower()) is not None


def _separator(tag: Any, is_start: bool) -> str:
    """Return the white space that stands for the start or the end of an element.

    List items begin with a dash as well. Most inline elements have nothing around them.
    """
    if tag == "br":
        return "\n" if is_start else ""
    if tag in _SPACED_ELEMENTS:
        return " "
    if tag == "li":
        return "\n- " if is_start else "\n"
    if tag in ("p", "pre"):
        return "\n\n"
    if tag in _BLOCK_ELEMENTS:
        return "\n"
    return ""


# A crude list of all text shows whether the reader lost some. It is made from the source by regular
# expressions, and knows no structure. The patterns stop at the next tag or after a bounded number
# of attributes, so that no page takes long.
_CODE_BEGIN = re.compile(r"<(script|style)\b[^<>]*>", re.I)
_ALT = re.compile(r"<(?:img|area)\b[^<>]*?\balt\s*=\s*(?:\"([^\"]*)\"|'([^']*)')[^<>]*>", re.I)
_LINK_TITLE = re.compile(r"<a\b[^<>]*?\btitle\s*=\s*(?:\"([^\"]*)\"|'([^']*)')[^<>]*>", re.I)
_STYLED_SPAN = re.compile(
    r"(<span\b[^<>]*\bdisplay\s*:\s*(?:block|flex|grid|list-item|table)\b[^<>]*>)"
    r"(.{0,2000}?)</span>",
    re.I | re.S,
)
_NOTE_LINK = re.compile(
    r"(<a\b[^<>]*\bhref\s*=\s*[\"']?[^<>\"'#\s]{0,500}#[^<>]*>(?:<(?:sup|span|small)\b[^<>]*>)?)"
    rf"\s*({_NOTE_MARK.pattern})\s*(?=<)",
    re.I,
)
RAISED_MARK = re.compile(
    rf"(?<=[^\W\d_]{{3}})<sup\b[^<>]*>(\s*{_RAISED_NUMBER.pattern}\s*)</sup>", re.I
)
INLINE_TAG = re.compile(
    r"</?(?:a|abbr|b|bdi|bdo|big|cite|code|data|del|dfn|em|font|i|ins|kbd|mark|q|s|samp|small|span"
    r"|strike|strong|sub|sup|time|tt|u|var|wbr|mi|mn|mo|tspan|acronym)"
    r"(?:\s+[\w:@.-]+(?:\s*=\s*(?:\"[^\"<>]*\"|'[^'<>]*'|[^\s\"'<>]+))?)*\s*/?>",
    re.I,
)
ANY_TAG = re.compile(
    r"<[a-z/!?](?:[^<>\"']|\"[^\"]{0,2000}\"|'[^']{0,2000}'){0,300}+>|<[a-z/!?][^<>]*>", re.I
)


_RUBY = re.compile(r"<ruby\b[^<>]*>(.{0,2000}?)</ruby>", re.I | re.S)
_READING = re.compile(r"<(rt|rp)\b[^<>]*>([^<>]*)(?:</\1>)?", re.I)


def _list_ruby(match: re.Match[str]) -> str:
    """Return the base of a ruby element and its reading, as two words.

    A ruby element writes the pronunciation of East Asian signs, its reading, above them.
    """
    readings = [reading for kind, reading in _READING.findall(match[1]) if kind.lower() == "rt"]
    base = ANY_TAG.sub("", _READING.sub("", match[1]))
    return f"{base} {''.join(readings)} "


def list_page_text(markup: str) -> list[str]:
    """Return all text of a page, hidden or not, found by a much simpler method than the reader's.

    The text is compared with that of the reader, to find text that the reader lost.

    Returns:
        The text in pieces. A tag inside of a line of text, such as `<b>`, does not end a piece.
    """
    text = drop_between(markup, "<!--", "-->")
    text = _drop_code(text).replace("<![CDATA[", " ").replace("]]>", " ")
    link_titles = [match[1] or match[2] or "" for match in _LINK_TITLE.finditer(text)]
    text = _STYLED_SPAN.sub(r" \1\2</span> ", text)
    # Pictures become their alt texts. The tag has the text in double or in single quotes.
    text = _ALT.sub(lambda match: f" {match[1] or match[2] or ''} ", text)
    text = _NOTE_LINK.sub(r" \1\2 ", text)
    text = RAISED_MARK.sub(r" \1 ", text)
    text = INLINE_TAG.sub("", text)
    text = _RUBY.sub(_list_ruby, text)
    text = ANY_TAG.sub("\n", text)
    pieces = html.unescape("\n".join([text, *link_titles])).split("\n")
    return [piece for piece in pieces if piece.strip()]


def drop_between(text: str, begin: str, end: str) -> str:
    """Return a text without the parts between two marks, such as comments, and without the marks.

    A mark that no end mark follows is kept, with everything behind it.

    >>> drop_between("a<!-- b -->c <!-- d", "<!--", "-->")
    'a c <!-- d'
    """
    kept: list[str] = []
    position = 0
    while True:
        start = text.find(begin, position)
        stop = -1 if start < 0 else text.find(end, start + len(begin))
        if stop < 0:
            kept.append(text[position:])
            return " ".join(kept)
        kept.append(text[position:start])
        position = stop + len(end)


def _drop_code(markup: str) -> str:
    """Return a page without the content of its scripts and style sheets.

    Everything behind a script that is never closed is dropped, as in a browser.
    """
    kept: list[str] = []
    position = 0
    while True:
        begin = _CODE_BEGIN.search(markup, position)
        if begin is None:
            kept.append(markup[position:])
            return " ".join(kept)
        kept.append(markup[position : begin.start()])
        end = re.compile(f"</{begin[1]}", re.I).search(markup, begin.end())
        if end is None:
            return " ".join(kept)
        position = end.start()
