/* Simulated work: what is queued on streams, when it may run, and waiting for it.
 *
 * An operation runs in the thread that makes it runnable, at once, unless its stream is held, it waits for an
 * event, or the legacy stream's ordering holds it back. Numbers (`seq`) give the order of submission.
 */
#include "sim.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { CHUNK = 1 << 16 };

/* A new operation; the caller fills it in. */
Op *op_new(OpKind kind) {
    Op *op = allocate(sizeof *op);
    op->kind = kind;
    return op;
}

/* The same operation again, for the launch of a graph. */
Op *op_copy(const Op *op) {
    Op *copy = allocate(sizeof *copy);
    *copy = *op;
    copy->next = NULL;
    copy->staged = NULL;
    references_share(copy->owned);
    if (op->child != NULL) {
        copy->child = graph_clone(op->child);
        copy->child->embedded = true;
    }
    return copy;
}

/* Forget an operation that ran or never will. */
void op_free(Op *op) {
    record_release(op->record);
    references_drop(op->owned);
    if (op->child != NULL)
        graph_destroy(op->child);
    free(op->staged);
    free(op);
}

/* Forget a list of operations. */
void ops_free(Op *op) {
    while (op != NULL) {
        Op *following = op->next;
        op_free(op);
        op = following;
    }
}

/* A record that is not done yet. */
Record *record_new(void) {
    Record *record = allocate(sizeof *record);
    record->references = 1;
    return record;
}

/* One more user of the record. */
Record *record_share(Record *record) {
    if (record != NULL)
        record->references++;
    return record;
}

/* One user less; the last one frees it. */
void record_release(Record *record) {
    if (record != NULL && --record->references == 0)
        free(record);
}

/* Whether all that the record stands for is done; no record stands for nothing. */
bool record_done(const Record *record) {
    if (record == NULL || record->done)
        return true;
    return record->barrier != NULL && !work_on_context(record->barrier, record->seq);
}

/* Whether the stream orders itself with the legacy stream. */
static bool is_blocking(const Stream *stream) {
    return stream->role != LEGACY && (stream->flags & STREAM_NON_BLOCKING) == 0;
}

/* Whether an earlier operation of the context's legacy stream, or before one of its own, comes first. */
static bool legacy_order_permits(const Stream *stream) {
    if (is_blocking(stream)) {
        const Stream *legacy = stream->context->legacy;
        return legacy == NULL || legacy->head == NULL || legacy->head->seq > stream->head->seq;
    }
    if (stream->role != LEGACY)
        return true;
    for (const Stream *other = sim.streams; other != NULL; other = other->next)
        if (other->context == stream->context && is_blocking(other) && other->head != NULL &&
            other->head->seq < stream->head->seq)
            return false;
    return true;
}

/* Whether the stream's first operation may run now. */
static bool can_run(const Stream *stream) {
    if (stream->head == NULL || stream->held || stream->running)
        return false;
    if (stream->head->kind == OP_WAIT && !record_done(stream->head->record))
        return false;
    return legacy_order_permits(stream);
}

/* Read every byte; false if one cannot be read. */
static bool read_all(const Span *span) {
    static unsigned char bytes[CHUNK];
    for (size_t at = 0; at < span->nbytes; at += CHUNK) {
        size_t part = span->nbytes - at < CHUNK ? span->nbytes - at : CHUNK;
        if (!host_read(bytes, span->start + at, part))
            return false;
    }
    return true;
}

/* Fill every byte with the repeated value; false if one cannot be written. */
static bool fill_all(const Op *op) {
    static unsigned char bytes[CHUNK];
    size_t pattern = op->to.nbytes < CHUNK ? op->to.nbytes : CHUNK;
    for (size_t i = 0; i < pattern; i++)
        bytes[i] = (unsigned char)(op->value >> (8 * (i % op->width)));
    for (size_t at = 0; at < op->to.nbytes; at += CHUNK) {
        size_t part = op->to.nbytes - at < CHUNK ? op->to.nbytes - at : CHUNK;
        if (!host_write(op->to.start + at, bytes, part))
            return false;
    }
    return true;
}

/* Copy every byte; false if one cannot be read or written. */
static bool copy_all(const Op *op) {
    static unsigned char bytes[CHUNK];
    if (op->staged != NULL)
        return host_write(op->to.start, op->staged, op->to.nbytes);
    for (size_t at = 0; at < op->to.nbytes; at += CHUNK) {
        size_t part = op->to.nbytes - at < CHUNK ? op->to.nbytes - at : CHUNK;
        if (!host_read(bytes, op->from.start + at, part) || !host_write(op->to.start + at, bytes, part))
            return false;
    }
    return true;
}

/* The record is done now. */
static void complete(Record *record) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    record->nanoseconds = (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
    record->done = true;
}

/* Do what the operation says; false on an illegal address. */
static bool perform(const Op *op) {
    switch (op->kind) {
    case OP_READ:
        return span_reachable(&op->from, false) && read_all(&op->from);
    case OP_FILL:
        return span_reachable(&op->to, true) && fill_all(op);
    case OP_COPY:
        return (op->staged != NULL || span_reachable(&op->from, false)) && span_reachable(&op->to, true) &&
               copy_all(op);
    default:
        return true;
    }
}

/* Call a host function without the lock; driver calls from inside it are refused. */
static void call_out(Stream *stream, const Op *op) {
    Thread *thread = thread_self();
    stream->running = true;
    thread->in_callback = true;
    unlock();
    if (op->call != NULL)
        op->call(op->argument);
    else
        op->notify(stream->number, SUCCESS, op->argument);
    lock();
    thread->in_callback = false;
    stream->running = false;
}

/* Run the stream's first operation; in a context with an error nothing happens any more. */
static void run_first(Stream *stream) {
    Op *op = stream->head;
    Context *context = stream->context;
    if (context->error == SUCCESS && op->kind == OP_CALL)
        call_out(stream, op);
    else if (context->error == SUCCESS && !perform(op))
        context->error = ILLEGAL_ADDRESS;
    if (op->kind == OP_RECORD)
        complete(op->record);
    stream->head = op->next;
    if (stream->head == NULL)
        stream->tail = NULL;
    op_free(op);
    changed();
    stream_collect(stream);
}

/* A stream whose first operation may run now, or NULL; the earliest submitted one, so that runs are
 * repeatable. */
static Stream *next_runnable(void) {
    Stream *best = NULL;
    for (Stream *stream = sim.streams; stream != NULL; stream = stream->next)
        if (can_run(stream) && (best == NULL || stream->head->seq < best->head->seq))
            best = stream;
    return best;
}

/* Run all that can run. */
void work_run(void) {
    if (thread_self()->in_callback)
        return;
    Stream *stream;
    while ((stream = next_runnable()) != NULL)
        run_first(stream);
}

/* Queue an operation and run what can run. */
void work_enqueue(Stream *stream, Op *op) {
    op->seq = ++sim.submitted;
    op->next = NULL;
    if (stream->tail != NULL)
        stream->tail->next = op;
    else
        stream->head = op;
    stream->tail = op;
    work_run();
}

/* Whether the operation is one that a waiting unregister holds up. */
static bool is_launch(const Op *op) {
    return op->kind != OP_RECORD && op->kind != OP_WAIT && op->kind != OP_EMPTY && op->kind != OP_CHILD;
}

/* Wait, where so configured, until no thread waits in an unregister or a free. */
static void wait_for_launch(Stream *stream) {
    stream->users++;
    while (sim.settings.unregister_blocks_launches && sim.exclusive > 0)
        wait_for_change();
    stream->users--;
}

/* Submit an operation: into the stream's graph while it captures, else onto its queue. Takes the operation.
 */
Result work_submit(Stream *stream, Op *op) {
    if (is_launch(op))
        wait_for_launch(stream);
    Result result = context_usable(stream->context);
    if (result == SUCCESS)
        result = capture_check_submit(stream);
    if (result != SUCCESS) {
        op_free(op);
    } else if (stream->capture != NULL) {
        graph_append(stream->capture->graph, op);
        stream->unjoined = stream->unjoined_work = stream != stream->capture->origin;
    } else {
        work_enqueue(stream, op);
    }
    return result;
}

/* Drop what is queued, unexecuted; whoever waits for it goes on. */
void work_discard(Stream *stream) {
    while (stream->head != NULL && !stream->running) {
        Op *op = stream->head;
        stream->head = op->next;
        if (op->kind == OP_RECORD)
            complete(op->record);
        op_free(op);
    }
    if (stream->head == NULL)
        stream->tail = NULL;
    stream->held = false;
    changed();
}

/* Whether queued work touches any of these bytes. */
bool work_touches(const void *start, size_t nbytes) {
    for (const Stream *stream = sim.streams; stream != NULL; stream = stream->next)
        for (const Op *op = stream->head; op != NULL; op = op->next)
            if (span_touches(&op->to, start, nbytes) ||
                (op->staged == NULL && span_touches(&op->from, start, nbytes)))
                return true;
    return false;
}

/* Whether the stream's own queue has unfinished work submitted up to `seq`. */
static bool queued(const Stream *stream, uint64_t seq) {
    return stream->head != NULL && stream->head->seq <= seq;
}

/* Whether the stream has unfinished work submitted up to `seq`; the legacy stream answers for the blocking
 * ones. */
bool work_on_stream(const Stream *stream, uint64_t seq) {
    if (queued(stream, seq) || stream->role != LEGACY)
        return queued(stream, seq);
    for (const Stream *other = sim.streams; other != NULL; other = other->next)
        if (other->context == stream->context && is_blocking(other) && queued(other, seq))
            return true;
    return false;
}

/* Whether the context has unfinished work submitted up to `seq`, also on destroyed streams. */
bool work_on_context(const Context *context, uint64_t seq) {
    for (const Stream *stream = sim.streams; stream != NULL; stream = stream->next)
        if (stream->context == context && queued(stream, seq))
            return true;
    return false;
}

/* Wait for what was submitted to the stream before this call. */
Result work_wait_stream(Stream *stream) {
    const Context *context = stream->context;
    const uint64_t seq = sim.submitted;
    stream->users++;
    while (context->error == SUCCESS && work_on_stream(stream, seq))
        wait_for_change();
    stream->users--;
    stream_collect(stream);
    return context->error;
}

/* Wait for what was submitted to the context before this call. */
Result work_wait_context(Context *context) {
    const uint64_t seq = sim.submitted;
    while (context->error == SUCCESS && work_on_context(context, seq))
        wait_for_change();
    return context->error;
}
