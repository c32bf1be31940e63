"""Takes a picture of a report's page in a real browser; needs ``pip install playwright`` and Chromium.

python -m conformance.report.picture PAGE.html PICTURE.png [--group NAME] [--width PIXELS] [--dark]
"""

from __future__ import annotations

import argparse
import shutil
import sys
from pathlib import Path


def main(arguments: list[str] | None = None) -> int:
    """Show a group of rules, and the reason of its first outcome that is not a pass."""
    parser = argparse.ArgumentParser(description="Takes a picture of a report's page in a real browser.")
    parser.add_argument("page", type=Path)
    parser.add_argument("picture", type=Path)
    parser.add_argument("--group", default="shapes", help="the group of rules that is shown")
    parser.add_argument("--width", type=int, default=1400, help="of the window")
    parser.add_argument("--height", type=int, default=900, help="of the window")
    parser.add_argument("--dark", action="store_true", help="as for people who prefer dark pages")
    options = parser.parse_args(arguments)
    from playwright.sync_api import sync_playwright

    program = shutil.which("chromium") or shutil.which("google-chrome")
    with sync_playwright() as player:
        browser = player.chromium.launch(executable_path=program, args=["--no-sandbox"])
        tab = browser.new_page(
            viewport={"width": options.width, "height": options.height},
            color_scheme="dark" if options.dark else "light",
        )
        tab.goto(options.page.resolve().as_uri())
        group = tab.locator(f"#group-{options.group}")
        for look in ("fail", "known", "na"):
            reasons = group.locator(f"td.{look} button")
            if reasons.count():
                reasons.first.focus()
                break
        group.evaluate("group => group.scrollIntoView()")
        tab.screenshot(path=options.picture)
        browser.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
