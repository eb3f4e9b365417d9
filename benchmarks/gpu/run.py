"""Run all measurements within a limit of time, and write JSON after each of them."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.gpu.inputs import WHEELS_FOLDER, SquadInput, load_candidates, unpack_encoder

# Folder into which the missing libraries are installed, beside the input.
LIBRARIES_FOLDER = "libraries"
# The parts, in the order in which they are measured.
PARTS = (
    "agreement",
    "squad",
    "clustering",
    "encode",
    "train",
    "workers",
    "compiled",
    "addition",
)
# Share of the time that the trainings on SQuAD may take.
SQUAD_SHARE = 0.72
# Seconds that are kept back to write results.
RESERVE_SECONDS = 15


def run(source: Path, output: Path, seconds: float, parts: Sequence[str] = PARTS) -> int:
    """Run all parts, and return the exit code: 0 if every part was measured.

    A part that fails is written with its error, and the next one runs.

    Args:
        source: The packed folder.
        output: JSON file to write.
        seconds: Wall time for everything.
        parts: Names of the parts to measure.
    """
    started = time.monotonic()
    deadline = started + seconds - RESERVE_SECONDS
    squad_deadline = started + SQUAD_SHARE * seconds
    add_libraries(source)

    from benchmarks.gpu import agreement, scale, speed, squad

    encoder = unpack_encoder(source)
    data = SquadInput.load(source)
    candidates = load_candidates(source, len(data.splits["train"]))
    addition = scale.start_addition() if "addition" in parts else None
    measures: dict[str, Callable[[], Any]] = {
        "agreement": lambda: agreement.measure(encoder, data),
        "squad": lambda: squad.measure(encoder, data, candidates, source, squad_deadline, save),
        "clustering": scale.measure_clustering,
        "encode": lambda: speed.compare_encoding(encoder),
        "train": lambda: speed.compare_training(encoder),
        "workers": lambda: speed.compare_workers(encoder),
        "compiled": lambda: speed.compare_compiled(encoder),
        "addition": lambda: scale.finish_addition(addition, deadline),
    }

    result: dict[str, Any] = {"machine": describe_machine()}

    def save(name: str, measured: Any) -> None:
        result[name] = measured
        output.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")

    failed = 0
    for name in parts:
        part_started = time.monotonic()
        try:
            measured = measures[name]()
        except Exception:
            failed += 1
            measured = {"error": traceback.format_exc()}
            print(measured["error"], file=sys.stderr)
        save(name, measured)
        print(f"{name}: {time.monotonic() - part_started:.0f} s", flush=True)
    return 1 if failed else 0


def add_libraries(source: Path) -> None:
    """Install the packed wheels beside the input, if there are any, and import from there."""
    wheels = sorted(str(file) for file in (source / WHEELS_FOLDER).glob("*.whl"))
    if not wheels:
        return
    target = str(source / LIBRARIES_FOLDER)
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps"]
    subprocess.run([*command, "--target", target, *wheels], check=True)
    sys.path.insert(0, target)
    # Processes that this one starts find the libraries as well.
    paths = [target, os.environ.get("PYTHONPATH", "")]
    os.environ["PYTHONPATH"] = os.pathsep.join(path for path in paths if path)


def describe_machine() -> dict[str, Any]:
    """Return device, processor cores and versions of libraries."""
    import numpy as np
    import torch
    import transformers

    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else None
    return {
        "gpu": gpu,
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "numpy": np.__version__,
    }
