"""Queries written by a sequence-to-sequence model, as by docT5query (Nogueira and Lin 2019).

IncDSI and HCE (+QG) train on such queries. Every query is sampled with separate random numbers, so
that it does not depend on its batch, up to rounding. The queries of finished documents are kept in
the checkpoints folder. An interrupted run continues from there, and gives the same result. A saved
model contains no paths and versions of the machine that made it.
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
KIND = "sequence_to_sequence"
# Number of documents whose queries one checkpoint file holds.
DOCUMENTS_PER_CHECKPOINT = 64


def load_sequence_model(
    source: str | Path, revision: str | None = None, dtype: torch.dtype = torch.float32
) -> Loaded:
    """Load a model with `AutoModelForSeq2SeqLM`, in evaluation mode.

    Args:
        source: A folder, or a name on the hub.
        revision: Commit or branch on the hub.
        dtype: Type of the weights.

    Raises:
        FreshetError: If the model cannot be loaded.
    """
    revision = revision or "main"
    try:
        with silence_transformers():
            model = AutoModelForSeq2SeqLM.from_pretrained(source, revision=revision, dtype=dtype)
            tokenizer = AutoTokenizer.from_pretrained(source, revision=revision)
    except (OSError, ValueError) as error:
        reason = str(error).strip().splitlines()[0]
        raise FreshetError(
            f"{str(source)!r} is no sequence-to-sequence model that can be loaded here ({reason}); "
            "name a folder or, with access to the hub, a hub model"
        ) from error
    return model.eval(), tokenizer


def save_sequence_model(model: Any, tokenizer: Any, folder: Path, section_tokens: int) -> None:
    """Write a folder that `AutoModelForSeq2SeqLM` loads.

    Equal models give equal bytes, and nothing is pickled.
    """
    with silence_transformers():
        model.save_pretrained(folder)
    for path in (folder / "config.json", folder / "generation_config.json"):
        write_json(path, _without_machine_keys(read_json(path)))
    save_tokenizer(tokenizer, folder, section_tokens)


def require_positions(model: Any, section_tokens: int, max_query_tokens: int) -> None:
    """Check that a model has positions for the longest texts.

    Relative positions, as in T5, have no limit.

    Raises:
        SettingsError: If the model has too few positions.
    """
    _require_positions(model.get_encoder(), "section_tokens", section_tokens)
    _require_positions(model.get_decoder(), "max_query_tokens", max_query_tokens)


def _require_positions(submodel: Any, name: str, tokens: int) -> None:
    """Check that an encoder or decoder has positions for the number of tokens in a setting.

    Args:
        submodel: The encoder or the decoder.
        name: Name of the setting.
        tokens: Value of the setting.

    Raises:
        SettingsError: If the submodel has fewer positions.
    """
    limit = getattr(submodel.config, "max_position_embeddings", None) or tokens
    require(
        tokens <= limit,
        f"pseudo_queries.sequence_to_sequence.{name} is {tokens}, but the model has {limit} "
        f"positions; lower {name}",
    )


def _without_machine_keys(config: Any) -> Any:
    """Return a configuration without paths and versions, at any depth."""
    if not isinstance(config, dict):
        return config
    kept: dict[str, Any] = {}
    for key, value in config.items():
        if key not in MACHINE_KEYS:
            kept[key] = _without_machine_keys(value)
    return kept


def sections_of(tokenizer: Any, documents: list[str], max_tokens: int) -> list[list[list[int]]]:
    """Cut documents into sections of at most `max_tokens` tokens.

    Returns:
        The sections of each document, each one a list of token ids.
    """
    encoded = tokenizer(
        documents, truncation=True, max_length=max_tokens, return_overflowing_tokens=True
    )
    # The tokenizer returns the sections of all documents, and the document of each section.
    document_numbers = encoded["overflow_to_sample_mapping"]
    sections: list[list[list[int]]] = [[] for _ in documents]
    for number, ids in zip(document_numbers, encoded["input_ids"], strict=True):
        sections[int(number)].append(ids)
    return sections


class UnwrittenQuery(NamedTuple):
    """A query that the model has still to generate.

    Attributes:
        document_id: Id of the document.
        ordinal: Number of the query among the queries of the document, from 0.
        section: Index of the section (piece of the document) that the query is generated from, in
            the list of the sections of all documents.
    """

    document_id: str
    ordinal: int
    section: int


class SequenceToSequence:
    """Samples queries from a model that reads one section of a document at a time.

    Args:
        model: A transformers model.
        tokenizer: The tokenizer of the model.
        settings: Number and lengths of the queries, and how tokens are sampled.
    """

    def __init__(self, model: Any, tokenizer: Any, settings: SequenceToSequenceSettings) -> None:
        self.model = model.eval()
        self.tokenizer = tokenizer
        self.settings = settings

    @classmethod
    def load(
        cls, settings: SequenceToSequenceSettings, trained: Path | None = None, device: str = "auto"
    ) -> SequenceToSequence:
        """Load the model that the settings name.

        The weights are in bfloat16 on a GPU that supports it, and in float32 otherwise.

        Args:
            settings: Name of the model.
            trained: Folder of the model that the stage `query_generator` has trained.
            device: Name of the device, see `EncoderSettings`.

        Raises:
            FreshetError: If the settings name the trained model and there is none.
        """
        source: str | Path = settings.model
        if settings.model == TRAINED:
            if trained is None or not trained.is_dir():
                raise FreshetError(
                    'sequence_to_sequence.model is "trained", but no generator was trained; set '
                    "pseudo_queries.training.base, and run the stage query_generator"
                )
            source = trained

        target = pick_device(device)
        dtype = torch.float32
        if target.type == "cuda" and has_bfloat16(target):
            dtype = torch.bfloat16
        model, tokenizer = load_sequence_model(source, settings.revision, dtype)
        require_positions(model, settings.section_tokens, settings.max_query_tokens)
        return cls(model.to(target), tokenizer, settings)

    def generate(
        self,
        documents: Mapping[str, str],
        seed: int,
        checkpoints: Path,
        progress: Progress = no_progress,
    ) -> list[PseudoQuery]:
        """Generate queries for documents; for the arguments see `InverseCloze.generate`.

        The queries of each chunk of documents are written to a checkpoint file. Its name is a hash
        of the settings, the seed and the documents, so that a changed run does not read it.
        """
        ids = sorted(documents)
        queries: list[PseudoQuery] = []
        for start in range(0, len(ids), DOCUMENTS_PER_CHECKPOINT):
            end = min(start + DOCUMENTS_PER_CHECKPOINT, len(ids))
            chunk = {document_id: documents[document_id] for document_id in ids[start:end]}
            key = hash_text(canonical_json([self.settings.model_dump(), seed, chunk]))
            path = checkpoints / f"{KIND}-{key[:32]}.json"
            if not path.exists():
                write_json(path, self._write_queries(chunk, seed))
            for document_id, text in read_json(path):
                queries.append(PseudoQuery(document_id, text, KIND))
            progress(end, len(ids), "documents")
        return queries

    def _write_queries(self, chunk: Mapping[str, str], seed: int) -> list[tuple[str, str]]:
        """Generate the queries of some documents.

        Args:
            chunk: Text by document id.
            seed: The project's seed.

        Returns:
            Document id and text of each query.
        """
        sections, drafts = self._sections(chunk)
        size = self.settings.batch_size
        queries: list[tuple[str, str]] = []
        for start in range(0, len(drafts), size):
            batch = drafts[start : start + size]
            texts = self._sample(batch, sections, seed)
            for draft, text in zip(batch, texts, strict=True):
                queries.append((draft.document_id, text.strip()))
        return queries

    def _sections(self, chunk: Mapping[str, str]) -> tuple[list[list[int]], list[UnwrittenQuery]]:
        """Cut documents into sections, and plan from which section each query is generated.

        The model reads one section at a time, because its input is limited. The queries of a
        document are spread evenly over its sections.

        Args:
            chunk: Text by document id.

        Returns:
            The token ids of all sections, and the queries to generate, document by document.
        """
        per_document = self.settings.per_document
        sections_by_document = sections_of(
            self.tokenizer, list(chunk.values()), self.settings.section_tokens
        )
        sections: list[list[int]] = []
        drafts: list[UnwrittenQuery] = []
        for document, document_sections in zip(chunk, sections_by_document, strict=True):
            first_section = len(sections)
            for ordinal in range(per_document):
                section = first_section + ordinal * len(document_sections) // per_document
                drafts.append(UnwrittenQuery(document, ordinal, section))
            sections.extend(document_sections)
        return sections, drafts

    @torch.no_grad()
    def _sample(
        self, batch: Sequence[UnwrittenQuery], sections: list[list[int]], seed: int
    ) -> list[str]:
        """Let the model generate the text of each query of a batch, by random sampling.

        The model reads one section of a document, a piece of limited length, and generates a query
        that the section may answer. Several queries may be generated from the same section.

        Args:
            batch: The queries to generate. Each names its section.
            sections: Token ids of all sections.
            seed: The project's seed.

        Returns:
            The text of each query.
        """
        # The encoder reads each section only once, even if several queries are generated from it.
        needed = sorted({draft.section for draft in batch})
        section_ids = [sections[section] for section in needed]
        padded = self.tokenizer.pad({"input_ids": section_ids}, return_tensors="pt")
        padded = padded.to(self.model.device)
        # The sections as the encoder has read them, (sections, tokens, hidden). The decoder
        # generates a query from the states of one section.
        states = self.model.get_encoder()(
            input_ids=padded["input_ids"], attention_mask=padded["attention_mask"]
        ).last_hidden_state

        # Each query of the batch is generated from one section. This is the section's row in
        # `states`. A row repeats if several queries have the same section.
        rows = torch.tensor([needed.index(draft.section) for draft in batch], device=states.device)
        sampler = GumbelTopK(self._noise(batch, seed), self.settings.temperature)
        tokens = self.model.generate(
            encoder_outputs=BaseModelOutput(last_hidden_state=states[rows]),
            attention_mask=padded["attention_mask"][rows],
            max_new_tokens=self.settings.max_query_tokens,
            do_sample=False,
            num_beams=1,
            logits_processor=LogitsProcessorList([sampler]),
        )
        return self.tokenizer.batch_decode(tokens, skip_special_tokens=True)

    def _noise(self, batch: Sequence[UnwrittenQuery], seed: int) -> torch.Tensor:
        """Return the random numbers by which the tokens of each query are sampled.

        Each query has a separate seed, so its text does not depend on the other queries of a batch.

        Returns:
            Gumbel(0, 1) noise, float64 (queries, steps, top_k).
        """
        vocabulary = len(self.model.get_output_embeddings().weight)
        shape = (self.settings.max_query_tokens, min(self.settings.top_k, vocabulary))
        draws = []
        for draft in batch:
            query_seed = derive_seed(seed, KIND, draft.document_id, draft.ordinal)
            generator = torch.Generator().manual_seed(query_seed)
            draws.append(torch.rand(shape, generator=generator, dtype=torch.float64))
        # The logarithm of 0 is not finite, so 0 is replaced.
        uniform = torch.stack(draws).clamp_min(1e-300)
        return -torch.log(-torch.log(uniform))


class GumbelTopK(LogitsProcessor):
    """Turns greedy decoding into sampling from the k most probable tokens, with given noise.

    The argmax of logits / temperature + Gumbel noise is a sample from the softmax of logits /
    temperature (Gumbel-max trick). The tokens of a query therefore depend only on its noise.

    Args:
        noise: Gumbel(0, 1) noise, (queries, steps, k).
        temperature: Divisor of the logits.
    """

    def __init__(self, noise: torch.Tensor, temperature: float) -> None:
        self.noise = noise
        self.temperature = temperature
        self.step = 0

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        """Return scores, (queries, vocabulary), whose argmax is the sampled token.

        Tokens outside of the top k have minus infinity.
        """
        values, tokens = scores.double().topk(self.noise.shape[-1])
        noisy = values / self.temperature + self.noise[:, self.step].to(values.device)
        self.step += 1
        impossible = torch.full_like(scores, -torch.inf)
        return impossible.scatter(1, tokens, noisy.to(scores.dtype))
