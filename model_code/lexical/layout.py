"""Creation of untrained lexical encoders, and saving and loading of trained ones.

sentence-transformers can load a saved folder: `SparseEncoder(folder, trust_remote_code=True)`. The
folder itself holds the transformer, with its decoder if it is a masked language model. The weights
of the head are in `1_LexicalHead/`, and the head's code is in `outside.py`. Only this project reads
`lexical.json`.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn.functional import normalize

from model_code.encoding.base_models import (
    load_tokenizer,
    load_transformer,
    locate_model,
    read_layout,
    save_tokenizer,
    save_transformer,
)
from model_code.encoding.encoder import CPU_BATCH_TOKENS, pad
from model_code.encoding.hardware import (
    limit_primitive_caches,
    pack_linear_layers,
    pick_device,
    select_packing,
)
from model_code.encoding.settings import EncoderSettings, Precision
from model_code.encoding.tokens import token_batches
from model_code.errors import FreshetError
from model_code.files import read_json, write_json
from model_code.lexical.encoder import (
    ClosedFormBody,
    ClosedFormHead,
    LexicalConfig,
    LexicalEncoder,
    MaskedModel,
    inverse_document_frequencies,
    load_masked_model,
    ridge_transform,
)
from model_code.lexical.settings import LexicalSettings

CONFIG = "lexical.json"
HEAD = "1_LexicalHead"
CODE = "outside.py"

# Norm of the closed-form head's features. A larger one gives sparser weights with higher peaks.
CLOSED_FORM_SCALE = 16.0
# Bias of a token with idf 0 in the closed-form head: its logit at cosine 0.
CLOSED_FORM_BIAS = -12.0
# Number of sampled passages whose tokens the ridge regression of the closed-form head reads.
CLOSED_FORM_PASSAGES = 400
# Penalty of the ridge regression, as a share of the hidden states' mean square. It is needed
# because the dimensions of hidden states are correlated.
CLOSED_FORM_RIDGE = 0.01
# Part of the random seed that makes the sample of passages independent of other random choices.
SAMPLE_STREAM = 17


def start_encoder(
    encoder: EncoderSettings, settings: LexicalSettings, texts: Sequence[str], seed: int
) -> LexicalEncoder:
    """Return the lexical encoder that training starts from.

    A base encoder that is a masked language model keeps its head. Any other base encoder gets a
    closed-form head.

    Args:
        encoder: Settings of the base encoder.
        settings: Numbers of weights that are kept.
        texts: Passages of the corpus, from which a closed-form head is solved.
        seed: Seed of the sample of passages.

    Raises:
        FreshetError: If the base cannot be loaded, or allows no head.
    """
    layout = read_layout(locate_model(encoder.base))
    architectures = read_json(layout.transformer / "config.json").get("architectures") or []
    has_own_head = any(name.endswith("ForMaskedLM") for name in architectures)
    head = "mlm" if has_own_head else "closed_form"
    config = LexicalConfig(
        head=head,
        scale=CLOSED_FORM_SCALE,
        punctuation=False,
        index_top_k=settings.index_top_k,
        query_top_k=settings.query_top_k,
    )
    device = pick_device(encoder.device)
    limit = encoder.max_tokens
    # The arguments of `LexicalEncoder` that do not depend on the head.
    options = (load_tokenizer(layout.transformer), config, limit, encoder.precision)

    if has_own_head:
        model = load_masked_model(layout.transformer, limit)
        return _on_masked_model(model, *options).to(device).eval()
    backbone = load_transformer(layout.transformer, limit).to(device).eval()
    return _start_closed_form(backbone, texts, seed, *options)


def _start_closed_form(
    backbone: Any,
    texts: Sequence[str],
    seed: int,
    tokenizer: Any,
    config: LexicalConfig,
    *options: Any,
) -> LexicalEncoder:
    """Solve for a closed-form head on the backbone's device; see `model_code.lexical.encoder`.

    Args:
        backbone: A transformer.
        texts: Passages. W is computed from `CLOSED_FORM_PASSAGES` of them, and the idf from all.
        seed: Seed of the sample of passages.
        tokenizer: Tokenizer of the backbone.
        config: Configuration of the encoder.
        options: Further arguments of `LexicalEncoder`.

    Raises:
        FreshetError: If word embeddings and hidden states differ in width, or no text contains a
            token that may have a weight.
    """
    embeddings = backbone.get_input_embeddings().weight.detach()
    width = embeddings.shape[1]
    if width != backbone.config.hidden_size:
        raise FreshetError(
            f"the base's word embeddings have {width} dimensions and its hidden states "
            f"{backbone.config.hidden_size}, but a closed-form head needs as many of both; name "
            "another encoder.base"
        )
    # The encoder is made with zeros, because its tokenizer tells which tokens each text has. The
    # values of the head are set below.
    body = ClosedFormBody(backbone, ClosedFormHead(width, config.scale))
    bias = nn.Parameter(torch.zeros(len(embeddings)))
    rows = nn.Parameter(torch.zeros_like(embeddings), requires_grad=False)
    encoder = LexicalEncoder(body, rows, bias, tokenizer, config, *options).to(embeddings.device)

    bags = encoder.bags(texts)
    if not any(len(bag) for bag in bags):
        raise FreshetError(
            "no passage holds a token of the encoder's "
            "vocabulary, so there is nothing to start from"
        )
    order = np.random.default_rng([seed, SAMPLE_STREAM]).permutation(len(texts))
    sample = np.sort(order[:CLOSED_FORM_PASSAGES])
    with torch.no_grad():
        mean_embedding = embeddings[~encoder.blocked].mean(dim=0)
        rows.copy_(normalize(embeddings - mean_embedding, dim=1))
        pairs = _token_pairs(encoder, [texts[row] for row in sample])
        body.head.transform.weight.copy_(ridge_transform(pairs, CLOSED_FORM_RIDGE))
        idf = inverse_document_frequencies(bags, len(embeddings))
        encoder.bias.copy_(torch.from_numpy(idf) + CLOSED_FORM_BIAS)
    return encoder.eval()


@torch.no_grad()
def _token_pairs(encoder: LexicalEncoder, texts: Sequence[str]) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield the last hidden states and decoder rows, (n, H) each, of tokens that may have a weight.

    Each item covers one batch of texts.
    """
    ids = encoder.token_ids(texts)
    lengths = [len(row) for row in ids]
    for group in token_batches(lengths, CPU_BATCH_TOKENS):
        batch = pad([ids[row] for row in group], encoder.tokenizer.pad_token_id or 0)
        tokens = batch["input_ids"].to(encoder.device)
        mask = batch["attention_mask"].to(encoder.device)
        hidden = encoder.backbone(input_ids=tokens, attention_mask=mask).last_hidden_state
        may_weigh = (mask == 1) & ~encoder.blocked[tokens]
        yield hidden[may_weigh], encoder.decoder[tokens[may_weigh]]


def save_encoder(encoder: LexicalEncoder, folder: Path) -> None:
    """Write an encoder to a folder, without pickle. Equal encoders give equal bytes."""
    folder.mkdir(parents=True, exist_ok=True)
    if isinstance(encoder.body, MaskedModel):
        # The saved model has its decoder, so that other libraries can load it.
        encoder.body.set_decoder(encoder.body.decoder)
        save_transformer(encoder.body.model, folder)
        encoder.body.set_decoder(nn.Identity())
    else:
        save_transformer(encoder.backbone, folder)

    save_tokenizer(encoder.tokenizer, folder, encoder.max_tokens)
    config = asdict(encoder.config)
    config["max_tokens"] = encoder.max_tokens
    write_json(folder / CONFIG, config)
    _save_head(encoder, folder / HEAD)
    _write_modules(encoder, folder)


def load_encoder(
    folder: Path,
    max_tokens: int | None = None,
    precision: Precision = "auto",
    device: str = "auto",
    for_search: bool = False,
) -> LexicalEncoder:
    """Load an encoder that `save_encoder` wrote.

    Args:
        folder: The folder.
        max_tokens: Number of tokens to which longer texts are cut. None: the saved number. Another
            number changes the fingerprint.
        precision: Number format of matrix products when texts are encoded.
        device: auto, cpu, cuda, ...
        for_search: Whether the encoder will not be trained. Its weights are then packed by
            `hardware.pack_linear_layers`; see `Encoder.load`.

    Raises:
        FreshetError: If the folder holds no lexical encoder.
    """
    if not (folder / CONFIG).is_file():
        raise FreshetError(
            f"{folder} holds no lexical encoder ({CONFIG} is missing); train the retriever again"
        )
    values = read_json(folder / CONFIG)
    saved_limit = values.pop("max_tokens")
    limit = max_tokens or saved_limit
    config = LexicalConfig(**values)
    weights = load_file(folder / HEAD / "model.safetensors")
    # The arguments of `LexicalEncoder` that do not depend on the head.
    options = (load_tokenizer(folder), config, limit, precision)

    if config.head == "mlm":
        encoder = _on_masked_model(load_masked_model(folder, limit), *options)
        # Biases are saved beside the model only if its decoder has none.
        if "bias" in weights:
            encoder.bias.data.copy_(weights["bias"])
    else:
        decoder = nn.Parameter(weights["decoder"], requires_grad=False)
        bias = nn.Parameter(weights["bias"])
        head = ClosedFormHead(decoder.shape[1], config.scale)
        head.transform.weight.data.copy_(weights["transform"])
        body = ClosedFormBody(load_transformer(folder, limit), head)
        encoder = LexicalEncoder(body, decoder, bias, *options)

    encoder.to(pick_device(device)).eval()
    if for_search:
        limit_primitive_caches()
        packed_type = select_packing(precision, encoder.device)
        if packed_type:
            pack_linear_layers(encoder.body, packed_type)
    return encoder


def _on_masked_model(model: MaskedModel, *options: Any) -> LexicalEncoder:
    """Build an encoder that uses the decoder and the biases of a masked language model.

    Args:
        model: The masked language model. Its decoder is read from `model.decoder`.
        options: Further arguments of `LexicalEncoder`.
    """
    decoder = model.decoder
    bias = decoder.bias
    if bias is None:
        bias = nn.Parameter(decoder.weight.new_zeros(len(decoder.weight)))
    return LexicalEncoder(model, decoder.weight, bias, *options)


def _save_head(encoder: LexicalEncoder, folder: Path) -> None:
    """Write the weights of the head that are not part of the transformer's files.

    A masked language model contains its own head, except for biases that its decoder may lack.
    """
    folder.mkdir(exist_ok=True)
    vocabulary_size, hidden = encoder.decoder.shape
    weights = {"blocked": encoder.blocked}
    config = {
        "head": encoder.config.head,
        "scale": encoder.config.scale,
        "hidden": hidden,
        "vocabulary": vocabulary_size,
    }
    if not isinstance(encoder.body, MaskedModel):
        weights["decoder"] = encoder.decoder
        weights["bias"] = encoder.bias
        weights["transform"] = encoder.body.head.transform.weight
    elif encoder.body.decoder.bias is None:
        weights["bias"] = encoder.bias
        config["biased"] = True

    tensors = {name: weight.detach().cpu().contiguous() for name, weight in weights.items()}
    save_file(tensors, folder / "model.safetensors")
    write_json(folder / "config.json", config)


def _write_modules(encoder: LexicalEncoder, folder: Path) -> None:
    """Write the configuration and the code with which sentence-transformers loads a folder."""
    modules = [
        {
            "idx": 0,
            "name": "0",
            "path": "",
            "type": "sentence_transformers.base.modules.transformer.Transformer",
        },
        {"idx": 1, "name": "1", "path": HEAD, "type": "outside.LexicalHead"},
    ]
    write_json(folder / "modules.json", modules)

    task = "fill-mask" if encoder.config.head == "mlm" else "feature-extraction"
    transformer = {
        "transformer_task": task,
        "max_seq_length": encoder.max_tokens,
        "do_lower_case": False,
    }
    write_json(folder / "sentence_bert_config.json", transformer)

    config = {
        "similarity_fn_name": "dot",
        "max_active_dims": encoder.config.index_top_k,
        "model_type": "SparseEncoder",
    }
    write_json(folder / "config_sentence_transformers.json", config)
    shutil.copyfile(Path(__file__).with_name(CODE), folder / CODE)
