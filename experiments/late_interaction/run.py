"""Measure the gain of late interaction in a fusion if the encoder is trained for it.

Late interaction scores a document by the best match of each query token with its token vectors
(MaxSim; Khattab and Zaharia, 2020, ColBERT).

`python -m experiments.late_interaction.run NAME=PROJECT ...` needs projects that were built with
`freshet run` and the settings of `experiments/parts`. It writes `result.json` and the table of
`README.md`. It trains `hce` a second time: a contrastive loss of MaxSim scores is added to its own
loss. Both encoders are compared as components of a fusion, with MaxSim as another component and
without.
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

from experiments.comparison import compare_systems, comparison_cells
from experiments.parts.run import Build, Query, learn, ranked
from experiments.tables import measure_projects
from model_code.encoding.encoder import Encoder, LengthBuckets
from model_code.evaluation.metrics import evaluate_run
from model_code.losses.contrastive import softmax_losses
from model_code.project import Project
from model_code.retrieval.dense_index import DenseIndex
from model_code.retrieval.index_settings import ALWAYS_EXACT, IndexSettings
from model_code.training.batches import TrainingBatch
from model_code.training.fit import load_start_encoder, make_trainer, reusable_vectors
from model_code.training.tables import TrainingTables
from model_code.training.trainer import Objective, Trainer
from orchestration import parameters
from orchestration.pipeline.stage_context import stage_context
from orchestration.pipeline.stages import expand, find

HERE = Path(__file__).parent
METRIC = "nDCG@10"
# Number of documents per query in a run.
DEPTH = 100
RETRIEVERS = ("hce", "bm25", "zero_shot")
PARTS = {"fused": ("hce", "bm25"), "fused with late": ("hce", "bm25", "late")}


def token_vectors(encoder: Encoder, texts: LengthBuckets) -> tuple[Tensor, Tensor, Tensor]:
    """Encode n texts, and keep the vectors of their tokens.

    Args:
        encoder: The encoder.
        texts: Tokenized texts in batches of similar length.

    Returns:
        Vectors (n, H), token vectors (n, T, H), and the mask (n, T) of the tokens.
    """
    vectors = []
    tokens = []
    masks = []
    longest = max(batch["input_ids"].shape[1] for batch in texts.batches)
    for batch in texts.batches:
        ids = batch["input_ids"]
        mask = batch["attention_mask"]
        states = encoder.backbone(input_ids=ids, attention_mask=mask).last_hidden_state.float()
        vectors.append(encoder._to_unit_vectors(encoder._pool(states, mask)))
        # Batches have different lengths, and their tensors are concatenated.
        missing = longest - ids.shape[1]
        tokens.append(pad(normalize(states, dim=-1), (0, 0, 0, missing)))
        masks.append(pad(mask, (0, missing)))

    # The batches are in order of length. `rows` restores the order of the texts.
    rows = texts.rows
    return torch.cat(vectors)[rows], torch.cat(tokens)[rows], torch.cat(masks)[rows].bool()


def max_sim(
    query_tokens: Tensor, query_mask: Tensor, document_tokens: Tensor, document_mask: Tensor
) -> Tensor:
    """Return MaxSim: the cosine of each query token with its nearest document token, as a mean.

    Args:
        query_tokens: Token vectors (Q, T, H).
        query_mask: Mask of the query tokens (Q, T).
        document_tokens: Token vectors (D, S, H).
        document_mask: Mask of the document tokens (D, S).

    Returns:
        Scores (Q, D).
    """
    cosines = torch.einsum("qth,dsh->qdts", query_tokens, document_tokens)
    cosines = cosines.masked_fill(~document_mask[None, :, None], -1.0)
    nearest = cosines.amax(dim=3) * query_mask[:, None]
    return nearest.sum(dim=2) / query_mask.sum(dim=1)[:, None]


class LateObjective(Objective):
    """The sum of the dense loss and a contrastive loss of MaxSim scores."""

    def forward(self, batch: TrainingBatch) -> dict[str, Tensor]:
        """Return the losses of a batch; see `Objective`.

        The passages are encoded once, for both losses.
        """
        queries, query_tokens, query_mask = token_vectors(self.encoder, batch.queries)
        documents, document_tokens, document_mask = token_vectors(self.encoder, batch.documents)
        scores = max_sim(query_tokens, query_mask, document_tokens, document_mask)
        # `_losses` calls `_contrastive`, which needs these scores.
        self._scores = scores / self.settings.temperature
        return self._losses(queries, documents, batch)

    def _contrastive(self, queries: Tensor, documents: Tensor, batch: TrainingBatch) -> Tensor:
        """Return the dense contrastive losses plus those of the MaxSim scores."""
        # Other documents of the batch that are relevant to a query must not be its negatives.
        other_relevant = batch.relevant.clone().fill_diagonal_(False)
        excluded = torch.cat([other_relevant, ~batch.allowed], dim=1)
        late_losses = softmax_losses(self._scores, torch.arange(len(queries)), excluded)
        return super()._contrastive(queries, documents, batch) + late_losses


class LateTrainer(Trainer):
    """A trainer with `LateObjective`. Dense search of dev queries chooses the best step."""

    def _make_objective(self, hierarchy: Any) -> LateObjective:
        return LateObjective(self.encoder, self.settings, hierarchy, self.pair_loss)


def train(root: Path, copy: Path) -> None:
    """Make a copy of a project, and train `hce` in it with both losses.

    Args:
        root: Folder of the project.
        copy: Folder of the copy. All other files in it are links to the project.
    """
    settings = parameters.load(root / "params.yaml")
    _link_project(root, copy)

    (stage,) = find("train@hce", expand(settings.retrievers))
    context = stage_context(
        stage, Project(root), settings, copy / "artifacts/train/hce", copy / "checkpoints"
    )
    training_settings = context.settings["retriever"].training
    training_tables = TrainingTables.load(context)
    encoder = load_start_encoder(context, None)
    data = training_tables.training_data(training_settings)
    dev = training_tables.dev_evaluator(training_settings, context.settings["seed"])
    trainer = make_trainer(LateTrainer, context, encoder, data, training_settings, dev)
    trainer.fit(reusable_vectors(context, encoder, training_tables.corpus))
    encoder.save(context.output / "encoder")

    document_ids = DenseIndex.load(root / "artifacts/index/hce/index").document_ids
    vectors = encoder.eval().encode_documents(indexed_texts(root))
    exact = IndexSettings(flat_below=ALWAYS_EXACT)
    index = DenseIndex.build(vectors, document_ids, encoder.fingerprint(), exact)
    index.save(copy / "artifacts/index/hce/index")


def _link_project(root: Path, copy: Path) -> None:
    """Link settings and artifacts of a project, except those that `train` writes."""
    (copy / "artifacts").mkdir(exist_ok=True)
    for path in (root / "artifacts").iterdir():
        if path.name not in ("train", "index"):
            (copy / "artifacts" / path.name).symlink_to(path)
    (copy / "params.yaml").symlink_to(root / "params.yaml")


def indexed_texts(root: Path) -> list[str]:
    """Return the passages of the project's corpus, as they are indexed."""
    from model_code.corpus.tables import load_corpus, passage_texts

    corpus = load_corpus(root / "artifacts/corpus")
    include_title = parameters.load(root / "params.yaml").encoder.include_title
    return passage_texts(corpus.passages, include_title)


def measure(project: Path) -> dict[str, Any]:
    """Measure fusions of each encoder, and their differences from the fusion without changes.

    Weights are learned on dev queries. Test queries are used once.
    """
    system_scores: dict[str, np.ndarray] = {}
    learned_weights: dict[str, dict[str, float]] = {}
    with TemporaryDirectory() as folder:
        copy = Path(folder)
        train(project, copy)
        for training, root in (("dense loss", project), ("both losses", copy)):
            build = Build(root, copy / "bench", RETRIEVERS)
            dev = build.queries("dev")
            test = build.queries("test")
            for name, components in PARTS.items():
                system = f"{name}, {training}"
                learned_weights[system] = learn(dev, components)
                system_scores[system] = score_queries(test, learned_weights[system])
            # The build is freed, because only one fits into memory.
            del build

    unchanged, *others = system_scores
    differences = {system: system_scores[system] - system_scores[unchanged] for system in others}
    return {
        "dev": len(dev),
        "test": len(test),
        "weights": learned_weights,
        METRIC: {
            system: round(float(scores.mean()), 4) for system, scores in system_scores.items()
        },
        "less the first": compare_systems(differences),
    }


def score_queries(queries: Sequence[Query], weights: Mapping[str, float]) -> np.ndarray:
    """Return nDCG@10 (q,) of each query."""
    run = {}
    qrels = {}
    for number, query in enumerate(queries):
        ranking = []
        for rank, row in enumerate(ranked(query, weights)[:DEPTH]):
            ranking.append((query.documents[row], float(-rank)))
        run[str(number)] = ranking
        qrels[str(number)] = query.relevant
    scores = evaluate_run(run, qrels, [METRIC])[METRIC]
    return np.array([scores[name] for name in qrels])


def tables(result: Mapping[str, Any]) -> str:
    """Return the page's table of each corpus."""
    return "\n".join(_table(corpus, result[corpus]) for corpus in sorted(result))


def _table(corpus: str, result: Mapping[str, Any]) -> str:
    """Return the table of one corpus."""
    lines = [
        f"**{corpus}**, {result['test']:,} test queries, "
        f"weights from {result['dev']:,} dev queries",
        "",
        f"| system | {METRIC} | less the first | p (Holm) |",
        "|---|---|---|---|",
    ]
    for system, mean in result[METRIC].items():
        cells = comparison_cells(result["less the first"].get(system))
        lines.append(f"| {system} | {mean:.4f} {cells}")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    measure_projects(HERE, sys.argv[1:], measure, tables)
