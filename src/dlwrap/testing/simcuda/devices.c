/* cuInit and the devices: all alike, modelled on one H200. */
#include "sim.h"

#include <stdio.h>
#include <string.h>

enum { ATTRIBUTES = 256 };

typedef struct Uuid {
    unsigned char bytes[16];
} Uuid;

static const uint64_t TOTAL_MEMORY = (uint64_t)141 << 30;

static const int ATTRIBUTE_VALUES[ATTRIBUTES] = {
    [1] = 1024,        /* threads per block */
    [2] = 1024,        /* block x */
    [3] = 1024,        /* block y */
    [4] = 64,          /* block z */
    [5] = 2147483647,  /* grid x */
    [6] = 65535,       /* grid y */
    [7] = 65535,       /* grid z */
    [8] = 49152,       /* shared memory per block */
    [9] = 65536,       /* constant memory */
    [10] = 32,         /* warp */
    [11] = 2147483647, /* pitch */
    [12] = 65536,      /* registers per block */
    [13] = 1980000,    /* clock, kHz */
    [14] = 512,        /* texture alignment */
    [15] = 1,          /* overlaps copies and kernels */
    [16] = 132,        /* multiprocessors */
    [19] = 1,          /* maps host memory */
    [31] = 1,          /* concurrent kernels */
    [32] = 1,          /* ECC */
    [36] = 3201000,    /* memory clock, kHz */
    [37] = 6144,       /* memory bus, bits */
    [38] = 62914560,   /* L2 cache */
    [39] = 2048,       /* threads per multiprocessor */
    [40] = 3,          /* copy engines */
    [41] = 1,          /* unified addressing */
    [51] = 32,         /* texture pitch alignment */
    [78] = 1,          /* stream priorities */
    [79] = 1,          /* global L1 */
    [80] = 1,          /* local L1 */
    [81] = 233472,     /* shared memory per multiprocessor */
    [82] = 65536,      /* registers per multiprocessor */
    [83] = 1,          /* managed memory */
    [87] = 2,          /* single to double precision */
    [90] = 1,          /* preemption */
    [95] = 1,          /* cooperative launch */
    [97] = 232448,     /* shared memory per block, on request */
    [102] = 1,         /* virtual memory management */
    [103] = 1,         /* file descriptor handles */
    [106] = 32,        /* blocks per multiprocessor */
    [120] = 1,         /* cluster launch */
    [129] = 1,         /* unified function pointers */
};

/* Whether the ordinal names a device. */
bool device_exists(int device) {
    return device >= 0 && device < sim.settings.devices;
}

/* Begin using the driver; never in a child of a process that did. */
API Result cuInit(unsigned flags) {
    Result result = enter_anytime("cuInit");
    if (result != SUCCESS)
        return result;
    if (sim.forked)
        return leave(NOT_INITIALIZED);
    if (flags != 0)
        return leave(INVALID_VALUE);
    if (sim.settings.devices == 0)
        return leave(NO_DEVICE);
    sim.initialized = true;
    return leave(SUCCESS);
}

/* The newest CUDA that this driver serves; needs no cuInit. */
API Result cuDriverGetVersion(int *version) {
    Result result = enter_anytime("cuDriverGetVersion");
    if (result != SUCCESS)
        return result;
    if (version == NULL)
        return leave(INVALID_VALUE);
    *version = (int)sim.settings.driver_version;
    return leave(SUCCESS);
}

/* How many devices there are. */
API Result cuDeviceGetCount(int *count) {
    Result result = enter("cuDeviceGetCount");
    if (result != SUCCESS)
        return result;
    *count = (int)sim.settings.devices;
    return leave(SUCCESS);
}

/* The device of an ordinal: the same number. */
API Result cuDeviceGet(int *device, int ordinal) {
    Result result = enter("cuDeviceGet");
    if (result != SUCCESS)
        return result;
    if (!device_exists(ordinal))
        return leave(INVALID_DEVICE);
    *device = ordinal;
    return leave(SUCCESS);
}

/* The device's name. */
API Result cuDeviceGetName(char *name, int length, int device) {
    Result result = enter("cuDeviceGetName");
    if (result != SUCCESS)
        return result;
    if (!device_exists(device) || length <= 0)
        return leave(device_exists(device) ? INVALID_VALUE : INVALID_DEVICE);
    snprintf(name, (size_t)length, "Simulated CUDA device %d", device);
    return leave(SUCCESS);
}

/* A number that no two devices share. */
API Result cuDeviceGetUuid_v2(Uuid *uuid, int device) {
    Result result = enter("cuDeviceGetUuid");
    if (result != SUCCESS)
        return result;
    if (!device_exists(device))
        return leave(INVALID_DEVICE);
    memcpy(uuid->bytes, "dlwrap simulated", sizeof uuid->bytes);
    uuid->bytes[15] = (unsigned char)device;
    return leave(SUCCESS);
}

ALIAS("cuDeviceGetUuid_v2") Result cuDeviceGetUuid(Uuid *uuid, int device);

/* How much memory the device has, in bytes. */
API Result cuDeviceTotalMem_v2(size_t *nbytes, int device) {
    Result result = enter("cuDeviceTotalMem");
    if (result != SUCCESS)
        return result;
    if (!device_exists(device))
        return leave(INVALID_DEVICE);
    *nbytes = TOTAL_MEMORY;
    return leave(SUCCESS);
}

/* The value of an attribute, as configured where a test can configure it. */
static int attribute_value(unsigned attribute, int device) {
    switch (attribute) {
    case 33: /* PCI bus */
        return 0x10 + device;
    case 75:
        return (int)sim.settings.compute_major;
    case 76:
        return (int)sim.settings.compute_minor;
    case 88: /* pageable memory access */
        return sim.settings.pageable != 0;
    case 89: /* the host may touch managed memory while the device works */
        return sim.settings.concurrent_managed != 0;
    case 91: /* the host pointer of registered memory works on the device */
        return sim.settings.pointer_offset == 0;
    case 99: /* host register */
        return sim.settings.host_register != 0;
    case 100: /* pageable access through the host's page tables */
        return sim.settings.host_page_tables != 0;
    case 113: /* read-only host register */
        return sim.settings.read_only_register != 0;
    default:
        return ATTRIBUTE_VALUES[attribute];
    }
}

/* One attribute of a device. */
API Result cuDeviceGetAttribute(int *value, int attribute, int device) {
    Result result = enter("cuDeviceGetAttribute");
    if (result != SUCCESS)
        return result;
    if (!device_exists(device))
        return leave(INVALID_DEVICE);
    if (value == NULL || attribute <= 0 || attribute >= ATTRIBUTES)
        return leave(INVALID_VALUE);
    *value = attribute_value((unsigned)attribute, device);
    return leave(SUCCESS);
}

/* The device's compute capability. */
API Result cuDeviceComputeCapability(int *major, int *minor, int device) {
    Result result = enter("cuDeviceComputeCapability");
    if (result != SUCCESS)
        return result;
    if (!device_exists(device))
        return leave(INVALID_DEVICE);
    *major = (int)sim.settings.compute_major;
    *minor = (int)sim.settings.compute_minor;
    return leave(SUCCESS);
}

/* Where the device sits on the PCI bus. */
API Result cuDeviceGetPCIBusId(char *text, int length, int device) {
    Result result = enter("cuDeviceGetPCIBusId");
    if (result != SUCCESS)
        return result;
    if (!device_exists(device))
        return leave(INVALID_DEVICE);
    snprintf(text, (size_t)length, "0000:%02x:00.0", (unsigned)attribute_value(33, device));
    return leave(SUCCESS);
}

/* Simulated devices cannot reach each other's memory. */
API Result cuDeviceCanAccessPeer(int *can, int device, int peer) {
    Result result = enter("cuDeviceCanAccessPeer");
    if (result != SUCCESS)
        return result;
    if (!device_exists(device) || !device_exists(peer))
        return leave(INVALID_DEVICE);
    *can = 0;
    return leave(SUCCESS);
}

/* Free and total device memory, in bytes; allocations are not deducted. */
API Result cuMemGetInfo_v2(size_t *available, size_t *total) {
    Result result = enter("cuMemGetInfo");
    if (result != SUCCESS)
        return result;
    Context *context;
    result = context_current(&context);
    if (result == SUCCESS) {
        *available = TOTAL_MEMORY / 2;
        *total = TOTAL_MEMORY;
    }
    return leave(result);
}
