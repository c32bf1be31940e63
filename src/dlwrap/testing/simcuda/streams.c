/* Streams: their handles, the two default ones, and what can be asked of them. */
#include "sim.h"

#include <stdlib.h>

static Handle *const LEGACY_HANDLE = (Handle *)1;
static Handle *const PER_THREAD_HANDLE = (Handle *)2;

/* What the handle means where 0 is the calling thread's own default stream. */
Handle *per_thread(Handle *stream) {
    return stream == NULL ? PER_THREAD_HANDLE : stream;
}

/* Know a new stream. */
static Stream *stream_new(Context *context, StreamRole role, unsigned flags) {
    Stream *stream = allocate(sizeof *stream);
    stream->next = sim.streams;
    stream->context = context;
    stream->role = role;
    stream->flags = flags;
    stream->id = ++sim.next_id;
    sim.streams = stream;
    return stream;
}

/* The context's legacy stream, or the calling thread's default stream in it. */
Stream *stream_special(Context *context, StreamRole role) {
    const uint64_t thread = thread_self()->id;
    if (role == LEGACY) {
        if (context->legacy == NULL) {
            context->legacy = stream_new(context, LEGACY, 0);
            context->legacy->number = LEGACY_HANDLE;
        }
        return context->legacy;
    }
    for (Stream *stream = sim.streams; stream != NULL; stream = stream->next)
        if (stream->role == PER_THREAD && stream->thread == thread && stream->context == context)
            return stream;
    Stream *stream = stream_new(context, PER_THREAD, 0);
    stream->number = PER_THREAD_HANDLE;
    stream->thread = thread;
    return stream;
}

/* The stream that the handle names here and now; touching a dead handle aborts, or is INVALID_CONTEXT. */
Result stream_named(Handle *handle, Stream **stream) {
    Context *context;
    if (handle == NULL || handle == LEGACY_HANDLE || handle == PER_THREAD_HANDLE) {
        Result result = context_current(&context);
        if (result == SUCCESS)
            *stream = stream_special(context, handle == PER_THREAD_HANDLE ? PER_THREAD : LEGACY);
        return result;
    }
    *stream = handle_object(handle, HANDLE_STREAM);
    if (*stream != NULL)
        return SUCCESS;
    if (sim.settings.abort_on_dead_handle)
        misuse("touched stream handle %p, which is destroyed or never was one", (void *)handle);
    return INVALID_CONTEXT;
}

/* Make a stream; NULL if there are too many. */
Handle *stream_create(Context *context, unsigned flags, int priority) {
    Stream *stream = stream_new(context, ORDINARY, flags);
    stream->priority = priority;
    Handle *handle = handle_new(HANDLE_STREAM, stream);
    stream->handle = handle;
    stream->number = handle;
    stream_collect(stream);
    return handle;
}

/* Forget a destroyed stream once its work is done and nobody waits for it. */
void stream_collect(Stream *stream) {
    bool needed = stream->handle != NULL || stream->role != ORDINARY || stream->users > 0;
    if (needed || stream->head != NULL || stream->running)
        return;
    Stream **link = &sim.streams;
    while (*link != stream)
        link = &(*link)->next;
    *link = stream->next;
    free(stream);
}

/* Make the handle dead; the work goes on. Streams without a handle end with their context. */
void stream_destroy(Stream *stream) {
    capture_abandon(stream);
    if (stream->handle != NULL)
        handle_drop(stream->handle);
    stream->handle = NULL;
    stream->role = ORDINARY;
    stream_collect(stream);
}

/* Make a stream in the current context. */
static Result create(const char *function, Handle **handle, unsigned flags, int priority) {
    Result result = enter(function);
    if (result != SUCCESS)
        return result;
    Context *context;
    result = context_current(&context);
    if (result != SUCCESS)
        return leave(result);
    if (handle == NULL || flags > STREAM_NON_BLOCKING)
        return leave(INVALID_VALUE);
    *handle = stream_create(context, flags, priority);
    return leave(*handle != NULL ? SUCCESS : OUT_OF_MEMORY);
}

/* Make a stream. */
API Result cuStreamCreate(Handle **handle, unsigned flags) {
    return create("cuStreamCreate", handle, flags, 0);
}

/* Make a stream; the priority is only remembered. */
API Result cuStreamCreateWithPriority(Handle **handle, unsigned flags, int priority) {
    int clamped = priority > 0 ? 0 : priority < -5 ? -5 : priority;
    return create("cuStreamCreateWithPriority", handle, flags, clamped);
}

/* Destroy a stream: its work goes on, its number may be the next stream's. */
API Result cuStreamDestroy_v2(Handle *handle) {
    Result result = enter("cuStreamDestroy");
    if (result != SUCCESS)
        return result;
    if (handle == NULL || handle == LEGACY_HANDLE || handle == PER_THREAD_HANDLE)
        return leave(INVALID_HANDLE);
    Stream *stream;
    result = stream_named(handle, &stream);
    if (result == SUCCESS)
        stream_destroy(stream);
    return leave(result);
}

/* Enter a function and find the stream it is about. */
static Result enter_with(const char *function, Handle *handle, Stream **stream) {
    Result result = enter(function);
    if (result != SUCCESS)
        return result;
    result = stream_named(handle, stream);
    return result == SUCCESS ? SUCCESS : leave(result);
}

/* SUCCESS if everything submitted so far is done. */
API Result cuStreamQuery(Handle *handle) {
    Stream *stream;
    Result result = enter_with("cuStreamQuery", handle, &stream);
    if (result != SUCCESS)
        return result;
    result = context_usable(stream->context);
    if (result == SUCCESS)
        result = capture_check_wait(stream);
    if (result == SUCCESS && work_on_stream(stream, UINT64_MAX))
        result = NOT_READY;
    return leave(result);
}

/* Wait for everything submitted before this call. */
API Result cuStreamSynchronize(Handle *handle) {
    Stream *stream;
    Result result = enter_with("cuStreamSynchronize", handle, &stream);
    if (result != SUCCESS)
        return result;
    result = context_usable(stream->context);
    if (result == SUCCESS)
        result = capture_check_wait(stream);
    return leave(result == SUCCESS ? work_wait_stream(stream) : result);
}

/* The context that the stream was made in. */
API Result cuStreamGetCtx(Handle *handle, Context **context) {
    Stream *stream;
    Result result = enter_with("cuStreamGetCtx", handle, &stream);
    if (result != SUCCESS)
        return result;
    *context = stream->context;
    return leave(SUCCESS);
}

/* Likewise; simulated streams belong to no green context. */
API Result cuStreamGetCtx_v2(Handle *handle, Context **context, void **green) {
    if (green != NULL)
        *green = NULL;
    return cuStreamGetCtx(handle, context);
}

/* The green context that the stream was made in: simulated streams have none. */
API Result cuStreamGetGreenCtx(Handle *handle, void **green) {
    Stream *stream;
    Result result = enter_with("cuStreamGetGreenCtx", handle, &stream);
    if (result != SUCCESS)
        return result;
    *green = NULL;
    return leave(SUCCESS);
}

/* The device of the stream. */
API Result cuStreamGetDevice(Handle *handle, int *device) {
    Stream *stream;
    Result result = enter_with("cuStreamGetDevice", handle, &stream);
    if (result != SUCCESS)
        return result;
    *device = stream->context->device;
    return leave(SUCCESS);
}

/* The flags that the stream was made with. */
API Result cuStreamGetFlags(Handle *handle, unsigned *flags) {
    Stream *stream;
    Result result = enter_with("cuStreamGetFlags", handle, &stream);
    if (result != SUCCESS)
        return result;
    *flags = stream->flags;
    return leave(SUCCESS);
}

/* A number that no two streams share. */
API Result cuStreamGetId(Handle *handle, unsigned long long *id) {
    Stream *stream;
    Result result = enter_with("cuStreamGetId", handle, &stream);
    if (result != SUCCESS)
        return result;
    *id = stream->id;
    return leave(SUCCESS);
}

/* The stream's priority. */
API Result cuStreamGetPriority(Handle *handle, int *priority) {
    Stream *stream;
    Result result = enter_with("cuStreamGetPriority", handle, &stream);
    if (result != SUCCESS)
        return result;
    *priority = stream->priority;
    return leave(SUCCESS);
}

/* Call a host function, in whichever thread makes it runnable, after the work submitted so far. */
API Result cuLaunchHostFunc(Handle *handle, HostFunction call, void *argument) {
    Stream *stream;
    Result result = enter_with("cuLaunchHostFunc", handle, &stream);
    if (result != SUCCESS)
        return result;
    Op *op = op_new(OP_CALL);
    op->call = call;
    op->argument = argument;
    return leave(work_submit(stream, op));
}

/* Likewise, and tell the function how the stream is doing. */
API Result cuStreamAddCallback(Handle *handle, void (*notify)(Handle *, Result, void *), void *argument,
                               unsigned flags) {
    Stream *stream;
    Result result = enter_with("cuStreamAddCallback", handle, &stream);
    if (result != SUCCESS)
        return result;
    if (stream->capture != NULL || flags != 0)
        return leave(flags != 0 ? INVALID_VALUE : CAPTURE_UNSUPPORTED);
    Op *op = op_new(OP_CALL);
    op->notify = notify;
    op->argument = argument;
    return leave(work_submit(stream, op));
}

ALIAS("cuStreamDestroy_v2") Result cuStreamDestroy(Handle *handle);

/* The per-thread-default-stream forms: handle 0 is the calling thread's own stream. */
API Result cuStreamQuery_ptsz(Handle *handle) {
    return cuStreamQuery(per_thread(handle));
}

API Result cuStreamSynchronize_ptsz(Handle *handle) {
    return cuStreamSynchronize(per_thread(handle));
}

API Result cuStreamGetCtx_ptsz(Handle *handle, Context **context) {
    return cuStreamGetCtx(per_thread(handle), context);
}

API Result cuStreamGetCtx_v2_ptsz(Handle *handle, Context **context, void **green) {
    return cuStreamGetCtx_v2(per_thread(handle), context, green);
}

API Result cuStreamGetDevice_ptsz(Handle *handle, int *device) {
    return cuStreamGetDevice(per_thread(handle), device);
}

API Result cuStreamGetFlags_ptsz(Handle *handle, unsigned *flags) {
    return cuStreamGetFlags(per_thread(handle), flags);
}

API Result cuStreamGetId_ptsz(Handle *handle, unsigned long long *id) {
    return cuStreamGetId(per_thread(handle), id);
}

API Result cuStreamGetPriority_ptsz(Handle *handle, int *priority) {
    return cuStreamGetPriority(per_thread(handle), priority);
}

API Result cuLaunchHostFunc_ptsz(Handle *handle, HostFunction call, void *argument) {
    return cuLaunchHostFunc(per_thread(handle), call, argument);
}

API Result cuStreamAddCallback_ptsz(Handle *handle, void (*notify)(Handle *, Result, void *), void *argument,
                                    unsigned flags) {
    return cuStreamAddCallback(per_thread(handle), notify, argument, flags);
}
