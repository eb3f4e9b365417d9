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
