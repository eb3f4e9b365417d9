"""Lexical encoders from and to folders: a base encoder to start from, and the layout that a trained
one is saved in.

A saved folder is one for sentence-transformers too: the transformer (with its decoder, if it is a
masked language model) at the top, the head's weights in `1_LexicalHead/`, and the head's code in
`outside.py`, which `SparseEncoder(folder, trust_remote_code=True)` runs. `lexical.json` holds what
only this project reads.
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
from model_code.encoding.encoder import CPU_BATCH_TOKENS, pad, token_batches
from model_code.encoding.hardware import pack_linear_layers, pick_device, select_packing
from model_code.encoding.settings import EncoderSettings, Precision
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

CONFIG, HEAD, CODE = "lexical.json", "1_LexicalHead", "outside.py"
# of the closed-form head's cosines, in logits: a larger one gives sparser, spikier weights
SCALE = 16.0
BIAS = -12.0  # the closed-form head's logit of a token of idf 0 at cosine 0
HEAD_PASSAGES = 400  # from which the closed form is solved
RIDGE = 0.01  # its penalty, as a share of the hidden states' mean square: they are correlated


def start_encoder(
    encoder: EncoderSettings, settings: LexicalSettings, texts: Sequence[str], seed: int
) -> LexicalEncoder:
    """The lexical encoder that training starts from, on the base's own head or on a closed-form one
    for `texts`.
    """
    layout = read_layout(locate_model(encoder.base))
    architectures = read_json(layout.transformer / "config.json").get("architectures") or []
    masked = any(name.endswith("ForMaskedLM") for name in architectures)
    head = "mlm" if masked else "closed_form"
    config = LexicalConfig(head, SCALE, False, settings.index_top_k, settings.query_top_k)
    device, limit = pick_device(encoder.device), encoder.max_tokens
    options = (load_tokenizer(layout.transformer), config, limit, encoder.precision)
    if masked:
        return (
            _on_masked_model(load_masked_model(layout.transformer, limit), *options)
            .to(device)
            .eval()
        )
    return _start_closed_form(
        load_transformer(layout.transformer, limit).to(device).eval(), texts, seed, *options
    )


def _start_closed_form(
    backbone: Any,
    texts: Sequence[str],
    seed: int,
    tokenizer: Any,
    config: LexicalConfig,
    *options: Any,
) -> LexicalEncoder:
    """Solve for the head: W on `HEAD_PASSAGES` of `texts`, idf on all of them. On the backbone's
    device.

    options: what else a `LexicalEncoder` takes. FreshetError if word embeddings and hidden states
    differ in width, or no text holds a token that may carry weight.
    """
    embeddings = backbone.get_input_embeddings().weight.detach()
    if embeddings.shape[1] != backbone.config.hidden_size:
        raise FreshetError(
            f"the base's word embeddings have {embeddings.shape[1]} components and its hidden states "
            f"{backbone.config.hidden_size}, but a closed-form head needs as many of both; name another encoder.base"
        )
    body = ClosedFormBody(backbone, ClosedFormHead(embeddings.shape[1], config.scale))
    blank = nn.Parameter(torch.zeros(len(embeddings)))
    rows = nn.Parameter(torch.zeros_like(embeddings), requires_grad=False)
    encoder = LexicalEncoder(body, rows, blank, tokenizer, config, *options).to(embeddings.device)
    bags = encoder.bags(texts)
    if not sum(map(len, bags)):
        raise FreshetError(
            "no passage holds a token of the encoder's vocabulary, so there is nothing to start from"
        )
    sample = np.sort(np.random.default_rng([seed, 17]).permutation(len(texts))[:HEAD_PASSAGES])
    with torch.no_grad():
        rows.copy_(normalize(embeddings - embeddings[~encoder.blocked].mean(dim=0), dim=1))
        pairs = _token_pairs(encoder, [texts[row] for row in sample])
        body.head.transform.weight.copy_(ridge_transform(pairs, RIDGE))
        idf = inverse_document_frequencies(bags, len(embeddings))
        encoder.bias.copy_(torch.from_numpy(idf) + BIAS)
    return encoder.eval()


@torch.no_grad()
def _token_pairs(encoder: LexicalEncoder, texts: Sequence[str]) -> Iterator[tuple[Tensor, Tensor]]:
    """Last hidden states (n, H) and decoder rows (n, H) of the texts' tokens that may carry weight,
    batch by batch.
    """
    ids = encoder.token_ids(texts)
    for group in token_batches([len(row) for row in ids], CPU_BATCH_TOKENS):
        batch = pad([ids[row] for row in group], encoder.tokenizer.pad_token_id or 0)
        tokens, mask = (batch[name].to(encoder.device) for name in ("input_ids", "attention_mask"))
        # (B, T, H)
        hidden = encoder.backbone(input_ids=tokens, attention_mask=mask).last_hidden_state
        counted = (mask == 1) & ~encoder.blocked[tokens]
        yield hidden[counted], encoder.decoder[tokens[counted]]


def save_encoder(encoder: LexicalEncoder, folder: Path) -> None:
    """Write the encoder to `folder`; equal encoders give equal bytes, nothing is pickled."""
    folder.mkdir(parents=True, exist_ok=True)
    if isinstance(encoder.body, MaskedModel):
        encoder.body.put(encoder.body.decoder)
        save_transformer(encoder.body.model, folder)
        encoder.body.put(nn.Identity())
    else:
        save_transformer(encoder.backbone, folder)
    save_tokenizer(encoder.tokenizer, folder, encoder.max_tokens)
    write_json(folder / CONFIG, asdict(encoder.config) | {"max_tokens": encoder.max_tokens})
    _save_head(encoder, folder / HEAD)
    _write_modules(encoder, folder)


def load_encoder(
    folder: Path,
    max_tokens: int | None = None,
    precision: Precision = "auto",
    device: str = "auto",
    for_search: bool = False,
) -> LexicalEncoder:
    """Read what `save_encoder` wrote; FreshetError if `folder` holds no lexical encoder.

    max_tokens: None takes the folder's own; another one has another fingerprint. for_search: the
    encoder is not to be trained, so products are those of `hardware.pack`, as in `Encoder.load`.
    """
    if not (folder / CONFIG).is_file():
        raise FreshetError(
            f"{folder} holds no lexical encoder ({CONFIG} is missing); train the retriever again"
        )
    values = read_json(folder / CONFIG)
    limit = max_tokens or values["max_tokens"]
    config = LexicalConfig(**{key: value for key, value in values.items() if key != "max_tokens"})
    weights, tokenizer = load_file(folder / HEAD / "model.safetensors"), load_tokenizer(folder)
    options = tokenizer, config, limit, precision
    if config.head == "mlm":
        encoder = _on_masked_model(load_masked_model(folder, limit), *options)
        encoder.bias.data.copy_(weights.get("bias", encoder.bias.data))
    else:
        decoder, bias = (
            nn.Parameter(weights["decoder"], requires_grad=False),
            nn.Parameter(weights["bias"]),
        )
        head = ClosedFormHead(decoder.shape[1], config.scale)
        head.transform.weight.data.copy_(weights["transform"])
        encoder = LexicalEncoder(
            ClosedFormBody(load_transformer(folder, limit), head), decoder, bias, *options
        )
    encoder.to(pick_device(device)).eval()
    if for_search and (kind := select_packing(precision, encoder.device)):
        pack_linear_layers(encoder.body, kind)
    return encoder


def _on_masked_model(model: MaskedModel, *options: Any) -> LexicalEncoder:
    """options: what a `LexicalEncoder` takes besides."""
    decoder = model.decoder
    bias = (
        decoder.bias
        if decoder.bias is not None
        else nn.Parameter(decoder.weight.new_zeros(len(decoder.weight)))
    )
    return LexicalEncoder(model, decoder.weight, bias, *options)


def _save_head(encoder: LexicalEncoder, folder: Path) -> None:
    """Write what the transformer's own files lack."""
    folder.mkdir(exist_ok=True)
    weights, facts = (
        {"blocked": encoder.blocked},
        {"head": encoder.config.head, "scale": encoder.config.scale},
    )
    if not isinstance(encoder.body, MaskedModel):
        transform = encoder.body.head.transform.weight
        weights |= {"decoder": encoder.decoder, "bias": encoder.bias, "transform": transform}
    elif encoder.body.decoder.bias is None:
        weights, facts = weights | {"bias": encoder.bias}, facts | {"biased": True}
    tensors = {name: weight.detach().cpu().contiguous() for name, weight in weights.items()}
    save_file(tensors, folder / "model.safetensors")
    size, hidden = encoder.decoder.shape
    write_json(folder / "config.json", facts | {"hidden": hidden, "vocabulary": size})


def _write_modules(encoder: LexicalEncoder, folder: Path) -> None:
    task = "fill-mask" if encoder.config.head == "mlm" else "feature-extraction"
    kinds = {
        "": "sentence_transformers.base.modules.transformer.Transformer",
        HEAD: "outside.LexicalHead",
    }
    modules = [
        {"idx": i, "name": str(i), "path": path, "type": kind}
        for i, (path, kind) in enumerate(kinds.items())
    ]
    write_json(folder / "modules.json", modules)
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
