"""The command `freshet search`, and hits as text."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from model_code.errors import SettingsError
from model_code.project import Project
from model_code.text.words import print_message
from orchestration.cli.options import Retriever
from orchestration.running_service import find_running_service

if TYPE_CHECKING:
    from freshet.results import Hit, SearchResult
    from model_code.retrieval.protocol import TokenMatch

# Number of matched tokens that `--explain` prints for a hit.
MAX_SHOWN_TOKENS = 12
# Column at which titles begin. The lines below a title are indented by the same number of blanks.
TITLE_COLUMN = 12


def search(
    text: Annotated[
        str | None, typer.Argument(help="The query; left out with --like.", show_default=False)
    ] = None,
    k: Annotated[int, typer.Option("-k", min=1, help="Number of documents.")] = 10,
    retriever: Retriever = None,
    filters: Annotated[
        list[str] | None,
        typer.Option(
            "--filter",
            metavar="CONDITION",
            help="Only documents with these fields: package=numpy, year>=2020, or JSON. "
            "Can be repeated.",
        ),
    ] = None,
    explain: Annotated[
        bool,
        typer.Option(
            "--explain",
            help="Show the shares of each score, by component or token, and the boosts.",
        ),
    ] = False,
    offset: Annotated[
        int, typer.Option(min=0, help="Number of documents to skip, for the next page.")
    ] = 0,
    sort: Annotated[
        list[str] | None,
        typer.Option(
            "--sort",
            metavar="FIELD",
            help="Sort the best documents by a field: year, or --sort=-date for the newest first. "
            "Can be repeated.",
        ),
    ] = None,
    group_by: Annotated[
        str | None,
        typer.Option(
            metavar="FIELD", help="Show only the best document for each value of this field."
        ),
    ] = None,
    facets: Annotated[
        list[str] | None,
        typer.Option(
            "--facet",
            metavar="FIELD",
            help="Count the values of this field in the best documents. Can be repeated.",
        ),
    ] = None,
    boost: Annotated[
        list[str] | None,
        typer.Option(
            "--boost",
            metavar="FIELD",
            help="Prefer recent or popular documents. --boost date:30d adds most to documents of "
            "today, and half as much for each 30 days of age. --boost downloads adds more for "
            "greater numbers; downloads:0.2 sets the weight to 0.2. Can be repeated.",
        ),
    ] = None,
    window: Annotated[
        int | None,
        typer.Option(
            metavar="DOCUMENTS",
            help="Number of best documents that sort, groups, boosts and facets look at.",
        ),
    ] = None,
    literal: Annotated[
        bool,
        typer.Option(
            "--literal", help="Take quotes, dashes and title: as text, and tolerate no typo."
        ),
    ] = False,
    prefix: Annotated[
        bool, typer.Option("--prefix", help="Complete the last word, as the page does.")
    ] = False,
    min_score: Annotated[
        float | None,
        typer.Option(metavar="SCORE", help="Show only documents with this score or a higher one."),
    ] = None,
    diversity: Annotated[
        float,
        typer.Option(
            min=0, max=1, help="Move documents down that resemble better ones: 0 (off) to 1."
        ),
    ] = 0.0,
    like: Annotated[
        str | None,
        typer.Option(metavar="ID", help="Find documents that resemble the one with this id."),
    ] = None,
    as_json: Annotated[
        bool,
        typer.Option(
            "--json", help="Print hits as a JSON list; with --facet, an object with all counts."
        ),
    ] = False,
) -> None:
    """Search the documents.

    Use it for single queries. A running service (freshet serve) answers them at once; without one,
    each command loads the encoder first.

    "Quoted phrases" must occur, -words must not, and title:word must be in the title.

    Example: freshet search "sort an array" -k 5 --filter package=numpy
    """
    # Both a query and --like are given, or neither is.
    if (text is None) == (like is None):
        raise SettingsError(
            'give either a query or --like ID, as in: freshet search "sort an array", or freshet '
            "search --like numpy.sort"
        )
    project = Project.find()
    options: dict[str, Any] = {
        "filters": filters or [],
        "explain": explain,
        "offset": offset,
        "sort": sort or [],
        "group_by": group_by,
        "facets": facets or [],
        "boost": boost or [],
        "syntax": not literal,
        "typos": not literal,
        "prefix": prefix,
        "min_score": min_score,
        "diversity": diversity,
    }
    if window is not None:
        options["window"] = window

    service = find_running_service(project)
    if service is not None:
        result = service.search(text, k, like=like, retriever=retriever, **options)
    else:
        options["k"] = k
        result = _search_in_this_process(project, text, like, retriever, options)

    if as_json:
        records: Any = [hit_record(hit) for hit in result.hits]
        if facets:
            records = {"total": result.total, "facets": result.facets, "hits": records}
        print_message(json.dumps(records, indent=2, ensure_ascii=False))
        return
    print_message(hits_text(result.hits))
    if offset:
        print_message(f"{len(result.hits)} documents from {offset + 1} of {result.total:,}")
    for name, counts in result.facets.items():
        print_message(facet_text(name, counts))


def _search_in_this_process(
    project: Project,
    text: str | None,
    like: str | None,
    retriever: str | None,
    options: Mapping[str, Any],
) -> SearchResult:
    """Search without a service.

    Args:
        project: The project.
        text: The query; None if `like` is given.
        like: Id of a document that the hits should resemble; None if `text` is given.
        retriever: Name of a live retriever; None for the default one.
        options: Arguments of `QueryOptions`.
    """
    # Importing torch takes seconds, which a search by a running service does not need.
    from model_code.collection.generations.query_options import QueryOptions
    from model_code.collection.generations.searcher import Searcher
    from model_code.retrieval.reranker import Reranker, RerankSettings

    searcher = Searcher.open(project.live, retriever)
    searcher.reranker = Reranker.load(project.settings("rerank", RerankSettings))
    query_options = QueryOptions(**options)
    if like is not None:
        return searcher.search_like(like, query_options)
    (result,) = searcher.search_pages([text or ""], query_options)
    return result


def facet_text(name: str, counts: Mapping[str, int]) -> str:
    """Return the counted values of a field as one line.

    >>> facet_text("package", {"numpy": 12, "scipy": 3})
    'package: numpy 12, scipy 3'
    """
    if not counts:
        return f"{name}: no values"
    values = ", ".join(f"{value} {count:,}" for value, count in counts.items())
    return f"{name}: {values}"


def hits_text(hits: Sequence[Hit]) -> str:
    """Return hits as text: rank, score, title, id, snippet, and matched tokens.

    A hit below the relevance floor fits the query so little that it is probably no answer. If all
    hits are below it, a last line says so.
    """
    if not hits:
        return "no documents found"
    lines = [_hit_text(hit) for hit in hits]
    if all(hit.below_floor for hit in hits):
        lines.append("nothing fits well: these are the nearest documents")
    return "\n".join(lines)


def _hit_text(hit: Hit) -> str:
    """Return one hit as a line with rank, score and title, and indented lines below it."""
    title = hit.title or hit.document_id
    heading = f"{hit.rank:3}  {hit.score:.3f}  {title}"
    # Below the relevance floor, a hit is probably no answer.
    if hit.below_floor:
        heading += "  (weak)"
    lines = [heading]
    if hit.document_id != title:
        lines.append(hit.document_id)

    snippet = _without_title(hit.snippet, title)
    if snippet:
        lines.append(snippet)
    if hit.tokens is not None:
        lines.append(tokens_text(hit.tokens))
    indent = " " * TITLE_COLUMN
    return f"\n{indent}".join(lines)


def _without_title(snippet: str, title: str) -> str:
    """Remove the title from the beginning of a snippet, because the line above shows it."""
    has_title = snippet.lower().startswith(title.lower())
    rest = snippet[len(title) :]
    # The title "Sort" is not the beginning of a snippet such as "Sorting is fast".
    ends_inside_word = rest[:1].isalnum()
    if has_title and not ends_inside_word:
        return rest.lstrip(" .:-")
    return snippet


def tokens_text(tokens: Sequence[TokenMatch]) -> str:
    """Return matched tokens with their weights, as one line.

    A + marks a token that is not in the query: an encoder added it, or it corrects or completes a
    word. "(known query)" marks a token that is not in the document, but in a query that the
    document is known to answer. For a component of a fusion, such tokens are named.

    >>> from model_code.retrieval.protocol import TokenMatch
    >>> tokens_text([TokenMatch("split", 1.25), TokenMatch("divide", 0.5, expanded=True)])
    'split 1.25  +divide 0.50'
    >>> tokens_text([TokenMatch("cut", 0.75, known=True)])
    'cut 0.75 (known query)'
    >>> tokens_text([TokenMatch("bm25_known", 2.0, known=True, known_words=("cut", "file"))])
    'bm25_known 2.00 (known query: cut, file)'
    """
    if not tokens:
        return "no token matched"
    parts = []
    for token in tokens[:MAX_SHOWN_TOKENS]:
        sign = "+" if token.expanded else ""
        parts.append(f"{sign}{token.token} {token.weight:.2f}{_origin_text(token)}")

    omitted = len(tokens) - len(parts)
    if omitted:
        parts.append(f"and {omitted} more")
    return "  ".join(parts)


def _origin_text(token: TokenMatch) -> str:
    """Return a note if a document has a token from a known query only, and otherwise nothing."""
    if token.known_words:
        return f" (known query: {', '.join(token.known_words)})"
    if token.known:
        return " (known query)"
    return ""


def hit_record(hit: Hit) -> dict[str, Any]:
    """Return a hit as a JSON object, with `tokens` only if an explanation was requested."""
    record = dataclasses.asdict(hit)
    if record["tokens"] is None:
        del record["tokens"]
    return record
