"""The group `live` of `params.yaml`: how live collections are kept up while documents come."""

from __future__ import annotations

from typing import Literal

from model_code.settings import Field, Settings


class LiveSettings(Settings):
    """Which collections follow, how many of their old generations stay, and who is told."""

    follow: Literal["all", "default"] = Field(
        "all",
        description="which live retrievers get what arrives: all, the one searched by default first, or only that one",
    )
    keep_generations: int | None = Field(
        20, ge=2, description="the newest of a collection that stay, with every build that was opened; null: all stay"
    )
    collect_every: int = Field(10, ge=1, description="as soon as so many old generations can go, they do")
    sync: str | None = Field(
        None,
        pattern=r"^[\d*,/-]+( [\d*,/A-Za-z-]+){4}$",
        description="when `freshet ui` has the index follow its source, as cron says it, in UTC; null: when asked",
    )
    webhook: str | None = Field(
        None,
        pattern="^https?://",
        description="address that is told what goes wrong, by a POST of {text: ...} as JSON",
    )
