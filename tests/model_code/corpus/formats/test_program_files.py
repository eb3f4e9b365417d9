"""Guards that every word of files by pandoc, LibreOffice and Chromium is found, or its loss reported.

Four texts in many scripts are written in 25 forms. The programs are started once for each form. A
test is skipped if its program is missing.
"""

from __future__ import annotations

import base64
import re
import shutil
import subprocess
import unicodedata
from collections.abc import Sequence
from pathlib import Path

import pytest

from model_code.corpus.rows import Row
from model_code.corpus.sources.document_files import read_document
from tests.chromium import browser

__all__ = ["browser"]

pytestmark = pytest.mark.full

# The texts in the Markdown of pandoc, and the words that each form must hold.
LATIN = """---
title: Care of the mill race
---

# Before winter

The *warden* walks the **race** twice, then ~~paints~~ greases the rack[^a]. See the
[parish ledger](https://example.org/x). Größe, cœur, źdźbło, ılık, người; « tôt », don’t.

[^a]: Grease was tallow.

    A second paragraph mentions lanolin.

![Brass gauge](a.png)

Rake
:   Long handled.

1. Loosen
    a. widdershins
2. Tighten
    - deep
        - deeper

+--------------------------------+--------------------------------+
| Month                          | - level                        |
|                                | - remark                       |
+================================+================================+
| October                        | Steady.                        |
|                                |                                |
|                                | Fast.                          |
+--------------------------------+--------------------------------+

> Slow water
>
> > rots.

```python
def flow(width):  # cubic feet
    return "<b>" + width
```

| first verse
|   second verse
"""
LATIN_WORDS = """Before winter The warden walks the race twice then paints greases the rack See parish
ledger Größe cœur źdźbło ılık người tôt don Grease was tallow A second paragraph mentions lanolin
Brass gauge Rake Long handled Loosen widdershins Tighten deep deeper Month level remark October
Steady Fast Slow water rots def flow width cubic feet return b first verse second"""
GREEK = """# Весенние работы

Сначала рыхлят почву, ещё раз: **не спешите**[^n]. Ο ψαράς ρίχνει τα *δίχτυα*· ΟΔΥΣΣΕΥΣ.

[^n]: Сноска о свёкле.

- копать
- поливать

| Культура | Срок |
|----------|------|
| огурец   | май  |
| τομάτα   | θέρος|
"""
GREEK_WORDS = """Весенние работы Сначала рыхлят почву ещё раз не спешите Ο ψαράς ρίχνει τα δίχτυα
ΟΔΥΣΣΕΥΣ Сноска о свёкле копать поливать Культура Срок огурец май τομάτα θέρος"""
ARABIC = """# دليل البستان

يزرع الفلاح النخيل في الواحة.

## בציר ראשון

הכורם קוטף ענבים עם שחר.

- تمر
- זיתים
"""
ARABIC_WORDS = """دليل البستان يزرع الفلاح النخيل في الواحة בציר ראשון הכורם קוטף ענבים עם שחר تمر
זיתים"""
JAPANESE = """# 朝の見回り

水門を開けてから、確認する。

- ひらがな
- 采茶时节

| 項目 | 닥나무 |
|------|--------|
| 三尺 | 껍질을 |

मिट्टी और कुम्हार
"""
JAPANESE_WORDS = """朝の見回り 水門を開けてから 確認する ひらがな 采茶时节 項目 닥나무 三尺 껍질을
मिट्टी और कुम्हार"""
TEXTS = {
    "latin": (LATIN, LATIN_WORDS),
    "greek": (GREEK, GREEK_WORDS),
    "arabic": (ARABIC, ARABIC_WORDS),
    "japanese": (JAPANESE, JAPANESE_WORDS),
}

# The name of each format for pandoc, and the suffix of its files.
PANDOC_FORMATS = {
    "html5": ".html",
    "html4": ".html",
    "revealjs": ".html",
    "docx": ".docx",
    "odt": ".odt",
    "pptx": ".pptx",
    "epub2": ".epub",
    "epub3": ".epub",
    "rtf": ".rtf",
    "rst": ".rst",
    "ipynb": ".ipynb",
    "gfm": ".md",
    "markdown": ".md",
    "plain": ".txt",
    "org": ".org",
    "latex": ".tex",
    "mediawiki": ".mediawiki",
    "textile": ".textile",
}
# Formats to which LibreOffice converts the files of pandoc with a suffix.
OFFICE_CONVERSIONS = [
    ("docx", "odt"),
    ("docx", "rtf"),
    ("docx", "html"),
    ("docx", "epub"),
    ("docx", "pdf"),
    ("odt", "docx"),
    ("pptx", "odp"),
]
# Words that LibreOffice does not write to a format: it drops the heads of tables from e-books.
UNWRITTEN = {"epub": "Month level remark Культура Срок 項目 닥나무"}
# A picture of one grey point.
PICTURE = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAAAAAA6fptVAAAACklEQVR4nGNoAAAAggCBd81ytgAAAABJRU5ErkJggg=="
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with the texts and their picture."""
    path = tmp_path_factory.mktemp("programs")
    (path / "a.png").write_bytes(PICTURE)
    for name, (text, _) in TEXTS.items():
        (path / f"{name}.md").write_text(text, encoding="utf-8")
    return path


def run(command: Sequence[str | Path], folder: Path) -> None:
    subprocess.run(
        list(map(str, command)), check=True, capture_output=True, cwd=folder, timeout=300
    )


def write_by_pandoc(folder: Path, form: str) -> list[Path]:
    """Have pandoc write all texts in a format, and return the files."""
    if shutil.which("pandoc") is None:
        pytest.skip("pandoc is not installed")
    target = folder / form
    target.mkdir(exist_ok=True)
    paths: list[Path] = []
    for name in TEXTS:
        path = target / f"{name}{PANDOC_FORMATS[form]}"
        run(["pandoc", "--standalone", "--to", form, "--output", path, f"{name}.md"], folder)
        paths.append(path)
    return paths


def split_words(text: str) -> list[str]:
    return re.findall(r"[^\W_]+", unicodedata.normalize("NFKC", text).casefold())


def unreported_words(path: Path, unwritten: str = "") -> list[str]:
    """Return the words of a text that a file lacks, though the file reports no loss.

    Args:
        path: The file. It has the name of its text.
        unwritten: Words that the program does not write.
    """
    row = read_document(path, path.name, path.name)
    assert isinstance(row, Row), row
    if any(note.kind == "lost text" for note in row.notes):
        return []
    known = split_words(f"{row.values['title']} {row.values['text']} {unwritten}")
    return [word for word in split_words(TEXTS[path.stem][1]) if word not in known]


@pytest.mark.parametrize("form", PANDOC_FORMATS)
def test_every_word_of_a_file_by_pandoc_is_found(folder, form):
    for path in write_by_pandoc(folder, form):
        assert unreported_words(path) == [], path.name


@pytest.mark.parametrize(("source", "form"), OFFICE_CONVERSIONS)
def test_every_word_of_a_file_by_libreoffice_is_found(folder, source, form):
    if shutil.which("soffice") is None:
        pytest.skip("LibreOffice is not installed")
    paths = write_by_pandoc(folder, source)
    target = folder / f"{source}-{form}"
    home = f"-env:UserInstallation=file://{folder}/home"
    command = ["soffice", home, "--headless", "--convert-to", form, "--outdir", target]
    run([*command, *paths], folder)

    for path in paths:
        converted = target / f"{path.stem}.{form}"
        assert unreported_words(converted, UNWRITTEN.get(form, "")) == [], path.name


def test_every_word_of_a_page_saved_by_chromium_is_found(folder, browser):
    page = browser.new_page()
    session = page.context.new_cdp_session(page)
    for path in write_by_pandoc(folder, "html5"):
        page.goto(path.as_uri())
        saved_page = folder / f"{path.stem}.mhtml"
        snapshot = session.send("Page.captureSnapshot", {"format": "mhtml"})
        saved_page.write_text(snapshot["data"], encoding="utf-8", newline="")
        printed_page = folder / f"{path.stem}.pdf"
        page.pdf(path=str(printed_page))

        assert unreported_words(saved_page) == []
        assert unreported_words(printed_page) == []
