"""Checks collections of TREC: documents in SGML, topics in three formats, and qrels."""

from __future__ import annotations

import gzip
import tracemalloc

import pytest

from model_code.corpus.build import build_corpus
from model_code.corpus.settings import CorpusSettings, FileSettings
from model_code.corpus.sources import trec
from model_code.corpus.sources.base import open_source
from model_code.corpus.sources.trec import read_documents, read_qrels, read_topics
from model_code.corpus.tables import Corpus
from model_code.errors import FreshetError
from model_code.text.settings import PassageSettings

DOCUMENTS = """<DOC>
<DOCNO> GAZETTE-1 </DOCNO>
<HEADLINE>Tides &amp; harbours</HEADLINE>
<TEXT>
<P>The harbour silted up.</P>
<P>Ships left.</P>
</TEXT>
</DOC>
<doc>
<docno>GAZETTE-2</docno>
<text>Wool prices rose again.</text>
</doc>
<DOC>
<TEXT>No number here.</TEXT>
</DOC>
"""
CLASSIC_TOPICS = """<top>
<num> Number: 301
<title> silted harbours

<desc> Description:
Which harbours silted up?
</top>
<top>
<num>302</num>
<title>wool prices</title>
</top>
"""
XML_TOPICS = """<topics>
<topic number="301"><query>silted harbours</query><narrative>...</narrative></topic>
<topic number="302"><query>wool prices</query></topic>
</topics>
"""
LINE_TOPICS = "301\tsilted harbours\n\n302\twool prices\n"
QRELS = "301 0 GAZETTE-1 2\n301 0 GAZETTE-2 0\n302\t0\tGAZETTE-2\t1\n"


def write_collection(folder):
    (folder / "documents").mkdir()
    with gzip.open(folder / "documents" / "gazette.sgml.gz", "wt") as stream:
        stream.write(DOCUMENTS)
    (folder / "topics.txt").write_text(CLASSIC_TOPICS)
    (folder / "qrels.txt").write_text(QRELS)
    return CorpusSettings(
        source="trec",
        path="documents",
        files=FileSettings(queries="topics.txt", qrels="qrels.txt"),
        quarantine_limit=0.5,
    )


def test_collection_is_built(tmp_path):
    settings = write_collection(tmp_path)

    built = build_corpus(open_source(settings, tmp_path), settings, PassageSettings())

    documents = built.tables["documents"].set_index("document_id")
    assert documents.loc["GAZETTE-1", "title"] == "Tides & harbours"
    assert "harbour silted up" in documents.loc["GAZETTE-1", "text"]
    assert "GAZETTE" not in documents.loc["GAZETTE-1", "text"]
    assert built.report["quarantine_reasons"] == {"documents: missing id": 1}
    assert sorted(built.tables["queries"]["text"]) == ["silted harbours", "wool prices"]


def test_judged_documents_without_relevance_are_kept_apart(tmp_path):
    settings = write_collection(tmp_path)
    built = build_corpus(open_source(settings, tmp_path), settings, PassageSettings())
    tables = {name: built.tables[name] for name in ("documents", "passages", "queries", "qrels")}
    corpus = Corpus(**tables)

    split = tables["queries"].set_index("query_id").loc["301", "split"]
    judgements = corpus.judgements(split)

    assert judgements.qrels["301"] == {"GAZETTE-1": 2}
    assert judgements.graded()["301"] == {"GAZETTE-1": 2, "GAZETTE-2": 0}


@pytest.mark.parametrize("topics", [CLASSIC_TOPICS, XML_TOPICS, LINE_TOPICS])
def test_topics_of_three_formats(tmp_path, topics):
    path = tmp_path / "topics"
    path.write_text(topics)

    rows = [row.values for row in read_topics(path)]

    assert rows == [
        {"id": "301", "text": "silted harbours"},
        {"id": "302", "text": "wool prices"},
    ]


def test_line_separator_inside_a_topic_ends_no_line(tmp_path):
    path = tmp_path / "topics"
    path.write_text("301\tsilted\u2028harbours\r\n302\twool prices\n", encoding="utf-8", newline="")

    rows = [row.values for row in read_topics(path)]

    assert [row["id"] for row in rows] == ["301", "302"]
    assert rows[0]["text"].split() == ["silted", "harbours"]


def test_torn_lines_are_refused_and_others_kept(tmp_path):
    path = tmp_path / "qrels"
    path.write_text("301 0 GAZETTE-1\n302 0 GAZETTE-2 1\n")

    refused, kept = read_qrels(path)

    assert refused.reason == "bad line"
    assert kept.values["document_id"] == "GAZETTE-2"


def test_latin_text_is_read(tmp_path):
    path = tmp_path / "old.sgml"
    path.write_bytes("<DOC><DOCNO>a</DOCNO>caf\u00e9</DOC>".encode("latin-1"))

    (row,) = read_documents(path)

    assert row.values["text"] == "caf\u00e9"


@pytest.mark.parametrize("chunk", [1, 7, 40])
def test_documents_do_not_depend_on_chunks(tmp_path, monkeypatch, chunk):
    path = tmp_path / "gazette.sgml"
    path.write_text(f"<!-- before <DOCS> -->{DOCUMENTS}<!-- after --><doc")
    whole = list(read_documents(path))

    monkeypatch.setattr(trec, "CHUNK_SIZE", chunk)

    assert list(read_documents(path)) == whole
    assert len(whole) == 3


def test_gz_file_is_read_in_bounded_memory(tmp_path):
    filler = " " * 1000
    path = tmp_path / "gazette.sgml.gz"
    with gzip.open(path, "wt", compresslevel=1) as stream:
        for number in range(20_000):
            stream.write(f"<DOC><DOCNO>{number}</DOCNO>{filler}wool</DOC>{filler}\n")

    tracemalloc.start()
    count = sum(1 for _ in read_documents(path))
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    assert count == 20_000
    assert peak_bytes < 20_000_000


def test_document_that_never_ends_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(trec, "MAX_ELEMENT_CHARACTERS", 1000)
    path = tmp_path / "gazette.sgml.gz"
    path.write_bytes(gzip.compress(b"<DOC>" + b"wool " * 1000))

    with pytest.raises(FreshetError, match="element of more than 1,000 characters"):
        list(read_documents(path))


def test_marked_utf16_is_read(tmp_path):
    path = tmp_path / "qrels.txt"
    path.write_text(QRELS, encoding="utf-16")

    assert [row.values["query_id"] for row in read_qrels(path)] == ["301", "301", "302"]


def test_files_without_documents_are_named(tmp_path):
    (tmp_path / "notes.txt").write_text("nothing")

    with pytest.raises(FreshetError, match="has no <DOC> element"):
        list(read_documents(tmp_path / "notes.txt"))


def test_missing_files_are_named(tmp_path):
    settings = write_collection(tmp_path)
    (tmp_path / "qrels.txt").unlink()

    with pytest.raises(FreshetError, match=r"qrels.txt does not exist"):
        open_source(settings, tmp_path)


def test_content_hash_follows_the_files(tmp_path):
    settings = write_collection(tmp_path)
    before = open_source(settings, tmp_path).describe()["content_hash"]
    (tmp_path / "qrels.txt").write_text(QRELS.replace(" 2", " 1"))

    assert open_source(settings, tmp_path).describe()["content_hash"] != before


def test_gz_file_with_damaged_content_is_refused(tmp_path):
    content = bytearray(gzip.compress(b"301 0 GAZETTE-1 1\n" * 100))
    content[10] ^= 0xFF
    path = tmp_path / "qrels.txt.gz"
    path.write_bytes(content)

    with pytest.raises(FreshetError, match=r"is not a whole .gz file"):
        list(read_qrels(path))


def test_byte_order_mark_is_no_part_of_an_id(tmp_path):
    topics = tmp_path / "topics.tsv"
    topics.write_text(LINE_TOPICS, encoding="utf-8-sig")
    qrels = tmp_path / "qrels.txt"
    qrels.write_text(QRELS, encoding="utf-8-sig")

    first_topic = next(read_topics(topics))
    first_judgement = next(read_qrels(qrels))

    assert first_topic.values["id"] == "301"
    assert first_judgement.values["query_id"] == "301"
