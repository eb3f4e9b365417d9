"""Guards that a `dvc.lock` cut short by a kill is mended, and a whole one is left alone.

Run: python -m pytest tests/orchestration/pipeline/test_dvc_lock.py
"""

from __future__ import annotations

import pytest

from model_code.errors import FreshetError
from orchestration.pipeline import dvc_lock
from orchestration.pipeline.stages import CORPUS

WHOLE = """\
schema: '2.0'
stages:
  corpus:
    cmd: python -m orchestration.pipeline.run_stage corpus
    outs:
    - path: artifacts/corpus
      md5: abc.dir
"""


def test_the_output_version_is_dvcs_hash(tmp_path):
    (tmp_path / "dvc.lock").write_text(WHOLE)
    assert dvc_lock.output_version(tmp_path, CORPUS) == "abc.dir"
    (tmp_path / "dvc.lock").unlink()
    with pytest.raises(FreshetError, match="run it first"):
        dvc_lock.output_version(tmp_path, CORPUS)


@pytest.mark.parametrize("length", [0, 10, 25, 40, 80, len(WHOLE) - 20])
def test_a_lock_cut_anywhere_is_mended(tmp_path, length):
    lock, copy = tmp_path / "dvc.lock", tmp_path / "copy"
    lock.write_text(WHOLE)
    dvc_lock.keep_copy(tmp_path, copy)
    assert not dvc_lock.mend(tmp_path, copy)
    lock.write_text(WHOLE[:length])
    assert dvc_lock.mend(tmp_path, copy)
    assert lock.read_text() == WHOLE


@pytest.mark.parametrize("content", [WHOLE[:40].encode(), b"<<<<<<< HEAD\n" + WHOLE.encode(), b"", b"\xff\xfe"])
def test_a_broken_lock_is_one_line_with_the_remedy(tmp_path, content):
    (tmp_path / "dvc.lock").write_bytes(content)
    with pytest.raises(FreshetError, match="^dvc.lock is not whole: run `freshet run`"):
        dvc_lock.stages_that_ran(tmp_path)
    assert dvc_lock.mend(tmp_path, tmp_path / "copy")


def test_without_a_copy_a_broken_lock_is_removed(tmp_path):
    (tmp_path / "dvc.lock").write_text("schema: '2.0'\nstages:\n")
    assert dvc_lock.mend(tmp_path, tmp_path / "copy")
    assert not (tmp_path / "dvc.lock").exists()


def test_a_lock_that_changed_is_read_anew(tmp_path):
    lock = tmp_path / "dvc.lock"
    for version in ("abc.dir", "def.dir", "abc.dir"):
        lock.write_text(WHOLE.replace("abc.dir", version))
        assert dvc_lock.output_version(tmp_path, CORPUS) == version
