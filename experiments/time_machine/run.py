"""Replay a stream and compare ways to keep an index fresh.

A stream is a series of dated documents and queries. `python -m experiments.time_machine.run --cache
FOLDER` downloads the releases of four packages through pip (about 1.2 GB). It replays the stream of
their docstrings, and writes `docstrings.json` and `docstrings.png`.

`python -m experiments.time_machine.run --stream tldr --data FOLDER --cache FOLDER` does the same
with command pages by months. `--stream longeval` reads snapshots in the format of LongEval.
"""

from __future__ import annotations

import argparse
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from experiments.tables import write_tables
from experiments.time_machine.docstrings import make_docstring_stream
from experiments.time_machine.encodings import EncodingCache
from experiments.time_machine.longeval import make_longeval_stream
from experiments.time_machine.picture import draw
from experiments.time_machine.policies import PolicySettings
from experiments.time_machine.replay import replay
from experiments.time_machine.stream import Stream
from experiments.time_machine.summary import result_tables, summarize
from experiments.time_machine.tldr import make_tldr_stream
from model_code.files import read_json, write_json

HERE = Path(__file__).parent
SETTINGS = HERE / "settings.toml"
STREAMS = ("docstrings", "tldr", "longeval")


def main(arguments: Sequence[str] | None = None) -> None:
    """Replay the stream that the arguments name, and write result, picture and tables."""
    options = _parser().parse_args(arguments)
    settings = tomllib.loads(options.settings.read_text(encoding="utf-8"))
    stream = make_stream(options.stream, settings, options.cache, options.data)
    policies = read_policies(settings, options.policies)
    result_file = options.output / f"{options.stream}.json"
    result = run_stream(
        stream, policies, settings, options.seeds, options.cache, result_file, options.steps
    )
    draw(result, options.output / f"{options.stream}.png")
    results = {}
    for name in STREAMS:
        file = options.output / f"{name}.json"
        if file.is_file():
            results[name] = read_json(file)
    if (options.output / "README.md").is_file():
        write_tables(options.output, result_tables(results))


def run_stream(
    stream: Stream,
    policies: Sequence[PolicySettings],
    settings: Mapping[str, Any],
    seeds: Sequence[int] | None,
    cache: Path,
    result_file: Path,
    max_steps: int | None = None,
) -> dict[str, Any]:
    """Replay a stream with each seed, and write the result after each step.

    Entries of the file for seeds and policies that are not replayed stay as they are.

    Args:
        stream: The stream.
        policies: The policies.
        settings: All settings.
        seeds: Seeds; None for those of the settings.
        cache: Folder of projects and builds.
        result_file: The file to write.
        max_steps: Steps to replay; None for all.
    """
    table = settings[stream.name]
    overrides = [*settings["project"]["overrides"], *table.get("overrides", ())]
    measured: dict[str, dict[str, Any]] = {}
    if result_file.is_file():
        measured = read_json(result_file)["seeds"]

    labels = {name: row["label"] for name, row in settings["policies"].items()}
    encodings = EncodingCache()
    with encodings.shared():
        for seed in seeds or table.get("seeds", settings["seeds"]):
            folder = cache / "runs" / stream.name / f"seed-{seed}"

            def keep(rows: Mapping[str, Any], seed: int = seed) -> None:
                measured.setdefault(str(seed), {}).update(rows)
                write_json(result_file, summarize(stream, measured, labels))

            replay(stream, policies, overrides, seed, folder, encodings, max_steps, keep)
    return read_json(result_file)


def make_stream(name: str, settings: Mapping[str, Any], cache: Path, data: Path | None) -> Stream:
    """Return a stream by its name.

    Args:
        name: One of `STREAMS`.
        settings: All settings.
        cache: Folder of downloaded files.
        data: Folder of the data set, which docstrings do not need.
    """
    if name == "docstrings":
        return make_docstring_stream(settings[name], cache)
    if data is None:
        raise SystemExit(f"--stream {name} reads a data set: name its folder with --data")
    if name == "tldr":
        return make_tldr_stream(data, settings[name])
    return make_longeval_stream(data, settings[name])


def read_policies(
    settings: Mapping[str, Any], names: Sequence[str] | None = None
) -> list[PolicySettings]:
    """Return the policies of the settings; only the named ones if any are named."""
    policies = [PolicySettings(name, **row) for name, row in settings["policies"].items()]
    return [policy for policy in policies if not names or policy.name in names]


def _parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cache", type=Path, required=True, help="folder for downloads and builds")
    parser.add_argument("--stream", choices=STREAMS, default="docstrings")
    parser.add_argument("--data", type=Path, help="folder of the data set of tldr or longeval")
    parser.add_argument("--seeds", type=int, nargs="*", help="seeds in place of those of settings")
    parser.add_argument("--policies", nargs="*", help="policies to replay; others keep their rows")
    parser.add_argument("--steps", type=int, help="replay the first steps only")
    parser.add_argument("--settings", type=Path, default=SETTINGS)
    parser.add_argument("--output", type=Path, default=HERE, help="folder of result and picture")
    return parser


if __name__ == "__main__":
    main()
