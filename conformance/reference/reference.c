/* The strict reference consumer: reads every field of both kinds of capsule and of the exchange table,
 * follows the header to the letter, and plays the ill-mannered consumers. It judges nothing: the checks do,
 * by what it has seen.
 *
 * Needs no header of Python: what it calls of it is declared here, and found in the process. */
#define _POSIX_C_SOURCE 200809L

#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "_dlpack.h"

enum { MOST_DIMENSIONS = 64, LEGACY = 0, VERSIONED = 1, VIEW = 2, MISSING = -99 };

extern void *PyCapsule_GetPointer(void *capsule, const char *name);
extern const char *PyCapsule_GetName(void *capsule);
extern int PyCapsule_IsValid(void *capsule, const char *name);
extern int PyCapsule_SetName(void *capsule, const char *name);
extern void *PyCapsule_GetDestructor(void *capsule);
extern void PyErr_Clear(void);
extern void PyErr_SetString(void *kind, const char *message);
extern int PyErr_ExceptionMatches(void *kind);
extern int PyList_SetSlice(void *list, intptr_t low, intptr_t high, void *items);

/* Every field, as it was found. */
typedef struct {
    int32_t kind;
    uint32_t major, minor;
    uint64_t flags;
    void *managed, *manager_ctx, *deleter, *destructor;
    void *data;
    int32_t device_type, device_id;
    int32_t ndim;
    int32_t code, bits, lanes;
    int32_t has_shape, has_strides;
    int64_t shape[MOST_DIMENSIONS], strides[MOST_DIMENSIONS];
    uint64_t byte_offset;
} Seen;

static void see_tensor(const DLTensor *tensor, Seen *seen) {
    seen->data = tensor->data;
    seen->device_type = tensor->device.device_type;
    seen->device_id = tensor->device.device_id;
    seen->ndim = tensor->ndim;
    seen->code = tensor->dtype.code;
    seen->bits = tensor->dtype.bits;
    seen->lanes = tensor->dtype.lanes;
    seen->has_shape = tensor->shape != NULL;
    seen->has_strides = tensor->strides != NULL;
    seen->byte_offset = tensor->byte_offset;
    for (int32_t i = 0; i < tensor->ndim && i < MOST_DIMENSIONS; i++) {
        seen->shape[i] = tensor->shape == NULL ? -1 : tensor->shape[i];
        seen->strides[i] = tensor->strides == NULL ? 0 : tensor->strides[i];
    }
    if (tensor->strides == NULL) { /* before DLPack 1.2 that meant a compact tensor */
        int64_t step = 1;
        for (int32_t i = tensor->ndim - 1; i >= 0 && i < MOST_DIMENSIONS; i--) {
            seen->strides[i] = step;
            step *= seen->shape[i];
        }
    }
}

static void see_versioned(DLManagedTensorVersioned *managed, Seen *seen) {
    seen->kind = VERSIONED;
    seen->managed = managed;
    seen->major = managed->version.major;
    seen->minor = managed->version.minor;
    seen->manager_ctx = managed->manager_ctx;
    seen->deleter = (void *)managed->deleter;
    seen->flags = managed->flags;
    see_tensor(&managed->dl_tensor, seen);
}

static void see_legacy(DLManagedTensor *managed, Seen *seen) {
    seen->kind = LEGACY;
    seen->managed = managed;
    seen->manager_ctx = managed->manager_ctx;
    seen->deleter = (void *)managed->deleter;
    see_tensor(&managed->dl_tensor, seen);
}

/* ---- capsules ---- */

/* Looks into a capsule that nobody consumed, and leaves it so; -1 if it is none. */
int reference_look(void *capsule, Seen *seen) {
    memset(seen, 0, sizeof(*seen));
    if (PyCapsule_IsValid(capsule, "dltensor_versioned")) {
        see_versioned(PyCapsule_GetPointer(capsule, "dltensor_versioned"), seen);
    } else if (PyCapsule_IsValid(capsule, "dltensor")) {
        see_legacy(PyCapsule_GetPointer(capsule, "dltensor"), seen);
    } else {
        PyErr_Clear();
        return -1;
    }
    seen->destructor = PyCapsule_GetDestructor(capsule);
    return 0;
}

/* Consumes a capsule: the caller owes a call of the deleter from now on. */
int reference_take(void *capsule, Seen *seen) {
    if (reference_look(capsule, seen) != 0) {
        return -1;
    }
    return PyCapsule_SetName(capsule, seen->kind == VERSIONED ? "used_dltensor_versioned" : "used_dltensor");
}

/* Empties a list, whose item is an unconsumed capsule, while an error is set; tells whether it is set still.
 */
int reference_drop_with_error(void *list, void *kind) {
    PyErr_SetString(kind, "set by the reference consumer");
    PyList_SetSlice(list, 0, 1, NULL);
    int still_set = PyErr_ExceptionMatches(kind);
    PyErr_Clear();
    return still_set;
}

/* ---- deleters ---- */

typedef struct {
    void *managed;
    int32_t kind;
    volatile int done;
} Deletion;

/* Calls the deleter, if there is one. */
void reference_delete(void *managed, int32_t kind) {
    if (kind == VERSIONED) {
        DLManagedTensorVersioned *versioned = managed;
        if (versioned->deleter != NULL) {
            versioned->deleter(versioned);
        }
    } else {
        DLManagedTensor *legacy = managed;
        if (legacy->deleter != NULL) {
            legacy->deleter(legacy);
        }
    }
}

static void *delete_on_this_thread(void *argument) {
    Deletion *deletion = argument;
    reference_delete(deletion->managed, deletion->kind);
    __atomic_store_n(&deletion->done, 1, __ATOMIC_RELEASE);
    return NULL;
}

/* Calls the deleter on a thread that Python never saw, and waits for that thread. */
int reference_delete_on_foreign_thread(void *managed, int32_t kind) {
    Deletion deletion = {managed, kind, 0};
    pthread_t thread;
    if (pthread_create(&thread, NULL, delete_on_this_thread, &deletion) != 0) {
        return -1;
    }
    return pthread_join(thread, NULL);
}

/* Calls the deleter on a foreign thread; tells whether it returned within so many milliseconds. The thread,
 * and what it works on, is left to itself, because it may wait for what only the caller can give. */
int reference_delete_within(void *managed, int32_t kind, int milliseconds) {
    Deletion *deletion = calloc(1, sizeof(*deletion));
    pthread_t thread;
    deletion->managed = managed;
    deletion->kind = kind;
    if (pthread_create(&thread, NULL, delete_on_this_thread, deletion) != 0) {
        return -1;
    }
    pthread_detach(thread);
    for (int waited = 0; waited < milliseconds; waited++) {
        if (__atomic_load_n(&deletion->done, __ATOMIC_ACQUIRE)) {
            return 1;
        }
        nanosleep(&(struct timespec){0, 1000000}, NULL);
    }
    return __atomic_load_n(&deletion->done, __ATOMIC_ACQUIRE);
}

static Deletion last;

static void delete_last(void) {
    reference_delete(last.managed, last.kind);
}

/* Calls the deleter when the process ends, after the interpreter is gone. */
int reference_delete_at_end(void *managed, int32_t kind) {
    last.managed = managed;
    last.kind = kind;
    return atexit(delete_last);
}

/* ---- elements ---- */

/* Goes on to the next element in row-major order; the position is in elements. */
static void step(const Seen *seen, int64_t *index, int64_t *position) {
    for (int32_t axis = seen->ndim - 1; axis >= 0; axis--) {
        *position += seen->strides[axis];
        if (++index[axis] < seen->shape[axis]) {
            return;
        }
        *position -= seen->strides[axis] * seen->shape[axis];
        index[axis] = 0;
    }
}

static int64_t count(const Seen *seen) {
    int64_t elements = 1;
    for (int32_t axis = 0; axis < seen->ndim; axis++) {
        elements *= seen->shape[axis];
    }
    return elements;
}

/* Copies all elements in row-major order; `first` is the address of the first element. */
void reference_gather(const Seen *seen, const char *first, size_t itemsize, char *out) {
    int64_t index[MOST_DIMENSIONS] = {0}, position = 0, elements = count(seen);
    for (int64_t i = 0; i < elements; i++) {
        memcpy(out + (size_t)i * itemsize, first + position * (int64_t)itemsize, itemsize);
        step(seen, index, &position);
    }
}

/* Writes all elements, given in row-major order. */
void reference_scatter(const Seen *seen, char *first, size_t itemsize, const char *values) {
    int64_t index[MOST_DIMENSIONS] = {0}, position = 0, elements = count(seen);
    for (int64_t i = 0; i < elements; i++) {
        memcpy(first + position * (int64_t)itemsize, values + (size_t)i * itemsize, itemsize);
        step(seen, index, &position);
    }
}

/* ---- the exchange table ---- */

/* The table as it was found; 0 for a function that is missing. */
typedef struct {
    uint32_t major, minor;
    int32_t older_tables; /* -1 if there is no end of them */
    int32_t allocator, from_py_object, to_py_object, dltensor_from_py_object, current_work_stream;
} Table;

typedef struct {
    int32_t errors;
    char kind[64], message[256];
} Told;

/* Finds the table; NULL if the capsule is none. */
void *reference_find_table(void *capsule, Table *table) {
    memset(table, 0, sizeof(*table));
    if (!PyCapsule_IsValid(capsule, "dlpack_exchange_api")) {
        PyErr_Clear();
        return NULL;
    }
    const DLPackExchangeAPI *api = PyCapsule_GetPointer(capsule, "dlpack_exchange_api");
    table->major = api->header.version.major;
    table->minor = api->header.version.minor;
    for (const DLPackExchangeAPIHeader *old = api->header.prev_api; old != NULL; old = old->prev_api) {
        if (++table->older_tables > 16) {
            table->older_tables = -1;
            break;
        }
    }
    table->allocator = api->managed_tensor_allocator != NULL;
    table->from_py_object = api->managed_tensor_from_py_object_no_sync != NULL;
    table->to_py_object = api->managed_tensor_to_py_object_no_sync != NULL;
    table->dltensor_from_py_object = api->dltensor_from_py_object_no_sync != NULL;
    table->current_work_stream = api->current_work_stream != NULL;
    return (void *)api;
}

/* Exports an object; a Python error is set if it fails. */
int reference_export(const DLPackExchangeAPI *api, void *object, Seen *seen) {
    DLManagedTensorVersioned *managed = NULL;
    memset(seen, 0, sizeof(*seen));
    if (api->managed_tensor_from_py_object_no_sync == NULL) {
        return MISSING;
    }
    int result = api->managed_tensor_from_py_object_no_sync(object, &managed);
    if (result == 0) {
        see_versioned(managed, seen);
    }
    return result;
}

/* Looks at an object without owning anything. */
int reference_view(const DLPackExchangeAPI *api, void *object, Seen *seen) {
    DLTensor tensor;
    memset(seen, 0, sizeof(*seen));
    memset(&tensor, 0, sizeof(tensor));
    int result = api->dltensor_from_py_object_no_sync(object, &tensor);
    if (result == 0) {
        seen->kind = VIEW;
        see_tensor(&tensor, seen);
    }
    return result;
}

/* Makes an object of an exported tensor, which it steals. */
int reference_import(const DLPackExchangeAPI *api, void *managed, void **object) {
    *object = NULL;
    if (api->managed_tensor_to_py_object_no_sync == NULL) {
        return MISSING;
    }
    return api->managed_tensor_to_py_object_no_sync(managed, object);
}

static void hear(void *context, const char *kind, const char *message) {
    Told *told = context;
    told->errors++;
    strncpy(told->kind, kind == NULL ? "" : kind, sizeof(told->kind) - 1);
    strncpy(told->message, message == NULL ? "" : message, sizeof(told->message) - 1);
}

/* Asks for a new tensor; called without the interpreter's lock, as the header allows. */
int reference_allocate(const DLPackExchangeAPI *api, int device_type, int device_id, int code, int bits,
                       int ndim, int64_t *shape, Seen *seen, Told *told) {
    DLTensor prototype = {0};
    DLManagedTensorVersioned *managed = NULL;
    memset(seen, 0, sizeof(*seen));
    memset(told, 0, sizeof(*told));
    prototype.device.device_type = device_type;
    prototype.device.device_id = device_id;
    prototype.dtype.code = (uint8_t)code;
    prototype.dtype.bits = (uint8_t)bits;
    prototype.dtype.lanes = 1;
    prototype.ndim = ndim;
    prototype.shape = shape;
    if (api->managed_tensor_allocator == NULL) {
        return MISSING;
    }
    int result = api->managed_tensor_allocator(&prototype, &managed, told, hear);
    if (result == 0 && managed != NULL) {
        see_versioned(managed, seen);
    }
    return result;
}

/* Asks for the stream to work on. */
int reference_work_stream(const DLPackExchangeAPI *api, int device_type, int device_id, void **stream) {
    *stream = (void *)(intptr_t)-1;
    if (api->current_work_stream == NULL) {
        return MISSING;
    }
    return api->current_work_stream(device_type, device_id, stream);
}
