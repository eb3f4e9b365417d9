"""Errors whose message is for the user: one line with the value, the rule and the remedy."""

from freshet.errors import FreshetError

__all__ = ["Damaged", "FingerprintMismatch", "FreshetError", "SettingsError"]


class SettingsError(FreshetError):
    """A key or value of `params.yaml`, or of a `--set` option, is unknown or impossible."""

    exit_code = 2


class Damaged(FreshetError):
    """A file was cut off, changed or lost.

    Args:
        damage: What is wrong, with the path.
        remedy: What repairs it. The message ends with it.
    """

    def __init__(self, damage: str, remedy: str) -> None:
        super().__init__(f"{damage}; {remedy}")


class FingerprintMismatch(FreshetError):
    """Vectors and index come from different encoders, so their inner products have no meaning."""
