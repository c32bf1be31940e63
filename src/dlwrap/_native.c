/* The part of dlwrap that must not need Python: DLPack capsules, a deleter that any thread may call at any
 * time, the list of released leases, and the one step that records an event beside stream captures.
 *
 * A lease counts its holders: the wrapper, every live export, and captured graphs. The last one to go pushes
 * the lease on the released list; Python's lifetime manager takes the keys from there. Nothing here holds a
 * PyObject.
 */
#define _GNU_SOURCE
#include <Python.h>

#include <errno.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "_dlpack.h"

typedef struct Lease {
    atomic_llong holders;
    atomic_llong graphs;   /* those of the holders that are CUDA graphs */
    atomic_int references; /* to this memory: the Exporter's, and the released list's */
    struct Lease *next;
    uint64_t key;
    void *device_data;
    void *host_data;
    int32_t device_id;
    int32_t ndim;
    DLDataType dtype;
    bool read_only;
    int64_t *strides;
    int64_t shape[]; /* then the strides; every export points here, the lease outlives them all */
} Lease;

typedef struct Export {
    union {
        DLManagedTensor legacy;
        DLManagedTensorVersioned versioned;
    } tensor;
    /* Even while the export lives, odd while it is spare. Exports are never given back to malloc, so that a
     * capsule that is dropped after its deleter ran still finds a generation to compare with its own. */
    atomic_uintptr_t generation;
    Lease *lease;
    struct Export *next;
} Export;

static _Atomic(Lease *) released;
static sem_t released_signal;
static _Atomic(Export *) retired;
static atomic_llong live_exports;
static atomic_llong live_graphs;
static Export *spare;
static atomic_flag spare_lock = ATOMIC_FLAG_INIT;

/* ---- release: no interpreter, no allocation, no lock; from any thread, also after finalisation ---- */

/* Hands a lease without holders over to the lifetime manager. */
static void push_released(Lease *lease) {
    Lease *head = atomic_load(&released);
    do {
        lease->next = head;
    } while (!atomic_compare_exchange_weak(&released, &head, lease));
    if (head == NULL) {
        sem_post(&released_signal);
    }
}

/* Gives up one hold on the lease. */
static void drop_hold(Lease *lease) {
    if (atomic_fetch_sub(&lease->holders, 1) == 1) {
        push_released(lease);
    }
}

/* Ends the export if it is still of that generation; a second call for the same export does nothing. */
static void retire(Export *export, uintptr_t generation) {
    if (generation % 2 == 1 ||
        !atomic_compare_exchange_strong(&export->generation, &generation, generation + 1)) {
        return;
    }
    Lease *lease = export->lease;
    atomic_fetch_sub(&live_exports, 1);
    Export *head = atomic_load(&retired);
    do {
        export->next = head;
    } while (!atomic_compare_exchange_weak(&retired, &head, export));
    drop_hold(lease);
}

/* The deleter of legacy capsules. */
static void delete_legacy(DLManagedTensor *tensor) {
    Export *export = tensor->manager_ctx;
    retire(export, atomic_load(&export->generation));
}

/* The deleter of versioned capsules. */
static void delete_versioned(DLManagedTensorVersioned *tensor) {
    Export *export = tensor->manager_ctx;
    retire(export, atomic_load(&export->generation));
}

/* Ends the hold of a CUDA graph; the driver calls it on a thread of its own, where no CUDA call is allowed.
 */
static void drop_graph(void *argument) {
    Lease *lease = argument;
    atomic_fetch_sub(&lease->graphs, 1);
    atomic_fetch_sub(&live_graphs, 1);
    drop_hold(lease);
}

/* ---- end of release ---- */

/* Takes a spare export, or allocates one; NULL when out of memory. */
static Export *take_export(void) {
    while (atomic_flag_test_and_set(&spare_lock)) {
    }
    if (spare == NULL) {
        spare = atomic_exchange(&retired, NULL);
    }
    Export *export = spare;
    if (export != NULL) {
        spare = export->next;
    }
    atomic_flag_clear(&spare_lock);
    if (export == NULL) {
        export = calloc(1, sizeof(Export));
        if (export != NULL) {
            atomic_init(&export->generation, 1);
        }
    }
    return export;
}

/* Takes one more hold on a lease that still has one. */
static bool add_hold(Lease *lease) {
    long long holders = atomic_load(&lease->holders);
    while (holders > 0) {
        if (atomic_compare_exchange_weak(&lease->holders, &holders, holders + 1)) {
            return true;
        }
    }
    return false;
}

/* Gives up one reference to the lease's memory. */
static void drop_memory(Lease *lease) {
    if (atomic_fetch_sub(&lease->references, 1) == 1) {
        free(lease);
    }
}

/* Describes the leased memory as seen from the device or from the host. */
static DLTensor describe(Lease *lease, bool on_host) {
    return (DLTensor){
        .data = on_host ? lease->host_data : lease->device_data,
        .device = {on_host ? DL_CPU : DL_CUDA, on_host ? 0 : lease->device_id},
        .ndim = lease->ndim,
        .dtype = lease->dtype,
        .shape = lease->shape,
        .strides = lease->strides,
        .byte_offset = 0,
    };
}

/* Ends an export that nobody consumed. An exception may be pending: no call here sets or clears one. */
static void discard_capsule(PyObject *capsule) {
    const char *name = PyCapsule_GetName(capsule);
    if (name != NULL && (strcmp(name, "dltensor") == 0 || strcmp(name, "dltensor_versioned") == 0)) {
        retire(PyCapsule_GetPointer(capsule, name), (uintptr_t)PyCapsule_GetContext(capsule));
    }
}

/* Puts the export into a capsule of its own. */
static PyObject *wrap_in_capsule(Export *export, bool versioned) {
    uintptr_t generation = atomic_fetch_add(&export->generation, 1) + 1;
    PyObject *capsule = PyCapsule_New(export, versioned ? "dltensor_versioned" : "dltensor", discard_capsule);
    if (capsule == NULL) {
        retire(export, generation);
        return NULL;
    }
    PyCapsule_SetContext(capsule, (void *)generation);
    return capsule;
}

typedef struct {
    PyObject_HEAD Lease *lease;
    atomic_bool closed;
} Exporter;

/* Reads ndim integers from a tuple. */
static bool read_extents(PyObject *tuple, int64_t *out, Py_ssize_t ndim) {
    for (Py_ssize_t i = 0; i < ndim; i++) {
        out[i] = PyLong_AsLongLong(PyTuple_GetItem(tuple, i));
        if (out[i] == -1 && PyErr_Occurred()) {
            return false;
        }
    }
    return true;
}

/* Allocates a lease with room for shape and strides. */
static Lease *new_lease(PyObject *shape, PyObject *strides) {
    Py_ssize_t ndim = PyTuple_Size(shape);
    if (PyTuple_Size(strides) != ndim) {
        PyErr_SetString(PyExc_ValueError, "shape and strides must have the same length");
        return NULL;
    }
    Lease *lease = calloc(1, sizeof(Lease) + 2 * (size_t)(ndim > 0 ? ndim : 1) * sizeof(int64_t));
    if (lease == NULL) {
        PyErr_NoMemory();
        return NULL;
    }
    lease->ndim = (int32_t)ndim;
    lease->strides = lease->shape + (ndim > 0 ? ndim : 1);
    if (!read_extents(shape, lease->shape, ndim) || !read_extents(strides, lease->strides, ndim)) {
        free(lease);
        return NULL;
    }
    return lease;
}

/* Exporter(key, device_pointer, host_pointer, device_id, dtype, shape, strides, read_only): the first holder.
 */
static PyObject *exporter_new(PyTypeObject *type, PyObject *args, PyObject *keywords) {
    static char *names[] = {"key",   "device_pointer", "host_pointer", "device_id", "dtype",
                            "shape", "strides",        "read_only",    NULL};
    unsigned long long key, device_pointer, host_pointer;
    int device_id, read_only;
    unsigned char code, bits;
    unsigned short lanes;
    PyObject *shape, *strides;
    if (!PyArg_ParseTupleAndKeywords(args, keywords, "KKKi(bbH)O!O!p", names, &key, &device_pointer,
                                     &host_pointer, &device_id, &code, &bits, &lanes, &PyTuple_Type, &shape,
                                     &PyTuple_Type, &strides, &read_only)) {
        return NULL;
    }
    allocfunc allocate = (allocfunc)PyType_GetSlot(type, Py_tp_alloc);
    Exporter *self = (Exporter *)allocate(type, 0);
    if (self == NULL) {
        return NULL;
    }
    atomic_init(&self->closed, true); /* until it has something to release */
    Lease *lease = self->lease = new_lease(shape, strides);
    if (lease == NULL) {
        Py_DECREF(self);
        return NULL;
    }
    atomic_init(&lease->holders, 1);
    atomic_init(&lease->graphs, 0);
    atomic_init(&lease->references, 2);
    lease->key = key;
    lease->device_data = (void *)(uintptr_t)device_pointer;
    lease->host_data = (void *)(uintptr_t)host_pointer;
    lease->device_id = device_id;
    lease->dtype = (DLDataType){code, bits, lanes};
    lease->read_only = read_only;
    atomic_store(&self->closed, false);
    return (PyObject *)self;
}

/* The wrapper's own hold goes with it. */
static void exporter_dealloc(PyObject *object) {
    Exporter *self = (Exporter *)object;
    PyTypeObject *type = Py_TYPE(object);
    if (self->lease != NULL) {
        if (!atomic_load(&self->closed)) {
            drop_hold(self->lease);
        }
        drop_memory(self->lease);
    }
    ((freefunc)PyType_GetSlot(type, Py_tp_free))(object);
    Py_DECREF(type);
}

/* Fills the fields that only versioned capsules have. */
static void fill_versioned(Export *export, Lease *lease, bool on_host, bool copied, unsigned minor) {
    export->tensor.versioned = (DLManagedTensorVersioned){
        .version = {DLPACK_MAJOR, minor < DLPACK_MINOR ? minor : DLPACK_MINOR},
        .manager_ctx = export,
        .deleter = delete_versioned,
        .flags = (lease->read_only ? DL_FLAG_READ_ONLY : 0) | (copied ? DL_FLAG_IS_COPIED : 0),
        .dl_tensor = describe(lease, on_host),
    };
}

/* export(minor, on_host, copied): a capsule; versioned 1.min(minor, ours), legacy where minor is -1. */
static PyObject *exporter_export(PyObject *object, PyObject *args) {
    Exporter *self = (Exporter *)object;
    int minor, on_host, copied;
    if (!PyArg_ParseTuple(args, "ipp", &minor, &on_host, &copied)) {
        return NULL;
    }
    if (atomic_load(&self->closed) || !add_hold(self->lease)) {
        PyErr_SetString(PyExc_BufferError, "cannot export a closed HostWrappedBuffer: wrap the array again");
        return NULL;
    }
    Export *export = take_export();
    if (export == NULL) {
        drop_hold(self->lease);
        return PyErr_NoMemory();
    }
    atomic_fetch_add(&live_exports, 1);
    export->lease = self->lease;
    if (minor < 0) {
        export->tensor.legacy = (DLManagedTensor){describe(self->lease, on_host), export, delete_legacy};
    } else {
        fill_versioned(export, self->lease, on_host, copied, (unsigned)minor);
    }
    return wrap_in_capsule(export, minor >= 0);
}

typedef int (*UserObjectCreate)(void **made, void *argument, void (*destroy)(void *), unsigned references,
                                unsigned flags);
typedef int (*GraphRetain)(void *graph, void *user_object, unsigned count, unsigned flags);
typedef int (*UserObjectRelease)(void *user_object, unsigned count);

enum { NO_DESTRUCTOR_SYNC = 1, MOVE_REFERENCES = 1 };

/* Gives the lease's hold, already counted, to the graph; whatever fails, the hold is dropped once. */
static int give_to_graph(UserObjectCreate create, GraphRetain retain, UserObjectRelease release, void *graph,
                         Lease *lease, void **user_object) {
    int code = create(user_object, lease, drop_graph, 1, NO_DESTRUCTOR_SYNC);
    if (code != 0) {
        drop_graph(lease);
        return code;
    }
    code = retain(graph, *user_object, 1, MOVE_REFERENCES);
    if (code != 0) {
        release(*user_object, 1); /* calls drop_graph */
    }
    return code;
}

/* hold_by_graph(create, retain, release, graph): (CUresult, CUuserObject); the graph becomes a holder. */
static PyObject *exporter_hold_by_graph(PyObject *object, PyObject *args) {
    Exporter *self = (Exporter *)object;
    unsigned long long create, retain, release, graph;
    if (!PyArg_ParseTuple(args, "KKKK", &create, &retain, &release, &graph)) {
        return NULL;
    }
    Lease *lease = self->lease;
    if (atomic_load(&self->closed) || !add_hold(lease)) {
        PyErr_SetString(PyExc_BufferError,
                        "cannot keep a closed HostWrappedBuffer alive: wrap the array again");
        return NULL;
    }
    atomic_fetch_add(&lease->graphs, 1);
    atomic_fetch_add(&live_graphs, 1);
    void *user_object = NULL;
    int code;
    Py_BEGIN_ALLOW_THREADS code =
        give_to_graph((UserObjectCreate)(uintptr_t)create, (GraphRetain)(uintptr_t)retain,
                      (UserObjectRelease)(uintptr_t)release, (void *)(uintptr_t)graph, lease, &user_object);
    Py_END_ALLOW_THREADS return Py_BuildValue("(iK)", code, (unsigned long long)(uintptr_t)user_object);
}

/* close(): gives up the wrapper's hold unless there are other holders; returns how many there are. */
static PyObject *exporter_close(PyObject *object, PyObject *unused) {
    (void)unused;
    Exporter *self = (Exporter *)object;
    long long last = 1;
    if (atomic_load(&self->closed)) {
        return PyLong_FromLong(0);
    }
    if (!atomic_compare_exchange_strong(&self->lease->holders, &last, 0)) {
        return PyLong_FromLongLong(last > 0 ? last - 1 : 0);
    }
    atomic_store(&self->closed, true);
    push_released(self->lease);
    return PyLong_FromLong(0);
}

/* exports: how many exports are alive. */
static PyObject *exporter_exports(PyObject *object, void *unused) {
    (void)unused;
    Lease *lease = ((Exporter *)object)->lease;
    long long exports = atomic_load(&lease->holders) - atomic_load(&lease->graphs) - 1;
    return PyLong_FromLongLong(exports > 0 ? exports : 0);
}

/* graphs: how many holds of CUDA graphs are alive. */
static PyObject *exporter_graphs(PyObject *object, void *unused) {
    (void)unused;
    return PyLong_FromLongLong(atomic_load(&((Exporter *)object)->lease->graphs));
}

/* closed: whether the wrapper's hold was given up. */
static PyObject *exporter_closed(PyObject *object, void *unused) {
    (void)unused;
    return PyBool_FromLong(atomic_load(&((Exporter *)object)->closed));
}

static PyMethodDef exporter_methods[] = {
    {"export", exporter_export, METH_VARARGS,
     "export(minor, on_host, copied)\n--\n\nA DLPack capsule; legacy where minor is -1."},
    {"close", exporter_close, METH_NOARGS,
     "close()\n--\n\nGive up the wrapper's hold; return how many other holders forbid it."},
    {"hold_by_graph", exporter_hold_by_graph, METH_VARARGS,
     "hold_by_graph(create, retain, release, graph)\n--\n\nMake a CUDA graph a holder."},
    {NULL, NULL, 0, NULL},
};

static PyGetSetDef exporter_attributes[] = {
    {"exports", exporter_exports, NULL, "Number of live exports.", NULL},
    {"graphs", exporter_graphs, NULL, "Number of holds of CUDA graphs.", NULL},
    {"closed", exporter_closed, NULL, "Whether the wrapper's hold was given up.", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyType_Slot exporter_slots[] = {
    {Py_tp_doc, "One lease's holder and maker of capsules."},
    {Py_tp_new, exporter_new},
    {Py_tp_dealloc, exporter_dealloc},
    {Py_tp_methods, exporter_methods},
    {Py_tp_getset, exporter_attributes},
    {0, NULL},
};

static PyType_Spec exporter_spec = {
    .name = "dlwrap._native.Exporter",
    .basicsize = sizeof(Exporter),
    .flags = Py_TPFLAGS_DEFAULT,
    .slots = exporter_slots,
};

#pragma weak sem_clockwait

enum { LONGEST_WAIT = 1000000000 }; /* seconds */

/* Waits on the semaphore; a clock that is set back must not stretch the wait where the C library can help. */
static void wait_for_signal(double seconds) {
    if (seconds < 0) {
        while (sem_wait(&released_signal) != 0 && errno == EINTR) {
        }
        return;
    }
    clockid_t clock = sem_clockwait != NULL ? CLOCK_MONOTONIC : CLOCK_REALTIME;
    struct timespec until;
    clock_gettime(clock, &until);
    until.tv_sec += (time_t)seconds;
    until.tv_nsec += (long)((seconds - (double)(time_t)seconds) * 1e9);
    if (until.tv_nsec >= 1000000000L) {
        until.tv_sec += 1;
        until.tv_nsec -= 1000000000L;
    }
    if (sem_clockwait != NULL) {
        sem_clockwait(&released_signal, clock, &until);
    } else {
        sem_timedwait(&released_signal, &until);
    }
}

/* Takes the released leases, the first released first. */
static Lease *take_released(void) {
    Lease *last_first = atomic_exchange(&released, NULL), *first_first = NULL;
    while (last_first != NULL) {
        Lease *next = last_first->next;
        last_first->next = first_first;
        first_first = last_first;
        last_first = next;
    }
    return first_first;
}

/* Does something to every lease of a list, which may take it off. */
static void for_each(Lease *lease, void (*act)(Lease *)) {
    while (lease != NULL) {
        Lease *next = lease->next;
        act(lease);
        lease = next;
    }
}

/* Turns the released leases into a list of their keys. */
static PyObject *collect_released(void) {
    PyObject *keys = PyList_New(0);
    if (keys == NULL) {
        return NULL;
    }
    Lease *taken = take_released();
    for (Lease *lease = taken; lease != NULL; lease = lease->next) {
        PyObject *key = PyLong_FromUnsignedLongLong(lease->key);
        if (key == NULL || PyList_Append(keys, key) != 0) {
            Py_XDECREF(key);
            Py_DECREF(keys);
            for_each(taken, push_released); /* out of memory: for the next call */
            return NULL;
        }
        Py_DECREF(key);
    }
    for_each(taken, drop_memory);
    return keys;
}

/* wait(seconds): the keys released meanwhile; negative waits for ever, and wake() ends it early. */
static PyObject *native_wait(PyObject *module, PyObject *argument) {
    (void)module;
    double seconds = PyFloat_AsDouble(argument);
    if (seconds == -1.0 && PyErr_Occurred()) {
        return NULL;
    }
    if (!(seconds <= LONGEST_WAIT)) { /* also what is no number: time_t could not hold it */
        seconds = LONGEST_WAIT;
    }
    if (atomic_load(&released) == NULL) {
        Py_BEGIN_ALLOW_THREADS wait_for_signal(seconds);
        Py_END_ALLOW_THREADS
    }
    return collect_released();
}

/* wake(): lets the thread in wait() return. */
static PyObject *native_wake(PyObject *module, PyObject *unused) {
    (void)module;
    (void)unused;
    sem_post(&released_signal);
    Py_RETURN_NONE;
}

typedef int (*IsCapturing)(void *stream, int *status);
typedef int (*EventRecord)(void *event, void *stream);

/* Records the event unless the stream captures, before or after: then the event must never be waited for. */
static int check_and_record(IsCapturing is_capturing, EventRecord record, void *stream, void *event,
                            int *capturing) {
    int code = is_capturing(stream, capturing);
    if (code != 0 || *capturing != 0) {
        return code;
    }
    code = record(event, stream);
    if (code != 0) {
        return code;
    }
    return is_capturing(stream, capturing);
}

/* record(is_capturing, event_record, stream, event): (CUresult, whether the stream captures), in one step. */
static PyObject *native_record(PyObject *module, PyObject *args) {
    (void)module;
    unsigned long long is_capturing, event_record, stream, event;
    if (!PyArg_ParseTuple(args, "KKKK", &is_capturing, &event_record, &stream, &event)) {
        return NULL;
    }
    int capturing = 0, code;
    Py_BEGIN_ALLOW_THREADS code =
        check_and_record((IsCapturing)(uintptr_t)is_capturing, (EventRecord)(uintptr_t)event_record,
                         (void *)(uintptr_t)stream, (void *)(uintptr_t)event, &capturing);
    Py_END_ALLOW_THREADS return Py_BuildValue("(iN)", code, PyBool_FromLong(capturing));
}

typedef int (*HostRegister)(void *pointer, size_t nbytes, unsigned flags);

/* register(host_register, pointer, nbytes, flags, results): appends (CUresult,) before Python can raise
 * anything. */
static PyObject *native_register(PyObject *module, PyObject *args) {
    (void)module;
    unsigned long long host_register, pointer, nbytes;
    unsigned flags;
    PyObject *results;
    if (!PyArg_ParseTuple(args, "KKKIO!", &host_register, &pointer, &nbytes, &flags, &PyList_Type,
                          &results)) {
        return NULL;
    }
    int code;
    Py_BEGIN_ALLOW_THREADS code =
        ((HostRegister)(uintptr_t)host_register)((void *)(uintptr_t)pointer, (size_t)nbytes, flags);
    Py_END_ALLOW_THREADS PyObject *result = Py_BuildValue("(i)", code);
    if (result == NULL || PyList_Append(results, result) != 0) {
        Py_XDECREF(result);
        return NULL;
    }
    Py_DECREF(result);
    Py_RETURN_NONE;
}

/* live_exports(): how many exports of all leases are alive. */
static PyObject *native_live_exports(PyObject *module, PyObject *unused) {
    (void)module;
    (void)unused;
    return PyLong_FromLongLong(atomic_load(&live_exports));
}

/* live_graphs(): how many holds of CUDA graphs there are on all leases. */
static PyObject *native_live_graphs(PyObject *module, PyObject *unused) {
    (void)module;
    (void)unused;
    return PyLong_FromLongLong(atomic_load(&live_graphs));
}

/* leak(object): keeps the object to the end of the process, finalisation included. */
static PyObject *native_leak(PyObject *module, PyObject *object) {
    (void)module;
    Py_INCREF(object);
    Py_RETURN_NONE;
}

static PyMethodDef module_methods[] = {
    {"wait", native_wait, METH_O, "wait(seconds)\n--\n\nThe keys of the leases released meanwhile."},
    {"wake", native_wake, METH_NOARGS, "wake()\n--\n\nLet wait() return."},
    {"record", native_record, METH_VARARGS,
     "record(is_capturing, event_record, stream, event)\n--\n\nRecord unless capturing."},
    {"register", native_register, METH_VARARGS,
     "register(host_register, pointer, nbytes, flags, results)\n--\n\nRegister, and note the CUresult."},
    {"live_exports", native_live_exports, METH_NOARGS,
     "live_exports()\n--\n\nNumber of live exports of all leases."},
    {"live_graphs", native_live_graphs, METH_NOARGS,
     "live_graphs()\n--\n\nNumber of holds of CUDA graphs on all leases."},
    {"leak", native_leak, METH_O, "leak(object)\n--\n\nKeep the object to the end of the process."},
    {NULL, NULL, 0, NULL},
};

/* A thread that the child of a fork does not have may have had the lock, and left the list halfway. */
static void renew_spare(void) {
    spare = NULL;
    atomic_flag_clear(&spare_lock);
}

/* Sets up what there is one of in a process: a second module, such as a subinterpreter's, would share the
 * list. */
static bool claim_process(void) {
    static atomic_flag claimed = ATOMIC_FLAG_INIT;
    if (atomic_flag_test_and_set(&claimed)) {
        PyErr_SetString(PyExc_ImportError, "cannot load dlwrap more than once per process");
        return false;
    }
    errno = pthread_atfork(NULL, NULL, renew_spare);
    if (errno != 0 || sem_init(&released_signal, 0, 0) != 0) {
        PyErr_SetFromErrno(PyExc_OSError);
        return false;
    }
    return true;
}

/* Fills the module. */
static int execute_module(PyObject *module) {
    if (!claim_process()) {
        return -1;
    }
    PyObject *exporter = PyType_FromSpec(&exporter_spec);
    if (exporter == NULL || PyModule_AddObject(module, "Exporter", exporter) != 0) {
        Py_XDECREF(exporter);
        return -1;
    }
    return 0;
}

static PyModuleDef_Slot module_slots[] = {
    {Py_mod_exec, execute_module},
#ifdef Py_mod_gil
    {Py_mod_gil, Py_MOD_GIL_NOT_USED},
#endif
    {0, NULL},
};

static PyModuleDef module_definition = {
    PyModuleDef_HEAD_INIT,
    .m_name = "_native",
    .m_methods = module_methods,
    .m_slots = module_slots,
};

/* The entry point. */
PyMODINIT_FUNC PyInit__native(void) {
    return PyModuleDef_Init(&module_definition);
}
