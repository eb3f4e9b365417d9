"""A TREC collection: documents in SGML or as rows, topics, and qrels.

`corpus.path` names a file of documents or a folder of such files, `corpus.files.queries` the topics
and `corpus.files.qrels` the judgements. All of them may end in .gz.

- Documents are `<DOC>` elements with a `<DOCNO>`, or rows as in `files` (.jsonl, .csv, .tsv,
  .parquet). The content of `<TITLE>`, `<HEADLINE>` and `<HL>` is the title. All other text of a
  `<DOC>` is the text.
- Topics are `<top>` elements with `<num>` and `<title>`, XML with `<topic number="..">`, or lines
  with an id, a tab and a text.
- Qrels are lines with query, iteration, document and relevance. A relevance of 0 or less says that
  the document was judged not relevant.
"""

from __future__ import annotations

import codecs
import gzip
import html
import io
import re
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from model_code.corpus.rows import RefusedRow, Row, Table, map_columns, printable
from model_code.corpus.settings import CorpusSettings
from model_code.corpus.sources.base import describe_files
from model_code.corpus.sources.readers import SUFFIXES, read_rows
from model_code.errors import FreshetError
from model_code.files import hash_path
from model_code.progress import Progress, no_progress
from model_code.text.words import split_lines

# Number of fields of a line of qrels: query, iteration, document and relevance.
QREL_FIELDS = 4

# Number of bytes or characters of a file that are read at a time.
CHUNK_SIZE = 1_000_000

# Longest `<DOC>` element, and longest file of topics, in characters. Both are held in memory.
MAX_ELEMENT_CHARACTERS = 50_000_000

_DOCUMENT = re.compile(r"<DOC\b[^>]*>(.*?)</DOC>", re.DOTALL | re.IGNORECASE)
_DOCUMENT_START = re.compile(r"<DOC\b", re.IGNORECASE)
_DOCUMENT_END = re.compile(r"</DOC>", re.IGNORECASE)
_DOCUMENT_ID = re.compile(r"<(DOCNO|DOCID)>\s*(.*?)\s*</\1>", re.DOTALL | re.IGNORECASE)
_TITLE = re.compile(r"<(TITLE|HEADLINE|HL)>\s*(.*?)\s*</\1>", re.DOTALL | re.IGNORECASE)
_TAG = re.compile(r"</?[A-Za-z][^<>]*>")
_TOPIC = re.compile(r"<top>(.*?)</top>", re.DOTALL | re.IGNORECASE)
_TOPIC_NUMBER = re.compile(r"<num>\s*(?:Number:)?\s*([^\s<]+)", re.IGNORECASE)
_TOPIC_TITLE = re.compile(r"<title>\s*(?:Topic:)?\s*(.*?)\s*(?:</title>|(?=<\w)|$)", re.S | re.I)
_XML_TOPIC = re.compile(r"<topic\b[^>]*\bnumber=\"([^\"]+)\"[^>]*>(.*?)</topic>", re.S | re.I)
_XML_TEXT = re.compile(r"<(query|title)>\s*(.*?)\s*</\1>", re.DOTALL | re.IGNORECASE)


class TrecSource:
    """Documents, topics and qrels in the formats of TREC."""

    def __init__(
        self, settings: CorpusSettings, root: Path, locked: Mapping[str, Any] | None = None
    ) -> None:
        """Find the files of documents, topics and qrels.

        Args:
            settings: Settings of the corpus.
            root: Folder that relative paths are resolved against.
            locked: Not used, because a file has one version only. `describe` shows if it changed.

        Raises:
            FreshetError: If a file is missing.
        """
        self.columns = settings.columns
        self.documents = _document_files(root / str(settings.path))
        self.topics = root / settings.files.queries if settings.files.queries else None
        self.qrels = root / settings.files.qrels if settings.files.qrels else None
        for path in (self.topics, self.qrels):
            if path is not None and not path.is_file():
                raise FreshetError(
                    f"{path} does not exist; corpus.files in params.yaml names topics and qrels"
                )

    def describe(self) -> dict[str, Any]:
        """Return the hash of each file."""
        hashes = {f"documents/{path.name}": hash_path(path) for path in self.documents}
        if self.topics is not None and self.qrels is not None:
            hashes["topics"] = hash_path(self.topics)
            hashes["qrels"] = hash_path(self.qrels)
        return describe_files(dict(sorted(hashes.items())))

    def rows(self, table: Table, progress: Progress = no_progress) -> Iterator[Row | RefusedRow]:
        """Yield the rows of a table in the order of the files."""
        if table == "documents":
            for path in self.documents:
                yield from self._document_rows(path)
        elif table == "queries" and self.topics is not None:
            yield from read_topics(self.topics)
        elif table == "qrels" and self.qrels is not None:
            yield from read_qrels(self.qrels)

    def _document_rows(self, path: Path) -> Iterator[Row | RefusedRow]:
        """Yield the documents of a file, which holds rows or `<DOC>` elements."""
        if _suffix(path) in SUFFIXES:
            for row in read_rows(path, "documents", path.name):
                yield map_columns(row, self.columns)
            return
        yield from read_documents(path)


def _document_files(path: Path) -> list[Path]:
    """Return the files of documents: the file at a path, or the files in a folder.

    Raises:
        FreshetError: If there is none.
    """
    if path.is_file():
        return [path]
    files = sorted(entry for entry in path.glob("**/*") if entry.is_file())
    if not files:
        raise FreshetError(
            f"{path} is neither a file nor a folder with files; corpus.path in params.yaml names "
            "the documents"
        )
    return files


def _suffix(path: Path) -> str:
    """Return the suffix of a file in lower case, without `.gz`."""
    return Path(path.name.removesuffix(".gz")).suffix.lower()


def read_documents(path: Path) -> Iterator[Row | RefusedRow]:
    """Yield the `<DOC>` elements of a file.

    Args:
        path: The file.

    Raises:
        FreshetError: If the file has no such element, or one that is too long.
    """
    number = 0
    for number, content in enumerate(_document_elements(path), start=1):
        location = f"{path.name}:{number}"
        document_id = _DOCUMENT_ID.search(content)
        if document_id is None:
            detail = "the element has no <DOCNO>"
            yield RefusedRow("documents", location, "missing id", detail, printable(content))
            continue

        titles = [plain_text(title[2]) for title in _TITLE.finditer(content)]
        body = _TITLE.sub(" ", content.replace(document_id[0], " "))
        values = {
            "id": document_id[2],
            "title": " ".join(titles),
            "text": plain_text(body),
            "fields": {},
        }
        yield Row("documents", location, values)
    if number == 0:
        raise FreshetError(
            f"{path} has no <DOC> element; documents are SGML, or files that end in "
            f"{', '.join(SUFFIXES)}"
        )


def _document_elements(path: Path) -> Iterator[str]:
    """Yield the content of each `<DOC>` element of a file.

    The file is read in chunks, so that the memory does not depend on its size.

    Raises:
        FreshetError: If an element is too long.
    """
    # The text since the end of the last element.
    pending = ""
    with _open_text(path) as stream:
        while chunk := stream.read(CHUNK_SIZE):
            # The end of an element may be cut by the border of two chunks.
            searched = max(0, len(pending) - len("</DOC>"))
            pending += chunk
            if _DOCUMENT_END.search(pending, searched):
                end = 0
                for match in _DOCUMENT.finditer(pending):
                    yield match[1]
                    end = match.end()
                pending = pending[end:]
            start = _DOCUMENT_START.search(pending)
            # Text outside of elements is no document. Its end may be the begin of a tag.
            pending = pending[-len("<DOC>") :] if start is None else pending[start.start() :]
            if len(pending) > MAX_ELEMENT_CHARACTERS:
                raise FreshetError(
                    f"{path} has a <DOC> element of more than {MAX_ELEMENT_CHARACTERS:,} "
                    "characters; split it into documents"
                )


def read_topics(path: Path) -> Iterator[Row | RefusedRow]:
    """Yield the topics of a file in any of the three formats.

    The formats are `<top>` elements, XML with `<topic>` elements, and lines "ID<tab>TEXT".

    Args:
        path: The file.
    """
    text = _read_text(path)
    elements = list(_TOPIC.finditer(text))
    if elements:
        for number, element in enumerate(elements, start=1):
            content = element[1]
            id_match = _TOPIC_NUMBER.search(content)
            title_match = _TOPIC_TITLE.search(content)
            topic_id = id_match[1] if id_match is not None else None
            title = title_match[1] if title_match is not None else ""
            yield _topic_row(f"{path.name}:{number}", topic_id, title, content)
        return

    xml_topics = list(_XML_TOPIC.finditer(text))
    if xml_topics:
        for number, element in enumerate(xml_topics, start=1):
            content = element[2]
            text_match = _XML_TEXT.search(content)
            query_text = text_match[2] if text_match is not None else ""
            yield _topic_row(f"{path.name}:{number}", element[1], query_text, content)
        return

    for number, line in enumerate(split_lines(text), start=1):
        if not line.strip():
            continue
        location = f"{path.name}:{number}"
        topic_id, separator, query_text = line.partition("\t")
        if not separator:
            detail = "the line has no tab between the id and the text"
            yield RefusedRow("queries", location, "bad line", detail, printable(line))
            continue
        yield Row("queries", location, {"id": topic_id.strip(), "text": query_text})


def _topic_row(location: str, topic_id: str | None, text: str, content: str) -> Row | RefusedRow:
    """Return the row of a topic; a refused row if the topic has no id.

    Args:
        location: Place in the source.
        topic_id: Id of the topic, if it has one.
        text: Text of the query, with tags.
        content: The whole element, of which a refused row shows the beginning.
    """
    if topic_id is None:
        detail = "the topic has no <num>"
        return RefusedRow("queries", location, "missing id", detail, printable(content))
    return Row("queries", location, {"id": topic_id, "text": plain_text(text)})


def read_qrels(path: Path) -> Iterator[Row | RefusedRow]:
    """Yield the judgements of a file of qrels.

    Args:
        path: The file, with four fields a line that blanks or tabs separate.
    """
    with _open_text(path) as stream:
        for number, line in enumerate(stream, start=1):
            fields = line.split()
            if not fields:
                continue
            location = f"{path.name}:{number}"
            if len(fields) != QREL_FIELDS:
                detail = f"{len(fields)} fields, not query, iteration, document and relevance"
                yield RefusedRow("qrels", location, "bad line", detail, printable(line))
                continue
            query_id, _, document_id, relevance = fields
            values = {"query_id": query_id, "document_id": document_id, "relevance": relevance}
            yield Row("qrels", location, values)


def plain_text(content: str) -> str:
    """Return the text of an element without tags, with entities resolved.

    >>> plain_text("<TEXT>Wages &amp; <b>prices</b></TEXT>")
    'Wages & prices'
    """
    return html.unescape(_TAG.sub("", content)).strip()


def _read_text(path: Path) -> str:
    """Return the text of a file of topics.

    Raises:
        FreshetError: If the file is too long, or a damaged .gz file.
    """
    with _open_text(path) as stream:
        text = stream.read(MAX_ELEMENT_CHARACTERS + 1)
    if len(text) > MAX_ELEMENT_CHARACTERS:
        raise FreshetError(
            f"{path} has more than {MAX_ELEMENT_CHARACTERS:,} characters; split the topics"
        )
    return text


@contextmanager
def _open_text(path: Path) -> Iterator[IO[str]]:
    """Open a file as text, without its byte order mark, which would become part of the first id.

    Raises:
        FreshetError: If the file is a damaged .gz file. It may be found out while it is read.
    """
    try:
        with _open_bytes(path) as content:
            encoding = _find_encoding(content)
        with _open_bytes(path) as content:
            yield io.TextIOWrapper(content, encoding)
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise FreshetError(f"{path} is not a whole .gz file ({error}); fetch it again") from None


def _open_bytes(path: Path) -> IO[bytes]:
    """Open a file to read its bytes, which are unpacked if its name ends in .gz."""
    if path.suffix == ".gz":
        return gzip.open(path, "rb")
    return path.open("rb")


def _find_encoding(content: IO[bytes]) -> str:
    """Return the encoding of a file: that of its mark, UTF-8, or Latin-1 for old collections.

    The whole file is read in chunks, because a single byte may rule out UTF-8.
    """
    decoder = codecs.getincrementaldecoder("utf-8")()
    is_first = True
    while chunk := content.read(CHUNK_SIZE):
        if is_first and chunk.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
            return "utf-16"
        is_first = False
        try:
            decoder.decode(chunk)
        except UnicodeDecodeError:
            return "latin-1"
    return "utf-8-sig"
