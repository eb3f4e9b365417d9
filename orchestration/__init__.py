"""Drives the science: builds through DVC, Dagster, MLflow's registry, what is live and fresh,
service and commands.

The telemetry of every library is switched off here, before any is imported; what the user has set
stays as it is. `HF_HUB_OFFLINE` is left alone: a corpus or model that the user names may be on the
hub.

So are the threads of torch and numpy bounded by the container's share of the machine, and they
sleep while they wait: beside other work a training step takes half the time or less, alone the
same.
"""

import os
from pathlib import Path

# dg's own place for it
DG_CONFIG = Path(os.environ.get("XDG_CONFIG_HOME", "~/.config")).expanduser() / "dg.toml"
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

# dg has no switch in the environment, but takes its settings from where that says
if not DG_CONFIG.exists():
    TELEMETRY_OFF["DG_CLI_CONFIG"] = str(Path(__file__).with_name("dg.toml"))


def core_share(cgroup: Path = Path("/sys/fs/cgroup")) -> int | None:
    """How many cores the control group of a container grants, at least one; None where it sets no
    limit.
    """
    versions = (("cpu.max",), ("cpu/cpu.cfs_quota_us", "cpu/cpu.cfs_period_us"))
    files = next(
        ([cgroup / name for name in names] for names in versions if (cgroup / names[0]).is_file()),
        [],
    )
    stated = " ".join(file.read_text() for file in files).split()
    return (
        max(1, int(stated[0]) // int(stated[1]))
        if stated and stated[0] not in ("max", "-1")
        else None
    )


THREADS = {"OMP_WAIT_POLICY": "PASSIVE"}
if _share := core_share():
    THREADS |= {"OMP_THREAD_LIMIT": str(_share), "OPENBLAS_NUM_THREADS": str(_share)}

for _name, _value in {**TELEMETRY_OFF, **THREADS}.items():
    os.environ.setdefault(_name, _value)
