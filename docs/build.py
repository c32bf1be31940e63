"""Builds the site strictly, and checks that every link and anchor inside it leads somewhere.

python docs/build.py
"""

from __future__ import annotations

import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

DOCS = Path(__file__).parent
SITE = DOCS / "_build" / "html"
# Strict; and every page anew, since those that did not change would keep the navigation of an older build.
OPTIONS = ("-W", "-n", "--keep-going", "-q", "-E", "-a")


def main() -> int:
    """Build, then check."""
    command = [sys.executable, "-m", "sphinx", *OPTIONS, "-b", "html", str(DOCS), str(SITE)]
    status = subprocess.run(command, check=False).returncode
    if status:
        return status
    broken = broken_links(SITE)
    print("\n".join(broken) or f"{len(list(SITE.rglob('*.html')))} pages, every link inside leads somewhere: {SITE}")
    return 1 if broken else 0


class _Page(HTMLParser):
    """Collects the anchors of a page, and what it links to."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.anchors: set[str] = set()
        self.links: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note ids and targets."""
        for name, value in attrs:
            if value and (name == "id" or (tag == "a" and name == "name")):
                self.anchors.add(value)
            elif value and name in ("href", "src") and tag != "link":
                self.links.add(value)


def broken_links(site: Path) -> list[str]:
    """List the links of a site to files and anchors that it has not."""
    pages = {path: _Page(path.read_text(encoding="utf-8")) for path in sorted(site.rglob("*.html"))}
    return [
        f"{path.relative_to(site)}: {link}"
        for path, page in pages.items()
        for link in sorted(page.links)
        if not _leads_somewhere(link, path, pages)
    ]


def _leads_somewhere(link: str, source: Path, pages: dict[Path, _Page]) -> bool:
    parts = urlsplit(link)
    if parts.scheme or parts.netloc:
        return True  # outside
    target = source if not parts.path else (source.parent / unquote(parts.path)).resolve()
    if target not in pages:
        return target.exists()
    # "#" alone, and furo's own jump to the top, need no anchor.
    return not parts.fragment or unquote(parts.fragment) in pages[target].anchors


if __name__ == "__main__":
    sys.exit(main())
