"""Import the libraries of search engines, which are not installed by default."""

from __future__ import annotations

import importlib
from typing import Any

from model_code.errors import FreshetError


def import_library(module: str, extra: str) -> Any:
    """Import the library of an engine.

    Args:
        module: Name of the module.
        extra: Name of the optional dependency group (`pip install -e '.[EXTRA]'`) that installs it.

    Raises:
        FreshetError: If the library is not installed.
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name != module:
            raise
        raise FreshetError(
            f"--to {extra} needs {module}, which is not installed; in the clone of Freshet: "
            f"pip install -e '.[{extra}]'"
        ) from None
