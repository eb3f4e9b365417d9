"""What the page shows before anything is searched: examples, news, judgements, and the loop."""

from __future__ import annotations

import socket
from dataclasses import asdict
from urllib.parse import urlsplit

from model_code.collection.generations.generation import live_rows
from model_code.collection.generations.generation_store import (
    GenerationStore,
    default_retriever,
    retrievers,
)
from model_code.corpus.judgement_file import read_judgements
from model_code.errors import FreshetError
from model_code.files import read_json
from model_code.project import Project
from orchestration.freshness.judged_pairs import count_judgements, read_judged_pairs
from orchestration.freshness.loop import loop_steps, recent_documents
from orchestration.service.models import (
    LoopStepState,
    OverviewResponse,
    RecentDocumentState,
)

MAX_EXAMPLES = 4
# Longer texts are no questions that a visitor reads at a glance.
MAX_EXAMPLE_CHARACTERS = 90
MIN_EXAMPLE_WORDS = 3
# File with the addresses of the pages of Dagster and MLflow, which `freshet ui` writes.
PAGES_FILE = "pages.json"
CONNECT_SECONDS = 0.2


def make_overview(project: Project) -> OverviewResponse:
    """Collect the overview of a project. Nothing is changed."""
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
    """Return questions that the collection answers: judged ones, or else titles of documents.

    Test queries are left out, so that showing them teaches nobody what the tests ask.
    """
    if not retrievers(project.live):
        return []
    questions = [judged.question for judged in read_judgements(project.judgements)]
    generation = GenerationStore(project.live, default_retriever(project.live)).current()
    if not questions:
        pairs = read_judged_pairs(project, generation)
        for query_id, text in pairs.texts.items():
            if pairs.splits.get(query_id) in ("train", None):
                questions.append(text)
    if not questions:
        questions = [title for _, title in live_rows(generation, "document_id", "title")]

    short = [text for text in dict.fromkeys(questions) if len(text) <= MAX_EXAMPLE_CHARACTERS]
    readable = [text for text in short if len(text.split()) >= MIN_EXAMPLE_WORDS] or short
    # Spread over the list, because neighbours ask for similar documents.
    step = max(1, len(readable) // MAX_EXAMPLES)
    return readable[::step][:MAX_EXAMPLES]


def open_pages(project: Project) -> dict[str, str]:
    """Return the addresses of Dagster's and MLflow's pages that answer now."""
    path = project.state / PAGES_FILE
    if not path.is_file():
        return {}
    pages: dict[str, str] = {}
    for name, address in read_json(path).items():
        parts = urlsplit(address)
        with socket.socket() as client:
            client.settimeout(CONNECT_SECONDS)
            if client.connect_ex((parts.hostname or "", parts.port or 80)) == 0:
                pages[name] = address
    return pages
