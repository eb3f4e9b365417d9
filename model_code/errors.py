"""Errors that are meant to be read by the user: one line that names the value, the rule and the
remedy.
"""


class FreshetError(Exception):
    """A failure that the user can mend. The command line prints its message as one line and exits
    with `exit_code`.
    """

    exit_code = 1


class SettingsError(FreshetError):
    """A key or value of `params.yaml` (or of a `--set` option) is unknown or impossible."""

    exit_code = 2


class Damaged(FreshetError):
    """A file was cut off, changed or lost: `damage` says which, and the message ends with what
    mends it.
    """

    def __init__(self, damage: str, remedy: str) -> None:
        super().__init__(f"{damage}; {remedy}")


class FingerprintMismatch(FreshetError):
    """Vectors and index come from different encoders, so their inner products mean nothing."""
