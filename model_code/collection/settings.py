"""Settings of the live collection."""

from __future__ import annotations

from model_code.settings import Field, Settings

# Largest number of processes that search for one service.
MAX_SEARCH_PROCESSES = 64


class LiveSettings(Settings):
    """Settings of the live collection: generations, syncs, publishing, shadow mode and alerts."""

    keep_generations: int | None = Field(
        20,
        ge=2,
        description=(
            "Number of newest generations to keep, in addition to all that opened a build. null: "
            "keep all."
        ),
    )
    sync: str | None = Field(
        None,
        pattern=r"^[\d*,/-]+( [\d*,/A-Za-z-]+){4}$",
        description=(
            "When `freshet ui` syncs the live index with all its sources, as a cron expression in "
            "UTC. null: only on request."
        ),
    )
    publish: str | None = Field(
        None,
        description=(
            "Where the service publishes each new generation for other machines, as `freshet "
            "publish` does: a folder, or an address such as s3://bucket/notes. Needs the variable "
            "FRESHET_FOLLOW_KEY. null: only on request."
        ),
    )
    apply_process: bool = Field(
        True,
        description=(
            "Whether `freshet serve` encodes and indexes changes in a separate process, so that "
            "searches do not wait for it. The first change starts that process, which takes about "
            "three seconds, and it ends after an hour without a change. While it runs, both "
            "processes together need about 100 MB more than a service that encodes itself. false: "
            "for machines that lack this memory. Takes effect at the next start of the service."
        ),
    )
    search_processes: int = Field(
        0,
        ge=0,
        le=MAX_SEARCH_PROCESSES,
        description=(
            "Number of processes that search for `freshet serve`. As many as there are processor "
            "cores answer the most queries per second. Each needs memory for an encoder, and "
            "shares the index with the service. 0: threads of the service search, on little more "
            "than one core. Takes effect at the next start of the service."
        ),
    )
    shadow_share: float = Field(
        0.0,
        ge=0,
        le=1,
        description=(
            "Share of the live queries that the challenger answers unseen while `freshet serve` "
            "runs, from 0 (off) to 1. Its agreement with the champion is shown to the gate as a "
            "finding. The challenger needs as much memory as the champion. Takes effect at the "
            "next start of the service."
        ),
    )
    webhook: str | None = Field(
        None,
        pattern="^(https?://|mailto:[^@?]+@)",
        description=(
            "Address that receives failures: a URL for POST requests with the JSON body {text: "
            "...}, or mailto:you@example.org?server=mail.example.org:25 for e-mail. Without a "
            "server, e-mail goes through this machine."
        ),
    )
