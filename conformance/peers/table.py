"""Writes docs/peers.md from the results that are committed.

python -m conformance.peers.table
"""

from __future__ import annotations

import json
from collections import defaultdict
from typing import Any

from conformance.peers.catalog import NOT_ASKED, PEERS, Peer, find
from conformance.peers.run import OUT, ROOT

PAGE = ROOT / "docs" / "peers.md"

_OPENING = """\
# The DLPack tests of other projects, on what dlwrap exports

Written by `python -m conformance.peers.table` from the results in `conformance/results/peers`; do not edit.

Other projects test DLPack on arrays of their own. Here dlwrap takes the place of the producer in those tests, by a
small adapter for each, in `conformance/peers/adapters`. The tests are theirs, unchanged, from a checkout or as
installed.

| word | meaning |
|---|---|
| passed | the test handed over something that dlwrap exports, and passed |
| untouched | it passed, but dlwrap exported nothing in it, so it says nothing of dlwrap |
| failed | with the reasons below |
| skipped | by the test itself, for want of a GPU or another package |
| left out | by us, with the reasons below |
| alone | how many pass and fail without dlwrap, each project with its own arrays, among those that were run |
"""

_RUNNING = """\
## Running them

```sh
pip install -e '.[test]' 'pytest<9' absl-py expecttest filecheck ndindex psutil pytest-json-report  # and torch and jax
python -m conformance.peers.run --sources DIR
```

`DIR` has a checkout of each repository, at the tag or commit above, in a folder named like it: `DIR/pytorch`,
`DIR/jax`, and so on; array-api-tests also wants its submodule. The command fails if a test fails without a known
reason, or passes in spite of one.

On a machine with a GPU, with builds for CUDA, these run on the real driver:

```sh
python -m conformance.peers.run --gpu --sources DIR --only {gpu}
```
"""


def latest() -> list[dict[str, Any]]:
    """Read the newest result of each peer, on the simulated driver and on a GPU, in the catalog's order."""
    newest: dict[tuple[str, bool], dict[str, Any]] = {}
    for path in sorted(OUT.glob("*.json")):
        result = json.loads(path.read_text())
        key = (result["peer"], result["driver"] == "simulated driver")
        if key not in newest or newest[key]["date"] <= result["date"]:
            newest[key] = result
    order = [peer.name for peer in PEERS]
    return sorted(newest.values(), key=lambda result: order.index(result["peer"]))


def render(results: list[dict[str, Any]]) -> str:
    """Give the page."""
    lines = [_OPENING, "## What came of them", "", *_counts(results), ""]
    missing = [peer for peer in PEERS if peer.name not in {result["peer"] for result in results}]
    if missing:
        lines += ["Not run yet:", "", *(f"- {peer.name}: {_why_not_run(peer)}" for peer in missing), ""]
    lines += ["## How dlwrap becomes the producer", "", "| tests | view | how |", "|---|---|---|"]
    lines += [f"| {peer.name} | {peer.view} | {peer.how} |" for peer in PEERS]
    lines += ["", "## Failures", "", *_reasons(results, "failed"), ""]
    lines += ["## Left out", "", *_reasons(results, "deselected"), ""]
    lines += ["Not asked, because they can take no other producer:", ""]
    lines += [f"- {what}: {why}" for what, why in NOT_ASKED.items()]
    gpu = " ".join(peer.name for peer in PEERS if peer.needs_gpu)
    lines += ["", _RUNNING.format(gpu=f"{gpu} cuda-core numba-cuda")]
    return "\n".join(lines).rstrip() + "\n"


def _counts(results: list[dict[str, Any]]) -> list[str]:
    lines = [
        "| tests | of | version | driver | date | passed | untouched | failed | skipped | left out | alone |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for result in results:
        peer, counts, alone = find(result["peer"]), result["counts"], result["alone"]
        figures = [counts[outcome] for outcome in ("passed", "untouched", "failed", "skipped", "deselected")]
        lines.append(
            f"| {peer.name} | {_origin(peer, result)} | {peer.package} {result['versions'][peer.package]} "
            f"| {result['driver']} | {result['date'][:10]} | {' | '.join(map(str, figures))} "
            f"| {alone['passed']} passed, {alone['failed']} failed |"
        )
    return lines


def _origin(peer: Peer, result: dict[str, Any]) -> str:
    files = ", ".join(f"`{test.rpartition('/')[2]}`" for test in peer.tests)
    return f"{peer.repository} {result['tests_of']}: {files}" if peer.repository else f"the package: {files}"


def _why_not_run(peer: Peer) -> str:
    return "needs a GPU" if peer.needs_gpu else "no result is committed"


def _reasons(results: list[dict[str, Any]], outcome: str) -> list[str]:
    """List the tests of an outcome by reason."""
    lines = ["| tests | which | why |", "|---|---|---|"]
    for result in results:
        by_reason = defaultdict(list)
        for name, test in result["tests"].items():
            if test["outcome"] == outcome:
                by_reason[test["reason"]].append(name)
        for reason, names in by_reason.items():
            lines.append(f"| {result['peer']} | {_names(names)} | {reason} |")
    return lines


def _names(names: list[str]) -> str:
    """Name tests by their functions, with a number where several cases of one are meant."""
    cases: dict[str, int] = defaultdict(int)
    for name in names:
        cases[name.partition("[")[0].rpartition("::")[2]] += 1
    return ", ".join(f"`{name}`" + (f" ({number})" if number > 1 else "") for name, number in cases.items())


if __name__ == "__main__":
    PAGE.write_text(render(latest()))
