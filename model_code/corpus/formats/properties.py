"""Fields from the properties of a document that describe its content, such as its keywords.

Programs write these properties beside the text. Other properties, such as the name of the program,
say nothing about the content and are not read.
"""

from __future__ import annotations

import re

from model_code.corpus.formats.extraction import Extraction

# Field of the words that describe a document.
KEYWORDS = "keywords"
# Names of the properties that hold keywords, and of those that become a field of the same name.
_KEYWORD_PROPERTIES = frozenset((KEYWORDS, "keyword"))
_TEXT_PROPERTIES = frozenset(("abstract", "description", "subject"))

# Sets of names that web pages put before the name of a property.
_PREFIX = re.compile(r"^(?:dc|dcterms)\.")
_KEYWORD_SEPARATOR = re.compile(r"[,;\u060c\u3001\uff0c\uff1b]")


def add_property(extraction: Extraction, name: str, text: str) -> None:
    """Add a property to the fields of a document, if it describes the content.

    Keywords become a list. Of several texts of one name, the first is kept.

    Args:
        extraction: Receives the field.
        name: Name of the property, in any case.
        text: Its value.
    """
    property_name = _PREFIX.sub("", name.strip().lower())
    if property_name in _KEYWORD_PROPERTIES:
        keywords = extraction.fields.get(KEYWORDS, [])
        for part in _KEYWORD_SEPARATOR.split(text):
            keyword = " ".join(part.split())
            if keyword and keyword not in keywords:
                keywords.append(keyword)
        if keywords:
            extraction.fields[KEYWORDS] = keywords
    elif property_name in _TEXT_PROPERTIES and text.strip():
        extraction.fields.setdefault(property_name, " ".join(text.split()))
