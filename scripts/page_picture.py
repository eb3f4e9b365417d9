"""Take the picture of the search page that the README shows.

Run: python scripts/page_picture.py [URL] [QUERY]

`freshet serve` must run in a project of the demo's default corpus. The script needs Debian's
Chromium. It writes docs/images/page.png, or another file with --to.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from urllib.parse import urlencode

from playwright.sync_api import sync_playwright

CHROMIUM = "/usr/bin/chromium"
PICTURE = Path(__file__).parents[1] / "docs" / "images" / "page.png"
WIDTH = 1040
HEIGHT = 720


def take_picture(url: str, query: str, path: Path, dark: bool, width: int, height: int) -> None:
    """Search on the page, and write a picture of it.

    Args:
        url: Address of the service.
        query: The query; empty for the page before a search.
        path: File of the picture.
        dark: Whether the browser asks for dark colours.
        width: Width of the window in pixels.
        height: Height of the window in pixels.
    """
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        page = browser.new_page(
            viewport={"width": width, "height": height},
            color_scheme="dark" if dark else "light",
        )
        address = f"{url}/"
        if query:
            address += f"#{urlencode({'q': query})}"
        page.goto(address)
        if query:
            page.locator(".hit").first.wait_for()
        page.locator("#freshness", has_not_text="connecting").wait_for()
        page.screenshot(path=path)
        browser.close()


def main() -> None:
    """Read the arguments and take the picture."""
    parser = argparse.ArgumentParser(description="Take a picture of the search page.")
    parser.add_argument("url", nargs="?", default="http://127.0.0.1:8765")
    parser.add_argument("query", nargs="?", default="How can I solve a system of linear equations?")
    parser.add_argument("--to", type=Path, default=PICTURE)
    parser.add_argument("--dark", action="store_true")
    parser.add_argument("--width", type=int, default=WIDTH)
    parser.add_argument("--height", type=int, default=HEIGHT)
    arguments = parser.parse_args()
    take_picture(
        arguments.url,
        arguments.query,
        arguments.to,
        arguments.dark,
        arguments.width,
        arguments.height,
    )


if __name__ == "__main__":
    main()
