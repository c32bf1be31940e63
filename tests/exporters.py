"""Makes exporters of memory that is not there, for the tests of the native part alone."""

from __future__ import annotations


def lend(
    native, key, device_pointer=0, host_pointer=0, device=0, dtype=(2, 32, 1), shape=(), strides=(), readonly=False
):
    """Describe it, and lend it by the name of `key`; refuses what the native part refuses."""
    layout = native.Layout(
        None, shape, strides, dtype, 1, 0, False, host_pointer, 0, 0, 0, None, 0, 0, True, False, None
    )
    return native.lend(native.Exporter, layout, native.Loan(device, key), device_pointer, readonly, 0, False)


def released_keys(native, seconds=0):
    """Give the keys of the leases that were released."""
    return [loan.hold for loan, _ in native.wait(seconds)]
