"""Compare the binary token index and BM25 with bm25s on the same texts.

The rows cover building with tokenising, searching, and size. Texts are SQuAD's paragraphs if the
data sets are available (`FRESHET_DATA`, else `../shared/data`), first of its dev part and then all.
Otherwise they are the docstrings of the standard library, numpy and pandas. Queries are judged
questions, weighted and expanded as by a lexical encoder.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.encoding import BASE
from benchmarks.measurement import median_seconds, row, row_below, seconds
from model_code.corpus.settings import CorpusSettings
from model_code.corpus.sources.base import open_source
from model_code.lexical.token_index.bags import Bags, TokenBags
from model_code.lexical.token_index.index import TokenIndex
from model_code.lexical.token_index.postings import PARTS, Sparse
from model_code.retrieval.bm25_index import Bm25Index
from model_code.retrieval.index_settings import Bm25Settings
from model_code.text.terms import get_analyzer

SQUAD = (
    Path(os.environ.get("FRESHET_DATA", Path(__file__).parents[1] / ".." / "shared" / "data"))
    / "squad"
)
PACKAGES = ("stdlib", "numpy", "pandas")
# Tokens used by a search, tokens of a query, documents per search.
KEPT, WIDE, DEPTH = 32, 128, 100
MOST_BYTES = 1.5
# Accepted ratio to bm25s for BM25 on the same terms.
SLOWER = 1 / 1.2
# Size of the sample that estimates the time of encoding all texts.
ENCODED = 200
# Queries compared with a product over all postings, which is slow.
CHECKED = 50


@dataclass(frozen=True)
class Texts:
    """Documents, and questions (text, id of a document that answers it)."""

    name: str
    ids: list[str]
    texts: list[str]
    questions: list[tuple[str, str]]


def rows(
    data: Path | None = None, base: str | Path = BASE, questions: int = 200, repeats: int = 12
) -> list[dict[str, Any]]:
    """Return all rows, as medians over `repeats` rounds, and a quarter as many for building.

    A ratio of 1 is level with bm25s, which drops stop words and searches with the question's own
    words.

    Args:
        questions: Number of queries.
        repeats: Rounds of each row.
        data: Another folder in BEIR layout.
        base: Model whose tokenizer is used.
    """
    from model_code.encoding.base_models import load_tokenizer, locate_model

    tokenizer = load_tokenizer(locate_model(base))
    found = []
    for texts in _collections(data):
        found += _compare(texts, tokenizer, questions, repeats)
        found.append(_first_search(texts, TokenBags(tokenizer), base))
        found += _bm25(texts, questions, repeats)
    return found


def _compare(texts: Texts, tokenizer: Any, questions: int, repeats: int) -> list[dict[str, Any]]:
    import bm25s

    chosen = np.random.default_rng(0).permutation(len(texts.questions))[:questions]
    asked = [texts.questions[i] for i in np.sort(chosen)]
    # A new tokenizer per build, because a used one has cached words.
    makers = [TokenBags(tokenizer) for _ in range(repeats // 4 + 2)]
    unused = iter(makers)
    building = median_seconds(
        [lambda: _build(texts, next(unused)), lambda: _build_peer(texts.texts)], repeats // 4 + 1
    )
    index, peer, bags = _build(texts, makers[0]), _build_peer(texts.texts), makers[0](texts.texts)
    wide = make_queries(bags, texts.ids, asked, makers[0])
    narrow = heaviest(wide)
    words = bm25s.tokenize([text for text, _ in asked], return_ids=False, show_progress=False)
    depth = min(DEPTH, len(texts.ids))
    tasks: list[Callable[[], Any]] = [
        lambda: index.search(narrow, depth),
        lambda: [index.search([query], depth) for query in narrow],
        lambda: index.search(wide, depth),
        lambda: peer.retrieve(words, k=depth, show_progress=False),
        lambda: [peer.retrieve([query], k=depth, show_progress=False) for query in words],
    ]
    spent = median_seconds(tasks, repeats)
    ours, ours_single, ours_wide, theirs, theirs_single = (len(asked) / each for each in spent)
    size = f"{texts.name}, {len(texts.ids):,} texts"
    built = [len(texts.ids) / seconds for seconds in building]
    return [
        row(f"{size}: documents/s built, tokenising included, against bm25s", *built, goal=1.0),
        row(
            f"{size}: queries/s in a batch, {KEPT} tokens, against bm25s on the question",
            ours,
            theirs,
            goal=1.0,
        ),
        row(f"{size}: queries/s one at a time, the same", ours_single, theirs_single, goal=1.0),
        row(
            f"{size}: queries/s in a batch, all {WIDE} tokens, the same",
            ours_wide,
            theirs,
            goal=0.5,
        ),
        *_checks(size, index, bags, wide[:CHECKED], depth),
    ]


def _bm25(texts: Texts, questions: int, repeats: int) -> list[dict[str, Any]]:
    """Compare BM25 with bm25s on the same terms, including stemming on both sides."""
    import bm25s

    settings, depth = Bm25Settings(), min(DEPTH, len(texts.ids))
    terms = get_analyzer(settings.language)
    asked = [text for text, _ in texts.questions[:questions]]

    def build_peer() -> Any:
        peer = bm25s.BM25(k1=settings.k1, b=settings.b, method="lucene")
        peer.index(list(map(terms.analyze, texts.texts)), show_progress=False)
        return peer

    built = median_seconds(
        [lambda: Bm25Index.build(texts.texts, texts.ids, settings), build_peer], repeats // 4 + 1
    )
    index, peer = Bm25Index.build(texts.texts, texts.ids, settings), build_peer()
    spent = median_seconds(
        [
            lambda: index.search(asked, depth),
            lambda: peer.retrieve(list(map(terms.analyze, asked)), k=depth, show_progress=False),
            lambda: [index.search([text], depth) for text in asked],
            lambda: [
                peer.retrieve([terms.analyze(text)], k=depth, show_progress=False) for text in asked
            ],
        ],
        repeats,
    )
    size = f"{texts.name}, {len(texts.ids):,} texts, BM25 against bm25s on the same terms"
    (ours, theirs, ours_single, theirs_single) = (len(asked) / seconds for seconds in spent)
    return [
        row(
            f"{size}: documents/s built",
            *(len(texts.ids) / seconds for seconds in built),
            goal=SLOWER,
        ),
        row(f"{size}: queries/s in a batch", ours, theirs, goal=SLOWER),
        row(f"{size}: queries/s one at a time", ours_single, theirs_single, goal=SLOWER),
    ]


def _first_search(texts: Texts, tokens_of: TokenBags, base: str | Path) -> dict[str, Any]:
    """Compare the time from texts to the first answer with the time of encoding.

    A sample estimates the time of encoding.
    """
    from model_code.encoding.encoder import Encoder

    started = time.perf_counter()
    index = _build(texts, tokens_of)
    question = np.unique(tokens_of([texts.questions[0][0]]).tokens)
    index.search([(question, np.ones(len(question), np.float32))], DEPTH)
    ours = time.perf_counter() - started
    sample = texts.texts[:: -(-len(texts.texts) // ENCODED)]
    encoder = Encoder.load(base, for_search=True)
    # Warm-up: the first call loads libraries.
    encoder.encode_passages(sample[:8])
    theirs = seconds(lambda: encoder.encode_passages(sample)) * len(texts.texts) / len(sample)
    size = f"{texts.name}, {len(texts.ids):,} texts"
    what = f"{size}: seconds to the first answer, against encoding them"
    return row_below(f"{what} (by {len(sample)})", ours, theirs)


def _checks(
    size: str, index: TokenIndex, bags: Bags, wide: list[Sparse], depth: int
) -> list[dict[str, Any]]:
    """Return the rows that do not depend on time."""
    narrow = heaviest(wide)
    by_few, by_all = (index.search(queries, depth) for queries in (narrow, wide))
    few = exhaustive(narrow, bags, index.ids.document_ids, depth)
    whole = exhaustive(wide, bags, index.ids.document_ids, depth)
    arrays = [getattr(block.packed, part) for block in index.blocks for part in PARTS]
    bytes_per_posting = sum(array.nbytes for array in arrays) / index.postings
    fits = {
        "ratio": MOST_BYTES / bytes_per_posting,
        "goal": 1.0,
        "met": bytes_per_posting <= MOST_BYTES,
    }
    what = f"{size}: recall@{depth} of"
    return [
        row(
            f"{what} {KEPT} tokens, against a product over all postings",
            recall(by_few, few),
            1.0,
            goal=0.99,
        ),
        row(f"{what} {WIDE} tokens, the same", recall(by_all, whole), 1.0, goal=0.99),
        row(f"{what} {KEPT} tokens, against all {WIDE}", recall(by_few, whole), 1.0, goal=0.99),
        {
            "what": f"{size}: bytes per posting, at most",
            "ours": bytes_per_posting,
            "peer": MOST_BYTES,
            **fits,
        },
    ]


def make_queries(
    bags: Bags, ids: Sequence[str], asked: Sequence[tuple[str, str]], tokens_of: TokenBags
) -> list[Sparse]:
    """Return `WIDE` tokens for each question.

    They are its own tokens and tokens of the text that answers it and of two random texts. Rare
    tokens and the question's own come first. The weight at rank r is 5.8 (1 + r / 4)^-.43. This is
    the median of the weights that a closed-form lexical encoder on MiniLM gave to 200 questions of
    SQuAD, within 8 % from rank 0 to 127.
    """
    chance = np.random.default_rng(1)
    ends = np.cumsum(bags.lengths)
    places = {name: i for i, name in enumerate(ids)}
    questions = tokens_of([text for text, _ in asked])
    queries = []
    most = max(int(part.tokens.max(initial=0)) for part in (bags, questions))
    held = np.bincount(
        np.unique(bags.tokens * len(bags) + bags.passages) // len(bags), minlength=most + 1
    )
    for number, (_, document) in enumerate(asked):
        own = np.unique(questions.slice(number, number + 1).tokens)
        texts = [places[document], *chance.integers(len(ids), size=2)]
        related = [bags.tokens[ends[text] - bags.lengths[text] : ends[text]] for text in texts]
        tokens = np.unique(np.concatenate([own, *related]))
        rarity = np.log((len(ids) + 1) / (held[tokens] + 0.5)).astype(np.float32)
        rarity = np.where(np.isin(tokens, own), rarity, rarity * chance.random(len(tokens)) / 2)
        chosen = tokens[np.argsort(-rarity, kind="stable")[:WIDE]]
        queries.append(
            (chosen, (5.8 * (1 + np.arange(len(chosen)) / 4) ** -0.43).astype(np.float32))
        )
    return queries


def heaviest(queries: Sequence[Sparse]) -> list[Sparse]:
    """Return the first `KEPT` tokens of each query, which are its heaviest."""
    return [(tokens[:KEPT], weights[:KEPT]) for tokens, weights in queries]


def exhaustive(queries: Sequence[Sparse], bags: Bags, ids: Sequence[str], k: int) -> list[set[str]]:
    """Return the k best documents of each query from all postings, without an index."""
    keys = np.unique(bags.tokens * len(bags) + bags.passages)
    tokens, passages = np.divmod(keys, len(bags))
    by_id, found = np.argsort(np.argsort(np.array(ids))), []
    for query in queries:
        weights = np.zeros(1 + max(int(tokens.max()), int(query[0].max())))
        weights[query[0]] = query[1]
        scores = np.bincount(passages, weights[tokens], len(bags)).astype(np.float32)
        best = np.lexsort((by_id, -scores))[:k]
        found.append({ids[passage] for passage in best.tolist() if scores[passage] > 0})
    return found


def recall(rankings: Sequence[Sequence[tuple[str, float]]], true: Sequence[set[str]]) -> float:
    """Return the share of the true documents in the rankings, mean over the queries."""
    shares = [
        len(dict(ranking).keys() & wanted) / len(wanted)
        for ranking, wanted in zip(rankings, true, strict=True)
        if wanted
    ]
    return float(np.mean(shares))


def _build(texts: Texts, tokens_of: TokenBags) -> TokenIndex:
    return TokenIndex.build(tokens_of(texts.texts), texts.ids)


def _build_peer(texts: list[str]) -> Any:
    import bm25s

    peer = bm25s.BM25()
    peer.index(bm25s.tokenize(texts, show_progress=False), show_progress=False)
    return peer


def _collections(data: Path | None) -> list[Texts]:
    if data is None and not SQUAD.is_dir():
        return [
            _read(
                "docstrings", CorpusSettings(source="installed_packages", packages=PACKAGES), Path()
            )
        ]
    folder = data or SQUAD
    everything = _read(folder.name, CorpusSettings(source="beir", path=folder.name), folder.parent)
    if data is not None:
        return [everything]
    answering = {document for _, document in everything.questions}
    pairs = [
        pair for pair in zip(everything.ids, everything.texts, strict=True) if pair[0] in answering
    ]
    part = Texts("squad dev", *map(list, zip(*pairs, strict=True)), everything.questions)
    return [part, everything]


def _read(name: str, settings: CorpusSettings, root: Path) -> Texts:
    """Read the documents, and the questions of the last judged split (SQuAD: dev)."""
    source = open_source(settings, root)
    documents = {line.values["id"]: line.values["text"] for line in source.rows("documents")}
    questions = {line.values["id"]: line.values["text"] for line in source.rows("queries")}
    judged = [line.values for line in source.rows("qrels")]
    last = judged[-1].get("split")
    pairs = [
        (questions[one["query_id"]], one["document_id"])
        for one in judged
        if one.get("split") == last
    ]
    return Texts(name, list(documents), list(documents.values()), pairs)
