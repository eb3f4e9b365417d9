"""Show in `freshet demo` that a document is found by words of its known queries.

A known query is a query that a document is known to answer. The example words are in the known
query and not in the document. The documents are added to a temporary copy of the live collection,
so that the collection of the project does not change.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from model_code.collection.backup.backup import link
from model_code.collection.generations.generation_builder import GenerationBuilder
from model_code.collection.generations.generation_store import GENERATIONS, GenerationStore
from model_code.collection.generations.searcher import Searcher
from model_code.text.documents import Document

# Number of hits among which a document is looked for.
SHOWN_HITS = 10


@dataclass(frozen=True)
class AskedDocument:
    """A document with one query that it is known to answer, and a word that only the query has.

    Attributes:
        document: The document.
        word: The word that is searched.
    """

    document: Document
    word: str


@dataclass(frozen=True)
class FoundRanks:
    """Ranks of a document for a word, before and after its known query is added.

    A rank counts from 1. It is None if the document is not among the first `SHOWN_HITS` hits.

    Attributes:
        before: Rank of the document without its known query.
        after: Rank of the document with its known query.
    """

    before: int | None
    after: int | None


ASKED_DOCUMENTS = (
    AskedDocument(
        Document(
            "demo/undo",
            "Undo the last commit",
            "Type git reset --soft HEAD~1. It takes the commit back and keeps the changed files.",
            queries=("oops, I saved the wrong thing in git",),
        ),
        "oops",
    ),
    AskedDocument(
        Document(
            "demo/cache",
            "Empty the cache of the browser",
            "Open the privacy settings, and delete the pages and images that are stored.",
            queries=("website looks wonky",),
        ),
        "wonky",
    ),
    AskedDocument(
        Document(
            "demo/mould",
            "Keep a cellar dry",
            "Open the windows on cold dry days, and close them when the air outside is warm.",
            queries=("musty smell downstairs",),
        ),
        "musty",
    ),
)


def find_ranks(
    searcher: Searcher, asked: Sequence[AskedDocument], scratch: Path
) -> list[FoundRanks] | None:
    """Return the ranks of documents without and with their known queries.

    A known query is a query that a document is known to answer. The documents are added to a copy
    of the collection, first without and then with their queries.

    Args:
        searcher: Searcher of the collection, which does not change.
        asked: The documents.
        scratch: Folder for the copy. It must be on the same file system as the collection, because
            files are hard-linked.

    Returns:
        The ranks of each document. None if the settings switch off words of known queries.
    """
    plain = [replace(example.document, queries=()) for example in asked]
    with_queries = [example.document for example in asked]
    with _copied_collection(searcher, scratch) as builder:
        cursor = searcher.generation.cursor
        builder.apply(plain, cursor, {})
        before = [_rank(builder.searcher, example) for example in asked]

        builder.apply(with_queries, cursor, {})
        # If documents are indexed without words of known queries, both attributes are the same
        # object.
        uses_known_queries = builder.searcher.plain_retriever is not builder.searcher.retriever
        if not uses_known_queries:
            return None
        after = [_rank(builder.searcher, example) for example in asked]
    return [FoundRanks(*ranks) for ranks in zip(before, after, strict=True)]


def known_queries_lines(searcher: Searcher, scratch: Path) -> Iterator[str]:
    """Yield the lines of the demonstration.

    Args:
        searcher: Searcher of the collection, which does not change.
        scratch: Folder for a copy of the collection, on the same file system.
    """
    found = find_ranks(searcher, ASKED_DOCUMENTS, scratch)
    if found is None:
        yield f"Known queries do not count as words of documents in {searcher.generation.retriever}"
        yield "(their weight is 0, or known_queries.use is false)."
        return
    yield "Known queries: three documents are added to a copy, and searched by a word that only"
    yield "their query contains. The rank is shown without the query, then with it."
    for asked, ranks in zip(ASKED_DOCUMENTS, found, strict=True):
        (query,) = asked.document.queries
        shown_ranks = f"{_rank_text(ranks.before)} -> {_rank_text(ranks.after)}"
        yield f'  {asked.word:6} {shown_ranks:12} {asked.document.title} (query: "{query}")'


def _rank_text(rank: int | None) -> str:
    return "none" if rank is None else str(rank)


def _rank(searcher: Searcher, asked: AskedDocument) -> int | None:
    """Search for the word of an example, and return the rank of its document.

    None means that the document is not among the first `SHOWN_HITS` hits.
    """
    for hit in searcher.search(asked.word, SHOWN_HITS):
        if hit.document_id == asked.document.document_id:
            return hit.rank
    return None


@contextmanager
def _copied_collection(searcher: Searcher, scratch: Path) -> Iterator[GenerationBuilder]:
    """Yield a generation builder for a temporary copy of a collection.

    The copy consists of hard links, so that it needs hardly any space or time.
    """
    generation = searcher.generation
    scratch.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=scratch) as folder:
        live = Path(folder)
        store = GenerationStore(live, generation.retriever)
        for number in sorted(generation.needs):
            source = generation.sibling(number)
            target = store.folder / GENERATIONS / source.name
            # Files of generations never change, so that hard links can replace copies.
            shutil.copytree(source, target, copy_function=link)
        store.set_current(generation)
        builder = GenerationBuilder(live, generation.retriever)
        # The encoder is in memory already. The builder would load it a second time.
        builder.loaded = lambda: searcher.parts
        yield builder
