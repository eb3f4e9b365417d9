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
from orchestration.service import routes
from tests.freshet.conftest import serving

NEW = {
    "_id": "zip.open",
    "title": "<script>alert(1)</script>",
    "text": "Open a 🗜 `archive` <script>of</script>",
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
    # In milliseconds. The time of a built project is measured in experiments/as_you_type.
    assert int(told[1]) < 2000

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


def test_comparison_is_outdated_if_only_the_other_side_is_new(visit):
    page = visit("/#q=split+a+string")
    page.locator(".hit").first.wait_for()

    is_outdated = page.evaluate(
        """() => {
            lastSearch.generations = "3,4";
            return isOutdated({generation: 4});
        }"""
    )

    assert is_outdated


def test_added_document_appears_as_plain_text(visit, url):
    page = visit("/#q=open+archive")
    page.locator(".hit").first.wait_for()
    with Client(url) as client:
        client.add([NEW])
    try:
        page.get_by_role("button", name=NEW["title"], exact=True).wait_for()
        hit = page.locator(".hit", has_text="archive <script>of</script>")
        assert hit.locator(".new").count() == 1
        # The emoji and the backquotes, which are not shown, do not move the marks.
        assert hit.locator("mark").all_text_contents() == ["Open", "archive"]
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

    of_document = [entry for entry in read_feedback(project) if entry.document_id == name]
    (feedback,) = [entry for entry in of_document if entry.query == "split a string"]
    assert feedback.verdict == "down"
    assert feedback.rank == 1
    assert re.fullmatch("[0-9a-f]{16}", feedback.who)


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
        # The text begins at the right.
        assert edge - first < 2
        assert mark < first
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
    expected = {"rgb(252, 251, 248)"} if scheme == "light" else {"rgb(19, 25, 27)"}

    assert grounds == expected


GUIDE = {
    "_id": "guides/brewing.md",
    "title": "Brewing",
    "text": "# Brewing oolong\n\nHeat the **kettle** to `90`.\n\n- rinse leaves\n- pour water\n\n"
    "```\nkettle --heat 90\n```\n\nNote\n----\n\n<img src=x onerror=alert(1)> [a link](http://x.y)",
    "author": "Ada",
    "checksum": "c0ffee",
}
# Three documents of each author; the other two fields differ in all of them.
SHELF = [
    {
        "_id": f"shelf-{number}",
        "title": f"Shelf {number}",
        "text": f"Oolong leaves on shelf {number}",
        "author": "Ada" if number < 3 else "Ben",
        "checksum": f"c0ffee{number}",
        "seen": f"202{number}-05-0{number + 1}T10:00:0{number}Z",
    }
    for number in range(6)
]


@pytest.fixture
def added(url):
    """Adds documents, which are deleted at the end."""
    ids = []

    def add(*rows):
        with Client(url) as client:
            client.add(list(rows))
        ids.extend(row["_id"] for row in rows)

    yield add
    with Client(url) as client:
        client.delete(ids)


def test_score_part_keeps_its_colour_in_all_hits(visit):
    page = visit()

    classes = page.evaluate("""() => {
        const parts = names => ({score: 1, tokens: names.map(token => ({token, weight: 1, known_words: []}))});
        const colours = names => {
            const [bar, sum] = scoreExplanation(parts(names));
            return [...bar.children, ...sum.children].map(node => node.className);
        };
        return [colours(["bm25", "hce"]), colours(["hce", "bm25"])];
    }""")

    assert classes[0] == ["part0", "part1", "part0", "part1"]
    assert classes[1] == ["part1", "part0", "part1", "part0"]


def test_dates_are_filtered_by_range(visit, added):
    expect = pytest.importorskip("playwright.sync_api").expect
    added(*SHELF)
    page = visit("/#q=oolong+shelf")
    page.locator(".hit", has_text="Shelf 5").wait_for()

    page.get_by_label("seen from").fill("2023-01-01")
    page.get_by_label("seen to").fill("2024-12-31")

    expect(page.locator(".hit")).to_have_count(2)
    again = visit("/" + page.evaluate("location.hash"))
    expect(again.locator(".hit")).to_have_count(2)


def test_unique_fields_are_no_filters(visit, added):
    added(*SHELF)
    page = visit("/#q=oolong+shelf")
    page.get_by_role("group", name="author").wait_for()

    assert page.get_by_role("group", name="checksum").count() == 0


def test_hit_shows_only_fields_that_group_documents(visit, added):
    added(*SHELF)
    page = visit("/#q=oolong+shelf")
    page.get_by_role("group", name="author").wait_for()
    page.reload()
    hit = page.locator(".hit", has_text="Shelf 5")
    page.get_by_role("group", name="author").wait_for()
    page.get_by_label("Search the documents").press_sequentially(" ")
    hit.locator(".details", has_text="author Ben").wait_for()

    assert "checksum" not in hit.text_content()
    hit.get_by_role("button", name="Shelf 5", exact=True).click()
    hit.locator(".about", has_text="c0ffee5").wait_for()


def test_function_words_are_not_marked(visit):
    page = visit("/#q=split+a+string")
    page.locator(".hit").first.wait_for()

    marks = {mark.lower() for mark in page.locator("mark").all_text_contents()}
    assert marks
    assert "a" not in marks


def test_markup_of_opened_document_is_rendered_safely(visit, added):
    added(GUIDE)
    page = visit("/#q=brewing+oolong")
    page.get_by_role("button", name="Brewing", exact=True).click()
    whole = page.locator(".whole")
    whole.get_by_role("heading", name="Brewing oolong").wait_for()

    assert whole.get_by_role("heading").all_text_contents() == ["Brewing oolong", "Note"]
    assert whole.get_by_role("listitem").all_text_contents() == ["rinse leaves", "pour water"]
    assert whole.locator("pre").text_content() == "kettle --heat 90"
    assert whole.locator("strong").text_content() == "kettle"
    assert whole.locator("img, a, script").count() == 0
    assert "<img src=x onerror=alert(1)>" in whole.text_content()


def test_document_without_file_offers_its_id(visit):
    page = visit("/#q=split+a+string")
    page.locator(".title").first.click()
    page.get_by_role("button", name="copy id").wait_for()

    assert page.get_by_role("link", name="open the file").count() == 0


def test_file_of_document_is_linked(visit, monkeypatch, tmp_path):
    path = tmp_path / "split.html"
    path.write_text("<script>alert(1)</script>")
    monkeypatch.setattr(routes, "has_source_file", lambda project, document_id: True)
    monkeypatch.setattr(routes, "find_source_file", lambda project, document_id: path)
    page = visit("/#q=split+a+string")
    page.locator(".title").first.click()

    address = page.get_by_role("link", name="open the file").get_attribute("href")

    page.get_by_role("button", name="copy path").wait_for()
    answer = httpx.get(page.url.partition("/#")[0] + address)
    assert answer.text == "<script>alert(1)</script>"
    assert answer.headers["Content-Type"].startswith("text/plain")
    assert answer.headers["X-Content-Type-Options"] == "nosniff"


def test_second_press_of_thumb_undoes_it(visit, project):
    page = visit("/#q=choose+something")
    first = page.locator(".hit").first
    first.locator(".up").click()
    first.locator(".up[aria-pressed=true]").wait_for()
    first.locator(".up").click()
    first.locator(".up[aria-pressed=false]").wait_for()

    assert all(opinion.query != "choose something" for opinion in read_feedback(project))


def test_column_heads_stay_while_scrolling(visit):
    page = visit("/#q=split&beside=contrastive", viewport={"width": 1200, "height": 400})
    head = page.get_by_role("heading", name="contrastive")
    head.wait_for()

    # In one step, because a search that follows may replace the head meanwhile.
    top = page.evaluate("""() => {
        scrollTo(0, document.body.scrollHeight);
        return document.querySelectorAll("#results h2")[1].getBoundingClientRect().top;
    }""")

    assert 0 <= top < 400


def test_more_shows_results_below_the_first_ten(visit, added):
    expect = pytest.importorskip("playwright.sync_api").expect
    added(*SHELF)
    page = visit("/#q=split")
    expect(page.locator(".hit")).to_have_count(10)

    page.get_by_role("button", name="More results").click()

    expect(page.locator(".hit")).to_have_count(15)
    expect(page.get_by_role("button", name="More results")).to_be_hidden()


def test_empty_page_shows_examples_and_news(visit, added):
    added(GUIDE)
    page = visit()
    page.locator("#recent").get_by_role("button", name="Brewing").wait_for()

    page.locator("#examples").get_by_role("button").first.click()

    page.locator(".hit").first.wait_for()


def test_empty_page_tells_the_freshness_loop(visit, added):
    added(GUIDE)
    page = visit()
    steps = page.locator("#loop li")
    steps.first.wait_for()

    names = page.locator("#loop b").all_text_contents()
    expected = ["Arrived", "Added", "Drift", "Retune", "Trial", "Retrain", "Gate", "Judged"]
    assert names == expected
    assert "drift.minimum_batch" in page.locator("#loop").text_content()
    assert "judged questions" in page.locator("#loop").text_content()


def test_document_is_added_on_the_page(visit, url):
    page = visit()
    page.get_by_text("Add a document").click()
    page.get_by_role("textbox", name="Title").fill("Gyokuro")
    page.get_by_role("textbox", name="Text").fill("Shaded leaves taste of umami.")

    page.get_by_role("button", name="Add", exact=True).click()

    page.get_by_text("added and searchable").wait_for()
    with Client(url) as client:
        hit = client.search("shaded umami leaves", 1).hits[0]
        client.delete([hit.document_id])
    assert hit.title == "Gyokuro"


def test_page_links_to_api(visit):
    page = visit()

    assert page.get_by_role("link", name="API").get_attribute("href") == "/docs"


def test_page_uses_no_internal_words(visit):
    page = visit("/#q=split+a+string")
    page.locator(".hit").first.wait_for()

    shown = page.locator("body").inner_text() + str(
        page.locator("[title]").evaluate_all("nodes => nodes.map(node => node.title)")
    )
    for word in ("generation", "zero_shot", "beside", "nothing"):
        assert word not in shown


def test_examples_of_the_openapi_page_can_be_executed(url):
    operations = httpx.get(f"{url}/openapi.json").json()
    examples = {}
    for path, methods in operations["paths"].items():
        body = methods.get("post", {}).get("requestBody", {"content": {}})["content"]
        # An upload of files has no example.
        if "application/json" not in body:
            continue
        name = body["application/json"]["schema"]["$ref"].rpartition("/")[2]
        (examples[path],) = operations["components"]["schemas"][name]["examples"]
    # The source of this project does not exist.
    del examples["/sync"]

    # The document of the examples is added first and deleted last.
    order = sorted(examples, key=lambda path: (path != "/documents", path == "/documents/delete"))
    for path in order:
        answer = httpx.post(url + path, json=examples[path], timeout=30)
        assert answer.status_code == 200, f"{path}: {answer.text}"
