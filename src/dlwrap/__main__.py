"""``python -m dlwrap info`` and ``python -m dlwrap demo``: reads the arguments, nothing else."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import ModuleType


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; give its exit status."""
    chosen = _parser().parse_args(arguments)
    render = _import_render()
    if render is None:
        print("dlwrap's command line needs rich: pip install 'dlwrap[cli]'", file=sys.stderr)
        return 2
    return _demo(render, simulated=chosen.simulated) if chosen.command == "demo" else _info(render)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m dlwrap", description="Host arrays on the GPU, in place.")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    commands.add_parser("info", help="what dlwrap can do on this machine, and why")
    demo = commands.add_parser("demo", help="one array's way to the GPU and back, as it is observed")
    demo.add_argument("--simulated", action="store_true", help="use the simulated CUDA driver even if there is a GPU")
    return parser


def _import_render() -> ModuleType | None:
    try:
        from dlwrap import _cli_render  # noqa: PLC0415 -- rich is an extra, and only this module's
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "rich":
            raise
        return None
    return _cli_render


def _info(render: ModuleType) -> int:
    from dlwrap import _info  # noqa: PLC0415 -- each command imports its own

    render.show_report(_info.collect())
    return 0


def _demo(render: ModuleType, *, simulated: bool) -> int:
    from dlwrap import _cli_stages, _demo  # noqa: PLC0415 -- each command imports its own

    try:
        stage = _cli_stages.choose(simulated=simulated)
    except _cli_stages.NoStageError as error:
        print(f"dlwrap demo: {error}", file=sys.stderr)
        return 2
    story = _demo.play(stage)
    render.show_story(story)
    return 1 if story.violations else 0


if __name__ == "__main__":
    sys.exit(main())
