"""What an added document should be found by, and what is remembered of additions.

Texts of a document as vectors, beside its own encoding, are what IncDSI takes; Z of a live collection is, for each
document, the mean of these vectors. What is kept are parts of V and Z in folders of their own, each naming the one that
it continues.

    additions/KEY/base/                  all documents of the live base, and the unit of margins
    additions/KEY/TOKEN/                 what one generation added: rows, the status of each, and `parent.json`

KEY stands for a base, its encoder and how queries are made of texts; a generation's provenance holds its TOKEN. Parts
are never changed, so generations that share a past share its parts, and one that is rolled back leaves no trace.
A part's rows are `vectors.npy` (V) and `queries.npy` (Z), both (n, H) float32, and `document_ids.json`; its sealed
manifest has the deviation of scores that margins are measured in.

The state of a generation is made of them: V is what is searched, Z what was kept when documents were added.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from itertools import compress
from pathlib import Path

import numpy as np

from model_code import words
from model_code.documents import Change, Document
from model_code.dsi.vectors import sums_of
from model_code.encoding.encoder import Encoder
from model_code.errors import FreshetError
from model_code.files import canonical_json, hash_text, read_json, replace_folder, replacing, write_json, write_text
from model_code.incdsi.adder import NewDocument
from model_code.incdsi.state import IncDsiState
from model_code.live.documents import read_columns
from model_code.live.generation import Generation
from model_code.live.part import Part, PartView
from model_code.live.searcher import Searcher
from model_code.live.writer import new_passages
from model_code.manifest import MANIFEST, read_manifest, seal, verify
from model_code.retrievers.dsi import DsiRetriever
from model_code.scale.encoding import encode_resumably
from model_code.settings import require

SPAN = 12  # words, about as many as a long query has
Encoded = tuple[np.ndarray, np.ndarray]
"""A document's encoding (H), and the vectors (m, H) of the queries that it came with"""
FORMAT, KIND = 1, "incdsi"
VECTORS, QUERIES, DOCUMENT_IDS = "vectors.npy", "queries.npy", "document_ids.json"
BASE, PARENT, STATUSES = "base", "parent.json", "statuses.json"
LONGEST = 32  # parts in a row; the next one then holds all their rows
TOKEN = "additions"  # in a generation's provenance


def constraint_texts(title: str, text: str, spans: int) -> list[str]:
    """Title, first sentence, and up to `spans` runs of `SPAN` words, evenly spread over what follows it.

    None is empty and none occurs twice; a document with any text has at least one. Nothing is drawn at random.

    >>> constraint_texts("sort", "Sort a list. In place, that is.", spans=4)
    ['sort', 'Sort a list.', 'In place, that is.']
    """
    first, rest = words.first_sentence(text)
    places = words.spans(rest)
    last = max(0, len(places) - SPAN)
    count = min(spans, -(-len(places) // SPAN))
    starts = [round(last * i / max(1, count - 1)) for i in range(count)]
    found = [
        " ".join(title.split()),
        first,
        *(words.slices(rest, places, start, min(start + SPAN, len(places))) for start in starts),
    ]
    return [one for one in dict.fromkeys(found) if one]


def read_texts(part: Part) -> dict[str, tuple[str, str]]:
    """Title and text of all documents of a part."""
    ids, titles, texts = read_columns(part.documents, "document_id", "title", "text")
    return {key: (title, text) for key, title, text in zip(ids, titles, texts, strict=True)}


def base_representatives(base: Part, spans: int, folder: Path) -> np.ndarray:
    """Z (n, H) of the base, in the order of its index: what training left, or else made from the texts.

    folder: where encoded texts are kept until all are.
    """
    if isinstance(base.dense, DsiRetriever):
        return np.asarray(base.dense.representatives.vectors)
    texts = read_texts(base)
    asked = [constraint_texts(*texts[key], spans) for key in base.dense.index.document_ids]
    flat = encode_resumably(base.dense.encoder, [one for own in asked for one in own], folder)
    return means(flat, [len(own) for own in asked])


def query_vectors(encoder: Encoder, texts: Sequence[tuple[str, str]], spans: int) -> list[np.ndarray]:
    """For each document, of a title and a text, the vectors (m, H) of its texts."""
    asked = [constraint_texts(title, text, spans) for title, text in texts]
    if not asked:
        return []
    flat = encoder.encode([one for own in asked for one in own])
    return np.split(flat, np.cumsum([len(own) for own in asked])[:-1])


def means(rows: np.ndarray, counts: Sequence[int]) -> np.ndarray:
    """The mean of each run of `counts` rows of (m, H), as float32.

    >>> means(np.array([[1.0], [3.0], [5.0]]), [2, 1]).tolist()
    [[2.0], [5.0]]
    """
    sums, _ = sums_of(rows, np.repeat(np.arange(len(counts)), counts), len(counts))
    return (sums / np.array(counts)[:, None]).astype(np.float32)


def of_one_vector(ids: Sequence[str], vectors: np.ndarray, queries: Sequence[np.ndarray]) -> dict[str, Encoded]:
    """The rows of documents that have no other: vectors (n, H), and for each row the vectors (m, H) of its queries."""
    rows = zip(ids, vectors, queries, has_one(ids), strict=True)
    return {key: (vector, asked) for key, vector, asked, alone in rows if alone}


def new_documents(
    searcher: Searcher, spans: int, steps: Sequence[Change], lasting: Mapping[str, Encoded]
) -> dict[int, NewDocument]:
    """By the number of its step, each document of one vector that `steps` put.

    lasting: by id, those that no later step changes, which are encoded already.
    """
    last = {step.document_id: number for number, step in enumerate(steps)}
    puts = {number: step for number, step in enumerate(steps) if isinstance(step, Document)}
    passing = {number: put for number, put in puts.items() if number != last[put.document_id]}
    encoded = {last[key]: own for key, own in lasting.items()} | _encoded(searcher, passing)
    own_texts = [(puts[number].title, puts[number].text) for number in encoded]
    made = query_vectors(searcher.base.dense.encoder, own_texts, spans)
    return {
        number: NewDocument(puts[number].document_id, np.concatenate([own, asked]), encoding)
        for (number, (encoding, asked)), own in zip(encoded.items(), made, strict=True)
    }


def _encoded(searcher: Searcher, puts: Mapping[int, Document]) -> dict[int, Encoded]:
    """Of puts by their numbers, those of one vector; the same document may be put several times."""
    if not puts:
        return {}
    base, numbered = searcher.base, [replace(put, document_id=str(number)) for number, put in puts.items()]
    new = new_passages(numbered, searcher.generation.text)
    numbers, vectors = base.dense.encodings(new)
    found = of_one_vector(numbers, vectors, base.dense.query_vectors(new, numbers))
    return {int(number): own for number, own in found.items()}


def has_one(document_ids: Sequence[str]) -> list[bool]:
    """Whether each row is the only one of its document.

    >>> has_one(["a", "b", "b"])
    [True, False, False]
    """
    rows = Counter(document_ids)
    return [rows[one] == 1 for one in document_ids]


class Store:
    """The parts below `folder` (additions/KEY)."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def keep(
        self, token: str, parent: str | None, state: IncDsiState, ids: Sequence[str], statuses: Mapping[str, str]
    ) -> None:
        """Write the part `token`: the rows `ids` of `state` (its newest), on top of those of `parent`."""
        before = self.chain(parent)
        if len(before) >= LONGEST:
            statuses = self.statuses(parent) | dict(statuses)
            added = {one for name in before for one in read_json(self.folder / name / DOCUMENT_IDS)} | set(ids)
            ids, parent = [one for one in state.ids if one in added], None
        self.folder.mkdir(parents=True, exist_ok=True)
        aside = Path(tempfile.mkdtemp(prefix=".making.", dir=self.folder))
        try:
            write_json(aside / PARENT, parent)
            write_json(aside / STATUSES, dict(statuses))
            write_part(aside, state, ids)
            replace_folder(aside, self.folder / token)
        finally:
            shutil.rmtree(aside, ignore_errors=True)

    def chain(self, token: str | None) -> list[str]:
        """The parts that `token` stands for, oldest first; none where `token` is None or of another store."""
        found: list[str] = []
        while token is not None and (self.folder / token / PARENT).is_file():
            found.append(token)
            token = read_json(self.folder / token / PARENT)
        return found[::-1]

    def read(self, token: str | None, alive: Collection[str]) -> IncDsiState:
        """The rows of the documents `alive`, as far as base and parts have them; FreshetError if a part is damaged."""
        try:
            return read_state([self.folder / name for name in (BASE, *self.chain(token))], alive)
        except FreshetError as error:
            raise FreshetError(f"{error}; or delete {self.folder}, which is then made from the texts again") from None

    def statuses(self, token: str | None) -> dict[str, str]:
        """The name of the latest `Status` of each document that the parts of `token` added."""
        return {key: one for name in self.chain(token) for key, one in read_json(self.folder / name / STATUSES).items()}

    def forget_all_but(self, tokens: Collection[str | None]) -> None:
        """Delete every part that none of `tokens` stands on."""
        needed = {BASE}.union(*(self.chain(token) for token in tokens))
        for file in sorted(self.folder.glob(f"*/{PARENT}")):
            if file.parent.name not in needed:
                shutil.rmtree(file.parent)


def write_part(folder: Path, state: IncDsiState, ids: Sequence[str]) -> None:
    """Write the rows of `ids` of `state` to the new folder `folder`; equal rows give equal bytes."""
    rows = np.array([state.row(key) for key in ids], np.int64)
    folder.mkdir(parents=True, exist_ok=True)
    for name, values in ((VECTORS, state.vectors), (QUERIES, state.queries)):
        with replacing(folder / name) as aside, aside.open("wb") as stream:
            np.save(stream, values.view[rows])
    write_text(folder / DOCUMENT_IDS, json.dumps(list(ids), ensure_ascii=False, separators=(",", ":")))
    facts = {"kind": KIND, "dimension": state.width, "documents": len(rows), "score_deviation": state.score_deviation}
    seal(folder, FORMAT, facts)


def read_state(folders: Sequence[Path], alive: Collection[str]) -> IncDsiState:
    """The state that the parts `folders`, oldest first, add up to.

    Of a document that several parts hold, the newest rows count, in the place of the newest. alive: the documents that
    were not deleted. Margins keep the unit of the first part. Each file is read once.

    Raises FreshetError if a part is damaged, or not as wide as the first one.
    """
    manifests = [read_manifest(folder, FORMAT) for folder in folders]
    for folder, manifest in zip(folders, manifests, strict=True):
        verify(folder, manifest)
        if manifest["dimension"] != manifests[0]["dimension"]:
            raise FreshetError(f"{folder} holds vectors of {manifest['dimension']} numbers, {folders[0]} of others")
    ids = [read_json(folder / DOCUMENT_IDS) for folder in folders]
    newest = {key: part for part, keys in enumerate(ids) for key in keys}
    stays = newest.keys() & set(alive)
    kept = [[newest[key] == part and key in stays for key in keys] for part, keys in enumerate(ids)]
    left = [key for keys, keep in zip(ids, kept, strict=True) for key in compress(keys, keep)]
    vectors, queries = (_rows(folders, name, kept) for name in (VECTORS, QUERIES))
    return IncDsiState(vectors, queries, left, manifests[0]["score_deviation"])


def _rows(folders: Sequence[Path], name: str, kept: Sequence[Sequence[bool]]) -> np.ndarray:
    parts = [np.load(folder / name, mmap_mode="r") for folder in folders]
    return np.concatenate([part[np.array(keep, bool)] for part, keep in zip(parts, kept, strict=True)])


def store_of(folder: Path, generation: Generation, spans: int) -> Store:
    """The store of a generation's base below `folder`."""
    facts = {"base": generation.base, "fingerprint": generation.fingerprint, "spans": spans}
    return Store(folder / f"{generation.retriever}-{hash_text(canonical_json(facts))[:16]}")


def token_of(generation: Generation) -> str | None:
    """The newest part that a generation stands on; None: nothing was kept for it."""
    return generation.manifest["provenance"].get(TOKEN)


def require_one_vector(base: Part) -> None:
    """SettingsError unless documents have one vector, at least every other one; the others are left as they are."""
    require(
        base.retriever.dense is not None,
        f"additions cannot be refined for a retriever of kind {base.kind!r}: IncDSI needs one dense vector per "
        "document; set additions.refine to false",
    )
    ids = base.dense.index.document_ids
    require(
        2 * sum(has_one(ids)) >= len(set(ids)),
        "additions cannot be refined where most documents have several passages or vectors: set additions.refine to "
        "false, or passages.words to 0 and build again",
    )


def load_state(searcher: Searcher, store: Store, spans: int) -> tuple[IncDsiState, list[str]]:
    """The state of the searcher's generation, and the documents whose Z was not kept: they come last, ascending.

    It holds documents of one vector; others are left as they are. Those without Z were added while nothing was
    refined; it is made from their texts, without queries that they came with.
    """
    if not (store.folder / BASE / MANIFEST).is_file():
        index, encoding = searcher.base.dense.index, store.folder / "encoding"
        queries, one = base_representatives(searcher.base, spans, encoding), has_one(index.document_ids)
        ids = [document for document, alone in zip(index.document_ids, one, strict=True) if alone]
        store.keep(BASE, None, IncDsiState(index.vectors[one], queries[one], ids), ids, {})
        shutil.rmtree(encoding, ignore_errors=True)
    vectors = _searched(searcher)
    owners = {key: view for view in searcher.views for key in view.document_ids() if key in vectors}
    state = store.read(token_of(searcher.generation), owners.keys())
    loose = sorted(
        key
        for key in owners
        if key not in state or not np.array_equal(state.vectors.view[state.row(key)], vectors[key])
    )
    state.delete(np.array([state.row(key) for key in loose if key in state], np.int64))
    for key, queries in zip(loose, _made(searcher, owners, loose, spans), strict=True):
        state.append(key, vectors[key], queries.mean(axis=0, dtype=np.float64))
    return state, loose


def _searched(searcher: Searcher) -> dict[str, np.ndarray]:
    """The vector (H) that is searched for each document that has one."""
    found: dict[str, np.ndarray] = {}
    for view in searcher.views:
        index = view.part.dense.index
        rows = zip(index.document_ids, index.vectors, has_one(index.document_ids), strict=True)
        found |= {key: row for key, row, alone in rows if alone and key in view}
    return found


def _made(searcher: Searcher, owners: dict[str, PartView], ids: list[str], spans: int) -> list[np.ndarray]:
    texts = {part: read_texts(part) for part in {owners[key].part for key in ids}}
    known = [texts[owners[key].part][key] for key in ids]
    return query_vectors(searcher.base.dense.encoder, known, spans)


def statuses(folder: Path, generation: Generation, spans: int) -> dict[str, str]:
    """The name of the `Status` of each document that was refined and that a generation stands on, by id.

    folder: that of the writer. Empty where nothing was refined, or with other `spans`.
    """
    return store_of(folder, generation, spans).statuses(token_of(generation))
