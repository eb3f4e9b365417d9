"""One small Ray for all tests of this folder: three logical CPUs, no dashboard, no telemetry."""

from __future__ import annotations

import os

import pytest

from model_code.distributed import engine
from model_code.distributed.engine import ScaleSettings


@pytest.fixture(scope="session")
def ray():
    pytest.importorskip("ray", reason="needs Ray: pip install -e '.[scale]'")
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    module = engine.ray()
    options = {
        "num_cpus": 3,
        "include_dashboard": False,
        "logging_level": "WARNING",
        "log_to_driver": False,
    }
    try:
        module.init("local", **options)
    except Exception as error:
        # Ray waits for 30 s. A busy machine may take longer.
        if "timed out during startup" not in str(error):
            raise
        module.shutdown()
        module.init("local", **options)
    yield module
    module.shutdown()


@pytest.fixture(params=[1, 2], ids=["1 worker", "2 workers"])
def workers(ray, request) -> ScaleSettings:
    """Return the settings of 1 and of 2 workers on the running Ray."""
    return ScaleSettings(engine="ray", workers=request.param)
