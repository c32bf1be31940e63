"""The report in the terminal and as Markdown, and the words that all forms share."""

from __future__ import annotations

import io
import re
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
sys.path.append(str(ROOT))

import reports  # noqa: E402

from conformance.report import __main__ as command  # noqa: E402
from conformance.report import markdown, wording  # noqa: E402
from conformance.results import Outcome, Report  # noqa: E402

REPORT = reports.make()


# ---- wording ----


def test_every_outcome_has_a_symbol_of_its_own_and_a_meaning():
    assert set(wording.SYMBOLS) == set(wording.MEANINGS) == set(Outcome)
    assert len(set(wording.SYMBOLS.values())) == len(Outcome)


def test_only_consumers_that_were_asked_belong_to_a_group():
    groups = wording.groups_of(REPORT)
    assert list(groups) == ["protocol", "data"]
    assert [each.label for each in wording.consumers_in(REPORT, groups["protocol"])] == ["reference", "mlx (CPU view)"]
    assert len(wording.consumers_in(REPORT, groups["data"])) == 4


def test_results_are_listed_in_the_contracts_order():
    turned = type(REPORT)(**{**vars(REPORT), "rules": REPORT.rules[::-1]})
    report = type(REPORT)(
        **{
            **vars(turned),
            "results": tuple(type(each)(each.rule, each.consumer, Outcome.FAIL) for each in REPORT.results),
        }
    )
    found = [result.rule for result in wording.with_outcome(report, Outcome.FAIL)]
    assert found == ["data.address"] * 4 + ["protocol.stream-zero"] + ["protocol.keywords"] * 2


def test_a_rule_counts_by_its_worst_outcome():
    counts = wording.verdicts(REPORT, REPORT.rules)
    assert counts == {Outcome.PASS: 2, Outcome.FAIL: 1}
    assert wording.worst_reason(REPORT, REPORT.rules[2]) == f"mlx (CPU view): {reports.NASTY}"


def test_producers_differ_in_the_rules_whose_verdicts_differ():
    other = reports.make("other", stream_zero=Outcome.FAIL)
    assert [rule.id for rule in wording.differing([REPORT, other])] == ["protocol.stream-zero"]


def test_a_gpu_that_there_is_not_is_no_part_of_the_machine():
    assert wording.machine_of(REPORT) == "x86_64, 2 processors"
    assert wording.date_of(REPORT) == "2026-12-02 09:18 UTC"


# ---- terminal ----


@pytest.fixture
def shown():
    console = pytest.importorskip("rich.console", reason="needs rich")
    from conformance.report import terminal

    def show(form, report, width=160):
        out = io.StringIO()
        getattr(terminal, form)(report, console.Console(file=out, width=width))
        return out.getvalue()

    return show


def test_the_terminal_shows_each_consumer_and_everything_unexpected(shown):
    text = shown("show", REPORT)
    assert [text.count(consumer.label) >= 1 for consumer in REPORT.consumers] == [True] * 4
    assert "Unexpected: 1" in text
    assert reports.NASTY in text.replace("\n", " ")
    assert "Not run, needs a GPU: torch (CUDA)" in text
    assert "Not as expected: 3 rules, 4 consumers, 3 pass, 1 fail, 1 known fault, 1 n/a, 1 not run" in text


def test_the_table_of_consumers_fits_80_columns(shown):
    text = shown("show", REPORT, width=80)
    assert [f"│ {consumer.label} " in text for consumer in REPORT.consumers] == [True] * 4
    assert "…" not in text


def test_the_terminal_says_when_nothing_is_unexpected(shown):
    text = shown("show", reports.all_pass())
    assert "Nothing unexpected" in text
    assert "Unexpected:" not in text


def test_the_terminal_shows_producers_side_by_side(shown):
    text = shown("show_side_by_side", [REPORT, reports.make("other", stream_zero=Outcome.FAIL)])
    assert "protocol.stream-zero dlwrap pass, other fail" in text
    assert re.search(r"protocol\s+│ ✓ 2\s+│ ✓ 1  ✗ 1\s+│", text)


# ---- Markdown ----


def cells_of(line: str) -> list[str]:
    return re.split(r"(?<!\\)\|", line)[1:-1]


def test_markdown_tells_the_summary_first():
    text = markdown.render(REPORT)
    places = [text.index(part) for part in ("**Not as expected**", "| torch (CUDA) |", "## Unexpected", "### protocol")]
    assert places == sorted(places)
    assert "simulated driver; x86\\_64, 2 processors" in text
    assert "torch 2.13.0" in text


@pytest.mark.parametrize("others", [(), (reports.make("other|one", stream_zero=Outcome.FAIL),)])
def test_each_line_of_a_markdown_table_has_as_many_cells(others):
    lines = markdown.render(REPORT, *others).splitlines()
    tables = "\n".join(line if line.startswith("|") else "" for line in lines).split("\n\n")
    for table in filter(str.strip, tables):
        assert len({len(cells_of(line)) for line in table.strip().splitlines()}) == 1, table


def test_every_footnote_is_defined_once_and_referred_to():
    text = markdown.render(REPORT)
    defined = re.findall(r"^\[\^(\d+)\]: ", text, re.MULTILINE)
    assert sorted(defined) == sorted(set(re.findall(r"\[\^(\d+)\](?!:)", text)))
    assert len(defined) == len(set(defined)) == 3  # what did not run says so in the summary


def test_markup_in_a_reason_is_not_markup_in_markdown():
    text = markdown.render(REPORT)
    assert "<script>" not in text
    assert "\\<script\\>" in text


def test_the_rules_of_the_contract_are_all_in_markdown():
    text = markdown.render(REPORT)
    assert [f"| `{rule.id}` |" in text for rule in REPORT.rules] == [True] * 3
    assert "a promise \\| of ours" in text


def test_markdown_compares_producers():
    text = markdown.render(REPORT, reports.make("other", stream_zero=Outcome.FAIL))
    assert "| protocol | 2 pass | 1 pass, 1 fail |" in text
    assert "| `protocol.stream-zero` | ✓ pass | ✗ fail |" in text
    assert "Producers side by side" not in markdown.render(REPORT)


# ---- the command ----


def test_the_command_writes_reports_again_from_json(tmp_path, capsys):
    other = reports.make("other", stream_zero=Outcome.FAIL)
    for report in (REPORT, other):
        report.write(tmp_path / f"{report.producer}.json")
    assert command.main([str(tmp_path / "out"), str(tmp_path / "dlwrap.json"), str(tmp_path / "other.json")]) == 0
    assert (tmp_path / "out" / "report.md").read_text() == markdown.render(REPORT, other)
    assert "Producers side by side" in (tmp_path / "out" / "report.html").read_text()


# ---- the committed reports ----

RESULTS = ROOT / "conformance" / "results"
COMPARED = [
    "2026-12-02-simulated-conformance/dlwrap.json",
    "2026-12-02-simulated-conformance/numpy.json",
    "2026-12-02-simulated-conformance/torch.json",
    "2026-12-02-simulated-conformance/jax.json",
    "2026-12-02-h200-conformance/cupy.json",
]


def test_the_readme_compares_the_producers_as_the_committed_reports_do():
    table = markdown.groups_side_by_side([Report.read(RESULTS / name) for name in COMPARED])
    assert "\n".join(table) in (ROOT / "README.md").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    "path", sorted(RESULTS.glob("*-conformance/*.json")), ids=lambda path: f"{path.parent.name}-{path.stem}"
)
def test_in_a_committed_report_nothing_is_unexpected(path):
    report = Report.read(path)
    assert report.passed
    assert not re.search(r"/(home|root|tmp|work)/", path.read_text(encoding="utf-8"))
