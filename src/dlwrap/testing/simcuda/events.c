/* Events. One that was never recorded is complete. */
#include "sim.h"

#include <stdlib.h>

/* The event that the handle names; touching a dead handle aborts, or is INVALID_HANDLE. */
static Result event_named(Handle *handle, Event **event) {
    *event = handle_object(handle, HANDLE_EVENT);
    if (*event != NULL)
        return SUCCESS;
    if (handle != NULL && sim.settings.abort_on_dead_handle)
        misuse("touched event handle %p, which is destroyed or never was one", (void *)handle);
    return INVALID_HANDLE;
}

/* Enter a function and find the event it is about. */
static Result enter_with(const char *function, Handle *handle, Event **event) {
    Result result = enter(function);
    if (result != SUCCESS)
        return result;
    result = event_named(handle, event);
    return result == SUCCESS ? SUCCESS : leave(result);
}

/* Make an event in the current context. */
API Result cuEventCreate(Handle **handle, unsigned flags) {
    Result result = enter("cuEventCreate");
    if (result != SUCCESS)
        return result;
    Context *context;
    result = context_current(&context);
    if (result != SUCCESS)
        return leave(result);
    Event *event = allocate(sizeof *event);
    *event = (Event){.context = context, .flags = flags, .handle = handle_new(HANDLE_EVENT, event)};
    *handle = event->handle;
    if (event->handle == NULL)
        free(event);
    return leave(*handle != NULL ? SUCCESS : OUT_OF_MEMORY);
}

/* Destroy an event; what waits for it still does. */
API Result cuEventDestroy_v2(Handle *handle) {
    Event *event;
    Result result = enter_with("cuEventDestroy", handle, &event);
    if (result != SUCCESS)
        return result;
    handle_drop(event->handle);
    record_release(event->record);
    free(event);
    return leave(SUCCESS);
}

/* While the stream captures, the event belongs to that capture and no node is added. */
static void record_captured(Event *event, Stream *stream) {
    record_release(event->record);
    event->record = NULL;
    event->capture_id = stream->capture->id;
    event->captured_from = stream->id;
}

/* Wait until the stream has room for one more event with blocking sync. */
static void wait_for_room(const Stream *stream) {
    for (;;) {
        unsigned pending = 0;
        for (const Op *op = stream->head; op != NULL; op = op->next)
            pending += op->kind == OP_RECORD && op->record->blocking_sync;
        if (pending < MAX_BLOCKING_SYNC_EVENTS)
            return;
        wait_for_change();
    }
}

/* Put a record on the stream's queue. */
static void record_queued(Event *event, Stream *stream) {
    bool blocking_sync = (event->flags & EVENT_BLOCKING_SYNC) != 0;
    if (blocking_sync)
        wait_for_room(stream);
    record_release(event->record);
    event->record = record_new();
    event->record->blocking_sync = blocking_sync;
    event->capture_id = 0;
    Op *op = op_new(OP_RECORD);
    op->record = record_share(event->record);
    work_enqueue(stream, op);
}

/* Let the event stand for what was submitted to the stream so far. */
static Result record(const char *function, Handle *handle, Handle *stream_handle) {
    Event *event;
    Result result = enter_with(function, handle, &event);
    if (result != SUCCESS)
        return result;
    Stream *stream;
    result = stream_named(stream_handle, &stream);
    if (result == SUCCESS)
        result = context_usable(stream->context);
    if (result == SUCCESS && event->context != stream->context)
        result = INVALID_HANDLE;
    if (result == SUCCESS)
        result = capture_check_submit(stream);
    if (result != SUCCESS)
        return leave(result);
    if (stream->capture != NULL)
        record_captured(event, stream);
    else
        record_queued(event, stream);
    return leave(SUCCESS);
}

/* Record the event on a stream. */
API Result cuEventRecord(Handle *event, Handle *stream) {
    return record("cuEventRecord", event, stream);
}

/* Likewise; the flags only matter to real graphs. */
API Result cuEventRecordWithFlags(Handle *event, Handle *stream, unsigned flags) {
    (void)flags;
    return record("cuEventRecordWithFlags", event, stream);
}

/* Why the event cannot be waited for: captured (which breaks an open capture), or some capture forbids it. */
static Result check_wait(const Event *event) {
    if (event->capture_id != 0) {
        Capture *capture = capture_by_id(event->capture_id);
        if (capture == NULL)
            return INVALID_VALUE;
        capture_invalidate(capture);
        return CAPTURED_EVENT;
    }
    Result result = event->context->error;
    return result == SUCCESS ? capture_forbid_unsafe() : result;
}

/* SUCCESS if what the event stands for is done. */
API Result cuEventQuery(Handle *handle) {
    Event *event;
    Result result = enter_with("cuEventQuery", handle, &event);
    if (result != SUCCESS)
        return result;
    result = check_wait(event);
    if (result == SUCCESS && !record_done(event->record))
        result = NOT_READY;
    return leave(result);
}

/* Wait for what the event stands for now; a later record does not matter. */
API Result cuEventSynchronize(Handle *handle) {
    Event *event;
    Result result = enter_with("cuEventSynchronize", handle, &event);
    if (result != SUCCESS)
        return result;
    result = check_wait(event);
    if (result != SUCCESS)
        return leave(result);
    const Context *context = event->context;
    Record *awaited = record_share(event->record);
    while (context->error == SUCCESS && !record_done(awaited))
        wait_for_change();
    record_release(awaited);
    return leave(context->error);
}

/* Milliseconds between two recorded events. */
API Result cuEventElapsedTime_v2(float *milliseconds, Handle *first_handle, Handle *last_handle) {
    Event *first;
    Result result = enter_with("cuEventElapsedTime", first_handle, &first);
    if (result != SUCCESS)
        return result;
    Event *last;
    result = event_named(last_handle, &last);
    if (result != SUCCESS)
        return leave(result);
    if (first->record == NULL || last->record == NULL ||
        ((first->flags | last->flags) & EVENT_DISABLE_TIMING) != 0)
        return leave(INVALID_HANDLE);
    if (!record_done(first->record) || !record_done(last->record))
        return leave(NOT_READY);
    *milliseconds = (float)((double)(int64_t)(last->record->nanoseconds - first->record->nanoseconds) / 1e6);
    return leave(SUCCESS);
}

/* A capturing stream waits for an event: it must be of the same capture. */
static Result wait_in_capture(Stream *stream, const Event *event) {
    if (event->capture_id != stream->capture->id) {
        bool other = capture_by_id(event->capture_id) != NULL;
        capture_invalidate(stream->capture);
        return other ? CAPTURE_MERGE : CAPTURE_ISOLATION;
    }
    if (event->captured_from != stream->id)
        capture_joined(event->captured_from);
    return SUCCESS;
}

/* Let the stream wait for the event; a captured event takes the stream into its capture. */
static Result wait_event(Stream *stream, const Event *event) {
    Result result = context_usable(stream->context);
    if (result == SUCCESS)
        result = capture_check_submit(stream);
    if (result != SUCCESS)
        return result;
    if (stream->capture != NULL)
        return wait_in_capture(stream, event);
    if (event->capture_id != 0) {
        Capture *capture = capture_by_id(event->capture_id);
        if (capture == NULL || capture->status == STATUS_INVALIDATED)
            return capture == NULL ? CAPTURED_EVENT : CAPTURE_INVALIDATED;
        capture_join(stream, capture);
        return SUCCESS;
    }
    Op *op = op_new(OP_WAIT);
    op->record = record_share(event->record);
    work_enqueue(stream, op);
    return SUCCESS;
}

/* Let the work submitted to the stream after this wait for the event. */
API Result cuStreamWaitEvent(Handle *stream_handle, Handle *event_handle, unsigned flags) {
    (void)flags;
    Event *event;
    Result result = enter_with("cuStreamWaitEvent", event_handle, &event);
    if (result != SUCCESS)
        return result;
    Stream *stream;
    result = stream_named(stream_handle, &stream);
    return leave(result == SUCCESS ? wait_event(stream, event) : result);
}

ALIAS("cuEventDestroy_v2") Result cuEventDestroy(Handle *handle);
ALIAS("cuEventElapsedTime_v2") Result cuEventElapsedTime(float *milliseconds, Handle *first, Handle *last);

/* The per-thread-default-stream forms: handle 0 is the calling thread's own stream. */
API Result cuEventRecord_ptsz(Handle *event, Handle *stream) {
    return cuEventRecord(event, per_thread(stream));
}

API Result cuEventRecordWithFlags_ptsz(Handle *event, Handle *stream, unsigned flags) {
    return cuEventRecordWithFlags(event, per_thread(stream), flags);
}

API Result cuStreamWaitEvent_ptsz(Handle *stream, Handle *event, unsigned flags) {
    return cuStreamWaitEvent(per_thread(stream), event, flags);
}
