"""``python -m dlwrap info``, ``demo`` and ``doctor``: reads the arguments, nothing else.

With ``--json`` each prints one object, whose fields are in docs/diagnostics.md, and needs no rich.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import ModuleType


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; give its exit status."""
    chosen = _parser().parse_args(arguments)
    render = None if chosen.json else _import_render()
    if render is None and not chosen.json:
        print("dlwrap's command line needs rich: pip install 'dlwrap[cli]', or say --json", file=sys.stderr)
        return 2
    if chosen.command == "info":
        return _info(render)
    return (_demo if chosen.command == "demo" else _doctor)(render, simulated=chosen.simulated)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m dlwrap", description="Host arrays on the GPU, in place.")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    info = commands.add_parser("info", help="what dlwrap can do on this machine, and why")
    demo = commands.add_parser("demo", help="one array's way to the GPU and back, as it is observed")
    doctor = commands.add_parser(
        "doctor", help="a short self-test of each GPU; what is slow or impossible, and the cure"
    )
    for command in (demo, doctor):
        command.add_argument("--simulated", action="store_true", help="use the simulated CUDA driver even with a GPU")
    for command in (info, demo, doctor):
        command.add_argument("--json", action="store_true", help="print one JSON object")
    return parser


def _import_render() -> ModuleType | None:
    try:
        from dlwrap import _cli_render  # noqa: PLC0415 -- rich is an extra, and only this module's
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "rich":
            raise
        return None
    return _cli_render


def _print_json(command: str, fields: dict[str, object]) -> None:
    print(json.dumps({"schema": f"dlwrap.{command}/1", **fields}, indent=2))


def _info(render: ModuleType | None) -> int:
    from dlwrap import _info  # noqa: PLC0415 -- each command imports its own

    report = _info.collect()
    if render is None:
        _print_json("info", dataclasses.asdict(report))
    else:
        render.show_report(report)
    return 0


def _doctor(render: ModuleType | None, *, simulated: bool) -> int:
    from dlwrap import _doctor, testing  # noqa: PLC0415 -- each command imports its own

    if simulated:
        testing.activate()
    diagnosis = _doctor.examine()
    if render is None:
        _print_json("doctor", {"ok": diagnosis.is_well, **dataclasses.asdict(diagnosis)})
    else:
        render.show_diagnosis(diagnosis)
    return 0 if diagnosis.is_well else 1


def _demo(render: ModuleType | None, *, simulated: bool) -> int:
    from dlwrap import _cli_stages, _demo  # noqa: PLC0415 -- each command imports its own

    try:
        stage = _cli_stages.choose(simulated=simulated)
    except _cli_stages.NoStageError as error:
        print(f"dlwrap demo: {error}", file=sys.stderr)
        return 2
    story = _demo.play(stage)
    if render is None:
        _print_json("demo", {"ok": not story.violations, **dataclasses.asdict(story)})
    else:
        render.show_story(story)
    return 1 if story.violations else 0


if __name__ == "__main__":
    sys.exit(main())
