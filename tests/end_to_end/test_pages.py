"""Guards `freshet ui` and `freshet serve`: a hostile page gets nothing from any port, their own
pages all they ask for.

In a browser the pages show what a build was, and do what their buttons say; skipped where there is
no Chromium. Run: python -m pytest tests/end_to_end/test_pages.py
"""

from __future__ import annotations

import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import httpx
import psutil
import pytest

from orchestration.sensors import NOTHING_DUE
from tests.end_to_end.tiny_project import environment
from tests.postgresql import free_ports

pytestmark = pytest.mark.full

DAGSTER, MLFLOW, SERVICE = free_ports(3)
DAGSTER_PAGE = f"http://127.0.0.1:{DAGSTER}"
MLFLOW_PAGE = f"http://127.0.0.1:{MLFLOW}"
# milliseconds for what a busy machine may take; nothing waits for longer than it has to
PATIENCE = 300_000
EVIL = {"origin": "http://evil.example", "sec-fetch-site": "cross-site"}
UPGRADE = {
    "connection": "Upgrade",
    "upgrade": "websocket",
    "sec-websocket-version": "13",
    "sec-websocket-key": "dGhlIHNhbXBsZSBub25jZQ==",
}
HOSTILE = {
    "image": (
        "GET",
        "/graphql?query={version}",
        {"sec-fetch-site": "cross-site", "sec-fetch-dest": "image"},
    ),
    "image of a search": (
        "GET",
        "/search?text=x",
        {"sec-fetch-site": "cross-site", "sec-fetch-mode": "no-cors"},
    ),
    "frame": (
        "GET",
        "/",
        {"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate", "sec-fetch-dest": "iframe"},
    ),
    "GET that changes": ("GET", "/graphql?query=mutation{x}", {}),
    "form": ("POST", "/graphql", {**EVIL, "content-type": "application/x-www-form-urlencoded"}),
    "form of a sandboxed frame": (
        "POST",
        "/documents/apply",
        {"origin": "null", "sec-fetch-site": "cross-site"},
    ),
    "fetch no-cors": (
        "POST",
        "/documents",
        {**EVIL, "content-type": "text/plain", "sec-fetch-mode": "no-cors"},
    ),
    "another port": (
        "POST",
        "/ajax-api/2.0/mlflow/experiments/create",
        {"origin": "http://127.0.0.1:8000"},
    ),
    "preflight": ("OPTIONS", "/documents/a", {**EVIL, "access-control-request-method": "DELETE"}),
    "connection": ("GET", "/graphql", EVIL | UPGRADE),
    "rebound name": ("POST", "/graphql", {"host": "evil.example", "sec-fetch-site": "same-origin"}),
    "rebound name, opened": ("GET", "/", {"host": "evil.example"}),
}


@pytest.fixture(scope="module")
def ports(tmp_path_factory, built_by_dagster):
    """The three doors' ports, which are all that the processes of `freshet ui` and `freshet serve`
    listen on.
    """
    project = shutil.copytree(built_by_dagster, tmp_path_factory.mktemp("pages") / "project")
    told = project.parent / "told"
    family = [
        _start(project, told, "ui", "--dagster-port", str(DAGSTER), "--mlflow-port", str(MLFLOW)),
        _start(project, project.parent / "served", "serve", "--port", str(SERVICE)),
    ]
    try:
        for port, process in ((DAGSTER, family[0]), (MLFLOW, family[0]), (SERVICE, family[1])):
            path = "health/live" if port == SERVICE else ""
            _wait(
                lambda page=f"{port}/{path}": (
                    httpx.get(f"http://127.0.0.1:{page}").status_code == 200
                ),
                process,
            )
        _wait(
            lambda: (
                "freshness"
                in _ask(
                    '{sensorsOrError(repositorySelector:{repositoryName:"__repository__",'
                    'repositoryLocationName:"freshet"}){... on Sensors{results{name}}}}'
                ).text
            ),
            family[0],
        )
        processes = [psutil.Process(each.pid) for each in family]
        yield {
            connection.laddr.port
            for one in [
                *processes,
                *(child for each in processes for child in each.children(recursive=True)),
            ]
            for connection in one.net_connections("inet")
            if connection.status == psutil.CONN_LISTEN
        }
    finally:
        for process in family:
            process.send_signal(signal.SIGINT)
        assert [process.wait(60) for process in family] == [0, 0]
        addresses, stopped = told.read_text().splitlines()
        assert re.search(rf"{DAGSTER_PAGE} .*{MLFLOW_PAGE}/#/.*pages\.log\)$", addresses)
        assert stopped == "stopped"


def _start(project: Path, told: Path, *arguments: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "orchestration.cli", *arguments]
    with told.open("wb") as output:
        return subprocess.Popen(
            command, cwd=project, env=environment(), stdout=output, stderr=output
        )


def _ask(query: str) -> httpx.Response:
    return httpx.post(
        f"http://127.0.0.1:{DAGSTER}/graphql",
        json={"query": query},
        headers={"origin": f"http://127.0.0.1:{DAGSTER}"},
    )


def _wait(condition, process, seconds: float = 180.0) -> None:
    deadline = time.monotonic() + seconds
    while True:
        assert process.poll() is None
        try:
            if condition():
                return
        except httpx.TransportError:
            pass
        assert time.monotonic() < deadline
        time.sleep(0.5)


def test_service_listens_only_where_told(ports):
    assert ports == {DAGSTER, MLFLOW, SERVICE}


@pytest.mark.parametrize("attempt", HOSTILE)
def test_a_hostile_page_is_refused_at_every_port(ports, attempt):
    method, path, headers = HOSTILE[attempt]
    for port in ports:
        body = b"{}" if method == "POST" else None
        answered = httpx.request(
            method, f"http://127.0.0.1:{port}{path}", headers=headers, content=body
        )
        assert answered.status_code == 403


def test_what_the_page_itself_asks_is_answered(ports):
    assert _ask("{version}").json()["data"]["version"]

    own = {"origin": f"http://127.0.0.1:{SERVICE}", "sec-fetch-site": "same-origin"}
    asked = httpx.post(f"http://127.0.0.1:{SERVICE}/search", json={"text": "wave"}, headers=own)

    assert asked.status_code == 200
    assert "sea" in asked.text


@pytest.fixture
def page(ports, browser):
    """A tab of a browser that fetches nothing from elsewhere."""
    asked: list[str] = []
    context = browser.new_context(viewport={"width": 1400, "height": 900})
    context.set_default_timeout(PATIENCE)
    tab = context.new_page()
    tab.on("request", lambda request: asked.append(request.url))
    yield tab
    context.close()
    assert [
        url for url in asked if not url.startswith((DAGSTER_PAGE, MLFLOW_PAGE, "data:", "blob:"))
    ] == []


def test_dagster_page_lists_the_build(page):
    page.goto(DAGSTER_PAGE)
    page.get_by_text("full_build").first.wait_for()
    page.goto(f"{DAGSTER_PAGE}/runs")
    for word in ("full_build", "Success"):
        page.get_by_text(word, exact=True).first.wait_for()


def test_a_retriever_is_materialized_from_its_page(page):
    page.goto(f"{DAGSTER_PAGE}/assets/hce/encoder")
    page.get_by_role("button", name="Materialize").first.click()
    page.get_by_text("Launched run").wait_for()
    page.get_by_role("link", name="View", exact=True).click()
    page.wait_for_url("**/runs/*")
    page.get_by_text("Success", exact=True).first.wait_for()


def test_sensor_says_why_it_skipped(page):
    page.goto(f"{DAGSTER_PAGE}/locations/freshet/sensors/freshness")
    page.get_by_text("0 runs requested").first.hover()
    page.get_by_text(NOTHING_DUE).wait_for()


def test_comparison_page_has_table_and_picture(page):
    page.goto(f"{DAGSTER_PAGE}/assets/comparison")
    for system in ("untrained", "hce"):
        page.get_by_role("cell", name=system, exact=True).first.wait_for()
    page.get_by_text("[Show Markdown]").first.click()
    picture = page.locator("img[alt=comparison]")
    picture.wait_for()

    assert picture.evaluate("picture => picture.decode().then(() => picture.naturalWidth)") > 500


def test_mlflow_shows_the_stages_below_their_build(page):
    page.goto(f"{MLFLOW_PAGE}/#/experiments/1/runs?workflowType=machine_learning")
    build = page.get_by_role("gridcell").filter(has_text="build 20")
    build.wait_for()

    assert page.get_by_text("train@hce", exact=True).count() == 0

    build.get_by_role("button").first.click()
    for run in ("train@hce", "comparison", "register@hce"):
        page.get_by_text(run, exact=True).first.wait_for()


def test_registered_version_has_verdict_and_metrics(page):
    page.goto(f"{MLFLOW_PAGE}/#/models/freshet/versions/2")
    page.get_by_role("paragraph").filter(
        has_text=re.compile("^Gate (passed|refused): .*nDCG@10")
    ).wait_for()
    # A tag of the version also names the metric, in the middle of its text.
    rows = page.get_by_role("row").filter(has_text=re.compile(r"^\s*nDCG@10"))
    (row,) = rows.all_inner_texts()

    assert re.fullmatch(r"nDCG@10\s+0?\.\d+\s+0?\.\d+", row.strip())
