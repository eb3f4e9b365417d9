"""Measure the gain of late interaction in a fusion, with judgements and without.

`python -m experiments.late_interaction.signs NAME=PROJECT ...` needs the stage `corpus`, and
`train@hce` to include `hce`. It writes `signs.json` and the third table of `README.md`. Each
encoder is fused with BM25 as in the stage `fuse`, once with dev queries and once with default
weights, as if no query were judged. Vectors and tokens of passages come from the project's stage
`base_index` or `index@hce`, if it has run with late interaction.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from experiments.late_interaction.run import HERE, METRIC
from model_code.context import StageContext
from model_code.corpus.tables import Judgements, load_corpus, passage_texts
from model_code.encoding.encoder import Encoder
from model_code.encoding.token_signs import SIGNS_FILE
from model_code.evaluation.metrics import evaluate_run
from model_code.evaluation.significance import bootstrap_interval, holm, paired_randomisation_test
from model_code.files import read_json, write_json, write_text
from model_code.retrieval import bm25
from model_code.retrieval.dense_index import DenseIndex
from model_code.retrieval.fused import FusedSearch
from model_code.retrieval.index_settings import ALWAYS_EXACT, IndexSettings
from model_code.retrieval.indexed import IndexedRetriever, NewPassages
from model_code.retrieval.kinds import open_retriever
from model_code.retrieval.protocol import LATE_SUFFIX
from model_code.retriever_settings import FusionSettings
from model_code.stages.baselines import UNTRAINED
from model_code.stages.evaluation_set import EvaluationSet
from model_code.stages.fusion import MIN_LEARNING_QUERIES, FusionBuilder
from orchestration import parameters

LATER = ", late"
# Systems that are compared.
PLAIN, DEFAULT = "untrained, default, no feedback", "untrained, default" + LATER
START, END = "<!-- signs -->\n", "<!-- end of signs -->\n"


class Corpus:
    """A project's corpus, with its passages indexed by encoders and by BM25 in `aside`."""

    def __init__(self, root: Path, aside: Path) -> None:
        settings = parameters.load(root / "params.yaml")
        own = {
            "encoder": settings.encoder,
            "evaluation": settings.evaluation.replace(max_queries=None),
        }
        self.context = StageContext(root, {"corpus": root / "artifacts/corpus"}, aside, own, aside)
        self.bench = EvaluationSet.load(self.context)
        passages = load_corpus(root / "artifacts/corpus").passages
        self.texts = passage_texts(passages, settings.encoder.include_title)
        self.ids = passages["document_id"].tolist()
        self.aside = aside
        self.sizes: dict[str, int] = {}
        folders = aside / "bm25" / "encoder", aside / "bm25" / "index"
        bm25.build_folders(NewPassages(self.texts, self.ids), settings.bm25, *folders)
        self.bm25 = open_retriever(*folders)
        trained = root / "artifacts/train/hce/encoder"
        self.encoders = {"untrained": None} | ({"hce": trained} if trained.is_dir() else {})
        self.built = {
            "untrained": root / "artifacts/base_index/index",
            "hce": root / "artifacts/index/hce",
        }

    def encoded(self, name: str) -> IndexedRetriever:
        """Return the passages encoded with tokens, from the project if it has them."""
        settings, folder, built = (
            self.context.settings["encoder"],
            self.aside / name,
            self.built[name],
        )
        Encoder.from_settings(settings, self.encoders[name]).save(folder / "encoder")
        if (built / SIGNS_FILE).is_file():
            return open_retriever(folder / "encoder", built)
        encoder = Encoder.load(folder / "encoder", for_search=True)
        vectors, tokens = encoder.encode_passages_with_tokens(self.texts, partial(told, name))
        exact = IndexSettings(flat_below=ALWAYS_EXACT)
        DenseIndex.build(vectors, self.ids, encoder.fingerprint(), exact, tokens=tokens).save(
            folder / "index"
        )
        return open_retriever(folder / "encoder", folder / "index")

    def judged(self, dev: bool) -> EvaluationSet:
        """Return the data that systems are compared on; `dev` has known queries."""
        none = Judgements({}, {}, None)
        return (
            self.bench
            if dev
            else replace(self.bench, judgements=dict(self.bench.judgements) | {"dev": none})
        )

    def systems(self) -> Iterator[tuple[str, np.ndarray, dict[str, float]]]:
        """Return each system's name, its scores (q,) of the test queries, and its weights."""
        for name in self.encoders:
            opened = {name: self.encoded(name), "bm25": self.bm25}
            held = {part: self.bench.strip_query_lines(own) for part, own in opened.items()}
            tokens = opened[name].dense.index.tokens
            self.sizes[name] = tokens.bits.nbytes + tokens.starts.nbytes
            feedback = UNTRAINED.feedback if name == "untrained" else 0.0
            ways = ["dev"] * (len(self.bench.judgements["dev"].queries) >= MIN_LEARNING_QUERIES)
            ways += ["default"] * (name == "untrained")
            asked = [
                (f"{name}, {by}{late}", by, feedback, late) for by in ways for late in ("", LATER)
            ]
            asked += [(PLAIN, "default", 0.0, "")] * (name == "untrained")
            for system, by, share, late in asked:
                names = [name, "bm25", *([name + LATE_SUFFIX] if late else [])]
                settings = FusionSettings(of=(name, "bm25"), feedback=share)
                builder = FusionBuilder(self.judged(by == "dev"), opened, settings, held)
                fusion, _ = builder.fuse(names)
                yield system, self.scores(FusedSearch(held, fusion)), dict(fusion.weights)

    def scores(self, search: FusedSearch) -> np.ndarray:
        """Return the main metric of each test query."""
        test = self.bench.judgements["test"]
        runs = dict(zip(test.queries, search.search(list(test.queries.values()), 100), strict=True))
        found = evaluate_run(runs, test.qrels, [METRIC])[METRIC]
        return np.array([found[query] for query in test.queries])


def told(name: str, done: int, total: int, _: str = "") -> None:
    """Print the progress of the encoding."""
    if done % 1000 < 8 or done == total:
        print(f"{name}: {done:,}/{total:,}", file=sys.stderr, flush=True)


def measured(root: Path) -> dict[str, Any]:
    """Measure all systems, and the gain of late interaction in each, over queries."""
    with TemporaryDirectory() as aside:
        corpus = Corpus(root, Path(aside))
        found = {name: (values, weights) for name, values, weights in corpus.systems()}
        sizes = {name: size / len(set(corpus.ids)) for name, size in corpus.sizes.items()}
    pairs = {
        name: (found[name + LATER][0] - found[name][0]) for name in found if name + LATER in found
    }
    pairs[PLAIN] = found[DEFAULT][0] - found[PLAIN][0]
    columns = np.column_stack(list(pairs.values()))
    low, high = bootstrap_interval(columns, 2000, 0.95, 0)
    p = holm(paired_randomisation_test(columns, 10_000, 0))
    gains = zip(pairs, columns.mean(axis=0), low, high, p, strict=True)
    return {
        "test": len(columns),
        "bytes a document": {name: round(size) for name, size in sizes.items()},
        METRIC: {name: round(float(values.mean()), 4) for name, (values, _) in found.items()},
        "weights": {name: weights for name, (_, weights) in found.items()},
        "gain": {name: [round(float(one), 4) for one in row] for name, *row in gains},
    }


def table(result: Mapping[str, Any]) -> str:
    """Return the page's third table."""
    lines = [
        f"| corpus, test queries | encoder, weights by | {METRIC} | late | gain | p (Holm) | "
        "bytes a document |"
    ]
    lines.append("|---|---|---|---|---|---|---|")
    for corpus, own in sorted(result.items()):
        for name, (gain, low, high, p) in own["gain"].items():
            means = " | ".join(
                f"{own[METRIC][one]:.4f}"
                for one in (name, DEFAULT if name == PLAIN else name + LATER)
            )
            size = own["bytes a document"][name.partition(",")[0]]
            change = f"{gain:+.4f} [{low:+.4f}, {high:+.4f}] | {p:.4f}"
            lines.append(f"| {corpus}, {own['test']:,} | {name} | {means} | {change} | {size:,} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    path, page = HERE / "signs.json", HERE / "README.md"
    for argument in sys.argv[1:]:
        corpus, _, project = argument.partition("=")
        known = read_json(path) if path.is_file() else {}
        write_json(path, known | {corpus: measured(Path(project).resolve())})
    before, _, rest = page.read_text().partition(START)
    write_text(
        page, before + START + "\n" + table(read_json(path)) + "\n" + END + rest.partition(END)[2]
    )
