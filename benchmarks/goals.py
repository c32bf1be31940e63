"""What dlwrap is to cost at most: each goal, and the row that measures it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Goal:
    """A bound on a figure of a row.

    Attributes
    ----------
    what : str
        What is measured, and how.
    row : str
        The row that measures it.
    figure : str
        Which of its figures: "value", "ratio" or "speedup".
    bound : float
        The goal.
    unit : str
        Of the bound; "x" for ratios.
    at_least : bool
        Whether more is better.
    limit : str
        What stands in the way, where the goal is missed.
    """

    what: str
    row: str
    figure: str
    bound: float
    unit: str
    at_least: bool = False
    limit: str = ""

    def is_met(self, row: dict[str, Any]) -> bool:
        """Tell whether the measured figure keeps the bound."""
        measured = row[self.figure]
        return bool(measured >= self.bound if self.at_least else measured <= self.bound)

    def miss(self, row: dict[str, Any]) -> str:
        """Say by how much the bound is missed."""
        measured = row[self.figure]
        if self.bound == 0:
            return f"{measured:g} {self.unit} instead of none"
        times = self.bound / measured if self.at_least else measured / self.bound
        if times < 2:
            return f"{100 * (times - 1):.0f} % {'short' if self.at_least else 'over'}"
        return f"{times:.1f} times {'too little' if self.at_least else 'as much'}"


GOALS = (
    Goal(
        "`buffer.__dlpack__(stream=1, max_version=(1, 0))` and the drop of the capsule, against those of a NumPy array",
        "export",
        "ratio",
        1.5,
        "x",
    ),
    Goal(
        "`numpy.from_dlpack(buffer, device='cpu')`, against `numpy.from_dlpack(array)`", "cpu_view", "ratio", 1.5, "x"
    ),
    Goal(
        "`torch.from_dlpack(buffer)`, against that of a CuPy array of the same shape", "torch_import", "ratio", 1.0, "x"
    ),
    Goal(
        "`managed_tensor_from_py_object_no_sync` of the exchange API and the deleter, called from C",
        "exchange_export",
        "value",
        60,
        "ns",
        limit="torch's own table takes longer in the same run; both ask for a stream and count holders",
    ),
    Goal(
        "`dltensor_from_py_object_no_sync` of the exchange API, called from C",
        "exchange_view",
        "value",
        60,
        "ns",
        limit="torch's own table takes longer in the same run",
    ),
    Goal("deleter of the last holder, called from C, the manager awake", "deleter_awake", "value", 50, "ns"),
    Goal("deleter of the last holder, called from C, the manager asleep", "deleter_asleep", "value", 8, "us"),
    Goal(
        "`wrap` and export of an array inside `dlwrap.pin`",
        "warm_wrap",
        "value",
        3,
        "us",
    ),
    Goal(
        "`wrap` and export of an array whose page-lock lingers",
        "revived_wrap",
        "value",
        3,
        "us",
    ),
    Goal(
        "`wrap` of pageable memory, which has to be registered nowhere",
        "pageable_wrap",
        "value",
        2,
        "us",
        limit="two calls of the simulated driver, which notes them, take most of it: see the peer",
    ),
    Goal(
        "`wrap` of an array of 1 MiB or more that is not page-locked, against bare `cuMemHostRegister` and "
        "`cuMemHostGetDevicePointer`; the worst size",
        "cold_wrap_large",
        "ratio",
        1.05,
        "x",
        limit="as below 1 MiB; from 16 MiB on the goal is kept within the spread of the repeats",
    ),
    Goal(
        "`wrap` of an array below 1 MiB that is not page-locked, beyond the same bare calls; the worst size",
        "cold_wrap_small",
        "value",
        10,
        "us",
        limit="one native call page-locks, but what leads there and back is Python's: some twenty microseconds",
    ),
    Goal(
        "256 MiB used once, cold: wrap, sum by torch, release, against `torch.from_numpy(a).cuda().sum()`",
        "read_once",
        "speedup",
        2,
        "x",
        at_least=True,
    ),
    Goal(
        "256 MiB used once, inside `dlwrap.pin`, against the same",
        "read_once_in_pin",
        "speedup",
        5,
        "x",
        at_least=True,
    ),
    Goal(
        "zero-copy sum of 256 MiB by torch, against the rate of DMA from page-locked memory",
        "zero_copy_rate",
        "ratio",
        0.85,
        "x",
        at_least=True,
    ),
    Goal(
        "loop of 1 ms kernels, 20 in flight, beside 50 fresh arrays wrapped, exported, released a second: throughput",
        "loop_throughput",
        "value",
        0.5,
        "% lost",
        limit="nothing runs while memory is unregistered: 50 bare calls for 1 MiB, by the curve below, take about as "
        "much of each second, and lingering longer saves nothing more",
    ),
    Goal(
        "the same loop: 99th percentile of the launch calls, against a loop without releases",
        "loop_launch",
        "ratio",
        1.5,
        "x",
        limit="launches wait while memory is registered, which fresh arrays cannot do without, and while it is "
        "unregistered; see the peers that only register, and that wrap the same array again",
    ),
    Goal("threads of dlwrap with nothing to do", "manager_idle", "value", 0, "% of a core"),
    Goal(
        "threads of dlwrap with 1,000 releases pending on a busy stream", "manager_pending", "value", 2, "% of a core"
    ),
    Goal(
        "drop of the last holder to the array freed, GPU idle, nothing lingers, 64 KiB; median",
        "release_latency",
        "value",
        200,
        "us",
        limit="the bare cuMemHostUnregister takes most of the goal; then two threads wake one after the other",
    ),
    Goal("Python memory of a live wrapper inside `dlwrap.pin`", "memory_in_pin", "value", 1024, "bytes"),
    Goal("Python memory of a live wrapper with a page-lock of its own", "memory_registered", "value", 1024, "bytes"),
    Goal("Python memory of a pending release", "memory_pending", "value", 1024, "bytes"),
    Goal(
        "releases of 100,000 wrappers inside one pin, from the stream's end until all are released",
        "release_rate",
        "value",
        200_000,
        "a second",
        at_least=True,
    ),
    Goal(
        "`import dlwrap`, after `import numpy`",
        "import",
        "value",
        15,
        "ms",
        limit="some thirty modules of Python, half a millisecond each",
    ),
)
