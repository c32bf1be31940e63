"""The project's own files agree: one version, an sdist and extras that are there, templates that a forge can read."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

import dlwrap
from dlwrap import __main__ as command_line

ROOT = Path(__file__).parents[1]
TEMPLATES = sorted((ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml"))


def text_of(name):
    return (ROOT / name).read_text(encoding="utf-8")


def test_the_version_is_named_in_one_place_and_the_others_follow():
    assert re.search(r"^version: (.*)$", text_of("CITATION.cff"), re.MULTILINE)[1] == dlwrap.__version__
    assert re.search(r"^## (\S+)", text_of("CHANGELOG.md"), re.MULTILINE)[1] == dlwrap.__version__
    assert 'version = { attr = "dlwrap._version.__version__" }' in text_of("pyproject.toml")
    assert not re.search(r'^version = "', text_of("pyproject.toml"), re.MULTILINE)


def test_the_site_takes_its_version_from_the_package():
    conf = ROOT / "docs" / "conf.py"
    assert re.search(r"^version = release = dlwrap\.__version__$", conf.read_text(), re.MULTILINE)


def test_each_change_log_heading_has_a_version_and_a_date_or_unreleased():
    headings = re.findall(r"^## (.*)$", text_of("CHANGELOG.md"), re.MULTILINE)
    wrong = [each for each in headings if not re.fullmatch(r"\d+\.\d+\.\d+ \((unreleased|\d{4}-\d\d-\d\d)\)", each)]
    assert (bool(headings), wrong) == (True, [])


@pytest.mark.parametrize("template", TEMPLATES, ids=lambda path: path.stem)
def test_a_command_that_a_template_asks_for_exists(template):
    for arguments in re.findall(r"python -m dlwrap ([^`]*)`", template.read_text()):
        command_line._parser().parse_args(arguments.split())


@pytest.mark.parametrize("template", TEMPLATES, ids=lambda path: path.stem)
def test_a_template_is_one_that_a_forge_can_read(template):
    read = pytest.importorskip("yaml", reason="needs PyYAML").safe_load(template.read_text())
    if template.stem != "config":
        assert {"name", "description", "body"} <= set(read)
        identified = [each["id"] for each in read["body"] if each["type"] != "markdown"]
        assert len(identified) == len(set(identified))


@pytest.mark.skipif(sys.version_info < (3, 11), reason="tomllib came with Python 3.11")
def test_an_extra_that_is_named_anywhere_exists():
    import tomllib

    extras = set(tomllib.loads(text_of("pyproject.toml"))["project"]["optional-dependencies"])
    scripts = [path for path in (ROOT / ".ci").iterdir() if path.is_file()]
    named = set()
    for path in [ROOT / "run", ROOT / "README.md", ROOT / "CONTRIBUTING.md", *scripts]:
        for several in re.findall(r"(?:[ '\"](?:\.|\$tree|[\w/$.]*\.tree))\[([a-z,]+)\]", path.read_text()):
            named.update(several.split(","))
    assert named - extras == set()
    assert {"test", "dev", "cli"} <= named
