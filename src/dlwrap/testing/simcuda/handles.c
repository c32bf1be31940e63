/* Stream and event handles. The number of a destroyed one is the first to be given out again, as in CUDA. */
#include "sim.h"

enum { MAX_HANDLES = 1 << 16 };

struct Handle {
    HandleKind kind;
    void *object;
    Handle *next_free;
};

static Handle handles[MAX_HANDLES];
static size_t handles_used;
static Handle *free_handles[3]; /* per kind: an event never reuses the number of a stream */

/* A handle for the object, or NULL if all are taken. */
Handle *handle_new(HandleKind kind, void *object) {
    Handle *handle = free_handles[kind];
    if (handle != NULL)
        free_handles[kind] = handle->next_free;
    else if (handles_used < MAX_HANDLES)
        handle = &handles[handles_used++];
    else
        return NULL;
    *handle = (Handle){kind, object, NULL};
    return handle;
}

/* From now on the handle is dead. */
void handle_drop(Handle *handle) {
    HandleKind kind = handle->kind;
    *handle = (Handle){HANDLE_FREE, NULL, free_handles[kind]};
    free_handles[kind] = handle;
}

/* What the handle stands for, or NULL if it is dead, of another kind or no handle at all. */
void *handle_object(const Handle *handle, HandleKind kind) {
    uintptr_t offset = (uintptr_t)handle - (uintptr_t)handles;
    bool is_ours = (uintptr_t)handle >= (uintptr_t)handles && offset < handles_used * sizeof(Handle);
    if (!is_ours || offset % sizeof(Handle) != 0 || handle->kind != kind)
        return NULL;
    return handle->object;
}
