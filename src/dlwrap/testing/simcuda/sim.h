/* The simulated CUDA driver: what its parts share.
 *
 * One mutex guards everything; nothing outside (a host function, Python, a user's memory) is called while it
 * is held. There is no GPU: work runs in whichever thread makes it runnable. The one thread of the driver's
 * own runs the destructors of user objects; it begins when one is due and ends when none is.
 */
#ifndef DLWRAP_SIM_H
#define DLWRAP_SIM_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <time.h>

#define API __attribute__((visibility("default")))
#define ALIAS(name) API __attribute__((alias(name)))

typedef int Result;
typedef uint64_t Address; /* as the device sees it */
typedef void (*HostFunction)(void *argument);

enum {
    SUCCESS = 0,
    INVALID_VALUE = 1,
    OUT_OF_MEMORY = 2,
    NOT_INITIALIZED = 3,
    NO_DEVICE = 100,
    INVALID_DEVICE = 101,
    INVALID_CONTEXT = 201,
    UNSUPPORTED_LIMIT = 215,
    PEER_ACCESS_UNSUPPORTED = 217,
    INVALID_HANDLE = 400,
    ILLEGAL_STATE = 401,
    NOT_FOUND = 500,
    NOT_READY = 600,
    ILLEGAL_ADDRESS = 700,
    CONTEXT_IS_DESTROYED = 709,
    ALREADY_REGISTERED = 712,
    NOT_REGISTERED = 713,
    NOT_PERMITTED = 800,
    NOT_SUPPORTED = 801,
    CAPTURE_UNSUPPORTED = 900,
    CAPTURE_INVALIDATED = 901,
    CAPTURE_MERGE = 902,
    CAPTURE_UNMATCHED = 903,
    CAPTURE_UNJOINED = 904,
    CAPTURE_ISOLATION = 905,
    CAPTURE_IMPLICIT = 906,
    CAPTURED_EVENT = 907,
    CAPTURE_WRONG_THREAD = 908,
    GRAPH_UPDATE_FAILURE = 910,
};

enum { MODE_GLOBAL = 0, MODE_THREAD_LOCAL = 1, MODE_RELAXED = 2 };
enum { STATUS_NONE = 0, STATUS_ACTIVE = 1, STATUS_INVALIDATED = 2 };
enum { STREAM_NON_BLOCKING = 1 };
enum { EVENT_BLOCKING_SYNC = 1, EVENT_DISABLE_TIMING = 2 };
enum { REGISTER_DEVICEMAP = 2, REGISTER_READ_ONLY = 8, REGISTER_ALL = 15 };
enum { MAX_DEVICES = 8, MAX_CONTEXT_DEPTH = 16 };
enum { MAX_BLOCKING_SYNC_EVENTS = 56 }; /* unfinished on a stream, as measured on an H200 */

typedef struct Handle Handle; /* what a CUstream or CUevent points to */
typedef struct Context Context;
typedef struct Stream Stream;
typedef struct Event Event;
typedef struct Record Record;
typedef struct Capture Capture;
typedef struct Graph Graph;
typedef struct GraphExec GraphExec;
typedef struct UserObject UserObject;
typedef struct References References;
typedef struct Range Range;
typedef struct Op Op;

typedef struct Settings {
    int64_t devices;
    int64_t pageable;
    int64_t host_page_tables;
    int64_t host_register;
    int64_t read_only_register;
    int64_t pointer_offset;
    int64_t driver_version;
    int64_t compute_major;
    int64_t compute_minor;
    int64_t abort_on_dead_handle;
    int64_t strict;
    int64_t unregister_blocks_launches;
    int64_t concurrent_managed;
} Settings;

struct Context {
    Context *next;
    int device;
    bool primary;
    bool alive;
    bool retained_by_tests; /* one of the references is ours */
    unsigned flags;
    unsigned references;
    Result error; /* the sticky one */
    uint64_t id;
    Stream *legacy;
};

typedef enum StreamRole { ORDINARY, LEGACY, PER_THREAD } StreamRole;

struct Stream {
    Stream *next;
    Context *context;
    StreamRole role;
    Handle *handle; /* NULL once destroyed */
    Handle *number; /* what the handle is or was */
    unsigned flags;
    int priority;
    uint64_t id;
    uint64_t thread; /* of a per-thread stream */
    Op *head;
    Op *tail;
    bool held;
    bool running; /* its head is a host function that is being called */
    unsigned users;
    Capture *capture;
    bool unjoined;
    bool unjoined_work; /* not only a wait */
};

/* One cuEventRecord; shared by the event, the operation and those that wait for it. */
struct Record {
    unsigned references;
    bool done;
    bool blocking_sync;
    Context *barrier; /* set by cuCtxRecordEvent: done when all that was submitted to it up to `seq` is */
    uint64_t seq;
    uint64_t nanoseconds;
};

struct Event {
    Handle *handle;
    Context *context;
    unsigned flags;
    Record *record;
    uint64_t capture_id;    /* of the capture it was last recorded in, or 0 */
    uint64_t captured_from; /* the stream's number: it may be destroyed by now */
};

struct Capture {
    Capture *next;
    Stream *origin;
    int mode;
    int status;
    uint64_t thread;
    uint64_t id;
    Graph *graph;
    bool lost_work; /* of a destroyed stream: nothing can join it any more */
    Op *last_node;  /* what cuStreamGetCaptureInfo points to */
};

/* Bytes that an operation touches, by their host address. */
typedef struct Span {
    unsigned char *start;
    size_t nbytes;
    bool by_host;  /* the host side of a copy, which may be pageable */
    bool resolved; /* false: the device address named nothing */
} Span;

typedef enum OpKind { OP_READ, OP_FILL, OP_COPY, OP_RECORD, OP_WAIT, OP_CALL, OP_EMPTY, OP_CHILD } OpKind;

struct Op {
    Op *next;
    OpKind kind;
    uint64_t seq;
    Span to;
    Span from;
    uint32_t value;
    unsigned width; /* bytes of `value` that a fill repeats */
    Record *record;
    HostFunction call;
    void (*notify)(Handle *stream, Result status, void *argument);
    void *argument;
    unsigned char *staged;
    Graph *child;      /* the node's own */
    References *owned; /* by the launch that ends with this */
};

struct UserObject {
    UserObject *next;
    void *pointer;
    HostFunction destroy;
    uint64_t references; /* everybody's */
    uint64_t of_program; /* those that no graph and no executable owns */
};

typedef struct Reference {
    struct Reference *next;
    UserObject *object;
    uint64_t count;
} Reference;

/* What a graph owns, or an executable together with its launches. */
struct References {
    unsigned users;
    Reference *first;
};

struct Graph {
    Graph *next;
    Op *head;
    Op *tail;
    size_t count;
    References *owned;
    bool embedded;  /* in a node of another graph, which ends with it */
    bool forgotten; /* by a reset: it can only be destroyed */
};

struct GraphExec {
    GraphExec *next;
    Op *head;
    References *owned;
    bool forgotten;
};

typedef enum RangeKind { REGISTERED, HOST_ALLOCATED, DEVICE_ALLOCATED, MANAGED } RangeKind;

struct Range {
    unsigned char *start; /* on the host, also of device memory */
    size_t nbytes;
    RangeKind kind;
    unsigned flags;
    Context *context;
    uint64_t id;
};

typedef struct Sim {
    pthread_mutex_t lock;
    pthread_cond_t changed;
    Settings settings;
    bool initialized;
    bool forked; /* this is a child of a process that had called cuInit */
    uint64_t submitted;
    uint64_t next_id;
    unsigned exclusive; /* threads that wait in an unregister or a free */
    Context primaries[MAX_DEVICES];
    Context *contexts;
    Stream *streams;
    Capture *captures;
    Graph *graphs;
    GraphExec *executables;
    UserObject *user_objects; /* those with references */
} Sim;

typedef struct Thread {
    uint64_t id;
    int capture_mode;
    bool in_callback;
    const char *call; /* the driver function it is in */
    int depth;
    Context *stack[MAX_CONTEXT_DEPTH];
} Thread;

extern Sim sim;

/* state.c */
Thread *thread_self(void);
void lock(void);
void unlock(void);
void changed(void);
void wait_for_change(void);
bool wait_for_change_until(const struct timespec *deadline);
struct timespec deadline_in(double seconds);
_Noreturn void misuse(const char *format, ...) __attribute__((format(printf, 1, 2)));
void *allocate(size_t nbytes);

/* calls.c */
Result enter(const char *function);
Result enter_anytime(const char *function);
Result leave(Result result);
void calls_reset(void);

/* handles.c */
typedef enum HandleKind { HANDLE_FREE, HANDLE_STREAM, HANDLE_EVENT } HandleKind;
Handle *handle_new(HandleKind kind, void *object);
void handle_drop(Handle *handle);
void *handle_object(const Handle *handle, HandleKind kind);

/* devices.c */
bool device_exists(int device);

/* contexts.c */
Result context_current(Context **context);
Result context_usable(const Context *context);
Context *context_known(const void *handle);
Context *context_primary(int device);

/* ranges.c */
Range *range_add(void *start, size_t nbytes, RangeKind kind, unsigned flags, Context *context);
void range_remove(Range *range);
Range *range_at(const void *address);
Range *range_overlapping(const void *start, size_t nbytes);
Range *range_by_index(size_t index);
size_t range_count(RangeKind kind);
Range *range_by_device_address(Address address);
Address range_device_address(const Range *range, const void *address);
bool range_is_host(const Range *range);
Span span_from_device(Address address, size_t nbytes);
bool span_reachable(const Span *span, bool write);
bool span_touches(const Span *span, const void *start, size_t nbytes);

/* host.c */
bool host_read(void *into, const void *from, size_t nbytes);
bool host_write(void *into, const void *from, size_t nbytes);
bool host_can_register(const void *start, size_t nbytes, bool read_only);

/* memory.c */
void memory_forget_context(const Context *context);
void memory_forget_registrations(void);

/* work.c */
Op *op_new(OpKind kind);
Op *op_copy(const Op *op);
void op_free(Op *op);
void ops_free(Op *op);
Record *record_new(void);
Record *record_share(Record *record);
void record_release(Record *record);
bool record_done(const Record *record);
Result work_submit(Stream *stream, Op *op);
void work_enqueue(Stream *stream, Op *op);
void work_run(void);
void work_discard(Stream *stream);
bool work_touches(const void *start, size_t nbytes);
bool work_on_stream(const Stream *stream, uint64_t seq);
bool work_on_context(const Context *context, uint64_t seq);
Result work_wait_stream(Stream *stream);
Result work_wait_context(Context *context);

/* streams.c */
Result stream_named(Handle *handle, Stream **stream);
Stream *stream_special(Context *context, StreamRole role);
Handle *stream_create(Context *context, unsigned flags, int priority);
void stream_destroy(Stream *stream);
void stream_collect(Stream *stream);
Handle *per_thread(Handle *stream);

/* capture.c */
Result capture_forbid_unsafe(void);
Result capture_check_submit(Stream *stream);
Result capture_check_wait(Stream *stream);
Result capture_check_context(const Context *context);
void capture_invalidate(Capture *capture);
Capture *capture_by_id(uint64_t id);
void capture_join(Stream *stream, Capture *capture);
void capture_joined(uint64_t stream_id);
void capture_abandon(Stream *stream);
Result capture_begin(Stream *stream, int mode);
Result capture_end(Stream *stream, Graph **graph);
Result capture_status(const Stream *stream, int *status);

/* graphs.c */
Graph *graph_new(void);
void graph_append(Graph *graph, Op *op);
void graph_destroy(Graph *graph);
bool graph_exists(const Graph *graph);
bool graph_has(const Graph *graph, Op *const *nodes, size_t count);
Op *graph_last_node(const Graph *graph);
Graph *graph_clone(const Graph *graph);
Op *graph_node(const Op *op, const References *owned);
Result graph_discard(Graph *graph);
void graphs_forget(void);

/* executables.c */
Result executable_new(const Graph *graph, GraphExec **executable);
Result executable_destroy(GraphExec *executable);
Result executable_launch(const GraphExec *executable, Stream *stream);
Result launch_once(const Graph *graph, Stream *stream);
void executables_forget(void);

/* references.c */
References *references_new(void);
References *references_share(References *references);
void references_drop(References *references);
void references_add(References *references, UserObject *object, uint64_t count);
void references_add_all(References *references, const References *others);
bool references_remove(References *references, UserObject *object, uint64_t count);
bool user_object_exists(const UserObject *object);
void user_object_release(UserObject *object, uint64_t count);
void user_objects_forget(void);

/* destructors.c */
void destructor_new(void);
void destructor_due(UserObject *object);
void destructors_hold(bool held);

/* entry.c */
int function_index(const char *name);
const char *function_name(int index);
int function_total(void);

#endif
