"""The report as an HTML page: it is whole, refers to nothing outside, and can be read by anybody."""

from __future__ import annotations

import re
import shutil
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
sys.path.append(str(ROOT))

import reports  # noqa: E402

from conformance.report import page  # noqa: E402
from conformance.report.wording import SYMBOLS  # noqa: E402
from conformance.results import Outcome  # noqa: E402

REPORT = reports.make()
OTHER = reports.make("other", stream_zero=Outcome.FAIL)
VOID = {"meta", "input"}


class Page(HTMLParser):
    """The elements of a page with their attributes and text; fails where one is not closed in order."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None], list[str]]] = []
        self._open: list[int] = []
        self.feed(text)
        self.close()
        assert self._open == []

    def handle_starttag(self, tag, attributes):
        self.elements.append((tag, dict(attributes), []))
        if tag not in VOID:
            self._open.append(len(self.elements) - 1)

    def handle_endtag(self, tag):
        assert self.elements[self._open.pop()][0] == tag

    def handle_data(self, data):
        for place in self._open:
            self.elements[place][2].append(data)

    def all(self, tag: str, **wanted: str) -> list[tuple[dict[str, str | None], str]]:
        return [
            (attributes, "".join(text))
            for name, attributes, text in self.elements
            if name == tag and all(value in (attributes.get(key) or "").split() for key, value in wanted.items())
        ]


TEXT = page.render(REPORT, OTHER)
PAGE = Page(TEXT)


def test_the_page_refers_to_nothing_outside():
    assert not re.findall(r"https?:|//[a-z]|@import|url\(|\bsrc=|\bhref=|<link|<iframe|fetch\(|XMLHttp", TEXT)


def test_texts_of_others_are_text():
    assert "<script>alert" not in TEXT
    assert len(PAGE.all("script")) == 1
    assert any(reports.NASTY in text for _, text in PAGE.all("span", role="tooltip"))


def test_an_identifier_is_given_once_and_what_is_described_has_its_description():
    identifiers = [attributes["id"] for _, attributes, _ in PAGE.elements if "id" in attributes]
    assert len(identifiers) == len(set(identifiers))
    described = [
        attributes["aria-describedby"] for attributes, _ in PAGE.all("button") if "aria-describedby" in attributes
    ]
    assert len(described) == 3  # known fault, fail, n/a; what did not run says so in the column's head
    assert set(described) <= set(identifiers)


@pytest.mark.parametrize("rule", REPORT.rules, ids=lambda rule: rule.id)
def test_a_rule_shows_its_sentence_source_and_check(rule):
    texts = [text for attributes, text in PAGE.all("th", scope="row") if attributes.get("class") == "rule"]
    [text] = [text for text in texts if rule.id in text]
    assert [part in text for part in (rule.sentence, rule.source, rule.check)] == [True] * 3


def test_an_outcome_is_shown_by_symbol_word_and_colour():
    cells = [(attributes["class"], text) for attributes, text in PAGE.all("td", role="cell")]
    for result in REPORT.results:
        look = page._CLASSES[result.outcome]
        assert any(
            look in classes.split() and SYMBOLS[result.outcome] in text and result.outcome in text
            for classes, text in cells
        )


def test_tables_say_what_their_heads_are_for():
    assert all(attributes.get("scope") in {"row", "col"} for attributes, _ in PAGE.all("th"))
    assert [text for _, text in PAGE.all("caption")] == [
        "Rules of the group protocol, by consumer",
        "Rules of the group data, by consumer",
    ]


def test_without_javascript_all_is_shown_and_folds():
    assert all("open" in attributes for attributes, _ in PAGE.all("details", **{"class": "group"}))
    assert "hidden" in PAGE.all("form")[0][0]
    assert not [attributes for attributes, _ in PAGE.all("tr") if "hidden" in attributes]


def test_what_did_not_run_says_why():
    [(_, head)] = [each for each in PAGE.all("th", scope="col") if "torch CUDA" in each[1]]
    assert "(not run: needs a GPU)" in head


def test_producers_are_compared_by_each_rule():
    assert "Rules in which they differ: 1" in TEXT
    assert "Producers side by side" not in page.render(REPORT)
    texts = ["".join(text.split()) for _, text in PAGE.all("tr")]
    assert "protocol✓2pass✓1pass✗1fail" in texts


def test_the_verdict_is_that_of_the_report():
    assert "Not as expected" in TEXT
    assert "Nothing unexpected" in page.render(reports.all_pass())


# ---- contrast ----

CSS = (ROOT / "conformance" / "report" / "page.css").read_text()
LIGHT, DARK = (
    dict(re.findall(r"--([a-z-]+): (#[0-9a-f]+)", block)) for block in re.findall(r":root \{(.*?)\}", CSS, re.DOTALL)
)
PAIRS = [
    *((f"{look}-ink", look) for look in page._CLASSES.values()),
    *((ink, back) for ink in ("front", "soft", "link") for back in ("back", "raised")),
]


def luminance(colour: str) -> float:
    digits = colour[1:] if len(colour) == 7 else "".join(2 * digit for digit in colour[1:])
    channels = [int(digits[at : at + 2], 16) / 255 for at in (0, 2, 4)]
    linear = [value / 12.92 if value <= 0.04045 else ((value + 0.055) / 1.055) ** 2.4 for value in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@pytest.mark.parametrize("scheme", [pytest.param(LIGHT, id="light"), pytest.param(DARK, id="dark")])
@pytest.mark.parametrize(("ink", "back"), PAIRS)
def test_text_stands_out_as_wcag_aa_demands(scheme, ink, back):
    lighter, darker = sorted((luminance(scheme[ink]), luminance(scheme[back])), reverse=True)
    assert (lighter + 0.05) / (darker + 0.05) >= 4.5


# ---- in a browser, where there is one ----


@pytest.fixture
def browse(tmp_path):
    sync_api = pytest.importorskip("playwright.sync_api", reason="needs playwright")
    program = shutil.which("chromium") or shutil.which("google-chrome")
    if program is None:
        pytest.skip("needs Chromium")
    path = tmp_path / "page.html"
    path.write_text(TEXT, encoding="utf-8")
    with sync_api.sync_playwright() as player:
        browser = player.chromium.launch(executable_path=program, args=["--no-sandbox"])

        def visit(**how):
            tab = browser.new_context(**how).new_page()
            tab.goto(path.as_uri())
            return tab

        yield visit
        browser.close()


def test_filters_show_rules_by_outcome_side_and_group(browse):
    tab = browse()
    rows = tab.locator("table.matrix tbody tr:visible")
    assert rows.count() == 3
    for look in ("pass", "na", "known", "unrun"):
        tab.uncheck(f"input[value={look}]")
    assert rows.count() == 1
    assert tab.inner_text("#shown") == "1 of 3 rules"
    tab.uncheck("input[value=cpu]")  # the only failure is there
    assert tab.is_visible("#nothing")
    tab.check("input[value=pass]")
    tab.select_option("select[name=group]", "protocol")
    assert rows.count() == 2


def test_a_reason_shows_on_hover_and_on_focus(browse):
    tab = browse()
    tip = tab.locator("td.fail .tip")
    assert not tip.is_visible()
    tab.hover("td.fail button")
    assert tip.is_visible()
    tab.mouse.move(0, 0)
    assert not tip.is_visible()
    tab.focus("td.fail button")
    assert tip.is_visible()
    tab.keyboard.press("Escape")
    assert not tip.is_visible()


def test_without_javascript_reasons_show_and_groups_fold(browse):
    tab = browse(java_script_enabled=False)
    assert not tab.is_visible("#filters")
    tab.focus("td.fail button")
    assert tab.locator("td.fail .tip").is_visible()
    tab.click("details.group[data-group=data] > summary")
    assert not tab.is_visible("td.fail button")


@pytest.mark.parametrize("width", [400, 1400])
def test_a_page_is_no_wider_than_its_window(browse, width):
    tab = browse(viewport={"width": width, "height": 800})
    assert tab.evaluate("document.documentElement.scrollWidth") == width
