"""Choose the title of a document: what the file states, unless a program left it there."""

from __future__ import annotations

import re

# Titles that programs write when the author gave none.
_JUNK_TITLES = re.compile(
    r"""
    (?:microsoft\ (?:word|excel|powerpoint|office\ word)\b.*)
    | (?:(?:untitled|unbenannt|sans\ titre|sin\ título|senza\ titolo|unnamed)[\s\w-]*)
    | (?:(?:book|classeur|libro|unknown|unbekannt|inconnu|desconocido)[\s\d_-]*)
    | (?:(?:word|powerpoint|excel|pdf|new|neues|google\ docs)\ (?:document|dokument|presentation
        |worksheet|file|page|slide)\W*\d*)
    | (?:(?:document|dokument|documento|präsentation|presentation|workbook|mappe|sheet|page
        |slide|slide\ show|file|layout|print|scan|scanned\ document|image|img|title|titel|titre
        |no\ title|none|null|unspecified|anonymous)
        [\s_.-]*(?:page)?[\s\d_.()-]*)
    | (?:powerpoint-präsentation|présentation\ powerpoint|full\ page\ photo)
    | (?:\(?(?:anonymous|unspecified|untitled|none)\)?)
    | (?:[^\n]*\.(?:docx?|dotx?|odt|rtf|pdf|xlsx?|pptx?|tex|dvi|ps|eps|indd|qxd|pmd|pub|wpd|txt
        |html?|md|fm|cdr|ai|tmp))
    | (?:[a-z]:\\[^\n]*) | (?:file:[^\n]*) | (?:https?://\S*)
    | (?:\{\{[^\n]*) | (?:<%[^\n]*) | (?:\$\{[^\n]*)
    | (?:[0-9a-f]{8}-[0-9a-f-]{27}) | (?:[0-9a-f]{16,})
    | (?:[\W_]*)
    """,
    re.VERBOSE | re.IGNORECASE,
)

# A title of more characters is a paragraph.
MAX_TITLE_CHARACTERS = 300


def is_junk_title(title: str) -> bool:
    """Return whether a title was left by a program, or names a file, and says nothing.

    >>> is_junk_title("Microsoft Word - draft_v3.doc"), is_junk_title("Word Document")
    (True, True)
    >>> is_junk_title("Weir maintenance"), is_junk_title("Document retention policy")
    (False, False)
    """
    title = " ".join(title.split())
    return _JUNK_TITLES.fullmatch(title) is not None


def clean_title(title: str) -> str:
    """Return a stated title on one line; empty if it is junk.

    >>> clean_title(" The  weir "), clean_title("untitled")
    ('The weir', '')
    """
    title = " ".join(title.split())
    if is_junk_title(title):
        return ""
    return title[:MAX_TITLE_CHARACTERS]
