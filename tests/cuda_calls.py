"""Driver calls that tests make themselves, through cuda.bindings."""

from __future__ import annotations

from cuda.bindings import driver


def checked(results):
    """Give what a successful call returned beside its result."""
    assert results[0] == driver.CUresult.CUDA_SUCCESS
    return results[1] if len(results) == 2 else results[1:]


def create_context(ordinal=0):
    """Make a context that is not the device's primary one, and make it current."""
    try:
        return checked(driver.cuCtxCreate(None, 0, ordinal))
    except TypeError:  # cuda-bindings 12
        return checked(driver.cuCtxCreate(0, ordinal))


# What dlwrap calls with the GIL held: the driver looks it up for the thread, and waits for nothing
# (tests/gpu/test_driver_facts.py).
QUICK = {"cuCtxGetCurrent"}
