"""Orchestration of Freshet: builds, registry, freshness, HTTP service and commands.

Importing the package switches off the telemetry of all libraries, before they are imported. Values
that the user has set stay as they are. `HF_HUB_OFFLINE` is not set, because a corpus or model may
come from a hub. Plugins of pydantic are switched off as well, because pydantic looks for them in
all installed packages, each time a command starts.

It also limits the threads of torch and numpy to the container's share of the machine, and lets them
sleep while they wait. With other work on the machine, a training step then takes half the time or
less; alone it takes the same time.
"""

import os
from pathlib import Path

# File in which `dg`, Dagster's command line, looks for its settings.
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

# `dg` has no telemetry variable. DG_CLI_CONFIG points it at our config file instead, unless the
# user has one.
if not DG_CONFIG.exists():
    TELEMETRY_OFF["DG_CLI_CONFIG"] = str(Path(__file__).with_name("dg.toml"))


def core_share(cgroup: Path = Path("/sys/fs/cgroup")) -> int | None:
    """Return how many cores the control group of a container grants.

    Args:
        cgroup: Root of the file system of control groups.

    Returns:
        The number of cores, at least one; None if there is no limit.
    """
    version_2 = cgroup / "cpu.max"
    version_1 = cgroup / "cpu" / "cpu.cfs_quota_us"
    if version_2.is_file():
        quota, _, period = version_2.read_text().strip().partition(" ")
    elif version_1.is_file():
        quota = version_1.read_text().strip()
        period = version_1.with_name("cpu.cfs_period_us").read_text().strip()
    else:
        return None

    # No limit is written as "max" in version 2 of control groups, and as -1 in version 1.
    if quota in ("max", "-1"):
        return None
    # The container may use `quota` microseconds of processor time in each `period`.
    return max(1, int(quota) // int(period))


def _set_environment() -> None:
    """Set the variables that the user has not set."""
    variables = dict(TELEMETRY_OFF)
    # Idle threads of torch sleep instead of keeping a core busy.
    variables["OMP_WAIT_POLICY"] = "PASSIVE"
    variables["PYDANTIC_DISABLE_PLUGINS"] = "__all__"
    cores = core_share()
    if cores is not None:
        variables["OMP_THREAD_LIMIT"] = str(cores)
        variables["OPENBLAS_NUM_THREADS"] = str(cores)
    for name, value in variables.items():
        os.environ.setdefault(name, value)


_set_environment()
