"""IncDSI's protocol on a dated collection: documents up to a day are old, later ones are added in every known way.

`python -m model_code.benchmarks.incdsi_frontier FOLDER --new-from 2025-01-01` prints a Markdown table for a folder in
BEIR layout whose documents have a `date`. Old pages are represented by the mean of their train queries, and new
pages bring theirs; pages without any are their own query. A tenth of the new pages, by the hash of their id, is the
tuning split, with its dev and test queries and the old pages' dev queries; what is reported are the test queries of the
rest, of old and new pages apart. With `--written`, parts of the texts stand in for all train queries.
"""

from __future__ import annotations

import argparse
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np

from model_code.additions.texts import constraint_texts
from model_code.benchmarks.encode import BASE
from model_code.benchmarks.incdsi_spaces import SPACES, own_vectors
from model_code.corpus.settings import CorpusSettings
from model_code.corpus.sources.base import open_source
from model_code.files import canonical_json, hash_text, replacing
from model_code.incdsi.documents import NewDocument
from model_code.incdsi.frontier import BEST, Point, frontier
from model_code.incdsi.settings import IncDsiSettings
from model_code.incdsi.state import IncDsiState
from model_code.incdsi.trials import Split, TrialBench
from model_code.settings import require

TUNING_PART, SAMPLES = 10, 2000
Asked = Mapping[str, Sequence[int]]  # the rows of a document's queries


@dataclass(frozen=True, eq=False)
class Pages:
    """Documents, of which those from row `first_new` on are new, their queries, and by split which ask for which."""

    ids: list[str]
    texts: list[str]
    first_new: int
    queries: list[str]
    asked: Mapping[str, Asked]
    written: Sequence[str] = ()  # queries made of the texts, whose rows follow those of `queries`

    def with_written(self, spans: int = 4) -> Pages:
        """The same documents, whose train queries are parts of their texts: what is known where nobody has asked."""
        parts = [constraint_texts("", text, spans) for text in self.texts]
        ends = np.cumsum([len(own) for own in parts]) + len(self.queries)
        train = {key: range(end - len(own), end) for key, own, end in zip(self.ids, parts, ends.tolist(), strict=True)}
        return replace(self, asked={**self.asked, "train": train}, written=[one for own in parts for one in own])

    @classmethod
    def read(cls, folder: Path, new_from: str) -> Pages:
        """Read a BEIR folder; documents in order of date. SettingsError unless some are old and some are new."""
        source = open_source(CorpusSettings(source="beir", path=folder.name), folder.parent)
        documents = [line.values for line in source.rows("documents")]
        dates = [str(one.get("date", "")) for one in documents]
        order = sorted(range(len(documents)), key=lambda row: dates[row])
        first = sum(date < new_from for date in dates)
        require(0 < first < len(order), f"{folder}: no document has a date on one side of {new_from}")
        queries = {line.values["id"]: line.values["text"] for line in source.rows("queries")}
        number = {name: row for row, name in enumerate(queries)}
        asked: dict[str, dict[str, list[int]]] = {}
        for line in source.rows("qrels"):
            of = asked.setdefault(line.values["split"], {})
            of.setdefault(line.values["document_id"], []).append(number[line.values["query_id"]])
        ids = [documents[row]["id"] for row in order]
        texts = [f"{documents[row]['title']} {documents[row]['text']}".strip() for row in order]
        return cls(ids, texts, first, list(queries.values()), asked)

    def of(self, ids: Sequence[str], *splits: str) -> tuple[np.ndarray, list[str]]:
        """Rows (m) of the queries of `ids` in `splits`, and the document of each (m)."""
        found = [(row, one) for split in splits for one in ids for row in self.asked.get(split, {}).get(one, ())]
        return np.array([row for row, _ in found], np.int64), [one for _, one in found]


@dataclass(frozen=True, eq=False)
class Encoded:
    """Unit vectors (n, H) of the documents and (m, H) of the queries of `pages`."""

    pages: Pages
    documents: np.ndarray
    queries: np.ndarray

    def state(self, space: str, seed: int = 0) -> IncDsiState:
        """The old documents, with the vectors of a space."""
        pages, count = self.pages, self.pages.first_new
        rows, owners = pages.of(pages.ids[:count], "train")
        number = {name: row for row, name in enumerate(pages.ids[:count])}
        targets = np.array([number[one] for one in owners], np.int64)
        vectors = SPACES[space](self.documents[:count], self.queries[rows], targets, seed)
        return IncDsiState(vectors, np.stack([self.asks(row).mean(axis=0) for row in range(count)]), pages.ids[:count])

    def split(self, new: Sequence[int], old_split: str, *new_splits: str) -> Split:
        """The documents of the rows `new`, to be found by the queries of `new_splits`."""
        pages = self.pages
        old, old_targets = pages.of(pages.ids[: pages.first_new], old_split)
        asked, targets = pages.of([pages.ids[row] for row in new], *new_splits)
        documents = [NewDocument(pages.ids[row], self.asks(row), self.documents[row]) for row in new]
        return Split(documents, self.queries[old], old_targets, self.queries[asked], targets)

    def asks(self, row: int) -> np.ndarray:
        """A page's train queries, or itself where it has none: (m, H)."""
        own = self.pages.asked.get("train", {}).get(self.pages.ids[row], ())
        return self.queries[list(own)] if own else self.documents[row : row + 1]

    def splits(self) -> tuple[Split, Split]:
        """The tuning split and the test split."""
        new = range(self.pages.first_new, len(self.pages.ids))
        tuning = [row for row in new if zlib.crc32(self.pages.ids[row].encode()) % TUNING_PART == 0]
        rest = sorted(set(new) - set(tuning))
        return self.split(tuning, "dev", "dev", "test"), self.split(rest, "test", "test")


def encode(pages: Pages, base: str | Path = BASE, max_tokens: int = 128, cache: Path | None = None) -> Encoded:
    """Encode documents and queries; vectors are kept in the folder `cache`, if one is given."""
    texts = (pages.texts, pages.queries, pages.written)
    documents, queries, written = (_vectors(own, base, max_tokens, cache) for own in texts)
    return Encoded(pages, documents, np.concatenate([queries, written]))


def _vectors(texts: Sequence[str], base: str | Path, max_tokens: int, cache: Path | None) -> np.ndarray:
    from model_code.encoding.encoder import Encoder

    file = cache and cache / f"{hash_text(canonical_json([list(texts), str(base), max_tokens]))[:16]}.npy"
    if file and file.exists():
        return np.load(file)
    vectors = Encoder.load(base, max_tokens, for_search=True).encode(texts)
    if file:
        file.parent.mkdir(parents=True, exist_ok=True)
        with replacing(file) as aside, aside.open("wb") as stream:
            np.save(stream, vectors)
    return vectors


Difference = tuple[float, float, float]
"""A mean difference and the bounds of its interval."""


@dataclass(frozen=True)
class Compared:
    """A point, and for the best settings of a method its difference to the plain encoding on old and on new queries.

    Differences are of MRR@10 with every document added, in the order of the file, each with the 95 % interval of a
    paired bootstrap over the queries.
    """

    point: Point
    old: Difference | None = None
    new: Difference | None = None


def compare(
    encoded: Encoded, space: str, trials: int = 50, orders: int = 10, seed: int = 0, steps: Sequence[int] = ()
) -> list[Compared]:
    """Every way of adding in the vectors of `space`, with all settings chosen on the tuning split."""
    state, (tuning, test) = encoded.state(space, seed), encoded.splits()
    points = frontier(state, tuning, test, trials=trials, orders=orders, steps=steps, seed=seed)
    bench, differences = TrialBench(state, test), {}
    plain = _ranks(bench, points[0].settings)
    for settings in dict.fromkeys(point.settings for point in points if point.chosen_for == BEST):
        own = _ranks(bench, settings)
        differences[settings] = tuple(_difference(*pair) for pair in zip(own, plain, strict=True))
    none = (None, None)
    return [Compared(point, *(differences[point.settings] if point.chosen_for == BEST else none)) for point in points]


def _ranks(bench: TrialBench, settings: IncDsiSettings) -> tuple[np.ndarray, np.ndarray]:
    added = bench.add(settings)
    return bench.ranks.reciprocal_ranks(np.stack([one.vector for one in added]))


def _difference(ours: np.ndarray, plain: np.ndarray) -> Difference:
    """The mean difference and its 95 % interval, by resampling the queries."""
    change, random = ours - plain, np.random.default_rng(0)
    means = [change[random.integers(len(change), size=len(change))].mean() for _ in range(SAMPLES)]
    low, high = np.quantile(means, [0.025, 0.975])
    return float(change.mean()), float(low), float(high)


def table(found: Sequence[Compared], purposes: Sequence[str] | None = (BEST,)) -> str:
    """Markdown rows, one per point of `purposes` (None: of all), ready for a document."""
    head = (
        "| way of adding | chosen for | added | old hit@1, hit@10, MRR@10 | new hit@1, hit@10, MRR@10 "
        "| old MRR@10 against plain | new MRR@10 against plain |\n|---|---|---|---|---|---|---|"
    )
    chosen = [one for one in found if purposes is None or one.point.chosen_for in purposes]
    return "\n".join([head, *map(_line, chosen)])


def _line(one: Compared) -> str:
    point = one.point
    qualities = [f"{q.hit_at_1:.3f}, {q.hit_at_10:.3f}, {q.mrr_at_10:.3f}" for q in (point.old, point.new)]
    changes = ["" if of is None else f"{of[0]:+.3f} [{of[1]:+.3f}, {of[2]:+.3f}]" for of in (one.old, one.new)]
    return f"| {' | '.join([point.method, point.chosen_for, str(point.added), *qualities, *changes])} |"


def main() -> None:
    """Read the command line, measure, print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--new-from", default="2025-01-01")
    parser.add_argument("--space", choices=list(SPACES), default=own_vectors.__name__)
    parser.add_argument("--trials", type=int, default=50)
    parser.add_argument("--orders", type=int, default=10)
    parser.add_argument("--cache", type=Path, help="keep encoded texts in this folder")
    parser.add_argument("--written", action="store_true", help="represent documents by parts of their texts")
    given = parser.parse_args()
    pages = Pages.read(given.folder, given.new_from)
    encoded = encode(pages.with_written() if given.written else pages, cache=given.cache)
    say = partial(print, flush=True)
    tuning, test = encoded.splits()
    say(f"{encoded.pages.first_new} old documents, {len(tuning.documents)} to tune on, {len(test.documents)} to test;")
    say(f"test queries: {len(test.old_queries)} for old, {len(test.new_queries)} for new documents\n")
    found = compare(encoded, given.space, given.trials, given.orders)
    before = found[0].point.before
    say(f"before any addition: {before.hit_at_1:.3f}, {before.hit_at_10:.3f}, {before.mrr_at_10:.3f}\n")
    say(table(found, None))
    for settings in dict.fromkeys(one.point.settings for one in found if one.point.chosen_for == BEST):
        say(settings)


if __name__ == "__main__":
    main()
