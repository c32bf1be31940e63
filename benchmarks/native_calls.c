/* Calls what dlwrap gives to C consumers as they would call it, and takes the time. Loaded by ctypes.PyDLL,
 * so the GIL is held; needs no header of Python or DLPack. */
#define _POSIX_C_SOURCE 200809L

#include <stddef.h>
#include <stdint.h>
#include <time.h>

typedef struct {
    uint32_t major;
    uint32_t minor;
} Version;

typedef struct {
    void *data;
    int32_t device_type;
    int32_t device_id;
    int32_t ndim;
    uint8_t code;
    uint8_t bits;
    uint16_t lanes;
    int64_t *shape;
    int64_t *strides;
    uint64_t byte_offset;
} Tensor;

typedef struct ManagedTensor {
    Version version;
    void *manager_ctx;
    void (*deleter)(struct ManagedTensor *self);
    uint64_t flags;
    Tensor tensor;
} ManagedTensor;

/* DLPack 1.3's DLPackExchangeAPI. */
typedef struct ExchangeApi {
    struct {
        Version version;
        struct ExchangeApi *older;
    } header;
    int (*allocate)(Tensor *prototype, ManagedTensor **out, void *context,
                    void (*set_error)(void *context, const char *kind, const char *message));
    int (*export_managed)(void *object, ManagedTensor **out);
    int (*import_managed)(ManagedTensor *tensor, void **out);
    int (*view)(void *object, Tensor *out);
    int (*current_stream)(int32_t device_type, int32_t device_id, void **out);
} ExchangeApi;

/* The time in nanoseconds. */
static int64_t now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (int64_t)time.tv_sec * 1000000000 + time.tv_nsec;
}

/* The major version of the table; a consumer understands its own only. */
uint32_t exchange_major(const ExchangeApi *api) {
    return api->header.version.major;
}

/* Whether the table has the optional function. */
int exchange_has_view(const ExchangeApi *api) {
    return api->view != NULL;
}

/* Exports and deletes so many times; nanoseconds in all, or -1 with an exception set. */
int64_t time_exports(const ExchangeApi *api, void *object, int64_t rounds) {
    int64_t begin = now();
    for (int64_t i = 0; i < rounds; i++) {
        ManagedTensor *tensor;
        if (api->export_managed(object, &tensor) != 0) {
            return -1;
        }
        tensor->deleter(tensor);
    }
    return now() - begin;
}

/* Looks at the tensor so many times; nanoseconds in all, or -1 with an exception set. */
int64_t time_views(const ExchangeApi *api, void *object, int64_t rounds) {
    int64_t begin = now();
    for (int64_t i = 0; i < rounds; i++) {
        Tensor tensor;
        if (api->view(object, &tensor) != 0) {
            return -1;
        }
    }
    return now() - begin;
}

/* Deletes each tensor; nanoseconds in all. */
int64_t time_deleters(ManagedTensor *const *tensors, int64_t count) {
    int64_t begin = now();
    for (int64_t i = 0; i < count; i++) {
        tensors[i]->deleter(tensors[i]);
    }
    return now() - begin;
}
