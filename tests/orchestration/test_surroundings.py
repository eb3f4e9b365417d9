"""Guards the environment variables that importing `orchestration` sets."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from orchestration import TELEMETRY_OFF, core_share

PRINT_SWITCHES = """
import json, os
from orchestration import TELEMETRY_OFF
print(json.dumps({name: os.environ[name] for name in TELEMETRY_OFF}))
"""
PRINT_DG_TELEMETRY = """
import orchestration
from dagster_dg_core.utils.telemetry import get_telemetry_enabled_for_cli
print(get_telemetry_enabled_for_cli())
"""


def run_python(code, variables):
    """Run code in another process, and return what it prints."""
    command = [sys.executable, "-c", code]
    root = Path(__file__).parents[2]
    return subprocess.run(
        command, cwd=root, env=variables, capture_output=True, text=True, check=True
    ).stdout


def environment_without_switches():
    return {name: value for name, value in os.environ.items() if name not in TELEMETRY_OFF}


def test_telemetry_of_libraries_is_off():
    switches = json.loads(run_python(PRINT_SWITCHES, environment_without_switches()))

    assert switches == TELEMETRY_OFF


def test_variables_of_user_are_kept():
    variables = environment_without_switches()
    variables["DO_NOT_TRACK"] = "false"

    switches = json.loads(run_python(PRINT_SWITCHES, variables))

    assert switches["DO_NOT_TRACK"] == "false"


def test_telemetry_of_dg_is_off(tmp_path):
    variables = {"PATH": os.environ["PATH"], "HOME": str(tmp_path)}

    assert run_python(PRINT_DG_TELEMETRY, variables) == "False\n"


def test_dg_settings_of_user_are_kept(tmp_path):
    variables = {"PATH": os.environ["PATH"], "HOME": str(tmp_path)}
    settings = tmp_path / ".config" / "dg.toml"
    settings.parent.mkdir()
    settings.write_text("[cli]\nverbose = true\n")

    assert run_python(PRINT_DG_TELEMETRY, variables) == "True\n"


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
def test_threads_follow_share_of_container(tmp_path, files, cores):
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)

    assert core_share(tmp_path) == cores
