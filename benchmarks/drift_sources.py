"""Documents with queries that the drift benches compare: those of a home, and others from elsewhere.

Home are docstrings of some packages. From elsewhere come neighbouring packages, and a jargon that no encoder ever saw:
docstrings and their summaries with exchanged letters. Where there is a folder of data sets, also its `tldr` and
`scifact`, and a second home: tldr's early pages, with its latest ones from elsewhere. Each document comes with a query
that people wrote, its summary or a judged one, and gets one more that is cut out of its text.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from model_code.corpus.settings import CorpusSettings
from model_code.corpus.sources.base import open_source
from model_code.errors import FreshetError
from model_code.queries.pseudo_queries import InverseCloze
from model_code.queries.settings import PseudoQuerySettings

HOME, NEIGHBOURS, JARGON = ("stdlib", "numpy", "pandas"), ("scipy", "matplotlib"), ("sklearn",)
SETS, BY_DATE = ("tldr", "scifact"), "tldr"  # folders of data sets in BEIR layout
OTHER_LETTERS = str.maketrans("aeioubcdfghjklmnpqrstvwxyz", "eiouadfghjklmnpqrstvwxyzbc")
Pairs = list[tuple[str, str]]  # documents, each with a query that people wrote for it
Triples = list[tuple[str, str, str]]  # documents, each with a query that was cut out of it, and the written one


@dataclass(frozen=True, eq=False)
class Vectors:
    """Unit vectors (n, H) of documents, and for each of one query that was made from it and one that was written.

    made: (0, H) where nobody asks for them.
    """

    documents: np.ndarray
    made: np.ndarray
    asked: np.ndarray

    def __getitem__(self, rows: np.ndarray | slice) -> Vectors:
        return Vectors(self.documents[rows], self.made[rows], self.asked[rows])


@dataclass(frozen=True)
class Plan:
    """How much is simulated: `splits` of the home documents, and `repeats` batches of each share and split.

    more_splits: for batches without a shift alone. False alarms are rare, and batches of one split are no independent
    draws: a share of .083 over 12 splits was one of .043 over 60 others.
    """

    reference: int = 1500
    batch: int = 100
    per_source: int = 300
    splits: int = 12
    more_splits: int = 48
    repeats: int = 4
    draws: int = 399
    max_tokens: int = 64


def studies(data: Path | None, plan: Plan) -> Iterator[tuple[str, Pairs, dict[str, Pairs]]]:
    """Names of references, their documents, and by name those from elsewhere."""
    elsewhere = {name: _some(_docstrings((name,)), plan) for name in NEIGHBOURS}
    plain = _some(_docstrings(JARGON), plan)
    elsewhere["jargon"] = [(_in_jargon(text), _in_jargon(query)) for text, query in plain]
    sets = {name: _read(CorpusSettings(source="beir", path=name), data) for name in SETS} if data else {}
    elsewhere |= {name: _some(pairs, plan) for name, pairs in sets.items()}
    yield "docstrings", _docstrings(HOME), elsewhere
    if BY_DATE in sets:
        early = sets[BY_DATE][: 2 * plan.reference]  # in order of date
        yield f"early {BY_DATE}", early, {f"latest {BY_DATE}": sets[BY_DATE][-plan.per_source :]}


def with_made(pairs: Pairs) -> Triples:
    """The documents that are long enough to cut a query out of, with it."""
    cloze = InverseCloze("short_cloze", PseudoQuerySettings().short_cloze)
    return [(text, span, query) for text, query in pairs for span in cloze.spans(text, text, seed=0)[:1]]


def encode(encoder: Any, triples: Triples, made: bool = True) -> Vectors:
    """One encoder gives them all. made: False leaves out the queries that were cut out."""
    documents, cut, asked = (list(texts) for texts in zip(*triples, strict=True))
    return Vectors(*(encoder.encode(texts) for texts in (documents, cut if made else [], asked)))


def mixed(home: Vectors, away: Vectors, share: float, size: int, chance: np.random.Generator) -> Vectors:
    """A batch of which a share is from `away`, drawn by chance; refuses sources that are too small."""
    shifted = round(share * size)
    if len(away.documents) < shifted or len(home.documents) < size - shifted:
        raise FreshetError(
            f"a batch of {size} needs as many documents; a source has {len(away.documents)} with a query"
        )
    counted = ((away, shifted), (home, size - shifted))
    parts = [one[chance.permutation(len(one.documents))[:count]] for one, count in counted]
    return Vectors(
        *(np.concatenate(one) for one in zip(*((one.documents, one.made, one.asked) for one in parts), strict=True))
    )


def _docstrings(packages: tuple[str, ...]) -> Pairs:
    return _read(CorpusSettings(source="installed_packages", packages=packages), Path())


def _read(settings: CorpusSettings, root: Path) -> Pairs:
    source = open_source(settings, root)
    queries = {line.values["id"]: line.values["text"] for line in source.rows("queries")}
    asked = {line.values["document_id"]: queries[line.values["query_id"]] for line in source.rows("qrels")}
    documents = (line.values for line in source.rows("documents"))
    return [(f"{one['title']} {one['text']}", asked[one["id"]]) for one in documents if one["id"] in asked]


def _some(pairs: Pairs, plan: Plan) -> Pairs:
    return [pairs[i] for i in np.random.default_rng(0).permutation(len(pairs))[: plan.per_source]]


def _in_jargon(text: str) -> str:
    return text.lower().translate(OTHER_LETTERS)
