/* Stream capture: which calls a capture forbids, to whom, and which of them break it.
 *
 * A forbidden call does not only fail: it invalidates the capture, and everything the capturing program does
 * after it fails too, until cuStreamEndCapture.
 */
#include "sim.h"

#include <stdlib.h>

enum { SET_DEPENDENCIES = 1 };

/* The open capture of that number, or NULL. */
Capture *capture_by_id(uint64_t id) {
    for (Capture *capture = sim.captures; capture != NULL; capture = capture->next)
        if (capture->id == id)
            return capture;
    return NULL;
}

/* The capture can no longer give a graph. */
void capture_invalidate(Capture *capture) {
    capture->status = STATUS_INVALIDATED;
}

/* Whether the capture forbids the calling thread what might wait, as the thread's own mode says. */
static bool forbids(const Capture *capture) {
    const Thread *thread = thread_self();
    if (thread->capture_mode == MODE_RELAXED || capture->mode == MODE_RELAXED)
        return false;
    if (capture->thread == thread->id)
        return true;
    return thread->capture_mode == MODE_GLOBAL && capture->mode == MODE_GLOBAL;
}

/* The check of every call that might wait or change memory; it breaks the captures that forbid it. */
Result capture_forbid_unsafe(void) {
    Result result = SUCCESS;
    for (Capture *capture = sim.captures; capture != NULL; capture = capture->next) {
        if (!forbids(capture))
            continue;
        if (capture->status == STATUS_ACTIVE)
            result = CAPTURE_UNSUPPORTED;
        else if (result == SUCCESS)
            result = CAPTURE_INVALIDATED;
        capture_invalidate(capture);
    }
    return result;
}

/* A blocking stream of the context that captures, or NULL. */
static Stream *capturing_blocking_stream(const Context *context) {
    for (Stream *stream = sim.streams; stream != NULL; stream = stream->next)
        if (stream->context == context && stream->capture != NULL &&
            (stream->flags & STREAM_NON_BLOCKING) == 0)
            return stream;
    return NULL;
}

/* Any use of the legacy stream breaks the captures of blocking streams. */
static Result check_legacy(const Stream *stream) {
    if (stream->role != LEGACY || capturing_blocking_stream(stream->context) == NULL)
        return SUCCESS;
    for (Stream *other = sim.streams; other != NULL; other = other->next)
        if (other->context == stream->context && other->capture != NULL &&
            (other->flags & STREAM_NON_BLOCKING) == 0)
            capture_invalidate(other->capture);
    return CAPTURE_IMPLICIT;
}

/* Whether work can be submitted to the stream, or to its graph. */
Result capture_check_submit(Stream *stream) {
    if (stream->capture != NULL && stream->capture->status == STATUS_INVALIDATED)
        return CAPTURE_INVALIDATED;
    return check_legacy(stream);
}

/* Whether the stream can be queried or waited for; doing so to a capturing stream breaks it in every mode. */
Result capture_check_wait(Stream *stream) {
    if (stream->capture != NULL) {
        bool was_active = stream->capture->status == STATUS_ACTIVE;
        capture_invalidate(stream->capture);
        return was_active ? CAPTURE_UNSUPPORTED : CAPTURE_INVALIDATED;
    }
    Result result = check_legacy(stream);
    return result == SUCCESS ? capture_forbid_unsafe() : result;
}

/* Whether the whole context can be waited for; every capture in it breaks, in every mode. */
Result capture_check_context(const Context *context) {
    Result result = SUCCESS;
    for (Stream *stream = sim.streams; stream != NULL; stream = stream->next) {
        if (stream->context != context || stream->capture == NULL)
            continue;
        capture_invalidate(stream->capture);
        result = CAPTURE_UNSUPPORTED;
    }
    return result;
}

/* The stream's work goes into the capture from now on. */
void capture_join(Stream *stream, Capture *capture) {
    stream->capture = capture;
    stream->unjoined = true;
}

/* Another stream of its capture waits for all that the stream did so far. */
void capture_joined(uint64_t stream_id) {
    for (Stream *stream = sim.streams; stream != NULL; stream = stream->next)
        if (stream->id == stream_id)
            stream->unjoined = stream->unjoined_work = false;
}

/* Begin a capture on the stream. */
Result capture_begin(Stream *stream, int mode) {
    if (mode < MODE_GLOBAL || mode > MODE_RELAXED)
        return INVALID_VALUE;
    if (stream->role == LEGACY)
        return CAPTURE_UNSUPPORTED;
    if (stream->capture != NULL)
        return ILLEGAL_STATE;
    Capture *capture = allocate(sizeof *capture);
    *capture = (Capture){
        .next = sim.captures,
        .origin = stream,
        .mode = mode,
        .status = STATUS_ACTIVE,
        .thread = thread_self()->id,
        .id = ++sim.next_id,
        .graph = graph_new(),
    };
    sim.captures = capture;
    stream->capture = capture;
    return SUCCESS;
}

/* Take the capture off its streams; the graph is the caller's. */
static Graph *detach(Capture *capture) {
    Graph *graph = capture->graph;
    for (Stream *stream = sim.streams; stream != NULL; stream = stream->next) {
        if (stream->capture != capture)
            continue;
        stream->capture = NULL;
        stream->unjoined = stream->unjoined_work = false;
    }
    Capture **link = &sim.captures;
    while (*link != capture)
        link = &(*link)->next;
    *link = capture->next;
    free(capture);
    return graph;
}

/* Whether some stream of the capture has work that the origin does not wait for. */
static bool has_unjoined(const Capture *capture) {
    for (const Stream *stream = sim.streams; stream != NULL; stream = stream->next)
        if (stream->capture == capture && stream->unjoined)
            return true;
    return capture->lost_work;
}

/* End the capture that began on the stream; *graph is NULL unless it succeeded. */
Result capture_end(Stream *stream, Graph **graph) {
    Capture *capture = stream->capture;
    *graph = NULL;
    if (capture == NULL)
        return ILLEGAL_STATE;
    if (capture->origin != stream)
        return CAPTURE_UNMATCHED;
    if (capture->mode != MODE_RELAXED && capture->thread != thread_self()->id)
        return CAPTURE_WRONG_THREAD;
    Result result = SUCCESS;
    if (capture->status == STATUS_INVALIDATED)
        result = CAPTURE_INVALIDATED;
    else if (has_unjoined(capture))
        result = CAPTURE_UNJOINED;
    Graph *captured = detach(capture);
    if (result == SUCCESS)
        *graph = captured;
    else
        graph_destroy(captured);
    return result;
}

/* A stream that is destroyed leaves its capture: it ends one that began there, and one that it took work into
 * without being joined can only end unjoined. */
void capture_abandon(Stream *stream) {
    Capture *capture = stream->capture;
    if (capture == NULL)
        return;
    if (capture->origin == stream)
        graph_destroy(detach(capture));
    else if (stream->unjoined_work)
        capture->lost_work = true;
    stream->capture = NULL;
}

/* What the stream's capture is at; asking the legacy stream is refused while a blocking stream captures. */
Result capture_status(const Stream *stream, int *status) {
    if (stream->role == LEGACY && capturing_blocking_stream(stream->context) != NULL)
        return CAPTURE_IMPLICIT;
    *status = stream->capture != NULL ? stream->capture->status : STATUS_NONE;
    return SUCCESS;
}

/* Enter a function and find the stream it is about. */
static Result enter_with(const char *function, Handle *handle, Stream **stream) {
    Result result = enter(function);
    if (result != SUCCESS)
        return result;
    result = stream_named(handle, stream);
    return result == SUCCESS ? SUCCESS : leave(result);
}

/* Begin to capture what is submitted to the stream. */
API Result cuStreamBeginCapture_v2(Handle *handle, int mode) {
    Stream *stream;
    Result result = enter_with("cuStreamBeginCapture", handle, &stream);
    if (result != SUCCESS)
        return result;
    result = context_usable(stream->context);
    return leave(result == SUCCESS ? capture_begin(stream, mode) : result);
}

/* End the capture and give its graph. */
API Result cuStreamEndCapture(Handle *handle, Graph **graph) {
    Stream *stream;
    Result result = enter_with("cuStreamEndCapture", handle, &stream);
    return result == SUCCESS ? leave(capture_end(stream, graph)) : result;
}

/* Whether the stream captures; never harms a capture. */
API Result cuStreamIsCapturing(Handle *handle, int *status) {
    Stream *stream;
    Result result = enter_with("cuStreamIsCapturing", handle, &stream);
    return result == SUCCESS ? leave(capture_status(stream, status)) : result;
}

/* The stream's capture, with the node that the next one will depend on. */
static Result capture_info(Handle *handle, int *status, uint64_t *id, Graph **graph, Op ***nodes,
                           size_t *count) {
    Stream *stream;
    Result result = enter_with("cuStreamGetCaptureInfo", handle, &stream);
    if (result != SUCCESS)
        return result;
    result = capture_status(stream, status);
    if (result != SUCCESS || *status != STATUS_ACTIVE)
        return leave(result);
    Capture *capture = stream->capture;
    capture->last_node = graph_last_node(capture->graph);
    if (id != NULL)
        *id = capture->id;
    if (graph != NULL)
        *graph = capture->graph;
    if (nodes != NULL)
        *nodes = &capture->last_node;
    if (count != NULL)
        *count = capture->last_node != NULL;
    return leave(SUCCESS);
}

/* The first form: status and number. */
API Result cuStreamGetCaptureInfo(Handle *handle, int *status, uint64_t *id) {
    return capture_info(handle, status, id, NULL, NULL, NULL);
}

/* The second form: also the graph and the next node's dependencies. */
API Result cuStreamGetCaptureInfo_v2(Handle *handle, int *status, uint64_t *id, Graph **graph, Op ***nodes,
                                     size_t *count) {
    return capture_info(handle, status, id, graph, nodes, count);
}

/* The third form: also what the edges carry, which is nothing here. */
API Result cuStreamGetCaptureInfo_v3(Handle *handle, int *status, uint64_t *id, Graph **graph, Op ***nodes,
                                     const void **edges, size_t *count) {
    static const unsigned char ordinary_edge[8];
    if (edges != NULL)
        *edges = ordinary_edge;
    return capture_info(handle, status, id, graph, nodes, count);
}

/* Say, or add, what the next node depends on. Nodes run in the order they were added, whatever is said. */
static Result update_dependencies(Handle *handle, Op *const *nodes, size_t count, unsigned flags) {
    Stream *stream;
    Result result = enter_with("cuStreamUpdateCaptureDependencies", handle, &stream);
    if (result != SUCCESS)
        return result;
    if (stream->capture == NULL)
        return leave(ILLEGAL_STATE);
    result = capture_check_submit(stream);
    if (result == SUCCESS && (flags > SET_DEPENDENCIES || !graph_has(stream->capture->graph, nodes, count)))
        result = INVALID_VALUE;
    return leave(result);
}

/* The first form: the nodes. */
API Result cuStreamUpdateCaptureDependencies(Handle *handle, Op *const *nodes, size_t count, unsigned flags) {
    return update_dependencies(handle, nodes, count, flags);
}

/* The second form: also what the edges carry, which is nothing here. */
API Result cuStreamUpdateCaptureDependencies_v2(Handle *handle, Op *const *nodes, const void *edges,
                                                size_t count, unsigned flags) {
    (void)edges;
    return update_dependencies(handle, nodes, count, flags);
}

/* Set how strict captures are to the calling thread, and give back how strict they were. */
API Result cuThreadExchangeStreamCaptureMode(int *mode) {
    Result result = enter("cuThreadExchangeStreamCaptureMode");
    if (result != SUCCESS)
        return result;
    if (mode == NULL || *mode < MODE_GLOBAL || *mode > MODE_RELAXED)
        return leave(INVALID_VALUE);
    Thread *thread = thread_self();
    int before = thread->capture_mode;
    thread->capture_mode = *mode;
    *mode = before;
    return leave(SUCCESS);
}

ALIAS("cuStreamBeginCapture_v2") Result cuStreamBeginCapture(Handle *handle, int mode);

/* The per-thread-default-stream forms: handle 0 is the calling thread's own stream. */
API Result cuStreamBeginCapture_v2_ptsz(Handle *handle, int mode) {
    return cuStreamBeginCapture_v2(per_thread(handle), mode);
}

API Result cuStreamEndCapture_ptsz(Handle *handle, Graph **graph) {
    return cuStreamEndCapture(per_thread(handle), graph);
}

API Result cuStreamIsCapturing_ptsz(Handle *handle, int *status) {
    return cuStreamIsCapturing(per_thread(handle), status);
}

API Result cuStreamGetCaptureInfo_ptsz(Handle *handle, int *status, uint64_t *id) {
    return cuStreamGetCaptureInfo(per_thread(handle), status, id);
}

API Result cuStreamGetCaptureInfo_v2_ptsz(Handle *handle, int *status, uint64_t *id, Graph **graph,
                                          Op ***nodes, size_t *count) {
    return cuStreamGetCaptureInfo_v2(per_thread(handle), status, id, graph, nodes, count);
}

API Result cuStreamGetCaptureInfo_v3_ptsz(Handle *handle, int *status, uint64_t *id, Graph **graph,
                                          Op ***nodes, const void **edges, size_t *count) {
    return cuStreamGetCaptureInfo_v3(per_thread(handle), status, id, graph, nodes, edges, count);
}

API Result cuStreamUpdateCaptureDependencies_ptsz(Handle *handle, Op *const *nodes, size_t count,
                                                  unsigned flags) {
    return cuStreamUpdateCaptureDependencies(per_thread(handle), nodes, count, flags);
}

API Result cuStreamUpdateCaptureDependencies_v2_ptsz(Handle *handle, Op *const *nodes, const void *edges,
                                                     size_t count, unsigned flags) {
    return cuStreamUpdateCaptureDependencies_v2(per_thread(handle), nodes, edges, count, flags);
}
