"""Measure the gain of late interaction in a fusion if the encoder is trained for it.

`python -m experiments.late_interaction.run NAME=PROJECT ...` needs `freshet run` in each PROJECT
with the settings of `experiments/parts`. It writes `result.json` and the table of `README.md`. It
trains `hce` once more, with the sum of its own loss and the same contrast of MaxSim scores (Khattab
and Zaharia, 2020, ColBERT). Both encoders are compared below a fusion, with and without MaxSim as a
component.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import normalize, pad

from experiments.parts.run import Build, Query, learn, ranked
from experiments.tables import measure_projects
from model_code.encoding.encoder import Encoder, LengthBuckets
from model_code.evaluation.metrics import evaluate_run
from model_code.evaluation.significance import bootstrap_interval, holm, paired_randomisation_test
from model_code.losses.contrastive import softmax_losses
from model_code.project import Project
from model_code.retrieval.dense_index import DenseIndex
from model_code.retrieval.index_settings import ALWAYS_EXACT, IndexSettings
from model_code.training.batches import TrainingBatch
from model_code.training.fit import load_start_encoder, make_trainer, reusable_vectors
from model_code.training.tables import TrainingTables
from model_code.training.trainer import Objective, Trainer
from orchestration import parameters
from orchestration.pipeline.run_stage import stage_context
from orchestration.pipeline.stages import expand, find

HERE, METRIC = Path(__file__).parent, "nDCG@10"
RETRIEVERS = ("hce", "bm25", "zero_shot")
PARTS = {"fused": ("hce", "bm25"), "fused with late": ("hce", "bm25", "late")}


def token_vectors(encoder: Encoder, texts: LengthBuckets) -> tuple[Tensor, Tensor, Tensor]:
    """Encode n texts as vectors (n, H) and token vectors (n, T, H).

    Also return the mask (n, T) of the tokens.
    """
    vectors, tokens, masks = [], [], []
    longest = max(part["input_ids"].shape[1] for part in texts.batches)
    for part in texts.batches:
        ids, mask = part["input_ids"], part["attention_mask"]
        states = encoder.backbone(input_ids=ids, attention_mask=mask).last_hidden_state.float()
        vectors.append(encoder._to_unit_vectors(encoder._pool(states, mask)))
        tokens.append(pad(normalize(states, dim=-1), (0, 0, 0, longest - ids.shape[1])))
        masks.append(pad(mask, (0, longest - ids.shape[1])))
    return (
        torch.cat(vectors)[texts.rows],
        torch.cat(tokens)[texts.rows],
        torch.cat(masks)[texts.rows].bool(),
    )


def max_sim(queries: Tensor, asked: Tensor, documents: Tensor, held: Tensor) -> Tensor:
    """Return the mean over query tokens of the cosine with the nearest document token.

    Args:
        queries: Token vectors (Q, T, H).
        asked: Mask of the query tokens (Q, T).
        documents: Token vectors (D, S, H).
        held: Mask of the document tokens (D, S).

    Returns:
        Scores (Q, D).
    """
    products = torch.einsum("qth,dsh->qdts", queries, documents).masked_fill(
        ~held[None, :, None], -1.0
    )
    return (products.amax(dim=3) * asked[:, None]).sum(dim=2) / asked.sum(dim=1)[:, None]


class LateObjective(Objective):
    """Sum of the dense loss and the contrast of MaxSim scores from queries to documents."""

    def forward(self, batch: TrainingBatch) -> dict[str, Tensor]:
        """See `Objective`."""
        queries, own, asked = token_vectors(self.encoder, batch.queries)
        documents, others, held = token_vectors(self.encoder, batch.documents)
        self._scores = max_sim(own, asked, others, held) / self.settings.temperature
        return self._losses(queries, documents, batch)

    def _contrastive(self, queries: Tensor, documents: Tensor, batch: TrainingBatch) -> Tensor:
        outside = torch.cat([batch.relevant.clone().fill_diagonal_(False), ~batch.allowed], dim=1)
        late = softmax_losses(self._scores, torch.arange(len(queries)), outside)
        return super()._contrastive(queries, documents, batch) + late


class LateTrainer(Trainer):
    """Trainer with `LateObjective`; the best step is chosen by the dense search of dev queries."""

    def _make_objective(self, hierarchy: Any) -> LateObjective:
        return LateObjective(self.encoder, self.settings, hierarchy, self.pair_loss)


def train(root: Path, aside: Path) -> None:
    """Copy the project to `aside`, with `hce` trained by both losses."""
    settings = parameters.load(root / "params.yaml")
    (stage,) = find("train@hce", expand(settings.retrievers))
    for path in (root / "artifacts").iterdir():
        if path.name not in ("train", "index"):
            (aside / "artifacts").mkdir(exist_ok=True)
            (aside / "artifacts" / path.name).symlink_to(path)
    (aside / "params.yaml").symlink_to(root / "params.yaml")
    context = stage_context(
        stage, Project(root), settings, aside / "artifacts/train/hce", aside / "checkpoints"
    )
    retriever, tables = context.settings["retriever"], TrainingTables.load(context)
    encoder, own = load_start_encoder(context, None), retriever.training
    data, dev = tables.training_data(own), tables.dev_evaluator(own, context.settings["seed"])
    trainer = make_trainer(LateTrainer, context, encoder, data, own, dev)
    trainer.fit(reusable_vectors(context, encoder, tables.corpus))
    encoder.save(context.output / "encoder")
    before = DenseIndex.load(root / "artifacts/index/hce/index")
    vectors = encoder.eval().encode_documents(texts_of(root))
    exact = IndexSettings(flat_below=ALWAYS_EXACT)
    index = DenseIndex.build(vectors, before.document_ids, encoder.fingerprint(), exact)
    index.save(aside / "artifacts/index/hce/index")


def texts_of(root: Path) -> list[str]:
    """Return the passages of the project's corpus, as they are indexed."""
    from model_code.corpus.tables import load_corpus, passage_texts

    corpus = load_corpus(root / "artifacts/corpus")
    return passage_texts(
        corpus.passages, parameters.load(root / "params.yaml").encoder.include_title
    )


def measured(project: Path) -> dict[str, Any]:
    """Measure each training below each fusion, less the unchanged fusion.

    Weights come from dev, and test is used once.
    """
    values: dict[str, np.ndarray] = {}
    learned: dict[str, dict[str, float]] = {}
    with TemporaryDirectory() as folder:
        aside = Path(folder)
        train(project, aside)
        for training, root in (("dense loss", project), ("both losses", aside)):
            build = Build(root, aside / "bench", RETRIEVERS)
            dev, test = build.queries("dev"), build.queries("test")
            for name, parts in PARTS.items():
                system = f"{name}, {training}"
                learned[system] = learn(dev, parts)
                values[system] = scores(test, learned[system])
            del build
    first, *others = values
    columns = np.column_stack([values[name] - values[first] for name in others])
    low, high = bootstrap_interval(columns, 2000, 0.95, 0)
    p = holm(paired_randomisation_test(columns, 10_000, 0))
    rows = zip(others, columns.mean(axis=0), low, high, p, strict=True)
    return {
        "dev": len(dev),
        "test": len(test),
        "weights": learned,
        METRIC: {system: round(float(own.mean()), 4) for system, own in values.items()},
        "less the first": {name: [round(float(one), 4) for one in row] for name, *row in rows},
    }


def scores(queries: Sequence[Query], weights: Mapping[str, float]) -> np.ndarray:
    """Return nDCG@10 (q,) of each query."""
    run = {
        str(number): [
            (query.documents[row], float(-rank))
            for rank, row in enumerate(ranked(query, weights)[:100])
        ]
        for number, query in enumerate(queries)
    }
    qrels = {str(number): query.relevant for number, query in enumerate(queries)}
    found = evaluate_run(run, qrels, [METRIC])[METRIC]
    return np.array([found[name] for name in qrels])


def tables(result: Mapping[str, Any]) -> str:
    """Return the page's table of each corpus."""
    return "\n".join(_table(corpus, own) for corpus, own in sorted(result.items()))


def _table(corpus: str, own: Mapping[str, Any]) -> str:
    lines = [
        f"**{corpus}**, {own['test']:,} test queries, weights from {own['dev']:,} dev queries",
        "",
        f"| system | {METRIC} | less the first | p (Holm) |",
        "|---|---|---|---|",
    ]
    for system, value in own[METRIC].items():
        difference, low, high, p = own["less the first"].get(system, [None] * 4)
        cells = (
            "| | |"
            if difference is None
            else f"| {difference:+.4f} [{low:+.4f}, {high:+.4f}] | {p:.4f} |"
        )
        lines.append(f"| {system} | {value:.4f} {cells}")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    measure_projects(HERE, sys.argv[1:], measured, tables)
