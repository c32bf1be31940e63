"""Use a host array from any GPU framework in place: no copy, no use-after-free."""

from dlwrap import _exchange as _exchange  # serves the native part
from dlwrap._born import empty as empty
from dlwrap._born import zeros as zeros
from dlwrap._buffer import HostWrappedBuffer as HostWrappedBuffer
from dlwrap._buffer import Pin as Pin
from dlwrap._buffer import pin as pin
from dlwrap._buffer import wrap as wrap
from dlwrap._control import Stats as Stats
from dlwrap._control import configure as configure
from dlwrap._control import reclaim as reclaim
from dlwrap._control import stats as stats
from dlwrap._errors import CudaError as CudaError
from dlwrap._errors import DLWrapError as DLWrapError
from dlwrap._errors import DLWrapWarning as DLWrapWarning
from dlwrap._host_view import host_view as host_view
from dlwrap._keep_alive import keep_alive as keep_alive
from dlwrap._safetensors import Safetensors as Safetensors
from dlwrap._safetensors import open_safetensors as open_safetensors
from dlwrap._support import DeviceSupport as DeviceSupport
from dlwrap._support import support as support
from dlwrap._tracing import Holding as Holding
from dlwrap._tracing import report as report
from dlwrap._tracing import start_tracing as start_tracing
from dlwrap._tracing import stop_tracing as stop_tracing
from dlwrap._version import __version__ as __version__

__all__ = [
    "CudaError",
    "DLWrapError",
    "DLWrapWarning",
    "DeviceSupport",
    "Holding",
    "HostWrappedBuffer",
    "Pin",
    "Safetensors",
    "Stats",
    "__version__",
    "configure",
    "empty",
    "host_view",
    "keep_alive",
    "open_safetensors",
    "pin",
    "reclaim",
    "report",
    "start_tracing",
    "stats",
    "stop_tracing",
    "support",
    "wrap",
    "zeros",
]
