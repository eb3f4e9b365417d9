"""Check the contract of a stage: the conditions that its output must meet.

Each stage module has a function `check(context)`. It reads the finished output in `context.output`,
the inputs and the settings, changes nothing, and raises `FreshetError` if a condition is broken.

`orchestration.pipeline.run_stage` checks an output before it moves the output into place. Dagster
checks the outputs in place again, even if no stage ran. DVC does not check contracts: an output
whose code and inputs have not changed is up to date for DVC, even if it is damaged.
"""

from __future__ import annotations

import importlib

from model_code.context import StageContext, left_out_reason
from model_code.errors import FreshetError


def check_contract(stage: str, context: StageContext) -> None:
    """Check that the output of a stage meets its contract: the conditions of the function `check`.

    A stage that was left out, for example because a retriever cannot be trained, has no contract.

    Args:
        stage: Name of the stage, such as `train`.
        context: The context that the stage ran with, or a context of the output in place.

    Raises:
        FreshetError: If the output breaks its contract or cannot be read. The message is one line.
    """
    # Modules of stages must not import slow libraries at their top, so this import is here.
    from safetensors import SafetensorError

    if left_out_reason(context.output):
        return

    # Errors of reading a damaged output, such as a truncated file or a missing key.
    unreadable = (OSError, EOFError, LookupError, TypeError, ValueError, SafetensorError)
    try:
        stage_module = importlib.import_module(f"model_code.stages.{stage}")
        stage_module.check(context)
    except FreshetError as error:
        raise FreshetError(f"{_noted_place(error)}{error}") from error
    except unreadable as error:
        reason = " ".join(str(error).split())
        raise FreshetError(
            f"{_noted_place(error)}it cannot be read: {type(error).__name__}: {reason}"
        ) from error


def _noted_place(error: Exception) -> str:
    """Return the part of the output that failed, from the notes of an exception, or "".

    A check adds a note with the name of the part, such as a file, to the exception that it raises.
    """
    notes = getattr(error, "__notes__", [])
    return "".join(f"{note}: " for note in notes)
