"""Which memory kind a device gets, and why."""

from __future__ import annotations

import re

import numpy as np
import pytest
from cuda.bindings import driver

import dlwrap

PINNED = {}
HMM = {"pageable": True}
ATS = {"pageable": True, "host_page_tables": True}
NEITHER = {"host_register": False}
NO_READ_ONLY = {"read_only_register": False}


@pytest.mark.parametrize(
    ("settings", "memory"),
    [
        pytest.param(PINNED, "pinned", id="pinned"),
        pytest.param(HMM, "pageable", id="HMM"),
        pytest.param(ATS, "pageable", id="ATS"),
        pytest.param({"pageable": True, "host_register": False}, "pageable", id="HMM without page-locking"),
        pytest.param(NEITHER, None, id="neither"),
    ],
)
def test_the_memory_kind_follows_the_attributes(cuda, settings, memory):
    cuda.configure(**settings)
    assert dlwrap.support().memory == memory


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        pytest.param(PINNED, "PAGEABLE_MEMORY_ACCESS = 0: .*page-locked", id="pinned"),
        pytest.param(HMM, r"PAGEABLE_MEMORY_ACCESS = 1: .*\(HMM\)", id="HMM"),
        pytest.param(ATS, r"PAGEABLE_MEMORY_ACCESS = 1: .*\(ATS\)", id="ATS"),
        pytest.param(NEITHER, "PAGEABLE_MEMORY_ACCESS = 0 and HOST_REGISTER_SUPPORTED = 0", id="neither"),
    ],
)
def test_the_reason_names_the_attributes(cuda, settings, reason):
    cuda.configure(**settings)
    assert re.search(reason, dlwrap.support().reason)


@pytest.mark.parametrize(
    ("settings", "attributes"),
    [
        pytest.param(PINNED, (False, False, True, True), id="pinned"),
        pytest.param(HMM, (True, False, True, True), id="HMM"),
        pytest.param(ATS, (True, True, True, True), id="ATS"),
        pytest.param(NEITHER, (False, False, False, True), id="neither"),
        pytest.param(NO_READ_ONLY, (False, False, True, False), id="no read-only page-locking"),
    ],
)
def test_the_attributes_are_told_as_they_are(cuda, settings, attributes):
    cuda.configure(**settings)
    told = dlwrap.support()
    assert attributes == (
        told.pageable_memory_access,
        told.host_page_tables,
        told.host_register,
        told.read_only_host_register,
    )


def test_the_device_and_the_driver_are_named(cuda):
    cuda.configure(devices=2, driver_version=12090)
    told = dlwrap.support(1)
    assert (told.device, told.name, told.driver_version) == (1, "Simulated CUDA device 1", 12090)


def test_without_a_context_device_0_is_meant(cuda):
    cuda.configure(devices=2)
    assert dlwrap.support().device == 0


def test_the_device_of_the_current_context_is_meant(cuda):
    cuda.configure(devices=2)
    _, context = driver.cuDevicePrimaryCtxRetain(1)
    driver.cuCtxPushCurrent(context)
    try:
        assert dlwrap.support().device == 1
        assert dlwrap.wrap(np.zeros(3)).device == 1
    finally:
        driver.cuCtxPopCurrent()
        driver.cuDevicePrimaryCtxRelease(1)


@pytest.mark.parametrize("settings", [PINNED, HMM, ATS], ids=["pinned", "HMM", "ATS"])
def test_auto_means_what_support_says(cuda, settings):
    cuda.configure(**settings)
    assert dlwrap.wrap(np.zeros(3)).memory == dlwrap.support().memory


def test_page_locking_can_be_forced_where_the_device_reads_pageable_memory(cuda):
    cuda.configure(pageable=True)
    buffer = dlwrap.wrap(np.zeros(3), memory="pinned")
    assert buffer.memory == "pinned"
    assert len(cuda.registrations) == 1


def test_pageable_memory_is_not_page_locked(cuda):
    cuda.configure(pageable=True)
    buffer = dlwrap.wrap(np.zeros(3), memory="pageable")
    assert buffer.memory == "pageable"
    assert cuda.count("cuMemHostRegister") == 0


def test_asking_page_locks_nothing(cuda):
    dlwrap.support()
    assert cuda.count("cuMemHostRegister") == 0


@pytest.mark.parametrize(
    ("device", "error"), [(1, ValueError), (-1, ValueError), (True, TypeError), (0.0, TypeError), ("0", ValueError)]
)
def test_what_is_no_device_is_refused(cuda, device, error):
    with pytest.raises(error, match="device must be"):
        dlwrap.support(device)


def test_a_device_may_be_any_integer(cuda):
    assert dlwrap.support(np.int64(0)).device == 0


def test_a_driver_that_fails_is_told(cuda):
    cuda.fail("cuDeviceGetName", 101)
    with pytest.raises(dlwrap.CudaError, match="CUDA_ERROR_INVALID_DEVICE"):
        dlwrap.support()
