/* The names of the driver's results. */
#include "sim.h"

typedef struct NamedResult {
    Result code;
    const char *name;
    const char *text;
} NamedResult;

static const NamedResult RESULTS[] = {
    {0, "CUDA_SUCCESS", "no error"},
    {1, "CUDA_ERROR_INVALID_VALUE", "invalid argument"},
    {2, "CUDA_ERROR_OUT_OF_MEMORY", "out of memory"},
    {3, "CUDA_ERROR_NOT_INITIALIZED", "initialization error"},
    {4, "CUDA_ERROR_DEINITIALIZED", "driver shutting down"},
    {36, "CUDA_ERROR_CALL_REQUIRES_NEWER_DRIVER", "the call needs a newer driver"},
    {46, "CUDA_ERROR_DEVICE_UNAVAILABLE", "the device is busy or unavailable"},
    {100, "CUDA_ERROR_NO_DEVICE", "no CUDA-capable device"},
    {101, "CUDA_ERROR_INVALID_DEVICE", "invalid device ordinal"},
    {200, "CUDA_ERROR_INVALID_IMAGE", "invalid kernel image"},
    {201, "CUDA_ERROR_INVALID_CONTEXT", "invalid device context"},
    {205, "CUDA_ERROR_MAP_FAILED", "mapping failed"},
    {208, "CUDA_ERROR_ALREADY_MAPPED", "already mapped"},
    {214, "CUDA_ERROR_ECC_UNCORRECTABLE", "uncorrectable ECC error"},
    {215, "CUDA_ERROR_UNSUPPORTED_LIMIT", "the limit is not supported"},
    {217, "CUDA_ERROR_PEER_ACCESS_UNSUPPORTED", "peer access is not supported"},
    {304, "CUDA_ERROR_OPERATING_SYSTEM", "an operating system call failed"},
    {400, "CUDA_ERROR_INVALID_HANDLE", "invalid resource handle"},
    {401, "CUDA_ERROR_ILLEGAL_STATE", "not permitted in this state"},
    {500, "CUDA_ERROR_NOT_FOUND", "named symbol not found"},
    {600, "CUDA_ERROR_NOT_READY", "device not ready"},
    {700, "CUDA_ERROR_ILLEGAL_ADDRESS", "an illegal memory access was encountered"},
    {704, "CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED", "peer access is already enabled"},
    {708, "CUDA_ERROR_PRIMARY_CONTEXT_ACTIVE", "the primary context is active"},
    {709, "CUDA_ERROR_CONTEXT_IS_DESTROYED", "the context is destroyed"},
    {712, "CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED", "part or all of the memory is already registered"},
    {713, "CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED", "the pointer is not of registered memory"},
    {719, "CUDA_ERROR_LAUNCH_FAILED", "a launch failed"},
    {800, "CUDA_ERROR_NOT_PERMITTED", "operation not permitted"},
    {801, "CUDA_ERROR_NOT_SUPPORTED", "operation not supported"},
    {900, "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED", "not permitted while a stream captures"},
    {901, "CUDA_ERROR_STREAM_CAPTURE_INVALIDATED", "the capture was invalidated by an earlier error"},
    {902, "CUDA_ERROR_STREAM_CAPTURE_MERGE", "two captures would be merged"},
    {903, "CUDA_ERROR_STREAM_CAPTURE_UNMATCHED", "the capture was not begun in this stream"},
    {904, "CUDA_ERROR_STREAM_CAPTURE_UNJOINED", "the capture has a stream that was not joined to its origin"},
    {905, "CUDA_ERROR_STREAM_CAPTURE_ISOLATION", "the capture would depend on work outside of it"},
    {906, "CUDA_ERROR_STREAM_CAPTURE_IMPLICIT", "the capture would depend on the legacy stream"},
    {907, "CUDA_ERROR_CAPTURED_EVENT", "the event was last recorded in a capturing stream"},
    {908, "CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD", "the capture was begun by another thread"},
    {909, "CUDA_ERROR_TIMEOUT", "timed out"},
    {999, "CUDA_ERROR_UNKNOWN", "unknown error"},
};

/* The row of a code, or NULL. */
static const NamedResult *result_named(Result code) {
    for (size_t i = 0; i < sizeof RESULTS / sizeof *RESULTS; i++)
        if (RESULTS[i].code == code)
            return &RESULTS[i];
    return NULL;
}

/* The result's name; NULL and INVALID_VALUE for a code that no header knows. */
API Result cuGetErrorName(Result code, const char **name) {
    Result result = enter_anytime("cuGetErrorName");
    if (result != SUCCESS)
        return result;
    if (name == NULL)
        return leave(INVALID_VALUE);
    const NamedResult *row = result_named(code);
    *name = row != NULL ? row->name : NULL;
    return leave(row != NULL ? SUCCESS : INVALID_VALUE);
}

/* What the result means; NULL and INVALID_VALUE for a code that no header knows. */
API Result cuGetErrorString(Result code, const char **text) {
    Result result = enter_anytime("cuGetErrorString");
    if (result != SUCCESS)
        return result;
    if (text == NULL)
        return leave(INVALID_VALUE);
    const NamedResult *row = result_named(code);
    *text = row != NULL ? row->text : NULL;
    return leave(row != NULL ? SUCCESS : INVALID_VALUE);
}
