"""Devices and their attributes."""

import pytest
from cuda.bindings import driver as cu

ATTRIBUTE = cu.CUdevice_attribute


@pytest.mark.parametrize(
    ("settings", "attribute", "value"),
    [
        ({}, "PAGEABLE_MEMORY_ACCESS", 0),
        ({"pageable": True}, "PAGEABLE_MEMORY_ACCESS", 1),
        ({"host_page_tables": True}, "PAGEABLE_MEMORY_ACCESS_USES_HOST_PAGE_TABLES", 1),
        ({"concurrent_managed": False}, "CONCURRENT_MANAGED_ACCESS", 0),
        ({}, "HOST_REGISTER_SUPPORTED", 1),
        ({"host_register": False}, "HOST_REGISTER_SUPPORTED", 0),
        ({}, "READ_ONLY_HOST_REGISTER_SUPPORTED", 1),
        ({"read_only_register": False}, "READ_ONLY_HOST_REGISTER_SUPPORTED", 0),
        ({}, "CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM", 1),
        ({"pointer_offset": 1 << 44}, "CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM", 0),
        ({}, "UNIFIED_ADDRESSING", 1),
        ({}, "CAN_MAP_HOST_MEMORY", 1),
        ({}, "COMPUTE_CAPABILITY_MAJOR", 9),
        ({"compute_capability": (12, 1)}, "COMPUTE_CAPABILITY_MINOR", 1),
        ({}, "WARP_SIZE", 32),
    ],
)
def test_attributes_follow_the_settings(cuda, outcome, settings, attribute, value):
    cuda.configure(**settings)
    result = cu.cuDeviceGetAttribute(getattr(ATTRIBUTE, f"CU_DEVICE_ATTRIBUTE_{attribute}"), 0)
    assert (outcome(result), result[1]) == ("SUCCESS", value)


def test_there_are_as_many_devices_as_configured(cuda, outcome):
    cuda.configure(devices=3)
    assert cu.cuDeviceGetCount()[1] == 3
    assert int(cu.cuDeviceGet(2)[1]) == 2
    assert outcome(cu.cuDeviceGet(3)) == "INVALID_DEVICE"


def test_no_two_devices_have_the_same_uuid(cuda):
    cuda.configure(devices=2)
    assert cu.cuDeviceGetUuid(0)[1].bytes != cu.cuDeviceGetUuid(1)[1].bytes


@pytest.mark.parametrize(
    "call",
    [
        lambda: cu.cuDeviceGetName(8, 7),
        lambda: cu.cuDeviceGetUuid(7),
        lambda: cu.cuDeviceTotalMem(7),
        lambda: cu.cuDeviceGetPCIBusId(20, 7),
        lambda: cu.cuDevicePrimaryCtxRetain(7),
        lambda: cu.cuDevicePrimaryCtxGetState(7),
        lambda: cu.cuDeviceGetAttribute(ATTRIBUTE.CU_DEVICE_ATTRIBUTE_WARP_SIZE, 7),
    ],
)
def test_a_device_that_is_not_there_is_refused(cuda, outcome, call):
    assert outcome(call()) == "INVALID_DEVICE"


def test_devices_have_memory_and_a_place_on_the_bus(cuda):
    assert cu.cuDeviceTotalMem(0)[1] == cu.cuMemGetInfo()[2] > 1 << 30
    assert cu.cuDeviceGetPCIBusId(20, 0)[1].startswith(b"0000:")
    assert cu.cuDeviceCanAccessPeer(0, 0)[1] == 0


@pytest.mark.parametrize(("code", "name"), [(0, b"CUDA_SUCCESS"), (712, b"CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED")])
def test_results_have_names_and_texts(cuda, code, name):
    assert cu.cuGetErrorName(cu.CUresult(code))[1] == name
    assert cu.cuGetErrorString(cu.CUresult(code))[1]


def test_a_result_that_no_header_knows_has_no_name(cuda):
    import ctypes

    text = ctypes.c_char_p(b"unset")
    assert cuda._library.cuGetErrorName(31337, ctypes.byref(text)) == 1
    assert text.value is None
