"""Guards that telemetry is off once `orchestration` is imported, and that what the user set is kept."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from orchestration import TELEMETRY_OFF

SHOW = "import json, os, orchestration as o; print(json.dumps([os.environ[switch] for switch in o.TELEMETRY_OFF]))"


def printed(**variables: str) -> list[str]:
    environment = {name: value for name, value in os.environ.items() if name not in TELEMETRY_OFF}
    root = Path(__file__).parents[2]
    command = [sys.executable, "-c", SHOW]
    done = subprocess.run(command, cwd=root, env=environment | variables, capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


def test_every_switch_is_set():
    assert printed() == list(TELEMETRY_OFF.values())


def test_what_the_user_set_is_kept():
    assert printed(DO_NOT_TRACK="false")[list(TELEMETRY_OFF).index("DO_NOT_TRACK")] == "false"


DG = "import orchestration; from dagster_dg_core.utils.telemetry import get_telemetry_enabled_for_cli as f; print(f())"


def test_dg_writes_nothing_unless_the_user_has_settings_of_its_own(tmp_path):
    def enabled(home):
        variables = {"PATH": os.environ["PATH"], "HOME": str(home)}
        command, root = [sys.executable, "-c", DG], Path(__file__).parents[2]
        return subprocess.run(command, cwd=root, env=variables, capture_output=True, text=True, check=True).stdout

    assert enabled(tmp_path) == "False\n"
    (tmp_path / ".config").mkdir()
    (tmp_path / ".config" / "dg.toml").write_text("[cli]\nverbose = true\n")
    assert enabled(tmp_path) == "True\n"
