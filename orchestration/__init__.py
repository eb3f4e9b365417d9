"""Drives the science: builds through DVC, Dagster, MLflow's registry, what is live and fresh, service and commands.

The telemetry of every library is switched off here, before any is imported; what the user has set stays as it is.
`HF_HUB_OFFLINE` is left alone: a corpus or model that the user names may be on the hub.
"""

import os
from pathlib import Path

DG_CONFIG = Path(os.environ.get("XDG_CONFIG_HOME", "~/.config")).expanduser() / "dg.toml"  # dg's own place for it
TELEMETRY_OFF = {
    "DO_NOT_TRACK": "true",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "DAGSTER_DISABLE_TELEMETRY": "yes",
    "DVC_NO_ANALYTICS": "1",
    "GX_ANALYTICS_ENABLED": "false",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "HF_UPDATE_DOWNLOAD_COUNTS": "0",
    "RAY_USAGE_STATS_ENABLED": "0",
}

if not DG_CONFIG.exists():  # dg has no switch in the environment, but takes its settings from where that says
    TELEMETRY_OFF["DG_CLI_CONFIG"] = str(Path(__file__).with_name("dg.toml"))

for _name, _value in TELEMETRY_OFF.items():
    os.environ.setdefault(_name, _value)
