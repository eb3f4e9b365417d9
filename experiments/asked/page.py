"""Write the page of the experiment from its result: tables, gates and the numbers in sentences."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

# Template of the section "Reading", and the lines around it in the page.
READING = "reading.md"
READING_START = "<!-- reading -->\n"
READING_END = "<!-- end of reading -->\n"
# Placeholder of a number in the template; see `render`.
PLACEHOLDER = re.compile(r"\{\{([^}]+)\}\}")

# Group of the queries whose relevant documents have no known query.
UNASKED = "relevant documents have no known query"
# With fewer of these queries, collections are pooled.
MIN_UNASKED_QUERIES = 300
# Largest loss of these queries, and of old documents, that the gates allow.
MAX_UNASKED_LOSS = 0.02
MAX_OLD_LOSS = 0.003
# Largest p-value of a significant difference.
ALPHA = 0.05
# Groups of the table of the default settings.
DEFAULT_GROUPS = ("all", UNASKED, "below 0.7")


def tables(result: Mapping[str, Any]) -> str:
    """Return the page's tables of a result."""
    parts = [word_gates_table(result), incdsi_gates_table(result)]
    for encoder, collections in result.get("memory", {}).items():
        parts.append(memory_table(encoder, collections))
        parts.append(defaults_table(encoder, collections))
        parts.append(choices_table(encoder, collections))
    for collections in result.get("memory_trained", {}).values():
        parts.append(memory_table("trained `hce`", collections))
        parts.append(choices_table("trained `hce`", collections))
    for encoder, collections in result.get("arrivals", {}).items():
        for name, arrivals in collections.items():
            for label, rows in arrivals.items():
                title = f"{name} ({label})"
                parts.append(arrivals_table("Arrivals", title, encoder, rows))
                parts.append(groups_table(title, rows))
        parts.append(tried_table(collections))
    for collections in result.get("trained", {}).values():
        for name, encoders in collections.items():
            for encoder, rows in encoders.items():
                title = "Beside trainings, reduced collection"
                parts.append(arrivals_table(title, name, encoder, rows))
    for encoder, collections in result.get("thumbs", {}).items():
        for name, thumbs in collections.items():
            for rows in thumbs.values():
                parts.append(arrivals_table("Thumbs, reduced collection", name, encoder, rows))
    return "\n".join(parts)


def word_gates_table(result: Mapping[str, Any]) -> str:
    """Return the table of the conditions under which known queries count as words by default."""
    lines = [
        "**Gates of words**: the fusion with known queries less without",
        "",
        "| condition | settings from dev | met | default settings | met |",
        "|---|---|---|---|---|",
    ]
    for encoder, collections in result.get("memory", {}).items():
        for name in ("squad", "cranfield"):
            if name in collections:
                row = collections[name]["groups"]["below 0.7"]
                condition = f"{name}: {row['queries']:,} queries below 0.7 gain"
                lines.append(word_gate_row(condition, row, is_gain))

        few_unasked = {}
        pooled = result["pooled"].get(encoder)
        if pooled is not None:
            few_unasked[", ".join(pooled["collections"])] = pooled
        many_unasked = {}
        for name, rows in sorted(collections.items()):
            group = rows["groups"].get(UNASKED)
            if group is not None and group["queries"] >= MIN_UNASKED_QUERIES:
                many_unasked[name] = group
        for name, row in {**many_unasked, **few_unasked}.items():
            condition = (
                f"{name}: {row['queries']:,} queries for documents without known queries lose less "
                f"than {MAX_UNASKED_LOSS}"
            )
            lines.append(word_gate_row(condition, row, excludes_unasked_loss))
    return "\n".join(lines) + "\n"


def word_gate_row(
    condition: str, row: Mapping[str, Any], is_met: Callable[[Mapping[str, Any]], bool]
) -> str:
    """Return a row of the table of `word_gates_table`."""
    cells = [condition]
    for family in ("fusion", "default fusion"):
        cells.append(f"{format_difference(row[family])}, p {row[family]['p']:.4f}")
        cells.append(format_verdict(is_met(row[family])))
    return f"| {' | '.join(cells)} |"


def incdsi_gates_table(result: Mapping[str, Any]) -> str:
    """Return the table of the conditions under which IncDSI is used by default."""
    lines = [
        "**Gates of IncDSI**: its share on new documents is a gain, and old documents lose less "
        f"than {MAX_OLD_LOSS}",
        "",
        "| collection | way | share, new | share, old | met |",
        "|---|---|---|---|---|",
    ]
    for collections in result.get("arrivals", {}).values():
        for name, arrivals in collections.items():
            for label, rows in arrivals.items():
                for way, row in rows["ways"].items():
                    new = row.get("new less without IncDSI")
                    if new is None or "words of arrivals" in way:
                        continue
                    old = row["old less without IncDSI"]
                    is_met = is_gain(new) and is_loss_excluded(old, MAX_OLD_LOSS)
                    cells = [
                        f"{name} ({label})",
                        way,
                        f"{format_difference(new)}, p {new['p']:.4f}",
                        format_difference(old),
                        format_verdict(is_met),
                    ]
                    lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def format_verdict(is_met: bool) -> str:
    """Return whether a condition is met, for a table."""
    return "yes" if is_met else "**no**"


def is_gain(values: Mapping[str, Any]) -> bool:
    """Return whether a difference is a significant gain."""
    return bool(values["difference"] > 0 and values["p"] < ALPHA)


def excludes_unasked_loss(values: Mapping[str, Any]) -> bool:
    """Return whether documents without known queries lose less than the gate allows."""
    return is_loss_excluded(values, MAX_UNASKED_LOSS)


def is_loss_excluded(values: Mapping[str, Any], largest_loss: float) -> bool:
    """Return whether the interval of a difference excludes a loss of this size."""
    low, _ = values["interval"]
    return bool(low > -largest_loss)


def memory_table(encoder: str, collections: Mapping[str, Any]) -> str:
    """Return the table of known queries as words, by collection and group of test queries."""
    lines = [f"**Known queries as words, chosen on dev, {encoder} encoder**", "", *MEMORY_HEAD]
    for name, rows in sorted(collections.items()):
        for group, row in rows["groups"].items():
            lines.append(memory_row(f"{name}, {group}", row, ("bm25", "fusion")))
    return "\n".join(lines) + "\n"


def defaults_table(encoder: str, collections: Mapping[str, Any]) -> str:
    """Return the table of known queries as words by the default settings."""
    lines = [f"**Known queries as words, default settings, {encoder} encoder**", "", *MEMORY_HEAD]
    for name, rows in sorted(collections.items()):
        for group in DEFAULT_GROUPS:
            if group in rows["groups"]:
                families = ("default bm25", "default fusion")
                lines.append(memory_row(f"{name}, {group}", rows["groups"][group], families))
    return "\n".join(lines) + "\n"


MEMORY_HEAD = (
    "| collection, largest Jaccard | queries | bm25 | bm25_known less bm25 | p "
    "| fusion | with known queries less without | p |",
    "|---|---|---|---|---|---|---|---|",
)


def memory_row(title: str, row: Mapping[str, Any], families: Sequence[str]) -> str:
    """Return a row of a table with the columns `MEMORY_HEAD`."""
    cells = [title, f"{row['queries']:,}"]
    for family in families:
        values = row[family]
        cells.append(f"{values['plain']:.3f}")
        cells.append(format_difference(values))
        cells.append(f"{values['p']:.4f}")
    return f"| {' | '.join(cells)} |"


def choices_table(encoder: str, collections: Mapping[str, Any]) -> str:
    """Return the table of the settings that dev chose, a row for each trial."""
    lines = [
        f"**Choices on dev, {encoder} encoder**",
        "",
        "| collection | dev queries, without known | bm25_known: u, in length "
        "| fusion without known queries: bm25, late | fusion with: u, in length, bm25, late "
        "| dev loss without known |",
        "|---|---|---|---|---|---|",
    ]
    for name, rows in sorted(collections.items()):
        for choices in rows["choices"]:
            plain = choices["plain"]["fusion"]["weights"]
            fusion = choices["words"]["fusion"]
            weights = fusion["weights"]
            bm25 = choices["words"]["bm25"]["words"]
            cells = [
                name,
                f"{fusion['dev queries']:,}, {fusion['dev queries without known']:,}",
                format_words(bm25),
                f"{plain['bm25']:g}, {plain['late']:g}",
                f"{format_words(fusion['words'])}, {weights['bm25']:g}, {weights['late']:g}",
                f"{fusion['dev loss without known']:.3f}",
            ]
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def format_words(words: Mapping[str, Any]) -> str:
    """Return how known queries count as words: the weight, and whether they count for length."""
    if not words["weight"]:
        return "0"
    counts_in_length = "yes" if words["in_length"] else "no"
    return f"{words['weight']:g}, {counts_in_length}"


def arrivals_table(title: str, name: str, encoder: str, rows: Mapping[str, Any]) -> str:
    """Return the table that compares the methods of indexing documents that get queries.

    Args:
        title: Title of the table.
        name: Name of the collection and, if there are several, of its division.
        encoder: Name of the encoder.
        rows: Result of `compare_methods`.
    """
    documents = (
        f"{rows['new documents']:,} documents arrive, {rows['bring queries']:,} with queries"
    )
    if "thumbs" in rows:
        documents = (
            f"{rows['bring queries']:,} of {rows['new documents']:,} documents, called new here, "
            f"get {rows['thumbs']:,} thumbs up"
        )
    lines = [
        f"**{title}, {name}, {encoder} encoder**: {documents}, beside "
        f"{rows['old documents']:,}; {rows['new queries']:,} test queries for new documents, "
        f"{rows['old queries']:,} for old",
        "",
        "| way | old | less plain | new | less plain | IncDSI's share, old | IncDSI's share, new |",
        "|---|---|---|---|---|---|---|",
    ]
    for method, row in rows["ways"].items():
        cells = [method]
        for part in ("old", "new"):
            less_plain = ""
            if method != "plain":
                less_plain = format_difference(row[f"{part} less plain"])
            cells.append(f"{row[part]:.3f}")
            cells.append(less_plain)
        for part in ("old", "new"):
            incdsi_share = ""
            values = row.get(f"{part} less without IncDSI")
            if values is not None:
                incdsi_share = f"{format_difference(values)}, p {values['p']:.4f}"
            cells.append(incdsi_share)
        lines.append(f"| {' | '.join(cells)} |")
    choices = rows.get("choices")
    if choices is not None:
        incdsi = choices["incdsi"]
        words = choices["words"]
        lines.append("")
        lines.append(
            f"Dev chose gamma1 {incdsi['gamma1']:g} and lambda2 {incdsi['lambda2']:g} for IncDSI, "
            f"u {format_words(words['words'])} (weight, in length) for the words, "
            f"bm25 {words['weights']['bm25']:g} and late {words['weights']['late']:g} with words, "
            f"bm25 {choices['plain']['weights']['bm25']:g} and "
            f"late {choices['plain']['weights']['late']:g} without."
        )
    return "\n".join(lines) + "\n"


def groups_table(title: str, rows: Mapping[str, Any]) -> str:
    """Return the table of arrivals by known queries: differences to plain search.

    Args:
        title: Name of the collection and its division.
        rows: Result of `compare_methods`.
    """
    counts = {group: number for group, number in rows["groups"].items() if number}
    heads = [f"{group} ({number:,})" for group, number in counts.items()]
    lines = [
        f"{title}, less plain, by whether a relevant document has known queries",
        "",
        f"| way | {' | '.join(heads)} |",
        "|---" * (len(heads) + 1) + "|",
    ]
    for method, row in rows["ways"].items():
        if method == "plain":
            continue
        cells = [method]
        for group in counts:
            cells.append(format_difference(row["groups"][group]))
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def tried_table(collections: Mapping[str, Any]) -> str:
    """Return the table of IncDSI's settings that were tried on dev queries."""
    lines = [
        "**IncDSI's settings on dev**, beside words of all: change of nDCG@10 by IncDSI",
        "",
        "| collection | gamma1 | lambda2 | old | new | guard form, old | guard form, new |",
        "|---|---|---|---|---|---|---|",
    ]
    for name, arrivals in collections.items():
        for label, rows in arrivals.items():
            guarded = {
                (row["gamma1"], row["lambda2"]): row
                for row in rows.get("tried", [])
                if row["guard"]
            }
            for row in rows.get("tried", []):
                if row["guard"]:
                    continue
                guard = guarded.get((row["gamma1"], row["lambda2"]))
                cells = [
                    f"{name} ({label})",
                    f"{row['gamma1']:g}",
                    f"{row['lambda2']:g}",
                    f"{row['old']:+.3f}",
                    f"{row['new']:+.3f}",
                ]
                if guard is None:
                    cells.extend(["", ""])
                else:
                    cells.extend([f"{guard['old']:+.3f}", f"{guard['new']:+.3f}"])
                lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def incdsi_table(result: Mapping[str, Any]) -> str:
    """Return the table of IncDSI's gain for the documentation, with the settings of the product."""
    lines = [
        "| collection | documents that arrive | IncDSI alone: new documents | old documents "
        "| beside the words of all documents: new documents | old documents |",
        "|---|---|---|---|---|---|",
    ]
    for name, arrivals in result["arrivals"]["pretrained"].items():
        for label, rows in arrivals.items():
            if label.endswith("defaults"):
                continue
            title = f"{name}, paragraphs that come with half of their questions"
            if label != "all":
                title = f"{name}, after {label}"
            cells = [title, f"{rows['new documents']:,}"]
            for way in ("IncDSI as shipped", "IncDSI as shipped and words of all"):
                for age in ("new", "old"):
                    values = rows["ways"][way][f"{age} less without IncDSI"]
                    cells.append(render("{{0}}", {"0": values}))
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def thumbs_table(result: Mapping[str, Any]) -> str:
    """Return the table of thumbs without judgements for the documentation, as shipped."""
    ways = result["thumbs"]["pretrained"]["squad-no-judgements"]["all"]["ways"]
    words = ways["words of thumbs"]
    incdsi = ways["IncDSI as shipped and words of thumbs"]
    lines = [
        "| paragraphs | by the words of the thumbs | further, by IncDSI |",
        "|---|---|---|",
    ]
    for label, age in (("with thumbs", "new"), ("without thumbs", "old")):
        cells = [
            label,
            render("{{0}}", {"0": words[f"{age} less plain"]}),
            render("{{0}}", {"0": incdsi[f"{age} less without IncDSI"]}),
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def format_difference(values: Mapping[str, Any]) -> str:
    """Return a difference with its interval."""
    low, high = values["interval"]
    return f"{values['difference']:+.3f} [{low:+.3f}, {high:+.3f}]"


def render(template: str, result: Mapping[str, Any]) -> str:
    """Replace the placeholders of a text by numbers of a result.

    A placeholder `{{a/b/c}}` stands for `result[a][b][c]`. A difference is written with its
    interval. `{{a/b/c|short}}` leaves the interval out, and `{{a/b/c|size}}` also the sign.

    >>> values = {"squad": {"difference": 0.0063, "interval": [0.0041, 0.0102], "plain": 0.89}}
    >>> render("{{squad}}, {{squad|short}}, {{squad|size}}, {{squad/plain}}", values)
    '+.006 [.004, .010], +.006, .006, .890'
    """

    def replace(match: re.Match[str]) -> str:
        path, _, form = match.group(1).partition("|")
        value: Any = result
        for key in path.split("/"):
            value = value[key]
        if not isinstance(value, Mapping):
            return _decimals(value)
        difference = _decimals(value["difference"], sign="+")
        if form == "short":
            return difference
        if form == "size":
            return _decimals(abs(value["difference"]))
        low, high = value["interval"]
        return f"{difference} [{_decimals(low)}, {_decimals(high)}]"

    return PLACEHOLDER.sub(replace, template)


def _decimals(value: float | int, sign: str = "") -> str:
    """Return a number with three decimals and without a zero before the point.

    Whole numbers are written without decimals.
    """
    if isinstance(value, int):
        return f"{value:,}"
    return f"{value:{sign}.3f}".replace("0.", ".", 1)
