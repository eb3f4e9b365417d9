"""Queries written by a sequence-to-sequence model, as docT5query does (Nogueira and Lin, 2019;
IncDSI and HCE's +QG).

Every query is sampled with random numbers of its own, so it does not depend on its batch (up to
rounding). Finished chunks of documents lie in the checkpoints folder, from which a killed run goes
on to the same result. Any model can be loaded; one is saved without a trace of the machine that
made it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer, LogitsProcessor, LogitsProcessorList
from transformers.modeling_outputs import BaseModelOutput

from model_code.encoding.base_models import MACHINE_KEYS, save_tokenizer, silence_transformers
from model_code.encoding.hardware import has_bfloat16, pick_device
from model_code.errors import FreshetError
from model_code.files import canonical_json, hash_text, read_json, write_json
from model_code.progress import Progress, no_progress
from model_code.queries.pseudo_queries import PseudoQuery, derive_seed
from model_code.queries.settings import TRAINED, SequenceToSequenceSettings
from model_code.settings import require

Loaded = tuple[Any, Any]
"""A transformers model and its tokenizer."""


def load_sequence_model(
    source: str | Path, revision: str | None = None, dtype: torch.dtype = torch.float32
) -> Loaded:
    """Load a folder or hub name with `AutoModelForSeq2SeqLM`, for evaluation; FreshetError if that
    is not possible.
    """
    try:
        with silence_transformers():
            model = AutoModelForSeq2SeqLM.from_pretrained(
                source, revision=revision or "main", dtype=dtype
            )
            tokenizer = AutoTokenizer.from_pretrained(source, revision=revision or "main")
    except (OSError, ValueError) as error:
        reason = str(error).strip().splitlines()[0]
        raise FreshetError(
            f"{str(source)!r} is no sequence-to-sequence model that can be loaded here ({reason}); name a folder or, "
            "with access to the hub, a hub model"
        ) from error
    return model.eval(), tokenizer


def save_sequence_model(model: Any, tokenizer: Any, folder: Path, section_tokens: int) -> None:
    """Write a folder that `AutoModelForSeq2SeqLM` loads; equal models give equal bytes, nothing is
    pickled.
    """
    with silence_transformers():
        model.save_pretrained(folder)
    for path in (folder / "config.json", folder / "generation_config.json"):
        write_json(path, _without_machine(read_json(path)))
    save_tokenizer(tokenizer, folder, section_tokens)


def require_positions(model: Any, section_tokens: int, max_query_tokens: int) -> None:
    """SettingsError if the model has fewer positions than texts have tokens; relative ones, as
    T5's, have no limit.
    """
    limits = {"section_tokens": (model.get_encoder(), section_tokens)}
    limits["max_query_tokens"] = (model.get_decoder(), max_query_tokens)
    for name, (part, tokens) in limits.items():
        positions = getattr(part.config, "max_position_embeddings", None) or tokens
        rule = f"is {tokens}, but the model has {positions} positions; lower {name}"
        require(tokens <= positions, f"pseudo_queries.sequence_to_sequence.{name} {rule}")


def _without_machine(config: Any) -> Any:
    """The same mapping, and all in it, without paths and versions."""
    if not isinstance(config, dict):
        return config
    return {
        key: _without_machine(value) for key, value in config.items() if key not in MACHINE_KEYS
    }


KIND = "sequence_to_sequence"
CHUNK = 64  # documents per checkpoint file


def sections_of(tokenizer: Any, documents: list[str], most: int) -> list[list[list[int]]]:
    """The sections of each document, of at most `most` tokens, as token ids."""
    encoded = tokenizer(documents, truncation=True, max_length=most, return_overflowing_tokens=True)
    sections: list[list[list[int]]] = [[] for _ in documents]
    for document, ids in zip(
        encoded["overflow_to_sample_mapping"], encoded["input_ids"], strict=True
    ):
        sections[int(document)].append(ids)
    return sections


class UnwrittenQuery(NamedTuple):
    """A query still to be written: which of its document's how many-th, from which section (row of
    token ids).
    """

    document_id: str
    ordinal: int
    section: int


class SequenceToSequence:
    """Samples queries from a model that reads a document's sections one at a time."""

    def __init__(self, model: Any, tokenizer: Any, settings: SequenceToSequenceSettings) -> None:
        self.model, self.tokenizer, self.settings = model.eval(), tokenizer, settings

    @classmethod
    def load(
        cls, settings: SequenceToSequenceSettings, trained: Path | None = None, device: str = "auto"
    ) -> SequenceToSequence:
        """Load the model that `settings` names: in bfloat16 on a GPU that has it, else in float32.

        trained: the folder of the model that is called "trained". device: see `EncoderSettings`.
        """
        source: str | Path = settings.model
        if settings.model == TRAINED:
            if trained is None or not trained.is_dir():
                raise FreshetError(
                    'sequence_to_sequence.model is "trained", but no generator was; set pseudo_queries.training.base, '
                    "and run the stage query_generator"
                )
            source = trained
        place = pick_device(device)
        dtype = torch.bfloat16 if place.type == "cuda" and has_bfloat16(place) else torch.float32
        model, tokenizer = load_sequence_model(source, settings.revision, dtype)
        require_positions(model, settings.section_tokens, settings.max_query_tokens)
        return cls(model.to(place), tokenizer, settings)

    def generate(
        self,
        documents: Mapping[str, str],
        seed: int,
        checkpoints: Path,
        progress: Progress = no_progress,
    ) -> list[PseudoQuery]:
        """See `InverseCloze.generate`. Checkpoints are named by a hash of all that their content
        depends on.
        """
        ids, queries = sorted(documents), []
        for start in range(0, len(ids), CHUNK):
            chunk = {i: documents[i] for i in ids[start : start + CHUNK]}
            key = hash_text(canonical_json([self.settings.model_dump(), seed, chunk]))
            finished = checkpoints / f"{KIND}-{key[:32]}.json"
            if not finished.exists():
                write_json(finished, self._write_queries(chunk, seed))
            queries += [PseudoQuery(document, text, KIND) for document, text in read_json(finished)]
            progress(min(start + CHUNK, len(ids)), len(ids), "documents")
        return queries

    def _write_queries(self, chunk: Mapping[str, str], seed: int) -> list[tuple[str, str]]:
        sections, drafts = self._sections(chunk)
        written: list[tuple[str, str]] = []
        for start in range(0, len(drafts), self.settings.batch_size):
            batch = drafts[start : start + self.settings.batch_size]
            texts = self._sample(batch, sections, seed)
            written += [
                (draft.document_id, text.strip()) for draft, text in zip(batch, texts, strict=True)
            ]
        return written

    def _sections(self, chunk: Mapping[str, str]) -> tuple[list[list[int]], list[UnwrittenQuery]]:
        count, sections, drafts = (
            self.settings.per_document,
            list[list[int]](),
            list[UnwrittenQuery](),
        )
        each = sections_of(self.tokenizer, list(chunk.values()), self.settings.section_tokens)
        for document, group in zip(chunk, each, strict=True):
            drafts += [
                UnwrittenQuery(document, j, len(sections) + j * len(group) // count)
                for j in range(count)
            ]
            sections += group
        return sections, drafts

    @torch.no_grad()
    def _sample(
        self, batch: Sequence[UnwrittenQuery], sections: list[list[int]], seed: int
    ) -> list[str]:
        needed = sorted({draft.section for draft in batch})
        padded = self.tokenizer.pad(
            {"input_ids": [sections[s] for s in needed]}, return_tensors="pt"
        )
        padded = padded.to(self.model.device)
        states = self.model.get_encoder()(
            input_ids=padded["input_ids"],
            attention_mask=padded["attention_mask"],
            # (sections, tokens, hidden): each section is read once, however many queries it gets
        ).last_hidden_state
        rows = torch.tensor([needed.index(draft.section) for draft in batch], device=states.device)
        tokens = self.model.generate(
            encoder_outputs=BaseModelOutput(last_hidden_state=states[rows]),
            attention_mask=padded["attention_mask"][rows],
            max_new_tokens=self.settings.max_query_tokens,
            do_sample=False,
            num_beams=1,
            logits_processor=LogitsProcessorList(
                [GumbelTopK(self._noise(batch, seed), self.settings.temperature)]
            ),
        )
        return self.tokenizer.batch_decode(tokens, skip_special_tokens=True)

    def _noise(self, batch: Sequence[UnwrittenQuery], seed: int) -> torch.Tensor:
        vocabulary = len(self.model.get_output_embeddings().weight)
        shape = (self.settings.max_query_tokens, min(self.settings.top_k, vocabulary))
        seeds = (derive_seed(seed, KIND, draft.document_id, draft.ordinal) for draft in batch)
        draws = [
            torch.rand(shape, generator=torch.Generator().manual_seed(s), dtype=torch.float64)
            for s in seeds
        ]
        # (queries, steps, top_k), Gumbel(0, 1)
        return -torch.log(-torch.log(torch.stack(draws).clamp_min(1e-300)))


class GumbelTopK(LogitsProcessor):
    """Turns greedy decoding into sampling from the `k` most probable tokens, with noise that is
    given beforehand.

    The argmax of logits / temperature + Gumbel noise is a sample of their softmax (Gumbel-max
    trick), so each query's tokens depend on its own noise alone. `noise`: (queries, steps, k),
    Gumbel(0, 1).
    """

    def __init__(self, noise: torch.Tensor, temperature: float) -> None:
        self.noise, self.temperature, self.step = noise, temperature, 0

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        """The scores (queries, vocabulary) to take the argmax of: minus infinity outside of the top
        k.
        """
        values, tokens = scores.double().topk(self.noise.shape[-1])
        noisy = values / self.temperature + self.noise[:, self.step].to(values.device)
        self.step += 1
        return torch.full_like(scores, -torch.inf).scatter(1, tokens, noisy.to(scores.dtype))
