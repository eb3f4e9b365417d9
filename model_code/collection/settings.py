"""Settings of the live collection."""

from __future__ import annotations

from model_code.settings import Field, Settings


class LiveSettings(Settings):
    """How many old generations stay, when the source is looked at, and who is told."""

    keep_generations: int | None = Field(
        20,
        ge=2,
        description="the newest of a collection that stay, with every build that was opened; null: all stay",
    )
    sync: str | None = Field(
        None,
        pattern=r"^[\d*,/-]+( [\d*,/A-Za-z-]+){4}$",
        description="when `freshet ui` has the index follow its source, as cron says it, in UTC; null: when asked",
    )
    webhook: str | None = Field(
        None,
        pattern="^(https?://|mailto:[^@?]+@)",
        description="address that is told what goes wrong, by a POST of {text: ...} as JSON; or "
        "mailto:you@example.org?server=mail.example.org:25, by e-mail, without server on this machine",
    )
