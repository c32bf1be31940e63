"""Where the demo plays: a GPU with torch or CuPy, or the simulated driver.

A stage imports a wrapped array, launches work on it, drops it, and tells whether the work still runs.
"""

from __future__ import annotations

import importlib
import importlib.util
import subprocess
import sys
from typing import TYPE_CHECKING, Any, Protocol

from dlwrap import testing

if TYPE_CHECKING:
    from dlwrap import HostWrappedBuffer

ELEMENTS = 1 << 22  # float32, 16 MiB; a sum of so many twos is exact
_CYCLES = 1_000_000_000  # half a second at 2 GHz
_LEGACY_STREAM = 1


class NoStageError(Exception):
    """There is a GPU that nothing here can use, and it is too late for the simulated driver."""


class Stage(Protocol):
    """A device, a consumer, and a kernel that is long enough to look at.

    Attributes
    ----------
    where : str
        The device, and why it was chosen.
    consumer : str
        What imports the array.
    """

    where: str
    consumer: str

    def take(self, buffer: HostWrappedBuffer) -> None:
        """Import the wrapped array, whose elements are ones."""
        ...

    def launch(self) -> None:
        """Submit work on it, and return before that ends."""
        ...

    def drop(self) -> None:
        """Let go of what was imported."""
        ...

    def is_busy(self) -> bool:
        """Ask the device whether the work still runs."""
        ...

    def let_finish(self) -> None:
        """Let the work end; a GPU needs no permission."""
        ...

    def check_result(self) -> str | None:
        """Say what is wrong with the result of the finished work, if anything is."""
        ...


def choose(*, simulated: bool) -> Stage:
    """Take a GPU with the first consumer that works, else the simulated driver.

    Raises
    ------
    NoStageError
        A consumer failed after it had loaded the real driver.
    """
    if simulated:
        return SimulatedStage("as asked for")
    gpu, why_not = find_gpu()
    if gpu is None:
        return SimulatedStage(f"this machine has no GPU ({why_not})")
    failures = []
    for name, stage in (("torch", TorchStage), ("cupy", CupyStage)):
        if importlib.util.find_spec(name) is None:
            failures.append(f"{name} is not installed")
            continue
        try:
            return stage(gpu)
        except Exception as error:  # noqa: BLE001 -- a broken consumer is a reason to try the next
            failures.append(f"{name} cannot use it: {error}")
    reason = f"nothing here can use the {gpu}: {'; '.join(failures)}"
    try:
        return SimulatedStage(reason)
    except RuntimeError:
        raise NoStageError(f"{reason}. Install torch or CuPy for its CUDA, or run: demo --simulated") from None


def find_gpu() -> tuple[str | None, str]:
    """Give the name of the first GPU, or None and why there is none.

    Asked in a process of its own: once this one has loaded a real driver it cannot use the simulated one.
    """
    question = (
        "import dlwrap\n"
        "try: print('yes', dlwrap.support(0).name)\n"
        "except (dlwrap.CudaError, ValueError) as error: print('no', getattr(error, 'name', 'no device'))"
    )
    asked = subprocess.run([sys.executable, "-c", question], capture_output=True, text=True, check=False)
    answer, _, text = asked.stdout.strip().partition(" ")
    if answer == "yes":
        return text, ""
    return None, _WHY_NOT.get(text, text) or f"asking the driver ended with exit status {asked.returncode}"


_WHY_NOT = {"NO_DRIVER": "no NVIDIA driver", "CUDA_ERROR_NO_DEVICE": "the driver sees none"}


class TorchStage:
    """A GPU, used by torch."""

    def __init__(self, gpu: str) -> None:
        torch: Any = importlib.import_module("torch")
        if not torch.cuda.is_available():
            raise RuntimeError("torch.cuda.is_available() is False")
        self.where = f"on the GPU, {gpu}"
        self.consumer = f"torch {torch.__version__}"
        self._torch = torch
        self._tensor: Any = torch.ones(ELEMENTS, device="cuda")
        self._work(cycles=1)  # a kernel's first launch may wait for the device
        torch.cuda.synchronize()

    def take(self, buffer: HostWrappedBuffer) -> None:
        """Make a tensor of it."""
        self._tensor = self._torch.from_dlpack(buffer)

    def launch(self) -> None:
        """Spin, add one in place, sum up."""
        self._work(cycles=_CYCLES)

    def _work(self, cycles: int) -> None:
        self._torch.cuda._sleep(cycles)  # noqa: SLF001 -- what torch's own tests keep a stream busy by
        self._sum = self._tensor.add_(1).sum()
        self._done = self._torch.cuda.Event()
        self._done.record()

    def drop(self) -> None:
        """Delete the tensor."""
        self._tensor = None

    def is_busy(self) -> bool:
        """Query torch's event."""
        return not self._done.query()

    def let_finish(self) -> None:
        """Leave it to the GPU."""

    def check_result(self) -> str | None:
        """Compare the sum."""
        return _check_sum(float(self._sum))


class CupyStage:
    """A GPU, used by CuPy."""

    def __init__(self, gpu: str) -> None:
        cupy: Any = importlib.import_module("cupy")
        self.where = f"on the GPU, {gpu}"
        self.consumer = f"CuPy {cupy.__version__}"
        self._cupy = cupy
        self._spin = cupy.RawKernel(_SPIN, "spin")
        self._array: Any = cupy.ones(ELEMENTS, dtype="float32")
        self._work(cycles=1)  # compiles the kernels
        cupy.cuda.Device().synchronize()

    def take(self, buffer: HostWrappedBuffer) -> None:
        """Make a CuPy array of it."""
        self._array = self._cupy.from_dlpack(buffer)

    def launch(self) -> None:
        """Spin, add one in place, sum up."""
        self._work(cycles=_CYCLES)

    def _work(self, cycles: int) -> None:
        self._spin((1,), (1,), (self._cupy.int64(cycles),))
        self._array += 1
        self._sum = self._array.sum()
        self._done = self._cupy.cuda.Event(disable_timing=True)
        self._done.record()

    def drop(self) -> None:
        """Delete the array."""
        self._array = None

    def is_busy(self) -> bool:
        """Query CuPy's event."""
        return not self._done.done

    def let_finish(self) -> None:
        """Leave it to the GPU."""

    def check_result(self) -> str | None:
        """Compare the sum."""
        return _check_sum(float(self._sum))


_SPIN = """
extern "C" __global__ void spin(long long cycles) {
    long long begin = clock64();
    while (clock64() - begin < cycles) {}
}
"""


def _check_sum(found: float) -> str | None:
    expected = 2.0 * ELEMENTS
    return None if found == expected else f"the sum is {found}, not {expected}"


class SimulatedStage:
    """The simulated driver, whose stream is held as if a long kernel ran there."""

    def __init__(self, reason: str) -> None:
        self._driver = testing.activate()
        self.where = f"on the simulated CUDA driver: {reason}"
        self._import, self.consumer = _capsule_consumer()
        self._imported: object = None
        self._bytes = (0, 0)

    def take(self, buffer: HostWrappedBuffer) -> None:
        """Import it on the legacy default stream."""
        self._imported = self._import(buffer)
        # Not buffer.ptr: whoever reads that may use it on any stream, so the release would wait for all.
        self._bytes = (int(buffer.array.__array_interface__["data"][0]), buffer.nbytes)

    def launch(self) -> None:
        """Submit a kernel that reads it all, to a stream that is held."""
        self._driver.hold(_LEGACY_STREAM)
        self._driver.launch(_LEGACY_STREAM, self._bytes)

    def drop(self) -> None:
        """Delete what was imported."""
        self._imported = None

    def is_busy(self) -> bool:
        """Count the simulated kernels that have not run."""
        return self._driver.pending() > 0

    def let_finish(self) -> None:
        """Run the kernel."""
        self._driver.let_go(_LEGACY_STREAM)

    def check_result(self) -> str | None:
        """Have nothing to compare: the kernel only read."""
        return None


def _capsule_consumer() -> tuple[Any, str]:
    """Give what imports on the legacy default stream, and its name."""
    try:
        core: Any = importlib.import_module("cuda.core")
        view = importlib.import_module("cuda.core.utils").StridedMemoryView
    except ImportError:
        return lambda buffer: buffer.__dlpack__(stream=_LEGACY_STREAM, max_version=(1, 3)), "a bare DLPack capsule"
    return (
        lambda buffer: view.from_dlpack(buffer, _LEGACY_STREAM),
        f"StridedMemoryView of cuda.core {core.__version__}",
    )
