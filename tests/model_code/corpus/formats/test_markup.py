"""Guards what is read of HTML and Markdown: what a reader of the page sees, and nothing less."""

from __future__ import annotations

import re
import time

import pytest

from model_code.corpus.formats.extraction import measure_completeness
from model_code.corpus.formats.html import read_html
from model_code.corpus.formats.markdown import read_markdown


def html_text(markup: str) -> str:
    return " ".join(read_html(markup.encode()).text.split())


def markdown_text(source: str) -> str:
    extraction = read_markdown(source.encode())
    assert "lost text" not in [remark.kind for remark in measure_completeness(extraction)]
    return re.sub(" +", " ", extraction.text)


@pytest.mark.parametrize(
    ("markup", "text"),
    [
        ("<form><p>Ports</p><select><option>Oslo<option>Riga</select></form>", "Ports Oslo Riga"),
        ("<textarea>typed</textarea><input value='press'>", "typed press"),
        ("<input type=hidden value=secret><input type=password value=x>a", "a"),
        ("a<p hidden>b</p>c", "a c"),
        ("a<p hidden=until-found>b</p>", "a b"),
        ("a<div style='color: red; DISPLAY : none'>b<p>c</p></div>d", "a d"),
        ("a<i style='visibility:hidden'>b</i>c", "ac"),
        ("<p aria-hidden=true>a</p>", "a"),
        ("<style>.x, #y {color:red; display: none}</style>a<p class='z x'>b</p><p id=y>c</p>", "a"),
        (
            "<style>@media print {.x {display:none}} .y:hover {display:none}</style><p class='x y'>a",
            "a",
        ),
        ("<style>.x {display:none} /* } */ .x {display:block}</style><p class=x>a", "a"),
        ("<p hidden style class id>a</p><img alt><input value type>b", "b"),
        ("<body style='display:none'>a", "a"),
        ("a<dialog>b</dialog><dialog open>c</dialog>", "a c"),
        ("a<div popover>b</div>c", "a c"),
        ("<xmp>a <i></xmp>b", "a <i> b"),
        ("<details><summary>a</summary>b</details>", "a b"),
        ("<template>a</template><noscript>b</noscript>c", "c"),
        ("<p><template shadowrootmode=open><b>a</b></template></p>b", "a b"),
        ("<ruby>東<rp>(</rp><rt>とう</rt><rp>)</rp>京<rt>きょう</ruby>駅", "東京 とうきょう 駅"),
        ("<select><optgroup label='North'><option>Oslo</optgroup></select>", "North Oslo"),
        ("<?xml version='1.0'?><p><![CDATA[a < b]]> c</p>", "a < b c"),
        ("see<img alt='a chart'>and<area alt='the north'>", "see a chart and the north"),
        ("<h2>a<br>b <img alt=c></h2>d", "## a b c d"),
        ("<img alt='a chart' title='a tooltip'><img alt=b title=b>", "a chart a tooltip b"),
        ("the<abbr title='lowest tide'>LAT</abbr> <abbr>AD</abbr>", "the lowest tide LAT AD"),
        ("word<a href='http://x.org/y#n1'><sup>1</sup></a>word", "word 1 word"),
        ("<math><msub><mi>x</mi><mi>i</mi></msub><mo>=</mo><mfrac><mn>1</mn></mfrac>", "xi = 1"),
        ("un<b>break</b>able", "unbreakable"),
        ("<li><span style='display:block; float:left'>o</span>Oslo", "- o Oslo"),
        ("<p><span style='x:y; display: block'>one <b>t</b>wo</span>three</p>", "one two three"),
        ("word<a href='#n1'><sup>1</sup></a>. <a href=#b1>iv</a>Note", "word 1 . iv Note"),
        ("<a href='#parts'>part</a>s of x<sup>2</sup>", "parts of x2"),
        ("Ida Holm<sup>1,2</sup> and Bo Lind<sup> 3</sup>.", "Ida Holm 1,2 and Bo Lind 3 ."),
        (
            "5 km<sup>2</sup>, 10<sup>6</sup>, CO<sub>2</sub>, the 5<sup>th</sup>",
            "5 km2, 106, CO2, the 5th",
        ),
        ("<svg><text>drawn</text></svg>", "drawn"),
        ("<p>a &lt; b and c > d", "a < b and c > d"),
    ],
)
def test_html_text_is_what_a_browser_shows(markup, text):
    assert html_text(markup) == text


@pytest.mark.parametrize(
    "markup",
    [
        "<ruby>東<rt>とう</rt>京<rt>きょう</rt></ruby>",
        "<p>open <ruby>東<rt>とう</p><p>end</p>",
        "<rt>alone</rt> and <rt>open",
        "word<sup><a class=x href='#n1'>A</a></sup>word<a href='#n2'><sup>12</sup></a>word",
        "<?xml version='1.0'?><html><body><p><![CDATA[a & b]]></p></body></html>",
        "<p>word<sup>1</sup>word <b>word</b><sup>2</sup> <i>word<sup class=x>3-5</sup></i></p>",
        "<p>word<sup>1<b>2</b></sup> word<sup><i>7</i></sup> wörd<sup>8</sup></p>",
        "<p>word<a href='file:///tmp/a.html#n1'>12</a>word</p>",
        "<math><msubsup><mo>∑</mo><mi>i</mi><mrow><mn>2</mn><mi>n</mi></mrow></msubsup></math>",
    ],
)
def test_nothing_of_a_shown_element_counts_as_lost(markup):
    assert measure_completeness(read_html(markup.encode())) == []


def test_left_out_share_of_a_page_is_measured():
    page = read_html(b"<nav>Home News</nav><p>one two</p><p hidden>three four</p>")

    (remark,) = measure_completeness(page)

    assert remark.kind == "left out"
    assert remark.share == 4 / 6


def test_lost_text_of_a_page_is_measured():
    page = read_html(b"<p>one two three four</p>")
    page.text = "one two three"

    (remark,) = measure_completeness(page)

    assert remark.kind == "lost text"
    assert remark.share == 0.25


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("Put a <form> here.\n\nThen more.", "Put a <form> here.\n\nThen more."),
        ("<script> goes last.\n\nMore.", "<script> goes last.\n\nMore."),
        ("<textarea>\n\n# Head\n\nMore", "<textarea>\n\n# Head\n\nMore"),
        ("ssh <user>@<host> and <your key>", "ssh <user>@<host> and <your key>"),
        ("a <details>\n<summary>S</summary>\n\nb *c*\n\n</details>", "a\n\nS\n\nb c"),
        ('<p align="center"><img src=x alt="a logo"></p>', "a logo"),
        ("![a chart](x.png) in [the log](http://x.org/y)", "a chart in the log"),
        ('![a chart](x.png "a tooltip")', "a chart a tooltip"),
        ("[![a badge](b.svg)](http://x.org)", "a badge"),
        ("a<!-- note -->b\n\n<!-- more\n\nnotes -->\nc", "a b\n\nc"),
        ("<style>\np {}\n</style>\nshown", "shown"),
        ("word[^1]\n\n[^1]: gloss", "word[^1]\n\n[^1]: gloss"),
        ("a `<b>` c", "a <b> c"),
        (
            "List<String>, a <T>, </p>, x <- y, a<b && c>d",
            "List<String>, a <T>, </p>, x <- y, a<b && c>d",
        ),
        ("Let $a_1 < b_2$ hold.", "Let $a_1 < b_2$ hold."),
        ("Holm<sup>1</sup> and km<sup>2</sup>", "Holm 1 and km2"),
    ],
)
def test_markdown_keeps_everything_behind_a_tag(source, text):
    assert markdown_text(source) == text


def test_deeply_nested_markdown_is_kept_as_its_source():
    extraction = read_markdown(("> " * 300 + "deep words").encode())

    assert extraction.text.endswith("deep words")
    assert measure_completeness(extraction) == []


@pytest.mark.parametrize(
    ("block", "title", "date"),
    [
        ("---\ntitle: Tides\ndate: 2023-04-05\n---\n", "Tides", "2023-04-05"),
        ("---\ntitle: Tides: a primer\ndate: 2023-04-05\n---\n", "Tides: a primer", "2023-04-05"),
        ("---  \ntitle: Tides\n---  \n", "Tides", ""),
        ("\n---\ntitle: Tides\n...\n", "Tides", ""),
        ("---\ntitle: 'Tides\ndate: 2023-04-05\n---\n", "Tides", "2023-04-05"),
        ("---\ntitle: Tides\n\tnote: x\n---\n", "Tides", ""),
        ("---\ntitle: {{ page.title }}\ndate: <% now %>\n---\n", "", ""),
        ("+++\ntitle = 'Tides'\ndate = 2023-04-05\n[extra]\nx = 1\n+++\n", "Tides", "2023-04-05"),
        ("+++\ntitle = Tides\ndate = 2023-04-05\n+++\n", "Tides", "2023-04-05"),
        ("---\n# only a comment\n---\n", "", ""),
        ("---\ntitle:Tides\ndate:2023-04-05\n---\n", "Tides", "2023-04-05"),
        ("---\nTitle: Tides\nDate: 2023-04-05\n---\n", "Tides", "2023-04-05"),
        ("---\ntitle: Tides\n date: 2023-04-05\n---\n", "Tides", "2023-04-05"),
        ("---\ntitle: @Tides\ntags: [a, b\n---\n", "@Tides", ""),
        ("---\ntitle: Tides\ntitle: Tides\ndate: 2023-02-30\n---\n", "Tides", "2023-02-30"),
        ("---\ntags:\n- a: b: c\n- d\ntitle: Tides\n---\n", "Tides", ""),
        ("+++\n[page]\ntitle = Tides\n[[menu]]\n[menu.main]\n+++\n", "Tides", ""),
        ('---\ntitle = "Tides"\ndate = 2023-04-05\n[page]\nx = 1\n---\n', "Tides", "2023-04-05"),
        ('{\n"title": "Tides",\n"date": "2023-04-05"\n}\n', "Tides", "2023-04-05"),
        ("---toml\ntitle = 'Tides'\ndate = 2023-04-05\n---\n", "Tides", "2023-04-05"),
        ('---json\n{"title": "Tides"}\n---\n', "Tides", ""),
        (';;;\n{"title": "Tides", "date": "2023-04-05"}\n;;;\n', "Tides", "2023-04-05"),
        ("--- # values\ntitle: Tides\n---\n", "Tides", ""),
        ("% Tides\n% Ida Holm\n% 2023-04-05\n\n", "Tides", "2023-04-05"),
        ("% Tides\n  and moons\n\n", "Tides and moons", ""),
        ("% Tides\n%\n% 2023-04-05\n\n", "Tides", "2023-04-05"),
        ("Title: Tides\nDate: 2023-04-05\nTags: sea,\n    moon\n\n", "Tides", "2023-04-05"),
        ("---\ntitle: Tide #7\ndate: 2023-04-05\n---\n", "Tide #7", "2023-04-05"),
        ("---\ntitle: Tides # of spring\n---\n", "Tides", ""),
        ('---\ntitle: "Tides" of spring\n---\n', '"Tides" of spring', ""),
        ("---\ntitle: 'The moon's tides'\n---\n", "The moon's tides", ""),
    ],
)
def test_front_matter_is_never_text(block, title, date):
    extraction = read_markdown(f"{block}\nThe sea rises.\n".encode())

    assert extraction.text == "The sea rises."
    assert extraction.title == title
    assert str(extraction.date or "") == date


def test_list_in_malformed_front_matter_is_a_list():
    extraction = read_markdown(b"---\nnote: a: b\ntags: [sea, 'the moon']\n---\nWords.\n")

    assert extraction.fields["tags"] == ["sea", "the moon"]


def test_front_matter_of_a_page_is_never_text():
    source = "---\nlayout: post\ntitle: Tides\ndate: 2023-04-05\n---\n<h2>Moon</h2><p>It pulls.</p>"
    page = read_html(source.encode())

    assert page.title == "Tides"
    assert str(page.date) == "2023-04-05"
    assert page.fields == {"layout": "post"}
    assert page.text == "## Moon\n\nIt pulls."
    assert measure_completeness(page) == []


@pytest.mark.parametrize(
    "source",
    [
        "---\n\nWords.\n\n---\n\nMore.",
        "---\ntitle: x\n\nNo end.",
        "---\n\nA remark: quiet.\n\n---\n\nMore.",
        "---\n\nNote: quiet.\n\nAnother sentence here.\n\n---\n\nMore.",
        '{"size": 3}\n\nThe object above is an example.',
        '{"title": "Tides"} is an example.',
        '{"title": "Tides"\n\nNo end.',
        "% a remark\nabout tides\n\nMore.",
        "%% a remark\n\nMore.",
        "Note: quiet.\nWarning: loud.\n\nMore.",
        "Title: Tides\nand a line of text\n\nMore.",
    ],
)
def test_rules_around_text_are_text(source):
    extraction = read_markdown(source.encode())

    assert measure_completeness(extraction) == []
    assert extraction.fields == {}
    assert extraction.title == ""


def test_cells_beyond_the_columns_of_a_table_are_appended():
    text = markdown_text("| a | b |\n|---|---|\n| c | d | e extra |\n\nend")

    assert "end" in text
    assert "extra" in text


def test_alt_text_in_navigation_is_left_out():
    page = read_html(b"<nav><img alt='the logo'>std<b>1</b></nav><p>words</p>")

    assert page.text == "words"
    assert [remark.kind for remark in measure_completeness(page)] == ["left out"]


@pytest.mark.parametrize("source", ["[" * 5000 + "deep words", "a " * 3_000_000])
def test_source_that_takes_long_to_render_is_kept(source):
    started = time.process_time()
    extraction = read_markdown(source.encode())

    assert extraction.text == source.strip()
    assert [remark.kind for remark in extraction.remarks] == ["unreadable value"]
    assert time.process_time() - started < 5


@pytest.mark.parametrize(
    "unit", ["<a '", "<img ", "<!--", "<script>\n", "<div>", "&", "< ", "<td>"]
)
def test_hostile_markup_is_read_in_bounded_time(unit):
    markup = (unit * (200_000 // len(unit)) + " end").encode()
    started = time.process_time()
    measure_completeness(read_html(markup))
    measure_completeness(read_markdown(markup))

    assert time.process_time() - started < 20


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ('the [weir](w.md "for eels") holds', "the weir (for eels) holds"),
        ('the [weir](w.md "weir") holds', "the weir holds"),
        ("[a *weir*][w] holds\n\n[w]: w.md 'for eels'", "a weir (for eels) holds"),
        ('[weir](w.md "a & b") [lock](l.md)', "weir (a & b) lock"),
    ],
)
def test_title_of_a_link_in_markdown_is_read(source, text):
    assert markdown_text(source) == text


def test_title_of_a_link_in_a_page_is_left_out_and_noted():
    extraction = read_html(b"the <a href=w title='for eels'>weir</a> <nav><a title=up>x</a></nav>")

    assert extraction.text == "the weir"
    assert [remark.kind for remark in measure_completeness(extraction)] == ["left out"]
