"""Draws docs/plots/lifetime-light.svg and lifetime-dark.svg from what `python -m dlwrap demo` saw on a GPU.

python docs/timeline.py
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
DEMO = max(ROOT.glob("conformance/results/*-h200/demo.txt"))
PLOTS = ROOT / "docs" / "plots"

WIDTH, LEFT, RIGHT, TOP, ROW = 540, 104, 14, 58, 44
BAR = 18
FONT = "font-family='system-ui, sans-serif'"


@dataclass(frozen=True)
class Colours:
    """The colours of one picture."""

    text: str
    faint: str
    program: str
    gpu: str
    dlwrap: str
    array: str


THEMES = {
    "light": Colours("#1f2328", "#c8ccd1", "#4a7fb5", "#d97a1e", "#7a6bb0", "#3b8a55"),
    "dark": Colours("#dfe3e8", "#4a4f57", "#7fb0e0", "#f0a050", "#ab9fe0", "#6fc08c"),
}


def read(path: Path) -> dict[str, float]:
    """Read when each thing was seen, in seconds from the start."""
    lines = re.findall(r"^ *(\d+\.\d+)  (.+?)  ", path.read_text(), re.MULTILINE)
    return {what: float(seconds) for seconds, what in lines}


def draw(seen: dict[str, float], colours: Colours) -> str:
    """Draw who holds the array when."""
    end = seen["array freed"] + 0.05
    made, wrapped, launched = seen["array made"], seen["wrapped"], seen["kernel launched"]
    consumer_gone, done, freed = seen["consumer gone"], seen["GPU done"], seen["array freed"]
    rows = [
        ("the program", colours.program, made, consumer_gone, "array, wrapper, tensor"),
        ("the GPU", colours.gpu, launched, done, "a kernel uses the memory"),
        ("page-locked", colours.dlwrap, wrapped, seen["unregistered"], "registered, then lingering"),
        ("the array", colours.array, made, freed, "alive"),
    ]
    marks = [  # when, what, where the words go
        (consumer_gone, "all deleted", "start", 22),
        (done, "GPU done", "end", 22),
        (freed, "unlocked, array freed", "end", 40),
    ]
    height = TOP + ROW * len(rows) + 44

    def x(seconds: float) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * seconds / end

    bottom = TOP + ROW * len(rows)
    small = f"fill='{colours.text}' font-size='12'"
    parts = [
        f"<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {WIDTH} {height}' width='{WIDTH}'",
        f" {FONT} font-size='14'>",
        "<title>Who holds the array when</title>",
    ]
    for tick in range(int(end * 10) + 1):
        at = x(tick / 10)
        parts.append(f"<path d='M{at:.1f} {TOP - 6}V{bottom}' stroke='{colours.faint}' stroke-width='0.7'/>")
        parts.append(f"<text x='{at:.1f}' y='{bottom + 18}' {small} text-anchor='middle'>{tick / 10:.1f}</text>")
    parts.append(f"<text x='{LEFT - 14}' y='{bottom + 18}' {small} text-anchor='end'>seconds</text>")
    for number, (name, colour, begin, stop, what) in enumerate(rows):
        y = TOP + ROW * number + (ROW - BAR) / 2
        parts.append(f"<text x='{LEFT - 14}' y='{y + 14}' fill='{colours.text}' text-anchor='end'>{name}</text>")
        parts.append(
            f"<rect x='{x(begin):.1f}' y='{y}' width='{x(stop) - x(begin):.1f}' height='{BAR}' rx='3' fill='{colour}'/>"
        )
        beside = y + 14 if stop == consumer_gone else y - 4
        parts.append(
            f"<text x='{x(consumer_gone) + 7:.1f}' y='{beside}' fill='{colours.text}' font-size='12'>{what}</text>"
        )
    for at, what, anchor, up in marks:
        parts.append(f"<path d='M{x(at):.1f} {TOP - up + 6}V{bottom}' stroke='{colours.text}' stroke-dasharray='4 3'/>")
        parts.append(f"<text x='{x(at):.1f}' y='{TOP - up}' fill='{colours.text}' text-anchor='{anchor}'>{what}</text>")
    return "\n".join([*parts, "</svg>", ""])


if __name__ == "__main__":
    for theme, chosen in THEMES.items():
        (PLOTS / f"lifetime-{theme}.svg").write_text(draw(read(DEMO), chosen))
