"""Measure the time from a key press to the hits, typed into a real browser.

`python -m experiments.as_you_type.run URL` needs a running `freshet serve` at URL over the demo's
corpus. It writes `result.json` here. Ten questions of `people_ask` are typed with 150 ms between
keys. Another question before them is a warm-up and does not count.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import httpx
import numpy as np
from playwright.sync_api import Page, sync_playwright

from model_code.files import read_json, write_json

HERE = Path(__file__).parent
# Questions, the first of which is a warm-up.
QUESTIONS = 11
KEY_DELAY_MILLISECONDS = 150
# Pause after each question, so that its last hits are drawn.
PAUSE_MILLISECONDS = 1000
# JavaScript that measures the time from a key press until the page shows the hits of the text in
# the search box.
CLOCK = """() => {
    let typed = 0;
    window.waited = [];
    queryBox.addEventListener("input", () => { typed = performance.now(); }, true);
    new MutationObserver(() => {
        const asked = lastSearch.request && JSON.parse(lastSearch.request)[0].text;
        if (typed && asked && asked === queryBox.value.trim()) {
            waited.push(performance.now() - typed);
            typed = 0;
        }
    }).observe(resultLists, {childList: true});
}"""


def type_questions(page: Page, questions: list[str]) -> list[float]:
    """Type questions, and return the milliseconds from each key to the hits of the text so far.

    The first question is a warm-up, and its keys are left out. So are keys that the next key
    followed before their hits were shown.
    """
    page.evaluate(CLOCK)
    box = page.get_by_label("Search the documents")
    for number, question in enumerate(questions):
        box.fill("")
        box.press_sequentially(question, delay=KEY_DELAY_MILLISECONDS)
        page.wait_for_timeout(PAUSE_MILLISECONDS)
        if number == 0:
            page.evaluate("waited.length = 0")
    return list(page.evaluate("waited"))


def main(url: str) -> dict[str, Any]:
    """Measure the latencies of a service."""
    rows = read_json(HERE.parent / "people_ask/questions.json")
    questions = [text for text, _ in rows[:QUESTIONS]]
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path="/usr/bin/chromium", args=["--no-sandbox"]
        )
        page = browser.new_page()
        page.goto(url)
        page.get_by_text("Up to date").wait_for()
        latencies = type_questions(page, questions)
        browser.close()

    status = httpx.get(f"{url}/status").json()
    open_retrievers = {retriever["retriever"]: retriever for retriever in status["open"]}
    retriever = open_retrievers[status["default_retriever"]]
    p50, p90, p99 = np.percentile(latencies, (50, 90, 99)).round(1).tolist()
    return {
        "retriever": retriever["retriever"],
        "documents": retriever["documents"],
        "keys": sum(len(question) for question in questions[1:]),
        "answered": len(latencies),
        "ms": {"p50": p50, "p90": p90, "p99": p99, "max": round(max(latencies), 1)},
    }


if __name__ == "__main__":
    write_json(HERE / "result.json", main(sys.argv[1]))
    print(read_json(HERE / "result.json"))
