/* What tests drive: settings, held streams, simulated kernels, and the way back to a fresh driver. */
#include "sim.h"

#include <stdlib.h>

/* The context that control functions work in: the current one, else device 0's primary. */
static Result control_context(Context **context) {
    Result result = context_current(context);
    if (result != INVALID_CONTEXT)
        return result;
    *context = context_primary(0);
    return context_usable(*context);
}

/* The stream of a handle; the default streams are also found where no context is current. */
static Result control_stream(Handle *handle, Stream **stream) {
    Context *context;
    bool by_thread = handle == (Handle *)2;
    if ((uintptr_t)handle > 2)
        return stream_named(handle, stream);
    Result result = control_context(&context);
    if (result == SUCCESS)
        *stream = stream_special(context, by_thread ? PER_THREAD : LEGACY);
    return result;
}

/* How many operations wait on the stream. */
static size_t queue_length(const Stream *stream) {
    size_t length = 0;
    for (const Op *op = stream->head; op != NULL; op = op->next)
        length++;
    return length;
}

/* Whether this is one of the streams meant by the handle, alive or destroyed, in the calling thread. */
static bool is_meant(const Stream *stream, Handle *handle) {
    if (stream->role == PER_THREAD && stream->thread != thread_self()->id)
        return false;
    return stream->number == (handle == NULL ? (Handle *)1 : handle);
}

/* How many operations wait on the stream of the handle, also a destroyed one; on all streams for
 * `everywhere`. */
API size_t dlwrap_sim_pending(Handle *handle, int everywhere) {
    size_t pending = 0;
    lock();
    for (const Stream *stream = sim.streams; stream != NULL; stream = stream->next)
        if (everywhere || is_meant(stream, handle))
            pending += queue_length(stream);
    unlock();
    return pending;
}

/* Whether nothing is registered and nothing pending. */
static bool is_clean(void) {
    for (const Stream *stream = sim.streams; stream != NULL; stream = stream->next)
        if (stream->head != NULL)
            return false;
    return range_count(REGISTERED) == 0;
}

/* Take new settings; refused while anything is registered or pending. */
API Result dlwrap_sim_configure(const Settings *settings) {
    lock();
    const int64_t most = (int64_t)1 << 56; /* below where device memory is */
    bool valid = settings->devices >= 0 && settings->devices <= MAX_DEVICES &&
                 settings->pointer_offset >= 0 && settings->pointer_offset <= most && is_clean();
    if (valid)
        sim.settings = *settings;
    unlock();
    return valid ? SUCCESS : INVALID_VALUE;
}

/* Let every stream go and end every capture without a graph. */
static void release_streams(bool discard) {
    Stream *following;
    for (Stream *stream = sim.streams; stream != NULL; stream = following) {
        following = stream->next;
        stream->held = false;
        if (discard)
            work_discard(stream);
        if (stream->capture != NULL)
            capture_abandon(stream);
        stream_collect(stream);
    }
    work_run();
}

/* Take what graphs and executables have, and by force also what the program holds; let destructors run. */
static void release_graphs(bool by_force) {
    graphs_forget();
    executables_forget();
    if (by_force)
        user_objects_forget();
    destructors_hold(false);
}

/* No context has an error any more. */
static void clear_errors(void) {
    for (int device = 0; device < MAX_DEVICES; device++)
        sim.primaries[device].error = SUCCESS;
    for (Context *context = sim.contexts; context != NULL; context = context->next)
        context->error = SUCCESS;
}

/* Back to a fresh driver, except that live handles and retained contexts stay what they are: libraries keep
 * events and primary contexts for as long as the process lives. Graphs and executables are emptied and can
 * only be destroyed from then on. Refused, without `force`, unless all is clean. */
API Result dlwrap_sim_reset(const Settings *settings, int force) {
    lock();
    if (!force && !is_clean()) {
        unlock();
        return ILLEGAL_STATE;
    }
    release_streams(force != 0);
    release_graphs(force != 0);
    if (force)
        memory_forget_registrations();
    clear_errors();
    calls_reset();
    thread_self()->depth = 0;
    thread_self()->capture_mode = MODE_GLOBAL;
    sim.settings = *settings;
    unlock();
    return SUCCESS;
}

/* Initialise, retain the device's primary context, and make a stream in it; none of it is logged. */
API Result dlwrap_sim_create_stream(int device, unsigned flags, Handle **handle) {
    lock();
    bool exists = device_exists(device) && !sim.forked;
    if (exists) {
        Context *context = context_primary(device);
        sim.initialized = true;
        context->references += !context->retained_by_tests;
        context->retained_by_tests = true;
        context->alive = true;
        *handle = stream_create(context, flags, 0);
    }
    unlock();
    return exists ? SUCCESS : INVALID_DEVICE;
}

/* Destroy a stream; not logged. */
API Result dlwrap_sim_destroy_stream(Handle *handle) {
    Stream *stream;
    lock();
    Result result = stream_named(handle, &stream);
    if (result == SUCCESS && stream->role != ORDINARY)
        result = INVALID_HANDLE;
    if (result == SUCCESS)
        stream_destroy(stream);
    unlock();
    return result;
}

/* Keep what is submitted to the stream from running. */
API Result dlwrap_sim_hold(Handle *handle) {
    Stream *stream;
    lock();
    Result result = control_stream(handle, &stream);
    if (result == SUCCESS)
        stream->held = true;
    unlock();
    return result;
}

/* Run, in this thread, what was kept on the stream of the handle, also if it was destroyed meanwhile. */
API Result dlwrap_sim_let_go(Handle *handle) {
    lock();
    for (Stream *stream = sim.streams; stream != NULL; stream = stream->next)
        if (is_meant(stream, handle))
            stream->held = false;
    work_run();
    unlock();
    return SUCCESS;
}

/* A kernel that reads the bytes at a device address, or fills them with `value` where that is not negative.
 */
API Result dlwrap_sim_launch(Handle *handle, Address address, size_t nbytes, int value) {
    Stream *stream;
    lock();
    Result result = control_stream(handle, &stream);
    if (result == SUCCESS) {
        Op *op = op_new(value < 0 ? OP_READ : OP_FILL);
        *(value < 0 ? &op->from : &op->to) = span_from_device(address, nbytes);
        op->value = (uint32_t)value;
        op->width = 1;
        result = work_submit(stream, op);
    }
    unlock();
    return result;
}

/* Begin a capture; not logged. */
API Result dlwrap_sim_begin_capture(Handle *handle, int mode) {
    Stream *stream;
    lock();
    Result result = control_stream(handle, &stream);
    if (result == SUCCESS)
        result = capture_begin(stream, mode);
    unlock();
    return result;
}

/* End a capture; not logged. */
API Result dlwrap_sim_end_capture(Handle *handle, Graph **graph) {
    Stream *stream;
    lock();
    Result result = control_stream(handle, &stream);
    if (result == SUCCESS)
        result = capture_end(stream, graph);
    unlock();
    return result;
}

/* What the stream's capture is at; not logged. */
API Result dlwrap_sim_capture_status(Handle *handle, int *status) {
    Stream *stream;
    lock();
    Result result = control_stream(handle, &stream);
    if (result == SUCCESS)
        result = capture_status(stream, status);
    unlock();
    return result;
}

/* Submit a graph's operations to a stream without an executable; not logged. */
API Result dlwrap_sim_launch_graph(Graph *graph, Handle *handle) {
    Stream *stream;
    lock();
    Result result = graph_exists(graph) ? control_stream(handle, &stream) : INVALID_VALUE;
    if (result == SUCCESS)
        result = launch_once(graph, stream);
    unlock();
    return result;
}

/* Make an executable; not logged. */
API Result dlwrap_sim_instantiate(Graph *graph, GraphExec **executable) {
    lock();
    Result result = executable_new(graph, executable);
    unlock();
    return result;
}

/* Launch an executable; not logged. */
API Result dlwrap_sim_launch_exec(GraphExec *executable, Handle *handle) {
    Stream *stream;
    lock();
    Result result = control_stream(handle, &stream);
    if (result == SUCCESS)
        result = executable_launch(executable, stream);
    unlock();
    return result;
}

/* Copy a graph; not logged. */
API Result dlwrap_sim_clone_graph(Graph *graph, Graph **clone) {
    lock();
    Result result = graph_exists(graph) ? SUCCESS : INVALID_VALUE;
    if (result == SUCCESS)
        *clone = graph_clone(graph);
    unlock();
    return result;
}

/* Destroy a graph; not logged. */
API Result dlwrap_sim_destroy_graph(Graph *graph) {
    lock();
    Result result = graph_discard(graph);
    unlock();
    return result;
}

/* Destroy an executable; not logged. */
API Result dlwrap_sim_destroy_exec(GraphExec *executable) {
    lock();
    Result result = executable_destroy(executable);
    unlock();
    return result;
}

/* How many references to user objects the program holds itself. */
API uint64_t dlwrap_sim_user_references(void) {
    uint64_t held = 0;
    lock();
    for (const UserObject *object = sim.user_objects; object != NULL; object = object->next)
        held += object->of_program;
    unlock();
    return held;
}

/* How the device names a host byte: page-locked memory may have another address there. */
API Address dlwrap_sim_device_address(const void *pointer) {
    lock();
    const Range *range = range_at(pointer);
    bool locked = range != NULL && range_is_host(range);
    Address address = locked ? range_device_address(range, pointer) : (Address)(uintptr_t)pointer;
    unlock();
    return address;
}
