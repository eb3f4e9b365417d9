"""How long after a key the page shows what is found, on the demo's corpus: typed into a real
browser.

`python -m experiments.as_you_type.run URL` while `freshet serve` answers there; writes
`result.json` here. Ten of the questions of `people_ask` are typed at 150 ms a key; the first one
warms and is not counted.
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
QUESTIONS, DELAY = 11, 150  # one of them warms; ms from key to key
CLOCK = """() => {
    let typed = 0;
    window.waited = [];
    queryBox.addEventListener("input", () => { typed = performance.now(); }, true);
    new MutationObserver(() => {
        const asked = lastSearch.request && JSON.parse(lastSearch.request)[0].text;
        if (typed && asked && asked === queryBox.value.trim()) { waited.push(performance.now() - typed); typed = 0; }
    }).observe(resultLists, {childList: true});
}"""  # from a key to the hits of the whole text in the box, drawn


def typed(page: Page, questions: list[str]) -> list[float]:
    """Milliseconds from each key to the hits, of all questions but the first."""
    page.evaluate(CLOCK)
    for number, question in enumerate(questions):
        page.get_by_label("Search the documents").fill("")
        page.get_by_label("Search the documents").press_sequentially(question, delay=DELAY)
        page.wait_for_timeout(1000)
        if number == 0:
            page.evaluate("waited.length = 0")
    return list(page.evaluate("waited"))


def main(url: str) -> dict[str, Any]:
    """What waited how long, and for what."""
    questions = [text for text, _ in read_json(HERE.parent / "people_ask/questions.json")][
        :QUESTIONS
    ]
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path="/usr/bin/chromium", args=["--no-sandbox"]
        )
        page = browser.new_page()
        page.goto(url)
        page.get_by_text("Up to date").wait_for()
        waited = typed(page, questions)
        browser.close()
    opened = httpx.get(f"{url}/status").json()
    (live,) = [each for each in opened["open"] if each["retriever"] == opened["default_retriever"]]
    p50, p90, p99 = np.percentile(waited, (50, 90, 99)).round(1).tolist()
    return {
        "retriever": live["retriever"],
        "documents": live["documents"],
        "keys": sum(map(len, questions[1:])),
        "answered": len(waited),
        "ms": {"p50": p50, "p90": p90, "p99": p99, "max": round(max(waited), 1)},
    }


if __name__ == "__main__":
    write_json(HERE / "result.json", main(sys.argv[1]))
    print(read_json(HERE / "result.json"))
