/* Contexts: one primary per device, others on request, and the calling thread's stack of them. */
#include "sim.h"

#include <stdlib.h>

enum { API_VERSION = 3020 };

/* The context at the top of the calling thread's stack, or NULL. */
static Context *top(void) {
    const Thread *thread = thread_self();
    return thread->depth > 0 ? thread->stack[thread->depth - 1] : NULL;
}

/* The error that every use of the context must return, or SUCCESS. */
Result context_usable(const Context *context) {
    if (!context->alive)
        return CONTEXT_IS_DESTROYED;
    return context->error;
}

/* The current context, if there is one that can be used. */
Result context_current(Context **context) {
    *context = top();
    return *context != NULL ? context_usable(*context) : INVALID_CONTEXT;
}

/* The context that the handle names, alive or not, or NULL. */
Context *context_known(const void *handle) {
    for (int device = 0; device < MAX_DEVICES; device++)
        if (handle == &sim.primaries[device])
            return &sim.primaries[device];
    for (Context *context = sim.contexts; context != NULL; context = context->next)
        if (handle == context)
            return context;
    return NULL;
}

/* The device's primary context, retained or not. */
Context *context_primary(int device) {
    return &sim.primaries[device];
}

/* Take everything that lives in the context away, after its work is done. */
static void context_tear_down(Context *context) {
    while (context->error == SUCCESS && work_on_context(context, UINT64_MAX))
        wait_for_change();
    Stream *following;
    for (Stream *stream = sim.streams; stream != NULL; stream = following) {
        following = stream->next;
        if (stream->context != context)
            continue;
        work_discard(stream);
        stream_destroy(stream);
    }
    memory_forget_context(context);
    context->legacy = NULL;
    context->error = SUCCESS;
    context->alive = false;
    context->retained_by_tests = false;
    work_run();
    changed();
}

/* Retain the device's primary context; the first to do so makes it. */
API Result cuDevicePrimaryCtxRetain(Context **context, int device) {
    Result result = enter("cuDevicePrimaryCtxRetain");
    if (result != SUCCESS)
        return result;
    if (!device_exists(device))
        return leave(INVALID_DEVICE);
    Context *primary = context_primary(device);
    primary->references++;
    primary->alive = true;
    *context = primary;
    return leave(SUCCESS);
}

/* Give one reference back; the last one destroys the primary context. */
API Result cuDevicePrimaryCtxRelease_v2(int device) {
    Result result = enter("cuDevicePrimaryCtxRelease");
    if (result != SUCCESS)
        return result;
    if (!device_exists(device))
        return leave(INVALID_DEVICE);
    Context *primary = context_primary(device);
    if (primary->references == 0)
        return leave(INVALID_CONTEXT);
    if (--primary->references == 0)
        context_tear_down(primary);
    return leave(SUCCESS);
}

/* Destroy what is in the primary context, whoever retained it. */
API Result cuDevicePrimaryCtxReset_v2(int device) {
    Result result = enter("cuDevicePrimaryCtxReset");
    if (result != SUCCESS)
        return result;
    if (!device_exists(device))
        return leave(INVALID_DEVICE);
    Context *primary = context_primary(device);
    bool retained_by_tests = primary->retained_by_tests;
    context_tear_down(primary);
    primary->alive = primary->references > 0;
    primary->retained_by_tests = retained_by_tests;
    return leave(SUCCESS);
}

/* Set the flags of the primary context. */
API Result cuDevicePrimaryCtxSetFlags_v2(int device, unsigned flags) {
    Result result = enter("cuDevicePrimaryCtxSetFlags");
    if (result != SUCCESS)
        return result;
    if (!device_exists(device))
        return leave(INVALID_DEVICE);
    context_primary(device)->flags = flags;
    return leave(SUCCESS);
}

/* The flags of the primary context, and whether anybody retains it. */
API Result cuDevicePrimaryCtxGetState(int device, unsigned *flags, int *active) {
    Result result = enter("cuDevicePrimaryCtxGetState");
    if (result != SUCCESS)
        return result;
    if (!device_exists(device))
        return leave(INVALID_DEVICE);
    *flags = context_primary(device)->flags;
    *active = context_primary(device)->alive;
    return leave(SUCCESS);
}

/* Put a context on the calling thread's stack. */
static Result push(Context *context) {
    Thread *thread = thread_self();
    if (thread->depth == MAX_CONTEXT_DEPTH)
        return INVALID_VALUE;
    thread->stack[thread->depth++] = context;
    return SUCCESS;
}

/* Make the context current above the one that is. */
API Result cuCtxPushCurrent_v2(void *handle) {
    Result result = enter("cuCtxPushCurrent");
    if (result != SUCCESS)
        return result;
    Context *context = context_known(handle);
    if (context == NULL)
        return leave(INVALID_CONTEXT);
    return leave(context->alive ? push(context) : CONTEXT_IS_DESTROYED);
}

/* Take the current context from the stack, so that the one below is current again. */
API Result cuCtxPopCurrent_v2(Context **context) {
    Result result = enter("cuCtxPopCurrent");
    if (result != SUCCESS)
        return result;
    if (top() == NULL)
        return leave(INVALID_CONTEXT);
    if (context != NULL)
        *context = top();
    thread_self()->depth--;
    return leave(SUCCESS);
}

/* Replace the current context; NULL only takes it away. */
API Result cuCtxSetCurrent(void *handle) {
    Result result = enter("cuCtxSetCurrent");
    if (result != SUCCESS)
        return result;
    Context *context = context_known(handle);
    if (handle != NULL && context == NULL)
        return leave(INVALID_CONTEXT);
    if (context != NULL && !context->alive)
        return leave(CONTEXT_IS_DESTROYED);
    if (thread_self()->depth > 0)
        thread_self()->depth--;
    return leave(context != NULL ? push(context) : SUCCESS);
}

/* The current context, or NULL. */
API Result cuCtxGetCurrent(Context **context) {
    Result result = enter("cuCtxGetCurrent");
    if (result != SUCCESS)
        return result;
    *context = top();
    return leave(SUCCESS);
}

/* The device of the current context. */
API Result cuCtxGetDevice(int *device) {
    Result result = enter("cuCtxGetDevice");
    if (result != SUCCESS)
        return result;
    if (top() == NULL)
        return leave(INVALID_CONTEXT);
    *device = top()->device;
    return leave(SUCCESS);
}

/* The context of a handle, or the current one for NULL. */
static Context *context_or_current(void *handle) {
    return handle != NULL ? context_known(handle) : top();
}

/* The device of a context; NULL means the current one. */
API Result cuCtxGetDevice_v2(int *device, void *handle) {
    Result result = enter("cuCtxGetDevice");
    if (result != SUCCESS)
        return result;
    const Context *context = context_or_current(handle);
    if (context == NULL)
        return leave(INVALID_CONTEXT);
    *device = context->device;
    return leave(SUCCESS);
}

/* The flags of the current context. */
API Result cuCtxGetFlags(unsigned *flags) {
    Result result = enter("cuCtxGetFlags");
    if (result != SUCCESS)
        return result;
    if (top() == NULL)
        return leave(INVALID_CONTEXT);
    *flags = top()->flags;
    return leave(SUCCESS);
}

/* A number that no two contexts share. */
API Result cuCtxGetId(void *handle, unsigned long long *id) {
    Result result = enter("cuCtxGetId");
    if (result != SUCCESS)
        return result;
    const Context *context = context_or_current(handle);
    if (context == NULL)
        return leave(INVALID_CONTEXT);
    *id = context->id;
    return leave(SUCCESS);
}

/* The API version that the context was made for. */
API Result cuCtxGetApiVersion(void *handle, unsigned *version) {
    Result result = enter("cuCtxGetApiVersion");
    if (result != SUCCESS)
        return result;
    if (context_or_current(handle) == NULL)
        return leave(INVALID_CONTEXT);
    *version = API_VERSION;
    return leave(SUCCESS);
}

/* The priorities that a stream can have; a lower number comes first. */
API Result cuCtxGetStreamPriorityRange(int *least, int *greatest) {
    Result result = enter("cuCtxGetStreamPriorityRange");
    if (result != SUCCESS)
        return result;
    if (top() == NULL)
        return leave(INVALID_CONTEXT);
    if (least != NULL)
        *least = 0;
    if (greatest != NULL)
        *greatest = -5;
    return leave(SUCCESS);
}

/* Wait for all work of a context; captures in it are invalidated, in every mode. */
static Result synchronize(Context *context) {
    Result result = context_usable(context);
    if (result == SUCCESS)
        result = capture_check_context(context);
    if (result == SUCCESS)
        result = capture_forbid_unsafe();
    return result == SUCCESS ? work_wait_context(context) : result;
}

/* Wait for all work of the current context. */
API Result cuCtxSynchronize(void) {
    Result result = enter("cuCtxSynchronize");
    if (result != SUCCESS)
        return result;
    return leave(top() != NULL ? synchronize(top()) : INVALID_CONTEXT);
}

/* Wait for all work of a context; NULL means the current one. */
API Result cuCtxSynchronize_v2(void *handle) {
    Result result = enter("cuCtxSynchronize");
    if (result != SUCCESS)
        return result;
    Context *context = context_or_current(handle);
    return leave(context != NULL ? synchronize(context) : INVALID_CONTEXT);
}

/* Make a context and make it current. */
static Result create(const char *function, Context **handle, unsigned flags, int device) {
    Result result = enter(function);
    if (result != SUCCESS)
        return result;
    if (!device_exists(device))
        return leave(INVALID_DEVICE);
    Context *context = allocate(sizeof *context);
    *context =
        (Context){.next = sim.contexts, .device = device, .alive = true, .flags = flags, .id = ++sim.next_id};
    sim.contexts = context;
    *handle = context;
    return leave(push(context));
}

/* Make a context and make it current. */
API Result cuCtxCreate_v2(Context **context, unsigned flags, int device) {
    return create("cuCtxCreate", context, flags, device);
}

/* Likewise; the affinity parameters are ignored. */
API Result cuCtxCreate_v3(Context **context, void *parameters, int count, unsigned flags, int device) {
    (void)parameters;
    (void)count;
    return create("cuCtxCreate", context, flags, device);
}

/* Likewise; the creation parameters are ignored. */
API Result cuCtxCreate_v4(Context **context, void *parameters, unsigned flags, int device) {
    (void)parameters;
    return create("cuCtxCreate", context, flags, device);
}

/* Destroy a context that was made by cuCtxCreate; its number is never used again. */
API Result cuCtxDestroy_v2(void *handle) {
    Result result = enter("cuCtxDestroy");
    if (result != SUCCESS)
        return result;
    Context *context = context_known(handle);
    if (context == NULL || context->primary)
        return leave(INVALID_CONTEXT);
    if (!context->alive)
        return leave(CONTEXT_IS_DESTROYED);
    context_tear_down(context);
    if (top() == context)
        thread_self()->depth--;
    return leave(SUCCESS);
}

/* Let the event stand for all work submitted to the context so far; captures in it are invalidated. */
API Result cuCtxRecordEvent(void *handle, Handle *event_handle) {
    Result result = enter("cuCtxRecordEvent");
    if (result != SUCCESS)
        return result;
    Context *context = context_or_current(handle);
    Event *event = handle_object(event_handle, HANDLE_EVENT);
    if (context == NULL || event == NULL)
        return leave(context == NULL ? INVALID_CONTEXT : INVALID_HANDLE);
    if (event->context != context)
        return leave(INVALID_HANDLE);
    result = context_usable(context);
    if (result == SUCCESS)
        result = capture_check_context(context);
    if (result != SUCCESS)
        return leave(result);
    record_release(event->record);
    event->record = record_new();
    event->record->barrier = context;
    event->record->seq = sim.submitted;
    event->capture_id = 0;
    return leave(SUCCESS);
}

/* Simulated devices have no limits to set. */
API Result cuCtxGetLimit(size_t *value, int limit) {
    (void)limit;
    Result result = enter("cuCtxGetLimit");
    if (result != SUCCESS)
        return result;
    *value = 0;
    return leave(top() != NULL ? UNSUPPORTED_LIMIT : INVALID_CONTEXT);
}

/* Simulated devices cannot reach each other's memory. */
API Result cuCtxEnablePeerAccess(void *peer, unsigned flags) {
    (void)peer;
    (void)flags;
    Result result = enter("cuCtxEnablePeerAccess");
    return result != SUCCESS ? result : leave(PEER_ACCESS_UNSUPPORTED);
}

ALIAS("cuDevicePrimaryCtxRelease_v2") Result cuDevicePrimaryCtxRelease(int device);
ALIAS("cuDevicePrimaryCtxReset_v2") Result cuDevicePrimaryCtxReset(int device);
ALIAS("cuDevicePrimaryCtxSetFlags_v2") Result cuDevicePrimaryCtxSetFlags(int device, unsigned flags);
ALIAS("cuCtxPushCurrent_v2") Result cuCtxPushCurrent(void *handle);
ALIAS("cuCtxPopCurrent_v2") Result cuCtxPopCurrent(Context **context);
ALIAS("cuCtxDestroy_v2") Result cuCtxDestroy(void *handle);
