"""Guards the page at `/` in a real browser: typing, filters, what is added, keys, hostile titles,
light and dark.

Skipped where Debian's Chromium is not installed.
"""

from __future__ import annotations

import re

import httpx
import pytest

from freshet import Client
from model_code.collection.index.project_ledger import read_feedback
from tests.freshet.conftest import serving

NEW = {
    "_id": "zip.open",
    "title": "<script>alert(1)</script>",
    "text": "Open a 🗜 archive <b>of</b> files",
    "package": "zip",
}


def test_page_is_small_and_runs_only_its_script(url):
    answer = httpx.get(url)
    assert len(answer.content) <= 50_000
    policy = dict(
        part.strip().split(" ", 1) for part in answer.headers["Content-Security-Policy"].split(";")
    )
    assert policy["default-src"] == "'none'"
    assert re.fullmatch(r"'sha256-[^']+'", policy["script-src"])
    assert re.fullmatch(r"'sha256-[^']+'", policy["style-src"])
    assert policy["require-trusted-types-for"] == "'script'"


def test_typed_query_is_searched_and_kept_in_address(visit):
    expect = pytest.importorskip("playwright.sync_api").expect
    page = visit()
    page.get_by_label("Search the documents").press_sequentially("split a string")
    page.get_by_role("button", name="str.split", exact=True).wait_for()
    assert page.locator("mark").first.text_content().lower() in ("split", "a", "string")
    told = re.search(r"in (\d+) ms$", page.locator("#summary").text_content())
    assert int(told[1]) < 2000, (
        "milliseconds; what a built project takes is measured in experiments/as_you_type"
    )
    page.get_by_label("Search the documents").press_sequentially(" by a regul")
    expect(page.locator(".hit").first).to_contain_text("re.split")
    page.get_by_label("strings").check()
    expect(page.locator(".hit")).to_have_count(2)
    again = visit("/" + page.evaluate("location.hash"))
    expect(again.locator(".hit")).to_have_count(2)
    assert again.get_by_label("strings").is_checked()


def test_filters_count_the_documents_of_the_query(visit):
    expect = pytest.importorskip("playwright.sync_api").expect
    page = visit("/#q=split+a+string")
    count = page.locator("label", has_text="strings").locator(".soft")
    expect(count).to_have_attribute("title", "among the 100 best documents")
    page.get_by_label("strings").check()
    expect(page.locator(".hit")).to_have_count(2)
    expect(count).to_have_text("2")
    page.get_by_label("Search the documents").fill("")
    expect(count).to_have_attribute("title", "in all documents")


def test_keys_move_between_query_and_hits(visit):
    page = visit("/#q=read+rows+of+a+csv+file")
    page.locator(".hit").first.wait_for()
    for key, focused in (
        ("Enter", ".hit:nth-child(1) .title"),
        ("ArrowDown", ".hit:nth-child(2) .title"),
        ("ArrowUp", ".hit:nth-child(1) .title"),
        ("ArrowUp", "#query"),
        ("ArrowDown", ".title"),
        ("Escape", "#query"),
        ("Enter", ".title"),
    ):
        page.keyboard.press(key)
        assert page.evaluate("selector => document.activeElement.matches(selector)", focused), (
            key,
            focused,
        )
    page.keyboard.press("Enter")
    page.locator(".whole").get_by_text("csv").first.wait_for()


def test_two_retrievers_stand_side_by_side(visit):
    page = visit("/#q=split+a+string")
    page.get_by_label("Compare with").select_option(label="contrastive")
    page.get_by_role("heading", name="contrastive").wait_for()
    assert page.locator("section").count() == 2


def test_added_document_appears_as_plain_text(visit, url):
    page = visit("/#q=open+archive")
    page.locator(".hit").first.wait_for()
    with Client(url) as client:
        client.add([NEW])
    try:
        page.get_by_role("button", name=NEW["title"], exact=True).wait_for()
        assert page.locator(".hit", has_text="archive <b>of</b> files").locator(".new").count() == 1
        assert page.locator(".hit mark").first.evaluate("node => node.textContent").lower() in (
            "open",
            "archive",
        )
    finally:
        with Client(url) as client:
            client.delete(["zip.open"])


def test_latest_thumb_counts(visit, project):
    page = visit("/#q=split+a+string")
    first = page.locator(".hit").first
    name = first.get_attribute("data-id") or first.evaluate("item => item.dataset.id")
    first.get_by_role("button", name=f"{name} answers").click()
    first.locator(".up[aria-pressed=true]").wait_for()
    page.get_by_role("button", name=name, exact=True).press("-")
    first.locator(".down[aria-pressed=true]").wait_for()
    page.get_by_role("button", name=name, exact=True).click()
    page.locator(".whole").wait_for()
    (said,) = [
        each
        for each in read_feedback(project)
        if each.document_id == name and each.query == "split a string"
    ]
    assert (said.verdict, said.rank) == ("down", 1)
    assert re.fullmatch("[0-9a-f]{16}", said.who)


def test_a_text_stands_in_its_own_direction(visit, url):
    with Client(url) as client:
        client.add([{"_id": "library", "title": "المكتبة", "text": "تحتوي المكتبة csv table"}])
    try:
        page = visit("/#q=csv+table+المكتبات", viewport={"width": 390, "height": 800})
        hit = page.locator(".hit", has_text="المكتبة")
        hit.wait_for()
        assert hit.locator("mark").all_text_contents() == ["المكتبة", "csv", "table"]
        edge, first, mark = hit.locator(".text").evaluate("""node => {
            const range = new Range();
            range.setEnd(node.firstChild, 1);
            range.setStart(node.firstChild, 0);
            return [node, range, node.querySelector("mark")].map(each => each.getBoundingClientRect().right);
        }""")
        assert (edge - first < 2, mark < first) == (True, True), "it begins at the right"
    finally:
        with Client(url) as client:
            client.delete(["library"])


def test_page_works_with_token_as_password(browser, project):
    with serving(project, token="secret") as url:
        assert httpx.get(url).status_code == 401
        context = browser.new_context(http_credentials={"username": "any", "password": "secret"})
        page = context.new_page()
        page.goto(f"{url}/#q=square+root")
        first = page.locator(".hit", has_text="math.sqrt")
        first.get_by_role("button", name="math.sqrt answers").click()
        first.locator(".up[aria-pressed=true]").wait_for()
        context.close()
    assert any(
        each.query == "square root" and each.verdict == "up" for each in read_feedback(project)
    )


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_page_is_accessible_on_both_screen_sizes(visit, scheme):
    axe = pytest.importorskip("axe_playwright_python.sync_playwright").Axe()
    grounds = set()
    for width in (1200, 390):
        page = visit(
            "/#q=split+a+string&beside=contrastive",
            color_scheme=scheme,
            viewport={"width": width, "height": 800},
            bypass_csp=True,
        )
        page.locator(".hit").first.wait_for()
        page.locator(".title").first.click()
        assert axe.run(page).response["violations"] == []
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        grounds.add(page.evaluate("getComputedStyle(document.documentElement).backgroundColor"))
    assert grounds == ({"rgb(252, 251, 248)"} if scheme == "light" else {"rgb(19, 25, 27)"})
