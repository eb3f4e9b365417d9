"""Guards that a stage ends when the DVC above it is killed.

Run: python -m pytest tests/orchestration/pipeline/test_parent_watch.py
"""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import psutil

CHILD = """
import time
from orchestration.pipeline.run_stage import die_with_ancestors
die_with_ancestors(interval=0.05)
print('on', flush=True)
time.sleep({seconds})
"""
PARENT = """
import subprocess, sys
process = subprocess.Popen([sys.executable, '-c', {child!r}])
print(process.pid, flush=True)
process.wait()
"""


def start_family(seconds: float, title: str) -> tuple[subprocess.Popen[str], psutil.Process]:
    """A parent whose command line holds `title`, and its child that watches it."""
    code = PARENT.format(child=CHILD.format(seconds=seconds))
    root = Path(__file__).parents[3]
    parent = subprocess.Popen([sys.executable, "-c", code, title], cwd=root, stdout=subprocess.PIPE, text=True)
    child = psutil.Process(int(parent.stdout.readline()))
    assert parent.stdout.readline() == "on\n"
    return parent, child


def test_a_stage_dies_with_its_dvc():
    parent, child = start_family(60, "dvc repro")
    parent.kill()
    parent.wait()
    assert not psutil.wait_procs([child], timeout=5)[1]


def test_a_stage_outlives_a_terminal_that_is_closed():
    parent, child = start_family(1.0, "terminal")
    parent.kill()
    parent.wait()
    time.sleep(0.3)
    assert child.is_running()
    child.kill()
