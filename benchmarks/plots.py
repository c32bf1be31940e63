"""Draws the plots in docs/plots from the results that are committed; needs matplotlib.

python benchmarks/plots.py
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]

if __name__ == "__main__":
    sys.path[0] = str(ROOT)

import matplotlib as mpl  # noqa: E402 -- found by the line above are the next ones

mpl.use("svg")
from matplotlib import pyplot as plt  # noqa: E402
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter  # noqa: E402

from benchmarks._results import latest, missing  # noqa: E402
from benchmarks.page import PLOTS, column_of, size  # noqa: E402

DOCS = ROOT / "docs"
COPIES = ("torch.from_numpy(a).cuda()", "pin_memory(), to(non_blocking)")
IN_PLACE = {"cold: page-locked for this": "in place", "warm: inside dlwrap.pin": "in place, inside pin"}
STYLE = {
    "svg.hashsalt": "dlwrap",  # the same figures give the same file
    "svg.fonttype": "none",
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.alpha": 0.3,
    "axes.axisbelow": True,
    "legend.frameon": False,
}
WIN, LOSE = "#2a7f3f", "#b3412e"


def draw_uses(curve: dict[str, Any], where: str) -> Any:
    """Show how many times as fast as the faster copy it is to use an array in place, by size and number of uses."""
    figure, panels = plt.subplots(1, 2, figsize=(8.4, 3.6), sharey=True, layout="constrained")
    colours = plt.get_cmap("viridis")(_spread(len(curve["uses"])))
    for panel, (title, name) in zip(panels, IN_PLACE.items(), strict=True):
        for at, (uses, colour) in enumerate(zip(curve["uses"], colours, strict=True)):
            gains = [
                min(copies) / in_place
                for in_place, *copies in zip(
                    *([values[at] for values in curve[way]] for way in (name, *COPIES)), strict=True
                )
            ]
            label = "used once" if uses == 1 else f"used {uses} times"
            panel.plot(curve["bytes"], gains, marker="o", markersize=3, color=colour, label=label)
        panel.axhline(1, color="black", linewidth=1)
        panel.set_title(title, fontsize=9)
        _sizes(panel, curve["bytes"])
        panel.set_yscale("log")
        _plain(panel.yaxis)
        panel.text(0.02, 0.98, "wrapping wins", color=WIN, transform=panel.transAxes, va="top")
        panel.text(0.02, 0.02, "copying wins", color=LOSE, transform=panel.transAxes, va="bottom")
    panels[0].set_ylabel("time of the faster copy / time in place")
    panels[1].legend(loc="center left", bbox_to_anchor=(1, 0.5))
    figure.suptitle(f"A float32 array summed up on the GPU by torch, from host memory to host number ({where})")
    return figure


def draw_linger(curve: dict[str, Any], where: str) -> Any:
    """Show what releases cost the launches, and what lingering costs in page-locked memory."""
    figure, (lost, launch, held) = plt.subplots(1, 3, figsize=(8.4, 2.9), layout="constrained")
    seconds = curve["linger seconds"]
    places = range(len(seconds))
    lost.bar(places, curve["throughput lost, %"], color=LOSE)
    lost.axhline(0, color="black", linewidth=0.8)
    lost.set_title("throughput lost, %", fontsize=9)
    launch.plot(places, curve["p99 launch, us"], marker="o", color=LOSE, label="50 releases a second")
    launch.plot(places, curve["p99 launch without releases, us"], marker="o", color="gray", label="no releases")
    launch.set_yscale("log")
    launch.margins(y=0.35)
    launch.legend(fontsize=8, loc="upper right")
    _plain(launch.yaxis)
    launch.set_title("99 % of the launches take at most, us", fontsize=9)
    held.bar(places, curve["held, MiB"], color="#35618f")
    held.set_title("memory held page-locked, MiB", fontsize=9)
    for panel in (lost, launch, held):
        panel.set_xticks(list(places), [f"{each:g}" for each in seconds])
        panel.set_xlabel("linger_seconds")
    figure.suptitle(f"A loop of 1 ms kernels, 20 in flight, beside 50 releases of 1 MiB a second ({where})")
    return figure


def draw_registering(curve: dict[str, Any], where: str) -> Any:
    """Show what a wrap and its close cost, beside the bare driver calls."""
    figure, panels = plt.subplots(1, 2, figsize=(8.4, 3.2), sharey=True, layout="constrained")
    pairs = (("wrap", "bare register"), ("close", "bare unregister"))
    for panel, (ours, bare) in zip(panels, pairs, strict=True):
        panel.plot(curve["bytes"], curve[ours], marker="o", markersize=3, color="#35618f", label=f"dlwrap: {ours}")
        panel.plot(
            curve["bytes"], curve[bare], marker="o", markersize=3, color="gray", label=f"{bare}, driver calls alone"
        )
        _sizes(panel, curve["bytes"])
        panel.set_yscale("log")
        _plain(panel.yaxis)
        panel.legend(fontsize=8)
    panels[0].set_ylabel("microseconds")
    figure.suptitle(f"Wrapping an array that is not page-locked ({where})")
    return figure


def draw_scale(curve: dict[str, Any], pending: dict[str, Any] | None, where: str) -> Any:
    """Show what one more costs while there are many."""
    figure, panels = plt.subplots(1, 2, figsize=(8.4, 3.2), sharey=True, layout="constrained")
    for panel, each, x in ((panels[0], curve, "live"), (panels[1], pending, "pending")):
        if each is None:
            panel.set_axis_off()
            continue
        for name, values in each.items():
            if isinstance(values, list) and name != x:
                panel.plot(each[x], values, marker="o", markersize=3, label=name)
        panel.set_xscale("log")
        panel.set_yscale("log")
        _plain(panel.yaxis)
        panel.set_xlabel(f"{x} buffers")
        panel.legend(fontsize=8)
    panels[0].set_ylabel("microseconds each")
    figure.suptitle(f"One wrap, export and release while there are many others ({where})")
    return figure


def _sizes(panel: Any, sizes: list[int]) -> None:
    panel.set_xscale("log", base=2)
    panel.set_xticks(sizes[:: 1 + len(sizes) // 8])
    panel.xaxis.set_major_formatter(FuncFormatter(lambda value, _: size(round(value)).replace(" ", "\n")))
    panel.xaxis.set_minor_formatter(NullFormatter())


def _plain(axis: Any) -> None:
    """Write 0.1 and 10 rather than powers; where there is room, 0.2 and 0.5 too."""
    low, high = axis.get_view_interval()
    axis.set_major_locator(LogLocator(subs=(1, 2, 5) if high < 200 * low else (1,)))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axis.set_minor_formatter(NullFormatter())


def _spread(number: int) -> list[float]:
    return [0.85 * at / max(1, number - 1) for at in range(number)]


def draw(simulated: dict[str, Any] | None, gpu: dict[str, Any] | None) -> dict[str, Any]:
    """Draw what there are curves for, from the GPU where it has them; give the figures by path."""
    figures = {}
    for name, (path, _) in PLOTS.items():
        for results in filter(None, (gpu, simulated)):
            curve = results["curves"].get(name)
            if missing(curve) is not None:
                continue
            where = column_of(results)
            match name:
                case "uses":
                    figures[path] = draw_uses(curve, where)
                case "linger":
                    figures[path] = draw_linger(curve, where)
                case "registering":
                    figures[path] = draw_registering(curve, where)
                case "live_buffers":
                    pending = results["curves"].get("pending_releases")
                    figures[path] = draw_scale(curve, None if missing(pending) else pending, where)
            break
    return figures


if __name__ == "__main__":
    with plt.rc_context(STYLE):
        for path, figure in draw(latest(gpu=False), latest(gpu=True)).items():
            (DOCS / path).parent.mkdir(parents=True, exist_ok=True)
            figure.savefig(DOCS / path, metadata={"Date": None})
