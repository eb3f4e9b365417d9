"""Guards folders in Chinese, Japanese and Arabic, each by itself and without a setting for it:
built, searched by words and by characters, named topics, and the page that shows them.
"""

from __future__ import annotations

import pytest

from freshet import Client
from model_code.project import Project
from orchestration import parameters
from tests.end_to_end.languages import DOCUMENTS, QUESTIONS, write_documents
from tests.end_to_end.test_own_project import SETTINGS
from tests.end_to_end.tiny_project import freshet
from tests.freshet.conftest import serving, visit  # noqa: F401
from tests.tiny_encoder import make_tiny_encoder

pytestmark = pytest.mark.full

TELLING = {
    "chinese": ("列车", "旅客", "地球"),
    "japanese": ("料理", "気温", "カード"),
    "arabic": ("الأرض", "المكتبة"),
}


@pytest.fixture(scope="module", params=DOCUMENTS)
def language(request) -> str:
    return request.param


@pytest.fixture(scope="module")
def project(language, tmp_path_factory) -> Project:
    """The folder of a language, made and built as its owner would."""
    folder = tmp_path_factory.mktemp(language)
    write_documents(folder / "notes", language)
    assert freshet(folder, "init", "search", "--from", "notes").stdout.startswith(
        "source: a folder, 12 documents"
    )
    texts = []
    for documents in DOCUMENTS[language].values():
        texts += documents
    make_tiny_encoder(folder / "search/encoder", texts)
    parameters.write_overrides(folder / "search/params.yaml", SETTINGS)
    freshet(folder / "search", "demo")
    return Project(folder / "search")


@pytest.fixture(scope="module")
def url(project):
    with serving(project) as address:
        yield address


def test_best_document_is_first_and_marked(language, url):
    with Client(url) as client:
        for question, title, word in QUESTIONS[language]:
            hit = client.search(question, 3).hits[0]
            assert hit.title == title, question
            assert any(word in hit.snippet[start:end] for start, end in hit.marks), question


def test_topics_have_names_of_words(language, url):
    with Client(url) as client:
        hits = client.search(" ".join(question for question, _, _ in QUESTIONS[language]), 12).hits
    names = set()
    for hit in hits:
        for topic in hit.topics:
            names.update(topic.split(", "))

    assert len(names) >= 4
    assert all(len(name) > 1 for name in names)
    # Endings and particles, which are written in hiragana, name nothing.
    assert not [name for name in names if "ぁ" <= name[0] <= "ゟ"]
    assert names & set(TELLING[language])


def test_the_page_shows_them(language, visit, url):  # noqa: F811
    question, title, word = QUESTIONS[language][0]
    page = visit(f"/#q={question.replace(' ', '+')}")
    hit = page.locator(".hit").first
    hit.get_by_role("button", name=title, exact=True).wait_for()

    assert any(word in marked for marked in hit.locator("mark").all_text_contents())

    rest = page.evaluate(
        "document.documentElement.scrollWidth - document.documentElement.clientWidth"
    )
    # Nothing is wider than the page.
    assert rest <= 0

    hit.get_by_role("button", name=title, exact=True).click()
    page.locator(".whole").get_by_text(word).first.wait_for()
