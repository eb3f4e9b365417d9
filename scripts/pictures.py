"""Take the pictures of the pages that README and docs show, all with one command.

Run: python scripts/pictures.py PROJECT [--review FOLDER] [--only FILE ...]

PROJECT is a clone or a project in which `freshet demo` has run. The script starts `freshet serve`
and `freshet ui` there, adds three documents with queries, and needs Debian's Chromium. It writes to
docs/images. Look at every picture before you commit it. With --review, it also writes the search
page on a phone, in dark colours and before a search, which the docs do not show. With --only, it
takes only the named pictures.

The pictures of experiments/loop and of the benchmarks belong to recorded runs, and are not taken
again.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import socket
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlencode

from playwright.sync_api import Browser, Page, TimeoutError, sync_playwright

CHROMIUM = "/usr/bin/chromium"
IMAGES = Path(__file__).parents[1] / "docs" / "images"
QUERY = "How can I solve a system of linear equations?"
ADDED_DOCUMENTS = "added_documents.png"
# Documents that the script puts into the inbox for the picture `ADDED_DOCUMENTS`.
DOCUMENTS_WITH_QUERIES = [
    {
        "_id": "hive",
        "title": "The hive in March",
        "text": "Look for brood and food. Wait for a warm day.",
        "queries": ["first inspection of bees", "when can I open a hive in spring"],
    },
    {
        "_id": "sourdough",
        "title": "Feeding a sourdough",
        "text": "Mix equal weights of flour and water. Keep the jar at room temperature.",
        "queries": ["how to keep a starter alive", "my bread does not rise"],
    },
    {
        "_id": "puncture",
        "title": "Mending a puncture",
        "text": "Find the hole under water, roughen the tube, and press the patch on it.",
        "queries": ["repair a flat bicycle tyre"],
    },
]
START_TIMEOUT_SECONDS = 300
STOP_TIMEOUT_SECONDS = 90
PAGE_TIMEOUT_MS = 60_000
# Dagster's sensor may take minutes until its first report for the freshness policy. An open page
# does not show it, so the page is opened several times.
ATTEMPTS = 10
# The innermost table with one row for each system.
SYSTEMS_TABLE = 'table:has(> thead th:text-is("system"))'
# MLflow opens a panel for questions on the first visit.
CLOSE_ASSISTANT = '[data-component-id="mlflow.assistant.chat_panel.close"]'
EXPAND_FIRST_RUN = '[data-component-id*="runnamecellrenderer"]'
# Pages draw with animations, which end before a picture is taken.
SETTLE_MS = 3_000


@dataclass(frozen=True)
class Picture:
    """A picture of a page.

    Attributes:
        file: Name of the file.
        address: Address of the page.
        ready: Selector of an element that shows that the page is complete.
        width: Width of the window, in pixels.
        height: Height of the window, in pixels.
        is_dark: Whether the browser asks for dark colours.
        clicks: Selectors of elements to click first, in this order.
        crop: Selector of the element to cut the picture to; empty for the whole window.
    """

    file: str
    address: str
    ready: str
    width: int = 1040
    height: int = 720
    is_dark: bool = False
    clicks: tuple[str, ...] = ()
    crop: str = ""


def search_pictures(service: str) -> list[Picture]:
    """Return the picture of the search page."""
    return [Picture("page.png", search_address(service), ".hit")]


def review_pictures(service: str) -> list[Picture]:
    """Return pictures of the search page that a person only looks at."""
    address = search_address(service)
    return [
        Picture("page_phone.png", address, ".hit", width=390, height=844),
        Picture("page_dark.png", address, ".hit", is_dark=True),
        Picture("page_empty.png", f"{service}/", "#loop li", height=900),
    ]


def search_address(service: str) -> str:
    """Return the address of the search page with a query."""
    return f"{service}/#{urlencode({'q': QUERY})}"


def tool_pictures(dagster: str, mlflow: str, version: str) -> list[Picture]:
    """Return the pictures of the pages of Dagster and MLflow.

    Args:
        dagster: Address of Dagster.
        mlflow: Address of MLflow.
        version: Number of the registered version that is champion.
    """
    # In the project's own store, the experiment always has the number 1.
    runs = f"{mlflow}/#/experiments/1/runs?workflowType=machine_learning"
    return [
        # All groups expanded would be too small to read.
        Picture(
            "asset_graph.png",
            f"{dagster}/asset-groups?expanded=global@global:live",
            "text=tuned_weights",
            1780,
            1350,
        ),
        # The window is so wide that the page does not cut the table off.
        Picture(
            "comparison_asset.png",
            f"{dagster}/assets/comparison",
            SYSTEMS_TABLE,
            2700,
            1400,
            crop=SYSTEMS_TABLE,
        ),
        Picture(
            "freshness_policy.png",
            f"{dagster}/assets/searchable_documents",
            # The policy passes after the sensor's first report.
            "text=Passing",
            1250,
            820,
        ),
        Picture(
            ADDED_DOCUMENTS,
            f"{dagster}/assets/added_documents",
            # A run shows this key if IncDSI refined documents.
            "text=queries_answered_after",
            1250,
            1010,
        ),
        Picture(
            "mlflow_runs.png",
            runs,
            "text=comparison",
            1500,
            860,
            clicks=(CLOSE_ASSISTANT, EXPAND_FIRST_RUN),
        ),
        Picture(
            "registry_version.png",
            f"{mlflow}/#/models/freshet/versions/{version}",
            "text=Gate",
            1300,
            860,
            clicks=(CLOSE_ASSISTANT,),
        ),
    ]


def champion_version(mlflow: str) -> str:
    """Return the number of the version that is champion, as MLflow's API tells it."""
    path = "/api/2.0/mlflow/registered-models/alias?name=freshet&alias=champion"
    with urllib.request.urlopen(mlflow + path) as answer:
        return str(json.load(answer)["model_version"]["version"])


def take_picture(browser: Browser, picture: Picture, folder: Path) -> None:
    """Open a page, wait until it is complete, and write its picture.

    Raises:
        TimeoutError: If the page is not complete after several attempts.
    """
    scheme = "dark" if picture.is_dark else "light"
    size = {"width": picture.width, "height": picture.height}
    page: Page = browser.new_page(viewport=size, color_scheme=scheme)
    page.set_default_timeout(PAGE_TIMEOUT_MS)
    for attempt in range(1, ATTEMPTS + 1):
        try:
            open_page(page, picture)
            break
        except TimeoutError:
            if attempt == ATTEMPTS:
                raise
    page.wait_for_timeout(SETTLE_MS)
    path = folder / picture.file
    if picture.crop:
        page.locator(picture.crop).first.screenshot(path=path)
    else:
        page.screenshot(path=path)
    print(path)
    page.close()


def open_page(page: Page, picture: Picture) -> None:
    """Open the page of a picture, and wait until it is complete."""
    page.goto(picture.address)
    for selector in picture.clicks:
        page.locator(selector).first.click()
    page.locator(picture.ready).first.wait_for()


def free_port() -> int:
    """Return a port that no program listens on."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


@contextmanager
def running(project: Path, *arguments: str, pages: list[str]) -> Iterator[None]:
    """Run a command of Freshet in a project until the block ends.

    Args:
        project: Folder of the project.
        *arguments: The command and its options.
        pages: Addresses that must answer before the block starts.
    """
    process = subprocess.Popen(["freshet", *arguments], cwd=project, env=dict(os.environ))
    try:
        for page in pages:
            wait_for_page(page, process)
        yield
    finally:
        process.send_signal(signal.SIGINT)
        try:
            process.wait(STOP_TIMEOUT_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            raise


def wait_for_page(address: str, process: subprocess.Popen[bytes]) -> None:
    """Wait until a page answers.

    Raises:
        RuntimeError: If the command that serves the page ends, or the page does not answer in time.
    """
    deadline = time.monotonic() + START_TIMEOUT_SECONDS
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise RuntimeError(f"the command that serves {address} ended: see its output above")
        try:
            urllib.request.urlopen(address).close()
        except OSError:
            time.sleep(1)
        else:
            return
    raise RuntimeError(f"{address} did not answer within {START_TIMEOUT_SECONDS} s")


def main() -> None:
    """Read the arguments, and take the pictures."""
    names = [picture.file for picture in (*search_pictures(""), *tool_pictures("", "", ""))]
    parser = argparse.ArgumentParser(description="Take the pictures that the docs show.")
    parser.add_argument("project", type=Path, help="a project in which `freshet demo` has run")
    parser.add_argument("--to", type=Path, default=IMAGES, help="folder of the pictures")
    parser.add_argument("--review", type=Path, help="folder of further pictures to look at")
    parser.add_argument("--only", nargs="+", choices=names, default=names, metavar="FILE")
    arguments = parser.parse_args()

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        if "page.png" in arguments.only or arguments.review is not None:
            take_search_pictures(browser, arguments)
        if any(picture.file in arguments.only for picture in tool_pictures("", "", "")):
            take_tool_pictures(browser, arguments)
        browser.close()


def take_search_pictures(browser: Browser, arguments: argparse.Namespace) -> None:
    """Start the service in a project, and take the pictures of the search page.

    Args:
        browser: The browser.
        arguments: The arguments of the script.
    """
    port = free_port()
    service = f"http://127.0.0.1:{port}"
    with running(arguments.project, "serve", "--port", str(port), pages=[service]):
        # The first search loads the encoder. The pictures show the time of a later one.
        urllib.request.urlopen(f"{service}/search?{urlencode({'text': QUERY})}").close()
        for picture in search_pictures(service):
            if picture.file in arguments.only:
                take_picture(browser, picture, arguments.to)
        if arguments.review is not None:
            for picture in review_pictures(service):
                take_picture(browser, picture, arguments.review)


def take_tool_pictures(browser: Browser, arguments: argparse.Namespace) -> None:
    """Start Dagster and MLflow in a project, and take the pictures of their pages.

    Args:
        browser: The browser.
        arguments: The arguments of the script.
    """
    dagster_port = free_port()
    mlflow_port = free_port()
    dagster = f"http://127.0.0.1:{dagster_port}"
    mlflow = f"http://127.0.0.1:{mlflow_port}"
    ports = ["--dagster-port", str(dagster_port), "--mlflow-port", str(mlflow_port)]
    with running(arguments.project, "ui", *ports, pages=[dagster, mlflow]):
        if ADDED_DOCUMENTS in arguments.only:
            rows = [json.dumps(document) for document in DOCUMENTS_WITH_QUERIES]
            inbox = arguments.project / "inbox"
            # A clone has no inbox until somebody makes one.
            inbox.mkdir(exist_ok=True)
            (inbox / "pictures.jsonl").write_text("\n".join(rows) + "\n", encoding="utf-8")
        for picture in tool_pictures(dagster, mlflow, champion_version(mlflow)):
            if picture.file in arguments.only:
                take_picture(browser, picture, arguments.to)


if __name__ == "__main__":
    main()
