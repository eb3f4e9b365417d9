"""The stream of docstrings from the releases of some packages, with queries.

A document is the docstring of a definition. Its summary line, the first paragraph, is removed from
every version of the document. The summary line of the first version is a query for the document.
The other queries are entries of changelogs.
"""

from __future__ import annotations

import pickle
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from experiments.time_machine.changelogs import (
    Entry,
    NameIndex,
    notes_file,
    read_entries,
    section_of,
)
from experiments.time_machine.stream import (
    KNOWN,
    TESTED,
    Batch,
    Stream,
    StreamQuery,
    Text,
    group_by_period,
    make_batch,
)
from experiments.time_machine.wheels import (
    Release,
    download_sdist,
    download_wheel,
    read_notes,
    read_releases,
    read_texts,
    read_wheel,
)
from model_code.files import canonical_json, hash_text
from model_code.text.phrases import documents_containing, normalize_phrase

# Number of different values of the first eight hexadecimal digits of a hash.
HASH_RANGE = 16**8
# Limits of a summary line that becomes a query, in words.
MIN_SUMMARY_WORDS = 4
MAX_SUMMARY_WORDS = 40


@dataclass
class ReleaseContents:
    """The documents and release notes of one release.

    Attributes:
        release: The release.
        texts: Documents of the release by stable name; see `stable_name`.
        summaries: Summary lines of these documents by stable name.
        entries: Entries of the release notes.
    """

    release: Release
    texts: dict[str, Text]
    summaries: dict[str, str]
    entries: list[Entry] = field(default_factory=list)


def make_docstring_stream(settings: Mapping[str, Any], cache: Path) -> Stream:
    """Download all releases and return their stream.

    Args:
        settings: The table `docstrings` of the settings.
        cache: Folder of downloaded files. The stream is stored there as well, because reading all
            wheels takes a minute.
    """
    stream_file = cache / "streams" / f"{hash_text(canonical_json(settings))[:16]}.pickle"
    if stream_file.is_file():
        return pickle.loads(stream_file.read_bytes())

    notes = _download_notes(settings, cache)
    contents: list[ReleaseContents] = []
    for release in read_releases(settings):
        docstrings = read_wheel(download_wheel(release, cache))
        definitions = {
            name: docstring for name, docstring in docstrings.items() if docstring.kind != "module"
        }
        texts, summaries = read_texts(definitions, settings["min_body_words"])
        release_contents = ReleaseContents(release, texts, summaries)
        if release.package in notes:
            pattern = settings["notes"][release.package]["file"]
            text = notes[release.package].get(notes_file(pattern, release.version), "")
            # A name that also fits a module is ambiguous, so modules are in the index of names.
            entries = read_entries(section_of(text, release.version), NameIndex(docstrings))
            for entry in entries:
                if entry.definition in texts:
                    release_contents.entries.append(entry)
        contents.append(release_contents)

    stream = assemble(contents, settings)
    stream_file.parent.mkdir(parents=True, exist_ok=True)
    stream_file.write_bytes(pickle.dumps(stream))
    return stream


def _download_notes(settings: Mapping[str, Any], cache: Path) -> dict[str, dict[str, str]]:
    """Return the text of each file of release notes, by package and file name."""
    notes: dict[str, dict[str, str]] = {}
    for package, row in settings["notes"].items():
        notes[package] = read_notes(download_sdist(package, row["sdist"], cache), row["folder"])
    return notes


def assemble(contents: Sequence[ReleaseContents], settings: Mapping[str, Any]) -> Stream:
    """Return the stream that consists of the given releases.

    Args:
        contents: Releases, oldest first.
        settings: `start_date`, the first day of the stream. `step_months`, the length of a step.
            `share`: of the definitions that no changelog entry names, only this share is kept. The
            shares of queries that are tested.
    """
    entries = _distinct_entries(contents)
    asked = {entry.definition for _, entry in entries}
    contents = [_sample(release, asked, settings["share"]) for release in contents]

    start: dict[str, Text] = {}
    batches: list[Batch] = []
    # Documents of the latest release so far, by package.
    latest: dict[str, dict[str, Text]] = {}
    for release_contents in contents:
        release = release_contents.release
        earlier = latest.get(release.package, {})
        latest[release.package] = release_contents.texts
        if release.date > settings["start_date"]:
            batch = make_batch(release.name, release.date, earlier, release_contents.texts)
            batches.append(batch)
            continue
        # Of the releases before the start, only the last one counts.
        for name in earlier:
            del start[name]
        start.update(release_contents.texts)

    steps = group_by_period(batches, settings["step_months"])
    step_of_release: dict[str, int] = {}
    for number, step in enumerate(steps, start=1):
        for batch in step.batches:
            step_of_release[batch.name] = number

    queries = _summary_queries(contents, step_of_release, settings["tested_summaries"])
    queries.extend(_changelog_queries(entries, step_of_release, settings["tested_entries"]))
    return Stream("docstrings", settings["start_date"], start, steps, queries)


def _distinct_entries(contents: Sequence[ReleaseContents]) -> list[tuple[Release, Entry]]:
    """Return the entries whose text occurs only once. Other texts do not identify a definition."""
    counts: Counter[str] = Counter()
    for release_contents in contents:
        for entry in release_contents.entries:
            counts[normalize_phrase(entry.text)] += 1
    entries: list[tuple[Release, Entry]] = []
    for release_contents in contents:
        for entry in release_contents.entries:
            if counts[normalize_phrase(entry.text)] == 1:
                entries.append((release_contents.release, entry))
    return entries


def _sample(contents: ReleaseContents, asked: set[str], share: float) -> ReleaseContents:
    """Keep the definitions that an entry names, and a share of the others.

    Args:
        contents: Documents and entries of a release.
        asked: Definitions that an entry of any release names.
        share: Share of the other definitions.
    """
    texts: dict[str, Text] = {}
    for name, text in contents.texts.items():
        if name in asked or is_in_share(name, share):
            texts[name] = text
    summaries = {name: contents.summaries[name] for name in texts}
    return ReleaseContents(contents.release, texts, summaries, contents.entries)


def is_in_share(name: str, share: float) -> bool:
    """Return whether the hash of a name lies in a share of all hashes.

    >>> is_in_share("numpy.sort", 1.0)
    True
    >>> is_in_share("numpy.sort", 0.0)
    False
    """
    return int(hash_text(name)[:8], 16) < share * HASH_RANGE


def _role(query_id: str, tested_share: float) -> str:
    """Return whether a query is known to the policies or tests them, by a hash of its id."""
    return TESTED if is_in_share(query_id, tested_share) else KNOWN


def _summary_queries(
    contents: Sequence[ReleaseContents], step_of_release: Mapping[str, int], tested_share: float
) -> list[StreamQuery]:
    """Return queries from the summary lines that identify a document.

    A summary line is left out if another document has the same summary, or contains it in its text,
    in any release. Of several definitions with the same last part of their names, only one gets a
    query.
    """
    # First release and summary line of each definition, definitions by their summary lines in any
    # release, and the last text of each definition.
    first: dict[str, tuple[Release, str]] = {}
    owners: dict[str, set[str]] = {}
    bodies: dict[str, str] = {}
    for release_contents in contents:
        for name, summary in release_contents.summaries.items():
            first.setdefault(name, (release_contents.release, summary))
            owners.setdefault(normalize_phrase(summary), set()).add(name)
            bodies[name] = normalize_phrase(release_contents.texts[name].text)

    def sort_key(name: str) -> tuple[int, str]:
        """Return a key that puts names with few parts first."""
        return name.count("."), name

    # Definition, release and summary line, by the last part of the definition's name.
    candidates: dict[str, tuple[str, Release, str]] = {}
    for name in sorted(first, key=sort_key):
        release, summary = first[name]
        has_query_length = MIN_SUMMARY_WORDS <= len(summary.split()) <= MAX_SUMMARY_WORDS
        is_unique = len(owners[normalize_phrase(summary)]) == 1
        if has_query_length and is_unique:
            last_part = name.rpartition(".")[2].casefold()
            candidates.setdefault(last_part, (name, release, summary))

    phrases = [normalize_phrase(summary) for _, _, summary in candidates.values()]
    containing = documents_containing(phrases, bodies)
    queries: list[StreamQuery] = []
    for name, release, summary in candidates.values():
        if containing[normalize_phrase(summary)]:
            continue
        query_id = f"summary:{name}"
        step = step_of_release.get(release.name, 0)
        role = _role(query_id, tested_share)
        queries.append(StreamQuery(query_id, summary, frozenset([name]), step, role, "summary"))
    return queries


def _changelog_queries(
    entries: Sequence[tuple[Release, Entry]],
    step_of_release: Mapping[str, int],
    tested_share: float,
) -> list[StreamQuery]:
    """Return a query for each changelog entry, which the entry's definition answers."""
    queries: list[StreamQuery] = []
    for release, entry in entries:
        query_id = f"changelog:{release.name}:{hash_text(entry.text)[:12]}"
        step = step_of_release.get(release.name, 0)
        role = _role(query_id, tested_share)
        answers = frozenset([entry.definition])
        queries.append(StreamQuery(query_id, entry.text, answers, step, role, "changelog"))
    return queries
