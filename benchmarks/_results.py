"""Finds the committed results: the latest of each machine kind."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).with_name("results")
SIMULATED = "simulated driver"


def latest(*, gpu: bool) -> dict[str, Any] | None:
    """Give the latest results on a GPU or on the simulated driver; None where there are none worth keeping."""
    found = [read(path) for path in FOLDER.glob("*.json")]
    found = [each for each in found if not each["quick"] and (each["hardware"]["gpu"] != SIMULATED) == gpu]
    return max(found, key=lambda each: each["date"]) if found else None


def read(path: Path) -> dict[str, Any]:
    results: dict[str, Any] = json.loads(path.read_text())
    return results


def missing(figures: dict[str, Any] | None) -> str | None:
    """Say why there are no figures, if there are none."""
    if figures is None:
        return "not measured"
    if "error" in figures:
        return f"failed: {figures['error']}"
    return figures.get("skipped")
