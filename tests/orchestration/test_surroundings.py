"""Guards what importing `orchestration` sets: no telemetry but what the user asks for, and threads
by the share.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from orchestration import TELEMETRY_OFF, core_share

SHOW = "import json, os, orchestration as o; print(json.dumps([os.environ[switch] for switch in o.TELEMETRY_OFF]))"


DG = "import orchestration; from dagster_dg_core.utils.telemetry import get_telemetry_enabled_for_cli as f; print(f())"


def printed(code: str, variables: dict[str, str]) -> str:
    command, root = [sys.executable, "-c", code], Path(__file__).parents[2]
    return subprocess.run(
        command, cwd=root, env=variables, capture_output=True, text=True, check=True
    ).stdout


def test_every_switch_is_set_and_what_the_user_set_is_kept():
    environment = {name: value for name, value in os.environ.items() if name not in TELEMETRY_OFF}
    assert json.loads(printed(SHOW, environment)) == list(TELEMETRY_OFF.values())
    switches = dict(
        zip(
            TELEMETRY_OFF,
            json.loads(printed(SHOW, environment | {"DO_NOT_TRACK": "false"})),
            strict=True,
        )
    )
    assert switches["DO_NOT_TRACK"] == "false"


def test_dg_writes_nothing_unless_the_user_has_settings_of_its_own(tmp_path):
    variables = {"PATH": os.environ["PATH"], "HOME": str(tmp_path)}
    assert printed(DG, variables) == "False\n"
    (tmp_path / ".config").mkdir()
    (tmp_path / ".config" / "dg.toml").write_text("[cli]\nverbose = true\n")
    assert printed(DG, variables) == "True\n"


@pytest.mark.parametrize(
    ("files", "cores"),
    [
        ({}, None),
        ({"cpu.max": "max 100000\n"}, None),
        ({"cpu.max": "250000 100000\n"}, 2),
        ({"cpu.max": "50000 100000\n"}, 1),
        ({"cpu/cpu.cfs_quota_us": "-1\n", "cpu/cpu.cfs_period_us": "100000\n"}, None),
        ({"cpu/cpu.cfs_quota_us": "400000\n", "cpu/cpu.cfs_period_us": "100000\n"}, 4),
    ],
)
def test_threads_follow_the_share_of_the_container(tmp_path, files, cores):
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    assert core_share(tmp_path) == cores
