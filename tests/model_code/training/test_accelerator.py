"""Guards which GPU trains: the one that the encoder lies on."""

from __future__ import annotations

import pytest
import torch

from model_code.training.accelerator import make_accelerator


@pytest.mark.parametrize(("device", "chosen"), [("cuda:1", ["cuda:1"]), ("cuda", []), ("cpu", [])])
def test_the_named_gpu_trains(monkeypatch: pytest.MonkeyPatch, device: str, chosen: list[str]) -> None:
    current: list[str] = []
    monkeypatch.setattr(torch.cuda, "set_device", lambda number: current.append(str(number)))
    make_accelerator(torch.device(device), "float32")
    assert current == chosen
