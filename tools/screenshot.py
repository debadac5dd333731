"""Photograph a report's page: python tools/screenshot.py report.html docs/figures/report.png"""

import argparse
import shutil
from pathlib import Path

from playwright.sync_api import sync_playwright


def main() -> None:
    """Open the page in a browser and keep what is seen."""
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("page", type=Path)
    arguments.add_argument("picture", type=Path)
    arguments.add_argument("--width", type=int, default=1280)
    arguments.add_argument("--height", type=int, default=1500)
    arguments.add_argument("--dark", action="store_true")
    arguments.add_argument("--party", help="the party to pick")
    given = arguments.parse_args()
    with sync_playwright() as play:
        browser = play.chromium.launch(
            executable_path=shutil.which("chromium"), args=["--no-sandbox"]
        )
        page = browser.new_page(
            viewport={"width": given.width, "height": given.height},
            color_scheme="dark" if given.dark else "light",
            locale="en-GB",
        )
        page.goto(given.page.resolve().as_uri())
        if given.party:
            page.select_option("#party", label=given.party)
        page.wait_for_timeout(500)
        page.screenshot(path=given.picture)
        browser.close()


if __name__ == "__main__":
    main()
