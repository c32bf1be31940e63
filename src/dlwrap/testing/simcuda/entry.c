/* cuGetProcAddress, and the table of every function there is: by name, then by the CUDA it came with. */
#include "sim.h"

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

enum { PER_THREAD_DEFAULT_STREAM = 2 };
enum { FOUND = 0, SYMBOL_NOT_FOUND = 1, VERSION_NOT_SUFFICIENT = 2 };

typedef struct Entry {
    const char *name;
    int since;              /* the CUDA version that this form came with */
    const char *plain;      /* what its symbol adds to the name, */
    const char *per_thread; /* and where 0 is the calling thread's own stream */
} Entry;

static const Entry ENTRIES[] = {
    {"cuCtxCreate", 3020, "_v2", "_v2"},
    {"cuCtxCreate", 11040, "_v3", "_v3"},
    {"cuCtxCreate", 12050, "_v4", "_v4"},
    {"cuCtxDestroy", 4000, "_v2", "_v2"},
    {"cuCtxEnablePeerAccess", 4000, "", ""},
    {"cuCtxGetApiVersion", 3020, "", ""},
    {"cuCtxGetCurrent", 4000, "", ""},
    {"cuCtxGetDevice", 2000, "", ""},
    {"cuCtxGetDevice", 13000, "_v2", "_v2"},
    {"cuCtxGetFlags", 7000, "", ""},
    {"cuCtxGetId", 12000, "", ""},
    {"cuCtxGetLimit", 3010, "", ""},
    {"cuCtxGetStreamPriorityRange", 5050, "", ""},
    {"cuCtxPopCurrent", 4000, "_v2", "_v2"},
    {"cuCtxPushCurrent", 4000, "_v2", "_v2"},
    {"cuCtxRecordEvent", 12050, "", ""},
    {"cuCtxSetCurrent", 4000, "", ""},
    {"cuCtxSynchronize", 2000, "", ""},
    {"cuCtxSynchronize", 13000, "_v2", "_v2"},
    {"cuDeviceCanAccessPeer", 4000, "", ""},
    {"cuDeviceComputeCapability", 2000, "", ""},
    {"cuDeviceGet", 2000, "", ""},
    {"cuDeviceGetAttribute", 2000, "", ""},
    {"cuDeviceGetCount", 2000, "", ""},
    {"cuDeviceGetName", 2000, "", ""},
    {"cuDeviceGetPCIBusId", 4010, "", ""},
    {"cuDeviceGetUuid", 9020, "", ""},
    {"cuDeviceGetUuid", 11040, "_v2", "_v2"},
    {"cuDevicePrimaryCtxGetState", 7000, "", ""},
    {"cuDevicePrimaryCtxRelease", 7000, "", ""},
    {"cuDevicePrimaryCtxRelease", 11000, "_v2", "_v2"},
    {"cuDevicePrimaryCtxReset", 7000, "", ""},
    {"cuDevicePrimaryCtxReset", 11000, "_v2", "_v2"},
    {"cuDevicePrimaryCtxRetain", 7000, "", ""},
    {"cuDevicePrimaryCtxSetFlags", 7000, "", ""},
    {"cuDevicePrimaryCtxSetFlags", 11000, "_v2", "_v2"},
    {"cuDeviceTotalMem", 3020, "_v2", "_v2"},
    {"cuDriverGetVersion", 2000, "", ""},
    {"cuEventCreate", 2000, "", ""},
    {"cuEventDestroy", 4000, "_v2", "_v2"},
    {"cuEventElapsedTime", 2000, "", ""},
    {"cuEventElapsedTime", 12080, "_v2", "_v2"},
    {"cuEventQuery", 2000, "", ""},
    {"cuEventRecord", 2000, "", "_ptsz"},
    {"cuEventRecordWithFlags", 11010, "", "_ptsz"},
    {"cuEventSynchronize", 2000, "", ""},
    {"cuGetErrorName", 6000, "", ""},
    {"cuGetErrorString", 6000, "", ""},
    {"cuGetProcAddress", 11030, "", ""},
    {"cuGetProcAddress", 12000, "_v2", "_v2"},
    {"cuGraphAddChildGraphNode", 10000, "", ""},
    {"cuGraphAddEmptyNode", 10000, "", ""},
    {"cuGraphChildGraphNodeGetGraph", 10000, "", ""},
    {"cuGraphClone", 10000, "", ""},
    {"cuGraphCreate", 10000, "", ""},
    {"cuGraphDestroy", 10000, "", ""},
    {"cuGraphExecDestroy", 10000, "", ""},
    {"cuGraphExecUpdate", 10020, "", ""},
    {"cuGraphExecUpdate", 12000, "_v2", "_v2"},
    {"cuGraphGetNodes", 10000, "", ""},
    {"cuGraphInstantiate", 11000, "_v2", "_v2"},
    {"cuGraphInstantiate", 12000, "WithFlags", "WithFlags"},
    {"cuGraphInstantiateWithFlags", 11040, "", ""},
    {"cuGraphInstantiateWithParams", 12000, "", "_ptsz"},
    {"cuGraphLaunch", 10000, "", "_ptsz"},
    {"cuGraphReleaseUserObject", 11030, "", ""},
    {"cuGraphRetainUserObject", 11030, "", ""},
    {"cuGraphUpload", 11010, "", "_ptsz"},
    {"cuInit", 2000, "", ""},
    {"cuLaunchHostFunc", 10000, "", "_ptsz"},
    {"cuMemAlloc", 3020, "_v2", "_v2"},
    {"cuMemAllocHost", 3020, "_v2", "_v2"},
    {"cuMemAllocManaged", 6000, "", ""},
    {"cuMemFree", 3020, "_v2", "_v2"},
    {"cuMemFreeHost", 2000, "", ""},
    {"cuMemGetAddressRange", 3020, "_v2", "_v2"},
    {"cuMemGetInfo", 3020, "_v2", "_v2"},
    {"cuMemHostAlloc", 2000, "", ""},
    {"cuMemHostGetDevicePointer", 3020, "_v2", "_v2"},
    {"cuMemHostGetFlags", 2000, "", ""},
    {"cuMemHostRegister", 4000, "", ""},
    {"cuMemHostRegister", 6050, "_v2", "_v2"},
    {"cuMemHostUnregister", 4000, "", ""},
    {"cuMemcpy", 4000, "", "_ptds"},
    {"cuMemcpyAsync", 4000, "", "_ptsz"},
    {"cuMemcpyDtoD", 3020, "_v2", "_v2_ptds"},
    {"cuMemcpyDtoDAsync", 3020, "_v2", "_v2_ptsz"},
    {"cuMemcpyDtoH", 3020, "_v2", "_v2_ptds"},
    {"cuMemcpyDtoHAsync", 3020, "_v2", "_v2_ptsz"},
    {"cuMemcpyHtoD", 3020, "_v2", "_v2_ptds"},
    {"cuMemcpyHtoDAsync", 3020, "_v2", "_v2_ptsz"},
    {"cuMemsetD32", 3020, "_v2", "_v2_ptds"},
    {"cuMemsetD32Async", 3020, "", "_ptsz"},
    {"cuMemsetD8", 3020, "_v2", "_v2_ptds"},
    {"cuMemsetD8Async", 3020, "", "_ptsz"},
    {"cuPointerGetAttribute", 4000, "", ""},
    {"cuPointerGetAttributes", 7000, "", ""},
    {"cuStreamAddCallback", 5000, "", "_ptsz"},
    {"cuStreamBeginCapture", 10010, "_v2", "_v2_ptsz"},
    {"cuStreamCreate", 2000, "", ""},
    {"cuStreamCreateWithPriority", 5050, "", ""},
    {"cuStreamDestroy", 4000, "_v2", "_v2"},
    {"cuStreamEndCapture", 10000, "", "_ptsz"},
    {"cuStreamGetCaptureInfo", 10010, "", "_ptsz"},
    {"cuStreamGetCaptureInfo", 11030, "_v2", "_v2_ptsz"},
    {"cuStreamGetCaptureInfo", 12030, "_v3", "_v3_ptsz"},
    {"cuStreamGetCtx", 9020, "", "_ptsz"},
    {"cuStreamGetCtx", 12050, "_v2", "_v2_ptsz"},
    {"cuStreamGetDevice", 12080, "", "_ptsz"},
    {"cuStreamGetFlags", 5050, "", "_ptsz"},
    {"cuStreamGetGreenCtx", 12040, "", ""},
    {"cuStreamGetId", 12000, "", "_ptsz"},
    {"cuStreamGetPriority", 5050, "", "_ptsz"},
    {"cuStreamIsCapturing", 10000, "", "_ptsz"},
    {"cuStreamQuery", 2000, "", "_ptsz"},
    {"cuStreamSynchronize", 2000, "", "_ptsz"},
    {"cuStreamUpdateCaptureDependencies", 11030, "", "_ptsz"},
    {"cuStreamUpdateCaptureDependencies", 12030, "_v2", "_v2_ptsz"},
    {"cuStreamWaitEvent", 3020, "", "_ptsz"},
    {"cuThreadExchangeStreamCaptureMode", 10010, "", ""},
    {"cuUserObjectCreate", 11030, "", ""},
    {"cuUserObjectRelease", 11030, "", ""},
    {"cuUserObjectRetain", 11030, "", ""},
};

enum { ENTRY_COUNT = sizeof ENTRIES / sizeof *ENTRIES };

/* The index of the first entry of a name, or -1. It is the function's number everywhere. */
int function_index(const char *name) {
    int low = 0;
    int high = ENTRY_COUNT;
    while (low < high) {
        int middle = low + (high - low) / 2;
        if (strcmp(ENTRIES[middle].name, name) < 0)
            low = middle + 1;
        else
            high = middle;
    }
    return low < ENTRY_COUNT && strcmp(ENTRIES[low].name, name) == 0 ? low : -1;
}

/* The name that goes with a function's number. */
const char *function_name(int index) {
    return ENTRIES[index].name;
}

/* How many numbers there are. */
int function_total(void) {
    return ENTRY_COUNT;
}

/* The address of an exported function of this library, whatever else the process has loaded. */
static void *exported(const char *name, const char *suffix) {
    Dl_info library;
    char symbol[128];
    snprintf(symbol, sizeof symbol, "%s%s", name, suffix);
    if (dladdr(ENTRIES, &library) == 0)
        return NULL;
    void *handle = dlopen(library.dli_fname, RTLD_LAZY | RTLD_NOLOAD);
    if (handle == NULL)
        return NULL;
    void *address = dlsym(handle, symbol);
    dlclose(handle);
    return address;
}

/* The newest form of a function that the asked version has; NULL and why if there is none. */
static void *find(const char *name, int version, uint64_t flags, int *status) {
    const Entry *best = NULL;
    int index = function_index(name);
    *status = index < 0 ? SYMBOL_NOT_FOUND : VERSION_NOT_SUFFICIENT;
    for (int i = index; i >= 0 && i < ENTRY_COUNT && strcmp(ENTRIES[i].name, name) == 0; i++)
        if (ENTRIES[i].since <= version && ENTRIES[i].since <= sim.settings.driver_version)
            best = &ENTRIES[i];
    if (best == NULL)
        return NULL;
    *status = FOUND;
    return exported(best->name, (flags & PER_THREAD_DEFAULT_STREAM) != 0 ? best->per_thread : best->plain);
}

/* The address of a driver function in the form that a CUDA version knows. */
API Result cuGetProcAddress_v2(const char *name, void **function, int version, uint64_t flags, int *status) {
    Result result = enter_anytime("cuGetProcAddress");
    if (result != SUCCESS)
        return result;
    int found;
    if (name == NULL || function == NULL)
        return leave(INVALID_VALUE);
    *function = find(name, version, flags, &found);
    if (status != NULL)
        *status = found;
    return leave(found == FOUND || status != NULL ? SUCCESS : NOT_FOUND);
}

/* Likewise, without a word on why there is none. */
API Result cuGetProcAddress(const char *name, void **function, int version, uint64_t flags) {
    return cuGetProcAddress_v2(name, function, version, flags, NULL);
}
