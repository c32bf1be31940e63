"""``python -m conformance.report FOLDER FILE.json ...``: writes reports of several producers side by side."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from conformance.expectations import read, settle_again
from conformance.report import markdown, page
from conformance.results import Report


def main(arguments: list[str] | None = None) -> int:
    """Write report.md and report.html of the first report, compared with the others."""
    parser = argparse.ArgumentParser(
        prog="python -m conformance.report",
        description="Writes report.md and report.html from reports in JSON: the first in full, beside the others.",
    )
    parser.add_argument("folder", type=Path, help="where they are written")
    parser.add_argument(
        "reports", type=Path, nargs="+", metavar="FILE.json", help="what the suite wrote, one a producer"
    )
    parser.add_argument(
        "--settle",
        action="store_true",
        help="look failures up among the faults known by now, in the files too",
    )
    options = parser.parse_args(arguments)
    reports = [Report.read(path) for path in options.reports]
    if options.settle:
        reports = [settle_again(report, read()) for report in reports]
        for report, path in zip(reports, options.reports, strict=True):
            report.write(path)
    options.folder.mkdir(parents=True, exist_ok=True)
    (options.folder / "report.md").write_text(markdown.render(*reports), encoding="utf-8")
    (options.folder / "report.html").write_text(page.render(*reports), encoding="utf-8")
    try:
        from rich.console import Console

        from conformance.report import terminal
    except ImportError:
        return 0
    if len(reports) > 1:
        terminal.show_side_by_side(reports, Console())
    return 0


if __name__ == "__main__":
    sys.exit(main())
