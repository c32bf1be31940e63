"""Makes exporters of memory that is not there, for the tests of the native part alone."""

from __future__ import annotations


def lend(
    native, key, device_pointer=0, host_pointer=0, device=0, dtype=(2, 32, 1), shape=(), strides=(), readonly=False
):
    """Describe it, and lend it; refuses what the native part refuses."""
    layout = native.Layout(
        None, shape, strides, dtype, 1, 0, False, host_pointer, 0, 0, 0, None, 0, 0, True, False, None
    )
    return native.lend(native.Exporter, layout, key, device_pointer, device, readonly, 0)
