/* Copies and fills. A copy's two sides must each lie inside one registration or allocation, or outside all.
 */
#include "sim.h"

#include <stdlib.h>
#include <string.h>

typedef enum Side { HOST_SIDE, DEVICE_SIDE, EITHER_SIDE } Side;

/* The bytes in a range that must hold all of them; INVALID_VALUE if it ends before. */
static Result span_in(const Range *range, unsigned char *start, size_t nbytes, bool by_host, Span *span) {
    *span = (Span){start, nbytes, by_host, true};
    return start + nbytes <= range->start + range->nbytes ? SUCCESS : INVALID_VALUE;
}

/* The bytes at a host pointer, pageable or page-locked but not both. */
static Result host_side(Address pointer, size_t nbytes, Span *span) {
    unsigned char *start = (unsigned char *)(uintptr_t)pointer;
    const Range *range = range_overlapping(start, nbytes);
    *span = (Span){start, nbytes, true, true};
    if (range == NULL)
        return SUCCESS;
    return range->start <= start ? span_in(range, start, nbytes, true, span) : INVALID_VALUE;
}

/* The bytes at a device address. */
static Result device_side(Address address, size_t nbytes, Span *span) {
    const Range *range = range_by_device_address(address);
    if (range != NULL)
        return span_in(range, range->start + (address - range_device_address(range, range->start)), nbytes,
                       false, span);
    *span = span_from_device(address, nbytes);
    if (!span->resolved || range_overlapping(span->start, nbytes) != NULL)
        return INVALID_VALUE;
    return SUCCESS;
}

/* The bytes at a pointer that says itself where it points. */
static Result find_side(Side side, Address pointer, size_t nbytes, Span *span) {
    bool on_device = side == DEVICE_SIDE || (side == EITHER_SIDE && range_by_device_address(pointer) != NULL);
    return on_device ? device_side(pointer, nbytes, span) : host_side(pointer, nbytes, span);
}

/* Whether no range knows these bytes. */
static bool is_pageable(const Span *span) {
    return range_overlapping(span->start, span->nbytes) == NULL;
}

/* Take a copy of pageable source bytes now, as the driver does: the caller may free them at once. */
static Result stage(Op *op, const Stream *stream) {
    if (!op->from.by_host || !is_pageable(&op->from) || stream->capture != NULL)
        return SUCCESS;
    op->staged = malloc(op->from.nbytes);
    if (op->staged == NULL)
        return OUT_OF_MEMORY;
    return host_read(op->staged, op->from.start, op->from.nbytes) ? SUCCESS : INVALID_VALUE;
}

typedef struct Copy {
    const char *function;
    Side to_side;
    Side from_side;
    Address to;
    Address from;
    size_t nbytes;
    Handle *stream;
    bool synchronous;
} Copy;

/* Submit a copy to its stream, and wait for it where the caller must. */
static Result submit_copy(const Copy *copy, Stream *stream) {
    Op *op = op_new(OP_COPY);
    Result result = find_side(copy->to_side, copy->to, copy->nbytes, &op->to);
    if (result == SUCCESS)
        result = find_side(copy->from_side, copy->from, copy->nbytes, &op->from);
    if (result == SUCCESS)
        result = stage(op, stream);
    if (result != SUCCESS) {
        op_free(op);
        return result;
    }
    bool wait = stream->capture == NULL && (copy->synchronous || (op->to.by_host && is_pageable(&op->to)));
    result = work_submit(stream, op);
    return result == SUCCESS && wait ? work_wait_stream(stream) : result;
}

/* Run a copy function from its entry to its end. */
static Result run_copy(Copy copy) {
    Result result = enter(copy.function);
    if (result != SUCCESS)
        return result;
    Stream *stream;
    result = stream_named(copy.stream, &stream);
    if (result == SUCCESS)
        result = context_usable(stream->context);
    if (result == SUCCESS && copy.synchronous)
        result = capture_check_wait(stream);
    if (result != SUCCESS || copy.nbytes == 0)
        return leave(result);
    return leave(submit_copy(&copy, stream));
}

/* Copy in a stream between any two places. */
static Result copy_any(const char *function, Address to, Address from, size_t nbytes, Handle *stream,
                       bool wait) {
    return run_copy((Copy){function, EITHER_SIDE, EITHER_SIDE, to, from, nbytes, stream, wait});
}

/* Copy in a stream from the host. */
static Result copy_up(const char *function, Address to, const void *from, size_t nbytes, Handle *stream,
                      bool wait) {
    return run_copy((Copy){function, DEVICE_SIDE, HOST_SIDE, to, (uintptr_t)from, nbytes, stream, wait});
}

/* Copy in a stream to the host. */
static Result copy_down(const char *function, void *to, Address from, size_t nbytes, Handle *stream,
                        bool wait) {
    return run_copy((Copy){function, HOST_SIDE, DEVICE_SIDE, (uintptr_t)to, from, nbytes, stream, wait});
}

/* Copy in a stream on the device. */
static Result copy_across(const char *function, Address to, Address from, size_t nbytes, Handle *stream,
                          bool wait) {
    return run_copy((Copy){function, DEVICE_SIDE, DEVICE_SIDE, to, from, nbytes, stream, wait});
}

API Result cuMemcpy(Address to, Address from, size_t nbytes) {
    return copy_any("cuMemcpy", to, from, nbytes, NULL, true);
}

API Result cuMemcpy_ptds(Address to, Address from, size_t nbytes) {
    return copy_any("cuMemcpy", to, from, nbytes, per_thread(NULL), true);
}

API Result cuMemcpyAsync(Address to, Address from, size_t nbytes, Handle *stream) {
    return copy_any("cuMemcpyAsync", to, from, nbytes, stream, false);
}

API Result cuMemcpyAsync_ptsz(Address to, Address from, size_t nbytes, Handle *stream) {
    return cuMemcpyAsync(to, from, nbytes, per_thread(stream));
}

API Result cuMemcpyHtoD_v2(Address to, const void *from, size_t nbytes) {
    return copy_up("cuMemcpyHtoD", to, from, nbytes, NULL, true);
}

API Result cuMemcpyHtoD_v2_ptds(Address to, const void *from, size_t nbytes) {
    return copy_up("cuMemcpyHtoD", to, from, nbytes, per_thread(NULL), true);
}

API Result cuMemcpyHtoDAsync_v2(Address to, const void *from, size_t nbytes, Handle *stream) {
    return copy_up("cuMemcpyHtoDAsync", to, from, nbytes, stream, false);
}

API Result cuMemcpyHtoDAsync_v2_ptsz(Address to, const void *from, size_t nbytes, Handle *stream) {
    return cuMemcpyHtoDAsync_v2(to, from, nbytes, per_thread(stream));
}

API Result cuMemcpyDtoH_v2(void *to, Address from, size_t nbytes) {
    return copy_down("cuMemcpyDtoH", to, from, nbytes, NULL, true);
}

API Result cuMemcpyDtoH_v2_ptds(void *to, Address from, size_t nbytes) {
    return copy_down("cuMemcpyDtoH", to, from, nbytes, per_thread(NULL), true);
}

API Result cuMemcpyDtoHAsync_v2(void *to, Address from, size_t nbytes, Handle *stream) {
    return copy_down("cuMemcpyDtoHAsync", to, from, nbytes, stream, false);
}

API Result cuMemcpyDtoHAsync_v2_ptsz(void *to, Address from, size_t nbytes, Handle *stream) {
    return cuMemcpyDtoHAsync_v2(to, from, nbytes, per_thread(stream));
}

API Result cuMemcpyDtoD_v2(Address to, Address from, size_t nbytes) {
    return copy_across("cuMemcpyDtoD", to, from, nbytes, NULL, true);
}

API Result cuMemcpyDtoD_v2_ptds(Address to, Address from, size_t nbytes) {
    return copy_across("cuMemcpyDtoD", to, from, nbytes, per_thread(NULL), true);
}

API Result cuMemcpyDtoDAsync_v2(Address to, Address from, size_t nbytes, Handle *stream) {
    return copy_across("cuMemcpyDtoDAsync", to, from, nbytes, stream, false);
}

API Result cuMemcpyDtoDAsync_v2_ptsz(Address to, Address from, size_t nbytes, Handle *stream) {
    return cuMemcpyDtoDAsync_v2(to, from, nbytes, per_thread(stream));
}

/* Fill device memory with `count` values of `width` bytes; also the synchronous form only waits for host
 * memory. */
static Result fill(const char *function, Address to, uint32_t value, unsigned width, size_t count,
                   Handle *handle) {
    Result result = enter(function);
    if (result != SUCCESS)
        return result;
    Stream *stream;
    result = stream_named(handle, &stream);
    if (result != SUCCESS || count == 0)
        return leave(result);
    if (to % width != 0)
        return leave(INVALID_VALUE);
    Span span;
    result = device_side(to, count * width, &span);
    if (result != SUCCESS)
        return leave(result);
    Op *op = op_new(OP_FILL);
    op->to = span;
    op->value = value;
    op->width = width;
    return leave(work_submit(stream, op));
}

API Result cuMemsetD8_v2(Address to, unsigned char value, size_t count) {
    return fill("cuMemsetD8", to, value, 1, count, NULL);
}

API Result cuMemsetD8_v2_ptds(Address to, unsigned char value, size_t count) {
    return fill("cuMemsetD8", to, value, 1, count, per_thread(NULL));
}

API Result cuMemsetD8Async(Address to, unsigned char value, size_t count, Handle *stream) {
    return fill("cuMemsetD8Async", to, value, 1, count, stream);
}

API Result cuMemsetD8Async_ptsz(Address to, unsigned char value, size_t count, Handle *stream) {
    return cuMemsetD8Async(to, value, count, per_thread(stream));
}

API Result cuMemsetD32_v2(Address to, unsigned value, size_t count) {
    return fill("cuMemsetD32", to, value, 4, count, NULL);
}

API Result cuMemsetD32_v2_ptds(Address to, unsigned value, size_t count) {
    return fill("cuMemsetD32", to, value, 4, count, per_thread(NULL));
}

API Result cuMemsetD32Async(Address to, unsigned value, size_t count, Handle *stream) {
    return fill("cuMemsetD32Async", to, value, 4, count, stream);
}

API Result cuMemsetD32Async_ptsz(Address to, unsigned value, size_t count, Handle *stream) {
    return cuMemsetD32Async(to, value, count, per_thread(stream));
}
