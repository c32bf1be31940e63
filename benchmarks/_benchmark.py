"""What a benchmark is, and what one run of it is given."""

from __future__ import annotations

import contextlib
import importlib
import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import dlwrap
from benchmarks._timing import SkipBenchmark

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from benchmarks._device import Device

SECONDS = 60  # for what should take milliseconds


@dataclass(frozen=True)
class Run:
    """One run of the suite.

    Attributes
    ----------
    device : Device
        What it runs on.
    quick : bool
        Whether it only tries the benchmarks out: the figures are not worth keeping.
    """

    device: Device
    quick: bool

    def pick(self, thorough: Any, quick: Any) -> Any:
        """Give one of the two."""
        return quick if self.quick else thorough


@dataclass(frozen=True)
class Benchmark:
    """Something that gives rows or curves.

    Attributes
    ----------
    measure : callable
        Gives the figures of each row and curve by name.
    rows, curves : tuple of str
        Their names.
    needs_gpu : bool
        Whether a simulated device will not do.
    """

    measure: Callable[[Run], dict[str, Any]]
    rows: tuple[str, ...] = ()
    curves: tuple[str, ...] = ()
    needs_gpu: bool = False

    @property
    def name(self) -> str:
        """What ``--only`` calls it."""
        return self.measure.__name__

    def __call__(self, run: Run) -> dict[str, Any]:
        """Measure, with dlwrap in its initial state before and after.

        Raises
        ------
        SkipBenchmark
            This machine cannot run it.
        """
        if self.needs_gpu and run.device.simulated is not None:
            raise SkipBenchmark("needs a GPU")
        try:
            return self.measure(run)
        finally:
            dlwrap.configure()
            dlwrap.reclaim(SECONDS)
            run.device.forget_calls()


@contextlib.contextmanager
def lingering(seconds: float, nbytes: float | None = None) -> Iterator[None]:
    """Let unused page-locks stay for so long; whatever lingers before or at the end is released."""
    dlwrap.reclaim(SECONDS)
    dlwrap.configure(linger_seconds=seconds, **({} if nbytes is None else {"linger_bytes": nbytes}))
    try:
        yield
    finally:
        dlwrap.configure()
        dlwrap.reclaim(SECONDS)


def framework(name: str) -> Any:
    """Import a framework.

    Raises
    ------
    SkipBenchmark
        It is not here.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return importlib.import_module(name)
    except ImportError as error:
        raise SkipBenchmark(f"{name} is not installed") from error


def torch_with_cuda() -> Any:
    """Import torch and let it initialise the device.

    Raises
    ------
    SkipBenchmark
        It is not here, or without CUDA.
    """
    torch = framework("torch")
    if not torch.cuda.is_available():
        raise SkipBenchmark("torch has no CUDA")
    torch.ones(1, device="cuda").sum().item()
    return torch
