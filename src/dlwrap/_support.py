"""Which memory kind a device gets, and why: a question to the device's attributes, never to a pointer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from dlwrap import _driver
from dlwrap._devices import DeviceLike, find_ordinal
from dlwrap._errors import CudaError

Memory = Literal["pinned", "pageable"]


@dataclass(frozen=True, slots=True)
class DeviceSupport:
    """How a device can use host memory in place.

    Attributes
    ----------
    device : int
        The device's ordinal.
    name : str
        The device's name.
    memory : {"pageable", "pinned"} or None
        What ``memory="auto"`` means on it; None where it can use neither.
    reason : str
        Why, in terms of the device attributes below.
    pageable_memory_access : bool
        ``CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS``: it reads ordinary memory (HMM or ATS).
    host_page_tables : bool
        ``..._PAGEABLE_MEMORY_ACCESS_USES_HOST_PAGE_TABLES``: it does so in hardware (ATS).
    host_register : bool
        ``..._HOST_REGISTER_SUPPORTED``: memory can be page-locked for it.
    read_only_host_register : bool
        ``..._READ_ONLY_HOST_REGISTER_SUPPORTED``: also memory that the process cannot write.
    driver_version : int
        The CUDA version of the driver, 1000 * major + 10 * minor.
    """

    device: int
    name: str
    memory: Memory | None
    reason: str
    pageable_memory_access: bool
    host_page_tables: bool
    host_register: bool
    read_only_host_register: bool
    driver_version: int


def support(device: DeviceLike | None = None) -> DeviceSupport:
    """Tell which memory kind a device gets, and why.

    Parameters
    ----------
    device : int, str or device object, optional
        As for `wrap`; by default the current context's device, else 0.

    Raises
    ------
    CudaError
        No driver, or no device.
    TypeError, ValueError
        ``device`` is no CUDA device, or there is no such device.
    """
    ordinal = choose_device(device)
    pageable = _has(ordinal, "PAGEABLE_MEMORY_ACCESS")
    host_page_tables = _has(ordinal, "PAGEABLE_MEMORY_ACCESS_USES_HOST_PAGE_TABLES")
    register = _has(ordinal, "HOST_REGISTER_SUPPORTED")
    memory: Memory | None = "pageable" if pageable else "pinned" if register else None
    if pageable:
        how = "through the host's page tables (ATS)" if host_page_tables else "by migrating or mapping pages (HMM)"
        reason = f"PAGEABLE_MEMORY_ACCESS = 1: the device reads ordinary memory {how}"
    elif register:
        reason = "PAGEABLE_MEMORY_ACCESS = 0: the memory is page-locked (cuMemHostRegister)"
    else:
        reason = "PAGEABLE_MEMORY_ACCESS = 0 and HOST_REGISTER_SUPPORTED = 0: it cannot use host memory in place"
    return DeviceSupport(
        device=ordinal,
        name=_driver.device_name(ordinal),
        memory=memory,
        reason=reason,
        pageable_memory_access=pageable,
        host_page_tables=host_page_tables,
        host_register=register,
        read_only_host_register=_has(ordinal, "READ_ONLY_HOST_REGISTER_SUPPORTED"),
        driver_version=_driver.driver_version(),
    )


def choose_device(device: object) -> int:
    """Find the ordinal of what is given as a device; None means the current context's device, else 0.

    Raises
    ------
    TypeError, ValueError
        It is no CUDA device, or there is no such device.
    """
    ordinal = None if device is None else find_ordinal(device)
    if ordinal is None:
        current = _driver.current_device()
        return 0 if current is None else current
    count = _driver.device_count()
    if not 0 <= ordinal < count:
        raise ValueError(f"device must be in range({count}), the CUDA devices there are, got {ordinal}")
    return ordinal


def choose_memory(memory: str, device: int) -> Memory:
    """Decide the memory kind; "auto" as the device can.

    Raises
    ------
    CudaError
        The kind that was forced is impossible on the device.
    """
    if memory == "pinned":
        return "pinned"
    if _driver.reads_pageable_memory(device):
        return "pageable"
    if memory == "pageable":
        raise CudaError(
            _driver.NOT_SUPPORTED,
            "CUDA_ERROR_NOT_SUPPORTED",
            f"device {device} cannot read pageable memory (CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS = 0); "
            "use memory='auto' or 'pinned'",
            "cuDeviceGetAttribute",
        )
    return "pinned"


def _has(device: int, attribute: str) -> bool:
    return _driver.attribute(device, attribute) == 1


for _public in (DeviceSupport, support):
    _public.__module__ = "dlwrap"
