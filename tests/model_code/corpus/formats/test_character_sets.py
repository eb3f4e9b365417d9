"""Guards that text in any encoding is read, or refused as no text."""

from __future__ import annotations

import pytest

from model_code.corpus.formats.character_sets import decode_text, detect_encoding
from model_code.corpus.rows import RowError

POLISH = "Źródło rzeki leży w górach, a ujście wpływa do morza. Każda łódź musi mieć światła."


@pytest.mark.parametrize(
    ("text", "encoding"),
    [
        ("Der Fluss heißt Oder – und fließt nach Süden.", "cp1252"),
        ("El río más largo está en América; ¿cuál es?", "latin-1"),
        ("Une forêt près de l’étang, déjà gelé.", "cp1252"),
        (POLISH, "cp1250"),
        (POLISH, "iso8859-2"),
        ("Река течёт на север и впадает в холодное море.", "cp1251"),
        ("Река течёт на север и впадает в холодное море.", "koi8-r"),
        ("川は北へ流れて冷たい海に注ぎます。", "shift_jis"),
        ("川は北へ流れて冷たい海に注ぎます。", "euc_jp"),
        ("川は北へ流れて", "iso2022_jp"),
        ("河流向北流入寒冷的大海，沿岸有许多村庄。", "gb18030"),
        ("강은 북쪽으로 흘러 차가운 바다로 들어갑니다.", "euc_kr"),
        ("plain words and a Ł", "utf-16-le"),
        ("plain words and a Ł", "utf-16-be"),
        ("plain words", "utf-32-le"),
        ("Река течёт на север и впадает в море.", "utf-16-le"),
        ("Ο ποταμός κυλάει προς τον βορρά.", "utf-16-be"),
        ("川は北へ流れて、海に注ぎます。", "utf-16-le"),
        ("河流向北流，入大海。沿岸有村庄。", "utf-16-be"),
    ],
)
def test_unmarked_encoding_is_guessed_and_told(text, encoding):
    decoded = decode_text(text.encode(encoding))
    assert decoded.text == text
    assert decoded.is_guessed


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-32"])
def test_unicode_with_a_mark_is_no_guess(encoding):
    decoded = decode_text("one\r\ntwo ★\rthree".encode(encoding))
    assert decoded.text == "one\ntwo ★\nthree"
    assert not decoded.is_guessed


def test_declared_encoding_is_no_guess():
    assert decode_text("Łódź".encode("cp1250"), "windows-1250") == ("Łódź", "windows-1250", False)


@pytest.mark.parametrize(
    ("text", "encoding", "declared"),
    [
        ("“Mole” – 9 €", "cp1252", "iso-8859-1"),
        ("İskele’de", "cp1254", "ISO-8859-9"),
        ("①番の桟橋", "cp932", "Shift_JIS"),
        ("港の桟橋", "cp932", "x-sjis"),
        ("码头朱镕", "gb18030", "gb2312"),
        ("кран", "mac-cyrillic", "x-mac-cyrillic"),
    ],
)
def test_declared_encoding_is_read_as_by_browsers(text, encoding, declared):
    decoded = decode_text(text.encode(encoding), declared)

    assert decoded.text == text
    assert not decoded.is_guessed


@pytest.mark.parametrize("declared", ["idna", "undefined", "klingon", "rot13"])
def test_declaration_that_is_no_encoding_is_ignored(declared):
    assert decode_text("Kräne am Kai".encode("cp1252"), declared).text == "Kräne am Kai"


@pytest.mark.parametrize(
    "data",
    [
        b"a\0b",
        b"\x00\x01\x02\xff",
        bytes(range(1, 32)) * 20 + b"\xff",
        b"\xff\xfea",
        b"\x80\x81\x83" * 30,
    ],
)
def test_bytes_that_are_no_text_are_refused(data):
    with pytest.raises(RowError):
        decode_text(data)


@pytest.mark.parametrize(
    ("data", "text"),
    [
        ("Größe und Maß\n".encode() * 5 + "Öl\n".encode("cp1252"), "Größe und Maß\n" * 5 + "Öl\n"),
        ("Maß und Größe".encode()[:-4], "Maß und GrÃ"),
        ("Größe".encode() + b"\x81", "Größe\ufffd"),
    ],
)
def test_utf8_with_a_few_other_bytes_is_read_as_utf8(data, text):
    decoded = decode_text(data)
    assert decoded.text == text
    assert decoded.is_guessed


def test_file_with_some_faulty_bytes_counts_as_utf8():
    assert detect_encoding("žluť kůň, ".encode() * 9 + b"\xff", is_whole=True) is None
    assert detect_encoding("žluť".encode()[:-1], is_whole=False) is None
    assert detect_encoding("Größe".encode("cp1252"), is_whole=True) == "cp1252"
