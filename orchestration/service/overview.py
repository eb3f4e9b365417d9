"""Content of the search page before the first search.

The page shows example questions, new documents, counts of judgements, and the freshness loop: the
steps from a changed document to a retrained retriever.
"""

from __future__ import annotations

import socket
from contextlib import suppress
from dataclasses import asdict
from urllib.parse import urlsplit

from model_code.collection.generations.generation import live_rows
from model_code.collection.generations.generation_store import (
    GenerationStore,
    default_retriever,
    retrievers,
)
from model_code.corpus.judgement_file import read_judgements
from model_code.corpus.settings import CorpusSettings
from model_code.errors import FreshetError
from model_code.files import read_json
from model_code.project import Project
from orchestration.freshness.judged_pairs import count_judgements, read_judged_pairs
from orchestration.freshness.loop import loop_steps, recent_documents
from orchestration.service.example_questions import docstring_questions
from orchestration.service.models import (
    LoopStepState,
    OverviewResponse,
    RecentDocumentState,
)

# Number of example questions on the page.
MAX_EXAMPLES = 4
# Longer questions are not shown, because a visitor cannot read them at a glance.
MAX_EXAMPLE_CHARACTERS = 90
# Questions with fewer words are shown only if there are no others.
MIN_EXAMPLE_WORDS = 3
# File with the addresses of the pages of Dagster and MLflow. `freshet ui` writes it.
PAGES_FILE = "pages.json"
# Seconds to wait for a connection to such a page, before it counts as closed.
CONNECT_SECONDS = 0.2


def make_overview(project: Project) -> OverviewResponse:
    """Return everything that the page shows before the first search. Nothing is changed."""
    judgements = None
    if retrievers(project.live):
        try:
            judgements = count_judgements(project).as_dict()
        except FreshetError as error:
            # The page shows the reason in place of the counts.
            judgements = {"text": f"judgements cannot be counted: {error}"}
    recent = [RecentDocumentState(**asdict(document)) for document in recent_documents(project)]
    return OverviewResponse(
        examples=example_questions(project),
        recent=recent,
        judgements=judgements,
        loop=[LoopStepState(**step.as_dict()) for step in loop_steps(project)],
        pages=open_pages(project),
    )


def example_questions(project: Project) -> list[str]:
    """Return example questions that the collection answers.

    They are the questions of the project's own judgements. Without any, they are natural questions
    for the default corpus, and queries of other corpora that no evaluation uses. If there are none
    either, they are titles of documents. Test queries are left out, because visitors would give
    feedback on them that training would learn from. Queries from feedback are left out, because
    users typed them.
    """
    if not retrievers(project.live):
        return []
    questions = [judged.question for judged in read_judgements(project.judgements)]
    if not questions:
        questions = list(docstring_questions(project.settings("corpus", CorpusSettings)))

    generation = GenerationStore(project.live, default_retriever(project.live)).current()
    if not questions:
        pairs = read_judged_pairs(project, generation)
        for query_id, text in pairs.texts.items():
            is_public = query_id not in pairs.typed
            if is_public and pairs.splits.get(query_id) in ("train", None):
                questions.append(text)
    if not questions:
        titles = [title for _, title in live_rows(generation, "document_id", "title")]
        questions = [title for title in titles if title.strip()]

    short = [text for text in dict.fromkeys(questions) if len(text) <= MAX_EXAMPLE_CHARACTERS]
    readable = [text for text in short if len(text.split()) >= MIN_EXAMPLE_WORDS] or short
    # The examples are spread over the list, because neighbours ask for similar documents.
    step = max(1, len(readable) // MAX_EXAMPLES)
    return readable[::step][:MAX_EXAMPLES]


def open_pages(project: Project) -> dict[str, str]:
    """Return the addresses of the pages of Dagster and MLflow, by name, if they answer now."""
    path = project.state / PAGES_FILE
    if not path.is_file():
        return {}
    pages: dict[str, str] = {}
    for name, address in read_json(path).items():
        parts = urlsplit(address)
        # The error means that the page is closed.
        with suppress(OSError):
            place = (parts.hostname or "", parts.port or 80)
            with socket.create_connection(place, CONNECT_SECONDS):
                pages[name] = address
    return pages
