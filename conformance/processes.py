"""What the processes of the suite are started with."""

from __future__ import annotations

import os
from pathlib import Path

_ROOT = Path(__file__).resolve().parents[1]


def environment() -> dict[str, str]:
    """Give this process's environment, in which the suite is found wherever it was started."""
    path = [str(_ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(path),
        "XLA_PYTHON_CLIENT_PREALLOCATE": "false",  # the GPU is shared with other consumers
    }
