"""Example questions for the default corpus, the docstrings of installed packages.

The queries of this corpus are first lines of docstrings. They are no natural questions, so visitors
see these questions in their place.
"""

from __future__ import annotations

from model_code.corpus.settings import AUTO, CorpusSettings

# Questions that a docstring answers, by package.
DOCSTRING_QUESTIONS = {
    "pandas": "How do I read a table from a CSV file?",
    "numpy": "How can I solve a system of linear equations?",
    "stdlib": "How do I compare two texts and show what changed?",
}


def docstring_questions(settings: CorpusSettings) -> tuple[str, ...]:
    """Return example questions that docstrings of the corpus answer; none for other corpora.

    Args:
        settings: Settings of the corpus.

    >>> docstring_questions(CorpusSettings(packages=("numpy", "scipy")))
    ('How can I solve a system of linear equations?',)
    >>> docstring_questions(CorpusSettings(path="notes"))
    ()
    """
    # Without a path, "auto" stands for installed packages.
    is_default_source = settings.source == AUTO and settings.path is None
    if settings.source != "installed_packages" and not is_default_source:
        return ()

    questions: list[str] = []
    for package, question in DOCSTRING_QUESTIONS.items():
        if package in settings.packages:
            questions.append(question)
    return tuple(questions)
