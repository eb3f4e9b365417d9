"""Guards that the science needs no more than its own libraries: without FAISS, Dagster, MLflow, DVC
and datasets a retriever is trained with negatives of BM25, indexed and evaluated, beside both
baselines.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]


def test_stages_run_without_faiss_and_orchestration(
    tmp_path: Path,
) -> None:
    command = [sys.executable, "-m", "tests.model_code.stages.alone", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    reports = json.loads(done.stdout)
    assert reports["train"]["best_dev"] > reports["train"]["start_dev"]
    assert reports["index"]["factory"] == "Flat"
    assert (
        reports["index"]["fingerprint"]
        == reports["train"]["fingerprint"]
        != reports["base_index"]["fingerprint"]
    )
    assert (
        reports["evaluate"]["dev"]["nDCG@10"] > reports["baselines"]["zero_shot"]["dev"]["nDCG@10"]
    )
    assert reports["evaluate"]["test"]["hit@10"] > 0.5
