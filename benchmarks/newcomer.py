"""Walk a newcomer's path and time it: a clone in a bare environment, the README's first command, then a recipe.

python benchmarks/newcomer.py [--out FILE.json] [--keep]

Nothing is repeated here of what a newcomer reads: the commands and files are taken from README.md and the recipe, and
done word for word, in one shell. That shell has an empty home, an empty /tmp where the kernel lets it (``unshare``), no
cache of pip's, the system's PATH, and of the variables of this process only those by which pip finds its index.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
README = ROOT / "README.md"
RECIPE = ROOT / "docs" / "recipes" / "memory-mapped.md"
PATH = "/usr/local/bin:/usr/bin:/bin"
# How pip reaches its index from here: no part of what a newcomer does.
NETWORK = re.compile(r"(?i)(PIP_(CERT|INDEX_URL|EXTRA_INDEX_URL|FIND_LINKS|DEFAULT_TIMEOUT)|SSL_CERT_\w+|\w+_PROXY)")
OPTIONAL = "Without one, skip this"  # said of a step by the page itself, about GPUs
_BLOCK = re.compile(r"^```(?P<language>sh|python)\n(?P<code>.*?)^```$", re.DOTALL | re.MULTILINE)
_SAVED_AS = re.compile(r"[Ss]ave this as `([^`]+)`")
_END = "@@ end of a step:"


class LostError(Exception):
    """A step that failed, or a page without the steps that it should have."""


@dataclass
class Step:
    """What a page tells to do.

    Attributes
    ----------
    page : str
        Where it is told.
    code : str
        The commands, or the text of the file.
    file : str or None
        The name by which the text is to be saved.
    skipped : str or None
        Why it does not apply to this machine.
    seconds : float
        How long it took.
    said : str
        What it printed; of pip no more than its errors, because it tells of this machine.
    """

    page: str
    code: str
    file: str | None = None
    skipped: str | None = None
    seconds: float = 0.0
    said: str = ""


def first_command(readme: Path = README) -> Step:
    """Give the README's first command."""
    for block in _BLOCK.finditer(readme.read_text(encoding="utf-8")):
        if block["language"] == "sh":
            return Step(readme.name, block["code"].splitlines(keepends=True)[0])
    raise LostError(f"{readme.name} has no command")


def recipe_steps(*, gpu: bool, recipe: Path = RECIPE) -> list[Step]:
    """Give the steps of a recipe, in order: commands, and files by the names that the text gives them."""
    text = recipe.read_text(encoding="utf-8")
    steps, told_from = [], 0
    for block in _BLOCK.finditer(text):
        told, told_from = text[told_from : block.start()], block.end()
        step = Step(recipe.relative_to(ROOT).as_posix() if recipe.is_relative_to(ROOT) else recipe.name, block["code"])
        if block["language"] == "python":
            named = _SAVED_AS.search(told)
            if named is None:
                raise LostError(f"{recipe.name} has Python that it does not tell to save:\n{step.code}")
            step.file = named[1]
        elif OPTIONAL in told and not gpu:
            step.skipped = "this machine has no GPU"
        steps.append(step)
    if not steps:
        raise LostError(f"{recipe.name} has no steps")
    return steps


class Shell:
    """A shell in a bare environment, in which steps follow each other as they do for a person."""

    def __init__(self, folder: Path) -> None:
        for name in ("home", "tmp"):
            (folder / name).mkdir()
        variables = {name: value for name, value in os.environ.items() if NETWORK.fullmatch(name)}
        variables |= {"PATH": PATH, "HOME": str(folder / "home"), "LANG": "C.UTF-8", "PIP_NO_CACHE_DIR": "1"}
        own_tmp = f'mount --bind "{folder}/tmp" /tmp'
        self.private_tmp = subprocess.run(["unshare", "--mount", "sh", "-c", own_tmp], check=False).returncode == 0
        command = (
            ["unshare", "--mount", "sh", "-c", f"{own_tmp} && exec bash -e"] if self.private_tmp else ["bash", "-e"]
        )
        piped = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
        self._process = subprocess.Popen(command, cwd=folder, env=variables, text=True, **piped)

    def do(self, step: Step) -> None:
        """Do a step, and note how long it took and what it said."""
        if step.skipped:
            return
        code = step.code if step.file is None else f"cat >{step.file} <<'THE_END_OF_IT'\n{step.code}THE_END_OF_IT\n"
        began = time.monotonic()
        # Commands must not read what follows them.
        self._process.stdin.write(f"{{\n{code}\n}} </dev/null\necho '{_END}'\n")
        self._process.stdin.flush()
        lines = []
        for line in self._process.stdout:
            if line.startswith(_END):
                break
            lines.append(line)
        else:
            raise LostError(f"{step.page}: this failed:\n{step.code}\n{''.join(lines)}")
        step.seconds = round(time.monotonic() - began, 2)
        step.said = "" if "pip install" in step.code else "".join(lines)

    def close(self) -> None:
        """End it."""
        with contextlib.suppress(BrokenPipeError):  # it has ended itself, at a step that failed
            self._process.stdin.close()
        self._process.stdout.close()
        self._process.wait()


def walk(folder: Path, *, gpu: bool) -> tuple[list[Step], bool]:
    """Do every step in a folder; give them, and whether /tmp was empty."""
    # What is committed; from outside the shell, to which this checkout may be hidden.
    subprocess.run(["git", "clone", "--quiet", ROOT, folder / "dlwrap"], check=True)
    steps = [Step("in a clone", "cd dlwrap\n"), first_command(), *recipe_steps(gpu=gpu)]
    shell = Shell(folder)
    try:
        for step in steps:
            shell.do(step)
            print(row(step), flush=True)
    finally:
        shell.close()
    return steps, shell.private_tmp


def row(step: Step) -> str:
    """Give the row of a step in the table."""
    what = f"save {step.file}" if step.file else step.code.strip().replace("\n", "; ")
    return f"{step.page:34} {what[:70]:70} {step.skipped or f'{step.seconds:7.1f} s'}"


def versions() -> Iterator[tuple[str, str]]:
    """Give the versions of what a newcomer has, and of what they get."""
    yield (
        "python",
        subprocess.check_output(["/usr/bin/env", "-i", f"PATH={PATH}", "python3", "--version"], text=True).strip(),
    )
    yield "commit", subprocess.check_output(["git", "rev-parse", "HEAD"], cwd=ROOT, text=True).strip()
    yield "system", platform.freedesktop_os_release().get("PRETTY_NAME", platform.platform())
    yield "processors", f"{os.cpu_count()} {platform.machine()}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, help="write the times and what was printed")
    parser.add_argument("--keep", action="store_true", help="keep the folder in which it was done")
    arguments = parser.parse_args()
    gpu = any(Path(device).exists() for device in ("/dev/nvidiactl", "/dev/dxg"))
    # Not in /tmp, which the shell does not see.
    folder = Path(tempfile.mkdtemp(prefix="newcomer-", dir="/var/tmp"))
    try:
        steps, private_tmp = walk(folder, gpu=gpu)
    except LostError as error:
        print(error, file=sys.stderr)
        return 1
    finally:
        if not arguments.keep:
            shutil.rmtree(folder)
    print(f"{'together':105} {sum(step.seconds for step in steps):7.1f} s")
    if arguments.out:
        result = {
            "date": datetime.datetime.now(datetime.timezone.utc).date().isoformat(),
            "versions": dict(versions()),
            "gpu": gpu,
            "load": [round(each, 1) for each in os.getloadavg()],
            "empty /tmp": private_tmp,
            "seconds": round(sum(step.seconds for step in steps), 1),
            "steps": [asdict(step) for step in steps],
        }
        arguments.out.parent.mkdir(parents=True, exist_ok=True)
        # The folder's name would be of this machine.
        arguments.out.write_text((json.dumps(result, indent=2) + "\n").replace(str(folder), "FOLDER"))
    return 0


if __name__ == "__main__":
    sys.exit(main())
